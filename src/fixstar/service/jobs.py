"""Work that continues after the response: indexing, checks, backfills, training, snapshots.

Index jobs run one at a time. Beside them runs one heavy job (check, backfill) at a time, one training and one snapshot.
A job is on disk, state/jobs/ID.json, before it is acknowledged, so that what was promised outlives the process. After a
restart every unfinished job resumes: indexing after the last batch that was stored, a backfill in its plan, a training
after its last epoch, others from their start.

Several services may share a workspace (``ServiceSettings.shared``). Then the files are what counts: they are read again
when another service has replaced them, and changed under a lock. A service that runs a job shows every second that it
is alive; if it does not for ten, another one takes the job over, and the first may no longer write for it.
Needs no web framework: the command line reads the files of jobs without one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from fixstar.data.formats import open_images_within
from fixstar.data.image_set import ImageSet
from fixstar.durable import (
    DAMAGE,
    WatchedFile,
    document,
    exclusive,
    file_stamp,
    make_directory,
    read_document,
    remove_leftovers,
    replace_json,
)
from fixstar.errors import (
    CheckpointError,
    DeploymentMovedError,
    FixstarError,
    ImageError,
    InputError,
    ItemError,
    NextStep,
    UnknownNameError,
    plural,
)
from fixstar.gallery.filters import Payload
from fixstar.gallery.store import Vectors
from fixstar.images import DecodeProcesses, ImageSource, Pixels, Preprocessing
from fixstar.models import backbone_names
from fixstar.progress import reported_to
from fixstar.service.problems import Problem, to_step
from fixstar.service.settings import AuditLog, ServiceSettings
from fixstar.service.training_process import train_apart
from fixstar.workspace import BackfillOptions, CatalogueItem, FitOptions, GateRules, Workspace
from fixstar.workspace.backfill.planning import PlannedBackfill, require_target
from fixstar.workspace.backfill.run import BackfillPlan, KeptItem, PlanFiles
from fixstar.workspace.pairs import known_label
from fixstar.workspace.snapshot import take_snapshot

if TYPE_CHECKING:
    from fixstar.evaluation import VersionFeatures
    from fixstar.training import Version

Kind = Literal["index", "check", "backfill", "train", "upgrade", "snapshot"]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LANES: tuple[tuple[Kind, ...], ...] = (
    ("index",),
    ("check", "backfill"),
    ("train", "upgrade"),
    ("snapshot",),
)
KEPT = 200  # ended jobs that are remembered
WAITING = 100  # index jobs that may wait
PATIENCE = 5.0  # seconds that the current batch may still take where a job is to end
RETRY = 5.0  # seconds until a job whose start could not be written is tried again
ATTEMPTS = 5  # times that the process may die under a job before it is abandoned
BATCH = 64  # images that an index job stores at a time
BEAT = 1.0  # seconds between two signs of life of a service that shares the workspace
LEASE = 10.0  # seconds without one after which others take over its jobs

_REEMBEDDING = "re-embedding with {target}, order: {order}, budget: {budget}"
_BEGINS = {  # what a job says until it begins, from its parameters
    "index": "embedding with the deployed version",
    "check": "checking {version}",
    "backfill": _REEMBEDDING,
    "train": "reading the images",
    "upgrade": "reading the images",
    "snapshot": "copying the workspace",
}
_STAMP = "%Y%m%dT%H%M%S%f"  # how an id begins
_NAMED = 100  # items that a result names
_WAIT = 30.0  # seconds for another service that changes jobs or items
_COUNTED = ("done", "done before", "deleted", "rewritten")  # of a plan's items
_log = logging.getLogger("fixstar.service")

Result = dict[str, Any]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


# --- jobs on disk


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
    def new(cls, kind: Kind, parameters: Mapping[str, Any], by: str | None = None, newest: str = "") -> Job:
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
            message=_BEGINS[kind].format(**parameters),
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
        """Whether nothing more will happen to it."""
        return self.state in ("done", "failed", "cancelled")

    def without_items(self) -> Job:
        """The same without its lists of items and queries, which may be long."""
        lists = ("items", "overtaken", "relevant")
        return replace(self, parameters={key: value for key, value in self.parameters.items() if key not in lists})

    def awaits(self, ids: Collection[str]) -> bool:
        """Whether it may still store one of these items."""
        if self.has_ended:
            return False
        pending = self.parameters.get("items", ())[self.done :]
        return any(item["id"] in ids for item in pending)

    @property
    def overtaken(self) -> frozenset[str]:
        """Items that others wrote or deleted after it was accepted: it leaves them as they are."""
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
        self._stamps: dict[str, tuple[int, int, int] | None] = {}  # of files as they were read or written last

    def save(self, job: Job) -> None:
        """Write a job as it is now. One that has ended needs no list of items or images any more."""
        if job.has_ended:
            job = job.without_items()
            self.images(job.id).unlink(missing_ok=True)
        replace_json(self._path(job.id), document("job", asdict(job)))
        self._stamps[job.id] = file_stamp(self._path(job.id))

    def images(self, name: str) -> Path:
        """What a training job has begun to learn from: it resumes with the same images."""
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
        _log.error("%s is damaged (%s); what it asked for was not finished, ask for it again", path, error)
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


class SignsOfLife:
    """Which of the services that share a workspace are alive: each touches a file of its own every second.

    Others time by their own clock how long it has not changed, so the clocks of machines may differ.
    """

    def __init__(self, workspace: Path) -> None:
        self._directory = workspace / "state" / ".services"  # snapshots leave it out
        self._seen: dict[str, tuple[int, float]] = {}
        self.name = ""  # of this service

    def join(self) -> None:
        """Register this service under a new name."""
        make_directory(self._directory)
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        (self._directory / self.name).touch()

    def beat(self) -> None:
        """Touch this service's file. If others took the service for dead, they have its jobs, and it joins again."""
        try:
            os.utime(self._directory / self.name)
        except FileNotFoundError:
            _log.warning("other services took this one for dead: its file did not change for %.0f s", LEASE)
            self.join()

    def is_alive(self, name: str) -> bool:
        """Whether a service (or this one) changed its file within the last ``LEASE`` seconds, as seen from here."""
        try:
            changed = (self._directory / name).stat().st_mtime_ns
        except FileNotFoundError:
            return False
        now = time.monotonic()
        known, since = self._seen.get(name, (0, now))
        if changed != known:
            self._seen[name] = changed, now
        return bool(name) and (changed != known or now - since < LEASE)

    def bury(self, name: str) -> None:
        """Remove a dead service's file, from which it also learns that others took it for dead."""
        if name:  # else a service that did not share the workspace ran the job
            (self._directory / name).unlink(missing_ok=True)
            self._seen.pop(name, None)


# --- what jobs do


class StoppedError(Exception):
    """A job ended early: it was told to, or there is no point in continuing."""

    def __init__(self, message: str, result: Result | None = None) -> None:
        super().__init__(message)
        self.result = result


class RunningJob:
    """A job seen from its own work."""

    def __init__(self, jobs: Jobs, job: Job) -> None:
        self._jobs = jobs
        self._name = job.id
        self._runner = job.runner
        self.images = jobs._files.images(job.id)  # what a training job learns from
        self.trains_apart = jobs._trains_apart
        self._patience = 0.0  # when the batch of a job that is to end is given up
        self._due = 0.0  # when other services are to see its progress

    def job(self) -> Job:
        """As it is now. Raises ``StoppedError`` if another service has taken it over."""
        job = self._jobs._current(self._name)
        if job is None or job.runner != self._runner:
            raise StoppedError("another service has taken it over")
        return job

    def note(self, save: bool = False, **changes: Any) -> None:
        """Change what is reported about it; with ``save`` also on disk, where other services see it every second."""
        if self._runner and time.monotonic() >= self._due:
            save = True
            self._due = time.monotonic() + BEAT
        if save:
            with self._jobs._changing():
                self._change(changes, save)
        else:
            with self._jobs._changed:
                self._change(changes, save)

    def _change(self, changes: dict[str, Any], save: bool) -> None:
        job = self.job()
        if job.cancelling:
            changes.pop("message", None)  # that it is about to end is what counts
        self._jobs._keep(replace(job, **changes), save)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Collection[str]]:
        """Held while it writes items: gives those that others wrote since it was accepted. Meanwhile they wait."""
        with self._jobs._writing():
            yield self.job().overtaken

    def stopped(self) -> bool:
        """Whether it is to end after the current batch."""
        return self._jobs._stopping or self.job().cancelling

    def decode(self, image: ImageSource, preprocessing: Preprocessing) -> Pixels:
        """The pixels of one image. If the job is to end, a batch that takes long is given up as a whole."""
        if self.stopped():
            self._patience = self._patience or time.monotonic() + PATIENCE
        if not self._patience or time.monotonic() < self._patience:
            try:
                return self._jobs._processes.pixels(image, preprocessing)
            except ImageError:
                if not self.stopped():  # else the image may be good
                    raise
        raise StoppedError("it ended within a batch, of which nothing was stored")


_NOTHING_INDEXED: Result = {
    "added": 0,
    "overtaken": 0,
    "versions": {},
    "bad": [],
    "bad_count": 0,
}


def _index(space: Workspace, running: RunningJob) -> Result:
    """Embed images that the workspace keeps, with the version that is deployed when their batch comes."""
    job = running.job()
    items: Sequence[Mapping[str, Any]] = job.parameters["items"]
    done = job.done
    result = dict(job.result or _NOTHING_INDEXED)
    overtaken: list[str] = []

    def store(version: str, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload]) -> None:
        with running.writing() as written:  # nobody writes between this look and the write
            own = [row for row, name in enumerate(ids) if name not in written]
            if own:
                names = [ids[row] for row in own]
                kept = [payloads[row] for row in own]
                space.gallery.upsert(version, names, vectors[own], kept)
        overtaken.extend(name for name in ids if name in written)

    while done < len(items):
        if running.stopped():
            raise StoppedError(f"{done:,} of {plural(len(items), 'item')} processed", result)
        rows = items[done : done + BATCH]
        batch = [CatalogueItem(one["id"], space.path / one["image"], one["payload"]) for one in rows]
        overtaken.clear()
        try:  # again: the payload may have changed
            stored = space.index(batch, again=True, store=store, decode=running.decode)
        except StoppedError:
            continue
        bad = [_bad_image(one, done, rows) for one in stored.bad]
        added = stored.added - len(overtaken)
        versions = dict(result["versions"])
        versions[stored.version] = versions.get(stored.version, 0) + added
        result = {
            "added": result["added"] + added,
            "overtaken": result["overtaken"] + len(overtaken),
            "versions": versions,
            "bad": [*result["bad"], *bad][:_NAMED],
            "bad_count": result["bad_count"] + len(bad),
        }
        done += len(batch)
        running.note(save=True, done=done, result=result)
    return result


def _bad_image(image: ItemError, before: int, batch: Sequence[Mapping[str, Any]]) -> Result:
    """An image that was left out, as ``POST /v1/items`` names it."""
    row = next(number for number, one in enumerate(batch) if one["id"] == image.name)
    return {
        "id": image.name,
        "index": before + row,
        "file": batch[row]["file"],
        "reason": image.reason,
    }


def _check(space: Workspace, running: RunningJob) -> Result:
    """Check a version against all live vectors, on images of a name, held-out ones, or by relevant items."""
    wanted = running.job().parameters
    rules = GateRules(
        confidence=wanted["confidence"],
        tolerance=wanted["tolerance"],
        seed=wanted["seed"],
        weight=wanted["weight"],
    )

    def embed(queries: ImageSet, gallery: ImageSet, names: Sequence[str]) -> list[VersionFeatures]:
        features: list[VersionFeatures] = []
        images = len(queries) + len(gallery)
        steps = len(names) + 1  # the last one is the comparison

        def begin(step: int, message: str) -> None:
            if running.stopped():
                raise StoppedError("nothing was decided")
            running.note(done=step, total=steps, message=message)

        for step, name in enumerate(names):
            begin(step, f"embedding {images:,} {space.registry.reads()} with {name}")
            features += space.features(queries, gallery, [name], device=space.device, progress=False)
        begin(len(names), "comparing")
        return features

    fitting = FitOptions(
        refit=wanted["refit"],
        sample=wanted["sample"],
        seed=wanted["seed"],
    )
    check = space.check(
        wanted["version"],
        rules=rules,
        fitting=fitting,
        data=wanted["data"],
        progress=False,
        embed=embed,
        relevant={one["text"]: one["items"] for one in wanted.get("relevant") or ()},
    )
    running.note(done=running.job().total or 0, message=f"{check.version}: {check.outcome}")
    return {
        "version": check.version,
        "outcome": check.outcome,
        "reasons": list(check.reasons),
        "next_steps": [to_step(step) for step in check.next_steps],
    }


def _backfill(space: Workspace, running: RunningJob) -> Result:
    """Re-embed older items with the version that was deployed when the job was asked for, or not at all."""
    wanted = running.job().parameters
    options = BackfillOptions(
        budget=wanted["budget"],
        order=wanted["order"],
        rate=wanted["rate"],
        stop=running.stopped,
        target=require_target(space.serving, wanted["target"]),
        anyway=wanted["anyway"],
    )
    known = dict(running.job().result or {})
    files = PlanFiles(space.path)
    _await_predecessor(files.exclusive, running)
    finished = _finished_plan(files, wanted)
    if finished is not None:
        return {
            **known,
            **_counts(files, finished, wanted["counted"]),
            **_kept_items(files.kept(finished)),
            "left": 0,
            "stopped": None,
        }
    planned = space.plan_backfill(options, predict="predicted" not in known)
    if "predicted" not in known:
        known["predicted"] = planned.predicted and planned.predicted.to_json()
    plan = planned.plan
    known |= {
        "version": plan.target,
        "planned": len(plan.ids),
        "old": plan.old,
        "without_image": plan.without_image,
    }
    if planned.loses and plan.ids and not options.anyway:
        running.note(result=known)  # saved only with the refusal: a prediction on disk is not judged again
        raise _loses(planned)
    counts = files.counts(plan)  # before this job: an earlier one may have begun the plan
    counted = wanted.get("counted") or {name: counts.get(name, 0) for name in _COUNTED}
    running.note(
        save=True,
        parameters={**wanted, "token": plan.token, "counted": counted},
        result=known,
        total=len(plan.ids),
        done=0,
        message=_REEMBEDDING.format(**vars(plan)),
    )
    done = 0
    started = time.monotonic()

    def advance(count: int = 1, note: str | None = None) -> None:  # noqa: ARG001
        nonlocal done
        done += count
        seconds = known.get("seconds", 0.0) + time.monotonic() - started
        running.note(save=True, done=done, result={**known, **_counts(files, plan, counted), "seconds": seconds})

    outcome = space.backfill(options, advance, judged=plan.token)
    result = {
        **known,
        **_counts(files, plan, counted),
        **_kept_items(outcome.kept),
        "left": outcome.left,
        "measured": [*known.get("measured", []), *(point._asdict() for point in outcome.measured)],
        "stopped": outcome.stopped,
        "seconds": known.get("seconds", 0.0) + outcome.seconds,
    }
    if result["stopped"]:
        raise StoppedError(result["stopped"], result)
    return result


def _await_predecessor(hold: Callable[[], AbstractContextManager[None]], running: RunningJob) -> None:
    """Wait for a service that was taken for dead, or for a training that ends with it, to release its locks."""
    while running.job().attempts > 1:
        try:
            with hold():
                return
        except (InputError, CheckpointError) as error:
            if running.stopped():
                raise StoppedError("another service still works on it") from error
            time.sleep(BEAT)


def _loses(planned: PlannedBackfill) -> Problem:
    """The refusal of a plan that is predicted to lose accuracy."""
    seen = f"this plan is predicted to {planned.loss}, and the old vectors would not be kept; nothing was embedded"
    instead = " (no larger budget is predicted to gain, either)"
    if planned.larger_budgets:
        instead = f', send a larger "budget" ({", ".join(planned.larger_budgets)})'
    hint = f'leave everything as it is{instead}, or send "anyway": true to do it nevertheless'
    steps = [NextStep("backfill", {"budget": budget}) for budget in planned.larger_budgets]
    return Problem("backfill-loses", seen, hint, *steps, NextStep("backfill", {"anyway": True}, "despite this"))


def _finished_plan(files: PlanFiles, wanted: Mapping[str, Any]) -> BackfillPlan | None:
    """The job's plan if a restart came between its last batch and its end; a new plan would exceed the budget."""
    if "token" not in wanted:
        return None
    plan = files.plan()
    if plan is None or plan.token != wanted["token"]:
        raise StoppedError("another backfill has taken its place")
    if files.position(plan) < len(plan.ids):
        return None
    return plan


def _counts(files: PlanFiles, plan: BackfillPlan, before: Mapping[str, int]) -> Result:
    """What became of the job's items. The counts are saved with the plan's cursor, so that a kill loses none."""
    counts = files.counts(plan)
    return {name.replace(" ", "_"): max(0, counts.get(name, 0) - before[name]) for name in _COUNTED}


def _kept_items(items: Sequence[KeptItem]) -> Result:
    return {"kept": [item._asdict() for item in items[:_NAMED]], "kept_count": len(items)}


def _snapshot(space: Workspace, running: RunningJob) -> Result:
    """Copy the workspace, but for this job: nobody wants it repeated where the copy is served."""
    job = running.job()

    def advance(files: int) -> None:
        if running.stopped():
            raise StoppedError("the older snapshot is as it was")
        running.note(done=files)

    target = Path(job.parameters["folder"])
    itself = f"state/jobs/{job.id}.json"
    return take_snapshot(space.path, target, advance, without=(itself,))._asdict()


def require_no_training(space: Workspace) -> None:
    """Refuse to train while another training, such as one from the command line, is under way or was interrupted."""
    name = space.registry.unfinished()
    if name is not None:
        raise Problem("training-unfinished", f"the training of {name} has begun and has not finished")


def planned_training(
    space: Workspace, kind: str, wanted: Mapping[str, Any]
) -> Callable[[ImageSet, Callable[[str], object]], Version]:
    """The training that is asked for, ready to run; refused here if it cannot. It loads the training code."""
    backbone = wanted["backbone"]
    if backbone is not None and backbone not in backbone_names():
        raise UnknownNameError("backbone", backbone, backbone_names())
    names = space.versions()
    if kind == "train":
        if names:
            raise InputError(f"there is {names[-1]} already", NextStep("upgrade", {"data": ...}))
        return _planned_first(space, wanted)
    if not names:
        raise InputError("there is no version yet", NextStep("train", {"data": ...}))
    return _planned_upgrade(space, wanted)


def _planned_first(
    space: Workspace, wanted: Mapping[str, Any]
) -> Callable[[ImageSet, Callable[[str], object]], Version]:
    """The training of the first version."""
    from fixstar.methods import create_method
    from fixstar.training import Settings, paper_recipe

    method = create_method(wanted["method"] or "vega", **wanted["options"])
    recipe = paper_recipe(method.scenario)
    if wanted["epochs"] is not None:
        recipe = recipe.shortened(wanted["epochs"])
    if wanted["learning_rate"] is not None:
        recipe = replace(recipe, learning_rate=wanted["learning_rate"])
    settings = Settings(
        wanted["backbone"],
        capacity=wanted["capacity"],
        recipe=recipe,
        bad_images="skip",
        seed=wanted["seed"],
        device=space.device,
    )
    share = wanted["hold_out"]
    if share is None:
        share = 0.1
    return lambda images, _: space.train(images, settings, method, progress=False, hold_out=share)


def _planned_upgrade(
    space: Workspace, wanted: Mapping[str, Any]
) -> Callable[[ImageSet, Callable[[str], object]], Version]:
    """The training of the next version, with the last one's method and recipe unless others are asked for."""
    from fixstar.methods import create_method
    from fixstar.workspace.training import UpgradeOptions, checked_trials

    last = space.method()
    name = wanted["method"]
    options = wanted["options"]
    if name is None:
        name = last.name
        options = {**last.options, **options}
    method = create_method(name, **options)  # refused here if it cannot be made
    settings = space.settings()
    recipe = None
    if wanted["epochs"] is not None:
        recipe = settings.recipe.shortened(wanted["epochs"])
    share = wanted["hold_out"]
    if share is None:
        share = 0.1 if settings.replay_per_class else 0.0  # else images may not be kept
    is_other_method = wanted["method"] is not None or bool(wanted["options"])
    upgrade = UpgradeOptions(
        recipe=recipe,
        method=method if is_other_method else None,
        learning_rate=wanted["learning_rate"],
        seed=wanted["seed"],
        device=space.device,
        bad_images="skip",
        replace=wanted["backbone"],
        hold_out=share,
        progress=False,
    )
    trials = checked_trials(wanted["trials"])
    return lambda images, say: space.upgrade(images, upgrade, trials=trials, say=say)


def _train(space: Workspace, running: RunningJob) -> Result:
    """Train the first version or the next one. A restart resumes with the same images after the last epoch."""
    from fixstar.training.run_directory import RunDirectory
    from fixstar.workspace.training import AlreadyTrainedError

    job = running.job()
    resumes = running.images.exists()
    _await_predecessor(RunDirectory(space.path).locked, running)
    if not resumes:
        require_no_training(space)
        replace_json(running.images, document("training images", _training_images(space, job.parameters["data"])))
    if not (job.kind == "train" and resumes and space.versions()):  # else the kill came just after the training
        try:
            _run_training(space, running)
        except AlreadyTrainedError:
            if not resumes:
                raise
    name = space.newest()
    about = space.registry.card(name)["about"]
    running.note(message=f"{name} is trained")
    steps = []
    if job.kind == "upgrade":
        steps.append(to_step(NextStep("check", {"version": name})))
    return {
        "version": name,
        "images": about["data"]["images"],
        "classes": about["data"]["classes"],
        "loss": sum(about["loss"].values()),
        "trials": about.get("trials", []),
        "next_steps": steps,
    }


def _run_training(space: Workspace, running: RunningJob) -> None:
    """Train here, or in a process of its own, until the job is to end."""
    job = running.job()

    def require_more() -> None:
        if running.stopped():
            raise StoppedError("no version was made")

    def report(title: str, done: int, total: int, note: str) -> None:
        require_more()
        running.note(done=done, total=total, message=": ".join(filter(None, (title, note))))

    def say(text: str) -> None:
        running.note(message=text)

    if running.trains_apart:
        train_apart(
            space,
            kind=job.kind,
            parameters=dict(job.parameters),
            images=running.images,
            report=report,
            say=say,
            look=require_more,
        )
        return
    train = planned_training(space, job.kind, job.parameters)
    with reported_to(report):
        train(opened_images(running.images), say)


def _training_images(space: Workspace, folder: str | None) -> Result:
    """A folder, or the images of stored items by label: what is stored later is left out, also after a restart."""
    if folder is not None:
        return {"folder": folder}
    found = set()
    for item in space.gallery.iterate():
        label = known_label(item.payload.get("label"))
        if label is None:
            continue
        path = space.images.find(item)
        if path is not None:
            found.add((label, str(path.absolute())))
    if not found:
        raise InputError("no stored item has a label and an image to train on", NextStep("upgrade", {"data": ...}))
    return {"images": sorted(found)}


def opened_images(file: Path) -> ImageSet:
    """The images of a training job."""
    content = read_document(file, "training images")
    if "folder" in content:
        return open_images_within(content["folder"])
    labels, paths = zip(*content["images"], strict=True)
    classes = sorted(set(labels))
    numbers = {name: number for number, name in enumerate(classes)}
    targets = np.array([numbers[label] for label in labels], np.int64)
    return ImageSet(
        images=tuple(Path(path) for path in paths),
        labels=targets,
        classes=tuple(classes),
        name="stored items",
    )


WORK: dict[str, Callable[[Workspace, RunningJob], Result]] = {
    "index": _index,
    "check": _check,
    "backfill": _backfill,
    "train": _train,
    "upgrade": _train,
    "snapshot": _snapshot,
}


# --- running them


class Jobs:
    """The jobs of one workspace. Threads may share it; other processes only if the settings say ``shared``."""

    def __init__(self, workspace: Workspace, settings: ServiceSettings | None = None) -> None:
        self._workspace = workspace
        limits = settings or ServiceSettings()
        self._audit = AuditLog(limits.gallery)
        self._processes = DecodeProcesses(2, limits.decode_seconds, limits.pixels)
        self.history = History(workspace)
        self._files = JobFiles(workspace.path)
        self._jobs: dict[str, Job] = {}
        self._changed = threading.Condition()
        self._write = threading.Lock()  # taken before _changed where both are
        self._shared = limits.shared
        self._trains_apart = limits.trains_apart
        self._fresh = False  # whether what other services changed has just been read
        self._alive = SignsOfLife(workspace.path)
        self._over = threading.Event()
        self._stopping = True  # until it is started
        self._threads: list[threading.Thread] = []
        self._lock = contextlib.ExitStack()
        self._is_locked = False

    def lock(self) -> None:
        """Become the only process that runs the jobs of this workspace, or refuse. ``start`` does it too."""
        if self._is_locked:
            return
        seen = f"another service runs the jobs of {self._workspace.path}; stop it first, or use its address"
        if self._shared:
            seen = f"a service that does not share {self._workspace.path} runs its jobs; stop it first"
        self._lock.enter_context(exclusive(self._files.directory, busy=InputError(seen), shared=self._shared))
        self._is_locked = True

    def start(self) -> None:
        """Resume what is left of the last run, and wait for more."""
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
            threading.Thread(target=self._run_lane, args=(lane,), name=f"fixstar-jobs-{lane[0]}", daemon=True)
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
            _log.warning("a job did not pause within %.0f s; it resumes from its last whole batch", timeout)
            return  # still locked: what it may yet write must not meet another service
        if self._shared:
            self._over.set()
            self._alive.bury(self._alive.name)  # others need not wait
        self._lock.close()
        self._is_locked = False

    def require_room(self, kind: Kind) -> None:
        """Refuse as ``submit`` would at this moment: before images are kept for a job that would be refused."""
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
                raise Problem("already-running", seen, f"wait for it, or POST /v1/jobs/{active[0].id}/cancel")

    def submit(self, kind: Kind, parameters: Mapping[str, Any], by: str | None = None) -> Job:
        """Accept a job asked for by ``by``; it is on disk when this returns. Refused while another one blocks it."""
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
        """Held while others write or delete items: index jobs accepted before leave these items alone afterwards.

        Gives whether there are such jobs. If the write fails, they store the items as planned.
        """
        ids = frozenset(ids)
        with self._changed:
            self._look()
            older = [job.id for job in self._jobs.values() if job.awaits(ids)]
        if not older:
            yield False
            return
        with self._writing():
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
        """End a job: at once if it waits, after its batch if it runs. One that has ended stays as it is."""
        with self._changing():
            job = self.get(name)
            if job.has_ended or job.cancelling:
                return job
            self._audit.info("%s is cancelled by %s", job, by or "unknown")
            if job.state == "queued":
                return self._end(job, state="cancelled", message="cancelled before it began")
            return self._keep(replace(job, cancelling=True, message="ends after this batch"))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Held while jobs change on disk: no other service changes them, and what others changed before is known."""
        with self._changed:
            if not self._shared or self._fresh:
                yield
                return
            busy = Problem("busy", "another service is changing the jobs", headers={"Retry-After": "1"})
            with exclusive(self._files.directory / "changing", _WAIT, busy):
                self._look()
                self._fresh = True
                try:
                    yield
                finally:
                    self._fresh = False

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Held while items are written that a job was to store, or by that job."""
        with self._write:
            if not self._shared:
                yield
                return
            busy = Problem("busy", "another service is writing these items", headers={"Retry-After": "1"})
            with exclusive(self._files.directory / "writing", _WAIT, busy):
                yield

    def _look(self, only: str | None = None) -> None:
        """Read what other services changed."""
        if self._shared and not self._fresh:
            self._files.refresh(self._jobs, only)

    def _current(self, name: str) -> Job | None:
        """One that this service runs, as it is now; costs one ``stat``."""
        with self._changed:
            self._look(name)
            return self._jobs.get(name)

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            try:
                self._alive.beat()
            except OSError as error:
                _log.warning("other services cannot see that this one is alive: %s", error)

    def _resume(self, job: Job) -> None:
        if job.cancelling:
            self._end(job, state="cancelled", message="cancelled")
        elif job.attempts >= ATTEMPTS:
            self._fail(job.id, Problem("job-abandoned", f"the service ended {job.attempts} times while it ran"))
        else:
            self._jobs[job.id] = replace(job, state="queued")

    def _run_lane(self, lane: tuple[Kind, ...]) -> None:
        while (job := self._next(lane)) is not None:
            try:
                self._run(job)
            except Exception:  # such as a full disk: the lane continues
                _log.exception("job %s could not be recorded", job.id)

    def _next(self, lane: tuple[Kind, ...]) -> Job | None:
        """The oldest job that waits, once there is one; None when it is time to stop."""
        with self._changed:
            while not self._stopping:
                self._look()
                job = self._waiting(lane)
                if job is None:
                    self._changed.wait(BEAT if self._shared else None)
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
        """The oldest job that waits, or whose service died, unless another service runs one of the lane."""
        left = [job for job in self._jobs.values() if job.kind in lane and not job.has_ended]
        others = [job.runner for job in left if job.state == "running" and job.runner != self._alive.name]
        if self._shared and any(map(self._alive.is_alive, others)):
            return None
        waiting = [job for job in left if job.state == "queued" or self._shared]
        return min(waiting, key=lambda one: one.id, default=None)

    def _claim(self, lane: tuple[Kind, ...]) -> Job | None:
        """Begin the next job; None if another service did, or if there is no point in it."""
        job = self._waiting(lane)
        if job is not None and job.state == "running":
            self._audit.info("%s is taken over: the service %s is gone", job, job.runner or "before this one")
            if job.runner != self._alive.name:
                self._alive.bury(job.runner)
            self._resume(job)
            job = self._jobs.get(job.id)
        if job is None or job.has_ended:
            return None
        started = replace(
            job,
            state="running",
            started=job.started or _now(),
            attempts=job.attempts + 1,
            runner=self._alive.name,
        )
        self._files.save(started)
        self._audit.info("%s begins", started)
        return self._keep(started, save=False)

    def _run(self, job: Job) -> None:
        try:
            result = WORK[job.kind](self._workspace, RunningJob(self, job))
        except Exception as error:
            self._finish(job, None, error)
        else:
            self._finish(job, result)

    def _finish(self, job: Job, result: Result | None, error: Exception | None = None) -> None:
        """Record how a job ended, unless another service has it now."""
        with self._changing():
            now = self._jobs.get(job.id)
            if now is None or now.runner != job.runner:
                _log.warning("%s was taken over by another service", job)
            elif error is None:
                self._end(now, state="done", result=result)
            elif isinstance(error, StoppedError):
                self._leave(job.id, str(error), error.result)
            elif isinstance(error, DeploymentMovedError):
                self._leave(job.id, str(error))
            elif self._stopping:  # the gallery may have been closed under it
                _log.warning("job %s broke off while the service stopped: %s", job.id, error)
            else:
                self._fail(job.id, error)

    def _leave(self, name: str, message: str, result: Result | None = None) -> None:
        """It ended early: for good, or until the next start."""
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
        places = (self._workspace.path.absolute(), job.parameters.get("data"), job.parameters.get("folder"))
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
            ended = replace(job.without_items(), ended=_now(), **changes)
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
        """Leave nothing of a training that will not resume."""
        from fixstar.workspace.training import discard_unfinished

        try:
            discard_unfinished(self._workspace.registry)
        except (FixstarError, OSError) as error:
            _log.warning("an unfinished training was not deleted: %s", error)


def _without_places(text: str, folders: Iterable[Path]) -> str:
    """What was seen, without where it is on this machine.

    >>> _without_places("/data/sets/shoes/a: no images; /data/sets/shoes is empty", [Path("/data/sets/shoes")])
    'a: no images; shoes is empty'
    """
    for folder in folders:
        text = text.replace(f"{folder}/", "").replace(str(folder), folder.name)
    return text


# --- vectors by version over time


class HistoryPoint(NamedTuple):
    """Items by the version that made their vectors, at a time."""

    when: str
    vectors: dict[str, int]


class History:
    """Counts vectors by version every few seconds; state/history.json has a sample per change. Threads may share it."""

    def __init__(self, workspace: Workspace, interval: float = 5.0, most: int = 1000) -> None:
        self._workspace = workspace
        self._interval = interval
        self._most = most
        self._path = workspace.path / "state" / "history.json"
        self._samples: WatchedFile[tuple[HistoryPoint, ...]] = WatchedFile(self._path, _parsed_samples, ())
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to count."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._watch, name="fixstar-history", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Count once more, and stop."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None

    def samples(self) -> list[HistoryPoint]:
        """All samples, oldest first; the last one is current."""
        self.look()
        return list(self._samples.content())

    def look(self) -> None:
        """Record the counts if they have changed."""
        vectors = {name: count for name, count in self._workspace.gallery.count().items() if count}
        with exclusive(self._path.with_suffix(""), _WAIT):  # other threads and services count too
            known = list(self._samples.content())
            last = known[-1].vectors if known else {}
            if last == vectors:
                return
            known.append(HistoryPoint(_now(), vectors))
            if len(known) > self._most:  # the distant past is kept more coarsely
                half = len(known) // 2
                known[:half] = known[:half:2]
            replace_json(self._path, document("history", {"samples": [sample._asdict() for sample in known]}))

    def _watch(self) -> None:
        while True:
            try:
                self.look()
            except (FixstarError, OSError) as error:  # a server that is away for a while, a full disk
                _log.warning("the counts of vectors were not recorded: %s", error)
            if self._stopped.is_set():
                return
            self._stopped.wait(self._interval)


def _parsed_samples(path: Path) -> tuple[HistoryPoint, ...]:
    try:
        return tuple(
            HistoryPoint(one["when"], dict(one["vectors"])) for one in read_document(path, "history")["samples"]
        )
    except (FixstarError, OSError, *DAMAGE):  # only a picture is lost
        return ()
