"""Reading through before answering: what it finds, and how many documents it embeds, over a stream of queries.

    python benchmarks/fresh.py PAIRS            a minute on a CPU

PAIRS holds scifact/ as for scifact.py. Maps are fitted on documents that are no part of the gallery, and without
queries. Queries come one after the other. Each finds its best N documents by the vectors that are stored: old ones
through the translation, two models per query, new ones by the new model, on one scale. Those of the N that have old
vectors are embedded by the new model, and stay embedded. Then the query is answered:

    ranked    the N documents by the new model's score, before all others
    asked     the same search again, in the gallery as it is now: what fixstar does
    cold      as "ranked", but nothing stays embedded, so that every query embeds N: what the first ones get

``found`` is nDCG@10 in the mean over the stream, ``share`` of what embedding everything again gains, ``embedded``
documents per query: in the first and in the last quarter of the stream, and the share of the gallery in the end.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scifact import CHANGES, Drawn, Texts, draw, read_texts

from fixstar.durable import replace_json
from fixstar.evaluation import VersionFeatures, ndcg
from fixstar.geometry import unit
from fixstar.translation import translated
from fixstar.translation.calibrate import standardised
from fixstar.translation.fit import Pairs, fit_translations

DEPTHS = (0, 10, 20, 50, 100, 200)
ANSWERS = ("cold", "ranked", "asked")

Record = dict[str, Any]
Scores = NDArray[np.float64]


class Search:
    """Scores of all queries with the gallery: by old vectors on the scale of all, and by new ones."""

    def __init__(self, texts: Texts, drawn: Drawn, seed: int) -> None:
        pairs = Pairs.checked(texts.old[drawn.fitted], texts.new[drawn.fitted], seed=seed)
        way = fit_translations(pairs, "old", "new")[0]
        old = VersionFeatures("old", unit(texts.queries_old), unit(texts.old[drawn.gallery]))
        new = VersionFeatures("new", unit(texts.queries_new), unit(texts.new[drawn.gallery]))
        view = translated(way, old, new)
        self.weight = way.weight
        self.before = old.queries @ old.gallery.T
        self.plain = new.queries @ new.gallery.T
        self.old: Scores = standardised(view).logit(view.queries @ unit(view.gallery).T)
        self.new: Scores = standardised(new).logit(self.plain)
        place = {item: row for row, item in enumerate(drawn.gallery.tolist())}
        self.grades = np.zeros(self.before.shape)
        for query, items in enumerate(texts.relevant.items):
            self.grades[query, [place[item] for item in items.tolist()]] = 1

    def found(self, scores: Scores) -> float:
        """nDCG@10 in the mean over all queries."""
        return float(ndcg(scores, self.grades).mean())

    def streamed(self, depth: int, order: NDArray[np.int64]) -> tuple[dict[str, Scores], list[int]]:
        """What each way to answer scores for every query, and how many documents each query embeds."""
        again = np.zeros(self.old.shape[1], bool)
        answers = {name: np.empty(self.old.shape) for name in ANSWERS}
        embedded = []
        for query in order.tolist():
            scores = np.where(again, self.new[query], self.old[query])
            best = np.argsort(-scores, kind="stable")[:depth]
            embedded.append(int((~again[best]).sum()))
            again[best] = True
            first = np.argsort(-self.old[query], kind="stable")[:depth]
            answers["cold"][query] = self._ranked(query, self.old[query], first)
            answers["asked"][query] = np.where(again, self.new[query], self.old[query])
            answers["ranked"][query] = self._ranked(query, scores, best)
        return answers, embedded

    def _ranked(self, query: int, scores: Scores, best: NDArray[np.int64]) -> Scores:
        """Some documents by the new model's score, before all others in their order."""
        ranked: Scores = scores - 1000.0
        ranked[best] = self.new[query, best]
        return ranked


def measured(texts: Texts, seed: int) -> list[Record]:
    """The figures of one pair of models and one seed, for every depth."""
    search = Search(texts, draw(texts, seed), seed)
    order = np.random.default_rng(seed).permutation(len(search.old))
    quarter = len(order) // 4
    before = search.found(search.before)
    everything = search.found(search.plain)
    records = []
    for depth in DEPTHS:
        answers, embedded = search.streamed(depth, order)
        record: Record = {
            "seed": seed,
            "depth": depth,
            "queries": len(order),
            "gallery": search.old.shape[1],
        }
        record |= {"weight": search.weight, "old": before, "re-embedded": everything}
        for name, scores in answers.items():
            found = search.found(scores)
            record[name] = {"found": found, "share": (found - before) / (everything - before)}
        record["embedded"] = {
            "first quarter": float(np.mean(embedded[:quarter])),
            "last quarter": float(np.mean(embedded[-quarter:])),
            "share of the gallery": sum(embedded) / search.old.shape[1],
        }
        records.append(record)
    return records


def table(runs: list[Record]) -> str:
    """Means over seeds."""
    heads = ["pair", "N", "old model", "nothing kept", "ranked", "asked again", "re-embedded"]
    heads += [
        "share of the gain",
        "embedded per query, first quarter",
        "last quarter",
        "of the gallery in the end",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for pair in dict.fromkeys((run["old model"], run["new model"]) for run in runs):
        for depth in DEPTHS:
            mine = [
                run
                for run in runs
                if (run["old model"], run["new model"]) == pair and run["depth"] == depth
            ]

            def mean(*keys: str, of: list[Record] = mine) -> float:
                values = []
                for run in of:
                    value: Any = run
                    for key in keys:
                        value = value[key]
                    values.append(value)
                return float(np.mean(values))

            finds = [mean("old"), *(mean(name, "found") for name in ANSWERS), mean("re-embedded")]
            counts = [mean("embedded", "first quarter"), mean("embedded", "last quarter")]
            cells = [f"{100 * value:.1f}" for value in finds]
            cells.append(f"{100 * mean('asked', 'share'):.0f} %")
            cells += [f"{value:.1f}" for value in counts]
            cells.append(f"{100 * mean('embedded', 'share of the gallery'):.0f} %")
            lines.append(f"| {pair[0]} to {pair[1]} | {depth} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/fresh.json"))
    args = parser.parse_args()
    runs: list[Record] = []
    for change in CHANGES:
        missing = [model for model in (change.old, change.new) if not _is_there(args.pairs, model)]
        if missing:
            print(
                f"left out: {change.old} to {change.new}, without vectors of {', '.join(missing)}",
                flush=True,
            )
            continue
        texts = read_texts(args.pairs, change)
        for seed in range(args.seeds):
            pair = {"old model": change.old, "new model": change.new}
            runs += [{**pair, **record} for record in measured(texts, seed)]
            replace_json(args.out, {"command": "python benchmarks/fresh.py PAIRS", "runs": runs})
    print(table(runs))


def _is_there(pairs: Path, model: str) -> bool:
    return (pairs / "scifact" / f"{model}_docs.npz").is_file()


if __name__ == "__main__":
    main()
