"""fixstar gallery delete."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fixstar.cli.gallery_state import GalleryAddress, opened
from fixstar.cli.options import AsJson, WorkspacePath, print_json
from fixstar.errors import InputError

if TYPE_CHECKING:
    from fixstar.gallery import Gallery

__all__ = ["COMMANDS", "EXAMPLES", "delete"]

EXAMPLES = {
    "delete": "Examples:  fixstar gallery delete shoe/17.png hat/3.png -w shop   |   "
    "fixstar gallery delete --version old-system --yes -w shop"
}
_BATCH = 1024


def delete(
    ids: Annotated[list[str] | None, typer.Argument(help="The items; - reads their ids from standard input.")] = None,
    workspace: WorkspacePath = Path(),
    gallery: GalleryAddress = None,
    version: Annotated[str | None, typer.Option(help="All items that hold a vector of this version.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take items out of the gallery: by id, or all of a version. Their images and the version's model stay."""
    if (version is None) == (not ids):
        raise InputError("say which items: their ids, or --version NAME for all items of a version, not both")
    with opened(workspace, gallery) as store:
        if version is not None:
            store.projection(version)  # refuses unknown names, and says which there are
            _agreed(yes, f"Delete all {store.count().get(version, 0):,} items of {version}?")
        wanted = _ids(store, ids or [], version)
        deleted = 0
        while batch := list(islice(wanted, _BATCH)):
            deleted += store.delete(batch)
        left = sum(store.count().values())
    print_json({"deleted": deleted, "items": left}) if as_json else print(
        f"{deleted:,} items deleted; the gallery holds {left:,}"
    )


def _ids(store: Gallery, ids: list[str], version: str | None) -> Iterator[str]:
    if version is not None:
        return (item.id for item in store.iterate(version))
    if ids == ["-"]:
        return (name for line in sys.stdin if (name := line.rstrip("\r\n")))
    return iter(ids)


def _agreed(yes: bool, question: str) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(f"{question} Say so with --yes")
    typer.confirm(question, abort=True, err=True)


COMMANDS: dict[str, Callable[..., None]] = {"delete": delete}
