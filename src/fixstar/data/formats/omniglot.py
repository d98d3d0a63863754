"""Omniglot's folders: alphabet/character/drawing.png. Its classes are characters, named "alphabet/character"."""

from __future__ import annotations

import re
from pathlib import Path

from fixstar.data.formats.folder import class_folders, find_images, labelled_files
from fixstar.data.formats.places import existing_folder
from fixstar.data.image_set import ImageSet
from fixstar.errors import DataError

__all__ = ["PARTS", "is_omniglot", "omniglot_folder"]

PARTS = {"train": "images_background", "test": "images_evaluation"}
_CHARACTER = re.compile(r"character\d+")


def is_omniglot(path: str | Path) -> bool:
    """Whether a folder has Omniglot's two parts or, inside its alphabets, folders like character01."""
    root = Path(path)
    if any((root / part).is_dir() for part in PARTS.values()):
        return True
    return any(
        _CHARACTER.fullmatch(inner.name) for folder in class_folders(root)[:1] for inner in class_folders(folder)
    )


def omniglot_folder(path: str | Path) -> ImageSet:
    """All drawings below a folder of alphabets, or below one that holds images_background and images_evaluation."""
    root = existing_folder(path)
    parts = [root / part for part in PARTS.values() if (root / part).is_dir()] or [root]
    files: dict[str, list[Path]] = {}
    for alphabet in (alphabet for part in parts for alphabet in class_folders(part)):
        for character in class_folders(alphabet):
            if drawings := find_images(character):
                files.setdefault(f"{alphabet.name}/{character.name}", []).extend(drawings)
    if not files:
        raise DataError(
            f"{root}: no drawings; expected alphabet/character/*.png, such as {root}/Greek/character01/a.png"
        )
    return labelled_files(dict(sorted(files.items())), root.name)
