"""Backfill jobs: re-embed older items with the deployed version."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fixstar.errors import NextStep
from fixstar.service.jobs.records import NAMED, REEMBEDDING, Result
from fixstar.service.jobs.running import RunningJob, StoppedError, await_predecessor
from fixstar.service.problems import Problem
from fixstar.workspace import BackfillOptions, Workspace
from fixstar.workspace.backfill.planning import PlannedBackfill, require_target
from fixstar.workspace.backfill.run import BackfillPlan, KeptItem, PlanFiles

_COUNTED = ("done", "done before", "deleted", "rewritten")  # of a plan's items


def backfill(space: Workspace, running: RunningJob) -> Result:
    """Re-embed older items with the version that was deployed when the job was asked for, or not at all."""
    wanted = running.job().parameters
    options = BackfillOptions(
        budget=wanted["budget"],
        order=wanted["order"],
        rate=wanted["rate"],
        stop=running.stopped,
        target=require_target(space.serving, wanted["target"]),
        anyway=wanted["anyway"],
    )
    known = dict(running.job().result or {})
    files = PlanFiles(space.path)
    await_predecessor(files.exclusive, running)
    finished = _finished_plan(files, wanted)
    if finished is not None:
        return {
            **known,
            **_counts(files, finished, wanted["counted"]),
            **_kept_items(files.kept(finished)),
            "left": 0,
            "stopped": None,
        }
    was_judged = "token" in wanted  # before a restart
    planned = space.plan_backfill(options, predict=not was_judged)
    if not was_judged:
        known["predicted"] = planned.predicted and planned.predicted.to_json()
    plan = planned.plan
    known |= {
        "version": plan.target,
        "planned": len(plan.ids),
        "old": plan.old,
        "without_image": plan.without_image,
    }
    if planned.loses and plan.ids and not options.anyway:
        running.note(result=known)
        raise _loses(planned)
    counts = files.counts(plan)  # before this job: an earlier one may have begun the plan
    counted = wanted.get("counted") or {name: counts.get(name, 0) for name in _COUNTED}
    running.note(
        save=True,
        parameters={**wanted, "token": plan.token, "counted": counted},
        result=known,
        total=len(plan.ids),
        done=0,
        message=REEMBEDDING.format(**vars(plan)),
    )
    done = 0
    started = time.monotonic()

    def advance(count: int = 1, note: str | None = None) -> None:  # noqa: ARG001
        nonlocal done
        done += count
        seconds = known.get("seconds", 0.0) + time.monotonic() - started
        running.note(
            save=True,
            done=done,
            result={**known, **_counts(files, plan, counted), "seconds": seconds},
        )

    outcome = space.backfill(options, advance, judged=plan.token)
    result = {
        **known,
        **_counts(files, plan, counted),
        **_kept_items(outcome.kept),
        "left": outcome.left,
        "measured": [*known.get("measured", []), *(point._asdict() for point in outcome.measured)],
        "stopped": outcome.stopped,
        "seconds": known.get("seconds", 0.0) + outcome.seconds,
    }
    if result["stopped"]:
        raise StoppedError(result["stopped"], result)
    return result


def _loses(planned: PlannedBackfill) -> Problem:
    """The refusal of a plan that is predicted to lose accuracy."""
    seen = f"this plan is predicted to {planned.loss}, and the old vectors would not be kept; nothing was embedded"
    instead = " (no larger budget is predicted to gain, either)"
    if planned.larger_budgets:
        instead = f', send a larger "budget" ({", ".join(planned.larger_budgets)})'
    hint = f'leave everything as it is{instead}, or send "anyway": true to do it nevertheless'
    steps = [NextStep("backfill", {"budget": budget}) for budget in planned.larger_budgets]
    return Problem(
        "backfill-loses", seen, hint, *steps, NextStep("backfill", {"anyway": True}, "despite this")
    )


def _finished_plan(files: PlanFiles, wanted: Mapping[str, Any]) -> BackfillPlan | None:
    """The job's plan if a restart came between its last batch and its end; a new plan would exceed the budget."""
    if "token" not in wanted:
        return None
    plan = files.plan()
    if plan is None or plan.token != wanted["token"]:
        raise StoppedError("another backfill has taken its place")
    if files.position(plan) < len(plan.ids):
        return None
    return plan


def _counts(files: PlanFiles, plan: BackfillPlan, before: Mapping[str, int]) -> Result:
    """What became of the job's items. The counts are saved with the plan's cursor, so that a kill loses none."""
    counts = files.counts(plan)
    return {name.replace(" ", "_"): max(0, counts.get(name, 0) - before[name]) for name in _COUNTED}


def _kept_items(items: Sequence[KeptItem]) -> Result:
    return {"kept": [item._asdict() for item in items[:NAMED]], "kept_count": len(items)}
