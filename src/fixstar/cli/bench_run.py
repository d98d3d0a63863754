"""fixstar bench run: train and measure a benchmark, several runs at a time."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fixstar.cli.options import AsJson, Device, print_json

if TYPE_CHECKING:
    from fixstar.benchmarks.jobs import Folders, Job
    from fixstar.benchmarks.plan import Run

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "run"
EXAMPLES = (
    "Examples:  fixstar bench run cifar100-10/7 --data DATA --method hoc --method er --orders 3 --jobs 4   |   "
    "fixstar bench run cifar100-10/16 --data DATA --method hoc --option lam=0.25 --capacity 1000 --epochs 40"
)


def command(
    name: Annotated[str, typer.Argument(help="See: fixstar bench list")],
    data: Annotated[Path, typer.Option(help="The folder that the datasets lie in.")] = Path("data"),
    method: Annotated[
        list[str] | None, typer.Option(help="May be given several times; all of the benchmark's if not given.")
    ] = None,
    orders: Annotated[
        str | None, typer.Option(metavar="N", help="How many shuffled class orders: 3 is orders 1, 2 and 3.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N", help="How many seeds of the training: 3 is seeds 0, 1 and 2.")
    ] = None,
    order: Annotated[
        list[int] | None, typer.Option(min=0, help="This class order; 0 is the dataset's own. Several times for more.")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(min=0, help="This seed. Several times for more.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time.", min=1)] = 1,
    epochs: Annotated[int | None, typer.Option(help="A shorter recipe; its milestones move in proportion.")] = None,
    capacity: Annotated[int | None, typer.Option(help="K of methods with a fixed classifier.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="An option of the method, such as lam=0.25.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(help="weight_decay, learning_rate, replay_per_class or length (of prototypes): length=0.1."),
    ] = None,
    work: Annotated[Path, typer.Option(help="Where unfinished runs live.")] = Path("bench-work"),
    results: Annotated[Path, typer.Option(help="Where results go: one JSON file a run.")] = Path("benchmarks/results"),
    device: Device = "auto",
    mps: Annotated[bool, typer.Option(help="Share a GPU by NVIDIA's multi-process service, where it is there.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be run and what is done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a benchmark. Finished runs are skipped; after an interruption the same command goes on."""
    from fixstar.benchmarks import benchmark
    from fixstar.benchmarks.jobs import Folders
    from fixstar.benchmarks.plan import plan
    from fixstar.benchmarks.readiness import require_data

    entry = benchmark(name)
    runs = plan(
        entry,
        method or [],
        _chosen("order", orders, order, first=1),
        _chosen("seed", seeds, seed, first=0) or [0],
        epochs=epochs,
        capacity=capacity,
        options=dict(_option(text) for text in option or []),
        changes=dict(_option(text, "--setting", "length=0.1") for text in setting or []),
    )
    folders = Folders(data, work, results)
    if dry_run:
        _print_plan(runs, folders, as_json)
        return
    if not all(folders.result(run).exists() for run in runs):
        require_data(entry, data)
    _tell_not_judged(runs, folders)
    if len(runs) == 1:
        _run_here(runs[0], folders, device, as_json)
    else:
        _run_apart(runs, folders, jobs, device, mps, as_json)


def _tell_not_judged(runs: list[Run], folders: Folders) -> None:
    for run in runs:
        if lacking := folders.not_judged(run):
            how = f"remove {folders.result(run)} to run it again"
            _say(f"{run.name} is done, but it was not judged by {', '.join(lacking)}, which is newer: {how}")


def _run_here(run: Run, folders: Folders, device: str, as_json: bool) -> None:
    from dataclasses import asdict

    from fixstar.benchmarks.jobs import complete

    before = folders.result(run).exists()
    result = complete(run, folders, device, progress=not as_json)
    if as_json:
        print_json(asdict(result))
        return
    print(f"{folders.result(run)}{' was there already' if before else ''} ({result.seconds:.0f} s)")
    for protocol in result.protocols:
        line = "  ".join(f"{key} {value:.4f}" for key, value in result.metrics(protocol).items())
        print(f"{protocol}:  {line}")


def _run_apart(runs: list[Run], folders: Folders, jobs: int, device: str, mps: bool, as_json: bool) -> None:
    from fixstar.benchmarks.board import live_board
    from fixstar.benchmarks.jobs import run_jobs
    from fixstar.benchmarks.mps import shared_gpu

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as on Ctrl-C, no job is left behind
    sharing = mps and jobs > 1 and device != "cpu" and any(not folders.result(run).exists() for run in runs)
    with contextlib.ExitStack() as stack:
        environment = stack.enter_context(shared_gpu(_say)) if sharing else {}
        board = stack.enter_context(live_board())
        finished = run_jobs(runs, folders, jobs, device, board, environment)
    failed = [job for job in finished if job.state == "failed"]
    if as_json:
        print_json([_job_row(job, folders) for job in finished])
    else:
        print(f"{len(finished) - len(failed)} of {len(finished)} runs are in {folders.results}")
    for job in failed:
        _say(f"fixstar: {job.run.name} failed: {job.note.removeprefix('fixstar: ')} (see {folders.log(job.run)})")
    if failed:
        raise typer.Exit(1)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _job_row(job: Job, folders: Folders) -> dict[str, Any]:
    return {
        "run": job.run.name,
        "state": job.state,
        "seconds": round(job.seconds, 1),
        "note": job.note,
        "result": str(folders.result(job.run)) if job.state == "done" else None,
    }


def _print_plan(runs: list[Run], folders: Folders, as_json: bool) -> None:
    rows = []
    for run in runs:
        finished = len(folders.progress(run).versions)
        half = f"{finished} of {run.benchmark.tasks.count} versions" if finished else "to do"
        done = f"done{''.join(f', not by {name}' for name in folders.not_judged(run))}"
        rows.append({"run": run.name, "state": done if folders.result(run).exists() else half})
    if as_json:
        print_json(rows)
        return
    for row in rows:
        print(f"{row['state']:<20} {row['run']}")


def _chosen(what: str, count: str | None, named: list[int] | None, first: int) -> list[int] | None:
    """The orders or seeds that were asked for by their number and by name; None where none was."""
    from fixstar.errors import InputError

    if count is None:
        return named or None
    if not (count.isascii() and count.isdecimal()) or int(count) < 1:
        listed = " ".join(f"--{what} {part}" for part in re.findall(r"[0-9]+", count))
        certain = f"; for certain ones type {listed}" if "," in count and listed else ""
        raise InputError(f"--{what}s is how many, a whole number from 1 on, such as 3; got {count!r}{certain}")
    return [*range(first, first + int(count)), *(named or [])]


def _option(text: str, option: str = "--option", example: str = "lam=0.25") -> tuple[str, Any]:
    from fixstar.errors import InputError

    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InputError(f"{option} is written NAME=VALUE, such as {example}; got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
