"""Pairs without a common item: class means, and pseudo-pairs where both sets show the same things, else refused."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from wording import refuses

from fixstar.errors import InputError
from fixstar.geometry import unit
from fixstar.translation import fit_map, paired_by_class, pseudo_pairs
from fixstar.translation.unpaired import _mutual

Array = NDArray[np.float64]


def vectors(count: int, width: int, seed: int = 0) -> Array:
    return unit(np.random.default_rng(seed).standard_normal((count, width)))


class World:
    """Things of 30 kinds in 16 dimensions, that two models see from other directions."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.kinds = unit(self.rng.standard_normal((30, 16)) * np.linspace(2, 0.3, 16) + 0.5)
        self.turn = np.linalg.qr(self.rng.standard_normal((16, 16)))[0]

    def items(self, count: int) -> tuple[Array, NDArray[np.int64]]:
        labels = self.rng.integers(30, size=count)
        return unit(self.kinds[labels] + 0.06 * self.rng.standard_normal((count, 16))), labels


@pytest.mark.parametrize("labelled", [False, True])
def test_the_rotation_between_two_sets_is_found(labelled: bool) -> None:
    world = World(0)
    X, x = world.items(700)
    Y, y = world.items(600)
    fresh, _ = world.items(100)
    labels = (x, [str(label) for label in y]) if labelled else (None, None)
    found = pseudo_pairs(X, Y @ world.turn, *labels)
    assert np.mean(x[found.first] == y[found.second]) > 0.95
    np.testing.assert_allclose(found.pairs.X, X[found.first], atol=1e-6)
    np.testing.assert_allclose(found.pairs.Y, (Y @ world.turn)[found.second], atol=1e-6)
    rotation = fit_map("rotation", found.pairs).map
    assert np.sum(rotation(fresh) * (fresh @ world.turn), axis=1).mean() > 0.97
    assert found.anchors == ("30 class centres" if labelled else "the distribution of cosines")


def test_mutual_neighbours_are_those_of_slow_code() -> None:
    rng = np.random.default_rng(3)
    p, q = rng.standard_normal((40, 5)), rng.standard_normal((30, 5))
    distances = np.linalg.norm(p[:, None] - q[None], axis=2)
    slow = [
        (i, j)
        for i in range(40)
        for j in range(30)
        if distances[i].argmin() == j and distances[:, j].argmin() == i
    ]
    first, second = _mutual(p, q)
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == slow


def test_too_few_vectors_are_refused() -> None:
    X, _ = World(1).items(6)
    with refuses(InputError):
        pseudo_pairs(X, X @ World(1).turn)
    with pytest.raises(InputError, match="not of length 1"):
        pseudo_pairs(2 * X, X)


def test_class_means_are_the_pairs() -> None:
    X = unit(np.array([[3.0, 4.0], [4.0, 3.0], [0.0, 1.0], [1.0, 0.0]]))
    Y = unit(np.array([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0], [1.0, -1.0, 0.0]]))
    pairs = paired_by_class(
        X, np.array([5, 5, 2, 9]), Y, np.array([2, 5, 5])
    )  # 9 is in one space alone
    assert pairs.groups is not None
    assert pairs.groups.tolist() == [2, 5]
    np.testing.assert_allclose(pairs.X, [[0, 1], [0.5**0.5, 0.5**0.5]], atol=1e-6)
    np.testing.assert_allclose(pairs.Y, [[0, 0, 1], [1, 0, 0]], atol=1e-6)


def test_labels_may_be_strings() -> None:
    X, Y, labels = vectors(6, 3), vectors(6, 3, seed=2), np.array([2, 0, 1, 0, 1, 2])
    numbers = paired_by_class(X, labels, Y, labels)
    names = paired_by_class(
        X, [f"class {c}" for c in labels], Y, np.array([f"class {c}" for c in labels], object)
    )
    assert names.groups is not None
    assert names.groups.tolist() == ["class 0", "class 1", "class 2"]
    np.testing.assert_array_equal(names.X, numbers.X)
    np.testing.assert_array_equal(names.weights, numbers.weights)


def test_classes_with_more_and_closer_vectors_weigh_more() -> None:
    rng = np.random.default_rng(0)
    centres = vectors(3, 10)
    labels = np.repeat([0, 1, 2], [200, 10, 200])
    spread = np.array([0.05, 0.05, 0.3])[labels]
    X = unit(centres[labels] + spread[:, None] * rng.standard_normal((410, 10)))
    pairs = paired_by_class(X, labels, X, labels)
    many, few, wide = pairs.weights
    assert many > few
    assert many > wide
    assert pairs.weights.mean() == pytest.approx(1)
    # by hand: tr(S) is the scatter around the mean, with two degrees of freedom lent by all classes together
    scatter = np.array([np.sum((X[labels == c] - X[labels == c].mean(0)) ** 2) for c in range(3)])
    pooled = scatter.sum() / (410 - 3)
    errors = (scatter + 2 * pooled) / (np.bincount(labels) + 1) / np.bincount(labels)
    np.testing.assert_allclose(pairs.weights, (1 / errors) / (1 / errors).mean(), rtol=1e-6)


def test_a_rotation_is_found_from_other_items_of_the_same_classes() -> None:
    rng = np.random.default_rng(1)
    centres = vectors(60, 8)
    Q = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))[0]
    labels = np.repeat(np.arange(60), 20)

    def draw() -> Array:
        return unit(centres[labels] + 0.2 * rng.standard_normal((1200, 8)))

    old, new = draw(), draw() @ Q.T  # no item in common
    fresh = draw()
    rotation = fit_map("rotation", paired_by_class(new, labels, old, labels)).map
    assert np.sum(rotation(fresh @ Q.T) * fresh, axis=1).min() > 0.99


def test_what_cannot_be_paired() -> None:
    X = vectors(6, 3)
    labels = np.arange(6)
    with pytest.raises(InputError, match="share 1 class "):
        paired_by_class(X, labels, X, labels + 5)
    with refuses(InputError):
        paired_by_class(X, labels[:5], X, labels)
    opposite = np.concatenate([X[:1], -X[:1], X[1:2]])
    with pytest.raises(InputError, match="class 0 cancel out"):
        paired_by_class(opposite, np.array([0, 0, 1]), X[:2], np.array([0, 1]))
    with pytest.raises(InputError, match="length 1"):
        paired_by_class(2 * X, labels, X, labels)
