"""How often vectors of two models in one collection are found, and how often one model's are taken for two.

    python benchmarks/mixture.py PAIRS --out benchmarks/results/mixture.json

PAIRS has SET/MODEL.npz with ``vectors`` and ``labels``. One model: everything, two far topics, and two sets by the
same model. Mixed: any two models, of the same items or of different ones; the wider one's vectors are cut to the width
of the narrower, half and half or one in ten.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.evaluation.mixture import LEAST, UNRELATED, Mixture, find_mixture
from fixstar.geometry import unit

TEXT = ("minilm", "use-lite", "wordllama")
MOST = 4000
Vectors = NDArray[np.float32]
Sets = dict[tuple[str, str], tuple[Vectors, NDArray[Any]]]


def read_sets(folder: Path) -> Sets:
    found: Sets = {}
    for path in sorted(folder.glob("*/*.npz")):
        if path.stem.endswith("_queries"):
            continue
        with np.load(path) as file:
            found[path.parent.name, path.stem.removesuffix("_docs")] = (
                file["vectors"],
                file["labels"],
            )
    return found


def far_topics(vectors: Vectors, labels: NDArray[Any], rng: np.random.Generator) -> Vectors:
    """Eight classes near one that is drawn, and the eight farthest from it."""
    classes = np.unique(labels)
    centres = unit(np.stack([vectors[labels == one].mean(axis=0) for one in classes]))
    order = np.argsort(centres @ centres[rng.integers(len(classes))])
    return vectors[np.isin(labels, classes[np.concatenate([order[:8], order[-8:]])])]


def joined(one: Vectors, other: Vectors, share: float, rng: np.random.Generator) -> Vectors:
    """So much of the one and the rest of the other, of different rows."""
    width = min(one.shape[1], other.shape[1])
    count = min(len(one), len(other), MOST)
    drawn = rng.permutation(count)
    first = round(share * count)
    return np.concatenate([unit(one[drawn[:first], :width]), unit(other[drawn[first:], :width])])


def cases(sets: Sets, rng: np.random.Generator) -> Iterator[tuple[str, str, Vectors]]:
    """Kind, name and vectors of every case."""
    for (name, model), (vectors, labels) in sets.items():
        yield "one set", f"{name} {model}", vectors
        if len(np.unique(labels)) >= 16:
            yield "two topics", f"{name} {model}", far_topics(vectors, labels, rng)
    for (one, other), share in (
        (pair, share) for pair in combinations(sets, 2) for share in (0.5, 0.1)
    ):
        first, second = sets[one][0], sets[other][0]
        name = f"{' '.join(one)}, {' '.join(other)}, {share:g}"
        if one[1] == other[1]:
            yield "two sets", name, joined(first, second, share, rng)
        elif (one[1] in TEXT) == (other[1] in TEXT):
            yield f"two models {share:g}", name, joined(first, second, share, rng)


def counted(found: dict[str, list[Mixture]]) -> dict[str, dict[str, float]]:
    rows = {}
    for kind, results in found.items():
        alignments = [one.alignment for one in results]
        rows[kind] = {
            "cases": len(results),
            "mixed": sum(one.verdict == "mixed" for one in results),
            "one model": sum(one.verdict == "one model" for one in results),
            "cannot be told": sum(one.verdict == "cannot be told" for one in results),
            "lowest": round(min(alignments), 3),
            "highest": round(max(alignments), 3),
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found: dict[str, list[Mixture]] = {}
    for kind, name, vectors in cases(read_sets(given.pairs), np.random.default_rng(given.seed)):
        if len(vectors) < LEAST:
            continue
        result = find_mixture(vectors, given.seed)
        print(f"{kind}: {name}: {result.verdict}, alignment {result.alignment:.3f}", flush=True)
        found.setdefault(kind, []).append(result)
    rows = counted(found)
    for kind, row in rows.items():
        print(kind, row)
    if given.out is not None:
        given.out.write_text(
            json.dumps({"threshold": UNRELATED, "seed": given.seed, "kinds": rows}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
