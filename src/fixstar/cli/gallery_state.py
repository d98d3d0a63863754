"""fixstar gallery stats, verify, build-index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fixstar.cli.options import AsJson, WorkspacePath, print_json

if TYPE_CHECKING:
    from fixstar.gallery import Gallery

__all__ = ["COMMANDS", "EXAMPLES", "GalleryAddress", "build_index", "opened", "stats", "verify"]

EXAMPLES = {
    "stats": "Examples:  fixstar gallery stats -w shop   |   fixstar gallery stats --gallery old.db --json",
    "verify": "Example:  fixstar gallery verify -w shop",
    "build-index": "Example:  fixstar gallery build-index -w shop",
}

GalleryAddress = Annotated[
    str | None,
    typer.Option("--gallery", help="A gallery by its address instead of the workspace's: a file, or a server's URL."),
]


@contextmanager
def opened(workspace: Path, address: str | None, read_only: bool = False) -> Iterator[Gallery]:
    """The gallery meant: the one at the address, or the workspace's."""
    from fixstar.gallery import open_gallery
    from fixstar.workspace.files import open_workspace_gallery

    if address is None:
        chosen = open_workspace_gallery(workspace, read_only)
    else:
        chosen = open_gallery(address, create=False, read_only=read_only)
    with chosen as gallery:
        yield gallery


def stats(workspace: WorkspacePath = Path(), gallery: GalleryAddress = None, as_json: AsJson = False) -> None:
    """Count the items by version, and say how wide their vectors are and which are indexed."""
    with opened(workspace, gallery) as store:
        counts, spaces = store.count(), store.versions()
        indexes = {state.version: state for state in store.indexes()}
    rows = [
        {
            "version": space.name,
            "items": counts[space.name],
            "width": space.width,
            "full_width": space.full_width,
            "index": indexes[space.name]._asdict() if space.name in indexes else None,
        }
        for space in spaces
    ]
    if as_json:
        print_json({"items": sum(counts.values()), "versions": rows})
        return
    print(f"{sum(counts.values()):,} items")
    for row in rows:
        index = indexes.get(str(row["version"]))
        recall = "" if index is None or index.recall is None else f", recall {index.recall:.3f}"
        found = "exact search" if index is None else f"{index.kind} over {index.items:,}{recall}"
        short = f"{row['width']} of {row['full_width']}" if row["width"] != row["full_width"] else f"{row['width']}"
        print(f"  {row['version']}: {row['items']:,} vectors of {short} numbers, {found}")


def verify(workspace: WorkspacePath = Path(), gallery: GalleryAddress = None, as_json: AsJson = False) -> None:
    """Read everything and say what is wrong. Changes nothing. Exit code 1 if anything is."""
    from fixstar.gallery import verify_gallery

    with opened(workspace, gallery) as store:
        count, problems = sum(store.count().values()), verify_gallery(store)
    if as_json:
        print_json({"items": count, "problems": problems})
    else:
        print("\n".join(problems) or f"{count:,} items, all as they should be")
    raise typer.Exit(1 if problems else 0)


def build_index(
    workspace: WorkspacePath = Path(),
    gallery: GalleryAddress = None,
    version: Annotated[str | None, typer.Option(help="Only this version's vectors.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make the approximate index anew and wait for it. The vectors are not touched."""
    with opened(workspace, gallery) as store:
        made = store.build_index(version)
    if as_json:
        print_json([state._asdict() for state in made])
        return
    for state in made:
        recall = "not measured" if state.recall is None else f"{state.recall:.3f}"
        print(
            f"{state.version}: {state.kind} over {state.items:,} vectors, recall@10 {recall}, asked with stored vectors"
        )
    if not made:
        print("nothing to index: this gallery always searches exactly, or is empty")


COMMANDS: dict[str, Callable[..., None]] = {"stats": stats, "verify": verify, "build-index": build_index}
