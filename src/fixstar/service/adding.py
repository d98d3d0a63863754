"""Uploaded images on their way into the gallery."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import UploadFile
from fastapi.concurrency import run_in_threadpool

from fixstar.errors import GalleryError
from fixstar.gallery.store import Payload, Vectors, checked_ids
from fixstar.images import Pixels
from fixstar.models import Encoder
from fixstar.service.context import Context
from fixstar.service.intake import read_upload, unusable
from fixstar.service.problems import Problem
from fixstar.workspace import CatalogueItem
from fixstar.workspace.items import IMAGE, STAMP, LocalEmbedder, index_items

__all__ = ["EXAMPLES", "Added", "Rejected", "Upload", "add_images", "keep_images", "nothing_added", "plan_uploads"]

EXAMPLES = {"ids": '["shoes/17"]', "payloads": '[{"label": "shoes"}]'}  # of the form's fields, for one image
_LONGEST_ID = 1024
_LONGEST_NAME = 255


@dataclass(frozen=True)
class Upload:
    """An image with the id and the payload that it is to have, and its place among those that came with it."""

    id: str
    payload: dict[str, Any]
    file: UploadFile
    index: int

    @property
    def name(self) -> str | None:
        """The file name that was sent, as a label for people; it never becomes a path."""
        return self.file.filename and self.file.filename.encode("utf-8", "replace").decode()[:_LONGEST_NAME]


@dataclass(frozen=True)
class Rejected:
    """An image that was left out: which one, and why."""

    id: str
    index: int
    file: str | None
    problem: Problem


@dataclass(frozen=True)
class Added:
    """What was stored by which version, payloads by id, and what was not."""

    version: str
    stored: dict[str, dict[str, Any]]
    bad: list[Rejected]


def plan_uploads(
    images: Sequence[UploadFile], payloads: Sequence[Any] | None, ids: Sequence[Any] | None, most: int
) -> list[Upload]:
    """Bring images, payloads and ids together; refuse what does not fit before anything is stored."""
    if len(images) > most:
        raise _wrong(
            f"{len(images)} images; up to {most} may come at once", "send several requests, or /v1/items/async"
        )
    for name, given in (("payloads", payloads), ("ids", ids)):
        if given is not None and len(given) != len(images):
            seen = f"{len(given)} {name} for {len(images)} images; one an image is needed"
            raise _wrong(seen, f"send as many as images, in their order, such as {EXAMPLES[name]}")
    names = [uuid.uuid4().hex for _ in images] if ids is None else _checked_ids(ids)
    contents = [{} for _ in images] if payloads is None else [_checked(content) for content in payloads]
    return list(map(Upload, names, contents, images, range(len(images))))


def _checked_ids(ids: Sequence[Any]) -> list[str]:
    try:
        names = checked_ids(list(ids))
    except GalleryError as error:
        raise _wrong(str(error), f"send such as {EXAMPLES['ids']}") from error
    if too_long := [name for name in names if len(name) > _LONGEST_ID]:
        raise _wrong(f"an id has up to {_LONGEST_ID} characters, got {len(too_long[0])}", "send a shorter one")
    return names


def _checked(payload: Any) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise _wrong(f"a payload is a JSON object, got {payload!r:.80}", 'send such as {"label": "shoes"}')
    if reserved := {IMAGE, STAMP} & payload.keys():
        seen = f"the payload field {min(reserved)!r} says where the image is kept, and is filled in here"
        raise _wrong(seen, "give the field another name")
    return payload


def _wrong(detail: str, hint: str) -> Problem:
    return Problem("invalid-request", detail, hint)


async def add_images(context: Context, uploads: Sequence[Upload]) -> Added:
    """Embed and store images with the deployed version; on disk when it returns. Bad ones are left out."""
    version, encoder = await run_in_threadpool(_deployed, context)
    read = await asyncio.gather(*(_read(context, upload, encoder) for upload in uploads))
    good = [(upload, item) for upload, item in zip(uploads, read, strict=True) if not isinstance(item, Problem)]
    bad = {upload.id: item for upload, item in zip(uploads, read, strict=True) if isinstance(item, Problem)}

    def write(version: str, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload]) -> None:
        with context.jobs.overtaking(ids):
            context.workspace.gallery.upsert(version, ids, vectors, payloads)

    def store() -> Added:
        items = [CatalogueItem(upload.id, pixels, {**upload.payload, **kept}) for upload, (pixels, kept) in good]
        embedder = LocalEmbedder(encoder)
        done = index_items(context.workspace.gallery, version, embedder, items, again=True, store=write)
        failed = {one.name: unusable(one.reason) for one in done.bad}
        context.metrics.embedded.labels(version, "item").inc(done.added)
        stored = {item.id: dict(item.payload) for item in items if item.id not in failed}
        why = bad | failed
        rejected = [Rejected(one.id, one.index, one.name, why[one.id]) for one in uploads if one.id in why]
        return Added(version, stored, rejected)

    return await run_in_threadpool(store)


def nothing_added(bad: Sequence[Rejected], told: list[dict[str, Any]]) -> Problem:
    """The answer where no image could be used: the status that they all have, else 422. ``told`` names each."""
    first, statuses = bad[0], {one.problem.status for one in bad}
    seen = f"nothing was stored, of {len(bad)} sent; {_which(first)}: {first.problem.detail}"
    hint = first.problem.hint if len(statuses) == 1 else "see bad for what to do about each"
    problem = Problem("no-usable-image", seen, hint, status=min(statuses) if len(statuses) == 1 else 422)
    problem.more = {"bad": told}
    return problem


def _which(image: Upload | Rejected) -> str:
    """Which of the images that came together, for people."""
    name = image.name if isinstance(image, Upload) else image.file
    return f"image {image.index}" + (f" ({name})" if name else "")


def _deployed(context: Context) -> tuple[str, Encoder]:
    version = context.workspace.deployed()
    return version, context.workspace.serving.encoder(version)


async def _read(context: Context, upload: Upload, encoder: Encoder) -> tuple[Pixels, dict[str, Any]] | Problem:
    """An image as the model takes it, and the payload fields that lead to the file where it is kept."""
    try:
        data = await read_upload(upload.file, context.settings)
        read = await context.intake.read(data, lambda: encoder.preprocessing)
    except Problem as problem:
        return problem
    return read.pixels, dict(await run_in_threadpool(context.workspace.images.keep, data, read.suffix))


async def keep_images(context: Context, uploads: Sequence[Upload]) -> list[dict[str, Any]]:
    """Keep images on disk for a job: id, where the image is, and payload of each. Refuses all where one is no image."""
    suffixes = []
    for upload in uploads:
        try:
            suffixes.append(await context.intake.check(await read_upload(upload.file, context.settings)))
        except Problem as problem:
            problem.detail = f"{_which(upload)}: {problem.detail}; nothing was stored"
            raise
    items = []
    for upload, suffix in zip(uploads, suffixes, strict=True):
        await upload.file.seek(0)
        kept = await run_in_threadpool(context.workspace.images.keep, await upload.file.read(), suffix)
        payload = {**upload.payload, **kept}
        items.append({"id": upload.id, "image": kept[IMAGE], "payload": payload, "file": upload.name})
    return items
