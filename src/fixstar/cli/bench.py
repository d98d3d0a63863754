"""fixstar bench: the papers' experiments, listed, run, and set beside the papers' figures."""

from __future__ import annotations

import typer

from fixstar.cli import bench_list, bench_run, bench_table

__all__ = ["NAME", "app"]

NAME = "bench"

app = typer.Typer(
    help="The papers' experiments: list them, run them, set ours beside theirs.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    epilog="Example:  fixstar bench list   |   fixstar bench run cifar100-10/7 --data DATA --method hoc --orders 3",
)

for verb in (bench_list, bench_run, bench_table):
    app.command(verb.NAME, epilog=verb.EXAMPLES)(verb.command)
