"""Approximate search in the embedded gallery: what is found, what never is, and what saved indexes are trusted with."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixstar.errors import GalleryError, InputError, MissingExtraError
from fixstar.gallery import Gallery, MemoryGallery, SqliteGallery, hnsw, measured_recall
from fixstar.gallery.hnsw import HnswIndex
from fixstar.geometry import unit

pytest.importorskip("faiss")

COUNT, WIDTH = 3000, 32


def clustered(count: int, seed: int) -> Any:
    """Unit vectors around 60 centres, as embeddings are."""
    centres = np.random.default_rng(0).standard_normal((60, WIDTH))
    rng = np.random.default_rng(seed)
    rows = centres[rng.integers(60, size=count)] + rng.standard_normal((count, WIDTH))
    return unit(rows.astype(np.float32))


def names(start: int, stop: int) -> list[str]:
    return [f"{i:05}" for i in range(start, stop)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery with an index; one row in three has colour 0."""
    path = tmp_path_factory.mktemp("built") / "g.db"
    with SqliteGallery(path) as gallery:
        gallery.create_version("v1", WIDTH)
        gallery.upsert(
            "v1",
            names(0, COUNT),
            clustered(COUNT, 1),
            [{"n": i, "colour": i % 3} for i in range(COUNT)],
        )
        (state,) = gallery.build_index("v1")
    assert (state.version, state.kind, state.items) == ("v1", "FAISS HNSW", COUNT)
    assert state.recall is not None
    assert state.recall > 0.97
    return path


@pytest.fixture
def gallery(built: Path, tmp_path: Path) -> Iterator[SqliteGallery]:
    """A copy of its own, with the index read from its file."""
    shutil.copy(built, tmp_path / "g.db")
    shutil.copytree(built.with_name("g.db.index"), tmp_path / "g.db.index")
    with SqliteGallery(tmp_path / "g.db") as opened:
        assert [state.items for state in opened.indexes()] == [COUNT]
        yield opened


def graph(gallery: SqliteGallery, version: str = "v1") -> HnswIndex | None:
    index = gallery._matrices.exact.indexes.get(version)
    assert index is None or isinstance(index, HnswIndex)
    return index


def saved(gallery: SqliteGallery) -> Path:
    (path,) = gallery.path.with_name("g.db.index").glob("*.hnsw")
    return path


def is_asked(gallery: SqliteGallery, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often the graph is asked, so that a test cannot pass by exact search."""
    asked: list[int] = []
    index = graph(gallery)
    assert index is not None
    ask = index._ask

    def count(*arguments: Any) -> Any:
        asked.append(1)
        return ask(*arguments)

    monkeypatch.setattr(index, "_ask", count)
    return asked


def test_most_of_the_nearest_are_found_with_exact_scores(
    gallery: SqliteGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, queries = is_asked(gallery, monkeypatch), clustered(200, 2)
    assert measured_recall(gallery, "v1", queries) > 0.97
    assert asked
    rows = clustered(COUNT, 1).astype(np.float64)
    for query, hits in zip(queries, gallery.search("v1", queries, exact=False), strict=True):
        assert len({hit.id for hit in hits}) == 10
        np.testing.assert_allclose(
            [hit.score for hit in hits], [rows[int(hit.id)] @ query for hit in hits], atol=1e-6
        )
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert all(hit.payload["n"] == int(hit.id) for hit in hits)


def test_a_search_may_miss_and_the_recall_says_so(
    gallery: SqliteGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixstar.gallery.hnsw.BREADTH", 1)
    monkeypatch.setattr("fixstar.gallery.hnsw._SPARE", 0)
    queries = clustered(200, 2)
    recall = measured_recall(gallery, "v1", queries)
    exact, quick = (gallery.search("v1", queries, exact=exact) for exact in (True, False))
    share = np.mean(
        [len({h.id for h in a} & {h.id for h in b}) / 10 for a, b in zip(exact, quick, strict=True)]
    )
    assert recall == pytest.approx(share, abs=1e-9)
    assert 0.3 < recall < 0.999


def test_a_recall_of_nothing_is_refused(gallery: SqliteGallery) -> None:
    with pytest.raises(InputError, match="queries with results"):
        measured_recall(gallery, "v1", clustered(2, 2), where={"n": -1})
    with pytest.raises(GalleryError, match="no version 'v9'"):
        gallery.build_index("v9")


def test_rows_written_since_are_found(
    gallery: SqliteGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, new = is_asked(gallery, monkeypatch), clustered(150, 3)
    gallery.upsert("v1", names(COUNT, COUNT + 150), new)
    hits = gallery.search("v1", new, k=3, exact=False)
    assert [found[0].id for found in hits] == names(COUNT, COUNT + 150)
    assert measured_recall(gallery, "v1", new) > 0.97
    assert asked


def test_rows_that_are_gone_are_never_found(
    gallery: SqliteGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also around queries whose nearest were all removed, or moved, and after segments were rewritten."""
    asked, rng, left = (
        is_asked(gallery, monkeypatch),
        np.random.default_rng(4),
        set(names(0, COUNT)),
    )
    gallery.create_version("v2", WIDTH)
    queries = clustered(60, 2)
    for step in range(6):
        gone = {hit.id for hit in gallery.search("v1", queries[step : step + 1], k=60)[0]}
        gone |= set(rng.choice(sorted(left), size=40, replace=False).tolist())
        left -= gone
        if step % 2:
            gallery.upsert("v2", sorted(gone), unit(rng.standard_normal((len(gone), WIDTH))))
        else:
            gallery.delete(sorted(gone))
        hits = gallery.search("v1", queries, exact=False, versions=["v1"])
        assert {hit.id for found in hits for hit in found} <= left
        assert all(len(found) == 10 for found in hits)
        assert measured_recall(gallery, "v1", queries) > 0.97
    assert asked


@pytest.mark.parametrize(
    "where", [{"colour": 0}, {"colour": {"ne": 0}}, {"n": {"lt": 600}}, {"n": {"lt": 100}}]
)
def test_filters_are_kept_and_recall_stays_good(
    gallery: SqliteGallery, where: dict[str, Any]
) -> None:
    gallery.delete(names(0, 40))
    queries = clustered(100, 2)
    assert measured_recall(gallery, "v1", queries, where=where) > 0.97
    exact, quick = (
        gallery.search("v1", queries, where=where, exact=exact) for exact in (True, False)
    )
    allowed = {hit.id for hit in gallery.search("v1", queries[:1], k=COUNT, where=where)[0]}
    for found, true in zip(quick, exact, strict=True):
        assert {hit.id for hit in found} <= allowed
        assert len(found) == len(true) == 10


def test_which_nodes_a_filter_allows_is_worked_out_once(
    gallery: SqliteGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked_out: list[object] = []
    choice = hnsw._choice

    def counted(*arguments: Any) -> Any:
        worked_out.append(arguments)
        return choice(*arguments)

    gallery.search("v1", clustered(1, 2), exact=False)
    monkeypatch.setattr(hnsw, "_choice", counted)
    for query in clustered(5, 2):
        gallery.search("v1", query[None], where={"colour": {"ne": 0}}, exact=False)
    assert len(worked_out) == 1
    gallery.search("v1", clustered(1, 2), where={"colour": 1}, exact=False)
    assert len(worked_out) == 2


def test_versions_with_and_without_an_index_are_searched_together(gallery: SqliteGallery) -> None:
    gallery.create_version("v2", WIDTH)
    gallery.upsert("v2", [f"new{i}" for i in range(300)], clustered(300, 5))
    queries = clustered(100, 2)
    assert measured_recall(gallery, "v2", queries) > 0.97
    versions = {
        hit.version for found in gallery.search("v2", queries, exact=False) for hit in found
    }
    assert versions == {"v1", "v2"}


def test_many_queries_are_shared_out_among_threads(
    gallery: SqliteGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    faiss = hnsw.engine()
    queries = clustered(70, 2)
    pairs = [gallery.search("v1", queries[i : i + 2], exact=False) for i in range(0, 70, 2)]
    sizes: list[int] = []
    threads: set[int] = set()
    index = graph(gallery)
    assert index is not None
    ask = index._ask
    parameters = hnsw._parameters

    def asked(some: Any, *others: Any) -> Any:
        sizes.append(len(some))
        return ask(some, *others)

    def parameters_of(breadth: int) -> Any:
        threads.add(faiss.omp_get_max_threads())
        return parameters(breadth)

    monkeypatch.setattr(index, "_ask", asked)
    monkeypatch.setattr(hnsw, "_parameters", parameters_of)
    usual = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        found = gallery.search("v1", queries, exact=False)
        assert faiss.omp_get_max_threads() == 3
    finally:
        faiss.omp_set_num_threads(usual)
    assert found == [hits for pair in pairs for hits in pair]
    assert sum(sizes) == 70
    assert max(sizes) <= 32
    assert len(sizes) > 1
    assert threads == {1}


@pytest.mark.parametrize("k", [1, 300, 2 * COUNT])
def test_any_number_of_results(gallery: SqliteGallery, k: int) -> None:
    hits = gallery.search("v1", clustered(3, 2), k=k, exact=False)
    assert [len(found) for found in hits] == [min(k, COUNT)] * 3
    assert measured_recall(gallery, "v1", clustered(20 if k < COUNT else 2, 2), k=k) > 0.97


def garbage(path: Path) -> None:
    path.write_bytes(b"\xa5" * path.stat().st_size)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1  # in a vector, where FAISS would not notice
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [garbage, cut, flipped, empty])
def test_a_damaged_index_file_is_not_trusted(
    gallery: SqliteGallery, damage: Callable[[Path], None]
) -> None:
    gallery.close()
    damage(saved(gallery))
    with SqliteGallery(gallery.path) as again:
        assert again.indexes() == []
        assert measured_recall(again, "v1", clustered(20, 2)) == 1
        assert [state.items for state in again.build_index()] == [COUNT]
    with SqliteGallery(gallery.path) as third:
        assert [state.items for state in third.indexes()] == [COUNT]


def other_vectors(gallery: Gallery) -> None:
    gallery.create_version("v1", WIDTH)
    gallery.upsert("v1", names(0, COUNT), clustered(COUNT, 7))


def fewer_vectors(gallery: Gallery) -> None:
    """A copy from before: numbers that the index has will be given to other rows."""
    gallery.create_version("v1", WIDTH)
    gallery.upsert("v1", names(0, COUNT - 10), clustered(COUNT, 1)[:-10])


def more_rows(gallery: Gallery) -> None:
    """The same rows, and one more among them that the index lacks."""
    gallery.create_version("v0", WIDTH)
    gallery.create_version("v1", WIDTH)
    gallery.upsert("v1", names(0, 10), clustered(COUNT, 1)[:10])
    gallery.upsert("v0", ["between"], clustered(1, 8))
    gallery.upsert("v1", names(10, COUNT), clustered(COUNT, 1)[10:])


def another_width(gallery: Gallery) -> None:
    gallery.create_version("v1", 5)
    gallery.upsert(
        "v1", names(0, COUNT), unit(np.random.default_rng(0).standard_normal((COUNT, 5)))
    )


@pytest.mark.parametrize("fill", [other_vectors, fewer_vectors, more_rows, another_width])
def test_an_index_of_another_gallery_is_not_trusted(
    gallery: SqliteGallery, tmp_path: Path, fill: Callable[[Gallery], None]
) -> None:
    with SqliteGallery(tmp_path / "other.db") as other:
        fill(other)
        shutil.copytree(gallery.path.with_name("g.db.index"), tmp_path / "other.db.index")
        assert other.indexes() == []
        assert len(other.search("v1", next(other.iterate("v1")).vector[None], exact=False)[0]) == 10


def test_an_index_of_another_version_is_not_trusted(gallery: SqliteGallery) -> None:
    gallery.create_version("v2", WIDTH)
    gallery.upsert("v2", ["x"], clustered(1, 1))
    gallery.build_index()
    gallery.close()
    one, two = sorted(gallery.path.with_name("g.db.index").glob("*.hnsw"))
    swapped = one.read_bytes(), two.read_bytes()
    two.write_bytes(swapped[0])
    one.write_bytes(swapped[1])
    with SqliteGallery(gallery.path) as again:
        assert again.indexes() == []


def test_an_index_that_is_behind_is_used_with_what_came_since(gallery: SqliteGallery) -> None:
    gallery.delete(names(0, 30))
    gallery.upsert("v1", names(COUNT, COUNT + 20), clustered(20, 6))
    gallery.compact()
    gallery.close()
    with SqliteGallery(gallery.path) as again:
        assert [state.items for state in again.indexes()] == [COUNT]
        hits = again.search("v1", clustered(20, 6), k=1, exact=False)
        assert [found[0].id for found in hits] == names(COUNT, COUNT + 20)
        assert measured_recall(again, "v1", clustered(100, 2)) > 0.97
        found = again.search("v1", clustered(COUNT, 1)[:30], exact=False)
        assert not {hit.id for hits in found for hit in hits} & set(names(0, 30))


def test_without_faiss_searches_are_exact(
    gallery: SqliteGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.close()
    monkeypatch.setitem(sys.modules, "faiss", None)
    with SqliteGallery(gallery.path, index_above=10) as again:
        queries = clustered(20, 2)
        assert again.search("v1", queries, exact=False) == again.search("v1", queries)
        again._keeper.close()
        assert again.indexes() == []
        with pytest.raises(MissingExtraError, match="needs faiss-cpu"):
            again.build_index()


def test_a_gallery_in_memory_is_always_exact() -> None:
    with MemoryGallery() as gallery:
        gallery.create_version("v1", WIDTH)
        gallery.upsert("v1", names(0, 100), clustered(100, 1))
        assert (gallery.build_index(), gallery.build_index("v1"), gallery.indexes()) == ([], [], [])
        assert gallery.search("v1", clustered(3, 2), exact=False) == gallery.search(
            "v1", clustered(3, 2)
        )
