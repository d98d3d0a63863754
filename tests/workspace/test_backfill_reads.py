"""A plan reads every item with an older vector once, and its run reads every planned item once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shops import indexed_shop, passed

from fixstar.data import open_images
from fixstar.geometry import unit
from fixstar.translation import Translation
from fixstar.translation.maps import Map
from fixstar.workspace import BackfillOptions, Workspace
from fixstar.workspace.backfill.orders import ORDERS
from fixstar.workspace.backfill.run import PlanFiles
from fixstar.workspace.usage import Usage

PER_CLASS = 10
ITEMS = 3 * PER_CLASS


class Reads:
    """Counts the items that a gallery hands out."""

    def __init__(self, space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        gallery = space.gallery
        iterate = gallery.iterate
        get = gallery.get

        def counted_iterate(*arguments: Any, **options: Any) -> Iterator[Any]:
            for item in iterate(*arguments, **options):
                self._count += 1
                yield item

        def counted_get(ids: Sequence[str]) -> Any:
            found = get(ids)
            self._count += len(found)
            return found

        monkeypatch.setattr(gallery, "iterate", counted_iterate)
        monkeypatch.setattr(gallery, "get", counted_get)

    def taken(self) -> int:
        """The count since the last call."""
        count = self._count
        self._count = 0
        return count


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Workspace]:
    """30 items by v1, with v2 deployed."""
    with Workspace(indexed_shop(tmp_path, PER_CLASS), "cpu") as space:
        passed(space, "v2", "v1")
        space.deploy("v2")
        yield space


@pytest.mark.parametrize("budget", ["20%", "all"])
@pytest.mark.parametrize("order", ["auto", *ORDERS])
def test_a_plan_and_its_run_read_every_item_once(
    space: Workspace, tmp_path: Path, order: str, budget: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = Usage(space.path)
    usage.record(["bag/0.png"])
    usage.flush()
    reads = Reads(space, monkeypatch)
    options = BackfillOptions(budget, order, data=open_images(tmp_path / "photos"), anyway=True)
    planned = space.plan_backfill(options)
    assert planned.predicted is not None
    assert reads.taken() == ITEMS
    done = space.backfill(options, judged=planned.plan.token)
    assert reads.taken() == done.done == len(planned.plan.ids)
    assert len(planned.plan.ids) == (6 if budget == "20%" else ITEMS)


def test_a_resumed_run_reads_only_what_is_left(
    space: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixstar.workspace.backfill.run.BATCH", 4)
    reads = Reads(space, monkeypatch)
    asked = iter([False, False, True])
    data = open_images(tmp_path / "photos")
    stopped = BackfillOptions(
        "all", "random", data=data, anyway=True, stop=lambda: next(asked, True)
    )
    first = space.backfill(stopped)
    assert 0 < first.left < ITEMS
    assert reads.taken() == ITEMS + first.done
    options = BackfillOptions("all", "random", data=data, anyway=True)
    planned = space.plan_backfill(options)
    assert (planned.position, planned.share) == (first.done, 1.0)
    assert reads.taken() == 0
    second = space.backfill(options)
    assert (second.done, reads.taken()) == (first.left, first.left)
    assert second.measured[-1].share == 1.0


def test_what_a_plan_is_predicted_on_is_not_looked_for_again(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model of "elsewhere" is not here: the prediction takes labelled items, and reads these once more."""
    monkeypatch.setattr("fixstar.workspace.backfill.planning.SAMPLE", 12)
    monkeypatch.setattr("fixstar.workspace.backfill.planning.judges", lambda _: True)
    known = space.gallery.get([item.id for item in space.gallery.iterate()])
    space.gallery.create_version("elsewhere", 5)
    vectors = unit(np.random.default_rng(0).normal(size=(ITEMS, 5)))
    space.gallery.upsert(
        "elsewhere", list(known), vectors, [item.payload for item in known.values()]
    )
    W = np.random.default_rng(1).normal(size=(5, space.gallery.space("v2").width))
    way = Translation(
        "elsewhere",
        "v2",
        forward=Map.linear(W),
        backward=Map.linear(W.T),
        one=0.6,
        about={"fit": "test"},
    )
    space.translations.keep(way)
    space.deploy("v2", force="test")
    reads = Reads(space, monkeypatch)
    planned = space.plan_backfill(BackfillOptions("20%", "auto", anyway=True))
    assert planned.replaced is not None
    assert planned.replaced.old == "elsewhere"
    assert planned.predicted is not None
    assert reads.taken() == ITEMS + 12


def test_a_plan_of_an_earlier_release_is_predicted_and_resumes(
    space: Workspace, tmp_path: Path
) -> None:
    """It does not say which versions its items were of."""
    options = BackfillOptions("50%", "random", data=open_images(tmp_path / "photos"), anyway=True)
    now = space.plan_backfill(options)
    PlanFiles(space.path).save(replace(now.plan, versions=None))
    then = space.plan_backfill(options)
    assert (then.replaced, then.share) == (now.replaced, 0.5)
    assert space.backfill(options).done == ITEMS // 2
