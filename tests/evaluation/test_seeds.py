"""Means and deviations against the standard library, and what runs must have in common."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixstar.errors import InputError
from fixstar.evaluation import compatibility
from fixstar.evaluation.compatibility import MatrixSpread, Spread, format_spread, summarise, summarise_matrices

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
    ("call", "message"),
    [
        (lambda: summarise([]), "no runs"),
        (lambda: summarise([{"AC": 0.5}, {"AC": 0.5, "AA": 0.4}]), "run 1 and run 0.*AA is in one of them only"),
        (lambda: summarise([{"AC": 0.5, "AA": 0.4}, {"AC": 0.5}]), "AA is in one of them only"),
        (lambda: summarise([{"AC": 0.5}, {"AC": np.nan}]), "AC of run 1 is nan"),
        (lambda: summarise([{"gain": None}]), "gain of run 0 is None"),  # type: ignore[dict-item]
        (lambda: summarise_matrices([]), "no runs"),
        (lambda: summarise_matrices([np.eye(2), np.eye(3)]), r"same shape, got \[\(2, 2\), \(3, 3\)\]"),
        (lambda: summarise_matrices([[[0.5]], [[np.nan]]]), r"cell \[0, 0\] was measured in only some of the 2 runs"),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
