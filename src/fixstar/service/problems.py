"""Every error as problem+json (RFC 9457): what happened, and what to do about it.

Errors that fixstar raises on purpose carry what to type next in their message; they become 4xx. Where the gallery or
the workspace itself does not do its part, the message is for the operator: logged, and told without it, because it
names files and servers. Anything else is a fault of ours: 500, logged with its traceback.

A problem cannot be made without a hint, so every error has one.
"""

from __future__ import annotations

import errno
import logging
import re
from typing import Any

from fastapi.responses import JSONResponse

from fixstar.errors import (
    DamagedItemError,
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

__all__ = ["Problem", "as_requests", "fault", "fault_response", "full", "is_full", "problem_response"]

_log = logging.getLogger("fixstar.service")

_LOGGED = "the log of the service says why"
_STATUS: tuple[tuple[type[FixstarError], tuple[int, str, str]], ...] = (
    (ImageError, (422, "The image cannot be used", "open it in an image editor and save it again")),
    (UnknownNameError, (404, "There is nothing of that name", "take one of the names in detail")),
    (GateError, (409, "Not shown to be compatible", "do what detail says, or leave it as it is")),
    (InputError, (400, "The request cannot be carried out", "change what detail names; see /v1/docs")),
    (GalleryUnavailableError, (503, "The gallery does not answer now", f"come again; {_LOGGED}")),
    (DamagedItemError, (500, "A stored item is damaged", "the operator can find it with: fixstar gallery verify")),
    (GalleryError, (400, "The gallery cannot do that", "change what detail names; see /v1/docs")),
    (DataError, (422, "The data cannot be used", "the operator can mend what detail names")),
    (MissingExtraError, (501, "Not installed here", "the operator can install what detail names")),
    (FixstarError, (500, "The workspace cannot do that", _LOGGED)),
)
_REQUESTS = (  # commands in messages, and the requests that do the same; where none does, who can
    (r'fixstar deploy (v\d+) --force "REASON"', r'POST /v1/deploy {"version": "\1", "force": "REASON"}'),
    (r"(?:: | with )fixstar check (v\d+) --data LABELLED_IMAGES", r" (the operator can check \1 on them)"),
    (
        r"(?:: | with )fixstar check (v\d+) --tolerance (\d++(?:\.\d++)?+) --data LABELLED_IMAGES",
        r" (the operator can check \1 on more, with a tolerance of \2)",
    ),
    (
        r"Fit an adapter, which is checked on labelled items \(fixstar adapt [^)]*\), or compare features \([^)]*\);",
        "The operator can fit an adapter, which is checked on labelled items, or compare features;",
    ),
    (r"are imported with: fixstar gallery import FILE --as (.+?@v\d+)", r"can be imported as \1, by the operator too"),
    (r"fixstar check (v\d+) --tolerance (\d++(?:\.\d++)?+)(?! --)", r'POST /v1/versions/\1/check {"tolerance": \2}'),
    (r"fixstar check (v\d+)(?! --)", r"POST /v1/versions/\1/check"),
    (r'--force "REASON"', '"force": "REASON"'),
)
_UNSEEN = "nothing is said here that names files or servers"


class Problem(Exception):  # noqa: N818 (the name of the media type)
    """An answer that is no success. ``detail`` says what was seen, ``hint`` what to do; ``more`` are other members."""

    def __init__(self, status: int, title: str, detail: str, hint: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail, self.hint = status, title, detail, hint
        self.more: dict[str, Any] = {}
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def body(self) -> dict[str, Any]:
        """The JSON document."""
        told = {"title": self.title, "status": self.status, "detail": self.detail, "hint": self.hint}
        return {"type": "about:blank", **told, **self.more}

    def sentence(self) -> str:
        """All of it in one line, for where it stands alone."""
        return f"{self.title}: {self.detail}; {self.hint}"

    @classmethod
    def of(cls, error: FixstarError) -> Problem:
        """The problem that an expected error is."""
        if is_full(error):
            return full(error)
        status, title, hint = next(rest for kind, rest in _STATUS if isinstance(error, kind))
        if status not in (500, 503):
            return cls(status, title, as_requests(str(error)), hint)
        _log.error("%s: %s", title, error)
        return cls(status, title, _UNSEEN, hint, **({"Retry_After": "5"} if status == 503 else {}))


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
    return problem_response(fault())


def fault() -> Problem:
    """What is told of a fault of ours."""
    return Problem(500, "Something is wrong in the service", _UNSEEN, "the operator finds it in the log")


def _sendable(value: Any) -> Any:
    """Text that may quote a request, without half characters that no answer can carry."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def as_requests(text: str) -> str:
    """A message with the requests that do what its commands do: who reads it has no shell on this machine.

    Of the gate's commands that no request replaces it says that the operator can. Others stay.

    >>> as_requests('run: fixstar check v2, or fixstar deploy v2 --force "REASON"')
    'run: POST /v1/versions/v2/check, or POST /v1/deploy {"version": "v2", "force": "REASON"}'
    >>> as_requests("More images help: fixstar check v2 --data LABELLED_IMAGES")
    'More images help (the operator can check v2 on them)'
    """
    for pattern, request in _REQUESTS:
        text = re.sub(pattern, request, text)
    return text
