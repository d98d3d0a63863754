"""Retrieval: the average precision of the whole ranked gallery, and of its first k.

AP = 1/D sum over positives of (positives up to its place) / (its place). Nothing is interpolated. Places are those of
``nearest``: by cosine, however negative, and equal cosines in the order of the gallery.

The denominator D is the number of positives; of the first k, min(k, positives), as for GLDv2, so that a perfect list
has AP 1. Dividing by all positives instead would cap a class of more than k images below 1; dividing by the positives
found among the k would reward a list for missing the others. Neither is offered.

Some gallery images may be **ignored** for a query: they take no place and are no positives. Market-1501 ignores the
query's class under the query's own camera; a query that is itself in the gallery ignores itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError
from fixstar.evaluation.search import BLOCK, blocks, checked_labels, nearest

__all__ = ["MeanAveragePrecision", "average_precisions", "mean_average_precision", "rankings"]

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]

RANKED = 2**21  # places ranked at once


class MeanAveragePrecision(NamedTuple):
    """mAP over ``counted`` queries; ``left_out`` queries have no positive in the gallery, so no AP."""

    mean: float
    counted: int
    left_out: int


class _Ignored(NamedTuple):
    """Gallery image j is ignored for query i where views[j] == query_views[i], or j == itself[i]."""

    query_views: NDArray[np.int64]
    views: NDArray[np.int64]
    itself: NDArray[np.int64]


def mean_average_precision(
    queries: Floats,
    query_labels: Labels,
    gallery: Floats,
    gallery_labels: Labels,
    *,
    at: int | None = None,
    query_cameras: Labels | None = None,
    gallery_cameras: Labels | None = None,
    same_image: Labels | None = None,
) -> MeanAveragePrecision:
    """mAP, or mAP@k with ``at=k``: the mean of ``average_precisions`` over the queries that have a positive.

    >>> gallery, labels = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), np.array([7, 8, 7])
    >>> mean_average_precision(np.array([[1.0, 0.1], [0.0, 1.0]]), np.array([7, 5]), gallery, labels)
    MeanAveragePrecision(mean=0.8333333333333333, counted=1, left_out=1)
    """
    values = average_precisions(
        queries,
        query_labels,
        gallery,
        gallery_labels,
        at=at,
        query_cameras=query_cameras,
        gallery_cameras=gallery_cameras,
        same_image=same_image,
    )
    counted = int((~np.isnan(values)).sum())
    if not counted:
        raise InputError(f"none of the {len(values)} queries has an image of its class in the gallery: no mean exists")
    return MeanAveragePrecision(float(np.nanmean(values)), counted, len(values) - counted)


def average_precisions(
    queries: Floats,
    query_labels: Labels,
    gallery: Floats,
    gallery_labels: Labels,
    *,
    at: int | None = None,
    query_cameras: Labels | None = None,
    gallery_cameras: Labels | None = None,
    same_image: Labels | None = None,
) -> NDArray[np.float64]:
    """[N] average precision of each query, of its first ``at`` places if given; NaN without a positive.

    With cameras, one integer an image, gallery images of the query's class and camera are ignored. ``same_image`` [N]
    names the gallery row that is the query itself, or -1; it is ignored too. Images that count for no query, such as
    the junk of Market-1501, are best taken out of the gallery. ``at`` may exceed the gallery.
    """
    if at is not None and at < 1:
        raise InputError(f"at counts the places that are looked at, from 1 upwards; got {at}")
    truth = checked_labels(query_labels, queries, "query").astype(np.int64)
    labels = checked_labels(gallery_labels, gallery, "gallery").astype(np.int64)
    query_views, views = _views(truth, labels, query_cameras, gallery_cameras)
    ignored = _Ignored(query_views, views, _itself(same_image, len(truth), len(labels)))
    depth = len(labels)
    if at is not None:  # ignored images may stand before the first k that count
        depth = min(depth, at + int(_occurrences(query_views, views).max(initial=0)) + 1)
    sums = np.empty(len(truth))
    for rows, indices in rankings(queries, gallery, depth):
        kept = (views[indices] != query_views[rows, None]) & (indices != ignored.itself[rows, None])
        sums[rows] = _precision_sums(kept, kept & (labels[indices] == truth[rows, None]), at)
    positives = _positives(truth, labels, ignored)
    reachable = positives if at is None else np.minimum(positives, at)
    values = np.full(len(truth), np.nan)
    np.divide(sums, reachable, out=values, where=positives > 0)
    return values


def rankings(queries: Floats, gallery: Floats, depth: int) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """The first ``depth`` gallery entries of each query, [n, depth] for one slice of n queries after the other.

    >>> [(rows.stop, indices.tolist()) for rows, indices in rankings(np.eye(2), np.eye(2), depth=2)]
    [(2, [[0, 1], [1, 0]])]
    """
    features = np.asarray(queries)
    together = min(BLOCK, max(64, RANKED // max(depth, 1)))
    for rows in blocks(max(len(features), 1), together):  # no query at all: let nearest say so
        yield rows, nearest(features[rows], gallery, depth, block=max(BLOCK, depth))[0]


def _precision_sums(kept: NDArray[np.bool_], right: NDArray[np.bool_], at: int | None) -> NDArray[np.float64]:
    """[n]: the sum of the precisions at each positive; ``kept`` and ``right`` [n, depth], best first."""
    places, found = np.cumsum(kept, axis=1, dtype=np.int32), np.cumsum(right, axis=1, dtype=np.int32)
    counted = right if at is None else right & (places <= at)
    precisions = np.zeros(found.shape)
    np.divide(found, places, out=precisions, where=counted)
    return np.asarray(precisions.sum(axis=1))


def _positives(truth: Labels, labels: Labels, ignored: _Ignored) -> NDArray[np.int64]:
    """[N]: gallery images of the query's class, without the ignored ones."""
    query_views, views, itself = ignored
    own = (itself >= 0) & (labels[itself] == truth) & (views[itself] != query_views)  # not counted twice
    return np.asarray(_occurrences(truth, labels) - _occurrences(query_views, views) - own)


def _occurrences(values: Labels, among: Labels) -> NDArray[np.int64]:
    """[N]: how often each of ``values`` [N] stands in ``among``."""
    ordered = np.sort(among)
    after, before = (np.searchsorted(ordered, values, side=side) for side in ("right", "left"))
    return np.asarray(after - before)


def _views(
    truth: Labels, labels: Labels, query_cameras: Labels | None, gallery_cameras: Labels | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One number for each class under each camera, [N] and [M]; without cameras no two are equal."""
    if query_cameras is None and gallery_cameras is None:
        return np.full(len(truth), -1), np.zeros(len(labels), dtype=np.int64)
    if query_cameras is None or gallery_cameras is None:
        raise InputError("cameras are given for the queries and the gallery, or for neither")
    for cameras, images, whose in ((query_cameras, truth, "query"), (gallery_cameras, labels, "gallery")):
        array = np.asarray(cameras)
        if array.shape != images.shape or array.dtype.kind not in "iu":
            seen = f"{array.dtype} of shape {array.shape} for {len(images)} images"
            raise InputError(f"{whose} cameras are one integer an image, got {seen}")
    names, camera = np.unique(np.concatenate([query_cameras, gallery_cameras]), return_inverse=True)
    _, label = np.unique(np.concatenate([truth, labels]), return_inverse=True)
    views = label * len(names) + camera
    return views[: len(truth)], views[len(truth) :]


def _itself(same_image: Labels | None, queries: int, gallery: int) -> NDArray[np.int64]:
    if same_image is None:
        return np.full(queries, -1)
    rows = np.asarray(same_image)
    if rows.shape != (queries,) or rows.dtype.kind not in "iu":
        raise InputError(f"same_image is one gallery row a query, got {rows.dtype} of shape {rows.shape}")
    if rows.min(initial=0) < -1 or rows.max(initial=0) >= gallery:
        raise InputError(f"same_image holds gallery rows, 0 to {gallery - 1}, or -1; got {rows.min()} to {rows.max()}")
    return rows.astype(np.int64)
