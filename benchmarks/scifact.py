"""From an old text model to a new one over SciFact: claims are queries, abstracts that support or refute them relevant.

    python benchmarks/scifact.py PAIRS --write TOOLS
    python benchmarks/rival_maps.py TOOLS                      (by a Python that has the other tools)
    python benchmarks/scifact.py PAIRS --tools TOOLS --out benchmarks/results/scifact.json

PAIRS holds scifact/MODEL_docs.npz and MODEL_queries.npz (``vectors`` and ``ids``) and qrels.tsv. For each seed the
documents that are relevant for no query are halved: one half is fitted, the other half and all relevant documents are
the gallery. Half of the queries choose maps, weights and half whitening of ``fixstar bridge``, which fits the chosen
maps again on these queries too; the other half is measured, by nDCG@10. So no document of the gallery is fitted, and no
query that is measured. One-sided maps are fitted on the pairs of documents, map the gallery, and are measured by
``fixstar judge`` on the same queries. They choose nothing by queries.

A run that FILE has is not repeated; what tools made is measured again. Earlier runs, those of items alone and those
with the old side as it is, stay in FILE, and the table takes them only where there is nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from change_model import (
    ALL,
    ITEMS_AND_QUERIES,
    Change,
    changes_in,
    difference,
    finds,
    fitted_on,
    named,
    runs_of,
    share,
)
from numpy.typing import NDArray

from fixstar.durable import replace_json
from fixstar.errors import DataError, FixstarError
from fixstar.evaluation import Relevant, matched, ndcg, read_relevance
from fixstar.evaluation.retrieval import first_places
from fixstar.evaluation.verdicts import GateRules, halves, judged_difference
from fixstar.translation import Pairs, fit_map
from fixstar.translation.bridge import (
    AGAIN,
    OLD,
    ONE,
    TWO,
    Bridged,
    BridgeOptions,
    Measured,
    bridge,
)
from fixstar.translation.judge import MIGRATED, Compared, judge

Record = dict[str, Any]
Vectors = NDArray[np.float32]
Indices = NDArray[np.int64]

SET = "scifact"
CHANGES = (
    Change(SET, "wordllama", "minilm"),
    Change(SET, "use-lite", "minilm"),
    Change(SET, "wordllama", "use-lite"),
)
HELD_OUT = 0.5  # of the documents that are relevant for no query
FORWARD = {"ridge": "ridge map alone", "rotation": "orthogonal map alone (Procrustes)"}
DEPTH = 50
RESCORED = f"old model's first {DEPTH}, embedded again for each search"
FIRST = (OLD, *FORWARD.values())
LAST = (RESCORED, ONE, TWO, AGAIN)


class Texts(NamedTuple):
    """Documents and queries of both models, [N, d] each, and which rows of documents a query should find."""

    old: Vectors
    new: Vectors
    queries_old: Vectors
    queries_new: Vectors
    relevant: Relevant


def read_texts(folder: Path, change: Change) -> Texts:
    """All files of a change; those of both models must hold the same ids. Only judged queries are kept."""
    vectors = []
    ids = []
    for part in ("docs", "queries"):
        for model in (change.old, change.new):
            path = folder / SET / f"{model}_{part}.npz"
            if not path.is_file():
                raise DataError(
                    f"{path} is missing; PAIRS holds {SET}/MODEL_docs.npz, MODEL_queries.npz and qrels.tsv"
                )
            with np.load(path) as file:
                vectors.append(file["vectors"])
                ids.append(file["ids"].tolist())
    if ids[0] != ids[1] or ids[2] != ids[3]:
        raise DataError(
            f"{change}: the files of both models must hold the same ids in the same order"
        )
    relevant = matched(read_relevance(folder / SET / "qrels.tsv"), ids[2], ids[0])
    asked = relevant.queries
    return Texts(vectors[0], vectors[1], vectors[2][asked], vectors[3][asked], relevant)


class Drawn(NamedTuple):
    """Rows of the documents that are fitted and of those in the gallery, and of the queries that are measured."""

    fitted: Indices
    gallery: Indices
    judging: Indices


def draw(texts: Texts, seed: int) -> Drawn:
    """As ``bridge`` divides them."""
    named = np.unique(np.concatenate(texts.relevant.items))
    others = np.setdiff1d(np.arange(len(texts.old)), named)
    more = np.random.default_rng(seed).permutation(others)[: round(HELD_OUT * len(others))]
    _, judging = halves(np.zeros(len(texts.queries_old), np.int64), seed)
    return Drawn(np.setdiff1d(others, more), np.sort(np.concatenate([named, more])), judging)


def bridged(texts: Texts, seed: int) -> Bridged:
    """Both sides: maps and weights by half of the queries, figures of the other half. Ids are row numbers."""
    wanted = {
        str(query): {
            str(item): float(grade)
            for item, grade in zip(items.tolist(), grades.tolist(), strict=True)
        }
        for query, (items, grades) in enumerate(
            zip(texts.relevant.items, texts.relevant.grades, strict=True)
        )
    }
    options = BridgeOptions(sample=len(texts.old), held_out=HELD_OUT, rules=GateRules(seed=seed))
    queries = (texts.queries_old, texts.queries_new)
    return bridge(texts.old, texts.new, relevant=wanted, queries=queries, options=options)


def alone(texts: Texts, drawn: Drawn, migrated: Vectors) -> dict[str, Compared]:
    """What a one-sided map finds, by the referee. A tool that needs equal widths got zeros; so do its queries."""
    place = {item: row for row, item in enumerate(drawn.gallery.tolist())}
    wanted = {}
    for row, query in enumerate(drawn.judging.tolist()):
        wanted[str(row)] = {str(place[item]): 1.0 for item in texts.relevant.items[query].tolist()}
    asked = texts.queries_new[drawn.judging]
    zeros = migrated.shape[1] - asked.shape[1]
    found = judge(
        texts.old[drawn.gallery],
        migrated,
        texts.new[drawn.gallery],
        queries_old=texts.queries_old[drawn.judging],
        queries_new=asked,
        queries_migrated=np.pad(asked, ((0, 0), (0, zeros))),
        relevant=wanted,
    )
    return dict(found.measured["nDCG@10"])


def rescored(texts: Texts, drawn: Drawn) -> Compared:
    """The old model finds 50 documents, the new one embeds them again and orders them: originals must be there."""
    place = {item: row for row, item in enumerate(drawn.gallery.tolist())}
    grades = np.zeros((len(drawn.judging), len(drawn.gallery)))
    for row, query in enumerate(drawn.judging.tolist()):
        grades[row, [place[item] for item in texts.relevant.items[query].tolist()]] = 1
    before = texts.queries_old[drawn.judging] @ texts.old[drawn.gallery].T
    again = texts.queries_new[drawn.judging] @ texts.new[drawn.gallery].T
    first = first_places(before, DEPTH)
    scores = before - 4  # below every cosine, in the old order
    np.put_along_axis(scores, first, np.take_along_axis(again, first, axis=1), axis=1)
    after = ndcg(scores, grades)
    found = judged_difference(after, ndcg(before, grades), 0.95, GateRules())
    return Compared(float(after.mean()), found.mean, found.low, found.high, None)


def measured(texts: Texts, change: Change, seed: int) -> Record:
    """The figures of one run."""
    started = time.perf_counter()
    drawn = draw(texts, seed)
    found = bridged(texts, seed)
    assert found.gallery == len(drawn.gallery)
    assert found.queries == len(drawn.judging)
    pairs = Pairs.checked(texts.old[drawn.fitted], texts.new[drawn.fitted], seed=seed)
    ways = {name: _figures(row) for name, row in found.measured.items()}
    for kind, name in FORWARD.items():
        rows = alone(texts, drawn, fit_map(kind, pairs).map(texts.old[drawn.gallery]))
        ways[name] = _figures(rows[MIGRATED])
        assert abs(rows["old"].value - found.measured[OLD].finds) < 1e-5
        assert abs(rows["re-embedded"].value - found.measured[AGAIN].finds) < 1e-5
    ways[RESCORED] = _figures(rescored(texts, drawn))
    best = found.best
    assert best is not None
    kept = best if found.outcome == "pass" else found.measured[OLD]
    return {
        **change._asdict(),
        "size": ALL,
        "seed": seed,
        "fitted on": ITEMS_AND_QUERIES,
        "pairs": len(drawn.fitted),
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


def _figures(row: Measured | Compared) -> Record:
    value = row.finds if isinstance(row, Measured) else row.value
    weight = row.weight if isinstance(row, Measured) else None
    return {
        "finds": round(value, 5),
        "difference": round(row.difference or 0.0, 5),
        "low": round(row.low, 5),
        "high": round(row.high, 5),
        "weight": weight,
    }


# --- other tools


def by_tool(way: str) -> bool:
    """Whether a way to search is another tool's, "TOOL: KIND"."""
    return ":" in way


def _folder(tools: Path, change: Change, seed: int) -> Path:
    return tools / f"{change.old}-{change.new}-{seed}"


def write_pairs(texts: Texts, change: Change, seed: int, tools: Path) -> None:
    """What a tool gets: the fitted documents by both models, and the gallery by the old one."""
    drawn = draw(texts, seed)
    folder = _folder(tools, change, seed)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        "old": texts.old[drawn.fitted],
        "new": texts.new[drawn.fitted],
        "stored": texts.old[drawn.gallery],
    }
    for name, vectors in arrays.items():
        np.save(folder / f"{name}.npy", vectors)


def of_tools(texts: Texts, change: Change, seed: int, tools: Path) -> dict[str, Record]:
    """The figures of what each tool made of the gallery: files with ``name`` and ``vectors``."""
    drawn = draw(texts, seed)
    found = {}
    for path in sorted(_folder(tools, change, seed).glob("*.npz")):
        with np.load(path) as file:
            found[str(file["name"])] = _figures(alone(texts, drawn, file["vectors"])[MIGRATED])
    return found


# --- the table


def ways_in(runs: Sequence[Record]) -> list[str]:
    """All ways to search, other tools between the plain maps and both sides."""
    named = list(dict.fromkeys(way for run in runs for way in run["ways"]))
    return [*FIRST, *filter(by_tool, named), *LAST]


def table(runs: Sequence[Record]) -> str:
    """nDCG@10 of every way in percent, in brackets points over the old model with their interval (t over seeds)."""
    changes = changes_in(runs)
    heads = [
        named(change, runs_of(runs, change, ALL)).removeprefix(f"{SET}: ") for change in changes
    ]
    lines = ["| search | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for way in ways_in(runs):
        cells = [_cell(runs_of(runs, change, ALL), way) for change in changes]
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(runs: Sequence[Record], way: str) -> str:
    if not all(way in run["ways"] for run in runs):
        return ""
    value = f"{finds(runs, way):.1f}"
    if way == OLD:
        return value
    mean, low, high = difference(runs, way)
    return f"{value} ({mean:+.1f} [{low:+.1f}, {high:+.1f}])"


# --- the command


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "pairs", type=Path, help="the folder with scifact/MODEL_docs.npz and MODEL_queries.npz"
    )
    parser.add_argument(
        "--seeds", type=int, default=5, help="each halves documents and queries in another way"
    )
    parser.add_argument(
        "--write", type=Path, help="only write what other tools fit, into this folder"
    )
    parser.add_argument("--only", default="", help="this change only, such as wordllama-minilm")
    parser.add_argument("--tools", type=Path, help="the folder with what other tools made")
    parser.add_argument("--out", type=Path, help="the figures as JSON; runs that it has are kept")
    options = parser.parse_args()
    if (options.write is None) == (options.out is None):
        raise DataError("give --write FOLDER or --out FILE")
    content: Record = {"runs": []}
    if options.out is not None and options.out.is_file():
        content = json.loads(options.out.read_text(encoding="utf-8"))
    content["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, numpy {np.__version__}"
    runs = content["runs"]
    present = fitted_on(ITEMS_AND_QUERIES, runs)
    done = {(run["set"], run["old"], run["new"], run["seed"]): run for run in present}
    for change in CHANGES:
        if options.only not in ("", f"{change.old}-{change.new}"):
            continue
        texts = read_texts(options.pairs, change)
        for seed in range(options.seeds):
            if options.write is not None:
                write_pairs(texts, change, seed, options.write)
                continue
            run = done.get((*change, seed))
            if run is None:
                run = measured(texts, change, seed)
                runs.append(run)
            if options.tools is not None:
                own = {way: row for way, row in run["ways"].items() if not by_tool(way)}
                run["ways"] = own | of_tools(texts, change, seed, options.tools)
            replace_json(options.out, content)
            shown = {way: row["finds"] for way, row in run["ways"].items()}
            print(change, seed, shown, run["outcome"], run["seconds"], flush=True)
    if runs:
        print(table(runs))
        for change in changes_in(runs):
            mine = runs_of(runs, change, ALL)
            print(change, "share of the gain:", share(mine, TWO))


if __name__ == "__main__":
    try:
        main()
    except FixstarError as error:
        sys.exit(f"scifact.py: {error}")
