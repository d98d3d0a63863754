"""A gallery that a real Milvus server searches: kills, other processes, filters, translations, restored items."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import upgrade
from milvus_server import (
    DroppedGallery,
    OwnServer,
    RunningServer,
    fresh_url,
    milvus_gallery,
    mortal_server,
)
from postgres_server import fresh_url as postgres_url
from shops import indexed_shop
from typed import typed

from fixstar.errors import GalleryError, GalleryUnavailableError, ItemChangedError
from fixstar.gallery import (
    Gallery,
    MemoryGallery,
    MilvusGallery,
    PostgresGallery,
    Question,
    SqliteGallery,
    copy_gallery,
    open_gallery,
)
from fixstar.gallery.addresses import parse_milvus_address
from fixstar.gallery.filters import payload_test
from fixstar.geometry import unit
from fixstar.workspace import BackfillOptions, Workspace
from fixstar.workspace.files import open_workspace_gallery

SECONDS = 180.0  # that a server may need to be there again
LATER = 70.0  # seconds after a restart in which a server was seen to lose vectors


def vectors(count: int, width: int, seed: int = 0) -> Any:
    return unit(np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32))


def vector(number: int) -> Any:
    return vectors(1, 8, seed=number)


@pytest.fixture
def gallery(tmp_path: Path) -> Iterator[MilvusGallery]:
    with milvus_gallery(tmp_path) as made:
        assert isinstance(made, MilvusGallery)
        yield made


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    address = fresh_url(tmp_path / "gallery.db")
    yield address
    again = parse_milvus_address(address)
    DroppedGallery(again, SqliteGallery(again.items)).close()


@pytest.fixture
def mortal() -> Iterator[OwnServer | RunningServer]:
    """A server that may be killed, while other tests go on with theirs."""
    made = mortal_server()
    yield made
    if isinstance(made, OwnServer):
        made.remove()


def until_answered(call: Callable[[], Any]) -> Any:
    """What a call returns once the server is there again."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            return call()
        except GalleryUnavailableError:
            if time.monotonic() > end:
                raise
            time.sleep(1)


def found(gallery: Gallery, version: str, query: Any, count: int) -> set[str]:
    return {hit.id for hit in gallery.search(version, query, k=count)[0]}


def test_what_milvus_excludes_is_excluded_by_the_filter(gallery: MilvusGallery) -> None:
    """Every condition that Milvus decides, over values of all kinds: the hits are those that Python lets through."""
    values: list[Any] = [
        1,
        1.0,
        2,
        -3,
        2.5,
        0,
        True,
        False,
        None,
        "1",
        "a",
        "b",
        "Z",
        "ü",
        "",
        [1],
        ["a"],
        {"x": 1},
    ]
    values += [2**53 + 1, 1e300, "x" * 70_000, "nul \0", 'quote "']
    payloads: list[dict[str, Any]] = [{"f": value} for value in values]
    payloads += [{}, {"g": 1}, {"f": 1, "long": "x" * 70_000}, {"f": 2, "large": 2**60}]
    gallery.create_version("v1", 4)
    gallery.upsert(
        "v1", [str(i) for i in range(len(payloads))], vectors(len(payloads), 4), payloads
    )
    operands: list[Any] = [
        1,
        1.0,
        2,
        -3,
        2.5,
        0,
        True,
        None,
        "1",
        "a",
        "Z",
        "ü",
        "",
        'quote "',
        2**53 + 1,
    ]
    wheres: list[dict[str, Any]] = [{"f": operand} for operand in operands]
    wheres += [
        {"f": {name: operand}}
        for name in ("gt", "ge", "lt", "le")
        for operand in (1, -2.5, 2.0, "a", "ü")
    ]
    wheres += [
        {"f": {"in": [1, "a"]}},
        {"f": {"in": []}},
        {"f": {"ne": 1}},
        {"f": {"exists": False}},
    ]
    wheres += [
        {"f": 1, "long": {"exists": True}},
        {"f": {"gt": 0, "lt": 2}},
        {"f": {"in": [1, None]}},
    ]
    for where in wheres:
        test = payload_test(where)
        (hits,) = gallery.search("v1", vectors(1, 4, seed=9), k=100, where=where)
        expected = {str(i) for i, payload in enumerate(payloads) if test(payload)}
        assert {hit.id for hit in hits} == expected, where


def test_milvus_and_not_the_items_gallery_answers(
    gallery: MilvusGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.create_version("v1", 8)
    gallery.upsert("v1", ["a", "b"], vectors(2, 8), [{"n": 1}, {"n": 2}])

    def refuse(*_: Any) -> Any:
        raise AssertionError("the items were searched")

    monkeypatch.setattr(gallery.items, "_search", refuse)
    monkeypatch.setattr(gallery.items, "_ask", refuse)
    assert found(gallery, "v1", vectors(1, 8), 2) == {"a", "b"}
    (hits,) = gallery.search("v1", vectors(1, 8), where={"n": 2})
    assert [hit.id for hit in hits] == ["b"]


def test_translated_questions_are_scored_in_full(gallery: MilvusGallery) -> None:
    """Two versions of different widths and a map between them: the same hits and scores as in memory."""
    rng = np.random.default_rng(0)
    matrix = np.linalg.qr(rng.standard_normal((8, 8)))[0][:, :6].astype(np.float32)
    old = vectors(60, 8)
    new = vectors(30, 6, seed=1)
    queries = vectors(3, 6, seed=2)
    forward = Question(
        "v1",
        own=unit(queries @ matrix.T),
        new=queries,
        forward=lambda rows: unit(rows @ matrix),
        key="map",
        weight=0.7,
        slope=0.9,
        offset=0.05,
    )
    with MemoryGallery() as memory:
        answers = []
        for one in (memory, gallery):
            one.create_version("v1", 8)
            one.create_version("v2", 6)
            one.upsert(
                "v1", [f"o{i}" for i in range(60)], old, [{"even": i % 2 == 0} for i in range(60)]
            )
            one.upsert(
                "v2", [f"n{i}" for i in range(30)], new, [{"even": i % 2 == 0} for i in range(30)]
            )
            for where in (None, {"even": True}):
                answers.append(one.ask([forward, Question("v2", own=queries)], k=20, where=where))
    assert answers[:2] == answers[2:]
    assert {hit.version for hit in answers[2][0]} == {"v1", "v2"}


def test_several_processes_see_what_each_of_them_wrote(url: str) -> None:
    with open_gallery(url) as one, open_gallery(url) as two:
        one.create_version("v1", 8)
        for step in range(3):
            one.upsert("v1", [f"one {step}"], vector(2 * step))
            assert found(two, "v1", vector(2 * step), 1) == {f"one {step}"}
            two.upsert("v1", [f"two {step}"], vector(2 * step + 1))
            assert found(one, "v1", vector(2 * step + 1), 1) == {f"two {step}"}
        one.delete(["one 0"])
        assert "one 0" not in found(two, "v1", vector(0), 10)


def test_items_may_be_on_postgresql(tmp_path: Path) -> None:
    """Writes, a filter, a move and a writer that ended before it sent anything."""
    address = parse_milvus_address(fresh_url(tmp_path))
    with DroppedGallery(address, PostgresGallery(postgres_url())) as gallery:
        gallery.create_version("v1", 8)
        gallery.create_version("v2", 6)
        gallery.upsert(
            "v1", [str(i) for i in range(50)], vectors(50, 8), [{"n": i} for i in range(50)]
        )
        (hits,) = gallery.search("v1", vectors(50, 8)[7:8], k=3, where={"n": {"ge": 7}})
        assert (hits[0].id, hits[0].payload, len(hits)) == ("7", {"n": 7}, 3)
        gallery.items.upsert("v2", ["7"], vectors(1, 6), [{"n": 70}])
        (hits,) = gallery.search("v2", vectors(1, 6), k=60)
        assert (hits[0].id, hits[0].version, len(hits)) == ("7", "v2", 50)
        item = gallery.get(["3"])["3"]
        gallery.update_payload("3", {"price": 1}, item.revision)
        with pytest.raises(ItemChangedError, match="Read it again"):
            gallery.update_payload("3", {"price": 2}, item.revision)
        assert [hit.id for hit in gallery.search("v1", vector(0), where={"price": 1})[0]] == ["3"]


def test_a_writer_that_ended_before_it_sent_anything_lost_nothing(gallery: MilvusGallery) -> None:
    """Its items are in the items' gallery alone, and old vectors of them in Milvus: searches mend both."""
    gallery.create_version("v1", 8)
    gallery.create_version("v2", 8)
    gallery.upsert("v1", ["kept", "moved", "removed"], vectors(3, 8))
    assert len(found(gallery, "v1", vectors(1, 8), 3)) == 3
    gallery.items.upsert("v2", ["moved", "new"], vectors(2, 8, seed=5))
    gallery.items.delete(["removed"])
    for _ in range(2):
        (hits,) = gallery.search("v1", vectors(3, 8)[1:2], k=10)
        assert {(hit.id, hit.version) for hit in hits} == {
            ("kept", "v1"),
            ("moved", "v2"),
            ("new", "v2"),
        }
    left = gallery._server.nearest(gallery._collection(gallery._run, "v1"), vectors(1, 8), 10, "")
    assert [row.item for row in left] == ["kept"]  # the old vectors are gone from Milvus too


def test_restored_items_replace_what_milvus_holds(url: str, tmp_path: Path) -> None:
    with open_gallery(url) as gallery:
        gallery.create_version("v1", 8)
        gallery.upsert("v1", ["a"], vector(1))
        gallery.items.flush()  # type: ignore[attr-defined]
        shutil.copy(tmp_path / "gallery.db", tmp_path / "backup.db")
        gallery.upsert("v1", ["b", "c"], vectors(2, 8, seed=3))
    for file in tmp_path.glob("gallery.db*"):
        file.unlink()
    shutil.copy(tmp_path / "backup.db", tmp_path / "gallery.db")
    with open_gallery(url) as gallery:
        assert found(gallery, "v1", vector(1), 10) == {"a"}
        gallery.upsert("v1", ["d"], vector(2))
        assert found(gallery, "v1", vector(1), 10) == {"a", "d"}


def test_a_name_on_the_server_belongs_to_one_gallery(url: str, tmp_path: Path) -> None:
    with open_gallery(url) as gallery:
        gallery.create_version("v1", 8)
        gallery.upsert("v1", ["a"], vector(1))
    other = url.replace("gallery.db", "other.db")
    with pytest.raises(GalleryError, match="holds the vectors of other items"):
        open_gallery(other)
    with open_gallery(url) as gallery:
        assert found(gallery, "v1", vector(1), 10) == {"a"}
    assert tmp_path.joinpath("other.db").exists()


def test_a_gallery_opened_for_reading_sends_nothing_and_finds_everything(url: str) -> None:
    with open_gallery(url) as gallery, open_gallery(url, read_only=True) as reader:
        gallery.create_version("v1", 8)
        gallery.upsert("v1", ["a"], vector(1))
        assert found(reader, "v1", vector(1), 10) == {"a"}
        gallery.items.upsert("v1", ["b"], vector(2))  # type: ignore[attr-defined]
        assert found(reader, "v1", vector(1), 10) == {"a", "b"}
        with pytest.raises(GalleryError, match="reading only"):
            reader.build_index()


def test_an_hnsw_index_answers_approximate_searches_and_the_items_exact_ones(
    tmp_path: Path,
) -> None:
    with milvus_gallery(tmp_path, index="HNSW") as gallery:
        gallery.create_version("v1", 8)
        rows = vectors(300, 8)
        gallery.upsert("v1", [str(i) for i in range(300)], rows, [{"n": i} for i in range(300)])
        (state,) = gallery.build_index()
        assert (state.version, state.kind, state.items) == ("v1", "Milvus HNSW", 300)
        for exact in (True, False):
            hits = gallery.search("v1", rows[:5], k=3, exact=exact, where={"n": {"lt": 200}})
            assert [one[0].id for one in hits] == [str(i) for i in range(5)]
            assert all(hit.payload["n"] < 200 for one in hits for hit in one)


def test_a_copy_of_a_gallery_holds_every_item(gallery: MilvusGallery, tmp_path: Path) -> None:
    gallery.create_version("v1", 8)
    gallery.upsert("v1", [str(i) for i in range(20)], vectors(20, 8), [{"n": i} for i in range(20)])
    with SqliteGallery(tmp_path / "copy.db") as copy:
        copy_gallery(gallery, copy)
        stored = {item.id: (item.vector.tobytes(), item.payload) for item in copy.iterate()}
    assert stored == {item.id: (item.vector.tobytes(), item.payload) for item in gallery.iterate()}


def test_a_workspace_is_backfilled_and_copied(url: str, tmp_path: Path) -> None:
    """Its items lie in a file outside of it; a snapshot holds them, and every search meets all nine."""
    path = indexed_shop(tmp_path)
    moved = typed("gallery", "move", url, "-w", path)
    assert moved.code == 0, moved.err
    with Workspace(path) as space:
        assert isinstance(space.gallery, MilvusGallery)
        upgrade(space)
        query = next(iter(space.gallery.iterate())).vector[None]
        for budget, left in (("4", 5), ("all", 0)):
            space.backfill(BackfillOptions(budget))
            assert space.gallery.count() == {"v1": left, "v2": 9 - left}
            assert len(found(space.gallery, "v1", query, 20)) == 9
        stored = [
            (item.id, item.version, item.vector.tobytes(), item.payload)
            for item in space.gallery.iterate()
        ]
    taken = typed("snapshot", tmp_path / "backup", "-w", path)
    assert taken.code == 0, taken.err
    assert typed("restore", tmp_path / "backup", "-w", tmp_path / "again").code == 0
    with open_workspace_gallery(tmp_path / "again") as gallery:
        assert [
            (item.id, item.version, item.vector.tobytes(), item.payload)
            for item in gallery.iterate()
        ] == stored


WRITER = """
import sys
import numpy as np
from fixstar.gallery import open_gallery
from fixstar.geometry import unit
gallery = open_gallery(sys.argv[1])
for step in range(int(sys.argv[2]), 100_000):
    row = unit(np.random.default_rng(step).standard_normal((1, 8)).astype(np.float32))
    gallery.upsert(f"v{step % 2 + 1}", [str(step % 40)], row, [{"step": step}])
    print(step, flush=True)
"""


def test_nothing_acknowledged_is_lost_when_clients_are_killed(url: str) -> None:
    last = 0
    with open_gallery(url) as gallery:
        gallery.create_version("v1", 8)
        gallery.create_version("v2", 8)
        for writes in (3, 30, 12):
            writer = subprocess.Popen(
                [sys.executable, "-c", WRITER, url, str(last)],
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            assert writer.stdout is not None
            for _ in range(writes):
                assert writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
            last += writes + len(writer.stdout.read().split())
            writer.wait()
            require_last_steps(gallery, last)


def require_last_steps(gallery: Gallery, last: int) -> None:
    """Every item is found by the vector of its last acknowledged write; one more write may have been under way."""
    newest = {str(step % 40): step for step in range(last)}
    stored = gallery.get(list(newest))
    for name, step in newest.items():
        now = stored[name].payload["step"]
        assert now in (step, last if str(last % 40) == name else step)
        (hit,) = gallery.search("v1", vectors(1, 8, seed=now), k=1)[0]
        assert (hit.id, hit.payload["step"]) == (name, now)
        assert hit.score == pytest.approx(1, abs=1e-6)


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    mortal: OwnServer | RunningServer, tmp_path: Path
) -> None:
    """Writes go on without it, and searches say that it is away; when it is back, they find everything."""
    stopping = threading.Event()
    acknowledged: list[int] = []
    address = parse_milvus_address(
        fresh_url(f"{tmp_path / 'gallery.db'}", place=mortal.place) + "&timeout=5"
    )
    with DroppedGallery(address, SqliteGallery(address.items)) as gallery:
        gallery.create_version("v1", 8)
        gallery.create_version("v2", 8)
        gallery.upsert("v1", ["first"], vector(10_000))

        def write() -> None:
            step = 0
            while not stopping.is_set():
                row = vectors(1, 8, seed=step)
                gallery.upsert(f"v{step % 2 + 1}", [str(step % 40)], row, [{"step": step}])
                acknowledged.append(step)
                step += 1

        writing = threading.Thread(target=write)
        writing.start()
        try:
            time.sleep(2)
            mortal.kill()
            before = len(acknowledged)
            with pytest.raises(GalleryUnavailableError, match="did not answer"):
                gallery.search("v1", vector(10_000))
            while len(acknowledged) < before + 2:
                time.sleep(0.1)
            mortal.start()
        finally:
            stopping.set()
            writing.join()
        assert until_answered(lambda: found(gallery, "v1", vector(10_000), 1)) == {"first"}
        require_last_steps(gallery, acknowledged[-1] + 1)
        end = time.monotonic() + LATER
        while time.monotonic() < end:
            assert found(gallery, "v1", vector(10_000), 1) == {"first"}
            time.sleep(1)
        require_last_steps(gallery, acknowledged[-1] + 1)
