"""A real ``fixstar serve`` and a real browser, for tests and for screenshots."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

__all__ = ["chromium", "patient", "serving"]

_START = 90.0  # seconds for a service to answer
patient = httpx.Client(timeout=300)  # for a busy machine


def chromium() -> str | None:
    """The browser: FIXSTAR_CHROMIUM, or the one on the path."""
    return os.environ.get("FIXSTAR_CHROMIUM") or shutil.which("chromium")


@contextmanager
def serving(workspace: Path, *options: str) -> Iterator[str]:
    """The address of a ``fixstar serve`` process; it is stopped with SIGTERM and must end well."""
    command = [
        sys.executable,
        "-m",
        "fixstar",
        "serve",
        "-w",
        str(workspace),
        "--port",
        "0",
        "--rate",
        "6000",
        *options,
    ]
    log = workspace.with_name(f"{workspace.name}-serve.log")
    with log.open("w") as errors:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
        try:
            yield _address(process, log)
        finally:
            process.terminate()
            code = process.wait(180)
    assert code == 0, f"fixstar serve ended with {code}: {log.read_text()[-2000:]}"


def _address(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    end = time.monotonic() + _START
    while time.monotonic() < end and process.poll() is None:
        if select.select([process.stdout], [], [], 0.5)[0]:
            seen = re.search(r"http://\S+", process.stdout.readline())
            if seen:
                return seen.group()
    raise AssertionError(f"fixstar serve did not start: {log.read_text()[-2000:]}")
