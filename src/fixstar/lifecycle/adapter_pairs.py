"""Pairs of vectors that an adapter is fitted on: the same images, or at least the same classes, in two spaces."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError
from fixstar.evaluation import nearest
from fixstar.geometry import unit

__all__ = ["Agreement", "ClassPairs", "agreement", "checked_pairs", "held_out_rows", "paired_by_class"]

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]

_LENGTH_TOLERANCE = 1e-3  # as in the gallery: half precision passes, features that nobody normalised do not


class Agreement(NamedTuple):
    """How well adapted vectors meet their partners: the mean cosine, and the share of searches that are right.

    Right is the own partner as the nearest of all; where classes are known, an image of the same class as the nearest
    of all others.
    """

    mean_cosine: float
    top1: float


def agreement(adapted: Floats, partners: Floats, classes: NDArray[Any] | None = None) -> Agreement:
    """Measure adapted vectors [N, b] against the vectors [N, b] they should be; ``classes`` [N] where they are known.

    >>> agreement(np.eye(2), np.eye(2)[::-1])
    Agreement(mean_cosine=0.0, top1=0.0)
    """
    cosines = np.einsum("ij,ij->i", unit(adapted), unit(partners))
    rows = np.arange(len(partners))
    if classes is None or len(partners) < 2:
        right = nearest(adapted, partners)[0][:, 0] == rows
    else:
        two = nearest(adapted, partners, k=2)[0]
        right = classes[np.where(two[:, 0] == rows, two[:, 1], two[:, 0])] == classes
    return Agreement(float(cosines.mean()), float(right.mean()))


def checked_pairs(X: ArrayLike, Y: ArrayLike) -> tuple[Floats, Floats]:
    """Unit vectors [N, a] and [N, b], row by row of the same image; anything else is refused."""
    x, y = _checked_vectors(X, "the first space"), _checked_vectors(Y, "the second space")
    if len(x) != len(y):
        raise InputError(
            f"{len(x)} vectors of one space and {len(y)} of the other are no pairs: row i of both must come from the "
            "same image. Embed a sample of images with both models; or, where only labelled vectors are left, fit on "
            "paired_by_class(X, labels_x, Y, labels_y). Vectors without pairs and without labels cannot be adapted"
        )
    return x, y


def _checked_vectors(vectors: ArrayLike, whose: str) -> Floats:
    array = np.asarray(vectors)
    if array.dtype.kind not in "fiu" or array.ndim != 2 or 0 in array.shape:
        raise InputError(
            f"vectors of {whose} are a matrix of real numbers [images, components], not empty; "
            f"got {array.dtype} of shape {array.shape}"
        )
    lengths = np.sqrt(np.einsum("ij,ij->i", array, array, dtype=np.float64, casting="unsafe"))
    if not np.isfinite(lengths).all():
        row = int(np.flatnonzero(~np.isfinite(lengths))[0])
        raise InputError(f"vectors of {whose} hold NaN or infinity in row {row}; leave that image out of both spaces")
    if wrong := np.flatnonzero(np.abs(lengths - 1) >= _LENGTH_TOLERANCE).tolist():
        raise InputError(
            f"{len(wrong)} of {len(array)} vectors of {whose} are not of length 1: row {wrong[0]} has length "
            f"{lengths[wrong[0]]:.4g}. Divide by the length (fixstar.geometry.unit)"
        )
    return array if array.dtype.kind == "f" else array.astype(np.float32)


def held_out_rows(
    count: int, share: float, seed: int, groups: ArrayLike | None = None
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows to fit on and rows to judge by. With ``groups`` [N], such as classes, no group is on both sides.

    >>> [sorted(rows.tolist()) for rows in held_out_rows(6, 0.4, seed=0, groups=[0, 0, 1, 1, 2, 2])]
    [[0, 1, 2, 3], [4, 5]]
    """
    if not 0 < share < 1:
        raise InputError(f"the share of held-out pairs lies between 0 and 1, such as 0.2; got {share}")
    labels = np.arange(count) if groups is None else np.asarray(groups)
    if labels.shape != (count,):
        raise InputError(f"groups are one label a pair, ({count},); got shape {labels.shape}")
    names, inverse = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise InputError(f"{count} pairs of one group cannot be split; give groups of which some can be held out")
    out = min(len(names) - 1, max(1, round(share * len(names))))
    chosen = np.random.default_rng(seed).permutation(len(names))[:out]
    judged = np.isin(inverse, chosen)
    return np.flatnonzero(~judged), np.flatnonzero(judged)


class ClassPairs(NamedTuple):
    """Pseudo-pairs: the unit class means in both spaces [C, a] and [C, b], their weights [C], and the classes [C]."""

    X: NDArray[np.float32]
    Y: NDArray[np.float32]
    weights: NDArray[np.float64]
    classes: Labels


def paired_by_class(X: ArrayLike, labels_x: ArrayLike, Y: ArrayLike, labels_y: ArrayLike) -> ClassPairs:
    """One pseudo-pair for each class that both spaces have, where no image was embedded by both models.

    The old images may be gone: their vectors and labels are enough. A mean of n vectors whose class has the covariance
    S (within the class, pooled over classes and shrunk: small classes know little of their own) errs by tr(S) / n, so
    the pair of class c weighs 1 / (tr(S_x) / n_x + tr(S_y) / n_y), scaled to a mean of 1. Pass the weights to the fit.
    """
    x, y = _checked_vectors(X, "the first space"), _checked_vectors(Y, "the second space")
    one, other = _checked_labels(labels_x, x, "first"), _checked_labels(labels_y, y, "second")
    classes = np.intersect1d(one, other)
    if len(classes) < 2:
        raise InputError(
            f"the two spaces share {len(classes)} classes ({len(np.unique(one))} and {len(np.unique(other))} in all); "
            "pairing by class needs two at least, and an adapter of use about as many as a vector has components"
        )
    first, error_x = _class_means(x, one, classes)
    second, error_y = _class_means(y, other, classes)
    weights = 1 / np.maximum(error_x + error_y, 1e-12)
    return ClassPairs(first, second, weights / weights.mean(), classes)


def _checked_labels(labels: ArrayLike, vectors: Floats, which: str) -> Labels:
    array = np.asarray(labels)
    if array.shape != (len(vectors),) or array.dtype.kind not in "iu":
        raise InputError(
            f"labels of the {which} space are one integer for each of {len(vectors)} vectors; "
            f"got {array.dtype} of shape {array.shape}"
        )
    return array


def _class_means(vectors: Floats, labels: Labels, classes: Labels) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Unit means [C, d], and the expected squared error of each [C]: tr(S) / n, tr(S) shrunk towards the pooled one."""
    kept = np.isin(labels, classes)
    place = np.searchsorted(classes, labels[kept])
    rows = vectors[kept][np.argsort(place, kind="stable")]
    counts = np.bincount(place)
    means = np.add.reduceat(rows, np.cumsum(counts) - counts, axis=0, dtype=np.float64) / counts[:, None]
    lengths = np.linalg.norm(means, axis=1)
    if (lengths < 1e-6).any():
        raise InputError(f"the vectors of class {classes[int(lengths.argmin())]} cancel out; leave that class out")
    scatter = counts * np.maximum(1 - lengths**2, 0)  # sum of |x - mean|^2, for unit vectors
    pooled = scatter.sum() / max(1, int((counts - 1).sum()))
    traces = (scatter + 2 * pooled) / (counts + 1)  # n - 1 degrees of freedom, and two of the pooled estimate
    return unit(means).astype(np.float32), traces / counts
