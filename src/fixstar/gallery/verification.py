"""Is everything in a gallery as it should be? Reads all of it, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from fixstar.errors import DamagedItemError
from fixstar.gallery.sqlite.gallery import SqliteGallery
from fixstar.gallery.store import Gallery, Item

__all__ = ["verify_gallery"]

_TOLD = 1000


class _Read(NamedTuple):
    """One item, and what is wrong with it: "" if nothing is."""

    id: str
    version: str | None
    problem: str


def verify_gallery(gallery: Gallery) -> list[str]:
    """What is wrong, in words, with the id of each damaged item; empty if nothing is. Nobody else should be writing.

    The file's own structure, every payload, every vector's width and length, and the counts. Where the structure is
    damaged nothing else is looked at. Of more than a thousand damaged items the rest is only counted.

    >>> from fixstar.gallery import MemoryGallery
    >>> verify_gallery(MemoryGallery())
    []
    """
    if isinstance(gallery, SqliteGallery) and (damage := gallery.damage()):
        return damage
    found = {space.name: 0 for space in gallery.versions()}
    problems: list[str] = []
    damaged = 0
    for read in _read(gallery):
        if read.version is not None:
            found[read.version] += 1
        if read.problem:
            damaged += 1
            if damaged <= _TOLD:
                problems.append(f"{read.id!r} of version {read.version!r}: {read.problem}")
    if damaged > _TOLD:
        problems.append(f"and {damaged - _TOLD:,} more items")
    if found != (counts := gallery.count()):
        problems.append(f"the gallery counts {counts} items and holds {found}")
    return problems


def _read(gallery: Gallery) -> Iterator[_Read]:
    """Every item, also those that cannot be read."""
    widths = {space.name: space.width for space in gallery.versions()}
    after: str | None = None
    while True:
        try:
            for item in gallery.iterate(after=after):
                yield _Read(item.id, item.version, _problem(item, widths[item.version]))
        except DamagedItemError as error:
            yield _Read(error.item, error.version, error.reason)
            after = error.item  # what follows it is still to be read
        else:
            return


def _problem(item: Item, width: int) -> str:
    if not isinstance(item.payload, Mapping):
        return "the payload is no JSON object"
    if item.vector.shape != (width,):
        return f"the vector has {item.vector.size} numbers, the version {width}"
    length = float(np.linalg.norm(item.vector.astype(np.float64)))
    return "" if abs(length - 1) < 1e-5 else f"the vector has length {length:.4g}"
