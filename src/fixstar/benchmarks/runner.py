"""One run of a benchmark, from images to its matrices. It survives a kill: the same call goes on where it stopped.

A run has a folder of its own below the work folder:

run/            the scenario's run directory: finished versions, memory, checkpoint
features/       what finished versions made of queries and gallery; gone when the run is done
progress.json   seconds and losses so far, and how often the run was taken up
log.txt         what it printed, where it ran as one job of several
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fixstar import __version__
from fixstar.benchmarks.extras import Extras
from fixstar.benchmarks.plan import Run
from fixstar.benchmarks.result import RunResult, measured
from fixstar.benchmarks.searched import Searched
from fixstar.data import TaskStream
from fixstar.durable import exclusive, replace_file, replace_json
from fixstar.errors import CheckpointError
from fixstar.evaluation import VersionFeatures
from fixstar.training import Settings, Version, lifelong, retraining

__all__ = ["Progress", "run_benchmark"]

_PIXELS = 1 << 20  # embedded at a time, in 256 to 1024 images: a GPU waits for the host after each batch


@dataclass
class Progress:
    """Where a run stands, on disk: one record a finished version, and what is under way."""

    path: Path
    restarts: int = -1
    passes: list[float] = field(default_factory=list)  # of images through a network, version by version
    versions: list[dict[str, Any]] = field(default_factory=list)
    stage: str = ""

    @classmethod
    def read(cls, path: Path) -> Progress:
        """The state that was saved last; a new one where there is none."""
        try:
            return cls(path, **json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return cls(path)

    def save(self, stage: str) -> None:
        """Keep the state, with a word on what comes next."""
        self.stage = stage
        replace_json(self.path, {key: value for key, value in vars(self).items() if key != "path"})

    @property
    def share(self) -> float:
        """How much of the work is done, counted in passes of finished versions."""
        finished = sum("seconds_embedding" in version for version in self.versions)
        return sum(self.passes[:finished]) / sum(self.passes) if self.passes else 0.0


def run_benchmark(
    run: Run, data: str | Path, work: str | Path, device: str = "auto", progress: bool = True
) -> RunResult:
    """Train every version of a run, embed queries and gallery once with each, and measure every protocol."""
    folder = Path(work) / run.name
    try:
        with exclusive(folder):
            return _run(run, Path(data), folder, device, progress)
    except BlockingIOError:
        raise CheckpointError(f"another process is at work in {folder}; wait for it or stop it") from None


def _run(run: Run, data: Path, folder: Path, device: str, progress: bool) -> RunResult:
    state = Progress.read(folder / "progress.json")
    state.restarts += 1
    searched, stream, settings = Searched.open(run.benchmark, data), run.stream(data), run.settings(device)
    state.passes = _passes(run, stream, searched)
    state.save("training v1")
    features = []
    extras = Extras.of(run, data, folder, settings, progress)
    for version, seconds in _timed(_scenario(run, stream, settings, extras, folder / "run", progress)):
        if len(state.versions) < version.number:
            state.versions.append(_record(version, stream, seconds))
            state.save(f"embedding with {version.name}")
        started = time.monotonic()
        features.append(_features(version, searched, folder / "features" / f"{version.name}.npz", progress))
        record = state.versions[version.number - 1]
        record.setdefault("seconds_embedding", round(time.monotonic() - started, 2))
        state.save(f"training v{version.number + 1}" if version.number < len(stream) else "measuring")
    started = time.monotonic()
    found_on = str(settings.torch_device()) if settings.torch_device().type == "cuda" else None
    protocols = {name: measured(searched.matrix(features, name, found_on)) for name in run.benchmark.protocols}
    result = _result(run, stream, settings, state, protocols, time.monotonic() - started)
    shutil.rmtree(folder / "features")
    return result


def _scenario(
    run: Run, stream: TaskStream, settings: Settings, extras: Extras, directory: Path, progress: bool
) -> Iterator[Version]:
    if _goes_on(run):
        return lifelong(stream, run.create(), settings, directory, progress)
    return retraining(stream, run.create(), settings, directory, progress, **vars(extras))


def _goes_on(run: Run) -> bool:
    """Lifelong where the benchmark is; what starts every version afresh is retrained there too, as upper bounds are."""
    return run.benchmark.scenario == "lifelong" and run.create().initialisation == "previous"


def _passes(run: Run, stream: TaskStream, searched: Searched) -> list[float]:
    """Passes of images through a network that each version takes: three an image in training, one in embedding."""
    new = [len(task.images) for task in stream]
    shown = list(itertools.accumulate(new))  # all images so far
    if _goes_on(run):
        known = itertools.accumulate((len(task.images.classes) for task in stream), initial=0)
        shown = [n + run.benchmark.replay_per_class * classes for n, classes in zip(new, known, strict=False)]
    return [3 * run.create().cost * run.recipe.epochs * images + searched.images for images in shown]


def _timed(versions: Iterator[Version]) -> Iterator[tuple[Version, float]]:
    """Each version with the seconds that it took to come."""
    started = time.monotonic()
    for version in versions:
        yield version, time.monotonic() - started
        started = time.monotonic()


def _record(version: Version, stream: TaskStream, seconds: float) -> dict[str, Any]:
    task = stream[version.number - 1].images
    return {
        "name": version.name,
        "classes": len(task.classes),
        "images": len(task),
        "loss": version.log[-1].terms if version.log else {},
        "seconds": round(seconds, 2),
    }


def _features(version: Version, searched: Searched, path: Path, progress: bool) -> VersionFeatures:
    """Short forms of queries and gallery, made once: after a restart they are read back."""
    encoder = version.encoder
    if not path.exists():
        batch = min(1024, max(256, _PIXELS // math.prod(encoder.preprocessing.size)))
        sets = {"gallery": searched.gallery}
        if searched.queries is not searched.gallery:
            sets["queries"] = searched.queries
        arrays = {
            name: encoder.encode(images.images, batch_size=batch, form="short", progress=progress)
            for name, images in sets.items()
        }
        replace_file(path, lambda partial: _save(partial, arrays))
    with np.load(path, allow_pickle=False) as content:
        gallery = content["gallery"]
        queries = content.get("queries", gallery)
    adapt = None if encoder.adapter is None else encoder.adapter.adapt
    return VersionFeatures(version.name, queries, gallery, encoder.projection_matrix(), adapt)


def _save(path: Path, arrays: dict[str, Any]) -> None:
    with path.open("wb") as file:  # an open file: NumPy adds .npz to bare names
        np.savez(file, **arrays)


def _result(
    run: Run, stream: TaskStream, settings: Settings, state: Progress, protocols: dict[str, Any], measuring: float
) -> RunResult:
    training = sum(version["seconds"] for version in state.versions)
    evaluation = sum(version["seconds_embedding"] for version in state.versions) + measuring
    method = run.create()
    return RunResult(
        benchmark=run.benchmark.name,
        method=run.method,
        settings={"method": {"name": method.name, "options": dict(method.options)}, **settings.to_json()},
        tasks=[len(task.images.classes) for task in stream],
        class_order=run.class_order,
        seed=run.seed,
        epochs=settings.recipe.epochs,
        seconds=round(training + evaluation, 1),
        seconds_training=round(training, 1),
        seconds_evaluation=round(evaluation, 1),
        device=_device_name(settings.torch_device()),
        fixstar=__version__,
        torch=torch.__version__,
        restarts=state.restarts,
        versions=state.versions,
        protocols=protocols,
    )


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"
