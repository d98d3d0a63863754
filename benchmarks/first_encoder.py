"""What a newcomer's first version finds among photos: an untouched pre-trained network, or one trained from scratch.

    python benchmarks/first_encoder.py FLOWERS                 a folder with one folder per class
    python benchmarks/first_encoder.py FLOWERS --classes 20 --images 20 --epochs 20 --out first_encoder.json

Half of the classes train, the other half is searched: of each class half of the images are queries, half the gallery.
A query counts if its nearest image is of its class. Needs the extra ``encoder``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fixstar.data import ImageSet
from fixstar.durable import replace_json
from fixstar.methods import create_method
from fixstar.models import Encoder
from fixstar.training import FROZEN, Settings, paper_recipe
from fixstar.workspace import Workspace

PRETRAINED = "efficientnet-lite0"


def sampled(root: Path, classes: int, images: int, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Images to train on, and images of as many other classes to search."""
    rng = np.random.default_rng(seed)
    folders = [
        Path(path)
        for path in rng.permutation(sorted(path for path in root.iterdir() if path.is_dir()))
    ]
    halves = (folders[:classes], folders[classes : 2 * classes])
    trained, searched = (_images_of(half, images, rng) for half in halves)
    return trained, searched


def _images_of(folders: list[Path], images: int, rng: np.random.Generator) -> ImageSet:
    paths: list[Path] = []
    labels: list[int] = []
    for label, folder in enumerate(folders):
        chosen = rng.permutation(sorted(folder.glob("*.jpg")))[:images]
        paths += [Path(path) for path in chosen]
        labels += [label] * len(chosen)
    return ImageSet(
        tuple(paths), np.array(labels), tuple(folder.name for folder in folders), "photos"
    )


def found_first(encoder: Encoder, images: ImageSet) -> float:
    """The share of queries whose nearest gallery image is of their class; every second image is a query."""
    vectors = encoder.encode(list(images.images))
    query = np.arange(len(vectors)) % 2 == 1
    nearest = np.argmax(vectors[query] @ vectors[~query].T, axis=1)
    return float(np.mean(images.labels[~query][nearest] == images.labels[query]))


def trained(images: ImageSet, backbone: str, epochs: int, frozen: bool, seed: int) -> Encoder:
    """v1 of a new workspace, as ``fixstar train --backbone NAME --epochs N [--frozen]`` makes it."""
    method = create_method("vega", **({"rotated": False} if frozen else {}))
    recipe = (FROZEN if frozen else paper_recipe(method.scenario)).shortened(epochs)
    settings = Settings(backbone=backbone, frozen=frozen, recipe=recipe, seed=seed, device="cpu")
    with (
        tempfile.TemporaryDirectory() as folder,
        Workspace.create(Path(folder) / "shop", device="cpu") as space,
    ):
        space.train(images, settings, method, hold_out=0.1)
        return space.encoder("v1")


def summary(options: argparse.Namespace, runs: list[dict[str, float]]) -> dict[str, Any]:
    """What is kept of the seeds so far."""
    return {
        "photos": options.photos.name,
        "classes": options.classes,
        "images": options.images,
        "epochs": options.epochs,
        "pretrained": PRETRAINED,
        "machine": f"{platform.machine()}, {os.environ.get('OMP_NUM_THREADS', 'all')} thread(s)",
        "mean": {
            name: float(np.mean([run[name] for run in runs]))
            for name in ("pretrained", "scratch", "frozen")
        },
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path)
    parser.add_argument(
        "--classes", type=int, default=20, help="to train on, and as many others to search"
    )
    parser.add_argument("--images", type=int, default=20, help="of each class")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=2, help="each draws other classes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runs = []
    for seed in range(options.seeds):
        learnt, searched = sampled(options.photos, options.classes, options.images, seed)
        ways: dict[str, Callable[[], Encoder]] = {
            "pretrained": partial(Encoder.wrap, PRETRAINED),
            "scratch": partial(trained, learnt, "tiny", options.epochs, False, seed),
            "frozen": partial(trained, learnt, PRETRAINED, options.epochs, True, seed),
        }
        run: dict[str, float] = {"seed": seed, "queries": len(searched) // 2}
        for name, make in ways.items():
            started = time.process_time()
            run[name] = found_first(make(), searched)
            run[f"{name}_seconds"] = round(time.process_time() - started, 1)
        runs.append(run)
        print(json.dumps(run), flush=True)
        if options.out is not None:
            replace_json(options.out, summary(options, runs))


if __name__ == "__main__":
    main()
