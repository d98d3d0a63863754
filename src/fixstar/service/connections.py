"""Connections: how many may be open at a time, and how long each may take to say what it wants.

Whoever opens connections and sends nothing would otherwise take every file handle of the process, and with them the
gallery's. Bodies have their own time limit, see ``limits``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fixstar.service.seldom import Seldom

__all__ = ["QUEUE", "accepted_at_once", "guarded_protocol", "most_connections", "quiet_accept"]

_MOST = 10_000  # connections, however many files may be open
_LEAST = 8
QUEUE = 2048  # connections that wait in the system to be taken on
_ELSE = 64  # files that are open anyway: libraries, the log, the listener, locks
_ACCEPT = "socket.accept()"  # how the event loop's message about it begins

_log = logging.getLogger("fixstar.service")


def most_connections(files: int | None = None) -> int:
    """Connections that may be open where ``files`` may be: the other half is for stores, indexes and uploads.

    >>> most_connections(1024), most_connections(1 << 20)
    (480, 10000)
    """
    return max(_LEAST, min(_MOST, ((_files_allowed() if files is None else files) - _ELSE) // 2))


def _files_allowed() -> int:
    """How many files the process may have open."""
    try:
        import resource
    except ImportError:  # no such limit on this system
        return 2 * _MOST
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4 * _MOST if allowed == resource.RLIM_INFINITY else allowed


def accepted_at_once(connections: int) -> int:
    """Connections that the event loop takes on in one go, before any is counted: few beside those that may be open.

    >>> accepted_at_once(480), accepted_at_once(10_000)
    (60, 256)
    """
    return max(_LEAST, min(256, connections // 8))


def guarded_protocol(most: int, header_seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol with two limits: open connections, and the time until the headers are there."""
    seldom = Seldom(_log)

    class Guarded(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
        """One connection."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            """Take it on. Where too many are open, in place of the one that has kept silent longest, if any does."""
            if len(self.connections) >= most:
                seldom.tell("full", f"{most:,} connections are open: those that keep silent, then new ones, are closed")
                silent = [one for one in self.connections if one._deadline is not None and not one._is_asked()]
                if not silent:
                    transport.set_protocol(asyncio.Protocol())  # one that expects nothing
                    transport.abort()
                    return
                oldest = min(silent, key=lambda one: float(one._deadline.when()))
                self.connections.discard(oldest)  # counted no more from now on
                oldest.transport.abort()
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            """Pass bytes on; the time runs while they make no request."""
            super().data_received(data)
            if self._is_asked():
                self._stop_waiting()
            else:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            """Forget it."""
            self._stop_waiting()
            super().connection_lost(exc)

        def _is_asked(self) -> bool:
            """Whether a request is being answered, or its body awaited."""
            return self.cycle is not None and not self.cycle.response_complete

        def _wait(self) -> None:
            if self._deadline is None:
                self._deadline = self.loop.call_later(header_seconds, self._too_late)

        def _stop_waiting(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _too_late(self) -> None:
            self._deadline = None
            if not self._is_asked():
                self.transport.abort()

    return Guarded


def quiet_accept(loop: asyncio.AbstractEventLoop) -> None:
    """Let the loop say at most once a minute that it cannot take on connections: it tries many times a second."""
    seldom = Seldom(_log)

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if str(context.get("message", "")).startswith(_ACCEPT):
            seldom.tell("accept", f"no new connection can be taken on: {context.get('exception')}")
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
