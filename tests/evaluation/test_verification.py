"""Verification against scikit-learn's ROC, slow loops over every threshold, and cases worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import roc_curve
from sklearn.metrics.pairwise import cosine_similarity

from fixstar.errors import InputError
from fixstar.evaluation.search import templates
from fixstar.evaluation.verification import (
    Pairs,
    draw_pairs,
    kfold_accuracy,
    mean_templates,
    pair_scores,
    roc,
    sample_pairs,
    tar_at_far,
    threshold_at_far,
)

Array = NDArray[Any]


@st.composite
def scored_pairs(draw: st.DrawFn, least: int = 1) -> tuple[Array, Array]:
    """Tenths from -1 to 1, so that ties are common, with ``least`` pairs or more of each kind."""
    same = draw(st.permutations([True] * draw(st.integers(least, 12)) + [False] * draw(st.integers(least, 12))))
    scores = draw(st.lists(st.integers(-10, 10), min_size=len(same), max_size=len(same)))
    return np.array(scores) / 10, np.array(same)


def random_pairs(count: int, seed: int, digits: int = 12) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    same = rng.random(count) < 0.4
    return np.round(rng.normal(0.4 * same - 0.2, 0.3), digits), same


@given(scored_pairs())
@settings(max_examples=80, deadline=None)
def test_roc_is_that_of_scikit_learn(scored: tuple[Array, Array]) -> None:
    scores, same = scored
    expected = roc_curve(same, scores, drop_intermediate=False)
    for ours, theirs in zip(roc(scores, same), expected, strict=True):
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("digits", [12, 2])
def test_roc_of_many_pairs_is_that_of_scikit_learn(digits: int) -> None:
    scores, same = random_pairs(5000, seed=1, digits=digits)
    for ours, theirs in zip(roc(scores, same), roc_curve(same, scores, drop_intermediate=False), strict=True):
        assert np.array_equal(ours, theirs)


@given(scored_pairs(), st.sampled_from([0.0, 1e-6, 0.1, 0.2, 0.3, 1 / 3, 0.5, 0.7, 0.999, 1.0]))
@settings(max_examples=150, deadline=None)
def test_tar_at_far_is_the_best_allowed_point_of_the_roc(scored: tuple[Array, Array], far: float) -> None:
    scores, same = scored
    measured, tar, _ = roc_curve(same, scores, drop_intermediate=False)
    expected = max(t for f, t in zip(measured, tar, strict=True) if f <= far)
    threshold = threshold_at_far(scores, same, far)
    assert tar_at_far(scores, same, far) == expected == (scores[same] >= threshold).mean()
    assert (scores[~same] >= threshold).mean() <= far
    below = np.nextafter(threshold, -np.inf)
    assert far == 1 or (scores[~same] >= below).mean() > far  # no lower threshold would do


def test_a_far_finer_than_the_impostors_allows_no_false_accept() -> None:
    scores, same = random_pairs(400, seed=2)
    impostors = int((~same).sum())
    assert tar_at_far(scores, same, 0) == tar_at_far(scores, same, 0.999 / impostors)
    assert tar_at_far(scores, same, 0) == (scores[same] > scores[~same].max()).mean()
    ordered = np.sort(scores[~same])[::-1]
    for allowed in (1, 7, 50):  # k / N is reached exactly, k impostors accepted
        assert (scores[~same] >= threshold_at_far(scores, same, allowed / impostors)).sum() == allowed
        assert tar_at_far(scores, same, allowed / impostors) == (scores[same] > ordered[allowed]).mean()


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_tied_impostors_are_refused_together_in_every_precision(kind: type[np.floating[Any]]) -> None:
    scores = np.array([0.3, 0.3, 0.3, 0.1, 0.9, 0.3], dtype=kind)
    same = np.array([False, False, False, False, True, True])
    assert tar_at_far(scores, same, 0.5) == 0.5
    assert tar_at_far(scores, same, 0.75) == 1.0
    assert (scores >= threshold_at_far(scores, same, 0.5)).tolist() == [False, False, False, False, True, False]


def slow_folds(scores: Array, same: Array, folds: int, stratified: bool = True) -> tuple[list[float], list[float]]:
    """The same text as the docstring, one pair at a time."""
    fold_of = {}
    for kind in (True, False) if stratified else (None,):
        members = [i for i in range(len(same)) if kind is None or same[i] == kind]
        for place, i in enumerate(members):
            fold_of[i] = place * folds // len(members)
    accuracies, thresholds = [], []
    for fold in range(folds):
        train, test = ([i for i in fold_of if (fold_of[i] == fold) == held] for held in (False, True))
        levels = sorted({scores[i] for i in train})
        between = [(low + high) / 2 for low, high in pairwise(levels)]
        candidates = [levels[0], *between, np.nextafter(levels[-1], 2)]

        def correct(threshold: float, rows: list[int]) -> int:
            return sum((scores[i] >= threshold) == same[i] for i in rows)

        best = max(candidates, key=lambda threshold: (correct(threshold, train), threshold))
        thresholds.append(float(best))
        accuracies.append(correct(best, test) / len(test))
    return accuracies, thresholds


@given(scored_pairs(least=4), st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_folds_agree_with_a_slow_loop(scored: tuple[Array, Array], folds: int) -> None:
    scores, same = scored
    result = kfold_accuracy(scores, same, folds)
    accuracies, thresholds = slow_folds(scores, same, folds)
    assert result.accuracies.tolist() == accuracies
    assert result.thresholds.tolist() == thresholds
    assert result.mean == pytest.approx(np.mean(accuracies))
    assert result.std == pytest.approx(np.std(accuracies, ddof=1))


def test_ten_folds_of_many_pairs_agree_with_a_slow_loop() -> None:
    scores, same = random_pairs(300, seed=3)
    result = kfold_accuracy(scores, same)
    accuracies, thresholds = slow_folds(scores, same, 10)
    assert result.accuracies.tolist() == accuracies
    assert result.thresholds.tolist() == thresholds
    assert 0.6 < result.mean < 0.9
    assert result.right.shape == (300,)
    assert result.right.mean() == pytest.approx(result.mean, abs=0.01)  # folds differ by two pairs at most


@given(scored_pairs(least=4), st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_folds_of_the_list_as_it_stands_agree_with_a_slow_loop(scored: tuple[Array, Array], folds: int) -> None:
    scores, same = scored
    result = kfold_accuracy(scores, same, folds, stratified=False)
    accuracies, thresholds = slow_folds(scores, same, folds, stratified=False)
    assert result.accuracies.tolist() == accuracies
    assert result.thresholds.tolist() == thresholds


def test_folds_of_the_list_as_it_stands_may_hold_one_kind_alone() -> None:
    same = np.array([True] * 3 + [False] * 97)
    scores = np.where(same, 0.4, np.linspace(0.1, 0.5, 100))
    result = kfold_accuracy(scores, same, 10, stratified=False)
    assert result.accuracies[0] == 0.7  # the rest holds no genuine pair: its threshold, over 0.5, accepts none here
    assert result.thresholds[0] > 0.5
    with pytest.raises(InputError, match="each fold needs a pair: 2 to 100 folds here, got 101"):
        kfold_accuracy(scores, same, 101, stratified=False)


def test_folds_as_drawn_are_too_low_and_far_below_a_half_for_scores_that_say_nothing() -> None:
    """Why table 1 of CoReS can print 0.12 for models that know nothing of each other."""
    labels = np.random.default_rng(0).permutation(np.arange(10_000) % 10)
    pairs = draw_pairs(labels)
    noise = np.random.default_rng(1).normal(size=6000)
    assert kfold_accuracy(noise, pairs.same).mean == pytest.approx(0.5, abs=0.03)
    assert kfold_accuracy(noise, pairs.same, stratified=False).mean < 0.15
    good = noise + 1.2 * pairs.same  # an accuracy of about 0.72
    assert kfold_accuracy(good, pairs.same).mean == pytest.approx(0.72, abs=0.02)
    assert kfold_accuracy(good, pairs.same, stratified=False).mean < kfold_accuracy(good, pairs.same).mean - 0.03


def test_the_order_of_lfw_gives_the_folds_of_lfw() -> None:
    """LFW lists, fold by fold, the genuine pairs and then the impostors. Only fold 3 is wrong here."""
    same = np.tile([True] * 30 + [False] * 30, 10)
    scores = np.where(same, 0.5, -0.5)
    scores[180:240] *= -1
    result = kfold_accuracy(scores, same)
    assert result.accuracies.tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1, 1]
    assert np.flatnonzero(~result.right).tolist() == list(range(180, 240))
    shuffled = np.argsort(~same, kind="stable")  # all genuine pairs first: the same folds
    assert kfold_accuracy(scores[shuffled], same[shuffled]).accuracies.tolist() == result.accuracies.tolist()


def test_scores_that_say_nothing_give_a_half() -> None:
    same = np.arange(40) % 2 == 0
    result = kfold_accuracy(np.full(40, 0.25), same)
    assert result.mean == 0.5
    assert (result.thresholds > 0.25).all()  # equally good: the one that accepts nothing
    assert kfold_accuracy(np.where(same, -1.0, 1.0), same).mean == 0.5


def test_neighbouring_floats_have_a_threshold_between_them() -> None:
    low = 0.1
    high = float(np.nextafter(low, 1))
    same = np.arange(8) % 2 == 0
    result = kfold_accuracy(np.where(same, high, low), same, 2)
    assert result.mean == 1
    assert result.thresholds.tolist() == [high, high]


def test_scores_are_cosines_of_the_two_models() -> None:
    rng = np.random.default_rng(4)
    new, old = (rng.normal(size=(50, 7)) * np.exp(rng.normal(0, 3, size=(50, 1))) for _ in range(2))
    pairs = sample_pairs(np.arange(50) % 5, 100, 900)
    table = cosine_similarity(new, old)
    assert np.allclose(pair_scores(new, old, pairs), table[pairs.first, pairs.second], atol=1e-6)
    assert not np.allclose(pair_scores(old, new, pairs), table[pairs.first, pairs.second], atol=1e-2)


def test_more_pairs_than_one_block() -> None:
    rng = np.random.default_rng(5)
    features, rows = rng.normal(size=(30, 4)), rng.integers(0, 30, size=(2, 5000))
    pairs = Pairs(rows[0], rows[1], np.ones(5000, dtype=bool))
    assert np.allclose(pair_scores(features, features, pairs), cosine_similarity(features)[tuple(rows)], atol=1e-6)


def test_mean_templates_agree_with_a_slow_loop() -> None:
    rng = np.random.default_rng(6)
    features = rng.normal(size=(60, 5)) * np.exp(rng.normal(0, 2, size=(60, 1)))
    ids, media = rng.choice([-4, 10, 11, 300], 60), rng.integers(0, 6, 60)
    found, names = mean_templates(features, ids)
    grouped, _ = mean_templates(features, ids, media)
    assert names.tolist() == [-4, 10, 11, 300]
    assert np.allclose(found, templates(features, ids)[0], atol=1e-6)
    unit = [feature / np.linalg.norm(feature) for feature in features]
    for row, name in enumerate(names):
        plain = np.mean([unit[i] for i in range(60) if ids[i] == name], axis=0)
        of_media = [
            np.mean([unit[i] for i in range(60) if ids[i] == name and media[i] == m], axis=0)
            for m in sorted({media[i] for i in range(60) if ids[i] == name})
        ]
        mean = np.mean(of_media, axis=0)
        assert np.allclose(found[row], plain / np.linalg.norm(plain), atol=1e-6)
        assert np.allclose(grouped[row], mean / np.linalg.norm(mean), atol=1e-6)
    assert not np.allclose(found, grouped, atol=1e-3)


def test_a_long_video_weighs_as_much_as_a_photograph() -> None:
    features = np.array([[1.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 4.0]])
    ids = np.zeros(4, dtype=np.int64)
    assert np.allclose(mean_templates(features, ids, np.array([8, 8, 8, 9]))[0], np.sqrt(0.5))
    assert np.allclose(mean_templates(features, ids)[0], np.array([3, 1]) / np.sqrt(10))


GOOD, KINDS = np.array([0.5, 0.2]), np.array([True, False])
ONE = Pairs(np.array([0]), np.array([1]), np.array([True]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: roc(GOOD, np.array([True, True])), "got 2 of 2 genuine"),
        (lambda: tar_at_far(GOOD, np.array([False, False]), 0.1), "got 0 of 2 genuine"),
        (lambda: tar_at_far(GOOD, KINDS, 1.1), "fraction from 0 to 1, got 1.1"),
        (lambda: tar_at_far(GOOD, KINDS, float("nan")), "fraction from 0 to 1"),
        (lambda: roc(np.array([0.5, np.nan]), KINDS), "NaN or infinity"),
        (lambda: roc(GOOD[:1], KINDS), "one score and one bool per pair"),
        (lambda: roc(GOOD, np.array([1, 0])), "one score and one bool per pair"),
        (lambda: kfold_accuracy(GOOD, KINDS), "got 10. Draw more pairs"),
        (lambda: kfold_accuracy(np.tile(GOOD, 4), np.tile(KINDS, 4), 1), "2 to 4 folds here, got 1"),
        (lambda: kfold_accuracy(np.tile(GOOD, 4), np.tile(KINDS, 4), 5), "2 to 4 folds here, got 5"),
        (lambda: pair_scores(np.ones((2, 3)), np.ones((2, 4)), ONE), "3 components and the second 4"),
        (lambda: pair_scores(np.ones((2, 3)), np.ones((1, 3)), ONE), "row 1 of the second features, which have 1"),
        (lambda: pair_scores(np.full((2, 3), np.nan), np.ones((2, 3)), ONE), "first features contain NaN"),
        (lambda: mean_templates(np.ones((2, 3)), np.arange(3)), "3 template labels for 2"),
        (lambda: mean_templates(np.ones((2, 3)), np.arange(2), np.arange(3)), "3 media labels for 2"),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
