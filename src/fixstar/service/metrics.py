"""Figures for operators, in Prometheus' text format. Each service has its own registry."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fixstar.service.problems import Problem, problem_response
from fixstar.service.route_names import RouteNames

__all__ = ["Metrics", "Watch"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """What is counted."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "fixstar_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "fixstar_request_seconds",
            "Time from request to answer.",
            ("method", "route"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.under_way = Gauge("fixstar_requests_under_way", "Requests being answered.", registry=self.registry)
        self.embedded = Counter(
            "fixstar_embedded_images", "Images embedded.", ("version", "purpose"), registry=self.registry
        )
        self.batch_size = Histogram(
            "fixstar_query_batch_size", "Queries embedded together.", buckets=_SIZES, registry=self.registry
        )
        self.waiting = Gauge("fixstar_queries_waiting", "Queries that wait for an answer.", registry=self.registry)
        self.refused = Counter(
            "fixstar_queries_refused", "Queries told to come again: too many were waiting.", registry=self.registry
        )
        self._items = Gauge("fixstar_gallery_items", "Items by version.", ("version",), registry=self.registry)
        self._deployed = Gauge("fixstar_deployed", "1 for the deployed version.", ("version",), registry=self.registry)
        self._jobs = Gauge("fixstar_jobs", "Jobs by state.", ("state",), registry=self.registry)

    def watch_waiting(self, count: Callable[[], int]) -> None:
        """Where the number of waiting queries comes from."""
        self.waiting.set_function(count)

    def text(self, items: Mapping[str, int], deployed: str | None, jobs: Mapping[str, int]) -> bytes:
        """All of it; the state of the workspace as it is now."""
        for gauge in (self._items, self._deployed, self._jobs):
            gauge.clear()  # versions and states that are gone
        for version, count in items.items():
            self._items.labels(version).set(count)
        if deployed is not None:
            self._deployed.labels(deployed).set(1)
        for state, count in jobs.items():
            self._jobs.labels(state).set(count)
        return generate_latest(self.registry)


class Watch:
    """Counts and times every request, and answers for faults, so that those are counted too."""

    def __init__(self, app: ASGIApp, metrics: Metrics, names: RouteNames) -> None:
        self._app, self._metrics, self._names = app, metrics, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and take note."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.under_way.inc()
        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            problem = Problem.of(error, f"{scope['method']} {scope['path']}")
            if status:
                raise  # the answer has begun: all that is left is to break it off
            await problem_response(problem)(scope, receive, noted)
        finally:
            self._metrics.under_way.dec()
            self._note(scope, status, time.perf_counter() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        """By route, not by path: ids and mistyped addresses must not fill the memory of whoever collects this."""
        route = getattr(scope.get("route"), "path", None) or self._names.of(scope["path"]) or "other"
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.requests.labels(method, route, str(status)).inc()
        self._metrics.seconds.labels(method, route).observe(seconds)


_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
