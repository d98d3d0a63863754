"""Pairs for two sets of vectors that have no item in common: class means, or pseudo-pairs.

**Class means.** Both sets have labels: the mean of a class in one space and in the other are a pair.

**Pseudo-pairs** are single vectors of the two sets that probably belong together. They are found in three steps.
Anchors describe a vector in a way that does not depend on its space. With labels: its cosines to the class centres.
Without: the distribution of its cosines to all others of its own set, as quantiles (Artetxe et al. 2018). Vectors of
the two sets that are each other's nearest in this description are the first pseudo-pairs. Then one set is rotated by
them (Procrustes). Rotated vectors and those of the other set that are each other's nearest are the next pseudo-pairs,
and so on; the round with the most of them is kept.

It works if both sets hold things of the same kinds, in similar proportions, and both models see them alike. Nothing in
the vectors says whether that holds: the result is unproven until labelled items or pairs judge it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError, plural
from fixstar.geometry import unit
from fixstar.translation.fit import Pairs, as_labels, checked_vectors

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]

_LEAST = 8  # pseudo-pairs that a rotation needs
_COMPONENTS = 128  # of each space, the principal ones, are compared
_OTHERS = 2000  # to which cosines are taken
_QUANTILES = np.linspace(0.02, 0.98, 64)
_ROUNDS = 25
_BLOCK = 2048  # rows at a time


def paired_by_class(
    X: ArrayLike, labels_x: ArrayLike, Y: ArrayLike, labels_y: ArrayLike, seed: int = 0
) -> Pairs:
    """One pair for each class that both spaces have: its unit means; ``groups`` are the classes.

    A mean of n vectors errs by tr(S) / n, S the covariance within classes, shrunk towards the pooled one. So the pair
    of class c weighs 1 / (tr(S_x) / n_x + tr(S_y) / n_y), scaled to a mean of 1.
    """
    x = checked_vectors(X, "the first space")
    y = checked_vectors(Y, "the second space")
    one = _checked_labels(labels_x, x, "first")
    other = _checked_labels(labels_y, y, "second")
    if "U" in one.dtype.kind + other.dtype.kind:
        one = one.astype(str)
        other = other.astype(str)
    classes = np.intersect1d(one, other)
    if len(classes) < 2:
        raise InputError(
            f"the two spaces share {plural(len(classes), 'class')} ({len(np.unique(one))} and "
            f"{len(np.unique(other))} in all); pairing by class needs at least two, and a useful map about as many as "
            "a vector has components"
        )
    first, error_x = _class_means(x, one, classes)
    second, error_y = _class_means(y, other, classes)
    weights = 1 / np.maximum(error_x + error_y, 1e-12)
    return Pairs.checked(first, second, weights=weights, groups=classes, seed=seed)


def _checked_labels(labels: ArrayLike, vectors: Floats, which: str) -> NDArray[Any]:
    array = as_labels(labels)
    if array.shape != (len(vectors),) or array.dtype.kind not in "iuU":
        raise InputError(
            f"labels of the {which} space are one integer or string for each of {len(vectors)} vectors; "
            f"got {array.dtype} of shape {array.shape}"
        )
    return array


def _class_means(
    vectors: Floats, labels: NDArray[Any], classes: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Unit means [C, d], and the expected squared error of each [C]: tr(S) / n, tr(S) shrunk towards the pooled one."""
    kept = np.isin(labels, classes)
    place = np.searchsorted(classes, labels[kept])
    rows = vectors[kept][np.argsort(place, kind="stable")]
    counts = np.bincount(place)
    starts = np.cumsum(counts) - counts
    means = np.add.reduceat(rows, starts, axis=0, dtype=np.float64) / counts[:, None]
    lengths = np.linalg.norm(means, axis=1)
    if (lengths < 1e-6).any():
        raise InputError(
            f"the vectors of class {classes[int(lengths.argmin())]} cancel out; leave that class out"
        )
    scatter = counts * np.maximum(1 - lengths**2, 0)  # sum of |x - mean|^2, for unit vectors
    pooled = scatter.sum() / max(1, int((counts - 1).sum()))
    traces = (scatter + 2 * pooled) / (
        counts + 1
    )  # n - 1 degrees of freedom, and two of the pooled estimate
    return unit(means).astype(np.float32), traces / counts


class PseudoPairs(NamedTuple):
    """Pairs that probably belong together, their rows in the first and in the second set, and what they come from."""

    pairs: Pairs
    first: Indices
    second: Indices
    anchors: str


def pseudo_pairs(
    X: ArrayLike,
    Y: ArrayLike,
    labels_x: ArrayLike | None = None,
    labels_y: ArrayLike | None = None,
    seed: int = 0,
) -> PseudoPairs:
    """Unit vectors of X [N, a] and Y [M, b] that probably belong together; labels make it far safer."""
    x = np.asarray(checked_vectors(X, "the first space"), np.float32)
    y = np.asarray(checked_vectors(Y, "the second space"), np.float32)
    p = _principal(x)
    q = _principal(y)
    if labels_x is not None and labels_y is not None:
        means = paired_by_class(p, labels_x=labels_x, Y=q, labels_y=labels_y)
        first, second = _mutual(_to_centres(p, means.X), _to_centres(q, means.Y))
        anchors = f"{len(means):,} class centres"
    else:
        first, second = _mutual(_profiles(p), _profiles(q))
        anchors = "the distribution of cosines"
    first, second = _refined(p, q=q, first=first, second=second)
    return PseudoPairs(
        pairs=Pairs.checked(x[first], y[second], seed=seed),
        first=first,
        second=second,
        anchors=anchors,
    )


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
    step = -(-len(vectors) // _OTHERS)
    others = vectors[::step]
    return _standard(np.quantile(vectors @ others.T, _QUANTILES, axis=1).T)


def _standard(columns: Floats) -> Floats:
    return np.asarray((columns - columns.mean(0)) / np.maximum(columns.std(0), 1e-9))


def _mutual(p: Floats, q: Floats) -> tuple[Indices, Indices]:
    """The rows of p [N, d] and q [M, d] that are each other's nearest, by distance."""
    there = _closest(p, q)
    back = _closest(q, p)
    first = np.flatnonzero(back[there] == np.arange(len(p)))
    return first, there[first]


def _closest(p: Floats, q: Floats) -> Indices:
    """The row of q that is the closest to each row of p, in blocks."""
    squares = (q**2).sum(1)
    parts = [
        np.argmin(squares - 2 * p[start : start + _BLOCK] @ q.T, axis=1)
        for start in range(0, len(p), _BLOCK)
    ]
    return np.concatenate(parts)


def _refined(p: Floats, q: Floats, first: Indices, second: Indices) -> tuple[Indices, Indices]:
    """Rotate by the pseudo-pairs and find the next ones; those of the round with the most are kept."""
    best_first = first[:0]
    best_second = second[:0]
    for _ in range(_ROUNDS):
        if len(first) < _LEAST:
            break
        R = Pairs(p[first], q[second], np.ones(len(first))).rotation
        next_first, next_second = _mutual(unit(p @ R), q)
        if len(next_first) > len(best_first):
            best_first = next_first
            best_second = next_second
        if np.array_equal(next_first, first) and np.array_equal(next_second, second):
            break
        first = next_first
        second = next_second
    if len(best_first) < _LEAST:
        raise InputError(
            f"{len(p):,} and {len(q):,} vectors without a common item do not match: only {len(best_first)} are each "
            "other's nearest. Do both show things of the same kinds? Embed some items with both models instead"
        )
    return best_first, best_second
