"""The embedded gallery: one SQLite file holds the data, exact matrices in memory answer searches.

Every search first checks for new writes (microseconds if there are none) and reads them, whether they come from this
thread, another one or another process. Threads may share a gallery; each has its own connection. Any number of
processes may open the same file. One writes at a time and the others wait; searches never wait.

versions   one row per version; ``items`` counts its vectors; ``digest`` covers its name, widths and projection
items      one row per item; ``digest`` covers its version, id, payload and vector, and is checked when it is read. Rows
           are never updated: writing an item again removes its row and adds one with a new, higher number, so
           ``number > n`` is everything written since n
removed    the numbers of removed rows, for processes that hold them in memory; the oldest are forgotten

Write-ahead log: readers never wait for a writer. ``synchronous=FULL``: a write that returned survives a power cut.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import struct
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import DamagedItemError, GalleryError, GalleryUnavailableError
from fixstar.gallery.filters import Payload
from fixstar.gallery.hnsw import IndexKeeper
from fixstar.gallery.matrix import Draft, ExactSearch, Numbers
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
    require_digest,
    require_revision,
    stored_payload,
    stored_projection,
)

_FORMAT = 1
_APPLICATION = 0x66787374  # "fxst", in the file's header
_PAGE_SIZE = (
    1 << 16
)  # wastes least: 31 vectors of 512 components per page; 8 KiB would waste a quarter
_WAL_PAGES = (16 << 20) // _PAGE_SIZE
_REMOVED_KEPT = 100_000  # a process that missed more reads everything again
_READ = 512  # rows per read, few enough not to trigger the garbage collector
_PAGE = 256  # maximum number of items that iterate reads at once
_PAGE_BYTES = 8 << 20  # maximum bytes of their vectors and payloads
_Row = tuple[  # id, version, its width and number, vector, payload, digest, number
    str, str | None, int, int, bytes, bytes, bytes, int
]
_TABLES = (
    "CREATE TABLE versions (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, "
    "width INTEGER NOT NULL, full_width INTEGER NOT NULL, projection BLOB, digest BLOB NOT NULL, "
    "created TEXT NOT NULL, items INTEGER NOT NULL DEFAULT 0)",
    "CREATE TABLE items (number INTEGER PRIMARY KEY AUTOINCREMENT, "
    "version INTEGER NOT NULL REFERENCES versions (number), id TEXT NOT NULL, payload TEXT NOT NULL, "
    "digest BLOB NOT NULL, vector BLOB NOT NULL)",
    "CREATE UNIQUE INDEX items_by_id ON items (id)",
    "CREATE INDEX items_by_version ON items (version, id)",
    "CREATE TABLE removed (number INTEGER PRIMARY KEY AUTOINCREMENT, version INTEGER NOT NULL, item INTEGER NOT NULL)",
)


class _Session:
    """One thread's connection, and how much of the file it has read.

    ``frozen`` returns the file's state if SQLite was told that there are no writers; changes are then detected here.
    """

    def __init__(self, db: sqlite3.Connection, frozen: Callable[[], object] | None = None) -> None:
        self.db = db
        self.written = 0
        self._process = os.getpid()
        self.seen: tuple[int, int] | None = None
        self._state = frozen
        self._frozen = frozen and frozen()

    def is_stale(self) -> bool:
        """Whether to reconnect, after a fork or a change that the connection cannot see."""
        return self._process != os.getpid() or (
            self._state is not None and self._state() != self._frozen
        )


def _is_writable(path: Path) -> bool:
    """Whether the file, and the directory where its log goes, can be written."""
    return os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))


def _connect(
    path: Path, read_only: bool, wait: float
) -> tuple[sqlite3.Connection, Callable[[], object] | None]:
    """The arguments of a ``_Session``; ``wait`` is how many seconds to wait for another writer."""
    if not read_only:
        return _connected(path, "mode=rw", wait), None
    db = _connected(path, "mode=ro", wait)
    log = path.with_name(path.name + "-wal")
    try:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except (
        sqlite3.OperationalError
    ):  # no log can be created beside the file, so there is no writer either
        db.close()
        if log.exists() and log.stat().st_size:
            raise
        frozen = _connected(path, "immutable=1", wait)
        return frozen, lambda: (path.stat().st_mtime_ns, path.stat().st_size, log.exists())
    return db, None


def _connected(path: Path, mode: str, wait: float) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?{mode}"
    db = sqlite3.connect(uri, uri=True, timeout=wait, isolation_level=None, check_same_thread=False)
    if mode.startswith("mode=rw"):
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
        db.execute(f"PRAGMA journal_size_limit = {64 << 20}")
        db.execute("PRAGMA foreign_keys = ON")
    return db


def _prepare(path: Path, create: bool, read_only: bool, wait: float) -> None:
    """Check that the file is a gallery that this fixstar can open; create it if it does not exist."""
    if path.is_dir():
        raise GalleryError(
            f"{path} is a directory; a gallery is one file, such as {path / 'gallery.db'}"
        )
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        if file.exists() and not file.is_file():
            raise GalleryError(
                f"{file} is a pipe, a socket or a device, not the file of a gallery; remove it"
            )
    if not path.exists() or not path.stat().st_size:
        _make(path, create and not read_only, wait)
    _refuse_damaged_log(path)
    try:
        with closing(_connect(path, read_only, wait)[0]) as db:
            db.execute("BEGIN")  # one snapshot: another process may be creating the tables
            asked = (
                "PRAGMA application_id",
                "PRAGMA user_version",
                "SELECT count(*) FROM sqlite_master",
            )
            application, version, tables = (db.execute(one).fetchone()[0] for one in asked)
            db.execute("ROLLBACK")
            if (application, version, tables) == (0, 0, 0):
                _fill(db)  # its creator was killed before this, or has not done it yet
                return
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "") != "SQLITE_NOTADB":
            raise
        raise GalleryError(
            f"{path} is not a gallery and was left unchanged; choose another path"
        ) from error
    if application != _APPLICATION:
        raise GalleryError(
            f"{path} is an SQLite database of another program, not a gallery; it was left unchanged"
        )
    if version < 1:
        raise GalleryError(
            f"{path} is damaged: it has no format; it was left unchanged. Restore it from a backup"
        )
    if version > _FORMAT:
        raise GalleryError(
            f"{path} has format {version}; this fixstar reads formats up to {_FORMAT}. Update fixstar"
        )


def _make(path: Path, create: bool, wait: float) -> None:
    if not create:
        raise GalleryError(
            f"there is no gallery at {path}; check the path, or open it for writing to create one"
        )
    if not path.parent.is_dir():
        raise GalleryError(f"the directory {path.parent} does not exist; create it first")
    if not _is_writable(path):
        raise GalleryError(f"{path} cannot be created: the directory is read-only")
    with closing(_connected(path, "mode=rwc", wait)) as db:
        _fill(db)


def _fill(db: sqlite3.Connection) -> None:
    """Create the tables, once, even if several processes try at the same moment."""
    db.execute(f"PRAGMA page_size = {_PAGE_SIZE}")
    _use_log(db)
    db.execute("BEGIN IMMEDIATE")
    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        for table in _TABLES:
            db.execute(table)
        db.execute(f"PRAGMA application_id = {_APPLICATION}")
        db.execute(f"PRAGMA user_version = {_FORMAT}")
    db.execute("COMMIT")


def _use_log(db: sqlite3.Connection, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while True:  # SQLite does not wait here
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _refuse_damaged_log(path: Path) -> None:
    """Refuse a gallery whose log has writes after a damaged one: SQLite silently ignores all of them.

    A log that simply ends, or ends within a write, was left by a killed process. If only the last write is damaged, it
    was left by a power cut: parts of a write reach the disk in any order before it is synced, and acknowledged. Telling
    the two apart would need a record that is synced after every write, which doubles its time.
    """
    log = path.with_name(path.name + "-wal")
    end = time.monotonic() + 1.0
    while (readable := _damaged_behind(log)) is not None:
        if time.monotonic() > end:  # otherwise another process may be writing at this moment
            raise GalleryUnavailableError(
                f"{log} is damaged: acknowledged writes after its first {readable:,} bytes can no longer be read. "
                "Restore the gallery from a backup, or truncate the file to these bytes to discard the rest"
            )
        time.sleep(0.05)


def _damaged_behind(log: Path) -> int | None:
    """How many bytes of a log SQLite can read, if complete writes follow after them (sqlite.org/walformat.html).

    The log has no locks, so it may be opened here. A file with locks must only be opened by SQLite: when a
    process closes such a file, it loses all its locks on it.
    """
    try:
        with log.open("rb") as file:
            head = file.read(32)
            if len(head) < 32:
                return None
            order = "<>"[head[3] & 1]
            salts = head[16:24]
            total = struct.unpack(">2I", head[24:])
            if _log_sum(head[:24], order) != total:
                return 0
            frame = 24 + int.from_bytes(head[8:12], "big")
            readable = 32
            whole = True
            damaged = False
            while len(written := file.read(frame)) == frame:
                if whole:
                    total = _log_sum(written[:8] + written[24:], order, *total)
                    whole = written[8:24] == salts + struct.pack(">2I", *total)
                if any(written[4:8]) and (
                    written[8:12] == salts[:4] or written[12:16] == salts[4:]
                ):
                    if whole:  # the end of a write since the log was last restarted
                        readable = file.tell()
                    elif damaged:
                        return readable
                    else:
                        damaged = True
    except FileNotFoundError:
        pass
    return None


def _log_sum(content: bytes, order: str, first: int = 0, second: int = 0) -> tuple[int, int]:
    """SQLite's checksum of words x: t_k = t_(k-1) + t_(k-2) + x_k modulo 2^32, given the last two; the new last two.

    The recurrence is a sum with Fibonacci weights, so NumPy can compute it: a full log of 16 MiB took 0.4 to 0.8 s on
    two busy cores, and 4.1 to 4.7 s with a loop over its words.
    """
    start = np.array([first, (second - first) % 2**32], np.uint32)
    words = np.concatenate([start, np.frombuffer(content, f"{order}u4").astype(np.uint32)])
    weights = _fibonacci(len(words))
    return int(np.sum(words[:-1] * weights[1:], dtype=np.uint32)), int(
        np.sum(words * weights, dtype=np.uint32)
    )


@cache
def _fibonacci(count: int) -> NDArray[np.uint32]:
    """The first ``count`` Fibonacci numbers modulo 2^32, in reverse order."""
    numbers = [1, 1]
    while len(numbers) < count:
        numbers.append((numbers[-1] + numbers[-2]) % 2**32)
    return np.array(numbers[count - 1 :: -1], np.uint32)


_MEANINGS = {
    "SQLITE_FULL": "the disk of {path} is full; nothing of this write was kept. Free some space and write again",
    "SQLITE_READONLY": "{path} cannot be written (opened for reading only, or no permission); nothing was changed",
    "SQLITE_BUSY": "another process is writing to {path} and did not finish in time; nothing was changed. Try again",
    "SQLITE_CORRUPT": "{path} is damaged ({error}); it was left unchanged. Restore it from a backup",
    "SQLITE_NOTADB": "{path} is damaged or not a gallery ({error}); it was left unchanged. Restore it from a backup",
    "SQLITE_CANTOPEN": "{path} cannot be opened ({error}); check the path and the permissions of its directory",
    "SQLITE_IOERR": "the disk under {path} failed ({error}); check it, then open the gallery again",
}


def _translated(error: sqlite3.Error | OSError, path: Path) -> GalleryError:
    """What an error of SQLite or of the disk means."""
    if isinstance(error, OSError):
        return GalleryUnavailableError(f"{path} cannot be opened: {error.strerror or error}")
    code = str(getattr(error, "sqlite_errorname", ""))
    meaning = next(
        (text for name, text in _MEANINGS.items() if code.startswith(name)), "{path}: {error}"
    )
    if isinstance(error, sqlite3.DataError):
        kind = GalleryError
    else:
        kind = GalleryUnavailableError
    return kind(meaning.format(path=path, error=error))


def _read_rows(
    db: sqlite3.Connection, condition: str, values: Mapping[str, object]
) -> sqlite3.Cursor:
    """Rows that match a condition, undecoded, so that other items can be read if one is damaged."""
    return db.execute(
        "SELECT id, name, width, version, CAST(vector AS BLOB), CAST(payload AS BLOB), items.digest, items.number "
        "FROM items "
        f"LEFT JOIN versions ON versions.number = items.version WHERE {condition}",
        values,
    )


def _first(rows: Iterable[_Row]) -> list[_Row]:
    """The rows that fit into a page, as payloads may be large."""
    page: list[_Row] = []
    size = 0
    for row in rows:
        page.append(row)
        size += len(row[4]) + len(row[5])
        if size > _PAGE_BYTES:
            break
    return page


def _item_digest(version: int, name: str, payload: bytes, vector: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(f"{version} {len(payload)} {name}\0".encode(), digest_size=8)
    digest.update(payload)
    digest.update(vector)
    return digest.digest()


def _version_digest(space: VersionSpace, projection: bytes | None) -> bytes:
    head = f"{space.width} {space.full_width} {projection is not None} {space.name}\0".encode()
    return hashlib.blake2b(head + (projection or b""), digest_size=16).digest()


def _as_item(row: _Row) -> Item:
    """Decode a row; raises if it is damaged."""
    name, version, width, owner, vector, payload, digest, revision = row
    if version is None:
        raise DamagedItemError(name, version, "it does not belong to any version of this gallery")
    if len(vector) % 4:
        raise DamagedItemError(name, version, f"the vector is damaged ({len(vector)} bytes)")
    vector_read = np.frombuffer(vector, "<f4").astype(np.float32)
    item = Item(name, version, vector_read, stored_payload(name, version, payload), revision)
    return require_digest(item, width, digest == _item_digest(owner, name, payload, vector))


def _remove_items(db: sqlite3.Connection, names: list[str], revision: int | None = None) -> int:
    """Remove items within a transaction, and record their numbers for processes that hold them in memory.

    With ``revision``, a single item, which must still have that revision.
    """
    rows = db.execute(
        "SELECT version, number FROM items WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(names, ensure_ascii=False),),
    ).fetchall()
    if not rows:
        return 0
    require_revision(names[0], revision, rows[0][1])
    db.executemany("DELETE FROM items WHERE number = ?", ((number,) for _, number in rows))
    db.executemany("INSERT INTO removed (version, item) VALUES (?, ?)", rows)
    fewer = Counter(version for version, _ in rows)
    db.executemany(
        "UPDATE versions SET items = items - ? WHERE number = ?", ((n, v) for v, n in fewer.items())
    )
    oldest, newest = db.execute("SELECT min(number), max(number) FROM removed").fetchone()
    if newest - oldest >= 2 * _REMOVED_KEPT:
        db.execute("DELETE FROM removed WHERE number <= ?", (newest - _REMOVED_KEPT,))
    return len(rows)


def _items_of(db: sqlite3.Connection, names: Sequence[str]) -> dict[str, Item]:
    wanted = {"ids": json.dumps(list(names), ensure_ascii=False)}
    return {
        row[0]: _as_item(row)
        for row in _read_rows(db, "id IN (SELECT value FROM json_each(:ids))", wanted)
    }


def _write_items(
    db: sqlite3.Connection,
    version: str,
    names: list[str],
    rows: Floats,
    texts: Sequence[str],
    revision: int | None = None,
) -> Sequence[int]:
    """Store items of a version and remove older ones with the same ids; returns the numbers of their rows."""
    if not _remove_items(db, names, revision):
        require_revision(names[0], revision, None)
    (number,) = db.execute("SELECT number FROM versions WHERE name = ?", (version,)).fetchone()
    blobs = memoryview(rows.astype("<f4", copy=False).tobytes())
    size = 4 * rows.shape[1]
    db.executemany(
        "INSERT INTO items (version, id, payload, digest, vector) VALUES (?, ?, ?, ?, ?)",
        (
            (number, name, text, _item_digest(number, name, text.encode(), vector), vector)
            for i, (name, text) in enumerate(zip(names, texts, strict=True))
            for vector in (blobs[i * size : (i + 1) * size],)
        ),
    )
    db.execute("UPDATE versions SET items = items + ? WHERE number = ?", (len(names), number))
    (last,) = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'items'").fetchone()
    return range(
        last - len(names) + 1, last + 1
    )  # there is no other writer during this transaction


def _checked_projection(space: VersionSpace, blob: bytes | None, digest: bytes) -> Floats | None:
    if digest != _version_digest(space, blob):
        raise GalleryError(
            f"the version {space.name!r} is damaged (its digest); restore the gallery from a backup"
        )
    return stored_projection(blob, space.full_width)


class _StoredMatrices:
    """Exact search over the content of the file at the last ``refresh``."""

    def __init__(self, folder: Path | None = None) -> None:
        self.exact = ExactSearch(folder)
        self.position = 0  # the last number that was read
        self._names: dict[int, str] = {}  # by the version's number in the file
        self._removed = 0
        self._lock = threading.Lock()

    def refresh(self, db: sqlite3.Connection) -> None:
        """Read everything that was committed before this call, from one snapshot of the file.

        The update is atomic: no search sees an item twice, or misses it, while it moves.
        """
        with self._lock:
            db.execute("BEGIN")
            try:
                self._read_versions(db)
                if self.position:
                    counts = {}
                else:
                    counts = dict(db.execute("SELECT name, items FROM versions"))
                drafts = {
                    name: Draft(rows, counts.get(name, 0)) for name, rows in self.exact.rows.items()
                }
                self._read_items(db, drafts)
                for name, numbers in self._gone(db):
                    drafts[name].remove(numbers)
                positions = dict(db.execute("SELECT name, seq FROM sqlite_sequence"))
                self.exact.use({name: draft.rows() for name, draft in drafts.items()})
                self.position = positions.get("items", 0)
                self._removed = positions.get("removed", 0)
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")  # nothing was written

    def _read_versions(self, db: sqlite3.Connection) -> None:
        rows = db.execute(
            "SELECT number, name, width, full_width, projection, digest FROM versions WHERE number > ? ORDER BY number",
            (max(self._names, default=0),),
        )
        for number, name, width, full_width, blob, digest in rows:
            space = VersionSpace(name, width, full_width)
            self.exact.add_version(space, _checked_projection(space, blob, digest))
            self._names[number] = name

    def _read_items(self, db: sqlite3.Connection, drafts: dict[str, Draft]) -> None:
        """Read new rows page by page, so that only one page is in memory beside the matrices."""
        rows = db.execute(
            "SELECT number, version, id, payload, vector, digest FROM items WHERE number > ? ORDER BY number",
            (self.position,),
        )
        while page := rows.fetchmany(_READ):
            for version in {row[1] for row in page}:
                part = [row for row in page if row[1] == version]
                numbers, _, ids, texts, blobs, digests = zip(*part, strict=True)
                name = self._names[version]
                vectors = self._vectors(name, ids, blobs)
                for row, digest in enumerate(digests):
                    if digest != _item_digest(version, ids[row], texts[row].encode(), blobs[row]):
                        seen = "its digest does not match its content: something changed it"
                        raise DamagedItemError(ids[row], name, seen)
                drafts[name].append(numbers, ids, vectors, texts)

    def _vectors(self, name: str, ids: Sequence[str], blobs: Sequence[bytes]) -> Floats:
        size = 4 * self.exact.rows[name].width
        if wrong := [item for item, blob in zip(ids, blobs, strict=True) if len(blob) != size]:
            raise GalleryError(
                f"the vector of {wrong[0]!r} is damaged; restore the gallery from a backup"
            )
        return np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), -1).astype(np.float32)

    def _gone(self, db: sqlite3.Connection) -> Iterator[tuple[str, Sequence[int] | Numbers]]:
        """The numbers of removed rows by version, including rows that were never read."""
        if not self.position:
            return
        oldest: int | None = db.execute("SELECT min(number) FROM removed").fetchone()[0]
        if oldest is not None and oldest > self._removed + 1:
            yield from self._missing(db)
            return
        gone: dict[int, list[int]] = {}
        for version, item in db.execute(
            "SELECT version, item FROM removed WHERE number > ?", (self._removed,)
        ):
            gone.setdefault(version, []).append(item)
        yield from ((self._names[version], numbers) for version, numbers in gone.items())

    def _missing(self, db: sqlite3.Connection) -> Iterator[tuple[str, Numbers]]:
        """Removed rows if removals are no longer listed: rows in memory that are not in the file."""
        for version, name in self._names.items():
            there = db.execute(
                "SELECT number FROM items INDEXED BY items_by_version WHERE version = ?", (version,)
            )
            kept = np.fromiter((number for (number,) in there), np.int64)
            for numbers, _ in self.exact.rows[name].pages(0, 1 << 16):
                yield name, numbers[~np.isin(numbers, kept)]


class SqliteGallery(Gallery):
    """See ``Gallery``. ``wait`` is how many seconds a write waits for another process that is writing.

    Versions with more than ``index_above`` vectors get an index for approximate searches, built in the background.
    With ``map_vectors``, a folder on a local disk, searched vectors are kept in files there instead of in memory; the
    kernel caches as much as fits. The files have no names and disappear when the gallery is closed.
    """

    def __init__(
        self,
        path: str | Path,
        create: bool = True,
        read_only: bool = False,
        wait: float = 30.0,
        index_above: int = 200_000,
        map_vectors: str | Path | None = None,
    ) -> None:
        if map_vectors is not None and not (
            Path(map_vectors).is_dir() and os.access(map_vectors, os.W_OK)
        ):
            raise GalleryError(
                f"vectors cannot be mapped: {str(map_vectors)!r} is not a folder that can be written"
            )
        self.path = Path(path).absolute()
        self.read_only = read_only or (self.path.exists() and not _is_writable(self.path))
        self._wait = wait
        try:
            _prepare(self.path, create=create, read_only=self.read_only, wait=wait)
        except (sqlite3.Error, OSError) as error:
            raise _translated(error, self.path) from error
        self._own = threading.local()
        self._sessions: weakref.WeakSet[_Session] = weakref.WeakSet()
        self._closed = False
        self._has_refused = False  # whether the disk refused a write since the log was restarted
        matrices = self._matrices = _StoredMatrices(
            None if map_vectors is None else Path(map_vectors)
        )
        beside = self.path.with_name(self.path.name + ".index")
        self._keeper = IndexKeeper(
            exact=matrices.exact,
            position=lambda: matrices.position,
            folder=beside,
            above=index_above,
            read_only=self.read_only,
        )
        self._stop_building = weakref.finalize(self, self._keeper.close)  # also at program exit
        self._stop_mapping = weakref.finalize(self, matrices.exact.close)

    def _create_version(self, space: VersionSpace, projection: Floats | None) -> None:
        with self._writing() as db:
            check_new_version(
                space.name, [name for (name,) in db.execute("SELECT name FROM versions")]
            )
            if projection is None:
                blob = None
            else:
                blob = projection.astype("<f4").tobytes()
            db.execute(
                "INSERT INTO versions (name, width, full_width, projection, digest, created) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    *space,
                    blob,
                    _version_digest(space, blob),
                    datetime.now(UTC).isoformat(timespec="microseconds"),
                ),
            )

    def versions(self) -> list[VersionSpace]:
        """All versions, oldest first."""
        with self._reading() as db:
            rows = db.execute("SELECT name, width, full_width FROM versions ORDER BY number")
            return [VersionSpace(*row) for row in rows]

    def projection(self, version: str) -> Floats | None:
        """P [d, m] of a version whose vectors are short forms."""
        space = self.space(version)
        with self._reading() as db:
            found = db.execute(
                "SELECT projection, digest FROM versions WHERE name = ?", (version,)
            ).fetchone()
        return _checked_projection(space, *found)

    def _upsert(
        self, version: str, names: list[str], rows: Floats, texts: list[str], revision: int | None
    ) -> Sequence[int]:
        if not names:
            return ()
        with self._writing() as db:
            return _write_items(
                db, version=version, names=names, rows=rows, texts=texts, revision=revision
            )

    def _replace_vectors(
        self, version: str, items: Sequence[Item], rows: Floats, payloads: Sequence[Payload] | None
    ) -> list[str]:
        with self._writing() as db:
            same, names, texts = replaceable(
                items, _items_of(db, [item.id for item in items]), payloads
            )
            if names:
                _write_items(db, version=version, names=names, rows=rows[same], texts=texts)
        return names

    def _update_payload(self, name: str, changed: Callable[[Item], str]) -> Item | None:
        with self._writing() as db:
            item = _items_of(db, [name]).get(name)
            if item is None:
                return None
            _write_items(
                db,
                version=item.version,
                names=[name],
                rows=item.vector[None],
                texts=[changed(item)],
            )
            return _items_of(db, [name])[name]

    def _delete(self, names: list[str], revision: int | None) -> int:
        with self._writing() as db:
            return _remove_items(db, names, revision)

    def _get(self, names: list[str]) -> dict[str, Item]:
        with self._reading() as db:
            return _items_of(db, names)

    def _search(self, version: str, queries: Vectors, request: SearchRequest) -> list[list[Hit]]:
        self._refresh()
        if not request.exact:
            self._keeper.update_in_background()
        return self._matrices.exact.search(version, queries, request)

    def _ask(self, questions: list[Question], request: SearchRequest) -> list[list[Hit]]:
        self._refresh()
        if not request.exact:
            self._keeper.update_in_background()
        return self._matrices.exact.ask(questions, request)

    def _build_index(self, versions: list[str]) -> None:
        """Build the HNSW indexes; they are saved beside the file."""
        self._refresh()
        self._keeper.build(versions)

    def indexes(self) -> list[IndexState]:
        """The HNSW indexes in use."""
        self._refresh()
        return self._keeper.states()

    def _iterate(self, version: str | None, after: str) -> Iterator[Item]:
        """Page by page: no lock is held in between."""
        owner = ""
        if version is not None:
            owner = "version = (SELECT number FROM versions WHERE name = :version) AND "
        while True:
            with self._reading() as db:
                condition = f"{owner}id > :after ORDER BY id LIMIT {_PAGE}"
                with closing(
                    _read_rows(db, condition, {"version": version, "after": after})
                ) as rows:
                    page = _first(rows)
            if not page:
                return
            yield from map(_as_item, page)
            after = page[-1][0]

    def created(self) -> str:
        """The creation time of the first version, which identifies this gallery; empty if there is no version."""
        with self._reading() as db:
            row = db.execute("SELECT created FROM versions ORDER BY number LIMIT 1").fetchone()
        return "" if row is None else str(row[0])

    def written_since(self, revision: int) -> Iterator[list[Item]]:
        """The items with a higher revision, lowest first, page by page: no lock is held in between."""
        while True:
            with self._reading() as db:
                condition = f"items.number > :after ORDER BY items.number LIMIT {_PAGE}"
                with closing(_read_rows(db, condition, {"after": revision})) as rows:
                    page = _first(rows)
            if not page:
                return
            yield list(map(_as_item, page))
            revision = page[-1][-1]

    def count(self) -> dict[str, int]:
        """The number of items by version."""
        with self._reading() as db:
            return dict(db.execute("SELECT name, items FROM versions ORDER BY number"))

    def revision(self) -> int:
        """The number of rows ever written: every change of an item writes one, for the item or its removal."""
        with self._reading() as db:
            (written,) = db.execute(
                "SELECT coalesce(sum(seq), 0) FROM sqlite_sequence WHERE name != 'versions'"
            ).fetchone()
        return int(written)

    def flush(self) -> None:
        """Move the log into the file, so that the file alone is complete. Writes are durable without this.

        Raises if others read or write for longer than ``wait``: the log is then still needed.
        """
        until = time.monotonic() + self._wait
        while self._is_busy():
            if time.monotonic() < until:
                time.sleep(0.01)
                continue
            raise GalleryUnavailableError(
                f"other processes used {self.path} for {self._wait:g} s without a pause, so part of it is still in "
                f"{self.path.name}-wal. Nothing is lost, but do not copy the file alone: flush again later, or copy "
                "with fixstar.gallery.copy_gallery"
            )

    def _is_busy(self) -> bool:
        """Try to move the log. SQLite waits for readers and writers, but not for another process that moves it."""
        with self._reading() as db:
            if self.read_only:
                return False
            (busy, *_) = db.execute(
                "PRAGMA wal_checkpoint(TRUNCATE)"
            ).fetchone()  # an answer, not an error
        return bool(busy)

    def compact(self) -> None:
        """Free the space of removed items by rewriting the file. Searches continue, writers wait."""
        with self._reading() as db:
            db.execute("VACUUM")
        self.flush()

    def damage(self) -> list[str]:
        """Problems of the file; empty if there are none. Reads everything."""
        with self._reading() as db:
            found = [row[0] for row in db.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
        for space in [] if found else self.versions():
            try:
                self.projection(space.name)
            except GalleryError as error:
                found.append(str(error))
        return found

    def close(self) -> None:
        """Close all connections and release the matrices; the file stays."""
        self._closed = True
        self._stop_building()
        self._stop_mapping()
        for session in list(self._sessions):
            session.db.close()
        self._matrices = _StoredMatrices()  # with a new keeper, so that old indexes are released
        self._keeper = IndexKeeper(
            exact=self._matrices.exact,
            position=lambda: 0,
            folder=self.path,
            above=0,
            read_only=True,
        )

    def _session(self) -> _Session:
        if self._closed:
            raise GalleryUnavailableError(f"the gallery {self.path} is closed; open it again")
        session: _Session | None = getattr(self._own, "session", None)
        if session is None or session.is_stale():
            session = self._own.session = _Session(*_connect(self.path, self.read_only, self._wait))
            self._sessions.add(session)
        return session

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._session().db
        except (sqlite3.Error, OSError) as error:
            raise _translated(error, self.path) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            session = self._session()
            db = session.db
            if self._has_refused:
                self._move_log(db)
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException as error:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                self._has_refused = self._has_refused or isinstance(error, sqlite3.Error)
                raise
            session.written += 1
        except (sqlite3.Error, OSError) as error:
            raise _translated(error, self.path) from error
        if (
            self._matrices.position
        ):  # after a first search, read own writes at once: no search waits for them
            with suppress(GalleryError):  # the write is done; the next search reports the problem
                self._refresh()

    def _move_log(self, db: sqlite3.Connection) -> None:
        """Let the next write restart the log, without waiting for other processes.

        A write that the disk refused may have left complete pages at the end of the log. After a later, shorter write
        they would look like lost writes (``_refuse_damaged_log``).
        """
        _, written, moved = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        self._has_refused = written != moved

    def _refresh(self) -> None:
        """Read everything written since the last refresh of this thread."""
        try:
            session = self._session()
            by_others = session.db.execute("PRAGMA data_version").fetchone()[0]
            now = (by_others, session.written)
            if now != session.seen:
                self._matrices.refresh(session.db)
                session.seen = now
        except (sqlite3.Error, OSError) as error:
            raise _translated(error, self.path) from error
