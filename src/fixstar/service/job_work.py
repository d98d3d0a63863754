"""What the jobs do: index images, check a version, backfill. Each stops between batches when it is told to.

Stopped by a restart, each goes on: indexing behind the last batch that was stored, a backfill in its plan, a check from
its start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from fixstar.errors import DeploymentMovedError, ImageError, NextStep
from fixstar.gallery import Gallery
from fixstar.gallery.store import Payload, Vectors
from fixstar.service.job_files import Job, Kind
from fixstar.service.problems import Problem, next_steps, to_step
from fixstar.workspace import Backfilled, BackfillOptions, CatalogueItem, GateRules, Workspace
from fixstar.workspace.backfill.planning import PlannedBackfill, backfill, plan_backfill, required_target
from fixstar.workspace.backfill.run import BackfillPlan, KeptItem, PlanFiles
from fixstar.workspace.gate import check_version
from fixstar.workspace.items import Store

if TYPE_CHECKING:
    from fixstar.data import ImageSet
    from fixstar.evaluation import VersionFeatures

__all__ = ["WORK", "Handle", "StoppedError", "intention"]

BATCH = 64
_NAMED = 100  # items that a result names
_COUNTED = ("done", "done before", "deleted", "rewritten")  # of a plan's items

Result = dict[str, Any]


class StoppedError(Exception):
    """The work ended before its end: it was told to, or there is no point in going on."""

    def __init__(self, message: str, result: Result | None = None) -> None:
        super().__init__(message)
        self.message, self.result = message, result


class Handle(Protocol):
    """A job from the inside."""

    def job(self) -> Job:
        """As it is now."""

    def note(self, save: bool = False, **changes: Any) -> None:
        """Change what is told about it; with ``save`` also on disk."""

    def writing(self) -> AbstractContextManager[Collection[str]]:
        """For its write of items: those that others wrote since it was taken on. Meanwhile they wait."""

    def stopped(self) -> bool:
        """Whether it is to end at the next batch."""


def intention(kind: Kind, parameters: Mapping[str, Any]) -> str:
    """What a job is about to do, for people."""
    if kind == "index":
        return "embedding with the deployed version"
    if kind == "check":
        return f"checking {parameters['version']}"
    return f"re-embedding with {parameters['target']}, order: {parameters['order']}, budget: {parameters['budget']}"


def index_work(space: Workspace, handle: Handle) -> Result:
    """Embed images that the workspace keeps, with whatever version is deployed when their batch comes.

    Items that others wrote or deleted after the job was taken on stay as they left them.
    """
    job = handle.job()
    items: Sequence[Mapping[str, Any]] = job.parameters["items"]
    done, result = job.done, dict(job.result or {"added": 0, "overtaken": 0, "versions": {}, "bad": [], "bad_count": 0})
    while done < len(items):
        if handle.stopped():
            raise StoppedError(f"{done:,} of {len(items):,} items were dealt with", result)
        batch = [CatalogueItem(one["id"], space.path / one["image"], one["payload"]) for one in items[done:][:BATCH]]
        overtaken: list[str] = []
        store = _unless_overtaken(space.gallery, handle, overtaken)
        stored = space.index(batch, again=True, store=store)  # again: a payload may be new where the image is not
        bad = [_bad(one, done, items[done:][:BATCH]) for one in stored.bad]
        versions = dict(result["versions"])
        added = stored.added - len(overtaken)
        versions[stored.version] = versions.get(stored.version, 0) + added
        result = {
            "added": result["added"] + added,
            "overtaken": result.get("overtaken", 0) + len(overtaken),  # jobs of older releases do not know it
            "versions": versions,
            "bad": [*result["bad"], *bad][:_NAMED],
            "bad_count": result["bad_count"] + len(bad),
        }
        done += len(batch)
        handle.note(save=True, done=done, result=result)
    return result


def _unless_overtaken(gallery: Gallery, handle: Handle, overtaken: list[str]) -> Store:
    """Stores items but those that others wrote since the job was taken on, which it adds to ``overtaken``."""

    def store(version: str, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload]) -> None:
        with handle.writing() as written:  # nobody writes between this look and the write
            rows = [row for row, name in enumerate(ids) if name not in written]
            if rows:
                gallery.upsert(version, [ids[row] for row in rows], vectors[rows], [payloads[row] for row in rows])
        overtaken.extend(name for name in ids if name in written)

    return store


def _bad(image: ImageError, before: int, batch: Sequence[Mapping[str, Any]]) -> Result:
    """An image that was left out, as ``POST /v1/items`` tells it. Jobs of older releases know no file names."""
    row = next(number for number, one in enumerate(batch) if one["id"] == image.name)
    return {"id": image.name, "index": before + row, "file": batch[row].get("file"), "reason": image.reason}


def check_work(space: Workspace, handle: Handle) -> Result:
    """Try a version against all live vectors, on the images held out at training. The verdict is kept beside it."""
    wanted = handle.job().parameters
    rules = GateRules(wanted["confidence"], wanted["tolerance"], wanted["seed"])

    def embed(queries: ImageSet, gallery: ImageSet, names: Sequence[str]) -> list[VersionFeatures]:
        made: list[VersionFeatures] = []
        for number, name in enumerate([*names, None]):  # at the end the comparison
            if handle.stopped():
                raise StoppedError("nothing was decided")
            what = "comparing" if name is None else f"embedding {len(queries) + len(gallery):,} images with {name}"
            handle.note(done=number, total=len(names) + 1, message=what)
            if name is not None:
                made += space.features(queries, gallery, [name], space.device, progress=False)
        return made

    check = check_version(space.registry, wanted["version"], space.met_by(wanted["version"]), embed, None, rules)
    total = handle.job().total
    handle.note(done=total or 0, message=f"{check.version}: {check.outcome}")
    steps = [to_step(step) for step in next_steps(check)]
    return {"version": check.version, "outcome": check.outcome, "reasons": list(check.reasons), "next_steps": steps}


def backfill_work(space: Workspace, handle: Handle) -> Result:
    """Embed older items again with the version that was deployed when the job was asked for, or not at all."""
    try:
        return _backfilled(space, handle)
    except DeploymentMovedError as error:
        raise StoppedError(str(error), handle.job().result) from error


def _backfilled(space: Workspace, handle: Handle) -> Result:
    wanted = handle.job().parameters
    target = required_target(space, wanted["target"])
    options = BackfillOptions(
        wanted["budget"],
        wanted["order"],
        wanted["rate"],
        stop=handle.stopped,
        target=target,
        anyway=wanted.get("anyway", False),  # jobs of older releases do not know it
    )
    known, files = dict(handle.job().result or {}), PlanFiles(space.path)
    if (over := _finished(files, wanted)) is not None:
        counts = _counts(files, over, _counted(files, over, wanted, known))
        return {**known, **counts, **_kept(files.kept(over)), "left": 0, "stopped": None}
    planned = plan_backfill(space, options, predict="predicted" not in known)
    known |= {} if "predicted" in known else {"predicted": _predicted(planned)}
    plan = planned.plan
    known |= {"version": plan.target, "planned": len(plan.ids), "old": plan.old, "without_image": plan.without_image}
    if planned.loses and plan.ids and not options.anyway:
        handle.note(result=known)  # saved only with the refusal: what is on disk as predicted is not judged again
        raise _losing(planned)
    counted = _counted(files, plan, wanted, known)
    handle.note(
        save=True,
        parameters={**wanted, "token": plan.token, "counted": counted},
        result=known,
        total=len(plan.ids),
        done=0,
        message=f"re-embedding with {plan.target}, order: {plan.order}, budget: {plan.budget}",
    )
    done, started = 0, time.monotonic()

    def advance(count: int = 1, note: str | None = None) -> None:  # noqa: ARG001
        nonlocal done
        done += count
        seconds = known.get("seconds", 0.0) + time.monotonic() - started
        handle.note(save=True, done=done, result={**known, **_counts(files, plan, counted), "seconds": seconds})

    told = _told(backfill(space, options, advance, judged=plan.token), known)
    result = {**known, **_counts(files, plan, counted), **told}
    if result["stopped"]:
        raise StoppedError(result["stopped"], result)
    return result


def _losing(planned: PlannedBackfill) -> Problem:
    """The refusal of a plan that is predicted to lose accuracy."""
    seen = f"this plan is predicted to {planned.loss}, and the old vectors would not be kept; nothing was embedded"
    larger = ", ".join(planned.larger_budgets)
    take = f', send a larger "budget" ({larger})' if larger else " (no larger budget is predicted to gain, either)"
    hint = f'leave all as it is{take}, or send "anyway": true to do it all the same'
    steps = [NextStep("backfill", {"budget": budget}) for budget in planned.larger_budgets]
    return Problem(
        "backfill-loses", seen, hint, *steps, NextStep("backfill", {"anyway": True}, "despite the prediction")
    )


def _finished(files: PlanFiles, wanted: Mapping[str, Any]) -> BackfillPlan | None:
    """Its plan, where a restart came between the last batch and the end; a new one would go beyond the budget."""
    if "token" not in wanted:
        return None
    plan = files.plan()
    if plan is None or plan.token != wanted["token"]:
        raise StoppedError("another backfill has taken its place")
    return plan if files.position(plan) >= len(plan.ids) else None


def _counted(
    files: PlanFiles, plan: BackfillPlan, wanted: Mapping[str, Any], known: Mapping[str, Any]
) -> Mapping[str, int]:
    """What the plan's counts were when the job began: others may have begun it. Older releases told ``known`` only."""
    counts = files.counts(plan)
    found: Mapping[str, int] = wanted.get("counted") or {
        name: counts.get(name, 0) - known.get(_key(name), 0) for name in _COUNTED
    }
    return found


def _counts(files: PlanFiles, plan: BackfillPlan, counted: Mapping[str, int]) -> Result:
    """What became of the items that the job has dealt with: kept with the plan's cursor, so that a kill costs none."""
    counts = files.counts(plan)
    return {_key(name): max(0, counts.get(name, 0) - counted[name]) for name in _COUNTED}


def _key(name: str) -> str:
    return name.replace(" ", "_")


def _predicted(planned: PlannedBackfill) -> Result | None:
    curve = planned.predicted
    if curve is None:
        return None
    return {
        "order": curve.order,
        "shares": curve.planned.shares.tolist(),
        "planned": curve.planned.accuracy.tolist(),
        "random": curve.random.accuracy.tolist(),
        "self_tests": list(curve.self_tests),
    }


def _told(done: Backfilled, before: Mapping[str, Any]) -> Result:
    measured = [point._asdict() for point in done.measured]
    return {
        **_kept(done.kept),
        "left": done.left,
        "measured": [*before.get("measured", []), *measured],
        "stopped": done.stopped,
        "seconds": before.get("seconds", 0.0) + done.seconds,
    }


def _kept(items: Sequence[KeptItem]) -> Result:
    return {"kept": [item._asdict() for item in items[:_NAMED]], "kept_count": len(items)}


WORK: dict[str, Callable[[Workspace, Handle], Result]] = {
    "index": index_work,
    "check": check_work,
    "backfill": backfill_work,
}
