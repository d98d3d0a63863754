"""Scenarios: a task stream and a method give a sequence of versions.

Both scenarios yield each version as it is ready. With a directory they survive a kill: the same call goes on where the
last one stopped, and ends with the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fixstar.data.image_set import ImageSet
from fixstar.data.replay import ReplayMemory
from fixstar.data.streams import TaskStream
from fixstar.methods import Method
from fixstar.models import Encoder
from fixstar.scenarios.run_directory import RunDirectory
from fixstar.scenarios.settings import Settings
from fixstar.scenarios.version import Version, train_version

__all__ = ["lifelong", "remember", "retraining", "run_scenario"]


def lifelong(
    stream: TaskStream,
    method: Method,
    settings: Settings,
    directory: str | Path | None = None,
    progress: bool = True,
) -> Iterator[Version]:
    """CL2R: each version goes on from the last one's weights, with the task's images and a replay memory."""
    return _sequence("lifelong", stream, method, settings, directory, progress)


def retraining(
    stream: TaskStream,
    method: Method,
    settings: Settings,
    directory: str | Path | None = None,
    progress: bool = True,
) -> Iterator[Version]:
    """CoReS and BCT: each version is trained on all images so far; no memory is needed."""
    return _sequence("retraining", stream, method, settings, directory, progress)


def run_scenario(
    stream: TaskStream,
    method: Method,
    settings: Settings,
    directory: str | Path | None = None,
    progress: bool = True,
) -> Iterator[Version]:
    """The scenario that the method's paper trains it in."""
    return _sequence(method.scenario, stream, method, settings, directory, progress)


def _sequence(
    scenario: str,
    stream: TaskStream,
    method: Method,
    settings: Settings,
    directory: str | Path | None,
    progress: bool,
) -> Iterator[Version]:
    run = None
    if directory is not None:
        run = RunDirectory.open(directory, _description(scenario, stream, method, settings))
    lifelong_learning = scenario == "lifelong"
    memory = ReplayMemory(settings.replay_per_class if lifelong_learning else 0)
    previous: Encoder | None = None
    for task in stream:
        if run is not None and run.finished(task.number):
            version = Version(task.number, Encoder.load(run.version(task.number), settings.torch_device()))
            memory = ReplayMemory.load(run.memory(task.number))
        else:
            images = task.images if lifelong_learning else stream.seen(task.number)
            checkpoint = None if run is None else run.checkpoint
            version = train_version(task.number, images, previous, memory, method, settings, checkpoint, progress)
            if lifelong_learning:
                memory = remember(memory, task.images, version, settings)
            if run is not None:
                run.finish(task.number, version.encoder, memory)
        previous = version.encoder
        yield version


def remember(memory: ReplayMemory, images: ImageSet, version: Version, settings: Settings) -> ReplayMemory:
    """The memory with the images of a version's new classes, chosen as the settings say."""
    return memory.extended(
        images,
        version.encoder.preprocessing,
        settings.selection,
        seed=settings.seed * 1009 + version.number,
        features=lambda chosen: version.encoder.encode(chosen.images),
    )


def _description(scenario: str, stream: TaskStream, method: Method, settings: Settings) -> dict[str, Any]:
    return {
        "format": "fixstar-run",
        "scenario": scenario,
        "method": {"name": method.name, "options": dict(method.options)},
        "settings": settings.to_json(),
        "tasks": [task.images.fingerprint() for task in stream],
    }
