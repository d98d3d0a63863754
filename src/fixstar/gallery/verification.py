"""Checks that a gallery is intact. Reads all of it, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fixstar.errors import DamagedItemError
from fixstar.gallery.sqlite import SqliteGallery
from fixstar.gallery.store import Gallery, Item

__all__ = ["verify_gallery"]

_LISTED = 1000  # damaged items that are named


def verify_gallery(gallery: Gallery) -> list[str]:
    """What is wrong, one sentence per problem, with the id of each damaged item; empty if nothing is.

    Checks the file's own structure, every payload, every vector's width and length, and the counts. If the structure is
    damaged, nothing else is checked. Of more than a thousand damaged items the rest is only counted. Nobody else should
    be writing.

    >>> from fixstar.gallery import MemoryGallery
    >>> verify_gallery(MemoryGallery())
    []
    """
    if isinstance(gallery, SqliteGallery) and (damage := gallery.damage()):
        return damage
    found = {space.name: 0 for space in gallery.versions()}
    problems: list[str] = []
    for name, version, problem in _checked(gallery):
        if version is not None:
            found[version] += 1
        if problem:
            problems.append(f"{name!r} of version {version!r}: {problem}")
    if len(problems) > _LISTED:
        problems[_LISTED:] = [f"and {len(problems) - _LISTED:,} more items"]
    if found != (counts := gallery.count()):
        problems.append(f"the gallery counts {counts} items and holds {found}")
    return problems


def _checked(gallery: Gallery) -> Iterator[tuple[str, str | None, str]]:
    """(id, version, problem) of every item; the problem is empty if there is none."""
    widths = {space.name: space.width for space in gallery.versions()}
    after: str | None = None
    while True:
        try:
            for item in gallery.iterate(after=after):
                yield item.id, item.version, _problem(item, widths[item.version])
            return
        except DamagedItemError as error:
            yield error.item, error.version, error.reason
            after = error.item  # continue behind it


def _problem(item: Item, width: int) -> str:
    if not isinstance(item.payload, Mapping):
        return "the payload is not a JSON object"
    if item.vector.shape != (width,):
        return f"the vector has {item.vector.size} components, the version {width}"
    length = float(np.linalg.norm(item.vector.astype(np.float64)))
    return "" if abs(length - 1) < 1e-5 else f"the vector has length {length:.4g}"
