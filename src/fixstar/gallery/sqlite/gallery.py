"""The embedded gallery: one SQLite file is the truth, exact matrices in memory answer searches.

Every search first looks whether anything was written since the last one (microseconds if not) and takes in what was,
whoever wrote it: this thread, another one, another process. Threads may share a gallery, each has its own connection.
Any number of processes may open the same file; one writes at a time, the others wait, and no search waits for a writer.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError, GalleryUnavailableError
from fixstar.gallery.arguments import (
    checked_ids,
    checked_projection,
    checked_vectors,
    checked_version,
    payload_texts,
    replaceable,
    unknown_version,
)
from fixstar.gallery.index_keeper import IndexKeeper
from fixstar.gallery.sqlite.file import Session, connect, is_writable, prepare, translated
from fixstar.gallery.sqlite.matrices import StoredMatrices
from fixstar.gallery.sqlite.statements import (
    as_item,
    find_version,
    items_of,
    read_rows,
    remove_items,
    version_names,
    write_items,
)
from fixstar.gallery.store import Hit, IndexState, Item, Payload, SearchOptions, SearchRequest, Vectors, VersionSpace

__all__ = ["SqliteGallery"]

_PAGE = 256  # items read at once by iterate


class SqliteGallery:
    """See ``Gallery``. ``wait`` is how many seconds a write waits for another process that is writing.

    Approximate searches get an index, in the background, for versions with more than ``index_above`` vectors.
    """

    def __init__(
        self,
        path: str | Path,
        create: bool = True,
        read_only: bool = False,
        wait: float = 30.0,
        index_above: int = 200_000,
    ) -> None:
        self.path = Path(path).absolute()
        self.read_only = read_only or (self.path.exists() and not is_writable(self.path))
        self._wait = wait
        with translated(self.path):
            prepare(self.path, create, self.read_only, wait)
        self._own = threading.local()
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._closed = False
        self._matrices = StoredMatrices()
        beside = self.path.with_name(self.path.name + ".index")
        self._keeper = IndexKeeper(self._matrices, beside, index_above, self.read_only)
        self._stop_building = weakref.finalize(self, self._keeper.close)  # also when the program ends

    def create_version(self, name: str, width: int, projection: Vectors | None = None, copied: bool = False) -> None:
        """Make room for vectors of a version."""
        with self._writing() as db:
            matrix = checked_projection(name, width, projection, [known for _, known in version_names(db)], copied)
            full, blob = (width, None) if matrix is None else (len(matrix), matrix.astype("<f4").tobytes())
            db.execute(
                "INSERT INTO versions (name, width, full_width, projection, created) VALUES (?, ?, ?, ?, ?)",
                (name, int(width), int(full), blob, datetime.now(UTC).isoformat(timespec="seconds")),
            )

    def versions(self) -> list[VersionSpace]:
        """All versions, oldest first."""
        with self._reading() as db:
            rows = db.execute("SELECT name, width, full_width FROM versions ORDER BY number")
            return [VersionSpace(*row) for row in rows]

    def projection(self, version: str) -> NDArray[np.float32] | None:
        """P [d, m] of a version whose vectors are short forms."""
        with self._reading() as db:
            row = db.execute("SELECT full_width, projection FROM versions WHERE name = ?", (version,)).fetchone()
            if row is None:
                raise unknown_version(version, [name for _, name in version_names(db)])
        return None if row[1] is None else np.frombuffer(row[1], "<f4").reshape(row[0], -1).astype(np.float32)

    def upsert(
        self, version: str, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload] | None = None
    ) -> None:
        """Store unit vectors of a version, all or none; on disk when it returns."""
        with self._reading() as db:
            number, width = find_version(db, version)
        rows = checked_vectors(vectors, width, version)
        names = checked_ids(ids)
        texts = payload_texts(names, len(rows), payloads)
        if not names:
            return
        with self._writing() as db:
            write_items(db, number, names, rows, texts)

    def replace_vectors(
        self, version: str, items: Sequence[Item], vectors: Vectors, payloads: Sequence[Payload] | None = None
    ) -> list[str]:
        """Give items new vectors, and payloads, where they still hold the vectors given with them; the ids of these."""
        with self._writing() as db:
            number, width = find_version(db, version)
            rows = checked_vectors(vectors, width, version)
            now = items_of(db, [item.id for item in items])
            same, contents = replaceable(items, now, len(rows), payloads)
            names = [items[row].id for row in same]
            write_items(db, number, names, rows[same], payload_texts(names, len(same), contents))
        return names

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items; how many there were."""
        names = checked_ids(ids, distinct=False)
        if not names:
            return 0
        with self._writing() as db:
            return remove_items(db, names)

    def get(self, ids: Sequence[str]) -> dict[str, Item]:
        """The items of these ids, as far as there are any."""
        wanted = checked_ids(ids, distinct=False)
        with self._reading() as db:
            found = items_of(db, wanted)
        return {name: found[name] for name in ids if name in found}

    def search(
        self,
        version: str,
        queries: Vectors,
        request: SearchRequest | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[list[Hit]]:
        """The k nearest items of each query, best first."""
        wanted = SearchRequest.of(request, **options)
        self._refresh()
        if not wanted.exact:
            self._keeper.look_after()
        return self._matrices.exact.search(version, queries, wanted)

    def build_index(self, version: str | None = None) -> list[IndexState]:
        """Build the HNSW index of a version, or of all, anew; it is saved beside the file, and searches go on."""
        self._refresh()
        known = [space.name for space in self._matrices.exact.spaces()]
        return self._keeper.build(known if version is None else [checked_version(version, known)])

    def indexes(self) -> list[IndexState]:
        """The HNSW indexes in use."""
        self._refresh()
        return self._keeper.states()

    def iterate(self, version: str | None = None, after: str | None = None) -> Iterator[Item]:
        """All items, or those of one version, sorted by id; no lock is held between two of them."""
        number = None
        if version is not None:
            with self._reading() as db:
                number = find_version(db, version)[0]
        return self._each(number, "" if after is None else after)

    def _each(self, number: int | None, after: str) -> Iterator[Item]:
        narrowed, first = ("", ()) if number is None else ("version = ? AND ", (number,))
        while True:
            with self._reading() as db:
                page = read_rows(db, f"{narrowed}id > ? ORDER BY id LIMIT {_PAGE}", (*first, after))
            if not page:
                return
            yield from map(as_item, page)
            after = page[-1][0]

    def count(self) -> dict[str, int]:
        """The number of items by version."""
        with self._reading() as db:
            return dict(db.execute("SELECT name, items FROM versions ORDER BY number"))

    def flush(self) -> None:
        """Move the log into the file, so that the file alone is the gallery. Acknowledged writes are safe without.

        Raises if somebody reads or writes for longer than ``wait``: the log is then still needed beside the file.
        """
        with self._reading() as db:
            if self.read_only:
                return
            busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]  # an answer, not an error
        if busy:
            raise GalleryUnavailableError(
                f"others read or write {self.path} and did not pause for {self._wait:g} s, so part of it is still in "
                f"{self.path.name}-wal beside it. Nothing is lost, but do not copy the file alone: flush again when "
                "they are done, or copy with fixstar.gallery.copy_gallery"
            )

    def compact(self) -> None:
        """Give back the room of removed items. Rewrites the file; searches go on, writers wait."""
        with self._reading() as db:
            db.execute("VACUUM")
        self.flush()

    def damage(self) -> list[str]:
        """What SQLite finds wrong with the file; empty if all is well. Reads everything."""
        with self._reading() as db:
            return [row[0] for row in db.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]

    def close(self) -> None:
        """Close all connections and forget the matrices; the file stays."""
        self._closed = True
        self._stop_building()
        for session in list(self._sessions):
            session.db.close()
        self._matrices = StoredMatrices()
        self._keeper = IndexKeeper(self._matrices, self.path, 0, read_only=True)  # lets go of the old one's memory

    def __enter__(self) -> SqliteGallery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _session(self) -> Session:
        if self._closed:
            raise GalleryUnavailableError(f"the gallery {self.path} is closed; open it again")
        session: Session | None = getattr(self._own, "session", None)
        if session is None or session.is_stale():
            session = self._own.session = Session(*connect(self.path, self.read_only, self._wait))
            self._sessions.add(session)
        return session

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with translated(self.path):
            yield self._session().db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with translated(self.path):
            session = self._session()
            db = session.db
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            session.written += 1
        if self._matrices.position:  # who has searched keeps up with its own writes, so that no search waits for them
            with suppress(GalleryError):  # the write is done; what is wrong the next search will say
                self._refresh()

    def _refresh(self) -> None:
        """Take in what was written since this thread's last look."""
        try:
            session = self._session()
            now = session.position()
            if now != session.seen:
                self._matrices.refresh(session.db)
                session.seen = now
        except (sqlite3.Error, OSError) as error:
            with translated(self.path):  # entered only now: every search comes by here
                raise error
