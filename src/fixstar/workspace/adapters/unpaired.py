"""Pseudo-pairs for two sets of vectors that have no image in common: anchors, then a rotation, then refinement.

**Anchors** are places that both spaces have. With labels they are the class centres. Without, both sets are clustered,
and the clusters are matched so that their cosines to each other agree: a quadratic assignment (FAQ, Vogelstein et al.
2015), from several starts. **Rotation**: a vector is described by its cosines to the anchors, which do not depend on
the space; vectors that are each other's nearest in this description are pseudo-pairs, and Procrustes rotates by them.
**Refinement**: rotated vectors and those of the other space that are each other's nearest are the next pseudo-pairs,
until they no longer change (self-learning, Artetxe et al. 2018).

It works if both sets show things of the same kinds, in similar proportions, and both models see them alike. Nothing in
the vectors says whether that holds: the result is unproven until labelled images or pairs judge it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError
from fixstar.evaluation import nearest
from fixstar.geometry import unit
from fixstar.workspace.adapters.fitting import fit_adapter, paired_by_class

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]
Matrix = NDArray[np.float64]

_ANCHORS = 32
_STARTS = 12  # of the matching of clusters
_LLOYD, _FAQ_STEPS, _REFINEMENTS = 30, 40, 30  # at most
_LEAST = 4  # vectors per anchor


class PseudoPairs(NamedTuple):
    """Rows of the first and of the second set that belong together, and what they were found by."""

    first: Indices
    second: Indices
    anchors: str


def pseudo_pairs(
    X: ArrayLike,
    Y: ArrayLike,
    labels_x: ArrayLike | None = None,
    labels_y: ArrayLike | None = None,
    *,
    anchors: int = _ANCHORS,
    seed: int = 0,
) -> PseudoPairs:
    """Rows of unit vectors X [N, a] and Y [M, b] that are likely to show the same thing; labels make it far safer."""
    x, y = np.asarray(X, np.float64), np.asarray(Y, np.float64)
    if labels_x is not None and labels_y is not None:
        means = paired_by_class(x.astype(np.float32), labels_x, y.astype(np.float32), labels_y)
        ends, how = (means.X.astype(np.float64), means.Y.astype(np.float64)), f"{len(means.classes):,} class centres"
    else:
        count = min(anchors, len(x) // _LEAST, len(y) // _LEAST)
        if count < 4:
            raise InputError(
                f"{len(x)} and {len(y)} vectors without labels and without pairs are too few to align: at least "
                f"{4 * _LEAST} of each"
            )
        ends, how = _matched_clusters(x, y, count, seed), f"{count} matched clusters"
    first, second = _mutual(*(_described(part, end) for part, end in zip((x, y), ends, strict=True)))
    return PseudoPairs(*_refined(x, y, first, second), how)


def _described(vectors: Floats, anchors: Floats) -> Floats:
    """The cosines [N, k] to the anchors, each anchor's centred and scaled, so that they mean the same in two spaces."""
    cosines = unit(vectors - vectors.mean(0)) @ unit(anchors - vectors.mean(0)).T
    return unit((cosines - cosines.mean(0)) / np.maximum(cosines.std(0), 1e-9))


def _mutual(p: Floats, q: Floats) -> tuple[Indices, Indices]:
    """The rows of p [N, d] and q [M, d] that are each other's nearest."""
    there, back = nearest(p, q)[0][:, 0], nearest(q, p)[0][:, 0]
    first = np.flatnonzero(back[there] == np.arange(len(p)))
    return first, there[first]


def _refined(x: Floats, y: Floats, first: Indices, second: Indices) -> tuple[Indices, Indices]:
    """Rotate by the pseudo-pairs and find new ones, as long as their number grows."""
    for _ in range(_REFINEMENTS):
        if len(first) < 8:
            raise InputError(
                f"only {len(first)} vectors of the two sets match: do they show things of the same kinds? Embed some "
                "images with both models instead"
            )
        rotate = fit_adapter("procrustes", unit(x[first]), unit(y[second]))
        again = _mutual(rotate(unit(x)), unit(y))
        if len(again[0]) <= len(first):
            break
        first, second = again
    return first, second


# --- clusters


def _matched_clusters(x: Floats, y: Floats, count: int, seed: int) -> tuple[Matrix, Matrix]:
    """Centres of clusters in both spaces [k, a] and [k, b], in the order in which their cosines agree best."""
    best, found = -np.inf, None
    for start in range(_STARTS):
        rng = np.random.default_rng([seed, start])
        one, other = (_centres(part, count, rng) for part in (x, y))
        grams = [unit(part - centre.mean(0)) for part, centre in ((one, x), (other, y))]
        G, H = (part @ part.T for part in grams)
        order = match_graphs(G, H, rng)
        agreement = float(np.corrcoef(G.ravel(), H[np.ix_(order, order)].ravel())[0, 1])
        if agreement > best:
            best, found = agreement, (one, other[order])
    assert found is not None
    return found


def _centres(vectors: Floats, count: int, rng: np.random.Generator) -> Matrix:
    """Spherical k-means: unit centres [k, d]; an empty cluster keeps its centre."""
    centred = unit(vectors - vectors.mean(0))
    centres = centred[rng.choice(len(vectors), count, replace=False)]
    members = np.full(len(vectors), -1)
    for _ in range(_LLOYD):
        now = (centred @ centres.T).argmax(1)
        if np.array_equal(now, members):
            break
        members = now
        sums = np.zeros_like(centres)
        np.add.at(sums, members, centred)
        centres = np.where(np.linalg.norm(sums, axis=1, keepdims=True) > 0, unit(sums), centres)
    means: Matrix = unit(centres) + vectors.mean(0)
    return means


def match_graphs(G: Floats, H: Floats, rng: np.random.Generator) -> Indices:
    """The order of H [k, k] in which it is most like G: tr(G P H P^T) made large by Frank and Wolfe's method (FAQ)."""
    k = len(G)
    noise = rng.random((k, k))
    for _ in range(10):  # nearly doubly stochastic (Sinkhorn)
        noise /= noise.sum(1, keepdims=True)
        noise /= noise.sum(0, keepdims=True)
    P = (np.full((k, k), 1 / k) + noise) / 2
    for _ in range(_FAQ_STEPS):
        GPH = G @ P @ H
        towards = np.zeros((k, k))
        towards[np.arange(k), assignment(GPH)] = 1
        D = towards - P
        square, linear = float(np.sum((G @ D @ H) * D)), 2 * float(np.sum(GPH * D))
        step = 1.0 if square >= 0 else min(1.0, -linear / (2 * square))
        P = P + step * D
        if linear < 1e-9:
            break
    return assignment(P)


def assignment(gain: Floats) -> Indices:
    """For each row of [k, k] a column of its own, with the largest sum of gains (the Hungarian method).

    >>> assignment(np.array([[3.0, 2.0], [3.0, 0.0]])).tolist()
    [1, 0]
    """
    k = len(gain)
    cost = np.hstack([np.zeros((k, 1)), -np.asarray(gain, np.float64)])  # column 0 is where a new row enters
    u, v = np.zeros(k), np.zeros(k + 1)
    row_of = np.full(k + 1, -1)
    for row in range(k):
        row_of[0], column = row, 0
        least, way, used = np.full(k + 1, np.inf), np.zeros(k + 1, int), np.zeros(k + 1, bool)
        while row_of[column] >= 0:
            used[column] = True
            slack = cost[row_of[column]] - u[row_of[column]] - v
            closer = ~used & (slack < least)
            least[closer], way[closer] = slack[closer], column
            column = int(np.where(used, np.inf, least).argmin())
            delta = least[column]
            u[row_of[used]] += delta
            v[used] -= delta
            least[~used] -= delta
        while column:
            row_of[column] = row_of[way[column]]
            column = way[column]
        row_of[0] = -1
    columns = np.empty(k, np.int64)
    columns[row_of[1:]] = np.arange(k)
    return columns
