"""Pages of the gallery with a filter: every item once, and each page bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from service_clients import client
from shops import pictures, shop

from fixstar.service import routes_items
from fixstar.service.client import Client
from fixstar.workspace import Workspace, catalogue


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    """Three bags, then three hats, then three shoes."""
    made = shop(tmp_path / "shop")
    made.index(catalogue(pictures(tmp_path / "photos")))
    return made


@pytest.fixture
def http(space: Workspace) -> Iterator[TestClient]:
    with client(space) as asking:
        yield asking


def pages(http: TestClient, where: Any, limit: int, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while not found or found[-1]["next"] is not None:
        answer = http.get(
            "/v1/items", params={"where": json.dumps(where), "limit": limit, **after, **more}
        )
        assert answer.status_code == 200, answer.text
        found.append(answer.json())
        after = {"after": str(found[-1]["next"])}
    return found


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [item["id"] for page in found for item in page["items"]]


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
@pytest.mark.parametrize("most", [1, 2, 4, 5000])
def test_pages_of_a_filter_hold_every_such_item_once(
    http: TestClient, monkeypatch: pytest.MonkeyPatch, limit: int, most: int
) -> None:
    monkeypatch.setattr(routes_items, "SCANNED", most)
    found = pages(http, {"label": {"in": ["bag", "shoe"]}}, limit)
    assert ids(found) == [
        f"{label}/{number}.png" for label in ("bag", "shoe") for number in range(3)
    ]
    assert all(page["looked_at"] <= most and len(page["items"]) <= limit for page in found)
    assert sum(page["looked_at"] for page in found) == 9


def test_a_page_ends_where_enough_was_looked_at_and_says_how_to_go_on(
    http: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_items, "SCANNED", 4)
    first, second, third = pages(http, {"label": "shoe"}, 50)
    assert (first["items"], first["next"], first["looked_at"]) == ([], "hat/0.png", 4)
    assert ([item["id"] for item in second["items"]], second["next"]) == (
        ["shoe/0.png", "shoe/1.png"],
        "shoe/1.png",
    )
    assert third["next"] is None


def test_a_filter_and_a_version_go_together(http: TestClient, space: Workspace) -> None:
    space.deploy("v2", force="test")
    space.index(
        [item for item in catalogue(space.path.parent / "photos") if item.id == "hat/1.png"],
        again=True,
    )
    assert ids(pages(http, {"label": "hat"}, 50, version="v2")) == ["hat/1.png"]
    assert ids(pages(http, {"label": "hat"}, 50, version="v1")) == ["hat/0.png", "hat/2.png"]


@pytest.mark.parametrize("where", ["{", "[]", '{"label": {"near": 1}}', '{"image": "x"}'])
def test_a_wrong_filter_is_a_problem(http: TestClient, where: str) -> None:
    answer = http.get("/v1/items", params={"where": where})
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_client_goes_through_pages_that_hold_nothing(
    http: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_items, "SCANNED", 2)

    def answer(request: httpx.Request) -> httpx.Response:
        seen = http.get(str(request.url))
        return httpx.Response(seen.status_code, json=seen.json())

    with Client("http://127.0.0.1:8080", transport=httpx.MockTransport(answer)) as asking:
        assert [item.id for item in asking.items(where={"label": "shoe"})] == [
            f"shoe/{n}.png" for n in range(3)
        ]
