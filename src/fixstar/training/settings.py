"""How to train: the recipe of one version, and the settings of a whole sequence of versions.

Imports torch only to make an encoder, so that every front end can read the options.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, get_args

from fixstar.errors import InputError
from fixstar.geometry import CAPACITY
from fixstar.options import described
from fixstar.trust import import_path, module_of, require_trusted, trusting

if TYPE_CHECKING:
    import torch

    from fixstar.data.pixels import Augmentation
    from fixstar.data.replay import Selection
    from fixstar.images import Preprocessing
    from fixstar.methods import Method, Scenario
    from fixstar.models import Encoder
    from fixstar.models.slots import Side

Precision = Literal["auto", "float32", "bfloat16"]
Optimizer = Literal["sgd", "adam", "adamw"]
Schedule = Literal["steps", "cosine"]
BY_OPTIMIZER: dict[Optimizer, tuple[float, float]] = {
    "sgd": (0.1, 2e-4),
    "adam": (1e-3, 0.0),
    "adamw": (1e-3, 0.01),
}  # learning rate and weight decay


@dataclass(frozen=True)
class Recipe:
    """The optimiser, its schedule and the batch size of one version; by default for CIFAR-100 (HOC, table 1).

    ``schedule="steps"`` multiplies the learning rate by ``gamma`` at each of ``milestones`` (epochs); "cosine" decays
    it to zero. Both start with a linear warm-up of ``warmup`` epochs. ``momentum`` is the first beta of Adam and
    AdamW, ``clip`` the maximum norm of the gradient, ``backbone_rate`` a factor on the backbone's learning rate.
    ``decay_norms=False`` turns weight decay off for norms and biases. ``precision`` is the backbone's: "auto" is
    bfloat16 on a GPU that supports it.
    """

    epochs: int = described(70, "Passes over the images.")
    learning_rate: float = described(0.1, "Initial learning rate.")
    milestones: tuple[float, ...] = (50, 64)
    gamma: float = 0.1
    momentum: float = 0.9
    weight_decay: float = described(2e-4, "Weight decay.")
    batch_size: int = described(128, "Images per step.")
    precision: Precision = described(
        "auto", "Precision of the backbone: float32, bfloat16, or auto (bfloat16 on a GPU)."
    )
    optimizer: Optimizer = described("sgd", "sgd, adam or adamw.")
    schedule: Schedule = described(
        "steps", "Learning rate decay: steps (to a tenth, twice) or cosine."
    )
    warmup: float = described(
        0.0, "Epochs of linear warm-up of the learning rate; 0.5 is half an epoch."
    )
    clip: float | None = described(None, "Maximum norm of gradients; larger ones are scaled down.")
    backbone_rate: float = described(
        1.0, "The backbone's learning rate, relative to that of the layers after it."
    )
    decay_norms: bool = described(True, "Also apply weight decay to norms and biases.")

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
            warmup=("at least 0 and below the number of epochs", 0 <= self.warmup < self.epochs),
            clip=("positive and finite, or None", self.clip is None or 0 < self.clip < math.inf),
            backbone_rate=("positive and finite", 0 < self.backbone_rate < math.inf),
            **{
                name: (f"one of {', '.join(get_args(kind))}", getattr(self, name) in get_args(kind))
                for name, kind in (
                    ("precision", Precision),
                    ("optimizer", Optimizer),
                    ("schedule", Schedule),
                )
            },
        )

    def rate(self, epoch: float) -> float:
        """The learning rate after a number of epochs, which may be fractional.

        >>> [round(Recipe(epochs=3, milestones=(1, 2)).rate(e), 4) for e in range(3)]
        [0.1, 0.01, 0.001]
        >>> [round(Recipe(epochs=5, schedule="cosine", warmup=1).rate(e), 4) for e in (0, 0.5, 1, 3, 5)]
        [0.0, 0.05, 0.1, 0.05, 0.0]
        """
        if epoch < self.warmup:
            return self.learning_rate * epoch / self.warmup
        if self.schedule == "cosine":
            done = (epoch - self.warmup) / (self.epochs - self.warmup)
            return self.learning_rate * (1 + math.cos(math.pi * done)) / 2
        return self.learning_rate * self.gamma ** sum(
            epoch >= round(milestone) for milestone in self.milestones
        )

    @property
    def changes_every_step(self) -> bool:
        """Whether the learning rate changes within an epoch."""
        return self.schedule == "cosine" or self.warmup > 0

    def with_optimizer(self, name: Optimizer) -> Recipe:
        """The recipe with another optimiser, with its default learning rate and weight decay."""
        if name == self.optimizer:
            return self
        rate, decay = BY_OPTIMIZER.get(name, (self.learning_rate, self.weight_decay))
        return replace(self, optimizer=name, learning_rate=rate, weight_decay=decay)

    def shortened(self, epochs: int) -> Recipe:
        """The same recipe over fewer or more epochs: milestones (rounded only when used) and warm-up in proportion."""
        if not _is_whole(epochs, 1):  # before scaling the milestones, which would be reported too
            raise InputError(f"epochs={epochs} must be a whole number of at least 1")
        *milestones, warmup = (
            round(at * epochs / self.epochs, 9) for at in (*self.milestones, self.warmup)
        )
        return replace(self, epochs=epochs, milestones=tuple(milestones), warmup=warmup)


def _require(settings: Recipe | Settings, **rules: tuple[str, bool]) -> None:
    """Report every field that breaks its rule; a rule is its text and whether it holds."""
    wrong = [
        f"{name}={getattr(settings, name)!r} must be {rule}"
        for name, (rule, right) in rules.items()
        if not right
    ]
    if wrong:
        raise InputError("; ".join(wrong))


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, Integral) and int(value) >= least


def _is_ascending(milestones: tuple[float, ...]) -> bool:
    return list(milestones) == sorted(milestones) and all(
        0 <= milestone < math.inf for milestone in milestones
    )


CIFAR_LIFELONG = Recipe()
FROZEN = Recipe(epochs=20, learning_rate=0.01, milestones=(14, 18))
CIFAR_CORES = Recipe(epochs=100, milestones=(70,), weight_decay=5e-4)  # CoReS, section 5.1


def paper_recipe(scenario: Scenario) -> Recipe:
    """The recipe of the papers for CIFAR-100 in a scenario."""
    if scenario == "retraining":
        return CIFAR_CORES
    return CIFAR_LIFELONG


def _augmentation() -> Augmentation:
    from fixstar.data.pixels import Augmentation

    return Augmentation()


@dataclass(frozen=True)
class Settings:
    """The model, the recipe and the replay memory of a sequence of versions.

    ``capacity`` is K, the maximum number of classes of a simplex. Choose it large: the cost is O(K). ``width`` is the
    width of features before a trainable classifier. ``grown`` are the capacities of simplices added later (see
    ``lifelong``). New classes take their slots from ``side``. A ``frozen`` backbone keeps its weights: projection and
    classifier are trained on its features, which are computed once per image.
    """

    backbone: str = "resnet32"
    backbone_options: Mapping[str, Any] = field(default_factory=dict)
    classifier_options: Mapping[str, Any] = field(default_factory=dict)
    capacity: int = described(
        CAPACITY,
        "K: maximum number of classes. Rotated classes (vega, polaris) take 8 slots per class.",
    )
    width: int | None = None
    preprocessing: Preprocessing | None = None
    recipe: Recipe = field(default_factory=Recipe)
    augmentation: Augmentation = field(default_factory=_augmentation)
    replay_per_class: int = described(20, "Images per class kept for later upgrades; 0 keeps none.")
    selection: Selection = "random"
    bad_images: Literal["refuse", "skip"] = "refuse"
    side: Side = "left"
    seed: int = described(0, "The same seed and number of CPU threads give the same weights.")
    device: str = "auto"
    grown: tuple[int, ...] = ()
    frozen: bool = described(
        False,
        "Keep the backbone's weights: it runs once per image, and the layers after it train in seconds.",
    )

    def __post_init__(self) -> None:
        _require(
            self,
            capacity=("a whole number of at least 2", _is_whole(self.capacity, 2)),
            width=(
                "a whole number of at least 1, or None",
                self.width is None or _is_whole(self.width, 1),
            ),
            bad_images=("one of refuse, skip", self.bad_images in ("refuse", "skip")),
            selection=("one of random, herding", self.selection in ("random", "herding")),
            side=("one of left, right", self.side in ("left", "right")),
            replay_per_class=("a whole number of at least 0", _is_whole(self.replay_per_class, 0)),
            seed=("a whole number of at least 0", _is_whole(self.seed, 0)),
            grown=("capacities of at least 2", all(_is_whole(extra, 2) for extra in self.grown)),
        )

    @property
    def code(self) -> str | None:
        """The import path of the backbone's code; None for fixstar's own backbones and for data such as ONNX."""
        return import_path(self.backbone, self.backbone_options)

    def torch_device(self) -> torch.device:
        """The device to train on."""
        from fixstar.models import resolve_device

        return resolve_device(self.device)

    def new_encoder(self, method: Method, classes: list[str], seed: int) -> Encoder:
        """An encoder with random weights that depend only on ``seed``, also after growth."""
        import torch

        from fixstar.models import Encoder
        from fixstar.models.backbones import BACKBONES, PRETRAINED
        from fixstar.models.backbones.hf import is_architecture
        from fixstar.models.classifiers import CLASSIFIERS

        architecture = self.backbone.startswith("hf:") and not self.backbone_options
        if self.frozen and (
            self.backbone in BACKBONES or (architecture and is_architecture(self.backbone[3:]))
        ):
            raise InputError(
                f"{self.backbone} starts from random weights, and a frozen backbone keeps its weights. Choose a "
                f"trained model: {' or '.join(PRETRAINED)}, hf:NAME_OR_FOLDER, an ONNX file or your own module"
            )
        if self.grown and CLASSIFIERS[method.classifier].fixed and method.classifier != "simplex":
            raise InputError(
                f"only a simplex grows, and {method.name} trains a {method.classifier}"
            )
        added = {}
        if self.grown and method.classifier == "simplex":
            added["added"] = self.grown
        named = []
        if self.code is not None:
            named.append(module_of(self.code))  # named by the author of these settings
        with torch.random.fork_rng(devices=[]), trusting(*named):
            torch.manual_seed(seed)
            return Encoder.create(
                self.backbone,
                method.classifier,
                classes=classes,
                capacity=self.capacity,
                width=self.width,
                side=self.side,
                backbone_options=dict(self.backbone_options),
                classifier_options={
                    **method.classifier_options,
                    **self.classifier_options,
                    **added,
                },
                preprocessing=self.preprocessing,
            )

    def to_json(self) -> dict[str, Any]:
        """All settings that affect the result, to compare after a restart. The device is left out: it may change."""
        content: dict[str, Any] = {
            **asdict(self),
            "preprocessing": self.preprocessing and self.preprocessing.to_json(),
        }
        del content["device"]
        plain: dict[str, Any] = json.loads(json.dumps(content))  # lists for tuples
        return plain

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Settings:
        """Settings from the output of ``to_json``. Files may come from anyone: code that they name must be trusted."""
        from fixstar.data.pixels import Augmentation
        from fixstar.images import Preprocessing

        code = import_path(content["backbone"], content["backbone_options"])
        if code is not None:
            require_trusted(code)
        recipe = content["recipe"]
        shape = content["preprocessing"]
        parts = {
            "recipe": Recipe(**{**recipe, "milestones": tuple(recipe["milestones"])}),
            "augmentation": Augmentation(**content["augmentation"]),
            "preprocessing": None if shape is None else Preprocessing.from_json(shape),
            "grown": tuple(content["grown"]),
        }
        return cls(**{**content, **parts})
