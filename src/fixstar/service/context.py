"""What the routes share: one object, made when the service starts and closed when it stops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace

if TYPE_CHECKING:
    from fixstar.service.batching import QueryBatcher
    from fixstar.service.intake import Intake
    from fixstar.service.jobs import Jobs
    from fixstar.service.keys import Keys
    from fixstar.service.metrics import Metrics

__all__ = ["Context", "Shared"]


@dataclass(frozen=True)
class Context:
    """The workspace and what stands around it."""

    workspace: Workspace
    settings: ServiceSettings
    keys: Keys
    intake: Intake
    batcher: QueryBatcher
    jobs: Jobs
    metrics: Metrics


async def _context(request: Request) -> Context:  # async: a plain function would be called in a thread
    context: Context = request.app.state.context
    return context


Shared = Annotated[Context, Depends(_context)]
