"""Unknown query parameters are refused, as unknown fields of a JSON body are: a misspelt one would change nothing."""

from __future__ import annotations

import difflib
from typing import Any

from fastapi import Request

from fixstar.service.problems import Problem

__all__ = ["known_parameters", "operation"]


def operation(request: Request) -> dict[str, Any]:
    """What the OpenAPI document says about the operation that a request is for; nothing where it does not name it."""
    path = getattr(request.scope.get("route"), "path", "")
    found: dict[str, Any] = request.app.openapi()["paths"].get(path, {}).get(request.method.lower(), {})
    return found


async def known_parameters(request: Request) -> None:
    """A dependency of every operation under /v1: refuses query parameters that it does not document."""
    if not request.query_params or not request.url.path.startswith("/v1/"):  # probes may add what they like
        return
    known = [one["name"] for one in operation(request).get("parameters", ()) if one["in"] == "query"]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.5)
        guess = f"did you mean {close[0]}?" if close else "see /v1/docs"
        hint = f"in the address this takes: {', '.join(known) or 'none'}; {guess}"
        seen = f"there is no query parameter {unknown[0]!r:.80}"
        raise Problem(422, "The request is not as documented", seen, hint)
