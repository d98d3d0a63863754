"""Running the service: one process, until it is told to stop, with limits on its connections.

A client that opens connections and sends nothing, or takes no answer, would otherwise have every file handle of the
process, and with them the gallery's. uvicorn's own limits do not cover this: ``limit_concurrency`` answers 503 to
everybody, silent connections included, and nothing limits how long headers may take, or taking an answer. Bodies have
their own time limit, see ``limits``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import selectors
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fixstar.errors import FixstarError, InputError
from fixstar.service.app import create_app
from fixstar.service.galleries import Galleries, check_name
from fixstar.service.jobs import Jobs
from fixstar.service.keys import Keys, identified
from fixstar.service.limits import ByteBudget
from fixstar.service.monitoring import LogThrottle
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace
from fixstar.workspace.files import gallery_url

_FINISH = 30  # seconds that requests under way have to finish
_FIRST = 2.0  # seconds that a new connection has for its request when the service stops
_NEXT = 0.1  # seconds for a request that is on its way in an open one
_SETTLE = 0.05  # seconds until what was accepted is a connection
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
    if isinstance(workspace, Workspace):
        spaces = {"": workspace}
        own = {"": settings}
    else:
        spaces = dict(workspace)
        own = {name: _settings_of(name, settings) for name in spaces}
    keys = {name: _required_keys(space, settings) for name, space in spaces.items()}
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    usable = _usable(spaces, own)
    most = max_connections()
    with _listening(settings) as listener:
        apps: dict[str, FastAPI] = {}
        budget = ByteBudget(settings.memory_bytes)
        for name, space in usable.items():
            jobs = Jobs(space, own[name])
            jobs.lock()  # here, where a refusal is still one line
            apps[name] = create_app(space, own[name], keys=keys[name], locked=jobs, budget=budget)
        app: FastAPI | Galleries
        if alone:
            app = apps[""]
            served = {"": usable[""].path}
        else:
            app = Galleries({name: apps.get(name) for name in spaces}, keys, settings)
            served = {f"/g/{name}/": space.path for name, space in usable.items()}
        config = uvicorn.Config(
            app,
            http=_guarded_protocol(most, settings.header_seconds),
            ws="none",
            backlog=accepted_at_once(most),
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            # X-Forwarded-For counts only where a proxy was named: else who is on this machine could be any address
            proxy_headers=bool(settings.names) or "FORWARDED_ALLOW_IPS" in os.environ,
            lifespan="on",
            timeout_graceful_shutdown=_FINISH,
        )
        _AnnouncingServer(config, served).run(sockets=[listener])


def _settings_of(name: str, settings: ServiceSettings) -> ServiceSettings:
    """One of several galleries has a name, and folders of its own below those of the settings."""
    check_name(name)
    if settings.snapshots is not None and settings.snapshots.suffix == ".tar":
        raise InputError(
            f"the snapshots of several galleries go to a folder, each below it; got {settings.snapshots}"
        )
    return replace(
        settings,
        gallery=name,
        snapshots=settings.snapshots and settings.snapshots / name,
        training_images=settings.training_images and settings.training_images / name,
    )


def _required_keys(workspace: Workspace, settings: ServiceSettings) -> Keys:
    keys = Keys(workspace.path)
    if not keys.all() and (settings.names or not settings.loopback):
        host = settings.names[0] if settings.loopback else settings.host
        raise InputError(
            f"callers of {host} may be on other machines, and the workspace has no keys. Make one first: "
            f"fixstar keys add NAME --role admin -w {workspace.path}"
        )
    if settings.shared and "://" not in gallery_url(workspace.path):
        raise InputError(
            f"services that share {workspace.path} need its gallery on a server, and it is a file. Move it first, "
            "for example to PostgreSQL: fixstar gallery move postgresql://HOST/DATABASE"
        )
    return keys


def _usable(
    spaces: Mapping[str, Workspace], own: Mapping[str, ServiceSettings]
) -> dict[str, Workspace]:
    """Those whose gallery and deployed version open. What is wrong with the others is logged, or raised if all are."""
    usable: dict[str, Workspace] = {}
    errors: list[FixstarError] = []
    for name, space in spaces.items():
        try:
            if (
                space.versions() or own[name].training_images is None
            ):  # else the first version is trained by a job
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


class _AnnouncingServer(uvicorn.Server):
    """Prints its addresses once it is ready, and exits normally on SIGINT and SIGTERM."""

    def __init__(self, config: uvicorn.Config, served: Mapping[str, Path]) -> None:
        super().__init__(config)
        self._served = served

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and print the addresses."""
        _throttle_accept_errors(asyncio.get_running_loop())
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(
                _QUEUE
            )  # uvicorn has one number for this and for what is accepted at once
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            address = f"[{host}]" if ":" in host else host
            for place, path in self._served.items():
                print(
                    f"serving {path} at http://{address}:{port}{place} (stop with Ctrl-C)",
                    flush=True,
                )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop without failing a request: answer open connections, refuse new ones."""
        for listener in sockets or ():
            await _stop_listening(listener)
        await asyncio.sleep(_SETTLE)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop, with a timer that ends the process if anything hangs. Whatever was acknowledged is on disk."""
        if hasattr(signal, "alarm"):
            signal.alarm(_GRACE)
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop gracefully at the first signal, at once at the second."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def _stop_listening(listener: socket.socket) -> None:
    """Accept the connections that wait, then refuse new ones. Closing the listener first would reset them.

    The socket stays open: asyncio drops a connection that it has just accepted for a closed server.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + _FIRST
    with selectors.DefaultSelector() as waiting:
        waiting.register(listener, selectors.EVENT_READ)
        while waiting.select(0) and loop.time() < end:
            await asyncio.sleep(0)  # the event loop accepts
        with contextlib.suppress(OSError):  # not on every system
            listener.shutdown(socket.SHUT_RDWR)
        loop.remove_reader(listener)


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
    if allowed == resource.RLIM_INFINITY:
        return 4 * _MAX_CONNECTIONS
    return allowed


def accepted_at_once(connections: int) -> int:
    """Connections that the event loop accepts in one go, before any is counted: few compared with the maximum.

    >>> accepted_at_once(480), accepted_at_once(10_000)
    (60, 256)
    """
    return max(_MIN_CONNECTIONS, min(256, connections // 8))


class _LimitedHeaders(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """uvicorn's HTTP protocol with a limit on the length of headers and trailers: httptools has none, h11 has the same.

    Trailers, which may come after a body in chunks, are left out: they would become headers of a request that was
    admitted without them.
    """

    _fed = 0  # bytes of the last read
    _head: int | None = (
        None  # bytes of headers or trailers so far; None beside them, and always with h11
    )
    _admitted = False  # the headers of a request are complete

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, and count those of headers and trailers."""
        self._fed = len(data)
        super().data_received(data)
        if self._head is not None:
            self._head += len(data)
            if self._head > _MAX_HEAD:
                self.send_400_response(f"The headers are longer than {_MAX_HEAD} bytes.")

    def on_message_begin(self) -> None:
        """httptools sees the first byte of a request."""
        self._head = 0
        self._admitted = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools has a header, or a trailer."""
        if not self._admitted:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """httptools has all headers."""
        self._head = None
        self._admitted = True
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """httptools has the length of a chunk. After the last one, of length 0, come trailers."""
        self._head = -self._fed  # what came with it is not counted: it may be the chunk before

    def on_body(self, body: bytes) -> None:
        """httptools has a part of the body, so these are not trailers."""
        self._head = None
        super().on_body(body)

    def on_message_complete(self) -> None:
        """httptools has the whole request."""
        self._head = None
        super().on_message_complete()


class _GuardedProtocol(_LimitedHeaders):
    """uvicorn's HTTP protocol with more limits: open connections, and the time for headers and for taking an answer.

    If ``most`` connections are open, a new one replaces another: one that is silent, or else one whose caller has shown
    no valid key, of the address that has most of them, the oldest first. Those of valid keys stay. ``seconds`` are
    until headers are complete, and until the caller takes what was sent.
    """

    most: ClassVar[int]
    seconds: ClassVar[float]
    throttle: ClassVar[LogThrottle]

    _deadline: asyncio.TimerHandle | None = None  # for headers, or for taking the end of an answer
    _sending: asyncio.TimerHandle | None = None  # for taking a part of an answer
    _leaving = False  # the service stops: one more request is answered
    since = 0.0  # when it fell silent, or its request began

    def connection_made(self, transport: Any) -> None:
        """Accept the connection; if there are too many, close another one first."""
        if len(self.connections) >= self.most:
            self.throttle.warn(
                "full",
                f"{self.most:,} connections are open: silent ones, then others without a key, close",
            )
            other = _replaceable(self.connections)
            if other is None:
                transport.set_protocol(asyncio.Protocol())  # one that expects nothing
                transport.abort()
                return
            self.connections.discard(other)  # no longer counted
            other.transport.abort()
        super().connection_made(transport)
        self.since = self.loop.time()
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on. The timer runs until the request is complete."""
        before = self.is_asked()
        super().data_received(data)
        if not self.is_asked():
            self._wait()
            return
        self._stop_waiting()
        if self._leaving:
            self.cycle.keep_alive = False
        if not before:
            self.since = self.loop.time()

    def shutdown(self) -> None:
        """The service stops: answer the current request, or one that is arriving, and then close."""
        self._leaving = True
        if self.is_asked():
            super().shutdown()
            return
        seconds = _FIRST if self.cycle is None else _NEXT
        self.loop.call_later(seconds, self._close_unless_asked)

    def _close_unless_asked(self) -> None:
        if not self.is_asked() and not self.transport.is_closing():
            super().shutdown()

    def on_response_complete(self) -> None:
        """The whole response was written; the client may not have read all of it yet."""
        super().on_response_complete()
        if not self.is_asked():
            self.since = self.loop.time()
            self._wait()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, unless its client still reads the response: closing would wait for that."""
        if not self.transport.get_write_buffer_size():
            super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        """The client reads more slowly than the service writes."""
        super().pause_writing()
        self._sending = self.loop.call_later(self.seconds, self._abort)

    def resume_writing(self) -> None:
        """The client has read some."""
        self._stop_sending()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._stop_waiting()
        self._stop_sending()
        super().connection_lost(exc)

    def is_asked(self) -> bool:
        """Whether a request is being handled, or its body is arriving."""
        return self.cycle is not None and not self.cycle.response_complete

    def precedence(self) -> tuple[bool, bool]:
        """Connections with a low value are closed first: idle ones, then those of callers without a valid key."""
        return self.is_asked(), self.is_asked() and identified(self.cycle.scope) is not None

    def _wait(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.seconds, self._too_late)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_sending(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _too_late(self) -> None:
        self._deadline = None
        if not self.is_asked():
            self.transport.abort()

    def _abort(self) -> None:
        self.throttle.warn(
            "sending",
            f"an answer was not taken for {self.seconds:g} s, so its connection was closed",
        )
        self.transport.abort()


def _guarded_protocol(most: int, seconds: float) -> type[_GuardedProtocol]:
    """The protocol of one server, with its limits."""

    class Guarded(_GuardedProtocol):
        """One connection of this server."""

    Guarded.most = most
    Guarded.seconds = seconds
    Guarded.throttle = LogThrottle(_log)
    return Guarded


def _replaceable(connections: Iterable[Any]) -> Any | None:
    """The connection to close for a new one; None if all serve callers with a valid key."""
    open_now = list(connections)
    held = Counter(_address(one) for one in open_now)
    strangers = [one for one in open_now if one.precedence() != (True, True)]
    return min(
        strangers,
        key=lambda one: (one.precedence(), -held[_address(one)], one.since),
        default=None,
    )


def _address(connection: Any) -> str:
    if not connection.client:
        return ""
    return str(connection.client[0])


def _throttle_accept_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Log at most once per minute that no connection can be accepted: the loop tries many times a second."""
    throttle = LogThrottle(_log)

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if str(context.get("message", "")).startswith(_ACCEPT):
            throttle.warn(
                "accept", f"no new connection can be accepted: {context.get('exception')}"
            )
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
