"""Run a backfill: re-embed items that have older vectors with the deployed version, while serving.

state/backfill/plan.jsonl     a header, then one id per line in the order of work; written once, atomically
state/backfill/cursor.json    how many ids are done, with counts; may lag behind, is never ahead
state/backfill/kept.jsonl     items that keep their old vector, with the reason

The gallery decides what is done: an item with a vector of the target version is not touched again, whatever these files
say. So a killed backfill resumes without repeating work, except for images that were embedded but not yet stored.

Others may write at the same time. Items that were deleted or written since their image was embedded are left unchanged
(``Gallery.replace_vectors``, in one transaction if the store supports it).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.durable import (
    DAMAGE,
    document,
    exclusive,
    open_document,
    parse_document,
    replace_file,
    replace_json,
)
from fixstar.errors import CheckpointError, InputError, ModelError
from fixstar.gallery import Gallery, Item
from fixstar.images import ImageSource
from fixstar.models import EmbeddedBatch
from fixstar.progress import Advance
from fixstar.workspace.items import WAIT, Embedder, ImageStore
from fixstar.workspace.options import BUDGETS

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_MONEY = re.compile(r"\$\s*(\d+(?:\.\d+)?)")


class MeasuredPoint(NamedTuple):
    """Accuracy of the labelled queries after a share of the old items was re-embedded."""

    share: float
    accuracy: float


class KeptItem(NamedTuple):
    """An item that keeps its old vector."""

    id: str
    reason: str


@dataclass(frozen=True)
class BackfillPlan:
    """What is re-embedded with the version ``target``."""

    target: str
    order: str
    budget: str
    old: int  # number of items with older vectors when the plan was made
    planned: int
    token: str
    when: str
    without_image: int  # older items that were skipped because their image was not found
    ids: tuple[str, ...] = ()  # in the order of work
    versions: Mapping[str, int] | None = (
        None  # counts of the planned items by version; None in older plans
    )

    @classmethod
    def made(
        cls,
        target: str,
        order: str,
        budget: str,
        old: int,
        ids: Sequence[str],
        without_image: int = 0,
        versions: Mapping[str, int] | None = None,
    ) -> BackfillPlan:
        """A new plan."""
        return cls(
            target=target,
            order=order,
            budget=budget,
            old=old,
            planned=len(ids),
            token=uuid.uuid4().hex,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            without_image=without_image,
            ids=tuple(ids),
            versions=versions,
        )


def budget_items(budget: str, total: int, cost: float | None = None) -> int:
    """The number of items, out of ``total``, for a budget: a share, a number, money (one item costs ``cost``), or all.

    >>> budget_items("10%", 205), budget_items("50", 205), budget_items("500", 205), budget_items("all", 205)
    (21, 50, 205, 205)
    >>> budget_items("$0.30", 205, cost=0.01)
    30
    """
    text = budget.strip().lower()
    if (money := _MONEY.fullmatch(text)) and float(money[1]) > 0:
        if cost is None:
            raise InputError(
                f"the budget {budget} is money, but the deployed version has no price per token; give items or a share"
            )
        return min(total, int(float(money[1]) / cost + 1e-9))
    if text == "all":
        return total
    if (match := _PERCENT.fullmatch(text)) and 0 < float(match[1]) <= 100:
        return min(total, -int(-total * float(match[1]) // 100))
    if text.isdecimal() and int(text):
        return min(total, int(text))
    raise InputError(f"{BUDGETS}; got {budget!r}")


class PlanFiles:
    """The files of one workspace's backfill."""

    def __init__(self, workspace: Path) -> None:
        self.directory = workspace / "state" / "backfill"
        self._plan, self._cursor, self._kept = (
            self.directory / name for name in ("plan.jsonl", "cursor.json", "kept.jsonl")
        )

    def exclusive(self) -> AbstractContextManager[None]:
        """A lock for the one process that plans or runs a backfill."""
        seen = f"another process is working on a backfill in {self.directory}; wait for it, or stop it first"
        return exclusive(self.directory, busy=InputError(seen))

    def save(self, plan: BackfillPlan) -> None:
        """Replace the current plan; its cursor and list of kept items become invalid."""
        head = {**vars(plan)}
        ids = "".join(json.dumps(name, ensure_ascii=False) + "\n" for name in head.pop("ids"))
        head = document(
            "backfill", {**head, "ids_sha256": hashlib.sha256(ids.encode()).hexdigest()}
        )
        text = json.dumps(head, ensure_ascii=False) + "\n" + ids
        replace_file(
            self._plan, lambda partial: partial.write_text(text, encoding="utf-8", newline="\n")
        )

    def plan(self, with_ids: bool = True) -> BackfillPlan | None:
        """The plan on disk, if any. Reading is fast without the ids, which may be millions."""
        if not self._plan.is_file():
            return None
        try:
            with self._plan.open(encoding="utf-8", newline="\n") as lines:
                head = open_document(json.loads(next(lines)), "backfill")
                ids = lines.read() if with_ids else ""
            if head.pop("ids_sha256") != hashlib.sha256(ids.encode()).hexdigest() and with_ids:
                raise ValueError("the digest of its ids does not match")
            return BackfillPlan(
                **head, ids=tuple(json.loads(line) for line in ids.split("\n")[:-1])
            )
        except (ModelError, StopIteration, *DAMAGE) as error:
            raise CheckpointError(
                f"{self._plan} is damaged ({error}); delete it and plan again: what was re-embedded stays"
            ) from error

    def position(self, plan: BackfillPlan) -> int:
        """How many ids of the plan are done; a lower bound."""
        return self._progress(plan)[0]

    def counts(self, plan: BackfillPlan) -> dict[str, int]:
        """The outcomes of finished ids, over all calls; empty if unknown."""
        return self._progress(plan)[1]

    def _progress(self, plan: BackfillPlan) -> tuple[int, dict[str, int]]:
        try:
            token, position, counts = parse_document(self._cursor, "cursor", _parse_cursor)
        except (ModelError, OSError):
            return (
                0,
                {},
            )  # the gallery knows what is done, and walking through the plan again is cheap
        if token != plan.token:
            return 0, {}
        return position, counts

    def move(self, plan: BackfillPlan, position: int, counts: Mapping[str, int]) -> None:
        """Record that the first ``position`` ids are done, with their outcomes."""
        done = {"token": plan.token, "position": position, "counts": dict(counts)}
        replace_json(self._cursor, document("cursor", done))

    def keep(self, plan: BackfillPlan, kept: Sequence[KeptItem]) -> None:
        """Record items that keep their old vector."""
        if kept:
            rows = [json.dumps([plan.token, *item], ensure_ascii=False) for item in kept]
            with self._kept.open("a", encoding="utf-8", newline="\n") as file:
                file.write("\n" + "\n".join(rows) + "\n")  # a kill may have truncated the last line

    def kept(self, plan: BackfillPlan) -> list[KeptItem]:
        """The items of a plan that kept their old vector, without duplicates."""
        if not self._kept.is_file():
            return []
        found: dict[str, KeptItem] = {}
        for line in self._kept.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                token, name, reason = json.loads(line)
            except ValueError:  # empty or truncated
                continue
            if token == plan.token:
                found[name] = KeptItem(name, reason)
        return list(found.values())


BATCH = 64
_WRITE = 4096  # items per write, fewer in small plans: items far apart share few database pages
_NAP = 0.1  # seconds between two checks of ``stop`` while waiting

Stop = Callable[[], bool]


@dataclass(frozen=True)
class Backfilled:
    """The result of a call: items re-embedded, done before, deleted or rewritten by others."""

    version: str
    planned: int
    done: int
    done_before: int
    deleted: int
    rewritten: int
    kept: tuple[KeptItem, ...]  # over all calls
    left: int  # items that are not done; if there are any, ``stopped`` says why
    seconds: float
    stopped: str | None = None
    measured: tuple[MeasuredPoint, ...] = ()  # the accuracy during the run, if there are labels
    refitted: tuple[str, ...] = ()  # versions whose translation was refitted on the new pairs
    without_image: int = (
        0  # not planned because their images are gone; they also keep their vectors
    )


class Pace:
    """Limits to ``rate`` items per second, measured from the start; None means no limit."""

    def __init__(self, rate: float | None) -> None:
        if rate is not None and not rate > 0:
            raise InputError(f"the rate is in items per second, above 0; got {rate:g}")
        self.rate = rate
        self._started = time.monotonic()
        self._done = 0

    @property
    def batch(self) -> int:
        """Batch size: about a second's worth, so that a slow backfill runs steadily."""
        if self.rate is None:
            return BATCH
        return max(1, min(BATCH, int(self.rate)))

    def count(self, items: int) -> None:
        """Count items that are embedded now."""
        self._done += items

    def wait(self, stop: Stop) -> None:
        """Wait until the items counted so far are due, or until told to stop."""
        if self.rate is None:
            return
        due = self._started + self._done / self.rate
        while (left := due - time.monotonic()) > 0 and not stop():
            time.sleep(min(left, _NAP))


def _parse_cursor(content: Mapping[str, Any]) -> tuple[str, int, dict[str, int]]:
    return content["token"], int(content["position"]), dict(content["counts"])


@dataclass(frozen=True)
class _PlannedBatch:
    """Items that are being embedded. All ids of the plan up to ``end`` are in this batch or an earlier one."""

    items: list[Item]
    end: int


@dataclass
class BackfillRun:
    """Works through the rest of a plan. Keeps its position, its counts, and the reason if it stopped.

    ``deployed`` is called before every write: once another version is deployed, nothing more is written. Vectors of
    versions in ``newer()`` are not replaced. ``stop`` is checked between batches. ``made`` gets the items with their
    old vectors, and the new vectors [N, width], after they are stored.
    """

    gallery: Gallery
    images: ImageStore
    files: PlanFiles
    plan: BackfillPlan
    deployed: Callable[[], str]
    newer: Callable[[], Collection[str]]
    rate: float | None = None
    stop: Stop = lambda: False
    progress: Advance = lambda *_: None
    made: Callable[[Sequence[Item], NDArray[np.float32]], object] = lambda *_: None

    def __post_init__(self) -> None:
        self._pace = Pace(self.rate)
        self._stopped: str | None = None
        self._counts = Counter[str]()
        self._waiting = deque[_PlannedBatch]()
        self._ready: list[tuple[_PlannedBatch, EmbeddedBatch | None]] = []  # to be written together
        self._most = max(self._pace.batch, min(_WRITE, len(self.plan.ids) // 32))
        self._written = time.monotonic()

    def run(self, embedder: Embedder) -> Backfilled:
        """Embed and store the remaining items, or stop early."""
        started = time.monotonic()
        with self.files.exclusive():
            self._position = self.files.position(self.plan)
            self._before = Counter(self.files.counts(self.plan))
            self.progress(self._position)
            self._work(embedder)
        return Backfilled(
            version=self.plan.target,
            planned=len(self.plan.ids),
            done=self._counts["done"],
            done_before=self._counts["done before"],
            deleted=self._counts["deleted"],
            rewritten=self._counts["rewritten"],
            kept=tuple(self.files.kept(self.plan)),
            left=len(self.plan.ids) - self._position,
            seconds=time.monotonic() - started,
            stopped=self._stopped,
            without_image=self.plan.without_image,
        )

    def _work(self, embedder: Embedder) -> None:
        try:
            for answer in embedder(self._batches()):
                self._pass_empty()
                self._ready.append((self._waiting.popleft(), answer))
                late = time.monotonic() - self._written > WAIT
                if late or sum(len(batch.items) for batch, _ in self._ready) >= self._most:
                    self._write()
                if self._stopped is not None and self.deployed() != self.plan.target:
                    return
            self._pass_empty()
        finally:  # store what was embedded before a failure or an interrupt
            self._write()

    def _batches(self) -> Iterator[Sequence[ImageSource]]:
        ids = iter(self.plan.ids[self._position :])
        end = self._position
        while names := list(islice(ids, self._pace.batch)):
            self._pace.wait(lambda: self._reason() is not None)
            self._stopped = self._reason()
            if self._stopped is not None:
                return
            end += len(names)
            items, sources = self._to_embed(names)
            self._pace.count(len(items))
            self._waiting.append(_PlannedBatch(items, end))
            if sources:
                yield sources

    def _reason(self) -> str | None:
        if (now := self.deployed()) != self.plan.target:
            return f"{now} is deployed now: nothing more is re-embedded with {self.plan.target}"
        if self.stop():
            return "stopped on request; repeat it to resume"
        return None

    def _to_embed(self, names: list[str]) -> tuple[list[Item], list[ImageSource]]:
        """The items among the next ids that still have an old vector and an image, with their images."""
        known = self.gallery.get(names)
        self._counts["deleted"] += len(names) - len(known)
        self._counts["done before"] += sum(
            item.version == self.plan.target for item in known.values()
        )
        newer = set(self.newer())
        self._counts["rewritten"] += sum(item.version in newer for item in known.values())
        old = [item for item in known.values() if item.version not in {self.plan.target, *newer}]
        found = {item.id: self.images.original(item) for item in old}
        self.files.keep(
            self.plan,
            [KeptItem(name, "its image is gone") for name in found if found[name] is None],
        )
        there = [(item, path) for item in old if (path := found[item.id]) is not None]
        return [item for item, _ in there], [path for _, path in there]

    def _write(self) -> None:
        """Store finished batches, unless another version has been deployed."""
        ready = self._ready
        self._ready = []
        self._written = time.monotonic()
        if not ready:
            return
        if self.deployed() != self.plan.target:
            self._stopped = self._reason()
            return
        items: list[Item] = []
        vectors: list[NDArray[np.float32]] = []
        for batch, answer in ready:
            if answer is not None:
                self.files.keep(
                    self.plan,
                    [KeptItem(batch.items[bad.index].id, bad.reason) for bad in answer.bad],
                )
                good = np.flatnonzero(~np.isnan(answer.vectors).any(axis=1))
                items += [batch.items[row] for row in good.tolist()]
                vectors.append(answer.vectors[good])
        done = set(
            self.gallery.replace_vectors(self.plan.target, items, np.concatenate(vectors))
            if items
            else []
        )
        if items:
            self.made(items, np.concatenate(vectors))
        others = [item.id for item in items if item.id not in done]
        there = self.gallery.get(others) if others else {}
        self._counts["done"] += len(done)
        self._counts["rewritten"] += len(there)
        self._counts["deleted"] += len(others) - len(there)
        end = ready[-1][0].end
        self.files.move(self.plan, end, self._before + self._counts)
        self.progress(end - self._position)
        self._position = end

    def _pass_empty(self) -> None:
        """Skip batches with nothing to embed: they have no result to wait for."""
        while self._waiting and not self._waiting[0].items:
            self._ready.append((self._waiting.popleft(), None))
