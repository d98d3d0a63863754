"""Progress on standard error, with rate and remaining time: a bar, or lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Protocol

EVERY = 10.0  # seconds between two lines if standard error is not a terminal

Listener = Callable[[str, int, int, str], object]  # description, units done, total, and the note
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def reported_to(listener: Listener) -> Iterator[None]:
    """Inside, bars of this thread go to ``listener`` instead of standard error. An exception from it ends the work."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class Advance(Protocol):
    """Advances a bar by ``count`` and optionally changes its note."""

    def __call__(self, count: int = 1, note: str | None = None) -> None:
        """Report ``count`` more units done."""


def silent(count: int = 1, note: str | None = None) -> None:
    """Does nothing: for bars that are not shown."""


@contextmanager
def progress_bar(
    description: str, total: int, unit: str = "it", show: bool = True, done: int = 0
) -> Iterator[Advance]:
    """A bar with rate and time left, or occasional lines in a pipe; yields the function that advances it.

    ``done`` units were done by an earlier run; they do not count for the rate.
    """
    if (listener := _listener.get()) is not None:
        yield _reporting(listener, description, total, done)
        return
    if not show:
        yield silent
        return
    if not sys.stderr.isatty():
        with _progress_lines(description, total, unit, done) as tell:
            yield tell
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
    ]
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as progress:
        task = progress.add_task(description, total=total, completed=done, rate="", note="")

        def advance(count: int = 1, note: str | None = None) -> None:
            speed = progress.tasks[task].speed
            fields: dict[str, Any] = {"rate": _rate(speed, unit) if speed else ""}
            if note is not None:
                fields["note"] = note
            progress.update(task, advance=count, **fields)

        yield advance


def _reporting(listener: Listener, description: str, total: int, done: int) -> Advance:
    noted = ""

    def advance(count: int = 1, note: str | None = None) -> None:
        nonlocal done, noted
        done = done + count
        if note is not None:
            noted = note
        listener(description, done, total, noted)

    return advance


@contextmanager
def _progress_lines(description: str, total: int, unit: str, done: int) -> Iterator[Advance]:
    noted = ""
    started = time.monotonic()
    before = done
    told = started

    def say() -> None:
        seconds = time.monotonic() - started
        rate = (done - before) / seconds if seconds else 0.0
        line = f"{description}: {done:,} of {total:,} {unit}"
        if rate:
            line += f", {_rate(rate, unit)}"
        if rate and done < total:
            line += f", {timedelta(seconds=round((total - done) / rate))} left"
        if noted:
            line += f"  {noted}"
        print(line, file=sys.stderr)

    def advance(count: int = 1, note: str | None = None) -> None:
        nonlocal done, noted, told
        done = done + count
        if note is not None:
            noted = note
        if done < total and time.monotonic() - told >= EVERY:  # the last line is printed at the end
            told = time.monotonic()
            say()

    try:
        yield advance
    finally:
        say()


def _rate(speed: float, unit: str) -> str:
    """Items per second, with decimals only for small numbers.

    >>> _rate(1234.5, "items"), _rate(0.5, "items")
    ('1,234 items/s', '0.50 items/s')
    """
    digits = 0 if speed >= 10 else 2
    return f"{speed:,.{digits}f} {unit}/s"
