"""Is it alive, can it answer, how is it doing, and where does the workspace stand."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel

from fixstar import __version__
from fixstar.errors import FixstarError
from fixstar.service.context import Shared
from fixstar.service.keys import Caller, Role, needs
from fixstar.service.metrics import CONTENT_TYPE
from fixstar.service.problems import Problem
from fixstar.service.shapes import problems

__all__ = ["router"]

router = APIRouter(tags=["service"])

_log = logging.getLogger("fixstar.service")


class HealthShape(BaseModel):
    """The service answers."""

    status: Literal["ok"] = "ok"


class ReadyShape(BaseModel):
    """The service can answer queries, by this version. ``writes`` is false where the disk has no room for an image."""

    status: Literal["ready"] = "ready"
    version: str
    writes: bool


class CallerShape(BaseModel):
    """Who asked."""

    name: str
    role: Role


class StatusShape(BaseModel):
    """Where the workspace stands. ``vectors`` counts items by the version that made them."""

    name: str
    fixstar: str
    deployed: str | None
    previous: str | None
    versions: list[str]
    retired: list[str]
    vectors: dict[str, int]
    items: int
    jobs_running: int
    caller: CallerShape
    keys: bool


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz")
async def healthz() -> HealthShape:
    """Whether the service is alive."""
    return HealthShape()


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=problems(503))
def readyz(context: Shared) -> ReadyShape:
    """Whether the gallery opens and the deployed version loads, and whether there is room to store images."""
    try:
        version = context.workspace.deployed()
        context.workspace.serving.encoder(version)
        context.workspace.gallery.count()
        room = shutil.disk_usage(context.workspace.path).free
    except (FixstarError, OSError) as error:
        _log.warning("not ready: %s", error)  # not told: whoever asks here has shown no key
        raise Problem(
            "not-ready", "a search would fail now", "the log of the service says why", headers={"Retry-After": "5"}
        ) from error
    return ReadyShape(version=version, writes=room >= context.settings.upload_bytes)


@router.get(
    "/metrics",
    dependencies=[Depends(needs("read"))],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(context: Shared) -> Response:
    """Figures for Prometheus."""
    space = context.workspace
    deployed = space.rollout.current() if space.versions() else None
    jobs = Counter(str(job.state) for job in context.jobs.all())
    return Response(context.metrics.text(space.gallery.count(), deployed, jobs), media_type=CONTENT_TYPE)


@router.get("/v1/status")
def status(context: Shared, caller: Annotated[Caller, Depends(needs("read"))]) -> StatusShape:
    """Versions, what is deployed, and whose vectors the gallery holds."""
    seen = context.workspace.status()
    return StatusShape(
        name=context.workspace.path.resolve().name,
        fixstar=__version__,
        deployed=seen.deployed,
        previous=seen.previous,
        versions=list(seen.versions),
        retired=list(seen.retired),
        vectors=seen.vectors,
        items=sum(seen.vectors.values()),
        jobs_running=sum(job.state in ("queued", "running") for job in context.jobs.all()),
        caller=CallerShape(name=caller.name, role=caller.role),
        keys=bool(context.keys.all()),
    )
