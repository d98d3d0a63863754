"""Translations between the versions of a run, fitted on the images that were available when a version was trained.

Those images are the task's and the replay memory, or all images so far if versions are retrained: only images that
the version itself was trained on. Each is used unchanged and in a few crops. Every older model embeds them again, so
a translated run keeps all older models.

translations/v3/v1.npz      how queries of v3 search what v1 stored; a finished one is never fitted again

They are fitted before the next version is trained, or beside it by processes of their own (``Fitters``): what is fitted
is the same.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fixstar.data import (
    Augmentation,
    ImageSet,
    ReplayMemory,
    TaskStream,
    augmented_views,
    concatenate,
)
from fixstar.errors import CheckpointError
from fixstar.models import Encoder, FrozenEncoder
from fixstar.training import Settings, Version
from fixstar.training.run_directory import RunDirectory
from fixstar.translation import Pairs, Translation, fit_map, load_translation, save_translation
from fixstar.versions import version_name

VIEWS = 3  # crops of each image, beside the image itself
MOST = 50_000  # images; a larger set is sampled
_PIXELS = (
    1 << 20
)  # embedded at a time, in 256 to 1024 images: a GPU waits for the host after each batch

Vectors = NDArray[np.float32]


def embedded(encoder: Encoder, images: Any, progress: bool = False) -> Vectors:
    """Short forms of images; arrays of another size than the model's are resized."""
    size = encoder.preprocessing.size
    if isinstance(images, np.ndarray) and images.shape[1:3] != size:
        return FrozenEncoder(encoder).encode(images, form="short")
    batch = min(1024, max(256, _PIXELS // math.prod(size)))
    return encoder.encode(images, batch_size=batch, form="short", progress=progress)


def translation_file(folder: Path, source: int, target: int) -> Path:
    """Where the run in ``folder`` keeps the translation from one version to another."""
    return folder / "translations" / version_name(target) / f"{version_name(source)}.npz"


def read_translation(folder: Path, source: int, target: int) -> Translation:
    """The translation of a run in ``folder`` from one version to another."""
    return load_translation(translation_file(folder, source, target))


def fit_translations(
    version: Version,
    stream: TaskStream,
    settings: Settings,
    folder: Path,
    *,
    lifelong: bool,
    shared: bool,
    weight: float,
    part: tuple[int, int] = (0, 1),
) -> None:
    """Fit the translations from all older versions to this one, except existing ones.

    With ``shared`` the versions have one space: then the newest version's queries are carried, not mapped back. Of
    ``part`` (i, n) every n-th older version from the i-th on is fitted.
    """
    number = version.number
    mine = range(1, number)[part[0] :: part[1]]
    missing = [k for k in mine if not translation_file(folder, k, number).exists()]
    if not missing:
        return
    directory = RunDirectory(folder / "run")
    images = images_at_hand(version, stream, settings, directory if lifelong else None)
    pixels = views_of(images, settings.augmentation, seed=number)
    labels = np.tile(images.labels, 1 + VIEWS)
    new = embedded(version.encoder, pixels)
    device = settings.torch_device()
    for k in missing:
        older = Encoder.load(directory.version(k), device)
        pairs = Pairs.checked(embedded(older, pixels), new, groups=labels, seed=settings.seed)
        way = fitted(
            source=version_name(k),
            target=version.name,
            pairs=pairs,
            weight=weight,
            shared=shared,
            device=str(device),
        )
        save_translation(way, translation_file(folder, k, number), onnx=False)


def images_at_hand(
    version: Version, stream: TaskStream, settings: Settings, memories: RunDirectory | None
) -> ImageSet:
    """What a version was trained on, at its size: with the run's ``memories`` its task and the memory before it.

    Without them it is all images so far.
    """
    number = version.number
    inputs = version.encoder.preprocessing
    images = stream.seen(number)
    if memories is not None:
        images = stream[number - 1].images
    parts = []
    if len(images):
        parts.append(images)
    if memories is not None and number > 1:
        remembered = ReplayMemory.load(memories.memory(number - 1)).images
        if remembered is not None:
            parts.append(remembered)
    loaded = [drawn(part, MOST, number).load(inputs, settings.bad_images).images for part in parts]
    return concatenate(loaded)


def drawn(images: ImageSet, most: int, seed: int) -> ImageSet:
    """A random sample of at most this many images, in their order; the seed decides which."""
    if len(images) <= most:
        return images
    rows = np.random.default_rng(seed).permutation(len(images))[:most]
    return images.take(np.sort(rows))


def views_of(images: ImageSet, augmentation: Augmentation, seed: int) -> NDArray[np.uint8]:
    """The images, and then ``VIEWS`` crops of each: uint8 [(1 + VIEWS) * N, H, W, C]."""
    pixels = np.asarray(images.images)
    return np.concatenate([pixels, augmented_views(pixels, augmentation, VIEWS, seed)])


def fitted(
    source: str, target: str, pairs: Pairs, weight: float, shared: bool, device: str
) -> Translation:
    """A translation of fixed weight, with one model per query or with two."""
    forward = fit_map("residual", pairs, device=device)
    backward = None
    if not shared:
        backward = fit_map("contrast", pairs.reversed, device=device).map
    return Translation(
        source,
        target,
        forward=forward.map,
        backward=backward,
        one=weight,
        two=weight,
        shared=shared,
        about={"pairs": len(pairs), "forward": "residual", **forward.chosen},
    )


class Fitters:
    """Processes that fit translations while a run trains on; each has its own copy of what it works with.

    They end with the process that started them, even if that one is killed.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ProcessPoolExecutor(
            max(1, count),
            mp_context=multiprocessing.get_context("spawn"),  # a GPU is lost to a forked process
            initializer=_end_with_parent,
        )
        self._tasks: dict[int, list[Future[float]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def begin(self, number: int, task: Callable[[tuple[int, int]], float]) -> None:
        """Start ``task`` for version ``number``, once for each process with its part (i, n); it returns its seconds."""
        self._tasks[number] = [
            self._pool.submit(task, (part, self.count)) for part in range(self.count)
        ]
        self.raise_failures()

    def raise_failures(self) -> None:
        """Raise the error of a task that has failed, if one has."""
        for tasks in self._tasks.values():
            for task in tasks:
                if task.done():
                    _result(task)

    def seconds(self) -> dict[int, float]:
        """Wait for all tasks; the seconds that each version took, of all processes together."""
        return {
            number: sum(_result(task) for task in tasks) for number, tasks in self._tasks.items()
        }


def _result(task: Future[float]) -> float:
    try:
        return task.result()
    except BrokenProcessPool:
        raise CheckpointError(
            "a process that fitted translations was ended, perhaps for want of memory. What is done is kept: give "
            "the same command again, with fewer --fitters"
        ) from None


def _end_with_parent() -> None:
    """End this process when the one that started it has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a started process has a parent"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
