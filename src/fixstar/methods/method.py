"""What a method is: named loss terms, and what it needs from the past."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from fixstar.models import Outputs

__all__ = ["Initialisation", "Method", "Need", "Scenario", "Step", "Terms"]

Need = Literal["old model", "replay"]
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
class Method:
    """A way to train a version. ``terms`` returns the loss as named, weighted parts; the loop sums them.

    ``scenario`` is the setting its paper trains it in: "lifelong" goes on from the last weights with new and replayed
    images, "retraining" starts again on all images so far, from ``initialisation``.
    """

    name: str
    summary: str
    source: str
    terms: Callable[[Step], Terms]
    classifier: str = "simplex"
    scenario: Scenario = "lifelong"
    initialisation: Initialisation = "previous"
    needs: frozenset[Need] = frozenset()
    options: Mapping[str, object] = field(default_factory=dict)
