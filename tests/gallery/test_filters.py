"""What a filter may cost: conditions, values, time."""

from __future__ import annotations

import time

import numpy as np
import pytest
from wording import refuses

from fixstar.errors import GalleryError
from fixstar.gallery import MemoryGallery, filters
from fixstar.gallery.filters import payload_test


def test_a_long_list_costs_one_look_per_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = payload_test({"n": {"in": [*range(9000), "red", True, None, [1, 2.0]]}})
    looked = 0
    real = filters._key

    def counting(value: object) -> object:
        nonlocal looked
        looked += 1
        return real(value)

    monkeypatch.setattr(filters, "_key", counting)
    assert [passes({"n": value}) for value in (8999, 9000, 8999.0, "red", "8999")] == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert looked == 5


@pytest.mark.parametrize(
    ("value", "operand", "same"),
    [
        (1, 1.0, True),
        (True, 1, False),
        (0, False, False),
        ([1, True], [1.0, True], True),
        ([1, True], [1, 1], False),
        ({"a": [1]}, {"a": [1.0]}, True),
        ({"a": 1}, {"a": True}, False),
        (None, None, True),
    ],
)
def test_the_same_value_is_of_the_same_kind(value: object, operand: object, same: bool) -> None:
    assert payload_test({"n": {"in": [operand]}})({"n": value}) is same
    assert payload_test({"n": {"eq": operand}})({"n": value}) is same
    assert payload_test({"n": {"ne": operand}})({"n": value}) is not same
    assert not payload_test({"n": {"in": [operand]}})({})


def test_conditions_and_values_are_counted() -> None:
    with refuses(GalleryError):
        payload_test({f"f{i}": 1 for i in range(101)})
    with refuses(GalleryError):
        payload_test({"n": {"in": [list(range(10_000)), 1]}})


def test_waiting_for_a_server_is_not_the_filters_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "_SECONDS", 0.3)
    passes = payload_test({"n": 1})
    time.sleep(0.4)
    assert all(passes({"n": 1}) for _ in range(1000))


def test_a_filter_has_a_deadline_and_continues_where_it_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gallery = MemoryGallery()
    gallery.create_version("v1", 2)
    vectors = np.tile(np.eye(2), (500, 1))
    gallery.upsert("v1", [f"i{i}" for i in range(1000)], vectors, [{"n": i} for i in range(1000)])
    expected = gallery.search("v1", np.eye(2)[:1], k=5, where={"n": {"ge": 500}})
    monkeypatch.setattr(filters, "_SECONDS", -1.0)
    tries = 0
    while True:
        tries += 1
        try:
            found = gallery.search("v1", np.eye(2)[:1], k=5, where={"n": {"gt": 499}})
            break
        except GalleryError:
            assert tries < 9
    assert tries > 1
    assert found == expected
