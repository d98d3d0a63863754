"""The papers' metrics of a compatibility matrix: pure functions of numbers.

C[t, k] is the accuracy M with queries by version t and gallery by version k (eq. 7 of HOC). The diagonal
holds the **self-tests**, the cells below it the **cross-tests**. Cells above it (an old query model on a newer gallery)
are ignored, whatever they hold. Version t is **compatible** with an older version k when C[t, k] > C[k, k], strictly
(eq. 6).

One unit everywhere: fractions from 0 to 1. Percent is refused, never guessed; 0 is a value, never "missing".
``up_to=tau`` takes the first tau versions only: AC_tau, AA_tau, BC(t) of the papers.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError

__all__ = [
    "absolute_gain",
    "average_accuracy",
    "average_compatibility",
    "average_compatibility_accuracy",
    "backward_compatibility",
    "compatible_cells",
    "forward_compatibility",
    "is_compatible",
    "multi_model_compatible",
    "summary",
    "update_gain",
]

Matrix = NDArray[np.float64]


def average_compatibility(C: ArrayLike, *, up_to: int | None = None) -> float:
    """AC: the share of cross-tests that beat the self-test of their gallery (eq. 7 of CoReS, eq. 4 of CL2R).

    >>> average_compatibility([[0.30, 0], [0.35, 0.50]])
    1.0
    """
    matrix = _with_cross_tests(C, up_to)
    T = len(matrix)
    return float(2 * compatible_cells(matrix).sum() / (T * (T - 1)))


def average_accuracy(C: ArrayLike, *, up_to: int | None = None) -> float:
    """AA: the mean of all self-tests and cross-tests (section 5.1 of HOC); AM in eq. 8 of CoReS.

    >>> round(average_accuracy([[0.30, 0], [0.35, 0.50]]), 4)
    0.3833
    """
    matrix = _lower_triangle(C, up_to)
    T = len(matrix)
    return float(2 * matrix.sum() / (T * (T + 1)))


def average_compatibility_accuracy(C: ArrayLike, *, up_to: int | None = None) -> float:
    """ACA: the accuracy of the compatible cross-tests, the others counting as zero (section 5.1 of HOC).

    2 / (T(T-1)) * sum of C[t, k] where C[t, k] > C[k, k]. The formula as printed lost its factor C[t, k] and would
    repeat AC; the tables (ACA 39.25 where AC is 1.00) show that it belongs there.

    >>> average_compatibility_accuracy([[0.30, 0], [0.35, 0.50]])
    0.35
    """
    matrix = _with_cross_tests(C, up_to)
    T = len(matrix)
    return float(2 * matrix[compatible_cells(matrix)].sum() / (T * (T - 1)))


def backward_compatibility(C: ArrayLike, *, up_to: int | None = None) -> float:
    """BC: mean over k of C[T, k] - C[k, k]: what the last version gains on every older gallery (eq. 5 of CL2R).

    Below zero the newer model has forgotten. ``up_to=t`` is BC(t), the same for version t.

    >>> round(backward_compatibility([[0.30, 0], [0.35, 0.50]]), 4)
    0.05
    """
    matrix = _with_cross_tests(C, up_to)
    return float(np.mean(matrix[-1, :-1] - matrix.diagonal()[:-1]))


def forward_compatibility(C: ArrayLike, *, up_to: int | None = None) -> float:
    """FC: mean over k of C[k, k-1] - C[k, k]: what keeping the previous gallery costs (eq. 6 of CL2R).

    From zero upwards, re-embedding the gallery would on average not help.

    >>> round(forward_compatibility([[0.30, 0], [0.35, 0.50]]), 4)
    -0.15
    """
    matrix = _with_cross_tests(C, up_to)
    return float(np.mean(matrix.diagonal(-1) - matrix.diagonal()[1:]))


def is_compatible(cross: float, old: float) -> bool:
    """Whether a cross-test beats the old self-test: the Empirical Compatibility Criterion, strict (eq. 6).

    >>> is_compatible(0.35, 0.30), is_compatible(0.30, 0.30)
    (True, False)
    """
    _require_fractions(np.array([cross, old]))
    return bool(cross > old)


def update_gain(cross: float, old: float, new: float) -> float | None:
    """(cross - old) / (new - old): the share of a full re-embedding's gain that comes without one (eq. 9 of BCT).

    ``new`` is the self-test of the best new model, the paragon phi*. None where the gain means nothing: the criterion
    fails (cross <= old), or re-embedding gains nothing (new <= old).

    >>> update_gain(0.375, 0.25, 0.50)
    0.5
    >>> update_gain(0.25, 0.25, 0.50) is None
    True
    """
    _require_fractions(np.array([cross, old, new]))
    if not is_compatible(cross, old) or new <= old:
        return None
    return float((cross - old) / (new - old))


def absolute_gain(cross: float, old: float) -> float:
    """cross - old, in the unit of the metric (tables 1, 3, 4 and 5 of BCT).

    The tables print it only where the criterion holds, and also for the paragon: ``absolute_gain(new, old)``. (Table 1
    of CoReS has the same column, but its three figures do not agree with each other on any one definition.)

    >>> round(absolute_gain(0.35, 0.30), 4)
    0.05
    """
    _require_fractions(np.array([cross, old]))
    return float(cross - old)


def compatible_cells(C: ArrayLike) -> NDArray[np.bool_]:
    """[T, T], True in the cross-tests that satisfy eq. 6; False elsewhere, so also on and above the diagonal.

    >>> compatible_cells([[0.30, 0], [0.35, 0.50]]).tolist()
    [[False, False], [True, False]]
    """
    matrix = _lower_triangle(C)
    return np.tril(matrix > matrix.diagonal(), -1)


def multi_model_compatible(C: ArrayLike) -> bool:
    """Whether every version is compatible with every older one (eq. 5 of CoReS): AC = 1.

    >>> multi_model_compatible([[0.30, 0], [0.35, 0.50]])
    True
    """
    matrix = _with_cross_tests(C)
    T = len(matrix)
    return int(compatible_cells(matrix).sum()) == T * (T - 1) // 2


def summary(C: ArrayLike) -> dict[str, float]:
    """AC, AA, ACA, BC and FC by name.

    >>> {name: round(value, 4) for name, value in summary([[0.30, 0], [0.35, 0.50]]).items()}
    {'AC': 1.0, 'AA': 0.3833, 'ACA': 0.35, 'BC': 0.05, 'FC': -0.15}
    """
    return {
        "AC": average_compatibility(C),
        "AA": average_accuracy(C),
        "ACA": average_compatibility_accuracy(C),
        "BC": backward_compatibility(C),
        "FC": forward_compatibility(C),
    }


def _lower_triangle(C: ArrayLike, up_to: int | None = None) -> Matrix:
    """The first ``up_to`` versions of C, checked, with zeros above the diagonal."""
    try:
        matrix: Matrix = np.asarray(C, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"a compatibility matrix holds numbers, T rows of T; got {C!r}") from error
    T = matrix.shape[0] if matrix.ndim else 0
    if T == 0 or matrix.shape != (T, T):
        raise InputError(f"a compatibility matrix is square, [T, T] with T >= 1; got shape {matrix.shape}")
    if up_to is not None:
        tau = operator.index(up_to)
        if not 1 <= tau <= T:
            raise InputError(f"up_to counts versions, 1 to {T} here; got {up_to}")
        matrix = matrix[:tau, :tau]
    _require_fractions(matrix[np.tril_indices(len(matrix))])
    return np.tril(matrix)


def _with_cross_tests(C: ArrayLike, up_to: int | None = None) -> Matrix:
    """``_lower_triangle``, with at least one cell below the diagonal."""
    matrix = _lower_triangle(C, up_to)
    if len(matrix) < 2:
        raise InputError("compatibility needs two versions or more; one version has only its self-test")
    return matrix


def _require_fractions(values: NDArray[Any]) -> None:
    if np.isnan(values).any():
        raise InputError(
            "a self-test or cross-test is NaN: it was not measured. up_to=tau takes the first tau versions"
        )
    outside = values[(values < 0) | (values > 1)]
    if outside.size:
        raise InputError(f"accuracies are fractions from 0 to 1, got {outside[0]:g}. Divide percent by 100")
