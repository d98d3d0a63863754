"""What every gallery must do. A backend joins by adding its maker to ``GALLERIES``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from milvus_server import milvus_gallery
from postgres_server import postgres_gallery

from fixstar.errors import GalleryError, ItemChangedError, UnknownItemError
from fixstar.gallery import (
    Gallery,
    MemoryGallery,
    PostgresGallery,
    SqliteGallery,
    VersionSpace,
    measured_recall,
    postgres,
    sqlite,
)
from fixstar.geometry import short_form, unit

GALLERIES: dict[str, Callable[[Path], Gallery]] = {
    "memory": lambda _: MemoryGallery(),
    "sqlite": lambda folder: SqliteGallery(folder / "gallery.db"),
    "sqlite, mapped": lambda folder: SqliteGallery(folder / "gallery.db", map_vectors=folder),
    "postgres": postgres_gallery,
    "milvus": milvus_gallery,
}


@pytest.fixture(params=GALLERIES)
def gallery(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gallery]:
    with GALLERIES[request.param](tmp_path) as opened:
        yield opened


def vectors(count: int, width: int, seed: int = 0) -> Any:
    return unit(np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32))


def filled(gallery: Gallery, count: int = 6, width: int = 3) -> Any:
    """Two versions of one width, half of the items each; the payload says the number and its parity."""
    rows = vectors(count, width)
    for name, start in (("v1", 0), ("v2", count // 2)):
        gallery.create_version(name, width)
        part = range(start, start + count // 2)
        payloads = [{"n": i, "parity": "odd" if i % 2 else "even"} for i in part]
        gallery.upsert(name, [f"i{i}" for i in part], rows[part.start : part.stop], payloads)
    return rows


def test_the_nearest_come_first_with_their_cosine_version_and_payload(gallery: Gallery) -> None:
    gallery.create_version("v1", 2)
    gallery.upsert("v1", ["east", "north"], np.eye(2, dtype=np.float32), [{"x": 1}, {"x": 2}])
    (hits,) = gallery.search("v1", np.array([[0.6, 0.8]], np.float32), k=5)
    assert [(hit.id, hit.version, hit.payload["x"]) for hit in hits] == [
        ("north", "v1", 2),
        ("east", "v1", 1),
    ]
    assert [hit.score for hit in hits] == pytest.approx([0.8, 0.6])


@cache
def far_versions() -> tuple[dict[str, Any], dict[str, Any], Any, Any]:
    """Projections to d = 20,000 from m = 64 and m = 48, 30 short forms each, 4 queries of the second, all cosines."""
    rng = np.random.default_rng(0)
    projections = {
        name: rng.standard_normal((20_000, m)).astype(np.float32)
        for name, m in (("v1", 64), ("v2", 48))
    }
    h = {
        name: rng.standard_normal((34, P.shape[1])).astype(np.float32)
        for name, P in projections.items()
    }
    grams = {name: P.T.astype(np.float64) @ P for name, P in projections.items()}
    short = {
        name: unit(h[name] @ np.linalg.cholesky(G)) for name, G in grams.items()
    }  # P^T P = R^T R, u ~ R h
    full = {name: unit(h[name].astype(np.float64) @ P.T) for name, P in projections.items()}
    cosines = full["v2"][30:] @ np.concatenate([rows[:30] for rows in full.values()]).T
    return projections, {name: rows[:30] for name, rows in short.items()}, short["v2"][30:], cosines


def test_versions_of_different_width_are_searched_together_exactly(gallery: Gallery) -> None:
    """Against brute force over full-dimension features."""
    projections, short, queries, cosines = far_versions()
    for name, P in projections.items():
        gallery.create_version(name, P.shape[1], P)
        gallery.upsert(name, [f"{name}-{i}" for i in range(30)], short[name])
    names = [f"{name}-{i}" for name in projections for i in range(30)]
    for row, hits in zip(cosines, gallery.search("v2", queries, k=60), strict=True):
        assert len(hits) == 60
        by_id = {hit.id: hit.score for hit in hits}
        np.testing.assert_allclose([by_id[name] for name in names], row, atol=1e-5)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_short_forms_and_full_features_meet_in_one_gallery(gallery: Gallery) -> None:
    """A foreign version of full features, wider or narrower than d, beside short forms: against full features."""
    rng = np.random.default_rng(1)
    P = rng.standard_normal((40, 8)).astype(np.float32)
    h = rng.standard_normal((5, 8)).astype(np.float32)
    full = {
        "short": unit(h.astype(np.float64) @ P.T),
        "wide": vectors(5, 50, 2),
        "narrow": vectors(5, 30, 3),
    }
    stored = {**full, "short": short_form(h, P)}
    for name in stored:
        gallery.create_version(name, stored[name].shape[1], P if name == "short" else None)
        gallery.upsert(name, [f"{name}-{i}" for i in range(5)], stored[name])
    padded = {
        name: np.pad(array, ((0, 0), (0, 50 - array.shape[1]))) for name, array in full.items()
    }
    for name in stored:
        for i, hits in enumerate(gallery.search(name, stored[name], k=15)):
            expected = {
                f"{other}-{j}": padded[name][i] @ padded[other][j]
                for other in padded
                for j in range(5)
            }
            assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-5)


def test_the_k_nearest_are_those_of_brute_force(gallery: Gallery) -> None:
    rows, queries = vectors(1200, 16), vectors(5, 16, seed=9)
    gallery.create_version("v1", 16)
    gallery.create_version("v2", 16)
    gallery.upsert("v1", [f"{i:04}" for i in range(800)], rows[:800])
    gallery.upsert("v2", [f"{i:04}" for i in range(800, 1200)], rows[800:])
    cosines = queries.astype(np.float64) @ rows.T.astype(np.float64)
    for k, batch in itertools.product((1, 10, 200, 2000), (queries, queries[:1])):
        for row, hits in zip(cosines, gallery.search("v1", batch, k=k), strict=False):
            found, best = [int(hit.id) for hit in hits], np.sort(row)[::-1][:k]
            assert len(set(found)) == len(best)
            np.testing.assert_allclose(row[found], best, atol=1e-6)
            np.testing.assert_allclose([hit.score for hit in hits], best, atol=1e-6)


def test_equal_scores_come_in_the_order_of_writing(gallery: Gallery) -> None:
    gallery.create_version("v1", 3)
    gallery.create_version("v2", 3)
    same = np.repeat(vectors(1, 3), 300, axis=0)
    names = [str(i) for i in np.random.default_rng(0).permutation(300)]
    for i, version in ((0, "v1"), (100, "v2"), (200, "v1")):
        gallery.upsert(version, names[i : i + 100], same[:100])
    gallery.upsert("v1", [names[0]], same[:1])
    (hits,) = gallery.search("v1", same[:1], k=300)
    assert [hit.id for hit in hits] == names[1:] + names[:1]
    assert [hit.id for hit in gallery.search("v2", same[:3], k=5)[2]] == names[1:6]


def test_one_query_and_a_batch_have_the_same_answers(gallery: Gallery) -> None:
    rows = filled(gallery, 1500, 24)
    queries = vectors(140, 24, seed=2)  # more than are searched at once
    batch = gallery.search("v2", queries, k=7)
    assert [gallery.search("v2", query[None], k=7)[0] for query in queries[::20]] == batch[::20]
    scores = [hits[0].score for hits in gallery.search("v2", rows[:150], k=1)]
    assert scores == pytest.approx([1] * 150, abs=1e-6)
    assert max(scores) <= 1


def test_an_item_has_one_vector_and_moves_with_its_version(gallery: Gallery) -> None:
    gallery.create_version("v1", 3)
    gallery.create_version("v2", 3)
    gallery.upsert("v1", ["a", "b"], vectors(2, 3), [{"old": 1}, {"old": 2}])
    gallery.search("v1", vectors(1, 3))
    gallery.upsert("v2", ["a"], vectors(1, 3, seed=1), [{"new": True}])
    assert gallery.count() == {"v1": 1, "v2": 1}
    (hits,) = gallery.search("v2", vectors(1, 3, seed=1), k=3)
    assert (hits[0].id, hits[0].version, hits[0].payload) == ("a", "v2", {"new": True})
    assert sorted(hit.id for hit in hits) == ["a", "b"]
    assert gallery.get(["a"])["a"].version == "v2"
    gallery.upsert("v2", ["b"], vectors(1, 3, seed=1))
    assert gallery.get(["b"])["b"].payload == {}


def test_deleting_removes_and_counts(gallery: Gallery) -> None:
    gallery.create_version("v1", 3)
    gallery.upsert("v1", ["a", "b"], vectors(2, 3))
    assert gallery.delete(["a", "ghost", "a"]) == 1
    assert gallery.delete([]) == 0
    assert gallery.count() == {"v1": 1}
    assert [hit.id for hit in gallery.search("v1", vectors(1, 3))[0]] == ["b"]
    gallery.upsert("v1", ["a"], vectors(1, 3))
    assert [hit.id for hit in gallery.search("v1", vectors(1, 3))[0]] == ["a", "b"]


def test_random_writes_leave_what_a_dictionary_would_hold(gallery: Gallery) -> None:
    rng = np.random.default_rng(3)
    expected: dict[str, tuple[str, Any, int]] = {}
    for name in ("v1", "v2"):
        gallery.create_version(name, 4)
    for step in range(40):
        names = [str(i) for i in rng.choice(30, size=5, replace=False)]
        if rng.random() < 0.3:
            assert gallery.delete(names) == sum(
                expected.pop(name, None) is not None for name in names
            )
        else:
            version, rows = f"v{rng.integers(1, 3)}", vectors(5, 4, seed=step)
            gallery.upsert(version, names, rows, [{"step": step}] * 5)
            expected.update(
                {name: (version, row, step) for name, row in zip(names, rows, strict=True)}
            )
        (hits,) = gallery.search("v1", vectors(1, 4, seed=step), k=100)
        scores = {name: row @ vectors(1, 4, seed=step)[0] for name, (_, row, _) in expected.items()}
        assert {hit.id: hit.score for hit in hits} == pytest.approx(scores, abs=1e-5)
        assert {hit.id: (hit.version, hit.payload["step"]) for hit in hits} == {
            name: (version, step) for name, (version, _, step) in expected.items()
        }
    for item in gallery.iterate():
        np.testing.assert_allclose(item.vector, expected.pop(item.id)[1], atol=1e-6)
    assert not expected


def test_an_empty_gallery_finds_nothing(gallery: Gallery) -> None:
    assert (gallery.versions(), gallery.count(), list(gallery.iterate()), gallery.get(["a"])) == (
        [],
        {},
        [],
        {},
    )
    gallery.create_version("v1", 3)
    assert gallery.search("v1", vectors(2, 3)) == [[], []]
    assert gallery.search("v1", vectors(0, 3)) == []
    gallery.upsert("v1", [], vectors(0, 3))
    assert gallery.count() == {"v1": 0}


def test_versions_are_listed_with_their_spaces(gallery: Gallery) -> None:
    P = np.random.default_rng(0).standard_normal((7, 2)).astype(np.float32)
    gallery.create_version("b", 2, P)
    gallery.create_version("a", 5)
    assert gallery.versions() == [VersionSpace("b", 2, 7), VersionSpace("a", 5, 5)]
    np.testing.assert_array_equal(gallery.projection("b"), P)
    assert gallery.projection("a") is None


def test_search_is_restricted_to_versions(gallery: Gallery) -> None:
    rows = filled(gallery)
    (hits,) = gallery.search("v1", rows[:1], versions=["v2"])
    assert sorted(hit.id for hit in hits) == ["i3", "i4", "i5"]
    assert gallery.search("v1", rows[:1], versions=[]) == [[]]
    assert len(gallery.search("v1", rows[:1], versions=["v1", "v1", "v2"])[0]) == 6


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"parity": "odd"}, [1, 3, 5]),
        ({"parity": "odd", "n": {"gt": 1, "le": 3}}, [3]),
        ({"n": {"in": [0, 4, 77]}}, [0, 4]),
        ({"n": {"ne": 0}, "parity": "even"}, [2, 4]),
        ({"n": 1.0}, [1]),
        ({"n": True}, []),
        ({"n": "1"}, []),
        ({"n": {"lt": "3"}}, []),
        ({"parity": {"ge": "f"}}, [1, 3, 5]),
        ({"ghost": None}, []),
        ({"ghost": {"ne": 1}}, []),
        ({"ghost": {"exists": False}, "n": {"exists": True, "lt": 2}}, [0, 1]),
    ],
)
def test_filters_by_payload(gallery: Gallery, where: dict[str, Any], expected: list[int]) -> None:
    rows = filled(gallery)
    for _ in range(2):  # the second time a verdict is known already
        (hits,) = gallery.search("v1", rows[:1], where=where)
        assert sorted(hit.payload["n"] for hit in hits) == expected


def test_a_filter_follows_every_write(gallery: Gallery) -> None:
    rows, where = filled(gallery, 200), {"parity": "odd"}
    assert len(gallery.search("v1", rows[:1], k=500, where=where)[0]) == 100
    gallery.upsert("v1", ["i0"], rows[:1], [{"parity": "odd"}])
    gallery.delete(["i1", "i199"])
    gallery.upsert("v2", ["i3"], rows[:1], [{"parity": "even"}])
    (hits,) = gallery.search("v1", rows[:1], k=500, where=where)
    assert {hit.id for hit in hits} == {f"i{i}" for i in range(1, 200, 2)} - {
        "i1",
        "i199",
        "i3",
    } | {"i0"}
    assert [hit.id for hit in gallery.search("v1", rows[7:8], k=1, where={"n": 7})[0]] == ["i7"]
    few = gallery.search("v1", rows[:4], k=3, where={"n": {"in": [7, 8]}})
    assert [sorted(hit.id for hit in hits) for hits in few] == [["i7", "i8"]] * 4


def test_iterating_is_sorted_resumable_and_by_version(gallery: Gallery) -> None:
    gallery.create_version("v1", 3)
    gallery.create_version("v2", 3)
    names = [f"{i:04}" for i in range(700)]
    gallery.upsert("v1", names[::-1], vectors(700, 3))
    gallery.upsert("v2", names[::7], vectors(100, 3, seed=1))
    assert [item.id for item in gallery.iterate()] == names
    assert [item.id for item in gallery.iterate("v2")] == names[::7]
    assert [item.id for item in gallery.iterate("v2", after="0350")] == names[357::7]
    assert list(gallery.iterate(after="9")) == []


def test_what_was_written_since_a_revision_comes_in_the_order_of_writing(gallery: Gallery) -> None:
    """As who keeps a copy of the items asks for it: each item once, as it is, also where pages are many."""
    if not isinstance(gallery, (SqliteGallery, PostgresGallery)):
        pytest.skip("this gallery keeps no order that others may ask for")
    gallery.create_version("v1", 3)
    gallery.create_version("v2", 3)
    names = [f"{i:03}" for i in range(600)]
    revisions = gallery.upsert("v1", names, vectors(600, 3), [{"n": i} for i in range(600)])
    gallery.upsert("v2", names[5:6], vectors(1, 3, seed=1), [{"n": "moved"}])
    gallery.delete(names[7:8])
    pages = list(gallery.written_since(0))
    assert [item.id for page in pages for item in page] == [
        *names[:5],
        names[6],
        *names[8:],
        names[5],
    ]
    assert len(pages) > 1
    last = pages[-1][-1]
    assert (last.version, last.payload) == ("v2", {"n": "moved"})
    since = [item for page in gallery.written_since(revisions[9]) for item in page]
    assert [item.id for item in since] == [*names[10:], names[5]]
    np.testing.assert_array_equal(since[0].vector, gallery.get([names[10]])[names[10]].vector)
    assert list(gallery.written_since(last.revision)) == []


def test_iterating_over_large_payloads(gallery: Gallery) -> None:
    """They come in pages of fewer items."""
    gallery.create_version("v1", 3)
    names = [f"{i:02}" for i in range(40)]
    for name in names:
        gallery.upsert("v1", [name], vectors(1, 3), [{"text": name * 200_000}])
    assert [(item.id, len(item.payload["text"])) for item in gallery.iterate()] == [
        (name, 400_000) for name in names
    ]


def test_fewer_large_payloads_are_read_at_once() -> None:
    rows: list[Any] = [("a", "v1", 1, 1, b"", bytes(1 << 20), b"", 1)] * 256
    assert len(sqlite._first(iter(rows))) == 9
    assert len(sqlite._first(iter([(*rows[0][:5], b"{}", b"", 1)] * 256))) == 256
    large: list[Any] = [("a", "v1", None, "x" * (1 << 20), 1)] * 16
    small: list[Any] = [("a", "v1", None, "{}", 1)] * 16
    assert postgres._next_limit(16, large) == 4
    assert (postgres._next_limit(16, small), postgres._next_limit(256, small)) == (64, 256)


def test_iterating_continues_while_items_are_written(gallery: Gallery) -> None:
    gallery.create_version("v1", 3)
    gallery.create_version("v2", 3)
    names = [f"{i:04}" for i in range(320)]  # more than a page
    gallery.upsert("v1", names, vectors(320, 3))
    seen = []
    for item in gallery.iterate():
        seen.append(item.id)
        if item.id == "0010":
            gallery.delete(names[300:])
            gallery.upsert("v2", names[270:290], vectors(20, 3))
        if item.id.endswith("0"):
            gallery.upsert("v2", [item.id], vectors(1, 3))
    assert seen == names[:300]
    for item in gallery.iterate("v1"):  # as a backfill does: each leaves the version that is read
        gallery.upsert("v2", [item.id], item.vector[None])
    assert gallery.count() == {"v1": 0, "v2": 300}


def test_ids_are_any_unicode(gallery: Gallery) -> None:
    gallery.create_version("版本1", 3)
    names = [
        "a'b\"c",
        "Ünïcode",
        "\U0001f4f7",
        "u\u0308",
        "\u00fc",
        "%_",
        " ",
        "line\nbreak",
        "\uffff",
        "日本",
    ]
    gallery.upsert("版本1", names, vectors(len(names), 3), [{"ключ": name} for name in names])
    for name, row in zip(names, vectors(len(names), 3), strict=True):
        (hit,) = gallery.search("版本1", row[None], k=1)[0]
        assert (hit.id, hit.payload, hit.version) == (name, {"ключ": name}, "版本1")
    assert [item.id for item in gallery.iterate()] == sorted(names)
    assert list(gallery.get(["日本", "x", "\u00fc"])) == ["日本", "\u00fc"]
    assert gallery.delete(names) == len(names)


def test_approximate_search_has_exact_scores_best_first(gallery: Gallery) -> None:
    """Whether or not there is an index, in all versions, with a filter, and after rows came and went."""
    rows, queries = filled(gallery, 1200, 16), vectors(5, 16, seed=9)
    for _ in range(2):
        for where, least in ((None, 10), ({"parity": "odd"}, 10), ({"n": 7}, 1)):
            for query, hits in zip(
                queries, gallery.search("v2", queries, where=where, exact=False), strict=True
            ):
                assert len({hit.id for hit in hits}) == len(hits) == least
                scores = [hit.score for hit in hits]
                assert scores == sorted(scores, reverse=True)
                np.testing.assert_allclose(
                    scores, [rows[int(hit.id[1:])] @ query for hit in hits], atol=1e-5
                )
                assert all(hit.payload["parity"] == "odd" for hit in hits if where)
        gallery.build_index()
    gallery.delete(["i1", "i700"])
    gallery.upsert("v2", ["i2"], queries[:1])
    found = gallery.search(
        "v1", np.concatenate([queries[:1], rows[1:2], rows[700:701]]), exact=False
    )
    assert (found[0][0].id, found[0][0].version) == ("i2", "v2")
    assert found[0][0].score == pytest.approx(1, abs=1e-6)
    assert not {"i1", "i700"} & {hit.id for hits in found for hit in hits}


def test_indexes_state_their_recall(gallery: Gallery) -> None:
    assert gallery.indexes() == gallery.build_index() == []
    filled(gallery, 600, 8)
    built = gallery.build_index("v1")
    assert {state.version for state in built} <= {"v1"}
    assert set(gallery.build_index()) == set(gallery.indexes()) >= set(built)
    for state in gallery.indexes():
        assert (state.items, bool(state.kind)) == (300, True)
        assert state.recall is None or 0.9 <= state.recall <= 1
    assert measured_recall(gallery, "v1", vectors(20, 8, seed=4)) > 0.9
    with pytest.raises(GalleryError, match="no version 'v9'"):
        gallery.build_index("v9")
    with pytest.raises(GalleryError, match="no version 'v9'"):
        gallery.search("v9", vectors(1, 8), exact=False)


def test_a_closed_gallery_says_so(gallery: Gallery) -> None:
    gallery.create_version("v1", 3)
    gallery.flush()
    gallery.close()
    gallery.close()
    for use in (gallery.count, gallery.versions, lambda: gallery.search("v1", vectors(1, 3))):
        with pytest.raises(GalleryError, match="closed"):
            use()


def test_vectors_are_replaced_only_where_nobody_was_faster(gallery: Gallery) -> None:
    rows = filled(gallery, 6)
    seen = list(gallery.get(["i0", "i1", "i2", "i3"]).values())
    gallery.delete(["i1"])
    gallery.upsert("v1", ["i2"], rows[5:6], [{"n": "new"}])
    gallery.upsert("v1", ["i3"], rows[3:4], [{"n": "moved"}])
    made = vectors(4, 3, seed=9)
    assert gallery.replace_vectors("v2", seen, made) == ["i0"]
    now = gallery.get(["i0", "i1", "i2", "i3"])
    assert (now["i0"].version, now["i0"].payload) == ("v2", {"n": 0, "parity": "even"})
    np.testing.assert_allclose(now["i0"].vector, made[0], atol=1e-6)
    assert "i1" not in now
    assert (now["i2"].payload, now["i3"].payload) == ({"n": "new"}, {"n": "moved"})
    assert (now["i2"].version, now["i3"].version) == ("v1", "v1")
    assert gallery.count() == {"v1": 2, "v2": 3}


def test_a_replaced_vector_keeps_the_payload_of_the_moment(gallery: Gallery) -> None:
    rows = filled(gallery, 6)
    seen = gallery.get(["i0"])["i0"]
    gallery.upsert("v1", ["i0"], rows[:1], [{"price": 7}])  # the same vector, another payload
    assert gallery.replace_vectors("v2", [seen], vectors(1, 3, seed=9)) == ["i0"]
    assert gallery.get(["i0"])["i0"].payload == {"price": 7}
    with pytest.raises(GalleryError, match="one vector per item"):
        gallery.replace_vectors("v2", [seen], vectors(2, 3))
    with pytest.raises(GalleryError, match="no version"):
        gallery.replace_vectors("v9", [seen], vectors(1, 3))
    assert gallery.replace_vectors("v2", [], np.empty((0, 3), np.float32)) == []


def test_payloads_are_replaced_with_the_vectors_where_they_are_given(gallery: Gallery) -> None:
    filled(gallery, 6)
    seen = list(gallery.get(["i0", "i1"]).values())
    gallery.delete(["i1"])
    kept = np.stack([item.vector for item in seen])
    assert gallery.replace_vectors("v1", seen, kept, [{"price": 1}, {"price": 2}]) == ["i0"]
    assert gallery.get(["i0", "i1"])["i0"].payload == {"price": 1}
    assert "i1" not in gallery.get(["i1"])
    with pytest.raises(GalleryError, match="1 payloads"):
        gallery.replace_vectors("v1", seen, kept, [{}])


def test_every_change_moves_the_revision(gallery: Gallery) -> None:
    rows = filled(gallery, 6)
    seen = [gallery.get(["i0"])["i0"].revision]
    assert seen[0] > 0
    assert gallery.upsert("v1", ["i0", "i1"], rows[:2], [{}, {}]) == [
        item.revision for item in gallery.get(["i0", "i1"]).values()
    ]
    seen.append(gallery.get(["i0"])["i0"].revision)
    changed = gallery.update_payload("i0", {"price": 3})
    seen.append(changed.revision)
    now = gallery.get(["i0"])["i0"]
    assert (now.revision, now.payload) == (changed.revision, changed.payload)
    np.testing.assert_array_equal(now.vector, changed.vector)
    assert gallery.replace_vectors("v2", [now], rows[1:2]) == ["i0"]
    seen.append(gallery.get(["i0"])["i0"].revision)
    gallery.delete(["i0"])
    gallery.upsert("v1", ["i0"], rows[:1])
    seen.append(gallery.get(["i0"])["i0"].revision)
    assert sorted(set(seen)) == seen
    assert [item.revision for item in gallery.iterate()] == [
        gallery.get([f"i{i}"])[f"i{i}"].revision for i in range(6)
    ]


def test_payload_fields_are_changed_and_removed(gallery: Gallery) -> None:
    filled(gallery, 6)
    before = gallery.get(["i0", "i1"])
    assert gallery.update_payload("i0", {"n": None, "price": 3}).payload == {
        "parity": "even",
        "price": 3,
    }
    now = gallery.get(["i0", "i1"])
    np.testing.assert_array_equal(now["i0"].vector, before["i0"].vector)
    assert (now["i0"].version, now["i1"].revision) == ("v1", before["i1"].revision)
    assert gallery.search("v1", now["i0"].vector[None], where={"price": 3})[0][0].id == "i0"
    with pytest.raises(UnknownItemError, match="no item 'ghost'"):
        gallery.update_payload("ghost", {"price": 1})
    with pytest.raises(GalleryError, match="cannot be written as JSON"):
        gallery.update_payload("i0", {"price": float("nan")})
    assert gallery.get(["i0"])["i0"].revision == now["i0"].revision


def test_an_item_that_changed_is_not_written_by_who_read_it_before(gallery: Gallery) -> None:
    filled(gallery, 6)
    seen = gallery.get(["i0"])["i0"]
    changed = gallery.update_payload("i0", {"price": 3}, seen.revision)
    with pytest.raises(ItemChangedError, match=f"revision {changed.revision}"):
        gallery.update_payload("i0", {"price": 4}, seen.revision)
    assert gallery.replace_vectors("v1", [seen], seen.vector[None], [{"n": "old"}]) == []
    assert gallery.get(["i0"])["i0"].payload == {"n": 0, "parity": "even", "price": 3}
    assert gallery.replace_vectors("v1", [changed], seen.vector[None], [{"n": "new"}]) == ["i0"]
    assert gallery.get(["i0"])["i0"].payload == {"n": "new"}
    for name in ("i0", "ghost"):
        with pytest.raises(ItemChangedError, match="Read it again"):
            gallery.upsert("v2", [name], seen.vector[None], [{"n": "old"}], changed.revision)
    with pytest.raises(ItemChangedError, match="Read it again"):
        gallery.delete(["i0"], changed.revision)
    with pytest.raises(GalleryError, match="2 ids"):
        gallery.delete(["i0", "i1"], changed.revision)
    now = gallery.get(["i0"])["i0"].revision
    assert gallery.get(["i0"])["i0"].payload == {"n": "new"}
    (again,) = gallery.upsert("v2", ["i0"], seen.vector[None], [{"n": "newer"}], now)
    assert gallery.delete(["i0"], again) == 1
    assert gallery.delete(["i0"], changed.revision) == 0
    assert gallery.count() == {"v1": 2, "v2": 3}


def test_payloads_changed_at_once_are_all_kept(gallery: Gallery) -> None:
    """Two change different fields of one item while a third writes another one."""
    rows, times = filled(gallery, 6), range(20)

    def change(field: str) -> None:
        for step in times:
            gallery.update_payload("i0", {f"{field} {step}": True})

    def write() -> None:
        for step in times:
            gallery.upsert("v2", ["i1"], rows[:1], [{"step": step}])

    with ThreadPoolExecutor() as pool:
        done = [pool.submit(change, "a"), pool.submit(change, "b"), pool.submit(write)]
    for one in done:
        one.result()
    payload = gallery.get(["i0"])["i0"].payload
    assert payload.keys() == {
        "n",
        "parity",
        *(f"{field} {step}" for field in "ab" for step in times),
    }
    assert gallery.get(["i1"])["i1"].payload == {"step": 19}
    assert gallery.count() == {"v1": 2, "v2": 4}


def test_a_write_beside_changes_of_the_payload_is_not_undone(gallery: Gallery) -> None:
    rows, stopping = filled(gallery, 6), Event()

    def change() -> None:
        while not stopping.wait(0.001):
            gallery.update_payload("i0", {"seen": True})

    with ThreadPoolExecutor() as pool:
        changing = pool.submit(change)
        try:
            for step in range(20):
                version = f"v{step % 2 + 1}"
                gallery.upsert(version, ["i0"], rows[step % 6][None], [{"step": step}])
                now = gallery.get(["i0"])["i0"]
                assert (now.version, now.payload["step"]) == (version, step)
                np.testing.assert_allclose(now.vector, rows[step % 6], atol=1e-6)
        finally:
            stopping.set()
    changing.result()
    assert gallery.delete(["i0"]) == 1
    assert gallery.count() == {"v1": 2, "v2": 3}


def test_every_change_moves_the_revision_of_the_gallery(gallery: Gallery) -> None:
    if gallery.revision() is None:
        pytest.skip("this store cannot tell")
    gallery.create_version("v1", 3)
    seen = [gallery.revision()]

    def note() -> None:
        seen.append(gallery.revision())

    gallery.upsert("v1", ["a", "b"], vectors(2, 3), [{"n": 1}, {}])
    note()
    gallery.upsert("v1", ["a"], vectors(1, 3), [{"n": 1}])
    note()
    gallery.update_payload("a", {"n": 2})
    note()
    gallery.replace_vectors("v1", [gallery.get(["b"])["b"]], vectors(1, 3, seed=4))
    note()
    gallery.delete(["a"])
    note()
    gallery.upsert("v1", ["a"], vectors(1, 3))
    note()
    assert len(set(seen)) == len(seen) == 7
    gallery.get(["a"])
    gallery.search("v1", vectors(1, 3))
    assert gallery.revision() == seen[-1]
