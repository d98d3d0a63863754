"""1:N identification: Rank-k, and open-set search with a threshold.

Two protocols, as in ``search``: by **image** (an entry is a gallery image) and by **template** (an entry is the mean of
a class). An unknown person must be turned away in an open-set search: queries whose class is not in the gallery are the
**non-mated** searches, the others the mated ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation.retrieval import rankings
from fixstar.evaluation.search import PROTOCOLS, checked_labels, nearest, templates
from fixstar.evaluation.verification import threshold_at_far

__all__ = ["cmc", "open_set_hits", "rank_hits", "tpir_at_fpir"]

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]
Hits = NDArray[np.bool_]


def cmc(
    queries: Floats,
    query_labels: Labels,
    gallery: Floats,
    gallery_labels: Labels,
    ranks: Sequence[int] = (1, 5, 10),
    protocol: str = "image",
) -> dict[int, float]:
    """The cumulative match characteristic: Rank-k for each k, the share of ``rank_hits``.

    >>> gallery, labels = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([7, 8])
    >>> cmc(np.array([[2.0, 1.0], [3.0, 1.0]]), np.array([7, 8]), gallery, labels, ranks=[1, 2])
    {1: 0.5, 2: 1.0}
    """
    if not len(ranks) or min(ranks) < 1:
        raise InputError(f"ranks count gallery entries, from 1 upwards; got {list(ranks)}")
    places = _first_hits(queries, query_labels, *_entries(gallery, gallery_labels, protocol), depth=max(ranks))
    return {k: float((places <= k).mean()) for k in ranks}


def rank_hits(
    queries: Floats,
    query_labels: Labels,
    gallery: Floats,
    gallery_labels: Labels,
    k: int,
    protocol: str = "image",
) -> Hits:
    """[N] bool: whether one of the k nearest gallery entries has the query's class.

    A gallery of fewer than k entries is looked at whole. A class that is not in the gallery is never found.
    """
    if k < 1:
        raise InputError(f"k counts gallery entries, from 1 upwards; got {k}")
    return _first_hits(queries, query_labels, *_entries(gallery, gallery_labels, protocol), depth=k) <= k


def tpir_at_fpir(
    queries: Floats,
    query_labels: Labels,
    gallery: Floats,
    gallery_labels: Labels,
    fpir: float,
    protocol: str = "image",
) -> float:
    """The largest TPIR whose measured FPIR is not above ``fpir`` (tables 1c, 3c and 4c of BCT, at 1e-2).

    FPIR is the share of non-mated searches whose best cosine reaches the threshold; TPIR the share of mated searches
    whose nearest entry has the right class and reaches it. Read as strictly as ``tar_at_far``: below one over the
    number of non-mated searches, no false identification is allowed at all.

    >>> queries, truth = np.array([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]]), np.array([7, 7, 9])
    >>> [tpir_at_fpir(queries, truth, np.array([[1.0, 0.0]]), np.array([7]), fpir) for fpir in (0, 1)]
    [0.5, 1.0]
    """
    return float(np.nanmean(open_set_hits(queries, query_labels, gallery, gallery_labels, fpir, protocol)))


def open_set_hits(
    queries: Floats,
    query_labels: Labels,
    gallery: Floats,
    gallery_labels: Labels,
    fpir: float,
    protocol: str = "image",
) -> NDArray[np.float64]:
    """[N]: 1 for a mated search answered rightly at the threshold of ``fpir``, 0 for another, NaN for a non-mated."""
    truth = checked_labels(query_labels, queries, "query")
    entries, classes = _entries(gallery, gallery_labels, protocol)
    indices, cosines = nearest(queries, entries)
    mated = np.isin(truth, classes)
    if mated.all() or not mated.any():
        raise InputError(
            f"an open-set search needs queries with and without their class in the gallery; "
            f"got {mated.sum()} of {len(mated)} with it. Take some classes out of the gallery"
        )
    found = cosines[:, 0] >= threshold_at_far(cosines[:, 0], mated, fpir)
    return np.where(mated, found & (classes[indices[:, 0]] == truth), np.nan)


def _first_hits(
    queries: Floats, query_labels: Labels, entries: Floats, classes: Labels, depth: int
) -> NDArray[np.int64]:
    """[N]: the place of the first entry of the query's class, from 1; depth + 1 if it is not among the first."""
    truth = checked_labels(query_labels, queries, "query")
    places = np.empty(len(truth), dtype=np.int64)
    for rows, indices in rankings(queries, entries, min(depth, len(classes))):
        right = classes[indices] == truth[rows, None]
        places[rows] = np.where(right.any(axis=1), right.argmax(axis=1), depth) + 1
    return places


def _entries(gallery: Floats, gallery_labels: Labels, protocol: str) -> tuple[Floats, Labels]:
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    if protocol == "template":
        return templates(gallery, gallery_labels)
    return gallery, checked_labels(gallery_labels, gallery, "gallery")
