"""Probabilities from scores: against scikit-learn, and a threshold that means the same in every version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fixstar.errors import InputError
from fixstar.translation import fit_calibration

RNG = np.random.default_rng(0)


def pairs(slope: float, offset: float, count: int = 20_000) -> tuple[Any, Any]:
    cosines = RNG.uniform(-1, 1, count)
    return cosines, RNG.random(count) < 1 / (1 + np.exp(-(slope * cosines + offset)))


def test_it_is_logistic_regression() -> None:
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
