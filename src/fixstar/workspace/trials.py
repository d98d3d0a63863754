"""Short runs before an upgrade: a few settings are compared on held-out images, and the best one is trained in full.

    trials-vN/results.json          what the finished trials measured
    trials-vN/*.safetensors         the trial in progress, after its last whole epoch

After a kill the same upgrade resumes, in its trials too. They are deleted once version N is finished.
"""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fixstar.data.image_set import ImageSet
from fixstar.data.replay import ReplayMemory
from fixstar.durable import document, read_document, replace_json
from fixstar.errors import InputError, ModelError, plural
from fixstar.evaluation import VersionFeatures, cross_test
from fixstar.evaluation.features import version_features
from fixstar.evaluation.trial import searchable, trial_of_images
from fixstar.methods import Method, create_method
from fixstar.models import Encoder
from fixstar.training import Settings, TrainingContext, train_version
from fixstar.training.distributed import from_rank_zero, on_rank_zero
from fixstar.training.features import FrozenFeatures
from fixstar.training.version import fingerprint_of

# What is tried beside the settings of the last version.
OPTIONS = {"hold": (20.0, 40.0), "rate": (0.3, 1.0)}  # polaris: how strongly the past is held, how large the steps are
RATES = (1.0, 0.3)  # times the first version's learning rate, for methods without an option ``rate``

EPOCHS_SHARE = 0.1  # of the full run's epochs, for one trial
LEAST_EPOCHS = 3  # fewer do not see the learning rate fall
MOST = 1 / 3  # of the full run, that trials may cost together unless a number is asked for
LEAST_QUERIES = 50  # fewer do not tell settings apart

Trials = int | Literal["auto"]
Say = Callable[[str], object]


@dataclass(frozen=True, eq=False)
class Setup:
    """One way to train the next version: after what, from which version's weights, and how."""

    name: str
    start: str
    past: TrainingContext
    settings: Settings
    method: Method

    @property
    def context(self) -> TrainingContext:
        """What it is trained after; only lifelong methods replay images."""
        return self.past if self.method.scenario == "lifelong" else replace(self.past, memory=ReplayMemory(0))

    @property
    def previous(self) -> Encoder:
        """The version that it follows."""
        assert self.past.previous is not None
        return self.past.previous

    def shortened(self, epochs: int) -> Setup:
        """The same over fewer epochs."""
        return replace(self, settings=replace(self.settings, recipe=self.settings.recipe.shortened(epochs)))


@dataclass(frozen=True)
class Tried:
    """What a trial measured: new queries on each old gallery beside that version's own, and the new version alone.

    >>> Tried("as v1", {"v1": (0.62, 0.60)}, 0.70).holds, Tried("as v1", {"v1": (0.59, 0.60)}, 0.70).holds
    (True, False)
    """

    setting: str
    galleries: Mapping[str, tuple[float, float]]
    self_test: float
    epochs: int = 0
    chosen: bool = field(default=False, compare=False)

    @property
    def holds(self) -> bool:
        """Whether the new queries beat the old ones on every old gallery."""
        return all(cross > own for cross, own in self.galleries.values())

    @property
    def score(self) -> tuple[bool, float]:
        """Settings that hold come first, then the highest mean of old galleries and the new version alone."""
        cross = [cross for cross, _ in self.galleries.values()]
        return self.holds, (sum(cross) / len(cross) + self.self_test) / 2 if cross else self.self_test

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Tried:
        """As ``asdict`` wrote it."""
        galleries = {name: (float(pair[0]), float(pair[1])) for name, pair in content["galleries"].items()}
        return cls(content["setting"], galleries, float(content["self_test"]), int(content["epochs"]))


def checked_trials(trials: Trials) -> Trials:
    """The number of settings to try, or "auto"; an error for anything else."""
    if trials == "auto" or (isinstance(trials, int) and not isinstance(trials, bool) and (trials == 0 or trials >= 2)):
        return trials
    raise InputError(f"trials is auto, 0 for none, or the number of settings to compare, 2 or more; got {trials!r}")


def alternatives(base: Setup, first_rate: float, method_is_free: bool, rate_is_free: bool) -> list[Setup]:
    """The last version's settings, and each with one change. What the user has fixed is not varied."""
    found, recipe, given = [base], base.settings.recipe, base.method.options
    for option, values in OPTIONS.items() if method_is_free else ():
        for value in values:
            if option in given and value != given[option] and (rate_is_free or option != "rate"):
                other = create_method(base.method.name, **{**given, option: value})
                method = replace(other, initialisation=base.method.initialisation)
                found.append(replace(base, name=f"{option}={value:g}", method=method))
    if rate_is_free and "rate" not in given:
        for rate in (times * first_rate for times in RATES):
            if abs(rate - recipe.learning_rate) > 1e-9:
                settings = replace(base.settings, recipe=replace(recipe, learning_rate=rate))
                found.append(replace(base, name=f"learning rate {rate:g}", settings=settings))
    return found


def choose_setup(
    workspace: Path,
    number: int,
    setups: Sequence[Setup],
    shown: ImageSet,
    held_out: ImageSet | None,
    trials: Trials,
    progress: bool,
    say: Say,
) -> tuple[Setup, list[Tried]]:
    """The setup to train in full, and what short runs measured; nothing if they are not possible or not worth it."""
    base, folder = setups[0], workspace / f"trials-v{number}"
    epochs = base.settings.recipe.epochs
    short = min(epochs, max(LEAST_EPOCHS, round(EPOCHS_SHARE * epochs)))
    compared = setups[: int(MOST * epochs / short) if trials == "auto" else trials]
    if trials == 0 or (
        from_rank_zero((workspace / f"checkpoint-v{number}.safetensors").exists) and not folder.is_dir()
    ):
        return base, []  # the second: a run without trials was interrupted, and resumes
    if len(compared) < 2:
        if len(setups) > 1:
            say(
                f"No trial runs: with {plural(epochs, 'epoch')} in all they would cost more than a third of "
                "the training"
            )
        return base, []
    test = None if held_out is None else searchable(held_out, base.previous.preprocessing, "skip")
    queries = 0 if test is None else sum(count // 2 for count in test.counts().values())
    if test is None or queries < LEAST_QUERIES:
        say(
            f"No trial runs: held-out images give {plural(queries, 'query')}, and comparing settings takes "
            f"{LEAST_QUERIES}. Training with the settings of {base.start}"
        )
        return base, []
    cost = len(compared) * short / epochs
    say(
        f"{len(compared)} trial runs of {short} epochs each, about {cost:.0%} of the time of the full run ({epochs} "
        f"epochs): {', '.join(one.name for one in compared)}"
    )
    found = _run_trials(folder, number, [one.shortened(short) for one in compared], shown, test, progress, say, epochs)
    best = max(range(len(found)), key=lambda row: (*found[row].score, -row))
    say(f"Best on held-out images: {found[best].setting}. Training it in full")
    return compared[best], [replace(one, chosen=row == best) for row, one in enumerate(found)]


def _run_trials(
    folder: Path,
    number: int,
    setups: Sequence[Setup],
    shown: ImageSet,
    test: ImageSet,
    progress: bool,
    say: Say,
    epochs: int,
) -> list[Tried]:
    """What each setup measures, from ``folder`` as far as it was measured before a kill."""
    known: dict[str, Any] = from_rank_zero(lambda: _results(folder / "results.json"))
    found = []
    for row, setup in enumerate(setups):
        fingerprint = fingerprint_of(number, shown, setup.context, setup.method, setup.settings, None).whole
        key = f"{fingerprint[:24]}-{test.fingerprint()[:24]}"
        if key not in known:
            say(f"Trial {row + 1} of {len(setups)}: {setup.name}")
            started, checkpoint = time.monotonic(), folder / f"{key}.safetensors"
            version = train_version(number, shown, setup.context, setup.method, setup.settings, checkpoint, progress)
            took = time.monotonic() - started
            known[key] = from_rank_zero(partial(_measured, setups[0], setup, version.encoder, test))
            on_rank_zero(partial(replace_json, folder / "results.json", document("trials", {"results": known})))
            on_rank_zero(partial(checkpoint.unlink, missing_ok=True))
            if row == 0:
                short = setup.settings.recipe.epochs
                say(f"That took {_duration(took)}; about {_duration(took * (len(setups) - 1 + epochs / short))} to go")
        found.append(Tried.from_json({**known[key], "setting": setup.name}))
    return found


def _measured(base: Setup, setup: Setup, encoder: Encoder, test: ImageSet) -> dict[str, Any]:
    """A trial's queries on the galleries of the versions that the upgrade must keep to, and on its own."""
    models, first = {base.start: base.previous}, base.past.first
    if first is not None and first is not base.previous:
        models = {str(first.about.get("version", "first")): first, **models}
    models["new"] = encoder

    made = FrozenFeatures(encoder, setup.past.features).of if setup.settings.frozen else None

    def features(queries: ImageSet, gallery: ImageSet) -> list[VersionFeatures]:
        moved = {name: copy.deepcopy(model).to(encoder.device) for name, model in models.items()}
        return [version_features(name, model, queries, gallery, made=made) for name, model in moved.items()]

    trial = trial_of_images(features, test)
    *older, newest = trial.versions
    comparable = [one for one in older if newest.comparable_with(one)]
    C = cross_test([*comparable, newest], trial.query_labels, trial.gallery_labels, "image").matrix
    galleries = {one.name: (float(C[-1, k]), float(C[k, k])) for k, one in enumerate(comparable)}
    return asdict(Tried(setup.name, galleries, float(C[-1, -1]), setup.settings.recipe.epochs))


def _results(path: Path) -> dict[str, Any]:
    """What finished trials measured; nothing if the file is not there or damaged: they are then run again."""
    try:
        found = read_document(path, "trials")["results"]
        return {key: asdict(Tried.from_json(value)) for key, value in found.items()}
    except (ModelError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return {}


def _duration(seconds: float) -> str:
    """
    >>> _duration(42), _duration(600), _duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def delete_trials(workspace: Path, before: int) -> None:
    """Delete the trials of finished versions: all with a number below ``before``."""
    for path in workspace.glob("trials-v*"):
        if path.name.removeprefix("trials-v").isdigit() and int(path.name.removeprefix("trials-v")) < before:
            shutil.rmtree(path, ignore_errors=True)
