"""What is refused before any route sees it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from service_clients import client, picture
from shops import shop
from sleepless_loop import SleeplessLoop
from starlette.types import Message, Receive, Scope, Send

from fixstar.service import limits
from fixstar.service.keys import Keys
from fixstar.service.limits import Admission, BodyLimit, TokenBuckets
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return shop(tmp_path / "shop", versions=1)


def test_a_bucket_fills_again_with_time() -> None:
    now = [0.0]
    buckets = TokenBuckets(60, lambda: now[0])
    assert [buckets.take("a") for _ in range(60)] == [0] * 60
    assert buckets.take("a") == pytest.approx(1)
    assert buckets.take("b") == 0
    now[0] = 0.5
    assert buckets.take("a") == pytest.approx(0.5)
    now[0] = 1.0
    assert buckets.take("a") == 0
    assert buckets.take("a") > 0


def test_buckets_of_many_callers_do_not_fill_the_memory() -> None:
    now = [0.0]
    buckets = TokenBuckets(60, lambda: now[0], most=100)
    for number in range(1000):
        now[0] += 0.001
        buckets.take(str(number))
    assert len(buckets._filled) <= 101


def test_too_many_requests_are_told_when_to_come_again(space: Workspace) -> None:
    with client(space, rate=5) as http:
        answers = [http.get("/v1/items") for _ in range(7)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 13
        assert answers[-1].headers["content-type"] == "application/problem+json"
        assert http.get("/healthz").status_code == 200


def test_each_key_has_its_own_pace_and_wrong_ones_share_an_address(space: Workspace) -> None:
    first, second = (Keys(space.path).add(name, "read") for name in "ab")
    with client(space, rate=2) as http:

        def ask(key: str) -> int:
            return http.get("/v1/items", headers={"X-API-Key": key}).status_code

        assert [ask(first), ask(first), ask(first)] == [200, 200, 429]
        assert ask(second) == 200
        assert [ask("wrong1"), ask("wrong2"), ask("wrong3")] == [401, 401, 429]


@pytest.mark.parametrize("path", ["/", "/static/page.css", "/nowhere", "/problems/busy"])
def test_addresses_that_need_no_key_have_a_pace_too(space: Workspace, path: str) -> None:
    Keys(space.path).add("a", "read")
    with client(space, rate=1) as http:
        seen = [http.get(path).status_code for _ in range(25)]
        assert 429 not in seen[:10]
        assert seen.count(429) > 9  # time passes meanwhile
        probed = [http.get("/healthz").status_code for _ in range(25)]
        assert 429 not in probed[:10]  # a pace of their own
        assert probed.count(429) > 9


@pytest.mark.parametrize("claimed", [True, False])
def test_a_large_body_is_refused_while_it_comes(space: Workspace, claimed: bool) -> None:
    with client(space, upload_bytes=1000) as http:
        taken = 0

        def body() -> Iterator[bytes]:
            nonlocal taken
            yield b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
            for _ in range(40):
                taken += 1
                yield bytes(100_000)

        headers = {
            "content-type": "multipart/form-data; boundary=x",
            **({"content-length": "4000000"} if claimed else {}),
        }
        answer = http.post("/v1/search", content=body(), headers=headers)
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"
    assert "x-content-type-options" in answer.headers


def test_an_image_over_the_limit_is_refused(space: Workspace) -> None:
    with client(space, upload_bytes=1000) as http:
        answer = http.post("/v1/search", files={"image": picture(0, (100, 100))})
        assert answer.status_code == 413
        assert "1,000" in answer.json()["detail"]
        several = http.post(
            "/v1/items", files=[("images", picture(0, (100, 100))), ("images", picture(0, (8, 8)))]
        )
        assert (len(several.json()["added"]), len(several.json()["bad"])) == (1, 1)


def through(limit: BodyLimit, messages: list[Message | float]) -> list[Message]:
    """What comes back where these messages come in; a number is a pause."""
    sent: list[Message] = []
    incoming = iter(messages)

    async def receive() -> Message:
        message = next(incoming)
        if isinstance(message, float):
            await asyncio.sleep(message)
            message = next(incoming)
        assert not isinstance(message, float)
        return message

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {"type": "http", "path": "/v1/other", "method": "POST", "headers": []}
    with asyncio.Runner(loop_factory=SleeplessLoop) as runner:
        runner.run(_call(limit, scope, receive, send))
    return sent


async def _call(limit: BodyLimit, scope: Scope, receive: Receive, send: Send) -> None:
    await limit(scope, receive, send)


async def _echo(_: Scope, receive: Receive, send: Send) -> None:
    size = 0
    while True:
        message = await receive()
        size += len(message["body"])
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def part(size: int, more: bool) -> Message:
    return {"type": "http.request", "body": bytes(size), "more_body": more}


def test_a_body_that_stops_coming_is_given_up() -> None:
    limit, hasty = (BodyLimit(_echo, ServiceSettings(), idle=idle) for idle in (60, 0.05))
    assert through(limit, [part(5, True), part(6, False)])[1]["body"] == b"11"
    assert through(hasty, [part(5, True), 60.0, part(6, False)])[0]["status"] == 408
    assert through(limit, [part(1 << 20, True), part(1, False)])[0]["status"] == 413


def test_a_body_that_drips_is_given_up() -> None:
    slow = BodyLimit(_echo, ServiceSettings(), idle=0.2, slowest=1000)
    drops: list[Message | float] = [piece for _ in range(30) for piece in (0.05, part(1, True))]
    assert through(slow, [*drops, part(1, False)])[0]["status"] == 408
    enough: list[Message | float] = [piece for _ in range(10) for piece in (0.05, part(100, True))]
    assert through(slow, [*enough, part(1, False)])[1]["body"] == b"1001"


def test_time_that_the_service_takes_is_not_the_callers() -> None:
    async def busy(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await asyncio.sleep(0.3)
        await _echo(scope, receive, send)

    limit = BodyLimit(busy, ServiceSettings(), idle=0.1)
    assert through(limit, [part(1, True), 0.01, part(1, True), part(1, False)])[1]["body"] == b"2"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
    ],
)
def test_pages_of_other_sites_change_nothing(
    space: Workspace, headers: dict[str, str], status: int
) -> None:
    with client(space) as http:
        answer = http.post("/v1/items/delete", json={"ids": ["a"]}, headers=headers)
        assert answer.status_code == status
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080, evil.com", 421),
        ("localhost:8080 evil.com", 421),
        ("localhost:8080", 200),
        ("127.0.0.1", 200),
        ("[::1]:8080", 200),
        ("evil.example", 421),
        ("", 421),
        ("[", 421),
    ],
)
def test_other_names_of_this_machine_are_not_answered(
    space: Workspace, host: str, status: int
) -> None:
    with client(space) as http:
        assert http.get("/v1/items", headers={"host": host}).status_code == status


def test_the_names_of_a_proxy_are_answered(space: Workspace) -> None:
    admin = {"X-API-Key": Keys(space.path).add("a", "admin")}
    with client(space, names=("shop.example",)) as http:
        for host, origin, status in (
            ("shop.example", "https://shop.example", 200),
            (
                "127.0.0.1:8080",
                "https://shop.example",
                200,
            ),  # a proxy that does not hand the name on
            ("SHOP.example:443", "https://shop.example:443", 200),
            ("shop.example", "https://evil.example", 403),
            ("evil.example", "https://shop.example", 421),
        ):
            headers = {**admin, "host": host, "origin": origin}
            assert (
                http.post("/v1/items/delete", json={"ids": ["a"]}, headers=headers).status_code
                == status
            )
    with client(space) as http:
        assert http.get("/v1/items", headers={**admin, "host": "shop.example"}).status_code == 421


@pytest.mark.parametrize("key", [None, "wrong"])
def test_who_is_not_known_is_told_so_before_the_body_is_read(
    space: Workspace, key: str | None
) -> None:
    Keys(space.path).add("a", "read")
    headers = [] if key is None else [(b"x-api-key", key.encode())]
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("the body was asked for")

    async def send(message: Message) -> None:
        sent.append(message)

    for path, status in (
        ("/v1/items", 401),
        ("/v1/items/async", 401),
        ("/v1/openapi.json", 200),
        ("/v1/docs", 200),
    ):
        own = [(b"host", b"localhost"), *headers]
        scope: Scope = {
            "type": "http",
            "path": path,
            "method": "POST",
            "headers": own,
            "client": ("127.0.0.1", 5),
        }
        limit = Admission(_answers, ServiceSettings(), Keys(space.path), TokenBuckets(600))
        sent.clear()
        asyncio.run(limit(scope, receive, send))
        assert sent[0]["status"] == status
        assert status == 200 or b"A valid key is needed" in sent[1]["body"]


async def _answers(_: Scope, __: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_every_answer_carries_the_headers(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client(space) as http:
        monkeypatch.setattr(Workspace, "status", lambda _: 1 / 0)
        for path, status in (
            ("/healthz", 200),
            ("/v1/nothing", 404),
            ("/v1/item", 422),
            ("/v1/status", 500),
        ):
            answer = http.get(path)
            assert answer.status_code == status
            csp = answer.headers["content-security-policy"]
            assert csp.startswith("default-src 'none'; script-src 'self';")
            assert "unsafe" not in csp
            assert answer.headers["x-frame-options"] == "DENY"
            assert "server" not in answer.headers
        assert "ZeroDivisionError" not in answer.text
        assert answer.headers["content-type"] == "application/problem+json"


def test_settings_are_checked() -> None:
    wrong: dict[str, Any] = {
        "rate": 0,
        "port": 70000,
        "names": ("shop.example", "https://shop.example"),
    }
    with pytest.raises(ValueError, match=r"rate=0.*port=70000.*name 'https://shop.example'"):
        ServiceSettings(**wrong)


def test_half_a_character_in_a_request_is_no_fault(space: Workspace) -> None:
    with client(space) as http:
        for content in ('{"ids": ["\\ud800"]}', '{"\\ud800": 1}'):
            answer = http.post(
                "/v1/items/delete", content=content, headers={"content-type": "application/json"}
            )
            assert answer.status_code in (400, 422)


@pytest.fixture
def http(space: Workspace) -> Iterator[TestClient]:
    with client(space) as asking:
        yield asking


def test_a_body_of_very_many_unknown_fields_is_not_validated_field_by_field(
    http: TestClient,
) -> None:
    body = {"vector": [1.0], **{f"f{i}": 1 for i in range(50_000)}}
    answer = http.post("/v1/search/vector", json=body)
    assert answer.status_code == 422
    assert "50,001 fields" in answer.json()["detail"]
    wrong = http.post("/v1/search/vector", json={"vector": ["a"] * 50_000})
    assert (wrong.status_code, wrong.json()["detail"].count("body.vector")) == (422, 1)
    many = http.post(
        "/v1/search/vector", json={"vector": [1.0], "where": {f"f{i}": 1 for i in range(1000)}}
    )
    assert many.status_code in (404, 422)


def test_large_bodies_are_parsed_beside_the_event_loop(
    http: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    real = limits._check_body

    def noting(body: bytes) -> None:
        threads.append(threading.current_thread().name)
        real(body)

    monkeypatch.setattr(limits, "_check_body", noting)
    http.post("/v1/search/vector", json={"vector": [0.1] * 60_000})
    assert "AnyIO worker thread" in threads[0]
