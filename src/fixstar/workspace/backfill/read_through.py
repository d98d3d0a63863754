"""Read-through: items that searches meet are re-embedded, so the gallery backfills what users ask for.

A search looks at its best 50 items. Those with a vector of an older version, whose image or text is here, wait to be
embedded by the deployed version, so many an hour. What is never asked for is never embedded. A search may also wait
until its best items are embedded, and then ask again (``Serving.search``).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fixstar.errors import GateError, InputError, NextStep
from fixstar.gallery import Hit, Item
from fixstar.versions import is_version_name, version_number
from fixstar.workspace.checks import last_check
from fixstar.workspace.items import ImageStore, LocalEmbedder

if TYPE_CHECKING:
    from fixstar.workspace.search import Serving

DEPTH = 50  # the best items of a search that count as met
MOST_FRESH = 1000  # items that one search may embed before it answers
MOST_WAITING = 10_000  # queued ids; the oldest are dropped
_BATCH = 64
_HOUR = 3600.0


class ReadThrough:
    """Items that searches have met, queued for re-embedding. Threads may share it; one calls ``work``."""

    def __init__(self, serving: Serving, per_hour: float) -> None:
        if not per_hour > 0:
            raise InputError(f"read-through embeds more than 0 items per hour, got {per_hour:g}")
        self._serving = serving
        self._per_second = per_hour / _HOUR
        self._burst = max(1.0, per_hour / 60)  # up to a minute's worth at once
        self._allowed = self._burst
        self._counted = time.monotonic()
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of queued items."""
        with self._lock:
            return len(self._waiting)

    def met(self, hits: Iterable[Hit], deployed: str) -> None:
        """Queue the items of a search whose vector is not of the deployed version."""
        names = [hit.id for hit in hits if hit.version != deployed]
        with self._lock:
            for name in names:
                self._waiting[name] = None
                self._waiting.move_to_end(name)
            while len(self._waiting) > MOST_WAITING:
                self._waiting.popitem(last=False)

    def work(self) -> int:
        """Embed and store as many queued items as the rate allows; returns how many.

        The most recent come first. Items that were written or deleted meanwhile are not touched. Nothing is written if
        another version has been deployed since.
        """
        return embed_again(self._serving, self._due())

    def _due(self) -> list[str]:
        """Take the ids that may be embedded now from the queue."""
        with self._lock:
            now = time.monotonic()
            self._allowed = min(
                self._burst, self._allowed + (now - self._counted) * self._per_second
            )
            self._counted = now
            count = min(_BATCH, int(self._allowed), len(self._waiting))
            self._allowed -= count
            return [self._waiting.popitem()[0] for _ in range(count)]


def embed_again(serving: Serving, names: Sequence[str]) -> int:
    """Give stored items vectors of the deployed version, where older ones are and the original is here; how many.

    What was written or deleted meanwhile stays, and nothing is written if another version is deployed by then.
    """
    if not names:
        return 0
    version = serving.deployed()
    images = ImageStore(serving.path, serving.registry.reads())
    known = serving.gallery.get(list(names))
    old = [item for item in known.values() if _is_older(item, version)]
    sources = {item.id: images.original(item) for item in old}
    there = [item for item in old if sources[item.id] is not None]
    if not there:
        return 0
    embedder = LocalEmbedder(serving.encoder(version))
    with serving.registry.using(version):
        vectors = embedder.one([sources[item.id] for item in there]).vectors  # type: ignore[misc]
        good = np.flatnonzero(~np.isnan(vectors).any(axis=1))
        if serving.deployed() != version:
            return 0
        kept = [there[row] for row in good.tolist()]
        if not kept:
            return 0
        return len(serving.gallery.replace_vectors(version, kept, vectors[good]))


def _is_older(item: Item, deployed: str) -> bool:
    """Whether an item's vector is of an older version, or of a model that was never here."""
    if item.version == deployed:
        return False
    return not is_version_name(item.version) or version_number(item.version) < version_number(
        deployed
    )


def check_fresh(depth: int, versions: Collection[str] | None) -> None:
    """Refuse a wrong number of items to embed before answering, and a search of some versions: they could hide them."""
    if not 0 < depth <= MOST_FRESH:
        raise InputError(
            f"a search embeds its best 1 to {MOST_FRESH} items before it answers, got {depth}"
        )
    if versions is not None:
        raise InputError(
            "a search that embeds items before it answers searches all versions; name none"
        )


def require_passed_check(serving: Serving) -> None:
    """Refuse to embed items before answering with a version that may find them less well."""
    version = serving.deployed()
    found = last_check(serving.path, version)
    if found is None or found.outcome != "pass":
        raise GateError(
            f"{version} has no passed check, so what it embeds may be found less well; nothing was embedded",
            NextStep("check", {"version": version}),
        )
