"""fixstar backfill: embed older items again with the deployed version, while serving."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fixstar.cli.options import AsJson, Device, WorkspacePath, print_json

if TYPE_CHECKING:
    from fixstar.workspace import Backfilled
    from fixstar.workspace.backfill.planning import PlannedBackfill
    from fixstar.workspace.backfill.prediction import MeasuredPoint, PredictedCurve

__all__ = ["EXAMPLES", "NAME", "command", "shown_shares"]

NAME = "backfill"
EXAMPLES = (
    "Examples:  fixstar backfill --budget 10% -w shop   |   fixstar backfill --budget all --rate 50 -w shop   |   "
    "fixstar backfill --plan-only --data photos/held-out -w shop   |   fixstar backfill --cluster auto -w shop"
)
SHOWN = 20  # items that keep their old vectors, named

Order = Annotated[
    str,
    typer.Option(
        help="What comes first: auto (best on labelled images), gain, classes, certain, queried, oldest, random, ..."
    ),
]


def command(
    workspace: WorkspacePath = Path(),
    budget: Annotated[str, typer.Option(help="A share of the items with older vectors, their number, or all.")] = "10%",
    order: Order = "auto",
    rate: Annotated[float | None, typer.Option(help="Items a second, at most.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Labelled images that were not trained on; else those held out at training.")
    ] = None,
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Say what it would bring; embed nothing.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also where it is predicted to lower the accuracy.")] = False,
    cluster: Annotated[str | None, typer.Option(help="Embed on a Ray cluster: its address, auto, or local.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Embed items of older versions again with the deployed one. Searches go on; the same command resumes.

    First says what it will bring, by labelled images; stops where that is a loss, unless a small one that may be
    chance. Items without an image stay as they are.
    """
    from fixstar.data import open_images
    from fixstar.progress import progress_bar
    from fixstar.workspace import BackfillOptions, Workspace
    from fixstar.workspace.backfill.planning import backfill, demand_gain
    from fixstar.workspace.backfill.prediction import draw_curves
    from fixstar.workspace.backfill.run import Pace

    Pace(rate)  # an impossible one is refused, also where nothing is left to do
    with Workspace(workspace, device) as space:
        labelled = None if data is None else open_images(data)
        options = BackfillOptions(budget, order, rate, labelled, cluster, anyway=anyway)
        planned = space.plan_backfill(options)
        picture = space.path / "state" / "backfill" / "curve.png"
        if planned.predicted is not None:
            draw_curves(picture, planned.predicted)
        if not as_json:
            _show_plan(planned, picture)
            _show_loss(planned, plan_only)
        done = None
        if not plan_only and planned.plan.ids:
            if not anyway:
                demand_gain(planned)
            with progress_bar("re-embedding", len(planned.plan.ids), "items", show=not as_json) as advance:
                done = backfill(space, options, advance, judged=planned.plan.token)
            if planned.predicted is not None or done.measured:
                draw_curves(picture, planned.predicted, done.measured)
        drawn = picture if planned.predicted is not None or (done is not None and done.measured) else None
    if as_json:
        print_json(_numbers(planned, done, drawn))
    elif done is not None:
        _show_done(done, drawn)
    elif planned.plan.ids:
        print("Nothing was embedded. The same command without --plan-only does it")
    if done is not None and done.stopped:
        raise typer.Exit(1)


def _show_plan(planned: PlannedBackfill, picture: Path) -> None:
    plan = planned.plan
    if plan.without_image:
        print(f"{plan.without_image:,} items have no image any more and keep their vectors")
    if not plan.ids:
        other = "No other item" if plan.without_image else "No item"
        print(f"{other} holds a vector older than {plan.target}'s that the budget {plan.budget} reaches")
        return
    print(
        f"{len(plan.ids):,} of {plan.old:,} items with older vectors, order: {plan.order}, with {plan.target}"
        + (f"; {planned.position:,} are dealt with" if planned.position else "")
    )
    if planned.predicted is None:
        why = planned.unpredicted or "there are no labelled images. Give some with --data"
        print(f"What it will bring is not known: {why}")
        return
    _table(planned.predicted, planned.share)
    print(f"Picture: {picture}")


def _show_loss(planned: PlannedBackfill, plan_only: bool) -> None:
    """A loss that would be refused is told here where only the plan is asked for; a small one always."""
    if not planned.plan.ids or planned.loss is None:
        return
    if not planned.loses:
        print(f"This plan is predicted to {planned.loss}. That may be chance")
    elif plan_only:
        print(f"This plan is predicted to {planned.loss}: take a larger budget, or leave all as it is")


def _table(predicted: PredictedCurve, share: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("re-embedded", f"order: {predicted.order}", "random order", box=None, pad_edge=False)
    for part in shown_shares(predicted.planned.shares.tolist(), share):
        planned, random = predicted.at(part)
        mark = "  <- this plan" if part == share else ""
        table.add_row(f"{100 * part:.3g}%", f"{planned:.1%}{mark}", f"{random:.1%}")
    console = Console()
    asked, judged = predicted.images
    console.print(f"Predicted accuracy, {judged:,} held-out queries on {asked:,} held-out images:", highlight=False)
    console.print(table)


def shown_shares(measured: list[float], share: float) -> list[float]:
    """The rows of the table: the plan's share takes the place of one that reads the same; none at all always stays.

    >>> shown_shares([0.0, 0.05, 0.1, 0.2], 0.098)
    [0.0, 0.05, 0.098, 0.2]
    """
    return sorted({share, *(part for part in measured if not part or abs(part - share) >= 0.005)})


def _show_done(done: Backfilled, picture: Path | None) -> None:
    print(
        f"{done.done:,} items re-embedded with {done.version} in {done.seconds:.1f} s; {done.done_before:,} were done, "
        f"{done.deleted:,} deleted and {done.rewritten:,} rewritten meanwhile, {len(done.kept):,} keep their old "
        f"vectors, {done.left:,} left"
    )
    for item in done.kept[:SHOWN]:
        print(f"kept {item.id}: {item.reason}", file=sys.stderr)
    if len(done.kept) > SHOWN:
        print(f"... and {len(done.kept) - SHOWN:,} more, in state/backfill/kept.jsonl", file=sys.stderr)
    if done.measured:
        print("Measured on the gallery: " + ", ".join(map(_point, done.measured)))
    if picture is not None:
        print(f"Picture: {picture}")
    if done.stopped:
        print(f"fixstar: {done.stopped}", file=sys.stderr)


def _point(point: MeasuredPoint) -> str:
    return f"{point.accuracy:.1%} at {point.share:.0%}"


def _numbers(planned: PlannedBackfill, done: Backfilled | None, picture: Path | None) -> dict[str, Any]:
    plan, predicted = planned.plan, planned.predicted
    numbers: dict[str, Any] = {
        "version": plan.target,
        "order": plan.order,
        "budget": plan.budget,
        "planned": len(plan.ids),
        "old": plan.old,
        "without_image": plan.without_image,
        "predicted": None,
        "unpredicted": planned.unpredicted,
        "done": None if done is None else {**asdict(done), "kept": [item._asdict() for item in done.kept]},
        "picture": None if picture is None else str(picture),
    }
    if done is not None:
        numbers["done"]["measured"] = [point._asdict() for point in done.measured]
    if predicted is not None:
        curves = {"planned": predicted.planned.accuracy.tolist(), "random": predicted.random.accuracy.tolist()}
        numbers["predicted"] = {
            "shares": predicted.planned.shares.tolist(),
            **curves,
            "self_tests": predicted.self_tests,
            "calibrated": predicted.calibrated,
        }
    return numbers
