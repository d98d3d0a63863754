"""Jobs on disk: state/jobs/ID.json, whole or absent, so that what was promised outlives the process."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from fixstar.durable import replace_json

__all__ = ["ENDED", "KINDS", "Job", "JobFiles", "JobState", "Kind", "now"]

Kind = Literal["index", "check", "backfill"]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ENDED: tuple[JobState, ...] = ("done", "failed", "cancelled")

_FORMAT = {"format": "fixstar-job", "format_version": 1}
_log = logging.getLogger("fixstar.service")


def now() -> str:
    """The time, as it is told."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Job:
    """Work that goes on after the answer. ``parameters`` are what it needs to go on after a restart.

    ``cancelling`` says that it ends at the next batch; ``error`` is the body of a problem; ``attempts`` counts starts
    that did not come to an end; ``by`` is who asked for it, where that is known.
    """

    id: str
    kind: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    state: JobState = "queued"
    done: int = 0
    total: int | None = None
    message: str = ""
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    created: str = ""
    started: str | None = None
    ended: str | None = None
    cancelling: bool = False
    attempts: int = 0
    by: str | None = None

    @classmethod
    def made(
        cls, kind: Kind, parameters: Mapping[str, Any], total: int | None, message: str, by: str | None = None
    ) -> Job:
        """A new job. Ids sort by time."""
        when = datetime.now(UTC)
        name = f"{when:%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:8]}"
        created = when.isoformat(timespec="milliseconds")
        return cls(name, kind, parameters, total=total, message=message, created=created, by=by)

    def __str__(self) -> str:
        return f"job {self.id} ({self.kind}, asked for by {self.by or 'nobody known'})"

    def without_items(self) -> Job:
        """The same without its lists of items, which may be long."""
        lists = ("items", "overtaken")
        return replace(self, parameters={key: value for key, value in self.parameters.items() if key not in lists})

    def awaits(self, ids: Collection[str]) -> bool:
        """Whether it may still store one of these items."""
        items = () if self.has_ended else self.parameters.get("items", ())
        return any(item["id"] in ids for item in items[self.done :])

    @property
    def overtaken(self) -> frozenset[str]:
        """Items that others wrote or deleted after it was taken on: it leaves them as they are."""
        return frozenset(self.parameters.get("overtaken", ()))

    def overtaken_by(self, ids: Collection[str]) -> Job:
        """The same after others wrote or deleted these items."""
        mine = {item["id"] for item in self.parameters["items"][self.done :]}
        overtaken = sorted(self.overtaken | mine.intersection(ids))
        return replace(self, parameters={**self.parameters, "overtaken": overtaken})

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ENDED


class JobFiles:
    """The files of one workspace's jobs."""

    def __init__(self, workspace: Path) -> None:
        self.directory = workspace / "state" / "jobs"

    def save(self, job: Job) -> None:
        """Keep a job as it is now. One that has ended needs no list of items any more."""
        if job.has_ended:
            job = job.without_items()
        replace_json(self._path(job.id), {**_FORMAT, **asdict(job)})

    def delete(self, name: str) -> None:
        """Forget a job."""
        self._path(name).unlink(missing_ok=True)

    def load(self) -> list[Job]:
        """All jobs, oldest first. One whose file is damaged is told as failed: nothing disappears in silence."""
        paths = sorted(self.directory.glob("*.json")) if self.directory.is_dir() else []
        return [_read(path) for path in paths]

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.json"


def _read(path: Path) -> Job:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if {key: content.pop(key) for key in _FORMAT} != _FORMAT:
            raise ValueError("written by another fixstar")
        job = Job(**content)
        if job.id != path.stem or job.kind not in KINDS or job.state not in get_args(JobState):
            raise ValueError(f"not a job: {job.id!r}, {job.kind!r}, {job.state!r}")
        if not isinstance(job.parameters, dict) or not isinstance(job.done, int):
            raise ValueError("not the parameters of a job")
        return job
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.error("%s is damaged (%s); what it asked for was not finished, ask for it again", path, error)
        return _damaged(path)


def _damaged(path: Path) -> Job:
    when = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="milliseconds")
    error = {
        "type": "/problems/damaged-job",
        "title": "The job's file is damaged",
        "status": 500,
        "detail": "what it asked for may not have been done",
        "hint": "ask for it again",
        "next_steps": [],
    }
    message = "its file is damaged"
    return Job(path.stem, "unknown", state="failed", message=message, error=error, created=when, ended=when)
