"""Options and answers that several verbs share."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fixstar.errors import InputError

if TYPE_CHECKING:
    from fixstar.data import ImageSet
    from fixstar.scenarios import Version

__all__ = [
    "PICTURES",
    "AsJson",
    "BadImages",
    "DataPath",
    "Device",
    "HoldOut",
    "WorkspacePath",
    "announced",
    "hold_out_share",
    "picture_path",
    "print_json",
    "print_wrapped",
    "report_version",
]

WorkspacePath = Annotated[Path, typer.Option("--workspace", "-w", help="The workspace directory.")]
DataPath = Annotated[
    Path,
    typer.Argument(help="Labelled images: one folder a class, a CSV list (path,label), CIFAR, idx or Omniglot files."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
BadImages = Annotated[str, typer.Option("--bad-images", help="Images that cannot be read: refuse or skip.")]
HoldOut = Annotated[
    float | None,
    typer.Option(
        "--hold-out",
        help="Share of images kept for the gate, not trained on.",
        show_default="0.1; 0 where no images are kept",
    ),
]
PICTURES = (".pdf", ".png", ".svg")
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]


def print_json(content: Any) -> None:
    """One JSON document on standard output; everything else goes to standard error."""
    json.dump(content, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def print_wrapped(text: str, bullet: str = "") -> None:
    """Print a sentence at the terminal's width, later lines indented; no word is broken."""
    width = shutil.get_terminal_size().columns
    wrapper = textwrap.TextWrapper(width, bullet, "  ", break_on_hyphens=False, break_long_words=False)
    print(wrapper.fill(text))


def announced(images: ImageSet) -> ImageSet:
    """The images themselves, after saying what was found: a folder too high shows in its classes."""
    names = ", ".join(images.classes[:5]) + (", ..." if len(images.classes) > 5 else "")
    print(f"{len(images):,} images of {len(images.classes):,} classes: {names}", file=sys.stderr)
    return images


def hold_out_share(given: float | None, kept: bool) -> float:
    """The share of images to hold out. Where images may not be kept none are, unless it is asked for."""
    if given is not None:
        return given
    return 0.1 if kept else 0.0


def picture_path(out: Path, usual: str) -> Path:
    """Where the picture of --out will be: a name without an ending gets .png, as it would from matplotlib.

    ``usual`` is a name to propose where ``out`` is a folder.
    """
    path = out if out.suffix else out.with_name(f"{out.name}.png")
    for place in (out, path):
        if place.is_dir():
            raise InputError(f"--out {place} is a folder; name a file, like --out {place / usual}")
    if path.suffix.lower() not in PICTURES:
        raise InputError(f"--out {out} must end in one of {', '.join(PICTURES)}")
    return path


def report_version(version: Version, workspace: Path, following: str, as_json: bool) -> None:
    """Where a trained version is, and what to type next."""
    path, loss = workspace / "versions" / version.name, version.log[-1].loss
    held_out = (workspace / "held-out" / f"{version.name}.safetensors").is_file()
    if as_json:
        print_json({"version": version.name, "path": str(path), "loss": loss, "held_out": held_out})
        return
    print(f"{version.name} is in {path} (loss {loss:.3f})")
    if held_out:
        print("Images held out from its training are kept for: fixstar check")
    print(f"Next: {following} -w {workspace}")
