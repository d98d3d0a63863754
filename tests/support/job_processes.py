"""Processes of jobs, and services of their own that begin them.

Most tests take ``forked_jobs``: a process that has imported torch already does the job. Importing takes seconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import httpx
import pytest
from forked import fork, fork_fixstar
from replicas import address_of

from fixstar.service.jobs import process

_forked: list[ForkedJob] = []


def until(look: Callable[[], Any], seconds: float = 120.0) -> Any:
    """The first answer of ``look`` that is true."""
    end = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return seen


def job_processes(parent: int | None) -> list[int]:
    """The processes of jobs that a process has begun."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
            begun_by = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        if b"fixstar.service.jobs.process" in words and begun_by == parent:
            found.append(int(entry.name))
    if parent == os.getpid():
        found += [job.pid for job in _forked if job.is_alive()]
    return found


class ForkedJob:
    """A forked process of a job, with the part of ``subprocess.Popen`` that the service uses."""

    def __init__(self) -> None:
        its_input, our_output = Pipe(duplex=False)
        our_input, its_output = Pipe(duplex=False)
        self._process = fork(_do_job, its_input, its_output, dict(os.environ))
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.stdin = _text(our_output, "w")
        self.stdout = _text(our_input, "r")
        its_input.close()
        its_output.close()

    def is_alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.is_alive()

    def wait(self, seconds: float | None = None) -> int:
        """Its exit code, once it has ended."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a job", seconds or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        """End it at once, with all that it started."""
        self._process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _text(end: Connection, mode: str) -> Any:
    """One end of a pipe as a file of text."""
    number = os.dup(end.fileno())
    end.close()
    return os.fdopen(number, mode, encoding="utf-8")


def _do_job(its_input: Connection, its_output: Connection, environment: dict[str, str]) -> None:
    """What the command line of a job's process does."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(its_input.fileno(), 0)
    os.dup2(its_output.fileno(), 1)
    its_input.close()
    its_output.close()
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    os.nice(process.NICE)
    process.main()


@contextmanager
def _forked_process() -> Iterator[ForkedJob]:
    job = ForkedJob()
    _forked.append(job)
    try:
        yield job
    finally:
        job.kill()
        job.wait()
        _forked.remove(job)
        with contextlib.suppress(BrokenPipeError):
            job.stdin.close()


@pytest.fixture
def forked_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of services in this process get processes that were forked, not started."""
    monkeypatch.setattr(process, "_process", _forked_process)


Serve = Callable[[], tuple[ForkServerProcess, httpx.Client]]


@contextmanager
def services(path: Path) -> Iterator[Serve]:
    """Starts ``fixstar serve`` over a workspace; what is left of it is killed at the end."""
    begun: list[ForkServerProcess] = []

    def serve() -> tuple[ForkServerProcess, httpx.Client]:
        out, err = (path.with_name(f"{name}{len(begun)}") for name in ("out", "err"))
        words = ["serve", "-w", str(path), "--device", "cpu", "--port", "0"]
        service = fork_fixstar(out, err, *words)
        begun.append(service)
        return service, httpx.Client(base_url=address_of(service, out, err), timeout=60)

    yield serve
    for service in begun:
        service.kill()
        service.join()
