"""No vector outlives the run of the Milvus server that took it. The server is a dictionary here."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from milvus_in_memory import ServerInMemory, nothing, server_in_memory
from wording import refuses

from fixstar.errors import GalleryError, GalleryUnavailableError
from fixstar.gallery import MilvusGallery, SqliteGallery, milvus
from fixstar.gallery.addresses import parse_milvus_address
from fixstar.gallery.milvus import run_name
from fixstar.geometry import unit

WIDTH = 8


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> ServerInMemory:
    """A server in memory, which is looked at for every answer."""
    monkeypatch.setattr(milvus, "_SAME_RUN", 0.0)
    return server_in_memory(monkeypatch)


def opened(
    folder: Path, read_only: bool = False, file: str = "gallery.db", index: str = "FLAT"
) -> MilvusGallery:
    address = parse_milvus_address(f"milvus://127.0.0.1?index={index}&items={folder / file}")
    return MilvusGallery(
        address, SqliteGallery(address.items, read_only=read_only), read_only=read_only
    )


def vectors(count: int, seed: int = 0) -> Any:
    return unit(np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32))


def found(gallery: MilvusGallery) -> set[str]:
    return {hit.id for hit in gallery.search("v1", vectors(1), k=100)[0]}


@pytest.fixture
def gallery(server: ServerInMemory, tmp_path: Path) -> Iterator[MilvusGallery]:
    """Twenty items in each of two versions, all sent."""
    with opened(tmp_path) as made:
        for version in ("v1", "v2"):
            made.create_version(version, WIDTH)
            made.upsert(version, [f"{version} {i}" for i in range(20)], vectors(20))
        assert len(found(made)) == 40
        assert_copied(server, made)
        server.sent.clear()
        yield made


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few items are many: they are sent by a thread, one by one."""
    monkeypatch.setattr(milvus, "_AT_ONCE", 1)
    monkeypatch.setattr(milvus, "_IN_TURN", 1)
    monkeypatch.setattr(milvus, "_BREAK", 0.0)
    monkeypatch.setattr("fixstar.gallery.sqlite._PAGE", 1)


def assert_copied(server: ServerInMemory, gallery: MilvusGallery) -> None:
    """The server holds exactly the vectors of the items, and all were taken in its present run."""
    assert {held.run for held in server.collections.values()} == {server.run}
    revisions: dict[str, set[int]] = {}
    for item in gallery.iterate():
        revisions.setdefault(item.version, set()).add(item.revision)
    assert sorted(map(sorted, server.vectors().values())) == sorted(map(sorted, revisions.values()))


def refuse_items(gallery: MilvusGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, only the server may answer."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("the items were searched")

    monkeypatch.setattr(gallery.items, "_search", refuse)


def fail_once(server: ServerInMemory, gallery: MilvusGallery) -> None:
    server.away = True
    with pytest.raises(GalleryUnavailableError, match="did not answer"):
        found(gallery)
    server.away = False


@pytest.mark.parametrize("noticed", [True, False])
def test_a_vector_that_a_server_leaves_out_after_its_restart_is_found(
    server: ServerInMemory, gallery: MilvusGallery, monkeypatch: pytest.MonkeyPatch, noticed: bool
) -> None:
    """It still has the vector: nothing that counts or compares would notice."""
    if noticed:
        fail_once(server, gallery)
    server.restart(leave_out=["v1 3", "v2 19"])
    assert len(found(gallery)) == 40
    assert_copied(server, gallery)
    refuse_items(gallery, monkeypatch)
    assert len(found(gallery)) == 40


def test_a_gallery_that_was_closed_during_the_restart_sends_again(
    server: ServerInMemory, gallery: MilvusGallery, tmp_path: Path
) -> None:
    gallery.close()
    server.restart(leave_out=["v1 3"])
    with opened(tmp_path) as other:
        assert len(found(other)) == 40
        assert_copied(server, other)


def test_a_failure_without_a_restart_sends_nothing_again(
    server: ServerInMemory, gallery: MilvusGallery
) -> None:
    fail_once(server, gallery)
    assert len(found(gallery)) == 40
    assert server.sent == []


def test_an_answer_that_lasts_from_one_run_into_the_next_does_not_count(
    server: ServerInMemory, gallery: MilvusGallery
) -> None:
    """pymilvus waits for a server that is away, and asks it again."""

    def restart(name: str) -> None:
        if name == "search":
            server.before = nothing
            server.restart(leave_out=["v1 3"])

    server.before = restart
    assert len(found(gallery)) == 40


def test_a_search_whose_collections_others_removed_is_answered(
    server: ServerInMemory, gallery: MilvusGallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process found the new run first."""
    monkeypatch.setattr(milvus, "_SAME_RUN", 3600.0)
    found(gallery)
    server.restart(leave_out=["v1 3"])
    with opened(tmp_path) as other:
        assert len(found(other)) == 40
    assert len(found(gallery)) == 40


def test_writes_in_the_old_run_are_sent_in_the_new_one(
    server: ServerInMemory, gallery: MilvusGallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has not seen the restart writes after another one has sent everything."""
    monkeypatch.setattr(milvus, "_SAME_RUN", 3600.0)
    found(gallery)
    server.restart()
    with opened(tmp_path) as other:
        assert len(found(other)) == 40
        gallery.upsert("v1", ["late"], vectors(1, seed=5))
        assert len(found(other)) == 41
        assert len(found(gallery)) == 41
        gallery.flush()
        gallery.flush()
        assert_copied(server, other)


@pytest.mark.usefixtures("slowly")
def test_while_a_thread_sends_the_items_answer_and_writes_are_kept(
    server: ServerInMemory, gallery: MilvusGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on = threading.Event()
    inside = threading.Event()

    def wait(name: str) -> None:
        if name == "upsert" and threading.current_thread() is not threading.main_thread():
            inside.set()
            assert going_on.wait(30)

    server.restart(leave_out=["v1 3"])
    server.before = wait
    assert len(found(gallery)) == 40
    assert inside.wait(30)
    gallery.upsert("v2", ["new"], vectors(1, seed=9))
    gallery.delete(["v1 0"])
    assert len(found(gallery)) == 40
    assert "new" in found(gallery)
    assert gallery._is_sending()
    going_on.set()
    gallery.flush()
    refuse_items(gallery, monkeypatch)
    assert (
        len(found(gallery)) == 40
    )  # and deletes the vector of the removed item, if it was sent before
    assert_copied(server, gallery)


@pytest.mark.usefixtures("slowly")
def test_a_second_restart_while_a_thread_sends_begins_again(
    server: ServerInMemory, gallery: MilvusGallery
) -> None:
    upserts = 0

    def restart(name: str) -> None:
        nonlocal upserts
        upserts += name == "upsert"
        if upserts == 30:
            server.before = nothing
            server.restart(leave_out=[f"v1 {i}" for i in range(20)])

    server.restart()
    server.before = restart
    assert len(found(gallery)) == 40
    gallery.flush()
    assert server.run == 3
    assert len(found(gallery)) == 40
    assert_copied(server, gallery)


@pytest.mark.usefixtures("slowly")
def test_a_thread_that_fails_is_followed_by_another(
    server: ServerInMemory, gallery: MilvusGallery
) -> None:
    def fail(name: str) -> None:
        server.away = name == "upsert" and threading.current_thread() is not threading.main_thread()

    server.restart()
    server.before = fail
    assert len(found(gallery)) == 40
    sender = gallery._sender
    assert sender is not None
    sender.join()
    server.before = nothing
    server.away = False
    gallery.flush()
    assert_copied(server, gallery)


def killed_at(number: int) -> Callable[[str], None]:
    """What ends the process at its upsert of this number."""
    upserts = 0

    def kill(name: str) -> None:
        nonlocal upserts
        upserts += name == "upsert"
        if upserts == number:
            raise KeyboardInterrupt

    return kill


def test_who_follows_a_killed_sender_goes_on_where_it_ended(
    server: ServerInMemory, gallery: MilvusGallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had sent a page and not said so; collections of runs that nobody finished are removed."""
    monkeypatch.setattr("fixstar.gallery.sqlite._PAGE", 10)
    server.restart()
    server.before = killed_at(4)
    with pytest.raises(KeyboardInterrupt):
        found(gallery)
    server.before = nothing
    assert len(server.sent) == 20
    server.sent.clear()
    with opened(tmp_path) as other:
        assert len(found(other)) == 40
        assert len(server.sent) == 30  # the page that was noted is not sent again
        assert_copied(server, other)
    server.restart()
    server.before = killed_at(4)
    with opened(tmp_path) as other, pytest.raises(KeyboardInterrupt):
        found(other)
    server.before = nothing
    server.restart()
    with opened(tmp_path) as other:
        assert len(found(other)) == 40
        assert_copied(server, other)


@pytest.mark.usefixtures("slowly")
def test_processes_that_send_at_the_same_time_do_no_harm(
    server: ServerInMemory, gallery: MilvusGallery, tmp_path: Path
) -> None:
    with opened(tmp_path) as other:
        found(other)
        server.restart(leave_out=["v1 3"])
        assert len(found(gallery)) == 40
        assert len(found(other)) == 40
        gallery.flush()
        other.flush()
        assert_copied(server, gallery)
        assert len(found(gallery)) == 40
        assert len(found(other)) == 40


def test_who_is_late_does_not_remove_the_collections_of_a_later_run(
    server: ServerInMemory, gallery: MilvusGallery, tmp_path: Path
) -> None:
    """It knows an earlier run, and a restart follows before it removes what is of another run than that."""
    run = gallery._server.run()
    server.restart()
    with opened(tmp_path) as other:
        found(other)
        gallery._server.remove_others(run)
        assert_copied(server, other)
        assert len(found(other)) == 40


def test_who_only_reads_searches_the_items_until_another_has_sent(
    server: ServerInMemory, gallery: MilvusGallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, read_only=True) as reader:
        assert len(found(reader)) == 40
        server.restart(leave_out=["v1 3"])
        before = server.vectors()
        assert len(found(reader)) == 40
        assert server.vectors() == before
        gallery.flush()
        refuse_items(reader, monkeypatch)
        assert len(found(reader)) == 40


def test_who_met_a_failure_reads_again_what_was_sent(
    server: ServerInMemory, gallery: MilvusGallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removed all vectors in the same run, and was killed when it had sent the first ten."""
    monkeypatch.setattr("fixstar.gallery.sqlite._PAGE", 10)
    with opened(tmp_path) as other:
        other.drop_vectors()
        server.before = killed_at(3)
        with pytest.raises(KeyboardInterrupt):
            found(other)
    server.before = nothing
    with pytest.raises(GalleryUnavailableError, match="did not answer"):
        found(gallery)
    assert len(found(gallery)) == 40
    assert_copied(server, gallery)


def test_a_collection_whose_maker_was_killed_before_it_had_an_index_is_searched(
    server: ServerInMemory, gallery: MilvusGallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(name: str) -> None:
        if name == "index":
            raise KeyboardInterrupt

    server.restart()
    server.before = kill
    with pytest.raises(KeyboardInterrupt):
        found(gallery)
    server.before = nothing
    with opened(tmp_path) as other:
        assert len(found(other)) == 40
        assert_copied(server, other)
        refuse_items(other, monkeypatch)
        assert len(found(other)) == 40


def test_a_search_does_not_wait_for_a_thread_that_sends_what_was_written_later(
    server: ServerInMemory, gallery: MilvusGallery
) -> None:
    """The thread has the lock, and the revision that the search saw was sent before."""
    found(gallery)
    inside = threading.Event()
    going_on = threading.Event()

    def hold() -> None:
        with gallery._lock:
            inside.set()
            assert going_on.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(30)
    searched = threading.Thread(target=found, args=(gallery,))
    searched.start()
    searched.join(10)
    waited = searched.is_alive()
    going_on.set()
    holder.join()
    searched.join()
    assert not waited
    assert server.sent == []


@pytest.mark.usefixtures("gallery")
def test_a_collection_that_somebody_removed_is_made_again(
    server: ServerInMemory, tmp_path: Path
) -> None:
    for name in server.vectors():
        del server.collections[name]
    with opened(tmp_path) as other:
        assert len(found(other)) == 40
        other.flush()
        assert_copied(server, other)
        assert len(found(other)) == 40


def test_an_empty_server_gets_everything(server: ServerInMemory, gallery: MilvusGallery) -> None:
    """It may have the same numbers for its parts as the one before, but not the same time."""
    server.collections.clear()
    server.restart()
    assert len(found(gallery)) == 40
    assert_copied(server, gallery)


def test_a_name_belongs_to_one_gallery_also_after_a_restart(
    server: ServerInMemory, gallery: MilvusGallery, tmp_path: Path
) -> None:
    server.restart()
    with refuses(GalleryError):
        opened(tmp_path, file="other.db")
    assert len(server.collections) == 3
    assert len(found(gallery)) == 40


def test_a_busy_gallery_looks_once_a_second(
    server: ServerInMemory, gallery: MilvusGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus, "_SAME_RUN", 1.0)
    now = time.monotonic() + 10
    looks = server.looks
    for tenth in range(30):
        monkeypatch.setattr(time, "monotonic", lambda tenth=tenth: now + tenth / 10)
        found(gallery)
    assert server.looks == looks + 3


def test_who_only_searches_does_not_always_wait_for_a_tick_of_the_server(
    server: ServerInMemory, gallery: MilvusGallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others sent less than ten seconds ago may still be on its way to a part that searches."""
    with opened(tmp_path) as other:
        now = time.monotonic()

        def levels(seconds: float) -> set[str]:
            monkeypatch.setattr(time, "monotonic", lambda: now + seconds)
            server.levels.clear()
            found(other)
            return set(server.levels)

        assert levels(0) == {"Strong"}
        assert levels(9) == {"Strong"}
        assert levels(11) == {"Bounded"}
        gallery.upsert("v1", ["later"], vectors(1, seed=3))
        assert levels(12) == {"Strong"}
        assert levels(21) == {"Strong"}
        assert levels(23) == {"Bounded"}
        other.upsert("v1", ["own"], vectors(1, seed=4))
        assert levels(24) == {"Session", "Bounded"}  # of v1, to which it wrote, and of v2


@pytest.mark.usefixtures("slowly")
def test_closing_ends_the_thread_that_sends(
    server: ServerInMemory, gallery: MilvusGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus, "_BREAK", 0.05)
    server.restart()
    found(gallery)
    sender = gallery._sender
    assert sender is not None
    assert sender.is_alive()
    gallery.close()
    assert not sender.is_alive()
    assert sum(map(len, server.vectors().values())) < 40


def metrics(*parts: tuple[str, int, str, bool]) -> str:
    nodes = [
        {"infos": {"type": kind, "id": number, "created_time": created, "has_error": has_error}}
        for kind, number, created, has_error in parts
    ]
    return json.dumps({"nodes_info": nodes})


def test_a_run_begins_when_the_root_coordinator_starts() -> None:
    root = ("rootcoord", 1, "today", False)
    data = ("datanode", 1, "today", False)
    run = run_name(metrics(root, data))
    assert run == run_name(metrics(data, root))
    assert run == run_name(metrics(root))
    assert run == run_name(metrics(root, ("", 4, "", True)))  # of an earlier run
    assert run != run_name(metrics(("rootcoord", 1, "later", False), data))
    assert run != run_name(metrics(("rootcoord", 4, "today", False), data))
    assert run == run_name(metrics(("mixcoord", 1, "today", False), data))


def test_a_server_without_a_root_coordinator_has_no_run() -> None:
    assert run_name(metrics()) == ""
    assert run_name(metrics(("proxy", 1, "today", False))) == ""
    assert run_name(metrics(("rootcoord", 1, "", True))) == ""


def test_a_server_that_does_not_say_since_when_it_runs_is_not_searched(
    server: ServerInMemory, gallery: MilvusGallery
) -> None:
    server.kind = "proxy"
    with refuses(GalleryUnavailableError):
        found(gallery)
    gallery.upsert("v1", ["new"], vectors(1, seed=3))
    server.kind = "rootcoord"
    assert len(found(gallery)) == 41


@pytest.mark.parametrize("told", [[0], [20, 20, 20, 10, 10, 10, 0]])
@pytest.mark.parametrize("slow", ["not_indexed", "not_searched"])
def test_building_an_index_waits_while_the_server_gets_further(
    server: ServerInMemory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slow: str,
    told: list[int],
) -> None:
    monkeypatch.setattr(milvus, "_INDEXING", 0.05)
    monkeypatch.setattr(milvus, "_INDEXED_WITHIN", 0.2)  # four looks; all together are more
    setattr(server, slow, told)
    with opened(tmp_path, index="HNSW") as gallery:
        gallery.create_version("v1", WIDTH)
        gallery.upsert("v1", [f"{i}" for i in range(20)], vectors(20))
        (state,) = gallery.build_index("v1")
    assert (state.version, state.items) == ("v1", 20)
    assert getattr(server, slow) == [0]


def test_building_an_index_waits_until_large_parts_are_searched_by_it(
    server: ServerInMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus, "_INDEXED_FROM", 10)
    monkeypatch.setattr(milvus, "_INDEXING", 0.01)
    server.late = {"state": 3, "index_name": ""}
    server.not_searched = [12, 12, 9]
    with opened(tmp_path, index="HNSW") as gallery:
        gallery.create_version("v1", WIDTH)
        gallery.upsert("v1", [f"{i}" for i in range(20)], vectors(20))
        gallery.build_index("v1")
    assert server.not_searched == [9]


@pytest.mark.parametrize("slow", ["not_indexed", "not_searched"])
def test_an_index_that_the_server_does_not_build_or_use_is_told(
    server: ServerInMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    monkeypatch.setattr(milvus, "_INDEXING", 0.01)
    monkeypatch.setattr(milvus, "_INDEXED_WITHIN", 0.1)
    setattr(server, slow, [20])
    with opened(tmp_path, index="HNSW") as gallery:
        gallery.create_version("v1", WIDTH)
        gallery.upsert("v1", [f"{i}" for i in range(20)], vectors(20))
        with refuses(GalleryUnavailableError):
            gallery.build_index("v1")
        hits = gallery.search("v1", vectors(20)[:1], k=1, exact=False)
    assert [hit.id for hit in hits[0]] == ["0"]
