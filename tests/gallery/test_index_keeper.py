"""Approximate indexes that come in the background: nobody waits for them, and no moment of dying spoils one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_hnsw import WIDTH, clustered, graph, names
from wording import refuses

from fixstar.errors import GalleryError
from fixstar.gallery import SqliteGallery, hnsw, measured_recall
from fixstar.gallery.hnsw import HnswIndex, build_hnsw, index_path

COUNT = 1300


def filled(path: Path, count: int = COUNT, above: int = 1000) -> SqliteGallery:
    gallery = SqliteGallery(path, index_above=above)
    gallery.create_version("v1", WIDTH)
    gallery.upsert("v1", names(0, count), clustered(count, 1))
    return gallery


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def is_idle(gallery: SqliteGallery) -> bool:
    thread = gallery._keeper._thread
    return thread is None or not thread.is_alive()


def covered(gallery: SqliteGallery) -> int:
    index = graph(gallery)
    return 0 if index is None else len(index.numbers)


class Held:
    """Builds of an index wait until they are let go, or told to stop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()
        monkeypatch.setattr(hnsw, "build_hnsw", self.build)

    def build(
        self, rows: Any, keep_going: Callable[[], bool], *arguments: Any, **options: Any
    ) -> HnswIndex | None:
        self.begun.set()
        until(lambda: self.let_go.is_set() or not keep_going())
        return build_hnsw(rows, keep_going, *arguments, **options)


def test_an_index_is_built_beside_the_searches_and_swapped_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches return while it is built, and see every write."""
    queries, held = clustered(5, 2), Held(monkeypatch)
    with filled(tmp_path / "g.db") as gallery:
        assert len(gallery.search("v1", queries)) == 5
        assert is_idle(gallery)  # who asks for exact answers alone pays for no index
        gallery.search("v1", queries, exact=False)
        assert held.begun.wait(60)
        for step in range(6):
            gallery.upsert("v1", [f"new{step}"], clustered(1, 100 + step))
            ((hit,),) = gallery.search("v1", clustered(1, 100 + step), k=1, exact=False)
            assert hit.id == f"new{step}"
        assert covered(gallery) == 0
        held.let_go.set()
        until(lambda: covered(gallery) > 0 and is_idle(gallery))
        assert [(state.version, state.items) for state in gallery.indexes()] == [
            ("v1", covered(gallery))
        ]
        assert covered(gallery) >= COUNT
        assert measured_recall(gallery, "v1", clustered(100, 2)) > 0.97
        assert index_path(tmp_path / "g.db.index", "v1").exists()


def test_small_versions_get_no_index(tmp_path: Path) -> None:
    with filled(tmp_path / "g.db", above=COUNT) as gallery:
        gallery.search("v1", clustered(1, 2), exact=False)
        assert is_idle(gallery)
        assert gallery.indexes() == []
    assert not (tmp_path / "g.db.index").exists()


def test_an_index_follows_the_rows(tmp_path: Path) -> None:
    """New rows are added to a copy; when many are gone, it is rebuilt."""
    with filled(tmp_path / "g.db") as gallery:
        gallery.build_index()
        first = graph(gallery)
        gallery.upsert("v1", names(COUNT, COUNT + 900), clustered(900, 3))
        gallery.search("v1", clustered(1, 2), exact=False)
        until(lambda: is_idle(gallery))
        assert graph(gallery) is first
        gallery.upsert("v1", names(COUNT + 900, COUNT + 1200), clustered(300, 4))
        gallery.search("v1", clustered(1, 2), exact=False)
        until(lambda: is_idle(gallery))
        assert covered(gallery) == COUNT + 1200
        assert isinstance(first, HnswIndex)
        assert first.graph.ntotal == COUNT  # running searches still use it
        gallery.delete(names(0, 900))
        gallery.search("v1", clustered(1, 2), exact=False)
        until(lambda: is_idle(gallery))
        assert covered(gallery) == COUNT + 300
        assert measured_recall(gallery, "v1", clustered(100, 2)) > 0.97
        gallery.close()
        with SqliteGallery(tmp_path / "g.db") as again:
            assert [state.items for state in again.indexes()] == [COUNT + 300]


def test_another_process_reads_what_one_has_built(tmp_path: Path) -> None:
    code = (
        "import sys; from fixstar.gallery import SqliteGallery\n"
        "with SqliteGallery(sys.argv[1]) as gallery: print(gallery.build_index()[0].items)"
    )
    with filled(tmp_path / "g.db") as gallery:
        out = subprocess.check_output([sys.executable, "-c", code, str(gallery.path)], text=True)
        assert out.strip() == str(COUNT)
        gallery.search("v1", clustered(1, 2), exact=False)
        until(lambda: covered(gallery) == COUNT)
        until(lambda: is_idle(gallery))
        held = graph(gallery)
        gallery.upsert("v1", names(COUNT, COUNT + 1100), clustered(1100, 3))  # due for more
        subprocess.check_output([sys.executable, "-c", code, str(gallery.path)])
        gallery.search("v1", clustered(1, 2), exact=False)
        until(lambda: is_idle(gallery))
        assert covered(gallery) == COUNT + 1100
        assert graph(gallery) is not held


def test_only_one_process_builds(tmp_path: Path) -> None:
    from fixstar.durable import exclusive

    with filled(tmp_path / "g.db") as gallery:
        with exclusive(tmp_path / "g.db.index"):  # as another process would
            gallery.search("v1", clustered(1, 2), exact=False)
            until(lambda: is_idle(gallery))
            assert covered(gallery) == 0
        gallery._keeper._not_before = 0  # it looks again after some seconds
        gallery.search("v1", clustered(1, 2), exact=False)
        until(lambda: covered(gallery) == COUNT)


def test_closing_stops_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, gallery = Held(monkeypatch), filled(tmp_path / "g.db")
    gallery.search("v1", clustered(1, 2), exact=False)
    assert held.begun.wait(60)
    thread = gallery._keeper._thread
    assert thread is not None
    gallery.close()
    assert not thread.is_alive()
    assert not index_path(tmp_path / "g.db.index", "v1").exists()


UNFINISHED = """
import sys, time
from fixstar.gallery import SqliteGallery, hnsw
build = hnsw.build_hnsw
def build_until_told_to_stop(rows, keep_going, **options):
    while keep_going():
        time.sleep(0.005)
    return build(rows, keep_going, **options)
hnsw.build_hnsw = build_until_told_to_stop
gallery = SqliteGallery(sys.argv[1], index_above=10)
gallery.search("v1", next(gallery.iterate()).vector[None], exact=False)
print("building", gallery._keeper._thread.is_alive())
"""


def test_a_program_that_ends_during_a_build_ends_cleanly(tmp_path: Path) -> None:
    filled(tmp_path / "g.db", 100).close()
    command = [sys.executable, "-c", UNFINISHED, str(tmp_path / "g.db")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "building True\n", "")


SAVING = """
import sys
from fixstar.gallery import SqliteGallery
from fixstar.gallery.hnsw import index_path, save_hnsw
with SqliteGallery(sys.argv[1]) as gallery:
    gallery.indexes()
    index = gallery._matrices.exact.indexes["v1"]
    while True:
        print("saving", flush=True)
        save_hnsw(index_path(gallery._keeper._folder, "v1"), index, "v1")
"""


@pytest.mark.long
def test_a_process_killed_while_saving_leaves_the_old_index(tmp_path: Path) -> None:
    with filled(tmp_path / "g.db") as gallery:
        gallery.build_index()
    rng = np.random.default_rng(0)
    for _ in range(3):
        command = [sys.executable, "-c", SAVING, str(tmp_path / "g.db")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "saving\n"
            time.sleep(float(rng.uniform(0, 0.03)))
            os.kill(other.pid, signal.SIGKILL)
        with SqliteGallery(tmp_path / "g.db") as gallery:
            assert [state.items for state in gallery.indexes()] == [COUNT]
    for old in (
        *(tmp_path / "g.db.index").glob(".*.partial"),
        tmp_path / "g.db.index" / ".x.1.partial",
    ):
        old.touch()
        os.utime(old, (0, 0))  # what kills left behind, long ago
    with SqliteGallery(tmp_path / "g.db", index_above=10) as gallery:
        gallery.upsert("v1", names(COUNT, COUNT + 1100), clustered(1100, 3))
        gallery.search("v1", clustered(1, 2), exact=False)
        until(lambda: covered(gallery) == COUNT + 1100)
        until(lambda: is_idle(gallery))
    assert not list((tmp_path / "g.db.index").glob(".*.partial"))


def look(gallery: SqliteGallery, version: str = "v1") -> list[tuple[str, int]]:
    """Let an approximate search start what is due, wait for it, and say which indexes there are."""
    gallery.search(version, clustered(1, 2), exact=False)
    until(lambda: is_idle(gallery))
    return [(state.version, state.items) for state in gallery.indexes()]


def test_a_version_that_was_backfilled_as_a_whole_leaves_no_index_and_the_others_get_theirs(
    tmp_path: Path,
) -> None:
    saved = index_path(tmp_path / "g.db.index", "v1")
    with filled(tmp_path / "g.db") as gallery:
        gallery.build_index()
        left = saved.read_bytes()
        gallery.create_version("v2", WIDTH)
        items = list(gallery.get(names(0, COUNT)).values())
        gallery.replace_vectors("v2", items, clustered(COUNT, 5))
        assert [
            state.version for state in gallery.indexes()
        ] == []  # the rows are gone; nobody has looked after it yet
        assert look(gallery, "v2") == [("v2", COUNT)]
        assert set(gallery._matrices.exact.indexes) == {"v2"}
        assert not saved.exists()
    index_path(tmp_path / "g.db.index", "v2").unlink()
    saved.write_bytes(left)  # of a process that ended before it came to it
    with SqliteGallery(tmp_path / "g.db", index_above=10, read_only=True) as reader:
        assert look(reader, "v2") == [("v2", COUNT)]
        assert saved.exists()
        with pytest.raises(GalleryError, match="cannot be written"):
            reader.build_index()
    with SqliteGallery(tmp_path / "g.db", index_above=1000) as gallery:
        assert look(gallery, "v2") == [("v2", COUNT)]
        assert not saved.exists()
        gallery.upsert("v1", names(0, 1100), clustered(1100, 6))  # back again
        assert ("v1", 1100) in look(gallery)


def test_rows_may_vanish_between_the_look_and_the_building(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path / "g.db", 1500) as gallery:
        keeper = gallery._keeper
        held, aside = keeper._held, keeper._build_aside

        @contextmanager
        def held_late() -> Iterator[None]:
            with held():
                gallery.delete(names(0, 1500))
                yield

        monkeypatch.setattr(keeper, "_held", held_late)
        assert look(gallery) == []
        monkeypatch.setattr(keeper, "_held", held)
        gallery.upsert("v1", names(0, 1500), clustered(1500, 1))
        assert look(gallery) == [("v1", 1500)]

        def aside_late(*arguments: Any) -> None:
            gallery.delete(names(0, 1500))
            aside(*arguments)

        monkeypatch.setattr(keeper, "_build_aside", aside_late)
        assert gallery.build_index() == []
        monkeypatch.setattr(keeper, "_build_aside", aside)
        gallery.upsert("v1", names(0, 1500), clustered(1500, 1))
        assert look(gallery) == [("v1", 1500)]


def test_one_version_that_cannot_be_indexed_leaves_the_others_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, tried = build_hnsw, []

    def broken(rows: Any, *arguments: Any, **options: Any) -> HnswIndex | None:
        tried.append(len(rows))
        if len(rows) < 1400:
            raise RuntimeError("this one is odd")
        return build(rows, *arguments, **options)

    monkeypatch.setattr(hnsw, "build_hnsw", broken)
    with filled(tmp_path / "g.db", 1100) as gallery:
        gallery.create_version("v2", WIDTH)
        gallery.upsert("v2", names(2000, 3500), clustered(1500, 4))
        with pytest.warns(
            UserWarning, match=r"of version 'v1' could not be built \(this one is odd\)"
        ):
            assert look(gallery) == [("v2", 1500)]
        gallery.upsert("v1", ["new"], clustered(1, 9))
        assert look(gallery) == [("v2", 1500)]
        assert tried == [1100, 1500]  # what failed is not tried again and again
        monkeypatch.setattr(hnsw, "build_hnsw", build)
        assert [state.items for state in gallery.build_index("v1")] == [1101]
        gallery.upsert("v1", names(5000, 6100), clustered(1100, 7))
        assert look(gallery) == [("v1", 2201), ("v2", 1500)]


def test_an_index_that_cannot_be_saved_is_used_all_the_same(tmp_path: Path) -> None:
    with filled(tmp_path / "g.db") as gallery:
        (tmp_path / "g.db.index").write_text("in the way")

        def search_and_wait() -> None:
            gallery.search("v1", clustered(1, 2), exact=False)
            until(lambda: is_idle(gallery))

        with pytest.warns(UserWarning, match="cannot be saved"):
            search_and_wait()
        assert covered(gallery) == COUNT
        with refuses(GalleryError):
            gallery.build_index()
    with SqliteGallery(tmp_path / "g.db", read_only=True, index_above=10) as reader:
        reader.search("v1", clustered(1, 2), exact=False)
        until(lambda: covered(reader) == COUNT)


def test_a_search_waits_neither_for_a_batch_nor_for_the_change_behind_it(tmp_path: Path) -> None:
    """A long search, then a write: the next search must not queue behind both."""
    inside, go_on = threading.Event(), threading.Event()
    with filled(tmp_path / "g.db", above=10**9) as gallery:
        gallery.search("v1", clustered(1, 2))
        held = gallery._matrices.exact.rows["v1"]

        class Slow:
            def candidates(self, *arguments: object) -> object:
                inside.set()
                assert go_on.wait(60)
                return held.candidates(*arguments[1:])  # type: ignore[arg-type]

        gallery._matrices.exact.indexes = {"v1": Slow()}  # type: ignore[dict-item]
        slow = threading.Thread(target=lambda: gallery.search("v1", clustered(1, 2), exact=False))
        slow.start()
        assert inside.wait(60)
        gallery.upsert("v1", ["new"], clustered(1, 9))
        assert gallery.search("v1", clustered(1, 9), k=1)[0][0].id == "new"
        assert slow.is_alive()
        go_on.set()
        slow.join()
