"""Errors of the application, and those that the framework makes by itself, told as problems."""

from __future__ import annotations

import errno
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from fixstar.errors import FixstarError, GalleryUnavailableError
from fixstar.service.parameters import operation
from fixstar.service.problems import Problem, full, is_full, problem_response

__all__ = ["add_problem_handlers", "framework_problem"]

_WRONG, _UNREADABLE, _LARGE = "The request is not as documented", "The form cannot be read", "Too large"
_FEWER = "send fewer images in one request, or shorter payloads"
_FORM_ERRORS = (  # how the form parser's messages begin, and what they mean
    ("Part exceeded", (413, _LARGE, _FEWER)),
    ("Field exceeded", (413, _LARGE, _FEWER)),
    ("Too many files", (422, _WRONG, "send the images in several requests")),
    ("Too many fields", (422, _WRONG, "see /v1/docs for the fields that there are")),
    ("Missing boundary", (400, _UNREADABLE, "let the HTTP library write the form's Content-Type, with its boundary")),
    ("", (400, _UNREADABLE, "send multipart/form-data as curl -F does; see /v1/docs")),
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
        return problem_response(Problem(422, _WRONG, seen, _validation_hint(request, error)))

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
    if is_full(error):
        return full(error)
    if error.errno in (errno.EROFS, errno.EIO):
        return Problem.of(GalleryUnavailableError(str(error)))
    raise error


def framework_problem(method: str, path: str, error: HTTPException) -> Problem:
    """What the framework answers by itself, as we say it."""
    status, told = error.status_code, str(error.detail)
    title, hint = HTTPStatus(status).phrase, "see /v1/docs"
    headers = {name.replace("-", "_"): value for name, value in (error.headers or {}).items()}
    if status == 404:
        title, told = "There is nothing at this address", f"no operation has the path {path!r:.200}"
    elif status == 405:
        allowed = headers.get("Allow") or headers.get("allow") or "other methods"
        title, told = "Not by this method", f"{method:.20} {path!r:.200}: this address takes {allowed}"
    elif status == 400:
        status, title, hint = next(rest for begin, rest in _FORM_ERRORS if told.startswith(begin))
    return Problem(status, title, told, hint, **headers)
