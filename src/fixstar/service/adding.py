"""Uploaded images on their way into the gallery."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastapi import UploadFile
from fastapi.concurrency import run_in_threadpool

from fixstar.gallery.arguments import checked_ids
from fixstar.images.reading import Pixels
from fixstar.lifecycle import CatalogueItem, LocalEmbedder, index_items
from fixstar.lifecycle.catalogue import IMAGE, STAMP
from fixstar.models import Encoder
from fixstar.service.context import Context
from fixstar.service.intake import read_upload
from fixstar.service.problems import Problem

__all__ = ["Added", "Rejected", "Upload", "add_images", "keep_images", "plan_uploads"]

_LONGEST_ID = 1024


class Upload(NamedTuple):
    """An image with the id and the payload that it is to have."""

    id: str
    payload: dict[str, Any]
    file: UploadFile


@dataclass(frozen=True)
class Rejected:
    """An image that was left out, and why."""

    id: str
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
            raise _wrong(f"{len(given)} {name} for {len(images)} images; one an image is needed")
    names = [uuid.uuid4().hex for _ in images] if ids is None else checked_ids(list(ids))
    if too_long := [name for name in names if len(name) > _LONGEST_ID]:
        raise _wrong(f"an id has up to {_LONGEST_ID} characters, got {len(too_long[0])}")
    contents = [{} for _ in images] if payloads is None else [_checked(content) for content in payloads]
    return list(map(Upload, names, contents, images))


def _checked(payload: Any) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise _wrong(f"a payload is a JSON object, got {payload!r:.80}")
    if reserved := {IMAGE, STAMP} & payload.keys():
        raise _wrong(f"the payload field {min(reserved)!r} says where the image is kept, and is filled in here")
    return payload


def _wrong(detail: str, hint: str = "see /v1/docs") -> Problem:
    return Problem(422, "The request is not as documented", detail, hint)


async def add_images(context: Context, uploads: Sequence[Upload]) -> Added:
    """Embed and store images with the deployed version; on disk when it returns. Bad ones are left out."""
    version, encoder = await run_in_threadpool(_deployed, context)
    read = await asyncio.gather(*(_read(context, upload, encoder) for upload in uploads))
    good = [(upload, item) for upload, item in zip(uploads, read, strict=True) if not isinstance(item, Problem)]
    bad = [Rejected(upload.id, item) for upload, item in zip(uploads, read, strict=True) if isinstance(item, Problem)]

    def store() -> Added:
        items = [CatalogueItem(upload.id, pixels, {**upload.payload, **kept}) for upload, (pixels, kept) in good]
        done = index_items(context.workspace.gallery, version, LocalEmbedder(encoder), items, again=True)
        failed = {one.name: Problem(422, "The image cannot be used", one.reason) for one in done.bad}
        context.metrics.embedded.labels(version, "item").inc(done.added)
        stored = {item.id: dict(item.payload) for item in items if item.id not in failed}
        return Added(version, stored, bad + [Rejected(name, problem) for name, problem in failed.items()])

    return await run_in_threadpool(store)


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
    for number, upload in enumerate(uploads):
        try:
            suffixes.append(await context.intake.check(await read_upload(upload.file, context.settings)))
        except Problem as problem:
            problem.detail = f"image {number} ({upload.id}): {problem.detail}; nothing was stored"
            raise
    items = []
    for upload, suffix in zip(uploads, suffixes, strict=True):
        await upload.file.seek(0)
        kept = await run_in_threadpool(context.workspace.images.keep, await upload.file.read(), suffix)
        items.append({"id": upload.id, "image": kept[IMAGE], "payload": {**upload.payload, **kept}})
    return items
