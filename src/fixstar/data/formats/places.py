"""Where a dataset lies: the questions that every layout asks first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fixstar.errors import DataError, UnknownNameError

__all__ = ["check_split", "does_not_exist", "existing_folder", "shortened", "this_or_inside"]

_SHOWN = 10


def does_not_exist(path: Path, forms: str) -> str:
    """What is said of a path where nothing is; ``forms`` are what may be given instead."""
    return f"{path} does not exist; give {forms}"


def existing_folder(path: str | Path) -> Path:
    """The path, if there is a folder; otherwise an error that says what is there."""
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"{folder}: {'a file, not a folder' if folder.exists() else 'no such folder'}")
    return folder


def this_or_inside(path: str | Path, name: str, telling: Sequence[str]) -> Path | None:
    """The folder that holds a file with one of the ``telling`` names: ``path/name`` or ``path`` itself."""
    for folder in (Path(path) / name, Path(path)):
        if any((folder / file).is_file() for file in telling):
            return folder
    return None


def check_split(split: str) -> None:
    """Datasets that come with a training and a test part have no other."""
    if split not in ("train", "test"):
        raise UnknownNameError("split", split, ("train", "test"))


def shortened(lines: Sequence[str], indent: str = "\n  ") -> str:
    """The first ten lines and how many more there are: errors name examples, not everything."""
    more = [f"... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "".join(indent + line for line in [*lines[:_SHOWN], *more])
