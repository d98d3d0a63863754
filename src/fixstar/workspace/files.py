"""The file that marks a workspace, and where its gallery is.

workspace.json               marks the directory; says where the gallery is
versions/, retired/          finished encoders, and the cards of retired ones
memory/, held-out/           replayed images, and images for the gate
checkpoint-vN.safetensors    the version being trained, after its last whole epoch
gallery.db                   the gallery, unless it is on a server
adapters/                    maps to vectors of models that were not trained together with the versions here
images/                      images that the workspace keeps itself
checks/, state/              what the gate found, what is deployed, what jobs are in progress
"""

from __future__ import annotations

import json
from pathlib import Path

from fixstar.durable import is_vacant, replace_json
from fixstar.errors import GalleryUnavailableError, InputError, NextStep
from fixstar.gallery import Gallery, open_gallery
from fixstar.gallery.addresses import has_secret, without_secret

MARK = {"format": "fixstar-workspace", "format_version": 1}
GALLERY = "gallery.db"


def create_mark(path: Path, gallery: str | None) -> None:
    """Make a directory a workspace; an existing workspace stays as it is, other content is refused."""
    if (path / "workspace.json").exists():
        if gallery is not None and (there := read_mark(path).get("gallery", GALLERY)) != gallery:
            raise InputError(f"{path} is a workspace already, with its gallery at {without_secret(there)}")
        return
    if not is_vacant(path):
        raise InputError(f"{path} is not empty; choose a new directory for the workspace")
    if gallery is None:
        replace_json(path / "workspace.json", MARK)
    else:
        _write_mark(path, gallery)


def read_mark(path: Path) -> dict[str, str]:
    """What workspace.json says, checked."""
    mark = path / "workspace.json"
    if not mark.is_file():
        here = path == Path()  # most likely the workspace was not named
        raise InputError(
            f"{'the current directory' if here else path} is not a workspace{'; name yours, or make one' * here}",
            NextStep("init", {"path": ... if here else str(path)}),
        )
    try:
        content = json.loads(mark.read_text())
    except ValueError as error:
        raise InputError(f"{mark} is not valid JSON ({error}); restore it from a copy") from error
    known = isinstance(content, dict) and {key: content.get(key) for key in MARK} == MARK
    if not known or not isinstance(content.get("gallery", ""), str):
        found = {key: content.get(key) for key in MARK} if isinstance(content, dict) else type(content).__name__
        raise InputError(f"{mark} is not a workspace that this fixstar can open (found {found})")
    return dict(content)


def set_gallery(path: Path, url: str) -> None:
    """Say where the gallery is from now on: a server's URL, or a file, relative to the workspace."""
    read_mark(path)
    _write_mark(path, url)


def _write_mark(path: Path, url: str) -> None:
    refuse_secret(url)
    replace_json(path / "workspace.json", {**MARK, "gallery": url})


def gallery_url(path: Path) -> str:
    """Where the gallery of a workspace is: a file in it, or a server."""
    url = read_mark(path).get("gallery", GALLERY)
    return url if "://" in url or url == ":memory:" else str(path / url)


def open_workspace_gallery(path: Path, read_only: bool = False) -> Gallery:
    """The gallery of a workspace. If its server is away, the error says how to use a copy of it instead."""
    url = gallery_url(path)
    try:
        return open_gallery(url, read_only=read_only)
    except GalleryUnavailableError as error:
        if "://" not in url:
            raise
        raise GalleryUnavailableError(
            f"{error}. If it stays away and there is a copy, such as the file it was moved from, the workspace can use "
            "that",
            NextStep("use-gallery", {"address": ...}, "a copy of the gallery"),
        ) from error


def refuse_secret(url: str) -> None:
    """Refuse an address that holds a password or a key: workspace.json is copied and shown around."""
    if has_secret(url):
        raise InputError(
            "a password does not belong in workspace.json: put it into ~/.pgpass or PGPASSWORD (a key of Qdrant into "
            "QDRANT_API_KEY), and give the address without it"
        )
