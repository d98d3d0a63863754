"""The matrices of an embedded gallery, kept equal to its file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable

import numpy as np

from fixstar.errors import GalleryError
from fixstar.gallery.exact import Change, ExactSearch
from fixstar.gallery.store import VersionSpace

__all__ = ["StoredMatrices"]

_PAGE = 4096
_ROWS = "SELECT number, version, id, payload, vector FROM items WHERE number > ? ORDER BY number"


class StoredMatrices:
    """Exact search over what is in the file, as of the last ``refresh``."""

    def __init__(self) -> None:
        self.exact = ExactSearch()
        self._names: dict[int, str] = {}  # by the version's number in the file
        self._item = 0  # the last number taken in
        self._removed = 0
        self._lock = threading.Lock()

    def refresh(self, db: sqlite3.Connection) -> None:
        """Take in everything that was committed before this call, from one snapshot of the file."""
        with self._lock:
            db.execute("BEGIN")
            try:
                self._take_versions(db)
                if self._item == 0 or self._has_forgotten(db):
                    self._load(db)
                else:
                    self._update(db)
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")  # nothing was written

    def _take_versions(self, db: sqlite3.Connection) -> None:
        rows = db.execute(
            "SELECT number, name, width, full_width, projection FROM versions WHERE number > ? ORDER BY number",
            (max(self._names, default=0),),
        )
        for number, name, width, full_width, blob in rows:
            projection = None if blob is None else np.frombuffer(blob, "<f4").reshape(full_width, -1).astype(np.float32)
            self.exact.add_version(VersionSpace(name, width, full_width), projection)
            self._names[number] = name

    def _has_forgotten(self, db: sqlite3.Connection) -> bool:
        """Whether removals that are not taken in yet are no longer listed."""
        oldest: int | None = db.execute("SELECT min(number) FROM removed").fetchone()[0]
        return oldest is not None and oldest > self._removed + 1

    def _load(self, db: sqlite3.Connection) -> None:
        """Everything anew, page by page: beside the matrices only one page is in memory."""
        with self.exact.changing():
            self._item = 0  # if this fails, the next refresh starts over
            self.exact.clear()
            for number, items in db.execute("SELECT number, items FROM versions"):
                self.exact.matrix(self._names[number]).reserve(items + items // 8)
            rows = db.execute(_ROWS, (0,))
            while page := rows.fetchmany(_PAGE):
                for name, change in self._changes(page).items():
                    self.exact.matrix(name).append(change.numbers, change.ids, change.vectors, change.texts)
            self._take_positions(db)

    def _update(self, db: sqlite3.Connection) -> None:
        """What is new, all at once: no search sees an item twice, or not at all, while it moves."""
        changes = self._changes(db.execute(_ROWS, (self._item,)))
        gone = db.execute("SELECT version, item FROM removed WHERE number > ?", (self._removed,))
        for version, item in gone:
            changes.setdefault(self._names[version], Change()).removed.append(item)
        self.exact.apply(changes)
        self._take_positions(db)

    def _take_positions(self, db: sqlite3.Connection) -> None:
        positions = dict(db.execute("SELECT name, seq FROM sqlite_sequence"))
        self._item, self._removed = positions.get("items", 0), positions.get("removed", 0)

    def _changes(self, rows: Iterable[tuple[int, int, str, str, bytes]]) -> dict[str, Change]:
        changes: dict[str, Change] = {}
        blobs: dict[str, list[bytes]] = {}
        for number, version, item, text, blob in rows:
            name = self._names[version]
            change = changes.setdefault(name, Change())
            change.numbers.append(number)
            change.ids.append(item)
            change.texts.append(text)
            blobs.setdefault(name, []).append(blob)
        for name, parts in blobs.items():
            change, size = changes[name], 4 * self.exact.space(name).width
            if wrong := [item for item, blob in zip(change.ids, parts, strict=True) if len(blob) != size]:
                raise GalleryError(f"the vector of {wrong[0]!r} is damaged; restore the gallery from a copy")
            change.vectors = np.frombuffer(b"".join(parts), "<f4").reshape(len(parts), -1).astype(np.float32)
        return changes
