from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wording import refuses

from fixstar.errors import InputError, ModelError, UnknownNameError
from fixstar.models import Slots


def test_left_and_right_never_meet() -> None:
    slots = Slots(6).assign(["a", "b"]).assign(["x", "y"], side="right").assign(["c"])
    assert slots.by_class == {"a": 0, "b": 1, "x": 5, "y": 4, "c": 2}
    assert slots.classes == ("a", "b", "c", "y", "x")


@given(
    st.lists(st.lists(st.text("abä", max_size=3), max_size=4, unique=True), max_size=6),
    st.sampled_from(["left", "right"]),
)
def test_a_class_keeps_its_slot_for_ever(groups: list[list[str]], side: str) -> None:
    slots = Slots(30)
    for group in groups:
        before = dict(slots.by_class)
        slots = slots.assign(group, side)  # type: ignore[arg-type]
        assert before.items() <= slots.by_class.items()
        assert len(set(slots.by_class.values())) == len(slots)


def test_a_full_simplex_says_so() -> None:
    with refuses(InputError, "grow"):
        Slots(3).assign(["a", "b"]).assign(["c", "d"])


def test_what_to_do_is_said_for_both_the_command_line_and_python() -> None:
    with refuses(InputError, "train"):
        Slots(3).assign(["a", "b", "c", "d"])
    with refuses(InputError, "grow"):
        Slots(3).assign(["a", "b"]).assign(["c", "d"])


@pytest.mark.parametrize("capacity", [None, 5])
def test_a_class_named_twice_and_an_unknown_side_are_refused(capacity: int | None) -> None:
    with refuses(InputError):
        Slots(capacity).assign(["a", "a", "b"])
    with refuses(UnknownNameError):
        Slots(capacity).assign(["a"], "rigth")  # type: ignore[arg-type]
    assert Slots(capacity).assign(["a"]).assign(["a", "b"]).classes == (
        "a",
        "b",
    )  # known already is no mistake


def test_without_a_capacity_slots_grow() -> None:
    assert Slots().assign(["b", "a"]).assign(["c", "a"]).by_class == {"b": 0, "a": 1, "c": 2}


def test_unknown_classes_and_broken_maps_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="cat"):
        Slots(3).assign(["cart"]).of(["cat"])
    with pytest.raises(ModelError):
        Slots(3, {"a": 0, "b": 0})
    with pytest.raises(ModelError):
        Slots(3, {"a": 3})
