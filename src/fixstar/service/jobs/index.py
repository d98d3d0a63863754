"""Index jobs: embed images that the workspace keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fixstar.errors import ItemError, plural
from fixstar.gallery.filters import Payload
from fixstar.gallery.store import Vectors
from fixstar.service.jobs.records import NAMED, Result
from fixstar.service.jobs.running import LocalJob, StoppedError
from fixstar.workspace import CatalogueItem, Workspace

BATCH = 64  # images stored at a time

_NOTHING_INDEXED: Result = {
    "added": 0,
    "overtaken": 0,
    "versions": {},
    "bad": [],
    "bad_count": 0,
}


def index(space: Workspace, running: LocalJob) -> Result:
    """Embed images that the workspace keeps, with the version that is deployed when their batch comes."""
    job = running.job()
    items: Sequence[Mapping[str, Any]] = job.parameters["items"]
    done = job.done
    result = dict(job.result or _NOTHING_INDEXED)
    overtaken: list[str] = []

    def store(
        version: str, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload]
    ) -> None:
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
        batch = [
            CatalogueItem(one["id"], space.path / one["image"], one["payload"]) for one in rows
        ]
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
            "bad": [*result["bad"], *bad][:NAMED],
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
