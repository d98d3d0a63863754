"""CIFAR-10 and CIFAR-100 in their official binary layout: label bytes, then 1024 red, 1024 green, 1024 blue."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from fixstar.data.formats.places import check_split, existing_folder, this_or_inside
from fixstar.data.image_set import ImageSet
from fixstar.errors import DataError, UnknownNameError

__all__ = ["cifar10", "cifar100", "find_cifar10", "find_cifar100"]

_PIXELS = 3 * 32 * 32
_BATCHES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))


def find_cifar10(path: str | Path) -> Path | None:
    """The folder with CIFAR-10's batches: ``path`` or the one inside it that has the official name."""
    return this_or_inside(path, "cifar-10-batches-bin", (*_BATCHES, "data_batch.bin", "test_batch.bin"))


def find_cifar100(path: str | Path) -> Path | None:
    """The folder with CIFAR-100's two files: ``path`` or the one inside it that has the official name."""
    folder = this_or_inside(path, "cifar-100-binary", ("train.bin", "test.bin"))
    sure = folder and (folder.name == "cifar-100-binary" or any(folder.glob("*_label_names.txt")))
    return folder if sure else None


def cifar10(path: str | Path, split: str) -> ImageSet:
    """CIFAR-10, "train" or "test"; the training images lie in the five official batches or in one data_batch.bin."""
    check_split(split)
    folder = find_cifar10(existing_folder(path)) or _not_here(path, "CIFAR-10", "cifar-10-batches-bin")
    classes = _names(folder / "batches.meta.txt", 10)
    whole = (folder / "data_batch.bin").is_file()
    files = ["test_batch.bin"] if split == "test" else ["data_batch.bin"] if whole else list(_BATCHES)
    images, labels = _read([folder / file for file in files], 1, 0, classes)
    return ImageSet(images, labels, classes, f"cifar10 {split}")


def cifar100(path: str | Path, split: str, labels: Literal["fine", "coarse"] = "fine") -> ImageSet:
    """CIFAR-100, "train" or "test", with its 100 fine or 20 coarse labels."""
    check_split(split)
    if labels not in ("fine", "coarse"):
        raise UnknownNameError("CIFAR-100 labels", labels, ("coarse", "fine"))
    folder = find_cifar100(existing_folder(path)) or _not_here(path, "CIFAR-100", "cifar-100-binary")
    classes = _names(folder / f"{labels}_label_names.txt", 100 if labels == "fine" else 20)
    images, numbers = _read([folder / f"{split}.bin"], 2, 1 if labels == "fine" else 0, classes)
    return ImageSet(images, numbers, classes, f"cifar100 {split}")


def _read(
    files: list[Path], label_bytes: int, which: int, classes: tuple[str, ...]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images [N, 32, 32, 3] and labels [N] of all files; ``which`` of the leading bytes is the label."""
    if missing := [file.name for file in files if not file.is_file()]:
        raise DataError(f"{files[0].parent}: {', '.join(missing)} missing")
    records = [_records(file, label_bytes, which, len(classes)) for file in files]
    labels = np.concatenate([of_file[:, which] for of_file in records]).astype(np.int64)
    images = np.empty((len(labels), 32, 32, 3), np.uint8)
    start = 0
    for of_file in records:
        planes = of_file[:, label_bytes:].reshape(-1, 3, 32, 32)
        for channel in range(3):  # five times as fast as one transposed copy
            images[start : start + len(of_file), ..., channel] = planes[:, channel]
        start += len(of_file)
    return images, labels


def _records(file: Path, label_bytes: int, which: int, classes: int) -> npt.NDArray[np.uint8]:
    length = label_bytes + _PIXELS
    size = file.stat().st_size
    if size == 0 or size % length:
        raise DataError(f"{file}: {size} bytes are not a whole number of images of {length} bytes; copy the file again")
    records = np.fromfile(file, np.uint8).reshape(-1, length)
    wrong = np.flatnonzero(records[:, which] >= classes)
    if len(wrong):
        label = records[wrong[0], which]
        raise DataError(f"{file}: image {wrong[0]} has label {label}, allowed are 0 to {classes - 1}; is it CIFAR?")
    return records


def _names(file: Path, count: int) -> tuple[str, ...]:
    try:
        names = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: the class names cannot be read ({_why(error)})") from error
    if len(names) != count or len(set(names)) != count:
        raise DataError(f"{file}: expected {count} different class names, one a line, got {len(names)}")
    return names


def _why(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _not_here(path: str | Path, name: str, folder: str) -> Path:
    pickled = ("data_batch_1", "meta", "cifar-10-batches-py", "cifar-100-python")
    hint = "; the Python version that lies here is never unpickled, download the binary version"
    found = any((Path(path) / file).exists() for file in pickled)
    raise DataError(f"{path}: no {name} in its binary layout, neither here nor in {folder}/{hint * found}")
