"""What a deployment and a rollback cost, with galleries of different size: a pointer moves, no vector does.

Two untrained versions of a small encoder; the gallery holds random unit vectors of the first. Measured from outside,
through ``Workspace``: the deployment, the rollback, and the first search after each.

    python benchmarks/deploy_cost.py --out benchmarks/results/deploy_cost_cpu.json        1,000 and 1,000,000 vectors
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fixstar.durable import replace_json
from fixstar.geometry import unit
from fixstar.models import Encoder
from fixstar.workspace import Workspace
from fixstar.workspace.items import ensure_version

BATCH = 10_000


def make(path: Path, count: int) -> Workspace:
    """A workspace with two versions and ``count`` vectors of the first."""
    space = Workspace.create(path, device="cpu")
    torch.manual_seed(0)
    encoder = Encoder.create("tiny", classes=["a", "b"], capacity=1000)
    for number in (1, 2):
        encoder.about = {"version": f"v{number}", "parent": None if number == 1 else "v1"}
        encoder.save(path / "versions" / f"v{number}")
        if number == 1:
            ensure_version(space.gallery, "v1", encoder)
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
    width, rng = space.gallery.versions()[0].width, np.random.default_rng(0)
    for start in range(0, count, BATCH):
        ids = [f"item-{i:08}" for i in range(start, min(count, start + BATCH))]
        space.gallery.upsert("v1", ids, unit(rng.standard_normal((len(ids), width)).astype(np.float32)))
    return space


def timed(action: Callable[[], Any]) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - start)


def measure(count: int, rounds: int, folder: Path) -> dict[str, Any]:
    query = [np.zeros((32, 32, 3), np.uint8)]
    with make(folder / str(count), count) as space:
        space.search(query)  # the gallery is in memory
        first = timed(lambda: space.deploy("v2", force="benchmark"))  # reads the model from disk
        space.search(query)
        space.rollback()
        times: dict[str, list[float]] = {"deploy": [], "search_after": [], "rollback": [], "search": []}
        for _ in range(rounds):
            times["deploy"].append(timed(lambda: space.deploy("v2", force="benchmark")))
            times["search_after"].append(timed(lambda: space.search(query)))
            times["rollback"].append(timed(space.rollback))
            times["search"].append(timed(lambda: space.search(query)))
    medians = {f"{name}_ms": round(statistics.median(values), 3) for name, values in times.items()}
    return {"vectors": count, "first_deploy_ms": round(first, 3), **medians}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,1000000")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(int(size), options.rounds, Path(folder)) for size in options.sizes.split(",")]
    for row in rows:
        print(row)
    if options.out:
        machine = {"machine": platform.machine(), "cores": os.cpu_count()}
        replace_json(options.out, {**machine, "rounds": options.rounds, "rows": rows})


if __name__ == "__main__":
    main()
