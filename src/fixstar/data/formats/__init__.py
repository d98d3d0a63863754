"""The layouts in which labelled images lie on disk, one small file each, and ``open_images``, which recognises them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fixstar.data.formats.cifar import cifar10, cifar100, find_cifar10, find_cifar100
from fixstar.data.formats.folder import IMAGE_EXTENSIONS, class_folders, find_images, has_images, image_folder
from fixstar.data.formats.idx import find_idx, idx_images
from fixstar.data.formats.listing import image_list
from fixstar.data.formats.omniglot import PARTS, is_omniglot, omniglot_folder
from fixstar.data.formats.places import check_split, does_not_exist, shortened
from fixstar.data.image_set import ImageSet
from fixstar.errors import DataError

__all__ = [
    "IMAGE_EXTENSIONS",
    "cifar10",
    "cifar100",
    "find_images",
    "idx_images",
    "image_folder",
    "image_list",
    "omniglot_folder",
    "open_images",
]

_FORMS = (
    "labelled images: a folder with one folder a class, a list (.csv with the columns path and label), or the folder "
    "of CIFAR, idx or Omniglot files"
)
_SPLITS = ("test", "train", "val", "valid", "validation")


class _Layout(NamedTuple):
    description: str
    recognise: Callable[[Path], object]
    open: Callable[[Path, str], ImageSet]


def open_images(path: str | Path, split: str = "train") -> ImageSet:
    """The labelled images at ``path``, in whatever known layout they lie there.

    Data without parts of its own has only the split "train": the same images must not pass for a test set.
    """
    root = Path(path)
    if root.is_file() and root.suffix.lower() == ".csv":
        return _open_list(root, split)
    if not root.is_dir():
        raise DataError(
            f"{root} is a file, and no list; give {_FORMS}" if root.exists() else does_not_exist(root, _FORMS)
        )
    datasets = [name for name, layout in _DATASETS.items() if layout.recognise(root)]
    if len(datasets) > 1:
        raise DataError(f"{root}: more than one dataset ({', '.join(datasets)}); give the folder of the one you mean")
    found = datasets or [name for name, layout in _GENERAL.items() if layout.recognise(root)]
    if not found:
        raise DataError(_nothing_known(root))
    return (_DATASETS | _GENERAL)[found[0]].open(root, split)


def _open_omniglot(root: Path, split: str) -> ImageSet:
    if not any((root / part).is_dir() for part in PARTS.values()):
        _check_unsplit(root, split)
        return omniglot_folder(root)
    check_split(split)
    return omniglot_folder(root / PARTS[split])


def _split_folders(root: Path) -> list[str]:
    """The parts of a dataset such as train/shoes/1.jpg, test/shoes/2.jpg; a class may be called "train", too."""
    folders = class_folders(root)
    parts = [folder.name for folder in folders if folder.name in _SPLITS and class_folders(folder)]
    return parts if len(parts) > 1 or len(parts) == len(folders) else []


def _open_split_folder(root: Path, split: str) -> ImageSet:
    _check_part(root, split, _split_folders(root))
    return image_folder(root / split)


def _split_lists(root: Path) -> list[str]:
    return [split for split in _SPLITS if (root / f"{split}.csv").is_file()]


def _open_split_list(root: Path, split: str) -> ImageSet:
    _check_part(root, split, _split_lists(root))
    return image_list(root / f"{split}.csv")


def _open_list(file: Path, split: str) -> ImageSet:
    _check_unsplit(file, split)
    return image_list(file)


def _open_folder(root: Path, split: str) -> ImageSet:
    _check_unsplit(root, split)
    return image_folder(root)


def _check_part(root: Path, split: str, parts: list[str]) -> None:
    if split not in parts:
        raise DataError(f"{root}: no split {split!r}; it has {', '.join(parts)}")


def _check_unsplit(path: Path, split: str) -> None:
    if split != "train":
        raise DataError(f"{path}: no split {split!r}, the images are not divided; give another path, or split='train'")


def _nothing_known(root: Path) -> str:
    known = [layout.description for layout in (_DATASETS | _GENERAL).values()]
    seen = sorted(entry.name + "/" * entry.is_dir() for entry in root.iterdir()) or ["nothing, it is empty"]
    return f"{root}: no known layout of labelled images. Known:{shortened(known)}\nSeen:{shortened(seen)}"


_DATASETS = {
    "cifar10": _Layout("CIFAR-10: cifar-10-batches-bin/data_batch_1.bin, ...", find_cifar10, cifar10),
    "cifar100": _Layout("CIFAR-100: cifar-100-binary/train.bin, ...", find_cifar100, cifar100),
    "idx": _Layout("MNIST and relatives: train-images-idx3-ubyte(.gz), ...", find_idx, idx_images),
    "omniglot": _Layout("Omniglot: images_background/alphabet/character01/*.png", is_omniglot, _open_omniglot),
}
_GENERAL = {  # the first that fits
    "split lists": _Layout("a CSV a split, columns path,label: train.csv", _split_lists, _open_split_list),
    "split folders": _Layout("a folder a split: train/shoes/0001.jpg", _split_folders, _open_split_folder),
    "folder": _Layout("a folder a class: shoes/0001.jpg", has_images, _open_folder),
}
