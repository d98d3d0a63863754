"""Items over HTTP: what was acknowledged is stored, and nothing of a request is a path."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from service_clients import client, picture
from shops import pictures, shop

from fixstar.service.jobs import queue
from fixstar.workspace import Workspace, catalogue


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return shop(tmp_path / "shop")


@pytest.fixture
def http(space: Workspace) -> Iterator[TestClient]:
    with client(space) as asking:
        yield asking


def posted(http: TestClient, *images: bytes, where: str = "/v1/items", **lists: list[Any]) -> Any:
    files = [("images", ("../../etc/passwd", data)) for data in images]
    return http.post(
        where, files=files, data={name: json.dumps(content) for name, content in lists.items()}
    )


def test_images_are_stored_before_the_answer(http: TestClient, space: Workspace) -> None:
    answer = posted(
        http, picture(1), picture(2), ids=["a/1", "b"], payloads=[{"label": "hat", "price": 3}, {}]
    )
    assert answer.json() == {"version": "v1", "added": ["a/1", "b"], "bad": []}
    with Workspace(space.path) as another:  # as another process would see it
        stored = another.gallery.get(["a/1", "b"])
        kept = another.images.find(stored["a/1"])
    assert stored["a/1"].payload["price"] == 3
    assert kept is not None
    assert kept.read_bytes() == picture(1)
    assert np.allclose(stored["b"].vector, space.serving.embed("v1", [picture(2)])[0], atol=1e-6)


def test_bad_images_are_named_and_the_others_stored(http: TestClient, space: Workspace) -> None:
    answer = posted(
        http, picture(1), b"no image", picture(2)[:-40], ids=["good", "text", "cut"]
    ).json()
    assert answer["added"] == ["good"]
    assert [bad["id"] for bad in answer["bad"]] == ["text", "cut"]
    assert [bad["index"] for bad in answer["bad"]] == [1, 2]
    assert space.gallery.count() == {"v1": 1}


def test_bad_images_without_ids_are_told_by_place_and_file_name(http: TestClient) -> None:
    files = [
        ("images", (name, data))
        for name, data in (("a.png", picture(1)), ("b.png", b"text"), ("c.png", b""))
    ]
    answer = http.post("/v1/items", files=files).json()
    first, second = answer["bad"]
    assert (first["index"], first["file"], second["index"], second["file"]) == (
        1,
        "b.png",
        2,
        "c.png",
    )
    assert first["reason"].startswith(
        "Not an image of a known format: its first bytes are not those of a JPEG"
    )
    assert "the file is empty" in second["reason"]
    assert len(answer["added"]) == 1


@pytest.mark.parametrize(
    ("images", "status"),
    [
        ([b"text"], 415),
        ([b"text", b"", b"more text"], 415),
        ([picture(2)[:-40]], 422),
        ([picture(2, (200, 200))], 413),
        ([b"text", picture(2)[:-40]], 422),
    ],
)
def test_where_every_image_is_bad_the_answer_is_an_error(
    space: Workspace, images: list[bytes], status: int
) -> None:
    with client(space, upload_bytes=50_000) as http:
        answer = posted(http, *images)
    told = answer.json()
    assert answer.status_code == told["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert [bad["index"] for bad in told["bad"]] == list(range(len(images)))
    assert "nothing was stored" in told["detail"]
    assert told["hint"]
    assert not sum(space.gallery.count().values())


def test_a_file_name_with_half_a_character_is_told_without_it(http: TestClient) -> None:
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="images"; filename="'
        + name
        + b'"\r\n\r\n'
        + data
        + b"\r\n"
        for name, data in ((b"+2AA-", b"text"), (b"a", picture(1)))  # UTF-7, which can write it
    ]
    headers = {"content-type": "multipart/form-data; boundary=x; charset=utf-7"}
    answer = http.post("/v1/items", content=b"".join(parts) + b"--x--\r\n", headers=headers)
    assert answer.status_code == 200
    assert answer.json()["bad"][0]["index"] == 0


def test_ids_are_made_up_so_that_nothing_is_overwritten(http: TestClient, space: Workspace) -> None:
    first, second = (posted(http, picture(1), picture(1)).json()["added"] for _ in range(2))
    assert len({*first, *second}) == 4
    assert space.gallery.count() == {"v1": 4}


@pytest.mark.parametrize(
    "lists",
    [
        {"ids": ["one"]},
        {"ids": ["same", "same"]},
        {"ids": ["", "b"]},
        {"ids": [1, 2]},
        {"ids": ["x" * 2000, "b"]},
        {"payloads": [{}]},
        {"payloads": ["text", {}]},
        {"payloads": [{"image": "/etc/passwd"}, {}]},
        {"payloads": [{"stamp": "x"}, {}]},
        {"payloads": [{"label": "\ud800"}, {}]},
        {"payloads": {"label": "hat"}},
    ],
)
def test_lists_that_do_not_fit_store_nothing(
    http: TestClient, space: Workspace, lists: dict[str, Any]
) -> None:
    answer = posted(http, picture(1), picture(2), **lists)
    assert answer.status_code == 422
    assert answer.json()["hint"]
    assert answer.headers["content-type"] == "application/problem+json"
    assert not sum(space.gallery.count().values())
    assert not (space.path / "images").exists()


def test_too_many_images_are_refused(space: Workspace) -> None:
    with client(space, items_at_once=2) as http:
        answer = posted(http, *[picture(i) for i in range(3)])
    assert answer.status_code == 422
    assert "/v1/items/async" in answer.json()["hint"]


def test_put_replaces_image_and_payload(http: TestClient) -> None:
    def put(seed: int, payload: dict[str, Any]) -> Any:
        files = {"image": ("x", picture(seed))}
        return http.put(
            "/v1/item", params={"id": "a b/ü"}, files=files, data={"payload": json.dumps(payload)}
        ).json()

    first, same, other = put(1, {"price": 1}), put(1, {"price": 2}), put(2, {"label": "hat"})
    assert (first["payload"], same["payload"], other["payload"]) == (
        {"price": 1},
        {"price": 2},
        {"label": "hat"},
    )
    assert first["thumbnail"] == same["thumbnail"] != other["thumbnail"]
    assert http.get("/v1/item", params={"id": "a b/ü"}).json() == other


def test_put_of_no_image_says_so(http: TestClient) -> None:
    answer = http.put("/v1/item?id=a", files={"image": ("x", b"text")})
    assert answer.status_code == 415
    assert http.get("/v1/item?id=a").status_code == 404


def test_items_are_deleted_one_by_one_and_together(http: TestClient, space: Workspace) -> None:
    posted(http, picture(1), picture(2), picture(3), ids=["a", "b", "c"])
    assert http.delete("/v1/item?id=a").json() == {"deleted": 1}
    assert http.delete("/v1/item?id=a").status_code == 404
    assert http.post("/v1/items/delete", json={"ids": ["b", "c", "d"]}).json() == {"deleted": 2}
    assert not sum(space.gallery.count().values())


def test_pages_hold_every_item_once(http: TestClient, space: Workspace, tmp_path: Path) -> None:
    space.index(catalogue(pictures(tmp_path / "pictures")))
    found: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = http.get("/v1/items", params={"limit": 4, "version": "v1", **after}).json()
        found += [item["id"] for item in page["items"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert found == [item.id for item in space.gallery.iterate()]
    assert http.get("/v1/items?version=v7").status_code == 404


def test_a_thumbnail_is_encoded_anew_small_and_upright(http: TestClient) -> None:
    sideways = Image.new("RGB", (600, 200), "red")
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "secret"
    buffer = io.BytesIO()
    sideways.save(buffer, "JPEG", exif=exif)
    posted(http, buffer.getvalue() + b"<script>alert(1)</script>", ids=["a"])
    answer = http.get("/v1/item/image?id=a&size=100")
    seen = Image.open(io.BytesIO(answer.content))
    assert (seen.format, seen.size) == ("JPEG", (43, 128))
    assert b"secret" not in answer.content
    assert b"script" not in answer.content
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_thumbnails_may_be_kept_and_asked_about(http: TestClient) -> None:
    posted(http, picture(1), ids=["a"])
    url = http.get("/v1/item?id=a").json()["thumbnail"]
    answer = http.get(url)
    assert "immutable" in answer.headers["cache-control"]
    assert "no-cache" in http.get("/v1/item/image?id=a").headers["cache-control"]
    again = http.get(url, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_picture_that_is_gone_is_a_problem(http: TestClient, space: Workspace) -> None:
    posted(http, picture(1), ids=["a"])
    path = space.images.find(space.gallery.get(["a"])["a"])
    assert path is not None
    path.write_bytes(b"damaged")
    assert http.get("/v1/item/image?id=a").status_code == 404
    path.unlink()
    assert http.get("/v1/item/image?id=a").status_code == 404
    space.gallery.upsert("v1", ["bare"], space.serving.embed("v1", [picture()]))
    assert http.get("/v1/item/image?id=bare").status_code == 404
    assert http.get("/v1/item?id=bare").json()["thumbnail"] is None


def test_later_means_on_disk_now_and_a_job(http: TestClient, space: Workspace) -> None:
    answer = posted(http, picture(1), picture(2), where="/v1/items/async", ids=["a", "b"])
    assert answer.status_code == 202
    assert answer.json()["kind"] == "index"
    assert len(list((space.path / "images").rglob("*.png"))) == 2
    refused = posted(http, picture(3), b"text", where="/v1/items/async")
    assert refused.status_code == 415
    assert "image 1 (passwd" in refused.json()["detail"].replace("../../etc/", "")


def test_a_job_tells_bad_images_by_place_and_file_name(http: TestClient) -> None:
    files = [
        ("images", (name, data))
        for name, data in (("a.png", picture(1)), ("cut.png", picture(2)[:-40]))
    ]
    job = http.post("/v1/items/async", files=files).json()
    end = time.monotonic() + 120
    while (seen := http.get(f"/v1/jobs/{job['id']}").json())["state"] != "done":
        assert time.monotonic() < end, seen
        time.sleep(0.02)
    [bad] = seen["result"]["bad"]
    assert (bad["index"], bad["file"], seen["result"]["added"]) == (1, "cut.png", 1)
    assert bad["reason"]


def test_images_for_a_job_that_is_refused_are_not_kept(
    http: TestClient, space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "WAITING", 0)
    refused = posted(http, picture(1), where="/v1/items/async")
    assert refused.status_code == 429
    assert not list((space.path / "images").rglob("*.png"))
