"""1:N search: is the nearest gallery entry, by cosine, of the right class?

Exact, in blocks: the similarity matrix [N, M] never exists, only ``block`` x ``block`` of it. Features come in any
length and any float type; they are normalised here and multiplied in float32. Equal cosines go to the lowest index.
On a GPU (``device="cuda"``) torch multiplies, in float32 too; the rest is the same.

A protocol answers once per query, True for a hit. Its mean is the accuracy; the answers themselves allow error bars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar import geometry
from fixstar.errors import InputError

__all__ = [
    "PROTOCOLS",
    "blocks",
    "checked_labels",
    "image_search",
    "nearest",
    "refuse_zero_rows",
    "searcher",
    "template_search",
    "templates",
    "unit_features",
]

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]
Hits = NDArray[np.bool_]

BLOCK = 2048  # 2048 x 2048 float32: 16 MiB
_TILE = 64
_NO_LENGTH = 1e-12  # below it ``geometry.unit`` does not make a row one long


def image_search(
    queries: Floats, query_labels: Labels, gallery: Floats, gallery_labels: Labels, block: int = BLOCK
) -> Hits:
    """[N] bool: whether the nearest gallery image has the query's class. What a search service does.

    >>> gallery, labels = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([7, 8])
    >>> image_search(np.array([[2.0, 1.0], [3.0, 1.0]]), np.array([7, 8]), gallery, labels)
    array([ True, False])
    """
    return _Searcher(gallery, gallery_labels, block)(queries, query_labels)


def template_search(
    queries: Floats, query_labels: Labels, gallery: Floats, gallery_labels: Labels, block: int = BLOCK
) -> Hits:
    """[N] bool: whether the nearest class template has the query's class (the tables of HOC)."""
    return image_search(queries, query_labels, *templates(gallery, gallery_labels), block)


def templates(gallery: Floats, labels: Labels) -> tuple[NDArray[np.float32], Labels]:
    """One unit vector a class, the mean of its unit features, and the classes in ascending order.

    >>> templates(np.array([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]]), np.array([5, 5, 2]))[1]
    array([2, 5])
    """
    features = unit_features(gallery, "gallery")
    classes, inverse, counts = np.unique(
        checked_labels(labels, gallery, "gallery"), return_inverse=True, return_counts=True
    )
    by_class = features[np.argsort(inverse, kind="stable")]
    starts = np.cumsum(counts) - counts
    sums = np.add.reduceat(by_class, starts, axis=0, dtype=np.float64)  # as good as means: the length goes
    return geometry.unit(sums).astype(np.float32), classes


def nearest(
    queries: Floats, gallery: Floats, k: int = 1, block: int = BLOCK
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k nearest gallery entries of each query: indices [N, k] and cosines [N, k], best first.

    >>> indices, cosines = nearest(np.array([[1.0, 0.1]]), np.array([[0.0, 1.0], [5.0, 0.0], [1.0, 1.0]]), k=2)
    >>> indices.tolist(), cosines.round(3).tolist()
    ([[1, 2]], [[0.9950000047683716, 0.7739999890327454]])
    """
    q, g = unit_features(queries, "query"), unit_features(gallery, "gallery")
    _check_widths(q, g)
    if not 1 <= k <= len(g):
        raise InputError(f"k counts gallery entries, 1 to {len(g)} here; got {k}")
    if block < 1:
        raise InputError(f"block must be at least 1, got {block}")
    ranks = _top_ranks_of_all(q, g, k, block)
    return _index_of(ranks), _cosine_of(ranks)


PROTOCOLS: dict[str, Callable[..., Hits]] = {"template": template_search, "image": image_search}
"""1:N search by name: ``PROTOCOLS[name](queries, query_labels, gallery, gallery_labels)`` -> [N] bool."""


def searcher(
    protocol: str, gallery: Floats, gallery_labels: Labels, device: str | None = None
) -> Callable[[Floats, Labels], Hits]:
    """A protocol with its gallery prepared once, for any number of query sets: ``(queries, query_labels)`` -> [N] bool.

    ``device`` names a torch device to multiply on; without one, NumPy does it.

    >>> find = searcher("template", np.eye(2), np.array([7, 8]))
    >>> find(np.array([[2.0, 1.0], [3.0, 1.0]]), np.array([7, 8]))
    array([ True, False])
    """
    if protocol == "template":
        return _Searcher(*templates(gallery, gallery_labels), device=device)
    if protocol == "image":
        return _Searcher(gallery, gallery_labels, device=device)
    return lambda queries, query_labels: PROTOCOLS[protocol](queries, query_labels, gallery, gallery_labels)


class _Searcher:
    """Top-1 search in a gallery that is normalised, and moved to the device, once."""

    def __init__(self, gallery: Floats, labels: Labels, block: int = BLOCK, device: str | None = None) -> None:
        self.labels, self.block = checked_labels(labels, gallery, "gallery"), block
        self.gallery, self.device = unit_features(gallery, "gallery"), device
        self.there = _on(self.gallery, device) if device is not None else None

    def __call__(self, queries: Floats, query_labels: Labels) -> Hits:
        truth = checked_labels(query_labels, queries, "query")
        q = unit_features(queries, "query")
        _check_widths(q, self.gallery)
        if self.there is not None:
            found = _nearest_on_device(_on(q, self.device), self.there)
        else:
            found = _index_of(_top_ranks_of_all(q, self.gallery, 1, self.block)[:, 0])
        return np.equal(self.labels[found], truth)


def _on(features: NDArray[np.float32], device: str | None) -> Any:
    import torch

    from fixstar.models.device import resolve_device

    return torch.from_numpy(np.ascontiguousarray(features)).to(resolve_device(device or "cpu"))


def _nearest_on_device(q: Any, g: Any, cells: int = 1 << 28) -> NDArray[np.int64]:
    """[N]: the nearest row of g [M, s] for each of q [N, s], the lowest of equals; ``cells`` cosines at once."""
    import torch

    order = torch.arange(len(g), device=g.device)
    found = []
    for part in q.split(max(1, cells // len(g))):
        cosines = part @ g.T
        ties = cosines == cosines.amax(dim=1, keepdim=True)
        found.append(torch.where(ties, order, len(g)).amin(dim=1))
    answer: NDArray[np.int64] = torch.cat(found).cpu().numpy()
    return answer


# A rank is one int64 that sorts by cosine first and by lower gallery index second, so that partial sorts need no
# second look at ties: the float32's bits, made monotonic, above the complement of the index.

_INDEX = np.int64(0xFFFF_FFFF)
_MAGNITUDE = np.int32(0x7FFF_FFFF)


def _rank(cosines: NDArray[np.float32], indices: NDArray[np.int64]) -> NDArray[np.int64]:
    ordered = _flip_negative((cosines + np.float32(0)).view(np.int32))  # -0 becomes 0
    return (ordered.astype(np.int64) << 32) | (_INDEX - indices)


def _cosine_of(ranks: NDArray[np.int64]) -> NDArray[np.float32]:
    return _flip_negative((ranks >> 32).astype(np.int32)).view(np.float32)


def _index_of(ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    return _INDEX - (ranks & _INDEX)


def _flip_negative(bits: NDArray[np.int32]) -> NDArray[np.int32]:
    """Turn IEEE bits into integers of the same order, and back: its own inverse."""
    return bits ^ ((bits >> 31) & _MAGNITUDE)


def _top_ranks_of_all(q: NDArray[np.float32], g: NDArray[np.float32], k: int, block: int) -> NDArray[np.int64]:
    return np.concatenate([_top_ranks(q[rows], g, k, block) for rows in blocks(len(q), block)])


def _top_ranks(q: NDArray[np.float32], g: NDArray[np.float32], k: int, block: int) -> NDArray[np.int64]:
    """The k highest ranks of each query over the whole gallery, [n, k], descending."""
    best = np.empty((len(q), 0), dtype=np.int64)
    for rows in blocks(len(g), block):
        cosines = _product(q, g[rows])
        if k == 1:
            winners = cosines.argmax(axis=1, keepdims=True)  # the first of equals
            found = _rank(np.take_along_axis(cosines, winners, axis=1), winners + rows.start)
        else:
            found = _rank(cosines, np.arange(rows.start, rows.stop))
        best = _highest(np.concatenate([best, found], axis=1), k)
    return np.sort(best, axis=1)[:, ::-1]


def _product(q: NDArray[np.float32], g: NDArray[np.float32]) -> NDArray[np.float32]:
    """q g^T, equal columns for equal rows of g.

    BLAS rounds the odd rows and columns at the edge of a matrix otherwise than the rest, so both sides are filled up
    to whole tiles.
    """
    return (_whole_tiles(q) @ _whole_tiles(g).T)[: len(q), : len(g)]


def _whole_tiles(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.pad(rows, ((0, -len(rows) % _TILE), (0, 0))) if len(rows) % _TILE else rows


def _highest(ranks: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    return ranks if ranks.shape[1] <= k else np.partition(ranks, -k, axis=1)[:, -k:]


def blocks(total: int, block: int) -> Iterator[slice]:
    """``total`` rows in slices of at most ``block``."""
    return (slice(start, min(start + block, total)) for start in range(0, total, block))


def unit_features(features: Floats, whose: str) -> NDArray[np.float32]:
    """[N, d] float32 of unit length, checked to be a matrix of finite numbers."""
    array = np.asarray(features)
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"{whose} features are a matrix [images, components], not empty; got shape {array.shape}")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{whose} features must be real numbers, got {array.dtype}")
    array = array.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        raise InputError(f"{whose} features hold NaN or infinity; the model that made them is broken")
    return geometry.unit(array)


def refuse_zero_rows(features: Floats, whose: str) -> None:
    """Refuse features [N, d] of which a row is zero: it has no direction, and every cosine with it would be made up.

    For what a model made; a query that was carried into another version's space may rightly be zero there.
    """
    array = np.asarray(features)
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiu":
        return  # ``unit_features`` says so, in its own words
    largest = np.maximum(array.max(axis=1), -array.min(axis=1))
    if wrong := np.flatnonzero(largest < _NO_LENGTH).tolist():
        raise InputError(
            f"{whose}: {len(wrong)} of {len(array)} rows are zero and have no direction, the first is row {wrong[0]}. "
            "Embed those images again, or leave them out of every version"
        )


def _check_widths(q: Floats, g: Floats) -> None:
    if q.shape[1] != g.shape[1]:
        raise InputError(f"queries have {q.shape[1]} components and the gallery {g.shape[1]}: they must share a space")


def checked_labels(labels: Labels, features: Floats, whose: str) -> Labels:
    """[N] integers, one for each row of ``features``."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"{whose} labels are one integer an image, got {array.dtype} of shape {array.shape}")
    if len(array) != len(features):
        raise InputError(f"{len(array)} {whose} labels for {len(features)} {whose} images")
    return array
