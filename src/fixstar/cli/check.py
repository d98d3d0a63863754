"""fixstar check: may a version be deployed over the vectors that are there?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fixstar.cli.next_steps import next_lines
from fixstar.cli.options import AsJson, Device, WorkspacePath, print_json, print_wrapped
from fixstar.errors import NextStep

if TYPE_CHECKING:
    from fixstar.workspace import Check

__all__ = ["EXAMPLES", "EXIT_CODES", "NAME", "command"]

NAME = "check"
EXAMPLES = (
    "Examples:  fixstar check v2 -w shop   |   fixstar check -w shop --data photos/held-out --tolerance 0.01   |   "
    "fixstar check v3 -w shop --confidence 0.99 --json"
)
EXIT_CODES = {"pass": 0, "refuse": 2, "missing evidence": 3}

SHOWN = 5  # lost queries that are named


def command(
    version: Annotated[str | None, typer.Argument(help="The version to check; the newest if not given.")] = None,
    workspace: WorkspacePath = Path(),
    data: Annotated[
        Path | None,
        typer.Option(help="Labelled images that no version was trained on; those held out at training if not given."),
    ] = None,
    split: Annotated[str, typer.Option(help="Which part of data that is divided: train or test.")] = "train",
    confidence: Annotated[float, typer.Option(help="Of the whole verdict, between 0 and 1.")] = 0.95,
    tolerance: Annotated[
        float, typer.Option(help="How much of the old accuracy may be lost; 0.01 is one point, 0 demands a gain.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Divides the images into gallery and queries, draws resamples.")] = 0,
    device: Device = "auto",
    report: Annotated[bool, typer.Option(help="Write a page with pictures into the workspace.")] = True,
    as_json: AsJson = False,
) -> None:
    """Try a version's queries on the galleries of all versions whose vectors are there: pass, or refuse with reasons.

    Exit code 0: passed; 2: refused; 3: the evidence does not decide, and it is said how much is missing.
    """
    from fixstar.data import open_images
    from fixstar.workspace import Workspace

    images = None if data is None else open_images(data, split)
    with Workspace(workspace, device) as space:
        check = space.check(version, images, confidence, tolerance, seed, report, progress=not as_json)
    if as_json:
        print_json(asdict(check))
    else:
        _print(check, workspace, {"data": data, "split": None if split == "train" else split})
    raise typer.Exit(EXIT_CODES[check.outcome])


def _print(check: Check, workspace: Path, typed: Mapping[str, object]) -> None:
    _print_cells(check)
    for reason in check.reasons:
        print_wrapped(reason, "- ")
    for note in check.notes:
        print_wrapped(f"Note: {note}")
    for cell in check.cells:
        if cell.lost:
            pairs = dict.fromkeys(f"{lost.label} (finds {lost.found})" for lost in cell.lost)
            print_wrapped(
                f"Lost on {cell.version}'s gallery: {cell.negative_flips:,}, such as {', '.join(list(pairs)[:SHOWN])}"
            )
    if check.report is not None:
        print(f"Report: {workspace / check.report}")
    steps = tuple(getattr(check, "next_steps", ()))
    if check.outcome == "pass":
        print(f"PASS: {check.version} may be deployed")
        steps += (NextStep("deploy", {"version": check.version}),) if check.cells else ()
    elif check.outcome == "refuse":
        print(f"REFUSED: {check.version} would lose what the gallery finds now")
        forced = NextStep("deploy", {"version": check.version, "force": ...}, "deploy anyway, with a reason")
        steps += (NextStep("upgrade", {"data": ...}, "train it differently"), forced)
    else:
        print(f"MISSING EVIDENCE: {check.version} is neither passed nor refused")
    for line in next_lines(steps, workspace, NAME, typed):
        print(line)


def _print_cells(check: Check) -> None:
    from rich.console import Console
    from rich.table import Table

    from fixstar.evaluation.report import percent, points

    if check.self_test is None:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("gallery", no_wrap=True)
    for name in ("its own queries", f"queries by {check.version}"):  # where there is little room, these headings break
        table.add_column(name, justify="right")
    for name in ("difference", "from", "to", "lost", "won", "verdict"):
        table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    styles = {"compatible": "green", "incompatible": "red", "not decided": "yellow"}
    for cell in check.cells:
        table.add_row(
            cell.version,
            *(percent(cell.self_test), percent(cell.cross_test)),
            *(points(value) for value in (cell.difference, cell.low, cell.high)),
            *(f"{cell.negative_flips:,}", f"{cell.positive_flips:,}"),
            f"[{styles[cell.verdict]}]{cell.verdict}[/]",
        )
    table.add_row(check.version, percent(check.self_test), *[""] * 6, "self-test")
    console = Console()
    console.print(table, highlight=False)
    which = "held out at training" if check.data.get("source") == "held out" else str(check.data.get("name") or "given")
    console.print(
        f"{check.queries:,} queries, {check.gallery:,} gallery images ({which}); {100 * check.confidence:g} % "
        "confidence, differences in points",
        highlight=False,
        markup=False,
    )
