"""Every error as problem+json (RFC 9457): what happened, and what to do about it.

Errors that fixstar raises on purpose carry what to type next in their message; they become 4xx. Where the gallery or
the workspace itself does not do its part, the message is for the operator: logged, and told without it, because it
names files and servers. Anything else is a fault of ours: 500, logged with its traceback.
"""

from __future__ import annotations

import errno
import logging
from typing import Any

from fastapi.responses import JSONResponse

from fixstar.errors import (
    DataError,
    FixstarError,
    GalleryError,
    GalleryUnavailableError,
    GateError,
    ImageError,
    InputError,
    MissingExtraError,
    UnknownNameError,
)

__all__ = ["Problem", "fault_response", "full", "is_full", "problem_response"]

_log = logging.getLogger("fixstar.service")

_STATUS: tuple[tuple[type[FixstarError], int, str], ...] = (
    (ImageError, 422, "The image cannot be used"),
    (UnknownNameError, 404, "There is nothing of that name"),
    (GateError, 409, "Not shown to be compatible"),
    (InputError, 400, "The request cannot be carried out"),
    (GalleryUnavailableError, 503, "The gallery does not answer now"),
    (GalleryError, 400, "The gallery cannot do that"),
    (DataError, 422, "The data cannot be used"),
    (MissingExtraError, 501, "Not installed here"),
    (FixstarError, 500, "The workspace cannot do that"),
)


class Problem(Exception):  # noqa: N818 (the name of the media type)
    """An answer that is no success. ``hint`` says what to do."""

    def __init__(self, status: int, title: str, detail: str = "", hint: str = "", **headers: str) -> None:
        super().__init__(detail or title)
        self.status, self.title, self.detail, self.hint = status, title, detail, hint
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def body(self) -> dict[str, Any]:
        """The JSON document."""
        document = {"type": "about:blank", "title": self.title, "status": self.status, "detail": self.detail}
        return {**document, "hint": self.hint} if self.hint else document

    @classmethod
    def of(cls, error: FixstarError) -> Problem:
        """The problem that an expected error is."""
        if is_full(error):
            return full(error)
        status, title = next((status, title) for kind, status, title in _STATUS if isinstance(error, kind))
        if status not in (500, 503):
            return cls(status, title, str(error))
        _log.error("%s: %s", title, error)
        if status == 500:
            return cls(status, title, hint="the log of the service says why")
        return cls(status, title, hint="come again; the log of the service says why", Retry_After="5")


def is_full(error: BaseException | None) -> bool:
    """Whether an error comes of a full disk, here or under the gallery's server."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if str(getattr(error, "sqlite_errorname", "")) == "SQLITE_FULL" or getattr(error, "sqlstate", None) == "53100":
            return True
        error = error.__cause__
    return False


def full(error: BaseException) -> Problem:
    """The answer where the disk is full. No Retry-After: to come again does not help."""
    _log.error("the disk is full: %s", error)
    seen = "there is no room left to store anything; what was stored before is there, and searches go on"
    return Problem(507, "The disk is full", seen, "the operator has to make room; come again after that, not before")


def problem_response(problem: Problem) -> JSONResponse:
    """The response."""
    body = {key: _sendable(value) for key, value in problem.body().items()}
    return JSONResponse(body, problem.status, problem.headers, media_type="application/problem+json")


def fault_response(method: str, path: str, error: Exception) -> JSONResponse:
    """The response to a fault of ours; the log says more."""
    _log.error("%s %s failed", method, path, exc_info=error)
    return problem_response(Problem(500, "Something is wrong in the service", hint="its log says what"))


def _sendable(value: Any) -> Any:
    """Text that may quote a request, without half characters that no answer can carry."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
