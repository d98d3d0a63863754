"""fixstar picture2d: two upgrades seen in the plane."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fixstar.cli.options import AsJson, Device, picture_path, print_json

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "picture2d"
EXAMPLES = "Examples:  fixstar picture2d --out features.png   |   fixstar picture2d --data mnist --backbone lenet++"


def command(
    out: Annotated[Path, typer.Option(help="Write the picture to this PNG, SVG or PDF.")] = Path("features.png"),
    data: Annotated[Path | None, typer.Option(help="MNIST's idx files; without it digits are drawn.")] = None,
    backbone: Annotated[str, typer.Option(help="tiny, or the papers' lenet++ (slow without a GPU).")] = "tiny",
    per_class: Annotated[int, typer.Option(help="Training images a class.")] = 300,
    epochs: Annotated[int, typer.Option(help="Passes over the images for each version.")] = 8,
    seed: Annotated[int, typer.Option(help="Another seed, other weights.")] = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Draw 2-d features of IFT, BCT and CoReS through two upgrades: which methods keep known classes in place."""
    from dataclasses import asdict

    from fixstar.picture2d import run_picture2d

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    picture = picture_path(out, "features.png")
    picture.parent.mkdir(parents=True, exist_ok=True)  # before the minutes that follow
    result = run_picture2d(picture, data, backbone, per_class, epochs, seed, device, progress=not as_json, say=say)
    if as_json:
        print_json(asdict(result))
        return
    for name, turns in result.turns.items():
        words = ", then ".join(f"{turn:.0f}°" for turn in turns)
        print(f"{name:<30} known classes turned by {words};  accuracy {result.accuracy[name][-1]:.0%} in the end")
    print(f"Picture: {result.picture}")
