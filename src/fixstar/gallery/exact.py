"""Search over the vectors of all versions in memory: what the memory gallery and the SQLite gallery search with.

Searches run in parallel, each on what was there when it began. They wait for no change, and no change waits for them:
a change is prepared aside and takes effect at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fixstar.gallery.matrix import Mask, Rows, all_parsed
from fixstar.gallery.ranking import (
    CELLS,
    Bridges,
    Floats,
    Indices,
    exact_cosines,
    first_of_each,
    paired_cosines,
)
from fixstar.gallery.store import (
    Hit,
    SearchRequest,
    Vectors,
    VersionSpace,
    Where,
    checked_vectors,
    known_version,
)

__all__ = ["ExactSearch", "RowIndex"]

QUERIES = 128  # queries at once: their memory stays small
FEW = 128  # candidates of a single query that are scored one by one


class RowIndex(Protocol):
    """Finds likely rows without looking at all of them."""

    def candidates(self, rows: Rows, queries: Floats, k: int, allowed: Mask | None) -> tuple[Indices, Indices]:
        """Pairs (query, row) that include most of the k nearest of each query [N, width]; see ``Rows.candidates``."""


class _Target(NamedTuple):
    """A version to search: its rows, the queries [N, width] in its space, and its index if it may be used."""

    name: str
    rows: Rows
    queries: NDArray[np.float64]
    quick: RowIndex | None


class ExactSearch:
    """Versions and their rows in memory, searched by exact cosine. One thread at a time may change them."""

    def __init__(self) -> None:
        self._versions: dict[str, tuple[VersionSpace, Floats | None]] = {}
        self._bridges = Bridges(self.projection)
        self.rows: Mapping[str, Rows] = {}  # replaced as a whole, never changed
        self.indexes: Mapping[str, RowIndex] = {}  # likewise

    def add_version(self, space: VersionSpace, projection: Floats | None) -> None:
        """Add a version without rows."""
        self.rows = {**self.rows, space.name: Rows(space.width)}
        self._versions = {**self._versions, space.name: (space, projection)}

    def spaces(self) -> list[VersionSpace]:
        """All versions, in the order they were added."""
        return [space for space, _ in self._versions.values()]

    def projection(self, name: str) -> Floats | None:
        """P [d, m] of a version."""
        return known_version(self._versions, name)[1]

    def space(self, name: str) -> VersionSpace:
        """One version, or an error that names those there are."""
        return known_version(self._versions, name)[0]

    def use(self, rows: Mapping[str, Rows]) -> None:
        """Replace the rows of some versions, all at once: no search sees part of a change."""
        self.rows = {**self.rows, **rows}

    def search(self, version: str, queries: Vectors, request: SearchRequest) -> list[list[Hit]]:
        """See ``Gallery.search``."""
        source, rows = self.space(version), self.rows
        indexes = {} if request.exact else self.indexes
        names = self._versions if request.versions is None else request.versions
        known = [self.space(name) for name in dict.fromkeys(names)]
        targets = [space for space in known if len(rows.get(space.name, ()))]
        unit_queries = checked_vectors(queries, source.width, version)
        hits: list[list[Hit]] = []
        for start in range(0, len(unit_queries), QUERIES):
            part = unit_queries[start : start + QUERIES]
            live = [
                _Target(
                    space.name, rows[space.name], self._bridges.carried(part, source, space), indexes.get(space.name)
                )
                for space in targets
            ]
            hits += _nearest(live, len(part), int(request.k), request.where)
        return hits


def _nearest(live: list[_Target], queries: int, k: int, where: Where | None) -> list[list[Hit]]:
    """The k best of all versions for each query."""
    hits: list[list[Hit]] = [[] for _ in range(queries)]
    found = []
    for place, target in enumerate(live):
        query, row = _candidates(target, k, where)
        if len(live) == queries == 1 and len(row) <= FEW:
            return [_nearest_of_few(target, row, k)]
        found.append((query, _cosines(target, query, row), target.rows.numbers(row), row, np.full(len(row), place)))
    if not found:
        return hits
    query, cosine, number, row, place_of = (np.concatenate([part[i] for part in found]) for i in range(5))
    best = first_of_each(query, cosine, number, k)
    owners = [live[place] for place in place_of[best].tolist()]
    located = [owner.rows.locate([one])[0] for owner, one in zip(owners, row[best].tolist(), strict=True)]
    payloads = all_parsed([segment.texts[one] for segment, one in located])
    columns = query[best].tolist(), cosine[best].tolist(), owners, located, payloads
    for q, score, owner, (segment, one), payload in zip(*columns, strict=True):
        hits[q].append(Hit(segment.ids[one], score, owner.name, payload))
    return hits


def _nearest_of_few(target: _Target, row: Indices, k: int) -> list[Hit]:
    """The same for one query and few candidates, in few steps: after an index search little is left in the cache."""
    located = target.rows.locate(row.tolist())
    vectors = np.empty((len(located), target.rows.width))
    for place, (segment, one) in enumerate(located):
        vectors[place] = segment.vectors[one]
    cosine = paired_cosines(vectors, target.queries, out=vectors)
    best = np.lexsort((row, -cosine))[:k]  # rows of one version are in the order of their numbers
    chosen = [located[place] for place in best.tolist()]
    payloads = all_parsed([segment.texts[one] for segment, one in chosen])
    columns = chosen, cosine[best].tolist(), payloads
    return [
        Hit(segment.ids[one], score, target.name, payload)
        for (segment, one), score, payload in zip(*columns, strict=True)
    ]


def _candidates(target: _Target, k: int, where: Where | None) -> tuple[Indices, Indices]:
    """Pairs (query, row) that include the k nearest of a version, or most of them."""
    narrow, allowed = target.queries.astype(np.float32), target.rows.allowed(where)
    if target.quick is None:
        return target.rows.candidates(narrow, k, allowed)
    return target.quick.candidates(target.rows, narrow, k, allowed)


def _cosines(target: _Target, query: Indices, row: Indices) -> Floats:
    """[pairs]: exact cosines, some pairs at a time."""
    size = 1 + 4 * CELLS // target.rows.width
    parts = [slice(start, start + size) for start in range(0, max(1, len(row)), size)]
    return np.concatenate(
        [exact_cosines(target.rows.vectors(row[part]), target.queries, query[part]) for part in parts]
    )
