"""Processes to kill: forked from one Python that has torch imported already, so each starts at once."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["fixstar.training.scenarios", "fixstar.service.serve"])


def fork(target: Callable[..., Any], *arguments: Any) -> ForkServerProcess:
    """Start ``target(*arguments)``, a function of a module."""
    process = _CONTEXT.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def fork_fixstar(out: Path, err: Path, *words: str | Path, open_files: int | None = None) -> ForkServerProcess:
    """Start ``fixstar WORDS``, with its output in files. ``open_files`` is how many it may have open."""
    return fork(_fixstar, out, err, [str(word) for word in words], open_files)


def _fixstar(out: Path, err: Path, words: list[str], open_files: int | None) -> None:
    from fixstar.cli import main

    if open_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    for stream, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.argv = ["fixstar", *words]
    main()
