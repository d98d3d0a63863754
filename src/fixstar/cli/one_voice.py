"""Several processes of one command, as torchrun starts them: the first one talks."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["one_voice", "process_rank"]

_TO_BE_TOLD = 3.0  # seconds


def process_rank() -> int:
    """The number of this process among those that torchrun started; 0 for one alone."""
    return int(os.environ.get("RANK", "0")) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else 0


@contextlib.contextmanager
def one_voice() -> Iterator[None]:
    """Silence all processes but the first.

    One that fails waits a moment: where all fail alike, torchrun ends it as soon as the first has said why. What
    remains is an error of its own, which the caller tells.
    """
    try:
        with contextlib.nullcontext() if process_rank() == 0 else _silence():
            yield
    except SystemExit as stop:
        if not stop.code:
            _part()
        elif process_rank():
            time.sleep(_TO_BE_TOLD)
        raise
    except BaseException:
        if process_rank():
            time.sleep(_TO_BE_TOLD)
        raise


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def _part() -> None:
    """Leave the other processes in good order, if this command trained with them; torch is not imported for it."""
    training = sys.modules.get("fixstar.training.distributed")
    if training is not None:
        training.leave()
