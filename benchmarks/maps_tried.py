"""Between models that never met: which maps, scores and pairs find more? On splits that nothing was chosen on.

    python benchmarks/maps_tried.py PAIRS --out benchmarks/results/maps_tried.json

PAIRS is the folder of change_model.py and scifact.py. The splits are made as theirs are, with seeds from 200 on: no
item of the gallery is fitted, and no query that is measured. Half of the queries is measured, at most 1,000. The other
half is only fitted, and only by the rows that say "and queries"; no label is used. Both sides are added with w = 0.6
everywhere, so nothing is chosen and rows differ by what they name. Text models only.

A run that FILE has is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scifact
from change_model import T_95, Change, draw, read_items
from numpy.typing import NDArray

from fixstar.durable import replace_json
from fixstar.errors import FixstarError
from fixstar.evaluation import Relevant, gallery_query_split, nearest
from fixstar.evaluation.verdicts import halves
from fixstar.geometry import unit
from fixstar.translation import Map, Pairs, fit_map
from fixstar.translation.choose import Measure, by_class, by_relevance
from fixstar.translation.fit import fit_whitening
from fixstar.translation.translation import USUAL

Record = dict[str, Any]
Vectors = NDArray[np.float32]
Indices = NDArray[np.int64]

CHANGES = (
    Change("banking77", "wordllama", "minilm"),
    Change("clinc150", "wordllama", "minilm"),
    Change("scifact", "wordllama", "minilm"),
)
FIRST_SEED = 200  # the seeds below were looked at while methods were chosen
MOST = 1000  # queries that are measured
COUNTS = (30, 100, 300)  # of queries that are fitted
TIMES = 3.0  # that a query counts, at most: as in fixstar bridge
NEAREST = 16  # pairs whose residuals are added
WIDTH = 0.05  # of the kernel of their weights, in cosines
SHRINK = 0.3  # a pair of this much lower cosine than 1 counts as the prior: no residual
SAME = 1e-6

WHITE = "ridge, old side half whitened"
WHITE_ALONE = "nothing: the old model alone, half whitened"
OLD = "old model"
AGAIN = "all re-embedded"


@dataclass(frozen=True, eq=False)
class Split:
    """Pairs of items; queries by both models that are only fitted; and the search that is measured."""

    items: Pairs
    asked: tuple[Vectors, Vectors]
    queries: tuple[Vectors, Vectors]
    gallery: tuple[Vectors, Vectors]
    measure: Measure

    def finds(self, scores: NDArray[Any]) -> float:
        """The mean over the queries that are measured."""
        rows = np.arange(len(scores))
        return float(np.mean(self.measure(np.asarray(scores, np.float32), rows)))

    def with_queries(self, count: int | None = None) -> Pairs:
        """Items and queries: both count the same in total, but a query no more than three items."""
        old, new = (side[:count] for side in self.asked)
        each = min(len(self.items) / len(old), TIMES)
        return Pairs.checked(
            np.concatenate([self.items.X, old]),
            np.concatenate([self.items.Y, new]),
            weights=np.concatenate([np.ones(len(self.items)), np.full(len(old), each)]),
        )

    @cached_property
    def both(self) -> Pairs:
        """Items and all queries that may be fitted."""
        return self.with_queries()

    def pairs(self, queries: bool) -> Pairs:
        """What a row fits."""
        if queries:
            return self.both
        return self.items

    @cached_property
    def back(self) -> Vectors:
        """The old model's queries among its own vectors: [n, M] scores."""
        return np.asarray(self.queries[0] @ self.gallery[0].T)

    def ahead(self, mapped: Vectors) -> Vectors:
        """The new model's queries among mapped vectors."""
        return np.asarray(self.queries[1] @ mapped.T)

    def added(self, ahead: NDArray[Any], back: NDArray[Any]) -> NDArray[Any]:
        """Both sides."""
        return USUAL * ahead + (1 - USUAL) * back


def class_split(folder: Path, change: Change, seed: int) -> Split:
    """Half of the classes is fitted; of the other one half of each class is the gallery and half are queries."""
    items = read_items(folder, change)
    drawn = draw(items.labels, "all", seed)
    pairs = Pairs.checked(items.old[drawn.fitted], items.new[drawn.fitted])
    held = drawn.judging[_unlike(items.old[drawn.judging], pairs.X)]
    classes = np.unique(items.labels[held], return_inverse=True)[1]
    split = gallery_query_split(classes, seed=seed)
    truth = classes[split.queries]
    asked, measured = halves(truth, seed)
    measured = np.sort(np.random.default_rng(seed).permutation(measured)[:MOST])
    gallery = held[split.gallery]
    asking = held[split.queries]
    judged = np.concatenate([items.old[gallery], items.old[asking[measured]]])
    asked = asked[_unlike(items.old[asking[asked]], judged)]
    return Split(
        items=pairs,
        asked=(items.old[asking[asked]], items.new[asking[asked]]),
        queries=(items.old[asking[measured]], items.new[asking[measured]]),
        gallery=(items.old[gallery], items.new[gallery]),
        measure=by_class(truth[measured], classes[split.gallery]),
    )


def text_split(folder: Path, change: Change, seed: int) -> Split:
    """SciFact: half of the documents that are relevant for no query is fitted."""
    texts = scifact.read_texts(folder, change)
    drawn = scifact.draw(texts, seed)
    asked = np.setdiff1d(np.arange(len(texts.queries_old)), drawn.judging)
    place = {item: row for row, item in enumerate(drawn.gallery.tolist())}
    wanted = [
        np.array([place[item] for item in texts.relevant.items[query].tolist()])
        for query in drawn.judging
    ]
    grades = [texts.relevant.grades[query] for query in drawn.judging]
    return Split(
        items=Pairs.checked(texts.old[drawn.fitted], texts.new[drawn.fitted]),
        asked=(texts.queries_old[asked], texts.queries_new[asked]),
        queries=(texts.queries_old[drawn.judging], texts.queries_new[drawn.judging]),
        gallery=(texts.old[drawn.gallery], texts.new[drawn.gallery]),
        measure=by_relevance(
            Relevant(np.arange(len(wanted)), wanted, grades, unknown=0, alone=0, missing=0)
        ),
    )


def _unlike(vectors: Vectors, others: Vectors) -> Indices:
    closest = nearest(vectors, others)[0][:, 0]
    cosines = np.einsum("ij,ij->i", vectors, others[closest], dtype=np.float64)
    return np.flatnonzero(cosines < 1 - SAME)


# --- maps and scores


def standardised(scores: NDArray[Any]) -> NDArray[Any]:
    """How many deviations each score lies above the mean of its query."""
    return np.asarray(
        (scores - scores.mean(axis=1, keepdims=True)) / scores.std(axis=1, keepdims=True)
    )


def with_nearest(split: Split, queries: bool) -> Vectors:
    """Ridge, plus the residuals of the nearest fitted pairs, weighted by their cosine and shrunk."""
    pairs = split.pairs(queries)
    ridge = fit_map("ridge", pairs).map
    stored = split.gallery[0]
    rows, cosines = nearest(stored, pairs.X, NEAREST)
    weights = np.exp((cosines - 1) / WIDTH)
    residuals = pairs.Y - ridge(pairs.X)
    added = np.einsum("ij,ijk->ik", weights, residuals[rows])
    prior = np.exp(-SHRINK / WIDTH)
    mapped: Vectors = unit(
        ridge(stored) + added / (weights.sum(axis=1, keepdims=True) + prior)
    ).astype(np.float32)
    return mapped


def whitened(items: Pairs, *sides: Vectors) -> list[Vectors]:
    """Sides of the first space, half whitened as its items are."""
    whitening = fit_whitening(items)
    assert whitening is not None
    return [whitening(side) for side in sides]


def _fitted(split: Split, kind: str, queries: bool) -> Map:
    return fit_map(kind, split.pairs(queries)).map


def _kind(kind: str, queries: bool) -> Callable[[Split], NDArray[Any]]:
    return lambda split: split.added(
        split.ahead(_fitted(split, kind, queries)(split.gallery[0])), split.back
    )


def _nearest(queries: bool) -> Callable[[Split], NDArray[Any]]:
    return lambda split: split.added(split.ahead(with_nearest(split, queries)), split.back)


def _standardised(queries: bool) -> Callable[[Split], NDArray[Any]]:
    def scores(split: Split) -> NDArray[Any]:
        ahead = split.ahead(_fitted(split, "ridge", queries)(split.gallery[0]))
        return split.added(standardised(ahead), standardised(split.back))

    return scores


def _white_alone(split: Split) -> NDArray[Any]:
    asked, stored = whitened(split.items, split.queries[0], split.gallery[0])
    return np.asarray(asked @ stored.T)


def _white_old(queries: bool) -> Callable[[Split], NDArray[Any]]:
    def scores(split: Split) -> NDArray[Any]:
        ahead = split.ahead(_fitted(split, "ridge", queries)(split.gallery[0]))
        return split.added(standardised(ahead), standardised(_white_alone(split)))

    return scores


def _white_new(queries: bool) -> Callable[[Split], NDArray[Any]]:
    def scores(split: Split) -> NDArray[Any]:
        mapped = _fitted(split, "ridge", queries)(split.gallery[0])
        asked, stored = whitened(split.items.reversed, split.queries[1], mapped)
        return split.added(standardised(asked @ stored.T), standardised(split.back))

    return scores


def _three_terms(queries: bool) -> Callable[[Split], NDArray[Any]]:
    def scores(split: Split) -> NDArray[Any]:
        ahead = split.ahead(_fitted(split, "ridge", queries)(split.gallery[0]))
        carried = _backward(split, queries) @ split.gallery[0].T
        return split.added(ahead, (split.back + carried) / 2)

    return scores


def _one_model(queries: bool) -> Callable[[Split], NDArray[Any]]:
    def scores(split: Split) -> NDArray[Any]:
        ahead = split.ahead(_fitted(split, "ridge", queries)(split.gallery[0]))
        return split.added(ahead, _backward(split, queries) @ split.gallery[0].T)

    return scores


def _backward(split: Split, queries: bool) -> Vectors:
    return fit_map("contrast", split.pairs(queries).reversed).map(split.queries[1])


def _some_queries(count: int) -> Callable[[Split], NDArray[Any]]:
    def scores(split: Split) -> NDArray[Any]:
        forward = fit_map("ridge", split.with_queries(count)).map
        return split.added(split.ahead(forward(split.gallery[0])), split.back)

    return scores


def _by_gallery(split: Split) -> NDArray[Any]:
    pairs = Pairs.checked(*split.gallery)
    return split.added(split.ahead(fit_map("ridge", pairs).map(split.gallery[0])), split.back)


def _ways(queries: bool) -> dict[str, Callable[[Split], NDArray[Any]]]:
    on = "items and queries" if queries else "items"
    return {
        f"{on}: ridge": _kind("ridge", queries),
        f"{on}: ridge, scores standardised": _standardised(queries),
        f"{on}: rotation": _kind("rotation", queries),
        f"{on}: ridge and residuals of the nearest pairs": _nearest(queries),
        f"{on}: {WHITE}": _white_old(queries),
        f"{on}: ridge, new side half whitened": _white_new(queries),
        f"{on}: ridge, and the query mapped back as a third term": _three_terms(queries),
        f"{on}: one model per query": _one_model(queries),
    }


WAYS: dict[str, Callable[[Split], NDArray[Any]]] = {
    WHITE_ALONE: _white_alone,
    **_ways(queries=False),
    **{f"items and {count} queries: ridge": _some_queries(count) for count in COUNTS},
    **_ways(queries=True),
    "bound: ridge fitted on the gallery itself": _by_gallery,
    "bound: the new model's own vectors beside the old ones": lambda split: split.added(
        split.ahead(split.gallery[1]), split.back
    ),
    AGAIN: lambda split: split.ahead(split.gallery[1]),
}


def explained(forward: Map, split: Split) -> float:
    """The share of the variance of the gallery's new vectors that a linear map predicts from the old ones."""
    old, new = split.gallery
    missed = new - forward.layers[0].raw(old)
    return 1 - float(np.square(missed).sum() / np.square(new - new.mean(axis=0)).sum())


def measured(split: Split, change: Change, seed: int) -> Record:
    """The figures of one split."""
    maps = {
        "items": fit_map("ridge", split.items).map,
        "items and queries": fit_map("ridge", split.both).map,
        "gallery": fit_map("ridge", Pairs.checked(*split.gallery)).map,
    }
    return {
        **change._asdict(),
        "seed": seed,
        "pairs": len(split.items),
        "asked": len(split.asked[0]),
        "queries": len(split.queries[0]),
        "gallery": len(split.gallery[0]),
        "explained": {name: round(explained(one, split), 4) for name, one in maps.items()},
        "finds": {OLD: round(split.finds(split.back), 5)}
        | {name: round(split.finds(scores(split)), 5) for name, scores in WAYS.items()},
    }


# --- the table


def gain(runs: Sequence[Record], way: str) -> tuple[float, float, float]:
    """Points over the old model: the mean over the seeds and its 95 % interval (Student's t)."""
    each = 100 * np.array([run["finds"][way] - run["finds"][OLD] for run in runs])
    mean = float(each.mean())
    if len(each) not in T_95:
        return mean, float("nan"), float("nan")
    half = T_95[len(each)] * float(each.std(ddof=1)) / len(each) ** 0.5
    return mean, mean - half, mean + half


def share(runs: Sequence[Record], way: str) -> float:
    """The share of what re-embedding gains, in percent."""
    return 100 * gain(runs, way)[0] / gain(runs, AGAIN)[0]


def runs_of(runs: Sequence[Record], change: Change) -> list[Record]:
    """Those of one change."""
    return [run for run in runs if (run["set"], run["old"], run["new"]) == change]


def table(runs: Sequence[Record]) -> str:
    """Points over the old model of every way, and the share of what re-embedding gains."""
    changes = [change for change in CHANGES if runs_of(runs, change)]
    lines = [
        "| fitted on: map | " + " | ".join(map(str, changes)) + " |",
        "|---|" + "---|" * len(changes),
    ]
    for way in WAYS:
        cells = []
        for change in changes:
            mine = runs_of(runs, change)
            mean, low, high = gain(mine, way)
            cells.append(f"{mean:+.1f} [{low:+.1f}, {high:+.1f}], {share(mine, way):.0f} %")
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


# --- the command


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", type=Path, help="the folder of change_model.py and scifact.py")
    parser.add_argument(
        "--seeds", type=int, default=5, help="each divides everything in another way"
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
    done = {(run["set"], run["old"], run["new"], run["seed"]) for run in runs}
    for change in CHANGES:
        if options.only not in ("", change.set):
            continue
        make = text_split if change.set == scifact.SET else class_split
        for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
            if (*change, seed) in done:
                continue
            run = measured(make(options.pairs, change, seed), change, seed)
            runs.append(run)
            replace_json(options.out, content)
            print(change, seed, run["explained"], flush=True)
    print(table(runs))


if __name__ == "__main__":
    try:
        main()
    except FixstarError as error:
        sys.exit(f"maps_tried.py: {error}")
