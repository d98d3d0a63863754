"""Metrics against numbers worked by hand, against slow loops, and against figures that the papers print."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fixstar.errors import InputError
from fixstar.evaluation import compatibility as metrics

Matrix = NDArray[np.float64]

# Cross-tests that beat their gallery's self-test: (2, 1) 0.5 > 0.4 and (3, 1) 0.6 > 0.4; (3, 2) 0.7 ties with 0.7.
BY_HAND = np.array([[0.4, np.nan, 0.0], [0.5, 0.7, 0.9], [0.6, 0.7, 0.8]])

ALL = [
    metrics.average_compatibility,
    metrics.average_accuracy,
    metrics.average_compatibility_accuracy,
    metrics.backward_compatibility,
    metrics.forward_compatibility,
]


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    """Tenths, so that ties are common; NaN above the diagonal."""
    T = draw(st.integers(2, 6))
    cells = draw(st.lists(st.integers(0, 10), min_size=T * T, max_size=T * T))
    C = np.array(cells).reshape(T, T) / 10
    C[np.triu_indices(T, 1)] = np.nan
    return C


def test_summary_of_a_matrix_worked_by_hand() -> None:
    expected = {
        "AC": 2 / 3,
        "AA": (0.4 + 0.5 + 0.7 + 0.6 + 0.7 + 0.8) / 6,
        "ACA": (0.5 + 0.6) / 3,
        "BC": ((0.6 - 0.4) + (0.7 - 0.7)) / 2,
        "FC": ((0.5 - 0.7) + (0.7 - 0.8)) / 2,
    }
    assert metrics.summary(BY_HAND) == pytest.approx(expected)
    assert list(metrics.summary(BY_HAND)) == ["AC", "AA", "ACA", "BC", "FC"]


@given(matrices(), st.data())
def test_metrics_agree_with_slow_loops(C: Matrix, data: st.DataObject) -> None:
    tau = data.draw(st.integers(2, len(C)))
    pairs = [(t, k) for t in range(tau) for k in range(t)]
    good = [(t, k) for t, k in pairs if C[t, k] > C[k, k]]
    everything = [C[t, k] for t in range(tau) for k in range(t + 1)]
    last = tau - 1
    slow = [
        len(good) / len(pairs),
        sum(everything) / len(everything),
        sum(C[t, k] for t, k in good) / len(pairs),
        sum(C[last, k] - C[k, k] for k in range(last)) / last,
        sum(C[k, k - 1] - C[k, k] for k in range(1, tau)) / last,
    ]
    assert [metric(C, up_to=tau) for metric in ALL] == pytest.approx(slow)
    assert [metric(C[:tau, :tau]) for metric in ALL] == pytest.approx(slow)
    assert sorted(map(tuple, np.argwhere(metrics.compatible_cells(C[:tau, :tau])).tolist())) == good
    assert metrics.multi_model_compatible(C[:tau, :tau]) == (good == pairs)


@given(matrices())
def test_the_upper_triangle_changes_nothing(C: Matrix) -> None:
    assert metrics.summary(np.tril(C)) == metrics.summary(C)
    assert metrics.summary(np.where(np.isnan(C), 55.0, C)) == metrics.summary(C)


def test_a_tie_is_not_compatible() -> None:
    tie = [[0.5, 0], [0.5, 0.9]]
    assert metrics.average_compatibility(tie) == 0
    assert metrics.average_compatibility_accuracy(tie) == 0
    assert not metrics.multi_model_compatible(tie)
    assert not metrics.is_compatible(0.5, 0.5)
    assert metrics.update_gain(0.5, 0.5, 0.9) is None


@pytest.mark.parametrize("T", [2, 3, 7, 16, 31])
def test_full_compatibility_is_exactly_one(T: int) -> None:
    C = np.full((T, T), 0.75)
    np.fill_diagonal(C, 0.5)
    assert metrics.average_compatibility(C) == 1.0
    assert metrics.average_compatibility_accuracy(C) == 0.75
    assert metrics.multi_model_compatible(C)


def test_zero_is_a_value_and_one_is_allowed() -> None:
    assert metrics.summary([[0.0, 0], [1.0, 0.0]]) == {"AC": 1.0, "AA": 1 / 3, "ACA": 1.0, "BC": 1.0, "FC": 1.0}


def test_cells_beyond_up_to_may_be_unmeasured() -> None:
    """Table 7 of HOC: AC_tau exists for methods whose later cells cannot be computed."""
    C = np.array([[0.4, 0, 0], [0.5, 0.6, 0], [np.nan, np.nan, 0.7]])
    assert metrics.average_compatibility(C, up_to=2) == 1.0
    with pytest.raises(InputError, match="NaN"):
        metrics.average_compatibility(C)


# BCT: (cross, old self-test, paragon, printed update gain, printed absolute gain), all in percent. The middle row
# of table 1c (69.02, printed 55.11) is left out: by eq. 9 it is 55.19.
BCT = {
    "1b": [(80.25, 77.86, 86.96, 26.26, 2.39), (80.34, 77.86, 86.96, 27.25, 2.48), (80.59, 77.86, 86.96, 30.00, 2.73)],
    "1c": [(67.23, 59.34, 76.88, 44.98, 7.89), (70.70, 59.34, 76.88, 64.77, 11.36)],
    "3b": [(80.54, 77.86, 86.96, 29.45, 2.68), (80.92, 77.86, 86.96, 33.63, 3.06), (81.81, 80.10, 86.96, 24.93, 1.71)],
    "3c": [(68.71, 59.34, 76.88, 53.42, 9.37), (69.45, 59.34, 76.88, 57.63, 10.11), (71.16, 64.32, 76.88, 54.46, 6.84)],
    "4b": [
        (56.34, 41.45, 77.86, 40.90, 14.89),
        (53.98, 41.45, 77.86, 34.41, 12.53),
        (80.40, 75.96, 86.96, 40.36, 4.44),
    ],
    "4c": [
        (39.0, 22.57, 59.34, 44.68, 16.43),
        (36.10, 22.57, 59.34, 36.80, 13.53),
        (66.09, 56.07, 76.88, 48.15, 10.02),
    ],
}


@pytest.mark.parametrize("row", [row for rows in BCT.values() for row in rows])
def test_gains_of_bct_tables(row: tuple[float, ...]) -> None:
    cross, old, paragon, update, absolute = (value / 100 for value in row)
    assert metrics.is_compatible(cross, old)
    assert metrics.update_gain(cross, old, paragon) == pytest.approx(update, abs=1.01e-4)  # one printed digit
    assert metrics.absolute_gain(cross, old) == pytest.approx(absolute, abs=1e-9)


@pytest.mark.parametrize(("cross", "old", "new"), [(0.7726, 0.7786, 0.8696), (0.0, 0.7786, 0.8696), (0.6, 0.5, 0.5)])
def test_update_gain_is_none_where_it_means_nothing(cross: float, old: float, new: float) -> None:
    assert metrics.update_gain(cross, old, new) is None


# Table 2 of CL2R, two tasks, initial self-test 0.65: (self-test, cross-test, ECC, BC, FC).
CL2R = {
    "LUCIR": (0.70, 0.66, True, 0.012, -0.038),
    "FAN": (0.66, 0.63, False, -0.023, -0.035),
    "FOSTER": (0.66, 0.57, False, -0.080, -0.090),
    "PODNet": (0.67, 0.66, True, 0.014, -0.013),
    "ours": (0.66, 0.67, True, 0.017, 0.006),
}


@pytest.mark.parametrize("method", CL2R)
def test_bc_and_fc_of_cl2r_table_2(method: str) -> None:
    self_test, cross, ecc, backward, forward = CL2R[method]
    C = [[0.65, 0], [cross, self_test]]
    assert metrics.multi_model_compatible(C) == ecc
    assert metrics.backward_compatibility(C) == pytest.approx(backward, abs=0.01)  # two values rounded to 0.01
    assert metrics.forward_compatibility(C) == pytest.approx(forward, abs=0.01)


def test_one_version_has_accuracy_but_no_compatibility() -> None:
    assert metrics.average_accuracy([[0.42]]) == 0.42
    assert not metrics.compatible_cells([[0.42]]).any()
    undefined: list[Callable[..., object]] = [metric for metric in ALL if metric is not metrics.average_accuracy]
    for metric in [*undefined, metrics.summary, metrics.multi_model_compatible]:
        with pytest.raises(InputError, match="two versions"):
            metric([[0.42]])
    with pytest.raises(InputError, match="two versions"):
        metrics.backward_compatibility(BY_HAND, up_to=1)


@pytest.mark.parametrize("bad", [[[48.2, 0], [50.0, 51.0]], [[0.5, 0], [-0.1, 0.5]], [[0.5, 0], [np.inf, 0.5]]])
def test_percent_and_other_values_outside_zero_to_one_are_refused(bad: list[list[float]]) -> None:
    with pytest.raises(InputError, match="Divide percentages by 100"):
        metrics.summary(bad)


def test_gains_refuse_percent() -> None:
    with pytest.raises(InputError, match="Divide percentages by 100"):
        metrics.update_gain(80.25, 77.86, 86.96)
    with pytest.raises(InputError, match="Divide percentages by 100"):
        metrics.is_compatible(80.25, 77.86)
    with pytest.raises(InputError, match="NaN"):
        metrics.absolute_gain(np.nan, 0.5)


@pytest.mark.parametrize("bad", [[], 0.5, [0.5, 0.6], np.zeros((2, 3)), np.zeros((0, 0)), [[0.5], [0.5, 0.6]], "C"])
def test_what_is_no_square_matrix_is_refused(bad: object) -> None:
    with pytest.raises(InputError, match="compatibility matrix"):
        metrics.average_accuracy(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("tau", [0, -1, 4])
def test_up_to_counts_versions(tau: int) -> None:
    with pytest.raises(InputError, match="1 to 3"):
        metrics.average_accuracy(BY_HAND, up_to=tau)
