"""The papers' experiments by name: what is trained on what, how, in which tasks, and how it is judged.

cifar100-10/7                   a benchmark: CIFAR-100 in 7 tasks, CIFAR-10 searched
cifar100-10/16:K=500            one of its ablations
cifar100-10-upgrades/9:pretraining=50,selection=yes     two at once

The entries are in ``catalogue.toml``.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from importlib.resources import files
from typing import Any, Literal

from fixstar.data import (
    Augmentation,
    ImageSet,
    TaskStream,
    class_and_sample_stream,
    class_order,
    sample_stream,
)
from fixstar.errors import InputError, UnknownNameError
from fixstar.images import Preprocessing
from fixstar.methods import Method, create_method
from fixstar.research.benchmarks.datasets import Dataset, dataset
from fixstar.training import Recipe, Settings

Kind = Literal["lifelong", "retraining", "replacing"]
Ablations = Mapping[str, Mapping[str, Mapping[str, Any]]]
# Class orders, by training set, that settings are not chosen on. Orders 4 to 6 are used up (polaris was run on them,
# changed, and run again), 7 to 9 were looked at by an independent reader, 10 to 12 are fresh. A run on any of them is
# noted in benchmarks/looks.json.
SET_ASIDE_ORDERS = {"cifar100": range(4, 19)}
_OF_CHOICE = (
    "capacity",
    "epochs",
    "translate",
)  # of a method in the catalogue; all else are its options
_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@dataclass(frozen=True)
class Tasks:
    """How a training set is divided into tasks, by one of three:

    ``sizes``, the number of classes that each task adds; ``class_shares``, the same as shares of all classes ((1, 0): a
    second model of the same data); ``sample_shares`` of every class's images. With ``first_share`` the first task has
    only that share of its classes' images, the second everything else (CoReS 6.8).
    """

    sizes: tuple[int, ...] = ()
    class_shares: tuple[float, ...] = ()
    sample_shares: tuple[float, ...] = ()
    first_share: float | None = None

    def __post_init__(self) -> None:
        given = [parts for parts in (self.sizes, self.class_shares, self.sample_shares) if parts]
        empty = self.class_shares[:1] == (
            1.0,
        )  # nothing is added: the second model is trained on the same data
        if (
            len(given) != 1
            or (min(given[0]) <= 0 and not empty)
            or sum(self.class_shares or self.sample_shares) > 1 + 1e-9
        ):
            raise InputError(
                f"tasks need one of sizes, class_shares, sample_shares, positive, shares up to 1; got {self}"
            )
        if self.first_share is not None and (len(self.sizes) != 2 or not 0 < self.first_share < 1):
            raise InputError(f"first_share, between 0 and 1, goes with two sizes; got {self}")

    @property
    def count(self) -> int:
        """T, the number of versions."""
        return len(self.sizes or self.class_shares or self.sample_shares)

    def stream(self, images: ImageSet, order: int | None = None, seed: int = 0) -> TaskStream:
        """The tasks over a training set; ``order`` is the seed of the class order, None the dataset's own."""
        if self.sample_shares:
            return sample_stream(images, self.sample_shares, seed)
        if self.first_share is not None:
            return class_and_sample_stream(images, self.sizes[0], self.first_share, order, seed)
        names = class_order(images.classes, order)
        sizes = self._sizes(len(images.classes))
        if sum(sizes) > len(names) or (0 in sizes and self.class_shares[:1] != (1.0,)):
            raise InputError(
                f"{self.count} tasks of {sizes} classes cannot be made of {len(names)} classes"
            )
        cuts = list(itertools.accumulate(sizes, initial=0))
        groups = [names[a:b] for a, b in itertools.pairwise(cuts)]
        return TaskStream.of((images.of_classes(group) for group in groups), names[: cuts[-1]])

    def _sizes(self, classes: int) -> tuple[int, ...]:
        if self.sizes:
            return self.sizes
        cuts = [
            round(share * classes) for share in itertools.accumulate(self.class_shares, initial=0.0)
        ]
        return tuple(b - a for a, b in itertools.pairwise(cuts))


@dataclass(frozen=True)
class MethodChoice:
    """A method with the options that the paper gives it; for our own also what else belongs to the setting.

    ``capacity`` and ``epochs`` replace the benchmark's. ``translate`` says whether old vectors are searched through
    translations too; None leaves it to the method.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    capacity: int | None = None
    epochs: int | None = None
    translate: bool | None = None

    def create(self) -> Method:
        """The method, ready for a scenario."""
        return create_method(self.name, **self.options)

    def described(self) -> dict[str, Any]:
        """What it sets: options, and what it replaces of the benchmark."""
        own = {name: getattr(self, name) for name in _OF_CHOICE}
        return {**self.options, **{name: value for name, value in own.items() if value is not None}}


@dataclass(frozen=True)
class Replacement:
    """IAM-CL2R: a model that replaces the current one at ``task``, pre-trained on a ``share`` of the classes."""

    task: int
    share: float
    backbone: str
    backbone_options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe = field(default_factory=Recipe)


@dataclass(frozen=True)
class Benchmark:
    """One experiment of the papers, as data.

    ``methods`` are those of the paper's table, ``ours`` settings of our own methods, which run only if they are named.
    ``pretraining`` is the dataset that replacements are pre-trained on, and how many of its classes the last of them
    sees. ``pairs`` are (genuine, impostor), None if the dataset has its own. ``orders`` are seeds of the class order,
    None the dataset's own. ``ablations`` are named variants, ``note`` says what a paper leaves open and what is assumed
    here. Few experiments have another head in v1 (``first_head``), other settings for later versions
    (``later_models``), ``model_selection`` (CoReS, eq. 11), a search while the gallery is re-embedded class by class
    (``partial_backfill``: BCT, appendix B), or start from a model of ``pretraining_classes`` that no task uses (CoReS,
    section 6.3).
    """

    name: str
    title: str
    sources: tuple[str, ...]
    training: str
    evaluation: str
    scenario: Kind
    tasks: Tasks
    protocols: tuple[str, ...]
    backbone: str
    capacity: int
    recipe: Recipe
    methods: Mapping[str, MethodChoice]
    backbone_options: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Preprocessing | None = None
    augmentation: Augmentation = field(default_factory=Augmentation)
    replay_per_class: int = 20
    images_per_class: int | None = None
    query_split: str = "train"
    gallery_split: str = "test"
    pairs: tuple[int, int] | None = None
    orders: tuple[int | None, ...] = (1, 2, 3)
    paper_runs: int = 1
    pretraining: tuple[str, int] | None = None
    replacements: tuple[Replacement, ...] = ()
    ablations: Ablations = field(default_factory=dict)
    first_head: str | None = None
    later_models: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    model_selection: bool = False
    partial_backfill: bool = False
    pretraining_classes: int = 0
    ours: Mapping[str, MethodChoice] = field(default_factory=dict)
    note: str = ""

    def settings(self, seed: int = 0, device: str = "auto") -> Settings:
        """The training settings of a scenario."""
        return Settings(
            backbone=self.backbone,
            backbone_options=self.backbone_options,
            capacity=self.capacity,
            preprocessing=self.preprocessing,
            recipe=self.recipe,
            augmentation=self.augmentation,
            replay_per_class=self.replay_per_class,
            side="right" if self.scenario == "replacing" else "left",  # HOC, section 5.3
            seed=seed,
            device=device,
        )

    @property
    def datasets(self) -> list[Dataset]:
        """The datasets for training, for evaluation, and for pre-training."""
        others = [] if self.pretraining is None else [self.pretraining[0]]
        return [dataset(name) for name in dict.fromkeys([self.training, self.evaluation, *others])]

    def variant(self, choices: Mapping[str, str]) -> Benchmark:
        """This benchmark with the chosen values of its ablations."""
        changes: dict[str, Any] = {}
        for ablation, value in choices.items():
            if ablation not in self.ablations:
                raise UnknownNameError(f"ablation of {self.name}", ablation, self.ablations)
            if value not in self.ablations[ablation]:
                raise UnknownNameError(f"value of {ablation}", value, self.ablations[ablation])
            changes |= self.ablations[ablation][value]
        chosen = ",".join(f"{ablation}={value}" for ablation, value in choices.items())
        return replace(self, name=f"{self.name}:{chosen}", ablations={}, **changes)


# catalogue.toml


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }


def _tasks(values: Mapping[str, Any]) -> Tasks:
    shares = {
        name: tuple(float(Fraction(one)) for one in values[name])
        for name in values
        if name.endswith("_shares")
    }
    return Tasks(**{**_tuples(values), **shares})


def _recipe(values: Mapping[str, Any]) -> Recipe:
    return Recipe(**_tuples(values))


def _methods(values: Mapping[str, Mapping[str, Any]]) -> dict[str, MethodChoice]:
    return {key: _choice({"method": key, **fields}) for key, fields in values.items()}


def _choice(fields: Mapping[str, Any]) -> MethodChoice:
    own = {name: value for name, value in fields.items() if name in _OF_CHOICE}
    options = {name: value for name, value in fields.items() if name not in (*_OF_CHOICE, "method")}
    return MethodChoice(fields["method"], options, **own)


_READERS: dict[str, Callable[[Any], Any]] = {
    "tasks": _tasks,
    "recipe": _recipe,
    "methods": _methods,
    "ours": _methods,
    "augmentation": lambda values: Augmentation(**values),
    "preprocessing": lambda values: Preprocessing(**{**_IMAGENET, **values}),
    "orders": lambda values: tuple(order or None for order in values),
    "replacements": lambda values: tuple(
        Replacement(
            **{**one, "share": float(Fraction(one["share"])), "recipe": _recipe(one["recipe"])}
        )
        for one in values
    ),
    "later_models": lambda values: {
        int(number): _read(changes) for number, changes in values.items()
    },
}


def _read(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a benchmark, or of a variant, from their plain form."""
    return {
        name: _READERS[name](value) if name in _READERS else value
        for name, value in _tuples(fields).items()
    }


def _entry(name: str, content: Mapping[str, Mapping[str, Any]]) -> Benchmark:
    own = dict(content[name])
    if like := own.pop("like", None):
        own = {**content[like], "ablations": {}, **own}
    ablations = own.pop("ablations", {})
    for fields in (own, *(fields for values in ablations.values() for fields in values.values())):
        if "replacements" in fields:
            usual = {"backbone": own["backbone"], "recipe": own["recipe"]}
            fields["replacements"] = [usual | one for one in fields["replacements"]]
    variants = {
        key: {value: _read(fields) for value, fields in of.items()} for key, of in ablations.items()
    }
    return Benchmark(name=name, ablations=variants, **_read(own))


_CONTENT = tomllib.loads(
    files("fixstar.research.benchmarks").joinpath("catalogue.toml").read_text(encoding="utf-8")
)
_CATALOGUE = {name: _entry(name, _CONTENT) for name in _CONTENT}


def catalogue() -> dict[str, Benchmark]:
    """Every benchmark by name; ablations are in their ``ablations``."""
    return dict(_CATALOGUE)


def benchmark(name: str) -> Benchmark:
    """The benchmark of that name, or the variant that is named after a colon.

    >>> benchmark("cifar100-10/7").tasks.sizes
    (10, 15, 15, 15, 15, 15, 15)
    >>> benchmark("cifar100-10/16:K=500").capacity
    500
    """
    base, colon, chosen = name.partition(":")
    if base not in _CATALOGUE:
        raise UnknownNameError("benchmark", base, _CATALOGUE)
    if not colon:
        return _CATALOGUE[base]
    choices = [choice.partition("=") for choice in chosen.split(",")]
    if not all(ablation and value for ablation, _, value in choices):
        raise InputError(
            f"a variant is written {base}:NAME=VALUE, several with commas; got {name!r}"
        )
    return _CATALOGUE[base].variant({ablation: value for ablation, _, value in choices})
