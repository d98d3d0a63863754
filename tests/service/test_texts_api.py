"""A service over texts: store, search, embed, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from service_clients import ADDRESS, client, ended, picture
from shops import shop
from text_models import FakeServer, embeddings_server, own_settings, topic_texts
from wording import check_wording, refuses

from fixstar.models.backbones import endpoint
from fixstar.service.app import create_app
from fixstar.service.client import Client, ImagesLeftOutError
from fixstar.service.galleries import Galleries
from fixstar.service.keys import Keys
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace
from fixstar.workspace.items import text_item

__all__ = ["own_settings"]  # a fixture
pytestmark = pytest.mark.usefixtures("own_settings")


def said(text: str) -> dict[str, Any]:
    """A form with a text."""
    return {"text": (None, text)}


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with embeddings_server(width=24) as fake:
        yield fake


@pytest.fixture
def notes(server: FakeServer, tmp_path: Path) -> Iterator[Workspace]:
    with Workspace.create(tmp_path / "notes", device="cpu") as space:
        space.add_version(server.url())
        space.index(
            text_item(f"note-{row}", text, {"label": label})
            for row, (text, label) in enumerate(topic_texts(5))
        )
        yield space


@pytest.fixture
def http(notes: Workspace) -> Iterator[TestClient]:
    with client(notes) as made:
        yield made


def test_a_text_finds_texts(http: TestClient) -> None:
    assert http.get("/v1/status").json()["reads"] == "texts"
    answer = http.post("/v1/search", files=said("return shoes heel"), params={"k": 3}).json()
    assert {hit["label"] for hit in answer["hits"]} == {"shoes"}
    assert all(hit["payload"]["text"] and hit["thumbnail"] is None for hit in answer["hits"])
    plain = http.post("/v1/search", files={**said("return shoes heel"), "k": (None, "3")}).json()
    assert plain["hits"] == answer["hits"]


def test_texts_are_stored_found_and_replaced(http: TestClient) -> None:
    items = [
        {"id": "mine", "text": "umbrella umbrella", "payload": {"shop": "paris"}},
        {"text": "yeast"},
    ]
    added = http.post("/v1/items/texts", json={"items": items}).json()
    assert added["added"][0] == "mine"
    assert len(added["added"]) == 2
    found = http.get("/v1/item", params={"id": "mine"}).json()
    assert found["payload"] == {"shop": "paris", "text": "umbrella umbrella"}
    first = http.post("/v1/search", files=said("umbrella umbrella")).json()["hits"][0]
    assert first["id"] == "mine"
    http.post("/v1/items/texts", json={"items": [{"id": "mine", "text": "crust"}]})
    assert http.get("/v1/item", params={"id": "mine"}).json()["payload"] == {"text": "crust"}


def test_bad_texts_are_named_and_the_others_stored(http: TestClient) -> None:
    items = [
        {"id": "a", "text": " "},
        {"id": "b", "text": "rain"},
        {"id": "c", "text": "x" * 100_001},
    ]
    answer = http.post("/v1/items/texts", json={"items": items})
    assert answer.status_code == 200
    assert answer.json()["added"] == ["b"]
    assert [(one["id"], one["index"]) for one in answer.json()["bad"]] == [("a", 0), ("c", 2)]
    nothing = http.post("/v1/items/texts", json={"items": items[:1]})
    assert nothing.status_code == 422
    assert nothing.json()["bad"][0]["id"] == "a"
    assert nothing.json()["type"] == "/problems/no-usable-text"
    assert "image" not in nothing.text


def test_the_client_speaks_of_texts(http: TestClient) -> None:
    def handed_on(request: httpx.Request) -> httpx.Response:
        headers = dict(request.headers)
        answer = http.request(
            request.method, request.url.path, content=request.content, headers=headers
        )
        return httpx.Response(
            answer.status_code, content=answer.content, headers=dict(answer.headers)
        )

    with Client(ADDRESS, transport=httpx.MockTransport(handed_on)) as texts:
        with refuses(ImagesLeftOutError) as some:
            texts.add_texts({"a": " ", "b": "rain"})
        with refuses(ImagesLeftOutError) as none:
            texts.add_texts({"a": " "})
    assert "image" not in str(some.value) + str(none.value)


def test_a_gallery_of_texts_is_listed_with_its_texts(notes: Workspace) -> None:
    keys = Keys(notes.path)
    app = create_app(notes, ServiceSettings(gallery="notes"), keys)
    listed = Galleries({"notes": app}, {"notes": keys}, ServiceSettings())
    with TestClient(listed, ADDRESS, client=("127.0.0.1", 50000)) as several:
        assert "20 texts, v1 deployed" in several.get("/").text


def test_too_many_texts_at_once_are_refused(notes: Workspace) -> None:
    with client(notes, items_at_once=2) as few:
        refused = few.post("/v1/items/texts", json={"items": [{"text": "rain"}] * 3})
        inputs = few.post("/v1/embeddings", json={"model": "v1", "input": ["rain"] * 3})
    check_wording(refused.json()["detail"])
    check_wording(inputs.json()["detail"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"items": []}, 422),
        ({"items": [{"id": "a"}]}, 422),
        ({"items": [{"id": "a", "text": "x", "payload": {"text": "y"}}]}, 422),
        ({"items": [{"id": "a", "text": "x", "payload": {"image": "/etc/passwd"}}]}, 422),
        ({"items": [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]}, 422),
        ({"items": [{"id": "a", "text": "x", "payload": {"long": "y" * 3_000_000}}]}, 413),
        ({"items": [{"text": "x"}] * 10_000}, 422),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_stored(
    http: TestClient, body: Any, status: int
) -> None:
    before = http.get("/v1/status").json()["items"]
    assert http.post("/v1/items/texts", json=body).status_code == status
    assert http.get("/v1/status").json()["items"] == before


@pytest.mark.parametrize("text", ["", "   ", "x" * 100_001])
def test_a_query_that_is_no_text_is_refused(http: TestClient, text: str) -> None:
    answer = http.post("/v1/search", files=said(text))
    assert answer.status_code in (413, 422)
    assert answer.json()["detail"]


def test_an_image_is_refused_where_texts_are_stored_and_the_other_way_round(
    http: TestClient, tmp_path: Path
) -> None:
    answer = http.post("/v1/search", files={"image": ("a.png", picture())})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/wrong-kind")
    stored = http.put("/v1/item", params={"id": "a"}, files={"image": ("a.png", picture())})
    assert stored.json()["type"] == "/problems/wrong-kind"
    both = http.post("/v1/search", files={"image": ("a.png", picture()), "text": (None, "rain")})
    assert both.json()["type"] == "/problems/invalid-request"
    with shop(tmp_path / "images") as space, client(space) as images:
        assert images.get("/v1/status").json()["reads"] == "images"
        assert (
            images.post("/v1/search", files=said("rain")).json()["type"] == "/problems/wrong-kind"
        )
        sent = images.post("/v1/items/texts", json={"items": [{"text": "rain"}]})
        assert sent.status_code == 422
        assert "images" in sent.json()["detail"]


def test_embeddings_of_texts_are_those_of_queries(http: TestClient, notes: Workspace) -> None:
    answer = http.post(
        "/v1/embeddings", json={"model": "v1", "input": ["rain", "bread oven"]}
    ).json()
    vectors = np.array([one["embedding"] for one in answer["data"]])
    np.testing.assert_allclose(
        vectors, notes.encoder("v1").encode(["rain", "bread oven"], role="query"), atol=1e-6
    )


def test_a_server_that_fails_is_not_described_to_strangers(
    http: TestClient, server: FakeServer
) -> None:
    server.answers += [lambda _: (503, b"internal host name")] * endpoint._ATTEMPTS
    answer = http.post("/v1/search", files=said("rain"))
    assert answer.status_code == 503
    assert server.address not in answer.text
    assert "internal host name" not in answer.text
    assert http.post("/v1/search", files=said("rain")).status_code == 200


def test_the_text_of_an_item_cannot_be_patched(http: TestClient) -> None:
    answer = http.patch("/v1/item", params={"id": "note-1"}, json={"payload": {"text": "other"}})
    assert answer.status_code == 400
    check_wording(answer.json()["detail"])


def test_an_upgrade_of_texts_over_http(http: TestClient, notes: Workspace) -> None:
    with embeddings_server(width=32, salt="two") as better:
        notes.add_version(better.url("better"))
        deployed = http.post(
            "/v1/deploy", json={"version": "v2", "force": "a try", "queries": "old"}
        )
        assert deployed.status_code == 200, deployed.text
        assert (
            http.post("/v1/search", files=said("rain storm")).json()["hits"][0]["label"] == "rain"
        )
        job = http.post("/v1/backfill", json={"budget": "all"}).json()
        done = ended(http, job)
        assert done["state"] == "done", done
        assert http.get("/v1/status").json()["vectors"] == {"v1": 0, "v2": 20}
        answer = http.post("/v1/search", files=said("rain storm")).json()
        assert {hit["version"] for hit in answer["hits"]} == {"v2"}


def wanted_of_topics() -> list[dict[str, Any]]:
    """Ten queries of each topic, and the stored texts of the same topic as what they should find."""
    stored = topic_texts(5)
    wanted = []
    for text, label in dict(topic_texts(10, seed=4)).items():
        items = {f"note-{place}": 1 for place, one in enumerate(stored) if one[1] == label}
        wanted.append({"text": text, "items": items})
    return wanted


def test_a_check_by_relevant_items_runs_over_http(http: TestClient, notes: Workspace) -> None:
    wanted = wanted_of_topics()
    with embeddings_server(width=32, salt="two") as better:
        notes.add_version(better.url("better"))
        job = http.post("/v1/versions/v2/check", json={"relevant": wanted})
        assert job.status_code == 202, job.text
        done = ended(http, job.json())
    assert done["state"] == "done", done
    told = http.get("/v1/versions/v2/check").json()
    (cell,) = told["cells"]
    assert set(cell["measured"]) == {"nDCG@10", "Recall@10", "MRR", "top-1"}
    (measured,) = http.get("/v1/compatibility").json()["measured_on"].values()
    assert (measured["source"], measured["images"]) == ("relevant", 20)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"relevant": []}, 422, "relevant"),
        ({"relevant": [{"text": "rain", "items": {}}]}, 422, "items"),
        ({"relevant": [{"text": "", "items": {"note-1": 1}}]}, 422, "text"),
        ({"relevant": [{"text": "rain", "items": {"note-1": "much"}}]}, 422, "items"),
        ({"relevant": [{"text": "rain", "items": {"note-1": 1}}] * 2}, 422, "the same text"),
        (
            {"relevant": [{"text": "rain", "items": {"note-1": 1}}], "data": "held-out"},
            422,
            "both came",
        ),
    ],
)
def test_relevant_items_that_say_nothing_are_refused(
    http: TestClient, body: Any, status: int, said: str
) -> None:
    answer = http.post("/v1/versions/v1/check", json=body)
    assert answer.status_code == status
    assert said in answer.text


def test_items_that_are_not_stored_fail_the_job_with_both_kinds_of_ids(
    http: TestClient, notes: Workspace
) -> None:
    with embeddings_server(width=32, salt="two") as better:
        notes.add_version(better.url("better"))
        body = {"relevant": [{"text": "rain", "items": {"elsewhere/1": 1}}]}
        done = ended(http, http.post("/v1/versions/v2/check", json=body).json())
    assert done["state"] == "failed"
    assert "none of these items is stored" in done["error"]["detail"]


def test_a_check_by_relevant_items_is_told(
    http: TestClient, notes: Workspace, tmp_path: Path
) -> None:
    texts = topic_texts(5)
    asked = [
        {"_id": f"q{row}", "text": text} for row, (text, _) in enumerate(topic_texts(10, seed=4))
    ]
    labels = [label for _, label in topic_texts(10, seed=4)]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    pairs = [
        (row, place)
        for row, label in enumerate(labels)
        for place, one in enumerate(texts)
        if one[1] == label
    ]
    (tmp_path / "qrels.tsv").write_text(
        "".join(f"q{row}\tnote-{place}\t1\n" for row, place in pairs)
    )
    with embeddings_server(width=32, salt="two") as better:
        notes.add_version(better.url("better"))
        notes.check(
            "v2", relevant=[tmp_path / "queries.jsonl", tmp_path / "qrels.tsv"], progress=False
        )
    told = http.get("/v1/versions/v2/check").json()
    assert set(told["cells"][0]["measured"]) == {"nDCG@10", "Recall@10", "MRR", "top-1"}
    assert told["cells"][0]["measured"]["nDCG@10"]["after"] == told["cells"][0]["cross_test"]
    (measured,) = http.get("/v1/compatibility").json()["measured_on"].values()
    assert measured["source"] == "relevant"
