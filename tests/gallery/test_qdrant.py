"""What is particular to a gallery on Qdrant: filters, moves that break off, addresses. The rest is in the contract.

Against the client's engine in memory, or the server that FIXSTAR_QDRANT_URL names.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import qdrant_contract
from qdrant_server import URL, QdrantTestGallery, qdrant_client
from test_gallery_contract import filled, vectors
from test_transfer import content, example

from fixstar.errors import DamagedItemError, GalleryError, MissingExtraError, NextStep
from fixstar.gallery import MemoryGallery, copy_gallery, open_gallery, qdrant, verify_gallery
from fixstar.gallery.addresses import parse_qdrant_address
from fixstar.gallery.qdrant import QdrantGallery, QdrantServer, point_id
from fixstar.gallery.store import IndexState

LARGE = 2**53


@pytest.fixture
def gallery() -> Iterator[QdrantTestGallery]:
    with QdrantTestGallery() as opened:
        yield opened


def beside(gallery: QdrantTestGallery, **options: Any) -> QdrantGallery:
    """The same gallery, as another process opens it."""
    return QdrantGallery(gallery.client, prefix=gallery.prefix, **options)


PAYLOADS: list[dict[str, Any]] = [
    {},
    {"x": 1},
    {"x": 1.0},
    {"x": True},
    {"x": "1"},
    {"x": None},
    {"x": [1, 2]},
    {"x": [1.0, 2]},
    {"x": [True, 2]},
    {"x": ["a", None]},
    {"x": {"y": 1}},
    {"x": {"y": True}},
    {"x": LARGE},
    {"x": LARGE + 1},
    {"x": float(LARGE)},
    {"x": LARGE + 3},
    {"x": 10**30},
    {"x": 10**400},
    {"x": -(10**400)},
    {"x": 1.5},
    {"x": ""},
    {"x": "long " * 100},
    {"x": "long " * 100 + "er"},
    {"x": "ключ \U0001f4f7"},
    {"a.b": 1, 'q"uote': 2, "": 3, "ключ": 4},
    {"a": {"b": 1}},
    {"x": 0.0},
    {"x": -0.0},
]
FILTERS: list[dict[str, Any]] = [
    *({"x": value} for value in (1, 1.0, True, "1", None, LARGE, LARGE + 1, 1e30, 10**30, 10**400, "", 0, "1.0")),
    *({"x": value} for value in ([1, 2], (1, 2), [1], [True, 2], ["a", None], [], "long " * 100, "ключ \U0001f4f7")),
    *({"x": {"ne": value}} for value in (1, True, "1", None, LARGE, LARGE + 1, [1, 2], "long " * 100, 10**400)),
    *({"x": {name: LARGE}} for name in ("lt", "le", "gt", "ge")),
    *({"x": {name: LARGE + 1}} for name in ("lt", "le", "gt", "ge")),
    *({"x": {name: LARGE + 4}} for name in ("lt", "le", "gt", "ge")),
    *({"x": {name: 1}} for name in ("lt", "le", "gt", "ge")),
    *({"x": {name: "1"}} for name in ("lt", "le", "gt", "ge")),
    {"x": {"lt": 10**400}},
    {"x": {"ge": -(10**400), "lt": 2}},
    {"x": {"in": []}},
    {"x": {"in": [1, "1", None]}},
    {"x": {"in": [{"y": 1}, 1]}},
    {"x": {"eq": {"y": 1}}},
    {"x": {"exists": True}},
    {"x": {"exists": False}},
    {"x": {"exists": False}, "a": {"exists": True}},
    {"a.b": 1},
    {"a.b": {"ge": 1}},
    {'q"uote': {"gt": 1}},
    {"": 3},
    {"": {"le": 3}},
    {"ключ": {"lt": 5}},
    {"\ud800": 1},
]


def test_filters_mean_what_they_mean_everywhere(gallery: QdrantTestGallery) -> None:
    """Every kind of value against every kind of condition; few results, so that more must be asked for."""
    reference, rows = MemoryGallery(), vectors(len(PAYLOADS), 3)
    for store in (gallery, reference):
        store.create_version("v1", 3)
        store.upsert("v1", [str(i) for i in range(len(rows))], rows, PAYLOADS)
    for where in FILTERS:
        expected = [[hit.id for hit in hits] for hits in reference.search("v1", rows[:2], k=3, where=where)]
        assert [[hit.id for hit in hits] for hits in gallery.search("v1", rows[:2], k=3, where=where)] == expected, (
            where
        )
        everything = {hit.id for hit in reference.search("v1", rows[:1], k=100, where=where)[0]}
        assert {hit.id for hit in gallery.search("v1", rows[:1], k=100, where=where)[0]} == everything, where
    assert [item.payload for item in gallery.iterate()] == [item.payload for item in reference.iterate()]


def test_more_is_asked_for_until_the_filter_leaves_enough(
    gallery: QdrantTestGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the server understood no condition at all."""
    rows = filled(gallery, 400)
    expected = gallery.search("v1", rows[:2], k=5, where={"n": {"ge": 390}})
    assert len(expected[0]) == 5
    monkeypatch.setattr(qdrant, "server_filter", lambda _: None)
    assert gallery.search("v1", rows[:2], k=5, where={"n": {"ge": 390}}) == expected


class CutError(Exception):
    """The writer dies here."""


def cut(*_: Any, **__: Any) -> None:
    raise CutError


@pytest.mark.parametrize("step", ["upsert", "remove"])
def test_a_writer_that_dies_in_the_middle_of_a_move(
    gallery: QdrantTestGallery, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    rows = filled(gallery)  # i0, i1, i2 in v1
    with monkeypatch.context() as patch:
        patch.setattr(QdrantServer, step, cut)
        with pytest.raises(CutError):
            gallery.upsert("v2", ["i0", "i1"], rows[4:6], [{"new": True}] * 2)
    moved = step == "remove"  # by then the new vectors are there
    assert {name: item.version for name, item in gallery.get(["i0", "i1"]).items()} == dict.fromkeys(
        ["i0", "i1"], "v2" if moved else "v1"
    )
    (hits,) = gallery.search("v1", rows[4:5], k=20)
    assert sorted(hit.id for hit in hits) == [f"i{i}" for i in range(6)]
    assert {hit.version for hit in hits if hit.id in ("i0", "i1")} == {"v2" if moved else "v1"}
    assert [item.id for item in gallery.iterate()] == [f"i{i}" for i in range(6)]
    assert [item.id for item in gallery.iterate("v1")] == (["i2"] if moved else ["i0", "i1", "i2"])
    assert gallery.count() == {"v1": 3, "v2": 5 if moved else 3}
    other = beside(gallery)  # opening finishes what was broken off
    assert other.count() == ({"v1": 1, "v2": 5} if moved else {"v1": 3, "v2": 3})
    assert content(other) == content(gallery)
    gallery.upsert("v2", ["i0", "i1"], rows[4:6])  # and the call can be repeated
    assert gallery.count() == {"v1": 1, "v2": 5}


def test_notes_of_moves_are_forgotten(gallery: QdrantTestGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = filled(gallery)
    server = gallery._server
    assert server is not None
    gallery.upsert("v2", ["i0"], rows[:1])
    assert server.moves() == []
    with monkeypatch.context() as patch:
        patch.setattr(QdrantServer, "upsert", cut)
        with pytest.raises(CutError):
            gallery.upsert("v2", ["i1"], rows[:1])
    gallery.flush()
    assert len(server.moves()) == 1  # the writer may still be at it
    monkeypatch.setattr(qdrant, "_ABANDONED", -1.0)
    gallery.flush()
    assert server.moves() == []
    assert gallery.count() == {"v1": 2, "v2": 4}


def test_deleting_an_item_removes_every_copy(gallery: QdrantTestGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = filled(gallery)
    with monkeypatch.context() as patch:
        patch.setattr(QdrantServer, "remove", cut)
        with pytest.raises(CutError):
            gallery.upsert("v2", ["i0"], rows[:1])
    assert gallery.delete(["i0"]) == 1
    assert (gallery.get(["i0"]), gallery.count()) == ({}, {"v1": 2, "v2": 3})


def test_a_removal_spares_what_was_written_since(gallery: QdrantTestGallery) -> None:
    """Two writers move one item in opposite directions: whatever the order of their steps, one copy stays."""
    rows = filled(gallery)
    server, point = gallery._server, point_id("i0")
    assert server is not None
    versions = server.versions()
    seen = qdrant._places_of(server, versions, [point])
    gallery.upsert("v1", ["i0"], rows[5:6])
    qdrant._remove(server, versions, seen)
    np.testing.assert_array_equal(gallery.get(["i0"])["i0"].vector, rows[5])


def test_a_slow_clock_loses_no_write(gallery: QdrantTestGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = filled(gallery)
    other = beside(gallery)
    monkeypatch.setattr(time, "time_ns", lambda: 1_000)
    other.upsert("v2", ["i0"], rows[5:6], [{"late": True}])
    for store in (gallery, other):
        assert (store.get(["i0"])["i0"].version, store.count()) == ("v2", {"v1": 2, "v2": 4})
    gallery.upsert("v1", ["i0"], rows[:1])
    assert other.get(["i0"])["i0"].version == "v1"


def test_a_batch_may_take_several_requests(gallery: QdrantTestGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fixstar.gallery.qdrant._ROWS", 7)
    monkeypatch.setattr(qdrant, "_QUERIES", 2)
    rows, reference = filled(gallery, 40), MemoryGallery()
    filled(reference, 40)
    for store in (gallery, reference):
        store.upsert("v1", [f"i{i}" for i in range(15, 35)], rows[:20])
    assert content(gallery) == content(reference)
    assert gallery.search("v2", rows[:5], k=30) == reference.search("v2", rows[:5], k=30)
    assert gallery.delete([f"i{i}" for i in range(20)]) == 20
    assert gallery.count() == {"v1": 15, "v2": 5}


def test_a_gallery_moves_there_and_back_to_the_bit(gallery: QdrantTestGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fixstar.gallery.qdrant._PART", 100)  # the projection takes several points
    source, back = example(MemoryGallery()), MemoryGallery()
    assert copy_gallery(source, gallery) == copy_gallery(gallery, back) == 8
    assert content(back) == content(gallery) == content(source)
    assert back.versions() == gallery.versions() == source.versions()
    np.testing.assert_array_equal(back.projection("short"), source.projection("short"))


def test_others_see_what_is_written(gallery: QdrantTestGallery) -> None:
    other = beside(gallery, create=False, read_only=True)
    rows = filled(gallery)
    assert other.search("v2", rows, k=3) == gallery.search("v2", rows, k=3)
    with pytest.raises(GalleryError, match="read only"):
        other.delete(["i0"])
    with QdrantTestGallery(gallery.client) as apart:  # another prefix
        assert apart.versions() == []


def test_how_the_server_is_asked(gallery: QdrantTestGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine in memory has no index and takes no such parameters; a server gets them."""
    asked: list[Any] = []
    rows, query = filled(gallery), QdrantServer.query

    def recorded(server: QdrantServer, collection: str, requests: list[Any]) -> Any:
        asked.extend(request.params for request in requests)
        plain = [request.model_copy(update={"params": None}) for request in requests]
        return query(server, collection, plain)

    monkeypatch.setattr(QdrantServer, "query", recorded)
    monkeypatch.setattr(QdrantServer, "is_engine", False)
    exact = gallery.search("v1", rows[:1])
    assert [params.exact for params in asked] == [True, True]
    asked.clear()
    assert gallery.search("v1", rows[:1], exact=False) == exact
    assert [(params.exact, params.hnsw_ef) for params in asked] == [(False, 128)] * 2


class Optimizer:
    """A server that indexes after three looks, for a client that has none."""

    def __init__(self, client: Any, broken: bool = False) -> None:
        self.thresholds: list[int] = []
        self._get, self._looks, self._broken = client.get_collection, 0, broken

    def get_collection(self, name: str) -> Any:
        info: Any = self._get(name)
        self._looks += bool(self.thresholds)
        if self._looks > 3:
            info.indexed_vectors_count = info.points_count
        elif self._looks:
            info.status = type(info.status)("red" if self._broken else "yellow")
        return info

    def update_collection(self, _: str, optimizers_config: Any) -> None:
        self.thresholds.append(optimizers_config.indexing_threshold)


@pytest.mark.skipif(URL is not None, reason="plays a server")
def test_building_an_index_waits_for_the_server(gallery: QdrantTestGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(gallery)
    assert gallery.build_index() == gallery.indexes() == []  # the engine in memory has none
    optimizer = Optimizer(gallery.client)
    for name in ("get_collection", "update_collection"):
        monkeypatch.setattr(gallery.client, name, getattr(optimizer, name))
    monkeypatch.setattr("fixstar.gallery.qdrant._PAUSE", 0.0)
    # searches are left to the engine: only the index module believes in a server
    monkeypatch.setattr(QdrantServer, "is_engine", False)
    monkeypatch.setattr(qdrant, "_candidates", _without_parameters(qdrant._candidates, monkeypatch))
    assert gallery.build_index("v2") == [IndexState("v2", "qdrant hnsw", 3, 1.0)]
    assert optimizer.thresholds == [1, 20_000]
    broken = Optimizer(gallery.client, broken=True)
    broken._get = optimizer._get
    monkeypatch.setattr(gallery.client, "get_collection", broken.get_collection)
    monkeypatch.setattr(gallery.client, "update_collection", broken.update_collection)
    with pytest.raises(GalleryError, match="could not index"):
        gallery.build_index("v1")
    assert broken.thresholds == [1, 20_000]


def _without_parameters(candidates: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def plain(*arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(QdrantServer, "is_engine", True)
            return candidates(*arguments)

    return plain


def test_the_script_for_a_real_server_says_that_it_tested_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FIXSTAR_QDRANT_URL", raising=False)
    assert qdrant_contract.main() == 0
    assert capsys.readouterr().out.startswith("skipped: no server was tested. Set FIXSTAR_QDRANT_URL")


@pytest.mark.skipif(URL is None, reason="needs a server: set FIXSTAR_QDRANT_URL")
def test_a_real_server_indexes(gallery: QdrantTestGallery) -> None:
    gallery.create_version("v1", 64)
    rows = vectors(5000, 64)
    gallery.upsert("v1", [str(i) for i in range(5000)], rows)
    (state,) = gallery.build_index()
    assert state.items > 0
    assert state.recall is not None
    assert state.recall > 0.9
    assert gallery.indexes() == [state]
    assert len(gallery.search("v1", rows[:5], exact=False)[4]) == 10


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("qdrant://secret@host:6333", "key must not be part"),
        ("qdrant://host:6333?api_key=secret", "key must not be part"),
        ("qdrant://host:port", "host:6333"),
        ("qdrant://", "does not name a Qdrant server"),
        ("qdrant://host/path", "does not name a Qdrant server"),
        ("qdrant://host?colour=red", "no option 'colour'; known: prefix, "),
        ("qdrant://host?replicas=none", "replicas is a number"),
        ("qdrant://host?api_key_env=FIXSTAR_NO_SUCH_KEY", "FIXSTAR_NO_SUCH_KEY holds no API key"),
        ("qdrant://127.0.0.1:1?prefix=a/b", "letters, digits"),
        ("qdrant://127.0.0.1:1", "127.0.0.1:1 .*is it running"),
        ("qdrant://127.0.0.1:1?grpc_port=1", "is it running"),
    ],
)
def test_addresses_that_lead_nowhere(url: str, told: str) -> None:
    with pytest.raises(GalleryError, match=told) as caught:
        open_gallery(url)
    assert "secret" not in str(caught.value)


def test_what_an_address_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QDRANT_API_KEY", raising=False)
    assert parse_qdrant_address("qdrant://host") == ("http://host:6333", {"api_key": None})
    monkeypatch.setenv("QDRANT_API_KEY", "k1")
    monkeypatch.setenv("OTHER", "k2")
    url = "qdrant+https://[::1]:7000?prefix=shop&api_key_env=OTHER&shards=6&replicas=2&grpc_port=6334&timeout=5"
    assert parse_qdrant_address(url) == (
        "https://[::1]:7000",
        {"prefix": "shop", "api_key": "k2", "shards": 6, "replicas": 2, "grpc_port": 6334, "timeout": 5},
    )
    assert parse_qdrant_address("qdrant://host")[1]["api_key"] == "k1"


def test_a_gallery_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GalleryError, match="no gallery 'fixstar-absent'"):
        QdrantGallery(qdrant_client(), prefix="fixstar-absent", create=False)
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(MissingExtraError, match="needs qdrant-client"):
        open_gallery("qdrant://localhost:6333")


def test_a_server_that_refuses(gallery: QdrantTestGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx
    from qdrant_client.http.exceptions import UnexpectedResponse

    def refuse(*_: Any, **__: Any) -> None:
        raise UnexpectedResponse(403, "Forbidden", b"no", httpx.Headers())

    with monkeypatch.context() as patch:
        patch.setattr(gallery.client, "scroll", refuse)
        with pytest.raises(GalleryError, match="QDRANT_API_KEY"):
            gallery.count()


def spoilt(gallery: QdrantTestGallery, name: str, **fields: Any) -> str:
    """Change what the point of an item holds, behind the gallery's back; None takes a field away. The point's id."""
    (collection,) = [c.name for c in gallery.client.get_collections().collections if "_v1-" in c.name]
    point = point_id(name)
    if gone := [field for field, value in fields.items() if value is None]:
        gallery.client.delete_payload(collection, gone, points=[point])
    if kept := {field: value for field, value in fields.items() if value is not None}:
        gallery.client.set_payload(collection, kept, points=[point])
    return point


def test_every_damaged_item_is_named_and_can_be_replaced(gallery: QdrantTestGallery) -> None:
    gallery.create_version("v1", 3)
    gallery.create_version("v2", 3)
    names = [f"{n:03}" for n in range(300)]  # more than a page
    gallery.upsert("v1", names, vectors(300, 3), [{"x": 1}] * 300)
    assert verify_gallery(gallery) == []
    spoilt(gallery, "005", text="{")
    spoilt(gallery, "270", text=None)
    spoilt(gallery, "100", text="[1]")
    spoilt(gallery, "150", text=7)
    assert [problem[:40] for problem in verify_gallery(gallery)] == [
        "'005' of version 'v1': the payload is da",
        "'100' of version 'v1': the payload is no",
        "'150' of version 'v1': the payload is da",
        "'270' of version 'v1': the payload is mi",
    ]
    with pytest.raises(DamagedItemError, match=r"'005' of version 'v1'.*[Dd]elete it") as caught:
        gallery.get(["004", "005"])
    assert (caught.value.item, caught.value.version) == ("005", "v1")
    assert caught.value.next_steps == (NextStep("delete-items", {"id": "005"}),)
    with pytest.raises(DamagedItemError, match="'270' of version 'v1'"):
        gallery.search("v1", vectors(300, 3)[270:271], k=1)
    with pytest.raises(DamagedItemError, match="'005'"):
        gallery.search("v1", vectors(300, 3)[5:6], k=1, where={"x": 1})
    gallery.upsert("v1", ["005", "100"], vectors(2, 3), [{}, {}])
    assert gallery.delete(["150", "270"]) == 2
    assert verify_gallery(gallery) == []


def test_a_point_that_has_lost_its_id_is_named_by_its_own(gallery: QdrantTestGallery) -> None:
    gallery.create_version("v1", 3)
    gallery.create_version("v2", 3)
    gallery.upsert("v1", ["a", "b", "c", "d"], vectors(4, 3))
    points = sorted([spoilt(gallery, "b", id=None), spoilt(gallery, "c", id=None, written=None, text=None)])
    lost = "this is the id of a Qdrant point, which has lost the id of its item"
    assert verify_gallery(gallery) == [f"{point!r} of version 'v1': {lost}" for point in points]
    assert list(gallery.get(["a", "d"])) == ["a", "d"]
    with pytest.raises(DamagedItemError, match="'b' of version 'v1': its point has lost its id"):
        gallery.get(["b"])  # who knows the id is answered by it
    with pytest.raises(DamagedItemError, match=f"'{points[0]}'|'{points[1]}'"):
        gallery.search("v1", vectors(1, 3), k=4)
    assert gallery.delete(["c"]) == 1
    gallery.upsert("v2", ["b"], vectors(1, 3))
    assert gallery.count() == {"v1": 2, "v2": 1}
    assert verify_gallery(gallery) == []
