"""What a request must keep to before any route sees it: size, pace, origin and host. And headers for every answer.

Plain ASGI, so that bodies are counted while they come in and answers are not held back.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fixstar.service.key_file import Keys
from fixstar.service.keys import identify, unknown
from fixstar.service.problems import Problem, problem_response
from fixstar.service.settings import LOOPBACK, SMALLER, ServiceSettings

__all__ = ["BodyLimit", "RateLimit", "SameOrigin", "SecurityHeaders", "TokenBuckets", "address"]

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_SAFE = ("GET", "HEAD", "OPTIONS")
_ONE_IMAGE, _IMAGES = ("/v1/search", "/v1/item"), ("/v1/items", "/v1/items/async")
_AROUND = 1 << 20  # bytes of a request beside its images
_FREE = ("/healthz", "/readyz")  # asked all the time by whoever looks after the service
_OPEN = ("/v1/openapi.json", "/v1/docs")  # need no key
_THUMBNAIL_COST = 0.1  # of a request: one search shows many
_IDLE = 30.0  # seconds that a body may pause
_DRAIN = 5.0  # seconds in which a refused body is still read, so that its sender hears why


class SecurityHeaders:
    """Headers that keep browsers from doing what nobody asked for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add them to every answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith("/v1"):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, with_headers)


class SameOrigin:
    """Refuses what another site's page would make a browser send, and names that were pointed at this machine."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 403 or 421."""
        if scope["type"] == "http" and (problem := self._objection(scope["method"], Headers(scope=scope))):
            await problem_response(problem)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _objection(self, method: str, headers: Headers) -> Problem | None:
        host = headers.get("host", "")
        if self._settings.loopback and _hostname(host) not in (*LOOPBACK, self._settings.host, *self._settings.names):
            known = ", ".join(("localhost", *self._settings.names))
            seen = f"the request is for {host!r}; this service answers to {known}"
            hint = "call it by http://localhost, with its port; for other names the operator has: fixstar serve --name"
            return Problem("wrong-host", seen, hint)
        if method in _SAFE:
            return None
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        if site not in ("same-origin", "none") or (origin is not None and not self._is_own(origin, host)):
            seen = f"a page of {origin or 'another site'} sent this request"
            return Problem("cross-site", seen, "use the page of this service, or a program")
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether a page is one of this service: of the host asked, or of a name that a proxy has for it."""
        try:
            site = urlsplit(origin)
        except ValueError:
            return False
        return site.netloc == host or site.hostname in self._settings.names


def _hostname(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class TokenBuckets:
    """So many requests a minute for each caller, in bursts if they like."""

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic, most: int = 10_000) -> None:
        self._rate, self._clock, self._most = rate, clock, most
        self._filled: dict[str, tuple[float, float]] = {}  # tokens left, when
        self._lock = threading.Lock()

    def take(self, caller: str, cost: float = 1.0) -> float:
        """0 where the caller may go on, else the seconds until it may."""
        with self._lock:
            now = self._clock()
            left, when = self._filled.get(caller, (float(self._rate), now))
            left = min(self._rate, left + (now - when) * self._rate / 60)
            wait = max(0.0, (cost - left) * 60 / self._rate)
            self._filled[caller] = (left if wait else left - cost, now)
            if len(self._filled) > self._most:
                self._forget(now)
            return wait

    def _forget(self, now: float) -> None:
        """Drop callers whose bucket is full again, and the longest absent where that is not enough."""
        full = [c for c, (left, when) in self._filled.items() if left + (now - when) * self._rate / 60 >= self._rate]
        for caller in full or sorted(self._filled, key=lambda c: self._filled[c][1])[: self._most // 2]:
            del self._filled[caller]


class RateLimit:
    """Answers 429 to callers that ask faster than allowed: by key where it is valid, else by address.

    And 401 to those whom nobody knows: FastAPI would read their whole body before it asks who they are.
    """

    def __init__(self, app: ASGIApp, settings: ServiceSettings, keys: Keys) -> None:
        self._app, self._settings, self._keys = app, settings, keys
        self._buckets = TokenBuckets(settings.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or say when to come again, or that a key is needed."""
        if scope["type"] == "http" and (wait := self._wait(scope)):
            seconds = str(int(wait) + 1)
            problem = Problem(
                "too-many-requests",
                f"{self._settings.rate} requests a minute are allowed",
                f"come again in {seconds} s; the operator may allow more with: fixstar serve --rate",
                headers={"Retry-After": seconds},
            )
            await problem_response(problem)(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"].startswith("/v1/") and scope["path"] not in _OPEN:
            headers = Headers(scope=scope)
            if identify(scope, headers, self._keys, self._settings) is None:
                await problem_response(unknown(headers, self._keys))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _wait(self, scope: Scope) -> float:
        path: str = scope["path"]
        if path in _FREE or not path.startswith(("/v1", "/metrics")):
            return 0.0
        caller = identify(scope, Headers(scope=scope), self._keys, self._settings)
        name = f"address {address(scope)}" if caller is None else f"key {caller.name}"
        return self._buckets.take(name, _THUMBNAIL_COST if path == "/v1/item/image" or path.endswith(".png") else 1.0)


def address(scope: Scope) -> str:
    """The caller's address; of an IPv6 one the /64, which one caller has whole."""
    try:
        seen = ipaddress.ip_address(scope["client"][0])
    except (KeyError, TypeError, ValueError):
        return "unknown"
    return str(ipaddress.ip_network(f"{seen}/64", strict=False)) if seen.version == 6 else str(seen)


class _RefusedError(Exception):
    """The body is too large, or does not come."""


class BodyLimit:
    """Answers 413 to a body that is too large, whatever its length claims, and 408 to one that stops coming."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings, idle: float = _IDLE) -> None:
        self._app, self._settings, self._idle = app, settings, idle

    def allowed(self, path: str) -> int:
        """Bytes that a request to a path may have."""
        if path in _IMAGES:
            return self._settings.request_bytes + _AROUND
        return (self._settings.upload_bytes if path in _ONE_IMAGE else 0) + _AROUND

    def too_large(self, path: str) -> Problem:
        """What is told of a body that is larger: the limit of an image, and of what comes beside it."""
        beside = f"{_AROUND:,} bytes beside"
        if path in _ONE_IMAGE:
            seen, hint = (
                f"this takes one image of up to {self._settings.upload_bytes:,} bytes, and {beside} it",
                SMALLER,
            )
        elif path in _IMAGES:
            seen = f"one request takes images of up to {self._settings.request_bytes:,} bytes in all, and {beside} them"
            hint = "send fewer images in one request, or smaller ones"
        else:
            seen, hint = f"this takes up to {_AROUND:,} bytes, and no image", "send it in several requests"
        return Problem("too-large", seen, hint)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the body while it comes in."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most, length = self.allowed(scope["path"]), Headers(scope=scope).get("content-length", "0")
        too_large = self.too_large(scope["path"])
        if length.isascii() and length.isdigit() and int(length) > most:
            await _drain(receive, most)
            await problem_response(too_large)(scope, receive, send)
            return
        seen, whole, problem = 0, False, None

        async def counted() -> Message:
            nonlocal seen, whole, problem
            try:
                async with asyncio.timeout(None if whole else self._idle):
                    message = await receive()
            except TimeoutError:
                stopped = f"nothing came for {self._idle:.0f} s"
                problem = Problem("stalled", stopped, "send it again, without a pause")
                raise _RefusedError from None
            seen += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if seen > most:
                problem = too_large
                raise _RefusedError
            return message

        async def unless_refused(message: Message) -> None:
            if problem is None:  # else what the routes make of the broken body is not told
                await send(message)

        with contextlib.suppress(_RefusedError):
            await self._app(scope, counted, unless_refused)
        if problem is not None:
            if problem is too_large and not whole:
                await _drain(receive, most)
            await problem_response(problem)(scope, receive, send)


async def _drain(receive: Callable[[], Awaitable[Message]], most: int) -> None:
    """Read on for a moment: who is still sending does not listen."""
    seen = 0
    try:
        async with asyncio.timeout(_DRAIN):
            while seen <= most:
                message = await receive()
                seen += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return
