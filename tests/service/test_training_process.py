"""Training in a process of its own: it gives way to searches, ends with its service, and resumes after a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from job_processes import forked_jobs, job_processes, services, until
from service_clients import client, ended
from shops import pictures

from fixstar.data import open_images
from fixstar.methods import create_method
from fixstar.service.jobs import JobFiles, queue
from fixstar.service.jobs.process import NICE
from fixstar.training import Recipe, Settings
from fixstar.workspace import Workspace, catalogue

__all__ = ["forked_jobs"]  # a fixture
LONG = {"options": {"hold": 10.0}, "trials": 0, "epochs": 1000, "hold_out": 0}
SHORT = {**LONG, "epochs": 1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with v1, trained on nine pictures, and these as its items."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = Recipe(epochs=1, milestones=(), learning_rate=0.01, batch_size=8)
    settings = Settings("tiny", capacity=64, recipe=recipe, replay_per_class=2, device="cpu")
    with Workspace.create(folder / "shop", device="cpu") as space:
        space.train(
            open_images(pictures(folder / "photos")),
            settings,
            create_method("polaris"),
            progress=False,
        )
        space.index(catalogue(folder / "photos"))
    return folder / "shop"


@pytest.fixture
def path(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "shop")
    return tmp_path / "shop"


def checkpoint(path: Path) -> bool:
    return (path / "checkpoint-v2.safetensors").exists()


def is_clean(path: Path) -> bool:
    return not checkpoint(path) and not list((path / "state" / "jobs").glob("*.images"))


@pytest.mark.long
def test_a_training_has_its_own_process_and_a_lower_priority(path: Path) -> None:
    with Workspace(path, device="cpu") as space, client(space, jobs_in_processes=True) as http:
        job = http.post("/v1/upgrade", json=LONG).json()
        (process,) = until(lambda: job_processes(os.getpid()))
        until(lambda: checkpoint(path))
        lower = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
        threads = [int(entry.name) for entry in Path(f"/proc/{process}/task").iterdir()]
        assert {os.getpriority(os.PRIO_PROCESS, one) for one in (process, *threads)} == {lower}
        seen = http.get(f"/v1/jobs/{job['id']}").json()
        assert (seen["state"], seen["done"] > 0, "training v2" in seen["message"]) == (
            "running",
            True,
            True,
        )
        http.post(f"/v1/jobs/{job['id']}/cancel")
        over = ended(http, job)
        assert (over["state"], over["message"]) == ("cancelled", "no version was made")
        assert job_processes(os.getpid()) == []
        assert is_clean(path)
        done = ended(http, http.post("/v1/upgrade", json=SHORT).json())
        assert (done["state"], done["result"]["version"], done["result"]["images"]) == (
            "done",
            "v2",
            9,
        )
        assert http.get("/v1/status").json()["versions"] == ["v1", "v2"]
        assert is_clean(path)


@pytest.mark.usefixtures("forked_jobs")
def test_a_training_whose_process_is_killed_goes_on_in_another(path: Path) -> None:
    with Workspace(path, device="cpu") as space, client(space, jobs_in_processes=True) as http:
        job = http.post("/v1/upgrade", json={**LONG, "epochs": 30}).json()
        (process,) = until(lambda: job_processes(os.getpid()))
        until(lambda: checkpoint(path))
        os.kill(process, signal.SIGKILL)
        over = ended(http, job)
        assert (over["state"], over["result"]["version"]) == ("done", "v2")
        assert http.get("/v1/status").json()["versions"] == ["v1", "v2"]
    (job,) = JobFiles(path).load()
    assert job.attempts == 2
    assert is_clean(path)


@pytest.mark.usefixtures("forked_jobs")
def test_a_job_whose_process_dies_again_and_again_fails(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "ATTEMPTS", 1)
    with Workspace(path, device="cpu") as space, client(space, jobs_in_processes=True) as http:
        job = http.post("/v1/upgrade", json=LONG).json()
        (process,) = until(lambda: job_processes(os.getpid()))
        os.kill(process, signal.SIGKILL)
        over = ended(http, job)
        assert (over["state"], over["error"]["type"]) == ("failed", "/problems/process-ended")
        assert "exit code -9" in over["error"]["detail"]
        assert http.get("/v1/status").json()["versions"] == ["v1"]
    assert is_clean(path)


@pytest.mark.usefixtures("forked_jobs")
def test_what_a_training_process_refuses_is_told_as_it_would_be_here(
    path: Path, tmp_path: Path
) -> None:
    photos = pictures(tmp_path / "sets" / "photos")
    shutil.copy(photos / "bag" / "0.png", photos / "stray.png")  # its class is missing
    shown = []
    for apart in (False, True):
        settings = {"jobs_in_processes": apart, "training_images": tmp_path / "sets"}
        with Workspace(path, device="cpu") as space, client(space, **settings) as http:
            over = ended(http, http.post("/v1/upgrade", json={**SHORT, "data": "photos"}).json())
        shown.append((over["state"], over["error"]))
    assert shown[0] == shown[1]
    assert shown[0][0] == "failed"
    assert "stray.png" in shown[0][1]["detail"]


@pytest.mark.usefixtures("forked_jobs")
def test_a_training_stops_with_its_service_and_resumes_with_the_next(path: Path) -> None:
    with Workspace(path, device="cpu") as space, client(space, jobs_in_processes=True) as http:
        job = http.post("/v1/upgrade", json={**LONG, "epochs": 30}).json()
        until(lambda: checkpoint(path))
    assert job_processes(os.getpid()) == []
    assert checkpoint(path)
    with Workspace(path, device="cpu") as space, client(space, jobs_in_processes=True) as http:
        assert ended(http, job)["result"]["version"] == "v2"
    assert is_clean(path)


@pytest.mark.long
def test_a_training_is_killed_with_its_service_and_resumes_with_the_next(path: Path) -> None:
    with services(path) as serve:
        first, http = serve()
        job = http.post("/v1/upgrade", json={**LONG, "epochs": 30}).json()
        (process,) = until(lambda: job_processes(first.pid))
        until(lambda: checkpoint(path))
        first.kill()
        first.join(60)
        until(lambda: not Path(f"/proc/{process}").exists(), 30)
        (left,) = JobFiles(path).load()
        assert not left.has_ended
        assert checkpoint(path)
        _, http = serve()
        told = until(
            lambda: (
                (seen := http.get(f"/v1/jobs/{job['id']}").json())["state"]
                not in ("queued", "running")
                and seen
            )
        )
        assert (told["state"], told["result"]["version"]) == ("done", "v2"), json.dumps(told)
