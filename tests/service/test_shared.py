"""Several services over one workspace: what one does the others know, and a killed one's job is finished by another."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from postgres_server import fresh_url
from replicas import balanced, replicas
from service_clients import picture
from shops import passed, pictures, shop
from wording import refuses

from fixstar.errors import InputError
from fixstar.service.jobs import Job, JobFiles, Jobs, SignsOfLife, queue, signs_of_life
from fixstar.service.jobs.work import WORK
from fixstar.service.keys import Keys
from fixstar.service.limits import SharedBuckets
from fixstar.service.problems import Problem
from fixstar.service.serve import serve
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Indexed, Workspace, catalogue

SHARED = ServiceSettings(shared=True)


def until(look: Callable[[], Any], right: Callable[[Any], bool], seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while not right(seen := look()):
        assert time.monotonic() < end, seen
        time.sleep(0.01)
    return seen


# --- the jobs of two services in this process


class Held:
    """A service whose index jobs wait before each batch until they are let go."""

    def __init__(self, path: Path) -> None:
        self.space = Workspace(path, device="cpu")
        self.work = Jobs(self.space, SHARED)
        self.entered, self.free = threading.Semaphore(0), threading.Semaphore(0)
        self.seen: list[str] = []
        original = self.space.index

        def index(items: Any, *arguments: Any, **options: Any) -> Indexed:
            self.seen += [item.id for item in items]
            self.entered.release()
            assert self.free.acquire(timeout=60)
            return original(items, *arguments, **options)

        self.space.index = index  # type: ignore[method-assign]

    def let_go(self) -> None:
        self.free.release(1000)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Held, Held]]:
    """Two services; the first one runs, the second one begins when it is started."""
    monkeypatch.setattr("fixstar.service.jobs.index.BATCH", 5)
    monkeypatch.setattr(signs_of_life, "BEAT", 0.05)
    shop(tmp_path / "shop").close()
    first, second = Held(tmp_path / "shop"), Held(tmp_path / "shop")
    first.work.start()
    yield first, second
    for one in (first, second):
        one.let_go()
        one.work.stop()
        one.space.close()


def wanted(space: Workspace, count: int) -> dict[str, Any]:
    items = []
    for number in range(count):
        kept = dict(space.images.keep(picture(number)))
        items.append(
            {
                "id": f"i{number:02}",
                "image": kept["image"],
                "payload": {"by": "job", **kept},
                "file": None,
            }
        )
    return {"items": items}


def ended(work: Jobs, job: Job) -> Job:
    seen: Job = until(lambda: work.get(job.id), lambda one: bool(one.has_ended))
    return seen


def test_what_one_service_accepts_the_other_knows_and_one_runs_it(two: tuple[Held, Held]) -> None:
    first, second = two
    second.work.start()
    job = second.work.submit("index", wanted(second.space, 12), "ann")
    assert first.work.get(job.id).by == "ann"
    assert [one.id for one in first.work.all()] == [job.id]
    until(
        lambda: first.entered.acquire(blocking=False) or second.entered.acquire(blocking=False),
        bool,
    )
    later = first.work.submit("index", wanted(first.space, 3))
    assert later.id > job.id
    first.let_go()
    second.let_go()
    assert ended(first.work, job).result == ended(second.work, job).result
    assert ended(second.work, later).state == "done"
    runs = [*first.seen, *second.seen]
    assert sorted(runs) == sorted([f"i{number:02}" for number in range(12)] + ["i00", "i01", "i02"])


def test_a_service_is_refused_room_by_the_job_of_another(
    two: tuple[Held, Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    free = threading.Event()
    monkeypatch.setitem(
        WORK, "check", lambda *_: {"waited": free.wait(60)}
    )  # queued or running: not ended
    second.work.start()
    job = first.work.submit("check", {"version": "v2"})
    with pytest.raises(Problem, match=job.id):
        second.work.submit("check", {"version": "v2"})
    free.set()
    assert ended(second.work, job).result == {"waited": True}


def test_a_job_is_cancelled_by_the_service_that_does_not_run_it(two: tuple[Held, Held]) -> None:
    first, second = two
    job = first.work.submit("index", wanted(first.space, 12))
    assert first.entered.acquire(timeout=60)
    second.work.start()
    assert second.work.cancel(job.id, "bob").cancelling
    first.let_go()
    assert ended(second.work, job).state == "cancelled"
    assert first.work.get(job.id).done in (0, 5)  # its batch was the last, or was given up


def test_what_another_service_writes_meanwhile_is_left_alone(two: tuple[Held, Held]) -> None:
    first, second = two
    job = first.work.submit("index", wanted(first.space, 5))
    assert first.entered.acquire(timeout=60)
    second.work.start()
    with second.work.overtaking(["i03"]) as was_to_come:
        assert was_to_come
        second.space.gallery.delete(["i03"])
    first.let_go()
    result = ended(second.work, job).result
    assert result is not None
    assert (result["added"], result["overtaken"]) == (4, 1)
    assert "i03" not in second.space.gallery.get(["i03"])


def test_a_silent_service_loses_its_job_and_writes_nothing_for_it_any_more(
    two: tuple[Held, Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    monkeypatch.setattr(signs_of_life, "LEASE", 0.5)
    job = first.work.submit("index", wanted(first.space, 12))
    assert first.entered.acquire(timeout=60)
    first.free.release()  # the first batch is stored
    assert first.entered.acquire(timeout=60)
    name = first.work._alive.name
    monkeypatch.setattr(first.work._alive, "beat", lambda: None)  # as if the machine stood still
    second.let_go()
    second.work.start()
    done = ended(second.work, job)
    assert (done.state, done.done, done.attempts) == ("done", 12, 2)
    assert second.seen == [f"i{number:02}" for number in range(5, 12)]  # resumed, not repeated
    second.space.gallery.delete([f"i{number:02}" for number in range(12)])
    first.let_go()  # it wakes up in its second batch
    monkeypatch.undo()
    first.work._alive.beat()
    assert first.work._alive.name != name
    second.work.stop()
    again = first.work.submit("index", wanted(first.space, 1))
    assert ended(first.work, again).state == "done"
    assert sum(second.space.gallery.count().values()) == 1  # nothing of the job that it lost
    assert first.work.get(job.id) == second.work.get(job.id) == done


def test_a_service_that_stops_hands_its_job_over_at_once(two: tuple[Held, Held]) -> None:
    first, second = two
    job = first.work.submit("index", wanted(first.space, 12))
    assert first.entered.acquire(timeout=60)
    stopping = threading.Thread(target=first.work.stop)
    stopping.start()
    until(lambda: first.work._stopping, bool)
    first.let_go()
    stopping.join(60)
    second.let_go()
    second.work.start()
    assert ended(second.work, job).state == "done"
    assert sum(second.space.gallery.count().values()) == 12


@pytest.mark.parametrize("runner", ["gone", ""])
@pytest.mark.parametrize(("attempts", "state"), [(1, "done"), (queue.ATTEMPTS, "failed")])
def test_a_job_left_behind_is_resumed_unless_every_service_dies_of_it(
    two: tuple[Held, Held], runner: str, attempts: int, state: str
) -> None:
    first, second = two
    first.work.stop()
    job = Job.new("index", wanted(first.space, 1))
    JobFiles(first.space.path).save(replace(job, state="running", attempts=attempts, runner=runner))
    second.let_go()
    second.work.start()
    assert ended(second.work, job).state == state


def test_services_share_or_not_but_not_both(two: tuple[Held, Held]) -> None:
    first, second = two
    alone = Jobs(second.space)
    with refuses(InputError):
        alone.start()
    first.work.stop()
    alone.start()
    with pytest.raises(InputError, match="does not share"):
        second.work.start()
    alone.stop()


def test_a_service_is_alive_while_its_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    here, there = SignsOfLife(tmp_path), SignsOfLife(tmp_path)
    there.join()
    assert here.is_alive(there.name)
    now = signs_of_life.LEASE - 1
    assert here.is_alive(there.name)
    os.utime(tmp_path / "state" / ".services" / there.name, (1, 1))  # its clock is wrong by decades
    assert here.is_alive(there.name)
    now = 2 * signs_of_life.LEASE - 2
    assert here.is_alive(there.name)
    now = 2 * signs_of_life.LEASE
    assert not here.is_alive(there.name)
    assert not here.is_alive("")
    assert not here.is_alive("unknown")


# --- rates


def test_buckets_in_a_file_are_one_bucket_for_all_that_open_it(tmp_path: Path) -> None:
    now = 1000.0
    one, other = (SharedBuckets(60, tmp_path / "rates", lambda: now) for _ in range(2))
    assert [one.take("key ann") for _ in range(30)] == [0.0] * 30
    assert [other.take("key ann") for _ in range(30)] == [0.0] * 30
    assert one.take("key ann") == other.take("key ann") == 1.0
    assert other.take("key bob", 0.1) == 0.0
    now = 1002.0
    assert [one.take("key ann"), other.take("key ann"), one.take("key ann")] == [0.0, 0.0, 1.0]
    now = 990.0  # a machine whose clock is behind
    assert one.take("key ann") == 1.0


def test_a_clock_that_is_set_back_refuses_nobody_for_long(tmp_path: Path) -> None:
    now = 10_000.0
    buckets = SharedBuckets(60, tmp_path / "rates", lambda: now)
    assert [buckets.take("key ann") for _ in range(60)] == [0.0] * 60
    now = 10_000.0 - 3600
    assert buckets.take("key ann") == 1.0
    now += 1.0
    assert buckets.take("key ann") == 0.0
    assert buckets.take("key ann") == 1.0  # and nobody gets more for it


def test_many_callers_do_not_make_the_file_grow(tmp_path: Path) -> None:
    buckets = SharedBuckets(2, tmp_path / "rates", iter(range(100_000)).__next__)
    for number in range(20_000):
        assert buckets.take(f"address {number}") == 0.0
    assert (tmp_path / "rates").stat().st_size <= 1 << 19
    assert buckets.take("address 19999") == 0.0
    assert buckets.take("address 19999") > 0


# --- three processes behind a balancer


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Workspace]:
    Workspace.create(tmp_path / "shop", fresh_url()).close()
    with shop(tmp_path / "shop") as made:
        yield made


@pytest.mark.long
def test_a_killed_services_job_is_finished_by_another_behind_the_balancer(space: Workspace) -> None:
    ids = [f"later/{number}" for number in range(640)]
    files = [("images", (f"{number}.png", picture(number, (8, 8)))) for number in range(len(ids))]
    with replicas(space) as services, balanced(services) as http:
        taken = http.post("/v1/items/async", files=files, data={"ids": json.dumps(ids)})
        assert taken.status_code == 202, taken.text
        name = taken.json()["id"]
        until(lambda: http.get(f"/v1/jobs/{name}").json(), lambda seen: seen["done"] > 0)
        left = next(job for job in JobFiles(space.path).load() if job.id == name)
        victim = next(one for one in services if f"-{one.process.pid}-" in left.runner)
        victim.kill()
        left = next(job for job in JobFiles(space.path).load() if job.id == name)
        assert 0 < left.done < len(ids)  # else it was too late
        assert (
            http.put(
                "/v1/item", params={"id": "meanwhile"}, files={"image": picture(1)}
            ).status_code
            == 200
        )
        told = until(
            lambda: http.get(f"/v1/jobs/{name}").json(),
            lambda seen: seen["state"] not in ("queued", "running"),
        )
        assert (told["state"], told["done"], told["result"]["added"]) == (
            "done",
            len(ids),
            len(ids),
        )
        done = next(job for job in JobFiles(space.path).load() if job.id == name)
        assert (done.attempts, done.runner != left.runner) == (2, True)
        assert {http.get("/v1/status").json()["items"] for _ in range(4)} == {len(ids) + 1}


@pytest.mark.long
def test_a_killed_services_backfill_is_finished_by_another(
    space: Workspace, tmp_path: Path
) -> None:
    space.index(catalogue(pictures(tmp_path / "photos", 40)))
    passed(space, "v2", "v1")
    space.deploy("v2")
    with replicas(space) as services, balanced(services) as http:
        body = {"budget": "100%", "rate": 20, "order": "oldest", "anyway": True}
        answer = http.post("/v1/backfill", json=body)
        assert answer.status_code == 202, answer.text
        name = answer.json()["id"]
        until(lambda: http.get(f"/v1/jobs/{name}").json(), lambda seen: seen["done"] > 0)
        left = next(job for job in JobFiles(space.path).load() if job.id == name)
        next(one for one in services if f"-{one.process.pid}-" in left.runner).kill()
        told = until(
            lambda: http.get(f"/v1/jobs/{name}").json(),
            lambda seen: seen["state"] not in ("queued", "running"),
        )
        result = told["result"]
        assert (told["state"], result["done"] + result["done_before"], result["left"]) == (
            "done",
            120,
            0,
        ), told
        assert http.get("/v1/status").json()["vectors"] == {"v1": 0, "v2": 120}


def test_keys_versions_and_deployments_are_the_same_everywhere_and_no_answer_mixes_two(
    space: Workspace, tmp_path: Path
) -> None:
    space.index(catalogue(pictures(tmp_path / "photos")))
    passed(space, "v2", "v1")
    with replicas(space) as services:
        token = Keys(space.path).add("ann", "admin")
        for service in services:
            assert service.http.get("/v1/status").status_code == 401
            service.http.headers["authorization"] = f"Bearer {token}"
            assert service.http.get("/v1/status").json()["deployed"] == "v1"

        with balanced(services) as http:
            http.headers["authorization"] = f"Bearer {token}"
            stop, answers, odd = threading.Event(), list[set[str]](), list[str]()

            def ask() -> None:
                photos = [("images", (f"{number}.png", picture(number))) for number in range(40)]
                while not stop.is_set():
                    answer = http.post("/v1/search/batch", files=photos)
                    if answer.status_code == 200:
                        answers.append({one["version"] for one in answer.json()})
                    else:
                        odd.append(answer.text)

            askers = [threading.Thread(target=ask) for _ in range(3)]
            for asker in askers:
                asker.start()
            for _ in range(4):
                assert http.post("/v1/deploy", json={"version": "v2"}).status_code == 200
                for service in services:  # each knows it at once
                    told = service.http.get("/v1/status").json()
                    assert (told["deployed"], told["previous"]) == ("v2", "v1")
                    found = service.http.post("/v1/search", files={"image": picture(1)}).json()
                    assert found["version"] == "v2"
                assert http.post("/v1/rollback").status_code == 200
                assert [s.http.get("/v1/status").json()["deployed"] for s in services] == ["v1"] * 3
            stop.set()
            for asker in askers:
                asker.join()
        assert not odd
        assert answers
        assert all(len(versions) == 1 for versions in answers)
        Keys(space.path).remove("ann")
        Keys(space.path).add("bob", "read")
        assert [service.http.get("/v1/status").status_code for service in services] == [401] * 3


def test_the_rate_is_counted_over_all_services(space: Workspace) -> None:
    with replicas(space, rate=60) as services, balanced(services) as http:
        began = time.monotonic()
        codes = [http.get("/v1/items").status_code for _ in range(120)]
        refilled = time.monotonic() - began + 1  # one per second
        assert 60 <= codes.count(200) <= 60 + refilled
        assert set(codes) <= {200, 429}


def test_sharing_needs_a_gallery_on_a_server(tmp_path: Path) -> None:
    with shop(tmp_path / "shop", versions=1) as alone, refuses(InputError):
        serve(alone, ServiceSettings(port=0, shared=True))
