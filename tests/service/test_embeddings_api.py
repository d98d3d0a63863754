"""POST /v1/embeddings: the wire format of OpenAI's clients over images."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service_clients import async_client, client, picture
from shops import pictures, shop
from wording import check_wording

from fixstar.service.keys import Keys
from fixstar.texts import Role
from fixstar.translation import Map, Translation
from fixstar.workspace import Workspace, catalogue
from fixstar.workspace.items import LocalEmbedder

IMAGES = [picture(seed) for seed in range(3)]


@pytest.fixture
def space(tmp_path: Path, request: pytest.FixtureRequest) -> Workspace:
    """Two versions that share a space, or, with the parameter True, were trained freely."""
    made = shop(tmp_path / "shop", free=getattr(request, "param", False))
    made.index(catalogue(pictures(tmp_path / "pictures")))
    return made


@pytest.fixture
def http(space: Workspace) -> Iterator[TestClient]:
    with client(space) as asking:
        yield asking


def text(image: bytes, head: str = "") -> str:
    return head + base64.b64encode(image).decode()


def asked(http: TestClient, model: str, *inputs: str, **more: Any) -> Any:
    return http.post("/v1/embeddings", json={"model": model, "input": list(inputs), **more})


def vectors(answer: Any) -> Any:
    return np.array([one["embedding"] for one in answer.json()["data"]], np.float32)


def test_the_answer_is_that_of_openai_with_the_vectors_of_the_version(
    http: TestClient, space: Workspace
) -> None:
    answer = asked(http, "v2", *map(text, IMAGES))
    body = answer.json()
    assert body.keys() == {"object", "data", "model", "usage"}
    assert (body["object"], body["model"]) == ("list", "v2")
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert [(one["object"], one["index"]) for one in body["data"]] == [
        ("embedding", i) for i in range(3)
    ]
    assert np.allclose(vectors(answer), space.serving.embed("v2", IMAGES), atol=1e-6)


def test_one_image_data_urls_and_base64_numbers(http: TestClient, space: Workspace) -> None:
    truth = space.serving.embed("v1", IMAGES[:1])
    one = http.post(
        "/v1/embeddings", json={"model": "v1", "input": text(IMAGES[0], "data:image/png;base64,")}
    )
    assert np.allclose(vectors(one), truth, atol=1e-6)
    packed = asked(http, "v1", text(IMAGES[0], "DATA:;base64,"), encoding_format="base64").json()[
        "data"
    ][0]
    assert np.allclose(
        np.frombuffer(base64.b64decode(packed["embedding"]), "<f4"), truth[0], atol=1e-6
    )


def test_queries_for_another_version_rank_its_vectors_as_a_search_does(
    http: TestClient, space: Workspace
) -> None:
    row = vectors(asked(http, "v2->v1", text(IMAGES[0])))[0]
    assert np.linalg.norm(row) == pytest.approx(1, abs=1e-5)
    items = list(space.gallery.iterate("v1"))
    ranked = [items[i].id for i in np.argsort(-np.stack([item.vector for item in items]) @ row)]
    truth = space.serving.search_vectors("v2", space.serving.embed("v2", IMAGES[:1]), k=len(items))
    assert ranked == [hit.id for hit in truth.hits[0]]
    assert np.array_equal(
        vectors(asked(http, "v1->v1", text(IMAGES[0]))), vectors(asked(http, "v1", text(IMAGES[0])))
    )


@pytest.mark.parametrize("space", [True], indirect=True)
def test_queries_for_another_version_are_mapped_back_as_a_translation_says(
    http: TestClient, space: Workspace
) -> None:
    by_v2 = space.serving.embed("v2", IMAGES)
    back = Map.linear(np.roll(np.eye(7), 1, axis=0))
    space.translations.keep(
        Translation("v1", "v2", backward=back, one=0.0, two=0.0, about={"fit": "test"})
    )
    asked_in_v1 = vectors(asked(http, "v2->v1", *map(text, IMAGES)))
    assert np.allclose(asked_in_v1, back(by_v2), atol=1e-5)
    assert not np.allclose(asked_in_v1, by_v2, atol=0.1)
    space.deploy(
        "v2", force="test"
    )  # searches ask with v1's own queries; a vector is that of one model all the same
    assert np.allclose(vectors(asked(http, "v2->v1", *map(text, IMAGES))), back(by_v2), atol=1e-5)
    assert np.allclose(vectors(asked(http, "v2", *map(text, IMAGES))), by_v2, atol=1e-6)


@pytest.mark.parametrize("space", [True], indirect=True)
def test_vectors_that_only_their_own_model_can_ask_are_not_offered(
    http: TestClient, space: Workspace
) -> None:
    space.translations.keep(Translation("v1", "v2", two=0.0, about={"fit": "test"}))
    answer = asked(http, "v2->v1", text(IMAGES[0]))
    assert (answer.status_code, answer.json()["hint"]) == (404, "there are: none")
    check_wording(answer.json()["detail"])


@pytest.mark.parametrize(
    ("model", "seen", "allowed"),
    [
        ("v9", "no model 'v9'", "v1, v2"),
        ("text-embedding-3-small", "no model", "v1, v2"),
        ("v2->v9", "no vectors of 'v9'", "v2->v1"),
        ("old", "old has stored vectors and no encoder", "v1, v2"),
        ("v2->old", "queries of v2 alone cannot ask in the space of 'old'", "v2->v1"),
        ("->v1", "no model ''", "v1, v2"),
    ],
)
def test_a_wrong_model_is_answered_with_those_that_there_are(
    http: TestClient, space: Workspace, model: str, seen: str, allowed: str
) -> None:
    space.gallery.create_version("old", 5)
    answer = asked(http, model, text(IMAGES[0]))
    assert answer.status_code == 404
    assert answer.json()["type"] == "/problems/unknown-version"
    assert seen in answer.json()["detail"]
    assert allowed in answer.json()["hint"]


@pytest.mark.parametrize(
    ("given_input", "status", "seen"),
    [
        ("!!!", 422, "input 1 is not base64"),
        ("AAA", 422, "input 1 is not base64"),
        ("Ünïcode", 422, "input 1 is not base64"),
        ("data:image/png,AAAA", 422, "without ;base64"),
        ("data:image/png;base64", 422, "without ;base64"),
        ("https://example.org/a.png", 422, "nothing is fetched"),
        ("", 415, "input 1: the file is empty"),
        (text(b"no image"), 415, "input 1:"),
        (text(IMAGES[0][:-30]), 422, "input 1:"),
    ],
)
def test_a_bad_input_is_named_by_its_number(
    http: TestClient, given_input: str, status: int, seen: str
) -> None:
    answer = asked(http, "v1", text(IMAGES[0]), given_input)
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert seen in answer.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {"model": "v1", "input": []},
        {"model": "v1", "input": [1, 2, 3]},  # tokens
        {"model": "v1", "input": [[1, 2], [3]]},
        {"model": "v1", "input": None},
        {"model": "v1"},
        {"input": "AAAA"},
        {"model": "v1", "input": "AAAA", "encoding_format": "int8"},
        {"model": "v1", "input": "AAAA", "dimensions": 8},
        {"model": "v1", "input": ["AAAA"] * 65},
        {"model": "v1", "input": ["AAAA"] * 100_000},
    ],
)
def test_wrong_requests(http: TestClient, body: dict[str, Any]) -> None:
    answer = http.post("/v1/embeddings", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"]
    assert answer.json()["hint"]


def test_bodies_and_images_have_limits(space: Workspace) -> None:
    with client(space, upload_bytes=1 << 20) as http:
        large = asked(http, "v1", text(bytes((1 << 20) + 3)))
        assert (large.status_code, large.json()["type"]) == (413, "/problems/image-too-large")
        larger = asked(http, "v1", "A" * (5 << 20))
        assert (larger.status_code, larger.json()["type"]) == (413, "/problems/too-large")
        assert "bytes of JSON" in larger.json()["detail"]
    with client(space, waiting=2) as http:
        assert "up to 2" in asked(http, "v1", *map(text, IMAGES)).json()["detail"]


def test_images_of_several_requests_share_batches_with_queries(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = LocalEmbedder.one

    def counted(self: LocalEmbedder, images: Any, role: Role = "item") -> Any:
        sizes.append(len(images))
        return real(self, images, role)

    async def work() -> list[int]:
        async with async_client(space, batch_wait=0.5, batch=8) as (http, _):
            space.serving.encoder("v1")
            monkeypatch.setattr(LocalEmbedder, "one", counted)
            body = {"model": "v1", "input": list(map(text, IMAGES))}
            asked = [http.post("/v1/embeddings", json=body) for _ in range(2)]
            asked += [http.post("/v1/search", files={"image": image}) for image in IMAGES[:2]]
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    assert asyncio.run(work()) == [200] * 4
    assert sum(sizes) == 8
    assert len(sizes) < 8


def test_a_version_that_cannot_be_loaded_fails_alone(http: TestClient, space: Workspace) -> None:
    asked(http, "v2", text(IMAGES[0]))
    weights = space.registry.directory("v2") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    space.serving._encoders.pop("v2")
    assert asked(http, "v2", text(IMAGES[0])).status_code == 500
    assert asked(http, "v1", text(IMAGES[0])).status_code == 200


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    st.text(max_size=60), st.sampled_from(["", "data:image/png;base64,", "data:", "DATA:;base64,"])
)
def test_any_text_is_a_problem_and_never_a_fault(http: TestClient, content: str, head: str) -> None:
    answer = asked(http, "v1", head + content)
    assert answer.status_code in (415, 422)
    assert answer.json()["hint"]


def test_a_key_is_needed_and_read_is_enough(space: Workspace) -> None:
    token = Keys(space.path).add("reader", "read")
    with client(space) as http:
        assert asked(http, "v1", text(IMAGES[0])).status_code == 401
        headers = {"Authorization": f"Bearer {token}"}
        body = {"model": "v1", "input": text(IMAGES[0])}
        assert http.post("/v1/embeddings", json=body, headers=headers).status_code == 200
