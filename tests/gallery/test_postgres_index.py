"""The approximate index of a gallery on a PostgreSQL server, and the widths that pgvector can hold and index."""

from __future__ import annotations

from typing import Any

import pytest
from postgres_server import shared_server
from test_gallery_contract import vectors
from test_postgres import gallery, url

from fixstar.errors import GalleryError, GalleryUnavailableError
from fixstar.gallery import postgres
from fixstar.gallery.postgres import READ, WRITE, PostgresGallery, candidates_query, vector_text

__all__ = ["gallery", "url"]  # fixtures


def test_vectors_that_pgvector_cannot_hold_or_index(gallery: PostgresGallery) -> None:
    with pytest.raises(GalleryError, match="at most 16,000"):
        gallery.create_version("wide", 16_001)
    assert [space.name for space in gallery.versions()] == ["v1", "v2"]
    for width in (2500, 4500):  # beyond a page, where vectors lie beside the table
        rows = vectors(3, width)
        gallery.create_version(str(width), width)
        gallery.upsert(str(width), [f"{width}-{i}" for i in range(3)], rows)
        found = gallery.search(str(width), rows, k=1, versions=[str(width)])
        assert [hits[0].id for hits in found] == [f"{width}-{i}" for i in range(3)]
    (state,) = gallery.build_index("2500")  # in half precision; scores are exact all the same
    assert (state.version, state.items, state.recall) == ("2500", 3, 1.0)
    assert gallery.search("2500", vectors(1, 2500), exact=False) == gallery.search(
        "2500", vectors(1, 2500)
    )
    with pytest.raises(GalleryError, match="at most 4,000"):
        gallery.build_index()
    assert [state.version for state in gallery.indexes()] == ["2500"]


def plan(gallery: PostgresGallery, approximate: bool) -> str:
    text = candidates_query(1, 8, 2, 26, approximate=approximate)
    with gallery._pool.transaction(READ) as db:
        db.execute(
            "SET LOCAL enable_seqscan = off"
        )  # so that the index is taken wherever it could be
        return "\n".join(
            row[0] for row in db.execute(f"EXPLAIN {text}", [*map(vector_text, vectors(2, 8))])
        )


def test_the_index_is_used_where_it_may_be_and_says_its_recall(gallery: PostgresGallery) -> None:
    rows = vectors(3000, 8)
    gallery.upsert("v1", [f"{i:04}" for i in range(3000)], rows, [{"n": i} for i in range(3000)])
    assert gallery.indexes() == []
    exact = gallery.search("v1", rows[:40])
    assert gallery.search("v1", rows[:40], exact=False) == exact  # there is none yet
    (state,) = gallery.build_index("v1")
    assert [state] == gallery.indexes()
    assert (state.version, state.items) == ("v1", 3000)
    assert state.recall is not None
    assert 0.95 < state.recall <= 1
    assert "vectors_1_hnsw" in plan(gallery, approximate=True)
    assert "vectors_1_hnsw" not in plan(gallery, approximate=False)
    quick = gallery.search("v1", rows[:40], exact=False)
    overlap = [
        len({hit.id for hit in a} & {hit.id for hit in b})
        for a, b in zip(exact, quick, strict=True)
    ]
    assert sum(overlap) > 0.95 * 400
    known = {hit.id: hit.score for hit in exact[7]}
    assert all(known.get(hit.id, hit.score) == hit.score for hit in quick[7])
    assert gallery.search("v1", rows[:40]) == exact


def test_the_index_follows_writes_and_filters_and_is_rebuilt(
    gallery: PostgresGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = vectors(1500, 8)
    gallery.upsert("v1", [f"{i:04}" for i in range(1500)], rows, [{"n": i} for i in range(1500)])
    gallery.build_index()
    gallery.upsert("v1", ["new"], rows[:1])
    gallery.delete(["0000"])
    assert gallery.search("v1", rows[:1], k=1, exact=False)[0][0].id == "new"
    assert {state.version: state.items for state in gallery.indexes()} == {"v1": 1500, "v2": 0}
    assert {state.version: state.recall is None for state in gallery.indexes()} == {
        "v1": False,
        "v2": True,
    }
    rare = {"n": {"in": [5, 700, 1400]}}
    assert len(gallery.search("v1", rows[:1], where=rare, exact=False)[0]) == 3
    assert len(gallery.search("v1", rows[:1], k=5000, exact=False)[0]) == 1500
    monkeypatch.setattr("fixstar.gallery.postgres._FEW", 2)  # as if three were many
    monkeypatch.setattr("fixstar.gallery.postgres._VISIT", 0)  # the index finds them too
    assert len(gallery.search("v1", rows[:1], where=rare, exact=False)[0]) == 3
    gallery.build_index("v1")
    schema = gallery.address.schema
    names = shared_server().execute(
        f"SELECT indexname FROM pg_indexes WHERE schemaname = '{schema}' AND indexname LIKE 'vectors_1_hnsw%'"
    )
    assert len(names) == 1


@pytest.fixture
def by_index(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each search used the index."""
    asked: list[bool] = []

    def recorded(number: int, **given: Any) -> str:
        asked.append(given["approximate"])
        return candidates_query(number, **given)

    monkeypatch.setattr("fixstar.gallery.postgres.candidates_query", recorded)
    return asked


@pytest.mark.parametrize(
    ("where", "cost"), [({"few": True}, 100), ({"few": {"in": [True]}}, 115)], ids=["equal", "read"]
)
@pytest.mark.parametrize("passing", [99, 100, 101])
def test_few_items_that_pass_a_filter_are_compared_without_the_index(
    gallery: PostgresGallery,
    by_index: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    passing: int,
    where: dict[str, Any],
    cost: int,
) -> None:
    """Comparing 100 of 300 costs as much as 100 or, if all 300 are read, 115; so do the index's 26 times 3 visits."""
    rows = vectors(300, 8)
    gallery.upsert(
        "v1", [f"{i:04}" for i in range(300)], rows, [{"few": i < passing} for i in range(300)]
    )
    gallery.build_index("v1")
    by_index.clear()
    monkeypatch.setattr("fixstar.gallery.postgres._FEW", 299)
    monkeypatch.setattr("fixstar.gallery.postgres._VISIT", cost / (26 * 3))
    (hits,) = gallery.search("v1", rows[:1], where=where, versions=["v1"], exact=False)
    assert hits[0].id == "0000"
    assert by_index[0] is (passing > 100)


def test_a_small_version_is_compared_and_so_is_one_that_no_sample_shows(
    gallery: PostgresGallery, by_index: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = vectors(300, 8)
    gallery.upsert("v1", [f"{i:04}" for i in range(300)], rows, [{"n": i} for i in range(300)])
    gallery.build_index("v1")
    by_index.clear()
    every = {"n": {"ge": 0}}
    gallery.search("v1", rows[:1], where=every, versions=["v1"], exact=False)
    monkeypatch.setattr("fixstar.gallery.postgres._FEW", 299)
    gallery.search("v1", rows[:1], where=every, versions=["v1"], exact=False)
    monkeypatch.setattr("fixstar.gallery.postgres._SAMPLED_AT_MOST", 0)
    gallery.search("v1", rows[:1], where=every, versions=["v1"], exact=False)
    gallery.search("v1", rows[:1], versions=["v1"], exact=False)
    assert by_index == [False, True, False, True]


def test_one_builds_an_index_at_a_time(gallery: PostgresGallery) -> None:
    with gallery._pool.transaction(WRITE) as other:
        other.execute(
            "SELECT pg_advisory_xact_lock(%s, 'vectors_1'::regclass::oid::int)", (0x66787369,)
        )
        with pytest.raises(GalleryError, match="already being built"):
            gallery.build_index("v1")
    assert gallery.indexes() == []


def settings_while_building(monkeypatch: pytest.MonkeyPatch, full: int = 0) -> list[list[str]]:
    """The memory and the helpers that each build may have; the first ``full`` builds find the disk full."""
    import psycopg

    found: list[list[str]] = []
    execute: Any = psycopg.Connection.execute

    def recorded(db: Any, query: Any, *given: Any, **options: Any) -> Any:
        if str(query).startswith("CREATE INDEX CONCURRENTLY"):
            names = ("maintenance_work_mem", "max_parallel_maintenance_workers")
            found.append([execute(db, f"SHOW {name}").fetchone()[0] for name in names])
            if len(found) <= full:
                raise psycopg.errors.DiskFull("could not resize shared memory segment")
        return execute(db, query, *given, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", recorded)
    return found


def test_an_index_is_built_in_memory_unless_somebody_said_how_much(
    gallery: PostgresGallery, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((usual,),) = shared_server().execute("SHOW maintenance_work_mem")
    found = settings_while_building(monkeypatch)
    gallery.upsert("v1", [f"{i:04}" for i in range(300)], vectors(300, 8))
    gallery.build_index("v1")  # less than usual is enough
    monkeypatch.setattr("fixstar.gallery.postgres._LINKED", 1_000_000)
    gallery.build_index("v1")
    with PostgresGallery(f"{url}&options=-c%20maintenance_work_mem%3D2MB") as other:
        other.build_index("v1")
    assert [memory for memory, _ in found] == [usual, "292979kB", "2MB"]


def test_an_index_is_built_by_one_process_where_shared_memory_is_short(
    gallery: PostgresGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.upsert("v1", [f"{i:04}" for i in range(300)], vectors(300, 8))
    found = settings_while_building(monkeypatch, full=1)
    (state,) = gallery.build_index("v1")
    assert (state.version, state.items) == ("v1", 300)
    assert [helpers for _, helpers in found] == ["2", "0"]


def test_an_index_that_finds_the_disk_full_twice_is_not_built(
    gallery: PostgresGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.upsert("v1", [f"{i:04}" for i in range(300)], vectors(300, 8))
    found = settings_while_building(monkeypatch, full=2)
    with pytest.raises(GalleryUnavailableError):
        gallery.build_index("v1")
    assert len(found) == 2
    assert gallery.indexes() == []


@pytest.mark.parametrize(
    ("given", "k", "visited"),
    [
        ("", 5, 100),
        ("", 200, 216),
        ("300", 5, 300),
        ("300", 200, 300),
        ("300", 400, 416),
        ("50", 5, 100),
    ],
)
def test_a_search_is_as_broad_as_the_address_asks_for(
    gallery: PostgresGallery,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    k: int,
    visited: int,
) -> None:
    gallery.upsert("v1", [f"{i:04}" for i in range(600)], vectors(600, 8))
    gallery.build_index("v1")
    found: set[str] = set()
    fetch = postgres._fetch

    def recorded(db: Any, *given: Any, **options: Any) -> Any:
        found.add(db.execute("SHOW hnsw.ef_search").fetchone()[0])
        return fetch(db, *given, **options)

    monkeypatch.setattr(postgres, "_fetch", recorded)
    monkeypatch.setattr(postgres, "_leaves_few", lambda *_, **__: False)
    option = f"&options=-c%20hnsw.ef_search%3D{given}" if given else ""
    with PostgresGallery(url + option) as asked:
        for _ in range(2):  # pgvector is loaded by the first search
            (hits,) = asked.search("v1", vectors(1, 8), k=k, versions=["v1"], exact=False)
    assert len(hits) == k
    assert found == {str(visited)}


@pytest.mark.usefixtures("gallery")
@pytest.mark.parametrize("given", ["many", "0", "1001", "-5", "1.5"])
def test_a_breadth_that_pgvector_does_not_take_is_refused(url: str, given: str) -> None:
    with pytest.raises(GalleryError, match=f"hnsw.ef_search is '{given}'.*from 1 to 1000"):
        PostgresGallery(f"{url}&options=-c%20hnsw.ef_search%3D{given}")
