"""Why a large capacity K holds old vectors: most of a feature is then a frozen copy of the backbone's own.

Only the rows of P that belong to learnt classes are trained to mean something. Each of the others gets about 1/K of a
gradient and stays where it was initialised. With z = P h those rows are a random projection that never moves, and
random projections keep angles: the larger K, the closer cos(z, z') comes to cos(h, h'). A loss that holds z then holds
the backbone's whole feature, also the directions that only classes of the future will use.

v1 learns 10 classes of CIFAR-100 and v2 10 more (method fd on all images, backbone tiny); the figures are of 500 images
of 20 classes that no version has learnt. One run per K; about a minute each on one core.

    python benchmarks/capacity.py --data DATA --picture docs/pictures/capacity.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fixstar.data import ImageSet
from fixstar.data.formats import cifar100
from fixstar.data.streams import class_stream
from fixstar.methods import create_method
from fixstar.models import Encoder
from fixstar.training import Recipe, Settings, run_scenario

CAPACITIES = (100, 300, 1000, 3000, 10_000, 30_000)
RECIPE = Recipe(epochs=12, learning_rate=0.05, milestones=(8, 10), batch_size=64)
FIGURES = {
    "share": "share of |z|² in slots without a class",
    "rows kept": "cosine of those rows of P, v1 to v2",
    "angles kept": "correlation of cos(z, z') and cos(h, h')",
    "held": "cos(z of v1, z of v2), unseen classes",
}


def images_of(source: ImageSet, classes: list[str], per_class: int) -> ImageSet:
    chosen = source.of_classes(classes)
    return chosen.take(
        np.concatenate(
            [np.flatnonzero(chosen.labels == i)[:per_class] for i in range(len(classes))]
        )
    )


def measure(old: Encoder, new: Encoder, pixels: Tensor) -> dict[str, float]:
    """The figures of two versions, for images [N, C, H, W] of classes that neither has learnt."""
    assert old.projection is not None
    assert new.projection is not None
    with torch.no_grad():
        before = old(pixels)
        after = new(pixels)
        free = len(new.slots)  # slots are given from the left: those from here on have no class
        z = functional.normalize(after.z)
        h = functional.normalize(after.h)
        pairs = torch.triu_indices(len(z), len(z), 1)
        angles = torch.stack([(each @ each.T)[pairs[0], pairs[1]] for each in (z, h)])
        rows = functional.cosine_similarity(
            old.projection.weight[free:], new.projection.weight[free:]
        )
        return {
            "share": float(after.z[:, free:].square().sum() / after.z.square().sum()),
            "rows kept": float(rows.mean()),
            "angles kept": float(torch.corrcoef(angles)[0, 1]),
            "held": float(functional.cosine_similarity(before.z, after.z).mean()),
        }


def draw(found: dict[str, dict[str, float]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for name, label in FIGURES.items():
        axes.plot(
            [int(K) for K in found], [one[name] for one in found.values()], marker="o", label=label
        )
    axes.set(
        xscale="log",
        xlabel="capacity K",
        ylim=(0, 1.05),
        title="A large capacity freezes most of a feature",
    )
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="a folder with cifar-100-binary/")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/capacity.json"))
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    photos = cifar100(arguments.data / "cifar-100-binary", split="train")
    names = [photos.classes[i] for i in np.random.default_rng(0).permutation(100)]
    stream = class_stream(images_of(photos, names[:20], 100), 10, 10)
    unseen = torch.from_numpy(np.asarray(images_of(photos, names[20:40], 25).images)).permute(
        0, 3, 1, 2
    )
    found = {}
    for K in CAPACITIES:
        settings = Settings(backbone="tiny", capacity=K, recipe=RECIPE, device="cpu")
        versions = [
            version.encoder
            for version in run_scenario(stream, create_method("fd", on="all"), settings)
        ]
        found[str(K)] = measure(versions[0], versions[1], unseen)
        print(
            f"K = {K:6,}  "
            + "  ".join(f"{name} {value:.3f}" for name, value in found[str(K)].items())
        )
    arguments.out.write_text(json.dumps(found, indent=2) + "\n")
    if arguments.picture is not None:
        draw(found, arguments.picture)


if __name__ == "__main__":
    main()
