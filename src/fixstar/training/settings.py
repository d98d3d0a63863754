"""How to train: the recipe of one version, and the settings that stay the same through a sequence of versions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from numbers import Integral
from typing import Any, Literal, get_args

import torch

from fixstar.data.pixels import Augmentation
from fixstar.data.replay import Selection
from fixstar.errors import InputError
from fixstar.images import Preprocessing
from fixstar.methods import Method, Scenario
from fixstar.models import Encoder, resolve_device
from fixstar.models.classifiers import CLASSIFIERS
from fixstar.models.slots import CAPACITY, Side

Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class Recipe:
    """SGD with momentum; the learning rate is multiplied by ``gamma`` at each of ``milestones`` (epochs).

    The defaults are the lifelong recipe for CIFAR-100 (HOC, table 1): each task continues from the last weights with a
    new optimiser and the same initial learning rate. ``precision`` is that of the backbone: "auto" is bfloat16 on a GPU
    and float32 elsewhere. Losses, projection and weights are always float32.
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
        _require(
            self,
            epochs=("a whole number of at least 1", _is_whole(self.epochs, 1)),
            learning_rate=("positive and finite", 0 < self.learning_rate < math.inf),
            milestones=("ascending, at least 0 and finite", _is_ascending(self.milestones)),
            gamma=("in (0, 1]", 0 < self.gamma <= 1),
            momentum=("in [0, 1)", 0 <= self.momentum < 1),
            weight_decay=("at least 0 and finite", 0 <= self.weight_decay < math.inf),
            batch_size=("a whole number of at least 2", _is_whole(self.batch_size, 2)),
            precision=(f"one of {', '.join(get_args(Precision))}", self.precision in get_args(Precision)),
        )

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        >>> [round(Recipe(epochs=3, milestones=(1, 2)).rate(e), 4) for e in range(3)]
        [0.1, 0.01, 0.001]
        """
        return self.learning_rate * self.gamma ** sum(epoch >= round(milestone) for milestone in self.milestones)

    def shortened(self, epochs: int) -> Recipe:
        """The same recipe over fewer or more epochs, its milestones moved in proportion (rounded only when used)."""
        if not _is_whole(epochs, 1):  # before the milestones move, or they would be reported too
            raise InputError(f"epochs={epochs} must be a whole number of at least 1")
        milestones = tuple(round(milestone * epochs / self.epochs, 9) for milestone in self.milestones)
        return replace(self, epochs=epochs, milestones=milestones)


def _require(settings: Recipe | Settings, **rules: tuple[str, bool]) -> None:
    """Report every field that breaks its rule; a rule is its text and whether the field obeys it."""
    wrong = [f"{name}={getattr(settings, name)!r} must be {rule}" for name, (rule, right) in rules.items() if not right]
    if wrong:
        raise InputError("; ".join(wrong))


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, Integral) and int(value) >= least


def _is_ascending(milestones: tuple[float, ...]) -> bool:
    return list(milestones) == sorted(milestones) and all(0 <= milestone < math.inf for milestone in milestones)


CIFAR_LIFELONG = Recipe()
CIFAR_CORES = Recipe(epochs=100, milestones=(70,), weight_decay=5e-4)  # CoReS, section 5.1


def paper_recipe(scenario: Scenario) -> Recipe:
    """The papers' recipe for CIFAR-100 in a scenario."""
    return CIFAR_CORES if scenario == "retraining" else CIFAR_LIFELONG


@dataclass(frozen=True)
class Settings:
    """The model, the recipe and the replay memory of a sequence of versions.

    ``capacity`` is K, the maximum number of classes of a simplex: choose it large, it costs O(K). ``grown`` are the
    capacities of simplices added later (see ``lifelong``): a version gets those that it lacks before its classes get
    slots. ``preprocessing`` replaces the backbone's own. New classes take their slots from ``side``.
    """

    backbone: str = "resnet32"
    backbone_options: Mapping[str, Any] = field(default_factory=dict)
    classifier_options: Mapping[str, Any] = field(default_factory=dict)
    capacity: int = CAPACITY
    preprocessing: Preprocessing | None = None
    recipe: Recipe = field(default_factory=Recipe)
    augmentation: Augmentation = field(default_factory=Augmentation)
    replay_per_class: int = 20
    selection: Selection = "random"
    bad_images: Literal["refuse", "skip"] = "refuse"
    side: Side = "left"
    seed: int = 0
    device: str = "auto"
    grown: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _require(
            self,
            capacity=("a whole number of at least 2", _is_whole(self.capacity, 2)),
            bad_images=("one of refuse, skip", self.bad_images in ("refuse", "skip")),
            selection=("one of random, herding", self.selection in ("random", "herding")),
            side=("one of left, right", self.side in ("left", "right")),
            replay_per_class=("a whole number of at least 0", _is_whole(self.replay_per_class, 0)),
            seed=("a whole number of at least 0", _is_whole(self.seed, 0)),
            grown=("capacities of at least 2", all(_is_whole(extra, 2) for extra in self.grown)),
        )

    def torch_device(self) -> torch.device:
        """The device to train on."""
        return resolve_device(self.device)

    def new_encoder(self, method: Method, classes: list[str], seed: int) -> Encoder:
        """An encoder with random weights that depend on ``seed`` alone.

        Growth does not change the other weights: its rows of the projection are drawn last.
        """
        if self.grown and CLASSIFIERS[method.classifier].fixed and method.classifier != "simplex":
            raise InputError(f"only a simplex grows, and {method.name} trains a {method.classifier}")
        added = {"added": self.grown} if self.grown and method.classifier == "simplex" else {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Encoder.create(
                self.backbone,
                method.classifier,
                classes=classes,
                capacity=self.capacity,
                side=self.side,
                backbone_options=dict(self.backbone_options),
                classifier_options={**method.classifier_options, **self.classifier_options, **added},
                preprocessing=self.preprocessing,
            )

    def to_json(self) -> dict[str, Any]:
        """What a run's result depends on, for comparison after a restart. The device is left out: a run may move."""
        content: dict[str, Any] = {**asdict(self), "preprocessing": self.preprocessing and self.preprocessing.to_json()}
        del content["device"]
        plain: dict[str, Any] = json.loads(json.dumps(content))  # lists for tuples
        return plain

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Settings:
        """Settings as ``to_json`` wrote them."""
        recipe, shape = content["recipe"], content["preprocessing"]
        parts = {
            "recipe": Recipe(**{**recipe, "milestones": tuple(recipe["milestones"])}),
            "augmentation": Augmentation(**content["augmentation"]),
            "preprocessing": None if shape is None else Preprocessing.from_json(shape),
            "grown": tuple(content["grown"]),
        }
        return cls(**{**content, **parts})
