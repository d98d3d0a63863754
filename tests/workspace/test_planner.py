"""The order of a backfill: against slow code, and against cases worked by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dense_geometry import full_form

from fixstar.errors import UnknownNameError
from fixstar.gallery import MemoryGallery
from fixstar.geometry import short_form, unit
from fixstar.translation import Translation
from fixstar.translation.maps import Map
from fixstar.translation.translation import Uncertainty
from fixstar.workspace.backfill.orders import (
    LabelledQueries,
    OldItems,
    certainty,
    expected_gain,
    old_items,
    planned_order,
)
from fixstar.workspace.items import ImageStore

UNKNOWN = np.full(40, np.nan)  # nothing is known of how far a translation is off


def some(count: int = 40, width: int = 6, classes: int = 4, seed: int = 0) -> OldItems:
    rng = np.random.default_rng(seed)
    vectors = unit(rng.standard_normal((count, width)).astype(np.float32))
    labels = [f"c{rng.integers(classes)}" for _ in range(count)]
    counts = rng.integers(0, 5, count).astype(float)
    return OldItems(
        [f"i{row}" for row in range(count)],
        rng.integers(0, 3, count),
        vectors,
        labels,
        counts,
        rng.random(count),
    )


def test_old_items_are_in_the_target_s_space_and_leave_newer_versions_out() -> None:
    rng = np.random.default_rng(0)
    projections = {
        name: rng.standard_normal((9, 4)).astype(np.float32) for name in ("v1", "v2", "v3")
    }
    gallery = MemoryGallery()
    stored = {}
    for name, P in projections.items():
        gallery.create_version(name, 4, P)
        stored[name] = short_form(rng.standard_normal((3, 4)).astype(np.float32), P)
        ids = [f"{name}-{i}" for i in range(3)]
        gallery.upsert(name, ids, stored[name], [{"label": "hat"}, {}, {"label": None}])
    ways = {"v1": Translation.between_shared("v1", "v2")}
    items = old_items(gallery, ImageStore(Path()), "v2", ways, newer=["v3"], usage={"v1-1": 7})
    assert items.ids == ["v1-0", "v1-1", "v1-2"]
    assert items.labels == ["hat", "", ""]
    assert items.counts.tolist() == [0, 7, 0]
    query = short_form(rng.standard_normal((1, 4)).astype(np.float32), projections["v2"])
    cosines = full_form(query, projections["v2"]) @ full_form(stored["v1"], projections["v1"]).T
    np.testing.assert_allclose(query @ items.vectors.T, cosines, atol=1e-5)
    assert np.isnan(items.uncertainty).all()


def test_old_items_are_translated_with_how_far_that_may_be_off() -> None:
    rng = np.random.default_rng(0)
    gallery = MemoryGallery()
    gallery.create_version("v1", 4)
    gallery.create_version("v2", 3)
    stored = unit(rng.standard_normal((5, 4))).astype(np.float32)
    gallery.upsert("v1", list("abcde"), stored)
    forward = Map.linear(rng.standard_normal((4, 3)))
    back = Map.linear(rng.standard_normal((3, 4)))
    unsure = Uncertainty(np.array([0.1, -0.2, 0.3, 0.0], np.float32), 0.5)
    way = Translation("v1", "v2", forward=forward, backward=back, one=0.6, uncertainty=unsure)
    items = old_items(gallery, ImageStore(Path()), "v2", {"v1": way})
    np.testing.assert_allclose(items.vectors, forward(stored), atol=1e-6)
    np.testing.assert_allclose(items.uncertainty, stored @ [0.1, -0.2, 0.3, 0.0] + 0.5, atol=1e-6)
    nothing = old_items(gallery, ImageStore(Path()), "v2", {})
    assert not nothing.vectors.any()
    assert np.isnan(nothing.uncertainty).all()


@pytest.mark.parametrize(
    "kind", ["gain", "classes", "certain", "uncertain", "queried", "oldest", "random"]
)
def test_every_order_names_each_item_once_and_is_the_same_again(kind: str) -> None:
    items = some()
    queries = LabelledQueries(items.vectors[:10], items.labels[:10])
    order = planned_order(kind, items, queries, seed=1)
    assert sorted(order.tolist()) == list(range(40))
    assert order.tolist() == planned_order(kind, items, queries, seed=1).tolist()


def test_simple_orders() -> None:
    items = some()
    assert np.all(np.diff(items.ages[planned_order("oldest", items)]) >= 0)
    assert np.all(np.diff(items.counts[planned_order("queried", items)]) <= 0)
    assert (
        planned_order("random", items, seed=0).tolist()
        != planned_order("random", items, seed=1).tolist()
    )
    sure = certainty(items.vectors)
    assert np.all(np.diff(sure[planned_order("certain", items)]) <= 0)
    far = items.uncertainty * (1 + np.log1p(items.counts))
    assert np.all(np.diff(far[planned_order("uncertain", items)]) <= 0)
    unknown = replace(items, uncertainty=UNKNOWN)
    assert np.all(np.diff(sure[planned_order("uncertain", unknown)]) >= 0)


def test_certainty_is_the_lead_of_the_nearest_over_the_ten_nearest() -> None:
    items = some(count=30)
    for row, value in enumerate(certainty(items.vectors)):
        near = sorted(
            (float(items.vectors[row] @ items.vectors[i]) for i in range(30) if i != row),
            reverse=True,
        )[:10]
        assert value == pytest.approx(near[0] - np.mean(near), abs=1e-5)


def test_certainty_in_blocks_and_on_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    items = some(count=50)
    whole = certainty(items.vectors)
    monkeypatch.setattr("fixstar.workspace.backfill.orders._BLOCK", 7)
    np.testing.assert_allclose(certainty(items.vectors), whole, atol=1e-6)
    monkeypatch.setattr("fixstar.workspace.backfill.orders.COMPARED", 20)
    assert np.isfinite(certainty(items.vectors)).all()


@pytest.mark.parametrize("counted", [False, True])
def test_gain_against_loops(counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fixstar.workspace.backfill.orders._BLOCK", 11)
    items = some()
    if not counted:
        items.counts[:] = 0
    rng = np.random.default_rng(5)
    queries = LabelledQueries(
        unit(rng.standard_normal((15, 6))), [f"c{rng.integers(5)}" for _ in range(15)]
    )  # c4: none
    asked = [row for row in range(15) if queries.labels[row] in items.labels]
    found_in = {
        name: sum(c for c, label in zip(items.counts, items.labels, strict=True) if label == name)
        for name in set(items.labels)
    }
    smooth = max(1.0, float(np.mean(list(found_in.values()))) / 10)
    expected = np.zeros(40)
    for row in asked:
        name = queries.labels[row]
        cosines = items.vectors @ queries.vectors[row].astype(np.float32)
        right = items.labels[int(cosines.argmax())] == name
        same_class = sum(queries.labels[other] == name for other in asked)
        weight = (found_in[name] + smooth) / same_class if counted else 1.0
        for i in range(40):
            pull = weight * np.exp((cosines[i] - cosines.max()) / 0.05)
            expected[i] += pull if items.labels[i] == name else -pull if right else 0.0
    np.testing.assert_allclose(expected_gain(items, queries), expected, atol=1e-4)


def test_gain_by_hand() -> None:
    """One query of class a finds b. Nearer items of a come first; b loses nothing, as no query of b is there."""
    angles = np.radians([10, 40, 0, 90])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    items = OldItems(
        ["a1", "a2", "b", "c"],
        np.zeros(4, np.int64),
        vectors,
        ["a", "a", "b", "c"],
        np.zeros(4),
        UNKNOWN[:4],
    )
    query = LabelledQueries(np.array([[1.0, 0.0]]), ["a"])
    assert planned_order("gain", items, query).tolist()[:2] == [0, 1]
    found = LabelledQueries(
        np.array([[1.0, 0.0]]), ["b"]
    )  # b finds itself: a1 could mislead it, and comes last
    assert planned_order("gain", items, found).tolist()[0] == 2
    assert planned_order("gain", items, found).tolist()[-1] == 0


def test_classes_take_turns_each_with_its_best_item_first() -> None:
    items = some()
    queries = LabelledQueries(items.vectors[:10], items.labels[:10])
    order = planned_order("classes", items, queries)
    gains = expected_gain(items, queries)
    turns = [[row for row in order if items.labels[row] == name] for name in set(items.labels)]
    for mine in turns:
        assert np.all(np.diff(gains[mine]) <= 0)
    firsts = {mine[0] for mine in turns}
    assert set(order[: len(firsts)].tolist()) == firsts


def test_gain_without_labels_asks_for_certain_items_found_often() -> None:
    items = some()
    without = OldItems(items.ids, items.ages, items.vectors, [""] * 40, items.counts, UNKNOWN)
    order = planned_order("gain", without, None)
    sure = certainty(items.vectors)
    scores = np.log1p(items.counts) + 0.3 * (sure - sure.mean()) / sure.std()
    assert np.all(np.diff(scores[order]) <= 1e-12)
    few = OldItems(["x"], np.zeros(1, np.int64), items.vectors[:1], [""], np.zeros(1), UNKNOWN[:1])
    assert planned_order("gain", few).tolist() == [0]


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'random'"):
        planned_order("ranodm", some())


def test_items_that_come_while_old_items_are_read_are_among_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gallery = MemoryGallery()
    for name in ("v1", "v2"):
        gallery.create_version(name, 3)
    rows = unit(np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32))
    gallery.upsert("v1", list("abcdefghi"), rows)
    monkeypatch.setattr(gallery, "count", lambda: {"v1": 4, "v2": 0})  # as it was just before
    monkeypatch.setattr("fixstar.workspace.backfill.orders._BLOCK", 3)
    ways = {"v1": Translation.between_shared("v1", "v2")}
    items = old_items(gallery, ImageStore(Path()), "v2", ways)
    assert items.ids == list("abcdefghi")
    np.testing.assert_allclose(items.vectors, rows, atol=1e-6)
    assert old_items(gallery, ImageStore(Path()), "v2", ways, vectors=False).vectors.shape == (9, 0)
