"""A backfill is predicted from vectors that it replaces and that searches find, as they find them, or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixstar.workspace.adapters.fitting import fit_adapter
from predictions import predicted
from shops import indexed_shop, pictures, shop
from typed import typed

from fixstar.data import open_images
from fixstar.geometry import unit
from fixstar.workspace import BackfillOptions, Check, Workspace, catalogue
from fixstar.workspace.backfill.planning import expected_replaced
from fixstar.workspace.checks import CheckedCell, save_check

PER_CLASS = 6
ITEMS = 3 * PER_CLASS


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The old version of every prediction, and whether it merges by calibrations; each predicts a loss at 5 to 10 %."""
    seen: list[tuple[str, bool]] = []

    def curve(old: tuple[str, Any], *_: Any, calibrate: bool, **__: Any) -> Any:
        seen.append((old[0], calibrate))
        return predicted(lost=30)

    monkeypatch.setattr("fixstar.workspace.backfill.planning.predicted_curve", curve)
    return seen


def calibrated(space: Workspace) -> None:
    """Let v2's check have calibrations for v1's vectors and its own."""
    cell = CheckedCell("v1", 0.5, 0.6, 0.05, 0.15, "compatible", 40, 2, 12)
    pairs = {"v1": (10.0, -5.0), "v2": (10.0, -5.0)}
    save_check(space.path, Check("v2", "pass", (), (cell,), 0.7, 100, 100, 0.95, 0.0, calibrations=pairs))


def imported(space: Workspace, ids: list[str]) -> None:
    """Vectors of another model, which nothing connects with the versions here; known items keep their images."""
    known = space.gallery.get(ids)
    payloads = [known[name].payload if name in known else {} for name in ids]
    space.gallery.create_version("elsewhere", 5)
    space.gallery.upsert("elsewhere", ids, unit(np.random.default_rng(0).normal(size=(len(ids), 5))), payloads)


@pytest.mark.parametrize("order", ["random", "auto"])
def test_vectors_that_no_search_reaches_change_no_prediction(
    tmp_path: Path, asked: list[tuple[str, bool]], order: str
) -> None:
    with Workspace(indexed_shop(tmp_path, PER_CLASS), "cpu") as space:
        space.deploy("v2", force="test")
        space.backfill(BackfillOptions("3", "random"))
        calibrated(space)
        imported(space, [f"e{row}" for row in range(200)])
        assert "elsewhere" in space.serving.reachability.of("v2").unreachable
        assert space.serving.calibrations("v2", space.serving.reachability.of("v2"))
        assert expected_replaced(space.serving, "v2", "1")[:2] == ("v1", 1 / (ITEMS - 3))
        planned = space.plan_backfill(BackfillOptions("1", order, data=open_images(tmp_path / "photos")))
        assert (planned.plan.old, len(planned.plan.ids)) == (ITEMS - 3 + 200, 1)
        assert planned.share == 1 / (ITEMS - 3)
        assert set(asked) == {("v1", True)}
        assert planned.loses


def test_where_all_that_is_replaced_was_not_found_nothing_is_predicted(
    tmp_path: Path, asked: list[tuple[str, bool]]
) -> None:
    photos = pictures(tmp_path / "photos", PER_CLASS)
    with shop(tmp_path / "shop") as space:
        space.index(catalogue(photos), version="v2")
        space.deploy("v2", force="test")
        imported(space, [item.id for item in space.gallery.iterate("v2")][:4])
        planned = space.plan_backfill(BackfillOptions("2", "random", data=open_images(photos)))
        assert (planned.predicted, planned.share, asked) == (None, 0.5, [])
        assert planned.unpredicted == "searches find none of the vectors that it replaces, so nothing is predicted"


@pytest.mark.parametrize("order", ["random", "auto"])
def test_the_old_version_is_that_of_the_items_planned(
    tmp_path: Path, asked: list[tuple[str, bool]], order: str
) -> None:
    """Most vectors are v1's, but their images are gone."""
    photos, gone = pictures(tmp_path / "photos", 2), pictures(tmp_path / "gone", PER_CLASS)
    with shop(tmp_path / "shop", versions=3) as space:
        space.index([replace(item, id=f"gone/{item.id}") for item in catalogue(gone)], version="v1")
        space.index(catalogue(photos), version="v2")
        space.deploy("v3", force="test")
        data = open_images(gone).load(space.serving.encoder("v3").preprocessing, "skip").images
        for file in gone.rglob("*.png"):
            file.unlink()
        planned = space.plan_backfill(BackfillOptions("3", order, data=data))
        assert asked[-1] == ("v2", False)
        assert planned.share == 3 / (ITEMS + 6)


def test_nothing_is_predicted_or_measured_where_searches_go_through_an_adapter(
    tmp_path: Path, asked: list[tuple[str, bool]]
) -> None:
    path, photos = indexed_shop(tmp_path, PER_CLASS), tmp_path / "photos"
    words = "vectors of v1 are reached through an adapter, so nothing is predicted"
    with Workspace(path, "cpu") as space:
        files = sorted(photos.rglob("*.png"))
        ends = (space.serving.encoder(name).encode(files, form="short") for name in ("v2", "v1"))
        space.adapters.use(fit_adapter("ridge", *ends, source="v2", target="v1"), "queries")
        space.deploy("v2", force="test")
        calibrated(space)
        options = BackfillOptions("50%", "random", data=open_images(photos))
        planned = space.plan_backfill(options)
        assert (planned.predicted, planned.unpredicted, planned.loses) == (None, words, False)
    shown = typed("backfill", "--budget", "50%", "--order", "random", "--data", photos, "--plan-only", "-w", path)
    assert f"The gain is unknown: {words}" in shown.out
    with Workspace(path, "cpu") as space:
        assert space.backfill(options).measured == ()
        rest = space.backfill(BackfillOptions("all", data=open_images(photos)))
        assert [point.share for point in rest.measured] == [1.0]  # all are met as they are then
    assert asked == []


def test_too_few_labelled_images_are_told_as_too_few(tmp_path: Path) -> None:
    with Workspace(indexed_shop(tmp_path, PER_CLASS), "cpu") as space:
        space.deploy("v2", force="test")
    shown = typed("backfill", "--plan-only", "--data", pictures(tmp_path / "few", 2), "-w", tmp_path / "shop")
    assert shown.code == 0
    assert "unknown: it takes three labelled images of each of two classes, and there are fewer" in shown.out


def test_a_backfill_is_predicted_with_queries_as_they_are_blended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def curve(*_: Any, **ways: Any) -> Any:
        seen.append(ways)
        return predicted(lost=0)

    monkeypatch.setattr("fixstar.workspace.backfill.planning.predicted_curve", curve)
    with Workspace(indexed_shop(tmp_path, PER_CLASS), "cpu") as space:
        calibrated(space)
        space.deploy("v2", force="test", blend=0.4)
        space.plan_backfill(BackfillOptions("3", "random", data=open_images(tmp_path / "photos")))
        assert {(ways["blend"], ways["calibrate"]) for ways in seen} == {(0.4, False)}  # none fitted for such queries
        space.rollback()
        seen.clear()
        space.deploy("v2", force="test")
        space.plan_backfill(BackfillOptions("3", "random", data=open_images(tmp_path / "photos")))
        assert {(ways["blend"], ways["calibrate"]) for ways in seen} == {(1.0, True)}
