"""fixstar init: make a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "init"
EXAMPLES = "Example:  fixstar init shop"


def command(path: Annotated[Path, typer.Argument(help="The directory to make.")] = Path()) -> None:
    """Make a workspace: a directory for the versions of one model and what belongs to them."""
    from fixstar.workspace import Workspace

    workspace = Workspace.create(path)
    print(f"workspace {workspace.path} is ready. Next: fixstar train IMAGES --workspace {workspace.path}")
