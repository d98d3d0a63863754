"""The application: the routes around one workspace, its errors, its documentation and its page."""

from __future__ import annotations

import asyncio
import difflib
import errno
import json
import logging
import mimetypes
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from html import escape
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.staticfiles import StaticFiles

from fixstar import __version__
from fixstar.errors import FixstarError, GalleryUnavailableError
from fixstar.service import routes_embeddings, routes_items, routes_versions
from fixstar.service.batching import QueryBatcher, deployed_encoder
from fixstar.service.context import READ, Context, Reader, Shared
from fixstar.service.intake import Intake
from fixstar.service.jobs import Jobs
from fixstar.service.keys import Keys
from fixstar.service.limits import (
    Admission,
    BodyLimit,
    ByteBudget,
    SecurityHeaders,
    WellFormed,
    known_hint,
    known_parameters,
    operation,
    rate_buckets,
)
from fixstar.service.monitoring import CONTENT_TYPE, Metrics, RequestMonitor
from fixstar.service.problems import PROBLEMS, Problem, is_disk_full, problem_response
from fixstar.service.routes_versions import training_folders
from fixstar.service.schemas import (
    Health,
    NothingAdded,
    ProblemBody,
    Ready,
    Status,
    StatusCaller,
    problem_responses,
)
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace
from fixstar.workspace.backfill.read_through import ReadThrough

READ_EVERY = 1.0  # seconds between two looks at what searches have met
STOP = 20.0  # seconds for jobs to reach a point where they can resume later
_log = logging.getLogger("fixstar.service")


async def _read_through(workspace: Workspace, settings: ServiceSettings, counters: Metrics) -> None:
    """Re-embed items that searches find, up to the hourly rate in the settings, until cancelled."""
    if settings.read_through is None:
        return
    serving = await asyncio.to_thread(lambda: workspace.serving)
    reading = ReadThrough(serving, settings.read_through)
    serving.read_through = reading
    while True:
        await asyncio.sleep(READ_EVERY)
        if not len(reading):
            continue
        try:
            done = await asyncio.to_thread(reading.work)
        except (
            Exception
        ):  # a server that embeds may be down, or the version being retired: searches go on
            _log.exception(
                "read-through failed; it continues with the next items that searches find"
            )
            continue
        counters.embedded.labels(await asyncio.to_thread(serving.deployed), "item").inc(done)


def create_app(
    workspace: Workspace,
    settings: ServiceSettings,
    keys: Keys | None = None,
    locked: Jobs | None = None,
    budget: ByteBudget | None = None,
) -> FastAPI:
    """The service over a workspace. Its gallery is closed when the service stops.

    ``locked`` are its jobs if the caller has locked them already; else the service does so when it starts. ``budget``
    is that of the process, if it has several services.
    """
    keys = keys or Keys(workspace.path)
    counters = Metrics()
    buckets = rate_buckets(settings, workspace.path / "state")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        intake = Intake(settings, buckets)
        batcher = QueryBatcher(workspace, settings, counters, intake)
        jobs = locked or Jobs(workspace, settings)
        app.state.context = Context(
            workspace=workspace,
            settings=settings,
            keys=keys,
            intake=intake,
            batcher=batcher,
            jobs=jobs,
            metrics=counters,
        )
        batcher.start()
        jobs.start()
        reading = asyncio.create_task(_read_through(workspace, settings, counters))
        try:
            yield
        finally:  # no request is under way any more: first what uses the gallery, then the gallery
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await batcher.stop()
            await asyncio.to_thread(jobs.stop, STOP)
            await asyncio.to_thread(intake.close)
            await asyncio.to_thread(workspace.close)

    def documented() -> list[str]:
        return list(app.openapi()["paths"])

    app = FastAPI(
        title="fixstar",
        version=__version__,
        description="Search of images or texts over vectors of several model versions.",
        lifespan=lifespan,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(
                RequestMonitor, metrics=counters, documented=documented, access=settings.access_log
            ),
            Middleware(Admission, settings=settings, keys=keys, buckets=buckets),
            Middleware(BodyLimit, settings=settings, budget=budget),
            Middleware(WellFormed),
        ],
    )
    _add_problem_handlers(app)
    for routes in (router, routes_items.router, routes_embeddings.router, routes_versions.router):
        app.include_router(routes, dependencies=[Depends(known_parameters)])
    _add_documents(app)
    _add_page(app)
    return app


# --- health and status

router = APIRouter(tags=["service"])


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz")
async def healthz() -> Health:
    """Whether the service is alive."""
    return Health()


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=problem_responses(503))
def readyz(context: Shared) -> Ready:
    """Whether the gallery opens and the deployed version loads, and whether there is room to store images."""
    try:
        version, _ = deployed_encoder(context.workspace)
        context.workspace.gallery.count()
        room = shutil.disk_usage(context.workspace.path).free
    except (FixstarError, OSError) as error:
        _log.warning("not ready: %s", error)  # not sent: the caller has shown no key
        raise Problem(
            "not-ready", "a search would fail now", headers={"Retry-After": "5"}
        ) from error
    return Ready(version=version, writes=room >= context.settings.upload_bytes)


@router.get(
    "/metrics",
    dependencies=READ,
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(context: Shared) -> Response:
    """Metrics for Prometheus."""
    space = context.workspace
    deployed = None
    if space.versions():
        deployed = space.rollout.current()
    jobs = Counter(str(job.state) for job in context.jobs.all())
    text = context.metrics.text(space.gallery.count(), deployed, jobs)
    return Response(text, media_type=CONTENT_TYPE)


@router.get("/v1/status")
def status(context: Shared, caller: Reader) -> Status:
    """Versions, what is deployed, and which version made the vectors of the gallery."""
    seen = context.workspace.status()
    own = ("deployed", "previous", "versions", "retired", "vectors", "searched_by", "left_out")
    folders: list[str] = []
    if caller.may("admin"):
        folders = training_folders(context.settings.training_images)
    return Status(
        name=context.settings.gallery or context.workspace.path.resolve().name,
        galleries=_beside(context),
        training_images=tuple(folders),
        fixstar=__version__,
        reads=context.workspace.registry.reads(),
        **{name: getattr(seen, name) for name in own},
        items=sum(seen.vectors.values()),
        jobs_running=sum(not job.has_ended for job in context.jobs.all()),
        caller=StatusCaller.model_validate(caller),
        keys=bool(context.keys.all()),
    )


def _beside(context: Context) -> tuple[str, ...]:
    """The galleries behind the same address: this one, and those whose names are no secret."""
    others = context.keys.others
    if not others:
        return ()
    open_ = [name for name, keys in others.items() if not keys.all()]
    return tuple(sorted([context.settings.gallery, *open_]))


# --- errors of the application and of the framework, as problems

_FEWER = "send fewer images in one request, or shorter payloads"
_FORM_ERRORS = (  # how Starlette's messages about forms begin, and what they mean
    ("Part exceeded", ("too-large", _FEWER)),
    ("Field exceeded", ("too-large", _FEWER)),
    ("Too many files", ("invalid-request", "send the images in several requests")),
    ("Too many fields", ("invalid-request", "see /v1/docs for the fields that there are")),
    (
        "Missing boundary",
        (
            "unreadable-form",
            "let the HTTP library write the form's Content-Type, with its boundary",
        ),
    ),
    ("", ("unreadable-form", "send multipart/form-data as curl -F does; see /v1/docs")),
)


def _add_problem_handlers(app: FastAPI) -> None:
    @app.exception_handler(Problem)
    @app.exception_handler(FixstarError)
    async def _expected(_: Request, error: Exception) -> JSONResponse:
        return problem_response(Problem.of(error))

    @app.exception_handler(OSError)
    async def _disk(_: Request, error: OSError) -> JSONResponse:
        return problem_response(_disk_problem(error))

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        seen = "; ".join(map(_validation_detail, error.errors()[:5]))
        return problem_response(Problem("invalid-request", seen, _validation_hint(request, error)))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, OSError):  # no room for the files of a form
            return problem_response(_disk_problem(error.__cause__))
        return problem_response(_framework_problem(request, error))


_SAID = {
    "extra_forbidden": "there is no such field",
    "model_attributes_type": "it must be a JSON object",
}
_NO_FILE = "Expected UploadFile"  # how FastAPI begins to say it


def _validation_detail(one: Mapping[str, Any]) -> str:
    """A field, what it should be, and the value that was sent if it is short."""
    said = _SAID.get(one["type"], one["msg"])
    came = one.get("input")
    if _NO_FILE in said:
        said = "it must be a file, and is text"
    elif said.startswith(
        "Value error, "
    ):  # which pydantic puts before messages that are not its own
        said = said.removeprefix("Value error, ")
    elif isinstance(came, str | int | float) and len(str(came)) <= 60 and one["type"] not in _SAID:
        said = f"{said}; got {json.dumps(came, ensure_ascii=False)}"
    return f"{'.'.join(map(str, one['loc']))}: {said}"


def _validation_hint(request: Request, error: RequestValidationError) -> str:
    """What to send instead: usually the body is of the wrong kind."""
    kind = request.headers.get("content-type", "")
    places = [tuple(one["loc"]) for one in error.errors()]
    if ("body",) in places and "json" not in kind.lower():
        return "send JSON with the header content-type: application/json (curl: -H 'content-type: application/json')"
    if ("body",) in places:
        return "send a JSON object; see /v1/docs for its fields"
    taken = (
        operation(request)
        .get("requestBody", {})
        .get("content", {})
        .get("application/json", {})
        .get("schema", {})
    )
    for one in error.errors():
        if _NO_FILE in one["msg"]:
            return f"send it as a file, as curl -F {one['loc'][1]}=@FILE does, with the @"
        if (
            one["type"] == "extra_forbidden" and len(one["loc"]) == 2
        ):  # deeper ones are fields of a part
            fields = _resolved(request.app.openapi(), taken).get("properties", {})
            return known_hint("in the body", str(one["loc"][1]), fields)
    if ("body", "budget") in places:
        return 'send such as {"budget": "10%"}'
    return "see /v1/docs for what this takes, /v1/openapi.json for its limits"


def _disk_problem(error: OSError) -> Problem:
    """The problem for an error of the disk. Other errors are bugs."""
    if is_disk_full(error):
        return Problem.of(error)
    if error.errno in (errno.EROFS, errno.EIO):
        return Problem.of(GalleryUnavailableError(str(error)))
    raise error


def _framework_problem(request: Request, error: HTTPException) -> Problem:
    method = request.method
    path = request.url.path
    code = error.status_code
    seen = str(error.detail)
    headers = error.headers
    if code == 404:
        close = difflib.get_close_matches(
            path[:200], request.app.openapi()["paths"], n=1, cutoff=0.75
        )
        hint = ""
        if close:
            hint = f"did you mean {close[0]}? All are listed at /v1/docs"
        return Problem(
            "not-found", f"no operation has the path {path!r:.200}", hint, headers=headers
        )
    if code == 405:
        allowed = (headers or {}).get("Allow") or (headers or {}).get("allow") or "other methods"
        return Problem(
            "wrong-method",
            f"{method:.20} {path!r:.200}: this address takes {allowed}",
            headers=headers,
        )
    if code == 400:
        kind, hint = next(meaning for begin, meaning in _FORM_ERRORS if seen.startswith(begin))
        return Problem(kind, seen, hint, headers=headers)
    kind = "bug" if code >= 500 else "invalid-request"
    return Problem(kind, seen, status=code, headers=headers)


# --- the OpenAPI document, and a page made from it

_EVERYWHERE = (400, 401, 403, 421, 422, 429, 500, 503, 507)  # every operation may answer these
_WITH_BODY = (408, 413)
_OPEN = ("/healthz", "/readyz")
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


_DOCUMENT: dict[str, Any] = {}  # made once: it is the same for every workspace


def _add_documents(app: FastAPI) -> None:
    """Serve the OpenAPI document at /v1/openapi.json, and a page of it at /v1/docs."""

    def document() -> dict[str, Any]:
        if not _DOCUMENT:
            plain = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            _DOCUMENT.update(_completed(plain))
        return _DOCUMENT

    app.openapi = document  # type: ignore[method-assign]

    @app.get("/v1/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return _docs_page(document())


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document with problems and keys added to each operation."""
    parts = document.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    for model in (ProblemBody, NothingAdded):
        schemas[model.__name__] = model.model_json_schema(
            ref_template="#/components/schemas/{model}"
        )
        schemas |= schemas[model.__name__].pop("$defs", {})
    parts["securitySchemes"] = _SECURITY
    for path, operations in document["paths"].items():
        for one in operations.values():
            answers = one["responses"]
            if "HTTPValidationError" in str(
                answers.get("422")
            ):  # FastAPI's own, which is never sent
                del answers["422"]
            codes = list(_EVERYWHERE)
            if "requestBody" in one:
                codes.extend(_WITH_BODY)
            for code in codes:
                answers.setdefault(str(code), problem_responses(code)[code])
            if path not in _OPEN:
                one["security"] = [
                    {},
                    *({name: []} for name in _SECURITY),
                ]  # {}: no keys, on this machine
    for name in (
        name for name in schemas if name.startswith("Body_")
    ):  # forms: other fields are refused
        schemas[name]["additionalProperties"] = False
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return document


def _docs_page(document: dict[str, Any]) -> HTMLResponse:
    """All operations with their fields, by topic, and all problems, on one page."""
    topics: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, one in operations.items():
            topic = one.get("tags", ["other"])[0]
            shown = _operation(document, method=method, path=path, one=one)
            topics.setdefault(topic, []).append(shown)
    problems = "".join(
        f'<tr><td>{kind.status}</td><td><a href="/problems/{name}">/problems/{name}</a></td>'
        f"<td>{escape(kind.title)}</td><td>{escape(kind.remedy)}</td></tr>"
        for name, kind in PROBLEMS.items()
    )
    about = document["info"]
    menu = "".join(f'<a href="#{name}">{name}</a>' for name in (*topics, "problems"))
    return html_page(
        f"{about['title']} {about['version']}",
        f"<p>{escape(about.get('description', ''))} "
        f'In full: <a href="/v1/openapi.json">openapi.json</a>.</p><nav>{menu}</nav>'
        + "".join(f'<h2 id="{name}">{name}</h2>{"".join(parts)}' for name, parts in topics.items())
        + '<h2 id="problems">problems</h2><table>'
        "<thead><tr><th>status</th><th>type</th><th>title</th><th>what to do</th></tr></thead>"
        f"<tbody>{problems}</tbody></table>",
    )


def _operation(document: dict[str, Any], method: str, path: str, one: dict[str, Any]) -> str:
    """One operation as a fold: its address and summary, and inside its fields."""
    rows = [
        (
            field["name"],
            field["in"],
            field.get("schema", {}),
            field.get("description", ""),
            field.get("required"),
        )
        for field in one.get("parameters", ())
    ]
    for media, content in one.get("requestBody", {}).get("content", {}).items():
        schema = _resolved(document, content["schema"])
        rows += [
            (
                name,
                media.rpartition("/")[2],
                kind,
                kind.get("description", ""),
                name in schema.get("required", ()),
            )
            for name, kind in schema.get("properties", {}).items()
        ]
    fields = "".join(
        f"<tr><td><code>{escape(name)}</code>{' required' if required else ''}</td><td>{escape(place)}</td>"
        f"<td>{escape(_kind(kind))}</td><td>{escape(text)}</td></tr>"
        for name, place, kind, text, required in rows
    )
    head = "<thead><tr><th>field</th><th>in</th><th>type</th><th></th></tr></thead>"
    table = "<p>It takes no fields.</p>"
    if rows:
        table = f"<table>{head}<tbody>{fields}</tbody></table>"
    first, _, more = (one.get("description") or one.get("summary", "")).partition("\n\n")
    return (
        f'<details class="{method}"><summary><b>{method.upper()}</b> <code>{escape(path)}</code> '
        f"<span>{escape(first)}</span></summary>{more and f'<p>{escape(more)}</p>'}{table}</details>"
    )


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Follow a schema's reference, also where null is allowed beside it."""
    named = schema.get("$ref") or next(
        (one["$ref"] for one in schema.get("anyOf", ()) if "$ref" in one), ""
    )
    found: dict[str, Any] = document["components"]["schemas"].get(named.rpartition("/")[2], schema)
    return found


def _kind(schema: dict[str, Any]) -> str:
    """The type of a field in words.

    >>> _kind({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]})
    'array of string or null'
    """
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"array of {_kind(schema.get('items', {}))}"
    return str(schema.get("type") or schema.get("$ref", "").rpartition("/")[2] or "any")


def html_page(title: str, body: str) -> HTMLResponse:
    """A page without scripts or external resources."""
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="stylesheet" href="/static/docs.css"><title>{escape(title)}</title></head>'
    )
    return HTMLResponse(f"{head}<body><main><h1>{escape(title)}</h1>{body}</main></body></html>")


# --- the page: files of this package, served as they are; no build step, nothing from elsewhere


def _add_page(app: FastAPI) -> None:
    """Serve the page at /, its files under /static, and what a problem's type means under /problems."""
    mimetypes.add_type("text/javascript", ".js")  # systems differ
    files = StaticFiles(packages=[("fixstar.service", "page")])

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    @app.get("/problems/{name}", include_in_schema=False)
    async def problem_type(name: str) -> HTMLResponse:
        if name not in PROBLEMS:
            raise Problem(
                "not-found",
                f"no problem has the type {name!r:.200}",
                "the types are listed at /v1/docs",
            )
        code, title, remedy = PROBLEMS[name]
        return html_page(title, f"<p>HTTP {code}. What to do: {escape(remedy)}.</p>")

    app.mount("/static", files)
