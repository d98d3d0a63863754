"""Running the service: one process, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Iterator

import uvicorn

from fixstar.errors import InputError
from fixstar.service.app import create_app
from fixstar.service.connections import QUEUE, accepted_at_once, guarded_protocol, most_connections, quiet_accept
from fixstar.service.jobs import Jobs
from fixstar.service.keys import Keys
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace

__all__ = ["serve"]

_FINISH = 30  # seconds that requests under way have to finish


def serve(workspace: Workspace, settings: ServiceSettings) -> None:
    """Answer requests until SIGTERM or SIGINT; then finish what is under way. Refuses to be reachable without keys."""
    keys = Keys(workspace.path)
    if not settings.loopback and not keys.all():
        raise InputError(
            f"{settings.host} can be reached from other machines, and the workspace has no keys. Make one first: "
            f"fixstar keys add NAME --role admin -w {workspace.path}"
        )
    if settings.names and not keys.all():
        raise InputError(
            f"who calls by {settings.names[0]} may be anywhere, and the workspace has no keys. Make one first: "
            f"fixstar keys add NAME --role admin -w {workspace.path}"
        )
    workspace.serving.encoder(workspace.deployed())  # what is missing or damaged is told here
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    most = most_connections()
    with _listening(settings) as listener:
        jobs = Jobs(workspace, settings)
        jobs.hold()  # here, where a refusal is still told in one line
        config = uvicorn.Config(
            create_app(workspace, settings, keys, jobs),
            http=guarded_protocol(most, settings.header_seconds),
            ws="none",
            backlog=accepted_at_once(most),
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=_FINISH,
        )
        _Server(config, workspace).run(sockets=[listener])


def _listening(settings: ServiceSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(QUEUE)  # two may bind to one port, but only one may listen
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen at {settings.host} port {settings.port}: {error.strerror or error}; "
            "choose another with --port (0: any that is free)"
        ) from error
    return listener


class _Server(uvicorn.Server):
    """Says where it is once it answers, and takes a signal as the end of its work, not as a failure."""

    def __init__(self, config: uvicorn.Config, workspace: Workspace) -> None:
        super().__init__(config)
        self._workspace = workspace

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and say so."""
        quiet_accept(asyncio.get_running_loop())
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(QUEUE)  # uvicorn has one number for this and for what is accepted at once
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            address = f"[{host}]" if ":" in host else host
            print(f"serving {self._workspace.path} at http://{address}:{port} (stop with Ctrl-C)", flush=True)

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
