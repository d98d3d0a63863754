"""fixstar slots: which class owns which slot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fixstar.cli.options import AsJson, WorkspacePath, print_json

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "slots"
EXAMPLES = "Example:  fixstar slots -w shop --out slots.json"


def command(
    workspace: WorkspacePath = Path(),
    out: Annotated[Path | None, typer.Option(help="Write the manifest to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show which class owns which slot, for ever; written as a manifest, it keeps separate teams interoperable."""
    from fixstar.durable import replace_json
    from fixstar.workspace.files import read_mark
    from fixstar.workspace.registry import Registry

    read_mark(workspace)
    manifest = Registry(workspace).manifest()
    if out is not None:
        replace_json(out, manifest)
    if as_json:
        print_json(manifest)
        return
    free = "as many as needed" if manifest["free"] is None else f"{manifest['free']:,}"
    print(f"{len(manifest['by_class']):,} classes own a slot as of {manifest['version']}, {free} are free")
    if out is not None:
        print(f"written: {out}")
        return
    for name, slot in manifest["by_class"].items():
        print(f"{slot:>8}  {name}")
