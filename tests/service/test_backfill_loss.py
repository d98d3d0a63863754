"""A backfill over HTTP that is predicted to lose stops, as on the command line, unless it is asked for anyway."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from predictions import predicted
from service_clients import client, ended
from shops import CLASSES, passed, pictures, shop
from typed import typed
from wording import check_wording, refuses

from fixstar.data import from_arrays
from fixstar.errors import GateError
from fixstar.service.client import Client, ServiceError
from fixstar.service.jobs import JobFiles, Jobs
from fixstar.translation import Translation
from fixstar.workspace import BackfillOptions, Workspace, catalogue
from fixstar.workspace.backfill.planning import Thirds
from fixstar.workspace.backfill.run import PlanFiles
from fixstar.workspace.held_out import keep_held_out

ASKED = {"budget": "10%", "order": "random"}


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Nine items of v1, v2 deployed, and images held out that predict a loss of 30 queries in 300."""
    made = shop(tmp_path / "shop")
    made.index(catalogue(pictures(tmp_path / "photos")))
    passed(made, "v2", "v1")
    made.deploy("v2")
    images = np.random.default_rng(0).integers(0, 255, (9, 32, 32, 3)).astype(np.uint8)
    held = from_arrays(images, np.repeat(np.arange(3), 3), CLASSES)
    keep_held_out(made.path, "v1", held, made.serving.encoder("v1").preprocessing)
    predict(monkeypatch, lost=30)
    return made


def predict(monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    monkeypatch.setattr(
        "fixstar.workspace.backfill.planning.predicted_curve", lambda *_, **__: predicted(lost)
    )


def backfilled(http: TestClient, **wanted: Any) -> Any:
    answer = http.post("/v1/backfill", json=wanted)
    assert answer.status_code == 202, answer.text
    return ended(http, answer.json())


def test_it_stops_and_says_what_was_predicted_and_how_to_do_it_all_the_same(
    space: Workspace,
) -> None:
    with client(space) as http:
        for _ in range(2):  # its plan is on disk after the first: to ask again does not run it
            job = backfilled(http, **ASKED)
            assert (job["state"], job["message"]) == ("failed", "Predicted to lower the accuracy")
            assert job["error"]["status"] == 409
            assert (
                "lower the accuracy from 66.7 % to 56.9 % of 300 queries, and the old vectors"
                in job["error"]["detail"]
            )
            assert "nothing was embedded" in job["error"]["detail"]
            check_wording(job["error"]["hint"])
            assert '"anyway": true' in job["error"]["hint"]
            assert "--" not in job["error"]["detail"] + job["error"]["hint"]
        assert space.gallery.count() == {"v1": 9, "v2": 0}
        seen = http.get("/v1/backfill").json()
        assert (seen["budget"], seen["planned"], seen["position"]) == ("10%", 1, 0)
        assert seen["predicted"]["planned"][2] == pytest.approx(
            170 / 300
        )  # what was predicted can be looked at
        assert seen["outlook"]["could"] == 9
        assert backfilled(http, **ASKED, anyway=True)["state"] == "done"
        assert space.gallery.count() == {"v1": 8, "v2": 1}
        assert (
            backfilled(http, budget="all", order="random")["state"] == "done"
        )  # predicted to be as good as now


def test_a_plan_that_was_refused_is_not_run_unasked(space: Workspace) -> None:
    with client(space) as http:
        assert backfilled(http, **ASKED)["state"] == "failed"
    assert PlanFiles(space.path).plan() is not None
    options = BackfillOptions(ASKED["budget"], ASKED["order"])
    with refuses(GateError, "backfill", "backfill", "backfill"):
        space.backfill(options)
    assert space.gallery.count() == {"v1": 9, "v2": 0}
    assert space.backfill(replace(options, anyway=True)).done == 1


def test_a_plan_is_predicted_once_by_the_service_and_the_command(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def gain(_: Thirds, way: Translation, *__: Any, **___: Any) -> Any:
        seen.append(way.source)
        return predicted(lost=0)

    monkeypatch.setattr("fixstar.workspace.backfill.planning.predicted_curve", gain)
    with client(space) as http:
        assert backfilled(http, **ASKED)["state"] == "done"
    assert seen == ["v1"]
    assert typed("backfill", "--budget", "50%", "--order", "random", "-w", space.path).code == 0
    assert seen == ["v1", "v1"]


def test_a_loss_that_may_be_chance_does_not_stop_it(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(monkeypatch, lost=1)
    with client(space) as http:
        assert backfilled(http, **ASKED)["state"] == "done"


def test_anyway_is_a_yes_or_a_no(space: Workspace) -> None:
    with client(space) as http:
        assert http.post("/v1/backfill", json={"anyway": "perhaps"}).status_code == 422
        schema = http.get("/v1/openapi.json").json()["components"]["schemas"]["BackfillRequest"][
            "properties"
        ]
        assert (schema["anyway"]["type"], schema["anyway"]["default"]) == ("boolean", False)


def test_the_client_raises_it_and_can_do_it_all_the_same(space: Workspace) -> None:
    with client(space) as http:
        asking = Client()
        asking.close()
        asking._http = http  # type: ignore[assignment]
        with refuses(ServiceError, "backfill", "backfill", "backfill") as refused:
            asking.wait(asking.backfill("10%", "random"), every=0.02)
        assert refused.value.status == 409
        assert '"anyway": true' in refused.value.hint
        assert asking.wait(asking.backfill("10%", "random", anyway=True), every=0.02).done == 1


def test_a_kill_between_the_prediction_and_the_refusal_does_not_let_it_run(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(
            Jobs, "_fail", lambda *_: None
        )  # the process ends before the refusal is on disk
        work = Jobs(space)
        work.start()
        job = work.submit("backfill", {"target": "v2", "rate": None, "anyway": False, **ASKED})
        end = time.monotonic() + 120
        while not work.get(job.id).result:
            assert time.monotonic() < end
            time.sleep(0.01)
        noted = work.get(job.id).result
        work.stop()
    [left] = JobFiles(space.path).load()
    assert left.state == "running"
    JobFiles(space.path).save(
        replace(left, result=noted)
    )  # the prediction may have been saved, too
    again = Jobs(space)
    again.start()
    while not (seen := again.get(job.id)).has_ended:
        assert time.monotonic() < end
        time.sleep(0.01)
    again.stop()
    assert (seen.state, space.gallery.count()["v2"]) == ("failed", 0)
