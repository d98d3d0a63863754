"""1:N search: whether the nearest gallery entry by cosine has the right class. Also Rank-k, kNN, average precision.

Exact, in blocks: only ``block`` x ``block`` of the similarity matrix [N, M] is in memory at a time. Features are
normalised here and multiplied in float32; equal cosines go to the lowest index. Two **protocols** decide what a gallery
entry is: an image ("image"), or the mean of a class ("template"). Each gives one answer per query, True for a hit.

**Average precision**: AP = 1/D sum over positives of (positives up to its place) / (its place), not interpolated.
D is the number of positives; for the first k places it is min(k, positives), as for GLDv2, so that a perfect list has
AP 1. Some gallery images are **ignored** for a query: they have no rank and are not positives. Market-1501 ignores
images of the query's class from the query's own camera. If the queries are also in the gallery, give every image a
different camera number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fixstar import geometry
from fixstar.errors import InputError, UnknownNameError, plural

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]
Hits = NDArray[np.bool_]
Indices = NDArray[np.int64]

BLOCK = 2048  # 2048 x 2048 float32: 16 MiB
RANKED = 2**21  # places ranked at once
STORE_BLOCK = 1024  # queries sent to a store at once
_TILE = 64


def image_search(
    queries: Floats,
    query_labels: Labels,
    gallery: Floats,
    gallery_labels: Labels,
    block: int = BLOCK,
) -> Hits:
    """[N] bool: whether the nearest gallery image has the query's class, as in a search service.

    >>> gallery, labels = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([7, 8])
    >>> image_search(np.array([[2.0, 1.0], [3.0, 1.0]]), np.array([7, 8]), gallery, labels)
    array([ True, False])
    """
    return _Searcher(gallery, gallery_labels, block)(queries, query_labels)


def template_search(
    queries: Floats,
    query_labels: Labels,
    gallery: Floats,
    gallery_labels: Labels,
    block: int = BLOCK,
) -> Hits:
    """[N] bool: whether the nearest class template has the query's class (the tables of HOC)."""
    return image_search(queries, query_labels, *templates(gallery, gallery_labels), block)


PROTOCOLS: dict[str, Callable[..., Hits]] = {"template": template_search, "image": image_search}
"""1:N search by name: ``PROTOCOLS[name](queries, query_labels, gallery, gallery_labels)`` -> [N] bool."""


def templates(
    gallery: Floats, labels: Labels, media: Labels | None = None
) -> tuple[NDArray[np.float32], Labels]:
    """One unit vector per class, the mean of its unit features, and the classes in ascending order.

    With ``media`` (IJB-C) the frames of one medium are averaged first: a long video weighs as much as a photograph.

    >>> templates(np.array([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]]), np.array([5, 5, 2]))[1]
    array([2, 5])
    """
    features = unit_features(gallery, "gallery")
    known = checked_labels(labels, gallery, "gallery")
    classes, inverse, counts = np.unique(known, return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")
    by_class: Floats = features[order]
    if media is not None:
        keys = np.stack([inverse, checked_labels(media, gallery, "media")])
        _, medium, frames = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
        by_class = by_class / frames[medium.ravel()][order, None]
    starts = np.cumsum(counts) - counts
    sums = np.add.reduceat(
        by_class, starts, axis=0, dtype=np.float64
    )  # normalised below, so sums are as good as means
    return geometry.unit(sums).astype(np.float32), classes


def gallery_entries(
    gallery: Floats, gallery_labels: Labels, protocol: str
) -> tuple[Floats, Labels]:
    """The entries that a protocol searches (images or class templates), and their classes."""
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    if protocol == "template":
        return templates(gallery, gallery_labels)
    return gallery, checked_labels(gallery_labels, gallery, "gallery")


def nearest(
    queries: Floats, gallery: Floats, k: int = 1, block: int = BLOCK
) -> tuple[Indices, NDArray[np.float32]]:
    """The k nearest gallery entries of each query: indices [N, k] and cosines [N, k], best first.

    >>> indices, cosines = nearest(np.array([[1.0, 0.1]]), np.array([[0.0, 1.0], [5.0, 0.0], [1.0, 1.0]]), k=2)
    >>> indices.tolist(), cosines.round(3).tolist()
    ([[1, 2]], [[0.9950000047683716, 0.7739999890327454]])
    """
    q = unit_features(queries, "query")
    g = unit_features(gallery, "gallery")
    check_widths(q, g)
    if not 1 <= k <= len(g):
        raise InputError(f"k counts gallery entries, 1 to {len(g)} here; got {k}")
    if block < 1:
        raise InputError(f"block must be at least 1, got {block}")
    ranks = _top_ranks(q, g, k, block)
    return _index_of(ranks), _cosine_of(ranks)


def rankings(queries: Floats, gallery: Floats, depth: int) -> Iterator[tuple[slice, Indices]]:
    """The first ``depth`` gallery entries of each query, as (slice of n queries, indices [n, depth]).

    >>> [(rows.stop, indices.tolist()) for rows, indices in rankings(np.eye(2), np.eye(2), depth=2)]
    [(2, [[0, 1], [1, 0]])]
    """
    features = np.asarray(queries)
    at_once = min(BLOCK, max(64, RANKED // max(depth, 1)))
    for rows in blocks(
        max(len(features), 1), at_once
    ):  # without queries ``nearest`` raises the error
        yield rows, nearest(features[rows], gallery, depth, block=max(BLOCK, depth))[0]


def searcher(
    protocol: str, gallery: Floats, gallery_labels: Labels, device: str | None = None
) -> Callable[[Floats, Labels], Hits]:
    """Prepare a gallery once for any number of query sets: returns ``(queries, query_labels)`` -> [N] bool.

    ``device`` is the torch device to search on; without one, NumPy searches.

    >>> find = searcher("template", np.eye(2), np.array([7, 8]))
    >>> find(np.array([[2.0, 1.0], [3.0, 1.0]]), np.array([7, 8]))
    array([ True, False])
    """
    if protocol in ("image", "template"):
        return _Searcher(*gallery_entries(gallery, gallery_labels, protocol), device=device)
    return lambda queries, query_labels: PROTOCOLS[protocol](
        queries, query_labels, gallery, gallery_labels
    )


class _Searcher:
    """Top-1 search in a gallery that is normalised, and moved to the device, once."""

    def __init__(
        self, gallery: Floats, labels: Labels, block: int = BLOCK, device: str | None = None
    ) -> None:
        self.labels = checked_labels(labels, gallery, "gallery")
        self.block = block
        self.gallery = unit_features(gallery, "gallery")
        self.device = device
        self.on_device = _to_device(self.gallery, device) if device is not None else None

    def __call__(self, queries: Floats, query_labels: Labels) -> Hits:
        truth = checked_labels(query_labels, queries, "query")
        q = unit_features(queries, "query")
        check_widths(q, self.gallery)
        if self.on_device is not None:
            found = _nearest_on_device(_to_device(q, self.device), self.on_device)
        else:
            found = _index_of(_top_ranks(q, self.gallery, 1, self.block)[:, 0])
        return np.equal(self.labels[found], truth)


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


class Searchable(Protocol):
    """A store that can be searched, such as any ``fixstar.gallery.Gallery``."""

    def search(self, version: str, queries: Floats, *, k: int = 10) -> Sequence[Sequence[_HasId]]:
        """The k nearest items of each query [N, width of ``version``], best first."""


def store_search(
    store: Searchable,
    version: str,
    queries: Floats,
    query_labels: Labels,
    label_of_id: Mapping[str, int] | Callable[[str], int],
) -> Hits:
    """[N] bool: whether the nearest item of a gallery store, of any version, has the query's class."""
    if len(query_labels) != len(queries):
        raise InputError(
            f"{plural(len(query_labels), 'query label')} for {plural(len(queries), 'query')}; pass one label per query"
        )
    label_of = label_of_id.__getitem__ if isinstance(label_of_id, Mapping) else label_of_id
    hits = np.zeros(len(queries), dtype=np.bool_)
    for rows in blocks(len(queries), STORE_BLOCK):
        found = store.search(version, queries[rows], k=1)
        if len(found) != len(queries[rows]):
            raise InputError(f"the store gave {len(found)} answers to {len(queries[rows])} queries")
        hits[rows] = [
            bool(items) and label_of(items[0].id) == label
            for items, label in zip(found, query_labels[rows], strict=True)
        ]
    return hits


# Rank-k


def cmc(
    queries: Floats,
    query_labels: Labels,
    gallery: Floats,
    gallery_labels: Labels,
    ranks: Sequence[int] = (1, 5, 10),
    protocol: str = "image",
) -> dict[int, float]:
    """The cumulative match characteristic: Rank-k, the mean of ``rank_hits``, for each k.

    >>> gallery, labels = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([7, 8])
    >>> cmc(np.array([[2.0, 1.0], [3.0, 1.0]]), np.array([7, 8]), gallery, labels, ranks=[1, 2])
    {1: 0.5, 2: 1.0}
    """
    if not len(ranks) or min(ranks) < 1:
        raise InputError(f"ranks count gallery entries, starting at 1; got {list(ranks)}")
    places = _first_hits(
        queries, query_labels, *gallery_entries(gallery, gallery_labels, protocol), depth=max(ranks)
    )
    return {k: float((places <= k).mean()) for k in ranks}


def rank_hits(
    queries: Floats,
    query_labels: Labels,
    gallery: Floats,
    gallery_labels: Labels,
    k: int,
    protocol: str = "image",
) -> Hits:
    """[N] bool: whether one of the k nearest gallery entries (or of all, if fewer) has the query's class."""
    if k < 1:
        raise InputError(f"k counts gallery entries, starting at 1; got {k}")
    return (
        _first_hits(
            queries, query_labels, *gallery_entries(gallery, gallery_labels, protocol), depth=k
        )
        <= k
    )


def _first_hits(
    queries: Floats, query_labels: Labels, entries: Floats, classes: Labels, depth: int
) -> Indices:
    """[N]: the place of the first entry of the query's class, from 1; depth + 1 if it is not among the first."""
    truth = checked_labels(query_labels, queries, "query")
    places = np.empty(len(truth), dtype=np.int64)
    for rows, indices in rankings(queries, entries, min(depth, len(classes))):
        right = classes[indices] == truth[rows, None]
        places[rows] = np.where(right.any(axis=1), right.argmax(axis=1), depth) + 1
    return places


# kNN


def knn_hits(
    queries: Floats, query_labels: Labels, gallery: Floats, gallery_labels: Labels, k: int
) -> Hits:
    """[N] bool: whether ``knn_classes`` is the query's class; their mean is the accuracy.

    >>> gallery, labels = np.array([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), np.array([7, 8, 8])
    >>> [knn_hits(gallery[:1], labels[:1], gallery, labels, k).tolist() for k in (2, 3)]
    [[True], [False]]
    """
    truth = checked_labels(query_labels, queries, "query")
    return np.equal(knn_classes(queries, gallery, gallery_labels, k), truth)


def knn_classes(queries: Floats, gallery: Floats, gallery_labels: Labels, k: int) -> Labels:
    """[N]: the class of most of the k nearest gallery images; ties go to the nearest."""
    labels = checked_labels(gallery_labels, gallery, "gallery")
    classes = labels[nearest(queries, gallery, k)[0]]
    votes = np.zeros(classes.shape, np.int64)  # for the class of each of the k
    for place in range(k):
        votes += classes == classes[:, place, None]
    winner = votes.argmax(axis=1)  # ties go to the nearest
    return np.asarray(np.take_along_axis(classes, winner[:, None], axis=1)[:, 0])


# Average precision


class MeanAveragePrecision(NamedTuple):
    """mAP over ``counted`` queries; ``skipped`` queries have no positive in the gallery, hence no AP."""

    mean: float
    counted: int
    skipped: int


def mean_average_precision(
    queries: Floats,
    query_labels: Labels,
    gallery: Floats,
    gallery_labels: Labels,
    *,
    at: int | None = None,
    query_cameras: Labels | None = None,
    gallery_cameras: Labels | None = None,
) -> MeanAveragePrecision:
    """mAP, or mAP@k with ``at=k``: the mean of ``average_precisions`` over the queries that have a positive.

    >>> gallery, labels = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), np.array([7, 8, 7])
    >>> mean_average_precision(np.array([[1.0, 0.1], [0.0, 1.0]]), np.array([7, 5]), gallery, labels)
    MeanAveragePrecision(mean=0.8333333333333333, counted=1, skipped=1)
    """
    cameras = {"query_cameras": query_cameras, "gallery_cameras": gallery_cameras}
    values = average_precisions(queries, query_labels, gallery, gallery_labels, at=at, **cameras)
    counted = int((~np.isnan(values)).sum())
    if not counted:
        raise InputError(
            f"none of the {len(values)} queries has an image of its class in the gallery: no mean exists"
        )
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
) -> NDArray[np.float64]:
    """[N] average precision of each query over its first ``at`` places, or over all; NaN without a positive.

    Gallery images of the query's class and camera are ignored.
    """
    if at is not None and at < 1:
        raise InputError(f"at counts places, starting at 1; got {at}")
    truth = checked_labels(query_labels, queries, "query").astype(np.int64)
    labels = checked_labels(gallery_labels, gallery, "gallery").astype(np.int64)
    query_views, views = _views(truth, labels, query_cameras, gallery_cameras)
    same_view = _occurrences(query_views, views)
    depth = len(labels)
    if at is not None:  # ignored images may come before the first k counted ones
        depth = min(depth, at + int(same_view.max(initial=0)))
    sums = np.empty(len(truth))
    for rows, indices in rankings(queries, gallery, depth):
        kept = views[indices] != query_views[rows, None]
        sums[rows] = _precision_sums(kept, kept & (labels[indices] == truth[rows, None]), at)
    return _divided(sums, _occurrences(truth, labels) - same_view, at)


def listed_precisions(
    queries: Floats, gallery: Floats, relevant: Sequence[Indices], *, at: int | None = None
) -> NDArray[np.float64]:
    """[N] average precision of each query, given the gallery rows that it should find; NaN where there are none.

    GLDv2 lists them: a query may show several landmarks.

    >>> gallery = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> listed_precisions(gallery[:1], gallery, [np.array([0, 2])]).round(4)
    array([0.8333])
    """
    if len(relevant) != len(queries):
        raise InputError(
            f"{len(queries)} queries need as many lists of gallery rows, got {len(relevant)}"
        )
    sums = np.empty(len(queries))
    for rows, indices in rankings(queries, gallery, min(len(gallery), at or len(gallery))):
        wanted = relevant[rows]
        right = np.stack(
            [np.isin(found, listed) for found, listed in zip(indices, wanted, strict=True)]
        )
        sums[rows] = _precision_sums(np.ones_like(right), right, at)
    return _divided(sums, np.array([len(listed) for listed in relevant]), at)


def _divided(sums: NDArray[np.float64], positives: Indices, at: int | None) -> NDArray[np.float64]:
    """[N]: the average precisions, NaN without a positive."""
    values = np.full(len(sums), np.nan)
    np.divide(
        sums,
        positives if at is None else np.minimum(positives, at),
        out=values,
        where=positives > 0,
    )
    return values


def _precision_sums(kept: Hits, right: Hits, at: int | None) -> NDArray[np.float64]:
    """[n]: the sum of the precisions at each positive; ``kept`` and ``right`` [n, depth], best first."""
    places = np.cumsum(kept, axis=1, dtype=np.int32)
    found = np.cumsum(right, axis=1, dtype=np.int32)
    counted = right if at is None else right & (places <= at)
    precisions = np.zeros(found.shape)
    np.divide(found, places, out=precisions, where=counted)
    return np.asarray(precisions.sum(axis=1))


def _occurrences(values: Labels, among: Labels) -> Indices:
    """[N]: how often each of ``values`` [N] occurs in ``among``."""
    ordered = np.sort(among)
    after, before = (np.searchsorted(ordered, values, side=side) for side in ("right", "left"))
    return np.asarray(after - before)


def _views(
    truth: Labels, labels: Labels, query_cameras: Labels | None, gallery_cameras: Labels | None
) -> tuple[Indices, Indices]:
    """One number per class and camera, [N] and [M]; without cameras no query and gallery image share one."""
    if query_cameras is None and gallery_cameras is None:
        return np.full(len(truth), -1), np.zeros(len(labels), dtype=np.int64)
    if query_cameras is None or gallery_cameras is None:
        raise InputError("pass cameras for both the queries and the gallery, or for neither")
    for cameras, images, side in (
        (query_cameras, truth, "query"),
        (gallery_cameras, labels, "gallery"),
    ):
        array = np.asarray(cameras)
        if array.shape != images.shape or array.dtype.kind not in "iu":
            seen = f"{array.dtype} of shape {array.shape} for {len(images)} images"
            raise InputError(f"{side} cameras are one integer per image, got {seen}")
    names, camera = np.unique(np.concatenate([query_cameras, gallery_cameras]), return_inverse=True)
    _, label = np.unique(np.concatenate([truth, labels]), return_inverse=True)
    views = label * len(names) + camera
    return views[: len(truth)], views[len(truth) :]


# Exact top-k in blocks. A rank is one int64 that sorts by cosine first and by lower gallery index second, so partial
# sorts handle ties: the bits of the float32, made monotonic, above the complement of the index.

_INDEX = np.int64(0xFFFF_FFFF)
_MAGNITUDE = np.int32(0x7FFF_FFFF)


def _rank(cosines: NDArray[np.float32], indices: Indices) -> Indices:
    ordered = _flip_negative((cosines + np.float32(0)).view(np.int32))  # -0 becomes 0
    return (ordered.astype(np.int64) << 32) | (_INDEX - indices)


def _cosine_of(ranks: Indices) -> NDArray[np.float32]:
    return _flip_negative((ranks >> 32).astype(np.int32)).view(np.float32)


def _index_of(ranks: Indices) -> Indices:
    return _INDEX - (ranks & _INDEX)


def _flip_negative(bits: NDArray[np.int32]) -> NDArray[np.int32]:
    """Turn IEEE bits into integers of the same order, and back: its own inverse."""
    return bits ^ ((bits >> 31) & _MAGNITUDE)


def _top_ranks(q: NDArray[np.float32], g: NDArray[np.float32], k: int, block: int) -> Indices:
    """The k highest ranks of each query over the whole gallery, [N, k], descending."""
    ranks: list[Indices] = []
    for some in blocks(len(q), block):
        best = np.empty((len(q[some]), 0), dtype=np.int64)
        for rows in blocks(len(g), block):
            cosines = _product(q[some], g[rows])
            if k == 1:
                winners = cosines.argmax(axis=1, keepdims=True)  # the first of equals
                found = _rank(np.take_along_axis(cosines, winners, axis=1), winners + rows.start)
            else:
                found = _rank(cosines, np.arange(rows.start, rows.stop))
            best = np.concatenate([best, found], axis=1)
            if best.shape[1] > k:
                best = np.partition(best, -k, axis=1)[:, -k:]
        ranks.append(np.sort(best, axis=1)[:, ::-1])
    return np.concatenate(ranks)


def _product(q: NDArray[np.float32], g: NDArray[np.float32]) -> NDArray[np.float32]:
    """q g^T, with equal columns for equal rows of g.

    BLAS rounds the odd rows and columns at the edge of a matrix differently, so both sides are padded to whole tiles.
    """
    return (_whole_tiles(q) @ _whole_tiles(g).T)[: len(q), : len(g)]


def _whole_tiles(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    if len(rows) % _TILE:
        return np.pad(rows, ((0, -len(rows) % _TILE), (0, 0)))
    return rows


def _to_device(features: NDArray[np.float32], device: str | None) -> Any:
    import torch

    from fixstar.models import resolve_device

    return torch.from_numpy(np.ascontiguousarray(features)).to(resolve_device(device or "cpu"))


def _nearest_on_device(q: Any, g: Any, cells: int = 1 << 28) -> Indices:
    """[N]: the nearest row of g [M, s] for each of q [N, s], ties go to the lowest; ``cells`` cosines at a time."""
    import torch

    order = torch.arange(len(g), device=g.device)
    found = []
    for part in q.split(max(1, cells // len(g))):
        cosines = part @ g.T
        ties = cosines == cosines.amax(dim=1, keepdim=True)
        found.append(torch.where(ties, order, len(g)).amin(dim=1))
    answer: Indices = torch.cat(found).cpu().numpy()
    return answer


def blocks(total: int, block: int) -> Iterator[slice]:
    """``total`` rows in slices of at most ``block``."""
    return (slice(start, min(start + block, total)) for start in range(0, total, block))


def unit_features(features: Floats, name: str) -> NDArray[np.float32]:
    """[N, d] float32 of unit length, checked to be a matrix of finite numbers."""
    array = np.asarray(features)
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(
            f"{name} features are a non-empty matrix [images, components]; got shape {array.shape}"
        )
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} features must be real numbers, got {array.dtype}")
    array = array.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        raise InputError(
            f"{name} features contain NaN or infinity; the model that made them is broken"
        )
    return geometry.unit(array)


def checked_labels(labels: Labels, features: Floats, name: str) -> Labels:
    """[N] integers, one for each row of ``features``."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"{name} labels are one integer per image, got {array.dtype} of shape {array.shape}"
        )
    if len(array) != len(features):
        raise InputError(
            f"{plural(len(array), f'{name} label')} for {plural(len(features), f'{name} image')}"
        )
    return array


def check_widths(q: Floats, g: Floats) -> None:
    """Raise unless both have the same number of components."""
    if q.shape[1] != g.shape[1]:
        raise InputError(
            f"queries have {q.shape[1]} components and the gallery {g.shape[1]}: they must share a space"
        )
