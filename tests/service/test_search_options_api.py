"""Batches, thresholds, examples, counts and payloads: over HTTP, from the client, and in Python alike."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from service_clients import client, picture
from shops import pictures, shop
from wording import refuses

from fixstar.errors import GalleryError, InputError
from fixstar.geometry import unit
from fixstar.service import routes_items
from fixstar.workspace import Examples, Workspace, catalogue


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    made = shop(tmp_path / "shop")
    made.index(catalogue(pictures(tmp_path / "pictures")))
    return made


@pytest.fixture
def http(space: Workspace) -> Iterator[TestClient]:
    with client(space) as asking:
        yield asking


def names(answer: Any) -> list[str]:
    return [hit["id"] for hit in answer["hits"]]


def test_several_images_get_the_answers_of_each(http: TestClient) -> None:
    images = [picture(i) for i in range(4)]
    files = [("images", ("any.png", image)) for image in images]
    together = http.post("/v1/search/batch?k=3", files=files).json()
    alone = [http.post("/v1/search?k=3", files={"image": image}).json() for image in images]
    assert [names(one) for one in together] == [names(one) for one in alone]
    bad = http.post("/v1/search/batch", files=[*files[:2], ("images", ("any.png", b"no image"))])
    assert (bad.status_code, bad.json()["detail"][:8]) == (415, "image 2:")
    assert http.post("/v1/search/batch", files=files * 17).status_code == 422


def test_hits_below_a_score_are_left_out(http: TestClient, space: Workspace) -> None:
    scores = [
        hit["score"]
        for hit in http.post("/v1/search?k=9", files={"image": picture(3)}).json()["hits"]
    ]
    least = (scores[3] + scores[4]) / 2
    for form in ({}, {"min_score": str(least)}):
        address = "/v1/search?k=9" if form else f"/v1/search?k=9&min_score={least}"
        found = http.post(address, files={"image": picture(3)}, data=form).json()
        assert [hit["score"] for hit in found["hits"]] == scores[:4]
    vector = space.serving.embed("v1", [picture(3)])
    body = {"vector": vector[0].tolist(), "k": 9, "min_score": least}
    assert len(http.post("/v1/search/vector", json=body).json()["hits"]) == 4
    assert len(http.get("/v1/item/similar?id=hat/1.png&k=9&min_score=1").json()["hits"]) == 0
    assert len(space.gallery.search("v1", vector, k=9, min_score=least)[0]) == 4
    assert http.post("/v1/search?min_score=2", files={"image": picture(3)}).status_code == 422
    with pytest.raises(GalleryError, match="from -1 to 1"):
        space.search([picture(3)], min_score=float("nan"))


def test_fields_that_no_item_has_are_named_where_nothing_was_found(
    http: TestClient, space: Workspace
) -> None:
    """A field of a few items is known, and one that must be absent is not missed."""
    http.patch("/v1/item?id=hat/1.png", json={"payload": {"price": 5}})
    vector = space.gallery.get(["hat/0.png"])["hat/0.png"].vector.tolist()

    def unknown(where: dict[str, Any]) -> set[tuple[str, ...]]:
        text, image = {"where": json.dumps(where)}, {"image": picture(3)}
        answers = [
            http.post("/v1/search", params=text, files=image),
            http.post("/v1/search", params={**text, "version": "v1"}, files=image),
            http.post("/v1/search/vector", json={"vector": vector, "where": where}),
            http.post(
                "/v1/search/examples", json={"positive": {"ids": ["hat/0.png"]}, "where": where}
            ),
            http.get("/v1/item/similar", params={"id": "hat/0.png", **text}),
        ]
        batch = http.post("/v1/search/batch", params=text, files={"images": picture(3)}).json()
        return {
            tuple(one["unknown_fields"]) for one in [*batch, *(answer.json() for answer in answers)]
        }

    assert unknown({"lable": "hat", "label": "hat", "colour": {"ne": "red"}}) == {
        ("lable", "colour")
    }
    assert unknown({"label": "cat"}) == {()}
    assert unknown({"price": {"gt": 5}}) == {()}
    assert unknown({"price": 6, "sold": {"exists": False}}) == {()}
    assert unknown({"sold": {"exists": False}}) == {()}


def test_stored_examples_make_one_query(http: TestClient, space: Workspace) -> None:
    body = {
        "positive": {"ids": ["hat/0.png", "hat/1.png"]},
        "negative": {"ids": ["bag/0.png"]},
        "k": 9,
    }
    found = http.post("/v1/search/examples", json=body).json()
    items = {item.id: item.vector.astype(float) for item in space.gallery.iterate()}
    query = unit((items["hat/0.png"] + items["hat/1.png"]) / 2 - items["bag/0.png"] / 2)
    others = sorted(
        items.keys() - {"hat/0.png", "hat/1.png", "bag/0.png"},
        key=lambda name: -items[name] @ query,
    )
    assert names(found) == others
    one = http.post("/v1/search/examples", json={"positive": {"ids": ["hat/0.png"]}, "k": 3}).json()
    assert one["hits"] == http.get("/v1/item/similar?id=hat/0.png&k=3").json()["hits"]


def test_images_and_items_of_several_versions_are_embedded_by_the_deployed_one(
    http: TestClient, space: Workspace, tmp_path: Path
) -> None:
    image = base64.b64encode(picture(3)).decode()
    body = {"positive": {"ids": ["hat/0.png"], "images": [image]}, "negative": {"images": [image]}}
    found = http.post("/v1/search/examples", json=body).json()
    hat, other = space.serving.embed("v1", [tmp_path / "pictures" / "hat" / "0.png", picture(3)])
    truth = space.serving.search_vectors(
        "v1", unit(((hat + other) / 2 - other / 2)[None]).astype(np.float32)
    )
    assert names(found) == [hit.id for hit in truth.hits[0] if hit.id != "hat/0.png"]
    space.gallery.upsert("v1", ["bare"], hat[None], [{}])
    refused = http.post(
        "/v1/search/examples", json={"positive": {"ids": ["bare"], "images": [image]}}
    )
    assert (refused.status_code, "no image or text here" in refused.json()["detail"]) == (400, True)


def test_one_example_image_is_a_plain_search(
    http: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is decoded once, for the model: an image of another shape would lose more if it were cropped twice."""
    buffer = io.BytesIO()
    wide = np.random.default_rng(0).integers(0, 256, (50, 97, 3), dtype=np.uint8)
    Image.fromarray(wide).save(buffer, "PNG")
    monkeypatch.setattr("fixstar.images.reading._open", None)  # this process decodes nothing
    plain = http.post("/v1/search?k=9", files={"image": buffer.getvalue()}).json()
    example = {"positive": {"images": [base64.b64encode(buffer.getvalue()).decode()]}, "k": 9}
    found = http.post("/v1/search/examples", json=example).json()
    assert names(found) == names(plain)
    assert [hit["score"] for hit in found["hits"]] == pytest.approx(
        [hit["score"] for hit in plain["hits"]], abs=1e-6
    )


@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
def test_what_can_be_indexed_can_be_searched(http: TestClient, kind: str) -> None:
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    buffer = io.BytesIO()
    Image.open(io.BytesIO(picture(3))).convert("RGB").resize((64, 64)).save(buffer, kind)
    assert http.post("/v1/search", files={"image": buffer.getvalue()}).status_code == 200
    stored = http.put("/v1/item?id=new", files={"image": buffer.getvalue()})
    assert stored.status_code == 200, stored.text
    assert http.get("/v1/item/image?id=new").status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"positive": {}}, 400),
        ({"positive": {"ids": ["none"]}}, 404),
        ({"positive": {"images": ["!"]}}, 422),
        ({"positive": {"images": ["AAAA"]}}, 415),
        ({"negative": {"ids": ["hat/0.png"]}}, 422),
        ({"positive": {"ids": ["hat/0.png"]}, "where": {"image": "x"}}, 422),
        ({"positive": {"ids": ["hat/0.png"], "paths": ["x"]}}, 422),
    ],
)
def test_wrong_examples(http: TestClient, body: dict[str, Any], status: int) -> None:
    answer = http.post("/v1/search/examples", json=body)
    assert (answer.status_code, answer.json()["status"]) == (status, status)


def test_examples_that_cancel_out(space: Workspace) -> None:
    vector = space.gallery.get(["hat/0.png"])["hat/0.png"].vector
    space.gallery.upsert("v1", ["a", "b"], np.stack([vector, -vector]), [{}, {}])
    with refuses(InputError):
        space.search_examples(Examples(ids=["a", "b"]))


def test_a_payload_changes_and_the_vector_stays(http: TestClient, space: Workspace) -> None:
    before = space.gallery.get(["hat/1.png"])["hat/1.png"]
    answer = http.patch(
        "/v1/item?id=hat/1.png", json={"payload": {"price": 5, "label": None}}
    ).json()
    assert (answer["payload"], answer["label"]) == ({"price": 5}, None)
    after = space.gallery.get(["hat/1.png"])["hat/1.png"]
    assert np.array_equal(after.vector, before.vector)
    assert after.payload == {
        **{k: v for k, v in before.payload.items() if k != "label"},
        "price": 5,
    }
    assert http.get(answer["thumbnail"]).status_code == 200
    assert http.patch("/v1/item?id=none", json={"payload": {}}).status_code == 404
    assert (
        http.patch("/v1/item?id=hat/1.png", json={"payload": {"image": "/etc/passwd"}}).status_code
        == 422
    )
    with pytest.raises(InputError, match="reserved"):
        space.update_payload("hat/1.png", {"stamp": "x"})


def test_items_are_counted_by_payload(
    http: TestClient, space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert http.get("/v1/items/count").json() == {
        "count": 9,
        "values": {},
        "looked_at": 0,
        "next": None,
    }
    http.patch("/v1/item?id=hat/1.png", json={"payload": {"label": "bag", "sizes": [1, 2]}})
    found = http.get("/v1/items/count?field=label").json()
    assert (found["count"], found["values"]) == (9, {"bag": 4, "shoe": 3, "hat": 2})
    assert list(found["values"]) == ["bag", "shoe", "hat"]
    assert space.facets("label") == found["values"]
    assert space.facets("sizes") == {"[1, 2]": 1}
    assert (
        space.count({"label": "bag"})
        == http.get('/v1/items/count?where={"label": "bag"}').json()["count"]
        == 4
    )
    monkeypatch.setattr(routes_items, "COUNTED", 4)
    counted, after = 0, ""
    while after is not None:
        page = http.get(
            "/v1/items/count",
            params={"where": '{"label": "bag"}', **({"after": after} if after else {})},
        )
        counted, after = counted + page.json()["count"], page.json()["next"]
    assert counted == 4
    assert http.get("/v1/items/count?version=v9").status_code == 404
    assert http.get("/v1/items/count?field=image").status_code == 422


def test_another_version_than_the_deployed_one_answers_when_asked(
    http: TestClient, space: Workspace
) -> None:
    found = http.post("/v1/search?k=4&version=v2", files={"image": picture(3)}).json()
    expected = space.serving.search_vectors("v2", space.serving.embed("v2", [picture(3)]), k=4)
    assert (found["version"], names(found)) == ("v2", [hit.id for hit in expected.hits[0]])
    assert space.deployed() == "v1"
    missing = http.post("/v1/search?version=v9", files={"image": picture(3)})
    assert (missing.status_code, missing.json()["type"]) == (404, "/problems/unknown-version")


def test_a_sample_is_of_as_many_labels_as_possible(
    http: TestClient, space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {item.payload["label"] for item in space.gallery.iterate()}
    few = http.get(f"/v1/items/sample?limit={len(labels)}").json()
    assert {item["label"] for item in few} == labels
    everything = http.get("/v1/items/sample?limit=100").json()
    assert {item["id"] for item in everything} == {item.id for item in space.gallery.iterate()}

    monkeypatch.setattr(routes_items, "_REPEATED", 2)
    monkeypatch.setattr(routes_items, "SCANNED", 10)
    row = space.gallery.get([few[0]["id"]])[few[0]["id"]].vector
    space.gallery.delete([item["id"] for item in everything])
    names = [f"{label}/{number}" for label in "abc" for number in range(50)]
    payloads = [{"label": name[0]} for name in names]
    space.gallery.upsert("v1", names, np.stack([row] * len(names)), payloads)
    assert {item["label"] for item in http.get("/v1/items/sample?limit=3").json()} == set("abc")
