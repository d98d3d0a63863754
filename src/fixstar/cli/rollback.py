"""fixstar rollback: back to the version before."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from fixstar.cli.options import AsJson, WorkspacePath, print_json

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "rollback"
EXAMPLES = "Example:  fixstar rollback -w shop"


def command(workspace: WorkspacePath = Path(), as_json: AsJson = False) -> None:
    """Back to the version deployed before, at once. No vector is touched."""
    from fixstar.workspace import Workspace

    with Workspace(workspace, "cpu") as space:
        left = space.deployed()
        move, counts = space.rollback(), space.gallery.count()
    if as_json:
        print_json(asdict(move))
        return
    print(f"{move.version} is deployed again, {left} no longer")
    if newer := counts.get(left, 0):
        print(f"{newer:,} vectors were made by {left}; {move.version}'s queries search them too, unchecked")
