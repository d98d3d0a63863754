"""fixstar retire: give up the weights of a version that nothing needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fixstar.cli.next_steps import next_lines
from fixstar.cli.options import AsJson, WorkspacePath, print_json
from fixstar.errors import FixstarError, InputError

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "retire"
EXAMPLES = "Examples:  fixstar retire v1 -w shop   |   fixstar retire --unused -w shop"


def command(
    version: Annotated[str | None, typer.Argument(help="The version to give up.")] = None,
    workspace: WorkspacePath = Path(),
    unused: Annotated[bool, typer.Option("--unused", help="Every version that nothing needs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give up a version's weights and memory, keep its card. Refused while a vector of it lives or it is needed."""
    from fixstar.workspace import Workspace

    if (version is None) != unused:
        raise InputError("retire takes a version, or --unused; give one of them")
    retired: list[str] = []
    kept: dict[str, FixstarError] = {}
    with Workspace(workspace, "cpu") as space:
        for name in space.versions() if version is None else [version]:
            try:
                space.retire(name)
                retired.append(name)
            except FixstarError as error:
                if version is not None:
                    raise
                kept[name] = error
    if as_json:
        print_json({"retired": retired, "kept": {name: str(error) for name, error in kept.items()}})
        return
    print(f"retired: {', '.join(retired) or 'none'}")
    for refusal in kept.values():
        print(refusal, *next_lines(refusal.next_steps, workspace), sep="\n")
