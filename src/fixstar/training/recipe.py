"""How long and how fast to train."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Literal, get_args

from fixstar.errors import InputError
from fixstar.methods import Scenario

__all__ = ["CIFAR_CORES", "CIFAR_LIFELONG", "Precision", "Recipe", "paper_recipe"]

Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class Recipe:
    """SGD with momentum; the learning rate falls by ``gamma`` at each of ``milestones`` (epochs).

    The defaults are the lifelong recipe for CIFAR-100 (HOC, table 1): the optimiser starts afresh at each
    task with the same learning rate, the weights go on. ``precision`` is that of the backbone: "auto" is bfloat16 on a
    GPU and float32 elsewhere; losses, projection and weights are float32 in any case.
    """

    epochs: int = 70
    learning_rate: float = 0.1
    milestones: tuple[float, ...] = (50, 64)
    gamma: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 2e-4
    batch_size: int = 128
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        wrong = [
            f"{name}={getattr(self, name)} must be {rule}"
            for name, rule, right in (
                ("epochs", "a whole number of at least 1", _whole(self.epochs, 1)),
                ("learning_rate", "positive and finite", 0 < self.learning_rate < math.inf),
                ("milestones", "ascending, at least 0 and finite", _ascending(self.milestones)),
                ("gamma", "in (0, 1]", 0 < self.gamma <= 1),
                ("momentum", "in [0, 1)", 0 <= self.momentum < 1),
                ("weight_decay", "at least 0 and finite", 0 <= self.weight_decay < math.inf),
                ("batch_size", "a whole number of at least 2", _whole(self.batch_size, 2)),
                ("precision", f"one of {', '.join(get_args(Precision))}", self.precision in get_args(Precision)),
            )
            if not right
        ]
        if wrong:
            raise InputError("; ".join(wrong))

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        >>> [round(Recipe(epochs=3, milestones=(1, 2)).rate(e), 4) for e in range(3)]
        [0.1, 0.01, 0.001]
        """
        return self.learning_rate * self.gamma ** sum(epoch >= round(milestone) for milestone in self.milestones)

    def shortened(self, epochs: int) -> Recipe:
        """The same recipe over fewer or more epochs, its milestones moved in proportion (rounded only when used)."""
        if not _whole(epochs, 1):  # before the milestones move: they would be complained of too
            raise InputError(f"epochs={epochs} must be a whole number of at least 1")
        milestones = tuple(round(milestone * epochs / self.epochs, 9) for milestone in self.milestones)
        return replace(self, epochs=epochs, milestones=milestones)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, Integral) and int(value) >= least


def _ascending(milestones: tuple[float, ...]) -> bool:
    return list(milestones) == sorted(milestones) and all(0 <= milestone < math.inf for milestone in milestones)


CIFAR_LIFELONG = Recipe()
CIFAR_CORES = Recipe(epochs=100, milestones=(70,), weight_decay=5e-4)  # CoReS, section 5.1


def paper_recipe(scenario: Scenario) -> Recipe:
    """The recipe of the papers for CIFAR-100 in a scenario."""
    return CIFAR_CORES if scenario == "retraining" else CIFAR_LIFELONG
