"""Read every file of a workspace and report which are damaged. Changes nothing."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from fixstar.durable import open_regular_file, read_arrays, read_document
from fixstar.errors import FixstarError
from fixstar.gallery import verify_gallery
from fixstar.models.encoder import verify_saved
from fixstar.translation import load_translation
from fixstar.workspace.backfill.run import PlanFiles
from fixstar.workspace.files import open_workspace_gallery, require_plain_files
from fixstar.workspace.registry import Registry
from fixstar.workspace.translations import translation_files

DOCUMENTS = {
    "workspace.json": "workspace",
    "growth.json": "growth",
    "retired/v*.json": "encoder",
    "held-out/v*.json": "draws",
    "held-out/named.json": "named-images",
    "learnt/v*.json": "learnt-images",
    "checks/*.json": "check",
    "checks/*/check-*.json": "check",
    "state/deployment.json": "deployment",
    "state/keys.json": "keys",
    "state/history.json": "history",
    "state/jobs/*.json": "job",
    "state/backfill/cursor.json": "cursor",
    "trials-v*/results.json": "trials",
}
ARRAYS = {
    "memory/*.safetensors": "replay",
    "held-out/v*[0-9].safetensors": "replay",
    "held-out/v*-learnt.safetensors": "learnt",
    "checks/*/flips-*.safetensors": "flips",
}


def verify_workspace(path: Path) -> Iterator[str]:
    """One sentence per damaged document, weight file, replay memory, kept image or gallery item."""
    strange = list(_problem(partial(require_plain_files, path)))
    if strange:
        yield from strange
        return
    yield from verify_files(path)
    for image in sorted(path.glob("images/??/[!.]*")):
        yield from _problem(partial(_check_image, image))
    try:
        with open_workspace_gallery(path) as gallery:
            yield from verify_gallery(gallery)
    except FixstarError as error:
        yield str(error)


def verify_files(path: Path) -> Iterator[str]:
    """The same without images and gallery. Other processes may write at the same time."""
    for kinds, read in ((DOCUMENTS, read_document), (ARRAYS, read_arrays)):
        for pattern, kind in kinds.items():
            for file in sorted(path.glob(pattern)):
                yield from _problem(partial(read, file, kind))
    for directory in Registry(path).directories():
        yield from _problem(partial(verify_saved, directory))
    for file in translation_files(path):
        yield from _problem(partial(load_translation, file))
    yield from _problem(PlanFiles(path).plan)
    yield from _problem(partial(_check_counts, path / "state" / "usage.db"))


def _check_image(image: Path) -> None:
    with open_regular_file(image) as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != image.stem:
            raise FixstarError(
                f"{image} is damaged: store that image again, or restore it from a copy"
            )


def _check_counts(path: Path) -> None:
    if path.is_file():
        with closing(sqlite3.connect(path)) as db:
            (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise FixstarError(f"{path} is damaged ({found}); delete it: it holds counts only")


def _problem(read: Callable[[], object]) -> Iterator[str]:
    try:
        read()
    except FileNotFoundError:  # deleted meanwhile
        return
    except (FixstarError, OSError, sqlite3.Error) as error:
        yield str(error)
