"""What the jobs do: index images, check a version, backfill. Each stops between batches when it is told to.

Stopped by a restart, each goes on: indexing behind the last batch that was stored, a backfill in its plan, a check from
its start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fixstar.errors import DeploymentMovedError
from fixstar.images import BadImage
from fixstar.lifecycle import Backfilled, CatalogueItem, GateRules, check_version
from fixstar.lifecycle.backfill_plan import PlanFiles
from fixstar.service.job_files import Job
from fixstar.service.problems import Problem
from fixstar.workspace import BackfillOptions, Workspace
from fixstar.workspace.backfilling import PlannedBackfill, plan_backfill, required_target

if TYPE_CHECKING:
    from fixstar.data import ImageSet
    from fixstar.evaluation import VersionFeatures

__all__ = ["WORK", "Handle", "StoppedError"]

BATCH = 64
_NAMED = 100  # items that a result names

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

    def stopped(self) -> bool:
        """Whether it is to end at the next batch."""


def index_work(space: Workspace, handle: Handle) -> Result:
    """Embed images that the workspace keeps, with whatever version is deployed when their batch comes."""
    job = handle.job()
    items: Sequence[Mapping[str, Any]] = job.parameters["items"]
    done, result = job.done, dict(job.result or {"added": 0, "versions": {}, "bad": [], "bad_count": 0})
    while done < len(items):
        if handle.stopped():
            raise StoppedError(f"{done:,} of {len(items):,} items were dealt with", result)
        batch = [CatalogueItem(one["id"], space.path / one["image"], one["payload"]) for one in items[done:][:BATCH]]
        stored = space.index(batch, again=True)  # again: a payload may be new where the image is not
        bad = [_bad(one, done, items[done:][:BATCH]) for one in stored.bad]
        versions = dict(result["versions"])
        versions[stored.version] = versions.get(stored.version, 0) + stored.added
        result = {
            "added": result["added"] + stored.added,
            "versions": versions,
            "bad": [*result["bad"], *bad][:_NAMED],
            "bad_count": result["bad_count"] + len(bad),
        }
        done += len(batch)
        handle.note(save=True, done=done, result=result)
    return result


def _bad(image: BadImage, before: int, batch: Sequence[Mapping[str, Any]]) -> Result:
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
    return {"version": check.version, "outcome": check.outcome, "reasons": list(check.reasons)}


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
    known = dict(handle.job().result or {})
    if _is_finished(space, wanted):
        return {**known, "left": 0, "stopped": None}
    planned = plan_backfill(space, options, predict="predicted" not in known)
    known |= {} if "predicted" in known else {"predicted": _predicted(planned)}
    plan = planned.plan
    known |= {"version": plan.target, "planned": len(plan.ids), "old": plan.old, "without_image": plan.without_image}
    if planned.loses and plan.ids and not options.anyway:
        handle.note(result=known)  # saved only with the refusal: what is on disk as predicted is not judged again
        raise _losing(planned)
    handle.note(
        save=True,
        parameters={**wanted, "token": plan.token},
        result=known,
        total=len(plan.ids),
        done=0,
        message=f"re-embedding with {plan.target}, order: {plan.order}, budget: {plan.budget}",
    )
    done = 0

    def advance(count: int = 1, note: str | None = None) -> None:  # noqa: ARG001
        nonlocal done
        done += count
        handle.note(done=done)

    result = {**known, **_told(space.backfill(options, advance), known)}
    if result["stopped"]:
        raise StoppedError(result["stopped"], result)
    return result


def _losing(planned: PlannedBackfill) -> Problem:
    """The refusal of a plan that is predicted to lose, as ``demand_gain`` does, with the requests to send next."""
    seen = f"this plan is predicted to {planned.loss}, and the old vectors would not be kept; nothing was embedded"
    larger = ", ".join(planned.larger_budgets)
    take = f', send a larger "budget" ({larger})' if larger else " (no larger budget is predicted to gain, either)"
    hint = f'leave all as it is{take}, or send "anyway": true to do it all the same'
    return Problem(409, "Predicted to lower the accuracy", seen, hint)


def _is_finished(space: Workspace, wanted: Mapping[str, Any]) -> bool:
    """Whether a restart came between the last batch and the end; a new plan would go beyond the budget."""
    if "token" not in wanted:
        return False
    files = PlanFiles(space.path)
    plan = files.plan()
    if plan is None or plan.token != wanted["token"]:
        raise StoppedError("another backfill has taken its place")
    return files.position(plan) >= len(plan.ids)


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
        "done": before.get("done", 0) + done.done,
        "deleted": before.get("deleted", 0) + done.deleted,
        "rewritten": before.get("rewritten", 0) + done.rewritten,
        "kept": [item._asdict() for item in done.kept[:_NAMED]],
        "kept_count": len(done.kept),
        "left": done.left,
        "measured": [*before.get("measured", []), *measured],
        "stopped": done.stopped,
        "seconds": before.get("seconds", 0.0) + done.seconds,
    }


WORK: dict[str, Callable[[Workspace, Handle], Result]] = {
    "index": index_work,
    "check": check_work,
    "backfill": backfill_work,
}
