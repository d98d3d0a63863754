"""Search over the vectors of all versions at once: every gallery that keeps vectors in memory is made of this.

A query of version t meets the vectors of version k through one small matrix, B = Q_t^T Q_k, made once for each pair
(``geometry.carry``). Searches run side by side, in any number of threads, each on what was there when it began. They
wait for no change, and no change waits for them: a change is made aside and takes its place at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fixstar.gallery.arguments import checked_vectors, unknown_version
from fixstar.gallery.bridging import Bridges
from fixstar.gallery.matrix import Rows, all_parsed, parsed
from fixstar.gallery.ranking import CELLS, Floats, Indices, exact_cosines, first_of_each, paired_cosines
from fixstar.gallery.segments import Mask
from fixstar.gallery.store import Hit, SearchRequest, Vectors, VersionSpace, Where

__all__ = ["ExactSearch", "RowIndex"]

QUERIES = 128  # queries at once: what is in memory for them stays small
FEW = 128  # rows that are looked at one by one


class RowIndex(Protocol):
    """Finds likely rows without looking at all of them."""

    def candidates(self, rows: Rows, queries: Floats, k: int, allowed: Mask | None) -> tuple[Indices, Indices]:
        """Pairs (query, row) that hold most of the k nearest of each query [N, width], as ``Rows.candidates`` does."""


class _Version(NamedTuple):
    """The space that a version's vectors live in."""

    space: VersionSpace
    projection: Floats | None


class _Target(NamedTuple):
    """A version to be searched: its rows, the queries [N, width] in its space, and its index if that may be asked."""

    name: str
    rows: Rows
    queries: NDArray[np.float64]
    quick: RowIndex | None


class ExactSearch:
    """Versions and their rows in memory, searched by exact cosine. One thread at a time may change them."""

    def __init__(self) -> None:
        self._versions: dict[str, _Version] = {}
        self._bridges = Bridges(self.projection)
        self._rows: Mapping[str, Rows] = {}  # replaced as a whole, never changed
        self.indexes: Mapping[str, RowIndex] = {}  # likewise

    def add_version(self, space: VersionSpace, projection: Floats | None) -> None:
        """Take in a version without rows."""
        self._rows = {**self._rows, space.name: Rows(space.width)}
        self._versions = {**self._versions, space.name: _Version(space, projection)}

    def spaces(self) -> list[VersionSpace]:
        """The versions, in the order in which they came."""
        return [version.space for version in self._versions.values()]

    def projection(self, name: str) -> Floats | None:
        """P [d, m] of a version."""
        return self._version(name).projection

    def space(self, name: str) -> VersionSpace:
        """One version, or an error that names those there are."""
        return self._version(name).space

    def rows(self) -> Mapping[str, Rows]:
        """What every version holds now; the mapping is another one after every change."""
        return self._rows

    def use(self, rows: Mapping[str, Rows]) -> None:
        """Put new rows of some versions in the place of the old ones, all at once: no search sees a change in part."""
        self._rows = {**self._rows, **rows}

    def search(
        self,
        version: str,
        queries: Vectors,
        request: SearchRequest,
    ) -> list[list[Hit]]:
        """See ``Gallery.search``."""
        source = self._version(version)
        indexes, rows = {} if request.exact else self.indexes, self._rows
        names = list(self._versions) if request.versions is None else request.versions
        known = [self._version(name) for name in dict.fromkeys(names)]
        targets = [target for target in known if target.space.name in rows]  # others came since: they are empty here
        unit_queries = checked_vectors(queries, source.space.width, version)
        hits: list[list[Hit]] = []
        for start in range(0, len(unit_queries), QUERIES):
            part = unit_queries[start : start + QUERIES]
            live = [
                _Target(name, rows[name], self._bridges.carried(part, source.space, target.space), indexes.get(name))
                for target in targets
                if len(rows[name := target.space.name])
            ]
            hits += _nearest(live, len(part), int(request.k), request.where)
        return hits

    def _version(self, name: str) -> _Version:
        try:
            return self._versions[name]
        except (KeyError, TypeError):
            raise unknown_version(name, self._versions) from None


def _nearest(live: list[_Target], queries: int, k: int, where: Where | None) -> list[list[Hit]]:
    """The k best of all versions for each query."""
    hits: list[list[Hit]] = [[] for _ in range(queries)]
    if len(live) == 1:
        _add_nearest_of_one(hits, live[0], k, where)
    elif live:
        _add_nearest_of_all(hits, live, k, where)
    return hits


def _add_nearest_of_one(hits: list[list[Hit]], target: _Target, k: int, where: Where | None) -> None:
    query, row = _candidates(target, k, where)
    if len(hits) == 1 and len(row) <= FEW:
        hits[0] = _nearest_of_few(target, row, k)
        return
    cosine = _cosines(target, query, row)
    best = first_of_each(query, cosine, row, k)  # rows of one version rise as their numbers do
    ids, texts = target.rows.ids_and_texts(row[best])
    found = map(Hit, ids, cosine[best].tolist(), repeat(target.name), all_parsed(texts))
    for q, hit in zip(query[best].tolist(), found, strict=True):
        hits[q].append(hit)


def _nearest_of_few(target: _Target, row: Indices, k: int) -> list[Hit]:
    """The same for one query and few candidates, in few steps: a look at an index leaves little in the cache."""
    held = target.rows.held(row)
    vectors = np.empty((len(held), target.rows.width))
    for place, (segment, one) in enumerate(held):
        vectors[place] = segment.vectors[one]
    cosine = paired_cosines(vectors, target.queries, out=vectors)
    best = np.lexsort((row, -cosine))[:k]
    chosen = [held[place] for place in best.tolist()]
    payloads = all_parsed([segment.texts[one] for segment, one in chosen])
    ids = [segment.ids[one] for segment, one in chosen]
    return list(map(Hit, ids, cosine[best].tolist(), repeat(target.name), payloads))


def _add_nearest_of_all(hits: list[list[Hit]], live: list[_Target], k: int, where: Where | None) -> None:
    found = []
    for place, target in enumerate(live):
        query, row = _candidates(target, k, where)
        cosine = _cosines(target, query, row)
        found.append((query, cosine, target.rows.numbers(row), row, np.full(len(row), place)))
    query, cosine, number, row, place_of = (np.concatenate([part[i] for part in found]) for i in range(5))
    best = first_of_each(query, cosine, number, k)
    columns = (query[best].tolist(), cosine[best].tolist(), row[best].tolist(), place_of[best].tolist())
    for q, score, r, p in zip(*columns, strict=True):
        item, text = live[p].rows.id_and_text(r)
        hits[q].append(Hit(item, score, live[p].name, parsed(text)))


def _candidates(target: _Target, k: int, where: Where | None) -> tuple[Indices, Indices]:
    """Pairs (query, row) that hold the k nearest of a version, or most of them."""
    narrow, allowed = target.queries.astype(np.float32), target.rows.allowed(where)
    if target.quick is None:
        return target.rows.candidates(narrow, k, allowed)
    return target.quick.candidates(target.rows, narrow, k, allowed)


def _cosines(target: _Target, query: Indices, row: Indices) -> Floats:
    """[pairs]: exact cosines, some pairs at a time."""
    size = 1 + 4 * CELLS // target.rows.width
    parts = [slice(start, start + size) for start in range(0, max(1, len(row)), size)]
    cosines = [exact_cosines(target.rows.vectors(row[part]), target.queries, query[part]) for part in parts]
    return cosines[0] if len(cosines) == 1 else np.concatenate(cosines)
