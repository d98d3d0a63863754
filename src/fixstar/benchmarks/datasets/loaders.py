"""How the benchmarks' datasets are opened: the formats of ``fixstar.data``, and the papers' choice of classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fixstar.benchmarks.datasets.layout import Loader
from fixstar.data import ImageSet
from fixstar.data.formats import OMNIGLOT_PARTS, check_split, idx_images, image_folder, omniglot_folder
from fixstar.errors import DataError

__all__ = [
    "cub",
    "imagenet32",
    "imagenet_classes",
    "imagenet_list",
    "mnist",
    "omniglot",
    "split_folders",
    "train_folder",
]

_CUB = "CUB_200_2011"


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
        root = folder / _CUB
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
