"""What stays the same through a sequence of versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from numbers import Integral
from typing import Any, Literal

import torch

from fixstar.data.pixels import Augmentation
from fixstar.data.replay import Selection
from fixstar.errors import InputError
from fixstar.images import Preprocessing
from fixstar.methods import Method
from fixstar.models import Encoder, resolve_device
from fixstar.models.classifiers import CLASSIFIERS
from fixstar.models.slots import Side
from fixstar.training import Recipe

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """The model, the recipe and the memory of a sequence of versions.

    ``capacity`` is K, the number of classes a simplex has room for: take it large, it costs O(K). ``grown`` are the
    capacities of the simplices added since: a version that lacks the last of them gets them before its classes get
    slots, so a run grows by ``later`` settings (``lifelong``). ``preprocessing`` replaces the backbone's own. New
    classes take their slots from ``side``. ``device="auto"`` takes a GPU if there is one.
    """

    backbone: str = "resnet32"
    backbone_options: Mapping[str, Any] = field(default_factory=dict)
    classifier_options: Mapping[str, Any] = field(default_factory=dict)
    capacity: int = 1000
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
        wrong = [
            f"{name}={value!r} must be {rule}"
            for name, value, rule, right in (
                ("capacity", self.capacity, "a whole number of at least 2", _whole(self.capacity, 2)),
                ("bad_images", self.bad_images, "one of refuse, skip", self.bad_images in ("refuse", "skip")),
                ("selection", self.selection, "one of random, herding", self.selection in ("random", "herding")),
                ("side", self.side, "one of left, right", self.side in ("left", "right")),
                (
                    "replay_per_class",
                    self.replay_per_class,
                    "a whole number of at least 0",
                    _whole(self.replay_per_class, 0),
                ),
                ("seed", self.seed, "a whole number of at least 0", _whole(self.seed, 0)),
                ("grown", self.grown, "capacities of at least 2", all(_whole(extra, 2) for extra in self.grown)),
            )
            if not right
        ]
        if wrong:
            raise InputError("; ".join(wrong))

    def torch_device(self) -> torch.device:
        """The device to train on."""
        return resolve_device(self.device)

    def new_encoder(self, method: Method, classes: list[str], seed: int) -> Encoder:
        """An encoder with random weights that depend on ``seed`` alone.

        Growth leaves the weights before it as they would have been: its rows of the projection are drawn last.
        """
        added = {"added": self.grown} if self._grows(method) else {}
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

    def _grows(self, method: Method) -> bool:
        """Whether there are simplices to add; a trainable classifier has no capacity, neither at first nor later."""
        if self.grown and CLASSIFIERS[method.classifier].fixed and method.classifier != "simplex":
            raise InputError(f"only a simplex grows, and {method.name} trains a {method.classifier}")
        return bool(self.grown) and method.classifier == "simplex"

    def to_json(self) -> dict[str, Any]:
        """What a run's result depends on, for comparison after a restart. The device is left out: a run may move."""
        content = {key: value for key, value in asdict(self).items() if key not in ("device", "preprocessing")}
        content["recipe"]["milestones"] = list(self.recipe.milestones)
        grown = content.pop("grown")
        if grown:  # else nothing is said of it, as in versions and runs from before there was growth
            content["grown"] = list(grown)
        content["preprocessing"] = None if self.preprocessing is None else self.preprocessing.to_json()
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Settings:
        """Settings as ``to_json`` wrote them."""
        recipe = {**content["recipe"], "milestones": tuple(content["recipe"]["milestones"])}
        shape = content["preprocessing"]
        return cls(
            **{
                **content,
                "recipe": Recipe(**recipe),
                "augmentation": Augmentation(**content["augmentation"]),
                "preprocessing": None if shape is None else Preprocessing.from_json(shape),
                "grown": tuple(content.get("grown", ())),
            }
        )


def _whole(value: object, least: int) -> bool:
    return isinstance(value, Integral) and int(value) >= least
