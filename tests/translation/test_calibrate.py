"""One scale for several versions: known curves are found again, and nothing is fitted on what it is tried on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fixstar.errors import InputError
from fixstar.evaluation import VersionFeatures, backfill_curve, mixed_gallery_search
from fixstar.geometry import unit
from fixstar.translation import Calibration, Map, Translation, fit_calibration, translated
from fixstar.translation.calibrate import (
    _drawn,
    calibrations_and_folds,
    catalogue_thresholds,
    class_folds,
    fit_calibrations,
    search_curve,
    standardised,
)

RNG = np.random.default_rng(0)


# --- one calibration


def pairs(slope: float, offset: float, count: int = 20_000) -> tuple[Any, Any]:
    cosines = RNG.uniform(-1, 1, count)
    return cosines, RNG.random(count) < 1 / (1 + np.exp(-(slope * cosines + offset)))


def test_it_is_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    cosines, same = pairs(8, -3)
    reference = LogisticRegression(C=1e9, tol=1e-8).fit(cosines[:, None], same)
    fitted = fit_calibration(cosines, same)
    assert fitted.slope == pytest.approx(reference.coef_[0, 0], rel=0.01)
    assert fitted.offset == pytest.approx(reference.intercept_[0], rel=0.01)
    expected = reference.predict_proba(cosines[:50, None])[:, 1]
    np.testing.assert_allclose(fitted.probability(cosines[:50]), expected, atol=2e-3)


def test_one_threshold_means_one_thing_in_two_versions() -> None:
    for slope, offset in ((12.0, -7.0), (5.0, 0.5)):
        fitted = fit_calibration(*pairs(slope, offset))
        cosines, same = pairs(slope, offset)
        near = np.abs(fitted.probability(cosines) - 0.7) < 0.05
        assert same[near].mean() == pytest.approx(0.7, abs=0.05)


def test_pairs_that_are_told_apart_perfectly_give_a_finite_answer() -> None:
    fitted = fit_calibration(np.array([0.1, 0.2, 0.8, 0.9]), np.array([False, False, True, True]))
    assert np.isfinite(fitted).all()
    assert 0.5 < fitted.probability(0.9) < 1


def test_another_prior_moves_the_probabilities() -> None:
    cosines, same = pairs(8, 0)
    fitted, rare = fit_calibration(cosines, same), fit_calibration(cosines, same, prior=0.01)
    assert rare.slope == fitted.slope
    assert float(rare.probability(0)) == pytest.approx(0.01, abs=0.002)


@pytest.mark.parametrize(
    ("cosines", "same", "prior"),
    [
        ([0.1, 0.2], [True, True], None),
        ([0.1, np.nan], [True, False], None),
        ([0.1], [True, False], None),
        ([0.1, 0.2], [1, 0], None),
        ([0.1, 0.2], [True, False], 1.0),
        ([0.1, 0.9], [True, False], None),
    ],
)
def test_pairs_that_cannot_be_fitted(cosines: Any, same: Any, prior: float | None) -> None:
    with pytest.raises(InputError):
        fit_calibration(np.array(cosines), np.array(same), prior)


@settings(max_examples=50)
@given(
    slope=st.floats(0.1, 500),
    offset=st.floats(-500, 500),
    scores=st.lists(st.floats(-1, 1), min_size=1),
)
def test_probabilities_rise_with_the_score_and_logits_keep_the_order(
    slope: float, offset: float, scores: list[float]
) -> None:
    one = Calibration(slope, offset)
    ordered = np.sort(scores)
    found = one.probability(ordered)
    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found) >= 0).all()
    np.testing.assert_allclose(one.logit(ordered), slope * ordered + offset)
    middle = np.abs(one.logit(ordered)) < 20
    odds = found[middle] / (1 - found[middle])
    np.testing.assert_allclose(np.log(odds), one.logit(ordered)[middle], rtol=1e-4, atol=1e-6)


# --- calibrations of several versions

CLASSES = 10
MEANS = {"v1": (0.05, 0.2), "v2": (0.15, 0.35)}  # cosines between two classes, and within one
SPREAD = 0.05


def known(low: float, high: float) -> tuple[float, float]:
    """Slope and offset of log(density within a class / density between classes) of two normal distributions."""
    return (high - low) / SPREAD**2, -(high**2 - low**2) / (2 * SPREAD**2)


def two_versions(
    queries: int = 4000,
) -> tuple[list[VersionFeatures], NDArray[np.int64], NDArray[np.int64]]:
    """Each gallery vector is an axis, so that a query's numbers are its cosines: normal ones, of known means."""
    truth, rng = np.arange(queries) % CLASSES, np.random.default_rng(0)
    means = [
        np.where(truth[:, None] == np.arange(CLASSES), high, low) for low, high in MEANS.values()
    ]
    cosines = np.hstack(means) + SPREAD * rng.standard_normal((queries, 2 * CLASSES))
    asked = np.hstack([cosines, np.sqrt(1 - (cosines**2).sum(axis=1, keepdims=True))])
    axes = np.split(np.eye(2 * CLASSES, 2 * CLASSES + 1), 2)
    versions = [VersionFeatures(name, asked, part) for name, part in zip(MEANS, axes, strict=True)]
    return versions, truth, np.arange(CLASSES)


def test_a_known_logistic_curve_is_found_again_for_each_version() -> None:
    fitted = fit_calibrations(*two_versions())
    assert list(fitted) == ["v1", "v2"]
    for name, means in MEANS.items():
        np.testing.assert_allclose(fitted[name], known(*means), rtol=0.1)


def test_a_threshold_separates_queries_whose_class_is_in_the_gallery_from_the_others() -> None:
    versions, truth, owners = two_versions(queries=1000)
    found = catalogue_thresholds(versions, truth, owners)
    assert list(found) == ["v1", "v2"]
    for version in versions:
        cosines = np.asarray(version.queries) @ np.asarray(version.gallery).T
        inside = [max(row) for row in cosines]
        outside = [max(np.delete(row, own)) for row, own in zip(cosines, truth, strict=True)]
        one = found[version.name]
        assert one.queries == 1000
        assert one.false_alarms == pytest.approx(np.mean(np.array(inside) < one.score), abs=2e-3)
        assert one.detected == pytest.approx(np.mean(np.array(outside) < one.score), abs=2e-3)
        assert 0.045 <= one.false_alarms <= 0.05 < one.detected
    rng = np.random.default_rng(0)
    guesses = [
        VersionFeatures("v1", unit(rng.normal(size=(1000, 9))), unit(rng.normal(size=(CLASSES, 9))))
    ]
    assert (
        catalogue_thresholds(guesses, truth, owners) == {}
    )  # a few more under it than by chance tell nothing
    assert catalogue_thresholds(versions, truth[:0], owners) == {}
    alone = [VersionFeatures(one.name, one.queries, one.gallery[:1]) for one in versions]
    assert (
        catalogue_thresholds(alone, truth, owners[:1]) == {}
    )  # no other class could be found instead


def test_too_few_pairs_or_none_that_are_closer_make_no_calibration() -> None:
    versions, truth, owners = two_versions(queries=40)
    assert fit_calibrations(versions, truth, owners) == {}
    versions, truth, owners = two_versions(queries=90)  # 90, but not 50 in each half
    assert fit_calibrations(versions, truth, owners)
    assert class_folds(versions, truth, owners) == []
    assert calibrations_and_folds(versions, truth, owners) == ({}, [])
    assert (
        fit_calibrations(versions, (truth + 1) % CLASSES, owners) == {}
    )  # no closer within a class


@pytest.mark.parametrize("most", [10_000, 30])
def test_pairs_are_all_there_are_or_some_of_them(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixstar.translation.calibrate.PAIRS", most)
    rng = np.random.default_rng(0)
    truth, classes = (
        rng.integers(0, 5, 30),
        np.array([1, 2, 3, 4, 7]),
    )  # class 0 is not in the gallery, 7 not asked for
    asked, own, rows, others = _drawn(truth, classes, rng)
    assert asked.tolist() == np.flatnonzero(truth > 0).tolist()
    assert classes[own].tolist() == truth[asked].tolist()
    every = {(q, c) for q, row in enumerate(asked) for c in range(5) if classes[c] != truth[row]}
    found = list(zip(rows.tolist(), others.tolist(), strict=True))
    assert len(found) == min(most, len(every))
    assert set(found) == every if most > len(every) else set(found) < every
    monkeypatch.setattr("fixstar.translation.calibrate.QUERIES", 7)
    assert len(set(_drawn(truth, classes, rng)[0].tolist())) == 7


def test_the_nearest_item_of_a_class_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items that are further off than the nearest of their class change nothing, in whatever order they come."""
    monkeypatch.setattr("fixstar.translation.calibrate._BLOCK", 100)
    versions, truth, owners = two_versions(queries=1000)
    shuffled = np.random.default_rng(0).permutation(2 * CLASSES)
    more = [
        VersionFeatures(
            v.name, v.queries, np.concatenate([v.gallery, -v.queries[:CLASSES]])[shuffled]
        )
        for v in versions
    ]
    again = fit_calibrations(more, truth, np.tile(owners, 2)[shuffled])
    for name, fitted in fit_calibrations(versions, truth, owners).items():
        np.testing.assert_allclose(again[name], fitted, rtol=1e-4)


def test_folds_see_no_item_of_the_classes_they_are_tried_on() -> None:
    versions, truth, owners = two_versions()
    fitted, folds = calibrations_and_folds(versions, truth, owners, seed=3)
    assert fitted == fit_calibrations(versions, truth, owners, seed=3)
    assert sorted(np.concatenate([fold.rows for fold in folds]).tolist()) == list(range(len(truth)))
    for fold in folds:
        tried = set(truth[fold.rows].tolist())
        assert len(tried) == CLASSES // 2
        others, learnt = ~np.isin(truth, list(tried)), ~np.isin(owners, list(tried))
        parts = [VersionFeatures(v.name, v.queries[others], v.gallery[learnt]) for v in versions]
        assert fold.calibrations == fit_calibrations(parts, truth[others], owners[learnt], seed=3)


def test_a_mixture_by_calibrations_against_slow_code() -> None:
    versions, truth, owners = two_versions(queries=1000)
    folds = class_folds(versions, truth, owners)
    order = np.random.default_rng(1).permutation(CLASSES)
    curve = search_curve(versions[0], versions[1], truth, owners, [0.4, 1.0], folds, order)
    new, right = np.isin(np.arange(CLASSES), order[:4]), []
    for fold in folds:
        slopes, offsets = (np.array([one[i] for one in fold.calibrations.values()]) for i in (0, 1))
        for row in fold.rows.tolist():
            cosines = [version.gallery @ versions[1].queries[row] for version in versions]
            scores = [
                slopes[held] * cosines[held][i] + offsets[held]
                for i, held in enumerate(new.astype(int))
            ]
            right.append(owners[np.argmax(scores)] == truth[row])
    assert curve.accuracy[0] == pytest.approx(np.mean(right))
    assert curve.hits is not None
    assert curve.hits[0, 0].tolist() == right  # fold by fold
    raw = backfill_curve(versions[0], versions[1], truth, owners, [0.4, 1.0], order).accuracy
    assert curve.accuracy[0] > raw[0] + 0.1
    assert curve.accuracy[1] == raw[1]  # within one version nothing changes places
    assert (
        search_curve(versions[0], versions[1], truth, owners, [0.4], [], order).accuracy[0]
        == raw[0]
    )
    one = folds[0].calibrations
    hits = mixed_gallery_search(versions, new.astype(int), truth, owners, scores=one)
    expected = backfill_curve(
        versions[0], versions[1], truth, owners, [0.4], order, scores=one
    ).accuracy[0]
    assert hits.mean() == pytest.approx(expected)
    with pytest.raises(InputError, match="template"):
        mixed_gallery_search(
            versions, new.astype(int), truth, owners, protocol="template", scores=one
        )
    with pytest.raises(InputError, match="positive slope"):
        mixed_gallery_search(
            versions, new.astype(int), truth, owners, scores={"v1": (1.0, 0.0), "v2": (-1.0, 0.0)}
        )


def test_some_queries_of_a_curve_are_answered_as_among_all() -> None:
    versions, truth, owners = two_versions(queries=400)
    folds = class_folds(versions, truth, owners)
    rows = np.arange(0, 400, 7)
    curves = [
        search_curve(versions[0], versions[1], truth, owners, [0.0, 0.5], folds, rows=asked)
        for asked in (None, rows)
    ]
    whole, part = (curve.hits for curve in curves)
    assert whole is not None
    assert part is not None
    by_row = dict(
        zip(
            np.concatenate([fold.rows for fold in folds]).tolist(), whole[0].T.tolist(), strict=True
        )
    )
    asked_rows = np.concatenate([np.intersect1d(fold.rows, rows) for fold in folds]).tolist()
    assert part[0].T.tolist() == [by_row[row] for row in asked_rows]


def test_a_translated_gallery_is_calibrated_by_its_scores() -> None:
    """The view has longer vectors than the new version, and queries that are longer than 1."""
    rng = np.random.default_rng(2)
    labels = np.arange(300) % CLASSES
    centres = unit(rng.standard_normal((CLASSES, 8)))
    turn = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    seen = [unit(centres[labels] + 0.3 * rng.standard_normal((300, 8))) for _ in range(2)]
    old, new = (
        VersionFeatures("v1", seen[0], seen[1]),
        VersionFeatures("v2", seen[0] @ turn, seen[1] @ turn),
    )
    view = translated(
        Translation("v1", "v2", Map.linear(turn), Map.linear(turn.T), one=0.5), old, new
    )
    found = fit_calibrations([view, new], labels, labels)
    np.testing.assert_allclose(
        found["v1"], found["v2"], rtol=1e-3
    )  # a rotation and back: the same scores
    thresholds = catalogue_thresholds([view, new], labels, labels)
    assert thresholds["v1"].score == pytest.approx(thresholds["v2"].score, abs=1e-4)


def test_parts_of_a_version() -> None:
    version = two_versions(queries=30)[0][0]
    part = version.take(np.array([3, 1]), np.array([0]))
    np.testing.assert_array_equal(part.queries, version.queries[[3, 1]])
    assert part.gallery.shape == (1, 21)
    assert version.take(np.array([3])).gallery is version.gallery


def test_without_labels_scores_are_deviations_from_what_unrelated_items_score() -> None:
    rng = np.random.default_rng(4)
    view = VersionFeatures(
        "v1", 1.4 * unit(rng.standard_normal((500, 30)) + 0.5), unit(rng.standard_normal((400, 30)))
    )
    scores = view.queries @ view.gallery.T
    one = standardised(view)
    assert one.logit(scores).mean() == pytest.approx(0, abs=0.05)
    assert one.logit(scores).std() == pytest.approx(1, abs=0.05)
    assert standardised(view) == one
    assert standardised(view, seed=1) != one
    same = VersionFeatures("v1", np.ones((5, 3)), np.ones((4, 3)))
    assert np.isfinite(standardised(same)).all()
