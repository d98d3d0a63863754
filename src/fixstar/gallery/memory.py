"""A gallery in memory: plain NumPy, exact, the reference for every other one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError
from fixstar.gallery.arguments import checked_ids, checked_projection, checked_vectors, payload_texts, replaceable
from fixstar.gallery.draft import Draft
from fixstar.gallery.exact import ExactSearch
from fixstar.gallery.matrix import parsed
from fixstar.gallery.store import Hit, IndexState, Item, Payload, SearchOptions, SearchRequest, Vectors, VersionSpace

__all__ = ["MemoryGallery"]


class MemoryGallery:
    """See ``Gallery``. Nothing is kept when the process ends. Threads may share it."""

    def __init__(self) -> None:
        self._exact: ExactSearch | None = ExactSearch()
        self._where: dict[str, tuple[str, int]] = {}  # id -> version, number
        self._number = 0
        self._lock = threading.RLock()

    def create_version(self, name: str, width: int, projection: Vectors | None = None, copied: bool = False) -> None:
        """Make room for vectors of a version."""
        with self._lock:
            exact = self._open()
            matrix = checked_projection(name, width, projection, [space.name for space in exact.spaces()], copied)
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
            exact = self._open()
            drafts, _ = self._removal(names)
            numbers = range(self._number, self._number + len(names))
            drafts.setdefault(version, Draft(exact.rows()[version])).append(numbers, names, rows, texts)
            exact.use({name: draft.rows() for name, draft in drafts.items()})
            self._number += len(names)
            self._where.update(zip(names, ((version, number) for number in numbers), strict=True))

    def replace_vectors(
        self, version: str, items: Sequence[Item], vectors: Vectors, payloads: Sequence[Payload] | None = None
    ) -> list[str]:
        """Give items new vectors, and payloads, where they still hold the vectors given with them; the ids of these."""
        with self._lock:
            rows = checked_vectors(vectors, self._open().space(version).width, version)
            now = self.get([item.id for item in items])
            same, contents = replaceable(items, now, len(rows), payloads)
            names = [items[row].id for row in same]
            self.upsert(version, names, rows[same], contents)
            return names

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items; how many there were."""
        names = checked_ids(ids, distinct=False)
        with self._lock:
            exact = self._open()
            drafts, removed = self._removal(names)
            exact.use({name: draft.rows() for name, draft in drafts.items()})
            for name in names:
                self._where.pop(name, None)
            return removed

    def get(self, ids: Sequence[str]) -> dict[str, Item]:
        """The items of these ids, as far as there are any."""
        with self._lock:
            self._open()
            return {name: self._item(name) for name in checked_ids(ids, distinct=False) if name in self._where}

    def search(
        self,
        version: str,
        queries: Vectors,
        request: SearchRequest | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[list[Hit]]:
        """The k nearest items of each query, best first; always exact."""
        return self._open().search(version, queries, SearchRequest.of(request, **options))

    def build_index(self, version: str | None = None) -> list[IndexState]:
        """Nothing to do: there is no approximate search here."""
        if version is not None:
            self._open().space(version)
        return self.indexes()

    def indexes(self) -> list[IndexState]:
        """None: search is always exact."""
        self._open()
        return []

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
            return {space.name: len(exact.rows()[space.name]) for space in exact.spaces()}

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
        rows = self._open().rows()[version]
        row = rows.find(np.array([number]))
        return Item(name, version, rows.vectors(row)[0], parsed(rows.id_and_text(int(row[0]))[1]))

    def _removal(self, names: Sequence[str]) -> tuple[dict[str, Draft], int]:
        """What is left of the versions that hold these items without them, and how many there were."""
        gone: dict[str, list[int]] = {}
        for name in set(names) & self._where.keys():
            version, number = self._where[name]
            gone.setdefault(version, []).append(number)
        drafts = {version: Draft(self._open().rows()[version]) for version in gone}
        for version, numbers in gone.items():
            drafts[version].remove(numbers)
        return drafts, sum(map(len, gone.values()))
