"""A gallery in memory: plain NumPy, exact, the reference for every other one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError
from fixstar.gallery.arguments import checked_ids, checked_projection, checked_vectors, payload_texts
from fixstar.gallery.exact import Change, ExactSearch
from fixstar.gallery.store import Hit, Item, Payload, Vectors, VersionSpace, Where

__all__ = ["MemoryGallery"]


class MemoryGallery:
    """See ``Gallery``. Nothing is kept when the process ends. Threads may share it."""

    def __init__(self) -> None:
        self._exact: ExactSearch | None = ExactSearch()
        self._where: dict[str, tuple[str, int]] = {}  # id -> version, number
        self._number = 0
        self._lock = threading.RLock()

    def create_version(self, name: str, width: int, projection: Vectors | None = None) -> None:
        """Make room for vectors of a version."""
        with self._lock:
            exact = self._open()
            matrix = checked_projection(name, width, projection, [space.name for space in exact.spaces()])
            exact.add_version(VersionSpace(name, int(width), int(width) if matrix is None else len(matrix)), matrix)

    def versions(self) -> list[VersionSpace]:
        """All versions, oldest first."""
        return self._open().spaces()

    def projection(self, version: str) -> NDArray[np.float32] | None:
        """P [d, m] of a version whose vectors are short forms."""
        return self._open().projection(version)

    def upsert(
        self, version: str, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload] | None = None
    ) -> None:
        """Store unit vectors of a version, all or none."""
        rows = checked_vectors(vectors, self._open().space(version).width, version)
        names = checked_ids(ids)
        texts = payload_texts(names, len(rows), payloads)
        with self._lock:
            exact, changes = self._open(), self._removal(names)
            numbers = list(range(self._number, self._number + len(names)))
            change = changes.setdefault(version, Change())
            change.numbers, change.ids, change.vectors, change.texts = numbers, names, rows, texts
            exact.apply(changes)
            self._number += len(names)
            self._where.update(zip(names, ((version, number) for number in numbers), strict=True))

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items; how many there were."""
        names = checked_ids(ids, distinct=False)
        with self._lock:
            exact, changes = self._open(), self._removal(names)
            exact.apply(changes)
            for name in names:
                self._where.pop(name, None)
            return sum(len(change.removed) for change in changes.values())

    def get(self, ids: Sequence[str]) -> dict[str, Item]:
        """The items of these ids, as far as there are any."""
        with self._lock:
            self._open()
            return {name: self._item(name) for name in checked_ids(ids, distinct=False) if name in self._where}

    def search(
        self,
        version: str,
        queries: Vectors,
        k: int = 10,
        where: Where | None = None,
        versions: Sequence[str] | None = None,
    ) -> list[list[Hit]]:
        """The k nearest items of each query, best first."""
        return self._open().search(version, queries, k, where, versions)

    def iterate(self, version: str | None = None, after: str | None = None) -> Iterator[Item]:
        """All items, or those of one version, sorted by id."""
        if version is not None:
            self._open().space(version)
        with self._lock:
            known = sorted(name for name in self._where if after is None or name > after)
        return self._each(known, version)

    def _each(self, known: list[str], version: str | None) -> Iterator[Item]:
        for name in known:
            with self._lock:
                self._open()
                item = self._item(name) if name in self._where else None
            if item is not None and version in (None, item.version):
                yield item

    def count(self) -> dict[str, int]:
        """The number of items by version."""
        with self._lock:
            exact = self._open()
            return {space.name: len(exact.matrix(space.name)) for space in exact.spaces()}

    def flush(self) -> None:
        """Nothing to do: memory is where this gallery is kept."""
        self._open()

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._exact = None
            self._where.clear()

    def __enter__(self) -> MemoryGallery:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> ExactSearch:
        if self._exact is None:
            raise GalleryError("this gallery is closed; open a new one")
        return self._exact

    def _item(self, name: str) -> Item:
        version, number = self._where[name]
        matrix = self._open().matrix(version)
        return Item(name, version, matrix.vector(number), matrix.payload(number))

    def _removal(self, names: Sequence[str]) -> dict[str, Change]:
        changes: dict[str, Change] = {}
        for name in set(names) & self._where.keys():
            version, number = self._where[name]
            changes.setdefault(version, Change()).removed.append(number)
        return changes
