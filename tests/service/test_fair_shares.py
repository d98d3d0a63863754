"""Memory and decoding are shared: one caller takes neither all of it nor everybody else's turn."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from service_clients import async_client, client, picture
from shops import shop
from starlette.types import Message, Receive, Scope, Send

from fixstar.images import Preprocessing
from fixstar.images.isolated import DecodedPixels
from fixstar.service import intake, routes_items
from fixstar.service.intake import Intake, Turns
from fixstar.service.keys import Keys, set_calling
from fixstar.service.limits import BodyLimit, ByteBudget, TokenBuckets
from fixstar.service.settings import ServiceSettings
from fixstar.texts import Role
from fixstar.workspace import Workspace
from fixstar.workspace.items import LocalEmbedder

SMALL = Preprocessing(size=(8, 8), mean=(0, 0, 0), std=(1, 1, 1))


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return shop(tmp_path / "shop", versions=1)


def test_a_budget_is_shared_and_one_caller_has_half_of_it_at_most() -> None:
    budget = ByteBudget(100)
    assert budget.take("a", 50)
    assert not budget.take("a", 1)
    assert budget.take("b", 30)
    assert not budget.take("c", 21)
    assert budget.take("c", 20)
    budget.give_back("a", 50)
    assert budget.take("b", 20)
    for caller, size in (("b", 50), ("c", 20)):
        budget.give_back(caller, size)
    assert budget.take("a", 1000)  # alone
    assert not budget.take("b", 1)


def sent_through(
    limit: BodyLimit, headers: dict[str, str], parts: list[int], path: str = "/v1/embeddings"
) -> Any:
    """The status, and how many parts of the body were read."""
    sent: list[Message] = []
    taken = 0

    async def receive() -> Message:
        nonlocal taken
        taken += 1
        return {
            "type": "http.request",
            "body": bytes(parts[taken - 1]),
            "more_body": taken < len(parts),
        }

    async def send(message: Message) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope: Scope = {
        "type": "http",
        "path": path,
        "method": "POST",
        "headers": raw,
        "client": ("1.2.3.4", 5),
    }
    asyncio.run(_called(limit, scope, receive, send))
    return sent[0]["status"], taken


async def _called(limit: BodyLimit, scope: Scope, receive: Receive, send: Send) -> None:
    await limit(scope, receive, send)


async def _reads(_: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


def test_a_body_that_does_not_fit_is_refused_before_it_is_read() -> None:
    budget = ByteBudget(1 << 20)
    limit = BodyLimit(_reads, ServiceSettings(), budget)
    kind = {"content-type": "application/json"}
    told = {**kind, "content-length": "200000"}
    assert budget.take("somebody", 500_000)
    assert sent_through(limit, told, [200_000]) == (503, 0)  # JSON takes three times its size
    assert sent_through(limit, kind, [1000] * 400) == (503, 175)  # as soon as it is too much
    assert sent_through(limit, {"content-length": "200000"}, [200_000], "/v1/items") == (200, 1)
    budget.give_back("somebody", 500_000)
    assert sent_through(limit, told, [200_000]) == (200, 1)
    assert budget.take("somebody", 1 << 19)  # nothing was kept back
    assert budget.take("another", 1 << 19)


def test_a_body_that_breaks_off_gives_its_bytes_back() -> None:
    async def fails(_: Scope, receive: Receive, __: Send) -> None:
        await receive()
        raise RuntimeError

    budget = ByteBudget(1000)
    with pytest.raises(RuntimeError):
        sent_through(
            BodyLimit(fails, ServiceSettings(), budget),
            {"content-length": "300"},
            [300],
            "/v1/items",
        )
    assert not budget._held


def test_callers_take_turns() -> None:
    async def work() -> str:
        turns, order = Turns(1), list[str]()

        async def one(caller: str) -> None:
            await turns.take(caller)
            await asyncio.sleep(0)
            order.append(caller)
            turns.give_back()

        await asyncio.gather(*(one(caller) for caller in "aaaaaabbc"))
        return "".join(order)

    assert asyncio.run(work()) == "aabcabaaa"


def test_who_gives_up_waiting_leaves_the_turn_to_others() -> None:
    async def work() -> None:
        turns = Turns(1)
        await turns.take("a")
        waiting = [asyncio.ensure_future(turns.take(caller)) for caller in "aabb"]
        await asyncio.sleep(0)
        for number in (0, 2):
            waiting[number].cancel()
        turns.give_back()
        waiting[1].cancel()  # in the moment in which it is given the place
        await asyncio.sleep(0)
        await asyncio.wait_for(waiting[3], 5)
        turns.give_back()
        assert turns.is_free

    asyncio.run(work())


def test_decoding_for_one_caller_does_not_hold_up_another(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    async def work() -> None:
        reading = Intake(ServiceSettings())

        async def slowly(data: bytes, *_: object) -> DecodedPixels:
            await asyncio.sleep(0.01)
            done.append("many" if len(data) % 2 else "one")
            return DecodedPixels(np.zeros((8, 8, 3), np.uint8), 0.0)

        monkeypatch.setattr(reading.processes, "pixels_async", slowly)
        images = [picture(seed) for seed in range(40)]
        odd, even = ([one for one in images if len(one) % 2 == rest] for rest in (1, 0))

        async def read(caller: str, data: bytes) -> None:
            set_calling(caller)
            await reading.read(data, SMALL)

        many = [asyncio.create_task(read("many", odd[0])) for _ in range(60)]
        await asyncio.sleep(0)
        await asyncio.create_task(read("one", even[0]))
        assert done.index("one") < 12
        await asyncio.gather(*many)
        reading.close()

    asyncio.run(work())


def test_what_decoding_costs_counts_as_requests(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "_SECONDS_A_REQUEST", 1e-7)
    with client(space, rate=100) as http:
        assert http.post("/v1/search", files={"image": picture()}).status_code == 200
        refused = http.post("/v1/search", files={"image": picture()})
        assert (refused.status_code, refused.json()["type"]) == (429, "/problems/too-many-requests")
        assert int(refused.headers["retry-after"]) > 60


def test_an_image_that_cannot_be_read_costs_the_time_it_took(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "_SECONDS_A_REQUEST", 1e-7)
    with client(space, rate=100) as http:
        assert http.post("/v1/search", files={"image": picture()[:-30]}).status_code == 422
        assert http.post("/v1/search", files={"image": picture()}).status_code == 429


def test_the_images_of_a_request_count(space: Workspace) -> None:
    with client(space, rate=2) as http:
        images = [("images", picture(seed, (4, 4))) for seed in range(22)]
        assert (
            http.post("/v1/search/batch", files=images).status_code == 200
        )  # 1 for the request, 2.1 for 21 images
        assert http.get("/v1/items").status_code == 429


def test_debts_are_paid_with_time() -> None:
    now = [0.0]
    buckets = TokenBuckets(60, lambda: now[0])
    assert buckets.take("a", 100, owing=True) == 0
    assert buckets.take("a") == pytest.approx(41)
    assert buckets.take("b") == 0
    now[0] = 41.0
    assert buckets.take("a") == pytest.approx(0)


def test_one_caller_does_not_use_up_the_places_of_all(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [Keys(space.path).add(name, "read") for name in ("first", "second")]
    release = threading.Event()
    real = LocalEmbedder.one

    def slow(self: LocalEmbedder, images: Any, role: Role = "item") -> Any:
        release.wait(120)
        return real(self, images, role)

    monkeypatch.setattr(LocalEmbedder, "one", slow)

    async def work() -> None:
        async with async_client(space, waiting=3) as (http, app):
            space.serving.encoder("v1")

            async def ask(key: str, seed: int) -> int:
                answer = await http.post(
                    "/v1/search", files={"image": picture(seed)}, headers={"X-API-Key": key}
                )
                return answer.status_code

            asked = [asyncio.create_task(ask(keys[0], seed)) for seed in range(3)]
            while app.state.context.batcher._inside < 3:
                await asyncio.sleep(0.01)
            assert await ask(keys[0], 9) == 503
            other = asyncio.create_task(ask(keys[1], 9))
            while app.state.context.batcher._inside < 4:
                await asyncio.sleep(0.01)
            release.set()
            assert await asyncio.gather(*asked, other) == [200] * 4

    asyncio.run(work())


# --- payloads


def test_a_payload_has_a_limit(space: Workspace) -> None:
    with client(space, payload_bytes=1000) as http:
        small, large = ({"payload": json.dumps({"text": "x" * size})} for size in (900, 1000))
        assert http.put("/v1/item?id=a", files={"image": picture()}, data=small).status_code == 200
        refused = http.put("/v1/item?id=a", files={"image": picture()}, data=large)
        assert (refused.status_code, refused.json()["type"]) == (413, "/problems/too-large")
        several = {"payloads": json.dumps([{}, {"text": "x" * 1000}])}
        for path in ("/v1/items", "/v1/items/async"):
            files = [("images", picture(seed)) for seed in range(2)]
            assert http.post(path, files=files, data=several).status_code == 413
        grown = http.patch("/v1/item?id=a", json={"payload": {"more": "y" * 900}})
        assert (grown.status_code, "would have" in grown.json()["detail"]) == (400, True)
        assert (
            http.patch("/v1/item?id=a", json={"payload": {"text": None, "more": 1}}).status_code
            == 200
        )
        space.update_payload("a", {"text": "x" * 5000})  # by the operator
        assert (
            http.patch("/v1/item?id=a", json={"payload": {"text": "x" * 3000}}).status_code == 200
        )  # it shrinks


@pytest.fixture
def long_payloads(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(routes_items, "LISTED", 10_000)
    with client(space) as http:
        http.put("/v1/item?id=0", files={"image": picture()})
        vector = space.gallery.get(["0"])["0"].vector
        names = [str(number) for number in range(9)]
        payloads = [{"text": name * 4000} for name in names]
        space.gallery.upsert("v1", names, np.stack([vector] * 9), payloads)
        yield http


def test_a_page_of_long_payloads_ends_sooner(long_payloads: TestClient) -> None:
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = long_payloads.get("/v1/items", params={"after": after} if after else {}).json()
        assert len(page["items"]) <= 3
        seen += [item["id"] for item in page["items"]]
        after = page["next"]
    assert seen == [str(number) for number in range(9)]


def test_a_count_of_long_values_ends_sooner(long_payloads: TestClient) -> None:
    seen: dict[str, int] = {}
    after: str | None = ""
    while after is not None:
        wanted = {"field": "text", **({"after": after} if after else {})}
        page = long_payloads.get("/v1/items/count", params=wanted).json()
        assert sum(map(len, page["values"])) < 20_000
        seen |= page["values"]
        after = page["next"]
    assert sorted(text[0] for text in seen) == [str(number) for number in range(9)]
