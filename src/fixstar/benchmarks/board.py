"""How several runs are shown: a live table on a terminal, one line a change elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fixstar.benchmarks.jobs import Board, Job

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

__all__ = ["clock", "live_board", "table_of"]


@contextlib.contextmanager
def live_board() -> Iterator[Board]:
    """A board on standard error."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    with Live(console=console, auto_refresh=False) as live:
        yield _Live(live)


def table_of(jobs: Sequence[Job]) -> Table:
    """All runs: what each is at, how far it has come, and how long it will still take."""
    from rich.table import Table

    table = Table("run", "state", "", "time", "left", box=None, pad_edge=False)
    for job in jobs:
        left = job.seconds_left()
        table.add_row(
            job.run.name,
            job.stage if job.state == "running" else job.state,
            f"{job.share:.0%}",
            clock(job.seconds) if job.seconds else job.note,
            "" if left is None else clock(left),
        )
    counts = {state: sum(job.state == state for job in jobs) for state in ("done", "running", "waiting", "failed")}
    table.caption = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    table.caption_justify = "left"
    return table


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(59.7), clock(3671)
    ('1:00', '1:01:11')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _Live(Board):
    def __init__(self, live: Live) -> None:
        self.live = live

    def show(self, jobs: Sequence[Job]) -> None:
        self.live.update(table_of(jobs), refresh=True)


class _Lines(Board):
    def changed(self, job: Job) -> None:
        words = job.stage if job.state == "running" else " ".join([job.state, job.note]).strip()
        left = job.seconds_left()
        rest = "" if left is None else f", about {clock(left)} left"
        print(f"{clock(job.seconds):>8}  {job.run.name}: {words}{rest}", file=sys.stderr, flush=True)
