"""A backfill plans what it can embed: items without an image do not use up its budget, and are counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shops import passed, pictures, shop

from fixstar.gallery import MemoryGallery
from fixstar.geometry import unit
from fixstar.translation import Translation
from fixstar.workspace import BackfillOptions, ImageStore, Workspace, catalogue
from fixstar.workspace.backfill.orders import BLIND, ORDERS, old_items, planned_order, with_images
from fixstar.workspace.backfill.run import PlanFiles


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Workspace]:
    """30 items by v1, with v2 deployed."""
    with shop(tmp_path / "shop") as space:
        space.index(catalogue(pictures(tmp_path / "photos", 10)))
        passed(space, "v2", "v1")
        space.deploy("v2")
        yield space


@pytest.mark.parametrize("order", ["certain", "random"])
def test_the_budget_is_spent_on_items_that_have_an_image(
    space: Workspace, tmp_path: Path, order: str
) -> None:
    options = BackfillOptions("20%", order)
    gone = space.plan_backfill(options).plan.ids
    PlanFiles(space.path).save(
        space.plan_backfill(BackfillOptions("1", order)).plan
    )  # not the one under way
    for name in gone:
        (tmp_path / "photos" / name).unlink()
    planned = space.plan_backfill(options)
    assert (len(planned.plan.ids), planned.plan.old, planned.plan.without_image) == (6, 30, 6)
    assert not set(planned.plan.ids) & set(gone)
    first, second = space.backfill(options), space.backfill(options)
    assert (first.done, first.kept, first.without_image) == (6, (), 6)
    assert second.done == 5  # a fifth of the 24 that are left
    rest = space.backfill(BackfillOptions("all", order))
    assert (rest.done, rest.without_image, space.gallery.count()) == (13, 6, {"v1": 6, "v2": 24})
    nothing = space.backfill(BackfillOptions("all", order))
    assert (nothing.planned, nothing.without_image) == (0, 6)


def test_a_plan_can_be_read_without_its_ids(space: Workspace) -> None:
    files, plan = PlanFiles(space.path), space.plan_backfill(BackfillOptions("all", "random")).plan
    assert files.plan() == plan
    assert plan.planned == len(plan.ids) > 0
    assert files.plan(with_ids=False) == replace(plan, ids=())


def shared() -> dict[str, Translation]:
    """v1 and v2 lie in one space."""
    return {"v1": Translation.between_shared("v1", "v2")}


class Looking(ImageStore):
    """Counts how many images were looked for."""

    looked = 0

    def has(self, place: str) -> bool:
        self.looked += 1
        return super().has(place)


def test_no_more_images_are_looked_for_than_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixstar.workspace.backfill.orders._BLOCK", 4)
    gallery = MemoryGallery()
    for name in ("v1", "v2"):
        gallery.create_version(name, 3)
    rows = unit(np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32))
    names = [f"{i:02}" for i in range(20)]
    (tmp_path / "here.png").touch()
    files = [tmp_path / ("gone.png" if i in (0, 2, 3) else "here.png") for i in range(20)]
    payloads: list[dict[str, Any]] = [{"image": str(file), "label": "a"} for file in files]
    payloads[19] = {"label": "a"}
    gallery.upsert("v1", names, rows, payloads)
    images = Looking(tmp_path)
    items = old_items(gallery, images, "v2", shared())
    np.testing.assert_allclose(items.vectors, rows, atol=1e-6)  # read in blocks of four
    assert images.looked == 0
    order = np.arange(20)
    assert with_images(images, items, order, 3) == ([1, 4, 5], 3)
    assert images.looked == 6
    everything, without = with_images(images, items, order, 20)
    assert (len(everything), without) == (16, 4)
    assert with_images(images, items, order, 0) == ([], 0)


def test_orders_that_do_not_look_at_vectors_do_without_them(tmp_path: Path) -> None:
    gallery = MemoryGallery()
    for name in ("v1", "v2"):
        gallery.create_version(name, 3)
    gallery.upsert("v1", list("abcd"), np.eye(3)[[0, 1, 2, 0]])
    images = ImageStore(tmp_path)
    whole = old_items(gallery, images, "v2", shared(), usage={"b": 2})
    blind = old_items(gallery, images, "v2", shared(), usage={"b": 2}, vectors=False)
    assert (blind.vectors.shape, blind.ids) == ((4, 0), whole.ids)
    assert set(BLIND) < set(ORDERS)
    for order in BLIND:
        assert planned_order(order, blind).tolist() == planned_order(order, whole).tolist()
