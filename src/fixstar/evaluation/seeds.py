"""Several runs of one experiment: mean and sample deviation of every metric.

One run is an anecdote: over 20 runs CoReS reports AC 0.51 with a deviation of 0.10. Runs may differ in seed, class
order or both; say which. The deviation is that of a single run (divisor n - 1), not the error of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError

__all__ = ["MatrixSpread", "Spread", "format_spread", "summarise", "summarise_matrices"]

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """Mean and sample deviation of one metric; ``deviation`` is None for a single run, which has none."""

    mean: float
    deviation: float | None
    runs: int


@dataclass(frozen=True, eq=False)
class MatrixSpread:
    """The same cell by cell, [T, T]; NaN where no run has measured."""

    mean: Matrix
    deviation: Matrix | None
    runs: int


def summarise(runs: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Every metric of the runs' summaries, in the order of the first. All runs must have the same metrics.

    >>> summarise([{"AC": 0.5, "AA": 0.25}, {"AC": 1.0, "AA": 0.25}])["AA"]
    Spread(mean=0.25, deviation=0.0, runs=2)
    """
    if not runs:
        raise InputError("there are no runs to summarise; pass the summary of at least one")
    for number, run in enumerate(runs):
        if odd := sorted(run.keys() ^ runs[0].keys()):
            raise InputError(f"run {number} and run 0 do not have the same metrics: {', '.join(odd)} only in one")
    return {name: _spread(name, [run[name] for run in runs]) for name in runs[0]}


def summarise_matrices(matrices: Sequence[ArrayLike]) -> MatrixSpread:
    """Mean and deviation of each cell over runs whose matrices have one shape.

    A cell is NaN where it was not measured. All runs must agree on which: an average of some would pass for one of all.

    >>> summarise_matrices([[[0.25, np.nan], [0.5, 0.5]], [[0.75, np.nan], [0.5, 1.0]]]).mean
    array([[0.5 ,  nan],
           [0.5 , 0.75]])
    """
    if not len(matrices):
        raise InputError("there are no runs to summarise; pass the matrix of at least one")
    arrays = [np.asarray(matrix, dtype=np.float64) for matrix in matrices]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise InputError(f"runs to summarise have matrices of one shape, got {sorted(shapes)}")
    stack = np.stack(arrays)
    missing = np.isnan(stack)
    if partly := np.argwhere(missing.any(axis=0) & ~missing.all(axis=0)).tolist():
        raise InputError(f"cell {partly[0]} was measured in some of the {len(stack)} runs only; leave the others out")
    deviation = stack.std(axis=0, ddof=1) if len(stack) > 1 else None
    return MatrixSpread(stack.mean(axis=0), deviation, len(stack))


def format_spread(spread: Spread, *, percent: bool = True, digits: int = 1) -> str:
    """For people: percent with one digit, as in the tables; ``percent=False, digits=2`` suits AC.

    >>> format_spread(Spread(0.479, 0.0058, 3))
    '47.9 ± 0.6'
    >>> format_spread(Spread(0.51, 0.1, 20), percent=False, digits=2), format_spread(Spread(0.479, None, 1))
    ('0.51 ± 0.10', '47.9')
    """
    unit = 100 if percent else 1
    mean = f"{unit * spread.mean:z.{digits}f}"
    return mean if spread.deviation is None else f"{mean} ± {unit * spread.deviation:.{digits}f}"


def _spread(name: str, values: Sequence[float]) -> Spread:
    if wrong := [number for number, value in enumerate(values) if value is None or not math.isfinite(value)]:
        raise InputError(f"{name} of run {wrong[0]} is {values[wrong[0]]}: it was not measured. Leave that run out")
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), deviation, len(values))
