"""Remedies over HTTP are data: an action, its arguments, and the request that performs it."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest
from service_clients import client, ended
from shops import pictures, shop

from fixstar.errors import ACTIONS, DeploymentMovedError, FixstarError, GateError, NextStep
from fixstar.service.client import ServiceError
from fixstar.service.problems import PROBLEMS, REQUESTS, Problem, to_step
from fixstar.workspace import catalogue

OPERATOR_ONLY = {  # actions that need a shell on the service's machine, or files there
    *("add", "drop", "evaluate", "grow", "import-vectors", "index", "init", "install", "repeat"),
    *("use-gallery", "verify-gallery"),
}


def test_every_action_is_a_request_or_for_the_operator() -> None:
    assert REQUESTS.keys() | OPERATOR_ONLY == ACTIONS
    assert not REQUESTS.keys() & OPERATOR_ONLY


def kinds(of: type[FixstarError]) -> list[type[FixstarError]]:
    return [of, *(one for kind in of.__subclasses__() for one in kinds(kind))]


def test_every_error_type_is_a_problem() -> None:
    assert {kind.type for kind in kinds(FixstarError)} <= PROBLEMS.keys()


def test_every_problem_type_can_be_looked_up(tmp_path: Path) -> None:
    with client(shop(tmp_path / "shop", versions=1)) as http:
        listed = http.get("/v1/docs").text
        for name, (status, title, remedy) in PROBLEMS.items():
            page = http.get(f"/problems/{name}")
            assert (page.status_code, page.headers["content-type"]) == (
                200,
                "text/html; charset=utf-8",
            )
            shown = html.unescape(page.text)
            assert all(word in shown for word in (str(status), title, remedy)), name
            assert f'href="/problems/{name}"' in listed
        refused = http.get("/v1/item?id=none").json()
        assert (
            refused["title"] in http.get(refused["type"]).text
        )  # the type of a problem is an address
        assert http.get("/problems/no-such-thing").status_code == 404


@pytest.mark.parametrize(
    ("step", "request_"),
    [
        (NextStep("check", {"version": "v2"}), ("POST", "/v1/versions/v2/check", {})),
        (
            NextStep("check", {"version": "v2", "tolerance": 0.1}),
            ("POST", "/v1/versions/v2/check", {"tolerance": 0.1}),
        ),
        (
            NextStep("deploy", {"version": "v2", "force": ...}),
            ("POST", "/v1/deploy", {"version": "v2", "force": None}),
        ),
        (NextStep("backfill", {"budget": "all"}), ("POST", "/v1/backfill", {"budget": "all"})),
        (NextStep("train", {"data": ...}), ("POST", "/v1/train", {"data": None})),
        (NextStep("rollback"), ("POST", "/v1/rollback", {})),
        (NextStep("delete-items", {"id": "a/b"}), ("POST", "/v1/items/delete", {"ids": ["a/b"]})),
        (NextStep("status"), ("GET", "/v1/status", None)),
    ],
)
def test_a_step_names_its_request(step: NextStep, request_: tuple[str, str, Any]) -> None:
    told = to_step(step)
    assert (told["request"]["method"], told["request"]["path"], told["request"]["body"]) == request_
    assert NextStep.from_json(told) == step


@pytest.mark.parametrize(
    "step",
    [
        NextStep(
            "check", {"version": "v2", "data": ...}, "about 400 labelled images"
        ),  # files of the operator's
        NextStep("delete-items", {"version": "v1"}),
        NextStep("train", {"data": ..., "old_vectors": ...}),
    ],
)
def test_a_step_that_no_request_does_is_for_the_operator(step: NextStep) -> None:
    told = to_step(step)
    assert told["request"] is None
    assert told["note"].startswith(step.note)
    assert "operator" in told["note"]


def test_a_problem_has_a_stable_type_and_next_steps_and_so_has_the_client() -> None:
    problem = Problem.of(GateError("v2 was never checked", NextStep("check", {"version": "v2"})))
    body = problem.body()
    assert (body["type"], body["status"], body["detail"]) == (
        "/problems/not-compatible",
        409,
        "v2 was never checked",
    )
    [step] = body["next_steps"]
    assert step["request"]["path"] == "/v1/versions/v2/check"
    error = ServiceError.of(body)
    assert (error.problem, error.status) == ("/problems/not-compatible", 409)
    assert error.next_steps == problem.next_steps
    assert (
        Problem.of(DeploymentMovedError("v1 is deployed")).body()["type"]
        == "/problems/deployment-moved"
    )


def test_a_check_carries_its_next_steps(tmp_path: Path) -> None:
    """The version's card, its check, and the job that made it."""
    space = shop(tmp_path / "shop")
    space.index(catalogue(pictures(tmp_path / "photos")))
    with client(space) as http:
        job = ended(http, http.post("/v1/versions/v2/check").json())
        check = http.get("/v1/versions/v2/check").json()
        assert check["reasons"] == job["result"]["reasons"]
        assert check["next_steps"] == job["result"]["next_steps"]
        assert [step["action"] for step in check["next_steps"]] == [
            "check",
            "upgrade",
        ]  # nothing was held out
        assert "fixstar" not in str(check["reasons"])
        assert http.get("/v1/versions/v2").json()["last_check"] == check
