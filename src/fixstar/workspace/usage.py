"""How often items are found: counts for a backfill, in state/usage.db."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from fixstar.errors import DataError

_MOST_WAITING = 100_000  # ids kept in memory; more are written immediately
_TABLE = (
    "CREATE TABLE IF NOT EXISTS usage (id TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID"
)
_ADD = (
    "INSERT INTO usage VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET count = count + excluded.count"
)


class Usage:
    """How often items are found, in state/usage.db, for a backfill. Threads and processes may share it.

    Counts are written every few seconds by a background thread; a killed process loses the last ones.
    """

    def __init__(self, workspace: Path, every: float = 5.0) -> None:
        self.path = workspace / "state" / "usage.db"
        self._every = every
        self._next = time.monotonic() + every
        self._waiting: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._write = threading.Lock()

    def record(self, ids: Iterable[str]) -> None:
        """Count items that were found. Never raises and never waits for the disk."""
        with self._lock:
            self._waiting.update(ids)
            due = time.monotonic() >= self._next or len(self._waiting) >= _MOST_WAITING
            if due:
                self._next = time.monotonic() + self._every
        if due and not self._write.locked():
            threading.Thread(target=self._flush_quietly, name="fixstar-usage", daemon=True).start()

    def flush(self) -> None:
        """Write the counts that are still in memory."""
        with self._write:
            with self._lock:
                rows = self._waiting
                self._waiting = Counter()
            if not rows:
                return
            try:
                with closing(self._open()) as db, db:
                    db.executemany(_ADD, rows.items())
            except sqlite3.Error as error:
                with self._lock:
                    if len(self._waiting) < _MOST_WAITING:
                        self._waiting.update(rows)
                raise DataError(
                    f"{self.path} cannot be written ({error}); if it is damaged, delete it: it holds counts only"
                ) from error

    def counts(self) -> dict[str, int]:
        """Hit count per item."""
        self.flush()
        if not self.path.exists():
            return {}
        try:
            with closing(self._open()) as db:
                return dict(db.execute("SELECT id, count FROM usage"))
        except sqlite3.Error as error:
            raise DataError(
                f"{self.path} cannot be read ({error}); if it is damaged, delete it: it holds counts only"
            ) from error

    def _flush_quietly(self) -> None:
        try:
            self.flush()
        except (DataError, OSError):  # ``counts`` will raise the same error
            return

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self.path, timeout=30)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute(_TABLE)
        return db
