"""The replay memory: a few images per class seen so far, kept as pixels so that the originals may be deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fixstar.data.image_set import ImageSet, concatenate
from fixstar.durable import read_arrays, write_arrays
from fixstar.errors import CheckpointError, InputError, ModelError
from fixstar.images import Preprocessing

Selection = Literal["random", "herding"]
Features = np.ndarray[Any, Any]


def herding(features: Features, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows of [N, d] whose running mean stays closest to the mean of all, best first (iCaRL, algorithm 4)."""
    mean = features.mean(axis=0)
    total = np.zeros(features.shape[1])
    left = np.ones(len(features), bool)
    chosen: list[int] = []
    for k in range(1, min(count, len(features)) + 1):
        distance = np.linalg.norm(mean - (total + features) / k, axis=1)
        best = int(np.where(left, distance, np.inf).argmin())
        chosen.append(best)
        left[best] = False
        total += features[best]
    return np.array(chosen, np.int64)


class HeldOut(NamedTuple):
    """New images and memory without held-out images, and the held-out images: equally many per class."""

    images: ImageSet
    memory: ImageSet | None
    held_out: ImageSet | None


def hold_out(
    images: ImageSet,
    memory: ImageSet | None,
    share: float,
    seed: int,
    load: Callable[[ImageSet], ImageSet],
) -> HeldOut:
    """Hold out ``share`` of each remembered class, and as many images of each new class; never the last of a class."""
    if not share or memory is None or not len(memory):
        return HeldOut(images, memory, None)
    remembered = {name: count for name, count in memory.counts().items() if count}
    new = {
        name: count for name, count in images.counts().items() if count and name not in remembered
    }
    scarcest = min([*remembered.values(), *new.values()])
    count = min(max(1, round(share * max(remembered.values()))), scarcest - 1)
    if count < 1:
        return HeldOut(images, memory, None)
    rng = np.random.default_rng(seed)
    kept_images, held_images = _divided(images, new, count, rng)
    kept_memory, held_memory = _divided(memory, remembered, count, rng)
    held = [load(part) for part in (held_images, held_memory) if len(part)]
    return HeldOut(kept_images, kept_memory, concatenate(held))


def _divided(
    images: ImageSet, names: Iterable[str], count: int, rng: np.random.Generator
) -> tuple[ImageSet, ImageSet]:
    """Split off ``count`` images of each class in ``names``: the rest, and the images split off."""
    order = rng.permutation(len(images))
    held = np.zeros(len(images), bool)
    for name in names:
        held[order[images.labels[order] == images.classes.index(name)][:count]] = True
    return images.take(~held), images.take(held)


@dataclass(frozen=True)
class ReplayMemory:
    """At most ``per_class`` images of each class. ``images`` is ``None`` while nothing is remembered."""

    per_class: int
    images: ImageSet | None = None

    def __post_init__(self) -> None:
        if self.per_class < 0:  # used as the end of a slice: a negative value would keep nearly all
            raise InputError(f"per_class={self.per_class} must be at least 0 (0: no memory)")

    def __len__(self) -> int:
        if self.images is None:
            return 0
        return len(self.images)

    def extended(
        self,
        images: ImageSet,
        preprocessing: Preprocessing,
        selection: Selection = "random",
        seed: int = 0,
        features: Callable[[ImageSet], Features] | None = None,
    ) -> ReplayMemory:
        """The memory with images of missing classes added; ``herding`` needs ``features`` -> [N, d]."""
        if selection not in ("random", "herding") or (selection == "herding" and features is None):
            raise InputError(
                f"selection={selection!r} must be random, or herding with a features function"
            )
        held = self.images.counts() if self.images is not None else {}
        shown = images.counts()
        new = [name for name in images.classes if shown[name] and not held.get(name)]
        if not new or self.per_class == 0:
            return self
        rng = np.random.default_rng(seed)
        rows: list[np.ndarray[Any, Any]] = []
        for name in new:
            mine = np.flatnonzero(images.labels == images.classes.index(name))
            if selection == "herding" and features is not None:
                rows.append(mine[herding(features(images.take(mine)), self.per_class)])
            else:
                rows.append(rng.permutation(mine)[: self.per_class])
        chosen = images.take(np.concatenate(rows)).of_classes(new).load(preprocessing).images
        if self.images is not None:  # a replacement model may have another input size
            chosen = concatenate([self.images.load(preprocessing).images, chosen])
        return ReplayMemory(self.per_class, chosen)

    def save(self, path: Path) -> None:
        """Write the memory to one file, atomically."""
        classes: tuple[str, ...] = ()
        arrays: dict[str, np.ndarray[Any, Any]] = {"labels": np.zeros(0, np.int64)}
        if self.images is not None:
            classes = tuple(self.images.classes)
            pixels = np.ascontiguousarray(self.images.images)  # safetensors needs contiguous memory
            arrays = {"pixels": pixels, "labels": np.ascontiguousarray(self.images.labels)}
        write_arrays(path, "replay", {"per_class": self.per_class, "classes": classes}, arrays)

    @classmethod
    def load(cls, path: Path) -> ReplayMemory:
        """Restore a saved memory."""
        try:
            about, arrays = read_arrays(path, "replay")
            if not (classes := tuple(about["classes"])):
                return cls(about["per_class"])
            return cls(about["per_class"], ImageSet(arrays["pixels"], arrays["labels"], classes))
        except (ModelError, OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"the replay memory {path} cannot be read: {error}") from error
