"""One folder a class, images inside: how people keep labelled photos."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from fixstar.data.formats.places import existing_folder, shortened
from fixstar.data.image_set import ImageSet
from fixstar.errors import DataError

__all__ = ["IMAGE_EXTENSIONS", "class_folders", "find_images", "has_images", "image_folder", "labelled_files"]

IMAGE_EXTENSIONS = frozenset(
    {
        *(".avif", ".bmp", ".gif", ".png", ".tif", ".tiff", ".webp"),
        *(".jfif", ".jpe", ".jpeg", ".jpg", ".mpo"),
        *(".pbm", ".pgm", ".pnm", ".ppm"),
    }
)

_LAYOUT = "expected one folder a class with its images inside, such as {root}/shoes/0001.jpg"


def image_folder(path: str | Path) -> ImageSet:
    """The images below ``path``, labelled by the folder of ``path`` in which they lie, however deep.

    Hidden entries and files that are not images by their extension are passed over. Order and labels are sorted by
    name, so they are the same on every machine.
    """
    root = existing_folder(path)
    if loose := [entry.name for entry in _visible(root) if _is_image(entry)]:
        raise DataError(f"{root}: images without a class folder:{shortened(loose)}\n{_LAYOUT.format(root=root)}")
    found = {folder.name: find_images(folder) for folder in class_folders(root)}
    empty = [name for name, files in found.items() if not files]
    if len(empty) == len(found):
        raise DataError(f"{root}: no images{_about_empty(empty)}; {_LAYOUT.format(root=root)}")
    if empty:
        warnings.warn(f"{root}: classes left out because they have no image:{shortened(empty)}", stacklevel=2)
    return labelled_files({name: files for name, files in found.items() if files}, root.name)


def labelled_files(files: dict[str, list[Path]], name: str) -> ImageSet:
    """An image set from the files of each class."""
    labels = np.repeat(np.arange(len(files)), [len(of_class) for of_class in files.values()])
    paths = tuple(path for of_class in files.values() for path in of_class)
    return ImageSet(paths, labels.astype(np.int64), tuple(files), name)


def class_folders(root: Path) -> list[Path]:
    """The visible folders directly in ``root``, sorted by name."""
    return [entry for entry in _visible(root) if entry.is_dir()]


def find_images(folder: str | Path) -> list[Path]:
    """Every visible file below ``folder`` with an image's extension, sorted by its path."""
    root = existing_folder(folder)
    return sorted(_walk(root), key=lambda path: path.relative_to(root).parts)


def has_images(folder: str | Path) -> bool:
    """Whether there is any image below a folder or a folder that it links to; stops at the first."""
    root = existing_folder(folder)
    return any(True for place in (root, *class_folders(root)) for _ in _walk(place))


def _walk(root: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(root, onerror=_cannot_look):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in files if not name.startswith(".") and _has_image_extension(name))


def _visible(root: Path) -> list[Path]:
    try:
        entries = list(root.iterdir())
    except OSError as error:
        _cannot_look(error)
    return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _has_image_extension(name: str) -> bool:
    return Path(name).suffix.lower() in IMAGE_EXTENSIONS


def _is_image(path: Path) -> bool:
    return _has_image_extension(path.name) and path.is_file()


def _cannot_look(error: OSError) -> NoReturn:
    raise DataError(f"{error.filename}: cannot be looked into ({error.strerror})") from error


def _about_empty(empty: list[str]) -> str:
    return f" in any of its {len(empty)} class folders ({', '.join(empty[:10])})" if empty else " and no class folders"
