"""Does it help to fit a translation again on the pairs that a backfill makes?

    python benchmarks/refit.py PAIRS            minutes on a CPU

PAIRS holds SET/MODEL.npz as for change_model.py. Maps are fitted on items of half of the classes. Items of the other
half are gallery and queries. A share of the gallery is embedded again, in random order. Then two models per query
search what is left of the old vectors, through the maps as they were and through those that ``refitted`` puts in their
place, if it does; and the whole gallery, old and new vectors together, on the scales that searches use without labels.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from change_model import CHANGES, Change, Items, draw, read_items
from numpy.typing import NDArray

from fixstar.durable import replace_json
from fixstar.evaluation import VersionFeatures, gallery_query_split
from fixstar.geometry import unit
from fixstar.translation import Translation, translated
from fixstar.translation.calibrate import standardised
from fixstar.translation.fit import Pairs, fit_translations
from fixstar.workspace.backfill.planning import refitted
from fixstar.workspace.pairs import Sample

SHARES = (0.1, 0.25, 0.5, 0.75)
STARTS = ("300", "all")  # pairs that the first maps are fitted on

Record = dict[str, Any]


class Parts(NamedTuple):
    """Rows of the queries, of the items that still have old vectors, and of those that were embedded again."""

    asked: NDArray[np.int64]
    left: NDArray[np.int64]
    again: NDArray[np.int64]


def searched(items: Items, change: Change, way: Translation, parts: Parts) -> tuple[float, float]:
    """The share of queries that find their class first: among the old vectors alone, and among old and new ones."""
    asked, left, again = parts
    old = VersionFeatures(change.old, items.old[asked], items.old[left])
    new = VersionFeatures(change.new, items.new[asked], items.new[left])
    view = translated(way, old, new)
    own = VersionFeatures(change.new, unit(items.new[asked]), unit(items.new[again]))
    old_scores = view.queries @ unit(view.gallery).T
    truth = items.labels[asked]
    alone = items.labels[left][old_scores.argmax(axis=1)] == truth
    old_ranks = standardised(view).logit(old_scores)
    new_ranks = standardised(own).logit(own.queries @ own.gallery.T)
    best = np.hstack([old_ranks, new_ranks]).argmax(axis=1)
    together = items.labels[np.concatenate([left, again])][best] == truth
    return float(alone.mean()), float(together.mean())


def measured(items: Items, change: Change, start: str, seed: int) -> list[Record]:
    """One seed: all shares."""
    drawn = draw(items.labels, start, seed)
    first = Pairs.checked(items.old[drawn.fitted], items.new[drawn.fitted], seed=seed)
    way = fit_translations(first, change.old, change.new)[0]
    labels = items.labels[drawn.judging]
    codes = np.unique(labels, return_inverse=True)[1]
    split = gallery_query_split(codes, seed=seed)
    stored = drawn.judging[split.gallery]
    asked = drawn.judging[split.queries]
    order = np.random.default_rng(seed).permutation(len(stored))
    records = []
    for share in SHARES:
        cut = round(share * len(stored))
        again = stored[order[:cut]]
        left = stored[order[cut:]]
        sample = Sample(items.old[again], items.new[again], [None] * cut, origin="a backfill")
        better = refitted(way, sample, seed)
        parts = Parts(asked, left, again)
        before = searched(items, change, way, parts)
        after = before if better is None else searched(items, change, better, parts)
        records.append(
            {
                **change._asdict(),
                "start": start,
                "pairs": len(first),
                "seed": seed,
                "share": share,
                "made": cut,
                "refitted": better is not None,
                "old part": [before[0], after[0]],
                "whole gallery": [before[1], after[1]],
            }
        )
    return records


def table(runs: list[Record]) -> str:
    """Points gained by refitting, by what the first maps were fitted on and by the share that was embedded again."""
    lines = [
        "| first fitted on | embedded again | runs | refitted in | old vectors that are left | whole gallery |"
    ]
    lines.append("|---|---:|---:|---:|---|---|")
    for start in STARTS:
        for share in SHARES:
            mine = [run for run in runs if (run["start"], run["share"]) == (start, share)]
            if not mine:
                continue
            cells = []
            for name in ("old part", "whole gallery"):
                before, after = 100 * np.array([run[name] for run in mine]).mean(axis=0)
                cells.append(f"{before:.1f} -> {after:.1f} ({after - before:+.1f})")
            count = sum(run["refitted"] for run in mine)
            label = f"{start} pairs" if start != "all" else "all pairs"
            lines.append(
                f"| {label} | {share:.0%} | {len(mine)} | {count} | {cells[0]} | {cells[1]} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure what is not in --out yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/refit.json"))
    args = parser.parse_args()
    runs: list[Record] = json.loads(args.out.read_text())["runs"] if args.out.is_file() else []
    done = {(run["set"], run["old"], run["new"], run["start"], run["seed"]) for run in runs}
    for change in CHANGES:
        items = read_items(args.pairs, change)
        for start in STARTS:
            for seed in range(args.seeds):
                if (*change, start, seed) in done:
                    continue
                runs += measured(items, change, start, seed)
                replace_json(
                    args.out, {"command": "python benchmarks/refit.py PAIRS", "runs": runs}
                )
                print(
                    change,
                    start,
                    seed,
                    [run["refitted"] for run in runs[-len(SHARES) :]],
                    flush=True,
                )
    print(table(runs))


if __name__ == "__main__":
    main()
