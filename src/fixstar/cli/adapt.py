"""fixstar adapt: search vectors of a model that the versions here were not trained together with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fixstar.cli.check import EXIT_CODES
from fixstar.cli.next_steps import next_lines
from fixstar.cli.options import AsJson, Device, WorkspacePath, print_json, print_wrapped
from fixstar.errors import NextStep

if TYPE_CHECKING:
    from fixstar.workspace import Adapted, Check

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "adapt"
EXAMPLES = (
    "Examples:  fixstar adapt old-system -w shop   |   fixstar adapt old-system --for v2 --kind slerp -w shop   |   "
    "fixstar adapt old-system --pairs both.npz --apply stored -w shop"
)


def command(
    version: Annotated[str, typer.Argument(help="Whose vectors shall be reached, such as an imported system's.")],
    workspace: WorkspacePath = Path(),
    queries_by: Annotated[
        str | None, typer.Option("--for", help="The version whose queries shall reach them; else the deployed one.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="procrustes, ridge, low-rank, mlp or slerp; else the best on held-out pairs.")
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            help="FILE.npz: old and new, vectors of the same images, and labels if known; else from the images."
        ),
    ] = None,
    apply: Annotated[
        str, typer.Option(help="Adapt queries, or move the stored vectors: queries or stored.")
    ] = "queries",
    sample: Annotated[int, typer.Option(help="Items to embed, at most; two fifths are for the gate.")] = 8000,
    confidence: Annotated[float, typer.Option(help="Of the verdict, between 0 and 1.")] = 0.95,
    tolerance: Annotated[
        float, typer.Option(help="How much of the old accuracy may be lost; 0.01 is one point, 0 demands a gain.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Draws the sample and divides it.")] = 0,
    force: Annotated[str | None, typer.Option(help="Use it without a passed check, for this reason.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Fit an adapter between another model's vectors and a version's queries; used if it passes the gate.

    Exit code 0: in use; 2: refused; 3: the evidence does not decide.
    """
    from fixstar.workspace import AdaptOptions, GateRules, Workspace

    options = AdaptOptions(
        queries_by,
        kind,
        pairs,
        apply,  # type: ignore[arg-type]
        force,
        sample,
        rules=GateRules(confidence, tolerance, seed),
    )
    with Workspace(workspace, device) as space:
        done = space.adapt(version, options, progress=not as_json)
    if as_json:
        print_json(asdict(done))
    else:
        typed = {"queries_by": queries_by, "kind": kind, "pairs": pairs}
        _print(done, workspace, typed | ({} if apply == "queries" else {"apply": apply}))
    raise typer.Exit(0 if done.in_use or done.check is None else EXIT_CODES[done.check.outcome])


def _print(done: Adapted, workspace: Path, typed: Mapping[str, object]) -> None:
    ends = (done.queries_by, done.version) if done.applied == "queries" else (done.version, done.queries_by)
    print(f"{done.kind} adapter from {ends[0]} to {ends[1]}, fitted on {done.fitted_on}")
    if done.ranked:
        print("On held-out pairs: " + ", ".join(f"{kind} {top1:.1%}" for kind, top1, _ in done.ranked))
    if done.check is not None:
        _print_check(done.check, done.version)
    if not done.in_use:
        refused = done.check is not None and done.check.outcome == "refuse"
        print(f"{'REFUSED' if refused else 'MISSING EVIDENCE'}: nothing was changed")
        ends_by_name = {"version": done.version, "queries_by": done.queries_by}
        forced = NextStep("adapt", {**ends_by_name, "force": ...}, "use it anyway, with a reason")
        for line in next_lines((*getattr(done.check, "next_steps", ()), forced), workspace, NAME, typed):
            print(line)
        return
    if done.into is not None:
        print(f"{done.moved:,} vectors of {done.version} are now vectors of {done.into}")
        return
    print(
        f"In use{' by force' if done.forced else ''}: queries of {done.queries_by} reach vectors of {done.version} "
        f"through it. Next: fixstar search IMAGE -w {workspace}"
    )


def _print_check(check: Check, version: str) -> None:
    for reason in check.reasons:
        print_wrapped(reason, "- ")
    if check.self_test is not None:
        print(
            f"{check.queries:,} queries, {check.gallery:,} gallery items; with everything of {version} re-embedded: "
            f"{check.self_test:.1%}"
        )
