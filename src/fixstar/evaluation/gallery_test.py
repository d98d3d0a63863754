"""1:N search by image through a gallery store: what users of the store get, mixed versions and all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError

__all__ = ["Found", "Searchable", "store_search"]

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]
BLOCK = 1024  # queries handed to the store at once


class Found(Protocol):
    """One result of a search: an item of the store."""

    @property
    def id(self) -> str:
        """The item's id."""


class Searchable(Protocol):
    """A store that can be searched: every ``fixstar.gallery.Gallery`` is one."""

    def search(self, version: str, queries: Floats, *, k: int = 10) -> Sequence[Sequence[Found]]:
        """The k nearest items of each query [N, width of ``version``], best first."""


def store_search(
    store: Searchable,
    version: str,
    queries: Floats,
    query_labels: Labels,
    label_of_id: Mapping[str, int] | Callable[[str], int],
) -> NDArray[np.bool_]:
    """[N] bool: whether the nearest item of the store, of any version, has the query's class.

    ``version`` made the queries. An empty answer is a miss. The mean is the accuracy.
    """
    if len(query_labels) != len(queries):
        raise InputError(f"{len(query_labels)} query labels for {len(queries)} queries; pass one label a query")
    label_of = label_of_id.__getitem__ if isinstance(label_of_id, Mapping) else label_of_id
    hits = np.zeros(len(queries), dtype=np.bool_)
    for start in range(0, len(queries), BLOCK):
        rows = slice(start, start + BLOCK)
        found = store.search(version, queries[rows], k=1)
        if len(found) != len(queries[rows]):
            raise InputError(f"the store gave {len(found)} answers to {len(queries[rows])} queries; one each is needed")
        hits[rows] = [
            bool(items) and label_of(items[0].id) == label
            for items, label in zip(found, query_labels[rows], strict=True)
        ]
    return hits
