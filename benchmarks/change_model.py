"""Three upgrades between encoders that were never trained together, on real photos: every way across, judged.

    python benchmarks/imagenet_encoders.py PACKAGES MODELS --images CALTECH_101 --out VECTORS
    python benchmarks/change_model.py VECTORS --out benchmarks/results/change_model.json

VECTORS holds mobilenetv2.npz, resnet50.npz and efficientnet-lite2.npz: 1,000 photos without a label, which are fitted,
and up to 30 others of each of 100 classes, half of them the gallery, a quarter to choose with and a quarter to judge.
Also: how far the alignment comes that has no image in common (half of the photos by one model, half by the other).
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
from fixstar.workspace.adapters.bridge import Bridged, BridgeOptions, bridge
from fixstar.workspace.adapters.fitting import best_adapter, fit_adapter
from fixstar.workspace.adapters.unpaired import pseudo_pairs
from fixstar.workspace.adapters.use import adapter_cross_test

from fixstar.durable import replace_json
from fixstar.evaluation import VersionFeatures, gallery_query_split, verdicts
from fixstar.geometry import unit
from fixstar.wording import percent, points
from fixstar.workspace import GateRules

UPGRADES = [("mobilenetv2", "resnet50"), ("resnet50", "efficientnet-lite2"), ("mobilenetv2", "efficientnet-lite2")]


def measured(old: str, new: str, vectors: Path, seed: int) -> tuple[Bridged, dict[str, Any]]:
    started = time.perf_counter()
    options = BridgeOptions(held_out=1, rules=GateRules(seed=seed))
    found = bridge(vectors / f"{old}.npz", vectors / f"{new}.npz", options=options, progress=True)
    seconds = round(time.perf_counter() - started)
    return found, {"upgrade": f"{old} -> {new}", "seed": seed, "seconds": seconds, **found.to_json()}


def without_pairs(old: str, new: str, vectors: Path, labelled: bool) -> dict[str, Any]:
    """Fitted on one half of the photos by the old model and the other half by the new one; judged on labelled ones."""
    with np.load(vectors / f"{old}.npz") as one, np.load(vectors / f"{new}.npz") as other:
        X, Y, labels = unit(one["vectors"]), unit(other["vectors"]), one["labels"]
    known = np.flatnonzero(labels != "")
    fitted = known[::2] if labelled else np.flatnonzero(labels == "")
    first, second = fitted[::2], fitted[1::2]
    found = pseudo_pairs(Y[second], X[first], *((labels[second], labels[first]) if labelled else ()))
    adapter = fit_adapter("procrustes", Y[second][found.first], X[first][found.second])
    judged = known[1::2] if labelled else known
    split = gallery_query_split(np.unique(labels[judged], return_inverse=True)[1])
    queries, gallery = judged[split.queries], judged[split.gallery]
    before, after = (VersionFeatures(name, part[queries], part[gallery]) for name, part in ((old, X), (new, Y)))
    test = adapter_cross_test(adapter, before, after, labels[queries], labels[gallery])
    verdict = verdicts(test)[1, 0]
    return {
        "old": old,
        "new": new,
        "anchors": found.anchors,
        "pseudo_pairs": len(found.first),
        "queries": len(queries),
        "self_test": float(test.matrix[0, 0]),
        "cross_test": float(test.matrix[1, 0]),
        "low": verdict.low,
        "high": verdict.high,
        "verdict": verdict.verdict,
    }


def speed(vectors: Path) -> dict[str, Any]:
    """``best_adapter`` on 640 pairs of 1,280 numbers."""
    with np.load(vectors / "mobilenetv2.npz") as one, np.load(vectors / "efficientnet-lite2.npz") as other:
        X, Y = unit(one["vectors"][:640]), unit(other["vectors"][:640])
    started, before = time.perf_counter(), time.process_time()
    found = best_adapter(Y, X)
    return {
        "pairs": 640,
        "widths": [Y.shape[1], X.shape[1]],
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - before, 1),
        "found": str(found),
    }


def table(found: Bridged) -> str:
    assert found.old is not None
    lines = ["| way | finds | against the old model, 95 % interval | verdict |", "|---|---|---|---|"]
    lines.append(f"| the old model | {percent(found.old)} | | |")
    rows = [(one.words, one) for one in found.candidates]
    if found.reembedded is not None:
        rows.append(("everything re-embedded", found.reembedded))
    for name, one in rows:
        interval = f"{points(one.result - found.old)} ({points(one.low)} to {points(one.high)})"
        lines.append(f"| {name} | {percent(one.result)} | {interval} | {one.verdict} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors", type=Path)
    parser.add_argument("--seeds", type=int, default=1, help="each splits the photos with a label in another way")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    content: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, numpy {np.__version__}",
        "upgrades": [],
        "without_pairs": [],
    }
    for old, new in UPGRADES:
        for seed in range(options.seeds):
            found, figures = measured(old, new, options.vectors, seed)
            content["upgrades"].append(figures)
            print(
                f"\n### {old} -> {new}, seed {seed} ({figures['seconds']} s)\n\n{found}\n\n{table(found)}", flush=True
            )
        for labelled in (True, False):
            aligned = without_pairs(old, new, options.vectors, labelled)
            content["without_pairs"].append(aligned)
            print("no common image:", aligned, flush=True)
        if options.out:
            replace_json(options.out, content)
    content["best_adapter"] = speed(options.vectors)
    print(content["best_adapter"])
    if options.out:
        replace_json(options.out, content)


if __name__ == "__main__":
    main()
