"""The file that marks a workspace, and what it says.

workspace.json               marks the directory; says where the gallery is
versions/, retired/          finished encoders, and the cards of those given up
memory/, held-out/           replayed images, and images for the gate
checkpoint-vN.safetensors    the version being trained, after its last whole epoch
gallery.db                   the gallery, unless it is on a server
adapters/                    maps to vectors of models that were not trained together with the versions here
images/                      images that the workspace keeps itself
checks/, state/              what the gate found, what is deployed, what jobs are under way
"""

from __future__ import annotations

import json
from pathlib import Path

from fixstar.durable import is_vacant, replace_json
from fixstar.errors import InputError

__all__ = ["create_mark", "gallery_url", "read_mark", "set_gallery"]

MARK = {"format": "fixstar-workspace", "format_version": 1}
GALLERY = "gallery.db"


def create_mark(path: Path, gallery: str | None) -> None:
    """Make a directory a workspace; one that is a workspace already stays as it is, other content is refused."""
    if (path / "workspace.json").exists():
        if gallery is not None and read_mark(path).get("gallery", GALLERY) != gallery:
            raise InputError(
                f"{path} is a workspace already, with its gallery at {read_mark(path).get('gallery', GALLERY)}"
            )
        return
    if not is_vacant(path):
        raise InputError(f"{path} is not empty; choose a new directory for the workspace")
    if gallery is None:
        replace_json(path / "workspace.json", MARK)
    else:
        _mark_with_gallery(path, gallery)


def read_mark(path: Path) -> dict[str, str]:
    """What workspace.json says, checked."""
    mark = path / "workspace.json"
    if not mark.is_file():
        raise InputError(f"{path} is not a workspace; make one with: fixstar init {path}")
    try:
        content = json.loads(mark.read_text())
    except ValueError as error:
        raise InputError(f"{mark} is not valid JSON ({error}); restore it from a copy") from error
    known = isinstance(content, dict) and {key: content.get(key) for key in MARK} == MARK
    if not known or not isinstance(content.get("gallery", ""), str):
        raise InputError(f"{mark} is not of a workspace that this fixstar can open (found {content})")
    return dict(content)


def set_gallery(path: Path, url: str) -> None:
    """Say where the gallery is from now on: a server's URL, or a file, relative to the workspace."""
    read_mark(path)
    _mark_with_gallery(path, url)


def _mark_with_gallery(path: Path, url: str) -> None:
    if _has_password(url):
        raise InputError("a password does not belong into workspace.json; put it into ~/.pgpass or PGPASSWORD")
    replace_json(path / "workspace.json", {**MARK, "gallery": url})


def gallery_url(path: Path) -> str:
    """Where the gallery of a workspace is: a file in it, or a server."""
    url = read_mark(path).get("gallery", GALLERY)
    return url if "://" in url or url == ":memory:" else str(path / url)


def _has_password(url: str) -> bool:
    return "://" in url and ":" in url.partition("://")[2].partition("@")[0] and "@" in url
