"""What a backfill to the deployed version could re-embed, and what it cannot, and why."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from fixstar.workspace.workspace import Workspace

__all__ = ["LOOKED_AT", "BackfillOutlook", "backfill_outlook", "newer_versions", "older_counts"]

LOOKED_AT = 5000  # items whose images are looked for, at most: a gallery may hold millions


@dataclass(frozen=True)
class BackfillOutlook:
    """What a backfill to ``version`` meets: ``older`` vectors, which its budget is a share of, and ``newer`` ones.

    Newer ones are never replaced. Of ``looked_at`` older items ``without_image`` have no image here, such as imported
    ones: they keep their vectors.
    """

    version: str
    older: int
    newer: dict[str, int]
    looked_at: int
    without_image: int

    @property
    def could(self) -> int:
        """Vectors that could be re-embedded; at most so many where not all items were looked at."""
        return self.older - self.without_image


def backfill_outlook(space: Workspace, most: int = LOOKED_AT) -> BackfillOutlook:
    """Look at the gallery; the images of ``most`` items at most, of every older version about as many."""
    target, counts = space.deployed(), space.gallery.count()
    newer, older = newer_versions(space, target), older_counts(space, target, counts)
    looked_at = without_image = 0
    waiting = sorted(older, key=lambda name: older[name])
    for row, name in enumerate(waiting):  # the smallest first: what it leaves of its share is the others'
        share = (most - looked_at) // (len(waiting) - row)
        with closing(cast(Any, space.gallery.iterate(name))) as items:
            for item in islice(items, share):
                looked_at += 1
                without_image += space.images.find(item) is None
    kept = {name: count for name, count in counts.items() if count and name in newer}
    return BackfillOutlook(target, sum(older.values()), kept, looked_at, without_image)


def newer_versions(space: Workspace, target: str) -> list[str]:
    """The versions whose vectors a backfill to ``target`` leaves as they are: of the registry, retired ones too.

    Vectors under a name that no version here has had, whatever it looks like, are foreign, and older than all.
    """
    return [name for name in (*space.registry.names(), *space.registry.retired()) if int(name[1:]) > int(target[1:])]


def older_counts(space: Workspace, target: str, counts: dict[str, int]) -> dict[str, int]:
    """Of the counts by version, those of vectors that a backfill to ``target`` may replace."""
    left = {target, *newer_versions(space, target)}
    return {name: count for name, count in counts.items() if count and name not in left}
