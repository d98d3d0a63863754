"""The matrices of an embedded gallery, kept equal to its file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from fixstar.errors import GalleryError
from fixstar.gallery.draft import Draft
from fixstar.gallery.exact import ExactSearch
from fixstar.gallery.ranking import Floats
from fixstar.gallery.segments import Numbers
from fixstar.gallery.store import VersionSpace

__all__ = ["StoredMatrices"]

_PAGE = 4096
_ROWS = "SELECT number, version, id, payload, vector FROM items WHERE number > ? ORDER BY number"


class StoredMatrices:
    """Exact search over what is in the file, as of the last ``refresh``."""

    def __init__(self) -> None:
        self.exact = ExactSearch()
        self.position = 0  # the last number taken in; all of them, up to it
        self._names: dict[int, str] = {}  # by the version's number in the file
        self._removed = 0
        self._lock = threading.Lock()

    def refresh(self, db: sqlite3.Connection) -> None:
        """Take in everything that was committed before this call, from one snapshot of the file.

        All at once: no search sees an item twice, or not at all, while it moves. Searches under way are not touched.
        """
        with self._lock:
            db.execute("BEGIN")
            try:
                self._take_versions(db)
                drafts = {name: Draft(rows) for name, rows in self.exact.rows().items()}
                self._take_items(db, drafts)
                for name, numbers in self._gone(db):
                    drafts[name].remove(numbers)
                positions = dict(db.execute("SELECT name, seq FROM sqlite_sequence"))
                self.exact.use({name: draft.rows() for name, draft in drafts.items()})
                self.position, self._removed = positions.get("items", 0), positions.get("removed", 0)
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

    def _take_items(self, db: sqlite3.Connection, drafts: dict[str, Draft]) -> None:
        """What was written, page by page: beside the matrices only one page is in memory."""
        rows = db.execute(_ROWS, (self.position,))
        while page := rows.fetchmany(_PAGE):
            for version in {row[1] for row in page}:
                part = [row for row in page if row[1] == version]
                numbers, _, ids, texts, blobs = zip(*part, strict=True)
                name = self._names[version]
                drafts[name].append(numbers, ids, self._vectors(name, ids, blobs), texts)

    def _vectors(self, name: str, ids: Sequence[str], blobs: Sequence[bytes]) -> Floats:
        size = 4 * self.exact.space(name).width
        if wrong := [item for item, blob in zip(ids, blobs, strict=True) if len(blob) != size]:
            raise GalleryError(f"the vector of {wrong[0]!r} is damaged; restore the gallery from a copy")
        return np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), -1).astype(np.float32)

    def _gone(self, db: sqlite3.Connection) -> Iterator[tuple[str, Sequence[int] | Numbers]]:
        """The numbers of removed rows by version; some of them may never have been here."""
        if not self.position:
            return
        oldest: int | None = db.execute("SELECT min(number) FROM removed").fetchone()[0]
        if oldest is not None and oldest > self._removed + 1:
            yield from self._missing(db)
            return
        gone: dict[int, list[int]] = {}
        for version, item in db.execute("SELECT version, item FROM removed WHERE number > ?", (self._removed,)):
            gone.setdefault(version, []).append(item)
        yield from ((self._names[version], numbers) for version, numbers in gone.items())

    def _missing(self, db: sqlite3.Connection) -> Iterator[tuple[str, Numbers]]:
        """The same where removals are no longer listed: what is here and not in the file."""
        for version, name in self._names.items():
            there = db.execute("SELECT number FROM items INDEXED BY items_by_version WHERE version = ?", (version,))
            kept = np.fromiter((number for (number,) in there), np.int64)
            for numbers, _ in self.exact.rows()[name].pages(0, 1 << 16):
                yield name, numbers[~np.isin(numbers, kept)]
