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
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain
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


def missing_sources(folder: Path, number: int, part: tuple[int, int] = (0, 1)) -> list[int]:
    """Older versions without a translation to this one; of ``part`` (i, n) every n-th from the i-th on."""
    mine = range(1, number)[part[0] :: part[1]]
    return [k for k in mine if not translation_file(folder, k, number).exists()]


def fit_translations(
    version: Version,
    stream: TaskStream,
    settings: Settings,
    folder: Path,
    *,
    lifelong: bool,
    shared: bool,
    weight: float,
    sources: Sequence[int],
) -> None:
    """Fit the translations from some older versions to this one.

    With ``shared`` the versions have one space: then the newest version's queries are carried, not mapped back.
    """
    number = version.number
    directory = RunDirectory(folder / "run")
    images = images_at_hand(version, stream, settings, directory if lifelong else None)
    pixels = views_of(images, settings.augmentation, seed=number)
    labels = np.tile(images.labels, 1 + VIEWS)
    new = embedded(version.encoder, pixels)
    device = settings.torch_device()
    for k in sources:
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

    They end with the process that started them, even if that one is killed. If it fails, it waits for what they are
    fitting: nobody else may do the same, and a process that is ended can disturb others on its GPU.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None  # until there is something to fit
        self._tasks: dict[int, list[Future[float]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def begin(self, number: int, task: Callable[[tuple[int, int]], float]) -> None:
        """Start ``task`` for version ``number``, once for each process with its part (i, n); it returns its seconds."""
        if self._pool is None:
            started = multiprocessing.get_context("spawn")  # a GPU is lost to a forked process
            self._pool = ProcessPoolExecutor(
                self.count, mp_context=started, initializer=_end_with_parent
            )
        with _deaths_explained():
            self._tasks[number] = [
                self._pool.submit(task, (part, self.count)) for part in range(self.count)
            ]

    def seconds(self, wait: bool) -> dict[int, float]:
        """The seconds that each version took, of all its processes together; of finished ones only, or of all.

        Raises the error of a task that has failed.
        """
        with _deaths_explained():
            for task in chain.from_iterable(self._tasks.values()):
                if task.done():
                    task.result()
            return {
                number: sum(task.result() for task in tasks)
                for number, tasks in self._tasks.items()
                if wait or all(task.done() for task in tasks)
            }


@contextmanager
def _deaths_explained() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise CheckpointError(
            "a process that fitted translations died, perhaps out of memory. Finished translations are kept: run it "
            "again with fewer fitters"
        ) from error


def _end_with_parent() -> None:
    """End this process with the one that started it, and without a word when a user interrupts both."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(1))
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a started process has a parent"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
