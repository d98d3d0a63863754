"""What is particular about a gallery on a PostgreSQL server: others at work, filters in SQL, names, the index."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from postgres_server import fresh_url, shared_server
from test_gallery_contract import vectors
from test_sqlite_sharing import changed_by_processes
from wording import refuses

from fixstar.errors import GalleryError
from fixstar.gallery import copy_gallery, open_gallery, verify_gallery
from fixstar.gallery.filters import payload_test
from fixstar.gallery.memory import MemoryGallery
from fixstar.gallery.postgres import WRITE, PostgresGallery
from fixstar.geometry import unit
from fixstar.service.problems import Problem

WRITER = """
import sys
import numpy as np
from fixstar.gallery import open_gallery
with open_gallery(sys.argv[1], create=False) as gallery:
    for line in sys.stdin:
        version = line.strip()
        gallery.delete(["x"]) if version == "-" else gallery.upsert(version, ["x"], np.eye(8, dtype=np.float32)[:1])
        print("done", flush=True)
"""


@pytest.fixture
def url() -> str:
    return fresh_url()


@pytest.fixture
def gallery(url: str) -> Iterator[PostgresGallery]:
    with PostgresGallery(url) as opened:
        for name in ("v1", "v2"):
            opened.create_version(name, 8)
        yield opened


def test_another_process_is_seen_by_the_next_search(gallery: PostgresGallery, url: str) -> None:
    query = np.eye(8, dtype=np.float32)[:1]
    command = [sys.executable, "-c", WRITER, url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        for version, expected in (("v1", ["v1"]), ("v2", ["v2"]), ("-", [])):
            other.stdin.write(f"{version}\n")
            other.stdin.flush()
            assert other.stdout.readline() == "done\n"
            assert [hit.version for hit in gallery.search("v1", query)[0]] == expected
        other.stdin.close()


def test_payload_fields_set_by_several_processes_are_all_kept(
    gallery: PostgresGallery, url: str, tmp_path: Path
) -> None:
    gallery.upsert("v1", ["0000"], vectors(1, 8))
    acknowledged = changed_by_processes(url, tmp_path)
    assert gallery.get(["0000"])["0000"].payload.keys() == acknowledged


def test_threads_search_while_one_writes(gallery: PostgresGallery) -> None:
    """An item that moves to and fro is found in every search exactly once, with the vector of its version."""
    rows, stop = np.eye(8, dtype=np.float32), threading.Event()
    gallery.upsert("v1", [f"{i:03}" for i in range(100)], vectors(100, 8))
    gallery.upsert("v1", ["mover"], rows[:1])

    def search() -> int:
        searches = 0
        while not stop.is_set() or searches < 3:
            (hits,) = gallery.search("v1", rows[:1], k=200)
            found = [(hit.version, round(hit.score, 5)) for hit in hits if hit.id == "mover"]
            assert found in ([("v1", 1.0)], [("v2", 0.0)])
            assert len(hits) == 101
            searches += 1
        return searches

    with ThreadPoolExecutor(2) as pool:
        searching = [pool.submit(search) for _ in range(2)]
        for step in range(30):
            version, row = ("v2", rows[1:2]) if step % 2 == 0 else ("v1", rows[:1])
            gallery.upsert(version, ["mover"], row)
        stop.set()
        assert all(thread.result() >= 3 for thread in searching)


def test_more_threads_than_connections_write_the_same_items_at_once(url: str) -> None:
    with PostgresGallery(url, connections=2) as gallery, ThreadPoolExecutor(6) as pool:
        gallery.create_version("v1", 8)
        gallery.create_version("v2", 8)
        names = [str(i) for i in range(20)]
        jobs = [
            pool.submit(
                gallery.upsert, f"v{1 + t % 2}", names[:: 1 if t % 3 else -1], vectors(20, 8, t)
            )
            for t in range(18)
        ]
        for job in jobs:
            job.result()
        assert (
            sum(gallery.count().values()) == len(gallery.search("v1", vectors(1, 8), k=50)[0]) == 20
        )
        assert verify_gallery(gallery) == []
    used = shared_server().execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fixstar'"
    )
    assert used[0][0] <= 2  # of other tests, still closing; none of these


def test_a_search_does_not_wait_for_a_writer_and_a_second_writer_is_told(
    gallery: PostgresGallery, url: str
) -> None:
    gallery.upsert("v1", ["a"], vectors(1, 8))

    def interrupted_write(second: PostgresGallery) -> None:
        with gallery._pool.transaction(WRITE) as db:
            db.execute("UPDATE gallery SET written = written + 1")
            db.execute("DELETE FROM items")
            assert (
                len(second.search("v1", vectors(1, 8))[0])
                == second.count()["v1"]
                == len(list(second.iterate()))
                == 1
            )
            with pytest.raises(GalleryError, match="another writer"):
                second.upsert("v1", ["x"], vectors(1, 8))
            raise KeyboardInterrupt

    with PostgresGallery(url, wait=0.05) as second:
        with pytest.raises(KeyboardInterrupt):
            interrupted_write(second)
        second.upsert("v1", ["x"], vectors(1, 8))
        assert sorted(item.id for item in gallery.iterate()) == ["a", "x"]


def test_many_processes_may_make_the_same_gallery(url: str) -> None:
    code = "import sys; from fixstar.gallery import open_gallery; open_gallery(sys.argv[1]).close()"
    command = [sys.executable, "-c", code, url]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in started:
        assert process.communicate()[1] == ""
        assert process.returncode == 0
    with open_gallery(url, create=False) as gallery:
        assert gallery.count() == {}


VALUES: list[Any] = [
    *(
        0,
        1,
        1.0,
        -0.0,
        0.1,
        0.30000000000000004,
        3,
        -7.5,
        2**53,
        2**53 + 1,
        float(2**53),
        10**23,
        1e23,
        1e300,
        5e-324,
    ),
    *(
        True,
        False,
        None,
        "",
        "1",
        "true",
        "a",
        "Z",
        "ü",
        "u\u0308",
        "\U0001f4f7",
        "\uffff",
        "a\0b",
        "\\u0000",
        'q"\\',
    ),
    *([], [1, True], [1.0, 1], ["a", ["b"]], [{"a": 1}], {"a": 1}, {"a": True}, {}),
]


def test_filters_in_sql_let_pass_what_python_lets_pass(gallery: PostgresGallery) -> None:
    """Every condition with every operand, against the test in Python: among them those that jsonb sees differently."""
    payloads: list[dict[str, Any]] = [{"x": value, "n": i} for i, value in enumerate(VALUES)] + [
        {"n": -1}
    ]
    gallery.upsert(
        "v1", [str(i) for i in range(len(payloads))], vectors(len(payloads), 8), payloads
    )
    scalars = [value for value in VALUES if not isinstance(value, dict)]
    ordered = [v for v in scalars if isinstance(v, (int, float, str)) and not isinstance(v, bool)]
    conditions = [{name: v} for name in ("eq", "ne") for v in VALUES]
    conditions += [{name: v} for name in ("gt", "ge", "lt", "le") for v in ordered[::2]]
    conditions += [{"in": VALUES[i::5]} for i in range(5)] + [
        {"in": []},
        {"exists": True},
        {"exists": False},
    ]
    conditions += [{"ge": 0, "lt": 1.5}, {"ge": "A", "ne": "a"}, {"eq": "\ud800"}]
    for condition in conditions:
        test = payload_test({"x": condition})
        expected = [payload["n"] for payload in payloads if test(payload)]
        (hits,) = gallery.search("v1", vectors(1, 8), k=100, where={"x": condition})
        assert sorted(hit.payload["n"] for hit in hits) == sorted(expected), condition


def test_a_filter_that_sql_cannot_decide_still_finds_the_nearest(gallery: PostgresGallery) -> None:
    rows = vectors(300, 8)
    payloads = [{"x": [{"a": i % 50}], "n": i} for i in range(300)]
    gallery.upsert("v1", [str(i) for i in range(300)], rows, payloads)
    for where in ({"x": [[{"a": 7}]][0]}, {"x": {"eq": [{"a": 7}]}, "n": {"lt": 250}}):
        (hits,) = gallery.search("v1", rows[:1], k=3, where=where)
        allowed = [i for i in range(300) if payload_test(where)(payloads[i])]
        best = sorted(allowed, key=lambda i: -float(rows[i] @ rows[0]))[:3]
        assert [hit.payload["n"] for hit in hits] == best


def test_payloads_come_back_to_the_letter(gallery: PostgresGallery) -> None:
    payload = {
        "z": 1,
        "a": 1.0,
        "zero": -0.0,
        "big": 10**400,
        "e": 1e300,
        "nul": "a\0b",
        "list": VALUES,
        "": {"b": 1, "a": 2},
    }
    gallery.upsert("v1", ["x"], vectors(1, 8), [payload])
    for found in (
        gallery.get(["x"])["x"].payload,
        gallery.search("v1", vectors(1, 8))[0][0].payload,
    ):
        assert json.dumps(found) == json.dumps(payload)


def test_vectors_come_back_to_the_bit_and_copies_are_equal(gallery: PostgresGallery) -> None:
    with MemoryGallery() as memory:
        memory.create_version("v1", 8)
        memory.create_version("v2", 8)
        memory.create_version(
            "short", 2, np.random.default_rng(0).standard_normal((7, 2)).astype(np.float32)
        )
        memory.upsert(
            "v1",
            [f"{i:04}" for i in range(1100)],
            vectors(1100, 8),
            [{"n": i} for i in range(1100)],
        )
        memory.upsert("short", ["s"], vectors(1, 2))
        copy_gallery(memory, gallery)
        for mine, theirs in zip(memory.iterate(), gallery.iterate(), strict=True):
            assert (mine.id, mine.version, mine.payload) == (
                theirs.id,
                theirs.version,
                theirs.payload,
            )
            assert mine.vector.tobytes() == theirs.vector.tobytes()
        query = vectors(2, 8, seed=5)
        assert gallery.search("v1", query) == memory.search("v1", query)


def test_vectors_closer_than_rounding_come_in_their_true_order(gallery: PostgresGallery) -> None:
    """The server's own scores, in float32, would mix them up and leave some out."""
    noise = np.random.default_rng(0).standard_normal((400, 8)).astype(np.float32)
    rows = unit(vectors(1, 8) + np.float32(2e-7) * noise)
    with MemoryGallery() as memory:
        memory.create_version("v1", 8)
        for store in (memory, gallery):
            store.upsert("v1", [f"{i:03}" for i in range(400)], rows)
        for k in (1, 5, 40):
            assert gallery.search("v1", rows[:3], k=k) == memory.search("v1", rows[:3], k=k)


def test_names_are_only_names() -> None:
    """Galleries of odd names live beside each other; a name never becomes a command."""
    server, names = (
        shared_server(),
        ['we"ird', "o'brien; DROP SCHEMA public CASCADE; --", "日本 %s", "a.b", "Fixstar"],
    )
    for name in names:
        with open_gallery(server.url(quote(name, safe=""))) as gallery:
            gallery.create_version("v1", 8)
            for word in ("v'1", '"v"; DROP TABLE items', "%s", "{}"):
                gallery.upsert("v1", [f"{name}-{word}'\""], vectors(1, 8), [{word: name}])
            assert (
                len(gallery.search("v1", vectors(1, 8), where={'"v"; DROP TABLE items': name})[0])
                == 1
            )
    for name in names:
        with open_gallery(server.url(quote(name, safe="")), create=False) as gallery:
            assert [item.id.startswith(name) for item in gallery.iterate()] == [True] * 4
    assert server.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'public'") == [(1,)]


@pytest.mark.parametrize("name", ["", "pg_mine", "$user", "x" * 64, "%00"])
def test_names_that_postgres_cannot_have(name: str) -> None:
    with refuses(GalleryError):
        PostgresGallery(f"postgresql:///postgres?gallery={name}")


def test_an_id_that_no_index_can_hold_is_refused_and_not_told_as_an_outage(
    gallery: PostgresGallery,
) -> None:
    rng = np.random.default_rng(0)
    longest = "".join(map(chr, rng.integers(0x21, 0x7F, 2_600)))  # nothing that could be compressed
    too_long = "".join(
        map(chr, rng.integers(0x4E00, 0x9FFF, 1_024))
    )  # as many characters as the service allows
    for name in (longest + "x", too_long):
        with refuses(GalleryError) as told:
            gallery.upsert("v1", ["fine", name], vectors(2, 8))
        assert Problem.of(told.value).status == 400
        assert gallery.get([name]) == {}  # asking for it, or deleting it, is no error
        assert gallery.delete([name]) == 0
    gallery.upsert("v1", [longest], vectors(1, 8))
    assert [item.id for item in gallery.iterate()] == [longest]
