"""Jobs: what was acknowledged is done, whatever moment the service ends at, and nothing is done twice."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from service_clients import picture
from shops import passed, pictures, shop
from wording import check_wording

from fixstar.errors import InputError
from fixstar.service.jobs import Job, JobFiles, Jobs, queue, records
from fixstar.service.jobs.running import RunningJob
from fixstar.service.jobs.work import WORK
from fixstar.service.problems import Problem
from fixstar.workspace import Indexed, Workspace, catalogue


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Workspace]:
    with shop(tmp_path / "shop") as made:
        yield made


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fixstar.service.jobs.index.BATCH", 5)


def running(space: Workspace) -> Jobs:
    made = Jobs(space)
    made.start()
    return made


def kept(space: Workspace, count: int, label: str = "hat") -> dict[str, Any]:
    """The parameters of an index job: images that the workspace keeps."""
    items = []
    for number in range(count):
        stored = dict(space.images.keep(picture(number)))
        items.append(
            {
                "id": f"i{number:02}",
                "image": stored["image"],
                "payload": {"label": label, **stored},
                "file": None,
            }
        )
    return {"items": items}


def ended(work: Jobs, job: Job) -> Any:
    return until(lambda: work.get(job.id), lambda seen: seen.has_ended)


def until(look: Callable[[], Any], right: Callable[[Any], bool]) -> Any:
    end = time.monotonic() + 120
    while not right(seen := look()):
        assert time.monotonic() < end, seen
        time.sleep(0.01)
    return seen


class Slow:
    """Holds every call of ``index`` at its end of work until it is let go, and counts what was embedded."""

    def __init__(self, space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.entered, self.free = threading.Semaphore(0), threading.Semaphore(0)
        original = space.index

        def index(items: Any, *arguments: Any, **options: Any) -> Indexed:
            self.seen += [item.id for item in items]
            self.entered.release()
            assert self.free.acquire(timeout=120)
            return original(items, *arguments, **options)

        monkeypatch.setattr(space, "index", index)


def test_an_index_job_stores_items_and_says_how_far_it_is(space: Workspace) -> None:
    work = running(space)
    wanted = kept(space, 12)
    (space.path / wanted["items"][7]["image"]).unlink()
    job = work.submit("index", wanted)
    assert (job.state, job.total) == ("queued", 12)
    assert (space.path / "state" / "jobs" / f"{job.id}.json").is_file()
    done = ended(work, job)
    assert (done.state, done.done, done.error) == ("done", 12, None)
    assert done.result["added"] == 11
    assert done.result["versions"] == {"v1": 11}
    assert [bad["id"] for bad in done.result["bad"]] == ["i07"]
    assert done.created <= done.started <= done.ended
    assert space.gallery.get(["i03"])["i03"].payload["label"] == "hat"
    work.stop()
    (again,) = JobFiles(space.path).load()
    assert again == replace(done, parameters={})  # the list of items is not needed any more


def test_a_new_payload_of_the_same_image_is_stored(space: Workspace) -> None:
    work = running(space)
    ended(work, work.submit("index", kept(space, 3)))
    ended(work, work.submit("index", kept(space, 3, label="bag")))
    assert {item.payload["label"] for item in space.gallery.iterate()} == {"bag"}
    work.stop()


def test_what_a_kill_left_goes_on_behind_the_last_batch(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(space, monkeypatch)
    for _ in range(20):
        slow.free.release()
    files = JobFiles(space.path)
    so_far = {"added": 5, "overtaken": 0, "versions": {"v1": 5}, "bad": [], "bad_count": 0}
    begun = replace(
        Job.new("index", kept(space, 12)), state="running", done=5, result=so_far, attempts=1
    )
    waiting = Job.new("index", kept(space, 1))
    for job in (waiting, begun):
        files.save(job)
    (files.directory / ".x.json.1-2.partial").write_text("{")  # was being written
    work = running(space)
    assert ended(work, begun).result == {**so_far, "added": 12, "versions": {"v1": 12}}
    assert ended(work, waiting).state == "done"
    assert slow.seen == [
        *(f"i{number:02}" for number in range(5, 12)),
        "i00",
    ]  # oldest first, nothing twice
    assert not list(files.directory.glob("*.partial"))
    work.stop()


def test_a_graceful_stop_finishes_the_batch_and_the_next_start_the_rest(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(space, monkeypatch)
    work = running(space)
    job, later = work.submit("index", kept(space, 12)), work.submit("index", kept(space, 1))
    slow.entered.acquire()
    slow.free.release()
    slow.entered.acquire()  # in the middle of the second batch
    assert JobFiles(space.path).load()[0].done == 5  # a kill now would cost no more than this batch
    stopping = threading.Thread(target=work.stop)
    stopping.start()
    until(lambda: work._stopping, bool)
    with pytest.raises(Problem, match="no new jobs"):
        work.submit("index", kept(space, 1))
    assert stopping.is_alive()
    slow.free.release()
    stopping.join(120)
    assert not stopping.is_alive()
    assert sum(space.gallery.count().values()) == 10
    left = {one.id: one for one in JobFiles(space.path).load()}
    assert (left[job.id].state, left[job.id].done, left[job.id].attempts) == ("running", 10, 0)
    assert left[later.id].state == "queued"
    for _ in range(5):
        slow.free.release()
    again = running(space)
    assert ended(again, job).result["added"] == 12
    assert ended(again, later).state == "done"
    assert sorted(slow.seen[:-1]) == [f"i{number:02}" for number in range(12)]
    again.stop()


def test_a_job_that_does_not_pause_in_time_is_left_for_the_next_start(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(space, monkeypatch)
    work = running(space)
    job = work.submit("index", kept(space, 6))
    slow.entered.acquire()
    work.stop(timeout=0.05)
    monkeypatch.setattr(
        Workspace, "deployed", lambda _: 1 / 0
    )  # what it finds when it goes on is gone
    with pytest.raises(InputError, match="another service"):
        running(space)
    slow.free.release()
    for thread in work._threads:
        thread.join(120)
    (left,) = JobFiles(space.path).load()
    assert (left.id, left.state, left.done) == (job.id, "running", 0)


def test_cancelling_ends_at_the_next_batch(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(space, monkeypatch)
    work = running(space)
    first, second = work.submit("index", kept(space, 12)), work.submit("index", kept(space, 3))
    slow.entered.acquire()
    assert work.cancel(second.id).state == "cancelled"  # it only waited
    assert work.cancel(first.id).state == "running"
    assert work.cancel(first.id).message == "ends after this batch"
    assert JobFiles(space.path).load()[0].cancelling
    slow.free.release()
    stopped = ended(work, first)
    assert (stopped.state, stopped.done, stopped.result["added"]) == ("cancelled", 5, 5)
    assert work.cancel(first.id) == stopped
    assert space.gallery.count() == {"v1": 5}
    with pytest.raises(Problem, match="no job"):
        work.cancel("../../etc/passwd")
    work.stop()


def test_a_cancellation_outlives_the_process(space: Workspace) -> None:
    job = replace(Job.new("index", kept(space, 3)), state="running", cancelling=True)
    JobFiles(space.path).save(job)
    work = running(space)
    assert work.get(job.id).state == "cancelled"
    work.stop()
    assert not sum(space.gallery.count().values())


def test_one_heavy_job_of_a_kind_and_indexing_beside_it(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()
    heavy = []

    def hold(_: Workspace, handle: RunningJob) -> dict[str, Any]:
        heavy.append(handle.job().kind)
        assert free.wait(120)
        return {}

    for kind in ("check", "backfill"):
        monkeypatch.setitem(WORK, kind, hold)
    wanted = {"target": "v1", "order": "gain", "budget": "all", "rate": None, "anyway": False}
    work = running(space)
    backfill = work.submit("backfill", wanted)
    check = work.submit("check", {"version": "v2"})
    for kind, parameters in (("backfill", wanted), ("check", {"version": "v1"})):
        with pytest.raises(Problem) as refused:
            work.submit(kind, parameters)  # type: ignore[arg-type]
        assert refused.value.status == 409
    assert ended(work, work.submit("index", kept(space, 7))).state == "done"
    assert (work.get(backfill.id).state, work.get(check.id).state) == ("running", "queued")
    free.set()
    assert ended(work, check).state == "done"
    assert heavy == ["backfill", "check"]
    assert ended(work, work.submit("backfill", wanted)).state == "done"
    work.stop()


def test_too_many_waiting_jobs_are_refused(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(space, monkeypatch)
    monkeypatch.setattr(queue, "WAITING", 2)
    work = running(space)
    first, _ = (work.submit("index", kept(space, 1)) for _ in range(2))
    with pytest.raises(Problem) as refused:
        work.submit("index", kept(space, 1))
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "30"})
    slow.free.release()
    ended(work, first)
    work.submit("index", kept(space, 1))
    for _ in range(2):
        slow.free.release()
    work.stop()


def test_a_job_whose_beginning_cannot_be_written_is_tried_again(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "RETRY", 0.05)
    work, refusals = running(space), [3]
    save = work._files.save

    def full(job: Job) -> None:
        if job.state == "running" and refusals[0]:
            refusals[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        save(job)

    monkeypatch.setattr(work._files, "save", full)
    done = ended(work, work.submit("index", kept(space, 2)))
    assert (done.state, done.attempts, refusals) == ("done", 1, [0])
    assert (
        "items" not in work.get(done.id).parameters
    )  # up to a thousand of them, for each of 200 jobs
    work.stop()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "other"}', '"text"', None])
def test_a_damaged_file_is_told_and_the_others_go_on(space: Workspace, content: str | None) -> None:
    files = JobFiles(space.path)
    good = Job.new("index", kept(space, 2))
    files.save(good)
    path = files.directory / f"{good.id[:-1]}z.json"
    if content is None:  # a job, but not the one whose name it has
        content = (files.directory / f"{good.id}.json").read_text()
    path.write_text(content)
    work = running(space)
    told = work.get(path.stem)
    assert told.state == "failed"
    assert told.error is not None
    check_wording(told.error["hint"])
    assert ended(work, good).state == "done"
    work.stop()


def test_errors_are_kept_as_problems_and_faults_without_details(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = iter([InputError("the lid is off"), RuntimeError("secret")])

    def fail(*_: Any) -> dict[str, Any]:
        raise next(errors)

    monkeypatch.setitem(WORK, "index", fail)
    work = running(space)
    first, second = (ended(work, work.submit("index", {"items": []})) for _ in range(2))
    assert (first.state, second.state) == ("failed", "failed")
    assert (first.error["status"], first.error["detail"]) == (400, "the lid is off")
    assert second.error["status"] == 500
    assert "secret" not in json.dumps(second.error)
    work.stop()


def test_only_so_many_ended_jobs_are_kept(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "KEPT", 3)
    work = running(space)
    made = [ended(work, work.submit("index", {"items": []})) for _ in range(5)]
    assert [job.id for job in work.all()] == [job.id for job in made[:1:-1]]
    assert len(list(JobFiles(space.path).directory.glob("*.json"))) == 3
    work.stop()


def test_the_jobs_that_ended_last_are_remembered(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "KEPT", 2)
    slow = threading.Event()
    monkeypatch.setitem(WORK, "check", lambda *_: {"waited": slow.wait(120)})
    work = running(space)
    long = work.submit("check", {"version": "v2"})
    short = [ended(work, work.submit("index", {"items": []})) for _ in range(3)]
    time.sleep(0.002)  # times are told in milliseconds
    slow.set()
    assert ended(work, long).state == "done"  # the oldest by far, but the last to end
    assert [job.id for job in work.all()] == [short[-1].id, long.id]
    work.stop()


def test_a_job_under_which_the_service_dies_again_and_again_is_given_up(space: Workspace) -> None:
    job = replace(Job.new("index", kept(space, 2)), state="running", attempts=queue.ATTEMPTS)
    JobFiles(space.path).save(job)
    work = running(space)
    assert work.get(job.id).state == "failed"
    check_wording(work.get(job.id).error["title"])  # type: ignore[index]
    work.stop()


def test_one_service_at_a_time_runs_the_jobs(space: Workspace) -> None:
    work = running(space)
    with pytest.raises(InputError, match="another service"):
        running(space)
    work.stop()
    running(space).stop()


# --- backfill


@pytest.fixture
def upgraded(space: Workspace, tmp_path: Path) -> Workspace:
    """Nine items of v1, and v2 deployed."""
    space.index(catalogue(pictures(tmp_path / "photos")))
    passed(space, "v2", "v1")
    space.deploy("v2")
    return space


WANTED = {"target": "v2", "budget": "4", "order": "random", "rate": None, "anyway": False}


def test_a_backfill_moves_vectors_and_tells_what_it_did(upgraded: Workspace) -> None:
    work = running(upgraded)
    done = ended(work, work.submit("backfill", WANTED))
    assert (done.state, done.done, done.total) == ("done", 4, 4)
    told = ("version", "planned", "old", "done", "left", "kept")
    assert [done.result[name] for name in told] == ["v2", 4, 9, 4, 0, []]
    assert upgraded.gallery.count() == {"v1": 5, "v2": 4}
    work.stop()
    # a kill came between the last batch and the end: the budget is used up
    JobFiles(upgraded.path).save(replace(done, state="running", ended=None))
    again = running(upgraded)
    assert ended(again, done).state == "done"
    assert upgraded.gallery.count() == {"v1": 5, "v2": 4}
    assert (
        ended(again, again.submit("backfill", WANTED)).state == "done"
    )  # asked for again, it goes on
    assert upgraded.gallery.count() == {"v1": 1, "v2": 8}
    again.stop()


def test_a_cancelled_backfill_goes_on_when_the_same_is_asked_for(upgraded: Workspace) -> None:
    work = running(upgraded)
    job = work.submit("backfill", {**WANTED, "budget": "all", "rate": 2.0})
    until(lambda: work.get(job.id).done, lambda done: done > 0)
    work.cancel(job.id)
    stopped = ended(work, job)
    assert stopped.state == "cancelled"
    moved = upgraded.gallery.count()["v2"]
    assert 0 < moved < 9
    rest = ended(work, work.submit("backfill", {**WANTED, "budget": "all"}))
    assert (rest.state, rest.done, rest.result["done"]) == ("done", 9, 9 - moved)
    assert upgraded.gallery.count()["v2"] == 9
    work.stop()


def test_a_backfill_stopped_by_a_restart_goes_on(upgraded: Workspace) -> None:
    work = running(upgraded)
    job = work.submit("backfill", {**WANTED, "budget": "all", "rate": 4.0})
    until(lambda: work.get(job.id).done, lambda done: done > 0)
    work.stop()
    assert upgraded.gallery.count()["v1"] > 0
    assert JobFiles(upgraded.path).load()[0].state == "running"
    again = running(upgraded)
    done = ended(again, job)
    assert (done.state, done.done) == ("done", 9)
    assert done.result["done"] == 9  # over both starts
    assert upgraded.gallery.count()["v2"] == 9
    again.stop()


@pytest.mark.parametrize(("was_stored", "done", "done_before"), [(False, 8, 0), (True, 4, 4)])
def test_a_backfill_job_tells_what_it_did_before_a_kill(
    upgraded: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    was_stored: bool,
    done: int,
    done_before: int,
) -> None:
    replaced, calls, work = upgraded.gallery.replace_vectors, [0], running(upgraded)

    def die(*given: Any) -> list[str]:
        """In the second batch of four, before or after it is stored; the job's file stays as it was."""
        calls[0] += 1
        if calls[0] != 2:
            return replaced(*given)
        if was_stored:
            replaced(*given)
        work._stopping = True
        raise KeyError("killed")

    monkeypatch.setattr(upgraded.gallery, "replace_vectors", die)
    upgraded.gallery.delete([next(upgraded.gallery.iterate()).id])
    job = work.submit("backfill", {**WANTED, "budget": "all", "rate": 4.0})
    until(lambda: work._stopping, bool)
    work.stop()
    (left,) = JobFiles(upgraded.path).load()
    assert (left.state, left.done, left.result and left.result["done"]) == ("running", 4, 4)
    again = running(upgraded)
    told = ended(again, job).result
    assert {name: told[name] for name in ("planned", "done", "done_before", "left")} == {
        "planned": 8,
        "done": done,
        "done_before": done_before,
        "left": 0,
    }
    again.stop()
    JobFiles(upgraded.path).save(
        replace(left, ended=None)
    )  # killed once more, between the last batch and the end
    last = running(upgraded)
    assert {
        **told,
        **ended(last, job).result,
        "measured": told["measured"],
        "seconds": told["seconds"],
    } == told
    last.stop()


def test_a_backfill_for_a_version_that_is_no_longer_deployed_writes_nothing(
    upgraded: Workspace,
) -> None:
    work = running(upgraded)
    upgraded.rollback()
    stopped = ended(work, work.submit("backfill", WANTED))
    assert (stopped.state, stopped.message) == (
        "cancelled",
        "v1 is deployed now: nothing is re-embedded with v2",
    )
    assert upgraded.gallery.count() == {"v1": 9, "v2": 0}
    work.stop()


def test_jobs_keep_their_order_if_the_clock_is_set_back(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Back(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls(2001, 1, 1, tzinfo=tz)

    work = running(space)
    first = work.submit("index", kept(space, 1))
    monkeypatch.setattr(records, "datetime", Back)
    later = [work.submit("index", kept(space, 1)) for _ in range(3)]
    ids = [job.id for job in (first, *later)]
    assert ids == sorted(ids)
    assert [job.id for job in work.all()] == ids[::-1]
    work.stop()
