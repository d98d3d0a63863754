"""Unknown query parameters and form fields are refused, as unknown fields of a JSON body are.

A misspelt one would change nothing, and nobody would be told.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from fastapi import Request

from fixstar.service.problems import Problem

__all__ = ["known_parameters", "operation"]

_FORM = "multipart/form-data"


def operation(request: Request) -> dict[str, Any]:
    """What the OpenAPI document says about the operation that a request is for; nothing where it does not name it."""
    path = getattr(request.scope.get("route"), "path", "")
    found: dict[str, Any] = request.app.openapi()["paths"].get(path, {}).get(request.method.lower(), {})
    return found


async def known_parameters(request: Request) -> None:
    """A dependency of every operation under /v1: refuses query parameters and form fields that it does not document."""
    if not request.url.path.startswith("/v1/"):  # probes may add what they like
        return
    if request.query_params:
        known = [one["name"] for one in operation(request).get("parameters", ()) if one["in"] == "query"]
        _refuse_unknown("query parameter", "in the address", request.query_params, known)
    if fields := _form_fields(request):
        place = "in the form (multipart/form-data, as curl -F sends it)"
        _refuse_unknown("form field", place, await request.form(), fields)  # it was read before, and is kept


def _form_fields(request: Request) -> list[str]:
    """The fields of the form that the operation takes; none where it takes no form."""
    schema = operation(request).get("requestBody", {}).get("content", {}).get(_FORM, {}).get("schema", {})
    if "$ref" in schema:
        schema = request.app.openapi()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return list(schema.get("properties", ()))


def _refuse_unknown(kind: str, place: str, given: Iterable[str], known: list[str]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.5)
        guess = f"did you mean {close[0]}?" if close else "see /v1/docs"
        hint = f"{place} this takes: {', '.join(known) or 'none'}; {guess}"
        seen = f"there is no {kind} {unknown[0]!r:.80}"
        raise Problem("invalid-request", seen, hint)
