"""Task streams: the order in which classes and samples become known. A task holds what is new."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fixstar.data.image_set import ImageSet, concatenate
from fixstar.errors import InputError, plural


@dataclass(frozen=True)
class Task:
    """One step of a stream: its number, from 1, and its new images."""

    number: int
    images: ImageSet


@dataclass(frozen=True)
class TaskStream:
    """Tasks in order, and the class order that made them."""

    tasks: tuple[Task, ...]
    class_order: tuple[str, ...]

    @classmethod
    def of(cls, sets: Iterable[ImageSet], order: Iterable[str]) -> TaskStream:
        """One task per set of new images."""
        return cls(
            tuple(Task(number, images) for number, images in enumerate(sets, start=1)), tuple(order)
        )

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __getitem__(self, index: int) -> Task:
        return self.tasks[index]

    def seen(self, number: int) -> ImageSet:
        """All images of tasks 1 to ``number``."""
        return concatenate([task.images for task in self.tasks[:number]])


def class_order(classes: Sequence[str], seed: int | None) -> tuple[str, ...]:
    """The classes in their order (``None``), or shuffled by ``torch.randperm`` with a CPU generator of that seed."""
    if seed is None:
        return tuple(classes)
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    return tuple(classes[i] for i in order.tolist())


def class_stream(
    images: ImageSet, initial: int, increment: int = 0, order_seed: int | None = None
) -> TaskStream:
    """New classes in every task: ``initial`` first, then ``increment``; CIFAR-100 in 7 tasks is (images, 10, 15)."""
    order = class_order(images.classes, order_seed)
    rest = len(order) - initial
    if not 1 <= initial <= len(order) or (rest and (increment < 1 or rest % increment)):
        raise InputError(
            f"{plural(len(order), 'class')} cannot be split into {initial} at first and then {increment} at a time; "
            "initial + a multiple of increment must be the number of classes"
        )
    if rest:
        cuts = [0, initial, *range(initial + increment, len(order) + 1, increment)]
    else:
        cuts = [0, initial]
    groups = [order[a:b] for a, b in itertools.pairwise(cuts)]
    return TaskStream.of([images.of_classes(group) for group in groups], order)


def sample_stream(images: ImageSet, fractions: Sequence[float], seed: int = 0) -> TaskStream:
    """All classes from the first task; each task adds a fraction of every class's images (CoReS 6.8, old classes)."""
    if not fractions or min(fractions) <= 0 or sum(fractions) > 1 + 1e-9:
        raise InputError(
            f"fractions must be positive and add up to at most 1, got {list(fractions)}"
        )
    parts = _split_samples(images, fractions, seed)
    return TaskStream.of([images.take(part) for part in parts], images.classes)


def class_and_sample_stream(
    images: ImageSet,
    initial: int,
    fraction: float = 0.5,
    order_seed: int | None = None,
    seed: int = 0,
) -> TaskStream:
    """Two tasks: ``fraction`` of the samples of the first ``initial`` classes, then everything else (CoReS 6.8,
    old and new classes).
    """
    order = class_order(images.classes, order_seed)
    if not 1 <= initial < len(order) or not 0 < fraction < 1:
        raise InputError(
            f"need 1 <= initial < {len(order)} and 0 < fraction < 1, got {initial} and {fraction}"
        )
    old = images.of_classes(order[:initial])
    new = images.of_classes(order[initial:])
    first, rest = _split_samples(old, [fraction, 1 - fraction], seed)
    return TaskStream.of([old.take(first), concatenate([old.take(rest), new])], order)


def _split_samples(
    images: ImageSet, fractions: Sequence[float], seed: int
) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Row numbers of each part; every class is split at random in these proportions."""
    if seed < 0:
        raise InputError(f"seed must be at least 0, got {seed}")
    rng = np.random.default_rng(seed)
    bounds = np.cumsum([0.0, *fractions])
    parts: list[list[int]] = [[] for _ in fractions]
    for label in range(len(images.classes)):
        rows = rng.permutation(np.flatnonzero(images.labels == label))
        cuts = np.round(bounds * len(rows)).astype(int)
        for part, a, b in zip(parts, cuts, cuts[1:], strict=False):
            part.extend(rows[a:b].tolist())
    if empty := [i + 1 for i, part in enumerate(parts) if not part]:
        raise InputError(
            f"task {empty[0]} would have no image: too few images per class for {list(fractions)}"
        )
    return [np.sort(np.array(part, np.int64)) for part in parts]
