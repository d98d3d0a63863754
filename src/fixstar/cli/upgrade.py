"""fixstar upgrade: the next version, compatible with those before it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from fixstar.cli.options import (
    AsJson,
    BadImages,
    DataPath,
    Device,
    HoldOut,
    WorkspacePath,
    announced,
    hold_out_share,
    report_version,
)

if TYPE_CHECKING:
    from fixstar.training import Recipe
    from fixstar.training.recipe import Precision

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "upgrade"
EXAMPLES = (
    "Examples:  fixstar upgrade photos/2025 --workspace shop   |   "
    "fixstar upgrade photos/all -w shop --replace resnet50 --epochs 60   |   "
    "fixstar upgrade photos/2025 -w shop --keep-images no"
)


def command(
    data: DataPath,
    workspace: WorkspacePath = Path(),
    method: Annotated[str | None, typer.Option(help="Another method than the last version's.")] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Start from random weights, not from the last version's.")
    ] = False,
    replace: Annotated[
        str | None, typer.Option(help="Start from another model: a backbone, or the directory of a saved one.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Another number of epochs.")] = None,
    precision: Annotated[str | None, typer.Option(help="Another precision of the backbone; see train.")] = None,
    keep_images: Annotated[
        str, typer.Option(help="yes or no: replay kept images and keep some of these; or neither, now and later.")
    ] = "yes",
    hold_out: HoldOut = None,
    select: Annotated[
        bool, typer.Option("--select", help="Keep the best epoch that is compatible, by the images held out.")
    ] = False,
    bad_images: BadImages = "refuse",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train the next version on new images, so that it searches the old vectors. The same command resumes."""
    from fixstar.data import open_images
    from fixstar.methods import create_method
    from fixstar.workspace import UpgradeOptions, Workspace

    space = Workspace(workspace)
    settings, keep = space.settings(), _yes(keep_images)
    options = UpgradeOptions(
        recipe=_recipe(settings.recipe, epochs, precision),
        method=create_method(method) if method else None,
        device=device,
        bad_images=cast(Literal["refuse", "skip"], bad_images),
        from_scratch=from_scratch,
        replace=replace,
        keep_images=keep,
        hold_out=hold_out_share(hold_out, kept=select or (keep and settings.replay_per_class > 0)),
        select=select,
    )
    version = space.upgrade(announced(open_images(data)), options)
    report_version(version, space.path, f"fixstar check {version.name}", as_json)


def _recipe(last: Recipe, epochs: int | None, precision: str | None) -> Recipe | None:
    """What was asked to differ from the last version's recipe; none where nothing was."""
    if epochs is None and precision is None:
        return None
    recipe = last if epochs is None else last.shortened(epochs)
    return recipe if precision is None else dataclasses.replace(recipe, precision=cast("Precision", precision))


def _yes(word: str) -> bool:
    from fixstar.errors import InputError

    if word.lower() not in ("yes", "no"):
        raise InputError(f"--keep-images is yes or no, got {word!r}")
    return word.lower() == "yes"
