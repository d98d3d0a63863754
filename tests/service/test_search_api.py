"""Search over HTTP: the same answers as the workspace gives itself."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from service_clients import client, picture
from shops import passed, pictures, shop

from fixstar.translation import Threshold
from fixstar.workspace import Check, Workspace, catalogue
from fixstar.workspace.checks import save_check
from fixstar.workspace.search import Serving


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    made = shop(tmp_path / "shop")
    made.index(catalogue(pictures(tmp_path / "pictures")))
    return made


@pytest.fixture
def http(space: Workspace) -> Iterator[TestClient]:
    with client(space) as asking:
        yield asking


def asked(http: TestClient, data: bytes, options: str = "", **form: str) -> Any:
    return http.post(f"/v1/search{options}", files={"image": ("any.jpg", data)}, data=form)


def test_an_image_finds_what_the_workspace_finds(http: TestClient, space: Workspace) -> None:
    query = picture(3)
    answer = asked(http, query, "?k=4").json()
    truth = space.search([query], k=4)
    assert answer["version"] == truth.version == "v1"
    assert [(hit["id"], hit["score"]) for hit in answer["hits"]] == [
        (hit.id, hit.score) for hit in truth.hits[0]
    ]
    assert answer["milliseconds"] > 0


def test_hits_say_label_version_and_picture_but_no_path(http: TestClient, tmp_path: Path) -> None:
    answer = asked(http, picture(3))
    hit = answer.json()["hits"][0]
    assert hit.keys() == {"id", "score", "unlikely", "version", "label", "payload", "thumbnail"}
    assert hit["label"] == hit["id"].split("/")[0] == hit["payload"]["label"]
    assert str(tmp_path) not in answer.text
    assert http.get(hit["thumbnail"]).headers["content-type"] == "image/jpeg"


def test_options_come_in_the_address_or_in_the_form(http: TestClient) -> None:
    where = json.dumps({"label": "hat"})
    by_form = asked(http, picture(3), k="2", where=where, exact="false").json()["hits"]
    by_address = http.post(
        "/v1/search", params={"k": 2, "where": where, "exact": False}, files={"image": picture(3)}
    ).json()["hits"]
    assert by_form == by_address
    assert [hit["label"] for hit in by_form] == ["hat", "hat"]


@pytest.mark.parametrize(
    ("where", "status"),
    [
        ("?k=0", 422),
        ("?k=101", 422),
        ("?where=no json", 422),
        ('?where={"label": NaN}', 422),
        ("?where=" + "[" * 500, 422),
        ('?where={"label": {"near": 1}}', 422),
        ("?where=[1]", 422),
        ('?where={"price": {"lt": 1e999}}', 422),
        ('?where={"image": {"ge": "/"}}', 422),
        ('?where={"label": "hat", "stamp": {"exists": true}}', 422),
    ],
)
def test_wrong_options_are_problems(http: TestClient, where: str, status: int) -> None:
    answer = asked(http, picture(), where)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert answer.json()["detail"]


def test_no_image_is_a_problem(http: TestClient) -> None:
    assert http.post("/v1/search").status_code == 422
    assert (
        http.post(
            "/v1/search", content=b"\xff", headers={"content-type": "multipart/form-data"}
        ).status_code
        == 400
    )


def test_a_vector_of_any_length_finds_its_item(http: TestClient, space: Workspace) -> None:
    item = space.gallery.get(["hat/1.png"])["hat/1.png"]
    for scale in (1.0, 1e-30, 1e30):
        body = {
            "vector": (item.vector.astype(float) * scale).tolist(),
            "k": 2,
            "where": {"label": "hat"},
        }
        hits = http.post("/v1/search/vector", json=body).json()["hits"]
        assert hits[0]["id"] == "hat/1.png"
        assert hits[0]["score"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"vector": [1.0]}, 422),
        ({"vector": [0.0] * 8}, 422),
        ({"vector": []}, 422),
        ({"vector": [1.0] * 8, "version": "v9"}, 404),
        ({"vector": [1.0] * 8, "colour": 1}, 422),
        ({"vector": ["x"]}, 422),
    ],
)
def test_vectors_that_do_not_fit(http: TestClient, body: dict[str, Any], status: int) -> None:
    answer = http.post("/v1/search/vector", json=body)
    assert (answer.status_code, answer.json()["status"]) == (status, status)


def test_nan_is_no_number_of_a_vector(http: TestClient) -> None:
    answer = http.post(
        "/v1/search/vector",
        content='{"vector": [NaN]}',
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("where", "status"),
    [('{"price": 1e999}', 422), ('{"image": {"ge": "/"}}', 422), ('{"stamp": "x"}', 422)],
)
def test_filters_of_vectors_and_items_are_checked_too(
    http: TestClient, space: Workspace, where: str, status: int
) -> None:
    vector = json.dumps(space.gallery.get(["hat/1.png"])["hat/1.png"].vector.tolist())
    body = f'{{"vector": {vector}, "where": {where}}}'
    for answer in (
        http.post("/v1/search/vector", content=body, headers={"content-type": "application/json"}),
        http.get("/v1/item/similar", params={"id": "hat/1.png", "where": where}),
    ):
        assert answer.status_code == answer.json()["status"] == status


def test_versions_that_a_query_does_not_reach_are_named(
    http: TestClient, space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector = space.gallery.get(["hat/1.png"])["hat/1.png"].vector.tolist()
    asks = (
        lambda: asked(http, picture(3)),
        lambda: http.post("/v1/search/vector", json={"vector": vector}),
        lambda: http.get("/v1/item/similar", params={"id": "hat/1.png"}),
    )
    assert [ask().json()["left_out"] for ask in asks] == [[]] * 3
    search = Serving._search  # behind all three
    monkeypatch.setattr(
        Serving,
        "_search",
        lambda *query, **options: search(*query, **options)._replace(left_out=("v0",)),
    )
    assert [ask().json()["left_out"] for ask in asks] == [["v0"]] * 3


def test_more_like_this_leaves_the_item_out(http: TestClient, space: Workspace) -> None:
    hits = http.get("/v1/item/similar", params={"id": "hat/1.png", "k": 3}).json()["hits"]
    assert [hit["id"] for hit in hits] == [hit.id for hit in space.like("hat/1.png", k=3).hits[0]]
    assert http.get("/v1/item/similar", params={"id": "hat/99.png"}).status_code == 404


def test_after_a_deployment_the_new_version_asks_and_old_vectors_are_found(
    http: TestClient, space: Workspace
) -> None:
    passed(space, "v2", "v1")
    space.deploy("v2")
    answer = asked(http, picture(3)).json()
    assert answer["version"] == "v2"
    assert {hit["version"] for hit in answer["hits"]} == {"v1"}
    assert http.get("/readyz").json() == {"status": "ready", "version": "v2", "writes": True}


def test_hits_of_two_versions_come_with_probabilities(
    http: TestClient, space: Workspace, tmp_path: Path
) -> None:
    space.deploy("v2", force="test")
    space.index(list(catalogue(tmp_path / "pictures"))[:4], again=True)
    assert asked(http, picture(3)).json()["calibrated"] is False
    calibrations = {"v1": (5.0, -4.0), "v2": (5.0, -3.0)}
    thresholds = {"v1": Threshold(0.9, 0.05, 0.5, 100)}
    kept = Check(
        "v2",
        "pass",
        (),
        (),
        0.5,
        100,
        100,
        0.95,
        0.0,
        calibrations=calibrations,
        thresholds=thresholds,
    )
    save_check(space.path, kept)
    answer, truth = asked(http, picture(3)).json(), space.search([picture(3)])
    assert (answer["calibrated"], truth.calibrated) == (True, True)
    assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in truth.hits[0]]
    assert answer["thresholds"] == pytest.approx({"v1": 1 / (1 + math.exp(-0.5))})
    assert [hit["unlikely"] for hit in answer["hits"]] == [
        truth.is_unlikely(hit) for hit in truth.hits[0]
    ]
    assert [hit["score"] for hit in answer["hits"]] == pytest.approx(
        [hit.score for hit in truth.hits[0]]
    )
    vector = space.serving.embed("v2", [picture(3)])[0].tolist()
    by_vector = http.post("/v1/search/vector", json={"vector": vector}).json()
    assert by_vector["calibrated"] is True
    similar = {version: space.gallery.iterate(version) for version in ("v1", "v2")}
    found = {
        v: http.get("/v1/item/similar", params={"id": next(iter(items)).id}).json()
        for v, items in similar.items()
    }
    assert {v: answer["calibrated"] for v, answer in found.items()} == {
        "v1": False,
        "v2": True,
    }  # v1 was not checked


def test_a_workspace_without_a_version_is_alive_but_not_ready(tmp_path: Path) -> None:
    with client(Workspace.create(tmp_path / "empty")) as http:
        assert http.get("/healthz").status_code == 200
        assert http.get("/readyz").status_code == 503
        assert asked(http, picture()).status_code == 400
        assert http.get("/v1/status").json()["deployed"] is None


def test_the_documents_are_made_here(http: TestClient) -> None:
    document = http.get("/v1/openapi.json").json()
    search = document["paths"]["/v1/search"]["post"]["responses"]
    assert {"200", "413", "415", "422", "429"} <= search.keys()
    assert list(search["422"]["content"]) == ["application/problem+json"]
    page = http.get("/v1/docs").text
    assert "/v1/search" in page
    assert "//" not in page.replace("http://localhost", "")  # nothing is asked of another host
    assert "<script" not in page
    assert http.get("/static/docs.css").headers["content-type"].startswith("text/css")
    operations = [path for path, methods in document["paths"].items() for _ in methods]
    assert page.count("<details") == len(operations)
    assert all(f"<code>{path}</code>" in page for path in operations)
    assert "<code>min_score</code>" in page


def test_a_service_embeds_again_what_its_searches_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fixstar.service import app

    monkeypatch.setattr(app, "READ_EVERY", 0.01)
    space = shop(tmp_path / "read")
    space.index(catalogue(pictures(tmp_path / "met")))
    space.deploy("v2", force="to have old vectors")
    with client(space, read_through=36_000.0) as http:
        http.post(
            "/v1/search",
            files={"image": ("a.png", (tmp_path / "met" / "hat" / "0.png").read_bytes())},
        )
        end = time.monotonic() + 60
        while http.get("/v1/status").json()["vectors"] != {"v1": 0, "v2": 9}:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert 'embedded_images_total{purpose="item",version="v2"} 9.0' in http.get("/metrics").text
