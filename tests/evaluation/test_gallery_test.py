"""Search through a store: equal to searching the vectors, also when the store holds two versions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fixstar import geometry
from fixstar.errors import InputError
from fixstar.evaluation import search
from fixstar.evaluation.search import image_search, store_search
from fixstar.gallery import MemoryGallery

Array = NDArray[Any]

RNG = np.random.default_rng(0)
OLD, NEW = RNG.normal(size=(15, 6)), RNG.normal(size=(15, 8))  # projections P
GALLERY_LABELS, QUERY_LABELS = np.arange(40) % 4, np.arange(120) % 4
IDS = [f"image {i}" for i in range(40)]
LABEL_OF = dict(zip(IDS, GALLERY_LABELS.tolist(), strict=True))


def weak(labels: Array, width: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    return np.random.default_rng(1).normal(size=(4, width))[labels] + 2 * rng.normal(size=(len(labels), width))


def store(old_items: int) -> tuple[MemoryGallery, Array]:
    """The first items under the old version, the others under the new one, and all their full features."""
    h_old, h_new = weak(GALLERY_LABELS, 6, 2)[:old_items], weak(GALLERY_LABELS, 8, 3)[old_items:]
    gallery = MemoryGallery()
    gallery.create_version("old", 6, OLD)
    gallery.create_version("new", 8, NEW)
    gallery.upsert("old", IDS[:old_items], geometry.short_form(h_old, OLD))
    gallery.upsert("new", IDS[old_items:], geometry.short_form(h_new, NEW))
    return gallery, np.concatenate([geometry.unit(h_old @ OLD.T), geometry.unit(h_new @ NEW.T)])


@pytest.mark.parametrize("block", [1024, 50])
@pytest.mark.parametrize("old_items", [0, 25, 40])
def test_a_store_answers_like_the_search_by_image(old_items: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "STORE_BLOCK", block)
    gallery, full = store(old_items)
    h = weak(QUERY_LABELS, 8, 4)
    hits = store_search(gallery, "new", geometry.short_form(h, NEW), QUERY_LABELS, LABEL_OF)
    assert hits.dtype == np.bool_
    assert np.array_equal(hits, image_search(h @ NEW.T, QUERY_LABELS, full, GALLERY_LABELS))
    assert 0 < hits.mean() < 1
    by_function = store_search(gallery, "new", geometry.short_form(h, NEW), QUERY_LABELS, lambda item: LABEL_OF[item])
    assert np.array_equal(hits, by_function)


def test_an_empty_store_finds_nothing() -> None:
    gallery = MemoryGallery()
    gallery.create_version("v1", 3)
    assert store_search(gallery, "v1", np.eye(3), np.arange(3), {}).tolist() == [False, False, False]


def test_wrong_input_is_named() -> None:
    gallery, _ = store(10)
    with pytest.raises(InputError, match="2 query labels for 3 queries"):
        store_search(gallery, "new", np.eye(8)[:3], np.arange(2), LABEL_OF)
    forgetful: Any = SimpleNamespace(search=lambda *_, **__: [[]])
    with pytest.raises(InputError, match="1 answers to 3 queries"):
        store_search(forgetful, "new", np.eye(8)[:3], np.arange(3), LABEL_OF)
