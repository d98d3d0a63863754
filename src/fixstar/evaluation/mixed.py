"""Mixed galleries: while a gallery is re-embedded, some of its images hold an old vector and some a new one.

A query meets every vector in that vector's own space: it is carried there as in the cross-test, and dot products are
the cosines of the full features. So all gallery images compete, whichever version embedded them. Two versions' cosines
need not mean the same; with ``scores``, slope and offset by version's name, slope * cosine + offset competes instead.

Templates are means over the full unit features z / |z| of a class, whichever version made each, renormalised. They are
never built: with s_v the sum of a class's vectors of version v, a template's dot product with a query is the sum over v
of (query carried to v) . s_v, and its squared length the sum over v and w of s_v . (s_w carried to v). Both are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar import geometry
from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation.cross_test import VersionFeatures
from fixstar.evaluation.search import BLOCK, PROTOCOLS, nearest

__all__ = [
    "better_of",
    "carried_queries",
    "check_images",
    "mixed_gallery_search",
    "mixed_nearest",
    "nearest_rows",
    "scored",
    "stored_galleries",
]

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]
Indices = NDArray[np.int64]
Cosines = NDArray[np.floating[Any]]
Hits = NDArray[np.bool_]
Scores = Mapping[str, tuple[float, float]]


def carried_queries(
    query: VersionFeatures, galleries: Iterable[VersionFeatures], *, shared_components: bool = False
) -> list[Floats]:
    """The unit queries of one version in the space of each gallery, [N, s] each: dot products are full cosines.

    Do not normalise them: a query that the other version's space cannot hold in full is shorter than 1 there.
    """
    queries = _unit(query.queries)
    basis = geometry.short_basis(query.projection)
    carried = []
    for gallery in galleries:
        if not query.meets(gallery) and not shared_components:
            raise InputError(
                f"versions of different feature width cannot be compared ({query.name} {query.width}, {gallery.name} "
                f"{gallery.width}). Pass shared_components=True to compare over the first components that both have"
            )
        own = gallery is query
        target = basis if own else geometry.short_basis(gallery.projection)
        carried.append(queries if own else geometry.carry(queries, basis, target, gallery.width))
    return carried


def stored_galleries(versions: Sequence[VersionFeatures], query_version: int = -1) -> list[VersionFeatures]:
    """The versions with their galleries as they are stored when ``query_version`` searches.

    That is as they were made, unless a version up to then brought ``adapt`` (FAN): it has moved all older vectors into
    its own space, as in the cross-test.
    """
    if not -len(versions) <= query_version < len(versions):
        raise InputError(f"query_version counts versions, 0 to {len(versions) - 1} here; got {query_version}")
    stored: list[VersionFeatures] = []
    for version in versions[: query_version % len(versions) + 1]:
        if version.adapt is not None:
            stored = [_adapted(older, version) for older in stored]
        stored.append(version)
    return [*stored, *versions[len(stored) :]]


def mixed_gallery_search(
    versions: Sequence[VersionFeatures],
    held: Labels,
    query_labels: Labels,
    gallery_labels: Labels,
    *,
    query_version: int = -1,
    protocol: str = "image",
    shared_components: bool = False,
    scores: Scores | None = None,
) -> Hits:
    """[N] bool: whether each query finds its class in a gallery whose image i holds its vector of version ``held[i]``.

    ``held`` [M] counts versions from 0, oldest first; queries are by ``query_version``, the last unless told. See
    ``fixstar.evaluation.search`` for the protocols.

    >>> v1, v2 = (VersionFeatures(name, np.eye(2), np.eye(2)) for name in ("v1", "v2"))
    >>> mixed_gallery_search([v1, v2], np.array([0, 1]), np.array([7, 8]), np.array([7, 7]))
    array([ True, False])
    """
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    truth, labels = np.asarray(query_labels), np.asarray(gallery_labels)
    check_images(versions, truth, labels)
    if protocol == "image":
        ways: dict[str, Any] = {"shared_components": shared_components, "scores": scores}
        found, _ = mixed_nearest(versions, held, query_version=query_version, **ways)
        return np.equal(labels[found], truth)
    if scores is not None:
        raise InputError(
            "scores by version are for single vectors (protocol 'image'); a template is of several versions"
        )
    stored = stored_galleries(versions, query_version)
    classes, sums = _template_sums(stored, _checked_held(held, len(labels), len(stored)), labels)
    queries = carried_queries(stored[query_version], [stored[v] for v in sums], shared_components=shared_components)
    parts = list(zip(queries, sums.values(), strict=True))
    winners = [_highest(parts, slice(start, start + BLOCK)) for start in range(0, len(truth), BLOCK)]
    return np.equal(classes[np.concatenate(winners)], truth)


def mixed_nearest(
    versions: Sequence[VersionFeatures],
    held: Labels,
    *,
    query_version: int = -1,
    shared_components: bool = False,
    scores: Scores | None = None,
) -> tuple[Indices, Cosines]:
    """The nearest gallery image of each query, [N], and its cosine or score, [N]. Equal ones go to the lowest index."""
    stored = stored_galleries(versions, query_version)
    query = stored[query_version]
    held = _checked_held(held, len(query.gallery), len(stored))
    present = np.unique(held).tolist()
    carried = carried_queries(query, [stored[v] for v in present], shared_components=shared_components)
    found = (
        scored(nearest_rows(queries, stored[v].gallery, np.flatnonzero(held == v)), stored[v].name, scores)
        for v, queries in zip(present, carried, strict=True)
    )
    return reduce(better_of, found)


def nearest_rows(queries: Floats, gallery: Floats, rows: Indices) -> tuple[Indices, Cosines]:
    """The nearest among some gallery rows, [N], and its dot product with the carried query, [N].

    Without rows it is -inf. ``better_of`` compares such answers.
    """
    if not len(rows):
        return np.full(len(queries), np.iinfo(np.int64).max), np.full(len(queries), -np.inf, np.float32)
    found, cosines = nearest(queries, gallery[rows])
    lengths = np.linalg.norm(queries, axis=1).astype(np.float32)  # ``nearest`` has divided by them
    return rows[found[:, 0]], cosines[:, 0] * lengths


def scored(found: tuple[Indices, Cosines], version: str, scores: Scores | None) -> tuple[Indices, Cosines]:
    """What was found among one version's vectors, with its scores in the place of cosines, where there are some."""
    if scores is None:
        return found
    if version not in scores or not scores[version][0] > 0:
        raise InputError(f"scores need a slope above zero and an offset for {version!r}; got {dict(scores)}")
    slope, offset = scores[version]
    return found[0], slope * found[1].astype(np.float64) + offset


def better_of(one: tuple[Indices, Cosines], two: tuple[Indices, Cosines]) -> tuple[Indices, Cosines]:
    """Query by query the higher cosine, of equals the lower index.

    >>> one, two = (np.array([4, 4]), np.float32([0.5, 0.9])), (np.array([1, 1]), np.float32([0.5, 0.7]))
    >>> better_of(one, two)[0]
    array([1, 4])
    """
    second = (two[1] > one[1]) | ((two[1] == one[1]) & (two[0] < one[0]))
    return np.where(second, two[0], one[0]), np.where(second, two[1], one[1])


def check_images(versions: Sequence[VersionFeatures], query_labels: Labels, gallery_labels: Labels) -> None:
    """Refuse versions that did not embed the same labelled images, or not with finite numbers."""
    for labels, whose in ((query_labels, "query"), (gallery_labels, "gallery")):
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
            raise InputError(f"{whose} labels are one integer an image, not empty; got {labels.dtype} {labels.shape}")
    expected = len(query_labels), len(gallery_labels)
    for version in versions:
        seen = len(version.queries), len(version.gallery)
        if seen != expected:
            raise InputError(
                f"version {version.name!r} has {seen[0]} queries and {seen[1]} gallery images for {expected[0]} and "
                f"{expected[1]} labels; every version embeds the same images"
            )
        if not (np.isfinite(version.queries).all() and np.isfinite(version.gallery).all()):
            raise InputError(f"version {version.name!r} holds NaN or infinity; the model that made it is broken")


def _adapted(older: VersionFeatures, version: VersionFeatures) -> VersionFeatures:
    """The older version's gallery in the space of ``version``, where queries by ``version`` meet it."""
    if older.projection is not None or version.projection is not None:
        raise InputError(
            f"adapt of version {version.name!r} moves plain features, but {older.name} or {version.name} came as short "
            "forms under a projection. Pass their full features, without projection"
        )
    return VersionFeatures(older.name, version.queries, version.moved(older.gallery))


def _checked_held(held: Labels, images: int, versions: int) -> Labels:
    """``held`` as an array, refused where it does not name a version for every image."""
    numbers = np.asarray(held)
    if numbers.shape != (images,) or numbers.dtype.kind not in "iu":
        raise InputError(
            f"held is one version number for each of {images} gallery images; got {numbers.dtype} {numbers.shape}"
        )
    if numbers.min() < 0 or numbers.max() >= versions:
        raise InputError(f"held counts versions, 0 to {versions - 1} here; got {numbers.min()} to {numbers.max()}")
    return numbers


def _highest(parts: list[tuple[Floats, Floats]], block: slice) -> Indices:
    """The template [n] with the highest dot product, summed over the versions' spaces; the first of equals."""
    scores: Floats = reduce(np.add, (queries[block] @ sums.T for queries, sums in parts))
    winners: Indices = scores.argmax(axis=1)
    return winners


def _template_sums(
    versions: Sequence[VersionFeatures], held: Labels, labels: Labels
) -> tuple[Labels, dict[int, Floats]]:
    """The classes [C], and by version the sums s_v [C, s] of their unit vectors, over the length of the template."""
    classes, inverse = np.unique(labels, return_inverse=True)
    sums = {}
    for v in np.unique(held).tolist():
        rows = np.flatnonzero(held == v)
        rows = rows[np.argsort(inverse[rows], kind="stable")]
        present, starts = np.unique(inverse[rows], return_index=True)
        sums[v] = np.zeros((len(classes), versions[v].gallery.shape[1]))
        sums[v][present] = np.add.reduceat(_unit(versions[v].gallery[rows]), starts, axis=0, dtype=np.float64)
    bases = {v: geometry.short_basis(versions[v].projection) for v in sums}
    squares = np.zeros(len(classes))
    for v in sums:
        for w in sums:
            carried = sums[w] if v == w else geometry.carry(sums[w], bases[w], bases[v], versions[v].width)
            squares += (sums[v] * carried).sum(axis=1)
    lengths = np.sqrt(squares.clip(0)).clip(1e-12)[:, None]
    return classes, {v: (total / lengths).astype(np.float32) for v, total in sums.items()}


def _unit(features: Floats) -> Floats:
    return geometry.unit(np.asarray(features).astype(np.float32, copy=False))
