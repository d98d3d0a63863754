"""Versions, checks, deployment, backfill, history, and the jobs that do the long work."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi import Path as InPath
from PIL import Image

from fixstar.errors import FixstarError, InputError, ModelError
from fixstar.service import jobs as work
from fixstar.service.context import READ, Admin, Context, Reader, Shared, Writer
from fixstar.service.keys import Caller
from fixstar.service.problems import Problem, to_step
from fixstar.service.routes_items import IMMUTABLE, item_fields
from fixstar.service.schemas import (
    BackfillRequest,
    BackfillState,
    Check,
    CheckRequest,
    Compatibility,
    Deployment,
    DeployRequest,
    DriftMap,
    DriftPoint,
    Flip,
    FlipImage,
    Gain,
    HistoryPoint,
    Job,
    MatrixCell,
    Move,
    Outlook,
    Rollback,
    RollbackPreview,
    RollbackRequest,
    TrainRequest,
    UpgradeRequest,
    Version,
    VersionCard,
    problem_responses,
)
from fixstar.service.settings import AuditLog
from fixstar.workspace import Check as SavedCheck
from fixstar.workspace import Move as SavedMove
from fixstar.workspace import Workspace
from fixstar.workspace.backfill.run import PlanFiles
from fixstar.workspace.checks import (
    CheckedCell,
    FlippedAnswer,
    Shown,
    check_history,
    checks_on_one_set,
    flip_picture,
    last_check,
    listed_flips,
)
from fixstar.workspace.drift import DriftPoint as MovedItem
from fixstar.workspace.drift import drift_map

router = APIRouter(prefix="/v1")

Name = Annotated[str, InPath(max_length=100, description="The version, such as v2.")]
JobId = Annotated[str, InPath(alias="id", max_length=100, description="The job's id.")]

_KEPT_MAPS = 8
_NAME_FILES = ("train", "upgrade", "snapshot")  # jobs whose errors name files of this machine
_drift_maps: dict[tuple[Any, ...], DriftMap] = {}
_drift_lock = threading.Lock()

_log = logging.getLogger("fixstar.service")


# --- versions


@router.get("/versions", tags=["versions"], dependencies=READ)
def versions(context: Shared) -> list[Version]:
    """All versions, oldest first; also retired ones."""
    space = context.workspace
    counts = space.gallery.count()
    deployed = space.rollout.current()
    return [
        Version(**_version_fields(space, name, counts=counts, deployed=deployed))
        for name in space.registry.known()
    ]


@router.get(
    "/versions/{name}", tags=["versions"], dependencies=READ, responses=problem_responses(404)
)
def version(context: Shared, name: Name) -> VersionCard:
    """One version: where it comes from, which class owns which slot, and its last check."""
    space = context.workspace
    card = space.registry.card(_known(space, name))
    about = card.get("about", {})
    details = {
        key: card.get(key) for key in ("classifier", "projection", "preprocessing", "weights")
    }
    details |= {key: about.get(key) for key in ("method", "loss", "selected_epoch")}
    details["recipe"] = about.get("settings", {}).get("recipe")
    found = last_check(space.path, name)
    try:
        lineage = space.registry.lineage(name)
    except FixstarError:  # an ancestor is gone
        lineage = [name]
    fields = _version_fields(
        space, name, counts=space.gallery.count(), deployed=space.rollout.current()
    )
    return VersionCard(
        **fields,
        lineage=tuple(lineage),
        slots=card["slots"]["by_class"],
        details=details,
        last_check=None if found is None else _check_body(found),
    )


def _version_fields(
    space: Workspace, name: str, counts: dict[str, int], deployed: str
) -> dict[str, Any]:
    card = space.registry.card(name)
    about = card.get("about", {})
    trained = dict(about.get("data") or {})
    if "name" in trained:
        trained["name"] = PurePath(str(trained["name"])).name  # not where it was on disk
    found = _undamaged_check(space, name)
    return {
        "name": name,
        "parent": about.get("parent"),
        "method": (about.get("method") or {}).get("name"),
        "backbone": card["backbone"]["name"],
        "capacity": card["slots"]["capacity"],
        "classes": len(card["slots"]["by_class"]),
        "trained": trained,
        "deployed": name == deployed,
        "check": None if found is None else found.outcome,
        "gain": _gain(found),
        "vectors": counts.get(name, 0),
        "left_out": space.left_out_vectors(name),
        "retired": name in space.registry.retired(),
        "fixstar": card.get("fixstar"),
    }


def _gain(found: SavedCheck | None) -> Gain | None:
    """The gain that a check measured on the vectors that gain least."""
    if found is None:
        return None
    cells = [cell for cell in found.cells if cell.reembedded is not None]
    if not cells:
        return None
    worst = min(cells, key=lambda cell: cell.difference)
    return Gain(
        version=worst.version,
        now=worst.self_test,
        at_once=worst.cross_test,
        reembedded=worst.reembedded or 0.0,
    )


def _known(space: Workspace, name: str) -> str:
    """A version of the registry. Other names are refused, so none becomes part of a path."""
    names = space.registry.known()
    if name in names:
        return name
    error = space.no_encoder(name)
    if error is not None:
        raise Problem("unknown-version", str(error), "", *error.next_steps)
    raise Problem(
        "unknown-version", f"no version {name!r}", f"there are: {', '.join(names) or 'none'}"
    )


def _existing(space: Workspace, name: str) -> str:
    """A version that still has its weights."""
    if name in space.registry.retired():
        seen = f"{name} was retired: its weights are gone"
        raise Problem("retired-version", seen, f"there are: {', '.join(space.versions())}")
    return _known(space, name)


# --- checks


@router.get(
    "/versions/{name}/check", tags=["versions"], dependencies=READ, responses=problem_responses(404)
)
def check(context: Shared, name: Name) -> Check:
    """The last check of a version that counts: one with less evidence does not replace one with more."""
    return _check_body(_checked(context, name))


@router.get(
    "/versions/{name}/checks",
    tags=["versions"],
    dependencies=READ,
    responses=problem_responses(404),
)
def checks(context: Shared, name: Name) -> list[Check]:
    """All checks of a version, oldest first."""
    return [
        _check_body(one)
        for one in check_history(context.workspace.path, _known(context.workspace, name))
    ]


@router.post(
    "/versions/{name}/check",
    tags=["versions"],
    status_code=202,
    responses=problem_responses(404, 409),
)
def start_check(
    context: Shared, name: Name, caller: Admin, wanted: CheckRequest | None = None
) -> Job:
    """Check a version against all live vectors, in a job: on named or held-out images, or by relevant items."""
    space = context.workspace
    _existing(space, name)
    wanted = wanted or CheckRequest()
    if wanted.relevant is not None:
        _require_distinct(space, wanted)
    rules = wanted.model_dump()
    return Job.model_validate(context.jobs.submit("check", {"version": name, **rules}, caller.name))


def _require_distinct(space: Workspace, wanted: CheckRequest) -> None:
    """Refuse now what the job would refuse later: queries of images, two kinds of evidence, and a query given twice."""
    if space.registry.reads() != "texts":
        raise Problem(
            "wrong-kind", "queries with relevant items are texts, and this gallery holds images"
        )
    if wanted.data is not None:
        seen = "a check is judged by labels (data) or by relevant items; both came"
        raise Problem("invalid-request", seen, "send one of them")
    texts = [one.text for one in wanted.relevant or ()]
    if len(set(texts)) < len(texts):
        seen = "two of the queries have the same text"
        raise Problem(
            "invalid-request", seen, "send each text once, with all items that it should find"
        )


@router.get(
    "/versions/{name}/flips", tags=["versions"], dependencies=READ, responses=problem_responses(404)
)
def flips(
    context: Shared,
    name: Name,
    limit: Annotated[int, Query(ge=1, le=1000, description="Flips, at most.")] = 20,
    against: Annotated[
        str | None, Query(max_length=100, description="Only those on this version's gallery.")
    ] = None,
    kind: Annotated[
        Literal["lost", "won"], Query(description="Queries that get worse, or better.")
    ] = "lost",
) -> list[Flip]:
    """Queries that an older version answered correctly and this one does not, or the reverse: some of each class."""
    found = _checked(context, name)
    chosen = []
    for number, (cell, which, one) in enumerate(listed_flips(found)):
        if which == kind and against in (None, cell.version):
            chosen.append(_flip(found, number, cell=cell, kind=kind, one=one))
    return chosen[:limit]


@router.get(
    "/versions/{name}/flips/{number}/{which}.png",
    tags=["versions"],
    dependencies=READ,
    response_class=Response,
    responses={
        200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}},
        **problem_responses(404),
    },
)
def flip_image(
    context: Shared,
    name: Name,
    number: Annotated[int, InPath(ge=0, lt=2**31)],
    which: Shown,
    stamp: Annotated[
        str, Query(max_length=100, description="Makes the answer one that caches may keep.")
    ] = "",
) -> Response:
    """A picture of a negative flip: the query, what the old version found, or what the new one finds."""
    found = _checked(context, name)
    pixels = flip_picture(context.workspace.path, found, number=number, which=which)
    if pixels is None:
        raise Problem(
            "unknown-picture", f"no flip {number} of {name}", f"see /v1/versions/{name}/flips"
        )
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    cached = IMMUTABLE if stamp else "private, no-cache"
    return Response(buffer.getvalue(), media_type="image/png", headers={"Cache-Control": cached})


@router.get("/drift", tags=["versions"], dependencies=READ, responses=problem_responses(404))
def drift(
    context: Shared,
    old: Annotated[str, Query(max_length=100, description="The older version.")],
    new: Annotated[str, Query(max_length=100, description="The newer version.")],
    limit: Annotated[int, Query(ge=2, le=500, description="Items, at most.")] = 150,
) -> DriftMap:
    """Where the new version puts stored items, beside the old one: a sample of as many labels as possible.

    It embeds the images of the sample, and keeps the result until the gallery changes. Only one map is computed at a
    time; other requests are told to retry.
    """
    space = context.workspace
    for name in (old, new):
        _existing(space, name)
    revision = space.gallery.revision()
    key = (str(space.path), old, new, limit, revision)
    known = _drift_maps.get(key)
    if revision is not None and known is not None:
        return known
    if not _drift_lock.acquire(blocking=False):  # waiting would hold a thread that others need
        raise Problem("busy", "another drift map is being made", headers={"Retry-After": "5"})
    try:
        moved = drift_map(
            space.serving, old, new, limit=limit, decode=context.intake.processes.pixels
        )
        points = tuple(_drift_point(point) for point in moved)
        made = DriftMap(old=old, new=new, points=points)
        if revision is not None:
            _forget_drift_maps(str(space.path), revision)
            _drift_maps[key] = made
        return made
    finally:
        _drift_lock.release()


def _drift_point(point: MovedItem) -> DriftPoint:
    return DriftPoint(
        **item_fields(point.item.id, point.item.version, point.item.payload),
        old=point.old,
        new=point.new,
        moved=point.moved,
    )


def _forget_drift_maps(path: str, revision: int) -> None:
    """Drop maps of an older state of the gallery (their items may be deleted), and the oldest of the rest."""
    for key in [key for key in _drift_maps if key[0] == path and key[-1] != revision]:
        del _drift_maps[key]
    while len(_drift_maps) >= _KEPT_MAPS:
        del _drift_maps[next(iter(_drift_maps))]


@router.get("/compatibility", tags=["versions"], dependencies=READ)
def compatibility(context: Shared) -> Compatibility:
    """Which version's queries work on which version's gallery, from checks on the same images; the latest counts."""
    names = context.workspace.registry.known()
    latest = checks_on_one_set(context.workspace.path, names)
    cells: dict[tuple[str, str], MatrixCell] = {}
    for one in latest:
        for cell in _matrix_cells(one):
            cells.setdefault((cell.query_version, cell.gallery_version), cell)
    shown = list(dict.fromkeys([*names, *(cell.gallery_version for cell in cells.values())]))
    ranked = sorted(
        cells.values(),
        key=lambda one: (shown.index(one.query_version), shown.index(one.gallery_version)),
    )
    measured_on = {one.version: _measured_on(one) for one in latest}
    return Compatibility(versions=tuple(shown), cells=tuple(ranked), measured_on=measured_on)


def _undamaged_check(space: Workspace, name: str) -> SavedCheck | None:
    """The last check, or None if it is damaged: one damaged check must not hide the other versions."""
    try:
        return last_check(space.path, name)
    except ModelError as error:
        _log.warning("%s", error)
        return None


def _checked(context: Context, name: str) -> SavedCheck:
    found = last_check(context.workspace.path, _known(context.workspace, name))
    if found is None:
        raise Problem("not-checked", f"{name} was never checked", f"POST /v1/versions/{name}/check")
    return found


def _check_body(found: SavedCheck) -> Check:
    fields = {name: getattr(found, name) for name in Check.model_fields if name != "next_steps"}
    return Check.model_validate(
        {**fields, "next_steps": [to_step(step) for step in found.next_steps]}
    )


def _flip(found: SavedCheck, number: int, cell: CheckedCell, kind: str, one: FlippedAnswer) -> Flip:
    def picture(which: Shown) -> str | None:
        if found.pictures is None or one.rows is None:
            return None
        stamp = PurePath(found.pictures).stem.removeprefix("flips-")
        return f"/v1/versions/{found.version}/flips/{number}/{which}.png?stamp={stamp}"

    old = one.found
    new = one.label
    if kind == "lost":
        old = one.label
        new = one.found
    return Flip(
        number=number,
        label=one.label,
        query=picture("query"),
        old=FlipImage(version=cell.version, label=old, thumbnail=picture("old")),
        new=FlipImage(version=found.version, label=new, thumbnail=picture("new")),
    )


def _matrix_cells(found: SavedCheck) -> list[MatrixCell]:
    def cell(query: str, gallery: str, accuracy: float, **crossed: Any) -> MatrixCell:
        crossed = crossed or {"verdict": "self-test"}
        return MatrixCell(
            query_version=query,
            gallery_version=gallery,
            accuracy=accuracy,
            check=found.version,
            **crossed,
        )

    cells = []
    if found.self_test is not None:
        cells.append(cell(found.version, found.version, found.self_test))
    for one in found.cells:
        cells.append(cell(one.version, one.version, one.self_test))
        crossed = {name: getattr(one, name) for name in ("difference", "low", "high", "verdict")}
        cells.append(cell(found.version, one.version, one.cross_test, **crossed))
    return cells


def _measured_on(found: SavedCheck) -> dict[str, Any]:
    facts = {
        name: getattr(found, name)
        for name in ("when", "queries", "gallery", "confidence", "tolerance")
    }
    public = ("source", "images", "classes", "fingerprint")
    return {**facts, **{key: value for key, value in found.data.items() if key in public}}


# --- deployment


@router.post("/deploy", tags=["lifecycle"], responses=problem_responses(404, 409))
def deploy(context: Shared, wanted: DeployRequest, caller: Admin) -> Deployment:
    """Let queries and new items use a version, at once. Needs a passed check, or a reason to do without."""
    space = context.workspace
    _existing(space, wanted.version)
    space.rollout.require_deployed(wanted.deployed)
    if space.is_deployed(wanted.version, wanted.queries):
        raise Problem("already-deployed", f"{wanted.version} answers queries")
    move = space.deploy(
        wanted.version,
        force=wanted.force,
        by=caller.name,
        deployed=wanted.deployed,
        queries=wanted.queries,
    )
    _record(context, move)
    return Deployment(**vars(move), left_out=space.left_out_vectors(move.version))


@router.post("/rollback", tags=["lifecycle"], responses=problem_responses(409))
def rollback(context: Shared, caller: Admin, wanted: RollbackRequest | None = None) -> Rollback:
    """Back to the version deployed before, at once. A backfill to another version ends."""
    space = context.workspace
    wanted = wanted or RollbackRequest()
    if space.versions():
        space.rollout.require_deployed(wanted.deployed)
    _previous(space)
    running = _active_backfill(context)
    move = space.rollback(caller.name, wanted.deployed, wanted.to)
    _record(context, move)
    return Rollback(
        **vars(move),
        left=space.rollout.left_by(move),
        unchecked=space.unchecked_vectors(move.version),
        left_out=space.left_out_vectors(move.version),
        cancelled=_ended_by(running, move.version),
    )


@router.get("/rollback", tags=["lifecycle"], dependencies=READ, responses=problem_responses(409))
def rollback_preview(context: Shared) -> RollbackPreview:
    """What a rollback would do now. Send ``deployed`` and ``to`` with the rollback to get exactly that."""
    space = context.workspace
    to = _previous(space)
    return RollbackPreview(
        deployed=space.deployed(),
        to=to,
        unchecked=space.unchecked_vectors(to),
        left_out=space.left_out_vectors(to),
        cancelled=_ended_by(_active_backfill(context), to),
    )


@router.get("/deployments", tags=["lifecycle"], dependencies=READ)
def deployments(
    context: Shared,
    limit: Annotated[int, Query(ge=1, le=1000, description="Moves, at most.")] = 100,
) -> list[Move]:
    """Who deployed what, when, and why without a check: newest first."""
    return [Move.model_validate(move) for move in context.workspace.rollout.history()[::-1][:limit]]


def _previous(space: Workspace) -> str:
    """Where a rollback leads."""
    if not space.versions():
        raise Problem("no-rollback", "there is no version yet")
    try:
        return space.rollout.require_previous()
    except InputError as error:
        raise Problem("no-rollback", str(error)) from error


def _record(context: Context, move: SavedMove) -> None:
    left = context.workspace.rollout.left_by(move)
    more = ""
    if move.translations:
        more += f", translations {dict(move.translations)}"
    if move.reason:
        more += f", forced: {move.reason!r}"
    log = AuditLog(context.settings.gallery)
    log.info("%s from %s to %s by %s%s", move.kind, left, move.version, move.by, more)


def _active_backfill(context: Context) -> work.Job | None:
    found = context.jobs.latest("backfill")
    if found is None or found.has_ended:
        return None
    return found


def _ended_by(running: work.Job | None, deployed: str) -> str | None:
    """The id of a backfill that ends when ``version`` is deployed."""
    if running is None or running.parameters["target"] == deployed:
        return None
    return running.id


# --- backfill and history


@router.post(
    "/backfill", tags=["lifecycle"], status_code=202, responses=problem_responses(404, 409)
)
def start_backfill(context: Shared, caller: Admin, wanted: BackfillRequest | None = None) -> Job:
    """Re-embed older items with the deployed version, in a job, while searches continue.

    An unfinished plan with the same settings is resumed. The job first predicts on held-out images what the plan
    brings: if a significant accuracy drop is predicted, it fails with a problem (409) and nothing is replaced, unless
    ``anyway``.
    """
    wanted = wanted or BackfillRequest()
    target = context.workspace.deployed()
    if wanted.deployed not in (None, target):
        seen = f"{target} is deployed now, not {wanted.deployed}; nothing was started"
        raise Problem("deployment-moved", seen, "see GET /v1/backfill, then decide again")
    parameters = {"target": target, **wanted.model_dump(exclude={"deployed"})}
    return Job.model_validate(context.jobs.submit("backfill", parameters, caller.name))


@router.get("/backfill", tags=["lifecycle"], dependencies=READ)
def backfill(context: Shared) -> BackfillState:
    """The last backfill plan: its progress, what was predicted and measured; and what another could do."""
    space = context.workspace
    last = context.jobs.latest("backfill")
    state: dict[str, Any] = {"job": None}
    result: Mapping[str, Any] = {}
    if last is not None:
        state["job"] = Job.model_validate(last)
        result = last.result or {}
    state["predicted"] = result.get("predicted") or None
    state["measured"] = result.get("measured", ())
    files = PlanFiles(space.path)
    plan = files.plan(with_ids=False)
    if plan is not None:
        state |= {
            name: getattr(plan, name) for name in ("order", "budget", "old", "planned", "when")
        }
        state |= {
            "version": plan.target,
            "position": files.position(plan),
            "kept": len(files.kept(plan)),
        }
    if space.versions() and _active_backfill(context) is None:
        outlook = Outlook.model_validate(space.backfill_outlook())
        state["outlook"] = outlook
        if (
            result.get("version") == outlook.version
            and result.get("done")
            and result.get("seconds")
        ):
            state["images_a_second"] = result["done"] / result["seconds"]
    return BackfillState(**state)


@router.get("/history", tags=["lifecycle"], dependencies=READ)
def history(context: Shared) -> list[HistoryPoint]:
    """Items by the version that made their vectors, over time: a sample for every change."""
    return [HistoryPoint.model_validate(sample) for sample in context.jobs.history.samples()]


@router.post("/snapshot", tags=["lifecycle"], status_code=202, responses=problem_responses(409))
def start_snapshot(context: Shared, caller: Admin) -> Job:
    """Copy the workspace to the operator's folder, in a job, while everything continues."""
    if context.settings.snapshots is None:
        raise Problem("no-snapshots", "no place for snapshots is set")
    folder = str(context.settings.snapshots)
    return Job.model_validate(context.jobs.submit("snapshot", {"folder": folder}, caller.name))


# --- training


@router.post("/train", tags=["lifecycle"], status_code=202, responses=problem_responses(404, 409))
def start_training(context: Shared, caller: Admin, wanted: TrainRequest) -> Job:
    """Train the first version on a folder of labelled images, in a job."""
    return _start_training(context, "train", wanted, caller=caller)


@router.post("/upgrade", tags=["lifecycle"], status_code=202, responses=problem_responses(404, 409))
def start_upgrade(context: Shared, caller: Admin, wanted: UpgradeRequest | None = None) -> Job:
    """Train the next version so that it searches the old vectors, in a job. Check and deploy it afterwards.

    It learns from the stored items that have a label and an image, as they are when the job begins, or from a folder; a
    method that trains freely also from images of earlier trainings whose files are still there. Images that cannot be
    read are left out.
    """
    return _start_training(context, "upgrade", wanted or UpgradeRequest(), caller=caller)


def _start_training(
    context: Context,
    kind: Literal["train", "upgrade"],
    wanted: TrainRequest | UpgradeRequest,
    caller: Caller,
) -> Job:
    context.jobs.require_room(kind)
    parameters = wanted.model_dump()
    if wanted.data is not None:
        parameters["data"] = str(_training_folder(context.settings.training_images, wanted.data))
    work.require_no_training(context.workspace)
    work.planned_training(context.workspace, kind, parameters)
    return Job.model_validate(context.jobs.submit(kind, parameters, caller.name))


def training_folders(allowed: Path | None) -> list[str]:
    """The names of the folders of labelled images that the operator lets jobs train on."""
    if allowed is None or not allowed.is_dir():
        return []
    return sorted(path.name for path in allowed.iterdir() if path.is_dir())


def _training_folder(allowed: Path | None, name: str) -> Path:
    """A folder below the one that the operator chose, links included."""
    if allowed is None:
        raise Problem("no-training-images", "no folder of labelled images is set")
    known = training_folders(allowed)
    parts = name.split("/")
    chosen = allowed / name
    if parts[0] not in known or ".." in parts or not chosen.is_dir():
        raise Problem(
            "unknown-folder", f"no folder {name!r}", f"there are: {', '.join(known[:20]) or 'none'}"
        )
    if not chosen.resolve().is_relative_to(allowed.resolve()):
        raise Problem("unknown-folder", f"{name!r} leads out of the folder that the operator chose")
    return chosen.absolute()


# --- jobs


@router.get("/jobs", tags=["jobs"])
def jobs(
    context: Shared,
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=200, description="Jobs, at most.")] = 50,
) -> list[Job]:
    """The jobs that are remembered, newest first."""
    return [_as_shown(one, caller) for one in context.jobs.all()[:limit]]


@router.get("/jobs/{id}", tags=["jobs"], responses=problem_responses(404))
def job(context: Shared, name: JobId, caller: Reader) -> Job:
    """One job. Why a training or a snapshot failed is for the role admin: it names files of the service's machine."""
    return _as_shown(context.jobs.get(name), caller)


def _as_shown(kept: work.Job, caller: Caller) -> Job:
    shown = Job.model_validate(kept)
    if shown.error is None or shown.kind not in _NAME_FILES or caller.may("admin"):
        return shown
    error = shown.error.model_copy(
        update={"detail": "a key with the role admin shows why", "next_steps": ()}
    )
    return shown.model_copy(update={"error": error})


@router.post("/jobs/{id}/cancel", tags=["jobs"], responses=problem_responses(404))
def cancel(context: Shared, name: JobId, caller: Writer) -> Job:
    """End a job after its current batch; what was done stays. Ending another than an index job needs the role admin."""
    kind = context.jobs.get(name).kind
    if kind != "index" and not caller.may("admin"):
        seen = f"{caller.name!r} has the role {caller.role}; ending a {kind} needs admin"
        raise Problem("not-allowed", seen, "ask the one who started it, or the operator")
    return _as_shown(context.jobs.cancel(name, caller.name), caller)
