"""Text that cannot be what it claims to be is refused before any route sees it.

Frameworks make the best of such text, and so two ids become one, or a number becomes one that no store can hold.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fixstar.service.problems import Problem, problem_response
from fixstar.service.shapes import parse_json

__all__ = ["WellFormed"]


class WellFormed:
    """Answers 422 to an address that is not UTF-8, and to a JSON body with what JSON does not have.

    Stands behind ``BodyLimit``: a JSON body is small.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 422."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            _check_query(scope["query_string"])
            if "json" in Headers(scope=scope).get("content-type", "").lower():
                receive = await _checked_body(receive)
        except Problem as problem:
            await problem_response(problem)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _check_query(query: bytes) -> None:
    try:
        (unquote_to_bytes(query) if b"%" in query else query).decode()
    except UnicodeDecodeError as error:
        seen = f"the query string is not UTF-8: {error.reason} at byte {error.start}"
        hint = "write ids and other text as UTF-8, each byte that is no letter or digit as %XX"
        raise Problem("invalid-request", seen, hint) from error


async def _checked_body(receive: Receive) -> Receive:
    """Read a JSON body and look at it; what hands out the same body again."""
    messages: list[Message] = []
    while not messages or messages[-1].get("more_body", False):
        messages.append(await receive())
    body = b"".join(message.get("body", b"") for message in messages)
    if body and messages[-1]["type"] == "http.request":
        parse_json("the body", body)
    held = iter(messages)

    async def again() -> Message:
        message = next(held, None)
        return await receive() if message is None else message

    return again
