"""kNN classification against scikit-learn, slow loops with exact ties, and cases worked by hand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fixstar.errors import InputError
from fixstar.evaluation.search import image_search, knn_classes, knn_hits

Array = NDArray[Any]


def features(count: int, width: int, seed: int) -> Array:
    """Unnormalised: lengths spread over several orders of magnitude."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, width)) * np.exp(rng.normal(0, 3, size=(count, 1)))


QUERIES, GALLERY = features(80, 5, seed=1), features(50, 5, seed=2)
TRUTH, LABELS = (
    np.arange(80) % 4 * 10 - 20,
    np.arange(50) % 3 * 10 - 20,
)  # class 10 is not in the gallery


def test_equal_votes_of_two_classes_are_those_of_scikit_learn() -> None:
    """An odd k and two classes: no tie."""
    from sklearn.neighbors import KNeighborsClassifier

    labels = np.arange(50) % 2
    for k in (1, 5, 49):
        reference = KNeighborsClassifier(k, metric="cosine", algorithm="brute").fit(GALLERY, labels)
        assert np.array_equal(knn_classes(QUERIES, GALLERY, labels, k), reference.predict(QUERIES))


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([-4.0, -1.0, 1.0])), min_size=1, max_size=10
    ),
    st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=4),
    st.data(),
)
@settings(max_examples=100, deadline=None)
def test_ties_agree_with_a_slow_loop(
    axes: list[tuple[int, float]], rows: list[list[int]], data: st.DataObject
) -> None:
    """Gallery vectors along the axes: a cosine is plus or minus one component of the query, so ties are exact."""
    gallery = np.zeros((len(axes), 3))
    for item, (axis, length) in enumerate(axes):
        gallery[item, axis] = length
    labels = data.draw(st.lists(st.integers(0, 3), min_size=len(axes), max_size=len(axes)))
    k = data.draw(st.integers(1, len(axes)))
    found = knn_classes(np.array(rows), gallery, np.array(labels), k)
    for row, answer in zip(rows, found, strict=True):
        scores = [
            row[axis] * np.sign(length) / max(math.hypot(*row), 1e-12) for axis, length in axes
        ]
        nearest = sorted(range(len(axes)), key=lambda item: (-scores[item], item))[:k]
        votes = Counter(
            labels[item] for item in nearest
        )  # in the order of the nearest: max takes the first of equals
        assert answer == max(votes, key=votes.__getitem__)


def test_the_nearest_decides_between_equal_votes() -> None:
    angles = np.radians([5, 10, 20, 30, 40])
    gallery = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    query = np.array([[1.0, 0.0]])
    assert knn_classes(query, gallery, np.array([9, 3, 3, 9, 5]), 4).tolist() == [9]
    assert knn_classes(query, gallery, np.array([5, 3, 9, 9, 3]), 5).tolist() == [
        3
    ]  # 5 is nearest, with one vote
    assert knn_classes(query, gallery, np.array([5, 4, 3, 2, 1]), 5).tolist() == [5]


def test_one_neighbour_is_the_image_search() -> None:
    expected = image_search(QUERIES, TRUTH, GALLERY, LABELS)
    hits = knn_hits(QUERIES, TRUTH, GALLERY, LABELS, 1)
    assert hits.dtype == np.bool_
    assert np.array_equal(hits, expected)
    assert knn_hits(QUERIES, TRUTH, GALLERY, LABELS, 1).mean() == expected.mean()
    assert not hits[TRUTH == 10].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: knn_classes(QUERIES, GALLERY, LABELS, 51), "1 to 50 here; got 51"),
        (lambda: knn_classes(QUERIES, GALLERY, LABELS, 0), "got 0"),
        (lambda: knn_classes(QUERIES, GALLERY, LABELS[:3], 1), "3 gallery labels for 50"),
        (lambda: knn_hits(QUERIES, TRUTH[:3], GALLERY, LABELS, 1), "3 query labels for 80"),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
