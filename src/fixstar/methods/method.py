"""What a method is: named loss terms, and what it needs from the past."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from fixstar.data import ImageSet
from fixstar.models import Encoder, FrozenEncoder, Outputs

__all__ = ["Initialisation", "Method", "Need", "Objective", "Scenario", "Step", "Terms", "Upgrade"]

Need = Literal["old model", "old classifier", "replay", "all images"]
Scenario = Literal["lifelong", "retraining"]
Initialisation = Literal["same", "fresh", "previous"]
Terms = dict[str, Tensor]


@dataclass(frozen=True)
class Step:
    """One batch as seen by the model being trained and, from the second version on, by its predecessor."""

    new: Outputs
    old: Outputs | None  # None while the first version is trained
    targets: Tensor  # [B], slots
    replay: Tensor  # [B] bool, True where the image comes from memory


@dataclass(frozen=True)
class Upgrade:
    """What is known when the training of a version begins: the model to train, its predecessor, the classes."""

    encoder: Encoder
    teacher: FrozenEncoder | None  # None for the first version
    images: ImageSet
    old_classes: tuple[str, ...]  # seen by earlier versions
    new_classes: tuple[str, ...]  # first seen now


@dataclass(frozen=True)
class Objective:
    """The loss of one version. ``module`` holds parameters that are trained along and then thrown away."""

    terms: Callable[[Step], Terms]
    module: nn.Module | None = None


@dataclass(frozen=True)
class Method:
    """A way to train a version: its loss as named, weighted terms, which the loop sums.

    Most methods give ``terms``. One that must look at the classes or at the old model first gives ``begin`` instead,
    which is called once a version. ``classifier_options`` are those of the head that the method trains.

    ``scenario`` is the setting its paper trains it in: "lifelong" goes on from the last weights with new and replayed
    images, "retraining" starts again on all images so far, from ``initialisation``.
    """

    name: str
    summary: str
    source: str
    terms: Callable[[Step], Terms] | None = None
    begin: Callable[[Upgrade], Objective] | None = None
    classifier: str = "simplex"
    classifier_options: Mapping[str, object] = field(default_factory=dict)
    scenario: Scenario = "lifelong"
    initialisation: Initialisation = "previous"
    needs: frozenset[Need] = frozenset()
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """Passes through a network, relative to plain training: one forward, two backward, one by the old model."""
        return 4 / 3 if "old model" in self.needs else 1.0

    def objective(self, upgrade: Upgrade) -> Objective:
        """The loss for this upgrade."""
        if self.begin is not None:
            return self.begin(upgrade)
        assert self.terms is not None, f"method {self.name} defines neither terms nor begin"
        return Objective(self.terms)
