"""Requests made up from the OpenAPI document: whatever comes, the answer is a documented one, and never a fault.

``FIXSTAR_FUZZ=10000 pytest tests/service/test_openapi.py`` makes up so many for each operation, a quarter of them wrong
on purpose. The operations that change something are among them: the workspace is thrown away.
"""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from service_clients import ADDRESS, picture
from shops import passed, pictures, shop
from starlette.types import ASGIApp, Receive, Scope, Send

from fixstar.service.app import create_app
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import catalogue

if TYPE_CHECKING:
    from schemathesis import GenerationMode

CASES = int(os.environ.get("FIXSTAR_FUZZ", "16"))
SETTINGS = settings(
    derandomize=True,  # the same requests every time
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)

IMAGES = [
    picture(seed, (9 + seed, 12), kind)
    for seed, kind in enumerate(("PNG", "JPEG", "GIF", "BMP", "TIFF"))
]
KNOWN: dict[str, list[Any]] = {  # what chance would hardly ever hit upon, by the name of the field
    "image": IMAGES,
    "input": [base64.b64encode(image).decode() for image in IMAGES[:2]],
    "model": ["v1", "v2", "v2->v1"],
    "images": [IMAGES[:1], IMAGES[:2]],
    "vector": [[1.0] * 7, [0.0] * 7, [1e300] + [0.0] * 6],
    "id": ["bag/0.png", "hat/1.png", "made up", "a/../b", "\N{SNOWMAN}"],
    "version": ["v2", "v1"],
    "name": ["v1", "v2"],
    "against": ["v1"],
    "where": [
        '{"label": "bag"}',
        '{"label": {"in": ["bag", "hat"]}}',
        '{"price": {"lt": 5}}',
        "{}",
        "[]",
        "null",
    ],
    "payload": [
        '{"label": "bag", "price": 3.5}',
        '{"label": {"a": [1, null]}}',
        "{}",
        "[]",
        "1e999",
        '{"image": "x"}',
    ],
    "payloads": ['[{"price": 1}]', "[{}, {}]", "[1]", "{}"],
    "ids": ['["one"]', '["one", "two"]', '["one", "one"]', "[1]", '[""]', "{}"],
    "budget": ["10%", "all", "3", "0%", "-1", "1e9%", "nan%"],
    "force": ["because"],
    "deployed": ["v1", None],
    "queries": ["checked", "one", "old"],
}

CARRIED_OUT = (
    "POST /v1/search 200",
    "POST /v1/search/vector 200",
    "POST /v1/embeddings 200",
    "PUT /v1/item 200",
    "DELETE /v1/item 200",
    "POST /v1/items/async 202",
    "POST /v1/deploy 200",
    "POST /v1/backfill 202",
)


def from_this_machine(app: ASGIApp) -> ASGIApp:
    """Without keys nobody else is answered."""

    async def local(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["client"] = ("127.0.0.1", 50000)
        await app(scope, receive, send)

    return local


class Api(NamedTuple):
    """What can be asked, and the application that answers."""

    operations: list[Any]
    app: FastAPI


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("fuzz")
    space = shop(folder / "shop")
    space.index(list(catalogue(pictures(folder / "pictures"))))
    passed(space, "v2", "v1")
    app = create_app(space, ServiceSettings(rate=10**9))
    import schemathesis  # here, because importing it takes a second in every process that collects tests
    from schemathesis.python.asgi import shutdown_lifespans

    document = schemathesis.openapi.from_dict(app.openapi())
    document.app = from_this_machine(app)
    document.config.update(base_url=ADDRESS)
    operations: list[Any] = list(document.get_all_operations())
    yield Api([found.ok() for found in operations], app)
    shutdown_lifespans()


@pytest.mark.parametrize("wanted", ["positive", pytest.param("negative", marks=pytest.mark.long)])
def test_every_answer_is_a_documented_one(api: Api, wanted: str) -> None:
    from schemathesis import GenerationMode

    mode = GenerationMode(wanted)
    answers: Counter[str] = Counter()
    failures = []
    for operation in api.operations:
        try:
            ask(api.app, operation, mode, answers)
        except Unsatisfiable:  # what takes nothing cannot be asked wrongly
            assert mode.is_negative
        except Exception as error:
            failures.append(f"{operation.label}: {error}")
    print(json.dumps(answers, indent=1))
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)
    if mode.is_positive:  # requests that are all turned away would show little
        assert not [answer for answer in CARRIED_OUT if not answers[answer]]


def ask(app: FastAPI, operation: Any, mode: GenerationMode, answers: Counter[str]) -> None:
    """Make up requests for one operation, and check what comes back."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]

    @settings(SETTINGS, max_examples=CASES // 4 if mode.is_negative else CASES - CASES // 4)
    @given(operation.as_strategy(generation_mode=mode), st.data())
    def each(case: Any, data: st.DataObject) -> None:
        steer(case, data)
        if "/jobs/" in case.path and data.draw(st.booleans()):
            case.path_parameters["id"] = next(
                (job.id for job in app.state.context.jobs.all()), "none"
            )
        response = case.call()
        answers[f"{operation.label} {response.status_code}"] += 1
        case.validate_response(response, checks=checks)

    each()


def steer(case: Any, data: st.DataObject) -> None:
    """Put something into known fields, now and then, that gets further than chance would.

    The first request that is made up for an operation is the simplest one: it has the first value for every field.
    """
    every = not data.draw(st.booleans())
    for part in (case.path_parameters, case.query, case.body):
        for field in sorted(KNOWN.keys() & part.keys()) if isinstance(part, dict) else ():
            if every or data.draw(st.booleans()):
                part[field] = data.draw(st.sampled_from(KNOWN[field]))
