"""What one version's training works on, and its parts: the stages of its method, each with its place in the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from torch import nn

from fixstar.data.batches import Batches
from fixstar.methods import Objective, Stage
from fixstar.models import Encoder, FrozenEncoder
from fixstar.training.recipe import Recipe
from fixstar.training.selection import Select

__all__ = ["Part", "Training", "parts_of"]


@dataclass
class Training:
    """What one version's training works on. ``fingerprint`` guards against resuming with other settings.

    ``fingerprint_parts`` are digests of its parts by name, with which a refusal says what differs.
    ``teacher`` is the previous model and ``first`` the first one, for terms that compare with it.
    ``maps`` gives feature maps to the terms, ``select`` measures the model after each epoch of the stage that makes it,
    to keep the best compatible one.
    """

    encoder: Encoder
    objective: Objective
    batches: Batches
    recipe: Recipe
    teacher: FrozenEncoder | None = None
    first: FrozenEncoder | None = None
    seed: int = 0
    checkpoint: Path | None = None
    fingerprint: str = ""
    fingerprint_parts: Mapping[str, str] = field(default_factory=dict)
    title: str = "training"
    progress: bool = True
    maps: bool = False
    select: Select | None = None

    def modules(self) -> nn.ModuleDict:
        """Everything that is trained or saved."""
        extra = self.objective.module
        return nn.ModuleDict({"encoder": self.encoder} | ({} if extra is None else {"objective": extra}))

    def trained(self, stage: Stage) -> nn.Module:
        """What a stage updates."""
        return self.modules() if stage.trains is None else stage.trains

    @property
    def bfloat16(self) -> bool:
        """Whether the backbone runs in that precision."""
        precision = self.recipe.precision
        return precision == "bfloat16" or (precision == "auto" and self.encoder.device.type == "cuda")


class Part(NamedTuple):
    """A stage with its place among all epochs of the run."""

    stage: Stage
    recipe: Recipe
    batches: Batches
    first: int  # epoch

    @property
    def after(self) -> int:
        """The first epoch that is not its own."""
        return self.first + self.recipe.epochs

    @property
    def steps(self) -> int:
        """How many updates it makes."""
        return self.recipe.epochs * self.batches.per_epoch

    @property
    def images(self) -> int:
        """How many images it shows."""
        return self.steps * self.batches.batch_size


def parts_of(run: Training) -> Iterator[Part]:
    """The stages of a run, one after the other."""
    first = 0
    for stage in run.objective.stages:
        recipe = run.recipe
        if stage.epochs != 1:
            recipe = recipe.shortened(max(1, round(recipe.epochs * stage.epochs)))
        recipe = replace(recipe, learning_rate=recipe.learning_rate * stage.learning_rate)
        yield Part(stage, recipe, run.batches, first)
        first += recipe.epochs
