"""Items that change their version: where they are, and which of two copies stays.

Every function here may be repeated, by anyone, at any time: it only removes copies of which a newer one exists, and
names the write that it removes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from fixstar.gallery.qdrant.points import written_as
from fixstar.gallery.qdrant.server import QdrantServer, StoredVersion

__all__ = ["finish_moves", "places_of", "remove", "settle"]

_ABANDONED = 3600.0  # seconds after which nobody is in the middle of a move

Places = dict[str, dict[str, int]]  # point -> version -> number of the write


def finish_moves(server: QdrantServer) -> None:
    """Remove old copies of items whose move was broken off. Moves under way lose nothing by it."""
    for name, points, begun in server.moves():
        settle(server, server.versions(), points)
        if time.time() - begun > _ABANDONED:
            server.end_move(name)


def places_of(server: QdrantServer, versions: dict[str, StoredVersion], points: Sequence[str]) -> Places:
    """Where these points are, oldest version first."""
    places: Places = {}
    for name, version in versions.items():
        for record in server.retrieve(version.collection, points, ["written"]):
            places.setdefault(record.id, {})[name] = written_as(record)
    return places


def settle(server: QdrantServer, versions: dict[str, StoredVersion], points: Sequence[str]) -> Places:
    """Leave each item only where it was written last; where that is."""
    places = places_of(server, versions, points)
    kept = {point: dict([max(numbers.items(), key=lambda pair: pair[1])]) for point, numbers in places.items()}
    older = {p: {name: n for name, n in numbers.items() if name not in kept[p]} for p, numbers in places.items()}
    remove(server, versions, older)
    return kept


def remove(server: QdrantServer, versions: dict[str, StoredVersion], places: Places) -> None:
    """Remove points from where they were seen, unless they were written again since."""
    for name, version in versions.items():
        gone = {point: numbers[name] for point, numbers in places.items() if name in numbers}
        if gone:
            server.remove(version, list(gone), list(gone.values()))
