"""Versions, checks, deployments and backfill over HTTP."""

from __future__ import annotations

import inspect
import io
import logging
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from service_clients import client
from shops import CLASSES, passed, pictures, shop

from fixstar.cli.rollout import backfill
from fixstar.data import from_arrays
from fixstar.models import Encoder
from fixstar.service import routes_versions
from fixstar.service.client import Client
from fixstar.service.keys import Keys
from fixstar.workspace import Check, Workspace, catalogue
from fixstar.workspace.backfill.orders import ORDERS
from fixstar.workspace.checks import CheckedCell, last_check, save_check
from fixstar.workspace.held_out import keep_held_out
from fixstar.workspace.options import AUTO
from fixstar.workspace.translations import translation_files


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    """Nine items of v1, and v2."""
    made = shop(tmp_path / "shop")
    made.index(catalogue(pictures(tmp_path / "photos")))
    return made


@pytest.fixture
def http(space: Workspace) -> Iterator[TestClient]:
    with client(space) as asking:
        yield asking


def ended(http: TestClient, job: dict[str, Any], **headers: str) -> dict[str, Any]:
    end = time.monotonic() + 120
    while (seen := http.get(f"/v1/jobs/{job['id']}", headers=headers).json())["state"] in (
        "queued",
        "running",
    ):
        assert time.monotonic() < end, seen
        time.sleep(0.02)
    return dict(seen)


def is_problem(answer: Any, status: int, says: str = "") -> bool:
    body = answer.json()
    kind = answer.headers["content-type"] == "application/problem+json"
    return (
        answer.status_code == body["status"] == status
        and kind
        and says in f"{body['title']} {body['detail']}"
    )


def noisy_versions(path: Path) -> Workspace:
    """Two versions that have nothing in common but the simplex, and noise that neither was trained on."""
    space = Workspace.create(path, device="cpu")
    for number in (1, 2):
        torch.manual_seed(number)
        encoder = Encoder.create("tiny", classes=list(CLASSES), capacity=8)
        encoder.about = {
            "version": f"v{number}",
            "parent": "v1" if number > 1 else None,
            "method": {"name": "hoc"},
        }
        encoder.save(path / "versions" / f"v{number}")
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 20)
    colours = rng.integers(0, 200, (3, 1, 1, 3))[labels]
    images = (colours + rng.integers(0, 55, (60, 32, 32, 3))).astype(np.uint8)
    images[::3] = rng.integers(0, 255, (20, 32, 32, 3))
    keep_held_out(path, "v1", from_arrays(images, labels, CLASSES), encoder.preprocessing)
    return space


def test_versions_with_their_cards_and_lineage(http: TestClient, space: Workspace) -> None:
    passed(space, "v2", "v1")
    first, second = http.get("/v1/versions").json()
    assert (first["name"], first["parent"], first["deployed"], first["vectors"]) == (
        "v1",
        None,
        True,
        9,
    )
    assert (second["parent"], second["check"], second["method"]) == ("v1", "pass", "hoc")
    assert (second["backbone"], second["capacity"], second["classes"]) == ("tiny", 8, 3)
    assert (first["check"], second["retired"], second["deployed"]) == (None, False, False)
    card = http.get("/v1/versions/v2").json()
    assert {key: card[key] for key in second} == second
    assert card["lineage"] == ["v1", "v2"]
    assert card["slots"] == {"bag": 0, "hat": 1, "shoe": 2}
    assert card["details"]["weights"]["bytes"] > 0
    assert card["last_check"]["cells"][0]["difference"] == pytest.approx(0.1)
    assert str(space.path) not in http.get("/v1/versions/v2").text


@pytest.mark.parametrize("name", ["v9", "..", "..%2F..%2Fetc%2Fpasswd", "v1.json", "%00"])
def test_no_other_name_is_a_version(http: TestClient, name: str) -> None:
    for rest in ("", "/check", "/checks", "/flips", "/flips/0/query.png"):
        assert http.get(f"/v1/versions/{name}{rest}").status_code == 404, rest


def test_a_retired_version_is_told_and_not_used(http: TestClient, space: Workspace) -> None:
    http.post("/v1/deploy", json={"version": "v2", "force": "test"})
    http.post("/v1/backfill", json={"budget": "all", "order": "random"})
    ended(http, http.get("/v1/jobs").json()[0])
    space.rollout.deploy("v2")  # twice: else a rollback leads to v1
    space.retire("v1")
    assert [(one["name"], one["retired"]) for one in http.get("/v1/versions").json()] == [
        ("v1", True),
        ("v2", False),
    ]
    assert http.get("/v1/versions/v1").json()["slots"]["hat"] == 1
    assert is_problem(http.post("/v1/versions/v1/check"), 409, "retired")
    assert is_problem(http.post("/v1/deploy", json={"version": "v1"}), 409, "retired")


def test_a_check_runs_as_a_job_and_shows_what_is_lost(tmp_path: Path) -> None:
    space = noisy_versions(tmp_path / "noisy")
    space.index(catalogue(pictures(tmp_path / "photos")))
    with client(space) as http:
        assert is_problem(http.get("/v1/versions/v2/check"), 404, "never checked")
        answer = http.post("/v1/versions/v2/check", json={"tolerance": 0.01})
        assert answer.status_code == 202
        job = ended(http, answer.json())
        assert (job["state"], job["done"], job["total"]) == ("done", 3, 3)
        check = http.get("/v1/versions/v2/check").json()
        assert job["result"]["outcome"] == check["outcome"]
        assert (check["tolerance"], check["queries"] + check["gallery"]) == (0.01, 60)
        (cell,) = check["cells"]
        assert cell["negative_flips"] > 0
        flips = http.get("/v1/versions/v2/flips?limit=1000").json()
        assert len(flips) == min(20, cell["negative_flips"])
        assert http.get("/v1/versions/v2/flips?limit=1").json() == flips[:1]
        assert http.get("/v1/versions/v2/flips?against=v7").json() == []
        for flip in flips:
            assert (flip["old"]["version"], flip["new"]["version"]) == ("v1", "v2")
            assert flip["old"]["label"] == flip["label"] != flip["new"]["label"]
            shown = [
                http.get(url)
                for url in (flip["query"], flip["old"]["thumbnail"], flip["new"]["thumbnail"])
            ]
            assert {one.headers["content-type"] for one in shown} == {"image/png"}
            pixels = [np.asarray(Image.open(io.BytesIO(one.content))) for one in shown]
            assert [one.shape for one in pixels] == [(96, 96, 3)] * 3
            assert not np.array_equal(pixels[1], pixels[2])
        assert is_problem(http.get("/v1/versions/v2/flips/20/query.png"), 404, "no flip 20")
        assert http.get("/v1/versions/v2/flips/0/other.png").status_code == 422
        pictures_file = last_check(space.path, "v2").pictures  # type: ignore[union-attr]
        ended(http, http.post("/v1/versions/v2/check").json())
        files = list((space.path / "checks" / "v2").glob("flips-*"))
        assert [path.name for path in files] != [Path(str(pictures_file)).name]
        assert len(files) == 1
        named = Path(shutil.copytree(tmp_path / "photos", tmp_path / "autumn"))
        space.pin_images("autumn", named)
        assert (
            ended(http, http.post("/v1/versions/v2/check", json={"data": "spring"}).json())["state"]
            == "failed"
        )
        ended(http, http.post("/v1/versions/v2/check").json())
        ended(http, http.post("/v1/versions/v2/check", json={"data": "held-out"}).json())
        *earlier, by_name, by_default = http.get("/v1/versions/v2/checks").json()
        assert [one["data"]["source"] for one in (by_name, by_default)] == ["named", "held out"]
        assert by_name["data"]["name"] == "autumn"
        all_checks = earlier
        assert [one["tolerance"] for one in all_checks] == [0.01, 0.0]
        assert all_checks[0] == check


def test_a_running_check_is_not_started_twice_and_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = noisy_versions(tmp_path / "noisy")
    space.index(catalogue(pictures(tmp_path / "photos")))
    original, cancelled = Workspace.features, threading.Event()

    def held(*arguments: Any, **options: Any) -> Any:
        assert cancelled.wait(120)
        return original(*arguments, **options)

    monkeypatch.setattr(Workspace, "features", held)
    with client(space) as http:
        job = http.post("/v1/versions/v2/check").json()
        assert is_problem(http.post("/v1/versions/v1/check"), 409, job["id"])
        http.post(f"/v1/jobs/{job['id']}/cancel")
        cancelled.set()
        assert ended(http, job)["state"] == "cancelled"
    assert last_check(space.path, "v2") is None


def cell(version: str, verdict: Any, self_test: float, cross_test: float) -> CheckedCell:
    return CheckedCell(version, self_test, cross_test, -0.1, 0.1, verdict, 10, 5, 5)


def test_the_matrix_is_made_of_the_last_checks_latest_first(tmp_path: Path) -> None:
    space = shop(tmp_path / "shop", versions=3)
    on = {"source": "held out", "images": 200, "name": "/secret/photos"}
    second = (cell("v1", "compatible", 0.5, 0.6),)
    third = cell("v1", "incompatible", 0.51, 0.4), cell("v2", "not decided", 0.7, 0.71)
    numbers = (100, 100, 0.95, 0.0, on)
    save_check(
        space.path,
        Check("v3", "refuse", (), third, 0.8, *numbers, when="2026-01-02T00:00:00+00:00"),
    )
    save_check(
        space.path,
        Check("v2", "pass", (), second, 0.69, *numbers, when="2026-01-01T00:00:00+00:00"),
    )
    (space.path / "checks" / "v1.json").write_text("{")  # damaged: as good as none
    with client(space) as http:
        found = http.get("/v1/compatibility").json()
    assert found["versions"] == ["v1", "v2", "v3"]
    table = {(one["query_version"], one["gallery_version"]): one for one in found["cells"]}
    assert {key: (one["accuracy"], one["verdict"]) for key, one in table.items()} == {
        ("v1", "v1"): (0.51, "self-test"),
        ("v2", "v1"): (0.6, "compatible"),
        ("v2", "v2"): (0.7, "self-test"),
        ("v3", "v1"): (0.4, "incompatible"),
        ("v3", "v2"): (0.71, "not decided"),
        ("v3", "v3"): (0.8, "self-test"),
    }
    assert table["v3", "v1"]["difference"] == pytest.approx(-0.11)
    assert (table["v3", "v1"]["low"], table["v1", "v1"]["low"], table["v2", "v1"]["check"]) == (
        -0.1,
        None,
        "v2",
    )
    assert found["measured_on"]["v3"]["images"] == 200
    other = {"source": "given", "images": 900, "fingerprint": "other"}
    save_check(
        space.path,
        Check("v2", "pass", (), second, 0.2, 450, 450, 0.95, 0.0, other, when="2026-01-03"),
    )
    with client(space) as http:
        mixed = http.get("/v1/compatibility").json()
    assert (
        {one["check"] for one in mixed["cells"]} == set(mixed["measured_on"]) == {"v2"}
    )  # of one set of images
    assert mixed["measured_on"]["v2"]["images"] == 900
    assert "secret" not in str(found)


def test_deploy_and_rollback_are_written_down_with_their_caller(
    space: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys(space.path)
    admin, reader = ({"Authorization": f"Bearer {keys.add(name, role)}"} for name, role in ROLES)
    with client(space) as http, caplog.at_level(logging.INFO, "fixstar.audit"):
        assert is_problem(http.post("/v1/deploy", json={"version": "v2"}, headers=reader), 403)
        assert is_problem(http.post("/v1/rollback", headers=admin), 409, "nothing to roll back to")
        refused = http.post("/v1/deploy", json={"version": "v2"}, headers=admin)
        assert is_problem(refused, 409, "never checked")
        assert is_problem(http.post("/v1/deploy", json={"version": "v7"}, headers=admin), 404)
        assert is_problem(
            http.post("/v1/deploy", json={"version": "v1"}, headers=admin), 409, "already"
        )
        assert is_problem(
            http.post("/v1/deploy", json={"version": "v2", "force": " "}, headers=admin),
            409,
            "reason",
        )
        assert is_problem(
            http.post("/v1/deploy", json={"version": "v2", "sudo": True}, headers=admin), 422
        )
        assert http.get("/v1/deployments", headers=reader).json() == []
        moved = http.post(
            "/v1/deploy", json={"version": "v2", "force": "a fire"}, headers=admin
        ).json()
        assert (moved["kind"], moved["reason"], moved["by"]) == ("deploy", "a fire", "ann")
        assert http.get("/v1/status", headers=reader).json()["deployed"] == "v2"
        back = http.post("/v1/rollback", headers=admin).json()
        assert (back["version"], back["kind"], back["by"]) == ("v1", "rollback", "ann")
        assert moved.pop("left_out") == back.pop("left_out") == {}
        kept = {name: back[name] for name in moved}
        assert http.get("/v1/deployments", headers=reader).json() == [kept, moved]
        assert http.get("/v1/deployments?limit=1", headers=reader).json() == [kept]
    assert "deploy from v1 to v2 by ann, forced: 'a fire'" in caplog.text
    assert "rollback from v2 to v1 by ann" in caplog.text


ROLES: list[Any] = [("ann", "admin"), ("bob", "read")]


def test_backfill_as_a_job_with_its_plan(http: TestClient, space: Workspace) -> None:
    assert http.get("/v1/backfill").json()["version"] is None
    passed(space, "v2", "v1")
    http.post("/v1/deploy", json={"version": "v2"})
    for budget in ("much", "150%", "-1", "", "10 %\n"):
        assert is_problem(http.post("/v1/backfill", json={"budget": budget}), 422, "budget")
    assert is_problem(http.post("/v1/backfill", json={"order": "alphabetical"}), 422)
    assert is_problem(http.post("/v1/backfill", json={"rate": 0}), 422)
    answer = http.post("/v1/backfill", json={"budget": "4", "order": "random"})
    assert answer.status_code == 202
    assert ended(http, answer.json())["state"] == "done"
    seen = http.get("/v1/backfill").json()
    assert (seen["version"], seen["planned"], seen["position"], seen["old"], seen["kept"]) == (
        "v2",
        4,
        4,
        9,
        0,
    )
    assert (seen["order"], seen["budget"], seen["job"]["state"]) == ("random", "4", "done")
    assert http.get("/v1/status").json()["vectors"] == {"v1": 5, "v2": 4}
    assert (
        ended(http, http.post("/v1/backfill").json())["result"]["planned"] == 1
    )  # a tenth of five, rounded up


def test_backfill_knows_the_orders_of_the_command_line(http: TestClient) -> None:
    schema = http.get("/v1/openapi.json").json()["components"]["schemas"]["BackfillRequest"][
        "properties"
    ]["order"]
    assert schema["enum"] == [AUTO, *ORDERS]
    offered = re.search(r"const ORDERS = {(.*)}", http.get("/static/backfill.js").text)
    assert offered is not None
    assert re.findall(r"(\w+): \"", offered.group(1)) == [AUTO, *ORDERS]
    said = (
        inspect.signature(one).parameters["order"].default for one in (Client.backfill, backfill)
    )
    assert [schema["default"], *said] == [AUTO] * 3


def test_prediction_and_measurement_of_a_backfill(tmp_path: Path) -> None:
    space = noisy_versions(tmp_path / "noisy")
    space.index(catalogue(pictures(tmp_path / "photos")))
    space.deploy("v2", force="test")
    with client(space) as http:
        ended(http, http.post("/v1/backfill", json={"budget": "all", "order": "gain"}).json())
        seen = http.get("/v1/backfill").json()
    assert seen["predicted"]["shares"][0] == 0
    assert (
        len(seen["predicted"]["planned"])
        == len(seen["predicted"]["random"])
        == len(seen["predicted"]["shares"])
    )
    assert [point["share"] for point in seen["measured"]] == [0, 1]


def test_jobs_are_listed_and_cancelled_by_who_may(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workspace, "features", lambda *_, **__: time.sleep(0.2))
    keys = Keys(space.path)
    admin, writer = (
        {"Authorization": f"Bearer {keys.add(name, role)}"} for name, role in MORE_ROLES
    )
    with client(space) as http:
        job = http.post("/v1/versions/v2/check", headers=admin).json()
        assert is_problem(
            http.post(f"/v1/jobs/{job['id']}/cancel", headers=writer), 403, "needs admin"
        )
        assert is_problem(http.post("/v1/versions/v2/check", headers=writer), 403)
        assert is_problem(http.post("/v1/backfill", headers=writer), 403)
        assert is_problem(http.get("/v1/jobs/nothing", headers=writer), 404)
        ended(http, job, **admin)
        assert [one["id"] for one in http.get("/v1/jobs", headers=writer).json()] == [job["id"]]


MORE_ROLES: list[Any] = [("ann", "admin"), ("cid", "write")]


def test_every_route_documents_its_problems(http: TestClient) -> None:
    paths = http.get("/v1/openapi.json").json()["paths"]
    for path, method, statuses in (
        ("/v1/deploy", "post", {"200", "404", "409"}),
        ("/v1/versions/{name}/check", "post", {"202", "404", "409"}),
        ("/v1/backfill", "post", {"202", "409"}),
        ("/v1/jobs/{id}/cancel", "post", {"200", "404"}),
        ("/v1/compatibility", "get", {"200"}),
    ):
        assert statuses <= paths[path][method]["responses"].keys()
        answer = paths[path][method]["responses"][min(statuses)]["content"]["application/json"][
            "schema"
        ]
        assert answer, path


def test_a_check_fits_translations_in_its_job_and_judges_them_at_a_weight(tmp_path: Path) -> None:
    space = noisy_versions(tmp_path / "noisy")
    space.index(catalogue(pictures(tmp_path / "photos", per_class=10)))
    with client(space) as http:
        path = "/v1/versions/v2/check"
        assert not translation_files(space.path)  # one space is claimed: nothing is fitted unasked
        job = ended(http, http.post(path, json={"refit": True, "sample": 20, "weight": 0.5}).json())
        assert job["state"] == "done", job
        (cell,) = http.get(path).json()["cells"]
        assert (cell["version"], cell["weight"]) == ("v1", 0.5)
        fits = space.translations.fitted("v1", "v2")
        assert {way.about["fitted_on"] for way in fits} == {"20 items of the gallery"}
        ended(http, http.post(path, json={"weight": 0.5}).json())
        assert space.translations.fitted("v1", "v2") == fits  # those that there are will do
        again = ended(http, http.post(path, json={"refit": True}).json())
        assert again["state"] == "done"
        assert {way.about["fitted_on"] for way in space.translations.fitted("v1", "v2")} == {
            "30 items of the gallery"
        }
        for wrong in ({"weight": 1.5}, {"sample": 5}, {"pairs": "/etc/passwd"}, {"images": "/etc"}):
            assert is_problem(http.post(path, json=wrong), 422)
        assert is_problem(
            http.post("/v1/versions/v7/check", json={"refit": True}), 404, "no version 'v7'"
        )


def test_the_drift_map_has_stored_vectors_beside_those_of_the_other_version(
    space: Workspace, http: TestClient
) -> None:
    found = http.get("/v1/drift", params={"old": "v1", "new": "v2", "limit": 6}).json()
    stored = {item.id: item for item in space.gallery.iterate("v1")}
    paths = [space.images.find(stored[point["id"]]) for point in found["points"]]
    old = np.stack([stored[point["id"]].vector for point in found["points"]])
    new = space.serving.embed("v2", [path for path in paths if path is not None])
    assert len({point["label"] for point in found["points"]}) == len(
        CLASSES
    )  # of six items, two of each class
    moved = [point["moved"] for point in found["points"]]
    assert moved == sorted(moved, reverse=True)
    np.testing.assert_allclose(moved, 1 - (old * new).sum(axis=1), atol=1e-5)
    both = np.concatenate([old, new]).astype(np.float64)
    both -= both.mean(axis=0)
    values, axes = np.linalg.eigh(both.T @ both)
    places = np.array([point[name] for name in ("old", "new") for point in found["points"]])
    np.testing.assert_allclose(
        np.abs(places), np.abs(both @ axes[:, np.argsort(-values)[:2]]), atol=1e-4
    )
    assert is_problem(http.get("/v1/drift", params={"old": "v1", "new": "v9"}), 404, "v9")
    wanted = {"old": "v1", "new": "v2"}
    with routes_versions._drift_lock:  # a map is being made: others do not wait for it in a thread
        assert is_problem(
            http.get("/v1/drift", params={**wanted, "limit": 5}), 503, "another drift map"
        )
        assert http.get("/v1/drift", params={**wanted, "limit": 6}).json() == found
