"""One file, several processes and threads: everybody sees what was written, and nobody waits for a writer."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from forked import fork
from test_gallery_contract import vectors
from wording import refuses

from fixstar.errors import GalleryUnavailableError
from fixstar.gallery import SqliteGallery, open_gallery
from fixstar.workspace.items import update_payload

WRITER = """
import sys
import numpy as np
from fixstar.gallery import SqliteGallery
with SqliteGallery(sys.argv[1]) as gallery:
    for line in sys.stdin:
        name, version = line.split()
        if name == "end":
            break
        if version == "-":
            gallery.delete([name])
        else:
            row = np.zeros((1, 8), np.float32)
            row[0, int(name) % 8] = 1
            gallery.upsert(version, [name], row)
        print("done", flush=True)
"""


def change_payload(address: str, name: str, go: Path) -> None:
    """In a process of its own: set 25 fields of the item 0000, one after the other."""
    with open_gallery(address, create=False) as gallery:
        while not go.exists():
            time.sleep(0.001)
        for step in range(25):
            update_payload(gallery, "0000", {f"{name} {step}": True})


def changed_by_processes(address: str, folder: Path) -> set[str]:
    """Three processes set fields of one item, all at once; the fields that were acknowledged."""
    names = ["a", "b", "c"]
    running = [fork(change_payload, address, name, folder / "go") for name in names]
    (folder / "go").touch()
    for one in running:
        one.join(120)
    assert [one.exitcode for one in running] == [0, 0, 0]
    return {f"{name} {step}" for name in names for step in range(25)}


def gallery_of(path: Path, items: int = 0) -> SqliteGallery:
    gallery = SqliteGallery(path)
    gallery.create_version("v1", 8)
    gallery.create_version("v2", 8)
    if items:
        gallery.upsert("v1", [f"{i:04}" for i in range(items)], vectors(items, 8))
    return gallery


def test_another_process_is_seen_by_the_next_search(tmp_path: Path) -> None:
    query = np.eye(8, dtype=np.float32)[3:4]
    with gallery_of(tmp_path / "g.db") as gallery:
        assert gallery.search("v1", query) == [[]]
        command = [sys.executable, "-c", WRITER, str(gallery.path)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            for version, expected in (("v1", ["v1"]), ("v2", ["v2"]), ("-", [])):
                other.stdin.write(f"3 {version}\n")
                other.stdin.flush()
                assert other.stdout.readline() == "done\n"
                assert [hit.version for hit in gallery.search("v1", query)[0]] == expected
            other.stdin.write("end -\n")


def test_opening_a_gallery_twice_keeps_the_locks_of_the_first(tmp_path: Path) -> None:
    with gallery_of(tmp_path / "g.db") as gallery:
        SqliteGallery(gallery.path).close()
        for name in (
            "1",
            "2",
        ):  # another process that comes and goes must not believe that it is the last one
            subprocess.run(
                [sys.executable, "-c", WRITER, str(gallery.path)],
                input=f"{name} v1\n",
                text=True,
                check=True,
            )
            gallery.upsert("v1", [f"own {name}"], vectors(1, 8))
        command = (
            "import sys; from fixstar.gallery import SqliteGallery; "
            "print(SqliteGallery(sys.argv[1]).count()['v1'])"
        )
        seen = subprocess.run(
            [sys.executable, "-c", command, str(gallery.path)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert seen.stdout == "4\n"


def test_a_new_version_of_another_writer_is_seen(tmp_path: Path) -> None:
    with gallery_of(tmp_path / "g.db", 5) as gallery, SqliteGallery(tmp_path / "g.db") as other:
        gallery.search("v1", vectors(1, 8))
        other.create_version("v3", 4)
        other.upsert("v3", ["x"], vectors(1, 4))
        assert len(gallery.search("v3", vectors(1, 4))[0]) == 6


def test_threads_search_while_one_writes(tmp_path: Path) -> None:
    """An item that moves to and fro is found in every search exactly once, with the vector of its version."""
    rows = np.eye(8, dtype=np.float32)
    stop = threading.Event()
    with gallery_of(tmp_path / "g.db", 200) as gallery:
        gallery.upsert("v1", ["mover"], rows[:1])

        def search() -> int:
            searches = 0
            while not stop.is_set() or searches < 3:
                (hits,) = gallery.search("v1", rows[:1], k=400)
                found = [(hit.version, round(hit.score, 5)) for hit in hits if hit.id == "mover"]
                assert found in ([("v1", 1.0)], [("v2", 0.0)])
                assert len(hits) in (201, 202)
                searches += 1
            return searches

        with ThreadPoolExecutor(3) as pool:
            searching = [pool.submit(search) for _ in range(3)]
            for step in range(40):
                version, row = ("v2", rows[1:2]) if step % 2 == 0 else ("v1", rows[:1])
                gallery.upsert(version, ["mover"], row)
                gallery.upsert("v1", ["extra"], rows[2:3]) if step % 4 < 2 else gallery.delete(
                    ["extra"]
                )
            stop.set()
            assert all(thread.result() >= 3 for thread in searching)


def test_threads_write_at_once(tmp_path: Path) -> None:
    with gallery_of(tmp_path / "g.db") as gallery, ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(gallery.upsert, "v1", [f"{t}-{i}"], vectors(1, 8))
            for t in range(4)
            for i in range(5)
        ]
        for job in jobs:
            job.result()
        assert gallery.count()["v1"] == len(gallery.search("v1", vectors(1, 8), k=50)[0]) == 20


def test_a_search_does_not_wait_for_a_writer_and_a_second_writer_is_told(tmp_path: Path) -> None:
    with (
        gallery_of(tmp_path / "g.db", 5) as gallery,
        SqliteGallery(tmp_path / "g.db", wait=0.05) as second,
    ):  # who waits, fails

        def interrupted_write() -> None:
            with gallery._writing() as db:
                db.execute("DELETE FROM items")
                assert len(second.search("v1", vectors(1, 8))[0]) == 5
                assert second.count()["v1"] == len(list(second.iterate())) == 5
                with refuses(GalleryUnavailableError):
                    second.upsert("v1", ["x"], vectors(1, 8))
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted_write()
        assert len(second.search("v1", vectors(1, 8))[0]) == len(list(gallery.iterate())) == 5
        second.upsert("v1", ["x"], vectors(1, 8))
        assert len(gallery.search("v1", vectors(1, 8))[0]) == 6


def test_many_processes_may_make_the_same_gallery(tmp_path: Path) -> None:
    code = (
        "import sys; from fixstar.gallery import SqliteGallery; SqliteGallery(sys.argv[1]).close()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "g.db")]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in started:
        assert process.communicate()[1] == ""
        assert process.returncode == 0
    with SqliteGallery(tmp_path / "g.db") as gallery:
        assert gallery.count() == {}


def test_payload_fields_set_by_several_processes_are_all_kept(tmp_path: Path) -> None:
    with gallery_of(tmp_path / "g.db", 5) as gallery:
        acknowledged = changed_by_processes(str(gallery.path), tmp_path)
        assert gallery.get(["0000"])["0000"].payload.keys() == acknowledged
