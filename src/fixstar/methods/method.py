"""The definition of a method: named loss terms, training stages, and needs from the past."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fixstar.data import ImageSet
from fixstar.errors import InputError
from fixstar.evaluation.features import read_labelled_vectors
from fixstar.models import Encoder, FrozenEncoder, Outputs
from fixstar.models.classifiers import CLASSIFIERS

Need = Literal["old model", "old classifier", "old vectors", "replay", "all images"]
Scenario = Literal["lifelong", "retraining"]
Initialisation = Literal["same", "fresh", "previous"]
Terms = dict[str, Tensor]


@dataclass(frozen=True)
class Step:
    """One batch in the new model and its predecessor. With two views: all images, then the second views of all."""

    new: Outputs
    old: Outputs | None  # None while the first version is trained
    targets: Tensor  # [B], slots
    replay: Tensor  # [B] bool, True where the image comes from memory
    progress: Tensor | float = 0.0  # finished share of this stage, 0 to 1
    pixels: Tensor | None = None  # uint8 [B, C, H, W], for methods with a third network
    turns: Tensor | None = None  # [B] quarter turns, if the second view is rotated
    first: Outputs | None = (
        None  # by the first version, from the third version on, for methods that need it
    )


@dataclass(frozen=True, eq=False)
class OldVectors:
    """Stored vectors [N, d] with their classes: possibly all that is left of an old model."""

    vectors: NDArray[np.floating[Any]]
    labels: NDArray[np.integer[Any]]  # [N], positions in ``classes``
    classes: tuple[str, ...]

    @classmethod
    def read(cls, file: str) -> OldVectors:
        """From an ``.npz`` file with the arrays ``vectors`` [N, d] and ``classes`` [N], names."""
        return cls(*read_labelled_vectors(file))


@dataclass(frozen=True)
class Upgrade:
    """The inputs of a version's training: the model to train, its predecessor, the classes."""

    encoder: Encoder
    teacher: FrozenEncoder | None  # None for the first version
    images: ImageSet
    old_classes: tuple[str, ...]  # seen by earlier versions
    new_classes: tuple[str, ...]  # first seen now
    memory: ImageSet | None = None  # replayed images
    held_out: ImageSet | None = None  # balanced, never trained on
    old_vectors: OldVectors | None = None
    seed: int = 0  # for the random numbers of a method
    first: FrozenEncoder | None = (
        None  # the first version, from the third on, for methods that need it
    )

    @property
    def old_outputs(self) -> int:
        """The number of leading outputs shared with the teacher; 0 is possible after a replacement."""
        if self.teacher is None:
            taught = 0
        else:
            taught = self.teacher.classifier.outputs
        both = zip(self.old_classes[:taught], self.encoder.slots.classes, strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))

    @property
    def remembered(self) -> int:
        """The number of old classes in the memory; without one, of all old classes."""
        if self.memory is None or not len(self.memory):
            return len(self.old_classes)
        return sum(count > 0 for count in self.memory.counts().values())


@dataclass(frozen=True)
class Stage:
    """A part of a version's training: its loss, what it trains and for how long.

    ``epochs`` and ``learning_rate`` are factors on the recipe's. Modules outside of ``trains`` are frozen. ``begin`` is
    called once, before the first step.
    """

    terms: Callable[[Step], Terms]
    name: str = "training"
    epochs: float = 1.0
    learning_rate: float = 1.0
    trains: nn.Module | None = None
    begin: Callable[[], None] | None = None


@dataclass(frozen=True)
class Objective:
    """The loss of one version. ``module`` is trained together with the encoder and dropped afterwards.

    ``then`` are later stages, ``finish`` is called after the last. All state must be in the encoder and in ``module``.
    ``learning_rate`` and ``epochs`` are factors on the recipe's, for the main stage.
    """

    terms: Callable[[Step], Terms]
    module: nn.Module | None = None
    then: tuple[Stage, ...] = ()
    finish: Callable[[], None] | None = None
    learning_rate: float = 1.0
    epochs: float = 1.0

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The main stage and those after it."""
        main = Stage(self.terms, epochs=self.epochs, learning_rate=self.learning_rate)
        return (main, *self.then)


@dataclass(frozen=True)
class Method:
    """A way to train a version: its loss as named, weighted terms, which the loop sums.

    Most methods have ``terms``. Methods that depend on the classes or the old model, or that have stages, have
    ``begin`` instead, which is called once per version.

    ``scenario`` is that of its paper: "lifelong" continues from the last weights with new and replayed images,
    "retraining" starts from ``initialisation`` on all images so far. ``first_vectors`` asks for the vectors that
    remembered images had when their class was learnt, ``views`` for that many crops of each image, the second
    ``rotated``, ``hold_out`` for a share of each class that is not trained on. A method with its ``own_space`` does not
    keep the space of older versions: their vectors are translated. With ``shared_components`` a version of another
    width than the one before is compared with it over the first components.
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
    maps: bool = False
    views: int = 1
    rotated: bool = False
    first: bool = False
    first_vectors: bool = False
    hold_out: float = 0.0
    extra_passes: float = 0.0
    own_space: bool = False
    shared_components: bool = False

    @property
    def shares_space(self) -> bool:
        """Whether all versions have one space, so that queries and older vectors can be compared directly."""
        return CLASSIFIERS[self.classifier].fixed and not self.own_space

    @property
    def cost(self) -> float:
        """Passes through a network, relative to plain training: one forward, two backward, one by each old model."""
        return (self.views * (3 + ("old model" in self.needs) + self.first) + self.extra_passes) / 3

    def objective(self, upgrade: Upgrade) -> Objective:
        """The loss for this upgrade."""
        if self.begin is not None:
            return self.begin(upgrade)
        assert self.terms is not None, f"method {self.name} defines neither terms nor begin"
        return Objective(self.terms)


def plain_terms(step: Step) -> Terms:
    """Cross-entropy alone: for baselines, and for the first version of methods with a predecessor term."""
    return {"ce": step.new.cross_entropy(step.targets)}


class Rule(NamedTuple):
    """A condition on an option's value, in words and as a function."""

    words: str
    allows: Callable[[Any], bool]


def at_least(bound: float) -> Rule:
    """A number >= a bound."""
    return Rule(f">= {bound}", lambda value: value >= bound)


def above(bound: float) -> Rule:
    """A number > a bound."""
    return Rule(f"> {bound}", lambda value: value > bound)


def whole(bound: int) -> Rule:
    """A whole number >= a bound."""
    return Rule(
        f"a whole number >= {bound}",
        lambda value: isinstance(value, Integral) and int(value) >= bound,
    )


def one_of(allowed: Iterable[str]) -> Rule:
    """One of several names."""
    names = tuple(allowed)
    return Rule(f"one of {', '.join(names)}", lambda value: value in names)


def require(method: str, options: Mapping[str, object], **rules: Rule) -> None:
    """Raise with all options that break their rules."""
    broken = [name for name, rule in rules.items() if not rule.allows(options[name])]
    if broken:
        needed = " and ".join(f"{name} {rules[name].words}" for name in broken)
        got = ", ".join(f"{name}={options[name]!r}" for name in broken)
        raise InputError(f"{method} needs {needed}, got {got}")
