"""Checks before a route handles a request: host, origin, rate, size, well-formed text, known fields.

Plain ASGI where possible, so that bodies are counted as they arrive and responses are not buffered. The rate limit is a
token bucket of our own, because it can charge fractions of a request and its memory is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import hashlib
import ipaddress
import json
import math
import os
import re
import struct
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, ImmutableMultiDict, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fixstar.durable import make_directory
from fixstar.errors import GalleryError
from fixstar.gallery.filters import Where, filter_key, payload_test
from fixstar.service.keys import Keys, identified, identify, missing_key, set_calling
from fixstar.service.problems import PROBLEMS, Problem, problem_response
from fixstar.service.settings import LOOPBACK, ServiceSettings
from fixstar.workspace.items import IMAGE, STAMP

HIDDEN_FIELDS = (IMAGE, STAMP)  # of payloads: they name files of this machine

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
_HOST = re.compile(
    r"(\[[0-9a-fA-F:.]+\]|[0-9a-zA-Z._-]+)(:[0-9]{1,5})?"
)  # one name, and perhaps a port
_ONE_IMAGE = ("/v1/search", "/v1/item")
_IMAGES = ("/v1/items", "/v1/items/async", "/v1/search/batch")
_EMBEDDED = ("/v1/embeddings", "/v1/search/examples")
_JSON_IMAGES = 4  # times the largest image: JSON with images is read into memory as a whole
_JSON_WEIGHT = 3  # bytes of memory for each of a JSON body
_BESIDE_IMAGES = 1 << 20  # bytes of a request beside its images
_PROBES = (
    "/healthz",
    "/readyz",
)  # polled by monitoring, so others at its address must not use up its requests
_OPEN = ("/v1/openapi.json", "/v1/docs")  # need no key
_SMALL_COST = 0.1  # of a request: one search shows many thumbnails, and the page has many files
_IDLE = 30.0  # seconds that a body may pause
_SLOWEST = 1 << 14  # bytes per second that a body must come with, after its first seconds
_DRAIN = 5.0  # seconds in which a refused body is still read, so that its sender sees why
_MAX_DEPTH = 20  # levels of lists and maps that a request may nest
_MAX_FIELDS = (
    100  # of a JSON body: the framework would write an error for every field that it does not know
)
_QUICK = 1 << 14  # bytes of JSON that are parsed on the event loop
_FORM = "multipart/form-data"
_FILTERS = 'write a filter such as {"label": "shoes"}, {"price": {"lt": 50}} or {"sold": {"exists": false}}'


class SecurityHeaders:
    """Adds security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault(
                    "Cache-Control", "no-store" if scope["path"].startswith("/v1") else "no-cache"
                )
            await send(message)

        await self._app(scope, receive, with_headers)


# --- who is answered


_CLOCKS_DIFFER = 60.0  # seconds, at most, between machines that share a workspace


class TokenBuckets:
    """Limits the requests per minute of each caller; bursts are allowed."""

    def __init__(
        self, rate: int, clock: Callable[[], float] = time.monotonic, most: int = 10_000
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._most = most
        self._filled: dict[str, tuple[float, float]] = {}  # tokens left, when
        self._lock = threading.Lock()

    def take(self, caller: str, cost: float = 1.0, owing: bool = False) -> float:
        """0 if the caller may proceed, else the seconds to wait. With ``owing``, charge work that is already done."""
        with self._lock:
            wait, bucket = self._taken(self._filled.get(caller), cost, owing)
            self._filled[caller] = bucket
            if len(self._filled) > self._most:
                self._forget(self._clock())
            return wait

    def _taken(
        self, known: tuple[float, float] | None, cost: float, owing: bool
    ) -> tuple[float, tuple[float, float]]:
        """The seconds to wait, and the new bucket; ``known`` is the old bucket, if there is one."""
        left, when = known or (float(self._rate), 0.0)
        now = self._clock()
        if now < when <= now + _CLOCKS_DIFFER:
            now = when  # another machine's clock is ahead
        elif when > now:
            when = now  # this one was set back
        left = min(self._rate, left + (now - when) * self._rate / 60)
        wait = max(0.0, (cost - left) * 60 / self._rate)
        if owing or not wait:
            return 0.0, (left - cost, now)
        return wait, (left, now)

    def _forget(self, now: float) -> None:
        """Drop callers whose bucket is full again, else the half that was seen least recently."""
        forgotten = []
        for caller, (left, when) in self._filled.items():
            if left + (now - when) * self._rate / 60 >= self._rate:
                forgotten.append(caller)
        if not forgotten:
            by_absence = sorted(self._filled, key=lambda caller: self._filled[caller][1])
            forgotten = by_absence[: self._most // 2]
        for caller in forgotten:
            del self._filled[caller]


_BUCKET = struct.Struct("<16sdd")  # a digest of the caller, tokens left, when
_PLACES = 8  # buckets in a set
_SETS = 2048
_SET_SIZE = _PLACES * _BUCKET.size


class SharedBuckets(TokenBuckets):
    """Token buckets that all services of a workspace share: in a file of 512 KB, under its lock.

    A caller's digest selects a set of eight slots. If all are taken, it gets the least recently used one. If the file
    cannot be used, each service counts alone.
    """

    def __init__(self, rate: int, file: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(rate, clock)
        make_directory(file.parent)
        self._file = os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+b", 0)

    def take(self, caller: str, cost: float = 1.0, owing: bool = False) -> float:
        """0 if the caller may proceed, else the seconds to wait. With ``owing``, charge work that is already done."""
        import fcntl

        tag = hashlib.blake2b(caller.encode(), digest_size=16).digest()
        file = self._file.fileno()
        try:
            with self._lock:
                fcntl.flock(file, fcntl.LOCK_EX)
                try:
                    return self._take_from(file, tag, cost, owing=owing)
                finally:
                    fcntl.flock(file, fcntl.LOCK_UN)
        except OSError:
            return super().take(caller, cost, owing)

    def _take_from(self, file: int, tag: bytes, cost: float, *, owing: bool) -> float:
        """The seconds to wait for the caller with this digest. The file must be locked."""
        start = int.from_bytes(tag[:4]) % _SETS * _SET_SIZE
        stored = os.pread(file, _SET_SIZE, start).ljust(_SET_SIZE, b"\0")
        places = list(_BUCKET.iter_unpack(stored))
        tags = [bucket[0] for bucket in places]
        known = None
        if tag in tags:
            place = tags.index(tag)
            known = places[place][1:]
        else:
            place = min(range(_PLACES), key=lambda one: places[one][2])  # absent longest
        wait, bucket = self._taken(known, cost, owing)
        os.pwrite(file, _BUCKET.pack(tag, *bucket), start + place * _BUCKET.size)
        return wait


def rate_buckets(settings: ServiceSettings, state: Path) -> TokenBuckets:
    """The token buckets of a service. Services that share a workspace keep them in its state folder."""
    if settings.shared:
        return SharedBuckets(settings.rate, state / ".rates")
    return TokenBuckets(settings.rate)


class Admission:
    """Decides by a request's headers alone whether its body is read, and answers 401, 403, 421 or 429 if not.

    It refuses other host names that resolve to this machine, cross-site requests of browsers, callers above their rate
    limit (per valid key, else per address), and callers without a valid key.
    """

    def __init__(
        self, app: ASGIApp, settings: ServiceSettings, keys: Keys, buckets: TokenBuckets
    ) -> None:
        self._app = app
        self._settings = settings
        self._keys = keys
        self._buckets = buckets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            problem = foreign_request(self._settings, scope["method"], headers)
            if problem is None and self._settings.shared:
                problem = await run_in_threadpool(
                    self._unwelcome, scope, headers
                )  # may wait for a file's lock
            elif problem is None:
                problem = self._unwelcome(scope, headers)
            if problem is not None:
                await problem_response(problem)(scope, receive, send)
                return
            set_calling(_caller_name(scope))
        await self._app(scope, receive, send)

    def _unwelcome(self, scope: Scope, headers: Headers) -> Problem | None:
        """The problem of a caller above its rate limit or without a key, else None."""
        path: str = scope["path"]
        caller = identify(scope, headers, self._keys, self._settings)
        problem = too_often(self._buckets, self._settings, caller=_caller_name(scope), path=path)
        if problem is None and caller is None and path.startswith("/v1/") and path not in _OPEN:
            return missing_key(headers, self._keys)
        return problem


def _caller_name(scope: Scope) -> str:
    """The caller's name for rate limits: the name of a valid key, else the address."""
    caller = identified(scope)
    if caller is None:
        return f"address {address(scope)}"
    return f"key {caller.name}"


def too_often(
    buckets: TokenBuckets, settings: ServiceSettings, caller: str, path: str
) -> Problem | None:
    """The problem of a caller above its rate limit, on any path; None within it."""
    cost = 1.0
    if (
        not path.startswith(("/v1", "/metrics"))
        or path == "/v1/item/image"
        or path.endswith(".png")
    ):
        cost = _SMALL_COST
    if path in _PROBES:
        caller = f"probe {caller}"
    wait = buckets.take(caller, cost)
    if not wait:
        return None
    return come_again(settings, wait)


def come_again(settings: ServiceSettings, wait: float) -> Problem:
    """The problem of a caller that must wait so many seconds."""
    seconds = str(int(wait) + 1)
    return Problem(
        "too-many-requests",
        f"{settings.rate} requests per minute are allowed",
        f"try again in {seconds} s; the operator may allow more with: fixstar serve --rate",
        headers={"Retry-After": seconds},
    )


def foreign_request(settings: ServiceSettings, method: str, headers: Headers) -> Problem | None:
    """The problem of a request for another host or from another site's page, else None."""
    host = ", ".join(headers.getlist("host"))
    names = settings.names
    known = (*LOOPBACK, settings.host, *names)
    if settings.loopback and (not _HOST.fullmatch(host) or _site(f"//{host}")[1] not in known):
        own = ", ".join(("localhost", *names))
        return Problem(
            "wrong-host", f"the request is for {host!r:.200}; this service answers to {own}"
        )
    if method in _SAFE:
        return None
    origin = headers.get("origin")
    same = (
        origin is None or _site(origin)[0] == host or _site(origin)[1] in names
    )  # names: a proxy has them for it
    if headers.get("sec-fetch-site", "none") in ("same-origin", "none") and same:
        return None
    return Problem("cross-site", f"a page of {origin or 'another site'} sent this request")


def _site(url: str) -> tuple[str | None, str | None]:
    """Host with port, and host name, of a URL; None if it is not one."""
    try:
        site = urlsplit(url)
        return site.netloc, site.hostname
    except ValueError:
        return None, None


def address(scope: Scope) -> str:
    """The caller's address; of an IPv6 one the /64, which one caller usually owns."""
    try:
        seen = ipaddress.ip_address(scope["client"][0])
    except (KeyError, TypeError, ValueError):
        return "unknown"
    if seen.version == 6:
        return str(ipaddress.ip_network(f"{seen}/64", strict=False))
    return str(seen)


# --- size


class ByteBudget:
    """Limits the bytes of request bodies that a process holds at once, over all galleries. One caller may hold half.

    A single body is always accepted: otherwise a large ``--upload`` could block every request.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._held: Counter[str] = Counter()

    def take(self, caller: str, size: int) -> bool:
        """Reserve bytes for a caller until ``give_back``; False if there is no room."""
        held = self._held.total()
        fits = held + size <= self._total and self._held[caller] + size <= self._total // 2
        if held and not fits:
            return False
        self._held[caller] += size
        return True

    def give_back(self, caller: str, size: int) -> None:
        """Free reserved bytes."""
        self._held[caller] -= size
        if not self._held[caller]:
            del self._held[caller]


class _RefusedError(Exception):
    """The body is too large, arrives too slowly, or exceeds the memory budget."""


class BodyLimit:
    """Answers 413 to a body that is too large, whatever its length claims, and 408 to one that comes too slowly.

    Too slow is a pause of ``idle`` seconds, or less than ``slowest`` bytes per second after the first ``idle`` seconds.
    If the ``budget`` has no room for a body, the answer is 503, before it is read.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServiceSettings,
        budget: ByteBudget | None = None,
        idle: float = _IDLE,
        slowest: float = _SLOWEST,
    ) -> None:
        self._app = app
        self._settings = settings
        self._idle = idle
        self._slowest = slowest
        self._budget = budget or ByteBudget(settings.memory_bytes)

    def allowed(self, path: str) -> int:
        """The largest body that a path accepts, in bytes."""
        if not path.startswith("/v1/") or path in _OPEN:
            return 0
        if path in _IMAGES:
            return self._settings.request_bytes + _BESIDE_IMAGES
        if path in _EMBEDDED:
            return _JSON_IMAGES * self._settings.upload_bytes + _BESIDE_IMAGES
        if path in _ONE_IMAGE:
            return self._settings.upload_bytes + _BESIDE_IMAGES
        return _BESIDE_IMAGES

    def too_large(self, path: str) -> Problem:
        """The problem of a body above the limit: how large images and the other fields may be."""
        beside = f"{_BESIDE_IMAGES:,} bytes beside"
        if path in _ONE_IMAGE:
            seen = f"this takes one image of up to {self._settings.upload_bytes:,} bytes, and {beside} it"
            return Problem("too-large", seen, PROBLEMS["image-too-large"].remedy)
        if path in _IMAGES:
            seen = f"one request takes images of up to {self._settings.request_bytes:,} bytes in all, and {beside} them"
            return Problem("too-large", seen, "send fewer images per request, or smaller ones")
        if path in _EMBEDDED:
            seen = f"one request takes up to {self.allowed(path):,} bytes of JSON; base64 is a third larger than images"
            return Problem("too-large", seen, "send fewer images per request, or smaller ones")
        if not self.allowed(path):
            return Problem(
                "too-large",
                "this address takes no body",
                "send the request without one; see /v1/docs",
            )
        return Problem("too-large", f"this takes up to {_BESIDE_IMAGES:,} bytes, and no image")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the body as it arrives."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self.allowed(scope["path"])
        headers = Headers(scope=scope)
        length = _content_length(headers)
        if length > most or (not most and "transfer-encoding" in headers):
            if most:  # else anybody may send it, and nobody waits for it
                await _drain(receive, most)
            await problem_response(self.too_large(scope["path"]))(scope, receive, send)
            return
        caller = _caller_name(scope)
        weight = self._weight(scope["path"], headers)
        held = weight * length
        if held and not self._budget.take(caller, held):
            await problem_response(_no_room())(scope, receive, send)
            return
        seen = 0
        whole = False
        waited = 0.0  # for the body: what the service itself takes is not the caller's fault
        problem: Problem | None = None

        async def counted() -> Message:
            nonlocal seen, whole, waited, held, problem
            left = self._idle + seen / self._slowest - waited
            clock = asyncio.get_running_loop()
            began = clock.time()
            try:
                async with asyncio.timeout(None if whole else min(self._idle, left)):
                    message = await receive()
            except TimeoutError:
                waited += clock.time() - began
                problem = Problem("stalled", f"{seen:,} bytes came in {waited:.0f} s")
                raise _RefusedError from None
            waited += clock.time() - began
            seen += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if seen > most:
                problem = self.too_large(scope["path"])
                raise _RefusedError
            more = weight * seen - held
            if more > 0:  # its length was not told
                if not self._budget.take(caller, more):
                    problem = _no_room()
                    raise _RefusedError
                held += more
            return message

        async def unless_refused(message: Message) -> None:
            if problem is None:  # else what the routes make of the broken body is not sent
                await send(message)

        try:
            with contextlib.suppress(_RefusedError):
                await self._app(scope, counted, unless_refused)
        finally:
            self._budget.give_back(caller, held)
        if problem is not None:
            if seen > most and not whole:
                await _drain(receive, most)
            await problem_response(problem)(scope, receive, send)

    def _weight(self, path: str, headers: Headers) -> int:
        """Memory per byte of a body, roughly: JSON is held as bytes, as text, and parsed."""
        if path in _EMBEDDED or "json" in headers.get("content-type", "").lower():
            return _JSON_WEIGHT
        return 1


def _content_length(headers: Headers) -> int:
    """The declared Content-Length; 0 without one."""
    told = headers.get("content-length", "0")
    if told.isascii() and told.isdigit():
        return int(told)
    return 0


def _no_room() -> Problem:
    seen = "the bodies of other requests take all memory that the service has for them"
    hint = (
        "try again when they are answered; the operator may allow more with: fixstar serve --memory"
    )
    return Problem("busy", seen, hint, headers={"Retry-After": "2"})


async def _drain(receive: Callable[[], Awaitable[Message]], most: int) -> None:
    """Keep reading for a moment: a client that is still sending does not read the response."""
    seen = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN):
            while seen <= most:
                message = await receive()
                seen += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


class FormRoute(APIRoute):
    """A route whose form may have as many files and as long fields as the settings allow (FastAPI: 1 MB per field)."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with the limits of the settings."""
        handle = self._handler()

        async def handle_form(request: Request) -> Response:
            with_limits = _FormRequest(request.scope, request.receive)
            try:
                return await handle(with_limits)
            finally:
                await with_limits.close()  # the files of its form

        return handle_form

    def _handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return super().get_route_handler()


class RequestRoute(FormRoute):
    """A form route without dependencies: its function takes the request and checks caller and fields itself.

    For routes where FastAPI's overhead is a large part of the cost.
    """

    def _handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.endpoint


class _FormRequest(Request):
    def form(self, **_: Any) -> Any:
        settings: ServiceSettings = self.app.state.context.settings
        return super().form(max_files=settings.images_a_job, max_part_size=settings.field_bytes)


# --- well-formed text


class WellFormed:
    """Answers 422 to an address that is not UTF-8, and to a body that claims to be JSON but is not.

    Otherwise the framework guesses: it merges two ids into one, or accepts a number that no store can hold. Runs after
    ``BodyLimit``, so the JSON is small.
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
        unquote_to_bytes(query).decode()
    except UnicodeDecodeError as error:
        seen = f"the query string is not UTF-8: {error.reason} at byte {error.start}"
        hint = "write ids and other text as UTF-8, and escape each byte that is not a letter or digit as %XX"
        raise Problem("invalid-request", seen, hint) from error


async def _checked_body(receive: Receive) -> Receive:
    """Read and check a JSON body; returns a ``receive`` that replays it."""
    messages: list[Message] = []
    while not messages or messages[-1].get("more_body", False):
        messages.append(await receive())
    body = b"".join(message.get("body", b"") for message in messages)
    if body and messages[-1]["type"] == "http.request":
        if len(body) > _QUICK:
            await run_in_threadpool(_check_body, body)
        else:
            _check_body(body)
    held = iter(messages)

    async def again() -> Message:
        message = next(held, None)
        if message is None:
            return await receive()
        return message

    return again


def _check_body(body: bytes) -> None:
    content = parse_json("the body", body)
    if isinstance(content, dict) and len(content) > _MAX_FIELDS:
        seen = f"the body has {len(content):,} fields; nothing takes more than {_MAX_FIELDS}"
        raise Problem("invalid-request", seen, "see /v1/docs for its fields")


def parse_json(name: str, text: str | bytes, hint: str = "let a JSON library write it") -> Any:
    """Parse JSON from a form field, a query parameter or a body; refuses values that no store can hold."""
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate cannot be stored
    except (ValueError, RecursionError) as error:
        raise Problem(
            "invalid-request", f"{name} is not valid JSON: {error}", f"it must be JSON: {hint}"
        ) from error
    if _depth(value) > _MAX_DEPTH:
        raise Problem(
            "invalid-request",
            f"{name} is nested deeper than {_MAX_DEPTH} levels",
            "send it flatter",
        )
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.40} is larger than any number that can be stored")
    return value


def _depth(value: Any, level: int = 0) -> int:
    if level > _MAX_DEPTH or not isinstance(value, (dict, list)):
        return level
    if isinstance(value, dict):
        value = value.values()
    return max((_depth(one, level + 1) for one in value), default=level + 1)


def parse_filter(text: str | None) -> Where | None:
    """Parse and check a filter before its query joins a batch."""
    if text is None or not text.strip():
        return None
    where: Where = parse_json("where", text, _FILTERS)
    check_filter(where)
    return where


def check_filter(where: Where) -> None:
    """Refuse an invalid filter, or one on hidden fields, before its query joins a batch."""
    try:
        payload_test(where)
        filter_key(where)
    except GalleryError as error:
        raise Problem("invalid-request", f"where: {error}", _FILTERS) from error
    hidden = [field for field in HIDDEN_FIELDS if field in where]
    if hidden:
        seen = f"where: the field {hidden[0]!r} names files of the service, and cannot be asked for"
        raise Problem("invalid-request", seen, "filter by other payload fields")


# --- known fields


async def known_parameters(request: Request) -> None:
    """A dependency of every operation under /v1: refuses undocumented query parameters and form fields.

    Otherwise typos would be ignored, and repeated parameters silently overwritten. Schemas check the fields of JSON
    bodies.
    """
    if not request.url.path.startswith("/v1/"):  # probes may add what they like
        return
    if request.query_params:
        parameters = operation(request).get("parameters", ())
        known = {one["name"]: one["schema"] for one in parameters if one["in"] == "query"}
        _refuse_unknown(
            "query parameter", place="in the address", given=request.query_params, known=known
        )
    fields = _form_fields(request)
    if fields:
        _require_form(request.headers.get("content-type", ""), file=next(iter(fields)))
        place = f"in the form ({_FORM}, as curl -F sends it)"
        form = await request.form()  # FastAPI has read it, and keeps it
        _refuse_unknown("form field", place=place, given=form, known=fields)


def _require_form(kind: str, file: str) -> None:
    """Refuse a content type other than that of a form; ``file`` is a field of the form."""
    if kind.lower().startswith(_FORM):
        return
    seen = "the request has no content type"
    if kind:
        seen = f"the content type is {kind:.80}, not {_FORM}"
    hint = (
        f"send {_FORM} with a file in the field {file}, as curl -F {file}=@FILE does; see /v1/docs"
    )
    raise Problem("invalid-request", seen, hint)


def operation(request: Request) -> dict[str, Any]:
    """The OpenAPI entry of the operation of a request; empty if there is none."""
    path = getattr(request.scope.get("route"), "path", "")
    found: dict[str, Any] = (
        request.app.openapi()["paths"].get(path, {}).get(request.method.lower(), {})
    )
    return found


def _form_fields(request: Request) -> dict[str, Any]:
    """The schemas of the form fields that the operation takes; empty if it takes no form."""
    schema = (
        operation(request)
        .get("requestBody", {})
        .get("content", {})
        .get(_FORM, {})
        .get("schema", {})
    )
    if "$ref" in schema:
        schema = request.app.openapi()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    fields: dict[str, Any] = schema.get("properties", {})
    return fields


def _refuse_unknown(
    kind: str, place: str, given: ImmutableMultiDict[str, Any], known: Mapping[str, dict[str, Any]]
) -> None:
    for name in given:
        if name not in known:
            raise Problem(
                "invalid-request",
                f"there is no {kind} {name!r:.80}",
                known_hint(place, name, known),
            )
    if len(given.multi_items()) == len(given):
        return
    for name in given:
        times = len(given.getlist(name))
        if times > 1 and known[name].get("type") != "array":
            about = known[name].get("description")
            hint = "send it once; see /v1/docs"
            if about:
                hint = f"send it once; /v1/docs says of it: {about}"
            raise Problem("invalid-request", f"the {kind} {name!r} came {times} times", hint)


def known_hint(place: str, unknown: str, known: Iterable[str]) -> str:
    """Lists the known names, and suggests the closest one.

    >>> known_hint("in the body", "confidense", ["confidence", "seed"])
    'in the body this takes: confidence, seed; did you mean confidence?'
    """
    known = list(known)
    close = difflib.get_close_matches(unknown, known, n=1, cutoff=0.5)
    guess = f"did you mean {close[0]}?" if close else "see /v1/docs"
    return f"{place} this takes: {', '.join(known) or 'none'}; {guess}"
