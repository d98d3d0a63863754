"""fixstar upgrade: the next version, compatible with those before it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from fixstar.cli.options import AsJson, BadImages, DataPath, Device, WorkspacePath, announced, report_version

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "upgrade"
EXAMPLES = "Example:  fixstar upgrade photos/2025 --workspace shop"


def command(
    data: DataPath,
    workspace: WorkspacePath = Path(),
    method: Annotated[str | None, typer.Option(help="Another method than the last version's.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Another number of epochs.")] = None,
    bad_images: BadImages = "refuse",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train the next version on new images, so that it searches the old vectors. The same command resumes."""
    from fixstar.data import open_images
    from fixstar.methods import create_method
    from fixstar.workspace import Workspace

    space = Workspace(workspace)
    recipe = None if epochs is None else space.settings().recipe.shortened(epochs)
    chosen = create_method(method) if method else None
    bad = cast(Literal["refuse", "skip"], bad_images)
    version = space.upgrade(announced(open_images(data)), recipe, chosen, device, bad)
    report_version(version, space.path, "fixstar evaluate LABELLED_IMAGES", as_json)
