"""Using an adapter: on queries or on stored vectors, and the cross-test that it must pass first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError, GalleryUnavailableError, InputError, UnknownNameError
from fixstar.evaluation import PROTOCOLS, CrossTest, VersionFeatures
from fixstar.evaluation.search import searcher
from fixstar.gallery import Gallery, Item, VersionSpace
from fixstar.gallery.transfer import made_or_same
from fixstar.lifecycle.adapter_maps import VectorAdapter
from fixstar.progress import Advance

__all__ = ["APPLIED", "Applied", "adapt_gallery", "adapt_queries", "adapter_cross_test"]

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]
Applied = Literal["queries", "stored"]

APPLIED = ("queries", "stored")
"""What an adapter can be applied to."""
_BATCH = 1024


def adapt_queries(adapter: VectorAdapter, queries: Floats) -> NDArray[np.float32]:
    """Queries of the new model [N, a] in the space of the old one [N, b]: search the untouched gallery with them."""
    return adapter(queries)


def adapt_gallery(
    source: Gallery,
    version: str,
    adapter: VectorAdapter,
    new_version: str,
    *,
    like: str | None = None,
    target: Gallery | None = None,
    progress: Advance | None = None,
) -> int:
    """Bring the stored vectors of ``version`` through the adapter into ``new_version``; how many were written.

    Without ``target`` the items move within their gallery and the old vectors are replaced: there is no way back but
    the new model or a copy. With ``target`` the source stays as it is. ``like`` names the version of the target
    gallery whose space the adapter leads to: its projection is taken over, so that its queries meet adapted vectors.

    It can be stopped or killed at any moment and repeated: an item is written as a whole, and what is done already is
    not done again. Items that the target has under another version were embedded by that version and stay.
    """
    into = source if target is None else target
    space = _space(source, version)
    if space.width != adapter.widths[0]:
        raise InputError(
            f"version {version!r} has vectors of {space.width} components, the adapter takes {adapter.widths[0]}; for "
            "stored vectors it must lead from the old space to the new one"
        )
    if into is source and new_version == version:
        raise GalleryError(f"adapted vectors of {version!r} need a version of their own; choose another name")
    _make_version(into, new_version, adapter.widths[1], None if like is None else into.projection(like))
    written = 0
    for batch in _batches(source.iterate(version)):
        vectors = adapter(np.stack([item.vector for item in batch]))
        if into is source:
            written += len(into.replace_vectors(new_version, batch, vectors))
        else:
            written += _write(_still_to_do(batch, vectors, new_version, into), new_version, into)
        if progress is not None:
            progress(len(batch))
    with suppress(GalleryUnavailableError):  # all is stored and safe, whoever holds the log
        into.flush()
    return written


def _batches(items: Iterator[Item]) -> Iterator[list[Item]]:
    while batch := list(islice(items, _BATCH)):
        yield batch


def _still_to_do(batch: list[Item], vectors: NDArray[np.float32], new_version: str, into: Gallery) -> list[Item]:
    """The items with their adapted vectors, without those that are done or were embedded anew meanwhile."""
    adapted = [item._replace(vector=row) for item, row in zip(batch, vectors, strict=True)]
    there = into.get([item.id for item in batch])
    return [item for item in adapted if item.id not in there or _is_stale(there[item.id], item, new_version)]


def _is_stale(there: Item, item: Item, new_version: str) -> bool:
    """Whether an adapted item of the target is of an older state of the source."""
    same = dict(there.payload) == dict(item.payload) and np.allclose(there.vector, item.vector, atol=1e-6)
    return there.version == new_version and not same


def _write(items: list[Item], version: str, into: Gallery) -> int:
    if items:
        vectors = np.stack([item.vector for item in items])
        into.upsert(version, [item.id for item in items], vectors, [item.payload for item in items])
    return len(items)


def _space(gallery: Gallery, version: str) -> VersionSpace:
    spaces = {space.name: space for space in gallery.versions()}
    if version not in spaces:
        raise GalleryError(f"the gallery has no version {version!r} (it has: {', '.join(spaces) or 'none yet'})")
    return spaces[version]


def _make_version(gallery: Gallery, name: str, width: int, projection: NDArray[np.float32] | None) -> None:
    """Create the version, or see that the one of an interrupted run is the same."""
    if not made_or_same(gallery, name, width, projection):
        raise GalleryError(
            f"the gallery has a version {name!r} of another kind ({_space(gallery, name).width} wide, the adapter "
            f"makes {width}, or another projection); versions never change, choose another name"
        )


def adapter_cross_test(
    adapter: VectorAdapter,
    old: VersionFeatures,
    new: VersionFeatures,
    query_labels: Labels,
    gallery_labels: Labels,
    applied: Applied = "queries",
    protocol: str = "image",
) -> CrossTest:
    """The gate's evidence: C[1, 0] is the new model's queries against the old gallery, with the adapter between.

    Both models embed the same held-out labelled images, none of which the adapter was fitted on. With ``"queries"``
    the adapter leads from the new space to the old one and carries the queries; with ``"stored"`` it leads from the
    old to the new and carries the gallery. ``fixstar.evaluation.verdicts(result)[1, 0]`` is the verdict, by paired
    bootstrap against the old self-test C[0, 0]; C[1, 1] is what re-embedding everything would give.
    """
    if applied not in APPLIED:
        raise UnknownNameError("use of an adapter", applied, APPLIED)
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    one, other = (new, old) if applied == "queries" else (old, new)
    wanted = one.queries.shape[1], other.queries.shape[1]
    if adapter.widths != wanted:
        raise InputError(
            f"applied to {applied}, an adapter between {old.name} and {new.name} leads from {wanted[0]} to "
            f"{wanted[1]} components ({one.name} to {other.name}); this one leads from {adapter.widths[0]} to "
            f"{adapter.widths[1]}. Fit it the other way round, or apply it to the {APPLIED[applied == 'queries']}"
        )
    find_old = searcher(protocol, old.gallery, gallery_labels)
    hits = {(0, 0): find_old(old.queries, query_labels)}
    if applied == "queries":
        hits[1, 0] = find_old(adapter(new.queries), query_labels)
    else:
        hits[1, 0] = searcher(protocol, adapter(old.gallery), gallery_labels)(new.queries, query_labels)
    hits[1, 1] = searcher(protocol, new.gallery, gallery_labels)(new.queries, query_labels)
    matrix = np.full((2, 2), np.nan)
    for cell, outcomes in hits.items():
        matrix[cell] = outcomes.mean()
    return CrossTest((old.name, new.name), protocol, matrix, hits)
