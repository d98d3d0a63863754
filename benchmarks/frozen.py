"""How long a version takes to train on a frozen backbone's features, once they are made.

    PYTHONPATH=src python benchmarks/frozen.py --out benchmarks/results/frozen_cpu.json

10,000 images of 100 classes with features of 384 components by a stand-in backbone: the time does not depend on what is
learnt. v1 on all of them, then an upgrade by 5,000 images of 50 new classes, with replay, by the default recipe.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fixstar.data import ImageSet, ReplayMemory, from_arrays
from fixstar.durable import replace_json
from fixstar.images import Preprocessing
from fixstar.methods import create_method
from fixstar.training import FROZEN, Settings, TrainingContext, train_version
from fixstar.training.scenarios import remember

IMAGES, CLASSES, WIDTH = 10_000, 100, 384


class Cheap(nn.Module):
    """Stands in for a backbone of 384 features: embedding is not what is timed."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 8 * 8, WIDTH)

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] to [B, 384]."""
        features: Tensor = self.head(nn.functional.adaptive_avg_pool2d(images, 8).flatten(1))
        return features


def cheap() -> Cheap:
    """The same weights whenever it is made."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Cheap()


def patches(first: int, count: int) -> ImageSet:
    rng = np.random.default_rng(first)
    labels = np.repeat(np.arange(count), IMAGES // CLASSES)
    centres = rng.integers(0, 160, (count, 4, 4, 3)).repeat(8, 1).repeat(8, 2)
    pixels = (centres[labels] + rng.integers(0, 90, (len(labels), 32, 32, 3))).astype(np.uint8)
    return from_arrays(pixels, labels, [f"class {first + i:03}" for i in range(count)])


def measured(method: str, capacity: int, folder: Path) -> dict[str, Any]:
    """Seconds of v1 on all 10,000 images, and of an upgrade on 5,000, with all features on disk."""
    settings = Settings(
        backbone="frozen:cheap",
        preprocessing=Preprocessing(size=(32, 32), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)),
        capacity=capacity,
        recipe=FROZEN,
        frozen=True,
        device="cpu",
    )
    chosen = create_method(method, **({"rotated": False} if method == "polaris" else {}))
    everything, more = patches(0, CLASSES), patches(CLASSES, CLASSES // 2)
    context = TrainingContext(None, ReplayMemory(20), features=folder)
    embedded = replace(settings, recipe=FROZEN.shortened(1))
    for images in (everything, more):
        train_version(1, images, context, chosen, embedded, progress=False)
    start = time.perf_counter()
    first = train_version(1, everything, context, chosen, settings, progress=False)
    trained = time.perf_counter() - start
    memory = remember(context.memory, first, settings)
    past = replace(context, previous=first.encoder, first=first.encoder, memory=memory)
    start = time.perf_counter()
    train_version(2, more, past, chosen, settings, progress=False)
    upgraded = time.perf_counter() - start
    print(f"{method}, K = {capacity:,}: v1 {trained:.1f} s, upgrade {upgraded:.1f} s", flush=True)
    return {"method": method, "capacity": capacity, "train_s": round(trained, 1), "upgrade_s": round(upgraded, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            measured(method, capacity, Path(folder)) for capacity in (1000, 10_000) for method in ("polaris", "hoc")
        ]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    facts = {"images": IMAGES, "width": WIDTH, "epochs": FROZEN.epochs, "threads": torch.get_num_threads()}
    if arguments.out is not None:
        replace_json(arguments.out, {**facts, "load_at_the_end": load, "rows": rows})


if __name__ == "__main__":
    main()
