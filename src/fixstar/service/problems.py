"""Every error as problem+json (RFC 9457): what happened, and what to do about it.

Errors that fixstar raises on purpose become 4xx with their message. If the gallery or the workspace itself fails, the
message names files and servers: it is logged for the operator and not sent. Anything else is a bug: 500, logged with
its traceback. Needs no web framework until a response is made.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

from fixstar.errors import FixstarError, NextStep

if TYPE_CHECKING:
    from fastapi.responses import JSONResponse

Result = TypeVar("Result")

_log = logging.getLogger("fixstar.service")

_HIDDEN = "details are in the log: they name files or servers"


class ProblemType(NamedTuple):
    """A kind of problem: its HTTP status, its title, and the default advice."""

    status: int
    title: str
    remedy: str


_SEE_DOCS = "see /v1/docs"
_SEE_LOG = "the log of the service says why"
_RETRY = "try again in a moment"

_TYPES: dict[str, tuple[int, str, str]] = {
    # the library's errors, by their type
    "invalid-input": (
        400,
        "The request cannot be carried out",
        "change what detail names; see /v1/docs",
    ),
    "gallery": (400, "The gallery cannot do that", "change what detail names; see /v1/docs"),
    "unknown-name": (404, "There is nothing of that name", "use one of the names in detail"),
    "unknown-item": (404, "There is no such item", "see /v1/items"),
    "not-compatible": (409, "Not shown to be compatible", "see next_steps, or leave it as it is"),
    "deployment-moved": (
        409,
        "The deployment has moved",
        "see GET /v1/status or /v1/rollback, then decide again",
    ),
    "item-changed": (412, "The item has changed", "see GET /v1/item, then decide again"),
    "unreadable-image": (
        422,
        "The image cannot be used",
        "open it in an image editor and save it again",
    ),
    "unreadable-text": (422, "The text cannot be used", "send a text with words, or a shorter one"),
    "unreadable-item": (422, "The item cannot be used", "send it again, as detail says"),
    "unusable-data": (422, "The data cannot be used", "the operator can repair what detail names"),
    "missing-extra": (501, "Not installed here", "the operator can install what detail names"),
    "damaged-item": (
        500,
        "A stored item is damaged",
        "the operator can find it by verifying the gallery",
    ),
    "unusable-model": (500, "The workspace cannot do that", _SEE_LOG),
    "untrusted-code": (500, "The workspace cannot do that", _SEE_LOG),
    "unusable-checkpoint": (500, "The workspace cannot do that", _SEE_LOG),
    "error": (500, "The workspace cannot do that", _SEE_LOG),
    "embedding-server": (
        503,
        "The server that embeds texts does not answer as it should",
        f"try again; {_SEE_LOG}",
    ),
    "gallery-unavailable": (503, "The gallery is not available now", f"try again; {_SEE_LOG}"),
    # the service's own
    "unreadable-form": (400, "The form cannot be read", "send multipart/form-data as curl -F does"),
    "no-key": (
        401,
        "A valid key is needed",
        "send the header Authorization: Bearer KEY; the operator makes keys with: fixstar keys add NAME --role read",
    ),
    "not-allowed": (
        403,
        "Your key may not do that",
        "ask the operator for a key with the role it needs",
    ),
    "cross-site": (403, "Not from another site", "use the page of this service, or a program"),
    "not-found": (404, "There is nothing at this address", _SEE_DOCS),
    "not-checked": (404, "Not checked yet", "run a check: POST /v1/versions/NAME/check"),
    "unknown-folder": (404, "There is no such folder of images", "use one of the names in hint"),
    "unknown-job": (404, "There is no such job", "see /v1/jobs"),
    "unknown-picture": (404, "There is no such picture", "store the item again with its image"),
    "unknown-version": (
        404,
        "There is no such version",
        "use one of those that there are; see /v1/versions",
    ),
    "wrong-method": (405, "Method not allowed", _SEE_DOCS),
    "stalled": (408, "The request came too slowly", "send it again, without a pause"),
    "already-deployed": (409, "It is deployed already", "there is nothing to do; see /v1/status"),
    "training-unfinished": (
        409,
        "Another training was interrupted",
        "the operator can finish it with the command that began it, or delete its checkpoint and trials",
    ),
    "already-running": (409, "Such a job is already under way", "wait for it, or cancel it"),
    "backfill-loses": (
        409,
        "Predicted to lower the accuracy",
        'leave everything as it is, or send "anyway": true to do it nevertheless',
    ),
    "no-snapshots": (
        409,
        "The service takes no snapshots",
        "the operator can say where they go: fixstar serve --snapshots FOLDER",
    ),
    "no-training-images": (
        409,
        "The service has no folder to train on",
        "train on the stored items, or let the operator choose one: fixstar serve --training-images FOLDER",
    ),
    "no-rollback": (
        409,
        "There is nothing to roll back to",
        "name the version you want: POST /v1/deploy",
    ),
    "retired-version": (409, "The version was retired", "use one that still has its weights"),
    "too-large": (413, "Too large", "send it in several requests"),
    "image-too-large": (
        413,
        "The image is too large",
        "send a smaller version; the operator may allow more megabytes with: fixstar serve --upload",
    ),
    "unknown-format": (
        415,
        "Not an image of a known format",
        "send JPEG, PNG, WebP, AVIF, GIF, BMP or TIFF",
    ),
    "wrong-host": (
        421,
        "Not this host",
        "call it by http://localhost, with its port; the operator can add names: fixstar serve --name",
    ),
    "wrong-kind": (422, "This gallery holds another kind of items", "see reads in GET /v1/status"),
    "invalid-request": (422, "The request is not as documented", _SEE_DOCS),
    "no-usable-image": (422, "No image can be used", "see bad for what to do about each"),
    "no-usable-text": (422, "No text can be used", "see bad for what to do about each"),
    "too-many-results": (
        422,
        "Too many results",
        "ask for fewer; to list all items: GET /v1/items",
    ),
    "wrong-vector": (
        422,
        "The vector does not fit",
        "send the short form of a vector of that version",
    ),
    "too-many-jobs": (429, "Too many jobs", "try again when some are done"),
    "too-many-requests": (429, "Too many requests", "wait as long as Retry-After says"),
    "bug": (500, "Something is wrong in the service", "the operator finds it in the log"),
    "damaged-job": (500, "The job's file is damaged", "ask for it again"),
    "process-ended": (
        500,
        "The process of the job ended too early",
        "see the log, then ask for it again",
    ),
    "job-abandoned": (500, "The job was abandoned", "see the log, then ask for it again"),
    "busy": (503, "Too busy", _RETRY),
    "not-ready": (503, "Not ready", _SEE_LOG),
    "stopping": (503, "The service is stopping", _RETRY),
    "disk-full": (507, "The disk is full", "the operator has to make room; try again after that"),
}
_SHORT_WRITE = re.compile(  # as safetensors and NumPy say it, without a number
    rf"\(os error ({errno.ENOSPC}|{errno.EDQUOT})\)|^\d+ requested and \d+ written$"
)
PROBLEMS = {name: ProblemType(*row) for name, row in _TYPES.items()}
# action: method, path, fields of the body. Other actions need a shell on the service's machine, or files there
REQUESTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "backfill": ("POST", "/v1/backfill", ("budget", "order", "rate", "deployed", "anyway")),
    "check": (
        "POST",
        "/v1/versions/{version}/check",
        ("confidence", "tolerance", "seed", "weight", "refit"),
    ),
    "delete-items": ("POST", "/v1/items/delete", ("ids",)),
    "deploy": ("POST", "/v1/deploy", ("version", "force", "deployed", "queries")),
    "rollback": ("POST", "/v1/rollback", ("deployed", "to")),
    "status": ("GET", "/v1/status", ()),
    "train": ("POST", "/v1/train", ("data", "method", "capacity")),
    "upgrade": ("POST", "/v1/upgrade", ("data", "method")),
}


def to_step(step: NextStep) -> dict[str, Any]:
    """A next step as JSON, with the request that does it; null where only the operator can. Null values: fill them in.

    >>> to_step(NextStep("check", {"version": "v2", "tolerance": 0.03}))["request"]
    {'method': 'POST', 'path': '/v1/versions/v2/check', 'body': {'tolerance': 0.03}}
    >>> to_step(NextStep("check", {"version": "v2", "data": ...}, "about 400 labelled images"))["note"]
    'about 400 labelled images (the operator can do this)'
    """
    content = step.to_json()
    request = _request(step.action, content["arguments"])
    if request is None:
        content["note"] = "the operator can do this"
        if step.note:
            content["note"] = f"{step.note} (the operator can do this)"
    return {**content, "request": request}


def _request(action: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    if action not in REQUESTS:
        return None
    method, path, fields = REQUESTS[action]
    body = dict(arguments)
    if "id" in body:
        body["ids"] = [body.pop("id")]
    if "{version}" in path:
        path = path.format(version=quote(str(body.pop("version", "VERSION")), safe=""))
    if any(name not in fields for name in body):
        return None
    return {"method": method, "path": path, "body": None if method == "GET" else body}


class Problem(Exception):  # noqa: N818 (the name of the media type)
    """An error response. ``kind`` is a key of ``PROBLEMS``, ``detail`` says what was seen, ``hint`` what to do.

    ``more`` holds further members of the JSON document.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        hint: str = "",
        *next_steps: NextStep,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        known = PROBLEMS[kind]
        self.kind = kind
        self.title = known.title
        self.detail = detail
        self.hint = hint or known.remedy
        self.next_steps = next_steps
        self.headers = dict(headers or {})
        self.status = known.status if status is None else status
        self.more: dict[str, Any] = {}

    def body(self) -> dict[str, Any]:
        """The JSON document. Lone surrogates from a request are replaced, as they cannot be encoded."""
        words = {
            "type": f"/problems/{self.kind}",
            "title": self.title,
            "detail": self.detail,
            "hint": self.hint,
        }
        return {
            **{name: text.encode("utf-8", "replace").decode() for name, text in words.items()},
            "status": self.status,
            "next_steps": [to_step(step) for step in self.next_steps],
            **self.more,
        }

    def sentence(self) -> str:
        """The problem in one line."""
        return f"{self.title}: {self.detail}; {self.hint}"

    @classmethod
    def of(cls, error: Exception, source: str = "a request") -> Problem:
        """Convert an exception. An unexpected one is a bug, and is logged with its ``source``."""
        if isinstance(error, Problem):
            return error
        if is_disk_full(error):
            _log.error("the disk is full: %s", error)  # no Retry-After: retrying does not help
            seen = "there is no room left to store anything; what was stored before is safe, and searches still work"
            return cls("disk-full", seen)
        if not isinstance(error, FixstarError):
            _log.error("%s failed", source, exc_info=error)
            return cls("bug", _HIDDEN)
        kind = error.type if error.type in PROBLEMS else "error"
        status, title, _ = PROBLEMS[kind]
        if status not in (500, 503):
            return cls(kind, str(error), "", *error.next_steps)
        _log.error("%s: %s", title, error)
        if status == 503:
            return cls(kind, _HIDDEN, headers={"Retry-After": "5"})
        return cls(kind, _HIDDEN)


def numbered(name: str, results: Iterable[Result | BaseException]) -> list[Result]:
    """The results if all inputs succeeded; otherwise raises the first problem, with the number of its input."""
    good: list[Result] = []
    for number, one in enumerate(results):
        if isinstance(one, Problem) and one.status < 500:
            one.detail = f"{name} {number}: {one.detail}"
        if isinstance(one, BaseException):
            raise one
        good.append(one)
    return good


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a full disk caused an error, here or on the gallery's server."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if (
            str(getattr(error, "sqlite_errorname", "")) == "SQLITE_FULL"
            or getattr(error, "sqlstate", None) == "53100"
        ):
            return True
        if _SHORT_WRITE.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def problem_response(problem: Problem) -> JSONResponse:
    """The HTTP response."""
    from fastapi.responses import JSONResponse

    return JSONResponse(
        problem.body(), problem.status, problem.headers, media_type="application/problem+json"
    )
