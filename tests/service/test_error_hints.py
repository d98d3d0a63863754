"""Every error says what to do about it, in words for who sends requests."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image
from service_clients import client, picture
from shops import passed, pictures, shop
from wording import check_wording

from fixstar.errors import FixstarError
from fixstar.service.problems import Problem, problem_response
from fixstar.workspace import Workspace, catalogue

JSON = {"content-type": "application/json"}
URLENCODED = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Nine items of v1, which is deployed; v2 passed its check, v3 was never checked. A vector has 7 numbers."""
    folder = tmp_path_factory.mktemp("hints")
    made = shop(folder / "shop", versions=3)
    made.index(catalogue(pictures(folder / "photos")))
    passed(made, "v2", "v1")
    return made


@pytest.fixture(scope="module")
def http(space: Workspace) -> Iterator[TestClient]:
    with client(space, pixels=10_000, upload_bytes=1 << 20, rate=10**6) as asking:
        yield asking


def told(answer: Any, status: int, hint: str) -> dict[str, Any]:
    """The problem, if it is one of this status, complete, with this in its hint."""
    body: dict[str, Any] = answer.json()
    assert answer.status_code == body["status"] == status, body
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["type"].startswith("/problems/")
    assert body["title"]
    assert body["detail"]
    assert hint in body["hint"], body["hint"]
    return body


WHERE = '{"price": {"lt": 50}}'
ERRORS: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("GET", "/v1/items?where=red", {}, 422, WHERE),
    ("GET", "/v1/items?where=[1]", {}, 422, WHERE),
    ("GET", '/v1/items?where={"image":"x"}', {}, 422, "other payload fields"),
    ("GET", '/v1/items?where={"price":{"above":3}}', {}, 422, WHERE),
    ("GET", '/v1/items?where={"price":{"in":3}}', {}, 422, WHERE),
    (
        "POST",
        "/v1/search/vector",
        {"json": {"vector": [1.0] * 7, "where": {"a": {"b": 1}}}},
        422,
        WHERE,
    ),
    ("GET", '/v1/items?where={"a":1e999}', {}, 422, "JSON"),
    ("GET", "/v1/items?version=v9", {}, 404, "v1"),
    ("GET", "/v1/items?limit=501", {}, 422, "/v1/docs"),
    ("GET", "/v1/items?kk=3", {}, 422, "after, limit, version, where"),
    ("GET", "/v1/item?id=none", {}, 404, "/v1/items"),
    ("GET", "/v1/item/similar?id=hat/0.png&k=101", {}, 422, "/v1/docs"),
    (
        "PUT",
        "/v1/item?id=a",
        {"files": {"image": b"x"}, "data": {"payload": '{"a": 1e999}'}},
        422,
        "JSON",
    ),
    (
        "PUT",
        "/v1/item?id=a",
        {"files": {"image": b"x"}, "data": {"payload": '{"image": 1}'}},
        422,
        "another name",
    ),
    ("PUT", "/v1/item?id=a", {"files": {"image": b"text"}}, 415, "JPEG"),
    ("PUT", "/v1/item?id=a", {"files": {"image": b""}}, 415, "JPEG"),
    ("PUT", "/v1/item?id=a", {"json": {"image": "x"}}, 422, "curl -F image=@FILE"),
    (
        "PUT",
        "/v1/item?id=a",
        {"files": {"image": b"x"}, "data": {"payload": "red"}},
        422,
        '{"label": "shoes"}',
    ),
    ("POST", "/v1/search", {}, 422, "multipart/form-data with a file in the field image"),
    ("POST", "/v1/search/batch", {"content": picture()}, 422, "curl -F images=@FILE"),
    ("POST", "/v1/search", {"files": {"image": picture()[:-40]}}, 422, "save it again"),
    (
        "POST",
        "/v1/items",
        {"files": {"images": picture()}, "data": {"ids": "a"}},
        422,
        'JSON: send such as ["shoes/17"]',
    ),
    (
        "POST",
        "/v1/items",
        {"files": {"images": picture()}, "data": {"ids": "{}"}},
        422,
        '["shoes/17"]',
    ),
    (
        "POST",
        "/v1/items",
        {"files": {"images": picture()}, "data": {"ids": "[1]"}},
        422,
        '["shoes/17"]',
    ),
    (
        "POST",
        "/v1/items",
        {"files": {"images": picture()}, "data": {"payloads": "[1]"}},
        422,
        '{"label"',
    ),
    ("POST", "/v1/search/vector", {"json": {"vector": [1.0] * 8}}, 422, 'form="short"'),
    ("POST", "/v1/search/vector", {"json": {"vector": [0.0] * 7}}, 422, "not 0"),
    ("POST", "/v1/search/vector", {"json": {"vector": [1.0], "version": "v9"}}, 404, "version"),
    ("POST", "/v1/search/vector", {"json": {"vectors": [1.0]}}, 422, "did you mean vector?"),
    (
        "POST",
        "/v1/deploy",
        {"json": {"versoin": "v2"}},
        422,
        "force, deployed, queries; did you mean version?",
    ),
    ("POST", "/v1/search/examples", {"json": {"positive": {"idz": []}}}, 422, "/v1/docs"),
    ("POST", "/v1/search/vector", {"content": b'{"vector": [', "headers": JSON}, 422, "JSON"),
    ("POST", "/v1/items/delete", {"content": b"[" * 50 + b"]" * 50, "headers": JSON}, 422, "flat"),
    ("POST", "/v1/backfill", {"json": {"budget": "half"}}, 422, '"budget": "10%"'),
    ("POST", "/v1/backfill", {"json": {"deployed": "v2"}}, 409, "/v1/backfill"),
    ("POST", "/v1/deploy", {"json": {"version": "v1"}}, 409, "/v1/status"),
    ("POST", "/v1/deploy", {"json": {"version": "v3"}}, 409, "next_steps"),
    ("POST", "/v1/deploy", {"json": {"version": "v3", "force": " "}}, 409, "next_steps"),
    ("POST", "/v1/deploy", {"json": {"version": "v9"}}, 404, "v1, v2, v3"),
    ("POST", "/v1/deploy", {"json": []}, 422, "JSON object"),
    (
        "POST",
        "/v1/deploy",
        {"content": b'{"version": "v2"}'},
        422,
        "content-type: application/json",
    ),
    ("POST", "/v1/rollback", {}, 409, "/v1/deploy"),
    ("GET", "/v1/versions/v3/check", {}, 404, "/v1/versions/v3/check"),
    ("GET", "/v1/jobs/none", {}, 404, "/v1/jobs"),
    ("GET", "/v1/nothing", {}, 404, "see /v1/docs"),
    ("GET", "/v1/itms", {}, 404, "did you mean /v1/items? All are listed at /v1/docs"),
    ("PATCH", "/v1/deploy", {}, 405, "/v1/docs"),
]


@pytest.mark.parametrize(("method", "path", "content", "status", "hint"), ERRORS)
def test_every_error_has_a_hint(
    http: TestClient, method: str, path: str, content: dict[str, Any], status: int, hint: str
) -> None:
    told(http.request(method, path, **content), status, hint)


def kinds(of: type[FixstarError]) -> list[type[FixstarError]]:
    return [of, *(one for kind in of.__subclasses__() for one in kinds(kind))]


@pytest.mark.parametrize("kind", kinds(FixstarError))
def test_every_kind_of_expected_error_has_a_hint(kind: type[FixstarError]) -> None:
    error = kind.__new__(kind)  # their constructors differ, and none matters here
    FixstarError.__init__(error, "seen")
    body = Problem.of(error).body()
    assert body["detail"]
    assert body["hint"]
    assert b'"hint"' in problem_response(Problem.of(error)).body


def test_a_form_where_json_is_asked_for_names_the_header(http: TestClient) -> None:
    form: dict[str, Any] = {
        "content": b'{"version": "v2"}',
        "headers": {"content-type": URLENCODED},
    }
    told(
        http.post("/v1/deploy", **form), 422, "content-type: application/json"
    )  # as curl -d sends it
    told(http.post("/v1/rollback", **form), 422, "content-type: application/json")


def test_a_refused_deployment_says_what_to_send_not_what_to_type(
    http: TestClient, space: Workspace
) -> None:
    body = told(http.post("/v1/deploy", json={"version": "v3"}), 409, "next_steps")
    assert body["type"] == "/problems/not-compatible"
    requests = [step["request"] for step in body["next_steps"]]
    assert {"method": "POST", "path": "/v1/versions/v3/check", "body": {}} in requests
    assert {
        "method": "POST",
        "path": "/v1/deploy",
        "body": {"version": "v3", "force": None},
    } in requests
    for words in ("fixstar deploy", "fixstar check", "--force"):
        assert words not in str(body)
    assert space.deployed() == "v1"


def noise(side: int) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((side, side), 50).save(buffer, "PNG")
    return buffer.getvalue()


def test_too_many_pixels_and_bytes_name_what_helps(http: TestClient) -> None:
    assert (
        "101 x 101"
        in told(http.post("/v1/search", files={"image": noise(101)}), 422, "scale it down")[
            "detail"
        ]
    )
    assert (
        "--pixels"
        in told(http.post("/v1/search", files={"image": noise(101)}), 422, "pixels")["hint"]
    )
    image = told(
        http.post("/v1/search", files={"image": bytes((1 << 20) + 1)}),
        413,
        "fixstar serve --upload",
    )
    assert "1,048,577 bytes" in image["detail"]
    assert "1,048,576" in image["detail"]
    body = told(
        http.post("/v1/search", files={"image": bytes(3 << 20)}), 413, "fixstar serve --upload"
    )
    check_wording(body["detail"])
    assert "2,097,152" not in body["detail"]
    many = told(
        http.post("/v1/items/delete", content=bytes(2 << 20), headers=JSON), 413, "several requests"
    )
    assert "1,048,576" in many["detail"]


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        (
            "GET",
            "/v1/item/similar?id=hat/0.png&kk=3",
            "id, k, where, exact, min_score; did you mean k?",
        ),
        ("POST", "/v1/search?limit=3", "k, where, exact"),
        ("POST", "/v1/items?ids=[]", "none"),
        ("GET", "/v1/status?x", "none"),
        ("GET", "/v1/versions/v1/flips?k=3", "limit, against"),
        ("POST", "/v1/jobs/none/cancel?x=1", "none"),
    ],
)
def test_unknown_query_parameters_are_refused(
    http: TestClient, method: str, path: str, known: str
) -> None:
    files = {"image": picture(), "images": picture()} if method == "POST" else None
    answer = http.request(method, path, files=files)
    assert "query parameter" in told(answer, 422, known)["detail"]


IMAGE, IMAGES = {"image": picture()}, {"images": picture()}
SEARCH_FORM, ITEMS_FORM = (
    "this takes: image, text, k, where, exact, min_score",
    "this takes: images, payloads, ids",
)


@pytest.mark.parametrize(
    ("method", "path", "content", "known"),
    [
        (
            "POST",
            "/v1/search",
            {"files": IMAGE, "data": {"kk": "3"}},
            f"{SEARCH_FORM}; did you mean k?",
        ),
        ("POST", "/v1/search", {"files": IMAGE | IMAGES}, f"{SEARCH_FORM}; did you mean image?"),
        ("POST", "/v1/search", {"files": {"picture": picture()}}, SEARCH_FORM),
        (
            "PUT",
            "/v1/item?id=new",
            {"files": IMAGE, "data": {"payloads": "{}"}},
            "image, payload; did you mean payload?",
        ),
        (
            "POST",
            "/v1/items",
            {"files": IMAGES, "data": {"id": '["new"]'}},
            f"{ITEMS_FORM}; did you mean ids?",
        ),
        ("POST", "/v1/items/async", {"files": IMAGES, "data": {"labels": "[]"}}, ITEMS_FORM),
    ],
)
def test_unknown_form_fields_are_refused_and_nothing_is_stored(
    http: TestClient, space: Workspace, method: str, path: str, content: dict[str, Any], known: str
) -> None:
    before = space.gallery.count()
    body = told(http.request(method, path, **content), 422, known)
    check_wording(body["title"])
    check_wording(body["detail"])
    assert space.gallery.count() == before
    assert not http.get("/v1/jobs").json()


@pytest.mark.parametrize(
    ("method", "path", "content", "seen"),
    [
        (
            "POST",
            "/v1/search",
            {"data": {"k": "1"}},
            f"the content type is {URLENCODED}, not multipart/form-data",
        ),
        ("POST", "/v1/search", {}, "the request has no content type"),
        (
            "POST",
            "/v1/search",
            {"files": {"image": (None, "a.png")}},
            "body.image: it must be a file, and is text",
        ),
        (
            "POST",
            "/v1/search/batch",
            {"files": {"images": (None, "a.png")}},
            "body.images.0: it must be a file, and is text",
        ),
        (
            "GET",
            "/v1/items?limit=0",
            {},
            'query.limit: Input should be greater than or equal to 1; got "0"',
        ),
        (
            "POST",
            "/v1/deploy",
            {"json": {"version": "v2", "force": True}},
            "body.force: Input should be a valid string; got true",
        ),
        (
            "POST",
            "/v1/search/vector",
            {"json": {"vector": "a" * 61}},
            "body.vector: Input should be a valid list",
        ),
        (
            "POST",
            "/v1/search/examples",
            {"json": {"positive": []}},
            "body.positive: it must be a JSON object",
        ),
        (
            "POST",
            "/v1/deploy",
            {"json": {"versoin": "v2"}},
            "body.version: Field required; body.versoin: there is no such field",
        ),
        ("GET", "/v1/items?limit=1&limit=2", {}, "the query parameter 'limit' came 2 times"),
        (
            "POST",
            "/v1/search",
            {"files": [("image", picture())] * 3},
            "the form field 'image' came 3 times",
        ),
    ],
)
def test_the_detail_says_what_came(
    http: TestClient, method: str, path: str, content: dict[str, Any], seen: str
) -> None:
    detail = told(http.request(method, path, **content), 422, "")["detail"]
    assert detail == seen


def test_several_images_of_a_list_and_an_id_list_sent_as_fields(
    http: TestClient, space: Workspace
) -> None:
    assert len(http.post("/v1/search/batch", files=[("images", picture())] * 2).json()) == 2
    before = space.gallery.count()
    told(
        http.post("/v1/items", files=[("images", picture())] * 2, data={"ids": ["a", "b"]}),
        422,
        "JSON list",
    )
    assert space.gallery.count() == before


def test_the_document_says_that_forms_take_no_other_fields(http: TestClient) -> None:
    document = http.get("/v1/openapi.json").json()
    forms = [
        content["multipart/form-data"]["schema"]
        for operations in document["paths"].values()
        for operation in operations.values()
        if "multipart/form-data" in (content := operation.get("requestBody", {}).get("content", {}))
    ]
    assert len(forms) == 5
    named = document["components"]["schemas"]
    schemas = [named[form["$ref"].rpartition("/")[2]] if "$ref" in form else form for form in forms]
    assert all(schema["additionalProperties"] is False for schema in schemas)


def test_probes_may_add_what_they_like(http: TestClient) -> None:
    for path in ("/healthz?x=1", "/readyz?x=1", "/metrics?x=1", "/?x=1"):
        assert http.get(path).status_code == 200
