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
from fixstar.errors import DamagedItemError, InputError

if TYPE_CHECKING:
    from fixstar.gallery import Gallery

__all__ = ["COMMANDS", "EXAMPLES", "agreed", "delete"]

EXAMPLES = {
    "delete": "Examples:  fixstar gallery delete shoe/17.png hat/3.png -w shop   |   "
    "fixstar gallery delete --version old-system --yes -w shop"
}
_BATCH = 1024
_TOLD = 20


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
            agreed(yes, f"Delete all {store.count().get(version, 0):,} items of {version}?")
        wanted = _ids(store, ids or [], version)
        deleted, unknown = 0, list[str]()
        while batch := list(islice(wanted, _BATCH)):
            if version is None:
                unknown += _unknown(store, batch)
            deleted += store.delete(batch)
        left = sum(store.count().values())
    if as_json:
        print_json({"deleted": deleted, "items": left, "unknown": unknown})
        return
    print(f"{deleted:,} items deleted; the gallery holds {left:,}")
    if unknown:
        more = f" and {len(unknown) - _TOLD:,} more" if len(unknown) > _TOLD else ""
        print(f"Not in the gallery: {', '.join(unknown[:_TOLD])}{more}")


def _ids(store: Gallery, ids: list[str], version: str | None) -> Iterator[str]:
    if version is not None:
        return (item.id for item in store.iterate(version))
    if ids == ["-"]:
        return (name for line in sys.stdin if (name := line.rstrip("\r\n")))
    return iter(ids)


def _unknown(store: Gallery, ids: list[str]) -> list[str]:
    """The ids that the gallery does not know. What is there and damaged can be deleted, so it is known."""
    try:
        known = store.get(ids)
    except DamagedItemError:
        return [name for half in _halves(ids) for name in _unknown(store, half)]
    return [name for name in dict.fromkeys(ids) if name not in known]


def _halves(ids: list[str]) -> list[list[str]]:
    """Two halves, to find the damaged one among them; none where it is found."""
    middle = len(ids) // 2
    return [ids[:middle], ids[middle:]] if middle else []


def agreed(yes: bool, question: str) -> None:
    """Go on only with the user's consent: --yes, or an answer at the terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(f"{question} Say so with --yes")
    typer.confirm(question, abort=True, err=True)


COMMANDS: dict[str, Callable[..., None]] = {"delete": delete}
