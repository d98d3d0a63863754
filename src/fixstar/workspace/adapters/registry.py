"""The adapters in use: which gallery versions are searched through one, and by queries of which versions.

adapters/registry.json       what is in use, replaced as a whole
adapters/*.safetensors       the adapters, never rewritten
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from fixstar.durable import WatchedFile, document, exclusive, read_document, replace_json
from fixstar.errors import InputError, ModelError
from fixstar.workspace.adapters.maps import Applied, VectorAdapter, load_adapter, save_adapter

_WAIT = 10.0  # seconds for another process that writes here


class AdapterEntry(NamedTuple):
    """One adapter in use between vectors of ``version`` and queries of ``queries_by``; ``file`` holds it."""

    version: str
    queries_by: str
    applied: Applied
    file: str


class AdapterRegistry:
    """Which adapters are in use; a gallery version with one is isolated. Threads and processes may share it."""

    def __init__(self, path: Path) -> None:
        self._directory = path / "adapters"
        self._file = self._directory / "registry.json"
        self._entries: WatchedFile[tuple[AdapterEntry, ...]] = WatchedFile(self._file, _parse, ())
        self._loaded: dict[str, VectorAdapter] = {}
        self._lock = threading.Lock()

    def entries(self) -> tuple[AdapterEntry, ...]:
        """All adapters in use, oldest first."""
        return self._entries.content()

    def isolated(self) -> set[str]:
        """The gallery versions with a space of their own."""
        return {entry.version for entry in self.entries()}

    def find(self, version: str, queries_by: str, applied: Applied = "queries") -> VectorAdapter | None:
        """The adapter in use between a gallery version and queries of a version, loaded the first time."""
        for entry in self.entries():
            if entry[:3] == (version, queries_by, applied):
                with self._lock:
                    if entry.file not in self._loaded:
                        self._loaded[entry.file] = load_adapter(self._directory / entry.file)
                    return self._loaded[entry.file]
        return None

    def use(self, adapter: VectorAdapter, applied: Applied = "queries") -> AdapterEntry:
        """Keep an adapter and use it from now on, in the place of the one between the same versions."""
        ends = adapter.target, adapter.source
        version, queries_by = ends if applied == "queries" else ends[::-1]
        with self._locked():
            number = 1 + len(list(self._directory.glob("*.safetensors")))
            file = f"{quote(version, safe='@')}-{quote(queries_by, safe='')}-{number}.safetensors"
            save_adapter(adapter, self._directory / file)
            entry = AdapterEntry(version, queries_by, applied, file)
            self._write([*(e for e in self.entries() if e[:3] != entry[:3]), entry])
        return entry

    def remove(self, version: str, queries_by: str, applied: Applied) -> None:
        """Stop using an adapter; its file stays."""
        with self._locked():
            self._write([e for e in self.entries() if e[:3] != (version, queries_by, applied)])

    def _write(self, entries: list[AdapterEntry]) -> None:
        replace_json(self._file, document("adapters", {"in_use": [entry._asdict() for entry in entries]}))

    def _locked(self) -> AbstractContextManager[None]:
        seen = f"another process has been writing in {self._directory} for {_WAIT:.0f} s; try again when it is done"
        return exclusive(self._directory, _WAIT, InputError(seen))


def _parse(file: Path) -> tuple[AdapterEntry, ...]:
    try:
        return tuple(AdapterEntry(**entry) for entry in read_document(file, "adapters")["in_use"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file} is damaged ({error}); restore it from a copy") from error
