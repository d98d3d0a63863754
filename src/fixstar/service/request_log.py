"""What the log says of requests: refused callers always, every request where the operator wants it."""

from __future__ import annotations

import json
import logging
import time
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fixstar.service.keys import CALLER
from fixstar.service.limits import address
from fixstar.service.seldom import Seldom

__all__ = ["RequestLog"]

_REFUSED = {401: "no key, or one that is not valid", 429: "more requests than allowed"}

_access = logging.getLogger("fixstar.access")


class RequestLog:
    """Writes a line a request with ``access``, and at most one a minute for each address that is refused."""

    def __init__(self, app: ASGIApp, access: bool, every: float = 60.0) -> None:
        self._app, self._all = app, access
        self._refusals = Seldom(logging.getLogger("fixstar.service"), every)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and look at the answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, seen)
        finally:
            if status in _REFUSED:
                who = address(scope)
                self._refusals.tell(f"{status} {who}", f"{status} to {who}: {_REFUSED[status]}")
            if self._all:
                _access.info("%s", _line(scope, status, time.perf_counter() - began))


def _line(scope: Scope, status: int, seconds: float) -> str:
    """One line, without what stands behind the question mark: ids are there."""
    caller = scope.get(CALLER)
    name, role = ("-", "-") if caller is None else (json.dumps(caller.name), caller.role)
    asked = f"method={quote(scope['method'])} path={quote(scope['path'])}"
    return f"address={address(scope)} caller={name} role={role} {asked} status={status} ms={1000 * seconds:.1f}"
