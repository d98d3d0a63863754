"""From an old model to a new one that was never trained with it, on pre-trained models of text and of images.

    python benchmarks/change_model.py PAIRS --out benchmarks/results/change_model_pairs.json
    python benchmarks/change_model.py PAIRS --out FILE --only banking77 --seeds 2 --sizes 100,1000

PAIRS holds SET/MODEL.npz: ``vectors`` [N, d], ``ids`` and ``labels``, the same items in the same order in all files of
a set. For each seed the classes are halved. The maps are fitted on items of one half, without their labels. The other
half is judged, as ``fixstar bridge`` does it: half of each class is the gallery and half are queries, so no query is in
the gallery. Half of the queries choose maps, weights, and whether the old side is half whitened, and the chosen maps
are fitted again on these queries too. The other half is measured. Right is a nearest item of the query's class.

Each size is a number of fitted items; "all" are all items of the fitted classes. The queries that choose are fitted
besides. The figures of one run need no other,
so a run that FILE has is not repeated. Earlier runs stay in FILE beside those of today: "items alone" were not fitted
on queries, and "old side as it is" could not whiten. Tables take them only where there is nothing else; then the row
says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.durable import replace_json
from fixstar.errors import DataError, FixstarError
from fixstar.translation.bridge import (
    AGAIN,
    AHEAD,
    BACK,
    OLD,
    ONE,
    TWO,
    Bridged,
    BridgeOptions,
    bridge,
)
from fixstar.workspace import GateRules

Record = dict[str, Any]
ALL = "all"
ITEMS = "items"  # alone: so fixstar bridge fitted before it took queries, too
ITEMS_AND_QUERIES = "items and queries"
AS_IT_IS = "items and queries, old side as it is"  # before evidence could choose to whiten it
SIZES = ("100", "300", "1000", "3000", ALL)
WAYS = (OLD, AHEAD, BACK, ONE, TWO, AGAIN)
OUTCOMES = ("pass", "missing evidence", "refuse")
T_95 = {
    2: 12.706,
    3: 4.303,
    4: 3.182,
    5: 2.776,
}  # quantiles of Student's t by number of runs, two-sided


class Change(NamedTuple):
    """A set of items and the two models that embedded them."""

    set: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.set}: {self.old} -> {self.new}"


CHANGES = (
    Change("banking77", "wordllama", "minilm"),
    Change("clinc150", "wordllama", "minilm"),
    Change("clinc150", "wordllama", "use-lite"),
    Change("caltech101", "mobilenetv2", "resnet50"),
    Change("caltech101", "mobilenetv2", "efficientnet-lite2"),
    Change("flowers", "mobilenetv2", "efficientnet-lite2"),
)


class Items(NamedTuple):
    """Vectors of the same items by both models, [N, a] and [N, b], and their labels, "" if unknown."""

    old: NDArray[np.float32]
    new: NDArray[np.float32]
    labels: NDArray[np.str_]


def read_items(folder: Path, change: Change) -> Items:
    """Both files of a change; they must hold the same items."""
    loaded = []
    for model in (change.old, change.new):
        path = folder / change.set / f"{model}.npz"
        if not path.is_file():
            raise DataError(
                f"{path} is missing; PAIRS holds SET/MODEL.npz with vectors, ids and labels"
            )
        with np.load(path) as file:
            loaded.append({name: file[name] for name in ("vectors", "ids", "labels")})
    one, other = loaded
    if not np.array_equal(one["ids"], other["ids"]):
        raise DataError(f"{change}: both files must hold the same ids in the same order")
    return Items(one["vectors"], other["vectors"], one["labels"])


class Drawn(NamedTuple):
    """Rows of the items that are fitted, and of those that judge: of other classes."""

    fitted: NDArray[np.int64]
    judging: NDArray[np.int64]


def draw(labels: NDArray[np.str_], size: str, seed: int) -> Drawn:
    """Half of the classes judge. ``size`` items of the others are fitted; items without a class may be, too.

    The fitted items of a smaller size are among those of a larger one.
    """
    rng = np.random.default_rng(seed)
    classes = np.unique(labels[labels != ""])
    held_out = rng.permutation(classes)[: len(classes) // 2]
    judges = np.isin(labels, held_out)
    others = rng.permutation(np.flatnonzero(~judges))
    most = len(others) if size == ALL else int(size)
    return Drawn(np.sort(others[:most]), np.flatnonzero(judges))


def bridged(items: Items, size: str, seed: int) -> Bridged:
    """The bridge that is fitted on some unlabelled items of one half of the classes and judged on the other half."""
    drawn = draw(items.labels, size, seed)
    rows = np.concatenate([drawn.fitted, drawn.judging])
    labels = np.concatenate([np.full(len(drawn.fitted), ""), items.labels[drawn.judging]])
    options = BridgeOptions(sample=len(rows), held_out=1, rules=GateRules(seed=seed))
    return bridge(items.old[rows], items.new[rows], labels=labels.tolist(), options=options)


def measured(items: Items, change: Change, size: str, seed: int) -> Record:
    """The figures of one run."""
    started = time.perf_counter()
    found = bridged(items, size, seed)
    best = found.best
    assert best is not None
    kept = found.measured[OLD] if found.outcome != "pass" else best
    ways = {
        name: {
            "finds": round(row.finds, 5),
            "difference": round(row.difference or 0.0, 5),
            "low": round(row.low, 5),
            "high": round(row.high, 5),
            "verdict": row.verdict,
            "weight": row.weight,
        }
        for name, row in found.measured.items()
    }
    return {
        **change._asdict(),
        "size": size,
        "seed": seed,
        "fitted on": ITEMS_AND_QUERIES,
        "pairs": len(draw(items.labels, size, seed).fitted),
        "queries": found.queries,
        "gallery": found.gallery,
        "maps": dict(found.translation.about["maps"]),
        "ways": ways,
        "chosen": found.chosen,
        "outcome": found.outcome,
        "share": None if found.share is None else round(found.share, 4),
        "as advised": round(kept.finds, 5),
        "verdict": found.sentence,
        "seconds": round(time.perf_counter() - started, 1),
    }


def enough(items: Items, size: str, seed: int) -> bool:
    """Whether there are more items to fit than a size asks for; otherwise it is the same as all."""
    return size == ALL or len(draw(items.labels, ALL, seed).fitted) > int(size)


# --- tables


def runs_of(runs: Sequence[Record], change: Change, size: str) -> list[Record]:
    """The runs of a change with so many pairs, by seed: those of today, or else the latest before."""
    mine = [
        run for run in runs if (run["set"], run["old"], run["new"], run["size"]) == (*change, size)
    ]
    for what in (ITEMS_AND_QUERIES, AS_IT_IS, ITEMS):
        if latest := fitted_on(what, mine):
            return sorted(latest, key=lambda run: int(run["seed"]))
    return []


def fitted_on(what: str, runs: Sequence[Record]) -> list[Record]:
    """The runs of one procedure: items alone, items and queries with the old side as it is, or today's."""
    return [run for run in runs if run["fitted on"] == what]


def named(change: Change, runs: Sequence[Record]) -> str:
    """A change as a row calls it.

    >>> named(CHANGES[0], [{"fitted on": ITEMS}])
    'banking77: wordllama -> minilm (items alone)'
    """
    return marked(str(change), runs)


def marked(label: str, runs: Sequence[Record]) -> str:
    """A label; it says so if its runs are earlier ones.

    >>> marked("texts", [{"fitted on": AS_IT_IS}]), marked("texts", [{"fitted on": ITEMS_AND_QUERIES}])
    ('texts (old side as it is)', 'texts')
    """
    if fitted_on(ITEMS, runs):
        return f"{label} (items alone)"
    if fitted_on(AS_IT_IS, runs):
        return f"{label} (old side as it is)"
    return label


def whitened(runs: Sequence[Record]) -> int:
    """How many of the runs chose to whiten the old side.

    >>> whitened([{"maps": {"forward": "ridge"}}, {"maps": {"forward": "ridge", "old side": "half whitened"}}])
    1
    """
    return sum("old side" in run["maps"] for run in runs)


def finds(runs: Sequence[Record], way: str) -> float:
    """What a way to search finds, the mean over runs, in percent."""
    return 100 * float(np.mean([run["ways"][way]["finds"] for run in runs]))


def difference(runs: Sequence[Record], way: str) -> tuple[float, float, float]:
    """The difference from the old model on the same queries: mean over runs and its 95 % interval (t), in points.

    >>> run = {"ways": {"a": {"difference": 0.01}}}
    >>> other = {"ways": {"a": {"difference": 0.03}}}
    >>> [round(end, 2) for end in difference([run, other], "a")]
    [2.0, -10.71, 14.71]
    """
    each = 100 * np.array([run["ways"][way]["difference"] for run in runs])
    mean = float(each.mean())
    if len(each) not in T_95:
        return mean, float("nan"), float("nan")
    half = T_95[len(each)] * float(each.std(ddof=1)) / len(each) ** 0.5
    return mean, mean - half, mean + half


def share(runs: Sequence[Record], way: str) -> float | None:
    """How much of the gain of re-embedding everything a way has, in percent; None where that gains nothing.

    >>> run = {"ways": {"two": {"difference": 0.01}, "all re-embedded": {"difference": 0.04}}}
    >>> share([run], "two")
    25.0
    """
    whole = difference(runs, AGAIN)[0]
    if whole > 0:
        return 100 * difference(runs, way)[0] / whole
    return None


def advised(runs: Sequence[Record]) -> float:
    """What is found by following the verdicts: the old model's queries where they say so; in percent."""
    return 100 * float(np.mean([run["as advised"] for run in runs]))


def outcomes(runs: Sequence[Record]) -> list[int]:
    """How many runs passed, were undecided, and were refused."""
    counts = Counter(run["outcome"] for run in runs)
    return [counts[outcome] for outcome in OUTCOMES]


def table(runs: Sequence[Record]) -> str:
    """What every way to search finds with all pairs, in percent: means over seeds."""
    lines = [
        "| change | pairs | old model | stored mapped forward | query mapped back | both sides, one model "
        "| both sides, two models | all re-embedded |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for change in changes_in(runs):
        mine = runs_of(runs, change, ALL)
        if not mine:
            continue
        cells = [f"{finds(mine, way):.1f}" for way in WAYS]
        pairs = float(np.mean([run["pairs"] for run in mine]))
        lines.append(f"| {named(change, mine)} | {pairs:,.0f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def gains(runs: Sequence[Record]) -> str:
    """Points over the old model with their intervals, the share of the whole gain, and what the verdicts were."""
    lines = [
        "| change | seeds | two models | one model | all re-embedded | share of two models "
        "| use it, undecided, keep | found as advised |",
        "|---|---:|---|---|---|---:|---|---:|",
    ]
    for change in changes_in(runs):
        mine = runs_of(runs, change, ALL)
        if not mine:
            continue
        cells = []
        for way in (TWO, ONE, AGAIN):
            mean, low, high = difference(mine, way)
            cells.append(f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]")
        part = share(mine, TWO)
        cells.append("" if part is None else f"{part:.0f} %")
        cells.append(", ".join(map(str, outcomes(mine))))
        cells.append(f"{advised(mine):.1f}")
        lines.append(f"| {named(change, mine)} | {len(mine)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def by_size(runs: Sequence[Record], change: Change) -> dict[str, list[Record]]:
    """The runs of a change by number of pairs, those of seeds that every number has: the same classes for all.

    All were fitted on the same: on items and queries, or on items alone if these runs have more numbers.
    """
    kinds = []
    for what in (ITEMS_AND_QUERIES, ITEMS):
        mine = fitted_on(what, runs)
        kinds.append({size: found for size in SIZES if (found := runs_of(mine, change, size))})
    every = max(kinds, key=len)
    if not every:
        return {}
    common = set.intersection(*({run["seed"] for run in found} for found in every.values()))
    return {size: [run for run in found if run["seed"] in common] for size, found in every.items()}


def curve(runs: Sequence[Record]) -> str:
    """Points over the old model by number of pairs: with two models per query, and in brackets with one."""
    lines = [
        "| change | seeds | " + " | ".join(SIZES) + " |",
        "|---|---:" + "|---" * len(SIZES) + "|",
    ]
    for change in changes_in(runs):
        found = by_size(runs, change)
        if not found:
            continue
        cells = []
        for size in SIZES:
            mine = found.get(size)
            cells.append(
                f"{difference(mine, TWO)[0]:+.1f} ({difference(mine, ONE)[0]:+.1f})" if mine else ""
            )
        some = next(iter(found.values()))
        lines.append(f"| {named(change, some)} | {len(some)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def curve_without_queries(runs: Sequence[Record]) -> str:
    """The same of earlier runs: no query was fitted, so the number of pairs is all there was."""
    return curve(fitted_on(ITEMS, runs))


def changes_in(runs: Sequence[Record]) -> list[Change]:
    """The changes that were run, in order."""
    return list(dict.fromkeys(Change(run["set"], run["old"], run["new"]) for run in runs))


TABLES = {
    "model changes": table,
    "model gains": gains,
    "pairs needed": curve,
    "pairs needed without queries": curve_without_queries,
}
"""What stands between marks of docs/appendix/translation.md."""


# --- the command


def planned(
    folder: Path, options: argparse.Namespace, done: set[tuple[Any, ...]]
) -> Iterator[Record]:
    """The runs that are not done yet, each measured; the whole table first, then the smaller sizes."""
    sizes = sorted(options.sizes.split(","), key=lambda size: size != ALL)
    changes = [change for change in CHANGES if options.only in ("", change.set)]
    loaded: dict[Change, Items] = {}
    for size in sizes:
        for change in changes:
            for seed in range(options.seeds):
                if (*change, size, seed) in done:
                    continue
                if change not in loaded:
                    loaded = {change: read_items(folder, change)}
                if enough(loaded[change], size, seed):
                    yield measured(loaded[change], change, size, seed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", type=Path, help="the folder with SET/MODEL.npz")
    parser.add_argument(
        "--seeds", type=int, default=5, help="each halves the classes in another way"
    )
    parser.add_argument(
        "--sizes", default=",".join(SIZES), help="numbers of fitted pairs, comma separated"
    )
    parser.add_argument("--only", default="", help="this set only")
    parser.add_argument(
        "--out", type=Path, required=True, help="the figures as JSON; runs that it has are kept"
    )
    options = parser.parse_args()
    content: Record = {"runs": []}
    if options.out.is_file():
        content = json.loads(options.out.read_text(encoding="utf-8"))
    content["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, numpy {np.__version__}"
    runs = content["runs"]
    present = fitted_on(ITEMS_AND_QUERIES, runs)
    done = {(run["set"], run["old"], run["new"], run["size"], run["seed"]) for run in present}
    for run in planned(options.pairs, options, done):
        runs.append(run)
        replace_json(options.out, content)
        found = {way: run["ways"][way]["finds"] for way in WAYS}
        print(
            run["set"],
            run["new"],
            run["size"],
            run["seed"],
            found,
            run["outcome"],
            run["seconds"],
            flush=True,
        )
    print("\n\n".join(write(runs) for write in TABLES.values()))


if __name__ == "__main__":
    try:
        main()
    except FixstarError as error:
        sys.exit(f"change_model.py: {error}")
