"""The datasets of the papers: where to get them, the expected layout of the data folder, and what is missing there."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from fixstar.data import ImageSet
from fixstar.data.formats import (
    IMAGE_EXTENSIONS,
    OMNIGLOT_PARTS,
    check_split,
    cifar10,
    cifar100,
    class_folders,
    idx_images,
    image_folder,
    omniglot_folder,
)
from fixstar.errors import DataError, UnknownNameError

Loader = Callable[[Path, str], ImageSet]

_SHOWN = 5  # names that a message lists


@dataclass(frozen=True)
class Part:
    """A file or folder that must be there, relative to the data folder.

    ``size`` is a file's length in bytes. ``classes``: a folder of class folders, how many or which. ``images``: a
    folder with images somewhere inside. ``instead`` is a path that will also do.
    """

    path: str
    size: int | None = None
    classes: int | tuple[str, ...] | None = None
    images: bool = False
    instead: str = ""

    def missing(self, folder: Path) -> list[str]:
        """What is missing or wrong, in readable lines."""
        place = folder / self.path
        if self.instead and (folder / self.instead).exists():
            return []
        if self.classes is not None or self.images:
            return self._missing_images(place) if place.is_dir() else [f"{self.path}: no such folder"]
        if not place.is_file():
            return [f"{self.path}: no such file"]
        size = place.stat().st_size
        if self.size is not None and size != self.size:
            return [f"{self.path}: {size:,} bytes, expected {self.size:,}; copy the file again"]
        return []

    def _missing_images(self, place: Path) -> list[str]:
        if self.classes is None:
            return [] if _has_image(place) else [f"{self.path}: no images inside"]
        if isinstance(self.classes, int):
            found = sum(_has_image(child) for child in class_folders(place))
            wrong = found != self.classes
            return [f"{self.path}: {found:,} class folders with images, expected {self.classes:,}"] if wrong else []
        lacking = [name for name in self.classes if not _has_image(place / name)]
        more = ", ..." if len(lacking) > _SHOWN else ""
        shown = ", ".join(lacking[:_SHOWN]) + more
        return [f"{self.path}: {len(lacking)} of {len(self.classes)} classes missing: {shown}"] if lacking else []


@dataclass(frozen=True)
class Dataset:
    """A dataset that the user downloads. ``layout`` describes the data folder; ``load`` is None without a loader."""

    name: str
    title: str
    about: str
    page: str
    url: str
    licence: str
    layout: str
    parts: tuple[Part, ...]
    load: Loader | None = None

    def check(self, folder: str | Path) -> list[str]:
        """What is missing in the data folder."""
        return [line for part in self.parts for line in part.missing(Path(folder))]

    def instructions(self) -> str:
        """Where to get it, and its layout in the data folder."""
        return f"{self.title}: {self.page}, {self.url} ({self.licence}). Expected layout:\n  {self.layout}"

    def require(self, folder: str | Path) -> None:
        """Raise if something is missing in the data folder, and say where to get it."""
        if missing := self.check(folder):
            lines = "\n  ".join(missing)
            raise DataError(f"{folder}: {self.title} is not complete:\n  {lines}\n{self.instructions()}")

    def open(self, folder: str | Path, split: str) -> ImageSet:
        """The labelled images of a split, "train" or "test", after a check of the layout."""
        if self.load is None:
            raise DataError(
                f"fixstar has no loader for {self.title}; convert it to class folders or a CSV with the columns "
                "path,label and use fixstar.data.open_images"
            )
        self.require(folder)
        return self.load(Path(folder), split)


def _has_image(folder: Path) -> bool:
    """Whether there is an image anywhere in a folder."""
    return any(path.suffix.lower() in IMAGE_EXTENSIONS and not path.name.startswith(".") for path in folder.rglob("*"))


def split_folders(train: str, test: str) -> Loader:
    """A folder of class folders for each split."""

    def load(folder: Path, split: str) -> ImageSet:
        check_split(split)
        return image_folder(folder / (train if split == "train" else test))

    return load


def train_folder(path: str) -> Loader:
    """One folder of class folders, all for training."""

    def load(folder: Path, split: str) -> ImageSet:
        if split != "train":
            raise DataError(f"{folder / path}: no split {split!r}, all its images are for training")
        return image_folder(folder / path)

    return load


def divide_classes(images: ImageSet, count: int) -> tuple[ImageSet, ImageSet]:
    """The first ``count`` images of each class, and the others."""
    place = np.empty(len(images), np.int64)  # of each image in its class
    for label in range(len(images.classes)):
        rows = np.flatnonzero(images.labels == label)
        place[rows] = np.arange(len(rows))
    return images.take(place < count), images.take(place >= count)


def cifar100_rest(folder: Path, split: str) -> ImageSet:
    """The images of CIFAR-100 that CIFAR-100R leaves: those after the first 300 of each class."""
    return divide_classes(cifar100(folder, split), 300)[1]


_imagenet = split_folders("imagenet/train", "imagenet/val")


def imagenet_classes(names: Sequence[str]) -> Loader:
    """Some of ImageNet's classes."""
    return lambda folder, split: _imagenet(folder, split).of_classes(names)


def imagenet_list(listed: bool) -> Loader:
    """The classes that imagenet/imagenet100.txt lists, or all the others."""

    def load(folder: Path, split: str) -> ImageSet:
        images = _imagenet(folder, split)
        lines = (folder / "imagenet" / "imagenet100.txt").read_text(encoding="utf-8").split()
        return images.of_classes(lines if listed else [name for name in images.classes if name not in set(lines)])

    return load


def imagenet32(folder: Path, split: str) -> ImageSet:
    """ImageNet at 32x32 in its NumPy batches; classes are "1" to "1000", as its labels are."""
    check_split(split)
    place = folder / "imagenet32"
    files = [f"train_data_batch_{i}.npz" for i in range(1, 11)] if split == "train" else ["val_data.npz"]
    images, labels = [], []
    for name in files:
        with np.load(place / name, allow_pickle=False) as batch:
            planes, numbers = batch["data"], batch["labels"]
        if planes.dtype != np.uint8 or planes.shape[1:] != (3072,) or numbers.min() < 1 or numbers.max() > 1000:
            raise DataError(f"{place / name}: not ImageNet32: expected uint8 data [N, 3072] and labels 1 to 1000")
        images.append(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels.append(numbers.astype(np.int64) - 1)
    classes = tuple(str(i) for i in range(1, 1001))
    return ImageSet(np.concatenate(images), np.concatenate(labels), classes, f"imagenet32 {split}")


def cub(first: int, last: int) -> Loader:
    """CUB's classes ``first`` to ``last``, counted from 1, in its official split into train and test."""

    def load(folder: Path, split: str) -> ImageSet:
        check_split(split)
        root = folder / "CUB_200_2011"
        images = image_folder(root / "images")
        names = dict(line.split() for line in (root / "images.txt").read_text().splitlines())
        training = dict(line.split() for line in (root / "train_test_split.txt").read_text().splitlines())
        wanted = {root / "images" / name for i, name in names.items() if (training[i] == "1") == (split == "train")}
        assert isinstance(images.images, tuple), "image_folder names files"
        chosen = images.take(np.array([path in wanted for path in images.images]))
        return chosen.of_classes(images.classes[first - 1 : last])

    return load


def mnist(folder: Path, split: str) -> ImageSet:
    """MNIST's idx files."""
    return idx_images(folder / "mnist", split)


def omniglot(folder: Path, split: str) -> ImageSet:
    """Omniglot's background characters as "train", those of its evaluation set as "test"."""
    check_split(split)
    return omniglot_folder(folder / "omniglot" / OMNIGLOT_PARTS[split])


_CONTENT = tomllib.loads(files("fixstar.benchmarks").joinpath("datasets.toml").read_text(encoding="utf-8"))
_LISTS: dict[str, tuple[str, ...]] = {name: tuple(classes) for name, classes in _CONTENT.pop("class_lists").items()}
TINYIMAGENET20, IMAGENET20 = _LISTS["tinyimagenet20"], _LISTS["imagenet20"]

_LOADERS: dict[str, Loader] = {
    "cifar100": cifar100,
    "cifar100rest": cifar100_rest,
    "cifar10": cifar10,
    "imagenet32": imagenet32,
    "tinyimagenet200": train_folder("tiny-imagenet-200/train"),
    "tinyimagenet20": imagenet_classes(TINYIMAGENET20),
    "imagenet20": imagenet_classes(IMAGENET20),
    "imagenet100": imagenet_list(True),
    "imagenet900": imagenet_list(False),
    "cub180": cub(1, 180),
    "cub20": cub(181, 200),
    "casia-webface": train_folder("casia-webface"),
    "imdbface": train_folder("imdb-face"),
    "mnist": mnist,
    "omniglot": omniglot,
}


def _part(classes: int | str | None = None, **fields: Any) -> Part:
    return Part(**fields, classes=_LISTS[classes] if isinstance(classes, str) else classes)


DATASETS: dict[str, Dataset] = {
    name: Dataset(name, **{**entry, "parts": tuple(_part(**part) for part in entry["parts"])}, load=_LOADERS.get(name))
    for name, entry in _CONTENT.items()
}
"""The datasets of ``datasets.toml`` by name."""


def dataset(name: str) -> Dataset:
    """The dataset of that name.

    >>> dataset("cifar100").url
    'https://www.cs.toronto.edu/~kriz/cifar.html'
    """
    if name not in DATASETS:
        raise UnknownNameError("dataset", name, DATASETS)
    return DATASETS[name]
