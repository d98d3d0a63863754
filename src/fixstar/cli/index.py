"""fixstar index: embed images into the gallery."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fixstar.cli.options import AsJson, Device, WorkspacePath, print_json

if TYPE_CHECKING:
    from fixstar.workspace import CatalogueItem, Indexed, Workspace
    from fixstar.workspace.items import Embedder

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "index"
EXAMPLES = (
    "Examples:  fixstar index catalogue/ -w shop   |   fixstar index items.csv -w shop --prefix paris/   |   "
    "fixstar index cifar-100-binary -w shop --labelled"
)


def command(
    items: Annotated[Path, typer.Argument(help="A folder of images, a list (.csv: path, id, anything), or one image.")],
    workspace: WorkspacePath = Path(),
    prefix: Annotated[str, typer.Option(help="Put this before every id.")] = "",
    again: Annotated[bool, typer.Option(help="Embed items again whose image has not changed.")] = False,
    labelled: Annotated[
        bool, typer.Option(help="Read a labelled dataset as train does; pixels without a file are kept.")
    ] = False,
    cluster: Annotated[str | None, typer.Option(help="Embed on a Ray cluster: its address, or local.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Embed images with the deployed version. Items that are there already, unchanged, are left alone.

    Images that cannot be read are named and left out; exit code 1 if there is no other.
    """
    from fixstar.progress import progress_bar
    from fixstar.workspace import Workspace

    with Workspace(workspace, device) as space:
        version = space.deployed()  # once: embedder and gallery must mean the same, whatever is deployed meanwhile
        found = _labelled(space, items, prefix) if labelled else _catalogued(items, prefix)
        with (
            _embedder(space, version, cluster) as embedder,
            progress_bar("embedding", len(found), "items", show=not as_json) as advance,
        ):
            done = space.index(found, embedder, again, advance, version)
        _report(done, sum(space.gallery.count().values()), space.path, as_json)
    raise typer.Exit(1 if done.bad and not (done.added or done.unchanged) else 0)


def _catalogued(items: Path, prefix: str) -> list[CatalogueItem]:
    from fixstar.workspace import catalogue

    return list(catalogue(items, prefix))


def _labelled(space: Workspace, data: Path, prefix: str) -> list[CatalogueItem]:
    """The items of a dataset. Pixels have no file to come back to, so the workspace keeps them."""
    from dataclasses import replace

    from fixstar.data import open_images
    from fixstar.workspace import labelled_items

    found = list(labelled_items(open_images(data), prefix))
    return [
        item if item.stamp else replace(item, payload={**item.payload, **space.images.keep(item.image)})
        for item in found
    ]


def _embedder(space: Workspace, version: str, cluster: str | None) -> AbstractContextManager[Embedder | None]:
    """What embeds; None stands for this process."""
    if cluster is None:
        return nullcontext()
    from fixstar.workspace.cluster import RayEmbedder

    return RayEmbedder(space.registry.directory(version).absolute(), cluster)


def _report(done: Indexed, total: int, workspace: Path, as_json: bool) -> None:
    for image in done.bad:
        print(f"left out {image.name}: {image.reason}", file=sys.stderr)
    if as_json:
        bad = [{"id": image.name, "reason": image.reason} for image in done.bad]
        counts = {"added": done.added, "unchanged": done.unchanged, "items": total}
        print_json({"version": done.version, **counts, "bad": bad})
        return
    print(
        f"{done.added:,} items embedded with {done.version}, {done.unchanged:,} unchanged, "
        f"{len(done.bad):,} could not be read. The gallery holds {total:,}"
    )
    if done.added or done.unchanged:
        print(f"Next: fixstar search IMAGE -w {workspace}")
    elif done.bad:
        print("Next: mend or replace the images that are named above, then run the same command again")
