"""How much of fixstar does one query pass, and one check? Distinct files and functions, counted by Python's profiler.

    python benchmarks/trace.py                 a table, about ten seconds
    python benchmarks/trace.py --json          the same as JSON, with the names of all functions

The workspace has two small versions that were trained freely and some items that the first one stored. The check is
the first one of the second version: it fits the translation, chooses and judges. The query is warm: the second version
is deployed, the models are in memory, and one query was asked before. Lambdas and comprehensions are not counted, nor
are functions of other libraries.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from PIL import Image

import fixstar
from fixstar.data import open_images
from fixstar.models import Encoder
from fixstar.workspace import Workspace, catalogue
from fixstar.workspace.translations import OWN_SPACE

SOURCE = Path(fixstar.__file__).parent
CLASSES = ("bag", "hat", "shoe", "sock")
TARGETS = {"query": (15, 60), "check": (35, 250)}  # files and functions, at most


def passed(work: Callable[[], object]) -> list[str]:
    """The functions of fixstar that are called while some work is done, as ``file.py:Class.function``."""
    seen = set[str]()
    places = dict[str, str]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_code.co_name.startswith("<"):
            return
        file = frame.f_code.co_filename
        if file not in places:
            path = Path(file)
            places[file] = (
                path.relative_to(SOURCE).as_posix() if path.is_relative_to(SOURCE) else ""
            )
        if places[file]:
            seen.add(f"{places[file]}:{frame.f_code.co_qualname}")

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(seen)


def traced(folder: Path) -> dict[str, list[str]]:
    """The functions that a check and a warm query pass, in a workspace that is made in a folder."""
    space = _workspace(folder / "shop")
    items = _pictures(folder / "items", per_class=12, seed=0)
    held = open_images(str(_pictures(folder / "held", per_class=12, seed=1)))
    with space:
        space.index(catalogue(items))
        check = passed(lambda: space.check("v2", held, progress=False))
        space.deploy("v2", force="to be measured")
        image = np.asarray(Image.open(next(items.rglob("*.png"))))
        space.search([image], k=5)
        query = passed(lambda: space.search([image], k=5))
    return {"query": query, "check": check}


def _workspace(path: Path) -> Workspace:
    space = Workspace.create(path, device="cpu")
    torch.manual_seed(0)
    encoder = Encoder.create("tiny", classes=list(CLASSES), capacity=8)
    for number in (1, 2):
        parent = "v1" if number == 2 else None
        method = {"name": "vega", "options": {}}
        encoder.about = {
            "version": f"v{number}",
            "parent": parent,
            "method": method,
            OWN_SPACE: True,
        }
        encoder.save(space.registry.directory(f"v{number}"))
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
    return space


def _pictures(folder: Path, per_class: int, seed: int) -> Path:
    """One folder a class: patches of one colour with noise."""
    rng = np.random.default_rng(seed)
    for number, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        colour = np.random.default_rng(number).integers(0, 200, 3)
        for i in range(per_class):
            pixels = (colour + rng.integers(0, 55, (32, 32, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{seed}-{i}.png")
    return folder


def counts(functions: list[str]) -> Counter[str]:
    """The functions in each file."""
    return Counter(name.partition(":")[0] for name in functions)


def main() -> None:
    """Print what is passed, by file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, with the names of all functions"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = traced(Path(folder))
    if args.json:
        rows = {
            name: {"files": len(counts(names)), "functions": len(names), "passed": names}
            for name, names in found.items()
        }
        print(json.dumps(rows, indent=1))
        return
    for name, names in found.items():
        files = counts(names)
        target = TARGETS[name]
        print(
            f"{name}: {len(files)} files, {len(names)} functions (targets {target[0]} and {target[1]})"
        )
        for file, count in files.most_common():
            print(f"  {count:4} {file}")


if __name__ == "__main__":
    main()
