"""A gallery in memory: plain NumPy, exact, the reference for all other galleries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fixstar.errors import GalleryError
from fixstar.gallery.filters import Payload
from fixstar.gallery.matrix import Draft, ExactSearch, parsed
from fixstar.gallery.store import (
    Floats,
    Gallery,
    Hit,
    IndexState,
    Item,
    Question,
    SearchRequest,
    Vectors,
    VersionSpace,
    check_new_version,
    replaceable,
    require_revision,
)


class MemoryGallery(Gallery):
    """See ``Gallery``. Nothing is kept when the process ends. Thread-safe."""

    def __init__(self) -> None:
        self._exact: ExactSearch | None = ExactSearch()
        self._places: dict[str, tuple[str, int]] = {}  # id -> version, number
        self._next = 1
        self._changes = 0
        self._lock = threading.RLock()

    def _create_version(self, space: VersionSpace, projection: Floats | None) -> None:
        with self._lock:
            check_new_version(space.name, [known.name for known in self.versions()])
            self._open().add_version(space, projection)

    def versions(self) -> list[VersionSpace]:
        """All versions, oldest first."""
        return self._open().spaces()

    def projection(self, version: str) -> Floats | None:
        """P [d, m] of a version whose vectors are short forms."""
        return self._open().projection(version)

    def _upsert(
        self,
        version: str,
        names: list[str],
        rows: Floats,
        texts: list[str],
        revision: int | None = None,
    ) -> Sequence[int]:
        with self._lock:
            exact = self._open()
            if revision is not None:
                require_revision(names[0], revision, self._places.get(names[0], ("", None))[1])
            drafts = self._without(names)
            numbers = range(self._next, self._next + len(names))
            drafts.setdefault(version, Draft(exact.rows[version])).append(
                numbers, names, rows, texts
            )
            exact.use({name: draft.rows() for name, draft in drafts.items()})
            self._next += len(names)
            self._changes += 1
            self._places.update(zip(names, ((version, number) for number in numbers), strict=True))
            return numbers

    def _replace_vectors(
        self, version: str, items: Sequence[Item], rows: Floats, payloads: Sequence[Payload] | None
    ) -> list[str]:
        with self._lock:
            same, names, texts = replaceable(
                items, self._get([item.id for item in items]), payloads
            )
            self._upsert(version, names, rows[same], texts)
            return names

    def _update_payload(self, name: str, changed: Callable[[Item], str]) -> Item | None:
        with self._lock:
            if name not in self._places:
                return None
            item = self._item(name)
            self._upsert(item.version, [name], item.vector[None], [changed(item)])
            return self._item(name)

    def _delete(self, names: list[str], revision: int | None) -> int:
        with self._lock:
            if names[0] in self._places:
                require_revision(names[0], revision, self._places[names[0]][1])
            self._open().use({name: draft.rows() for name, draft in self._without(names).items()})
            self._changes += 1
            return sum(self._places.pop(name, None) is not None for name in names)

    def _get(self, names: list[str]) -> dict[str, Item]:
        with self._lock:
            self._open()
            return {name: self._item(name) for name in names if name in self._places}

    def _search(self, version: str, queries: Vectors, request: SearchRequest) -> list[list[Hit]]:
        return self._open().search(version, queries, request)

    def _ask(self, questions: list[Question], request: SearchRequest) -> list[list[Hit]]:
        return self._open().ask(questions, request)

    def _build_index(self, versions: list[str]) -> None:
        """Nothing to do: search is always exact."""

    def indexes(self) -> list[IndexState]:
        """Empty: search is always exact."""
        self._open()
        return []

    def _iterate(self, version: str | None, after: str) -> Iterator[Item]:
        with self._lock:
            names = sorted(name for name in self._places if name > after)
        for name in names:
            if (item := self._get([name]).get(name)) is not None and version in (
                None,
                item.version,
            ):
                yield item

    def count(self) -> dict[str, int]:
        """The number of items by version."""
        return {name: len(rows) for name, rows in self._open().rows.items()}

    def revision(self) -> int:
        """The number of writes so far."""
        self._open()
        return self._changes

    def flush(self) -> None:
        """Nothing to do: this gallery exists only in memory."""
        self._open()

    def close(self) -> None:
        """Discard everything."""
        with self._lock:
            if self._exact is not None:
                self._exact.close()
            self._exact = None
            self._places.clear()

    def _open(self) -> ExactSearch:
        if self._exact is None:
            raise GalleryError("this gallery is closed; open a new one")
        return self._exact

    def _item(self, name: str) -> Item:
        version, number = self._places[name]
        rows = self._open().rows[version]
        row = rows.find(np.array([number]))
        return Item(name, version, rows.vectors(row)[0], parsed(rows.labels(row)[1][0]), number)

    def _without(self, names: Sequence[str]) -> dict[str, Draft]:
        """The versions that hold these items, without them."""
        gone: dict[str, list[int]] = {}
        for name in set(names) & self._places.keys():
            version, number = self._places[name]
            gone.setdefault(version, []).append(number)
        drafts = {version: Draft(self._open().rows[version]) for version in gone}
        for version, numbers in gone.items():
            drafts[version].remove(numbers)
        return drafts
