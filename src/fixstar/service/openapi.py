"""The OpenAPI document, with the problems that every operation may answer, and a page made from it."""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse

from fixstar.service.shapes import NothingAddedShape, ProblemShape, problems

__all__ = ["add_documents", "listing"]

_EVERYWHERE = (400, 401, 403, 421, 422, 429, 500, 503, 507)  # what stands before every route may answer
_WITH_BODY = (408, 413)
_OPEN = ("/healthz", "/readyz")
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def add_documents(app: FastAPI) -> None:
    """Let the application describe itself at /v1/openapi.json, and for people at /v1/docs."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            plain = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            app.openapi_schema = _completed(plain)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]

    @app.get("/v1/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(listing(document()))


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with problems and keys written into each operation."""
    parts = document.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    for shape in (ProblemShape, NothingAddedShape):
        schemas[shape.__name__] = shape.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schemas[shape.__name__].pop("$defs", {})
    parts["securitySchemes"] = _SECURITY
    for path, operations in document["paths"].items():
        for operation in operations.values():
            answers = operation["responses"]
            if "HTTPValidationError" in str(answers.get("422")):  # FastAPI's own shape, which is never sent
                del answers["422"]
            for status in (*_EVERYWHERE, *(_WITH_BODY if "requestBody" in operation else ())):
                answers.setdefault(str(status), problems(status)[status])
            if path not in _OPEN:
                operation["security"] = [{}, *({name: []} for name in _SECURITY)]  # {}: no keys, on this machine
    for name in (name for name in schemas if name.startswith("Body_")):  # forms: other fields are refused
        schemas[name]["additionalProperties"] = False
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return document


def listing(document: dict[str, Any]) -> str:
    """All operations on one plain page: no script, nothing from elsewhere."""
    rows = [
        f"<tr><td><code>{method.upper()}</code></td><td><code>{escape(path)}</code></td>"
        f"<td>{escape(operation.get('description') or operation.get('summary', ''))}</td>"
        f"<td>{escape(_inputs(operation))}</td></tr>"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head><body>'
        f"<h1>{title}</h1><p>{escape(document['info'].get('description', ''))} "
        'The whole of it: <a href="/v1/openapi.json">openapi.json</a>.</p><table>'
        "<thead><tr><th></th><th>address</th><th>what it does</th><th>takes</th></tr>"
        f"</thead><tbody>{''.join(rows)}</tbody></table></body></html>"
    )


def _inputs(operation: dict[str, Any]) -> str:
    named = [one["name"] + ("" if one.get("required") else "?") for one in operation.get("parameters", ())]
    return ", ".join([*named, *(f"body: {kind}" for kind in operation.get("requestBody", {}).get("content", ()))])
