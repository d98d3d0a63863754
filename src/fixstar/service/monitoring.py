"""Metrics in Prometheus' text format, and log lines. Each service has its own registry."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from re import Pattern
from urllib.parse import quote

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fixstar.service.keys import identified
from fixstar.service.limits import address
from fixstar.service.problems import Problem, problem_response

GALLERY = "fixstar.gallery"  # in the request's scope: what was taken off its path
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_REFUSED = {401: "no key, or one that is not valid", 429: "more requests than allowed"}
_UNDOCUMENTED = ("/", "/problems/{name}", "/static/{name}", "/v1/docs", "/v1/openapi.json")
_MAX_KEYS = 1000  # distinguished by a LogThrottle in one interval; those beyond share a line

_access = logging.getLogger("fixstar.access")


class Metrics:
    """The metrics of a service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"fixstar_{name}", text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"fixstar_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(
                f"fixstar_{name}", text, labels, buckets=buckets, registry=self.registry
            )

        self.requests = counter("requests", "Requests answered.", "method", "route", "status")
        self.seconds = histogram(
            "request_seconds", "Time from request to answer.", _SECONDS, "method", "route"
        )
        self.under_way = gauge("requests_under_way", "Requests being answered.")
        self.embedded = counter("embedded_images", "Images embedded.", "version", "purpose")
        self.batch_size = histogram("query_batch_size", "Queries embedded together.", _SIZES)
        self.waiting = gauge("queries_waiting", "Queries that wait for an answer.")
        self.refused = counter("queries_refused", "Queries told to retry: too many were waiting.")
        self._items = gauge("gallery_items", "Items by version.", "version")
        self._deployed = gauge("deployed", "1 for the deployed version.", "version")
        self._jobs = gauge("jobs", "Jobs by state.", "state")

    def text(
        self, items: Mapping[str, int], deployed: str | None, jobs: Mapping[str, int]
    ) -> bytes:
        """All metrics as text, with the current state of the workspace."""
        for gauge in (self._items, self._deployed, self._jobs):
            gauge.clear()  # versions and states that are gone
        for version, count in items.items():
            self._items.labels(version).set(count)
        if deployed is not None:
            self._deployed.labels(deployed).set(1)
        for state, count in jobs.items():
            self._jobs.labels(state).set(count)
        return generate_latest(self.registry)


class LogThrottle:
    """Throttles warnings by key (an address, a kind of event). For one event loop.

    The first warning is written at once; repeats are counted and reported later.
    """

    def __init__(self, log: logging.Logger, every: float = 60.0) -> None:
        self._log = log
        self._every = every
        self._held: dict[
            str, tuple[int, str]
        ] = {}  # how often since the last line, and what to say

    def warn(self, key: str, message: str) -> None:
        """Write ``message``, or count it where a line for this key was written a moment ago."""
        if key not in self._held and len(self._held) >= _MAX_KEYS:
            key = "others"
            message = f"{message}, and similar for others"
        if key in self._held:
            self._held[key] = self._held[key][0] + 1, message
            return
        self._write(key, message)

    def _write(self, key: str, message: str) -> None:
        self._log.warning("%s", message)
        self._held[key] = 0, message
        asyncio.get_running_loop().call_later(self._every, self._release, key)

    def _release(self, key: str) -> None:
        """Write how often it came meanwhile; if it did not, the next one is written at once."""
        count, message = self._held.pop(key)
        if count:
            self._write(key, f"{message} ({count:,} times in the last {self._every:g} s)")


class RequestMonitor:
    """Counts, times and logs every request. It also answers for bugs, so that they are counted.

    The log has one line per request with ``access``, and at most one per minute for each address that is refused.
    ``documented`` lists the paths of the operations; it is asked once, when first needed.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        documented: Callable[[], Iterable[str]],
        access: bool = False,
        every: float = 60.0,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._documented = documented
        self._access = access
        self._refusals = LogThrottle(logging.getLogger("fixstar.service"), every)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and record the answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0

        async def recorded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.under_way.inc()
        try:
            await self._app(scope, receive, recorded)
        except Exception as error:
            problem = Problem.of(error, f"{scope['method']} {scope['path']}")
            if status:
                raise  # the answer has begun: all that is left is to break it off
            await problem_response(problem)(scope, receive, recorded)
        finally:
            self._metrics.under_way.dec()
            self._record(scope, status, time.perf_counter() - began)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        """By route, not by path: ids and mistyped addresses must not fill the memory of the collector."""
        route = getattr(scope.get("route"), "path", None) or self._route(scope["path"]) or "other"
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.requests.labels(method, route, str(status)).inc()
        self._metrics.seconds.labels(method, route).observe(seconds)
        if status in _REFUSED:
            caller = address(scope)
            self._refusals.warn(f"{status} {caller}", f"{status} to {caller}: {_REFUSED[status]}")
        if self._access:
            _access.info("%s", _access_line(scope, status, seconds))

    def _route(self, path: str) -> str | None:
        """The documented form of a path, also where the request was refused before routing; None for unknown ones."""
        plain, patterns = self._routes
        if path in plain:
            return path
        return next((name for pattern, name in patterns if pattern.match(path)), None)

    @cached_property
    def _routes(self) -> tuple[frozenset[str], list[tuple[Pattern[str], str]]]:
        paths = [*self._documented(), *_UNDOCUMENTED]
        plain = frozenset(path for path in paths if "{" not in path)
        return plain, [(compile_path(path)[0], path) for path in paths if path not in plain]


def _access_line(scope: Scope, status: int, seconds: float) -> str:
    """One line, without the query string: it holds ids."""
    caller = identified(scope)
    name = "-"
    role = "-"
    if caller is not None:
        name = json.dumps(caller.name)
        role = caller.role
    asked = f"method={quote(scope['method'])} path={quote(scope.get(GALLERY, '') + scope['path'])}"
    return f"address={address(scope)} caller={name} role={role} {asked} status={status} ms={1000 * seconds:.1f}"
