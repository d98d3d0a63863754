"""Processes of jobs, and services of their own that begin them."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx


def until(look: Callable[[], Any], seconds: float = 120.0) -> Any:
    """The first answer of ``look`` that is true."""
    end = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return seen


def job_processes(parent: int) -> list[int]:
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
    return found


Serve = Callable[[], tuple["subprocess.Popen[str]", httpx.Client]]


@contextmanager
def services(path: Path) -> Iterator[Serve]:
    """Starts ``fixstar serve`` over a workspace; what is left of it is killed at the end."""
    begun: list[subprocess.Popen[str]] = []

    def serve() -> tuple[subprocess.Popen[str], httpx.Client]:
        words = [
            sys.executable,
            "-m",
            "fixstar",
            "serve",
            "-w",
            str(path),
            "--device",
            "cpu",
            "--port",
            "0",
        ]
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        begun.append(process)
        assert process.stdout is not None
        found = re.search(r"http://\S+:\d+", process.stdout.readline())
        assert found is not None
        return process, httpx.Client(base_url=found.group(), timeout=60)

    yield serve
    for process in begun:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
