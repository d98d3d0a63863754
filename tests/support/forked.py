"""Processes to kill: forked from one Python that has torch imported already, so each starts at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["fixstar.training.scenarios"])


def fork(target: Callable[..., Any], *arguments: Any) -> ForkServerProcess:
    """Start ``target(*arguments)``, a function of a module."""
    process = _CONTEXT.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process
