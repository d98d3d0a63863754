"""The approximate indexes of an embedded gallery: read, built and brought up to date beside the searches.

Nothing here holds up a search or a write. An index is made aside, from rows as they were when it was begun, by one
thread that uses one core; then it takes the place of the old one at once. One process builds at a time, the others
read what it saved. A version that has no rows any more has no index either: a backfill moves all of them elsewhere.

A version whose index cannot be made is searched exactly, and the others keep theirs. Only what concerns all of them
is taken for all: without FAISS none is made, and where one cannot be written the others stay in memory too.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fixstar.durable import exclusive
from fixstar.errors import GalleryError, MissingExtraError
from fixstar.gallery.exact import RowIndex
from fixstar.gallery.hnsw import KIND, HnswIndex, build_hnsw, engine
from fixstar.gallery.hnsw_files import index_path, load_hnsw, save_hnsw
from fixstar.gallery.matrix import Rows
from fixstar.gallery.sqlite.matrices import StoredMatrices
from fixstar.gallery.store import IndexState

__all__ = ["IndexKeeper"]

_CAME = 20  # an index is extended when a twentieth of it came since, or
_CAME_LEAST = 1000
_GONE = 4  # and made anew when a quarter of it is gone
_RETRY = 10.0  # seconds after another process was found building
_NICE = 5  # against searches that take all cores, a quarter of one is left
_LEFT = 600.0  # seconds after which a file that nobody goes on writing is removed


def _step_back() -> None:
    """Let searches go first where cores are short; what this thread starts does so too. Only Linux knows how."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


class IndexKeeper:
    """Keeps indexes of versions with more than ``above`` vectors; saved in ``folder`` unless ``read_only``."""

    def __init__(self, matrices: StoredMatrices, folder: Path, above: int, read_only: bool) -> None:
        self._matrices, self._exact = matrices, matrices.exact
        self._folder, self._above, self._read_only = folder, above, read_only
        self._reading, self._building, self._starting = threading.Lock(), threading.Lock(), threading.Lock()
        self._read: dict[str, object] = {}  # the state of each file when it was last read or written
        self._given_up: set[str] = set()  # versions that none could be made of; asking for it tries again
        self._thread: threading.Thread | None = None
        self._seen: object = None  # the rows when nothing was left to do
        self._not_before = 0.0
        self._asked = 0  # calls of ``build`` under way: the background makes way for them
        self._saves = not read_only  # whether the background does
        self._off = self._closed = False

    def look_after(self) -> None:
        """Start in the background what is due. Costs nothing if rows are what they were."""
        rows = self._exact.rows()
        if rows is self._seen or self._off or time.monotonic() < self._not_before:
            return
        with self._starting:
            if self._closed or (self._thread is not None and self._thread.is_alive()):
                return
            self._seen = rows
            if any(self._is_due(name) for name in rows):
                self._thread = threading.Thread(target=self._work, name="fixstar-index", daemon=True)
                self._thread.start()

    def build(self, versions: list[str]) -> list[IndexState]:
        """Build the indexes of these versions anew, and wait."""
        if self._read_only:
            raise GalleryError(f"{self._folder} cannot be written: an index that is built now would be gone at once")
        engine()
        with self._starting:
            self._asked += 1
        try:
            with self._building:
                for name in versions:
                    if len(rows := self._exact.rows()[name]):
                        self._build_aside(name, rows)
        finally:
            with self._starting:
                self._asked, self._seen = self._asked - 1, None
        return [state for state in self.states() if state.version in versions]

    def states(self) -> list[IndexState]:
        """The indexes in use; those that were saved are read first."""
        try:
            for name in self._exact.rows():
                if name not in self._exact.indexes and name not in self._read:
                    self._load(name)
        except MissingExtraError:
            return []
        indexes = {name: self._index(name) for name, rows in self._exact.rows().items() if len(rows)}
        return [IndexState(name, KIND, len(i.numbers), i.recall) for name, i in indexes.items() if i is not None]

    def close(self) -> None:
        """Stop what is under way, which takes a moment, and wait for it."""
        self._closed = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _index(self, name: str) -> HnswIndex | None:
        index = self._exact.indexes.get(name)
        return index if isinstance(index, HnswIndex) else None

    def _is_due(self, name: str) -> bool:
        rows, index = self._exact.rows()[name], self._index(name)
        if name in self._given_up:
            return False
        if not len(rows):  # what is left of its index goes
            return index is not None or (self._saves and self._state(name) is not None)
        if index is None:
            return len(rows) > self._above or (name not in self._read and self._state(name) is not None)
        came, gone = index.lag(rows)
        return came > max(_CAME_LEAST, len(index.numbers) // _CAME) or gone * _GONE > len(index.numbers)

    def _work(self) -> None:
        """The background thread: ends when nothing is left to do."""
        _step_back()
        try:
            while due := [name for name in self._exact.rows() if self._is_due(name)]:
                if self._closed or self._asked:
                    return
                self._try(due[0])
        except MissingExtraError:
            self._off = True  # searches stay exact
        except BlockingIOError:
            self._seen, self._not_before = None, time.monotonic() + _RETRY

    def _try(self, name: str) -> None:
        """Bring one version's index up to date; what fails is told once, and stands in no other version's way."""
        try:
            self._bring_up_to_date(name)
        except (MissingExtraError, BlockingIOError):
            raise
        except Exception as error:  # a cache that cannot be made must not take the program down
            if isinstance(error, OSError) and self._saves:
                self._saves = False
                warnings.warn(f"approximate indexes cannot be saved ({error}); they stay in memory", stacklevel=1)
            else:
                self._given_up.add(name)
                told = f"no approximate index of version {name!r} could be made ({error})"
                warnings.warn(f"{told}; its vectors are searched exactly", stacklevel=1)

    def _bring_up_to_date(self, name: str) -> None:
        if len(self._exact.rows()[name]) and self._state(name) != self._read.get(name):
            self._load(name)  # saved by another process, or before this one began
            return
        with self._building, self._held():
            index, rows = self._index(name), self._exact.rows()[name]
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
        """As the only process that builds; BlockingIOError if another one does."""
        if not self._saves:
            yield
            return
        with exclusive(self._folder):
            for path in self._folder.glob(".*.partial"):  # of a process that was killed
                if time.time() - path.stat().st_mtime > _LEFT:
                    path.unlink()
            yield

    def _build_aside(self, name: str, rows: Rows) -> None:
        """In a thread of its own, so that what FAISS is told about threads ends with it."""
        outcome: list[BaseException | None] = []

        def work() -> None:
            _step_back()
            try:
                threads = max(1, (os.cpu_count() or 1) - 1)  # searches keep a core
                new = build_hnsw(rows, lambda: not self._closed, threads)
                if new is None:
                    raise GalleryError("the gallery was closed while its index was being built")
                self._use(name, new)
                self._given_up.discard(name)
                self._save(name, new)
            except BaseException as error:  # raised again by whoever waits
                outcome.append(error)

        thread = threading.Thread(target=work, name="fixstar-index")
        thread.start()
        thread.join()
        if outcome and isinstance(error := outcome[0], OSError):
            raise GalleryError(f"the index of {name!r} is in use and could not be saved: {error}") from error
        if outcome and outcome[0] is not None:
            raise outcome[0]

    def _use(self, name: str, index: HnswIndex) -> None:
        with self._reading:
            indexes: dict[str, RowIndex] = {**self._exact.indexes, name: index}
            self._exact.indexes = indexes

    def _drop(self, name: str) -> None:
        """Let go of the index of a version without rows, and of its file."""
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
        """Read a saved index, if there is one that fits."""
        with self._reading:
            state, rows = self._state(name), self._exact.rows()[name]
            is_there = state is not None and len(rows) > 0
            index = load_hnsw(index_path(self._folder, name), name, rows, self._matrices.position) if is_there else None
            self._read[name] = state
            if index is not None:
                self._exact.indexes = {**self._exact.indexes, name: index}

    def _state(self, name: str) -> object:
        """Differs whenever the file was replaced; None if there is none."""
        try:
            found = index_path(self._folder, name).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
