"""Versions: cards, lineage, checks, what an upgrade loses, and the matrix of all of them."""

from __future__ import annotations

import io
import logging
from pathlib import PurePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi import Path as InPath
from PIL import Image

from fixstar.errors import FixstarError, ModelError
from fixstar.service.context import Context, Shared
from fixstar.service.keys import Caller, needs
from fixstar.service.lifecycle_shapes import (
    CheckRequest,
    CheckShape,
    CompatibilityShape,
    FlipShape,
    FoundShape,
    MatrixCellShape,
    VersionCardShape,
    VersionShape,
)
from fixstar.service.problems import Problem, next_steps, to_step
from fixstar.service.shapes import JobShape, job_shape, problems
from fixstar.workspace import Check, Workspace
from fixstar.workspace.checks import CheckedCell, LostAnswer, Shown, flip_picture, last_check
from fixstar.workspace.deployment import unreached_vectors

__all__ = ["existing", "router"]

router = APIRouter(prefix="/v1", tags=["versions"])

READ = [Depends(needs("read"))]
Admin = Annotated[Caller, Depends(needs("admin"))]
Name = Annotated[str, InPath(max_length=100, description="The version, such as v2.")]

_log = logging.getLogger("fixstar.service")


@router.get("/versions", dependencies=READ)
def versions(context: Shared) -> list[VersionShape]:
    """All versions, oldest first; also those whose weights were given up."""
    space = context.workspace
    counts = space.gallery.count()
    return [VersionShape(**_told(space, name, counts)) for name in _all(space)]


@router.get("/versions/{name}", dependencies=READ, responses=problems(404))
def version(context: Shared, name: Name) -> VersionCardShape:
    """One version: where it comes from, which class owns which slot, and its last check."""
    space = context.workspace
    card = space.registry.card(_known(space, name))
    about = card.get("about", {})
    details = {key: card.get(key) for key in ("classifier", "projection", "preprocessing", "weights")}
    details |= {key: about.get(key) for key in ("method", "loss", "selected_epoch")}
    check = last_check(space.path, name)
    return VersionCardShape(
        **_told(space, name, space.gallery.count()),
        lineage=_lineage(space, name),
        slots=card["slots"]["by_class"],
        details={**details, "recipe": about.get("settings", {}).get("recipe")},
        last_check=None if check is None else _check_shape(check),
    )


@router.get("/versions/{name}/check", dependencies=READ, responses=problems(404))
def check(context: Shared, name: Name) -> CheckShape:
    """What the gate last found out about a version."""
    return _check_shape(_checked(context, name))


@router.post("/versions/{name}/check", status_code=202, responses=problems(404, 409))
def start_check(context: Shared, name: Name, caller: Admin, wanted: CheckRequest | None = None) -> JobShape:
    """Try a version against all live vectors, on the images held out at training, in a job."""
    existing(context.workspace, name)
    rules = (wanted or CheckRequest()).model_dump()
    return job_shape(context.jobs.submit("check", {"version": name, **rules}, caller.name))


@router.get("/versions/{name}/flips", dependencies=READ, responses=problems(404))
def flips(
    context: Shared,
    name: Name,
    limit: Annotated[int, Query(ge=1, le=1000, description="Flips, at most.")] = 20,
    against: Annotated[str | None, Query(max_length=100, description="Only those on this version's gallery.")] = None,
) -> list[FlipShape]:
    """Queries that an older version answered rightly and this one does not: some of each class, heaviest loss first."""
    found = _checked(context, name)
    lost = [(cell, one) for cell in found.cells for one in cell.lost]
    chosen = [(number, *pair) for number, pair in enumerate(lost) if against in (None, pair[0].version)]
    return [_flip(found, number, cell, one) for number, cell, one in chosen[:limit]]


@router.get(
    "/versions/{name}/flips/{number}/{which}.png",
    dependencies=READ,
    response_class=Response,
    responses={200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}, **problems(404)},
)
def flip_image(
    context: Shared,
    name: Name,
    number: Annotated[int, InPath(ge=0, lt=2**31)],
    which: Shown,
    stamp: Annotated[str, Query(max_length=100, description="Makes the answer one that caches may keep.")] = "",
) -> Response:
    """A picture of a negative flip: the query, what the old version found, or what the new one finds."""
    pixels = flip_picture(context.workspace.path, _checked(context, name), number, which)
    if pixels is None:
        raise Problem("unknown-picture", f"no flip {number} of {name}", f"see /v1/versions/{name}/flips")
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    kept = "private, max-age=31536000, immutable" if stamp else "private, no-cache"
    return Response(buffer.getvalue(), media_type="image/png", headers={"Cache-Control": kept})


@router.get("/compatibility", dependencies=READ)
def compatibility(context: Shared) -> CompatibilityShape:
    """Which version's queries work on which version's gallery, as far as the last checks tell; the latest counts."""
    space = context.workspace
    names = _all(space)
    checks = sorted(
        filter(None, (_tolerant_check(space, name) for name in names)), key=lambda one: one.when, reverse=True
    )
    cells: dict[tuple[str, str], MatrixCellShape] = {}
    for found in checks:
        for cell in _cells(found):
            cells.setdefault((cell.query_version, cell.gallery_version), cell)
    shown = [
        *names,
        *dict.fromkeys(cell.gallery_version for cell in cells.values() if cell.gallery_version not in names),
    ]
    place = {name: number for number, name in enumerate(shown)}
    ranked = sorted(cells.values(), key=lambda one: (place[one.query_version], place[one.gallery_version]))
    return CompatibilityShape(
        versions=shown, cells=ranked, measured_on={one.version: _measured_on(one) for one in checks}
    )


def existing(space: Workspace, name: str) -> str:
    """A version whose weights are here, or the problem that they are not."""
    if name in space.registry.retired():
        detail = f"{name} was retired: its weights are gone"
        raise Problem("retired-version", detail, f"there are: {', '.join(space.versions())}")
    return _known(space, name)


def _known(space: Workspace, name: str) -> str:
    """A version of the registry; no other name ever becomes part of a path."""
    if name not in (names := _all(space)):
        raise Problem("unknown-version", f"no version {name!r}", f"there are: {', '.join(names) or 'none'}")
    return name


def _all(space: Workspace) -> list[str]:
    return sorted({*space.versions(), *space.registry.retired()}, key=lambda name: int(name[1:]))


def _lineage(space: Workspace, name: str) -> list[str]:
    try:
        return space.registry.lineage(name)
    except FixstarError:  # an ancestor is not here any more
        return [name]


def _told(space: Workspace, name: str, counts: dict[str, int]) -> dict[str, Any]:
    card = space.registry.card(name)
    about = card.get("about", {})
    trained = dict(about.get("data") or {})
    if "name" in trained:
        trained["name"] = PurePath(str(trained["name"])).name  # where it lay is nobody's business
    found = _tolerant_check(space, name)
    return {
        "name": name,
        "parent": about.get("parent"),
        "method": (about.get("method") or {}).get("name"),
        "backbone": card["backbone"]["name"],
        "capacity": card["slots"]["capacity"],
        "classes": len(card["slots"]["by_class"]),
        "trained": trained,
        "deployed": name == space.rollout.current(),
        "check": None if found is None else found.outcome,
        "vectors": counts.get(name, 0),
        "unreached": unreached_vectors(space, name, counts),
        "retired": name in space.registry.retired(),
        "fixstar": card.get("fixstar"),
    }


def _tolerant_check(space: Workspace, name: str) -> Check | None:
    """The last check; one that is damaged is as good as none, and does not hide the other versions."""
    try:
        return last_check(space.path, name)
    except ModelError as error:
        _log.warning("%s", error)
        return None


def _checked(context: Context, name: str) -> Check:
    found = last_check(context.workspace.path, _known(context.workspace, name))
    if found is None:
        raise Problem("not-checked", f"{name} was never checked", f"POST /v1/versions/{name}/check")
    return found


def _check_shape(found: Check) -> CheckShape:
    fields = {name: getattr(found, name) for name in CheckShape.model_fields if name != "next_steps"}
    return CheckShape.model_validate({**fields, "next_steps": [to_step(step) for step in next_steps(found)]})


def _flip(found: Check, number: int, cell: CheckedCell, lost: LostAnswer) -> FlipShape:
    def picture(which: Shown) -> str | None:
        if found.pictures is None or lost.rows is None:
            return None
        stamp = PurePath(found.pictures).stem.removeprefix("flips-")
        return f"/v1/versions/{found.version}/flips/{number}/{which}.png?stamp={stamp}"

    return FlipShape(
        number=number,
        label=lost.label,
        query=picture("query"),
        old=FoundShape(version=cell.version, label=lost.label, thumbnail=picture("old")),
        new=FoundShape(version=found.version, label=lost.found, thumbnail=picture("new")),
    )


def _cells(found: Check) -> list[MatrixCellShape]:
    def self_test(name: str, accuracy: float) -> MatrixCellShape:
        return MatrixCellShape(
            query_version=name, gallery_version=name, accuracy=accuracy, verdict="self-test", check=found.version
        )

    cells = [] if found.self_test is None else [self_test(found.version, found.self_test)]
    for cell in found.cells:
        cells.append(self_test(cell.version, cell.self_test))
        crossed = {name: getattr(cell, name) for name in ("difference", "low", "high", "verdict")}
        cells.append(
            MatrixCellShape(
                query_version=found.version,
                gallery_version=cell.version,
                accuracy=cell.cross_test,
                check=found.version,
                **crossed,
            )
        )
    return cells


def _measured_on(found: Check) -> dict[str, Any]:
    facts = {"when": found.when, "queries": found.queries, "gallery": found.gallery, "confidence": found.confidence}
    told = ("source", "images", "classes", "fingerprint")
    data: dict[str, Any] = {key: value for key, value in found.data.items() if key in told}
    return {**facts, "tolerance": found.tolerance, **data}
