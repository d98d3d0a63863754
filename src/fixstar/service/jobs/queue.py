"""The queue of one workspace's jobs: accept, run, resume, cancel.

Index jobs run one at a time. Beside them runs one heavy job (check, backfill) at a time, one training and one snapshot.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fixstar.durable import exclusive, remove_leftovers
from fixstar.errors import DeploymentMovedError, FixstarError, InputError
from fixstar.images import DecodeProcesses
from fixstar.service.jobs import signs_of_life
from fixstar.service.jobs.history import History
from fixstar.service.jobs.process import ProcessEndedError, run_in_process
from fixstar.service.jobs.records import KINDS, Job, JobFiles, Kind, Result, now
from fixstar.service.jobs.running import LocalJob, StoppedError
from fixstar.service.jobs.signs_of_life import SignsOfLife
from fixstar.service.jobs.work import LONG_WORK, WORK
from fixstar.service.problems import Problem
from fixstar.service.settings import AuditLog, ServiceSettings
from fixstar.workspace import Workspace
from fixstar.workspace.files import gallery_url

LANES: tuple[tuple[Kind, ...], ...] = (
    ("index",),
    ("check", "backfill"),
    ("train", "upgrade"),
    ("snapshot",),
)
KEPT = 200  # ended jobs that are remembered
WAITING = 100  # index jobs that may wait
RETRY = 5.0  # seconds until a job whose start could not be written is tried again
ATTEMPTS = 5  # times that the process may die under a job before it is abandoned
_WAIT = 30.0  # seconds for another service that changes jobs or items
_log = logging.getLogger("fixstar.service")


class Jobs:
    """The jobs of one workspace. Threads may share it; other processes only if the settings say ``shared``."""

    def __init__(self, workspace: Workspace, settings: ServiceSettings | None = None) -> None:
        self._workspace = workspace
        limits = settings or ServiceSettings()
        self._audit = AuditLog(limits.gallery)
        self.decoding = DecodeProcesses(2, limits.decode_seconds, limits.pixels)
        self.history = History(workspace)
        self._files = JobFiles(workspace.path)
        self._jobs: dict[str, Job] = {}
        self._changed = threading.Condition()
        self._write = threading.Lock()  # taken before _changed where both are
        self._shared = limits.shared
        self._in_processes = limits.jobs_in_processes
        self._fresh = False  # whether what other services changed has just been read
        self._alive = SignsOfLife(workspace.path)
        self._over = threading.Event()
        self._stopping = True  # until it is started
        self._threads: list[threading.Thread] = []
        self._lock = contextlib.ExitStack()
        self._is_locked = False

    def lock(self) -> None:
        """Lock the jobs of this workspace, or refuse if another process has them. ``start`` does it too."""
        if self._is_locked:
            return
        seen = f"another service runs the jobs of {self._workspace.path}; stop it first, or use its address"
        if self._shared:
            seen = (
                f"a service that does not share {self._workspace.path} runs its jobs; stop it first"
            )
        self._lock.enter_context(
            exclusive(self._files.directory, busy=InputError(seen), shared=self._shared)
        )
        self._is_locked = True

    def start(self) -> None:
        """Resume unfinished jobs, and wait for more."""
        self.lock()
        if self._shared:
            self._alive.join()
            self._over.clear()
            threading.Thread(target=self._beat, name="fixstar-alive", daemon=True).start()
        with self._changing():
            remove_leftovers(self._files.directory)
            self._stopping = False
            if not self._shared:
                self._jobs = {job.id: job for job in self._files.load()}
                for job in list(self._jobs.values()):
                    if not job.has_ended:
                        self._resume(job)
        self._threads = [
            threading.Thread(
                target=self._run_lane, args=(lane,), name=f"fixstar-jobs-{lane[0]}", daemon=True
            )
            for lane in LANES
        ]
        for thread in self._threads:
            thread.start()
        self.history.start()

    def stop(self, timeout: float = 20.0) -> None:
        """Let running jobs finish their batch; they resume after the next start. Waits so many seconds at most."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        end = time.monotonic() + timeout
        self.history.stop()
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            _log.warning(
                "a job did not pause within %.0f s; it resumes from its last whole batch", timeout
            )
            return  # still locked: what it may yet write must not meet another service
        if self._shared:
            self._over.set()
            self._alive.bury(self._alive.name)  # others need not wait
        self._lock.close()
        self._is_locked = False

    def require_room(self, kind: Kind) -> None:
        """Refuse as ``submit`` would now, before images are kept for a job."""
        with self._changed:
            self._look()
            if self._stopping:
                raise Problem("stopping", "no new jobs", headers={"Retry-After": "10"})
            active = [job for job in self._jobs.values() if job.kind == kind and not job.has_ended]
            if kind == "index":
                if len(active) >= WAITING:
                    waiting = f"{len(active)} index jobs are waiting"
                    raise Problem("too-many-jobs", waiting, headers={"Retry-After": "30"})
            elif active:
                seen = f"{kind} job {active[0].id} is {active[0].state}: {active[0].message}"
                raise Problem(
                    "already-running", seen, f"wait for it, or POST /v1/jobs/{active[0].id}/cancel"
                )

    def submit(self, kind: Kind, parameters: Mapping[str, Any], by: str | None = None) -> Job:
        """Accept a job requested by ``by``; it is on disk when this returns. Refused while another job blocks it."""
        with self._changing():
            self.require_room(kind)
            newest = max((one.id for one in self._jobs.values() if one.kind in KINDS), default="")
            job = Job.new(kind, parameters, by=by, newest=newest)
            self._files.save(job)
            self._jobs[job.id] = job
            self._changed.notify_all()
        self._audit.info("%s was accepted: %s", job, job.message)
        return job

    @contextlib.contextmanager
    def overtaking(self, ids: Collection[str]) -> Iterator[bool]:
        """Held while a request writes or deletes items. Index jobs accepted before then leave these items alone.

        Yields whether there are such jobs. If the write fails, they store the items as planned.
        """
        ids = frozenset(ids)
        with self._changed:
            self._look()
            older = [job.id for job in self._jobs.values() if job.awaits(ids)]
        if not older:
            yield False
            return
        with self.writing():
            yield True
            with self._changing():
                for job in [self._jobs[name] for name in older if name in self._jobs]:
                    if job.awaits(ids):
                        self._keep(job.overtaken_by(ids))

    def get(self, name: str) -> Job:
        """A job by its id."""
        with self._changed:
            self._look()
            if name not in self._jobs:
                raise Problem("unknown-job", f"no job {name!r:.80}")
            return self._jobs[name]

    def all(self) -> list[Job]:
        """All jobs that are remembered, newest first."""
        with self._changed:
            self._look()
            return sorted(self._jobs.values(), key=lambda job: job.id, reverse=True)

    def latest(self, kind: Kind) -> Job | None:
        """The newest job of a kind."""
        return next((job for job in self.all() if job.kind == kind), None)

    def cancel(self, name: str, by: str | None = None) -> Job:
        """Cancel a job: at once if it waits, after its batch if it runs. An ended job stays as it is."""
        with self._changing():
            job = self.get(name)
            if job.has_ended or job.cancelling:
                return job
            self._audit.info("%s is cancelled by %s", job, by or "unknown")
            if job.state == "queued":
                return self._end(job, state="cancelled", message="cancelled before it began")
            return self._keep(replace(job, cancelling=True, message="ends after this batch"))

    # --- for the work of a running job

    @property
    def is_stopping(self) -> bool:
        """Whether running jobs are to end after their batch, because the service stops."""
        return self._stopping

    def current(self, name: str) -> Job | None:
        """A job that this service runs, as it is now; costs one ``stat``."""
        with self._changed:
            self._look(name)
            return self._jobs.get(name)

    def change(self, changed: Callable[[], Job], save: bool) -> None:
        """Keep the job that ``changed`` returns; nothing else changes jobs meanwhile. With ``save`` also on disk."""
        with self._changing() if save else self._changed:
            self._keep(changed(), save)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Held while a job, or a request that overtakes it, writes items."""
        with self._write:
            if not self._shared:
                yield
                return
            busy = Problem(
                "busy", "another service is writing these items", headers={"Retry-After": "1"}
            )
            with exclusive(self._files.directory / "writing", _WAIT, busy):
                yield

    def training_images(self, name: str) -> Path:
        """The file of what a training job has begun to learn from."""
        return self._files.images(name)

    # --- inside

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Held while jobs change on disk: other services wait, and their earlier changes are read first."""
        with self._changed:
            if not self._shared or self._fresh:
                yield
                return
            busy = Problem(
                "busy", "another service is changing the jobs", headers={"Retry-After": "1"}
            )
            with exclusive(self._files.directory / "changing", _WAIT, busy):
                self._look()
                self._fresh = True
                try:
                    yield
                finally:
                    self._fresh = False

    def _look(self, only: str | None = None) -> None:
        """Read what other services changed."""
        if self._shared and not self._fresh:
            self._files.refresh(self._jobs, only)

    def _beat(self) -> None:
        while not self._over.wait(signs_of_life.BEAT):
            try:
                self._alive.beat()
            except OSError as error:
                _log.warning("other services cannot see that this one is alive: %s", error)

    def _resume(self, job: Job) -> None:
        if job.cancelling:
            self._end(job, state="cancelled", message="cancelled")
        elif job.attempts >= ATTEMPTS:
            self._fail(
                job.id,
                Problem("job-abandoned", f"the service ended {job.attempts} times while it ran"),
            )
        else:
            self._jobs[job.id] = replace(job, state="queued")

    def _run_lane(self, lane: tuple[Kind, ...]) -> None:
        while (job := self._next(lane)) is not None:
            try:
                self._run(job)
            except Exception:  # such as a full disk: the lane continues
                _log.exception("job %s could not be recorded", job.id)

    def _next(self, lane: tuple[Kind, ...]) -> Job | None:
        """Wait for the next job, the oldest first; None when the service stops."""
        with self._changed:
            while not self._stopping:
                self._look()
                job = self._waiting(lane)
                if job is None:
                    self._changed.wait(signs_of_life.BEAT if self._shared else None)
                    continue
                try:
                    with self._changing():
                        started = self._claim(lane)
                except (OSError, Problem) as error:  # such as a full disk
                    _log.error("job %s cannot start, it is tried again: %s", job.id, error)
                    self._changed.wait(RETRY)
                    continue
                if started is not None:
                    return started
        return None

    def _waiting(self, lane: tuple[Kind, ...]) -> Job | None:
        """The oldest job that waits or whose service died, unless another service runs a job of this lane."""
        left = [job for job in self._jobs.values() if job.kind in lane and not job.has_ended]
        others = [
            job.runner for job in left if job.state == "running" and job.runner != self._alive.name
        ]
        if self._shared and any(map(self._alive.is_alive, others)):
            return None
        waiting = [job for job in left if job.state == "queued" or self._shared]
        return min(waiting, key=lambda one: one.id, default=None)

    def _claim(self, lane: tuple[Kind, ...]) -> Job | None:
        """Start the next job; None if another service has started it, or if it has ended."""
        job = self._waiting(lane)
        if job is not None and job.state == "running":
            self._audit.info(
                "%s is taken over: the service %s is gone", job, job.runner or "before this one"
            )
            if job.runner != self._alive.name:
                self._alive.bury(job.runner)
            self._resume(job)
            job = self._jobs.get(job.id)
        if job is None or job.has_ended:
            return None
        started = replace(
            job,
            state="running",
            started=job.started or now(),
            attempts=job.attempts + 1,
            runner=self._alive.name,
        )
        self._files.save(started)
        self._audit.info("%s begins", started)
        return self._keep(started, save=False)

    def _run(self, job: Job) -> None:
        running = LocalJob(self, job)
        try:
            if self._has_own_process(job):
                result = run_in_process(self._workspace, running)
            else:
                result = WORK[job.kind](self._workspace, running)
        except Exception as error:
            self._finish(job, None, error)
        else:
            self._finish(job, result)

    def _has_own_process(self, job: Job) -> bool:
        """Whether a job's work is done in another process, which cannot see a gallery in the memory of this one."""
        return (
            self._in_processes
            and job.kind in LONG_WORK
            and gallery_url(self._workspace.path) != ":memory:"
        )

    def _finish(self, job: Job, result: Result | None, error: Exception | None = None) -> None:
        """Record how a job ended, unless another service has it now."""
        with self._changing():
            known = self._jobs.get(job.id)
            if known is None or known.runner != job.runner:
                _log.warning("%s was taken over by another service", job)
            elif error is None:
                self._end(known, state="done", result=result)
            elif isinstance(error, StoppedError):
                self._leave(job.id, str(error), error.result)
            elif isinstance(error, DeploymentMovedError):
                self._leave(job.id, str(error))
            elif self._stopping:  # the gallery may have been closed under it
                _log.warning("job %s broke off while the service stopped: %s", job.id, error)
            elif isinstance(error, ProcessEndedError):
                self._begin_again(known, error)
            else:
                self._fail(job.id, error)

    def _begin_again(self, job: Job, error: ProcessEndedError) -> None:
        """Resume a job whose process was killed or crashed, unless that has happened too often."""
        if job.cancelling:
            self._end(job, state="cancelled", message="cancelled")
        elif job.attempts >= ATTEMPTS:
            self._fail(
                job.id, Problem("process-ended", f"{error}, at the last of {job.attempts} attempts")
            )
        else:
            _log.warning("%s begins again: %s", job, error)
            self._keep(replace(job, state="queued", message=f"begins again: {error}"))

    def _leave(self, name: str, message: str, result: Result | None = None) -> None:
        """End a job early, or keep it for the next start if the service stops."""
        job = self.get(name)
        if result is None:
            result = job.result
        if self._stopping and not job.cancelling:
            self._keep(replace(job, result=result, attempts=0))
        else:
            self._end(job, state="cancelled", result=result, message=message)

    def _fail(self, name: str, error: Exception) -> None:
        problem = Problem.of(error, f"job {name}")
        _log.warning("job %s failed: %s", name, error)  # with all paths: the log is the operator's
        job = self.get(name)
        places = (
            self._workspace.path.absolute(),
            job.parameters.get("data"),
            job.parameters.get("folder"),
        )
        problem.detail = _without_places(problem.detail, [Path(place) for place in places if place])
        self._end(job, state="failed", error=problem.body(), message=problem.title)

    def _keep(self, job: Job, save: bool = True) -> Job:
        with self._changed:
            if save and self._shared:
                self._files.save(job)  # first: what is not on disk does not count
            self._jobs[job.id] = job
            if save and not self._shared:
                self._files.save(job)
        return job

    def _end(self, job: Job, **changes: Any) -> Job:
        with self._changing():
            ended = replace(job.without_items(), ended=now(), **changes)
            if ended.state != "done" and self._files.images(job.id).exists():
                self._discard_training()
            why = (ended.error or {}).get("detail") or ended.message
            level = logging.ERROR if ended.state == "failed" else logging.INFO
            self._audit.log(level, "%s is %s: %s", ended, ended.state, why)
            try:
                self._keep(ended)
            finally:
                self._forget_oldest()
        return ended

    def _forget_oldest(self) -> None:
        """Delete ended jobs beyond the ``KEPT`` newest."""
        ended = [(job.ended or "", job.id) for job in self._jobs.values() if job.has_ended]
        for _, name in sorted(ended)[:-KEPT]:
            self._files.delete(name)
            del self._jobs[name]

    def _discard_training(self) -> None:
        """Delete what a training left that will not resume."""
        from fixstar.workspace.training import discard_unfinished

        try:
            discard_unfinished(self._workspace.registry)
        except (FixstarError, OSError) as error:
            _log.warning("an unfinished training was not deleted: %s", error)


def _without_places(text: str, folders: Iterable[Path]) -> str:
    """The message without the paths of this machine.

    >>> _without_places("/data/sets/shoes/a: no images; /data/sets/shoes is empty", [Path("/data/sets/shoes")])
    'a: no images; shoes is empty'
    """
    for folder in folders:
        text = text.replace(f"{folder}/", "").replace(str(folder), folder.name)
    return text
