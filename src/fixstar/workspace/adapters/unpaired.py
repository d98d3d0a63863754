"""Pseudo-pairs for two sets of vectors that have no image in common: anchors, then a rotation, then refinement.

**Anchors** describe a vector in a way that does not depend on its space. With labels: its cosines to the class centres.
Without: the distribution of its cosines to all others of its own set, as quantiles (Artetxe et al. 2018). Vectors of
the two sets that are each other's nearest in this description are the first pseudo-pairs. **Rotation**: Procrustes by
them. **Refinement**: rotated vectors and those of the other set that are each other's nearest are the next
pseudo-pairs, and so on; the round with the most of them is kept.

It works if both sets show things of the same kinds, in similar proportions, and both models see them alike. Nothing in
the vectors says whether that holds: the result is unproven until labelled images or pairs judge it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError
from fixstar.geometry import unit
from fixstar.workspace.adapters.fitting import Pairs, paired_by_class

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]

_LEAST = 8  # pseudo-pairs that a rotation needs
_COMPONENTS = 128  # of each space, the principal ones, are compared
_OTHERS = 2000  # to which cosines are taken
_QUANTILES = np.linspace(0.02, 0.98, 64)
_ROUNDS = 25
_BLOCK = 2048  # rows at a time


class PseudoPairs(NamedTuple):
    """Rows of the first and of the second set that are likely to belong together, and what they were found from."""

    first: Indices
    second: Indices
    anchors: str


def pseudo_pairs(
    X: ArrayLike, Y: ArrayLike, labels_x: ArrayLike | None = None, labels_y: ArrayLike | None = None
) -> PseudoPairs:
    """Rows of unit vectors X [N, a] and Y [M, b] that are likely to show the same; labels make it far safer."""
    x, y = np.asarray(X, np.float32), np.asarray(Y, np.float32)
    p, q = _principal(x), _principal(y)
    if labels_x is not None and labels_y is not None:
        means = paired_by_class(p, labels_x, q, labels_y)
        first, second = _mutual(_to_centres(p, means.X), _to_centres(q, means.Y))
        how = f"{len(means.classes):,} class centres"
    else:
        first, second = _mutual(_profiles(p), _profiles(q))
        how = "the distribution of cosines"
    return PseudoPairs(*_refined(p, q, first, second), how)


def _principal(vectors: Floats) -> NDArray[np.float32]:
    """Centred unit vectors [N, s] in the principal directions of the set."""
    centred = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    scatter = centred.T @ centred
    directions = np.linalg.eigh(scatter)[1][:, ::-1][:, :_COMPONENTS]
    rows: NDArray[np.float32] = unit(centred @ directions).astype(np.float32)
    return rows


def _to_centres(vectors: Floats, centres: Floats) -> Floats:
    """The cosines [N, C] to the class centres, those to each centre scaled alike in both spaces."""
    return _standard(vectors @ centres.T)


def _profiles(vectors: Floats) -> Floats:
    """The quantiles [N, Q] of a vector's cosines to (some of) the others."""
    others = vectors[:: -(-len(vectors) // _OTHERS)]
    return _standard(np.quantile(vectors @ others.T, _QUANTILES, axis=1).T)


def _standard(columns: Floats) -> Floats:
    return np.asarray((columns - columns.mean(0)) / np.maximum(columns.std(0), 1e-9))


def _mutual(p: Floats, q: Floats) -> tuple[Indices, Indices]:
    """The rows of p [N, d] and q [M, d] that are each other's nearest, by distance."""
    there, back = _closest(p, q), _closest(q, p)
    first = np.flatnonzero(back[there] == np.arange(len(p)))
    return first, there[first]


def _closest(p: Floats, q: Floats) -> Indices:
    """The row of q that is the closest to each row of p, in blocks."""
    squares = (q**2).sum(1)
    parts = [np.argmin(squares - 2 * p[start : start + _BLOCK] @ q.T, axis=1) for start in range(0, len(p), _BLOCK)]
    return np.concatenate(parts)


def _refined(p: Floats, q: Floats, first: Indices, second: Indices) -> tuple[Indices, Indices]:
    """Rotate by the pseudo-pairs and find the next ones; those of the round with the most are kept."""
    best = first[:0], second[:0]
    for _ in range(_ROUNDS):
        if len(first) < _LEAST:
            break
        R = Pairs(p[first], q[second], np.ones(len(first))).rotation
        found = _mutual(unit(p @ R), q)
        if len(found[0]) > len(best[0]):
            best = found
        if np.array_equal(found[0], first) and np.array_equal(found[1], second):
            break
        first, second = found
    if len(best[0]) < _LEAST:
        raise InputError(
            f"{len(p):,} and {len(q):,} vectors without a common image do not match: only {len(best[0])} are each "
            "other's nearest. Do both show things of the same kinds? Embed some images with both models instead"
        )
    return best
