"""The papers' metrics of a compatibility matrix, and their mean and deviation over several runs.

C[t, k] is the accuracy M with queries by version t and gallery by version k (eq. 7 of HOC). The diagonal
holds the **self-tests**, the cells below it the **cross-tests**. Cells above it (an old query model on a newer gallery)
are ignored. Version t is **compatible** with an older version k when C[t, k] > C[k, k], strictly (eq. 6). The published
code of CoReS and CL2R also counts equal accuracies: ``ties=True``.

All values are fractions from 0 to 1; 0 never means "missing". ``up_to=tau`` uses the first tau versions only:
AC_tau, AA_tau, BC(t) of the papers. Report several runs where you can: over 20 runs CoReS has AC 0.51 with a deviation
of 0.10. This is the deviation of single runs (divisor n - 1), not the error of the mean.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError

Matrix = NDArray[np.float64]


def average_compatibility(C: ArrayLike, *, up_to: int | None = None, ties: bool = False) -> float:
    """AC: the share of cross-tests that beat the self-test of their gallery (eq. 7 of CoReS, eq. 4 of CL2R).

    >>> average_compatibility([[0.30, 0], [0.35, 0.50]])
    1.0
    """
    matrix = _lower_triangle(C, up_to, least=2)
    compatible = compatible_cells(matrix, ties)
    return float(compatible[np.tril_indices(len(matrix), -1)].mean())


def average_accuracy(C: ArrayLike, *, up_to: int | None = None) -> float:
    """AA: the mean of all self-tests and cross-tests (section 5.1 of HOC); AM in eq. 8 of CoReS.

    >>> round(average_accuracy([[0.30, 0], [0.35, 0.50]]), 4)
    0.3833
    """
    matrix = _lower_triangle(C, up_to)
    return float(matrix[np.tril_indices(len(matrix))].mean())


def average_compatibility_accuracy(
    C: ArrayLike, *, up_to: int | None = None, ties: bool = False
) -> float:
    """ACA: the mean accuracy of cross-tests, incompatible ones counting as zero (section 5.1 of HOC).

    2 / (T(T-1)) * sum of C[t, k] where C[t, k] > C[k, k]. The printed formula lacks the factor C[t, k] and
    would repeat AC; the tables (ACA 39.25 where AC is 1.00) show that it belongs there.

    >>> average_compatibility_accuracy([[0.30, 0], [0.35, 0.50]])
    0.35
    """
    matrix = _lower_triangle(C, up_to, least=2)
    counted = matrix * compatible_cells(matrix, ties)
    return float(counted[np.tril_indices(len(matrix), -1)].mean())


def backward_compatibility(C: ArrayLike, *, up_to: int | None = None) -> float:
    """BC: mean over k of C[T, k] - C[k, k]: the gain of the last version on older galleries (eq. 5 of CL2R).

    Negative values mean forgetting. ``up_to=t`` gives BC(t).

    >>> round(backward_compatibility([[0.30, 0], [0.35, 0.50]]), 4)
    0.05
    """
    matrix = _lower_triangle(C, up_to, least=2)
    return float(np.mean(matrix[-1, :-1] - matrix.diagonal()[:-1]))


def forward_compatibility(C: ArrayLike, *, up_to: int | None = None) -> float:
    """FC: mean over k of C[k, k-1] - C[k, k]: the cost of keeping the previous gallery (eq. 6 of CL2R).

    At zero or above, re-embedding the gallery would not help on average.

    >>> round(forward_compatibility([[0.30, 0], [0.35, 0.50]]), 4)
    -0.15
    """
    matrix = _lower_triangle(C, up_to, least=2)
    return float(np.mean(matrix.diagonal(-1) - matrix.diagonal()[1:]))


def is_compatible(cross: float, old: float) -> bool:
    """Whether a cross-test beats the old self-test: the Empirical Compatibility Criterion, strict (eq. 6).

    >>> is_compatible(0.35, 0.30), is_compatible(0.30, 0.30)
    (True, False)
    """
    _require_fractions(np.array([cross, old]))
    return bool(cross > old)


def update_gain(cross: float, old: float, new: float) -> float | None:
    """(cross - old) / (new - old): the share of the gain of re-embedding that is reached without it (eq. 9 of BCT).

    ``new`` is the self-test of the best new model, the paragon phi*. None where the gain is meaningless: the
    criterion fails (cross <= old), or re-embedding gains nothing (new <= old).

    >>> update_gain(0.375, 0.25, 0.50)
    0.5
    >>> update_gain(0.25, 0.25, 0.50) is None
    True
    """
    _require_fractions(np.array([new]))
    if is_compatible(cross, old) and new > old:
        return float((cross - old) / (new - old))
    return None


def compatible_cells(C: ArrayLike, ties: bool = False) -> NDArray[np.bool_]:
    """[T, T], True for cross-tests that satisfy eq. 6; False elsewhere, including on and above the diagonal.

    >>> compatible_cells([[0.30, 0], [0.35, 0.50]]).tolist()
    [[False, False], [True, False]]
    >>> [compatible_cells([[0.30, 0], [0.30, 0.50]], ties)[1, 0].item() for ties in (False, True)]
    [False, True]
    """
    matrix = _lower_triangle(C)
    above = matrix > matrix.diagonal()
    if ties:
        above = matrix >= matrix.diagonal()
    return np.tril(above, -1)


def lower_triangle(matrix: Matrix) -> list[list[float]]:
    """Rows of C up to the diagonal.

    >>> lower_triangle(np.array([[0.5, np.nan], [0.75, 1.0]]))
    [[0.5], [0.75, 1.0]]
    """
    return [[float(value) for value in row[: t + 1]] for t, row in enumerate(matrix)]


def summary(C: ArrayLike, ties: bool = False) -> dict[str, float]:
    """AC, AA, ACA, BC and FC by name.

    >>> {name: round(value, 4) for name, value in summary([[0.30, 0], [0.35, 0.50]]).items()}
    {'AC': 1.0, 'AA': 0.3833, 'ACA': 0.35, 'BC': 0.05, 'FC': -0.15}
    """
    return {
        "AC": average_compatibility(C, ties=ties),
        "AA": average_accuracy(C),
        "ACA": average_compatibility_accuracy(C, ties=ties),
        "BC": backward_compatibility(C),
        "FC": forward_compatibility(C),
    }


@dataclass(frozen=True)
class Spread:
    """Mean and sample deviation of one metric; ``deviation`` is None for a single run."""

    mean: float
    deviation: float | None
    runs: int


@dataclass(frozen=True, eq=False)
class MatrixSpread:
    """Mean and sample deviation of each cell, [T, T]; NaN where no run has a value."""

    mean: Matrix
    deviation: Matrix | None
    runs: int


def summarise(runs: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """The spread of every metric over the runs' summaries. All runs must have the same metrics.

    >>> summarise([{"AC": 0.5, "AA": 0.25}, {"AC": 1.0, "AA": 0.25}])["AA"]
    Spread(mean=0.25, deviation=0.0, runs=2)
    """
    if not runs:
        raise InputError("no runs to summarise; pass at least one summary")
    for number, run in enumerate(runs):
        if other := sorted(run.keys() ^ runs[0].keys()):
            raise InputError(
                f"run {number} and run 0 have different metrics: {', '.join(other)} is in one of them only"
            )
    return {name: _spread(name, [run[name] for run in runs]) for name in runs[0]}


def summarise_matrices(matrices: Sequence[ArrayLike]) -> MatrixSpread:
    """Mean and deviation of each cell over runs with matrices of the same shape.

    NaN means not measured, which must be the same in all runs: a mean over some runs would look like one over all.

    >>> summarise_matrices([[[0.25, np.nan], [0.5, 0.5]], [[0.75, np.nan], [0.5, 1.0]]]).mean
    array([[0.5 ,  nan],
           [0.5 , 0.75]])
    """
    if not len(matrices):
        raise InputError("no runs to summarise; pass at least one matrix")
    arrays = [np.asarray(matrix, dtype=np.float64) for matrix in matrices]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise InputError(f"the matrices of all runs must have the same shape, got {sorted(shapes)}")
    stack = np.stack(arrays)
    missing = np.isnan(stack)
    if partly := np.argwhere(missing.any(axis=0) & ~missing.all(axis=0)).tolist():
        raise InputError(
            f"cell {partly[0]} was measured in only some of the {len(stack)} runs; leave out the others"
        )
    deviation = stack.std(axis=0, ddof=1) if len(stack) > 1 else None
    return MatrixSpread(stack.mean(axis=0), deviation, len(stack))


def format_spread(spread: Spread, *, percent: bool = True, digits: int = 1) -> str:
    """Mean and deviation as text: percent with one digit, as in the tables; ``percent=False, digits=2`` suits AC.

    >>> format_spread(Spread(0.479, 0.0058, 3))
    '47.9 ± 0.6'
    >>> format_spread(Spread(0.51, 0.1, 20), percent=False, digits=2), format_spread(Spread(0.479, None, 1))
    ('0.51 ± 0.10', '47.9')
    """
    unit = 100 if percent else 1
    mean = f"{unit * spread.mean:z.{digits}f}"
    if spread.deviation is None:
        return mean
    return f"{mean} ± {unit * spread.deviation:.{digits}f}"


def _lower_triangle(C: ArrayLike, up_to: int | None = None, least: int = 1) -> Matrix:
    """The first ``up_to`` versions of C, at least so many, checked, with zeros above the diagonal."""
    try:
        matrix: Matrix = np.asarray(C, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"a compatibility matrix has T rows of T numbers; got {C!r}") from error
    T = matrix.shape[0] if matrix.ndim else 0
    if T == 0 or matrix.shape != (T, T):
        raise InputError(
            f"a compatibility matrix is square, [T, T] with T >= 1; got shape {matrix.shape}"
        )
    if up_to is not None:
        tau = operator.index(up_to)
        if not 1 <= tau <= T:
            raise InputError(f"up_to counts versions, 1 to {T} here; got {up_to}")
        matrix = matrix[:tau, :tau]
    _require_fractions(matrix[np.tril_indices(len(matrix))])
    if len(matrix) < least:
        raise InputError(
            "compatibility needs at least two versions; one version has only its self-test"
        )
    return np.tril(matrix)


def _require_fractions(values: NDArray[Any]) -> None:
    if np.isnan(values).any():
        raise InputError(
            "a self-test or cross-test is NaN (not measured); up_to=tau uses the first tau versions only"
        )
    outside = values[(values < 0) | (values > 1)]
    if outside.size:
        raise InputError(
            f"accuracies are fractions from 0 to 1, got {outside[0]:g}. Divide percentages by 100"
        )


def _spread(name: str, values: Sequence[float]) -> Spread:
    if wrong := [
        number for number, value in enumerate(values) if value is None or not math.isfinite(value)
    ]:
        raise InputError(
            f"{name} of run {wrong[0]} is {values[wrong[0]]}: not measured. Leave out that run"
        )
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), deviation, len(values))
