"""Which class owns which classifier output.

A class gets a slot once and keeps it in every later version. Pre-training classes take slots from the left and
fine-tuning classes from the right (HOC, section 5.3), so that models trained separately never give one slot to two
classes. The map is saved with the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from fixstar.errors import InputError, ModelError, NextStep, UnknownNameError, plural

Side = Literal["left", "right"]


@dataclass(frozen=True)
class Slots:
    """An immutable map from class name to slot, with the number of slots (``None``: as many as needed).

    >>> slots = Slots(capacity=5).assign(["cat", "dog"]).assign(["owl"], side="right")
    >>> slots.of(["owl", "cat", "dog"])
    [4, 0, 1]
    """

    capacity: int | None = None
    by_class: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        taken = sorted(self.by_class.values())
        limit = self.capacity if self.capacity is not None else len(taken)
        if len(set(taken)) != len(taken) or (taken and not 0 <= taken[0] <= taken[-1] < limit):
            raise ModelError(
                f"the class slots are not distinct numbers from 0 to {limit - 1}: {dict(self.by_class)}"
            )

    def __len__(self) -> int:
        return len(self.by_class)

    def __contains__(self, name: object) -> bool:
        return name in self.by_class

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names in the order of their slots."""
        return tuple(sorted(self.by_class, key=self.by_class.__getitem__))

    def assign(self, names: Iterable[str], side: Side = "left") -> Slots:
        """The map with a slot for each of ``names``, which must be distinct; existing slots do not change."""
        names = list(names)
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise InputError(
                f"class names must be distinct; given more than once: {', '.join(map(repr, twice[:5]))}"
            )
        if side not in get_args(Side):
            raise UnknownNameError("side", side, get_args(Side), "Slots are taken from there")
        new = [name for name in names if name not in self.by_class]
        if self.capacity is None:
            start = len(self.by_class)
            return Slots(None, {**self.by_class, **{name: start + i for i, name in enumerate(new)}})
        taken = set(self.by_class.values())
        free = [slot for slot in range(self.capacity) if slot not in taken]
        if len(new) > len(free) and not taken:
            raise InputError(
                f"{plural(len(new), 'class')} cannot fit into the capacity K={self.capacity}. Pass a capacity of at "
                f"least {len(new)}, and a larger one if more classes are to come",
                NextStep("train", {"data": ..., "capacity": len(new)}, "or larger"),
            )
        if len(new) > len(free):
            room = max(2, len(new) - len(free))
            raise InputError(
                f"{plural(len(new), 'new class')} cannot fit: {len(free)} of the capacity K={self.capacity} slots "
                f"are free. Grow the capacity by at least {room}: encoder.grow({room}), or in a run "
                f"later={{VERSION: replace(settings, grown=(*settings.grown, {room}))}}",
                NextStep("grow", {"count": room}),
            )
        chosen = free[: len(new)] if side == "left" else free[::-1][: len(new)]
        return Slots(self.capacity, {**self.by_class, **dict(zip(new, chosen, strict=True))})

    def grown(self, extra: int) -> Slots:
        """The map with ``extra`` more free slots at the end; existing slots do not change."""
        if self.capacity is None or extra < 0:
            raise InputError(f"slots of capacity {self.capacity} cannot grow by {extra}")
        return Slots(self.capacity + extra, self.by_class)

    def joined(self, other: Slots) -> Slots:
        """This map with the classes and slots of ``other``; without a capacity they are appended."""
        if self.capacity is None or other.capacity is None:
            return self.assign(other.classes)
        if self.capacity != other.capacity:
            raise ModelError(
                f"models of capacity K={self.capacity} and K={other.capacity} have different prototypes; "
                "train both with the same capacity"
            )
        both = {**other.by_class, **self.by_class}
        moved = [name for name in other.by_class if both[name] != other.by_class[name]]
        if moved or len(set(both.values())) < len(both):
            raise ModelError(
                f"the models assign slots differently ({', '.join(moved[:5]) or 'one slot has two owners'}). "
                "Assign slots to pre-training classes from the left and to fine-tuning classes from the right"
            )
        return Slots(self.capacity, both)

    def of(self, names: Iterable[str]) -> list[int]:
        """The slot of each class name."""
        names = list(names)
        for name in names:
            if name not in self.by_class:
                raise UnknownNameError("class", name, list(self.by_class)[:20])
        return [self.by_class[name] for name in names]
