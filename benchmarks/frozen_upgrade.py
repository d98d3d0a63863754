"""An upgrade on a frozen pre-trained backbone: does the trained head find more than the backbone's own features?

    python benchmarks/imagenet_encoders.py PACKAGES MODELS
    python benchmarks/frozen_upgrade.py CALTECH_101 MODELS/mobilenetv2.onnx --out benchmarks/results/frozen_upgrade.json

Caltech-101 without two folders, 25 photos of each of 100 classes. v1 learns 30 classes, v2 another 30 with replay, from
15 photos each; 40 classes are in no training set. All other photos are searched by nearest image: half of them are the
gallery of all 100 classes, half the queries. Each seed draws other classes and photos. The backbone is MobileNetV2,
1,280 wide. "raw" are its features without a head. Intervals: 95 %, whole classes resampled.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from imagenet_encoders import INPUTS, LEFT_OUT
from numpy.typing import NDArray

from fixstar.data import ImageSet, ReplayMemory
from fixstar.durable import replace_json
from fixstar.evaluation import VersionFeatures, cross_test, gallery_query_split, paired_bootstrap
from fixstar.geometry import unit
from fixstar.methods import create_method
from fixstar.training import FROZEN, Settings, TrainingContext, train_version, version_features
from fixstar.training.features import FrozenFeatures
from fixstar.training.scenarios import remember
from fixstar.wording import percent, points

PER_CLASS = 25
TRAINED = 15
LEARNT = 30
GROUPS = ("known to v1", "new in v2", "never seen")
CELLS = {"v1": ("v1", "v1"), "v2 on v1": ("v2", "v1"), "v2": ("v2", "v2")}


def photos(folder: Path) -> ImageSet:
    """25 photos of each class."""
    classes = sorted(
        path for path in folder.iterdir() if path.is_dir() and path.name not in LEFT_OUT
    )
    files = [sorted(one.glob("*.jpg"))[:PER_CLASS] for one in classes]
    labels = np.repeat(np.arange(len(classes)), [len(part) for part in files])
    return ImageSet(tuple(itertools.chain(*files)), labels, tuple(one.name for one in classes))


def hits(
    images: ImageSet, method: str, settings: Settings, features: Path
) -> dict[str, NDArray[Any]]:
    """Which queries each cell answers, the group and the class of each query."""
    rng = np.random.default_rng(settings.seed)
    names = rng.permutation(images.classes).tolist()
    known = names[:LEARNT]
    new = names[LEARNT : 2 * LEARNT]
    shown = []
    searched = []
    for label, name in enumerate(images.classes):
        rows = rng.permutation(np.flatnonzero(images.labels == label))
        count = TRAINED if name in known + new else 0
        shown.append(rows[:count])
        searched.append(rows[count:])
    training = images.take(np.concatenate(shown))
    rest = images.take(np.concatenate(searched))
    split = gallery_query_split(rest.labels, seed=settings.seed)
    queries = rest.take(split.queries)
    gallery = rest.take(split.gallery)

    chosen = create_method(method, **({"rotated": False} if method == "polaris" else {}))
    context = TrainingContext(None, ReplayMemory(settings.replay_per_class), features=features)
    v1 = train_version(1, training.of_classes(known), context, chosen, settings, progress=False)
    memory = remember(context.memory, v1, settings)
    context = replace(context, previous=v1.encoder, first=v1.encoder, memory=memory)
    v2 = train_version(2, training.of_classes(new), context, chosen, settings, progress=False)

    made = FrozenFeatures(v1.encoder, features)
    raw_queries, raw_gallery = (
        unit(made.of(v1.encoder, part.images)) for part in (queries, gallery)
    )
    raw = VersionFeatures("raw", raw_queries, raw_gallery)
    versions = [
        version_features(one.name, one.encoder, queries, gallery, made=made.of) for one in (v1, v2)
    ]
    labels = (queries.labels, gallery.labels)
    test = cross_test(versions, *labels, "image")
    place = {version.name: number for number, version in enumerate(versions)}
    found = {cell: test.hits[place[by], place[on]] for cell, (by, on) in CELLS.items()}
    groups = np.array([0 if name in known else 1 if name in new else 2 for name in images.classes])
    owner = {"group": groups[queries.labels], "class": queries.labels + 1000 * settings.seed}
    return {"raw": cross_test([raw], *labels, "image").hits[0, 0], **found, **owner}


def summary(runs: list[dict[str, NDArray[Any]]]) -> dict[str, Any]:
    """Per group of queries: what each cell finds, and how far it is from the raw features and from v1."""
    all_of = {key: np.concatenate([run[key] for run in runs]) for key in runs[0]}
    rows: dict[str, Any] = {}
    for number, group in enumerate((*GROUPS, "all")):
        part = part_of(all_of, number)
        row: dict[str, Any] = {"queries": int(part.sum())}
        for cell in ("raw", *CELLS):
            row[cell] = {"finds": float(all_of[cell][part].mean())}
            row[cell]["by_seed"] = [float(run[cell][part_of(run, number)].mean()) for run in runs]
            for other in {"v1": ["raw"], "v2 on v1": ["raw", "v1"], "v2": ["raw", "v1"]}.get(
                cell, []
            ):
                found = paired_bootstrap(
                    all_of[cell][part], all_of[other][part], clusters=all_of["class"][part]
                )
                row[cell][f"against {other}"] = [found.mean, found.low, found.high]
        rows[group] = row
    return rows


def part_of(run: dict[str, NDArray[Any]], number: int) -> NDArray[np.bool_]:
    if number < len(GROUPS):
        return np.asarray(run["group"] == number)
    return np.ones(len(run["group"]), bool)


def table(rows: dict[str, Any]) -> str:
    lines = [
        "| classes | queries | raw | v1 | v2 on v1's vectors | v2 |",
        "|---|---|---|---|---|---|",
    ]
    for group, row in rows.items():
        cells = [percent(row["raw"]["finds"])]
        for cell in CELLS:
            difference, low, high = row[cell]["against raw"]
            cells.append(
                f"{percent(row[cell]['finds'])} ({points(difference)}; {points(low)} to {points(high)})"
            )
        lines.append(f"| {group} | {row['queries']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images", type=Path)
    parser.add_argument("model", type=Path, help="an ONNX file that imagenet_encoders.py wrote")
    parser.add_argument("--methods", default="polaris")
    parser.add_argument("--rates", default="0.01,0.1", help="learning rates")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--features", type=Path, help="a folder that keeps the backbone's features for the next run"
    )
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    images = photos(options.images)
    results = []
    settings = Settings(
        backbone=str(options.model),
        preprocessing=INPUTS[options.model.stem],
        frozen=True,
        device=options.device,
    )
    with tempfile.TemporaryDirectory() as name:
        for method, rate in itertools.product(
            options.methods.split(","), map(float, options.rates.split(","))
        ):
            started = time.perf_counter()
            recipe = replace(FROZEN, learning_rate=rate)
            seeded = [replace(settings, recipe=recipe, seed=seed) for seed in range(options.seeds)]
            rows = summary(
                [hits(images, method, one, options.features or Path(name)) for one in seeded]
            )
            print(
                f"\n{method}, learning rate {rate:g} ({time.perf_counter() - started:.0f} s)\n\n{table(rows)}",
                flush=True,
            )
            machine = {"device": settings.torch_device().type, "torch": torch.__version__}
            results.append({"method": method, "learning_rate": rate, **machine, "rows": rows})
            if options.out:
                replace_json(
                    options.out,
                    {"model": options.model.stem, "seeds": options.seeds, "results": results},
                )


if __name__ == "__main__":
    main()
