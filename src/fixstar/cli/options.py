"""Options that several verbs share."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["AsJson", "BadImages", "DataPath", "Device", "WorkspacePath", "print_json"]

WorkspacePath = Annotated[Path, typer.Option("--workspace", "-w", help="The workspace directory.")]
DataPath = Annotated[
    Path,
    typer.Argument(help="Labelled images: one folder a class, a CSV list (path,label), CIFAR, idx or Omniglot files."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
BadImages = Annotated[str, typer.Option("--bad-images", help="Images that cannot be read: refuse or skip.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]


def print_json(content: Any) -> None:
    """One JSON document on standard output; everything else goes to standard error."""
    json.dump(content, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
