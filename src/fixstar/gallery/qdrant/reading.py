"""Which points a gallery has, and the newest one of each item; what they hold is looked at later, one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fixstar.gallery.qdrant.points import known_name, point_id, written_as
from fixstar.gallery.qdrant.server import QdrantServer, StoredVersion

__all__ = ["listed", "newest"]

_PAGE = 256  # points with vectors in one answer


def newest(
    server: QdrantServer, versions: dict[str, StoredVersion], names: Sequence[str]
) -> dict[str, tuple[str, Any]]:
    """By id, in the order of ``names``: the version and the point that was written last. Damaged ones are among them.

    Who asks by an id is answered by it, also where the point has lost it: the point's own id is made from it.
    """
    found: dict[str, tuple[str, Any]] = {}
    for version in versions.values():
        for start in range(0, len(names), _PAGE):
            asked = {point_id(name): name for name in names[start : start + _PAGE]}
            for point in server.retrieve(version.collection, list(asked), ["id", "written", "text"], vectors=True):
                name = asked[str(point.id)]
                if name not in found or written_as(found[name][1]) < written_as(point):
                    found[name] = version.space.name, point
    return {name: found[name] for name in names if name in found}


def listed(
    server: QdrantServer, versions: Iterable[StoredVersion], after: str | None
) -> tuple[dict[str, str], list[str]]:
    """The ids of all items behind ``after``, sorted. Points that have lost their id stand among them with their own.

    These come first, with the versions that they are of.
    """
    lost: dict[str, str] = {}
    names: set[str] = set()
    for version in versions:
        for point in server.scroll(version.collection, None, ["id"]):
            name = known_name(point)
            if name is None:
                lost[str(point.id)] = version.space.name
            else:
                names.add(name)
    return lost, sorted(name for name in names | lost.keys() if name > (after or ""))
