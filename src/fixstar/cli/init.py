"""fixstar init: make a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fixstar.cli.status import unfinished

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "init"
EXAMPLES = "Example:  fixstar init shop"


def command(path: Annotated[Path, typer.Argument(help="The directory to make.")] = Path()) -> None:
    """Make a workspace: a directory for the versions of one model and what belongs to them."""
    from fixstar.scenarios.run_directory import RunDirectory
    from fixstar.workspace import Workspace

    workspace = Workspace.create(path)
    if versions := workspace.versions():
        print(
            f"workspace {path} is there already, with {', '.join(versions)}. Next: fixstar index CATALOGUE -w {path}; "
            f"fixstar status -w {path} shows where it stands"
        )
    elif RunDirectory(workspace.path).checkpoint(1).exists():
        print(f"workspace {path} is there already. {unfinished('v1')}")
    else:
        print(f"workspace {path} is ready. Next: fixstar train IMAGES --workspace {path}")
