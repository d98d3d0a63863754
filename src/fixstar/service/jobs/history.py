"""How many vectors each version has, over time."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import NamedTuple

from fixstar.durable import DAMAGE, WatchedFile, document, exclusive, read_document, replace_json
from fixstar.errors import FixstarError
from fixstar.service.jobs.records import now
from fixstar.workspace import Workspace

_WAIT = 30.0  # seconds for another service that counts
_log = logging.getLogger("fixstar.service")


class HistoryPoint(NamedTuple):
    """Items by the version that made their vectors, at a time."""

    when: str
    vectors: dict[str, int]


class History:
    """Counts vectors by version every few seconds; state/history.json has a sample per change. Threads may share it."""

    def __init__(self, workspace: Workspace, interval: float = 5.0, most: int = 1000) -> None:
        self._workspace = workspace
        self._interval = interval
        self._most = most
        self._path = workspace.path / "state" / "history.json"
        self._samples: WatchedFile[tuple[HistoryPoint, ...]] = WatchedFile(
            self._path, _parsed_samples, ()
        )
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to count."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._watch, name="fixstar-history", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Count once more, and stop."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None

    def samples(self) -> list[HistoryPoint]:
        """All samples, oldest first; the last one is current."""
        self.look()
        return list(self._samples.content())

    def look(self) -> None:
        """Record the counts if they have changed."""
        vectors = {name: count for name, count in self._workspace.gallery.count().items() if count}
        with exclusive(self._path.with_suffix(""), _WAIT):  # other threads and services count too
            known = list(self._samples.content())
            last = known[-1].vectors if known else {}
            if last == vectors:
                return
            known.append(HistoryPoint(now(), vectors))
            if len(known) > self._most:  # the distant past is kept more coarsely
                half = len(known) // 2
                known[:half] = known[:half:2]
            replace_json(
                self._path, document("history", {"samples": [sample._asdict() for sample in known]})
            )

    def _watch(self) -> None:
        while True:
            try:
                self.look()
            except (
                FixstarError,
                OSError,
            ) as error:  # a server that is away for a while, a full disk
                _log.warning("the counts of vectors were not recorded: %s", error)
            if self._stopped.is_set():
                return
            self._stopped.wait(self._interval)


def _parsed_samples(path: Path) -> tuple[HistoryPoint, ...]:
    try:
        return tuple(
            HistoryPoint(one["when"], dict(one["vectors"]))
            for one in read_document(path, "history")["samples"]
        )
    except (FixstarError, OSError, *DAMAGE):  # only a picture is lost
        return ()
