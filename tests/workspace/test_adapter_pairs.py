"""Pairs by class, where no image was embedded by both models, and how adapted pairs are judged."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from test_adapters import rotation, vectors

from fixstar.errors import InputError
from fixstar.geometry import unit
from fixstar.workspace.adapters.fitting import agreement, fit_adapter, paired_by_class


def test_class_means_are_the_pairs() -> None:
    X = unit(np.array([[3.0, 4.0], [4.0, 3.0], [0.0, 1.0], [1.0, 0.0]]))
    Y = unit(np.array([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0], [1.0, -1.0, 0.0]]))
    pairs = paired_by_class(X, np.array([5, 5, 2, 9]), Y, np.array([2, 5, 5]))  # 9 is in one space alone
    assert pairs.classes.tolist() == [2, 5]
    np.testing.assert_allclose(pairs.X, [[0, 1], [0.5**0.5, 0.5**0.5]], atol=1e-6)
    np.testing.assert_allclose(pairs.Y, [[0, 0, 1], [1, 0, 0]], atol=1e-6)


def test_labels_may_be_strings() -> None:
    X, Y, labels = vectors(6, 3), vectors(6, 3, seed=2), np.array([2, 0, 1, 0, 1, 2])
    numbers = paired_by_class(X, labels, Y, labels)
    names = paired_by_class(X, [f"class {c}" for c in labels], Y, np.array([f"class {c}" for c in labels], object))
    assert names.classes.tolist() == ["class 0", "class 1", "class 2"]
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


def test_a_rotation_is_found_from_other_images_of_the_same_classes() -> None:
    rng = np.random.default_rng(1)
    centres, Q = vectors(60, 8), rotation(8)
    labels = np.repeat(np.arange(60), 20)

    def draw() -> NDArray[np.float64]:
        return unit(centres[labels] + 0.2 * rng.standard_normal((1200, 8)))

    old, new = draw(), draw() @ Q.T  # no image in common
    pairs = paired_by_class(new, labels, old, labels)
    fresh = draw()
    adapter = fit_adapter("procrustes", pairs.X, pairs.Y, weights=pairs.weights)
    assert np.sum(adapter(fresh @ Q.T) * fresh, axis=1).min() > 0.99


def test_what_cannot_be_paired() -> None:
    X = vectors(6, 3)
    labels = np.arange(6)
    with pytest.raises(InputError, match="share 1 class "):
        paired_by_class(X, labels, X, labels + 5)
    with pytest.raises(InputError, match="one integer or string for each of 6 vectors"):
        paired_by_class(X, labels[:5], X, labels)
    opposite = np.concatenate([X[:1], -X[:1], X[1:2]])
    with pytest.raises(InputError, match="class 0 cancel out"):
        paired_by_class(opposite, np.array([0, 0, 1]), X[:2], np.array([0, 1]))
    with pytest.raises(InputError, match="length 1"):
        paired_by_class(2 * X, labels, X, labels)


def test_agreement_by_hand() -> None:
    partners = unit(np.array([[1.0, 0.0], [1.0, 0.2], [0.0, 1.0]]))
    adapted = unit(np.array([[1.0, 0.0], [1.0, 0.05], [1.0, 1.0]]))
    found = agreement(adapted, partners)
    assert found.top1 == pytest.approx(1 / 3)  # the second finds the first's partner, the third the second's
    assert found.mean_cosine == pytest.approx(float(np.sum(adapted * partners, axis=1).mean()))
    by_class = agreement(adapted, partners, np.array([7, 7, 8]))
    assert by_class.top1 == pytest.approx(2 / 3)  # own partners do not count: 0 finds 1, 1 finds 0, 2 finds 1
