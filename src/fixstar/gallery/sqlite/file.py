"""The file of an embedded gallery: its tables, how it is opened, and what SQLite's errors mean.

versions   what kinds of vectors there are; ``items`` counts them
items      one row an item. Rows are never updated: writing an item again removes its row and adds one with a new,
           higher number, so that ``number > n`` is everything written since n
removed    the numbers of removed rows, for processes that hold them in memory; the oldest are forgotten

Write-ahead log: readers never wait for a writer. ``synchronous=FULL``: a write that returned survives a power cut.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from fixstar.errors import GalleryError, GalleryUnavailableError

__all__ = ["FORMAT", "Session", "connect", "is_writable", "prepare", "translated"]

FORMAT = 1
_APPLICATION = 0x66787374  # "fxst", in the file's header
_PAGE = 1 << 16  # vectors fill the largest page best: 31 of 512 numbers, where 8 KiB would waste a quarter
_WAL_PAGES = (16 << 20) // _PAGE
_MAGIC = b"SQLite format 3\0"
_TABLES = (
    "CREATE TABLE versions (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, "
    "width INTEGER NOT NULL, full_width INTEGER NOT NULL, projection BLOB, created TEXT NOT NULL, "
    "items INTEGER NOT NULL DEFAULT 0)",
    "CREATE TABLE items (number INTEGER PRIMARY KEY AUTOINCREMENT, "
    "version INTEGER NOT NULL REFERENCES versions (number), id TEXT NOT NULL, payload TEXT NOT NULL, "
    "vector BLOB NOT NULL)",
    "CREATE UNIQUE INDEX items_by_id ON items (id)",
    "CREATE INDEX items_by_version ON items (version, id)",
    "CREATE TABLE removed (number INTEGER PRIMARY KEY AUTOINCREMENT, version INTEGER NOT NULL, item INTEGER NOT NULL)",
)


class Session:
    """One thread's connection, and how much of the file it has seen.

    ``frozen`` is the file's state where SQLite was told that nobody writes it, which is then looked after here.
    """

    def __init__(self, db: sqlite3.Connection, frozen: Callable[[], object] | None = None) -> None:
        self.db, self.written, self._process = db, 0, os.getpid()
        self.seen: tuple[int, int] | None = None
        self._state, self._frozen = frozen, frozen and frozen()

    def position(self) -> tuple[int, int]:
        """Changes whenever anybody has written: others (SQLite tells), or this connection."""
        return self.db.execute("PRAGMA data_version").fetchone()[0], self.written

    def is_stale(self) -> bool:
        """Whether it must be replaced: connections do not survive a fork, nor a change behind their back."""
        return self._process != os.getpid() or (self._state is not None and self._state() != self._frozen)


def is_writable(path: Path) -> bool:
    """Whether the file, and the directory where its log goes, can be written."""
    return os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))


def connect(path: Path, read_only: bool, wait: float) -> tuple[sqlite3.Connection, Callable[[], object] | None]:
    """What a ``Session`` of an existing file is made of; ``wait`` is how many seconds to wait for another writer."""
    if not read_only:
        return _connected(path, "mode=rw", wait), None
    db, log = _connected(path, "mode=ro", wait), path.with_name(path.name + "-wal")
    try:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:  # no log can be made beside the file; without one, nobody is writing
        db.close()
        if log.exists() and log.stat().st_size:
            raise
        return _connected(path, "immutable=1", wait), lambda: (
            path.stat().st_mtime_ns,
            path.stat().st_size,
            log.exists(),
        )
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


def prepare(path: Path, create: bool, read_only: bool, wait: float) -> None:
    """See to it that the file is a gallery that this fixstar can open; make it if it is absent."""
    if path.is_dir():
        raise GalleryError(f"{path} is a directory; a gallery is one file, such as {path / 'gallery.db'}")
    if not path.exists() or not path.stat().st_size:
        _make(path, create and not read_only, wait)
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise GalleryError(f"{path} is no gallery: it was left as it is; choose another path")
    db, _ = connect(path, read_only, wait)
    try:
        application, version, tables = _seen_at_once(db)
        if (application, version, tables) == (0, 0, 0):
            _fill(db)  # whoever made it was killed before this, or is about to
            return
    finally:
        db.close()
    if application != _APPLICATION:
        raise GalleryError(f"{path} is an SQLite database of another program, not a gallery; it was left as it is")
    if version > FORMAT:
        raise GalleryError(
            f"{path} has format {version} and this fixstar knows formats up to {FORMAT}; "
            "update with: pip install --upgrade fixstar"
        )


def _seen_at_once(db: sqlite3.Connection) -> tuple[int, int, int]:
    """Application, format and the number of tables, of one moment: somebody may be making the tables just now."""
    db.execute("BEGIN")
    try:
        asked = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        application, version, tables = (db.execute(one).fetchone()[0] for one in asked)
    finally:
        db.execute("ROLLBACK")
    return application, version, tables


def _make(path: Path, create: bool, wait: float) -> None:
    if not create:
        raise GalleryError(f"there is no gallery at {path}; check the path, or open it for writing to make one")
    if not path.parent.is_dir():
        raise GalleryError(f"the directory {path.parent} does not exist; make it first")
    if not is_writable(path):
        raise GalleryError(f"{path} cannot be made: the directory is read-only")
    db = _connected(path, "mode=rwc", wait)
    try:
        _fill(db)
    finally:
        db.close()


def _fill(db: sqlite3.Connection) -> None:
    """Make the tables, once, even where several processes come at the same moment."""
    db.execute(f"PRAGMA page_size = {_PAGE}")
    _use_log(db)
    db.execute("BEGIN IMMEDIATE")
    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        for table in _TABLES:
            db.execute(table)
        db.execute(f"PRAGMA application_id = {_APPLICATION}")
        db.execute(f"PRAGMA user_version = {FORMAT}")
    db.execute("COMMIT")


def _use_log(db: sqlite3.Connection, tries: int = 200) -> None:
    for attempt in range(tries):  # SQLite does not wait here by itself
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if attempt == tries - 1:
                raise
            time.sleep(0.05)
        else:
            return


_MEANINGS = {
    "SQLITE_FULL": "there is no room left where {path} is; nothing of this write was kept. Make room and write again",
    "SQLITE_READONLY": "{path} cannot be written (opened for reading only, or no permission); nothing was changed",
    "SQLITE_BUSY": "another process is writing to {path} and did not finish in time; nothing was changed. Try again",
    "SQLITE_CORRUPT": "{path} is damaged ({error}); it was left as it is. Restore it from a copy",
    "SQLITE_NOTADB": "{path} is damaged or no gallery ({error}); it was left as it is. Restore it from a copy",
    "SQLITE_CANTOPEN": "{path} cannot be opened ({error}); check the path and the permissions of its directory",
    "SQLITE_IOERR": "the disk under {path} failed ({error}); check it, then open the gallery again",
}


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Say what SQLite's errors mean for the gallery."""
    try:
        yield
    except sqlite3.Error as error:
        code = str(getattr(error, "sqlite_errorname", ""))
        meaning = next((text for name, text in _MEANINGS.items() if code.startswith(name)), "{path}: {error}")
        kind = GalleryError if isinstance(error, sqlite3.DataError) else GalleryUnavailableError
        raise kind(meaning.format(path=path, error=error)) from error
    except OSError as error:
        raise GalleryUnavailableError(f"{path} cannot be opened: {error.strerror or error}") from error
