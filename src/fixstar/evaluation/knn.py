"""Classification by the k nearest gallery images, as MET is measured.

Each of the k has one vote, or exp(cosine / temperature) of one. Classes with equal votes go to the one whose image is
nearest. ``k`` is a setting of the classifier, so a gallery of fewer than k images is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError
from fixstar.evaluation.search import checked_labels, nearest

__all__ = ["knn_accuracy", "knn_classes", "knn_hits"]

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]


def knn_accuracy(
    queries: Floats,
    query_labels: Labels,
    gallery: Floats,
    gallery_labels: Labels,
    k: int,
    temperature: float | None = None,
) -> float:
    """The share of queries that their k nearest gallery images give the right class.

    >>> gallery, labels = np.array([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), np.array([7, 8, 8])
    >>> query, truth = np.array([[1.0, 0.0]]), np.array([7])
    >>> [knn_accuracy(query, truth, gallery, labels, 3, temperature) for temperature in (None, 0.1)]
    [0.0, 1.0]
    """
    return float(knn_hits(queries, query_labels, gallery, gallery_labels, k, temperature).mean())


def knn_hits(
    queries: Floats,
    query_labels: Labels,
    gallery: Floats,
    gallery_labels: Labels,
    k: int,
    temperature: float | None = None,
) -> NDArray[np.bool_]:
    """[N] bool: whether ``knn_classes`` is the query's class."""
    truth = checked_labels(query_labels, queries, "query")
    return np.equal(knn_classes(queries, gallery, gallery_labels, k, temperature), truth)


def knn_classes(
    queries: Floats, gallery: Floats, gallery_labels: Labels, k: int, temperature: float | None = None
) -> Labels:
    """[N]: the class that the k nearest gallery images vote for.

    With a ``temperature`` T a vote counts exp(cosine / T): the softmax over the k nearest. A low T trusts the nearest
    alone, a high one counts heads.
    """
    labels = checked_labels(gallery_labels, gallery, "gallery")
    if temperature is not None and not 0 < temperature < np.inf:
        raise InputError(f"temperature is above 0 and finite, or None for equal votes; got {temperature:g}")
    indices, cosines = nearest(queries, gallery, k)
    classes = labels[indices]
    weights = np.ones(cosines.shape)
    if temperature is not None:  # the nearest counts 1: the same winner, and no overflow
        weights = np.exp((cosines - cosines[:, :1]).astype(np.float64) / temperature)
    votes = np.zeros(cosines.shape)  # of the class of each of the k
    for place in range(k):  # nearest first for every class, so that equal votes sum to equal bits
        votes += weights[:, place, None] * (classes == classes[:, place, None])
    winner = votes.argmax(axis=1)  # the first of equals is the nearest
    return np.asarray(np.take_along_axis(classes, winner[:, None], axis=1)[:, 0])
