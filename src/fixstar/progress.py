"""Progress bars on standard error: what is running, how fast, how long it will still take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Moves a bar on by ``count`` and, now and then, changes the note at its end."""

    def __call__(self, count: int = 1, note: str | None = None) -> None:
        """Report ``count`` more units done."""


def silent(count: int = 1, note: str | None = None) -> None:
    """Advance a bar that is not shown."""


@contextmanager
def progress_bar(description: str, total: int, unit: str = "it", show: bool = True) -> Iterator[Advance]:
    """A bar with rate and time left; yields the function that moves it on. Silent with ``show=False``."""
    if not show:
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
    ]
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as progress:
        task = progress.add_task(description, total=total, rate="", note="")

        def advance(count: int = 1, note: str | None = None) -> None:
            speed = progress.tasks[task].speed
            fields = {"rate": f"{speed:,.{0 if speed >= 10 else 2}f} {unit}/s" if speed else ""}
            progress.update(task, advance=count, **(fields if note is None else {**fields, "note": note}))  # type: ignore[arg-type]

        yield advance
