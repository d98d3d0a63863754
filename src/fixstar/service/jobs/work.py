"""What a job does, by its kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fixstar.service.jobs.backfill import backfill
from fixstar.service.jobs.check import check
from fixstar.service.jobs.index import index
from fixstar.service.jobs.records import Result
from fixstar.service.jobs.running import LocalJob, RunningJob, StoppedError
from fixstar.service.jobs.training import train
from fixstar.workspace import Workspace
from fixstar.workspace.snapshot import take_snapshot


def snapshot(space: Workspace, running: LocalJob) -> Result:
    """Copy the workspace without this job, so that a service over the copy does not repeat it."""
    job = running.job()

    def advance(files: int) -> None:
        if running.stopped():
            raise StoppedError("the older snapshot is as it was")
        running.note(done=files)

    target = Path(job.parameters["folder"])
    itself = f"state/jobs/{job.id}.json"
    return take_snapshot(space.path, target, advance, without=(itself,))._asdict()


LONG_WORK: dict[
    str, Callable[[Workspace, RunningJob], Result]
] = {  # may run in a process of its own
    "check": check,
    "backfill": backfill,
    "train": train,
    "upgrade": train,
}
WORK: dict[str, Callable[[Workspace, LocalJob], Result]] = {
    **LONG_WORK,
    "index": index,
    "snapshot": snapshot,
}
