"""fixstar check, deploy, rollback, backfill: put a version into use over vectors of older ones."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fixstar
from fixstar.cli.app import (
    AsJson,
    Confidence,
    Device,
    LabelOption,
    TextOption,
    Tolerance,
    WorkspacePath,
    option_of,
    verb,
)
from fixstar.cli.next_steps import next_lines
from fixstar.cli.output import STYLES, Cell, print_json, print_table, print_wrapped
from fixstar.errors import InputError, NextStep, plural
from fixstar.evaluation.verdicts import GateRules
from fixstar.progress import progress_bar
from fixstar.texts import in_words_of
from fixstar.wording import percent, points
from fixstar.workspace.checks import gain_sentence
from fixstar.workspace.options import BackfillOptions, FitOptions
from fixstar.workspace.registry import Registry

if TYPE_CHECKING:
    from fixstar.texts import Reads
    from fixstar.workspace import Backfilled, Check
    from fixstar.workspace.backfill.planning import PlannedBackfill, PredictedCurve
    from fixstar.workspace.checks import CheckedCell
    from fixstar.workspace.workspace import Status

EXIT_CODES = {"pass": 0, "refuse": 2, "missing evidence": 3}
LOST_SHOWN = 5  # maximum number of lost queries that are named
KEPT_SHOWN = 20  # maximum number of items named that keep their old vectors


@verb(
    "fixstar check v2 -w shop",
    "fixstar check -w shop --data photos/held-out --tolerance 0.01",
    "fixstar check -w shop --data photos/autumn --name autumn",
    "fixstar check v2 -w shop --images photos/unlabelled",
    "fixstar check v2 -w shop --bridge old-to-new.npz",
    "fixstar check v2 -w notes --data tickets.csv --text question",
    "fixstar check v2 -w notes --relevant queries.jsonl qrels/test.tsv",
    "fixstar check v3 -w shop --confidence 0.99 --json",
)
def check(
    version: Annotated[
        str | None, typer.Argument(help="The version to check.", show_default="the newest")
    ] = None,
    workspace: WorkspacePath = Path(),
    data: Annotated[
        Path | None,
        typer.Option(
            help="Labelled images or texts that no version was trained on.",
            show_default="those of --name, or held out from training",
        ),
    ] = None,
    text: TextOption = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Give --data this name, or use the images that have it; later checks use them too. held-out names "
            "those held out from training."
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(help="Which split of a dataset that has several: train or test.")
    ] = "train",
    label: LabelOption = None,
    confidence: Confidence = GateRules.confidence,
    tolerance: Tolerance = GateRules.tolerance,
    seed: Annotated[int, option_of(GateRules, "seed")] = GateRules.seed,
    relevant: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            help="For texts, instead of --data: BEIR's queries.jsonl, and what each query should find among the stored "
            "items (qrels: query-id, corpus-id, score; TREC; or query and item).",
            show_default=False,
        ),
    ] = None,
    images: Annotated[Path | None, option_of(FitOptions, "images")] = None,
    pairs: Annotated[Path | None, option_of(FitOptions, "pairs")] = FitOptions.pairs,
    bridge: Annotated[
        Path | None, typer.Option(help="Install a translation from fixstar bridge, and judge it.")
    ] = None,
    sample: Annotated[int, option_of(FitOptions, "sample")] = FitOptions.sample,
    refit: Annotated[bool, option_of(FitOptions, "refit", "--refit")] = FitOptions.refit,
    weight: Annotated[
        float | None,
        option_of(GateRules, "weight", show_default="half of the queries choose it"),
    ] = GateRules.weight,
    device: Device = "auto",
    report: Annotated[
        bool, typer.Option(help="Write a report with pictures into the workspace.")
    ] = True,
    history: Annotated[
        bool, typer.Option("--history", help="List all checks of the version; test nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Test a version's queries on the vectors of all other versions: pass, or refuse with reasons.

    If two models are not connected yet, a translation between them is fitted first. Half of the queries choose its
    settings, the others judge. Shows what is found now, at once after deploying, and after embedding everything again.
    Every check is kept; one with less evidence does not replace one with more. Exit code 0: passed. 2: refused.
    3: the evidence does not decide; the output says how much is missing.
    """
    from fixstar.data import open_images
    from fixstar.workspace.pairs import unlabelled_images

    if history:
        _print_history(workspace, version, as_json)
        return
    if relevant is not None and (data is not None or name is not None):
        raise InputError(
            "a check is judged by labels (--data, --name) or by --relevant; give one of them"
        )
    labelled = None
    if data is not None and name is None:
        labelled = open_images(data, split, label, text)
    unlabelled = None
    if images is not None:
        unlabelled = unlabelled_images(
            images, Registry(workspace).reads(), text if images.is_file() else None
        )
    elif text is not None and data is None:
        raise InputError(
            "--text names a field of the file that --data or --images gives; give one of them"
        )
    fitting = FitOptions(
        images=unlabelled,
        pairs=pairs,
        sample=sample,
        seed=seed,
        refit=refit,
    )
    rules = GateRules(
        confidence=confidence,
        tolerance=tolerance,
        seed=seed,
        weight=weight,
    )
    with fixstar.Workspace(workspace, device) as space:
        if name is not None:
            space.pin_images(name, data, split=split, label=label, text=text)
        if bridge is not None:
            space.install_translation(bridge, None, version or space.newest())
        found = space.check(
            version,
            labelled,
            rules,
            fitting=fitting,
            report=report,
            progress=not as_json,
            relevant=relevant or (),
        )
    if as_json:
        print_json(found.to_json())
    else:
        typed = {
            "data": data,
            "name": name,
            "split": None if split == "train" else split,
            "label": label,
            "text": text,
        }
        print_check(found, workspace, typed)
    raise typer.Exit(EXIT_CODES[found.outcome])


def _on_the_same_images(step: NextStep, typed: Mapping[str, object]) -> NextStep:
    """Let a suggested backfill predict on the images of the check, so that figures are comparable."""
    if step.action != "backfill" or typed.get("data") is None:
        return step
    given = {
        name: str(typed[name]) for name in ("data", "label", "text") if typed.get(name) is not None
    }
    return replace(step, arguments={**step.arguments, **given})


def _print_history(workspace: Path, version: str | None, as_json: bool) -> None:
    """Print all checks of a version, oldest first, with the current one marked."""
    with fixstar.Workspace(workspace, "cpu") as space:
        version = version or space.newest()
        checks = space.check_history(version)
        counting = space.last_check(version)
    counts = max((row for row, found in enumerate(checks) if found == counting), default=None)
    if as_json:
        print_json(
            [{**found.to_json(), "counts": row == counts} for row, found in enumerate(checks)]
        )
        return
    if not checks:
        print(f"{version} was never checked")
        print(*next_lines([NextStep("check", {"version": version})], workspace), sep="\n")
        return
    rows: list[tuple[Cell, ...]] = []
    for row, found in enumerate(checks):
        mark = "*" if row == counts else " "
        when = found.when[:16].replace("T", " ")
        rows.append(
            (
                f"{mark} {when}",
                found.outcome,
                f"{found.queries:,}",
                f"{found.classes:,}",
                f"{100 * found.tolerance:g}",
                ", ".join(found.against),
                found.images,
            )
        )
    numbers = ("queries", "classes", "tolerance")
    print_table(
        ("when (UTC)", "outcome", *numbers, "galleries", "measured on"), rows, right=numbers
    )
    print("* the current check. Tolerance in points")


def print_check(found: Check, workspace: Path, typed: Mapping[str, object]) -> None:
    """Print the result of a check, and next steps."""
    _print_cells(found, Registry(workspace).reads())
    for cell in found.cells:
        print_wrapped(gain_sentence(found.version, cell), f"{cell.version}: ")
    _print_measured(found)
    for reason in found.reasons:
        print_wrapped(reason, "- ")
    for note in found.notes:
        print_wrapped(f"Note: {note}")
    for gallery, one in found.thresholds.items():
        print_wrapped(
            f"Probably not in the catalogue: hits among {gallery}'s vectors with a score below {one.score:.3f}. "
            f"{percent(one.false_alarms)} of the queries with their class in the gallery have no better hit, and "
            f"{percent(one.detected)} of those without it"
        )
    for cell in found.cells:
        if cell.lost:
            pairs = list(dict.fromkeys(f"{lost.label} (finds {lost.found})" for lost in cell.lost))
            named = ", ".join(pairs[:LOST_SHOWN])
            print_wrapped(
                f"Lost on {cell.version}'s gallery: {cell.negative_flips:,}, such as {named}"
            )
    if found.report is not None:
        print(f"Report: {workspace / found.report}")
    steps = [_on_the_same_images(step, typed) for step in found.next_steps]
    if found.outcome == "pass":
        print(f"PASS: {found.version} may be deployed")
        if found.cells:
            steps.append(NextStep("deploy", {"version": found.version}))
    elif found.outcome == "refuse":
        print(f"REFUSED: {found.version} finds fewer matches than the current model")
        forced = NextStep(
            "deploy", {"version": found.version, "force": ...}, "deploy anyway, with a reason"
        )
        steps += [Registry(workspace).next_version("make a better one"), forced]
    else:
        print(f"MISSING EVIDENCE: {found.version} is neither passed nor refused")
    for line in next_lines(steps, workspace, verb="check", typed=typed):
        print(line)


def _print_cells(found: Check, reads: Reads) -> None:
    if found.self_test is None:
        return
    numbers = (
        "its own\nqueries",
        f"queries\nby {found.version}",
        "difference",
        "from",
        "to",
        "lost",
        "won",
    )
    rows: list[tuple[Cell, ...]] = []
    for cell in found.cells:
        rows.append(
            (
                cell.version,
                percent(cell.self_test),
                percent(cell.cross_test),
                points(cell.difference),
                points(cell.low),
                points(cell.high),
                f"{cell.negative_flips:,}",
                f"{cell.positive_flips:,}",
                (cell.verdict, STYLES[cell.verdict]),
            )
        )
        rows += _one_model_row(cell)
    own = (found.version, percent(found.self_test), *[""] * 6, "re-embedded")
    print_table(
        ("vectors of", *numbers, "verdict"), [*rows, own], right=numbers, optional=("lost", "won")
    )
    for cell in found.cells:
        print_wrapped(asked_by(cell.version, cell.models))
    kind = reads.removesuffix("s")
    print_wrapped(
        f"{plural(found.queries, 'query')}, {plural(found.gallery, f'gallery {kind}')} ({found.images}); "
        f"{100 * found.confidence:g} % confidence, differences in points"
    )


def _print_measured(found: Check) -> None:
    """Print further measures for known relevant items; the first one decides."""
    heads = ("now", "at once", "all embedded\nagain")
    rows: list[tuple[Cell, ...]] = []
    for cell in found.cells:
        for measure, values in cell.measured.items():
            figures = [percent(values[name]) for name in ("before", "after", "reembedded")]
            rows.append((measure, cell.version, *figures))
    if rows:
        print_table(("measure", "vectors of", *heads), rows, right=heads)
        print_wrapped(f"{rows[0][0]} decides; all other figures here are of this measure too")


def _one_model_row(cell: CheckedCell) -> list[tuple[Cell, ...]]:
    """The result of the new version's queries alone, if two models were judged."""
    alone = cell.one_model
    if alone is None:
        return []
    figures = (points(alone.cross_test - cell.self_test), points(alone.low), points(alone.high))
    return [
        (
            "  one model",
            "",
            percent(alone.cross_test),
            *figures,
            "",
            "",
            (alone.verdict, STYLES[alone.verdict]),
        )
    ]


def asked_by(name: str, models: Sequence[str], costs_more: bool = False) -> str:
    """Which models embed queries for a version's vectors; ``costs_more``: other vectors need different models."""
    told = f"{name}'s vectors are asked by {' and '.join(models)}"
    if len(models) == 1:
        told += " alone"
    if len(models) > 1 or costs_more:
        told += ": one more forward pass per query"
    return told


@verb(
    "fixstar deploy v2 -w shop",
    'fixstar deploy v2 -w shop --force "agreed with search team"',
    "fixstar deploy v2 --queries one -w shop",
)
def deploy(
    version: Annotated[str, typer.Argument(help="The version to deploy.")],
    workspace: WorkspacePath = Path(),
    force: Annotated[
        str | None, typer.Option(help="Deploy without a passed check, for this reason.")
    ] = None,
    queries: Annotated[
        str,
        typer.Option(
            help="Models that embed queries for old vectors: checked (those of the check), one (the new version "
            "alone), or old (their own models alone, which find the same as now)."
        ),
    ] = "checked",
    as_json: AsJson = False,
) -> None:
    """Use a version for queries and new items. Old vectors stay searchable. Takes a moment, whatever the size."""
    from fixstar.workspace.workspace import checked_queries

    with fixstar.Workspace(workspace, "cpu") as space:
        move = space.deploy(version, force, by=operator_name(), queries=checked_queries(queries))
        state = space.status()
        left_out = space.left_out_vectors(version)
        older = space.backfill_outlook().older
    if as_json:
        print_json({**asdict(move), "searched_by": state.searched_by, "left_out": left_out})
        return
    old = sum(state.vectors[name] for name in state.searched_by if name != version)
    stay = "stays and is" if old == 1 else "stay and are"
    print_wrapped(
        f"{version} is deployed. {plural(old, 'vector')} of other versions {stay} searched"
    )
    print_searched_by(state)
    _print_left_out(left_out, version)
    steps = [NextStep("rollback", {}, "to undo this")]
    if older:
        steps.insert(0, NextStep("backfill", {}, "optional"))
    print(*next_lines([*steps, *_reaching(left_out, version)], workspace), sep="\n")


@verb("fixstar rollback -w shop", "fixstar rollback --to v1 -w shop")
def rollback(
    workspace: WorkspacePath = Path(),
    to: Annotated[
        str | None,
        typer.Option(
            help="Only roll back if this is the version deployed before; otherwise do nothing."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Return to the previously deployed version, at once. No vector changes, and all stay searchable."""
    with fixstar.Workspace(workspace, "cpu") as space:
        move = space.rollback(by=operator_name(), to=to)
        left = space.rollout.left_by(move)
        unchecked = space.unchecked_vectors(move.version)
        left_out = space.left_out_vectors(move.version)
        state = space.status()
        again = space.deploy_step(left, f"back to {left}")
    if as_json:
        print_json({**asdict(move), "left": left, "unchecked": unchecked, "left_out": left_out})
        return
    told = f"{move.version} is deployed again"
    steps = []
    if left != move.version:
        told += f", {left} no longer"
        steps.append(again)
    print_wrapped(told)
    print_searched_by(state)
    for name, count in unchecked.items():
        print_wrapped(
            f"{plural(count, 'vector')} made by {name}: searched by {move.version}'s queries too, unchecked"
        )
    if unchecked:
        steps.append(
            NextStep("check", {"version": move.version}, "how well it finds those vectors")
        )
    _print_left_out(left_out, move.version)
    for line in next_lines([*steps, *_reaching(left_out, move.version)], workspace):
        print(line)


def print_searched_by(state: Status) -> None:
    """Print which models embed queries for the vectors of each other version, and the cost."""
    all_models = {model for models in state.searched_by.values() for model in models}
    for name, models in state.searched_by.items():
        if name != state.deployed:
            costs_more = state.deployed in all_models and state.deployed not in models
            print_wrapped(asked_by(name, models, costs_more))


def _print_left_out(left_out: Mapping[str, int], version: str) -> None:
    for name, count in sorted(left_out.items()):
        print_wrapped(
            f"Not searched: {plural(count, 'vector')} of {name}; nothing connects them with {version}"
        )


def _reaching(left_out: Mapping[str, int], version: str) -> list[NextStep]:
    """The step that connects vectors with a version: fit a translation on vectors by both models."""
    if not left_out:
        return []
    note = f"vectors of both models let {version} search those of {' and '.join(sorted(left_out))}"
    return [NextStep("check", {"version": version, "pairs": ...}, note)]


def operator_name() -> str:
    """The user's name, for the history of deployments; the user id if there is no name, as in some containers."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # depending on the system and the version of Python
        if not hasattr(os, "getuid"):
            return "unknown"
        return f"uid {os.getuid()}"


@verb(
    "fixstar backfill --budget 10% -w shop",
    "fixstar backfill --budget all --rate 50 -w shop",
    "fixstar backfill --budget '$2' -w notes",
    "fixstar backfill --plan-only --data photos/held-out -w shop",
    "fixstar backfill --cluster auto -w shop",
)
def backfill(
    workspace: WorkspacePath = Path(),
    budget: Annotated[str, option_of(BackfillOptions, "budget")] = BackfillOptions.budget,
    order: Annotated[str, option_of(BackfillOptions, "order")] = BackfillOptions.order,
    rate: Annotated[float | None, option_of(BackfillOptions, "rate")] = BackfillOptions.rate,
    data: Annotated[
        Path | None,
        option_of(BackfillOptions, "data", show_default="those held out from training"),
    ] = None,
    text: TextOption = None,
    label: LabelOption = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Print the prediction and embed nothing.")
    ] = False,
    anyway: Annotated[
        bool, option_of(BackfillOptions, "anyway", "--anyway")
    ] = BackfillOptions.anyway,
    cluster: Annotated[str | None, option_of(BackfillOptions, "cluster")] = BackfillOptions.cluster,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Re-embed items of older versions with the deployed one. Searches continue; the same command resumes.

    Predicts the accuracy from labelled images first, and aborts if a significant drop is predicted. Items whose image
    is gone keep their vectors.
    """
    from fixstar.data import open_images
    from fixstar.workspace.backfill.planning import draw_curves, require_gain
    from fixstar.workspace.backfill.run import Pace

    Pace(rate)  # refuses an invalid rate, even if there is nothing to do
    with fixstar.Workspace(workspace, device) as space:
        options = BackfillOptions(
            budget=budget,
            order=order,
            rate=rate,
            data=None if data is None else open_images(data, label=label, text=text),
            cluster=cluster,
            anyway=anyway,
        )
        planned = space.plan_backfill(options)
        picture = space.path / "state" / "backfill" / "curve.png"
        if planned.predicted is not None:
            draw_curves(picture, planned.predicted)
        if not as_json:
            _print_plan(
                planned,
                picture,
                plan_only=plan_only,
                reads=space.registry.reads(),
                last=space.last_check(planned.plan.target),
            )
        done = None
        if not plan_only and planned.plan.ids:
            if not anyway:
                require_gain(planned)
            with progress_bar(
                "re-embedding", len(planned.plan.ids), "items", show=not as_json
            ) as advance:
                done = space.backfill(options, advance, judged=planned.plan.token)
            if planned.predicted is not None or done.measured:
                draw_curves(picture, planned.predicted, done.measured)
    is_measured = done is not None and bool(done.measured)
    if as_json:
        is_drawn = planned.predicted is not None or is_measured
        print_json(_backfill_json(planned, done, picture if is_drawn else None))
    elif done is not None:
        is_new = planned.predicted is None and is_measured  # otherwise it was printed with the plan
        _print_backfilled(done, picture if is_new else None)
    elif planned.plan.ids:
        print("Nothing was embedded. Run the same command without --plan-only to do it")
    if done is not None and done.stopped:
        raise typer.Exit(1)


def _print_plan(
    planned: PlannedBackfill,
    picture: Path,
    *,
    plan_only: bool,
    reads: Reads,
    last: Check | None = None,
) -> None:
    plan = planned.plan
    if plan.without_image:
        kind = "an image" if reads == "images" else "a text"
        print_wrapped(f"{plural(plan.without_image, 'item')} without {kind}: the old vectors stay")
    if not plan.ids:
        other = "No other item" if plan.without_image else "No item"
        print_wrapped(
            f"{other} within the budget {plan.budget} has a vector older than {plan.target}'s"
        )
        return
    older = plural(plan.old, "item")
    told = (
        f"{len(plan.ids):,} of {older} with older vectors, order: {plan.order}, with {plan.target}"
    )
    if planned.position:
        told += f"; {planned.position:,} are processed"
    print_wrapped(told)
    if planned.predicted is None:
        why = planned.unpredicted or "there are no labelled images. Give some with --data"
        print_wrapped(f"The gain is unknown: {in_words_of(reads, why)}")
        return
    _print_prediction(planned, planned.predicted, reads)
    if last is not None and last.queries and last.images != planned.measured_on:
        print_wrapped(
            f"The check of {plan.target} asked {plural(last.queries, 'query')} ({last.images}): its figures do not "
            "compare with these. Give the same images with --data for one scale"
        )
    print(f"Picture: {picture}")
    if planned.loss is not None and not planned.loses:
        print_wrapped(f"This plan is predicted to {planned.loss}. That may be chance")
    elif planned.loss is not None and plan_only:  # otherwise it is refused with the same message
        print_wrapped(
            f"This plan is predicted to {planned.loss}: choose a larger budget, or no backfill"
        )


def _print_prediction(
    planned_backfill: PlannedBackfill, predicted: PredictedCurve, reads: Reads
) -> None:
    asked, judged = predicted.images
    share = planned_backfill.share
    kind = reads.removesuffix("s")
    on = planned_backfill.measured_on
    print_wrapped(
        f"Predicted accuracy, {plural(judged, 'query')} on {plural(asked, f'gallery {kind}')} ({on}):"
    )
    rows = []
    for part in shown_shares(predicted.planned.shares.tolist(), share):
        planned, random = predicted.at(part)
        accuracy = percent(planned)
        if part == share:
            accuracy += "  <- this plan"
        rows.append((f"{100 * part:.3g} %", accuracy, percent(random)))
    print_table(("re-embedded", f"order: {predicted.order}", "random order"), rows)


def shown_shares(measured: list[float], share: float) -> list[float]:
    """The rows of the table: 0, and the plan's share instead of a measured one that would print the same.

    >>> shown_shares([0.0, 0.05, 0.1, 0.2], 0.098)
    [0.0, 0.05, 0.098, 0.2]
    """
    return sorted({share, *(part for part in measured if not part or abs(part - share) >= 0.005)})


def _print_backfilled(done: Backfilled, picture: Path | None) -> None:
    counts = {
        "done before": done.done_before,
        "deleted meanwhile": done.deleted,
        "rewritten meanwhile": done.rewritten,
        "with their old vectors": len(done.kept),
        "of this plan left": done.left,
    }
    told = f"{plural(done.done, 'item')} re-embedded with {done.version} in {done.seconds:.1f} s"
    for what, count in counts.items():
        if count:
            told += f", {count:,} {what}"
    if not done.left:
        told += ". This plan is done"
    print_wrapped(told)
    for item in done.kept[:KEPT_SHOWN]:
        print(f"kept {item.id}: {item.reason}", file=sys.stderr)
    if len(done.kept) > KEPT_SHOWN:
        print(
            f"... and {len(done.kept) - KEPT_SHOWN:,} more, in state/backfill/kept.jsonl",
            file=sys.stderr,
        )
    if done.measured:
        curve = (f"{percent(point.accuracy)} at {point.share:.0%}" for point in done.measured)
        print_wrapped(f"Measured on the gallery: {', '.join(curve)}")
    if done.refitted:
        names = " and ".join(done.refitted)
        print_wrapped(
            f"The translation of {names}'s vectors was fitted again on these items, and finds more"
        )
    if picture is not None:
        print(f"Picture: {picture}")
    if done.stopped:
        print(f"fixstar: {done.stopped}", file=sys.stderr)


def _backfill_json(
    planned: PlannedBackfill, done: Backfilled | None, picture: Path | None
) -> dict[str, Any]:
    plan = planned.plan
    return {
        "version": plan.target,
        "order": plan.order,
        "budget": plan.budget,
        "planned": len(plan.ids),
        "old": plan.old,
        "without_image": plan.without_image,
        "predicted": planned.predicted and planned.predicted.to_json(),
        "unpredicted": planned.unpredicted,
        "done": done
        and {
            **asdict(done),
            "kept": [item._asdict() for item in done.kept],
            "measured": [point._asdict() for point in done.measured],
        },
        "picture": picture and str(picture),
    }
