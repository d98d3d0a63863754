"""Orders of a backfill against random order, on real images: how accuracy grows while old vectors become new ones.

v1 and v2 are trained with d-Simplex-HOC; the gallery holds v1's vectors of characters that neither has learnt, and is
re-embedded with v2 in every order that the planner knows. Both versions share a space, so that no translation says how
far off a vector is: "uncertain" is the reverse of "certain" here. Queries are in three parts: labelled ones that the
planner asks (as many of each class), traffic that only counts what is found, and those that measure. Traffic and
measured queries are even over the classes, or skewed (the class in place r is asked for 1/r as often).

    python benchmarks/backfill_planner.py                            characters rendered from matplotlib's fonts
    python benchmarks/backfill_planner.py --omniglot FOLDER          handwritten ones, official layout
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fixstar import demo
from fixstar.data import Augmentation, ImageSet, ReplayMemory, class_order, concatenate
from fixstar.data.formats import omniglot_folder
from fixstar.durable import replace_json
from fixstar.evaluation import (
    BackfillCurve,
    VersionFeatures,
    backfill_curve,
    backfill_curves,
    gallery_query_split,
)
from fixstar.geometry import carry, short_basis, unit
from fixstar.images import Preprocessing
from fixstar.methods import create_method
from fixstar.models import Encoder
from fixstar.progress import progress_bar
from fixstar.training import Recipe, Settings, TrainingContext, train_version, version_features
from fixstar.workspace.backfill.orders import LabelledQueries, OldItems, planned_order

SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
PARTLY = slice(1, -1)
ORDERS = ("gain", "classes", "gain without labels", "certain", "uncertain", "queried")
RANDOM_ORDERS = 10
CAPACITY = 600  # K: 567 rendered characters are learnt in the end
# Omniglot's classes learnt by each version, and searched
TASK = 80
SEARCHED = 100
INPUTS = Preprocessing(size=(32, 32), channels=1, mean=(0.92,), std=(0.27,), fit="squash")


def rendered(seed: int) -> tuple[list[Encoder], ImageSet, ImageSet]:
    early = demo.characters(demo.KNOWN, demo.EARLY, seed=3)
    later = concatenate(
        [demo.characters(scripts, demo.LATER, seed=4) for scripts in (demo.KNOWN, demo.ADDED)]
    )
    fill = Augmentation(crop_padding=2, flip=False, fill=200)
    encoders = trained(early, later, CAPACITY, fill, None, (10, 5), seed)
    return (
        encoders,
        demo.characters(demo.UNSEEN, 20, seed=1),
        demo.characters(demo.UNSEEN, 45, seed=2),
    )


def handwritten(folder: Path, seed: int) -> tuple[list[Encoder], ImageSet, ImageSet]:
    learnt = omniglot_folder(folder / "images_background")
    chosen = class_order(learnt.classes, seed)[: 2 * TASK]
    early, later = (
        learnt.of_classes(part).load(INPUTS).images for part in (chosen[:TASK], chosen[TASK:])
    )
    fill = Augmentation(crop_padding=3, flip=False, fill=255)
    encoders = trained(early, later, 200, fill, INPUTS, (15, 15), seed)
    every = omniglot_folder(folder / "images_evaluation")
    images = every.of_classes(class_order(every.classes, 0)[:SEARCHED]).load(INPUTS).images
    split = gallery_query_split(images.labels, share=0.4, seed=0)
    return encoders, images.take(split.gallery), images.take(split.queries)


def trained(
    early: ImageSet,
    later: ImageSet,
    capacity: int,
    augmentation: Augmentation,
    inputs: Preprocessing | None,
    epochs: tuple[int, int],
    seed: int,
) -> list[Encoder]:
    method = create_method("hoc", lam=0.5)

    def settings(count: int) -> Settings:
        recipe = Recipe(
            epochs=count,
            learning_rate=0.05,
            milestones=(round(0.6 * count), round(0.85 * count)),
            batch_size=64,
        )
        return Settings(
            backbone="tiny",
            backbone_options={"in_channels": 1, "width": 16},
            capacity=capacity,
            preprocessing=inputs,
            recipe=recipe,
            augmentation=augmentation,
            seed=seed,
        )

    v1 = train_version(
        1, early, TrainingContext(), method, settings(epochs[0]), progress=False
    ).encoder
    memory = ReplayMemory(5).extended(early, v1.preprocessing)
    return [
        v1,
        train_version(
            2, later, TrainingContext(v1, memory), method, settings(epochs[1]), progress=False
        ).encoder,
    ]


def parts_of(
    labels: NDArray[Any], skewed: bool, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Rows of the queries that the planner asks, of the traffic, and of those that measure."""
    first = gallery_query_split(labels, share=1 / 3, seed=int(rng.integers(1 << 30)))
    halves = gallery_query_split(labels[first.queries], seed=int(rng.integers(1 << 30)))
    parts = [first.gallery, first.queries[halves.gallery], first.queries[halves.queries]]
    if not skewed:
        return parts
    places = rng.permutation(labels.max() + 1) + 1
    for number in (1, 2):
        weights = 1 / places[labels[parts[number]]]
        parts[number] = rng.choice(parts[number], len(parts[number]), p=weights / weights.sum())
    return parts


def curves(
    old: VersionFeatures, new: VersionFeatures, truth: Any, owners: Any, skewed: bool, seed: int
) -> Any:
    rng = np.random.default_rng(seed)
    asked, traffic, judged = parts_of(truth, skewed, rng)
    vectors = carry(
        unit(old.gallery), short_basis(old.projection), short_basis(new.projection), new.width
    )
    found = (unit(new.queries[traffic]) @ vectors.T).argmax(axis=1)
    counts = np.bincount(found, minlength=len(owners)).astype(np.float64)
    names = [str(owner) for owner in owners]
    items = OldItems(
        ids=names,
        ages=np.zeros(len(owners), np.int64),
        vectors=vectors.astype(np.float32),
        labels=names,
        counts=counts,
        uncertainty=np.full(
            len(owners), np.nan
        ),  # both versions share a space, so nothing is translated
    )
    queries = LabelledQueries(new.queries[asked], [str(label) for label in truth[asked]])
    before, after = (
        VersionFeatures(v.name, v.queries[judged], v.gallery, v.projection) for v in (old, new)
    )
    labels = truth[judged], owners
    answer = {
        "random": backfill_curve(before, after, *labels, SHARES, orders=RANDOM_ORDERS, seed=seed)
    }
    for name in ORDERS:
        rows = planned_order(
            name.split()[0], items, None if name.endswith("without labels") else queries, seed
        )
        answer[name] = backfill_curve(before, after, *labels, SHARES, rows)
    return answer


def runs(options: argparse.Namespace) -> Iterator[tuple[str, int, dict[str, BackfillCurve]]]:
    with progress_bar("backfill planner", options.seeds, "upgrades") as advance:
        for seed in range(options.seeds):
            pair, gallery, queries = (
                handwritten(options.omniglot, seed) if options.omniglot else rendered(seed)
            )
            old, new = (
                version_features(f"v{n}", e, queries, gallery) for n, e in enumerate(pair, 1)
            )
            for skewed in (False, True):
                kind = "skewed" if skewed else "even"
                yield kind, seed, curves(old, new, queries.labels, gallery.labels, skewed, seed)
            advance()


def summary(seen: list[dict[str, BackfillCurve]]) -> dict[str, Any]:
    """For each order: its mean curve, and by how much it beats the mean of the random orders, between 2 and 75 %."""
    found = {}
    for name in ("random", *ORDERS):
        gains = [run[name].accuracy[PARTLY] - run["random"].accuracy[PARTLY] for run in seen]
        spread = [run["random"].runs[:, PARTLY].mean(axis=1).std() for run in seen]
        found[name] = {
            "accuracy": np.mean([run[name].accuracy for run in seen], axis=0).round(4).tolist(),
            "over_random": round(float(np.mean(gains)), 4),
            "over_random_by_seed": [round(float(gain.mean()), 4) for gain in gains],
            "over_random_at_10_percent": round(float(np.mean([gain[2] for gain in gains])), 4),
        }
        if name == "random":
            found[name]["spread_of_random_orders"] = round(float(np.mean(spread)), 4)
    return found


def draw(orders: dict[str, Any], title: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mean = {
        name: BackfillCurve(np.array(SHARES), np.array([found["accuracy"]]))
        for name, found in orders.items()
    }
    backfill_curves(mean, path, title=title)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--omniglot", type=Path, help="Omniglot's folder, instead of rendered characters"
    )
    parser.add_argument("--seeds", type=int, default=3, help="upgrades to train")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/backfill_planner_cpu.json")
    )
    parser.add_argument("--pictures", type=Path, help="draw the mean curves into this folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    seen: dict[str, list[dict[str, BackfillCurve]]] = {"even": [], "skewed": []}
    for kind, _, answer in runs(options):
        seen[kind].append(answer)
    data = "omniglot" if options.omniglot else "rendered characters"
    result: dict[str, Any] = {
        "data": data,
        "seeds": options.seeds,
        "random_orders": RANDOM_ORDERS,
        "shares": SHARES,
    }
    for kind, answers in seen.items():
        result[kind] = summary(answers)
        print(
            f"{data}, {kind} queries: accuracy over random order, mean of 2 to 75 % re-embedded, and at 10 %"
        )
        for name, values in result[kind].items():
            print(
                f"  {name:20} {values['over_random']:+.1%}  {values['over_random_at_10_percent']:+.1%}"
            )
        if options.pictures:
            draw(
                result[kind],
                f"{data}, {kind} queries",
                options.pictures / f"backfill-planner-{kind}.png",
            )
    result["seconds"] = round(time.monotonic() - started, 1)
    replace_json(options.out, result)


if __name__ == "__main__":
    main()
