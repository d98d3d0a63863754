"""What BCT prints beside its compatible pairs: failures, paragons, chains, and the two gains that eq. 9 does not give.

The gains of the compatible pairs themselves are in ``test_compatibility.py``. All figures are percent, as printed; a
printed figure stands for everything that rounds to it.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from fixstar.evaluation.compatibility import (
    absolute_gain,
    average_compatibility,
    compatible_cells,
    is_compatible,
    multi_model_compatible,
    update_gain,
)

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
    "4b": ([[41.45, NAN, NAN], [56.34, 75.96, NAN], [53.98, 80.40, NAN]], (77.86, 86.96), (40.90, 34.41, 40.36)),
    "4c": ([[22.57, NAN, NAN], [39.00, 56.07, NAN], [36.10, 66.09, NAN]], (59.34, 76.88), (44.68, 36.80, 48.15)),
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
    assert absolute_gain(cross, old) < 0


@pytest.mark.parametrize("row", PARAGONS)
def test_absolute_gains_of_the_paragons(row: tuple[str, str]) -> None:
    new, old, printed = PARAGONS[row]
    assert 100 * absolute_gain(new / 100, old / 100) == pytest.approx(printed, abs=1e-9)
    assert update_gain(new / 100, old / 100, new / 100) == 1


@pytest.mark.parametrize(("table", "printed", "over_version_2"), [("4b", 9.1, 11.00), ("4c", 17.54, 20.81)])
def test_the_last_paragon_of_table_4_is_held_against_the_second(
    table: str, printed: float, over_version_2: float
) -> None:
    """As in table 1. Over version 2 itself, which (3, 2) is held against, its absolute gain would be larger."""
    second, third = (value / 100 for value in CHAINS[table][1])
    assert 100 * absolute_gain(third, second) == pytest.approx(printed, abs=1e-9)
    assert 100 * absolute_gain(third, chain(table)[1, 1]) == pytest.approx(over_version_2, abs=1e-9)


@pytest.mark.parametrize("table", CHAINS)
def test_the_chain_of_three_is_multi_model_compatible(table: str) -> None:
    """Version 3 never saw version 1: its compatibility is transitive (section 3.6)."""
    assert multi_model_compatible(chain(table))
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
    assert 100 * absolute_gain(0.6902, 0.5934) == pytest.approx(9.68, abs=1e-9)  # the absolute gain is right


def test_the_gain_of_table_5_within_its_one_digit() -> None:
    """Person search, mean AP: printed 12.0 where the printed pairs give 12.07."""
    assert is_compatible(0.450, 0.429)
    assert update_gain(0.450, 0.429, 0.603) == pytest.approx(0.1207, abs=5e-5)
    assert printable(12.0, gain_range(45.0, 42.9, 60.3, half=0.05), half=0.05)
    assert 100 * absolute_gain(0.450, 0.429) == pytest.approx(2.1, abs=1e-9)


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
    assert multi_model_compatible(C) == transitive
