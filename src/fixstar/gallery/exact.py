"""Exact search over the matrices of all versions at once: every gallery that keeps vectors in memory is made of this.

A query of version t meets the vectors of version k through one small matrix, B = Q_t^T Q_k, made once for each pair
(``geometry.carry``). Searches run side by side, in any number of threads; a change waits for those under way and is
seen by the next one as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fixstar.gallery.arguments import checked_k, checked_vectors, unknown_version
from fixstar.gallery.filters import payload_test
from fixstar.gallery.matrix import VersionMatrix, parsed
from fixstar.gallery.ranking import candidates, exact_cosines, first_of_each
from fixstar.gallery.store import Hit, Vectors, VersionSpace, Where
from fixstar.geometry import carry, short_basis

__all__ = ["Change", "ExactSearch"]

QUERIES = 128  # queries at once; a change waits for no more than these

Projection = NDArray[np.float32]


@dataclass
class Change:
    """What one version loses and gains; ``vectors`` is [rows, width]."""

    removed: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    vectors: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    texts: list[str] = field(default_factory=list)


class _Version:
    """A version's matrix, and the space its vectors live in."""

    def __init__(self, space: VersionSpace, projection: Projection | None) -> None:
        self.space, self.projection = space, projection
        self.matrix = VersionMatrix(space.width)

    @cached_property
    def basis(self) -> NDArray[np.float64] | None:
        """Q [d, s], made when it is first needed: a gallery of one version never needs it."""
        return None if self.projection is None else short_basis(self.projection.astype(np.float64))


class ExactSearch:
    """Versions and their rows in memory, searched by exact cosine."""

    def __init__(self) -> None:
        self._versions: dict[str, _Version] = {}
        self._bridges: dict[tuple[str, str], NDArray[np.float64]] = {}
        self._gate = _Gate()

    def add_version(self, space: VersionSpace, projection: Projection | None) -> None:
        """Take in a version without rows."""
        with self._gate.changing():
            self._versions[space.name] = _Version(space, projection)

    def spaces(self) -> list[VersionSpace]:
        """The versions, in the order in which they came."""
        return [version.space for version in list(self._versions.values())]

    def projection(self, name: str) -> Projection | None:
        """P [d, m] of a version."""
        return self._version(name).projection

    def space(self, name: str) -> VersionSpace:
        """One version, or an error that names those there are."""
        return self._version(name).space

    def matrix(self, name: str) -> VersionMatrix:
        """The rows of a version, for whoever makes the changes."""
        return self._version(name).matrix

    def apply(self, changes: dict[str, Change]) -> None:
        """Make changes to several versions that no search sees in part."""
        with self._gate.changing():
            for name, change in changes.items():
                matrix = self._versions[name].matrix
                matrix.remove(change.removed)
                if change.ids:
                    matrix.append(change.numbers, change.ids, change.vectors, change.texts)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Keep searches out, for a change in many steps."""
        with self._gate.changing():
            yield

    def clear(self) -> None:
        """Forget all rows, keep the versions. Only while ``changing``."""
        for version in self._versions.values():
            version.matrix = VersionMatrix(version.space.width)

    def search(
        self, version: str, queries: Vectors, k: int, where: Where | None = None, versions: Sequence[str] | None = None
    ) -> list[list[Hit]]:
        """See ``Gallery.search``."""
        source, k = self._version(version), checked_k(k)
        names = list(self._versions) if versions is None else versions
        targets = [self._version(name) for name in dict.fromkeys(names)]
        unit_queries = checked_vectors(queries, source.space.width, version)
        if where is not None:
            payload_test(where)  # a wrong filter is told even where there is nothing to search
        hits: list[list[Hit]] = []
        for start in range(0, len(unit_queries), QUERIES):
            hits += self._search(source, unit_queries[start : start + QUERIES], k, where, targets)
        return hits

    def _search(
        self, source: _Version, queries: Projection, k: int, where: Where | None, targets: list[_Version]
    ) -> list[list[Hit]]:
        carried: dict[str, NDArray[np.float64]] = {}
        while True:
            with self._gate.reading():
                live = [target for target in targets if len(target.matrix)]
                missing = [target for target in live if target.space.name not in carried]
                if not missing:
                    return _nearest(carried, live, len(queries), k, where)
            for target in missing:  # a bridge takes its time when it is first needed; nobody waits for it
                carried[target.space.name] = self._carried(queries, source, target)

    def _carried(self, queries: Projection, source: _Version, target: _Version) -> NDArray[np.float64]:
        """Queries in the target's space, where dot products are cosines of full features."""
        wide = queries.astype(np.float64)
        if source is target:
            return wide
        if source.basis is None or target.basis is None:
            return carry(wide, source.basis, target.basis, target.space.full_width)
        pair = source.space.name, target.space.name
        if pair not in self._bridges:
            one_by_one = np.eye(source.space.width)
            self._bridges[pair] = carry(one_by_one, source.basis, target.basis, target.space.full_width)
        return wide @ self._bridges[pair]

    def _version(self, name: str) -> _Version:
        try:
            return self._versions[name]
        except (KeyError, TypeError):
            raise unknown_version(name, self._versions) from None


def _nearest(
    carried: dict[str, NDArray[np.float64]], live: list[_Version], queries: int, k: int, where: Where | None
) -> list[list[Hit]]:
    """The k best of all versions for each query; ``carried`` has the queries in each version's space."""
    found = []
    for place, target in enumerate(live):
        here, matrix = carried[target.space.name], target.matrix
        allowed = None if where is None else matrix.allowed(where)
        query, row = candidates(matrix.vectors, here.astype(np.float32), k, allowed)
        cosine = exact_cosines(matrix.vectors, here, query, row)
        found.append((query, cosine, matrix.numbers[row], row, np.full(len(row), place)))
    hits: list[list[Hit]] = [[] for _ in range(queries)]
    if not found:
        return hits
    query, cosine, number, row, place_of = (np.concatenate([part[i] for part in found]) for i in range(5))
    best = first_of_each(query, cosine, number, k)
    columns = (query[best].tolist(), cosine[best].tolist(), row[best].tolist(), place_of[best].tolist())
    for q, score, r, p in zip(*columns, strict=True):
        matrix = live[p].matrix
        hits[q].append(Hit(matrix.ids[r], score, live[p].space.name, parsed(matrix.texts[r])))
    return hits


class _Gate:
    """Any number of readers, or one who changes things; who wants to change goes before new readers."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0
        self._waiting = 0
        self._changing = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._changing and not self._waiting)
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    @contextmanager
    def changing(self) -> Iterator[None]:
        with self._condition:
            self._waiting += 1
            self._condition.wait_for(lambda: not self._changing and not self._readers)
            self._waiting -= 1
            self._changing = True
        try:
            yield
        finally:
            with self._condition:
                self._changing = False
                self._condition.notify_all()
