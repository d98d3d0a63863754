"""How long ``fixstar train --frozen`` takes once the features of all images are made: the whole command, start to end.

    python benchmarks/frozen.py --out benchmarks/results/frozen_cpu.json

10,000 images of 100 classes; a DINOv2 of transformers, 384 wide, built from its configuration with random weights: the
time does not depend on what is learnt. It has 2 layers and sees 70 pixels, so that embedding is quick; ``--layers 12
--size 224`` are DINOv2-small's own, and ``--embed-on cuda`` then makes the features. The rows are
timed on the CPU. Nothing is held out. The upgrade has 5,000 images of 50 new classes, and replay.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fixstar.durable import replace_json
from fixstar.training import FROZEN

PER_CLASS = 100
FIRST = 100
MORE = 50


def draw(folder: Path, first: int, count: int) -> Path:
    """``count`` folders of PER_CLASS small photos: coloured patches and noise."""
    rng = np.random.default_rng(first)
    for number in range(first, first + count):
        (folder / f"class {number:03}").mkdir(parents=True)
        centre = rng.integers(0, 160, (4, 4, 3)).repeat(16, 0).repeat(16, 1)
        for image in range(PER_CLASS):
            pixels = (centre + rng.integers(0, 90, (64, 64, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(
                folder / f"class {number:03}" / f"{image:03}.jpg", quality=90
            )
    return folder


def save_dinov2(folder: Path, layers: int, size: int) -> Path:
    """A DINOv2 as wide as the small one, with random weights, as ``save_pretrained`` writes it."""
    import transformers

    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=384,
        num_attention_heads=6,
        num_hidden_layers=layers,
        image_size=size,
        patch_size=14,
    )
    transformers.Dinov2Model(config).save_pretrained(folder)
    return folder


def fixstar(*words: str | Path) -> dict[str, float]:
    """Run a command; wall and CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "fixstar", *map(str, words)], check=True, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = time.perf_counter() - started
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall, 1), "cpu_s": round(cpu, 1)}


def measured(
    method: str, photos: tuple[Path, Path], model: Path, features: Path, folder: Path
) -> dict[str, Any]:
    """v1 and v2 in a new workspace that has all features."""
    fixstar("init", folder)
    shutil.copytree(features, folder / "features")
    words = ("-w", folder, "--device", "cpu")
    own = ("--backbone", f"hf:{model}", "--frozen", "--method", method)
    trained = fixstar("train", photos[0], *words, *own, "--hold-out", "0")
    upgraded = fixstar("upgrade", photos[1], *words, "--hold-out", "0", "--try", "off")
    print(f"{method}: train {trained}, upgrade {upgraded}", flush=True)
    return {"method": method, "train": trained, "upgrade": upgraded}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--methods", default="polaris,hoc")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--size", type=int, default=70, help="pixels, in steps of 14")
    parser.add_argument("--embed-on", default="cpu", help="the device that makes the features")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photos = draw(folder / "photos", 0, FIRST), draw(folder / "more", FIRST, MORE)
        model = save_dinov2(folder / "model", options.layers, options.size)
        first = folder / "first"
        words = ("-w", folder / "first", "--device", options.embed_on, "--epochs", "1")
        fixstar("init", first)
        embedding = [
            fixstar(
                "train",
                photos[0],
                *words,
                "--hold-out",
                "0",
                "--backbone",
                f"hf:{model}",
                "--frozen",
            ),
            fixstar("upgrade", photos[1], *words, "--hold-out", "0", "--try", "off"),
        ]
        print(f"with embedding, one epoch: {embedding}", flush=True)
        methods = options.methods.split(",")
        rows = [
            measured(name, photos, model, first / "features", folder / name) for name in methods
        ]
    content = {
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, torch {torch.__version__}",
        "load_at_the_end": round(os.getloadavg()[0], 1),
        "images": FIRST * PER_CLASS,
        "new_images": MORE * PER_CLASS,
        "model": f"DINOv2, 384 wide, {options.layers} layers, {options.size} pixels",
        "epochs": FROZEN.epochs,
        "embedding_and_one_epoch": {
            "device": options.embed_on,
            "train": embedding[0],
            "upgrade": embedding[1],
        },
        "rows": rows,
    }
    if options.out is not None:
        replace_json(options.out, content)


if __name__ == "__main__":
    main()
