"""What pays more at equal cost: embedding again what searches meet, what a plan names, or random items?

    python benchmarks/read_through.py PAIRS            minutes on a CPU

PAIRS holds SET/MODEL.npz as for change_model.py. Maps are fitted on items of half of the classes. Items of the other
half are gallery and queries; half of the queries are traffic, the other half judge. Two models per query search old and
new vectors together, on the scales that searches use without labels. Classes are asked for as often as each other, or
unevenly (Zipf: the r-th class 1/r as often, in a random order), which both traffic and judging queries follow. A share
of the gallery is embedded again:

    random         in random order
    uncertain      those first whose translation is expected to be furthest off
    met            what traffic meets among its best 50, in the order in which it is met; then random ones
    first          the same with the best 10
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from change_model import CHANGES, Change, Items, draw, read_items
from numpy.typing import NDArray

from fixstar.durable import replace_json
from fixstar.evaluation import VersionFeatures, gallery_query_split
from fixstar.geometry import unit
from fixstar.translation import Translation, translated
from fixstar.translation.calibrate import standardised
from fixstar.translation.fit import Pairs, fit_translations

SHARES = (0.0, 0.05, 0.1, 0.25, 0.5)
ORDERS = ("random", "uncertain", "met", "first")
TRAFFIC = ("even", "zipf")
DEPTHS = {"met": 50, "first": 10}

Record = dict[str, Any]
Rows = NDArray[np.int64]


class Search:
    """Scores of all queries with all stored items: by the old vectors through the translation, and by the new ones."""

    def __init__(
        self, items: Items, change: Change, way: Translation, asked: Rows, stored: Rows
    ) -> None:
        old = VersionFeatures(change.old, items.old[asked], items.old[stored])
        new = VersionFeatures(change.new, items.new[asked], items.new[stored])
        view = translated(way, old, new)
        own = VersionFeatures(change.new, unit(items.new[asked]), unit(items.new[stored]))
        self.old = standardised(view).logit(view.queries @ unit(view.gallery).T)
        self.new = standardised(own).logit(own.queries @ own.gallery.T)
        self.right = items.labels[asked][:, None] == items.labels[stored][None, :]

    def accuracy(self, again: NDArray[np.bool_], queries: Rows) -> float:
        """The share of queries that find their class first, with some items embedded again."""
        scores = np.where(again[None, :], self.new[queries], self.old[queries])
        return float(self.right[queries, scores.argmax(axis=1)].mean())


def met(
    search: Search, traffic: Rows, most: int, depth: int, rng: np.random.Generator
) -> list[int]:
    """The items that traffic meets, in their order, each embedded again as soon as it is met; then random ones."""
    again = np.zeros(search.old.shape[1], bool)
    order: list[int] = []
    for query in traffic:
        if len(order) >= most:
            break
        scores = np.where(again, search.new[query], search.old[query])
        best = np.argpartition(-scores, depth)[:depth]
        for item in best[np.argsort(-scores[best])].tolist():
            if not again[item]:
                again[item] = True
                order.append(item)
    rest = rng.permutation(np.flatnonzero(~again)).tolist()
    return [*order, *rest]


def drawn_queries(
    labels: NDArray[np.str_], rows: Rows, kind: str, count: int, classes: Rows, seed: int
) -> Rows:
    """Queries with replacement: every class as often as each other, or the r-th of an order 1/r as often."""
    rng = np.random.default_rng(seed)
    names = np.unique(labels)
    weights = np.ones(len(names)) if kind == "even" else 1 / (1 + classes)
    by_class = {name: rows[labels[rows] == name] for name in names}
    usable = np.array([len(by_class[name]) > 0 for name in names])
    weights = weights * usable / (weights * usable).sum()
    chosen = rng.choice(len(names), count, p=weights)
    return np.array([rng.choice(by_class[names[one]]) for one in chosen], np.int64)


def measured(items: Items, change: Change, kind: str, seed: int) -> Record:
    """One seed: all orders and shares."""
    rng = np.random.default_rng(seed)
    drawn = draw(items.labels, "all", seed)
    pairs = Pairs.checked(items.old[drawn.fitted], items.new[drawn.fitted], seed=seed)
    way = fit_translations(pairs, change.old, change.new)[0]
    codes = np.unique(items.labels[drawn.judging], return_inverse=True)[1]
    split = gallery_query_split(codes, seed=seed)
    stored = drawn.judging[split.gallery]
    asked = drawn.judging[split.queries]
    search = Search(items, change, way, asked, stored)
    labels = items.labels[asked]
    half = rng.permutation(len(asked))
    ranks = rng.permutation(len(np.unique(labels)))
    traffic = drawn_queries(labels, half[: len(half) // 2], kind, 4 * len(stored), ranks, seed)
    judging = drawn_queries(labels, half[len(half) // 2 :], kind, 5000, ranks, seed + 1000)
    most = round(max(SHARES) * len(stored))
    if way.uncertainty is None:
        unsure = rng.random(len(stored))
    else:
        unsure = way.uncertainty(items.old[stored])
    orders = {
        "random": rng.permutation(len(stored)).tolist(),
        "uncertain": np.argsort(-unsure).tolist(),
        **{name: met(search, traffic, most, depth, rng) for name, depth in DEPTHS.items()},
    }
    found: Record = {}
    for name, order in orders.items():
        cells = []
        for share in SHARES:
            again = np.zeros(len(stored), bool)
            again[order[: round(share * len(stored))]] = True
            cells.append(search.accuracy(again, judging))
        found[name] = cells
    everything = search.accuracy(np.ones(len(stored), bool), judging)
    return {
        **change._asdict(),
        "traffic": kind,
        "seed": seed,
        "stored": len(stored),
        "all": everything,
        **found,
    }


def table(runs: list[Record]) -> str:
    """Means over pairs of models and seeds, in percent."""
    lines = [f"| traffic | order | {' | '.join(f'{share:.0%}' for share in SHARES)} | everything |"]
    lines.append("|---|---|" + "---:|" * (len(SHARES) + 1))
    for kind in TRAFFIC:
        mine = [run for run in runs if run["traffic"] == kind]
        if not mine:
            continue
        for order in ORDERS:
            means = 100 * np.array([run[order] for run in mine]).mean(axis=0)
            all_again = 100 * np.mean([run["all"] for run in mine])
            cells = " | ".join(f"{value:.1f}" for value in means)
            lines.append(f"| {kind} | {order} | {cells} | {all_again:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is not in --out yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/read_through.json"))
    args = parser.parse_args()
    runs: list[Record] = json.loads(args.out.read_text())["runs"] if args.out.is_file() else []
    done = {(run["set"], run["old"], run["new"], run["traffic"], run["seed"]) for run in runs}
    for change in CHANGES:
        items = read_items(args.pairs, change)
        for kind in TRAFFIC:
            for seed in range(args.seeds):
                if (*change, kind, seed) in done:
                    continue
                runs.append(measured(items, change, kind, seed))
                replace_json(
                    args.out, {"command": "python benchmarks/read_through.py PAIRS", "runs": runs}
                )
                print(change, kind, seed, flush=True)
    print(table(runs))


if __name__ == "__main__":
    main()
