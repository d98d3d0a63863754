"""fixstar status: where a workspace stands."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fixstar.cli.options import AsJson, WorkspacePath, print_json

if TYPE_CHECKING:
    from fixstar.workspace import Status, Workspace

__all__ = ["EXAMPLES", "NAME", "command", "unfinished"]

NAME = "status"
EXAMPLES = "Examples:  fixstar status -w shop   |   fixstar status -w shop --json"


def command(workspace: WorkspacePath = Path(), as_json: AsJson = False) -> None:
    """Show the versions, which one is deployed, what was checked, and whose vectors the gallery holds."""
    from fixstar.workspace import Workspace

    with Workspace(workspace, "cpu") as space:
        status = space.status()
        if as_json:
            print_json({**asdict(status), "checks": dict(status.checks)})
        else:
            _print(space, status)


def unfinished(version: str) -> str:
    """Of a version whose training has left a checkpoint and no result."""
    return f"The training of {version} is under way, or was interrupted: then the same command goes on with it"


def _print(space: Workspace, status: Status) -> None:
    from rich.console import Console
    from rich.table import Table

    if not status.versions:
        following = unfinished(status.training) if status.training else f"Next: fixstar train IMAGES -w {status.path}"
        print(f"{status.path}: no version yet. {following}")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("version", "from", "method", "backbone", "classes", "check", "vectors", ""):
        table.add_column(heading, justify="right" if heading in ("classes", "vectors") else "left")
    for name in status.versions:
        card = space.registry.card(name)
        about = card["about"]
        table.add_row(
            name,
            about.get("parent") or "",
            about.get("method", {}).get("name", ""),
            card["backbone"]["name"],
            str(len(card["slots"]["by_class"])),
            status.checks.get(name, "" if name == status.versions[0] else "not checked"),
            f"{status.vectors.get(name, 0):,}",
            "deployed" if name == status.deployed else "",
        )
    console = Console()
    console.print(table, highlight=False)
    foreign = {name: count for name, count in status.vectors.items() if name not in status.versions and count}
    for name, count in foreign.items():
        print(f"{count:,} vectors of {name}" + (" (retired)" if name in status.retired else " (imported)"))
    for name, reached_by in status.adapters.items():
        if status.vectors.get(name):
            print(f"vectors of {name} are reached through an adapter by queries of: {', '.join(reached_by) or 'none'}")
    if status.training:
        print(unfinished(status.training))
