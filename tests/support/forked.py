"""Processes to kill: forked from one Python that has torch imported already, so each starts at once."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sqlite3
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        *("fixstar.cli.app", "fixstar.service.serve", "fixstar.training.scenarios"),
        "torch._dynamo",  # which an optimiser imports
        *("fastapi.testclient", "pytest", "typer.testing"),  # which modules of tests import
    ]
)
_MODULES = ("posix", "sqlite3", "_io", "fcntl", "psycopg")
_CALLS = ("execute", "executemany", "commit", "flush", "rmtree")
_DATABASE = (sqlite3.Connection, sqlite3.Cursor)


def fork(target: Callable[..., Any], *arguments: Any) -> ForkServerProcess:
    """Start ``target(*arguments)``, a function of a module."""
    process = _CONTEXT.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def fork_instead_of_spawning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that this test spawns are forked like the others: each saves the seconds that importing torch takes."""
    contexts = multiprocessing.get_context
    monkeypatch.setattr(
        multiprocessing,
        "get_context",
        lambda method=None: _CONTEXT if method == "spawn" else contexts(method),
    )


def fork_fixstar(
    out: Path,
    err: Path,
    *words: str | Path,
    open_files: int | None = None,
    at_checkpoint: signal.Signals | None = None,
) -> ForkServerProcess:
    """Start ``fixstar WORDS``, with its output in files.

    ``open_files`` is how many it may have open. ``at_checkpoint`` is a signal that comes when the first epoch is saved.
    """
    return fork(_fixstar, out, err, [str(word) for word in words], open_files, at_checkpoint)


def kill_at_call(calls: int) -> Callable[[FrameType, str, Any], None]:
    """A profiler that kills this process at a call into the system or a database: the same one in every run."""
    left = calls

    def look(frame: FrameType, event: str, called: Any) -> None:
        nonlocal left
        if event == "c_call":
            counts = str(getattr(called, "__module__", None)).startswith(_MODULES) or isinstance(
                getattr(called, "__self__", None), _DATABASE
            )
        else:
            counts = event == "call" and frame.f_code.co_name in _CALLS
        left -= counts
        if counts and not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return look


def signal_at_checkpoint(sign: signal.Signals, name: str) -> None:
    """From now on this process gets a signal whenever it has saved a checkpoint of that name."""
    from fixstar.training.checkpoint import save_checkpoint

    def save(path: Path, *state: Any) -> None:
        save_checkpoint(path, *state)
        if path.name == name:
            os.kill(os.getpid(), sign)

    mock.patch("fixstar.training.loop.save_checkpoint", save).start()


def _fixstar(
    out: Path,
    err: Path,
    words: list[str],
    open_files: int | None,
    at_checkpoint: signal.Signals | None,
) -> None:
    from fixstar.cli import main

    if at_checkpoint is not None:
        signal_at_checkpoint(at_checkpoint, "checkpoint-v1.safetensors")
    if open_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    for stream, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.argv = ["fixstar", *words]
    main()
