"""Jobs: what is under way, how far it is, and an end to it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi import Path as InPath

from fixstar.service.context import Shared
from fixstar.service.keys import Caller, needs
from fixstar.service.problems import Problem
from fixstar.service.shapes import JobShape, job_shape, problems

__all__ = ["router"]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

JobId = Annotated[str, InPath(alias="id", max_length=100, description="The job's id.")]


@router.get("", dependencies=[Depends(needs("read"))])
def jobs(
    context: Shared, limit: Annotated[int, Query(ge=1, le=200, description="Jobs, at most.")] = 50
) -> list[JobShape]:
    """The jobs that are remembered, newest first."""
    return [job_shape(job) for job in context.jobs.all()[:limit]]


@router.get("/{id}", dependencies=[Depends(needs("read"))], responses=problems(404))
def job(context: Shared, name: JobId) -> JobShape:
    """One job."""
    return job_shape(context.jobs.get(name))


@router.post("/{id}/cancel", responses=problems(404))
def cancel(context: Shared, name: JobId, caller: Annotated[Caller, Depends(needs("write"))]) -> JobShape:
    """End a job after its current batch; what was done stays. A check or a backfill is ended by who may start one."""
    kind = context.jobs.get(name).kind
    if kind != "index" and not caller.may("admin"):
        seen = f"{caller.name!r} has the role {caller.role}; ending a {kind} needs admin"
        raise Problem("not-allowed", seen, "ask whoever started it, or the operator")
    return job_shape(context.jobs.cancel(name, caller.name))
