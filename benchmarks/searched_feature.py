"""Which feature finds classes that nobody learnt: z = P h, or the backbone's feature h? Omniglot, both of each model.

The trainings are those of ``methods.py``: three tasks of 40 characters, 100 others searched. Every version is measured
twice, on z, which the fixed classifier sees and which a gallery stores, and on h, from which z is projected.

    python benchmarks/searched_feature.py OMNIGLOT_FOLDER --jobs 2
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from backbone_features import backbone_features

import methods
from fixstar.data import ImageSet
from fixstar.durable import replace_json
from fixstar.errors import FixstarError
from fixstar.evaluation import VersionFeatures, cross_test
from fixstar.methods import create_method
from fixstar.models import Encoder
from fixstar.progress import progress_bar
from fixstar.training import run_scenario, version_features

EPOCHS = 15
ORDERS = (1, 2)
COMPARED: dict[str, tuple[str, dict[str, Any]]] = {
    "fd": ("fd", {}),
    "fd, all images": ("fd", {"on": "all"}),
    "fd without distillation": ("fd", {"base": 0.0}),
    "hoc": ("hoc", {}),
    "polaris": ("polaris", {}),
    "vega": ("vega", {}),
}


def on_backbone(
    encoder: Encoder, name: str, queries: ImageSet, gallery: ImageSet
) -> VersionFeatures:
    """The features h of a version."""
    of_queries = backbone_features(encoder, np.asarray(queries.images))
    of_gallery = backbone_features(encoder, np.asarray(gallery.images))
    return VersionFeatures(name, of_queries, of_gallery)


def run(folder: Path, label: str, order: int) -> dict[str, Any]:
    """One training, measured on both features."""
    torch.set_num_threads(1)
    name, options = COMPARED[label]
    gallery, queries = methods.searched(folder)
    capacity = methods.ROTATED_CAPACITY if name in ("polaris", "vega") else methods.CAPACITY
    made = methods.settings(EPOCHS, order, capacity)
    found: dict[str, list[VersionFeatures]] = {"z": [], "h": []}
    with tempfile.TemporaryDirectory() as temporary:
        for version in run_scenario(
            methods.tasks(folder, order),
            create_method(name, **options),
            made,
            Path(temporary) / "run",
            progress=False,
        ):
            encoder = version.encoder.eval()
            found["z"].append(version_features(version.name, encoder, queries, gallery))
            found["h"].append(on_backbone(encoder, version.name, queries, gallery))
    matrices = {
        feature: {
            protocol: cross_test(versions, queries.labels, gallery.labels, protocol).matrix.tolist()
            for protocol in methods.PROTOCOLS
        }
        for feature, versions in found.items()
    }
    return {"method": label, "class_order": order, **matrices}


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Self-tests of the first and the last version and v3 on v1's vectors, by both features; means over the orders."""
    of_each = " | ".join(f"{feature}: v1 | v3 on v1 | v3" for feature in ("z", "h"))
    head = " | ".join(f"{protocol}, {of_each}" for protocol in methods.PROTOCOLS)
    lines = [f"| | {head} |", "|---|" + "---:|" * 12]
    for label in COMPARED:
        mine = [one for one in runs if one["method"] == label]
        cells = [label]
        for protocol in methods.PROTOCOLS:
            for feature in ("z", "h"):
                mean = 100 * np.mean([one[feature][protocol] for one in mine], axis=0)
                cells += [f"{mean[cell]:.1f}" for cell in ((0, 0), (2, 0), (2, 2))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is compared, write the file, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/searched_feature.json")
    )
    given = parser.parse_args()
    methods.require_omniglot(given.data)
    with ProcessPoolExecutor(given.jobs) as pool:
        begun = [
            pool.submit(run, given.data, label, order) for label in COMPARED for order in ORDERS
        ]
        runs = []
        with progress_bar("features", len(begun), "runs") as advance:
            for one in begun:
                runs.append(one.result())
                advance(1, runs[-1]["method"])
    replace_json(given.out, {"epochs": EPOCHS, "runs": runs})
    print(table(runs))


if __name__ == "__main__":
    try:
        main()
    except FixstarError as error:
        sys.exit(f"searched_feature.py: {error}")
