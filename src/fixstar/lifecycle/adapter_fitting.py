"""Closed-form fits of adapters, from the second moments of pairs alone: one pass over the pairs, then small matrices.

x and y are unit vectors of one image in two spaces, [a] and [b]; w its weight. A fit never sees the rows that choose
its hyper-parameters, except for the ridge penalty, which generalised cross-validation chooses without any.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError
from fixstar.geometry import unit
from fixstar.lifecycle.adapter_maps import slerp
from fixstar.lifecycle.adapter_pairs import agreement, held_out_rows

__all__ = ["Fitted", "Pairs", "fit_low_rank", "fit_procrustes", "fit_ridge", "fit_slerp", "gcv_penalty", "moments"]

Floats = NDArray[np.floating[Any]]
Matrix = NDArray[np.float64]

_BLOCK = 65536
_PENALTIES = np.logspace(-6, 2, 33)  # in units of the mean eigenvalue of the scatter
_STEPS = np.linspace(0, 1, 21)  # of t


class Pairs(NamedTuple):
    """Checked pairs [N, a] and [N, b], their weights [N] (mean 1), and groups [N] that no split takes apart."""

    X: Floats
    Y: Floats
    weights: Matrix
    groups: NDArray[Any] | None = None
    seed: int = 0

    def split(self, share: float = 0.2) -> tuple[Pairs, Pairs]:
        """Pairs to fit on, and a share of the pairs to choose or to judge by, drawn by the seed."""
        shown, judged = held_out_rows(len(self.X), share, self.seed, self.groups)
        return self.rows(shown), self.rows(judged)

    def rows(self, chosen: NDArray[np.intp]) -> Pairs:
        """Some of the pairs."""
        groups = None if self.groups is None else self.groups[chosen]
        weights = self.weights[chosen]
        return Pairs(self.X[chosen], self.Y[chosen], weights / weights.mean(), groups, self.seed)


class Fitted(NamedTuple):
    """The arrays of a fitted adapter, and what was chosen on the way."""

    weights: dict[str, Matrix]
    chosen: dict[str, float]


class Moments(NamedTuple):
    """Number of pairs, weighted means [a] and [b], and centred scatters: xx [a, a], xy [a, b], the trace of yy."""

    pairs: int
    x: Matrix
    y: Matrix
    xx: Matrix
    xy: Matrix
    yy: float


def moments(pairs: Pairs) -> Moments:
    """Weighted moments in float64, in blocks."""
    X, Y, w = pairs.X, pairs.Y, pairs.weights
    x, y = ((w @ part) / w.sum() for part in (X, Y))
    xx, xy, yy = np.zeros((X.shape[1], X.shape[1])), np.zeros((X.shape[1], Y.shape[1])), 0.0
    for start in range(0, len(X), _BLOCK):
        rows = slice(start, start + _BLOCK)
        dx, dy, weighted = X[rows] - x, Y[rows] - y, w[rows, None]
        xx += dx.T @ (weighted * dx)
        xy += dx.T @ (weighted * dy)
        yy += float((weighted * dy * dy).sum())
    return Moments(len(X), x, y, xx, xy, yy)


def fit_procrustes(pairs: Pairs) -> Fitted:
    """R = U V^T with U S V^T the SVD of sum w x y^T: the R of largest sum w (x R) . y with orthonormal rows or columns.

    For a = b a rotation or reflection: all cosines within the source space stay what they were. For a < b the space is
    laid isometrically into the wider one (R R^T = 1); for a > b it is projected (R^T R = 1), and the best R in this
    sense. Nothing is centred, so that cosines survive. Nothing is chosen.
    """
    return Fitted({"W": _rotation(moments(pairs)), "c": np.zeros(pairs.Y.shape[1])}, {})


def _rotation(m: Moments) -> Matrix:
    sums = m.xy + m.pairs * np.outer(m.x, m.y)  # sum w x y^T: the weights sum to N
    U, _, Vt = np.linalg.svd(sums, full_matrices=False)
    rotation: Matrix = U @ Vt
    return rotation


def fit_ridge(pairs: Pairs, penalty: float | None = None) -> Fitted:
    """min over W, c of sum w |x W + c - y|^2 + penalty |W|^2; c is not penalised.

    The penalty is the one of least generalised cross-validation error, unless it is given.
    """
    m = moments(pairs)
    penalty = _penalty(m, penalty)
    W = _ridge(m, penalty)
    return Fitted({"W": W, "c": m.y - m.x @ W}, {"penalty": float(penalty)})


def _ridge(m: Moments, penalty: float) -> Matrix:
    values, vectors = np.linalg.eigh(m.xx)
    values = np.maximum(values, 0)
    solved = values + penalty > 1e-12 * max(values[-1], 1e-300)  # directions that no pair has are left at zero
    inverse = np.where(solved, 1 / np.where(solved, values + penalty, 1), 0)
    W: Matrix = (vectors * inverse) @ (vectors.T @ m.xy)
    return W


def _penalty(m: Moments, given: float | None) -> float:
    if given is not None and not 0 <= given < np.inf:
        raise InputError(f"the penalty of a ridge is a number >= 0, got {given}")
    return gcv_penalty(m) if given is None else given


def gcv_penalty(m: Moments) -> float:
    """The penalty of least N |y - H y|^2 / (N - tr H)^2 (Golub, Heath and Wahba 1979), on a grid; H includes c."""
    values, vectors = np.linalg.eigh(m.xx)
    values = np.maximum(values, 1e-12 * max(values[-1], 1e-300))
    explained = ((vectors.T @ m.xy) ** 2).sum(axis=1) / values  # |u_i^T y|^2 of each singular direction, [a]
    penalties = _PENALTIES * values.mean()
    shrink = values / (values + penalties[:, None])  # [penalties, a]
    error = np.maximum(m.yy - (shrink * (2 - shrink)) @ explained, 1e-12 * m.yy)
    freedom = np.maximum(m.pairs - 1 - shrink.sum(axis=1), 1e-9 * m.pairs)
    return float(penalties[np.argmin(error / freedom**2)])


def fit_low_rank(pairs: Pairs, rank: int | None = None, penalty: float | None = None) -> Fitted:
    """Reduced-rank ridge regression: of all W of rank r, the one of least ridge error.

    W_r = W V V^T, with W the ridge solution and V the r leading eigenvectors of W^T (X^T X + penalty) W (Mukherjee and
    Zhu 2011; without a penalty, classic reduced-rank regression). Unless given, the rank is the one whose fit on a
    part of the pairs has the largest mean cosine on the rest; then all pairs are fitted with it.
    """
    largest = min(pairs.X.shape[1], pairs.Y.shape[1])
    if rank is not None and not 1 <= rank <= largest:
        raise InputError(f"the rank is a number from 1 to {largest}, the narrower width; got {rank}")
    if rank is None:
        shown, judged = pairs.split()
        A, B, c = _factors(shown, penalty)[0]
        rank = max(_ranks(largest), key=lambda r: _mean_cosine(judged.X @ A[:, :r] @ B[:r] + c(r), judged))
    (A, B, c), penalty = _factors(pairs, penalty)
    return Fitted({"A": A[:, :rank], "B": B[:rank], "c": c(rank)}, {"rank": rank, "penalty": float(penalty)})


def _factors(pairs: Pairs, penalty: float | None) -> tuple[tuple[Matrix, Matrix, Any], float]:
    """A [a, s] and B [s, b] whose first r columns and rows make the best map of rank r, c(r) [b]; the penalty."""
    m = moments(pairs)
    penalty = _penalty(m, penalty)
    W = _ridge(m, penalty)
    fitted = W.T @ m.xx @ W + penalty * (W.T @ W)
    V = np.linalg.eigh(fitted)[1][:, ::-1][:, : min(W.shape)]
    A, B = W @ V, V.T
    return (A, B, lambda r: m.y - (m.x @ A[:, :r]) @ B[:r]), penalty


def _ranks(largest: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ... and the largest: the smaller wins a tie."""
    steps = sorted({round(base * 2**power) for power in range(16) for base in (1, 1.5)})
    return [r for r in steps if r < largest] + [largest]


def _mean_cosine(adapted: Floats, pairs: Pairs) -> float:
    cosines = np.einsum("ij,ij->i", unit(adapted), pairs.Y)
    return float(np.average(cosines, weights=pairs.weights))


def fit_slerp(pairs: Pairs, t: float | None = None) -> Fitted:
    """slerp(unit(x R), unit(x W + c), t): between what keeps the geometry and what follows the pairs.

    R is Procrustes', W and c are ridge's. Procrustes keeps every cosine of the source space, ridge bends the space to
    the pairs it has seen and flattens what they do not tell. t = 0 is Procrustes, t = 1 is ridge. Unless given, t is
    the one whose fit on a part of the pairs searches best on the rest (``agreement``; by mean cosine where equal).
    """
    if t is not None and not 0 <= t <= 1:
        raise InputError(f"t is a share of the way, 0 (Procrustes) to 1 (ridge); got {t}")
    if t is None:
        shown, judged = pairs.split()
        ends = _two_ends(shown)
        p, q = unit(judged.X @ ends["R"]), unit(judged.X @ ends["W"] + ends["c"])
        scores = [agreement(slerp(p, q, float(step)), judged.Y, judged.groups)[::-1] for step in _STEPS]
        t = float(_STEPS[max(range(len(_STEPS)), key=scores.__getitem__)])
    return Fitted({**_two_ends(pairs), "t": np.array([t])}, {"t": t})


def _two_ends(pairs: Pairs) -> dict[str, Matrix]:
    return {"R": fit_procrustes(pairs).weights["W"], **fit_ridge(pairs).weights}
