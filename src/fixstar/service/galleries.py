"""Several galleries behind one address: the service of each workspace under /g/NAME, as it would be alone.

Each has its own keys, rates, jobs and metrics. Addresses in its answers are relative to /g/NAME.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from html import escape
from urllib.parse import urlsplit, urlunsplit

from fastapi import FastAPI, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Router
from starlette.types import Message, Receive, Scope, Send

from fixstar.errors import FixstarError, InputError, plural
from fixstar.service.app import html_page, readyz
from fixstar.service.keys import Keys
from fixstar.service.limits import (
    BodyLimit,
    SecurityHeaders,
    TokenBuckets,
    address,
    foreign_request,
    too_often,
)
from fixstar.service.monitoring import GALLERY
from fixstar.service.problems import Problem, problem_response
from fixstar.service.schemas import Health
from fixstar.service.settings import ServiceSettings

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SAME = (
    "/static/",
    "/problems/",
    "/v1/docs",
    "/v1/openapi.json",
)  # in every gallery, without a key


def check_name(name: str) -> None:
    """Refuse a name that cannot be part of an address."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"a gallery's name has 1 to 64 letters, digits, - and _, got {name!r}; give it one: NAME=DIRECTORY"
        )


def _redirecting(send: Send, prefix: str) -> Send:
    """Keep a gallery's redirects, such as for an extra slash, below its prefix."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            target = headers.get("location")
            if target is not None:
                parts = urlsplit(target)
                headers["location"] = urlunsplit(parts._replace(path=prefix + parts.path))
        await send(message)

    return sent


class Galleries:
    """The application over several galleries. One that is None could not be opened, and answers 503."""

    def __init__(
        self,
        apps: Mapping[str, FastAPI | None],
        keys: Mapping[str, Keys],
        settings: ServiceSettings,
    ) -> None:
        self._apps = dict(apps)
        self._keys = keys
        self._settings = settings
        self._buckets = TokenBuckets(settings.rate)
        self._own = SecurityHeaders(BodyLimit(self._answer, settings))
        self._lifespan = Router(lifespan=self._running)
        for name, own in keys.items():
            own.others = {other: book for other, book in keys.items() if other != name}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to its gallery; the few addresses outside of galleries are answered here."""
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
            return
        path: str = scope["path"]
        name, slash, rest = path.removeprefix("/g/").partition("/")
        app = None
        if slash and path.startswith("/g/"):
            app = self._apps.get(name)
        if app is not None:
            inner = {key: value for key, value in scope.items() if key != "raw_path"}
            inner["path"] = f"/{rest}"
            inner[GALLERY] = f"/g/{name}"
            await app(inner, receive, _redirecting(send, f"/g/{name}"))
        elif path.startswith(_SAME):
            await next(filter(None, self._apps.values()))(scope, receive, send)
        else:
            await self._own(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = foreign_request(self._settings, scope["method"], Headers(scope=scope))
        if problem is None:
            caller = f"address {address(scope)}"
            problem = too_often(self._buckets, self._settings, caller=caller, path=scope["path"])
        try:
            if problem is not None:
                raise problem
            answer = await self._response(scope["method"], scope["path"])
        except Problem as error:
            answer = problem_response(error)
        await answer(scope, receive, send)

    async def _response(self, method: str, path: str) -> Response:
        name = None
        if path.startswith("/g/"):
            name = path.removeprefix("/g/").partition("/")[0]
        if name in self._apps and self._apps[name] is None:
            raise Problem(
                "not-ready", f"the gallery {name} could not be opened when the service started"
            )
        if name not in self._apps and path not in ("/", "/healthz", "/readyz"):
            raise Problem(
                "not-found", f"nothing has the path {path!r:.200}", "galleries are at /g/NAME/"
            )
        if method not in ("GET", "HEAD"):
            raise Problem(
                "wrong-method",
                f"{method:.20} {path!r:.200}: this address takes GET",
                headers={"Allow": "GET"},
            )
        if path == "/healthz":
            return JSONResponse(Health().model_dump())
        if path == "/readyz":
            return await self._ready()
        if name is None:
            return await run_in_threadpool(self._list)
        return RedirectResponse(f"/g/{name}/")

    async def _ready(self) -> Response:
        """Ready if one gallery is: a broken one must not take the others out of service."""
        ready = 0
        for app in filter(None, self._apps.values()):
            try:
                await run_in_threadpool(readyz, app.state.context)
                ready += 1
            except Problem:
                continue
        if not ready:
            raise Problem(
                "not-ready", "no gallery can be searched now", headers={"Retry-After": "5"}
            )
        return JSONResponse({"ready": ready, "galleries": len(self._apps)})

    def _list(self) -> Response:
        """The galleries that need no key; the names of others are for those who have one."""
        open_ = [name for name, keys in self._keys.items() if not keys.all()]
        listed = "<p>None is open to everyone.</p>"
        if open_:
            lines = "".join(f"<li>{_line(name, self._apps[name])}</li>" for name in open_)
            listed = f'<ul class="galleries">{lines}</ul>'
        closed = "A gallery that asks for a key is not listed: its address is /g/NAME/."
        return html_page("Galleries", f"{listed}<p>{closed}</p>")

    @asynccontextmanager
    async def _running(self, _: object) -> AsyncIterator[None]:
        """Start all galleries. They stop in parallel, so that many take no longer than one."""
        begun = []
        try:
            for app in filter(None, self._apps.values()):
                one = app.router.lifespan_context(app)
                await one.__aenter__()
                begun.append(one)
            yield
        finally:
            ends = [one.__aexit__(None, None, None) for one in begun]
            for error in await asyncio.gather(*ends, return_exceptions=True):
                if isinstance(error, BaseException):
                    raise error


def _line(name: str, app: FastAPI | None) -> str:
    """A gallery in the list: where it is, how much it holds, and which version answers."""
    if app is None:
        return f"<b>{escape(name)}</b> <span>could not be opened</span>"
    try:
        seen = app.state.context.workspace.status()
    except FixstarError:
        return f'<a href="/g/{escape(name)}/">{escape(name)}</a> <span>cannot be read now</span>'
    kind = app.state.context.workspace.registry.reads().removesuffix("s")
    stored = plural(sum(seen.vectors.values()), kind)
    deployed = f"{seen.deployed} deployed" if seen.deployed else "no version yet"
    return (
        f'<a href="/g/{escape(name)}/">{escape(name)}</a> <span>{stored}, {escape(deployed)}</span>'
    )
