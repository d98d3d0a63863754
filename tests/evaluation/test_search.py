"""Search against slow loops, exact ties and scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from wording import refuses

from fixstar import geometry
from fixstar.errors import InputError
from fixstar.evaluation import search
from fixstar.evaluation.search import (
    PROTOCOLS,
    image_search,
    nearest,
    store_search,
    template_search,
    templates,
)
from fixstar.gallery import MemoryGallery

Array = NDArray[Any]


def features(count: int, width: int, seed: int, offset: float = 0.0) -> Array:
    """Unnormalised: lengths spread over several orders of magnitude."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(count, width)) + offset) * np.exp(rng.normal(0, 3, size=(count, 1)))


def cosine(a: Array, b: Array) -> float:
    return float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


def slow_hits(
    queries: Array, query_labels: Array, gallery: Array, gallery_labels: Array
) -> list[bool]:
    hits = []
    for query, label in zip(queries, query_labels, strict=True):
        scores = [cosine(query, item) for item in gallery]
        hits.append(bool(gallery_labels[scores.index(max(scores))] == label))
    return hits


@pytest.mark.parametrize("block", [1, 7, 2048])
@pytest.mark.parametrize("k", [1, 2, 9, 60])
def test_nearest_agrees_with_scikit_learn(k: int, block: int) -> None:
    from sklearn.neighbors import NearestNeighbors

    queries, gallery = features(40, 12, seed=1), features(60, 12, seed=2)
    distances, expected = (
        NearestNeighbors(metric="cosine", algorithm="brute").fit(gallery).kneighbors(queries, k)
    )
    indices, cosines = nearest(queries, gallery, k, block)
    assert np.array_equal(indices, expected)
    assert np.allclose(cosines, 1 - distances, atol=1e-6)
    assert indices.dtype == np.int64
    assert cosines.dtype == np.float32


def test_negative_cosines_are_ranked_too() -> None:
    queries, gallery = features(20, 6, seed=3, offset=4.0), -features(30, 6, seed=4, offset=4.0)
    indices, cosines = nearest(queries, gallery, k=5)
    assert (cosines < 0).all()
    for query, found in zip(queries, indices, strict=True):
        scores = [cosine(query, item) for item in gallery]
        assert found.tolist() == sorted(range(30), key=lambda i: -scores[i])[:5]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([-4.0, -1.0, 1.0, 2.0])),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=5),
    st.integers(1, 13),
    st.data(),
)
def test_ties_go_to_the_lowest_index(
    axes: list[tuple[int, float]], rows: list[list[int]], block: int, data: st.DataObject
) -> None:
    """Gallery vectors along the axes: a cosine is plus or minus one component of the query, so ties are exact."""
    gallery = np.zeros((len(axes), 3))
    for item, (axis, length) in enumerate(axes):
        gallery[item, axis] = length
    k = data.draw(st.integers(1, len(axes)))
    indices, cosines = nearest(np.array(rows), gallery, k, block)
    for row, found, values in zip(rows, indices, cosines, strict=True):
        scores = [row[axis] * np.sign(length) for axis, length in axes]
        assert found.tolist() == sorted(range(len(axes)), key=lambda i: (-scores[i], i))[:k]
        assert np.allclose(values * np.linalg.norm(row), [scores[i] for i in found], atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 33])
@pytest.mark.parametrize("width", [3, 64, 99])
def test_identical_images_tie(count: int, width: int) -> None:
    half = features(77, width, seed=width)
    indices, cosines = nearest(
        features(count, width, seed=5), np.concatenate([half, half]), k=2, block=50
    )
    assert (indices[:, 0] < 77).all()
    assert np.array_equal(indices[:, 1], indices[:, 0] + 77)
    assert np.array_equal(cosines[:, 0], cosines[:, 1])


@pytest.mark.parametrize("block", [3, 2048])
def test_image_search_agrees_with_a_slow_loop(block: int) -> None:
    rng = np.random.default_rng(6)
    queries, gallery = features(50, 5, seed=7), features(31, 5, seed=8)
    query_labels, gallery_labels = rng.integers(-3, 3, 50), rng.integers(-3, 3, 31)
    hits = image_search(queries, query_labels, gallery, gallery_labels, block)
    assert hits.dtype == np.bool_
    assert hits.tolist() == slow_hits(queries, query_labels, gallery, gallery_labels)
    assert 0 < hits.mean() < 1


def test_template_search_agrees_with_a_slow_loop() -> None:
    rng = np.random.default_rng(9)
    queries, gallery = features(50, 5, seed=10), features(40, 5, seed=11)
    query_labels, gallery_labels = rng.choice([-7, 3, 1000], 50), rng.choice([-7, 3, 1000], 40)
    classes = np.array([-7, 3, 1000])
    means = np.zeros((3, 5))
    for item, label in zip(gallery, gallery_labels, strict=True):
        means[classes.tolist().index(label)] += item / np.linalg.norm(item)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    found, labels = templates(gallery, gallery_labels)
    assert labels.tolist() == [-7, 3, 1000]
    assert np.allclose(found, means, atol=1e-6)
    hits = template_search(queries, query_labels, gallery, gallery_labels)
    assert hits.tolist() == slow_hits(queries, query_labels, means, classes)
    assert hits.tolist() != image_search(queries, query_labels, gallery, gallery_labels).tolist()


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_gallery_prepared_once_answers_many_query_sets(protocol: str, device: str | None) -> None:
    """torch's way is the same on a CPU and on a GPU."""
    gallery, labels = features(80, 6, seed=16), np.arange(80) % 3
    find = search.searcher(protocol, gallery, labels, device)
    for seed in (17, 18):
        queries, truth = features(50, 6, seed), np.arange(50) % 3
        expected = slow_hits(
            queries,
            truth,
            *(templates(gallery, labels) if protocol == "template" else (gallery, labels)),
        )
        assert find(queries, truth).tolist() == expected
    with refuses(InputError):
        find(features(9, 5, seed=19), np.arange(9))


def test_on_a_device_equal_cosines_go_to_the_lowest_index_in_blocks_of_any_size() -> None:
    import torch

    gallery = np.tile(np.eye(3, dtype=np.float32), (5, 1))
    queries = np.eye(3, dtype=np.float32)[[2, 0, 1, 1]]
    for cells in (1, 30, 1 << 20):
        found = search._nearest_on_device(
            torch.from_numpy(queries), torch.from_numpy(gallery), cells
        )
        assert found.tolist() == [2, 0, 1, 1]


def test_a_protocol_of_ones_own_needs_no_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(queries: Array, query_labels: Array, gallery: Array, gallery_labels: Array) -> Array:
        assert len(queries) == len(gallery) == len(gallery_labels) == 2
        return np.zeros(len(query_labels), dtype=np.bool_)

    monkeypatch.setitem(PROTOCOLS, "never", never)
    assert search.searcher("never", GOOD, ONE)(GOOD, ONE).tolist() == [False, False]


def test_length_and_float_type_do_not_matter() -> None:
    queries, gallery = features(30, 8, seed=12), features(20, 8, seed=13)
    labels = np.arange(20)
    truth = nearest(queries, gallery)[0][:, 0]
    assert image_search(queries * 1e-3, truth, gallery * 1e3, labels).all()
    assert np.array_equal(nearest(queries.astype(np.float32), gallery)[0][:, 0], truth)
    halves = (
        np.round(array / np.linalg.norm(array, axis=1, keepdims=True), 3)
        for array in (queries, gallery)
    )
    low = [array.astype(np.float16) for array in halves]
    exact = [array.astype(np.float64) for array in low]
    assert np.array_equal(nearest(*low)[0], nearest(*exact)[0])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_class_is_always_found_and_an_absent_class_never(protocol: str) -> None:
    queries, gallery = features(9, 4, seed=14), features(5, 4, seed=15)
    answer = PROTOCOLS[protocol]
    assert answer(queries, np.full(9, 3), gallery, np.full(5, 3)).all()
    assert not answer(queries, np.full(9, 2), gallery, np.full(5, 3)).any()


def test_ranks_order_all_cosines_and_come_back_unchanged() -> None:
    cosines = np.array([-1.0, -0.25, -1e-30, -0.0, 0.0, 1e-30, 0.25, 1.0], dtype=np.float32)
    indices = np.arange(8)[::-1] * 1_000_003
    ranks = search._rank(cosines, indices)
    assert np.array_equal(np.sort(ranks), ranks)  # -0 before 0 only because its index is higher
    assert search._rank(cosines[3:4], indices[4:5]) == ranks[4]
    assert np.array_equal(search._cosine_of(ranks), cosines)
    assert np.array_equal(search._index_of(ranks), indices)


def test_a_zero_vector_is_orthogonal_to_everything() -> None:
    indices, cosines = nearest(
        np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[-1.0, 0.0], [0.0, 0.0]])
    )
    assert indices.tolist() == [[0], [1]]
    assert cosines.tolist() == [[0.0], [0.0]]


GOOD = np.ones((2, 3))
ONE = np.array([0, 1])


@pytest.mark.parametrize(
    "call",
    [
        lambda: nearest(GOOD, np.ones((2, 4))),
        lambda: nearest(GOOD, np.ones((0, 3))),
        lambda: nearest(np.ones((0, 3)), GOOD),
        lambda: nearest(np.ones(3), GOOD),
        lambda: nearest(np.array([[np.nan, 1, 1]]), GOOD),
        lambda: nearest(GOOD, GOOD * np.inf),
        lambda: nearest(GOOD.astype(str), GOOD),
        lambda: nearest(GOOD, GOOD, k=3),
        lambda: nearest(GOOD, GOOD, k=0),
        lambda: nearest(GOOD, GOOD, block=0),
        lambda: image_search(GOOD, ONE[:1], GOOD, ONE),
        lambda: template_search(GOOD, ONE, GOOD, np.arange(3)),
        lambda: image_search(GOOD, ONE / 2, GOOD, ONE),  # type: ignore[arg-type]
        lambda: templates(GOOD, ONE[:, None]),
        lambda: templates(np.ones((0, 3)), ONE[:0]),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object]) -> None:
    with refuses(InputError):
        call()


RNG = np.random.default_rng(0)
OLD, NEW = RNG.normal(size=(15, 6)), RNG.normal(size=(15, 8))  # projections P
GALLERY_LABELS, QUERY_LABELS = np.arange(40) % 4, np.arange(120) % 4
IDS = [f"image {i}" for i in range(40)]
LABEL_OF = dict(zip(IDS, GALLERY_LABELS.tolist(), strict=True))


def weak(labels: Array, width: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    return np.random.default_rng(1).normal(size=(4, width))[labels] + 2 * rng.normal(
        size=(len(labels), width)
    )


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
def test_a_store_answers_like_the_search_by_image(
    old_items: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "STORE_BLOCK", block)
    gallery, full = store(old_items)
    h = weak(QUERY_LABELS, 8, 4)
    hits = store_search(gallery, "new", geometry.short_form(h, NEW), QUERY_LABELS, LABEL_OF)
    assert hits.dtype == np.bool_
    assert np.array_equal(hits, image_search(h @ NEW.T, QUERY_LABELS, full, GALLERY_LABELS))
    assert 0 < hits.mean() < 1
    by_function = store_search(
        gallery, "new", geometry.short_form(h, NEW), QUERY_LABELS, lambda item: LABEL_OF[item]
    )
    assert np.array_equal(hits, by_function)


def test_an_empty_store_finds_nothing() -> None:
    gallery = MemoryGallery()
    gallery.create_version("v1", 3)
    assert store_search(gallery, "v1", np.eye(3), np.arange(3), {}).tolist() == [
        False,
        False,
        False,
    ]


def test_wrong_input_to_store_search_is_named() -> None:
    gallery, _ = store(10)
    with refuses(InputError):
        store_search(gallery, "new", np.eye(8)[:3], np.arange(2), LABEL_OF)
    forgetful: Any = SimpleNamespace(search=lambda *_, **__: [[]])
    with pytest.raises(InputError, match="1 answers to 3 queries"):
        store_search(forgetful, "new", np.eye(8)[:3], np.arange(3), LABEL_OF)
