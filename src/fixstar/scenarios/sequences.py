"""Scenarios: a task stream and a method give a sequence of versions.

All scenarios yield each version as it is ready. With a directory they survive a kill: the same call goes on where the
last one stopped, and ends with the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fixstar.data.image_set import ImageSet
from fixstar.data.replay import ReplayMemory
from fixstar.data.streams import TaskStream
from fixstar.errors import InputError
from fixstar.methods import Method
from fixstar.models import Encoder
from fixstar.scenarios.run_directory import RunDirectory
from fixstar.scenarios.settings import Settings
from fixstar.scenarios.start import Past, weights_digest
from fixstar.scenarios.validation import Validation
from fixstar.scenarios.version import Version, train_version
from fixstar.training.distributed import same_as_first

__all__ = ["lifelong", "remember", "replacing", "retraining", "run_scenario"]


def lifelong(
    stream: TaskStream,
    method: Method,
    settings: Settings,
    directory: str | Path | None = None,
    progress: bool = True,
    *,
    later: Mapping[int, Settings] | None = None,
) -> Iterator[Version]:
    """CL2R: each version goes on from the last one's weights, with the task's images and a replay memory.

    ``later`` are settings to use from a version on, such as ``{4: replace(settings, grown=(500,))}`` where v4 needs
    room for more classes. Model and memory stay those of ``settings``.
    """
    given = _Given(later=_checked_later("lifelong", stream, method, settings, later))
    return _sequence("lifelong", stream, method, settings, directory, progress, given)


def retraining(
    stream: TaskStream,
    method: Method,
    settings: Settings,
    directory: str | Path | None = None,
    progress: bool = True,
    *,
    pretrained: Encoder | None = None,
    validation: Validation | None = None,
    later: Mapping[int, Settings] | None = None,
) -> Iterator[Version]:
    """CoReS and BCT: each version is trained on all images so far; no memory is needed.

    A ``pretrained`` model is where every version starts that does not go on from the last one (CoReS, section 6.3).
    ``validation`` selects the best compatible epoch of each upgrade (eq. 11). ``later`` are settings to use from a
    version on: with room for more classes, as in ``lifelong``, or, where each version starts anew, with another
    backbone (section 6.6); with BCT its feature must not become narrower.
    """
    chosen = _checked_later("retraining", stream, method, settings, later)
    given = _Given(pretrained=pretrained, validation=validation, later=chosen)
    return _sequence("retraining", stream, method, settings, directory, progress, given)


def run_scenario(
    stream: TaskStream,
    method: Method,
    settings: Settings,
    directory: str | Path | None = None,
    progress: bool = True,
    *,
    later: Mapping[int, Settings] | None = None,
) -> Iterator[Version]:
    """The scenario that the method's paper trains it in: ``lifelong`` or ``retraining``, which explain ``later``."""
    given = _Given(later=_checked_later(method.scenario, stream, method, settings, later))
    return _sequence(method.scenario, stream, method, settings, directory, progress, given)


def replacing(
    stream: TaskStream,
    method: Method,
    settings: Settings,
    replacements: Mapping[int, Encoder],
    directory: str | Path | None = None,
    progress: bool = True,
    *,
    later: Mapping[int, Settings] | None = None,
) -> Iterator[Version]:
    """IAM-CL2R: lifelong, but at given tasks a better pre-trained model takes the place of the fine-tuned one.

    ``replacements`` are the models by the number of the task that they are first fine-tuned on; 1 is the model to begin
    with. They may differ in architecture. A replacement becomes the teacher (HOC, section 5.3). Give its
    classes slots from the left and set ``Settings(side="right")``, so that no slot has two owners. ``later`` is that of
    ``lifelong``.
    """
    unknown = sorted(set(replacements) - {task.number for task in stream})
    if unknown:
        raise InputError(f"there is no task {unknown[0]} to replace a model at; tasks are 1 to {len(stream)}")
    given = _Given(replacements, later=_checked_later("lifelong", stream, method, settings, later))
    return _sequence("lifelong", stream, method, settings, directory, progress, given)


_OF_THE_MODEL = ("backbone", "backbone_options", "classifier_options", "capacity", "preprocessing")
_OF_THE_MEMORY = ("replay_per_class", "selection")


def _checked_later(
    scenario: str, stream: TaskStream, method: Method, settings: Settings, later: Mapping[int, Settings] | None
) -> Mapping[int, Settings]:
    """``later``, refused where it names no version that is still to come, or changes what goes on from the last one."""
    later = later or {}
    if odd := sorted(set(later) - {task.number for task in stream if task.number > 1}):
        raise InputError(
            f"later={{{odd[0]}: ...}} names no version that follows another: v1 is trained with the settings "
            f"themselves, and the tasks are 1 to {len(stream)}"
        )
    kept: tuple[str, ...] = _OF_THE_MODEL if method.initialisation == "previous" else ()
    kept += _OF_THE_MEMORY if scenario == "lifelong" else ()
    for number, changed in later.items():
        if moved := [name for name in kept if getattr(changed, name) != getattr(settings, name)]:
            raise InputError(
                f"later={{{number}: ...}} changes {', '.join(moved)}: a {scenario} run of {method.name!r} goes on with "
                "the last version's model and memory. Change the others (grown, recipe, ...), or choose a method that "
                "starts each version anew"
            )
    return later


@dataclass(frozen=True, eq=False)
class _Given:
    """Models and images that a sequence is given beside its stream."""

    replacements: Mapping[int, Encoder] = field(default_factory=dict)
    pretrained: Encoder | None = None
    validation: Validation | None = None
    later: Mapping[int, Settings] = field(default_factory=dict)

    def settings(self, number: int, first: Settings) -> Settings:
        """Those of version ``number``."""
        begun = [start for start in self.later if start <= number]
        return self.later[max(begun)] if begun else first

    def description(self) -> dict[str, Any]:
        return {
            "replacements": {str(number): weights_digest(encoder) for number, encoder in self.replacements.items()},
            "pretrained": None if self.pretrained is None else weights_digest(self.pretrained),
            "validation": None if self.validation is None else self.validation.fingerprint(),
            "later": {str(number): settings.to_json() for number, settings in self.later.items()},
        }


def _sequence(
    scenario: str,
    stream: TaskStream,
    method: Method,
    settings: Settings,
    directory: str | Path | None,
    progress: bool,
    given: _Given | None = None,
) -> Iterator[Version]:
    given = given or _Given()
    if directory is None:
        yield from _versions(scenario, stream, method, settings, None, progress, given)
        return
    run = RunDirectory.open(directory, _description(scenario, stream, method, settings, given))
    with run.held():
        run.renew(_description(scenario, stream, method, settings, given))
        yield from _versions(scenario, stream, method, settings, run, progress, given)


def _versions(
    scenario: str,
    stream: TaskStream,
    method: Method,
    settings: Settings,
    run: RunDirectory | None,
    progress: bool,
    given: _Given,
) -> Iterator[Version]:
    lifelong_learning = scenario == "lifelong"
    memory = ReplayMemory(settings.replay_per_class if lifelong_learning else 0)
    previous: Encoder | None = None
    first: Encoder | None = None
    for task in stream:
        if run is not None and run.finished(task.number):
            version = Version(task.number, Encoder.load(run.version(task.number), settings.torch_device()))
            memory = ReplayMemory.load(run.memory(task.number))
        else:
            images = task.images if lifelong_learning else stream.seen(task.number)
            checkpoint = None if run is None else run.checkpoint(task.number)
            past = Past(previous, memory, given.replacements.get(task.number), given.pretrained, first=first)
            mine = given.settings(task.number, settings)
            version = train_version(task.number, images, past, method, mine, checkpoint, progress, given.validation)
            if lifelong_learning:
                memory = remember(memory, version, mine)
            if run is not None:
                run.finish(task.number, version.encoder, memory)
        previous = version.encoder
        first = first or previous
        yield version


def remember(memory: ReplayMemory, version: Version, settings: Settings) -> ReplayMemory:
    """The memory with the images of a version's new classes, chosen as the settings say."""
    assert version.images is not None, "a version read back from disk has been remembered already"
    return memory.extended(
        version.images,
        version.encoder.preprocessing,
        settings.selection,
        seed=settings.seed * 1009 + version.number,
        features=lambda chosen: _first_features(version.encoder, chosen),
    )


def _first_features(encoder: Encoder, images: ImageSet) -> np.ndarray[Any, Any]:
    """The same to the last bit in every process of a run: herding must choose the same images in all of them."""
    features = encoder.encode(images.images)
    same_as_first([torch.from_numpy(features)])
    return features


def _description(
    scenario: str, stream: TaskStream, method: Method, settings: Settings, given: _Given
) -> dict[str, Any]:
    return {
        "format": "fixstar-run",
        "scenario": scenario,
        "method": {"name": method.name, "options": dict(method.options)},
        "settings": settings.to_json(),
        "tasks": [task.images.fingerprint() for task in stream],
        **given.description(),
    }
