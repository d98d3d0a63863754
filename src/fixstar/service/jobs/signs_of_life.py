"""Which of the services that share a workspace are alive."""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from pathlib import Path

from fixstar.durable import make_directory

BEAT = 1.0  # seconds between two signs of life of a service that shares the workspace
LEASE = 10.0  # seconds without one after which others take over its jobs
_log = logging.getLogger("fixstar.service")


class SignsOfLife:
    """Which of the services that share a workspace are alive: each touches a file of its own every second.

    Others time by their own clock how long it has not changed, so the clocks of machines may differ.
    """

    def __init__(self, workspace: Path) -> None:
        self._directory = workspace / "state" / ".services"  # snapshots leave it out
        self._seen: dict[str, tuple[int, float]] = {}
        self.name = ""  # of this service

    def join(self) -> None:
        """Register this service under a new name."""
        make_directory(self._directory)
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        (self._directory / self.name).touch()

    def beat(self) -> None:
        """Touch this service's heartbeat file. If others removed it, they have its jobs, and it joins again."""
        try:
            os.utime(self._directory / self.name)
        except FileNotFoundError:
            _log.warning(
                "other services took this one for dead: its file did not change for %.0f s", LEASE
            )
            self.join()

    def is_alive(self, name: str) -> bool:
        """Whether a service (or this one) changed its file within the last ``LEASE`` seconds, as seen from here."""
        try:
            changed = (self._directory / name).stat().st_mtime_ns
        except FileNotFoundError:
            return False
        now = time.monotonic()
        known, since = self._seen.get(name, (0, now))
        if changed != known:
            self._seen[name] = changed, now
        return bool(name) and (changed != known or now - since < LEASE)

    def bury(self, name: str) -> None:
        """Remove a dead service's heartbeat file. If it still runs, it notices."""
        if name:  # else a service that did not share the workspace ran the job
            (self._directory / name).unlink(missing_ok=True)
            self._seen.pop(name, None)
