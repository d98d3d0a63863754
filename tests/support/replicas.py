"""Several services over one workspace, each a process of its own, behind a balancer."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import httpx
from balancer import balancer
from forked import fork_fixstar

from fixstar.workspace import Workspace


@dataclass
class Service:
    """One of them."""

    words: list[str]
    out: Path
    err: Path
    process: ForkServerProcess
    http: httpx.Client

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.http.base_url.port or 0

    def kill(self) -> None:
        """End it at once."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Tell it to stop, wait until it has, and start it again at the same port."""
        self._end(signal.SIGTERM)
        assert self.process.exitcode == 0, self.err.read_text()
        self.out.unlink()
        self.process = fork_fixstar(self.out, self.err, *self.words, "--port", str(self.port))
        address_of(self.process, self.out, self.err)

    def _end(self, sign: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, sign)
        self.process.join(60)


def address_of(process: ForkServerProcess, out: Path, err: Path) -> str:
    """Where a service says that it answers, once it does."""
    while not (found := re.search(r"http://\S+:\d+ ", out.read_text() if out.exists() else "")):
        assert process.is_alive(), err.read_text()
        time.sleep(0.01)
    return found.group().strip()


@contextmanager
def replicas(
    space: Workspace, count: int = 3, rate: int = 1_000_000, *more: str
) -> Iterator[list[Service]]:
    """Services as processes of their own; ``more`` are further options."""
    words = [
        "serve",
        "-w",
        str(space.path),
        "--device",
        "cpu",
        "--shared",
        "--rate",
        str(rate),
        *more,
    ]
    files = [
        (space.path.with_name(f"out{one}"), space.path.with_name(f"err{one}"))
        for one in range(count)
    ]
    processes = [fork_fixstar(out, err, *words, "--port", "0") for out, err in files]
    made: list[Service] = []
    try:
        for process, (out, err) in zip(processes, files, strict=True):
            http = httpx.Client(base_url=address_of(process, out, err), timeout=300)
            made.append(Service(words=words, out=out, err=err, process=process, http=http))
        yield made
    finally:
        for process in (*processes, *(service.process for service in made)):
            process.kill()
            process.join()
        for service in made:
            service.http.close()


@contextmanager
def balanced(services: Sequence[Service]) -> Iterator[httpx.Client]:
    """A client of their balancer; each of its requests goes to the next service."""
    spread = {"connection": "close"}
    ports = [service.port for service in services]
    with (
        balancer(ports) as address,
        httpx.Client(base_url=address, timeout=300, headers=spread) as http,
    ):
        yield http
