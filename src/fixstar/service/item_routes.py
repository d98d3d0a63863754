"""Items: look at them, add them, take them out. What was answered with success is on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Form, Query, Request, Response, UploadFile
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

from fixstar.gallery import Item
from fixstar.service.adding import EXAMPLES, Upload, add_images, keep_images, nothing_added, plan_uploads
from fixstar.service.context import Context, Shared
from fixstar.service.forms import FormRoute
from fixstar.service.keys import Caller, needs
from fixstar.service.listing import ItemPage, item_page
from fixstar.service.problems import Problem
from fixstar.service.shapes import (
    BadShape,
    ItemShape,
    JobShape,
    NothingAddedShape,
    item_shape,
    job_shape,
    parse_filter,
    parse_json,
    problems,
    stored_shape,
)
from fixstar.service.thumbnails import SIZES, thumbnail

__all__ = ["ItemId", "find_item", "router"]

router = APIRouter(prefix="/v1", tags=["items"], route_class=FormRoute)

_LONG = 1 << 16  # characters of JSON; longer ones are read in a thread, so that others are answered meanwhile

READ, WRITE = [Depends(needs("read"))], [Depends(needs("write"))]
ItemId = Annotated[str, Query(alias="id", min_length=1, max_length=1024, description="The item's id.")]
Images = Annotated[list[UploadFile], File(description="JPEG, PNG, WebP, GIF, BMP or TIFF.")]
Payloads = Annotated[str | None, Form(description="A JSON list: one object an image, stored with it.")]
Ids = Annotated[str | None, Form(description="A JSON list of ids, one an image; made up unless told.")]


class AddedShape(BaseModel):
    """What was stored, by which version, and what was not: the others are stored all the same."""

    version: str
    added: list[str]
    bad: list[BadShape]


class DeletedShape(BaseModel):
    """How many items were taken out of the gallery; those that a job was to add are not counted."""

    deleted: int


class IdList(BaseModel):
    """Items by their ids."""

    model_config = ConfigDict(extra="forbid")

    ids: list[Annotated[str, Field(min_length=1, max_length=1024)]] = Field(max_length=10_000)


@router.get("/items", dependencies=READ, responses=problems(404))
def items(
    context: Shared,
    after: Annotated[str | None, Query(max_length=1024, description="The id to go on behind.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    version: Annotated[str | None, Query(max_length=256, description="Only vectors of this version.")] = None,
    where: Annotated[
        str | None, Query(max_length=8192, description='Only such payloads, as JSON: {"label": "shoes"}.')
    ] = None,
) -> ItemPage:
    """Page through all items. With ``where`` a page ends after 5,000 items that were looked at; ``next`` goes on."""
    gallery = context.workspace.gallery
    if version is not None and version not in (known := [space.name for space in gallery.versions()]):
        hint = f"there are: {', '.join(known) or 'none yet'}"
        raise Problem("unknown-version", f"the gallery has no vectors of {version!r}", hint)
    return item_page(gallery, limit, version, after, parse_filter(where))


@router.get("/item", dependencies=READ, responses=problems(404))
def item(context: Shared, item_id: ItemId) -> ItemShape:
    """One item."""
    return item_shape(find_item(context, item_id))


@router.get(
    "/item/image",
    dependencies=READ,
    response_class=Response,
    responses={
        200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}},
        304: {"description": "As you have it"},
        **problems(404),
    },
)
def item_image(
    context: Shared,
    request: Request,
    item_id: ItemId,
    size: Annotated[int, Query(ge=16, le=SIZES[-1], description="Pixels of the longer side, at most.")] = 256,
    stamp: Annotated[str, Query(max_length=256, description="Makes the answer one that caches may keep.")] = "",
) -> Response:
    """An item's picture, encoded anew."""
    picture = thumbnail(context.workspace, find_item(context, item_id), size)
    headers = {
        "ETag": picture.etag,
        "Cache-Control": "private, max-age=31536000, immutable" if stamp else "private, no-cache",
    }
    if picture.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(picture.content, media_type="image/jpeg", headers=headers)


@router.put("/item", dependencies=WRITE, responses=problems(413, 415))
async def put_item(
    context: Shared,
    item_id: ItemId,
    image: Annotated[UploadFile, File(description="JPEG, PNG, WebP, GIF, BMP or TIFF.")],
    payload: Annotated[str | None, Form(description="A JSON object, stored with the image.")] = None,
) -> ItemShape:
    """Store one item, in the place of the one that had this id."""

    def plan() -> list[Upload]:
        content = {} if payload is None else parse_json("payload", payload)
        return plan_uploads([image], [content], [item_id], 1)

    [upload] = await _read(plan, payload)
    added = await add_images(context, [upload])
    if added.bad:
        raise added.bad[0].problem
    return stored_shape(item_id, added.version, added.stored[item_id])  # not read back: another may have written since


@router.delete("/item", dependencies=WRITE, responses=problems(404))
def delete_item(context: Shared, item_id: ItemId) -> DeletedShape:
    """Take an item out of the gallery, and out of the jobs that were to add it."""
    with context.jobs.overtaking([item_id]) as was_to_come:
        deleted = context.workspace.gallery.delete([item_id])
        if not deleted and not was_to_come:
            raise _absent(item_id)
    return DeletedShape(deleted=deleted)


@router.post("/items", dependencies=WRITE, responses=problems(413, 415, 422, shape=NothingAddedShape))
async def add_items(context: Shared, images: Images, payloads: Payloads = None, ids: Ids = None) -> AddedShape:
    """Embed and store images with the deployed version before the answer. Those that cannot be used are named.

    Where none can be used the answer is a problem, which names them too.
    """
    uploads = await _planned(images, payloads, ids, context.settings.images_at_once)
    added = await add_images(context, uploads)
    bad = [BadShape(id=one.id, index=one.index, file=one.file, reason=one.problem.sentence()) for one in added.bad]
    if bad and not added.stored:
        raise nothing_added(added.bad, [one.model_dump() for one in bad])
    return AddedShape(version=added.version, added=list(added.stored), bad=bad)


@router.post("/items/async", status_code=202, responses=problems(413, 415))
async def add_items_later(
    context: Shared,
    caller: Annotated[Caller, Depends(needs("write"))],
    images: Images,
    payloads: Payloads = None,
    ids: Ids = None,
) -> JobShape:
    """Keep images on disk, and embed them in a job. All must be images of an allowed format and size."""
    uploads = await _planned(images, payloads, ids, context.settings.images_a_job)
    await run_in_threadpool(context.jobs.require_room, "index")
    kept = await keep_images(context, uploads)
    return job_shape(await run_in_threadpool(context.jobs.submit, "index", {"items": kept}, caller.name))


@router.post("/items/delete", dependencies=WRITE)
def delete_items(context: Shared, wanted: IdList) -> DeletedShape:
    """Take items out of the gallery, all at once, and out of the jobs that were to add them.

    Ids that are not there are passed over.
    """
    with context.jobs.overtaking(wanted.ids):
        return DeletedShape(deleted=context.workspace.gallery.delete(wanted.ids))


def find_item(context: Context, name: str) -> Item:
    """An item, or a 404 that names it."""
    found = context.workspace.gallery.get([name]).get(name)
    if found is None:
        raise _absent(name)
    return found


def _absent(name: str) -> Problem:
    return Problem("unknown-item", f"the gallery has no item {name!r}", "see /v1/items")


async def _planned(images: list[UploadFile], payloads: str | None, ids: str | None, most: int) -> list[Upload]:
    """What is to be stored."""

    def plan() -> list[Upload]:
        return plan_uploads(images, _listed("payloads", payloads), _listed("ids", ids), most)

    return await _read(plan, payloads, ids)


async def _read(plan: Callable[[], list[Upload]], *texts: str | None) -> list[Upload]:
    return plan() if sum(len(text or "") for text in texts) < _LONG else await run_in_threadpool(plan)


def _listed(name: str, text: str | None) -> list[Any] | None:
    if text is None:
        return None
    content = parse_json(name, text)
    if not isinstance(content, list):
        seen = f"{name} is a JSON list, one entry an image; got {text:.80}"
        raise Problem("invalid-request", seen, f"send such as {EXAMPLES[name]}")
    return content
