"""fixstar keys: who may use the service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from fixstar.cli.options import AsJson, WorkspacePath, print_json

if TYPE_CHECKING:
    from fixstar.service.keys import Key, Keys, Role

__all__ = ["NAME", "app"]

NAME = "keys"

app = typer.Typer(
    help="API keys of the service: who may read, write, or deploy.", no_args_is_help=True, rich_markup_mode="rich"
)
KeyName = Annotated[str, typer.Argument(help="Who the key is for; shown in lists and in the history of deployments.")]


@app.command("add", epilog="Example:  fixstar keys add page --role read --days 90 -w shop")
def add(
    name: KeyName,
    role: Annotated[str, typer.Option(help="read: search; write: also items; admin: also check, deploy, backfill.")],
    days: Annotated[float | None, typer.Option(help="Days until it expires.", show_default="never")] = None,
    workspace: WorkspacePath = Path(),
    as_json: AsJson = False,
) -> None:
    """Make a key. It is printed once; only its hash is kept."""
    keys = _keys(workspace)
    key = keys.add(name, cast("Role", role), days)
    kept = keys.find(key)
    if as_json:
        print_json({"name": name, "role": role, "key": key, "expires": kept and kept.expires})
        return
    print(key)
    end = "" if kept is None else f" It {_end(kept)}."
    print(f"This key is not shown again.{end} Send it as: Authorization: Bearer KEY", file=sys.stderr)


@app.command("list", epilog="Example:  fixstar keys list -w shop")
def show(workspace: WorkspacePath = Path(), as_json: AsJson = False) -> None:
    """Show whose keys there are, and until when."""
    keys = _keys(workspace).all()
    if as_json:
        print_json([{field: getattr(key, field) for field in ("name", "role", "created", "expires")} for key in keys])
        return
    for key in keys:
        print(f"{key.name}: {key.role}, since {key.created}, {_end(key)}")
    if not keys:
        print("no keys: only this machine may use the service")


@app.command("remove", epilog="Example:  fixstar keys remove page -w shop")
def remove(name: KeyName, workspace: WorkspacePath = Path()) -> None:
    """Let a key end, at once, also for a service that runs."""
    _keys(workspace).remove(name)
    print(f"the key of {name} is no longer valid")


def _end(key: Key) -> str:
    if key.expires is None:
        return "does not expire"
    return f"{'EXPIRED' if key.has_expired else 'expires'} at {key.expires}"


def _keys(workspace: Path) -> Keys:
    from fixstar.service.keys import Keys
    from fixstar.workspace.files import read_mark

    read_mark(workspace)
    return Keys(workspace)
