"""What every gallery must do. A backend joins by adding its maker to ``GALLERIES``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fixstar.errors import GalleryError
from fixstar.gallery import Gallery, MemoryGallery
from fixstar.geometry import short_form, unit

GALLERIES: dict[str, Callable[[], Gallery]] = {"memory": MemoryGallery}


@pytest.fixture(params=GALLERIES)
def gallery(request: pytest.FixtureRequest) -> Gallery:
    return GALLERIES[request.param]()


def vectors(count: int, width: int, seed: int = 0) -> Any:
    return unit(np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32))


def test_the_nearest_come_first_with_their_cosine_version_and_payload(gallery: Gallery) -> None:
    gallery.create_version("v1", 2)
    gallery.upsert("v1", ["east", "north"], np.eye(2, dtype=np.float32), [{"x": 1}, {"x": 2}])
    (hits,) = gallery.search("v1", np.array([[0.6, 0.8]], np.float32), k=5)
    assert [(hit.id, hit.version, hit.payload["x"]) for hit in hits] == [("north", "v1", 2), ("east", "v1", 1)]
    assert [hit.score for hit in hits] == pytest.approx([0.8, 0.6])


def test_versions_of_different_width_are_searched_together_exactly(gallery: Gallery) -> None:
    """Against brute force over full-dimension features, d = 20,000 with m = 64 and m = 48."""
    rng = np.random.default_rng(0)
    projections = {name: rng.standard_normal((20_000, m)).astype(np.float32) for name, m in (("v1", 64), ("v2", 48))}
    h = {name: rng.standard_normal((30, P.shape[1])).astype(np.float32) for name, P in projections.items()}
    for name, P in projections.items():
        gallery.create_version(name, P.shape[1], P)
        gallery.upsert(name, [f"{name}-{i}" for i in range(30)], short_form(h[name], P))
    queries = rng.standard_normal((4, 48)).astype(np.float32)
    full = np.concatenate([unit(h[name].astype(np.float64) @ P.T) for name, P in projections.items()])
    cosines = unit(queries.astype(np.float64) @ projections["v2"].T) @ full.T
    names = [f"{name}-{i}" for name in projections for i in range(30)]
    for row, hits in zip(cosines, gallery.search("v2", short_form(queries, projections["v2"]), k=60), strict=True):
        assert len(hits) == 60
        by_id = {hit.id: hit.score for hit in hits}
        np.testing.assert_allclose([by_id[name] for name in names], row, atol=1e-5)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_an_item_has_one_vector_and_moves_with_its_version(gallery: Gallery) -> None:
    gallery.create_version("v1", 3)
    gallery.create_version("v2", 3)
    gallery.upsert("v1", ["a", "b"], vectors(2, 3))
    gallery.upsert("v2", ["a"], vectors(1, 3, seed=1), [{"new": True}])
    assert gallery.count() == {"v1": 1, "v2": 1}
    (hits,) = gallery.search("v2", vectors(1, 3, seed=1), k=3)
    assert (hits[0].id, hits[0].version, hits[0].payload) == ("a", "v2", {"new": True})
    assert sorted(hit.id for hit in hits) == ["a", "b"]


def test_deleting_removes_and_counts(gallery: Gallery) -> None:
    gallery.create_version("v1", 3)
    gallery.upsert("v1", ["a", "b"], vectors(2, 3))
    assert gallery.delete(["a", "ghost"]) == 1
    assert gallery.count() == {"v1": 1}
    assert [hit.id for hit in gallery.search("v1", vectors(1, 3))[0]] == ["b"]


def test_an_empty_gallery_finds_nothing(gallery: Gallery) -> None:
    gallery.create_version("v1", 3)
    assert gallery.search("v1", vectors(2, 3)) == [[], []]


def broken(kind: str) -> Any:
    good = vectors(2, 3)
    return {
        "nan": np.where([[True], [False]], np.nan, good),
        "zero": good * np.array([[1], [0]]),
        "long": good * 2,
        "wide": vectors(2, 4),
        "one row": good[0],
    }[kind]


@pytest.mark.parametrize("kind", ["nan", "zero", "long", "wide", "one row"])
def test_vectors_that_make_no_sense_are_refused_and_nothing_is_lost(gallery: Gallery, kind: str) -> None:
    gallery.create_version("v1", 3)
    gallery.upsert("v1", ["a", "b"], vectors(2, 3))
    with pytest.raises(GalleryError):
        gallery.upsert("v1", ["a", "c"], broken(kind))
    with pytest.raises(GalleryError):
        gallery.search("v1", broken(kind))
    assert gallery.count() == {"v1": 2}


def test_other_mistakes_are_told(gallery: Gallery) -> None:
    gallery.create_version("v1", 3)
    with pytest.raises(GalleryError, match="already"):
        gallery.create_version("v1", 3)
    with pytest.raises(GalleryError, match="no version 'v9'"):
        gallery.upsert("v9", ["a"], vectors(1, 3))
    with pytest.raises(GalleryError, match="2 ids"):
        gallery.upsert("v1", ["a", "b"], vectors(1, 3))
    with pytest.raises(GalleryError, match="1 distinct"):
        gallery.upsert("v1", ["a", "a"], vectors(2, 3))
    with pytest.raises(GalleryError, match="48 wide"):
        gallery.create_version("v2", 3, np.zeros((100, 48)))
    assert gallery.count() == {"v1": 0}
