"""The share of vectors by version over time: noted when it changes, bounded, and whole after a kill."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_clients import client, picture
from shops import passed, shop

from fixstar.durable import read_document
from fixstar.service.jobs import History
from fixstar.workspace import BackfillOptions, CatalogueItem, Workspace


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Workspace]:
    with shop(tmp_path / "shop") as made:
        yield made


def add(space: Workspace, *numbers: int) -> None:
    items = [
        CatalogueItem(str(one), picture(one), dict(space.images.keep(picture(one))))
        for one in numbers
    ]
    space.index(items, again=True)


def stored(space: Workspace) -> list[dict[str, int]]:
    return [
        sample["vectors"]
        for sample in read_document(space.path / "state" / "history.json", "history")["samples"]
    ]


def test_only_changes_are_noted(space: Workspace) -> None:
    history = History(space)
    assert history.samples() == []  # an empty gallery is where everything begins
    add(space, 1, 2)
    assert [sample.vectors for sample in history.samples()] == [{"v1": 2}]
    history.look()
    add(space, 1)  # the same item once more
    history.look()
    assert len(stored(space)) == 1
    passed(space, "v2", "v1")
    space.deploy("v2")
    space.backfill(BackfillOptions("1", "random"))
    add(space, 3)
    seen = History(space).samples()  # as after a restart
    assert [sample.vectors for sample in seen] == [{"v1": 2}, {"v1": 1, "v2": 2}]
    assert seen[0].when < seen[1].when
    space.gallery.delete(["1", "2", "3"])
    assert History(space).samples()[-1].vectors == {}


@pytest.mark.parametrize(
    "content", [b'[{"when": "2026-01-01T00:00:00", "vec', b"\xff", b"[1]", b'{"when": 3}', b"3"]
)
def test_a_damaged_file_begins_again(space: Workspace, content: bytes) -> None:
    add(space, 1)
    (space.path / "state").mkdir(exist_ok=True)
    (space.path / "state" / "history.json").write_bytes(content)
    assert [sample.vectors for sample in History(space).samples()] == [{"v1": 1}]
    assert stored(space) == [{"v1": 1}]


def test_it_stays_bounded_and_keeps_the_first_and_the_latest(space: Workspace) -> None:
    history = History(space, most=10)
    for number in range(30):
        add(space, number)
        history.look()
    seen = [sample.vectors["v1"] for sample in history.samples()]
    assert len(seen) <= 10
    assert seen == sorted(seen)
    assert seen[0] == 1
    assert seen[-4:] == [27, 28, 29, 30]
    assert [vectors["v1"] for vectors in stored(space)] == seen


def test_it_looks_by_itself_while_it_is_started(space: Workspace) -> None:
    history = History(space, interval=0.02)
    history.start()
    add(space, 1)
    end = time.monotonic() + 120
    while not (space.path / "state" / "history.json").is_file():
        assert time.monotonic() < end
        time.sleep(0.01)
    add(space, 2)
    history.stop()  # looks once more
    assert stored(space)[-1] == {"v1": 2}


def test_it_is_told_over_http(space: Workspace) -> None:
    add(space, 1)
    with client(space) as http:
        (sample,) = http.get("/v1/history").json()
    assert sample["vectors"] == {"v1": 1}
    assert sample["when"].endswith("+00:00")
