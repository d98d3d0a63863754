"""Jobs: one at a time of the heavy ones (check, backfill), and beside them one at a time that indexes.

A job is on disk before it is acknowledged. After a restart those that waited or were under way go on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fixstar.durable import exclusive, remove_leftovers
from fixstar.errors import InputError
from fixstar.service.history import History
from fixstar.service.job_files import KINDS, Job, JobFiles, Kind, now
from fixstar.service.job_work import WORK, StoppedError, intention
from fixstar.service.problems import Problem
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace

__all__ = ["Jobs"]

LANES: tuple[tuple[Kind, ...], ...] = (("index",), ("check", "backfill"))
KEPT = 200  # ended jobs that are remembered
WAITING = 100  # index jobs that may wait
RETRY = 5.0  # seconds until a job whose beginning could not be written is tried again
ATTEMPTS = 5  # times that the process may die under a job before it is given up

_log = logging.getLogger("fixstar.service")
_audit = logging.getLogger("fixstar.audit")


class Jobs:
    """The jobs of one workspace. Threads may share it; one process at a time may run them."""

    def __init__(self, workspace: Workspace, settings: ServiceSettings) -> None:
        self._workspace, self._settings = workspace, settings
        self.history = History(workspace)
        self._files = JobFiles(workspace.path)
        self._jobs: dict[str, Job] = {}
        self._changed = threading.Condition()
        self._writing = threading.Lock()  # taken before _changed where both are
        self._stopping = True  # until it is started
        self._threads: list[threading.Thread] = []
        self._held, self._is_held = contextlib.ExitStack(), False

    def hold(self) -> None:
        """Be the one who runs the jobs of this workspace, or say that another does. ``start`` does it too."""
        if self._is_held:
            return
        try:
            self._held.enter_context(exclusive(self._files.directory))
        except BlockingIOError:
            raise InputError(
                f"another service runs the jobs of {self._workspace.path}; stop it first, or use its address"
            ) from None
        self._is_held = True

    def start(self) -> None:
        """Take up what is left of the last time, and wait for more."""
        self.hold()
        remove_leftovers(self._files.directory)
        with self._changed:
            self._stopping = False
            self._jobs = {job.id: job for job in self._files.load()}
            for job in list(self._jobs.values()):
                if not job.has_ended:
                    self._resume(job)
        self._threads = [
            threading.Thread(target=self._run_lane, args=(lane,), name=f"fixstar-jobs-{lane[0]}", daemon=True)
            for lane in LANES
        ]
        for thread in self._threads:
            thread.start()
        self.history.start()

    def stop(self, timeout: float = 20.0) -> None:
        """Let running jobs finish their batch; they go on after the next start. Waits so many seconds at most."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        end = time.monotonic() + timeout
        self.history.stop()
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            _log.warning("a job did not come to a pause in %.0f s; it goes on from its last whole batch", timeout)
            return  # what it may still write must not meet another service
        self._held.close()
        self._is_held = False

    def require_room(self, kind: Kind) -> None:
        """Refuse as ``submit`` would at this moment: before images are kept for a job that will not be taken on."""
        with self._changed:
            self._refuse(kind)

    def submit(self, kind: Kind, parameters: Mapping[str, Any], by: str | None = None) -> Job:
        """Take a job on; it is on disk when this returns. Refused while another of its kind has to be waited for.

        ``by`` is who asks for it.
        """
        if kind not in KINDS:
            raise InputError(f"a job is one of {', '.join(KINDS)}; got {kind!r}")
        items = parameters.get("items")
        job = Job.made(kind, parameters, None if items is None else len(items), intention(kind, parameters), by)
        with self._changed:
            self._refuse(kind)
            self._files.save(job)
            self._jobs[job.id] = job
            self._changed.notify_all()
        _audit.info("%s was taken on: %s", job, job.message)
        return job

    def _refuse(self, kind: Kind) -> None:
        if self._stopping:
            raise Problem("stopping", "no new jobs", "come again", headers={"Retry-After": "10"})
        active = [job for job in self._jobs.values() if job.kind == kind and not job.has_ended]
        if kind == "index":
            if len(active) >= WAITING:
                seen = f"{len(active)} jobs that index are waiting"
                raise Problem("too-many-jobs", seen, "come again when some are done", headers={"Retry-After": "30"})
        elif active:
            seen = f"{kind} job {active[0].id} is {active[0].state}: {active[0].message}"
            raise Problem("already-running", seen, f"wait for it, or POST /v1/jobs/{active[0].id}/cancel")

    @contextlib.contextmanager
    def overtaking(self, ids: Collection[str]) -> Iterator[bool]:
        """For a write, or deletion, of items: the index jobs taken on before it leave them as it did.

        Tells whether there are such. Where the write fails, they store the items all the same.
        """
        ids = frozenset(ids)
        with self._changed:
            older = [job.id for job in self._jobs.values() if job.awaits(ids)]
        with self._writing if older else contextlib.nullcontext():
            yield bool(older)
            with self._changed:
                for job in [job for job in self._jobs.values() if job.id in older and job.awaits(ids)]:
                    self._keep(job.overtaken_by(ids))

    def get(self, name: str) -> Job:
        """A job by its id."""
        with self._changed:
            if name not in self._jobs:
                raise Problem("unknown-job", f"no job {name!r:.80}", "see /v1/jobs")
            return self._jobs[name]

    def all(self) -> list[Job]:
        """All jobs that are remembered, newest first."""
        with self._changed:
            return sorted(self._jobs.values(), key=lambda job: job.id, reverse=True)

    def latest(self, kind: Kind) -> Job | None:
        """The newest job of a kind."""
        return next((job for job in self.all() if job.kind == kind), None)

    def cancel(self, name: str, by: str | None = None) -> Job:
        """End a job: at once where it waits, after its batch where it runs. One that has ended stays as it is."""
        with self._changed:
            job = self.get(name)
            if job.has_ended or job.cancelling:
                return job
            _audit.info("%s is cancelled by %s", job, by or "nobody known")
            if job.state == "queued":
                return self._end(job, state="cancelled", message="cancelled before it began")
            return self._keep(replace(job, cancelling=True, message="ends after this batch"))

    # --- what happens in the threads

    def _resume(self, job: Job) -> None:
        if job.cancelling:
            self._end(job, state="cancelled", message="cancelled")
        elif job.attempts >= ATTEMPTS:
            seen = f"the service ended {job.attempts} times while it ran"
            self._fail(job.id, Problem("job-abandoned", seen, "see the log, then ask for it again"))
        else:
            self._jobs[job.id] = replace(job, state="queued")

    def _run_lane(self, lane: tuple[Kind, ...]) -> None:
        while (job := self._next(lane)) is not None:
            try:
                self._run(job)
            except Exception:  # such as a full disk: the lane goes on
                _log.exception("job %s could not be recorded", job.id)

    def _next(self, lane: tuple[Kind, ...]) -> Job | None:
        """The oldest job that waits, once there is one; None when it is time to stop."""
        with self._changed:
            while not self._stopping:
                waiting = [job for job in self._jobs.values() if job.state == "queued" and job.kind in lane]
                if waiting:
                    job = min(waiting, key=lambda one: one.id)
                    begun = replace(job, state="running", started=job.started or now(), attempts=job.attempts + 1)
                    try:
                        self._files.save(begun)
                    except OSError as error:  # such as a full disk: it goes on waiting
                        _log.error("job %s cannot begin, it is tried again: %s", job.id, error)
                        self._changed.wait(RETRY)
                        continue
                    _audit.info("%s begins", begun)
                    return self._keep(begun, save=False)
                self._changed.wait()
        return None

    def _run(self, job: Job) -> None:
        try:
            result = WORK[job.kind](self._workspace, _Inside(self, job.id))
        except StoppedError as error:
            self._leave(job.id, error)
            return
        except Exception as error:
            if self._stopping:  # the gallery may have been closed under it
                _log.warning("job %s broke off while the service stopped: %s", job.id, error)
                return
            self._fail(job.id, error)
            return
        self._end(self.get(job.id), state="done", result=result)

    def _leave(self, name: str, error: StoppedError) -> None:
        """It ended early: for good, or until the next start."""
        with self._changed:
            job = self.get(name)
            result = job.result if error.result is None else error.result
            if self._stopping and not job.cancelling:
                self._keep(replace(job, result=result, attempts=0))
            else:
                self._end(job, state="cancelled", result=result, message=error.message)

    def _fail(self, name: str, error: Exception) -> None:
        problem = Problem.of(error, f"job {name}")
        self._end(self.get(name), state="failed", error=problem.body(), message=problem.title)

    def _keep(self, job: Job, save: bool = True) -> Job:
        with self._changed:
            self._jobs[job.id] = job
            if save:
                self._files.save(job)
        return job

    def _end(self, job: Job, **changes: Any) -> Job:
        with self._changed:
            ended = replace(job.without_items(), ended=now(), **changes)
            why = (ended.error or {}).get("detail") or ended.message
            level = logging.ERROR if ended.state == "failed" else logging.INFO
            _audit.log(level, "%s is %s: %s", ended, ended.state, why)
            try:
                self._keep(ended)
            finally:
                over = sorted((one.ended or "", name) for name, one in self._jobs.items() if one.has_ended)[:-KEPT]
                for _, name in over:
                    self._files.delete(name)
                    del self._jobs[name]
        return ended


class _Inside:
    """A running job, for the work that it is."""

    def __init__(self, jobs: Jobs, name: str) -> None:
        self._jobs, self._name = jobs, name

    def job(self) -> Job:
        """As it is now."""
        return self._jobs.get(self._name)

    def note(self, save: bool = False, **changes: Any) -> None:
        """Change what is told about it; with ``save`` also on disk."""
        with self._jobs._changed:
            job = self.job()
            if job.cancelling:
                changes.pop("message", None)  # that it is about to end is what counts
            self._jobs._keep(replace(job, **changes), save)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Collection[str]]:
        """For its write of items: those that others wrote since it was taken on. Meanwhile they wait."""
        with self._jobs._writing:
            yield self.job().overtaken

    def stopped(self) -> bool:
        """Whether it is to end at the next batch."""
        return self._jobs._stopping or self.job().cancelling
