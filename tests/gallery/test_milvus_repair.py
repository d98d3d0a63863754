"""What a Milvus server lost is sent again. The server is a dictionary here, which forgets what the tests choose."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixstar.errors import GalleryUnavailableError
from fixstar.gallery import MilvusGallery, SqliteGallery, milvus
from fixstar.gallery.addresses import MilvusAddress, parse_milvus_address
from fixstar.gallery.milvus import _Row
from fixstar.gallery.store import Item
from fixstar.geometry import unit

WIDTH = 8


class ForgetfulServer:
    """The part of a Milvus server that a gallery uses. Instances of one test share what is stored."""

    stored: dict[int, dict[int, Item]]
    noted: dict[str, int]

    def __init__(self, address: MilvusAddress) -> None:
        self.address = address
        self.failures = 0
        self.away = False
        self.sendings: list[int] = []
        self.looks = 0
        self.written_out: list[int] = []

    def sent(self, _created: str) -> int:
        self._answer()
        return self.noted.get("revision", 0)

    def note_sent(self, revision: int, _created: str) -> None:
        self._answer()
        self.noted["revision"] = revision

    def send(self, number: int, _width: int, items: Sequence[Item]) -> None:
        self._answer()
        self.stored.setdefault(number, {}).update({item.revision: item for item in items})
        self.sendings += [item.revision for item in items]

    def forget(self, number: int, _width: int, numbers: Iterable[int]) -> None:
        self._answer()
        for one in numbers:
            self.stored.get(number, {}).pop(one, None)

    def count(self, number: int, _width: int) -> int:
        self._answer()
        return len(self.stored.get(number, {}))

    def numbers(self, number: int, _width: int, after: int, last: int) -> set[int]:
        self._answer()
        self.looks += 1
        return {one for one in self.stored.get(number, {}) if after < one <= last}

    def nearest(self, number: int, queries: Any, limit: int, _narrowed: str) -> list[_Row]:
        self._answer()
        rows = []
        for query, vector in enumerate(queries):
            scored = [(float(item.vector @ vector), item) for item in self.stored.get(number, {}).values()]
            scored.sort(key=lambda pair: -pair[0])
            rows += [_Row(query, item.revision, item.id, score) for score, item in scored[:limit]]
        return rows

    def write_out(self, number: int, _width: int) -> None:
        self._answer()
        self.written_out.append(number)

    def close(self) -> None:
        pass

    def _answer(self) -> None:
        if self.away:
            self.failures += 1
            raise GalleryUnavailableError("Milvus did not answer")


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus, "_Server", ForgetfulServer)
    monkeypatch.setattr(ForgetfulServer, "stored", {}, raising=False)
    monkeypatch.setattr(ForgetfulServer, "noted", {}, raising=False)


def opened(folder: Path, read_only: bool = False) -> MilvusGallery:
    address = parse_milvus_address(f"milvus://127.0.0.1?items={folder / 'gallery.db'}")
    return MilvusGallery(address, SqliteGallery(address.items, read_only=read_only), read_only=read_only)


def server_of(gallery: MilvusGallery) -> Any:
    return gallery._server


def vectors(count: int, seed: int = 0) -> Any:
    return unit(np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32))


def found(gallery: MilvusGallery) -> set[str]:
    return {hit.id for hit in gallery.search("v1", vectors(1), k=100)[0]}


@pytest.fixture
def gallery(tmp_path: Path) -> Iterator[MilvusGallery]:
    """Twenty items in each of two versions, all sent."""
    with opened(tmp_path) as made:
        for version in ("v1", "v2"):
            made.create_version(version, WIDTH)
            made.upsert(version, [f"{version} {i}" for i in range(20)], vectors(20))
        assert len(found(made)) == 40
        yield made


def lose(gallery: MilvusGallery, *ids: str) -> set[int]:
    """The server forgets items; returns their revisions."""
    lost = {item.revision for item in gallery.get(list(ids)).values()}
    for rows in ForgetfulServer.stored.values():
        for revision in lost & set(rows):
            del rows[revision]
    return lost


def interrupt(gallery: MilvusGallery) -> None:
    """A call fails, as when the server is killed."""
    server_of(gallery).away = True
    with pytest.raises(GalleryUnavailableError):
        found(gallery)
    server_of(gallery).away = False


def exact_copies(gallery: MilvusGallery) -> bool:
    stored = {revision for rows in ForgetfulServer.stored.values() for revision in rows}
    return stored == {item.revision for item in gallery.iterate()}


@pytest.mark.parametrize("ids", [["v2 18", "v2 19"], ["v1 0"], ["v1 3", "v2 3"]])
def test_what_a_server_lost_is_sent_again_after_a_failure(gallery: MilvusGallery, ids: list[str]) -> None:
    lost = lose(gallery, *ids)
    interrupt(gallery)
    server_of(gallery).sendings.clear()
    assert len(found(gallery)) == 40
    assert sorted(server_of(gallery).sendings) == sorted(lost)
    assert exact_copies(gallery)


def test_what_a_server_lost_is_sent_again_when_a_gallery_is_opened(gallery: MilvusGallery, tmp_path: Path) -> None:
    lost = lose(gallery, "v1 7")
    with opened(tmp_path) as other:
        assert len(found(other)) == 40
        assert set(server_of(other).sendings) == lost


def test_a_lost_replacement_is_noticed_though_the_number_is_right(gallery: MilvusGallery) -> None:
    """The new vector and the deletion of the old one are lost together."""
    old = gallery.get(["v1 5"])["v1 5"]
    gallery.upsert("v1", ["v1 5"], vectors(1, seed=9))
    lose(gallery, "v1 5")
    ForgetfulServer.stored[1][old.revision] = old
    interrupt(gallery)
    assert len(found(gallery)) == 40
    assert exact_copies(gallery)


def test_an_old_replacement_that_was_lost_is_noticed_too(
    gallery: MilvusGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not among the newest, but the version it left has one vector more and its own one less."""
    monkeypatch.setattr(milvus, "_NEWEST", 1)
    old = gallery.get(["v1 5"])["v1 5"]
    gallery.upsert("v2", ["v1 5"], vectors(1, seed=9))
    gallery.upsert("v2", ["later"], vectors(1, seed=10))
    lose(gallery, "v1 5")
    ForgetfulServer.stored[1][old.revision] = old
    interrupt(gallery)
    assert len(found(gallery)) == 41
    assert exact_copies(gallery)


def test_a_loss_that_nobody_noticed_is_mended_within_a_minute(
    gallery: MilvusGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(gallery, "v1 0", "v2 19")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert len(found(gallery)) == 40
    assert exact_copies(gallery)


def test_looks_follow_every_minute(gallery: MilvusGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(gallery)
    now = time.monotonic()
    looks = []
    for second in range(200):
        monkeypatch.setattr(time, "monotonic", lambda second=second: now + second)
        before = server_of(gallery).looks
        found(gallery)
        if server_of(gallery).looks > before:
            looks.append(second)
    assert looks == [0, 60, 120, 180]


def test_after_a_failure_the_server_writes_to_its_disk_what_it_has(gallery: MilvusGallery) -> None:
    assert server_of(gallery).written_out == []
    interrupt(gallery)
    found(gallery)
    assert server_of(gallery).written_out == [1, 2]
    found(gallery)
    assert server_of(gallery).written_out == [1, 2]


def test_a_lost_note_of_what_was_sent_is_written_again(gallery: MilvusGallery) -> None:
    noted = ForgetfulServer.noted.pop("revision")
    lose(gallery, "v1 3")
    interrupt(gallery)
    found(gallery)
    assert ForgetfulServer.noted == {"revision": noted}


def test_comparing_takes_several_ranges_of_revisions(gallery: MilvusGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus, "_MOST", 7)
    lost = lose(gallery, "v1 0", "v1 6", "v1 7", "v2 19")
    interrupt(gallery)
    server_of(gallery).sendings.clear()
    gallery.flush()
    assert sorted(server_of(gallery).sendings) == sorted(lost)
    assert exact_copies(gallery)


def test_a_server_that_has_everything_is_not_compared_again(gallery: MilvusGallery) -> None:
    looks = server_of(gallery).looks
    for _ in range(3):
        found(gallery)
    assert server_of(gallery).looks == looks
    assert server_of(gallery).sendings == sorted(set(server_of(gallery).sendings))


def test_who_only_reads_searches_the_items_while_vectors_are_missing(gallery: MilvusGallery, tmp_path: Path) -> None:
    lose(gallery, "v1 7")
    with opened(tmp_path, read_only=True) as reader:
        assert len(found(reader)) == 40
        assert server_of(reader).sendings == []
        interrupt(gallery)
        gallery.flush()
        assert len(found(reader)) == 40


def test_vectors_of_removed_items_are_deleted_when_all_are_compared(gallery: MilvusGallery) -> None:
    items = gallery.get(["v1 1", "v1 2"])
    server_of(gallery).away = True
    gallery.delete(["v1 1", "v1 2"])
    server_of(gallery).away = False
    assert len(ForgetfulServer.stored[1]) == 20
    gallery._away_until = 0.0
    gallery.flush()
    assert len(ForgetfulServer.stored[1]) == 18
    assert not {item.revision for item in items.values()} & set(ForgetfulServer.stored[1])


def test_for_a_minute_after_a_failure_the_items_answer_exact_searches(
    gallery: MilvusGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is back may leave out of a search what a query by number finds."""
    server = server_of(gallery)
    now = time.monotonic()
    interrupt(gallery)
    monkeypatch.setattr(server, "nearest", lambda *_: [])
    assert len(found(gallery)) == 40
    assert gallery.search("v1", vectors(1), k=100, exact=False) == [[]]  # Milvus answers what may be incomplete
    monkeypatch.setattr(time, "monotonic", lambda: now + 200)
    assert found(gallery) == set()  # Milvus is believed again
