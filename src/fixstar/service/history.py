"""The share of vectors by version over time: state/history.jsonl, one line whenever the counts have changed."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import NamedTuple

from fixstar.durable import replace_file
from fixstar.errors import FixstarError
from fixstar.service.job_files import now
from fixstar.workspace import Workspace

__all__ = ["History", "Sample"]

INTERVAL = 5.0  # seconds between two looks
MOST = 1000  # lines kept
_WAIT = 5.0  # seconds for a look that is under way

_log = logging.getLogger("fixstar.service")


class Sample(NamedTuple):
    """Items by the version that made their vectors, at a time."""

    when: str
    vectors: dict[str, int]


class History:
    """Looks at the gallery every few seconds while it is started. Threads may share it."""

    def __init__(self, workspace: Workspace, interval: float = INTERVAL, most: int = MOST) -> None:
        self._workspace, self._interval, self._most = workspace, interval, most
        self._path = workspace.path / "state" / "history.jsonl"
        self._lock = threading.Lock()
        self._samples: list[Sample] | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._watch, name="fixstar-history", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look once more, and no longer."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_WAIT)
            self._thread = None

    def samples(self) -> list[Sample]:
        """What was seen, oldest first; the last one is of now."""
        self.look()
        with self._lock:
            return list(self._known())

    def look(self) -> None:
        """Note the counts if they are not those noted last."""
        vectors = {name: count for name, count in self._workspace.gallery.count().items() if count}
        with self._lock:
            known = self._known()
            if (known[-1].vectors if known else {}) == vectors:
                return
            sample = Sample(now(), vectors)
            known.append(sample)
            if len(known) > self._most:
                self._samples = _thinned(known)
                text = "".join(map(_line, self._samples))
                replace_file(self._path, lambda partial: partial.write_text(text, encoding="utf-8", newline="\n"))
            else:
                _append(self._path, _line(sample))

    def _watch(self) -> None:
        while True:
            try:
                self.look()
            except (FixstarError, OSError) as error:  # a server that is away for a while, a full disk
                _log.warning("the counts of vectors were not noted: %s", error)
            if self._stopped.is_set():
                return
            self._stopped.wait(self._interval)

    def _known(self) -> list[Sample]:
        if self._samples is None:
            self._samples = _read(self._path)[-self._most :]
        return self._samples


def _line(sample: Sample) -> str:
    return json.dumps(sample._asdict(), ensure_ascii=False) + "\n"


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            torn = file.read(1) != b"\n"  # a kill cut the last line off: a new one begins
            line = "\n" + line if torn else line
        file.write(line.encode())


def _read(path: Path) -> list[Sample]:
    """All whole lines."""
    found = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        try:
            content = json.loads(line)
            counts = {str(name): int(count) for name, count in content["vectors"].items()}
            found.append(Sample(str(content["when"]), counts))
        except (ValueError, KeyError, TypeError, AttributeError):  # empty, or cut off
            continue
    return found


def _thinned(samples: list[Sample]) -> list[Sample]:
    """Every second one of the older half is given up: what was long ago is told more coarsely."""
    half = len(samples) // 2
    return samples[:half:2] + samples[half:]
