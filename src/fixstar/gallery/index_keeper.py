"""The approximate indexes of an embedded gallery: loaded, built and updated in the background.

Searches and writes never wait. One thread on one core builds an index aside, from the rows as they were when it
started; then the new index replaces the old one at once. One process builds at a time, the others load what it saved.
A version without rows has no index: a backfill moves all its items elsewhere.

A version whose index cannot be built is searched exactly, and the others keep theirs. Without FAISS there are no
indexes at all, and if one cannot be saved, the others stay in memory too.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from fixstar.durable import exclusive
from fixstar.errors import GalleryError, MissingExtraError
from fixstar.gallery.exact import ExactSearch
from fixstar.gallery.hnsw import KIND, HnswIndex, build_hnsw, engine, index_path, load_hnsw, save_hnsw
from fixstar.gallery.matrix import Rows
from fixstar.gallery.store import IndexState

__all__ = ["IndexKeeper"]

_CAME = 20  # an index is extended when a twentieth was added since, but at least
_CAME_LEAST = 1000
_GONE = 4  # and rebuilt when a quarter of it is gone
_RETRY = 10.0  # seconds to wait if another process is building
_NICE = 5  # leaves a quarter of a core against searches that take all cores
_ABANDONED = 600.0  # seconds after which a partial file is removed


def _lower_priority() -> None:
    """Lower the priority of this thread and of those it starts, so that searches go first. Linux only."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


class IndexKeeper:
    """Keeps indexes of versions with more than ``above`` vectors; saved in ``folder`` unless ``read_only``.

    ``position`` returns the last sequence number that was read.
    """

    def __init__(
        self, exact: ExactSearch, position: Callable[[], int], folder: Path, above: int, read_only: bool
    ) -> None:
        self._exact, self._position = exact, position
        self._folder, self._above, self._read_only = folder, above, read_only
        self._reading, self._building, self._starting = threading.Lock(), threading.Lock(), threading.Lock()
        self._read: dict[str, object] = {}  # the state of each file when last read or written
        self._failed: set[str] = set()  # versions whose index could not be built; build() tries again
        self._thread: threading.Thread | None = None
        self._seen: object = None  # the rows when there was nothing to do
        self._not_before = 0.0
        self._asked = 0  # running calls of ``build``: the background thread makes way for them
        self._saves = not read_only  # whether the background thread saves
        self._off = self._closed = False

    def update_in_background(self) -> None:
        """Start what is due, in the background. Costs nothing if no rows have changed."""
        rows = self._exact.rows
        if rows is self._seen or self._off or time.monotonic() < self._not_before:
            return
        with self._starting:
            if self._closed or (self._thread is not None and self._thread.is_alive()):
                return
            self._seen = rows
            if any(self._is_due(name) for name in rows):
                self._thread = threading.Thread(target=self._work, name="fixstar-index", daemon=True)
                self._thread.start()

    def build(self, versions: list[str]) -> None:
        """Rebuild the indexes of these versions, and wait."""
        if self._read_only:
            raise GalleryError(f"{self._folder} cannot be written, so an index could not be kept")
        engine()
        with self._starting:
            self._asked += 1
        try:
            with self._building:
                for name in versions:
                    if len(rows := self._exact.rows[name]):
                        self._build_aside(name, rows)
        finally:
            with self._starting:
                self._asked, self._seen = self._asked - 1, None

    def states(self) -> list[IndexState]:
        """The indexes in use; saved ones are loaded first."""
        try:
            for name in self._exact.rows:
                if name not in self._exact.indexes and name not in self._read:
                    self._load(name)
        except MissingExtraError:
            return []
        indexes = {name: self._index(name) for name, rows in self._exact.rows.items() if len(rows)}
        return [IndexState(name, KIND, len(i.numbers), i.recall) for name, i in indexes.items() if i is not None]

    def close(self) -> None:
        """Stop the background thread and wait for it."""
        self._closed = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _index(self, name: str) -> HnswIndex | None:
        index = self._exact.indexes.get(name)
        return index if isinstance(index, HnswIndex) else None

    def _is_due(self, name: str) -> bool:
        rows, index = self._exact.rows[name], self._index(name)
        if name in self._failed:
            return False
        if not len(rows):  # remove what is left of its index
            return index is not None or (self._saves and self._state(name) is not None)
        if index is None:
            return len(rows) > self._above or (name not in self._read and self._state(name) is not None)
        came, gone = index.lag(rows)
        return came > max(_CAME_LEAST, len(index.numbers) // _CAME) or gone * _GONE > len(index.numbers)

    def _work(self) -> None:
        """The background thread: ends when there is nothing left to do."""
        _lower_priority()
        try:
            while due := [name for name in self._exact.rows if self._is_due(name)]:
                if self._closed or self._asked:
                    return
                self._try(due[0])
        except MissingExtraError:
            self._off = True  # searches stay exact
        except BlockingIOError:
            self._seen, self._not_before = None, time.monotonic() + _RETRY

    def _try(self, name: str) -> None:
        """Update one version's index; a failure is reported once and does not affect other versions."""
        try:
            self._update(name)
        except (MissingExtraError, BlockingIOError):
            raise
        except Exception as error:  # a cache that cannot be built must not crash the program
            if isinstance(error, OSError) and self._saves:
                self._saves = False
                warnings.warn(f"approximate indexes cannot be saved ({error}); they stay in memory", stacklevel=1)
            else:
                self._failed.add(name)
                warnings.warn(
                    f"the approximate index of version {name!r} could not be built ({error}); its vectors are searched "
                    "exactly",
                    stacklevel=1,
                )

    def _update(self, name: str) -> None:
        if len(self._exact.rows[name]) and self._state(name) != self._read.get(name):
            self._load(name)  # saved by another process, or before this one began
            return
        with self._building, self._held():
            index, rows = self._index(name), self._exact.rows[name]
            if not len(rows):
                self._drop(name)
                return
            base = None if index is None or index.lag(rows)[1] * _GONE > len(index.numbers) else index
            new = build_hnsw(rows, lambda: not self._closed and not self._asked, base=base)
            if new is not None:
                self._use(name, new)
                if self._saves:
                    self._save(name, new)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Be the only process that builds; BlockingIOError if another one does."""
        if not self._saves:
            yield
            return
        with exclusive(self._folder):
            for path in self._folder.glob(".*.partial"):  # of a process that was killed
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink()
            yield

    def _build_aside(self, name: str, rows: Rows) -> None:
        """Build in a thread of its own, so that the number of FAISS threads is reset with it."""

        def work() -> None:
            threads = max(1, (os.cpu_count() or 1) - 1)  # searches keep a core
            new = build_hnsw(rows, lambda: not self._closed, threads)
            if new is None:
                raise GalleryError("the gallery was closed while its index was being built")
            self._use(name, new)
            self._failed.discard(name)
            self._save(name, new)

        with ThreadPoolExecutor(1, "fixstar-index", _lower_priority) as thread:
            try:
                thread.submit(work).result()
            except OSError as error:
                raise GalleryError(f"the index of {name!r} is in use and could not be saved: {error}") from error

    def _use(self, name: str, index: HnswIndex) -> None:
        with self._reading:
            self._exact.indexes = {**self._exact.indexes, name: index}

    def _drop(self, name: str) -> None:
        """Remove the index of a version without rows, and its file."""
        with self._reading:
            self._exact.indexes = {other: index for other, index in self._exact.indexes.items() if other != name}
            self._read.pop(name, None)
        if self._saves:
            index_path(self._folder, name).unlink(missing_ok=True)

    def _save(self, name: str, index: HnswIndex) -> None:
        if not self._read_only:
            save_hnsw(index_path(self._folder, name), index, name)
            self._read[name] = self._state(name)

    def _load(self, name: str) -> None:
        """Load a saved index, if there is one that matches the rows."""
        with self._reading:
            state, rows = self._state(name), self._exact.rows[name]
            is_there = state is not None and len(rows) > 0
            index = load_hnsw(index_path(self._folder, name), name, rows, self._position()) if is_there else None
            self._read[name] = state
            if index is not None:
                self._exact.indexes = {**self._exact.indexes, name: index}

    def _state(self, name: str) -> object:
        """Changes whenever the file is replaced; None if it does not exist."""
        try:
            found = index_path(self._folder, name).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
