"""Deployment, backfill and history; with the routes of versions."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from fixstar.lifecycle import Move
from fixstar.lifecycle.backfill_plan import BackfillPlan, PlanFiles
from fixstar.service import version_routes
from fixstar.service.context import Shared
from fixstar.service.keys import Caller, needs
from fixstar.service.lifecycle_shapes import (
    BackfillRequest,
    BackfillShape,
    DeployRequest,
    MeasuredShape,
    MoveShape,
    PredictedShape,
    SampleShape,
)
from fixstar.service.problems import Problem
from fixstar.service.shapes import JobShape, job_shape, problems
from fixstar.service.version_routes import existing

__all__ = ["router"]

router = APIRouter()
router.include_router(version_routes.router)
_own = APIRouter(prefix="/v1", tags=["lifecycle"])

READ, ADMIN = [Depends(needs("read"))], [Depends(needs("admin"))]
Admin = Annotated[Caller, Depends(needs("admin"))]

_audit = logging.getLogger("fixstar.audit")


@_own.post("/deploy", responses=problems(404, 409))
def deploy(context: Shared, wanted: DeployRequest, caller: Admin) -> MoveShape:
    """Let queries and new items use a version, at once. Asks for a passed check, or for a reason to do without."""
    space = context.workspace
    if existing(space, wanted.version) == space.deployed():
        raise Problem(409, "It is deployed already", f"{wanted.version} answers queries")
    return _noted(space.deploy(wanted.version, wanted.force, by=caller.name))


@_own.post("/rollback", responses=problems(409))
def rollback(context: Shared, caller: Admin) -> MoveShape:
    """Back to the version deployed before, at once."""
    space = context.workspace
    if not space.versions() or space.rollout.before() is None:
        raise Problem(409, "There is nothing to roll back to", "no deployment before this one")
    return _noted(space.rollback(by=caller.name))


def _noted(move: Move) -> MoveShape:
    _audit.info(
        "%s of %s by %s%s", move.kind, move.version, move.by, f", forced: {move.reason!r}" if move.reason else ""
    )
    return MoveShape.model_validate(move)


@_own.get("/deployments", dependencies=READ)
def deployments(
    context: Shared, limit: Annotated[int, Query(ge=1, le=1000, description="Moves, at most.")] = 100
) -> list[MoveShape]:
    """Who deployed what, when, and why without a check: newest first."""
    moves = context.workspace.rollout.history()[::-1]
    return [MoveShape.model_validate(move) for move in moves[:limit]]


@_own.post("/backfill", dependencies=ADMIN, status_code=202, responses=problems(404, 409))
def start_backfill(context: Shared, wanted: BackfillRequest | None = None) -> JobShape:
    """Embed older items again with the deployed version, in a job, while searches go on.

    A plan that was broken off goes on where the same is asked for.
    """
    wanted = wanted or BackfillRequest()
    target = context.workspace.deployed()
    return job_shape(context.jobs.submit("backfill", {"target": target, **wanted.model_dump()}))


@_own.get("/backfill", dependencies=READ)
def backfill(context: Shared) -> BackfillShape:
    """The backfill planned last: how far it is, what was predicted and what was measured."""
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
    return told


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
