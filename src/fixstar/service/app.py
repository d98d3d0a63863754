"""The application: what stands around a workspace, put together and taken apart in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from starlette.middleware import Middleware

from fixstar import __version__
from fixstar.service import health_routes, item_routes, job_routes, lifecycle_routes, search_routes
from fixstar.service.batching import QueryBatcher
from fixstar.service.context import Context
from fixstar.service.error_handlers import add_problem_handlers
from fixstar.service.intake import Intake
from fixstar.service.jobs import Jobs
from fixstar.service.keys import Keys
from fixstar.service.limits import BodyLimit, RateLimit, SameOrigin, SecurityHeaders
from fixstar.service.metrics import Metrics, Watch
from fixstar.service.openapi import add_documents
from fixstar.service.page import mount_page
from fixstar.service.parameters import known_parameters
from fixstar.service.request_log import RequestLog
from fixstar.service.route_names import RouteNames
from fixstar.service.settings import ServiceSettings
from fixstar.service.wellformed import WellFormed
from fixstar.workspace import Workspace

__all__ = ["create_app"]

STOP = 20.0  # seconds for jobs to come to a point where they can go on later


def create_app(
    workspace: Workspace, settings: ServiceSettings, keys: Keys | None = None, held: Jobs | None = None
) -> FastAPI:
    """The service over a workspace. Its gallery is closed when the service stops.

    ``held`` are its jobs where they are held already; else the service holds them when it starts.
    """
    keys = keys or Keys(workspace.path)
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        intake = Intake(settings)
        batcher = QueryBatcher(workspace, settings, metrics, intake)
        jobs = held or Jobs(workspace, settings)
        app.state.context = Context(workspace, settings, keys, intake, batcher, jobs, metrics)
        batcher.start()
        jobs.start()
        try:
            yield
        finally:  # no request is under way any more: first what asks the gallery, then the gallery
            await batcher.stop()
            await asyncio.to_thread(jobs.stop, STOP)
            await asyncio.to_thread(intake.close)
            await asyncio.to_thread(workspace.close)

    app = FastAPI(
        title="fixstar",
        version=__version__,
        description="Image search over vectors of several model versions.",
        lifespan=lifespan,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(RequestLog, access=settings.access_log),
            Middleware(Watch, metrics=metrics, names=RouteNames(lambda: app.openapi()["paths"])),
            Middleware(SameOrigin, settings=settings),
            Middleware(RateLimit, settings=settings, keys=keys),
            Middleware(BodyLimit, settings=settings),
            Middleware(WellFormed),
        ],
    )
    add_problem_handlers(app)
    for routes in (health_routes, search_routes, item_routes, lifecycle_routes, job_routes):
        app.include_router(routes.router, dependencies=[Depends(known_parameters)])
    add_documents(app)
    mount_page(app)
    return app
