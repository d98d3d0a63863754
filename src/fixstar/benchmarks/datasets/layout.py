"""What a dataset is to a benchmark: parts that must lie in the data folder, and a way to open them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fixstar.data import ImageSet
from fixstar.data.formats import IMAGE_EXTENSIONS, class_folders
from fixstar.errors import DataError

__all__ = ["Dataset", "Loader", "Part"]

Loader = Callable[[Path, str], ImageSet]

_SHOWN = 5  # names that a message lists


@dataclass(frozen=True)
class Part:
    """A file or folder that must be there, relative to the data folder.

    ``size`` is a file's length in bytes. ``classes`` makes it a folder of class folders: how many, or which. ``images``
    makes it a folder with images somewhere inside. ``instead`` is a path that serves as well.
    """

    path: str
    size: int | None = None
    classes: int | tuple[str, ...] | None = None
    images: bool = False
    instead: str = ""

    def missing(self, folder: Path) -> list[str]:
        """What is not as it must be, in readable lines."""
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
    """A dataset that its user fetches: fixstar downloads nothing.

    ``layout`` shows how it lies in the data folder. ``load`` is None where no loader exists.
    """

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
        """What is missing below the data folder; nothing means that it is complete."""
        return [line for part in self.parts for line in part.missing(Path(folder))]

    def instructions(self) -> str:
        """Where to get it and how to lay it out."""
        return f"{self.title}: {self.page}, {self.url} ({self.licence}). Lay it out as\n  {self.layout}"

    def require(self, folder: str | Path) -> None:
        """Refuse a data folder that lacks something, and say where to get it."""
        if missing := self.check(folder):
            lines = "\n  ".join(missing)
            raise DataError(f"{folder}: {self.title} is not complete:\n  {lines}\n{self.instructions()}")

    def open(self, folder: str | Path, split: str) -> ImageSet:
        """The labelled images of a split, "train" or "test", after a check of the layout."""
        if self.load is None:
            raise DataError(
                f"fixstar has no loader for {self.title}; bring it into class folders or a CSV with the columns "
                "path,label and use fixstar.data.open_images"
            )
        self.require(folder)
        return self.load(Path(folder), split)


def _has_image(folder: Path) -> bool:
    """Whether there is an image in a folder, however deep; stops at the first."""
    return any(path.suffix.lower() in IMAGE_EXTENSIONS and not path.name.startswith(".") for path in folder.rglob("*"))
