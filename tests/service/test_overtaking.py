"""Writes that come after an index job was taken on hold, whenever the job comes to their items."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from service_clients import client, picture
from shops import shop

from fixstar.service.jobs import Job, JobFiles, Jobs
from fixstar.service.jobs.work import WORK
from fixstar.workspace import Workspace


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Workspace]:
    with shop(tmp_path / "shop") as made:
        yield made


class Gate:
    """Holds calls until they are let go."""

    def __init__(self) -> None:
        self.entered, self.free = threading.Event(), threading.Event()

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def held(*given: Any) -> Any:
            self.entered.set()
            assert self.free.wait(120)
            return call(*given)

        return held


@pytest.fixture
def before_start(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Index jobs are held before their first batch."""
    gate = Gate()
    monkeypatch.setitem(WORK, "index", gate.before(WORK["index"]))
    return gate


def wanted(space: Workspace, *ids: str, rev: int = 1) -> dict[str, Any]:
    kept = dict(space.images.keep(picture(rev)))
    return {
        "items": [
            {"id": name, "image": kept["image"], "payload": {"rev": rev, **kept}, "file": None}
            for name in ids
        ]
    }


def revs(space: Workspace) -> dict[str, int]:
    return {item.id: item.payload["rev"] for item in space.gallery.iterate()}


def running(space: Workspace) -> Jobs:
    made = Jobs(space)
    made.start()
    return made


def ended(ask: Callable[[], Any]) -> dict[str, Any]:
    end = time.monotonic() + 120
    while (job := ask())["state"] in ("queued", "running"):
        assert time.monotonic() < end, job
        time.sleep(0.01)
    return dict(job)


def result(work: Jobs, job: Job) -> dict[str, Any]:
    seen = ended(lambda: vars(work.get(job.id)))
    assert seen["state"] == "done", seen
    return dict(seen["result"])


def test_requests_after_a_job_was_taken_on_hold(space: Workspace, before_start: Gate) -> None:
    with client(space) as http:
        names = [*"abcdef"]
        files = [("images", (name, picture(1))) for name in names]
        lists = {"ids": json.dumps(names), "payloads": json.dumps([{"rev": 1}] * 6)}
        job = http.post("/v1/items/async", files=files, data=lists).json()["id"]
        for name in "ab":
            put = http.put(
                f"/v1/item?id={name}",
                files={"image": ("x", picture(2))},
                data={"payload": '{"rev": 2}'},
            )
            assert put.status_code == 200
        assert http.delete("/v1/item?id=b").json() == {"deleted": 1}
        assert http.delete("/v1/item?id=c").json() == {
            "deleted": 0
        }  # it was still to come, and does not
        assert http.delete("/v1/item?id=nobody").status_code == 404
        assert http.post("/v1/items/delete", json={"ids": ["d", "nobody"]}).json() == {"deleted": 0}
        data = {"ids": '["e"]', "payloads": '[{"rev": 3}]'}
        assert http.post("/v1/items", files=[("images", ("x", picture(3)))], data=data).json()[
            "added"
        ] == ["e"]
        assert http.put("/v1/item?id=f", files={"image": ("x", b"no image")}).status_code == 415
        before_start.free.set()
        told = ended(lambda: http.get(f"/v1/jobs/{job}").json())["result"]
        assert (told["added"], told["overtaken"], told["versions"]) == (1, 5, {"v1": 1})
        assert revs(space) == {"a": 2, "e": 3, "f": 1}


def test_what_overtook_a_job_is_known_after_a_kill(space: Workspace, before_start: Gate) -> None:
    work = running(space)
    job = work.submit("index", wanted(space, "a", "b"))
    with work.overtaking(["a", "other"]) as was_to_come:
        assert was_to_come
    left = (JobFiles(space.path).directory / f"{job.id}.json").read_text()
    before_start.free.set()
    assert result(work, job)["overtaken"] == 1
    assert "overtaken" not in work.get(job.id).parameters
    work.stop()
    space.gallery.delete(["b"])
    (JobFiles(space.path).directory / f"{job.id}.json").write_text(
        left
    )  # as it was on disk before it began
    again = running(space)
    assert (result(again, job)["overtaken"], revs(space)) == (1, {"b": 1})
    again.stop()


def test_a_write_that_fails_overtakes_nothing(space: Workspace, before_start: Gate) -> None:
    work = running(space)
    job = work.submit("index", wanted(space, "a"))
    with pytest.raises(OSError, match="full"), work.overtaking(["a"]):
        raise OSError("full")
    before_start.free.set()
    assert (result(work, job)["overtaken"], revs(space)) == (0, {"a": 1})
    with work.overtaking(["a"]) as was_to_come:
        assert not was_to_come
    work.stop()


def test_the_later_of_two_jobs_wins_and_a_write_overtakes_the_ones_before_it(
    space: Workspace, before_start: Gate
) -> None:
    work = running(space)
    first = work.submit("index", wanted(space, "a", "b"))
    with work.overtaking(["a"]):
        pass
    second, third = (work.submit("index", wanted(space, "a", "b", rev=rev)) for rev in (2, 3))
    with work.overtaking(["b"]):
        space.gallery.delete(["b"])
    before_start.free.set()
    assert [result(work, job)["overtaken"] for job in (first, second, third)] == [2, 1, 1]
    assert revs(space) == {"a": 3}
    work.stop()


@pytest.mark.parametrize("moment", ["before", "in"])
def test_there_is_no_window_between_the_look_and_the_write(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A deletion comes when a batch is embedded and not stored yet, or while it is stored."""
    gate, index = Gate(), space.index
    if moment == "in":
        monkeypatch.setattr(space.gallery, "upsert", gate.before(space.gallery.upsert))
    else:

        def held(items: Any, again: bool, store: Any, decode: Any) -> Any:
            return index(items, again=again, store=gate.before(store), decode=decode)

        monkeypatch.setattr(space, "index", held)
    work = running(space)
    job = work.submit("index", wanted(space, "a", "b"))
    assert gate.entered.wait(120)

    def delete() -> None:
        with work.overtaking(["b"]):
            space.gallery.delete(["b"])

    deletion = threading.Thread(target=delete)
    deletion.start()
    deletion.join(0.3 if moment == "in" else 120)
    assert deletion.is_alive() == (
        moment == "in"
    )  # it waits for a write under way, not for embedding
    gate.free.set()
    deletion.join(120)
    told = result(work, job)
    assert revs(space) == {"a": 1}
    assert told["added"] + told["overtaken"] == 2
    work.stop()
