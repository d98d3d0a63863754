"""The client against the real application, and against a service that is busy, gone, or no service at all."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from PIL import Image
from service_clients import picture
from shops import passed, shop
from wording import refuses

from fixstar.errors import FixstarError, InputError
from fixstar.service.app import create_app
from fixstar.service.client import Client, ImagesLeftOutError, ServiceError
from fixstar.service.keys import Keys
from fixstar.service.routes_versions import _drift_maps
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return shop(tmp_path / "shop")


@contextmanager
def served(space: Workspace) -> Iterator[str]:
    """The service at a real address, as ``fixstar serve`` would start it."""
    config = uvicorn.Config(
        create_app(space, ServiceSettings()), port=0, log_level="warning", lifespan="on"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def asking(space: Workspace) -> Iterator[Client]:
    with served(space) as address, Client(address) as made:
        yield made


def test_batches_examples_counts_and_payloads(asking: Client) -> None:
    images = {
        f"{kind}/{i}": picture(10 * len(kind) + i) for kind in ("hat", "shoe") for i in range(3)
    }
    asking.add(images, {name: {"label": name.split("/")[0]} for name in images})
    found = asking.search_batch(list(images.values())[:2], k=1, min_score=0.99)
    assert [one.hits[0].id for one in found] == ["hat/0", "hat/1"]
    examples = asking.search_examples(["hat/0"], ["shoe/0"], positive_images=[images["hat/1"]], k=9)
    assert {hit.id for hit in examples.hits} == images.keys() - {"hat/0", "shoe/0"}
    assert asking.update("hat/0", {"label": "shoe"}).label == "shoe"
    assert (asking.count(), asking.count({"label": "hat"})) == (6, 2)
    assert asking.facets("label") == {"shoe": 4, "hat": 2}


def test_a_drift_map_has_a_point_per_item(asking: Client) -> None:
    images = {
        f"{label}{i}": picture(10 * len(label) + i) for label in ("hat", "shoe") for i in range(4)
    }
    asking.add(images, {name: {"label": name[:-1]} for name in images})
    drawn = asking.drift("v1", "v2")
    assert (drawn.old, drawn.new, {point.id for point in drawn.points}) == ("v1", "v2", set(images))
    assert all(point.label == point.id[:-1] and point.moved > 0 for point in drawn.points)
    assert len(asking.drift("v1", "v2", limit=4).points) == 4
    with pytest.raises(ServiceError, match="v9"):
        asking.drift("v1", "v9")


def test_a_drift_map_shows_nothing_that_was_deleted_or_changed(
    asking: Client, space: Workspace
) -> None:
    asking.add({"secret": picture(1), "kept": picture(2)}, {"kept": {"label": "hat"}})
    assert {point.id for point in asking.drift("v1", "v2").points} == {"secret", "kept"}
    asking.delete("secret")
    asking.add({"other": picture(3)})  # as many items as before
    assert {point.id for point in asking.drift("v1", "v2").points} == {"kept", "other"}
    asking.update("kept", {"label": "shoe"})
    assert {point.label for point in asking.drift("v1", "v2").points} == {"shoe", None}
    assert (
        len([key for key in _drift_maps if key[0] == str(space.path)]) == 1
    )  # earlier states are not kept


def test_embeddings_come_as_an_array(asking: Client, space: Workspace) -> None:
    images = [picture(seed) for seed in range(3)]
    found = asking.embeddings(images, "v2")
    assert found.dtype == np.float32
    assert np.allclose(found, space.serving.embed("v2", images), atol=1e-6)
    with pytest.raises(ServiceError, match="v1, v2"):
        asking.embeddings(images, "v7")


def test_items_go_in_are_found_and_go_out(asking: Client, tmp_path: Path) -> None:
    path = tmp_path / "two.png"
    path.write_bytes(picture(2))
    third = Image.open(io.BytesIO(picture(3)))
    added = asking.add(
        {"a/1": picture(1), "two": path, "three": third}, {"two": {"label": "hat", "price": 3}}
    )
    assert (added.version, added.added, added.bad) == ("v1", ("a/1", "two", "three"), ())
    found = asking.search(str(path), k=2)
    assert (found.version, found.hits[0].id, found.hits[0].label) == ("v1", "two", "hat")
    assert found.left_out == ()
    assert found.hits[0].score == pytest.approx(1, abs=1e-5)
    assert found.hits[0].payload == {"label": "hat", "price": 3}
    assert [hit.id for hit in asking.search(third, where={"price": {"ge": 2}}).hits] == ["two"]
    assert [hit.id for hit in asking.similar("two", k=5).hits].count("two") == 0
    assert asking.item("a/1").version == "v1"
    assert asking.delete("a/1", "nothing") == 1
    with pytest.raises(ServiceError) as gone:
        asking.item("a/1")
    assert (gone.value.status, gone.value.title) == (404, "There is no such item")
    assert "a/1" in gone.value.detail
    assert gone.value.hint in str(gone.value)
    assert isinstance(gone.value, FixstarError)


def test_a_vector_is_searched_for(asking: Client, space: Workspace) -> None:
    asking.add({"one": picture(1), "two": picture(2)})
    vector = space.gallery.get(["two"])["two"].vector
    assert asking.search_vector(vector, k=1).hits[0].id == "two"  # type: ignore[arg-type]
    with pytest.raises(ServiceError, match="no vectors of 'v7'"):
        asking.search_vector([1.0, 2.0], version="v7")


def test_lists_without_ids_and_what_does_not_fit(asking: Client) -> None:
    added = asking.add([picture(1), b"no image"], [{"label": "bag"}, {}], leave_out=True)
    assert len(added.added) == len(added.bad) == 1
    assert asking.item(added.added[0]).label == "bag"
    assert "first bytes" in added.bad[0].reason
    with pytest.raises(InputError, match="both"):
        asking.add({"a": picture(1)}, [{}])
    with pytest.raises(InputError, match="'b'"):
        asking.add({"a": picture(1)}, {"b": {}})
    with pytest.raises(InputError, match="cannot be read"):
        asking.search("no/such/file.png")


def test_images_that_cannot_be_used_are_not_overlooked(asking: Client, tmp_path: Path) -> None:
    path = tmp_path / "broken.png"
    path.write_bytes(b"no image")
    with refuses(ImagesLeftOutError) as some:
        asking.add([picture(1), path])
    [bad] = some.value.bad
    assert (bad.index, bad.file, some.value.status) == (1, "broken.png", 200)
    assert [item.id for item in asking.items()] == list(some.value.added)
    with pytest.raises(ImagesLeftOutError, match="nothing was stored") as none:
        asking.add({"a": path, "b": b""}, leave_out=True)
    assert (none.value.added, [one.id for one in none.value.bad], none.value.status) == (
        (),
        ["a", "b"],
        415,
    )
    assert isinstance(none.value, ServiceError)


def test_all_items_come_page_after_page(asking: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fixstar.service.client._PAGE", 3)
    names = [f"i{number}" for number in range(8)]
    asking.add({name: picture(1) for name in names})
    assert [item.id for item in asking.items()] == names
    assert [item.id for item in asking.items(after="i5", version="v1")] == ["i6", "i7"]


def test_a_job_is_waited_for(asking: Client) -> None:
    job = asking.add_later({f"i{number}": picture(number) for number in range(5)})
    assert job.kind == "index"
    done = asking.wait(job, timeout=120, every=0.02)
    assert (done.state, done.done, done.total) == ("done", 5, 5)
    assert asking.status().items == 5
    assert asking.cancel(done) == done
    with pytest.raises(ServiceError, match="no job"):
        asking.job("nothing")


def test_an_upgrade_from_end_to_end(asking: Client, space: Workspace) -> None:
    asking.add({str(number): picture(number) for number in range(4)})
    checked = asking.wait(asking.check("v2", tolerance=0.01), every=0.02)
    assert checked.result == {
        **(checked.result or {}),
        "version": "v2",
        "outcome": "missing evidence",
    }
    assert asking.last_check("v2").outcome == "missing evidence"
    with pytest.raises(ServiceError, match="did not pass") as refused:
        asking.deploy("v2")
    assert refused.value.status == 409
    passed(space, "v2", "v1")
    assert asking.deploy("v2").by == "local"
    assert [(one.name, one.deployed, one.vectors) for one in asking.versions()] == [
        ("v1", False, 4),
        ("v2", True, 0),
    ]
    done = asking.wait(asking.backfill("all", "random"), every=0.02)
    assert done.done == 4
    assert asking.status().vectors == {"v1": 0, "v2": 4}
    assert asking.rollback().version == "v1"
    with refuses(ServiceError):
        asking.rollback()


def test_a_failed_job_is_an_error(asking: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise InputError("no power")

    monkeypatch.setattr(Workspace, "index", broken)
    with pytest.raises(ServiceError, match="no power") as failed:
        asking.wait(asking.add_later([picture(1)]), every=0.02)
    assert failed.value.status == 400


def test_a_key_is_sent(space: Workspace) -> None:
    key = Keys(space.path).add("ann", "read")
    with served(space) as address:
        with Client(address, key) as known:
            assert known.status().deployed == "v1"
            with pytest.raises(ServiceError, match="needs write"):
                known.delete("a")
        with Client(address, "wrong") as stranger, pytest.raises(ServiceError) as unknown:
            stranger.status()
        assert unknown.value.status == 401


def answering(*answers: httpx.Response) -> tuple[Client, list[str]]:
    """A client of a service that gives these answers, and the requests that it got."""
    left, seen = list(answers), []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(f"{request.method} {request.url.path}")
        return left.pop(0)

    return Client(transport=httpx.MockTransport(handle)), seen


def test_translations_are_fitted_and_chosen_by_what_is_sent() -> None:
    sent: list[Any] = []

    def handle(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        if request.url.path == "/v1/deploy":
            move: dict[str, Any] = {
                "version": "v2",
                "kind": "deploy",
                "when": "",
                "reason": None,
                "by": "ann",
                "left_out": {},
            }
            return httpx.Response(200, json={**move, "translations": {"v1": "v1-v2-3.npz"}})
        return httpx.Response(
            202, json={"id": "1", "kind": "check", "state": "queued", "created": ""}
        )

    asking = Client(transport=httpx.MockTransport(handle))
    assert asking.check("v2", weight=0.5, refit=True, sample=500).kind == "check"
    assert asking.deploy("v2", queries="one").translations == {"v1": "v1-v2-3.npz"}
    assert sent[0] == {"weight": 0.5, "refit": True, "sample": 500}
    assert (sent[1]["version"], sent[1]["queries"]) == ("v2", "one")


def busy(status: int, after: str = "2") -> httpx.Response:
    return httpx.Response(
        status, json={"title": "Busy", "detail": "later"}, headers={"Retry-After": after}
    )


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seen: list[float] = []
    monkeypatch.setattr("fixstar.service.client.time.sleep", seen.append)
    return seen


FOUND = httpx.Response(200, json={"version": "v1", "hits": [], "milliseconds": 1.0, "new_field": 1})


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.search(picture(1)),
        lambda one: one.similar("a"),
        lambda one: one.search_vector([1.0]),
    ],
)
def test_what_may_be_repeated_is_when_the_service_is_busy(
    call: Callable[[Client], object], pauses: list[float]
) -> None:
    asking, seen = answering(busy(503), busy(429, "7"), FOUND)
    call(asking)
    assert len(seen) == 3
    assert pauses == [2, 7]


def test_what_may_not_be_repeated_is_not(pauses: list[float]) -> None:
    calls: list[Callable[[Client], object]] = [
        lambda one: one.add([picture(1)]),  # ids made up: a second try would store it twice
        lambda one: one.deploy("v2"),
        lambda one: one.rollback(),
        lambda one: one.backfill(),
    ]
    for call in calls:
        asking, seen = answering(busy(503))
        with pytest.raises(ServiceError, match="Busy: later"):
            call(asking)
        assert len(seen) == 1
    asking, seen = answering(
        busy(503), httpx.Response(200, json={"version": "v1", "added": ["a"], "bad": []})
    )
    assert asking.add({"a": picture(1)}).added == ("a",)
    assert pauses == [2]


def test_a_full_disk_is_not_asked_again(pauses: list[float]) -> None:
    asking, seen = answering(
        httpx.Response(507, json={"title": "The disk is full", "detail": "no room"})
    )
    with refuses(ServiceError) as told:
        asking.add({"a": picture(1)})
    assert (told.value.status, len(seen), pauses) == (507, 1, [])


def test_patience_ends(pauses: list[float]) -> None:
    asking, seen = answering(*(busy(429, "1") for _ in range(9)))
    with pytest.raises(ServiceError) as tired:
        asking.status()
    assert (tired.value.status, len(seen), pauses) == (429, 4, [1, 1, 1])
    asking, seen = answering(busy(429, "3600"))
    with pytest.raises(ServiceError):
        asking.status()  # nobody waits for an hour
    assert len(seen) == 1
    asking, seen = answering(httpx.Response(500, json={"title": "Broken"}))
    with pytest.raises(ServiceError, match="Broken"):
        asking.status()


def test_who_answers_is_no_service_or_nobody() -> None:
    asking, _ = answering(httpx.Response(200, text="<html>"))
    with refuses(ServiceError):
        asking.status()
    with pytest.raises(ServiceError, match="cannot be reached") as absent:
        Client("http://127.0.0.1:9").status()
    assert absent.value.status is None


def test_the_client_needs_no_torch_and_no_web_framework() -> None:
    code = "import sys, fixstar.service.client; print(sorted({'torch', 'fastapi', 'PIL'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
