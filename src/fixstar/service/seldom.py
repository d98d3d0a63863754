"""Lines that may come by the thousand, written at most once a minute: the first at once, the others as a count."""

from __future__ import annotations

import asyncio
import logging

__all__ = ["Seldom"]

_KEYS = 1000  # told apart in one interval; those beyond share a line
_OTHERS = "others"


class Seldom:
    """Writes a warning for a key (an address, a kind of event) at most every so many seconds. For one event loop."""

    def __init__(self, log: logging.Logger, every: float = 60.0) -> None:
        self._log, self._every = log, every
        self._held: dict[str, tuple[int, str]] = {}  # how often since the last line, and what to say

    def tell(self, key: str, message: str) -> None:
        """Write ``message``, or count it where a line of this key was written a moment ago."""
        if key not in self._held and len(self._held) >= _KEYS:
            key, message = _OTHERS, f"{message}, and the like of others"
        if key in self._held:
            self._held[key] = self._held[key][0] + 1, message
            return
        self._write(key, message)

    def _write(self, key: str, message: str) -> None:
        self._log.warning("%s", message)
        self._held[key] = 0, message
        asyncio.get_running_loop().call_later(self._every, self._release, key)

    def _release(self, key: str) -> None:
        """Say how often it came meanwhile; where it did not, the next one is written at once."""
        count, message = self._held.pop(key)
        if count:
            self._write(key, f"{message} ({count:,} times in the last {self._every:g} s)")
