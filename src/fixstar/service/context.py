"""What the routes share: the objects made when the service starts, and the roles they ask for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from fixstar.service.batching import QueryBatcher
from fixstar.service.intake import Intake
from fixstar.service.jobs import Jobs
from fixstar.service.keys import Caller, Keys, Role, identify, missing_key
from fixstar.service.monitoring import Metrics
from fixstar.service.problems import Problem
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace


@dataclass(frozen=True)
class Context:
    """The workspace and everything that serves it."""

    workspace: Workspace
    settings: ServiceSettings
    keys: Keys
    intake: Intake
    batcher: QueryBatcher
    jobs: Jobs
    metrics: Metrics


async def _context(
    request: Request,
) -> Context:  # async: a plain function would be called in a thread
    context: Context = request.app.state.context
    return context


Shared = Annotated[Context, Depends(_context)]


def needs(role: Role) -> Callable[[Request], Awaitable[Caller]]:
    """A dependency that lets callers of this role, or a higher one, pass."""

    async def allowed(request: Request) -> Caller:
        context: Context = request.app.state.context
        caller = identify(request.scope, request.headers, context.keys, context.settings)
        if caller is None:
            raise missing_key(request.headers, context.keys)
        if not caller.may(role):
            seen = f"{caller.name!r} has the role {caller.role}; this needs {role}"
            raise Problem(
                "not-allowed",
                seen,
                f"ask the operator for a key: fixstar keys add NAME --role {role}",
            )
        return caller

    return allowed


may_read = needs("read")
READ = [Depends(may_read)]
WRITE = [Depends(needs("write"))]
Reader = Annotated[Caller, Depends(needs("read"))]
Writer = Annotated[Caller, Depends(needs("write"))]
Admin = Annotated[Caller, Depends(needs("admin"))]
