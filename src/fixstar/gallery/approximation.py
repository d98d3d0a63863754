"""What approximate search misses, measured on queries of your own."""

from __future__ import annotations

from typing import Unpack

from fixstar.errors import InputError
from fixstar.gallery.store import Gallery, Hit, SearchOptions, SearchRequest, Vectors

__all__ = ["measured_recall"]


def measured_recall(
    gallery: Gallery,
    version: str,
    queries: Vectors,
    request: SearchRequest | None = None,
    **options: Unpack[SearchOptions],
) -> float:
    """The share of the true k nearest that ``search(..., exact=False)`` finds; ``queries`` are [N, width].

    Ask with real queries of the version that will ask: recall falls as they drift from the vectors that were stored.

    >>> import numpy as np
    >>> from fixstar.gallery import MemoryGallery
    >>> with MemoryGallery() as gallery:
    ...     gallery.create_version("v1", 2)
    ...     gallery.upsert("v1", ["a", "b"], np.eye(2))
    ...     measured_recall(gallery, "v1", np.eye(2))
    1.0
    """
    wanted = SearchRequest.of(request, **options)
    exact = gallery.search(version, queries, wanted, exact=True)
    quick = gallery.search(version, queries, wanted, exact=False)
    there = sum(map(len, exact))
    if not there:
        raise InputError("a recall needs queries that have results; got no queries, or nothing there to find")
    return sum(_found(*pair) for pair in zip(exact, quick, strict=True)) / there


def _found(exact: list[Hit], quick: list[Hit]) -> int:
    """How many of the nearest were found; one that is as near as the last of them is as good."""
    true, last = {hit.id for hit in exact}, min((hit.score for hit in exact), default=0.0)
    return min(len(exact), sum(hit.id in true or hit.score >= last for hit in quick))
