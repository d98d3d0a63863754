"""How far vectors move in an upgrade: the cosine of an image's vectors by v1 and v2, held, free, and independent.

    python benchmarks/drift.py --picture docs/pictures/drift.svg      some minutes on a CPU

The images are the demo's: characters that no version has learnt.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from fixstar import demo
from fixstar.data import ImageSet, concatenate
from fixstar.durable import replace_json
from fixstar.methods import create_method
from fixstar.workspace import UpgradeOptions, Workspace

METHODS: dict[str, tuple[str, dict[str, Any], str]] = {
    "held to one space (polaris)": ("polaris", {"rotated": False}, "#3f6fd8"),
    "free, from v1's weights (vega)": ("vega", {"rotated": False}, "#2f9e6e"),
    "independent (itm)": ("itm", {}, "#d9622b"),
}


def drift(method: str, options: dict[str, Any], images: ImageSet) -> NDArray[np.float64]:
    """The cosine of each image's vectors by v1 and by v2, [N]."""
    early = demo.characters(demo.KNOWN, demo.EARLY, seed=3)
    later = concatenate(
        [
            demo.characters(demo.KNOWN, demo.LATER, seed=4),
            demo.characters(demo.ADDED, demo.LATER, seed=4),
        ]
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        Workspace.create(Path(folder) / "shop", device="cpu") as space,
    ):
        space.train(
            early, demo.settings(10, 0, "cpu"), create_method(method, **options), progress=False
        )
        recipe = demo.settings(4, 0, "cpu").recipe
        space.upgrade(
            concatenate([early, later]), UpgradeOptions(recipe, device="cpu", progress=False)
        )
        old = space.encoder("v1").encode(images.images)
        new = space.encoder("v2").encode(images.images)
    cosines: NDArray[np.float64] = np.einsum("ij,ij->i", old, new, dtype=np.float64)
    return cosines


def main() -> None:
    """Print the quantiles of each way, keep them, and draw the histogram."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--picture", type=Path, help="where to draw the histogram")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/drift.json"))
    args = parser.parse_args()
    images = demo.characters(demo.UNSEEN, demo.QUERIES, seed=2)
    figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
    found = {}
    for title, (method, options, colour) in METHODS.items():
        cosines = drift(method, options, images)
        low, middle, high = np.quantile(cosines, (0.05, 0.5, 0.95)).tolist()
        found[method] = {"images": len(images), "5 %": low, "median": middle, "95 %": high}
        print(f"{title}: {json.dumps(found[method])}", flush=True)
        axes.hist(cosines, np.linspace(-0.5, 1, 61).tolist(), label=title, color=colour, alpha=0.8)
    replace_json(args.out, {"command": "python benchmarks/drift.py", "methods": found})
    axes.set(
        xlabel="cosine of an image's vector by v1 and by v2 (1: it did not move)", ylabel="images"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    if args.picture:
        figure.savefig(args.picture)


if __name__ == "__main__":
    main()
