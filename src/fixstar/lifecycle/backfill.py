"""Backfill: items with older vectors are embedded again with the deployed version, batch by batch, while serving.

The gallery is the truth about what is done: an item that holds a vector of the target version is not touched again,
whatever the files of the plan say. So a backfill that was killed goes on without doing anything twice; only images that
were embedded but not stored when it died are embedded anew.

Others may write meanwhile: items that were deleted or written since their image was embedded stay as others left them
(``Gallery.replace_vectors``, one transaction where the store has them).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from fixstar.durable import exclusive
from fixstar.errors import InputError
from fixstar.gallery import Gallery, Item
from fixstar.images import ImageSource
from fixstar.lifecycle.backfill_curves import MeasuredPoint
from fixstar.lifecycle.backfill_plan import BackfillPlan, KeptItem, PlanFiles
from fixstar.lifecycle.catalogue import ImageStore
from fixstar.lifecycle.embedding import Embedded, Embedder
from fixstar.progress import Advance

__all__ = ["Backfilled", "Pace", "run_backfill"]

BATCH = 64
_NAP = 0.1  # seconds between two looks at ``stop`` while waiting

Stop = Callable[[], bool]


@dataclass(frozen=True)
class Backfilled:
    """What a call did: items re-embedded, and of the plan those done before, deleted or rewritten meanwhile.

    ``kept`` keep their old vectors, over all calls; ``left`` still wait; ``stopped`` says why, where that is not zero.
    ``measured`` is the accuracy along the way, where there were labels to measure it with. ``without_image`` items were
    not planned, since they have no image any more: they keep their vectors too.
    """

    version: str
    planned: int
    done: int
    done_before: int
    deleted: int
    rewritten: int
    kept: tuple[KeptItem, ...]
    left: int
    seconds: float
    stopped: str | None = None
    measured: tuple[MeasuredPoint, ...] = ()
    without_image: int = 0


class Pace:
    """At most ``rate`` items a second, measured from the start; None is as fast as it goes."""

    def __init__(self, rate: float | None) -> None:
        if rate is not None and not rate > 0:
            raise InputError(f"the rate is in items a second, above 0; got {rate:g}")
        self.rate, self._started, self._done = rate, time.monotonic(), 0

    @property
    def batch(self) -> int:
        """Items at a time: about a second's worth, so that a slow backfill is an even one."""
        return BATCH if self.rate is None else max(1, min(BATCH, int(self.rate)))

    def wait(self, count: int, stop: Stop) -> None:
        """Wait until ``count`` more items may be embedded, or until told to stop."""
        if self.rate is None:
            return
        due = self._started + self._done / self.rate
        self._done += count
        while (left := due - time.monotonic()) > 0 and not stop():
            time.sleep(min(left, _NAP))


@dataclass(frozen=True)
class _Batch:
    """Items whose images are being embedded; all ids of the plan up to ``end`` are in it or before it."""

    items: list[Item]
    end: int


def run_backfill(
    gallery: Gallery,
    images: ImageStore,
    files: PlanFiles,
    plan: BackfillPlan,
    embedder: Embedder,
    deployed: Callable[[], str],
    newer: Callable[[], Collection[str]],
    rate: float | None = None,
    stop: Stop = lambda: False,
    progress: Advance | None = None,
) -> Backfilled:
    """Work through a plan, from where it stands to its end, or until ``stop`` answers True after some batch.

    ``deployed`` is asked before every write: once another version is deployed, nothing more is written. Vectors of the
    versions that ``newer`` names at the time are left as they are: since the plan was made one may have been deployed,
    and taken back.
    """
    started = time.monotonic()
    try:
        with exclusive(files.directory):
            work = _Work(gallery, images, files, plan, deployed, newer, Pace(rate), stop, progress)
            work.run(embedder)
    except BlockingIOError:
        raise InputError(
            f"another process is working on the backfill in {files.directory}; wait for it, or stop it first"
        ) from None
    counts = work.counts
    return Backfilled(
        version=plan.target,
        planned=len(plan.ids),
        done=counts["done"],
        done_before=counts["done before"],
        deleted=counts["deleted"],
        rewritten=counts["rewritten"],
        kept=tuple(files.kept(plan)),
        left=len(plan.ids) - work.position,
        seconds=time.monotonic() - started,
        stopped=work.stopped,
        without_image=plan.without_image,
    )


class _Work:
    """One call: where it stands in the plan, what it counted, and why it stopped."""

    def __init__(
        self,
        gallery: Gallery,
        images: ImageStore,
        files: PlanFiles,
        plan: BackfillPlan,
        deployed: Callable[[], str],
        newer: Callable[[], Collection[str]],
        pace: Pace,
        stop: Stop,
        progress: Advance | None,
    ) -> None:
        self._gallery, self._images, self._files, self._plan = gallery, images, files, plan
        self._deployed, self._newer = deployed, newer
        self._pace, self._stop, self._progress = pace, stop, progress
        self._waiting: deque[_Batch] = deque()
        self.counts: Counter[str] = Counter()
        self.stopped: str | None = None
        self.position, self._before = files.position(plan), Counter(files.counts(plan))
        self._advance(self.position)

    def run(self, embedder: Embedder) -> None:
        for answer in embedder(self._batches()):
            self._pass_empty()
            batch = self._waiting.popleft()
            if self._deployed() != self._plan.target:
                self.stopped = self._reason()
                return
            self._store(batch.items, answer)
            self._arrive(batch)
        self._pass_empty()

    def _batches(self) -> Iterator[Sequence[ImageSource]]:
        ids, end = iter(self._plan.ids[self.position :]), self.position
        while names := list(islice(ids, self._pace.batch)):
            if (reason := self._reason()) is not None:
                self.stopped = reason
                return
            end += len(names)
            items, sources = self._to_embed(names)
            self._pace.wait(len(items), lambda: self._reason() is not None)
            self._waiting.append(_Batch(items, end))
            if sources:
                yield sources

    def _reason(self) -> str | None:
        """Why not to go on, if so."""
        if (now := self._deployed()) != self._plan.target:
            return f"{now} is deployed now: nothing more is re-embedded with {self._plan.target}"
        return "stopped on request; the same command goes on" if self._stop() else None

    def _to_embed(self, names: list[str]) -> tuple[list[Item], list[ImageSource]]:
        """Of the next ids, the items that still hold an old vector and have an image, and their images."""
        known = self._gallery.get(names)
        self.counts["deleted"] += len(names) - len(known)
        self.counts["done before"] += sum(item.version == self._plan.target for item in known.values())
        newer = set(self._newer())
        self.counts["rewritten"] += sum(item.version in newer for item in known.values())
        old = [item for item in known.values() if item.version not in {self._plan.target, *newer}]
        found = {item.id: self._images.find(item) for item in old}
        self._files.keep(self._plan, [KeptItem(name, "its image is gone") for name in found if found[name] is None])
        there = [(item, path) for item in old if (path := found[item.id]) is not None]
        return [item for item, _ in there], [path for _, path in there]

    def _store(self, items: list[Item], answer: Embedded) -> None:
        self._files.keep(self._plan, [KeptItem(items[bad.index].id, bad.reason) for bad in answer.bad])
        good = np.flatnonzero(~np.isnan(answer.vectors).any(axis=1)).tolist()
        chosen = [items[row] for row in good]
        done = set(self._gallery.replace_vectors(self._plan.target, chosen, answer.vectors[good]) if chosen else [])
        others = [item.id for item in chosen if item.id not in done]
        there = self._gallery.get(others) if others else {}
        self.counts["done"] += len(done)
        self.counts["rewritten"] += len(there)
        self.counts["deleted"] += len(others) - len(there)

    def _arrive(self, batch: _Batch) -> None:
        self._files.move(self._plan, batch.end, self._before + self.counts)
        self._advance(batch.end - self.position)
        self.position = batch.end

    def _pass_empty(self) -> None:
        """Batches in which nothing was to be embedded have no answer to wait for."""
        while self._waiting and not self._waiting[0].items:
            self._arrive(self._waiting.popleft())

    def _advance(self, count: int) -> None:
        if self._progress is not None:
            self._progress(count)
