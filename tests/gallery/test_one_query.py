"""One approximate query takes a shorter way than many: it must come to the same hits, and never to what is gone."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wording import refuses

from fixstar.errors import GalleryError
from fixstar.gallery import SqliteGallery, hnsw, measured_recall
from fixstar.gallery.hnsw import HnswIndex, build_hnsw
from fixstar.gallery.matrix import Draft, Rows, all_parsed
from fixstar.gallery.store import checked_vectors
from fixstar.geometry import unit

pytest.importorskip("faiss")

COUNT, WIDTH = 600, 24


def some(count: int, seed: int, copies: int = 1) -> Any:
    """Unit vectors, some of them ``copies`` times."""
    rows = np.random.default_rng(seed).standard_normal((-(-count // copies), WIDTH))
    return unit(np.tile(rows, (copies, 1))[:count].astype(np.float32))


@pytest.fixture
def gallery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteGallery]:
    """Half of the vectors are there twice. Nothing is built in the background: tests say when an index is new."""
    with SqliteGallery(tmp_path / "g.db") as opened:
        monkeypatch.setattr(opened._keeper, "update_in_background", lambda: None)
        opened.create_version("v1", WIDTH)
        opened.upsert(
            "v1",
            [f"{i:04}" for i in range(COUNT)],
            some(COUNT, 1, 2),
            [{"n": i} for i in range(COUNT)],
        )
        opened.build_index()
        yield opened


def index_of(gallery: SqliteGallery) -> HnswIndex:
    index = gallery._matrices.exact.indexes["v1"]
    assert isinstance(index, HnswIndex)
    return index


def short_ways(gallery: SqliteGallery, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every single query, whether the short way was taken."""
    taken: list[bool] = []
    index = index_of(gallery)
    likely = index._likely

    def noted(*arguments: Any) -> Any:
        row = likely(*arguments)
        taken.append(row is not None)
        return row

    monkeypatch.setattr(index, "_likely", noted)
    return taken


def agree(gallery: SqliteGallery, queries: Any, k: int) -> None:
    """Each query alone gets what it gets among the others, and scores are those of exact search."""
    together = gallery.search("v1", queries, k=k, exact=False)
    alone = [gallery.search("v1", query[None], k=k, exact=False)[0] for query in queries]
    assert alone == together
    for found, true in zip(alone, gallery.search("v1", queries, k=COUNT + 100), strict=True):
        scores = {hit.id: hit.score for hit in true}
        assert all(hit.score == scores[hit.id] for hit in found)
        assert found == sorted(found, key=lambda hit: [one.id for one in true].index(hit.id))


@pytest.mark.parametrize("k", [1, 10, 60])
def test_alone_and_among_others_a_query_finds_the_same(
    gallery: SqliteGallery, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    taken = short_ways(gallery, monkeypatch)
    agree(gallery, np.concatenate([some(30, 2), some(COUNT, 1, 2)[:10]]), k)
    assert taken == [True] * 40
    assert measured_recall(gallery, "v1", some(50, 2)) > 0.97


@pytest.mark.parametrize("seed", range(4))
def test_after_random_changes_too(
    gallery: SqliteGallery, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Removed, replaced and added rows: what is gone is never found, what is new always, and the short way waits."""
    rng, held, new = np.random.default_rng(seed), {f"{i:04}" for i in range(COUNT)}, 0
    taken, queries = short_ways(gallery, monkeypatch), some(12, seed + 10)
    for step in range(6):
        chosen = sorted(
            rng.choice(sorted(held), size=int(rng.integers(1, 25)), replace=False).tolist()
        )
        if rng.random() < 0.4:
            gallery.delete(chosen)
            held -= set(chosen)
        else:
            added = [f"new{new + i}" for i in range(int(rng.integers(1, 10)))]
            new += len(added)
            names = chosen[:3] + added
            vectors = some(len(names), 1000 + 100 * seed + step)
            gallery.upsert("v1", names, vectors, [{"n": step}] * len(names))
            held |= set(names)
            found = [
                gallery.search("v1", vector[None], k=1, exact=False)[0][0].id for vector in vectors
            ]
            assert found == names
        agree(gallery, queries, 10)
        assert {
            hit.id for query in queries for hit in gallery.search("v1", query[None], exact=False)[0]
        } <= held
    assert not any(taken)
    gallery.build_index()
    taken = short_ways(gallery, monkeypatch)
    agree(gallery, queries, 10)
    assert all(taken)


def test_what_only_came_is_found(gallery: SqliteGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, vectors = short_ways(gallery, monkeypatch), some(5, 5)
    agree(gallery, vectors, 10)
    gallery.upsert("v1", list("abcde"), vectors)
    assert gallery._matrices.exact.rows["v1"].allowed(None) is None
    agree(gallery, vectors, 10)
    assert [
        gallery.search("v1", vector[None], k=1, exact=False)[0][0].id for vector in vectors
    ] == list("abcde")
    assert taken == [True] * 15


def test_removed_items_are_not_found_after_their_segment_was_rewritten(
    gallery: SqliteGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, queries = short_ways(gallery, monkeypatch), some(20, 6)
    agree(gallery, queries, 10)
    gone = [f"{i:04}" for i in range(0, COUNT, 3)]
    gallery.delete(gone)
    assert (
        gallery._matrices.exact.rows["v1"].allowed(None) is None
    )  # nothing is removed, rows have moved
    agree(gallery, queries, 10)
    found = {
        hit.id for query in queries for hit in gallery.search("v1", query[None], exact=False)[0]
    }
    assert not found & set(gone)
    assert taken == [True] * 20 + [False] * 40


def test_equal_scores_come_in_the_order_of_writing(gallery: SqliteGallery) -> None:
    for query in some(COUNT, 1, 2)[:20]:
        first, second = gallery.search("v1", query[None], k=2, exact=False)[0]
        assert first.score == second.score
        assert int(second.id) - int(first.id) == COUNT // 2


def test_payloads_belong_to_whoever_asked(gallery: SqliteGallery) -> None:
    gallery.upsert(
        "v1", [f"{i:04}" for i in range(COUNT)], some(COUNT, 1, 2), [{"tags": ["a"]}] * COUNT
    )
    gallery.build_index()
    for queries in (some(1, 2), some(3, 2)):
        hits = gallery.search("v1", queries, exact=False)[0]
        hits[0].payload["tags"].append("mine")
        assert [hit.payload for hit in hits[1:]] == [{"tags": ["a"]}] * 9
        assert gallery.search("v1", queries, exact=False)[0][0].payload == {"tags": ["a"]}


def test_many_payloads_are_read_as_one_by_one() -> None:
    texts = ["{}", '{"a":[1,2],"b":"],["}', '{"ü":null}']
    assert all_parsed(texts) == [{}, {"a": [1, 2], "b": "],["}, {"ü": None}]
    assert all_parsed([]) == []
    for damaged in ('{"a":', '{"a":1},{"b":2}', "", '{"a":1}]'):
        with refuses(GalleryError):
            all_parsed([*texts, damaged])


@pytest.mark.filterwarnings("error")
def test_a_query_that_is_zero_in_the_other_space(tmp_path: Path) -> None:
    with SqliteGallery(tmp_path / "g.db") as gallery:
        both = np.eye(2 * WIDTH)
        gallery.create_version("v1", WIDTH, both[:, :WIDTH])
        gallery.create_version("v2", WIDTH, both[:, WIDTH:])
        gallery.upsert("v1", [str(i) for i in range(200)], some(200, 1))
        gallery.build_index("v1")
        for queries in (some(1, 2), some(3, 2)):
            hits = gallery.search("v2", queries, exact=False)
            assert [[hit.score for hit in found] for found in hits] == [[0.0] * 10] * len(queries)


def test_rows_with_larger_numbers_than_those_before_are_found() -> None:
    """The scale of a graph is that of the rows it began with."""
    draft = Draft(Rows(WIDTH))
    flat = unit(np.sign(some(300, 1)) + 0.1 * some(300, 2)).astype(np.float32)
    draft.append(range(300), [str(i) for i in range(300)], flat, ["{}"] * 300)
    base = build_hnsw(draft.rows(), lambda: True)
    assert base is not None
    peaked = np.eye(WIDTH, dtype=np.float32)
    assert np.abs(peaked).max() > 2 * np.abs(flat).max()
    more = Draft(draft.rows())
    more.append(range(300, 300 + WIDTH), [f"p{i}" for i in range(WIDTH)], peaked, ["{}"] * WIDTH)
    index = build_hnsw(more.rows(), lambda: True, base=base)
    assert index is not None
    assert index.recall is not None
    assert index.recall > 0.97
    for place in range(WIDTH):
        row = index._likely(more.rows(), peaked[place : place + 1], 10)
        assert row is not None
        assert more.rows().find(np.array([300 + place]))[0] in row


@pytest.mark.parametrize("off", [0, 1e-7, 4.9e-7, 4.96e-7, 5.1e-7, 1e-5, 9e-4])
def test_one_vector_is_checked_as_many_are(off: float) -> None:
    rows = unit(np.random.default_rng(3).standard_normal((20, WIDTH))) * (1 + off)
    together = checked_vectors(rows, WIDTH, "v1")
    for row, checked in zip(rows, together, strict=True):
        np.testing.assert_array_equal(checked_vectors(row[None], WIDTH, "v1")[0], checked)
    for wrong in (
        np.zeros((1, WIDTH)),
        np.full((1, WIDTH), np.nan),
        np.full((1, WIDTH), np.inf),
        1.01 * rows[:1],
    ):
        with pytest.raises(GalleryError, match="not of length 1"):
            checked_vectors(wrong, WIDTH, "v1")


def test_large_pages_leave_what_memory_holds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = np.random.default_rng(4).integers(256, size=20 << 20, dtype=np.uint8)
    with mmap.mmap(-1, len(content)) as memory:
        memory[:] = content.tobytes()
        view = (ctypes.c_char * len(content)).from_buffer(memory)
        hnsw.use_large_pages(ctypes.addressof(view) + 5, len(content) - 9)
        del view
        assert memory[:] == content.tobytes()
    setting = tmp_path / "enabled"
    monkeypatch.setattr(hnsw, "_SETTING", setting)
    assert not hnsw._are_allowed()
    for text, allowed in (("always madvise [never]", False), ("always [madvise] never", True)):
        setting.write_text(text)
        assert hnsw._are_allowed() is allowed


def test_a_saved_index_of_an_older_kind_is_not_used(gallery: SqliteGallery) -> None:
    gallery.close()
    (path,) = gallery.path.with_name("g.db.index").glob("*.hnsw")
    path.write_bytes(path.read_bytes().replace(b"fixstar hnsw 3\n", b"fixstar hnsw 1\n", 1))
    with SqliteGallery(gallery.path) as again:
        assert again.indexes() == []
        assert again.search("v1", some(2, 2), exact=False) == again.search("v1", some(2, 2))
