"""What the client answers with: plain records. Needs neither torch nor a web framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

__all__ = ["Added", "Bad", "Check", "Found", "Hit", "Item", "Job", "Move", "Status", "Version", "record"]


@dataclass(frozen=True)
class Item:
    """An item of the gallery. ``version`` made its vector; ``thumbnail`` is the address of its picture."""

    id: str
    version: str
    label: str | None = None
    payload: dict[str, Any] = field(default_factory=dict)
    thumbnail: str | None = None


@dataclass(frozen=True)
class Hit(Item):
    """A search result: an item with its score, see ``Found``."""

    score: float = 0.0


@dataclass(frozen=True)
class Found:
    """The answer to a search: hits, best first, and the version that made the query's vector.

    Scores are cosines; where ``calibrated``, probabilities that query and item are of one class. ``left_out`` are
    versions with vectors that the query does not reach.
    """

    version: str
    hits: tuple[Hit, ...]
    milliseconds: float
    calibrated: bool = False
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bad:
    """An image that was left out: ``index`` is its place among those sent, from 0, ``file`` the name sent with it."""

    id: str
    reason: str
    index: int | None = None
    file: str | None = None

    @property
    def called(self) -> str:
        """Which one it is, for people."""
        place = self.id if self.index is None else f"image {self.index}"
        return f"{place} ({self.file})" if self.file else place


@dataclass(frozen=True)
class Added:
    """What was stored, by which version, and what was not."""

    version: str
    added: tuple[str, ...]
    bad: tuple[Bad, ...]


@dataclass(frozen=True)
class Job:
    """Work that goes on after the answer: queued, running, done, failed or cancelled. ``by`` is who asked for it."""

    id: str
    kind: str
    state: str
    done: int = 0
    total: int | None = None
    message: str = ""
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    created: str = ""
    started: str | None = None
    ended: str | None = None
    by: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ("done", "failed", "cancelled")


@dataclass(frozen=True)
class Version:
    """A version; ``check`` is the outcome of its last check, ``vectors`` counts the items that it made."""

    name: str
    parent: str | None
    method: str | None
    backbone: str | None
    capacity: int | None
    classes: int
    trained: dict[str, Any]
    deployed: bool
    check: str | None
    vectors: int
    retired: bool
    fixstar: str | None


@dataclass(frozen=True)
class Check:
    """What the gate found out about a version: pass, refuse or missing evidence, and why."""

    version: str
    outcome: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    next_steps: tuple[dict[str, Any], ...]
    cells: tuple[dict[str, Any], ...]
    self_test: float | None
    queries: int
    gallery: int
    confidence: float
    tolerance: float
    data: dict[str, Any]
    when: str


@dataclass(frozen=True)
class Move:
    """One move of the deployment: what, when, by whom, and why without a check.

    ``unreached`` vectors are not found by queries of ``version``: their number by the version that made them. Of a
    rollback also the version that it ``left``, how many vectors no check of ``version`` has looked at
    (``unchecked``, by the version that made them), and the backfill job that ends because of it (``cancelled``).
    """

    version: str
    kind: str
    when: str
    reason: str | None
    by: str
    left: str | None = None
    unchecked: dict[str, int] = field(default_factory=dict)
    unreached: dict[str, int] = field(default_factory=dict)
    cancelled: str | None = None


@dataclass(frozen=True)
class Status:
    """Where the workspace stands."""

    name: str
    fixstar: str
    deployed: str | None
    previous: str | None
    versions: tuple[str, ...]
    retired: tuple[str, ...]
    vectors: dict[str, int]
    items: int
    jobs_running: int


Record = TypeVar("Record")


def record(kind: type[Record], content: Mapping[str, Any], **parts: Any) -> Record:
    """A record from JSON; fields that a newer service adds are passed over.

    >>> record(Bad, {"id": "a", "reason": "no image", "since": "later"})
    Bad(id='a', reason='no image', index=None, file=None)
    """
    names = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    known = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items() if key in names}
    return kind(**{**known, **parts})
