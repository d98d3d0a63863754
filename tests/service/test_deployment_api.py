"""Moves that are held to what the caller saw, and what a backfill could do, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from service_clients import client, ended, picture
from shops import foreign, passed, passed_with_two_models, pictures, shop
from wording import check_wording

from fixstar.translation import Map, Translation
from fixstar.workspace import Workspace, catalogue
from fixstar.workspace.backfill.planning import backfill_outlook


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    """Nine items of v1; v3 is deployed, and before it v2 was."""
    made = shop(tmp_path / "shop", versions=3)
    made.index(catalogue(pictures(tmp_path / "photos")))
    passed(made, "v2", "v1")
    made.deploy("v2")
    made.deploy("v3", force="test")
    return made


@pytest.fixture
def http(space: Workspace) -> Iterator[TestClient]:
    with client(space) as asking:
        yield asking


def backfilled(http: TestClient, **wanted: Any) -> dict[str, Any]:
    return ended(http, http.post("/v1/backfill", json=wanted).json())


def conflict(answer: Any, says: str) -> bool:
    body = answer.json()
    return (
        answer.status_code == 409
        and body["type"] == "/problems/deployment-moved"
        and says in body["detail"]
    )


def test_the_second_of_two_rollbacks_that_saw_the_same_is_refused(
    http: TestClient, space: Workspace
) -> None:
    ahead = http.get("/v1/rollback").json()
    assert (ahead["deployed"], ahead["to"]) == ("v3", "v2")
    seen = {"deployed": "v3", "to": "v2"}
    assert http.post("/v1/rollback", json=seen).json()["version"] == "v2"
    assert conflict(http.post("/v1/rollback", json=seen), "v2 is deployed now, not v3")
    assert conflict(http.post("/v1/rollback", json={"to": "v2"}), "leads to v1, not to v2")
    assert space.deployed() == "v2"
    assert http.post("/v1/rollback").json()["version"] == "v1"  # nothing said, nothing asked for
    assert conflict(http.post("/v1/rollback", json=seen), "v1 is deployed now")
    check_wording(http.get("/v1/rollback").json()["title"])
    assert http.post("/v1/rollback", json={"from": "v1"}).status_code == 422


def test_a_deployment_and_a_backfill_for_another_state_are_refused(
    http: TestClient, space: Workspace
) -> None:
    assert conflict(
        http.post("/v1/deploy", json={"version": "v2", "deployed": "v1"}),
        "v3 is deployed now, not v1",
    )
    assert conflict(
        http.post("/v1/deploy", json={"version": "v3", "deployed": "v1"}),
        "v3 is deployed now, not v1",
    )
    assert conflict(
        http.post("/v1/backfill", json={"deployed": "v2"}), "v3 is deployed now, not v2"
    )
    assert http.get("/v1/jobs").json() == []
    back = {"version": "v2", "deployed": "v3", "force": "test"}
    assert http.post("/v1/deploy", json=back).json()["version"] == "v2"
    assert space.deployed() == "v2"


def test_queries_by_two_models_over_http(http: TestClient, space: Workspace) -> None:
    file = passed_with_two_models(space, "v2", "v3")  # v3 is deployed
    cell = http.get("/v1/versions/v2/check").json()["cells"][0]
    assert (cell["models"], cell["weight"], cell["share_at_once"]) == (
        ["v2", "v1"],
        0.6,
        pytest.approx(0.5),
    )
    assert (cell["one_model"]["verdict"], cell["one_model"]["cross_test"]) == ("incompatible", 0.4)
    for wrong in ("two", "", 1, None):
        assert http.post("/v1/deploy", json={"version": "v2", "queries": wrong}).status_code == 422
    refused = http.post("/v1/deploy", json={"version": "v2", "queries": "one"})
    assert refused.status_code == 409
    assert "one model per query finds 40.0 %: incompatible" in refused.json()["detail"]
    two, forced = (step["request"] for step in refused.json()["next_steps"])
    assert (two["body"], forced["body"]["queries"]) == ({"version": "v2"}, "one")
    moved = http.request(two["method"], two["path"], json=two["body"]).json()
    assert (moved["version"], moved["translations"]) == ("v2", {"v1": file})
    assert http.get("/v1/status").json()["searched_by"] == {"v1": ["v2", "v1"]}
    assert http.get("/v1/deployments").json()[0]["translations"] == {"v1": file}
    again = http.post("/v1/deploy", json=two["body"])  # nothing would change
    assert (again.status_code, again.json()["type"]) == (409, "/problems/already-deployed")
    found = http.post("/v1/search", files={"image": picture(1)}).json()
    assert (found["version"], found["models"]) == ("v2", ["v2", "v1"])
    vector = space.serving.embed("v2", [picture(1)])[0].tolist()
    assert http.post("/v1/search/vector", json={"vector": vector}).json()["models"] == ["v2"]


def test_who_asks_old_vectors_can_change_without_another_version(
    http: TestClient, space: Workspace
) -> None:
    file = passed_with_two_models(space, "v2", "v3")  # v3 is deployed
    http.post("/v1/deploy", json={"version": "v2"})
    alone = http.post(
        "/v1/deploy", json={"version": "v2", "queries": "one", "force": "too slow"}
    ).json()
    assert (alone["version"], alone["reason"]) == ("v2", "too slow")
    assert alone["translations"]["v1"] != file
    assert http.get("/v1/status").json()["searched_by"] == {"v1": ["v2"]}
    assert http.post("/v1/search", files={"image": picture(1)}).json()["models"] == ["v2"]
    assert http.post("/v1/deploy", json={"version": "v2"}).json()["translations"] == {"v1": file}
    assert http.get("/v1/status").json()["searched_by"] == {"v1": ["v2", "v1"]}
    assert http.post("/v1/rollback").json()["translations"] == alone["translations"]
    assert http.post("/v1/rollback").json()["translations"] == {"v1": file}
    assert http.post("/v1/rollback").json()["version"] == "v3"


def test_old_queries_alone_need_no_check_and_find_what_they_find_now(
    http: TestClient, space: Workspace
) -> None:
    space.rollback()
    space.rollback()
    wanted: dict[str, Any] = {"files": {"image": picture(1)}, "params": {"k": 9}}
    now = http.post("/v1/search", **wanted).json()
    assert http.post("/v1/deploy", json={"version": "v3"}).status_code == 409
    assert (
        http.post("/v1/deploy", json={"version": "v3", "queries": "old"}).json()["version"] == "v3"
    )
    then = http.post("/v1/search", **wanted).json()
    assert (now["models"], then["models"]) == (["v1"], ["v1"])
    assert [hit["id"] for hit in then["hits"]] == [hit["id"] for hit in now["hits"]]
    assert [hit["score"] for hit in then["hits"]] == pytest.approx(
        [hit["score"] for hit in now["hits"]], abs=1e-5
    )


def test_a_rollback_says_what_it_leaves_unchecked_and_which_backfill_ends(
    http: TestClient, space: Workspace
) -> None:
    backfilled(http, budget="4", order="random", deployed="v3")
    job = http.post("/v1/backfill", json={"budget": "all", "order": "random", "rate": 0.5}).json()
    ahead = http.get("/v1/rollback").json()
    assert (ahead["unchecked"].keys(), ahead["cancelled"]) == ({"v3"}, job["id"])
    assert ahead["unchecked"]["v3"] >= 4
    back = http.post("/v1/rollback").json()
    assert (back["version"], back["left"], back["cancelled"]) == ("v2", "v3", job["id"])
    assert back["unchecked"]["v3"] >= 4
    assert ended(http, job)["state"] == "cancelled"
    (space.path / "checks" / "v1.json").write_text(
        "{"
    )  # damaged: a rollback is possible all the same
    last = http.post("/v1/rollback").json()
    assert (last["version"], last["left"], last["cancelled"]) == ("v1", "v2", None)
    assert last["unchecked"] == {"v3": space.gallery.count()["v3"]}


def test_a_move_says_how_many_vectors_it_puts_out_of_reach(
    http: TestClient, space: Workspace
) -> None:
    foreign(space)
    back = Map.linear(np.eye(7, 5))
    space.translations.keep(
        Translation("other", "v3", backward=back, one=0.0, about={"fit": "test"})
    )
    assert [one["left_out"] for one in http.get("/v1/versions").json()] == [
        {"other": 2},
        {"other": 2},
        {},
    ]
    ahead, back = http.get("/v1/rollback").json(), http.post("/v1/rollback").json()
    assert (ahead["to"], ahead["left_out"], ahead["unchecked"]) == ("v2", {"other": 2}, {})
    assert (back["version"], back["left_out"], back["unchecked"]) == ("v2", {"other": 2}, {})
    answer = space.search([picture(1)], k=100)
    assert (len(answer.hits[0]), answer.left_out) == (9, ("other",))  # as was said
    assert http.get("/v1/status").json()["left_out"] == ["other"]
    for version, left_out in (("v3", {}), ("v2", {"other": 2}), ("v1", {"other": 2})):
        assert (
            http.post("/v1/deploy", json={"version": version, "force": "x"}).json()["left_out"]
            == left_out
        )


def test_a_rollback_to_a_retired_version_is_neither_offered_nor_made(
    http: TestClient, space: Workspace
) -> None:
    backfilled(http, budget="all", order="random")
    space.retire("v1")
    assert http.get("/v1/status").json()["previous"] == "v2"
    assert http.post("/v1/rollback").json()["version"] == "v2"
    assert http.get("/v1/status").json()["previous"] is None
    for answer in (
        http.get("/v1/rollback"),
        http.post("/v1/rollback", json={"deployed": "v2", "to": "v1"}),
    ):
        assert answer.status_code == 409
        assert answer.json()["type"] == "/problems/no-rollback"
        check_wording(answer.json()["detail"])
        assert "POST /v1/deploy" in answer.json()["hint"]
    assert space.deployed() == "v2"


def test_a_backfill_that_another_deployment_overtakes_plans_nothing_for_that_one(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = space.plan_backfill

    def overtaken(*arguments: Any, **options: Any) -> Any:
        space.rollback()
        return planned(*arguments, **options)

    monkeypatch.setattr(space, "plan_backfill", overtaken)
    with client(space) as http:
        job = backfilled(http, budget="all", order="random")
    assert (job["state"], job["message"]) == (
        "cancelled",
        "v2 is deployed now: nothing is re-embedded with v3",
    )
    assert {name: count for name, count in space.gallery.count().items() if count} == {"v1": 9}


def test_the_outlook_is_what_a_backfill_then_does(http: TestClient) -> None:
    outlook = http.get("/v1/backfill").json()["outlook"]
    all_old = {
        "version": "v3",
        "could": 9,
        "older": 9,
        "newer": {},
        "looked_at": 9,
        "without_image": 0,
        "cost": None,
    }
    assert outlook == all_old
    assert backfilled(http, budget="4", order="random")["result"]["old"] == 9
    seen = http.get("/v1/backfill").json()
    assert seen["outlook"]["could"] == 5
    result = seen["job"]["result"]
    assert seen["images_a_second"] == pytest.approx(result["done"] / result["seconds"])
    http.post("/v1/rollback")
    seen = http.get("/v1/backfill").json()
    assert (seen["outlook"]["version"], seen["outlook"]["could"], seen["outlook"]["newer"]) == (
        "v2",
        5,
        {"v3": 4},
    )
    assert seen["images_a_second"] is None  # that was v3's
    http.post("/v1/rollback")
    outlook = http.get("/v1/backfill").json()["outlook"]
    assert outlook == {
        **all_old,
        "version": "v1",
        "could": 0,
        "older": 0,
        "newer": {"v3": 4},
        "looked_at": 0,
    }
    assert backfilled(http, budget="all")["result"]["planned"] == 0


def test_vectors_without_an_image_are_not_promised(space: Workspace) -> None:
    width = next(one.width for one in space.gallery.versions() if one.name == "v1")
    space.gallery.create_version("old-system", width)
    space.gallery.upsert("old-system", list("abcde"), np.eye(5, width, dtype=np.float32))
    with client(space) as http:
        outlook = http.get("/v1/backfill").json()["outlook"]
        assert (outlook["could"], outlook["older"], outlook["without_image"]) == (9, 14, 5)
        done = backfilled(http, budget="all", order="random")["result"]
        assert done["done"] == 9
        outlook = http.get("/v1/backfill").json()["outlook"]
        assert (outlook["could"], outlook["older"], outlook["without_image"]) == (0, 5, 5)


def test_the_outlook_looks_at_so_many_items_at_most(space: Workspace) -> None:
    width = next(one.width for one in space.gallery.versions() if one.name == "v1")
    space.gallery.create_version("old-system", width)
    space.gallery.upsert("old-system", list("ab"), np.eye(2, width, dtype=np.float32))
    some = backfill_outlook(space.serving, most=6)
    assert (some.looked_at, some.without_image, some.older, some.could) == (6, 2, 11, 9)
    assert backfill_outlook(space.serving, most=100).looked_at == 11


def test_there_is_no_outlook_while_a_backfill_is_under_way(http: TestClient) -> None:
    job = http.post("/v1/backfill", json={"budget": "all", "order": "random", "rate": 0.5}).json()
    assert http.get("/v1/backfill").json()["outlook"] is None
    http.post(f"/v1/jobs/{job['id']}/cancel")
    ended(http, job)
    assert http.get("/v1/backfill").json()["outlook"]["version"] == "v3"


@pytest.mark.parametrize("budget", ["250%", "0%", "0", "00", "0.0%", "1.5", "all of it", "10 %"])
def test_a_wrong_budget_is_told_in_words(http: TestClient, budget: str) -> None:
    answer = http.post("/v1/backfill", json={"budget": budget})
    detail = answer.json()["detail"]
    assert answer.status_code == 422
    assert repr(budget) in detail
    assert "above 0%, up to 100%" in detail
    assert "[0-9]" not in detail
    assert http.get("/v1/jobs").json() == []


def test_without_a_version_there_is_nothing_to_roll_back_or_to_foresee(tmp_path: Path) -> None:
    with client(Workspace.create(tmp_path / "fresh", device="cpu")) as http:
        assert http.get("/v1/rollback").status_code == 409
        assert http.post("/v1/rollback", json={"deployed": "v1"}).status_code == 409
        assert http.get("/v1/backfill").json()["outlook"] is None
