"""The adapters that a workspace uses: which gallery versions are reached through one, and from which versions.

adapters/book.json           what is in use, replaced as a whole
adapters/*.safetensors       the adapters, never rewritten
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from fixstar.durable import WatchedFile, exclusive, replace_json
from fixstar.errors import GateError, InputError, ModelError
from fixstar.workspace.adapters.maps import Applied, VectorAdapter, load_adapter, save_adapter

__all__ = ["AdapterBook", "Entry", "demand_adapters"]

_WAIT = 10.0  # seconds for another process that writes here


class Entry(NamedTuple):
    """One adapter in use between vectors of ``version`` and queries of ``queries_by``; ``file`` holds it."""

    version: str
    queries_by: str
    applied: Applied
    file: str


class AdapterBook:
    """Which adapters are in use. Reading costs one look at a file's stamp. Threads and processes may share it.

    A gallery version that is in the book has a space of its own: queries meet its vectors through an adapter or not
    at all, whatever the widths are.
    """

    def __init__(self, path: Path) -> None:
        self._directory = path / "adapters"
        self._file = self._directory / "book.json"
        self._entries: WatchedFile[tuple[Entry, ...]] = WatchedFile(self._file, _parsed, ())
        self._loaded: dict[str, VectorAdapter] = {}
        self._lock = threading.Lock()

    def entries(self) -> tuple[Entry, ...]:
        """All adapters in use, oldest first."""
        return self._entries.content()

    def apart(self) -> set[str]:
        """The gallery versions with a space of their own."""
        return {entry.version for entry in self.entries()}

    def reached(self, queries_by: str) -> set[str]:
        """The gallery versions that queries of a version reach through an adapter."""
        return {e.version for e in self.entries() if e.queries_by == queries_by and e.applied == "queries"}

    def find(self, version: str, queries_by: str, applied: Applied = "queries") -> VectorAdapter | None:
        """The adapter in use between a gallery version and queries of a version, read the first time."""
        for entry in self.entries():
            if entry[:3] == (version, queries_by, applied):
                with self._lock:
                    if entry.file not in self._loaded:
                        self._loaded[entry.file] = load_adapter(self._directory / entry.file)
                    return self._loaded[entry.file]
        return None

    def use(self, adapter: VectorAdapter, applied: Applied = "queries") -> Entry:
        """Keep an adapter and use it from now on, in the place of the one between the same versions."""
        ends = adapter.target, adapter.source
        version, queries_by = ends if applied == "queries" else ends[::-1]
        with self._alone():
            number = 1 + len(list(self._directory.glob("*.safetensors")))
            file = f"{quote(version, safe='@')}-{quote(queries_by, safe='')}-{number}.safetensors"
            save_adapter(adapter, self._directory / file)
            entry = Entry(version, queries_by, applied, file)
            self._write([*(e for e in self.entries() if e[:3] != entry[:3]), entry])
        return entry

    def end(self, version: str, queries_by: str, applied: Applied) -> None:
        """Use an adapter no longer; its file stays."""
        with self._alone():
            self._write([e for e in self.entries() if e[:3] != (version, queries_by, applied)])

    def _write(self, entries: list[Entry]) -> None:
        replace_json(self._file, {"format": "fixstar-adapters", "in_use": [entry._asdict() for entry in entries]})

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            with exclusive(self._directory, wait=_WAIT):
                yield
        except BlockingIOError:
            raise InputError(
                f"another process has been writing in {self._directory} for {_WAIT:.0f} s; see what it does, then run "
                "again"
            ) from None


def _parsed(file: Path) -> tuple[Entry, ...]:
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return tuple(Entry(**entry) for entry in content["in_use"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file} is damaged ({error}); restore it from a copy") from error


def demand_adapters(book: AdapterBook, version: str, counts: dict[str, int]) -> None:
    """Refuse a version whose queries would no longer reach what another version's reach through an adapter."""
    lost = [name for name in sorted(book.apart() - book.reached(version) - {version}) if counts.get(name)]
    if lost:
        raise GateError(
            f"{counts[lost[0]]:,} vectors of {lost[0]} are reached through an adapter only, and none was fitted for "
            f"{version}: its queries would not find them. Run: fixstar adapt {lost[0]} --for {version}, or deploy all "
            f'the same with a reason: fixstar deploy {version} --force "REASON"'
        )
