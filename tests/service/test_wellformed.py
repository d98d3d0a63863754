"""What cannot be stored is refused before anything is: numbers beyond all bounds, half characters, foreign bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from service_clients import client, picture
from shops import shop

from fixstar.workspace import Workspace

UNSTORABLE = [
    '{"x": 1e999}',
    '{"x": [{"y": -1e999}]}',
    '{"x": NaN}',
    r'{"x": "\ud800"}',
    r'{"\ud800": 1}',
]


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return shop(tmp_path / "shop", versions=1)


def assert_refused(answer: Any, space: Workspace) -> None:
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]
    assert not list((space.path / "images").rglob("*.png"))
    assert sum(space.gallery.count().values()) == 0


def test_a_payload_that_cannot_be_stored_leaves_nothing(space: Workspace) -> None:
    images = [("images", ("a.png", picture(seed))) for seed in range(2)]
    with client(space) as http:
        for payload in UNSTORABLE:
            assert_refused(
                http.put("/v1/item?id=a", files={"image": picture()}, data={"payload": payload}),
                space,
            )
            for path in ("/v1/items", "/v1/items/async"):
                assert_refused(
                    http.post(path, files=images, data={"payloads": f"[{{}}, {payload}]"}), space
                )
        assert http.get("/v1/jobs").json() == []


def test_ids_of_half_characters_leave_nothing(space: Workspace) -> None:
    with client(space) as http:
        for path in ("/v1/items", "/v1/items/async"):
            assert_refused(
                http.post(path, files={"images": picture()}, data={"ids": r'["\ud800"]'}), space
            )


BODIES: list[tuple[str, str | bytes]] = [
    ("/v1/search/vector", '{"vector": [1, 0, 0, 0, 0, 0, 0], "where": {"price": {"lt": 1e999}}}'),
    ("/v1/search/vector", '{"vector": [1e999, 0, 0, 0, 0, 0, 0]}'),
    ("/v1/search/vector", r'{"vector": [1, 0, 0, 0, 0, 0, 0], "where": {"a": "\udfff"}}'),
    ("/v1/items/delete", r'{"ids": ["\ud800"]}'),
    ("/v1/items/delete", b'{"ids": ["\xff"]}'),
    ("/v1/backfill", '{"rate": 1e999}'),
    ("/v1/backfill", "[" * 100_000),
]


def test_json_bodies_are_looked_at_as_a_whole(space: Workspace) -> None:
    with client(space) as http:
        for path, body in BODIES:
            answer = http.post(path, content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 422, body[:80]
            assert "the body" in answer.json()["detail"]


def test_a_good_json_body_arrives_whole(space: Workspace) -> None:
    with client(space) as http:
        http.put("/v1/item", params={"id": "schön"}, files={"image": picture()})
        parts = (part for part in (b'{"ids": ["sch', "ön".encode()[:1], "ön".encode()[1:], b'"]}'))
        answer = http.post(
            "/v1/items/delete", content=parts, headers={"content-type": "application/json"}
        )
        assert answer.json() == {"deleted": 1}


def test_a_query_that_is_not_utf8_is_refused(space: Workspace) -> None:
    with client(space) as http:
        for query in ("id=%ff", "id=%fe", "id=%ED%A0%80", "id=a&%ff=1"):
            assert_refused(http.put(f"/v1/item?{query}", files={"image": picture()}), space)


def test_every_id_of_whole_characters_is_kept_as_it_is(space: Workspace) -> None:
    with client(space) as http:
        for name in ("\N{REPLACEMENT CHARACTER}", "a+b c%", "schön/\N{SNOWMAN}"):
            assert (
                http.put("/v1/item", params={"id": name}, files={"image": picture()}).json()["id"]
                == name
            )
            assert http.get("/v1/item", params={"id": name}).json()["id"] == name


def test_a_put_answers_with_what_it_wrote(space: Workspace) -> None:
    """Another writer takes the item out, or puts another in its place, before the answer is made."""

    def put(http: TestClient) -> Any:
        return http.put(
            "/v1/item?id=a",
            files={"image": picture()},
            data={"payload": '{"label": "mine", "n": 1.5}'},
        )

    with client(space) as http:
        written = put(http).json()
        assert written == http.get("/v1/item?id=a").json()
        del written["revision"]
        upsert = space.gallery.upsert

        def then_deleted(version: str, ids: Any, *rest: Any) -> list[int]:
            made = upsert(version, ids, *rest)
            space.gallery.delete(ids)
            return made

        space.gallery.upsert = then_deleted  # type: ignore[method-assign,assignment]
        answer = put(http).json()
        assert (answer.pop("revision").isdigit(), answer) == (True, written)

        def then_replaced(
            version: str, ids: Any, vectors: Any, payloads: Any, *rest: Any
        ) -> list[int]:
            made = upsert(version, ids, vectors, payloads, *rest)
            upsert(version, ids, vectors, [{"label": "theirs"}])
            return made

        space.gallery.upsert = then_replaced  # type: ignore[method-assign,assignment]
        answer = put(http).json()
        assert (answer.pop("revision").isdigit(), answer) == (True, written)
