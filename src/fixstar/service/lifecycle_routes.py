"""Deployment, backfill and history; with the routes of versions."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from fixstar.errors import InputError
from fixstar.service import version_routes
from fixstar.service.context import Context, Shared
from fixstar.service.job_files import Job
from fixstar.service.keys import Caller, needs
from fixstar.service.lifecycle_shapes import (
    BackfillRequest,
    BackfillShape,
    DeployRequest,
    DeployShape,
    MeasuredShape,
    MoveShape,
    OutlookShape,
    PredictedShape,
    RollbackAheadShape,
    RollbackRequest,
    RollbackShape,
    SampleShape,
)
from fixstar.service.problems import Problem
from fixstar.service.shapes import JobShape, job_shape, problems
from fixstar.service.version_routes import existing
from fixstar.workspace import Move
from fixstar.workspace.backfill.planning import backfill_outlook
from fixstar.workspace.backfill.run import BackfillPlan, PlanFiles
from fixstar.workspace.deployment import unchecked_vectors, unreached_vectors

__all__ = ["router"]

router = APIRouter()
router.include_router(version_routes.router)
_own = APIRouter(prefix="/v1", tags=["lifecycle"])

READ = [Depends(needs("read"))]
Admin = Annotated[Caller, Depends(needs("admin"))]

_audit = logging.getLogger("fixstar.audit")


@_own.post("/deploy", responses=problems(404, 409))
def deploy(context: Shared, wanted: DeployRequest, caller: Admin) -> DeployShape:
    """Let queries and new items use a version, at once. Asks for a passed check, or for a reason to do without."""
    space = context.workspace
    existing(space, wanted.version)
    space.rollout.expect(wanted.deployed)
    if wanted.version == space.deployed():
        seen = f"{wanted.version} answers queries"
        raise Problem("already-deployed", seen, "there is nothing to do; see /v1/status")
    move = space.deploy(wanted.version, wanted.force, caller.name, wanted.deployed)
    return DeployShape(**_told(_noted(context, move)), unreached=_unreached(context, move.version))


@_own.post("/rollback", responses=problems(409))
def rollback(context: Shared, caller: Admin, wanted: RollbackRequest | None = None) -> RollbackShape:
    """Back to the version deployed before, at once. A backfill to another version ends."""
    space, wanted = context.workspace, wanted or RollbackRequest()
    if space.versions():
        space.rollout.expect(wanted.deployed)
    _before(context)
    job = _backfill_under_way(context)
    move = _noted(context, space.rollback(caller.name, wanted.deployed, wanted.to))
    return RollbackShape(
        **_told(move),
        left=space.rollout.left_by(move),
        unchecked=unchecked_vectors(space, move.version),
        unreached=_unreached(context, move.version),
        cancelled=_ended_by(job, move.version),
    )


@_own.get("/rollback", dependencies=READ, responses=problems(409))
def rollback_ahead(context: Shared) -> RollbackAheadShape:
    """What a rollback would do now. Its ``deployed`` and ``to``, sent with the rollback, make sure that it does."""
    space, to = context.workspace, _before(context)
    return RollbackAheadShape(
        deployed=space.deployed(),
        to=to,
        unchecked=unchecked_vectors(space, to),
        unreached=_unreached(context, to),
        cancelled=_ended_by(_backfill_under_way(context), to),
    )


def _before(context: Context) -> str:
    """Where a rollback leads."""
    hint = "name the version you want: POST /v1/deploy"
    if not context.workspace.versions():
        raise Problem("no-rollback", "there is no version yet", hint)
    try:
        return context.workspace.rollout.demand_before()
    except InputError as error:
        raise Problem("no-rollback", str(error), hint) from error


def _told(move: Move) -> dict[str, Any]:
    return MoveShape.model_validate(move).model_dump()


def _unreached(context: Context, version: str) -> dict[str, int]:
    return unreached_vectors(context.workspace, version, context.workspace.gallery.count())


def _backfill_under_way(context: Context) -> Job | None:
    job = context.jobs.latest("backfill")
    return None if job is None or job.has_ended else job


def _ended_by(job: Job | None, version: str) -> str | None:
    """The id of a backfill that ends when ``version`` is deployed."""
    return None if job is None or job.parameters["target"] == version else job.id


def _noted(context: Context, move: Move) -> Move:
    left = context.workspace.rollout.left_by(move)
    forced = f", forced: {move.reason!r}" if move.reason else ""
    _audit.info("%s from %s to %s by %s%s", move.kind, left, move.version, move.by, forced)
    return move


@_own.get("/deployments", dependencies=READ)
def deployments(
    context: Shared, limit: Annotated[int, Query(ge=1, le=1000, description="Moves, at most.")] = 100
) -> list[MoveShape]:
    """Who deployed what, when, and why without a check: newest first."""
    moves = context.workspace.rollout.history()[::-1]
    return [MoveShape.model_validate(move) for move in moves[:limit]]


@_own.post("/backfill", status_code=202, responses=problems(404, 409))
def start_backfill(context: Shared, caller: Admin, wanted: BackfillRequest | None = None) -> JobShape:
    """Embed older items again with the deployed version, in a job, while searches go on.

    A plan that was broken off goes on where the same is asked for. The job first predicts on held-out images what the
    plan brings: where that is a loss, other than a small one that may be chance, it fails with a problem (409) and
    nothing is replaced, unless ``anyway``.
    """
    wanted = wanted or BackfillRequest()
    target = context.workspace.deployed()
    if wanted.deployed not in (None, target):
        seen = f"{target} is deployed now, not {wanted.deployed}; nothing was started"
        raise Problem("deployment-moved", seen, "see GET /v1/backfill, then decide anew")
    settings = wanted.model_dump(exclude={"deployed"})
    return job_shape(context.jobs.submit("backfill", {"target": target, **settings}, caller.name))


@_own.get("/backfill", dependencies=READ)
def backfill(context: Shared) -> BackfillShape:
    """The backfill planned last: how far it is, what was predicted and measured; and what another could do."""
    job = context.jobs.latest("backfill")
    told = BackfillShape(job=None if job is None else job_shape(job))
    files = PlanFiles(context.workspace.path)
    seen = _plan(context.workspace.path, _stamp(files))
    if seen is not None:
        plan, count = seen
        told = told.model_copy(
            update={
                "version": plan.target,
                **{name: getattr(plan, name) for name in ("order", "budget", "old", "when")},
                "planned": count,
                "position": files.position(plan),
                "kept": len(files.kept(plan)),
            }
        )
    if job is not None and job.result is not None:
        told.predicted = None if not job.result.get("predicted") else PredictedShape(**job.result["predicted"])
        told.measured = [MeasuredShape(**point) for point in job.result.get("measured", [])]
    if context.workspace.versions() and _backfill_under_way(context) is None:
        told.outlook = OutlookShape.model_validate(backfill_outlook(context.workspace))
        told.images_a_second = _speed(job, told.outlook.version)
    return told


def _speed(job: Job | None, version: str) -> float | None:
    """Images a second of the last backfill, where it was to this version and embedded any."""
    result = {} if job is None or job.result is None else job.result
    if result.get("version") != version or not result.get("done") or not result.get("seconds"):
        return None
    return float(result["done"] / result["seconds"])


def _stamp(files: PlanFiles) -> tuple[int, int, int] | None:
    try:
        seen = (files.directory / "plan.jsonl").stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_mtime_ns, seen.st_size


@lru_cache(maxsize=4)
def _plan(workspace: Path, stamp: tuple[int, int, int] | None) -> tuple[BackfillPlan, int] | None:
    """The plan without its ids, which may be millions, and their number; read again when its file is another."""
    plan = None if stamp is None else PlanFiles(workspace).plan()
    return None if plan is None else (replace(plan, ids=()), len(plan.ids))


@_own.get("/history", dependencies=READ)
def history(context: Shared) -> list[SampleShape]:
    """Items by the version that made their vectors, over time: a sample whenever the counts had changed."""
    return [SampleShape(when=sample.when, vectors=sample.vectors) for sample in context.jobs.history.samples()]


router.include_router(_own)
