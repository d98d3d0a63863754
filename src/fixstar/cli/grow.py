"""fixstar grow: room for more classes than the first simplex has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fixstar.cli.options import AsJson, WorkspacePath, print_json

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "grow"
EXAMPLES = "Example:  fixstar grow 1000 -w shop"


def command(
    count: Annotated[int, typer.Argument(help="How many more classes there shall be room for.")],
    workspace: WorkspacePath = Path(),
    as_json: AsJson = False,
) -> None:
    """Make room for more classes: the next upgrade gets a second simplex in new dimensions. Nothing stored changes."""
    from fixstar.workspace import Workspace

    space = Workspace(workspace, "cpu")
    added, slots = space.grow(count), space.registry.manifest()
    first = space.registry.card(space.newest())["classifier"]["options"]["capacity"]
    capacity = first + sum(added)
    if as_json:
        print_json({"added": list(added), "capacity": capacity, "classes": len(slots["by_class"])})
        return
    print(f"room for {capacity:,} classes from the next version on; {len(slots['by_class']):,} own a slot")
    print(f"Next: fixstar upgrade MORE_IMAGES -w {workspace}")
