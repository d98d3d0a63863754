"""The runs of a benchmark: each has a method, a class order, a seed, and a name that shows changes from the catalogue.

    cifar100-10_7__hoc__order1__seed0                           as in the catalogue
    cifar100-10_7__hoc__lam=0.25__K=1000__order1__seed0__e40    with other options, other capacity, fewer epochs

Class order 0 is the dataset's own, order i the permutation that ``torch.randperm`` gives with a CPU generator seeded i.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fixstar.data import TaskStream
from fixstar.errors import InputError, UnknownNameError
from fixstar.methods import METHODS, Method
from fixstar.models.classifiers import CLASSIFIERS
from fixstar.research.benchmarks.catalogue import Benchmark, MethodChoice, Replacement
from fixstar.research.benchmarks.datasets import dataset, divide_classes
from fixstar.training import Recipe, Settings
from fixstar.translation.translation import USUAL

SEARCHES = ("template", "image")  # protocols that translations are measured by
_RECIPE = ("learning_rate", "weight_decay")
SETTINGS = (
    *_RECIPE,
    "replay_per_class",
    "length",
)  # that a run may change; the last is of fixed prototypes


@dataclass(frozen=True)
class Run:
    """One method on one benchmark, in one class order, with one seed; the other fields replace the catalogue's.

    ``translate`` asks for translations or declines them; None leaves it to the catalogue. ``weight`` is their w.
    """

    benchmark: Benchmark
    method: str
    class_order: int = 0
    seed: int = 0
    epochs: int | None = None
    capacity: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, float] = field(default_factory=dict)
    translate: bool | None = None
    weight: float = USUAL

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise InputError(f"the weight of a translation lies between 0 and 1, got {self.weight}")
        if self.translate and not searches(self.benchmark):
            raise InputError(
                f"{self.benchmark.name} is not judged by {' or '.join(SEARCHES)}, so there is no search to translate; "
                "run it without translations"
            )
        for name, value in (("class order", self.class_order), ("seed", self.seed)):
            if value < 0:
                raise InputError(f"a {name} is a number from 0 on, got {value}")
        if (
            self.class_order and self.benchmark.tasks.sample_shares
        ):  # every order would give the same run again
            raise InputError(
                f"{self.benchmark.name} has all classes in the first task: there is no class order to choose, "
                f"got {self.class_order}. Take order 0, and other seeds for other runs"
            )

    @property
    def choice(self) -> MethodChoice:
        """The method with its options: the catalogue's options, overridden by the requested ones."""
        entry = method_choice(self.benchmark, self.method)
        return replace(entry, options={**entry.options, **self.options})

    def create(self) -> Method:
        """The method, ready for a scenario."""
        return self.choice.create()

    @property
    def recipe(self) -> Recipe:
        """The benchmark's recipe with the changed epochs and settings."""
        changes: dict[str, Any] = {
            key: value for key, value in self.changes.items() if key in _RECIPE
        }
        return replace(self.shortened(self.benchmark.recipe), **changes)

    def shortened(self, recipe: Recipe) -> Recipe:
        """A recipe with the changed number of epochs, if any."""
        epochs = self.choice.epochs if self.epochs is None else self.epochs
        if epochs is None:
            return recipe
        return recipe.shortened(epochs)

    @property
    def translated(self) -> bool:
        """Whether old vectors are also searched through translations."""
        if self.translate is None:
            return usually_translated(self.benchmark, self.method)
        return self.translate

    def pretraining(self, model: Replacement) -> Recipe:
        """The recipe of a replacement, shortened or lengthened as the benchmark's own."""
        share = self.recipe.epochs / self.benchmark.recipe.epochs
        return model.recipe.shortened(max(1, round(model.recipe.epochs * share)))

    @property
    def name(self) -> str:
        """A file name that says what differs from the catalogue."""
        usual = method_choice(self.benchmark, self.method).create().options
        asked = self.create().options
        parts = [file_stem(self.benchmark.name), self.method]
        parts += [
            f"{key}={_short(value)}" for key, value in asked.items() if usual.get(key) != value
        ]
        if self.settings().capacity != usual_capacity(self.benchmark, self.method):
            parts.append(f"K={self.capacity}")
        parts += translation_words(
            self.benchmark, self.method, self.weight if self.translated else None
        )
        parts += [
            f"{key}={_short(value)}"
            for key, value in changed_settings(self.benchmark, self.settings()).items()
        ]
        parts += [f"order{self.class_order}", f"seed{self.seed}"]
        if self.recipe.epochs != usual_epochs(self.benchmark, self.method):
            parts.append(f"e{self.recipe.epochs}")
        return "__".join(parts)

    def settings(self, device: str = "auto") -> Settings:
        """The training settings."""
        usual = self.benchmark.settings(self.seed, device)
        if self.capacity is None:
            capacity = usual_capacity(self.benchmark, self.method)
        else:
            capacity = self.capacity
        settings = replace(usual, recipe=self.recipe, capacity=capacity)
        if "replay_per_class" in self.changes:
            settings = replace(settings, replay_per_class=int(self.changes["replay_per_class"]))
        if "length" in self.changes:
            settings = replace(settings, classifier_options={"scale": self.changes["length"]})
        return settings

    def stream(self, data: str | Path) -> TaskStream:
        """The tasks, from the training images in the data folder."""
        images = dataset(self.benchmark.training).open(data, "train")
        if self.benchmark.images_per_class is not None:
            images, _ = divide_classes(images, self.benchmark.images_per_class)
        return self.benchmark.tasks.stream(images, self.class_order or None, self.seed)


def plan(
    benchmark: Benchmark,
    methods: Sequence[str] = (),
    orders: Iterable[int] | None = None,
    seeds: Iterable[int] = (0,),
    *,
    epochs: int | None = None,
    capacity: int | None = None,
    options: Mapping[str, Any] | None = None,
    changes: Mapping[str, float] | None = None,
    translate: bool | None = None,
    weight: float = USUAL,
) -> list[Run]:
    """Every method in every class order with every seed; by default the benchmark's methods and orders.

    An option goes to the methods that have it; capacity and length go to those with a fixed classifier.
    """
    chosen = list(methods) or [name for name in benchmark.methods if not _refusal(benchmark, name)]
    if orders is None:
        chosen_orders = [order or 0 for order in benchmark.orders]
    else:
        chosen_orders = list(orders)
    wanted = dict(options or {})
    for key in wanted:
        if not any(key in method_choice(benchmark, name).create().options for name in chosen):
            known = sorted(
                {key for name in chosen for key in method_choice(benchmark, name).create().options}
            )
            raise UnknownNameError(f"option of {', '.join(chosen)}", key, known)
    for key, value in (changes or {}).items():
        if key not in SETTINGS:
            raise UnknownNameError("setting", key, SETTINGS)
        number = (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and 0 <= value < math.inf
        )
        if not number or (key == "replay_per_class" and value != int(value)):
            kind = "whole number" if key == "replay_per_class" else "number"
            raise InputError(f"the setting {key} is a {kind} from 0 on, got {value!r}")
    runs = []
    for order, seed, name in itertools.product(chosen_orders, seeds, chosen):
        method = method_choice(benchmark, name).create()
        if refusal := _refusal(benchmark, name):
            raise InputError(refusal)
        fixed = CLASSIFIERS[method.classifier].fixed
        mine = {key: value for key, value in wanted.items() if key in method.options}
        changed = {key: value for key, value in (changes or {}).items() if fixed or key != "length"}
        run = Run(
            benchmark,
            name,
            order,
            seed,
            epochs=epochs,
            capacity=capacity if fixed else None,
            options=mine,
            changes=changed,
            translate=translate,
            weight=weight,
        )
        run.create()  # refuses invalid values before any training
        run.settings()
        runs.append(run)
    if weight != USUAL and not any(run.translated for run in runs):
        raise InputError(
            f"the weight {weight} is for translations, but no run has any; enable translations too"
        )
    return list({run.name: run for run in runs}.values())


def _refusal(benchmark: Benchmark, name: str) -> str:
    """Why a method cannot be run on a benchmark; empty if it can."""
    method = method_choice(benchmark, name).create()
    if benchmark.scenario != "replacing":
        return ""
    if method.initialisation != "previous":
        return (
            f"{name} starts each version from new weights; in {benchmark.name} versions continue from the last one or "
            "from the model that replaces it. Choose a method that fine-tunes"
        )
    if (
        not CLASSIFIERS[method.classifier].fixed
        and len({model.backbone for model in benchmark.replacements}) > 1
    ):
        return (
            f"{name} compares the backbone's own features, and in {benchmark.name} their width changes (the dashes of "
            "HOC's table 7). Choose a method with a fixed classifier"
        )
    return ""


def changed_settings(
    benchmark: Benchmark, settings: Settings | Mapping[str, Any]
) -> dict[str, float]:
    """Which of SETTINGS differ from the benchmark's, with their values."""
    usual, asked = (
        _flat(one if isinstance(one, Mapping) else one.to_json())
        for one in (benchmark.settings(), settings)
    )
    return {key: asked[key] for key in SETTINGS if asked[key] != usual[key]}


def _flat(settings: Mapping[str, Any]) -> dict[str, float]:
    recipe = settings["recipe"]
    options = settings["classifier_options"]
    of_recipe = {key: recipe[key] for key in _RECIPE}
    return {
        **of_recipe,
        "replay_per_class": settings["replay_per_class"],
        "length": options.get("scale", 1.0),
    }


def file_stem(benchmark: str) -> str:
    """The prefix of a benchmark's file names.

    >>> file_stem("cifar100-10/16:K=500")
    'cifar100-10_16_K=500'
    """
    return re.sub(r"[/:,]", "_", benchmark)


def method_choice(benchmark: Benchmark, method: str) -> MethodChoice:
    """The method as the catalogue has it for this benchmark, or with its own defaults if it is not in there."""
    known = {**benchmark.methods, **benchmark.ours}
    choice = known.get(method, MethodChoice(method))
    if choice.name not in METHODS:
        raise UnknownNameError("method", method, {*METHODS, *known})
    return choice


def usual_capacity(benchmark: Benchmark, method: str) -> int:
    """K as the catalogue has it: the method's own, or the benchmark's."""
    own = method_choice(benchmark, method).capacity
    if own is None:
        return benchmark.capacity
    return own


def usual_epochs(benchmark: Benchmark, method: str) -> int:
    """Epochs per version as the catalogue has them: the method's own, or the benchmark's."""
    own = method_choice(benchmark, method).epochs
    if own is None:
        return benchmark.recipe.epochs
    return own


def usually_translated(benchmark: Benchmark, method: str) -> bool:
    """Whether old vectors are translated by default: as in the catalogue, else if the method needs it."""
    choice = method_choice(benchmark, method)
    wanted = choice.create().own_space if choice.translate is None else choice.translate
    return wanted and searches(benchmark)


def searches(benchmark: Benchmark) -> bool:
    """Whether a benchmark is judged by searches that a translation can take part in."""
    return any(protocol in SEARCHES for protocol in benchmark.protocols)


def translation_words(benchmark: Benchmark, method: str, weight: float | None) -> list[str]:
    """What is special about a run's translations of this weight, or about a run without them (None).

    >>> from fixstar.research.benchmarks import benchmark
    >>> seven = benchmark("cifar100-10/7")
    >>> translation_words(seven, "hoc", 0.6), translation_words(seven, "vega", None)
    (['translated'], ['untranslated'])
    """
    usual = usually_translated(benchmark, method)
    if weight is None:
        if usual:
            return ["untranslated"]
        return []
    words = [] if usual else ["translated"]
    if weight != USUAL:
        return [*words, f"w={_short(weight)}"]
    return words


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
