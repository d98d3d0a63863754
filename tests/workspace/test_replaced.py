"""A backfill is predicted from vectors that it replaces and that searches find, as they find them, or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from predictions import predicted
from shops import CLASSES, fitted, indexed_shop, pictures, shop
from typed import typed
from wording import check_wording

from fixstar.data import open_images
from fixstar.geometry import unit
from fixstar.models import Encoder
from fixstar.translation import Translation
from fixstar.workspace import BackfillOptions, Check, Workspace, catalogue
from fixstar.workspace.backfill.orders import ORDERS
from fixstar.workspace.backfill.planning import Thirds, _as_old_items, expected_replaced, of_images
from fixstar.workspace.checks import CheckedCell, save_check

PER_CLASS = 6
ITEMS = 3 * PER_CLASS


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The old version of every prediction, and whether it merges by calibrations; each predicts a loss at 5 to 10 %."""
    seen: list[tuple[str, bool]] = []

    def curve(_: Thirds, way: Translation, *__: Any, calibrate: bool, **___: Any) -> Any:
        seen.append((way.source, calibrate))
        return predicted(lost=30)

    monkeypatch.setattr("fixstar.workspace.backfill.planning.predicted_curve", curve)
    return seen


def calibrated(space: Workspace) -> None:
    """Let v2's check have calibrations for v1's vectors and its own."""
    cell = CheckedCell("v1", 0.5, 0.6, 0.05, 0.15, "compatible", 40, 2, 12)
    pairs = {"v1": (10.0, -5.0), "v2": (10.0, -5.0)}
    save_check(
        space.path, Check("v2", "pass", (), (cell,), 0.7, 100, 100, 0.95, 0.0, calibrations=pairs)
    )


def imported(space: Workspace, ids: list[str]) -> None:
    """Vectors of another model, which nothing connects with the versions here; known items keep their images."""
    known = space.gallery.get(ids)
    payloads = [known[name].payload if name in known else {} for name in ids]
    space.gallery.create_version("elsewhere", 5)
    space.gallery.upsert(
        "elsewhere", ids, unit(np.random.default_rng(0).normal(size=(len(ids), 5))), payloads
    )


@pytest.mark.parametrize("order", ["random", "auto"])
def test_vectors_that_no_search_reaches_change_no_prediction(
    tmp_path: Path, asked: list[tuple[str, bool]], order: str
) -> None:
    with Workspace(indexed_shop(tmp_path, PER_CLASS), "cpu") as space:
        space.deploy("v2", force="test")
        space.backfill(BackfillOptions("3", "random"))
        calibrated(space)
        imported(space, [f"e{row}" for row in range(200)])
        ways = space.translations.of("v2")
        assert ways.keys() == {"v1", "v2"}
        assert space.translations.scales("v2", ways).calibrated
        assert expected_replaced(space.serving, "v2", "1")[:2] == ("v1", 1 / (ITEMS - 3))
        planned = space.plan_backfill(
            BackfillOptions("1", order, data=open_images(tmp_path / "photos"))
        )
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
        assert (
            planned.unpredicted
            == "searches find none of the vectors that it replaces, so nothing is predicted"
        )


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


def test_a_backfill_is_predicted_and_measured_through_the_translation(tmp_path: Path) -> None:
    path, photos = indexed_shop(tmp_path, PER_CLASS, free=True), tmp_path / "photos"
    with Workspace(path, "cpu") as space:
        way = fitted(space)
        space.deploy("v2", force="test")
        options = BackfillOptions("50%", "random", data=open_images(photos))
        planned = space.plan_backfill(options)
        assert planned.predicted is not None
        thirds = of_images(
            space.serving.encoder("v1"),
            space.serving.encoder("v2"),
            open_images(photos).load(space.serving.encoder("v2").preprocessing, "skip").images,
            seed=0,
        )
        rows = thirds.split.queries
        asked = way.weight * _cosines(thirds.new.queries[rows], moved(way, thirds.old.gallery))
        asked += (1 - way.weight) * _cosines(thirds.old.queries[rows], thirds.old.gallery)
        right = thirds.gallery_labels[asked.argmax(axis=1)] == thirds.query_labels[rows]
        assert (
            planned.predicted.planned.accuracy[0] == right.mean()
        )  # before anything is embedded again
        measured = space.backfill(options).measured
        assert measured[-1].share == pytest.approx(0.5)
        rest = space.backfill(BackfillOptions("all", data=open_images(photos)))
        assert [point.share for point in rest.measured][-1] == 1.0


def moved(way: Translation, vectors: Any) -> Any:
    assert way.forward is not None
    return way.forward(unit(vectors))


def _cosines(one: Any, other: Any) -> Any:
    return unit(np.asarray(one, np.float64)) @ unit(np.asarray(other, np.float64)).T


def test_vectors_of_another_width_that_their_own_model_asks_are_predicted_too(
    tmp_path: Path,
) -> None:
    """No map leads to v2's space: orders that compare vectors there have nothing to compare."""
    photos = pictures(tmp_path / "photos", PER_CLASS)
    with shop(tmp_path / "shop", versions=1) as space:
        space.index(catalogue(photos))
        space.add_version(Encoder.create("tiny", classes=list(CLASSES), capacity=5))
        space.deploy("v2", force="test")
        assert space.search([photos / "bag" / "0.png"], k=ITEMS).models == ("v1",)
        for order in ("auto", *sorted(set(ORDERS) - {"queried"})):
            planned = space.plan_backfill(
                BackfillOptions("30%", order, data=open_images(photos), anyway=True)
            )
            assert planned.predicted is not None
            assert len(planned.plan.ids) == 6
        thirds = of_images(
            space.serving.encoder("v1"), space.serving.encoder("v2"), open_images(photos), seed=0
        )
        assert not _as_old_items(
            thirds, space.translations.of("v2")["v1"]
        ).vectors.any()  # as in the plan itself
        done = space.backfill(BackfillOptions("all", "gain", data=open_images(photos), anyway=True))
        assert (done.done, [point.share for point in done.measured][-1]) == (ITEMS, 1.0)


def test_too_few_labelled_images_are_told_as_too_few(tmp_path: Path) -> None:
    with Workspace(indexed_shop(tmp_path, PER_CLASS), "cpu") as space:
        space.deploy("v2", force="test")
    shown = typed(
        "backfill", "--plan-only", "--data", pictures(tmp_path / "few", 2), "-w", tmp_path / "shop"
    )
    assert shown.code == 0
    check_wording(shown.out)


def test_a_backfill_is_predicted_with_the_translation_as_it_is_deployed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[tuple[str, ...], bool]] = []

    def curve(_: Thirds, way: Translation, *__: Any, calibrate: bool, **___: Any) -> Any:
        seen.append((way.models, calibrate))
        return predicted(lost=0)

    monkeypatch.setattr("fixstar.workspace.backfill.planning.predicted_curve", curve)
    options = BackfillOptions(
        "3", "random", data=open_images(pictures(tmp_path / "labelled", PER_CLASS))
    )
    with Workspace(indexed_shop(tmp_path, PER_CLASS, free=True), "cpu") as space:
        fitted(space)
        space.deploy("v2", force="test")
        space.plan_backfill(options)
        space.deploy("v2", force="one model", queries="one")
        space.plan_backfill(options)
        assert seen == [(("v2", "v1"), False), (("v2",), False)]
        calibrated(space)
        seen.clear()
        space.plan_backfill(options)
        assert seen == [(("v2",), True)]
