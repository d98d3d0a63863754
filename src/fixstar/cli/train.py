"""fixstar train: the first version."""

from __future__ import annotations

from dataclasses import replace
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
    from fixstar.training.recipe import Precision

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "train"
EXAMPLES = (
    "Examples:  fixstar train photos/2024 --workspace shop --backbone resnet18   |   "
    "fixstar train cifar-100-binary -w run --backbone resnet32 --epochs 20   |   "
    "fixstar train photos/2024 -w shop --method bct-vectors --old-vectors gallery.npz"
)


def command(
    data: DataPath,
    workspace: WorkspacePath = Path(),
    backbone: Annotated[str, typer.Option(help="See: fixstar backbones")] = "resnet18",
    method: Annotated[str, typer.Option(help="See: fixstar methods")] = "hoc",
    capacity: Annotated[int, typer.Option(help="K: classes that there will ever be room for.")] = 1000,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images; the paper's number if not given.")] = None,
    learning_rate: Annotated[float, typer.Option(help="At the start; it falls twice.")] = 0.1,
    batch_size: Annotated[int, typer.Option(help="Images a step.")] = 128,
    precision: Annotated[
        str, typer.Option(help="Of the backbone: float32, bfloat16, or auto: bfloat16 on a GPU only.")
    ] = "auto",
    old_vectors: Annotated[
        Path | None,
        typer.Option(help="Vectors of another system to stay compatible with: .npz with vectors and classes."),
    ] = None,
    replay: Annotated[int, typer.Option(help="Images a class kept for later upgrades; 0 keeps none.")] = 20,
    hold_out: HoldOut = None,
    flip: Annotated[bool, typer.Option(help="Flip images left to right at random; off for text.")] = True,
    seed: Annotated[int, typer.Option(help="The same seed gives the same weights, on as many CPU threads.")] = 0,
    bad_images: BadImages = "refuse",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train the first version, v1, on labelled images. After an interruption the same command goes on."""
    from fixstar.data import Augmentation, open_images
    from fixstar.methods import OldVectors, create_method
    from fixstar.scenarios import Settings
    from fixstar.training import paper_recipe
    from fixstar.workspace import Workspace

    space = Workspace(workspace)
    chosen = create_method(method)
    recipe = replace(
        paper_recipe(chosen.scenario),
        learning_rate=learning_rate,
        batch_size=batch_size,
        precision=cast("Precision", precision),  # the recipe refuses other words
    )
    recipe = recipe if epochs is None else recipe.shortened(epochs)
    settings = Settings(
        backbone=backbone,
        capacity=capacity,
        recipe=recipe,
        augmentation=Augmentation(flip=flip),
        replay_per_class=replay,
        bad_images=cast(Literal["refuse", "skip"], bad_images),
        seed=seed,
        device=device,
    )
    stored = None if old_vectors is None else OldVectors.read(str(old_vectors))
    share = hold_out_share(hold_out, kept=replay > 0)
    version = space.train(announced(open_images(data)), settings, chosen, old_vectors=stored, hold_out=share)
    report_version(version, space.path, "fixstar index CATALOGUE", as_json)
