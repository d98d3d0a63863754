"""A job, and the files of a workspace's jobs: ``state/jobs/ID.json``."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from fixstar.durable import document, file_stamp, read_document, replace_json
from fixstar.errors import FixstarError
from fixstar.service.problems import Problem

Kind = Literal["index", "check", "backfill", "train", "upgrade", "snapshot"]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]
Result = dict[str, Any]
KINDS: tuple[Kind, ...] = get_args(Kind)
NAMED = 100  # items that a result names

REEMBEDDING = "re-embedding with {target}, order: {order}, budget: {budget}"
_FIRST_MESSAGES = {  # until a job begins, from its parameters
    "index": "embedding with the deployed version",
    "check": "checking {version}",
    "backfill": REEMBEDDING,
    "train": "reading the images",
    "upgrade": "reading the images",
    "snapshot": "copying the workspace",
}
_STAMP = "%Y%m%dT%H%M%S%f"  # how an id begins
_log = logging.getLogger("fixstar.service")


def now() -> str:
    """The time as jobs note it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Job:
    """One job. ``parameters`` are what it needs to resume after a restart, ``by`` is who asked for it, if known.

    ``error`` is the body of a problem; ``attempts`` counts starts that did not come to an end.
    """

    id: str
    kind: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    state: JobState = "queued"
    done: int = 0
    total: int | None = None
    message: str = ""
    result: Result | None = None
    error: dict[str, Any] | None = None
    created: str = ""
    started: str | None = None
    ended: str | None = None
    cancelling: bool = False  # it ends after the current batch
    attempts: int = 0
    by: str | None = None
    runner: str = ""  # the service that runs it, if several share the workspace

    @classmethod
    def new(
        cls, kind: Kind, parameters: Mapping[str, Any], by: str | None = None, newest: str = ""
    ) -> Job:
        """A new job. Ids sort by time, and behind ``newest`` even if the clock was set back."""
        total = None
        if kind == "index":
            total = len(parameters["items"])
        when = datetime.now(UTC)
        stamp = f"{when:{_STAMP}}"
        last = newest.partition("-")[0]
        if stamp <= last:
            next_free = datetime.strptime(last, _STAMP) + timedelta(microseconds=1)
            stamp = f"{next_free:{_STAMP}}"
        return cls(
            id=f"{stamp}-{uuid.uuid4().hex[:8]}",
            kind=kind,
            parameters=parameters,
            total=total,
            message=_FIRST_MESSAGES[kind].format(**parameters),
            created=when.isoformat(timespec="milliseconds"),
            by=by,
        )

    def __str__(self) -> str:
        return f"job {self.id} ({self.kind}, asked for by {self.by or 'unknown'})"

    @property
    def version(self) -> str | None:
        """The version that is checked, or whose vectors replace older ones."""
        return self.parameters.get("version") or self.parameters.get("target")

    @property
    def has_ended(self) -> bool:
        """Whether it is done, failed or cancelled."""
        return self.state in ("done", "failed", "cancelled")

    def without_items(self) -> Job:
        """The same without its lists of items and queries, which may be long."""
        lists = ("items", "overtaken", "relevant")
        return replace(
            self,
            parameters={key: value for key, value in self.parameters.items() if key not in lists},
        )

    def awaits(self, ids: Collection[str]) -> bool:
        """Whether it may still store one of these items."""
        if self.has_ended:
            return False
        pending = self.parameters.get("items", ())[self.done :]
        return any(item["id"] in ids for item in pending)

    @property
    def overtaken(self) -> frozenset[str]:
        """Items written or deleted by others after it was accepted. It leaves them alone."""
        return frozenset(self.parameters.get("overtaken", ()))

    def overtaken_by(self, ids: Collection[str]) -> Job:
        """The same after others wrote or deleted these items."""
        pending = {item["id"] for item in self.parameters["items"][self.done :]}
        overtaken = sorted(self.overtaken | pending.intersection(ids))
        return replace(self, parameters={**self.parameters, "overtaken": overtaken})


class JobFiles:
    """The files of one workspace's jobs: each whole or absent."""

    def __init__(self, workspace: Path) -> None:
        self.directory = workspace / "state" / "jobs"
        self._stamps: dict[
            str, tuple[int, int, int] | None
        ] = {}  # of files as they were read or written last

    def save(self, job: Job) -> None:
        """Write a job. If it has ended, its list of items and its images are removed."""
        if job.has_ended:
            job = job.without_items()
            self.images(job.id).unlink(missing_ok=True)
        replace_json(self._path(job.id), document("job", asdict(job)))
        self._stamps[job.id] = file_stamp(self._path(job.id))

    def images(self, name: str) -> Path:
        """The file that lists the images of a training job: it resumes with the same ones."""
        return self.directory / f"{name}.images"

    def delete(self, name: str) -> None:
        """Forget a job."""
        self._path(name).unlink(missing_ok=True)

    def load(self) -> list[Job]:
        """All jobs, oldest first. One whose file is damaged counts as failed: nothing disappears silently."""
        if not self.directory.is_dir():
            return []
        return [_read_job(path) for path in sorted(self.directory.glob("*.json"))]

    def refresh(self, jobs: dict[str, Job], only: str | None = None) -> None:
        """Read what others wrote or deleted since: all jobs, or ``only`` a known one."""
        if only:
            self._refresh_one(jobs, only)
            return
        there = {path.stem for path in self.directory.glob("*.json")}
        for name in jobs.keys() - there:
            del jobs[name]
        for name in sorted(there):
            self._refresh_one(jobs, name)

    def _refresh_one(self, jobs: dict[str, Job], name: str) -> None:
        stamp = file_stamp(self._path(name))
        if stamp is None:
            jobs.pop(name, None)
        elif stamp != self._stamps.get(name):
            with contextlib.suppress(FileNotFoundError):
                jobs[name] = _read_job(self._path(name))
                self._stamps[name] = stamp

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.json"


def _read_job(path: Path) -> Job:
    try:
        job = Job(**read_document(path, "job"))
        if job.id != path.stem or job.kind not in KINDS or job.state not in get_args(JobState):
            raise ValueError(f"not a job: {job.id!r}, {job.kind!r}, {job.state!r}")
        if not isinstance(job.parameters, dict) or not isinstance(job.done, int):
            raise ValueError("not the parameters of a job")
        return job
    except FileNotFoundError:  # another service has just deleted it
        raise
    except (FixstarError, OSError, ValueError, TypeError) as error:
        _log.error(
            "%s is damaged (%s); what it asked for was not finished, ask for it again", path, error
        )
    when = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="milliseconds")
    problem = Problem("damaged-job", "what it asked for may not have been done").body()
    return Job(
        id=path.stem,
        kind="unknown",
        state="failed",
        message="its file is damaged",
        error=problem,
        created=when,
        ended=when,
    )
