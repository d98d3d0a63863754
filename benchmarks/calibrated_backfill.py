"""A gallery that is partly re-embedded, searched by cosine and by calibrated probability, on real images.

v1 and v2 are trained as in backfill_planner.py; the gallery holds vectors of characters that neither has learnt, some
v1's and some v2's. Queries are v2's. Calibrations are fitted as the gate fits them, on half of the classes, and tried
with queries of the other half; the halves then change places.

    python benchmarks/calibrated_backfill.py                          characters rendered from matplotlib's fonts
    python benchmarks/calibrated_backfill.py --omniglot FOLDER        handwritten ones, official layout
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from backfill_planner import handwritten, rendered

from fixstar.durable import replace_json
from fixstar.evaluation import VersionFeatures, gallery_query_split
from fixstar.geometry import carry, short_basis, unit
from fixstar.progress import progress_bar
from fixstar.training import version_features
from fixstar.translation import Translation, translated
from fixstar.translation.calibrate import calibrations_and_folds, search_curve
from fixstar.translation.score import translated_pair
from fixstar.workspace.backfill.orders import LabelledQueries, OldItems, planned_order

SHARES = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
ORDERS = ("random", "gain", "classes", "certain")
RANDOM_ORDERS = 10


def curves(
    old: VersionFeatures, new: VersionFeatures, truth: Any, owners: Any, seed: int
) -> dict[str, Any]:
    """Accuracy at each share, by order and way of merging; a third of the queries is the planner's, not measured."""
    way = Translation.between_shared(old.name, new.name)
    own = replace(new, queries=new.queries_in(new))
    calibrations, folds = calibrations_and_folds(
        [translated(way, old, new), own], truth, owners, seed
    )
    if not folds:
        raise SystemExit("too few images to fit calibrations")
    split = gallery_query_split(truth, share=1 / 3, seed=seed)
    vectors = carry(
        unit(old.gallery), short_basis(old.projection), short_basis(new.projection), new.width
    )
    names = [str(owner) for owner in owners]
    items = OldItems(
        ids=names,
        ages=np.zeros(len(names), np.int64),
        vectors=vectors.astype(np.float32),
        labels=names,
        counts=np.zeros(len(names)),
        uncertainty=np.full(
            len(names), np.nan
        ),  # both versions share a space, so nothing is translated
    )
    queries = LabelledQueries(
        new.queries[split.gallery], [str(label) for label in truth[split.gallery]]
    )
    found: dict[str, Any] = {
        "calibrations": {name: [*map(float, one)] for name, one in calibrations.items()}
    }
    for order in ORDERS:
        ways: dict[str, Any] = {"orders": RANDOM_ORDERS, "seed": seed, "rows": split.queries}
        if order != "random":
            ways |= {"order": planned_order(order, items, queries, seed), "orders": 1}
        for merged, used in (("cosine", []), ("calibrated", folds)):
            curve = search_curve(
                *translated_pair(way, old, new), truth, owners, SHARES, used, **ways
            )
            found[f"{order}, {merged}"] = curve.accuracy.tolist()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--omniglot", type=Path, help="Omniglot's folder, instead of rendered characters"
    )
    parser.add_argument("--seeds", type=int, default=3, help="upgrades to train")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/calibrated_backfill_cpu.json")
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    seen = []
    with progress_bar("calibrated backfill", options.seeds, "upgrades") as advance:
        for seed in range(options.seeds):
            pair, gallery, queries = (
                handwritten(options.omniglot, seed) if options.omniglot else rendered(seed)
            )
            old, new = (
                version_features(f"v{n}", e, queries, gallery) for n, e in enumerate(pair, 1)
            )
            seen.append(curves(old, new, queries.labels, gallery.labels, seed))
            advance()
    data = "omniglot" if options.omniglot else "rendered characters"
    names = [name for name in seen[0] if name != "calibrations"]
    means = {name: np.mean([run[name] for run in seen], axis=0).round(4).tolist() for name in names}
    print(f"{data}: accuracy with so much re-embedded, mean of {options.seeds} upgrades")
    print(f"  {'':22}" + "".join(f"{share:8.0%}" for share in SHARES))
    for name, values in means.items():
        print(f"  {name:22}" + "".join(f"{value:8.1%}" for value in values))
    result = {
        "data": data,
        "seeds": options.seeds,
        "random_orders": RANDOM_ORDERS,
        "shares": SHARES,
    }
    result |= {"accuracy": means, "by_seed": seen, "seconds": round(time.monotonic() - started, 1)}
    replace_json(options.out, result)


if __name__ == "__main__":
    main()
