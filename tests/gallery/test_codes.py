"""Vectors in 8 bits: what they keep, and that odd features cost an index nothing."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fixstar.gallery.hnsw import Codes, build_hnsw, fitted_codes
from fixstar.gallery.matrix import Draft, Rows
from fixstar.geometry import unit

pytest.importorskip("faiss", reason="needs faiss-cpu (the extra index)")

WIDTH = 24
Floats = NDArray[np.float32]


def features(count: int, seed: int, bias: float) -> Floats:
    """Of a network whose last layer is a ReLU: the larger the bias, the larger what all share."""
    rng = np.random.default_rng(seed)
    weights = np.random.default_rng(5).normal(size=(8, WIDTH))
    return unit(np.maximum(rng.normal(size=(count, 8)) @ weights + bias, 0).astype(np.float32))


def with_one_large(vectors: Floats) -> Floats:
    """All but the same in one component, which is nearly all there is."""
    large = vectors.copy()
    large[:, 0] = 3
    return unit(large)


def with_an_odd_one(vectors: Floats) -> Floats:
    odd = vectors.copy()
    odd[0] = np.eye(WIDTH)[3]
    return odd


KINDS = {
    "features": features(3000, 1, 1.0),
    "with a large mean": features(3000, 1, 8.0),
    "with one large component": with_one_large(features(3000, 1, 1.0)),
    "with an odd vector": with_an_odd_one(features(3000, 1, 8.0)),
}


def fitted(vectors: Floats) -> Codes:
    pages = [vectors[:1000], vectors[1000:]]
    return fitted_codes(pages, pages, vectors.shape[1])


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_finds_them_all(kind: str) -> None:
    vectors = KINDS[kind]
    draft = Draft(Rows(WIDTH))
    draft.append(
        range(len(vectors)), [str(i) for i in range(len(vectors))], vectors, ["{}"] * len(vectors)
    )
    index = build_hnsw(draft.rows(), lambda: True)
    assert index is not None
    assert index.recall is not None
    assert index.recall > 0.98


def test_codes_are_whole_numbers_around_the_mean() -> None:
    codes = fitted(KINDS["with a large mean"]).of(KINDS["with a large mean"])
    assert np.array_equal(codes, np.rint(codes))
    assert np.abs(codes).max() <= 127
    assert np.abs(codes.mean(axis=0)).max() < 0.5
    assert codes.std() > 127 / 8 - 1  # the few that are eight times as large are cut off


def test_by_hand() -> None:
    vectors = np.array([[0.6, 0.8], [0.6, -0.8]], np.float32)
    codes = fitted(vectors)
    assert codes.mean.tolist() == pytest.approx([0.6, 0.0])
    assert codes.scale == pytest.approx(127 / 0.8)
    assert codes.of(vectors).tolist() == [[0, 127], [0, -127]]
    assert codes.length == pytest.approx(127)
    asked, rounding = codes.of_one_query(np.array([[0.6, 0.8]], np.float32))
    assert asked.tolist() == [[95, 127]]
    assert rounding == pytest.approx(1.2 * ((127 / 0.8) ** 2 + 127**2) ** 0.5)


def test_one_query_is_coded_as_many_are() -> None:
    codes, queries = fitted(KINDS["features"]), features(50, 2, 1.0)
    many, rounding = codes.of_queries(queries)
    for i in range(len(queries)):
        one, its = codes.of_one_query(queries[i : i + 1])
        assert np.array_equal(one[0], many[i])
        assert its == pytest.approx(float(rounding[i, 0]))


def test_rounding_swaps_no_pair_beyond_what_is_stated() -> None:
    vectors, queries = KINDS["with one large component"], with_one_large(features(40, 2, 1.0))
    codes = fitted(vectors)
    asked, rounding = codes.of_queries(queries)
    by_codes, exact = asked @ codes.of(vectors).T, queries.astype(float) @ vectors.T.astype(float)
    tenth = np.sort(exact, axis=1)[:, -10, None]
    limit = np.sort(by_codes, axis=1)[:, -10, None] - rounding
    best = exact >= tenth
    assert (by_codes >= limit)[best].mean() > 0.999
    assert (by_codes >= limit).mean() < 0.2  # and few others are looked at again


def test_equal_vectors_have_codes_too() -> None:
    vectors = np.repeat(unit(np.ones((1, 4), np.float32)), 10, axis=0)
    assert not fitted(vectors).of(vectors).any()
    zero, rounding = fitted(vectors).of_one_query(np.zeros((1, 4), np.float32))
    assert not zero.any()
    assert np.isfinite(rounding)
