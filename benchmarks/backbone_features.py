"""Are the printed cells those of the backbone's features h, and not of z = P h? Two tasks of CIFAR-100, both measured.

    python benchmarks/backbone_features.py DATA --method fd --option base=0.101 --device cuda

Class templates of every second CIFAR-10 test image; the dataset's own class order, the benchmark's recipe.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fixstar.durable import replace_json
from fixstar.geometry import unit
from fixstar.models import Encoder
from fixstar.research.benchmarks.catalogue import benchmark
from fixstar.research.benchmarks.plan import Run
from fixstar.research.benchmarks.runner import SearchedImages
from fixstar.training import run_scenario

Floats = NDArray[np.float32]


def backbone_features(encoder: Encoder, pixels: NDArray[np.uint8], batch: int = 500) -> Floats:
    """h of images [N, H, W, C], before the projection; unit vectors [N, m]."""
    device = next(encoder.parameters()).device
    parts = []
    with torch.no_grad():
        for start in range(0, len(pixels), batch):
            images = torch.from_numpy(
                np.ascontiguousarray(pixels[start : start + batch].transpose(0, 3, 1, 2))
            )
            parts.append(
                encoder.backbone(encoder.normalise(images.to(device))).float().cpu().numpy()
            )
    return unit(np.concatenate(parts))


def template_accuracy(queries: Floats, gallery: Floats, labels: NDArray[np.int64]) -> float:
    """The share of queries whose nearest class mean of the gallery is their own class."""
    templates = unit(
        np.stack([gallery[labels == label].mean(axis=0) for label in range(labels.max() + 1)])
    )
    return float((np.argmax(queries @ templates.T, axis=1) == labels).mean())


def measured(
    data: Path, method: str, options: dict[str, Any], epochs: int, device: str
) -> dict[str, Any]:
    """C11, C21 and C22 of one run, for z and for h."""
    probe = benchmark("cifar100-10/2")
    run = Run(probe, method, 0, 0, epochs, None, options, {})
    images = SearchedImages.open(probe, data).gallery
    images = images.take(np.arange(0, len(images), 2))
    found: dict[str, list[Floats]] = {"z": [], "h": []}
    for version in run_scenario(
        run.stream(data), run.create(), run.settings(device), None, False, scenario="lifelong"
    ):
        encoder = version.encoder.eval()
        found["z"].append(encoder.encode(images.images, progress=False))
        found["h"].append(backbone_features(encoder, np.asarray(images.images)))
    cells = {"C11": (0, 0), "C21": (1, 0), "C22": (1, 1)}
    return {
        "method": method,
        "options": options,
        "epochs": epochs,
        **{
            kind: {
                name: template_accuracy(made[q], made[g], images.labels)
                for name, (q, g) in cells.items()
            }
            for kind, made in found.items()
        },
    }


def main(words: Sequence[str] | None = None) -> None:
    """Run one setting, print it, and add it to the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--method", default="fd")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=NUMBER")
    parser.add_argument("--epochs", type=int, default=70)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/backbone_features.json")
    )
    given = parser.parse_args(words)
    options = {
        key: float(value) for key, _, value in (pair.partition("=") for pair in given.option)
    }
    result = measured(given.data, given.method, options, given.epochs, given.device)
    runs = json.loads(given.out.read_text())["runs"] if given.out.is_file() else []
    replace_json(given.out, {"runs": [*runs, result]})
    for kind in ("z", "h"):
        print(
            given.method,
            options,
            kind,
            {name: f"{cell:.1%}" for name, cell in result[kind].items()},
        )


if __name__ == "__main__":
    main()
