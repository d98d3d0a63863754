"""fixstar deploy: let queries use a version."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fixstar.cli.operator import operator_name
from fixstar.cli.options import AsJson, WorkspacePath, print_json

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "deploy"
EXAMPLES = (
    'Examples:  fixstar deploy v2 -w shop   |   fixstar deploy v2 -w shop --force "agreed with search team, 3 May"'
)


def command(
    version: Annotated[str, typer.Argument(help="The version to deploy.")],
    workspace: WorkspacePath = Path(),
    force: Annotated[str | None, typer.Option(help="Deploy without a passed check, for this reason.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let queries and new items use a version. Old vectors stay and are searched; a moment, whatever the size."""
    from fixstar.workspace import Workspace
    from fixstar.workspace.deployment import unreached_vectors

    with Workspace(workspace, "cpu") as space:
        move, counts = space.deploy(version, force, by=operator_name()), space.gallery.count()
        unreached = unreached_vectors(space, version, counts)
    if as_json:
        print_json({**asdict(move), "unreached": unreached})
        return
    old = sum(count for name, count in counts.items() if name != version and name not in unreached)
    print(f"{version} is deployed. {old:,} vectors of older versions stay and are searched with its queries")
    for name, count in sorted(unreached.items()):
        print(f"{count:,} vectors of {name} are not: no adapter leads there from {version}")
    print(f"Next: fixstar backfill -w {workspace}, if you like; back with: fixstar rollback -w {workspace}")
