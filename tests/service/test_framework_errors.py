"""What the framework refuses by itself is told as everything else is, and its limits are ours."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

import pytest
from service_clients import client, picture
from shops import shop

from fixstar.workspace import Workspace


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return shop(tmp_path / "shop", versions=1)


def assert_told(answer: Any, status: int) -> dict[str, Any]:
    told: dict[str, Any] = answer.json()
    assert answer.status_code == told["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert told["title"]
    assert told["detail"]
    assert told["hint"]
    return told


def test_addresses_and_methods_that_there_are_not(space: Workspace) -> None:
    with client(space) as http:
        assert "/v1/nothing" in assert_told(http.get("/v1/nothing"), 404)["detail"]
        answer = http.patch("/v1/deploy")
        assert "POST" in assert_told(answer, 405)["detail"]
        assert answer.headers["allow"] == "POST"


def test_forms_that_cannot_be_read(space: Workspace) -> None:
    with client(space) as http:
        without = http.put(
            "/v1/item?id=a", content=b"--x", headers={"content-type": "multipart/form-data"}
        )
        assert "boundary" in assert_told(without, 400)["hint"]
        damaged = {"content-type": "multipart/form-data; boundary=x"}
        assert_told(http.put("/v1/item?id=a", content=b"no form at all", headers=damaged), 400)
        nameless = b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--\r\n"
        assert_told(http.put("/v1/item?id=a", content=nameless, headers=damaged), 400)


def test_too_many_files_and_fields(space: Workspace) -> None:
    with client(space, images_a_job=3) as http:
        files = [("images", ("a.png", picture()))]
        told = assert_told(http.post("/v1/items/async", files=files * 4), 422)
        assert "3" in told["detail"]
        assert http.post("/v1/items/async", files=files * 3).status_code == 202
        assert_told(
            http.post("/v1/items", files=files, data={str(number): "" for number in range(1001)}),
            422,
        )


def test_payloads_of_many_images_may_be_long(space: Workspace) -> None:
    payload = {"text": "x" * 40_000}
    images = [("images", ("a.png", picture(seed, (4, 4)))) for seed in range(40)]
    with client(space) as http:
        answer = http.post(
            "/v1/items", files=images, data={"payloads": json.dumps([payload] * 40)}
        )  # 1.6 MB
        assert answer.status_code == 200
        [name, *_] = answer.json()["added"]
        assert http.get("/v1/item", params={"id": name}).json()["payload"] == payload
        alone = {"payload": json.dumps({"text": "x" * 2_000_000})}
        assert http.put("/v1/item?id=a", files={"image": picture()}, data=alone).status_code == 200


def test_a_field_beyond_the_limit_is_too_large(space: Workspace) -> None:
    with client(space, field_bytes=1000) as http:
        long = {"payload": json.dumps({"text": "x" * 1000})}
        assert_told(http.put("/v1/item?id=a", files={"image": picture()}, data=long), 413)


def test_a_full_disk_under_a_form_is_told_as_that(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with client(space) as http:
        monkeypatch.setattr(SpooledTemporaryFile, "write", no_room)
        assert_told(http.put("/v1/item?id=a", files={"image": picture()}), 507)


def test_whoever_looks_after_the_service_may_ask_by_head(space: Workspace) -> None:
    with client(space) as http:
        for path in ("/healthz", "/readyz"):
            answer = http.head(path)
            assert answer.status_code == 200
            assert "head" not in http.get("/v1/openapi.json").json()["paths"][path]
