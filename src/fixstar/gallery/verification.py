"""Is everything in a gallery as it should be? Reads all of it, changes nothing."""

from __future__ import annotations

import numpy as np

from fixstar.gallery.sqlite.gallery import SqliteGallery
from fixstar.gallery.store import Gallery, Item

__all__ = ["verify_gallery"]

_TOLD = 20


def verify_gallery(gallery: Gallery) -> list[str]:
    """What is wrong, in words, the first of it; empty if nothing is. Nobody else should be writing.

    The file's own structure, every vector's width and length, and the counts.

    >>> from fixstar.gallery import MemoryGallery
    >>> verify_gallery(MemoryGallery())
    []
    """
    if isinstance(gallery, SqliteGallery) and (damage := gallery.damage()):
        return damage
    widths = {space.name: space.width for space in gallery.versions()}
    found = dict.fromkeys(widths, 0)
    problems: list[str] = []
    for item in gallery.iterate():
        found[item.version] += 1
        if len(problems) < _TOLD and (problem := _problem(item, widths[item.version])):
            problems.append(f"{item.id!r} of version {item.version!r}: {problem}")
    if found != (counts := gallery.count()):
        problems.append(f"the gallery counts {counts} items and holds {found}")
    return problems


def _problem(item: Item, width: int) -> str:
    if item.vector.shape != (width,):
        return f"the vector has {item.vector.size} numbers, the version {width}"
    length = float(np.linalg.norm(item.vector.astype(np.float64)))
    return "" if abs(length - 1) < 1e-5 else f"the vector has length {length:.4g}"
