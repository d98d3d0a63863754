"""fixstar gallery prune-images."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fixstar.cli.options import AsJson, WorkspacePath, print_json

if TYPE_CHECKING:
    from fixstar.workspace import Workspace

__all__ = ["COMMANDS", "EXAMPLES", "prune_images"]

EXAMPLES = {
    "prune-images": "Examples:  fixstar gallery prune-images -w shop --dry-run   |   "
    "fixstar gallery prune-images -w shop --days 7"
}


def prune_images(
    workspace: WorkspacePath = Path(),
    days: Annotated[float, typer.Option(min=0.01, help="Leave alone what was kept within so many days.")] = 1.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete uploaded images that no item and no waiting job needs any more. Files that you indexed are not touched."""
    from fixstar.workspace import Workspace

    with Workspace(workspace) as space:
        before = time.time() - days * 86400
        unused = space.images.unused(_names(space), before)
        size = sum(path.stat().st_size for path in unused)
        images = len(unused)
        if not dry_run:
            images, size = space.images.prune(unused, before)
    if as_json:
        print_json({"images": images, "bytes": size, "deleted": not dry_run})
        return
    print(f"{images:,} images of {size / 1e6:,.1f} MB {'would be' if dry_run else 'were'} deleted: nothing needs them")


def _names(space: Workspace) -> Iterator[str]:
    """What leads to the images in use: of items, and of jobs that have not ended."""
    from fixstar.service.jobs import JobFiles
    from fixstar.workspace.items import IMAGE

    for job in JobFiles(space.path).load():  # before the items: a job that ends meanwhile has stored them
        yield from (str(item["image"]) for item in job.parameters.get("items", ()))
    for item in space.gallery.iterate():
        if isinstance(name := item.payload.get(IMAGE), str):
            yield name


COMMANDS: dict[str, Callable[..., None]] = {"prune-images": prune_images}
