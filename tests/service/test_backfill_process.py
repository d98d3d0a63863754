"""Checks and backfills in processes of their own: what a kill or a stop leaves is finished, and nothing is lost."""

from __future__ import annotations

import errno
import logging
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from job_processes import forked_jobs, job_processes, services, until
from service_clients import client, ended
from shops import CLASSES, foreign, passed, pictures, shop

from fixstar.data import from_arrays
from fixstar.errors import NextStep
from fixstar.models import Encoder
from fixstar.service.jobs import Job, JobFiles, Jobs, process
from fixstar.service.jobs.process import NICE
from fixstar.service.jobs.running import StoppedError
from fixstar.service.jobs.work import LONG_WORK
from fixstar.service.problems import Problem
from fixstar.service.schemas import CheckRequest
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace, catalogue
from fixstar.workspace.held_out import keep_held_out

__all__ = ["forked_jobs"]  # a fixture
SLOW = {"order": "random", "rate": 2, "anyway": True}  # batches of two
FAST = {"order": "random", "anyway": True}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A workspace with 18 items of v1, and v2 deployed."""
    with shop(tmp_path / "shop") as space:
        space.index(catalogue(pictures(tmp_path / "photos", 6)))
        images = np.random.default_rng(0).integers(0, 255, (30, 32, 32, 3)).astype(np.uint8)
        held_out = from_arrays(images, np.repeat(np.arange(3), 10), CLASSES)
        keep_held_out(space.path, "v1", held_out, space.serving.encoder("v1").preprocessing)
        passed(space, "v2", "v1")
        space.deploy("v2")
    return tmp_path / "shop"


def served(space: Workspace) -> Any:
    return client(space, jobs_in_processes=True)


def backfill(http: Any, **wanted: Any) -> Any:
    answer = http.post("/v1/backfill", json=wanted)
    assert answer.status_code == 202, answer.text
    return answer.json()


def begun(http: Any, job: Any) -> Any:
    """A job once it has stored something."""
    return until(lambda: (seen := http.get(f"/v1/jobs/{job['id']}").json())["done"] > 0 and seen)


def counts(path: Path) -> Any:
    with Workspace(path, device="cpu") as space:
        return space.gallery.count()


def has_priority(process: int, wanted: int) -> bool:
    return os.getpriority(os.PRIO_PROCESS, process) == wanted


@pytest.mark.long
def test_a_check_comes_to_the_same_and_its_process_has_a_lower_priority(path: Path) -> None:
    results = []
    for own in (False, True):
        with Workspace(path, device="cpu") as space, client(space, jobs_in_processes=own) as http:
            job = http.post("/v1/versions/v2/check", json={"tolerance": 0.02}).json()
            if own:
                (process,) = until(lambda: job_processes(os.getpid()))
                lower = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
                until(partial(has_priority, process, lower), 30)
            over = ended(http, job)
            results.append(
                (over["state"], over["message"], over["done"], over["total"], over["result"])
            )
            assert http.get("/v1/versions/v2/checks").json()[-1]["tolerance"] == 0.02
    assert results[0] == results[1]
    assert results[0][0] == "done"
    assert job_processes(os.getpid()) == []


@pytest.mark.usefixtures("forked_jobs")
def test_a_backfill_whose_process_is_killed_keeps_its_budget_and_its_counts(path: Path) -> None:
    with Workspace(path, device="cpu") as space, served(space) as http:
        job = backfill(http, budget="10", **SLOW)
        begun(http, job)
        (process,) = job_processes(os.getpid())
        os.kill(process, signal.SIGKILL)
        over = ended(http, job)
        assert (over["state"], over["done"], over["total"]) == ("done", 10, 10)
        result = over["result"]
        assert (result["planned"], result["done"] + result["done_before"], result["left"]) == (
            10,
            10,
            0,
        )
        assert http.get("/v1/status").json()["vectors"] == {"v1": 8, "v2": 10}
    (left,) = JobFiles(path).load()
    assert left.attempts == 2


@pytest.mark.usefixtures("forked_jobs")
def test_a_backfill_stops_with_its_service_and_keeps_its_budget(path: Path) -> None:
    with Workspace(path, device="cpu") as space, served(space) as http:
        job = backfill(http, budget="10", **SLOW)
        begun(http, job)
    assert job_processes(os.getpid()) == []
    (left,) = JobFiles(path).load()
    assert (left.state, left.attempts, 0 < left.done < 10) == ("running", 0, True)
    assert counts(path) == {"v1": 18 - left.done, "v2": left.done}
    with Workspace(path, device="cpu") as space, served(space) as http:
        over = ended(http, job)
        assert (over["state"], over["done"], over["result"]["done"]) == ("done", 10, 10)
    assert counts(path) == {"v1": 8, "v2": 10}


@pytest.mark.long
def test_a_killed_service_takes_its_processes_along_and_the_next_one_finishes(path: Path) -> None:
    def over(http: Any, job: Any) -> Any:
        return until(
            lambda: (
                (seen := http.get(f"/v1/jobs/{job['id']}").json())["state"]
                not in ("queued", "running")
                and seen
            )
        )

    with services(path) as serve:
        first, http = serve()
        job = backfill(http, budget="10", **SLOW)
        check = http.post("/v1/versions/v2/check").json()  # waits for the backfill
        begun(http, job)
        (process,) = job_processes(first.pid)
        first.kill()
        first.join(60)
        until(lambda: not Path(f"/proc/{process}").exists(), 30)
        left = {one.id: one for one in JobFiles(path).load()}
        assert not any(one.has_ended for one in left.values())
        second, http = serve()
        told = over(http, job)
        assert (told["state"], told["done"], told["result"]["left"]) == ("done", 10, 0), told
        assert told["result"]["done"] + told["result"]["done_before"] == 10
        assert http.get("/v1/status").json()["vectors"] == {"v1": 8, "v2": 10}
        (process,) = until(lambda: job_processes(second.pid))  # that of the check
        os.kill(process, signal.SIGKILL)
        assert over(http, check)["state"] == "done"
        assert http.get("/v1/versions/v2/check").json()["outcome"]


@pytest.mark.usefixtures("forked_jobs")
def test_a_process_that_does_not_stop_is_killed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "PATIENCE", 0.5)
    with Workspace(path, device="cpu") as space, served(space) as http:
        job = backfill(http, budget="all", **SLOW)
        begun(http, job)
        (stuck,) = job_processes(os.getpid())
        os.kill(stuck, signal.SIGSTOP)
        http.post(f"/v1/jobs/{job['id']}/cancel")
        over = ended(http, job)
        assert over["state"] == "cancelled"
        assert "was killed" in over["message"]
        assert job_processes(os.getpid()) == []
        moved = space.gallery.count()["v2"]
        assert 0 < over["done"] <= moved < 18
        rest = ended(http, backfill(http, budget="all", **FAST))  # the same plan: it goes on
        assert (rest["state"], rest["result"]["done"]) == ("done", 18 - moved)


@pytest.mark.usefixtures("forked_jobs")
def test_nothing_is_embedded_before_the_service_has_saved_what_resumes_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = JobFiles.save
    seen: list[dict[str, int]] = []

    def full(files: JobFiles, job: Job) -> None:
        if "token" in job.parameters and not seen:
            until(lambda: job_processes(os.getpid()))
            seen.append(counts(path))
            raise OSError(errno.ENOSPC, "No space left on device")
        save(files, job)

    monkeypatch.setattr(JobFiles, "save", full)
    with Workspace(path, device="cpu") as space, served(space) as http:
        over = ended(http, backfill(http, budget="all", **FAST))
        assert (over["state"], over["error"]["type"]) == ("failed", "/problems/disk-full")
    assert seen == [{"v1": 18, "v2": 0}]
    assert counts(path) == {"v1": 18, "v2": 0}
    assert job_processes(os.getpid()) == []


def ran(space: Workspace, kind: Any, parameters: Any, own_process: bool = True) -> Job:
    """A job once it has ended."""
    work = Jobs(space, ServiceSettings(jobs_in_processes=own_process))
    work.start()
    job = work.submit(kind, parameters)
    until(lambda: work.get(job.id).has_ended)
    over = work.get(job.id)
    work.stop()
    return over


@pytest.mark.usefixtures("forked_jobs")
def test_refusals_are_the_same_and_the_log_of_the_service_has_the_rest(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Workspace(path, device="cpu") as space:
        foreign(space)
        wanted = {"version": "other", **CheckRequest().model_dump()}
        here, there = (ran(space, "check", wanted, own) for own in (False, True))
        assert (here.state, here.message, here.error) == (there.state, there.message, there.error)
        assert here.error is not None
        assert (here.state, here.error["status"], len(here.error["next_steps"])) == (
            "failed",
            400,
            1,
        )
        weights = path / "versions" / "v2" / "model.safetensors"
        assert weights.is_file()
        weights.write_bytes(b"damaged")
        with caplog.at_level(logging.INFO):
            over = ran(space, "check", {**wanted, "version": "v2"})
        assert over.error is not None
        assert over.error["status"] == 500
        assert "details are in the log" in over.error["detail"]
        assert str(weights) in caplog.text


class Impatient:
    """A job that is to end as soon as it has begun to embed."""

    images = Path("none")

    def __init__(self, job: Job) -> None:
        self._job = job
        self.messages: list[str] = []

    def job(self) -> Job:
        return self._job

    def note(self, save: bool = False, **changes: Any) -> None:  # noqa: ARG002
        self.messages.append(changes["message"])

    def stopped(self) -> bool:
        return bool(self.messages)


def test_a_check_ends_after_a_batch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded: list[Any] = []
    features = Workspace.features
    monkeypatch.setattr(
        Workspace, "features", lambda *given, **more: embedded.append(features(*given, **more))
    )
    running = Impatient(Job.new("check", {"version": "v2", **CheckRequest().model_dump()}))
    with (
        Workspace(path, device="cpu") as space,
        pytest.raises(StoppedError, match="nothing was decided"),
    ):
        LONG_WORK["check"](space, running)
    assert running.messages == ["embedding 30 images with v1"]
    assert not embedded


def test_a_problem_is_the_same_behind_the_pipe() -> None:
    steps = [
        NextStep("backfill", {"budget": "50%"}),
        NextStep("backfill", {"anyway": True}, "despite this"),
    ]
    problem = Problem("backfill-loses", "predicted to lower the accuracy", "leave it", *steps)
    with pytest.raises(Problem) as told:
        process._outcome({"problem": process._problem_lines(problem)})
    assert told.value.body() == problem.body()


@pytest.mark.usefixtures("forked_jobs")
def test_a_backfill_for_a_version_that_is_no_longer_deployed_ends(path: Path) -> None:
    with Workspace(path, device="cpu") as space:
        space.rollback()
        wanted = {"target": "v2", "budget": "4", "order": "random", "rate": None, "anyway": False}
        stopped = ran(space, "backfill", wanted)
    assert (stopped.state, stopped.message) == (
        "cancelled",
        "v1 is deployed now: nothing is re-embedded with v2",
    )


@pytest.mark.usefixtures("forked_jobs")
def test_the_process_knows_what_was_searched_and_whose_code_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "shop_models.py").write_text(
        "import torch\n"
        "def build():\n"
        "    torch.manual_seed(3)\n"
        "    return torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(48, 12))\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "models")
    monkeypatch.setenv("FIXSTAR_TRUST", "shop_models")
    with shop(tmp_path / "shop", versions=1) as made:
        made.index(catalogue(pictures(tmp_path / "photos")))
        name = made.add_version(
            "shop_models:build", Encoder.load(made.path / "versions" / "v1").preprocessing
        )
        made.deploy(name, force="test")
    with (
        Workspace(tmp_path / "shop", device="cpu", record_usage=True) as space,
        served(space) as http,
    ):
        found = http.post(
            "/v1/search",
            files={"image": (tmp_path / "photos" / "hat" / "0.png").read_bytes()},
            params={"k": 1},
        ).json()
        assert space.usage is not None
        over = ended(http, backfill(http, budget="1", order="queried", anyway=True))
        assert over["state"] == "done", over
        (moved,) = [item.id for item in space.gallery.iterate(name)]
    assert [hit["id"] for hit in found["hits"]] == [moved]


def test_a_gallery_in_memory_is_worked_on_here(tmp_path: Path) -> None:
    Workspace.create(tmp_path / "shop", gallery=":memory:").close()
    with shop(tmp_path / "shop") as space, served(space) as http:
        space.index(catalogue(pictures(tmp_path / "photos")))
        passed(space, "v2", "v1")
        space.deploy("v2")
        over = ended(http, backfill(http, budget="all", **FAST))
        assert (over["state"], over["result"]["done"]) == ("done", 9)
        assert space.gallery.count() == {"v1": 0, "v2": 9}
