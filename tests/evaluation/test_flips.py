"""Flips against a slow loop, and what was found against plain searches of the full features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fixstar import geometry
from fixstar.errors import InputError
from fixstar.evaluation.cross_test import cross_test
from fixstar.evaluation.evidence import ClassFlips, flips, found_before_after
from fixstar.evaluation.features import VersionFeatures

Array = NDArray[Any]


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(-2, 2)), min_size=1, max_size=40))
def test_flips_agree_with_a_slow_loop(rows: list[tuple[bool, bool, int]]) -> None:
    before, after, labels = (np.array(column) for column in zip(*rows, strict=True))
    found = flips(before, after, labels)
    assert found.negative.tolist() == [i for i, (old, new, _) in enumerate(rows) if old and not new]
    assert found.positive.tolist() == [i for i, (old, new, _) in enumerate(rows) if new and not old]
    assert found.positive_rate - found.negative_rate == pytest.approx(after.mean() - before.mean())
    assert {row.label for row in found.classes} == set(labels.tolist())
    for row in found.classes:
        mine = [(old, new) for old, new, label in rows if label == row.label]
        assert (row.queries, row.negative, row.positive) == (
            len(mine),
            mine.count((True, False)),
            mine.count((False, True)),
        )
    nets = [row.net for row in found.classes]
    assert nets == sorted(nets)


def test_classes_stand_by_net_loss_then_by_losses_then_by_label() -> None:
    lost, won, same = (True, False), (False, True), (True, True)
    table = {4: [lost, lost, won], 9: [lost, same], 1: [won], 7: [same], 3: [same, same], 0: [lost, won]}
    rows = [(*pair, label) for label, pairs in table.items() for pair in pairs]
    before, after, labels = (np.array(column) for column in zip(*rows, strict=True))
    found = flips(before, after, labels)
    assert [row.label for row in found.classes] == [4, 9, 0, 3, 7, 1]
    assert found.classes[0] == ClassFlips(label=4, queries=3, negative=2, positive=1)
    assert (found.queries, found.negative_rate, found.positive_rate) == (11, 4 / 11, 3 / 11)


Pair = tuple[VersionFeatures, VersionFeatures]


def versions(d: int = 12) -> tuple[Pair, Pair, Array, Array]:
    """Two related versions in short form and in full, with the labels of 80 queries and 30 gallery images."""
    rng = np.random.default_rng(0)
    shared, centres = rng.normal(size=(d, 5)), rng.normal(size=(3, 5))
    query_labels, gallery_labels = np.arange(80) % 3, np.arange(30) % 3

    def embed(name: str) -> Pair:
        P = shared + 0.5 * rng.normal(size=(d, 5))
        q, g = (centres[labels] + 1.5 * rng.normal(size=(len(labels), 5)) for labels in (query_labels, gallery_labels))
        short = VersionFeatures(name, geometry.short_form(q, P), geometry.short_form(g, P), projection=P)
        return short, VersionFeatures(name, geometry.unit(q @ P.T), geometry.unit(g @ P.T))

    (short_1, full_1), (short_2, full_2) = embed("v1"), embed("v2")
    return (short_1, short_2), (full_1, full_2), query_labels, gallery_labels


@pytest.mark.parametrize("k", [1, 4])
def test_what_was_found_explains_every_flip(k: int) -> None:
    short, full, query_labels, gallery_labels = versions()
    result = cross_test(short, query_labels, gallery_labels, "image")
    found = flips(result.hits[0, 0], result.hits[1, 0], query_labels)
    assert len(found.negative) > 3
    assert len(found.positive) > 3
    rows = found_before_after(found.negative, *short, k)
    assert rows.before.shape == rows.after.shape == (len(found.negative), k)
    for query, before, after in zip(found.negative, rows.before, rows.after, strict=True):
        assert gallery_labels[before[0]] == query_labels[query]
        assert gallery_labels[after[0]] != query_labels[query]
        assert before.tolist() == np.argsort(-full[0].gallery @ full[0].queries[query])[:k].tolist()
        assert after.tolist() == np.argsort(-full[0].gallery @ full[1].queries[query])[:k].tolist()


def test_queries_come_in_any_order_and_may_be_none() -> None:
    short, full, _, _ = versions()
    some = found_before_after([7, 3, 3], *short)
    assert np.array_equal(some.before, found_before_after([7, 3, 3], *full).before)
    assert np.array_equal(some.after[1], some.after[2])
    assert found_before_after([], *short, 2).after.shape == (0, 2)


def test_an_adapted_gallery_is_searched_where_it_was_moved() -> None:
    """The new version turns the plane by a right angle; its adapter turns the stored vectors as well."""
    old = VersionFeatures("v1", np.eye(2), np.eye(2))
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    turned = VersionFeatures("v2", np.eye(2) @ turn, np.eye(2) @ turn)
    moving = VersionFeatures("v2", turned.queries, turned.gallery, adapt=lambda vectors: vectors @ turn)
    assert found_before_after([0, 1], old, moving).after.tolist() == [[0], [1]]
    assert found_before_after([0, 1], old, turned).after.tolist() == [[1], [1]]  # -1 and 0: neither is near


def test_versions_of_different_width_need_a_word() -> None:
    _, (old, _), _, _ = versions(12)
    _, (_, new), _, _ = versions(15)
    with pytest.raises(InputError, match=r"v1 12, v2 15.*shared_components=True"):
        found_before_after([0], old, new)
    rows = found_before_after([5], old, new, shared_components=True)
    assert rows.after[0, 0] == np.argmax(old.gallery @ new.queries[5, :12])


YES, LABELS = np.array([True, False]), np.array([1, 2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: flips(YES[:0], YES[:0], LABELS[:0]), "not empty"),
        (lambda: flips(YES, YES[:1], LABELS), "one integer class per query"),
        (lambda: flips(YES, YES, LABELS[:1]), "one integer class per query"),
        (lambda: flips(YES, YES, LABELS / 2), "one integer class"),  # type: ignore[arg-type]
        (lambda: flips(YES.astype(float), YES, LABELS), "one bool per query"),
        (lambda: found_before_after([80], *versions()[0]), "'v1' has queries 0 to 79; got 80 to 80"),
        (lambda: found_before_after([-1, 2], *versions()[0]), "got -1 to 2"),
        (lambda: found_before_after(YES, *versions()[0]), "query numbers; got bool"),
        (lambda: found_before_after([0], *versions()[0], 31), "1 to 30 here; got 31"),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
