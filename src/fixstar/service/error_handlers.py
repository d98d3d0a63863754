"""Errors of the application, and those that the framework makes by itself, told as problems."""

from __future__ import annotations

import errno

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from fixstar.errors import FixstarError, GalleryUnavailableError
from fixstar.service.parameters import operation
from fixstar.service.problems import Problem, disk_full, is_disk_full, problem_response

__all__ = ["add_problem_handlers", "framework_problem"]

_FEWER = "send fewer images in one request, or shorter payloads"
_FORM_ERRORS = (  # how the form parser's messages begin, and what they mean
    ("Part exceeded", ("too-large", _FEWER)),
    ("Field exceeded", ("too-large", _FEWER)),
    ("Too many files", ("invalid-request", "send the images in several requests")),
    ("Too many fields", ("invalid-request", "see /v1/docs for the fields that there are")),
    ("Missing boundary", ("unreadable-form", "let the HTTP library write the form's Content-Type, with its boundary")),
    ("", ("unreadable-form", "send multipart/form-data as curl -F does; see /v1/docs")),
)


def add_problem_handlers(app: FastAPI) -> None:
    """Let every error of the application be told as a problem."""

    @app.exception_handler(Problem)
    async def _problem(_: Request, error: Problem) -> JSONResponse:
        return problem_response(error)

    @app.exception_handler(FixstarError)
    async def _expected(_: Request, error: FixstarError) -> JSONResponse:
        return problem_response(Problem.of(error))

    @app.exception_handler(OSError)
    async def _disk(_: Request, error: OSError) -> JSONResponse:
        return problem_response(_disk_problem(error))

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        seen = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5])
        return problem_response(Problem("invalid-request", seen, _validation_hint(request, error)))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, OSError):  # the files of a form found no room
            return problem_response(_disk_problem(error.__cause__))
        return problem_response(framework_problem(request.method, request.url.path, error))


def _validation_hint(request: Request, error: RequestValidationError) -> str:
    """What to send instead: mostly the body is of another kind than asked for."""
    kind = request.headers.get("content-type", "")
    whole = any(tuple(one["loc"]) == ("body",) for one in error.errors())
    if whole and "json" not in kind.lower():
        return "send JSON with the header content-type: application/json (curl: -H 'content-type: application/json')"
    if whole:
        return "send a JSON object; see /v1/docs for its fields"
    if any(one["loc"][0] == "body" for one in error.errors()) and _takes_form(request) and "multipart" not in kind:
        return "send multipart/form-data, as curl -F does; see /v1/docs"
    return "see /v1/docs for what this takes, /v1/openapi.json for its limits"


def _takes_form(request: Request) -> bool:
    body = operation(request).get("requestBody", {})
    return "multipart/form-data" in body.get("content", {})


def _disk_problem(error: OSError) -> Problem:
    """What the disk's errors mean. Others are faults of ours."""
    if is_disk_full(error):
        return disk_full(error)
    if error.errno in (errno.EROFS, errno.EIO):
        return Problem.of(GalleryUnavailableError(str(error)))
    raise error


def framework_problem(method: str, path: str, error: HTTPException) -> Problem:
    """What the framework answers by itself, as we say it."""
    status, seen = error.status_code, str(error.detail)
    kind, hint = "bug" if status >= 500 else "invalid-request", "see /v1/docs"
    headers = dict(error.headers or {})
    if status == 404:
        kind, seen = "not-found", f"no operation has the path {path!r:.200}"
    elif status == 405:
        allowed = headers.get("Allow") or headers.get("allow") or "other methods"
        kind, seen = "wrong-method", f"{method:.20} {path!r:.200}: this address takes {allowed}"
    elif status == 400:
        kind, hint = next(rest for begin, rest in _FORM_ERRORS if seen.startswith(begin))
        return Problem(kind, seen, hint, headers=headers)
    return Problem(kind, seen, hint, status=status, headers=headers)
