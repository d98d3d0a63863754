"""Scenarios: a task stream and a method give a sequence of versions.

All scenarios yield each version as soon as it is trained. With a directory they survive a kill: the same call resumes
and gives the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from fixstar.data.formats import open_images
from fixstar.data.image_set import ImageSet
from fixstar.data.replay import ReplayMemory
from fixstar.data.streams import TaskStream
from fixstar.errors import InputError, UnknownNameError
from fixstar.methods import Method, OldVectors, Scenario, create_method
from fixstar.models import Encoder
from fixstar.training.checkpoint import weights_digest
from fixstar.training.distributed import broadcast_from_rank_zero
from fixstar.training.run_directory import RunDirectory
from fixstar.training.settings import FROZEN, Settings, paper_recipe
from fixstar.training.version import TrainingContext, Validation, Version, train_version
from fixstar.trust import module_of, trusting

_MODEL_SETTINGS = (
    "backbone",
    "backbone_options",
    "classifier_options",
    "capacity",
    "width",
    "preprocessing",
)
_MEMORY_SETTINGS = ("replay_per_class", "selection")


def train_versions(
    *images: ImageSet | str | Path,
    method: Method | str = "polaris",
    directory: str | Path | None = None,
    progress: bool = True,
    epochs: int | None = None,
    **settings: Any,
) -> list[Version]:
    """Compatible versions, one per image set or folder, oldest first; with a ``directory`` the call resumes.

    ``epochs`` shortens the recipe of the method's paper; ``settings`` are those of ``Settings``.
    """
    if not images:
        raise InputError(
            "give one image set or folder per version, such as train('photos/2024', 'photos/2025')"
        )
    sets = [one if isinstance(one, ImageSet) else open_images(one) for one in images]
    frozen = bool(settings.get("frozen"))
    usual = {}
    if frozen and method == "polaris":
        usual["rotated"] = False  # each turn would be embedded too
    if isinstance(method, str):
        chosen = create_method(method, **usual)
    else:
        chosen = method
    recipe = settings.pop("recipe", None) or (FROZEN if frozen else paper_recipe(chosen.scenario))
    settings = {"capacity": 10_000, **settings}
    stream = TaskStream.of(sets, dict.fromkeys(name for one in sets for name in one.classes))
    whole = Settings(recipe=recipe if epochs is None else recipe.shortened(epochs), **settings)
    return list(
        run_scenario(stream, method=chosen, settings=whole, directory=directory, progress=progress)
    )


def run_scenario(
    stream: TaskStream,
    method: Method,
    settings: Settings,
    directory: str | Path | None = None,
    progress: bool = True,
    *,
    scenario: Scenario | None = None,
    later: Mapping[int, Settings] | None = None,
    replacements: Mapping[int, Encoder] | None = None,
    first_method: Method | None = None,
    pretrained: Encoder | None = None,
    validation: Validation | None = None,
) -> Iterator[Version]:
    """The versions of a stream in a ``scenario``, by default that of the method's paper.

    "lifelong" (CL2R): each version continues from the last one's weights, with the task's images and a replay memory.
    "retraining" (CoReS and BCT): each version is trained on all images so far; no memory is needed.

    ``later`` are settings to use from a version on, such as ``{4: replace(settings, grown=(500,))}`` if v4 needs
    room for more classes. Model and memory must stay those of ``settings``; versions from new weights may change the
    backbone (CoReS, section 6.6). ``replacements`` are better pre-trained models, of any architecture, by the number of
    the task that they are first fine-tuned on (IAM-CL2R; HOC, section 5.3). Give their classes slots from the left and
    set ``Settings(side="right")``, so that no slot has two owners. ``first_method`` trains v1 instead of ``method``
    (BCT, table 3). Versions that do not continue from the last one start from the ``pretrained`` model (CoReS, section
    6.3). ``validation`` selects the best compatible epoch of each upgrade (eq. 11).
    """
    sequence = _Sequence(
        scenario=scenario or method.scenario,
        stream=stream,
        method=method,
        first_settings=settings,
        later=later or {},
        replacements=replacements or {},
        first_method=first_method,
        pretrained=pretrained,
        validation=validation,
    )
    return sequence.versions(directory, progress)


@dataclass(frozen=True, eq=False)
class _Sequence:
    """Everything that determines a sequence of versions; it is checked when it is made."""

    scenario: Scenario
    stream: TaskStream
    method: Method
    first_settings: Settings
    later: Mapping[int, Settings]
    replacements: Mapping[int, Encoder]
    first_method: Method | None
    pretrained: Encoder | None
    validation: Validation | None

    def __post_init__(self) -> None:
        """Refuse models and settings for versions that do not exist, and changes of settings that must stay."""
        if self.scenario not in get_args(Scenario):
            raise UnknownNameError("scenario", self.scenario, get_args(Scenario))
        if unknown := sorted(set(self.replacements) - {task.number for task in self.stream}):
            raise InputError(
                f"there is no task {unknown[0]} to replace a model at; tasks are 1 to {len(self.stream)}"
            )
        if unknown := sorted(
            set(self.later) - {task.number for task in self.stream if task.number > 1}
        ):
            raise InputError(
                f"later={{{unknown[0]}: ...}} must name a version after the first: v1 is trained with the settings "
                f"themselves, and the tasks are 1 to {len(self.stream)}"
            )
        fixed: tuple[str, ...] = ()
        if self.method.initialisation == "previous":
            fixed += _MODEL_SETTINGS
        if self.scenario == "lifelong":
            fixed += _MEMORY_SETTINGS
        for number, settings in self.later.items():
            if changed := [
                name
                for name in fixed
                if getattr(settings, name) != getattr(self.first_settings, name)
            ]:
                raise InputError(
                    f"later={{{number}: ...}} changes {', '.join(changed)}: a {self.scenario} run of "
                    f"{self.method.name!r} continues with the last version's model and memory. Change other settings "
                    "(grown, recipe, ...), or choose a method that starts each version from new weights"
                )

    def versions(self, directory: str | Path | None, progress: bool) -> Iterator[Version]:
        if directory is None:
            yield from self._versions(None, progress)
            return
        run = RunDirectory.open(directory, self._description())
        with run.locked():
            run.update(self._description())
            yield from self._versions(run, progress)

    def _versions(self, run: RunDirectory | None, progress: bool) -> Iterator[Version]:
        is_lifelong = self.scenario == "lifelong"
        memory = ReplayMemory(self.first_settings.replay_per_class if is_lifelong else 0)
        previous: Encoder | None = None
        first: Encoder | None = None
        vectors: OldVectors | None = None
        for task in self.stream:
            number = task.number
            if run is not None and run.finished(number):
                with trusting(*self._named_modules()):
                    version = Version(
                        number,
                        Encoder.load(run.version(number), self.first_settings.torch_device()),
                    )
                memory = ReplayMemory.load(run.memory(number))
            else:
                if is_lifelong:
                    images = task.images
                else:
                    images = self.stream.seen(number)
                if run is None:
                    checkpoint = None
                else:
                    checkpoint = run.checkpoint(number)
                replacement = self.replacements.get(number)
                features = None if run is None else run.features
                context = TrainingContext(
                    previous=previous,
                    memory=memory,
                    replacement=replacement,
                    pretrained=self.pretrained,
                    first=first,
                    first_vectors=vectors,
                    features=features,
                )
                settings = self._settings(number)
                method = (self.first_method if number == 1 else None) or self.method
                version = train_version(
                    number=number,
                    images=images,
                    context=context,
                    method=method,
                    settings=settings,
                    checkpoint=checkpoint,
                    progress=progress,
                    validation=self.validation,
                )
                if is_lifelong:
                    memory = remember(memory, version, settings)
                if run is not None:
                    run.finish(number, version.encoder, memory)
            previous = version.encoder
            first = first or previous
            if self.method.first_vectors:
                vectors = _first_vectors(vectors, previous, memory)
            yield version

    def _settings(self, number: int) -> Settings:
        started = [start for start in self.later if start <= number]
        if started:
            return self.later[max(started)]
        return self.first_settings

    def _named_modules(self) -> set[str]:
        """The modules of the code that the caller has named."""
        models = [
            model.code
            for model in (*self.replacements.values(), self.pretrained)
            if model is not None
        ]
        named = [settings.code for settings in (self.first_settings, *self.later.values())]
        return {module_of(code) for code in (*models, *named) if code is not None}

    def _description(self) -> dict[str, Any]:
        return {
            "format": "fixstar-run",
            "scenario": self.scenario,
            "method": _named(self.method),
            "first method": None if self.first_method is None else _named(self.first_method),
            "settings": self.first_settings.to_json(),
            "tasks": [task.images.fingerprint() for task in self.stream],
            "replacements": {
                str(number): weights_digest(encoder)
                for number, encoder in self.replacements.items()
            },
            "pretrained": None if self.pretrained is None else weights_digest(self.pretrained),
            "validation": None if self.validation is None else self.validation.fingerprint(),
            "later": {str(number): settings.to_json() for number, settings in self.later.items()},
        }


def _named(method: Method) -> dict[str, Any]:
    return {"name": method.name, "options": dict(method.options)}


def remember(memory: ReplayMemory, version: Version, settings: Settings) -> ReplayMemory:
    """The memory with images of a version's new classes, selected according to the settings."""
    assert version.images is not None, "a version loaded from disk has been remembered already"
    return memory.extended(
        version.images,
        version.encoder.preprocessing,
        settings.selection,
        seed=settings.seed * 1009 + version.number,
        features=lambda chosen: _same_features(version.encoder, chosen),
    )


def _first_vectors(
    known: OldVectors | None, encoder: Encoder, memory: ReplayMemory
) -> OldVectors | None:
    """The vectors of remembered images, each by the version that learnt its class; other widths are dropped."""
    if known is not None and known.vectors.shape[1] != encoder.feature_dim:
        known = None
    if memory.images is None:
        return known
    names = () if known is None else known.classes
    new = memory.images.of_classes([name for name in memory.images.classes if name not in names])
    if not len(new):
        return known
    found = OldVectors(_same_features(encoder, new), new.labels, new.classes)
    if known is None:
        return found
    labels = np.concatenate([known.labels, found.labels + len(names)])
    return OldVectors(
        np.concatenate([known.vectors, found.vectors]), labels, (*names, *found.classes)
    )


def _same_features(encoder: Encoder, images: ImageSet) -> np.ndarray[Any, Any]:
    """The features of rank zero on all ranks: herding must choose the same images everywhere."""
    features = encoder.encode(images.images)
    broadcast_from_rank_zero([torch.from_numpy(features)])
    return features
