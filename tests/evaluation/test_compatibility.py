"""Metrics against numbers worked by hand, against slow loops, and against figures that the papers print."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from wording import refuses

from fixstar.errors import InputError
from fixstar.evaluation import compatibility
from fixstar.evaluation import compatibility as metrics
from fixstar.evaluation.compatibility import (
    MatrixSpread,
    Spread,
    average_compatibility,
    compatible_cells,
    format_spread,
    is_compatible,
    summarise,
    summarise_matrices,
    update_gain,
)

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
    assert (metrics.average_compatibility(C[:tau, :tau]) == 1) == (good == pairs)


@given(matrices())
def test_the_upper_triangle_changes_nothing(C: Matrix) -> None:
    assert metrics.summary(np.tril(C)) == metrics.summary(C)
    assert metrics.summary(np.where(np.isnan(C), 55.0, C)) == metrics.summary(C)


def test_a_tie_is_not_compatible() -> None:
    tie = [[0.5, 0], [0.5, 0.9]]
    assert metrics.average_compatibility(tie) == 0
    assert metrics.average_compatibility_accuracy(tie) == 0
    assert metrics.average_compatibility(tie) < 1
    assert not metrics.is_compatible(0.5, 0.5)
    assert metrics.update_gain(0.5, 0.5, 0.9) is None


@pytest.mark.parametrize("T", [2, 3, 7, 16, 31])
def test_full_compatibility_is_exactly_one(T: int) -> None:
    C = np.full((T, T), 0.75)
    np.fill_diagonal(C, 0.5)
    assert metrics.average_compatibility(C) == 1.0
    assert metrics.average_compatibility_accuracy(C) == 0.75
    assert metrics.average_compatibility(C) == 1


def test_zero_is_a_value_and_one_is_allowed() -> None:
    assert metrics.summary([[0.0, 0], [1.0, 0.0]]) == {
        "AC": 1.0,
        "AA": 1 / 3,
        "ACA": 1.0,
        "BC": 1.0,
        "FC": 1.0,
    }


def test_cells_beyond_up_to_may_be_unmeasured() -> None:
    """Table 7 of HOC: AC_tau exists for methods whose later cells cannot be computed."""
    C = np.array([[0.4, 0, 0], [0.5, 0.6, 0], [np.nan, np.nan, 0.7]])
    assert metrics.average_compatibility(C, up_to=2) == 1.0
    with pytest.raises(InputError, match="NaN"):
        metrics.average_compatibility(C)


# BCT: (cross, old self-test, paragon, printed update gain, printed absolute gain), all in percent. The middle row
# of table 1c (69.02, printed 55.11) is left out: by eq. 9 it is 55.19.
BCT = {
    "1b": [
        (80.25, 77.86, 86.96, 26.26, 2.39),
        (80.34, 77.86, 86.96, 27.25, 2.48),
        (80.59, 77.86, 86.96, 30.00, 2.73),
    ],
    "1c": [(67.23, 59.34, 76.88, 44.98, 7.89), (70.70, 59.34, 76.88, 64.77, 11.36)],
    "3b": [
        (80.54, 77.86, 86.96, 29.45, 2.68),
        (80.92, 77.86, 86.96, 33.63, 3.06),
        (81.81, 80.10, 86.96, 24.93, 1.71),
    ],
    "3c": [
        (68.71, 59.34, 76.88, 53.42, 9.37),
        (69.45, 59.34, 76.88, 57.63, 10.11),
        (71.16, 64.32, 76.88, 54.46, 6.84),
    ],
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
    assert metrics.update_gain(cross, old, paragon) == pytest.approx(
        update, abs=1.01e-4
    )  # one printed digit
    assert cross - old == pytest.approx(absolute, abs=1e-9)


@pytest.mark.parametrize(
    ("cross", "old", "new"), [(0.7726, 0.7786, 0.8696), (0.0, 0.7786, 0.8696), (0.6, 0.5, 0.5)]
)
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
    assert (metrics.average_compatibility(C) == 1) == ecc
    assert metrics.backward_compatibility(C) == pytest.approx(
        backward, abs=0.01
    )  # two values rounded to 0.01
    assert metrics.forward_compatibility(C) == pytest.approx(forward, abs=0.01)


def test_one_version_has_accuracy_but_no_compatibility() -> None:
    assert metrics.average_accuracy([[0.42]]) == 0.42
    assert not metrics.compatible_cells([[0.42]]).any()
    undefined: list[Callable[..., object]] = [
        metric for metric in ALL if metric is not metrics.average_accuracy
    ]
    for metric in [*undefined, metrics.summary]:
        with pytest.raises(InputError, match="two versions"):
            metric([[0.42]])
    with pytest.raises(InputError, match="two versions"):
        metrics.backward_compatibility(BY_HAND, up_to=1)


@pytest.mark.parametrize(
    "bad", [[[48.2, 0], [50.0, 51.0]], [[0.5, 0], [-0.1, 0.5]], [[0.5, 0], [np.inf, 0.5]]]
)
def test_percent_and_other_values_outside_zero_to_one_are_refused(bad: list[list[float]]) -> None:
    with pytest.raises(InputError, match="Divide percentages by 100"):
        metrics.summary(bad)


def test_gains_refuse_percent() -> None:
    with pytest.raises(InputError, match="Divide percentages by 100"):
        metrics.update_gain(80.25, 77.86, 86.96)
    with pytest.raises(InputError, match="Divide percentages by 100"):
        metrics.is_compatible(80.25, 77.86)
    with pytest.raises(InputError, match="NaN"):
        metrics.is_compatible(np.nan, 0.5)


@pytest.mark.parametrize(
    "bad", [[], 0.5, [0.5, 0.6], np.zeros((2, 3)), np.zeros((0, 0)), [[0.5], [0.5, 0.6]], "C"]
)
def test_what_is_no_square_matrix_is_refused(bad: object) -> None:
    with pytest.raises(InputError, match="compatibility matrix"):
        metrics.average_accuracy(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("tau", [0, -1, 4])
def test_up_to_counts_versions(tau: int) -> None:
    with pytest.raises(InputError, match="1 to 3"):
        metrics.average_accuracy(BY_HAND, up_to=tau)


FRACTIONS = st.floats(-1, 1)


@given(st.lists(st.tuples(FRACTIONS, FRACTIONS), min_size=2, max_size=8))
def test_metrics_agree_with_the_standard_library(rows: list[tuple[float, float]]) -> None:
    found = summarise([{"AC": ac, "BC": bc} for ac, bc in rows])
    assert list(found) == ["AC", "BC"]
    for spread, values in zip(found.values(), zip(*rows, strict=True), strict=True):
        assert spread.mean == pytest.approx(statistics.mean(values), abs=1e-12)
        assert spread.deviation == pytest.approx(statistics.stdev(values), abs=1e-9)
        assert spread.runs == len(rows)


def test_one_run_has_no_deviation() -> None:
    summary = compatibility.summary([[0.3, 0], [0.35, 0.5]])
    found = summarise([summary])
    assert {name: spread.mean for name, spread in found.items()} == summary
    assert all(spread.deviation is None and spread.runs == 1 for spread in found.values())
    assert summarise_matrices([np.eye(2)]).deviation is None


def test_matrices_cell_by_cell() -> None:
    runs = [[[0.2, np.nan], [0.4, 0.6]], [[0.4, np.nan], [0.4, 0.9]], [[0.6, np.nan], [0.4, 0.3]]]
    found = summarise_matrices(runs)
    assert isinstance(found, MatrixSpread)
    assert found.deviation is not None
    assert np.allclose(found.mean, [[0.4, np.nan], [0.4, 0.6]], equal_nan=True)
    assert np.allclose(found.deviation, [[0.2, np.nan], [0.0, 0.3]], equal_nan=True)
    assert found.runs == 3
    one = summarise([{"cell": run[1][1]} for run in runs])["cell"]
    assert (one.mean, one.deviation) == pytest.approx((found.mean[1, 1], found.deviation[1, 1]))


@pytest.mark.parametrize(
    ("spread", "ways", "text"),
    [
        (Spread(0.479, 0.0061, 3), {}, "47.9 ± 0.6"),
        (Spread(0.479, None, 1), {}, "47.9"),
        (Spread(0.51, 0.104, 20), {"percent": False, "digits": 2}, "0.51 ± 0.10"),
        (Spread(-0.00001, 0.0, 2), {}, "0.0 ± 0.0"),  # no minus zero
        (Spread(-0.0238, 0.01, 2), {"digits": 2}, "-2.38 ± 1.00"),
        (Spread(1.0, 0.0, 5), {"digits": 0}, "100 ± 0"),
    ],
)
def test_text_for_people(spread: Spread, ways: dict[str, int], text: str) -> None:
    assert format_spread(spread, **ways) == text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "call",
    [
        lambda: summarise([]),
        lambda: summarise([{"AC": 0.5}, {"AC": 0.5, "AA": 0.4}]),
        lambda: summarise([{"AC": 0.5, "AA": 0.4}, {"AC": 0.5}]),
        lambda: summarise([{"AC": 0.5}, {"AC": np.nan}]),
        lambda: summarise([{"gain": None}]),  # type: ignore[dict-item]
        lambda: summarise_matrices([]),
        lambda: summarise_matrices([np.eye(2), np.eye(3)]),
        lambda: summarise_matrices([[[0.5]], [[np.nan]]]),
    ],
)
def test_wrong_input_to_summaries_is_named(call: Callable[[], object]) -> None:
    with refuses(InputError):
        call()


HALF = 0.005  # half a unit of the last printed digit
NAN = np.nan

# Pairs marked with a cross: (table, pair) -> (cross-test, old self-test).
FAILURES = {
    ("1b", "new*, old"): (0.0, 77.86),
    ("1b", "new-l2, old"): (3.10, 77.86),
    ("1b", "new-LwF, old"): (77.26, 77.86),
    ("1c", "new*, old"): (0.0, 59.34),
    ("1c", "new-l2, old"): (0.50, 59.34),
    ("1c", "new-LwF, old"): (59.27, 59.34),
    ("3b", "new-ReLU, old"): (34.70, 77.86),
    ("3b", "new-Cos-S, old-S"): (67.11, 73.27),
    ("3c", "new-ReLU, old"): (17.73, 59.34),
    ("3c", "new-Cos-S, old-S"): (45.46, 54.16),
    ("5", "old, new*"): (26.7, 42.9),
}

# Upper bounds: (table, paragon) -> (its self-test, old self-test, printed absolute gain). Table 4b names the second
# one (3*, 2*); its figure is that of (2*, 2*), as table 4c has it.
PARAGONS = {
    ("1b and 3b", "new*"): (86.96, 77.86, 9.1),
    ("1c and 3c", "new*"): (76.88, 59.34, 17.54),
    ("4b", "2*"): (77.86, 41.45, 36.41),
    ("4c", "2*"): (59.34, 22.57, 36.77),
}

# The chain of three models: self-tests and cross-tests; paragons of versions 2 and 3; update gains as printed.
CHAINS = {
    "4b": (
        [[41.45, NAN, NAN], [56.34, 75.96, NAN], [53.98, 80.40, NAN]],
        (77.86, 86.96),
        (40.90, 34.41, 40.36),
    ),
    "4c": (
        [[22.57, NAN, NAN], [39.00, 56.07, NAN], [36.10, 66.09, NAN]],
        (59.34, 76.88),
        (44.68, 36.80, 48.15),
    ),
}
LAST_SELF_TEST = {"4b": 85.66, "4c": 74.12}  # table 9; table 4 does not print it


def gain_range(cross: float, old: float, new: float, half: float = HALF) -> tuple[float, float]:
    """The update gains, in percent, that pairs rounding to these figures can have: the corners of the box."""
    corners = product(*([value - half, value + half] for value in (cross, old, new)))
    gains = [update_gain(*(value / 100 for value in corner)) for corner in corners]
    values = [100 * gain for gain in gains if gain is not None]
    assert len(values) == 8
    return min(values), max(values)


def printable(printed: float, possible: tuple[float, float], half: float = HALF) -> bool:
    """Whether some value in the range rounds to the printed figure."""
    return possible[0] - half <= printed <= possible[1] + half


def chain(table: str) -> NDArray[np.float64]:
    matrix = np.array(CHAINS[table][0]) / 100
    matrix[2, 2] = LAST_SELF_TEST[table] / 100
    return matrix


@pytest.mark.parametrize("row", FAILURES)
def test_pairs_marked_with_a_cross_fail_and_have_no_gain(row: tuple[str, str]) -> None:
    cross, old = (value / 100 for value in FAILURES[row])
    assert not is_compatible(cross, old)
    assert update_gain(cross, old, 0.95) is None
    assert cross - old < 0


@pytest.mark.parametrize("row", PARAGONS)
def test_absolute_gains_of_the_paragons(row: tuple[str, str]) -> None:
    new, old, printed = PARAGONS[row]
    assert 100 * (new / 100 - old / 100) == pytest.approx(printed, abs=1e-9)
    assert update_gain(new / 100, old / 100, new / 100) == 1


@pytest.mark.parametrize(
    ("table", "printed", "over_version_2"), [("4b", 9.1, 11.00), ("4c", 17.54, 20.81)]
)
def test_the_last_paragon_of_table_4_is_held_against_the_second(
    table: str, printed: float, over_version_2: float
) -> None:
    """As in table 1. Over version 2 itself, which (3, 2) is held against, its absolute gain would be larger."""
    second, third = (value / 100 for value in CHAINS[table][1])
    assert 100 * (third - second) == pytest.approx(printed, abs=1e-9)
    assert 100 * (third - chain(table)[1, 1]) == pytest.approx(over_version_2, abs=1e-9)


@pytest.mark.parametrize("table", CHAINS)
def test_the_chain_of_three_is_multi_model_compatible(table: str) -> None:
    """Version 3 never saw version 1: its compatibility is transitive (section 3.6)."""
    assert average_compatibility(chain(table)) == 1
    assert average_compatibility(chain(table)) == 1


@pytest.mark.parametrize("table", CHAINS)
def test_update_gains_of_the_chain(table: str) -> None:
    """(2, 1) over 2* and (3, 2) over 3*. But the gain of (3, 1) is over 2*, where eq. 9 has the newest paragon, 3*."""
    C, (second, third), printed = CHAINS[table]
    assert printable(printed[0], gain_range(C[1][0], C[0][0], second))
    assert printable(printed[1], gain_range(C[2][0], C[0][0], second))
    assert printable(printed[2], gain_range(C[2][1], C[1][1], third))
    by_eq_9 = gain_range(C[2][0], C[0][0], third)
    assert not printable(printed[1], by_eq_9)
    assert printable({"4b": 27.53, "4c": 24.91}[table], by_eq_9)


def test_one_gain_of_table_1c_is_not_that_of_its_pair() -> None:
    """(new-beta-kd, old): printed 55.11; eq. 9 gives 55.19, and rounding of the pair allows nothing below 55.13."""
    possible = gain_range(69.02, 59.34, 76.88)
    assert update_gain(0.6902, 0.5934, 0.7688) == pytest.approx(0.5519, abs=5e-5)
    assert possible == pytest.approx((55.131, 55.245), abs=1e-3)
    assert not printable(55.11, possible)


def test_the_gain_of_table_5_within_its_one_digit() -> None:
    """Person search, mean AP: printed 12.0 where the printed pairs give 12.07."""
    assert is_compatible(0.450, 0.429)
    assert update_gain(0.450, 0.429, 0.603) == pytest.approx(0.1207, abs=5e-5)
    assert printable(12.0, gain_range(45.0, 42.9, 60.3, half=0.05), half=0.05)


# Table 9, other operating points: (1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3), and whether (3, 1) is compatible.
OPERATING_POINTS = {
    "TAR @ FAR 1e-5": ([29.24, 36.13, 58.01, 32.14, 64.84, 73.61], True),
    "TAR @ FAR 1e-4": ([41.45, 56.34, 75.96, 53.98, 80.40, 85.66], True),
    "TAR @ FAR 1e-3": ([73.40, 75.14, 87.97, 71.95, 89.84, 92.88], False),
    "TAR @ FAR 1e-2": ([89.06, 89.54, 95.18, 88.69, 95.84, 96.90], False),
    "TNIR @ FPIR 1e-3": ([11.30, 19.21, 38.59, 14.85, 50.81, 59.22], True),
    "TNIR @ FPIR 1e-1": ([54.39, 59.85, 78.50, 56.35, 82.97, 86.70], True),
    "Rank-1": ([71.52, 78.22, 86.97, 77.18, 89.26, 91.61], True),
    "Rank-5": ([82.87, 87.81, 92.49, 87.48, 94.11, 95.53], True),
}


@pytest.mark.parametrize("metric", OPERATING_POINTS)
def test_the_verdict_depends_on_the_operating_point(metric: str) -> None:
    """Verification at FAR 1e-3 and 1e-2: version 3 is not compatible with version 1, though with version 2."""
    values, transitive = OPERATING_POINTS[metric]
    C = np.full((3, 3), NAN)
    C[np.tril_indices(3)] = np.array(values) / 100
    assert compatible_cells(C)[np.tril_indices(3, -1)].tolist() == [True, transitive, True]
    assert (average_compatibility(C) == 1) == transitive
