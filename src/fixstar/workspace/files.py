"""The file that marks a workspace, and where its gallery is.

workspace.json               marks the directory; says where the gallery is
versions/, retired/          finished encoders, and the cards of retired ones
memory/, held-out/           replayed images, and images for the gate
checkpoint-vN.safetensors    the version being trained, after its last whole epoch
gallery.db                   the gallery, unless it is on a server
translations/                how queries of one version search what another one stored
images/                      images that the workspace keeps itself
checks/, state/              what the gate found, what is deployed, what jobs are in progress
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path

from fixstar.durable import document, is_vacant, make_directory, read_document, replace_json
from fixstar.errors import FixstarError, GalleryUnavailableError, InputError, ModelError, NextStep
from fixstar.gallery import Gallery, open_gallery
from fixstar.gallery.addresses import has_secret, without_secret
from fixstar.trust import forget

GALLERY = "gallery.db"


def create_mark(path: Path, gallery: str | None) -> None:
    """Turn a directory into a workspace; an existing workspace is left unchanged, other content is refused."""
    if (path / "workspace.json").exists():
        there = read_mark(path).get("gallery", GALLERY)
        if gallery not in (None, there):
            raise InputError(
                f"{path} is a workspace already, with its gallery at {without_secret(there)}"
            )
        return
    if not _is_vacant(path):
        raise InputError(f"{path} is not empty; choose a new directory for the workspace")
    forget(path)
    refuse_secret(gallery or "")
    if "://" not in (gallery or ""):  # the file must exist from now on; a server may be unavailable
        make_directory(path)
        open_gallery(_address(path, gallery or GALLERY)).close()
    _write_mark(path, gallery)


def _is_vacant(path: Path) -> bool:
    """Whether the directory is empty, apart from leftovers of a killed ``create_mark``."""
    if is_vacant(path):
        return True
    made = path / GALLERY
    known = (
        file.name.startswith(GALLERY) or file.name.endswith(".partial") for file in path.iterdir()
    )
    if not made.is_file() or not all(known):
        return False
    with open_gallery(made) as gallery:
        return not gallery.versions()


def read_mark(path: Path) -> dict[str, str]:
    """The checked content of workspace.json. Opening a workspace always starts here."""
    require_plain_files(path)
    mark = path / "workspace.json"
    if not mark.is_file():
        if path == Path():  # probably the path was left out
            raise InputError(
                "the current directory is not a workspace; name yours, or make one",
                NextStep("init", {"path": ...}),
            )
        beside = [found.parent.name for found in path.parent.glob("*/workspace.json")]
        close = [
            str(path.parent / name) for name in difflib.get_close_matches(path.name, beside, n=1)
        ]
        raise InputError(
            f"{path} is not a workspace" + "".join(f"; did you mean {meant}?" for meant in close),
            *(NextStep("repeat", {"workspace": meant}) for meant in close),
            NextStep("init", {"path": str(path)}, "a new one" if close else ""),
        )
    content = read_document(mark, "workspace")
    if not isinstance(content.get("gallery", ""), str):
        raise ModelError(
            f"{mark} is damaged: it does not say where the gallery is; restore it from a copy"
        )
    return content


def require_plain_files(path: Path) -> None:
    """Refuse a workspace with a pipe or a device in it: opening a pipe blocks, and reading a device may never end.

    Kept images, which may be millions, are checked when they are read.
    """
    found = list(_strange_files(path))
    if found:
        seen = ", ".join(map(str, found[:3])) + (", ..." if len(found) > 3 else "")
        raise ModelError(
            f"{seen}: pipes, sockets or devices, which no workspace has. Nothing was read; restore them from a copy"
        )


def _strange_files(folder: Path, skip: str = "images") -> Iterator[Path]:
    """Everything that is neither a file nor a directory, also through links; linked directories are skipped."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_file():
            continue
        path = Path(entry.path)
        if not entry.is_dir():
            if path.exists():
                yield path
        elif entry.name != skip and not entry.is_symlink():
            yield from _strange_files(path, skip="")


def is_writable(folder: Path) -> bool:
    """Whether files can be created in a folder (created if missing). Searching does not need this."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    return os.access(there, os.W_OK)


def require_writable(folder: Path, kept: str) -> None:
    """Raise before any work is done if a folder is not writable; ``kept`` says what would be stored there."""
    if not is_writable(folder):
        raise FixstarError(
            f"{folder} cannot be written (read-only disk, or no permission), and {kept} are kept there. Make it "
            "writable, or use a copy of the workspace; searching works without"
        )


def set_gallery(path: Path, url: str) -> None:
    """Set the gallery's address: a server's URL, or a file relative to the workspace."""
    read_mark(path)
    _write_mark(path, url)


def _write_mark(path: Path, url: str | None) -> None:
    refuse_secret(url or "")
    replace_json(
        path / "workspace.json", document("workspace", {} if url is None else {"gallery": url})
    )


def gallery_url(path: Path) -> str:
    """The address of a workspace's gallery: a file in it, or a server."""
    return _address(path, read_mark(path).get("gallery", GALLERY))


def _address(path: Path, url: str) -> str:
    if "://" in url or url == ":memory:":
        return url
    return str(path / url)


def open_workspace_gallery(path: Path, read_only: bool = False) -> Gallery:
    """The gallery of a workspace. A missing or empty file is an error and not created again: its vectors are lost."""
    url = gallery_url(path)
    is_file = "://" not in url and url != ":memory:"
    if is_file and (not Path(url).is_file() or not Path(url).stat().st_size):
        raise GalleryUnavailableError(
            f"the gallery {url} is {'empty' if Path(url).is_file() else 'missing'}: its vectors are gone. Restore it "
            "from a copy, or use another gallery",
            NextStep("use-gallery", {"address": ...}, "a copy of the gallery"),
        )
    try:
        return open_gallery(url, read_only=read_only)
    except GalleryUnavailableError as error:
        if "://" not in url:
            raise
        raise GalleryUnavailableError(
            f"{error}. If it stays unavailable and there is a copy, such as the file it was moved from, the "
            "workspace can use that",
            NextStep("use-gallery", {"address": ...}, "a copy of the gallery"),
        ) from error


def refuse_secret(url: str) -> None:
    """Refuse an address with a password or a key: workspace.json may be copied and shared."""
    if has_secret(url):
        raise InputError(
            "a password does not belong in workspace.json: put it into ~/.pgpass or PGPASSWORD (a key of Qdrant into "
            "QDRANT_API_KEY), and give the address without it"
        )
