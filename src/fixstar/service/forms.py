"""Forms with many images: as many files, and fields as long, as the limits of the service allow."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from fixstar.service.settings import ServiceSettings

__all__ = ["FormRoute"]


class FormRoute(APIRoute):
    """A route whose form may be larger than the framework allows by itself (1 MB a field). ``BodyLimit`` counts too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with a request that knows our limits."""
        handle = super().get_route_handler()

        async def handle_form(request: Request) -> Response:
            return await handle(_FormRequest(request.scope, request.receive))

        return handle_form


class _FormRequest(Request):
    def form(self, **_: Any) -> Any:
        settings: ServiceSettings = self.app.state.context.settings
        return super().form(max_files=settings.images_a_job, max_part_size=settings.field_bytes)
