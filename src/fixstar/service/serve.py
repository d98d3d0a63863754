"""Running the service: one process, until it is told to stop, with limits on its connections.

A client that opens connections and sends nothing would otherwise take every file handle of the process, and with them
the gallery's. uvicorn's own limits do not cover this: ``limit_concurrency`` answers 503 to everybody, silent
connections included, and nothing limits how long headers may take. Bodies have their own time limit, see ``limits``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fixstar.errors import FixstarError, InputError
from fixstar.service.app import create_app
from fixstar.service.galleries import Galleries, check_name
from fixstar.service.jobs import Jobs
from fixstar.service.keys import Keys
from fixstar.service.monitoring import LogThrottle
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace
from fixstar.workspace.files import gallery_url

_FINISH = 30  # seconds that requests under way have to finish
_GRACE = 60  # seconds after which the process ends in any case: then jobs have had their time too
_MAX_CONNECTIONS = 10_000  # however many files may be open
_MIN_CONNECTIONS = 8
_MAX_HEAD = 1 << 16  # bytes of a request before its body
_QUEUE = 2048  # connections that wait in the system to be accepted
_OTHER_FILES = 64  # open anyway: libraries, the log, the listener, locks
_ACCEPT = "socket.accept()"  # how asyncio's message about a failed accept begins

_log = logging.getLogger("fixstar.service")


def serve(workspace: Workspace | Mapping[str, Workspace], settings: ServiceSettings) -> None:
    """Answer requests until SIGTERM or SIGINT; then finish what is under way. Refuses to be reachable without keys.

    Several workspaces, by name, are each under /g/NAME. Then one whose gallery or version does not open is left out.
    """
    alone = isinstance(workspace, Workspace)
    spaces = {"": workspace} if isinstance(workspace, Workspace) else dict(workspace)
    own = {name: settings if alone else _settings_of(name, settings) for name in spaces}
    keys = {name: _required_keys(space, settings) for name, space in spaces.items()}
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    usable = _usable(spaces, own)
    most = max_connections()
    with _listening(settings) as listener:
        apps: dict[str, FastAPI] = {}
        for name, space in usable.items():
            jobs = Jobs(space, own[name])
            jobs.lock()  # here, where a refusal is still one line
            apps[name] = create_app(space, own[name], keys[name], jobs)
        config = uvicorn.Config(
            apps[""] if alone else Galleries({name: apps.get(name) for name in spaces}, keys, settings),
            http=_guarded_protocol(most, settings.header_seconds),
            ws="none",
            backlog=accepted_at_once(most),
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=_FINISH,
        )
        served = {"" if alone else f"/g/{name}/": space.path for name, space in usable.items()}
        _Server(config, served).run(sockets=[listener])


def _settings_of(name: str, settings: ServiceSettings) -> ServiceSettings:
    """One of several galleries has a name, and folders of its own below those of the settings."""
    check_name(name)
    if settings.snapshots is not None and settings.snapshots.suffix == ".tar":
        raise InputError(f"the snapshots of several galleries go to a folder, each below it; got {settings.snapshots}")
    return replace(
        settings,
        gallery=name,
        snapshots=settings.snapshots and settings.snapshots / name,
        training_images=settings.training_images and settings.training_images / name,
    )


def _required_keys(workspace: Workspace, settings: ServiceSettings) -> Keys:
    keys = Keys(workspace.path)
    if not keys.all() and (settings.names or not settings.loopback):
        where = f"callers of {settings.names[0]}" if settings.loopback else f"callers of {settings.host}"
        raise InputError(
            f"{where} may be on other machines, and the workspace has no keys. Make one first: "
            f"fixstar keys add NAME --role admin -w {workspace.path}"
        )
    if settings.shared and "://" not in gallery_url(workspace.path):
        raise InputError(
            f"services that share {workspace.path} need its gallery on a server, and it is a file. Move it first, "
            "for example to PostgreSQL: fixstar gallery move postgresql://HOST/DATABASE"
        )
    return keys


def _usable(spaces: Mapping[str, Workspace], own: Mapping[str, ServiceSettings]) -> dict[str, Workspace]:
    """Those whose gallery and deployed version open. What is wrong with the others is logged, or raised if all are."""
    usable: dict[str, Workspace] = {}
    errors: list[FixstarError] = []
    for name, space in spaces.items():
        try:
            if space.versions() or own[name].training_images is None:  # else the first version is trained by a job
                space.serving.encoder(space.deployed())
                for asking in space.serving.asking()[1]:
                    space.serving.encoder(asking)
            usable[name] = space
        except FixstarError as error:
            errors.append(error)
            if len(spaces) > 1:
                _log.error("the gallery %s is not served: %s", name, error)
    if not usable:
        raise errors[0]
    return usable


def _listening(settings: ServiceSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # TCP by name: asyncio sets TCP_NODELAY only then, and an answer in two packets would wait 40 ms without it
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(_QUEUE)  # two may bind to one port, but only one may listen
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen at {settings.host} port {settings.port}: {error.strerror or error}; "
            "choose another with --port (0: any free one)"
        ) from error
    return listener


class _Server(uvicorn.Server):
    """Prints its addresses once it answers, and takes a signal as the end of its work, not as a failure."""

    def __init__(self, config: uvicorn.Config, served: Mapping[str, Path]) -> None:
        super().__init__(config)
        self._served = served

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and say so."""
        _throttle_accept_errors(asyncio.get_running_loop())
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_QUEUE)  # uvicorn has one number for this and for what is accepted at once
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            address = f"[{host}]" if ":" in host else host
            for place, path in self._served.items():
                print(f"serving {path} at http://{address}:{port}{place} (stop with Ctrl-C)", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; whatever hangs, the kernel ends the process in the end. All that was acknowledged is on disk."""
        if hasattr(signal, "alarm"):
            signal.alarm(_GRACE)
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop gracefully at a signal; a second one does not wait."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


# --- connections


def max_connections(open_files: int | None = None) -> int:
    """Connections that may be open, given the limit of open files: half are for stores, indexes and uploads.

    >>> max_connections(1024), max_connections(1 << 20)
    (480, 10000)
    """
    allowed = _open_files_allowed() if open_files is None else open_files
    return max(_MIN_CONNECTIONS, min(_MAX_CONNECTIONS, (allowed - _OTHER_FILES) // 2))


def _open_files_allowed() -> int:
    try:
        import resource
    except ImportError:  # no such limit on this system
        return 2 * _MAX_CONNECTIONS
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4 * _MAX_CONNECTIONS if allowed == resource.RLIM_INFINITY else allowed


def accepted_at_once(connections: int) -> int:
    """Connections that the event loop accepts in one go, before any is counted: few compared with the maximum.

    >>> accepted_at_once(480), accepted_at_once(10_000)
    (60, 256)
    """
    return max(_MIN_CONNECTIONS, min(256, connections // 8))


class _LimitedHeaders(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """uvicorn's HTTP protocol with a limit on the length of headers: httptools has none, h11 has the same."""

    _head: int | None = None  # bytes of headers that are not complete; None beside them, and always with h11

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, and count those of headers."""
        super().data_received(data)
        if self._head is not None:
            self._head += len(data)
            if self._head > _MAX_HEAD:
                self.send_400_response(f"The headers are longer than {_MAX_HEAD} bytes.")

    def on_message_begin(self) -> None:
        """httptools sees the first byte of a request."""
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """httptools has all headers."""
        self._head = None
        super().on_headers_complete()


def _guarded_protocol(most: int, header_seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol with two more limits: open connections, and the time until the headers are complete."""
    throttle = LogThrottle(_log)

    class Guarded(_LimitedHeaders):
        """One connection."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            """Accept it. If too many are open, it replaces the one that has been silent longest, if any is."""
            if len(self.connections) >= most:
                throttle.warn("full", f"{most:,} connections are open: silent ones, then new ones, are closed")
                silent = [one for one in self.connections if one._deadline is not None and not one._is_asked()]
                if not silent:
                    transport.set_protocol(asyncio.Protocol())  # one that expects nothing
                    transport.abort()
                    return
                oldest = min(silent, key=lambda one: float(one._deadline.when()))
                self.connections.discard(oldest)  # no longer counted
                oldest.transport.abort()
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            """Pass bytes on; the time runs until they are a request."""
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


def _throttle_accept_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Log at most once per minute that no connection can be accepted: the loop tries many times a second."""
    throttle = LogThrottle(_log)

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if str(context.get("message", "")).startswith(_ACCEPT):
            throttle.warn("accept", f"no new connection can be accepted: {context.get('exception')}")
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
