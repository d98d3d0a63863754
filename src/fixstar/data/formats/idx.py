"""MNIST and its relatives (Fashion-MNIST, KMNIST, EMNIST) as idx files, compressed or not."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fixstar.data.formats.places import check_split, existing_folder
from fixstar.data.image_set import ImageSet
from fixstar.errors import DataError

__all__ = ["find_idx", "idx_images"]

_IMAGES = re.compile(r"(?P<prefix>.*?)(?P<split>train|t10k|test)-images[-.]idx3-ubyte(\.gz)?")
_CHUNK = 1 << 24


def find_idx(folder: str | Path) -> list[str]:
    """The names of all idx image files in a folder."""
    return sorted(entry.name for entry in Path(folder).iterdir() if _IMAGES.fullmatch(entry.name))


def idx_images(folder: str | Path, split: str) -> ImageSet:
    """The "train" or "test" images [N, H, W, 1] of a folder with idx files. Classes are "0", "1", ... to at least "9".

    EMNIST stores its images transposed; files with its prefix are turned upright.
    """
    check_split(split)
    root = existing_folder(folder)
    prefix, stem = _stem(root, split)
    images = _read(_spelled(root, stem, "images", 3), 3)
    labels = _read(_spelled(root, stem, "labels", 1), 1).astype(np.int64)
    if len(images) != len(labels):
        raise DataError(
            f"{root / stem}: {len(images)} images but {len(labels)} labels; the files do not belong together"
        )
    if prefix.startswith("emnist"):
        images = np.ascontiguousarray(images.transpose(0, 2, 1))
    classes = tuple(str(i) for i in range(max(10, int(labels.max()) + 1)))
    return ImageSet(images[..., None], labels, classes, f"{prefix.strip('-') or root.name} {split}")


def _stem(root: Path, split: str) -> tuple[str, str]:
    """The prefix ("emnist-letters-" or nothing) and what the image and label files of a split begin with."""
    wanted = ("train",) if split == "train" else ("t10k", "test")
    matches = [match for match in map(_IMAGES.fullmatch, find_idx(root)) if match]
    stems = sorted(
        {(match["prefix"], match["prefix"] + match["split"]) for match in matches if match["split"] in wanted}
    )
    if not stems:
        seen = ", ".join(match.string for match in matches) or "none at all"
        raise DataError(
            f"{root}: no {split} images such as {wanted[0]}-images-idx3-ubyte(.gz); idx images here: {seen}"
        )
    if len(stems) > 1:
        raise DataError(
            f"{root}: more than one dataset ({', '.join(stem for _, stem in stems)}); give each its own folder"
        )
    return stems[0]


def _spelled(root: Path, stem: str, kind: str, dimensions: int) -> Path:
    names = [f"{stem}-{kind}{dot}idx{dimensions}-ubyte{gz}" for gz in ("", ".gz") for dot in "-."]
    found = next((root / name for name in names if (root / name).is_file()), None)
    if found is None:
        raise DataError(f"{root}: {kind} missing, none of {', '.join(names)}")
    return found


def _read(file: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array in an idx file: 0, 0, 8 (unsigned bytes), the number of dimensions, each as 4 bytes, then the data."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            header = stream.read(4 + 4 * dimensions)
            shape = _shape(file, header, dimensions)
            expected = int(np.prod(shape, dtype=object))
            data = bytearray()
            while len(data) <= expected and (
                chunk := stream.read(_CHUNK)
            ):  # whatever the header claims, read what is there
                data += chunk
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{file}: damaged or cut short ({error})") from error
    if len(data) != expected:
        seen = f"only {len(data)}" if len(data) < expected else "more"
        raise DataError(f"{file}: the header promises {expected} bytes for {list(shape)}, but there are {seen}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _shape(file: Path, header: bytes, dimensions: int) -> tuple[int, ...]:
    if header[:4] != bytes([0, 0, 8, dimensions]) or len(header) != 4 + 4 * dimensions:
        expected = bytes([0, 0, 8, dimensions]).hex(" ")
        raise DataError(
            f"{file}: not an idx file of bytes in {dimensions} dimensions; it begins with "
            f"{header[:4].hex(' ') or 'nothing'} instead of {expected}"
        )
    shape = tuple(int(side) for side in np.frombuffer(header[4:], ">u4"))
    if 0 in shape:
        raise DataError(f"{file}: empty, its header says {list(shape)}")
    return shape
