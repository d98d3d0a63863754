"""Changes of one item that come at once: what was acknowledged stays, and a stale change is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from service_clients import async_client, client, picture
from shops import shop

from fixstar.service.client import Client, ServiceError
from fixstar.workspace import Workspace

ITEM = "/v1/item?id=a"


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return shop(tmp_path / "shop")


@pytest.fixture
def http(space: Workspace) -> Iterator[TestClient]:
    with client(space) as asking:
        asking.put(ITEM, files={"image": picture(1)}, data={"payload": '{"n": 1}'})
        yield asking


def test_fields_that_are_changed_at_once_are_all_kept(space: Workspace) -> None:
    async def change() -> list[int]:
        async with async_client(space) as (http, _):
            await http.put(ITEM, files={"image": picture(1)})
            answers = await asyncio.gather(
                *(http.patch(ITEM, json={"payload": {str(number): True}}) for number in range(30))
            )
            stored = (await http.get(ITEM)).json()["payload"]
            assert stored.keys() == {str(number) for number in range(30)}
            return [answer.status_code for answer in answers]

    assert asyncio.run(change()) == [200] * 30


def test_an_item_that_is_stored_beside_changes_is_not_undone(space: Workspace) -> None:
    async def store() -> None:
        async with async_client(space) as (http, _):
            await http.put(ITEM, files={"image": picture(1)})

            async def change_until(stored: asyncio.Future[Any]) -> None:
                while not stored.done():
                    assert (
                        await http.patch(ITEM, json={"payload": {"seen": True}})
                    ).status_code == 200

            for step in range(8):
                payload = json.dumps({"step": step})
                stored = asyncio.ensure_future(
                    http.put(ITEM, files={"image": picture(1)}, data={"payload": payload})
                )
                await asyncio.gather(*(change_until(stored) for _ in range(4)))
                assert (await stored).status_code == 200
                assert (await http.get(ITEM)).json()["payload"]["step"] == step

    asyncio.run(store())


def test_every_change_has_another_etag(http: TestClient) -> None:
    stored = http.put(ITEM, files={"image": picture(1)})
    seen = http.get(ITEM)
    changed = http.patch(ITEM, json={"payload": {"n": 2}})
    assert stored.headers["etag"] == seen.headers["etag"] == f'"{seen.json()["revision"]}"'
    assert changed.headers["etag"] == http.get(ITEM).headers["etag"] != seen.headers["etag"]
    assert http.get("/v1/items").json()["items"][0]["revision"] == changed.json()["revision"]


def test_a_stale_change_is_refused_and_writes_nothing(http: TestClient) -> None:
    seen = http.get(ITEM).headers["etag"]
    now = http.patch(ITEM, json={"payload": {"n": 2}}, headers={"If-Match": seen}).headers["etag"]
    stale = {"If-Match": seen}
    for refused in (
        http.patch(ITEM, json={"payload": {"n": 3}}, headers=stale),
        http.put(ITEM, files={"image": picture(2)}, headers=stale),
        http.put("/v1/item?id=new", files={"image": picture(2)}, headers=stale),
        http.delete(ITEM, headers=stale),
    ):
        assert (refused.status_code, refused.json()["type"]) == (412, "/problems/item-changed")
    assert http.get(ITEM).headers["etag"] == now
    assert http.get("/v1/items/count").json()["count"] == 1
    now = http.put(ITEM, files={"image": picture(2)}, headers={"If-Match": f"W/{now}"}).headers[
        "etag"
    ]
    assert http.delete(ITEM, headers={"If-Match": now}).json() == {"deleted": 1}
    assert http.delete(ITEM, headers={"If-Match": now}).status_code == 404


@pytest.mark.parametrize("tag", ["7", "*", '"x"', '"1", "2"', '"' + "9" * 30 + '"'])
def test_an_etag_that_is_not_one_of_ours_is_told(http: TestClient, tag: str) -> None:
    refused = http.patch(ITEM, json={"payload": {"n": 3}}, headers={"If-Match": tag})
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/invalid-request")
    assert http.get(ITEM).json()["payload"] == {"n": 1}


def test_the_client_sends_the_revision_that_it_read(http: TestClient) -> None:
    asking = Client()
    asking.close()
    asking._http = http  # type: ignore[assignment]
    seen = asking.item("a")
    assert asking.update("a", {"n": 2}, seen.revision).payload == {"n": 2}
    with pytest.raises(ServiceError, match="has changed") as caught:
        asking.update("a", {"n": 3}, seen.revision)
    assert (caught.value.status, caught.value.problem) == (412, "/problems/item-changed")
