"""fixstar rollback: back to the version before."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fixstar.cli.operator import operator_name
from fixstar.cli.options import AsJson, WorkspacePath, print_json

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "rollback"
EXAMPLES = "Examples:  fixstar rollback -w shop   |   fixstar rollback --to v1 -w shop"


def command(
    workspace: WorkspacePath = Path(),
    to: Annotated[
        str | None, typer.Option(help="The version that it must lead to; nothing is moved if it would not.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Back to the version deployed before, at once. No vector is touched."""
    from fixstar.workspace import Workspace
    from fixstar.workspace.deployment import unchecked_vectors, unreached_vectors

    with Workspace(workspace, "cpu") as space:
        move = space.rollback(by=operator_name(), to=to)
        left, unchecked = space.rollout.left_by(move), unchecked_vectors(space, move.version)
        unreached = unreached_vectors(space, move.version, space.gallery.count())
    if as_json:
        print_json({**asdict(move), "left": left, "unchecked": unchecked, "unreached": unreached})
        return
    print(f"{move.version} is deployed again, {left} no longer")
    for name, count in unchecked.items():
        print(f"{count:,} vectors were made by {name}; {move.version}'s queries search them too, unchecked")
    for name, count in sorted(unreached.items()):
        print(f"{count:,} vectors of {name} are not searched: no adapter leads there from {move.version}")
