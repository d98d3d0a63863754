"""Does the demo pass its gate whatever the seed? Its upgrade with ten seeds: v1, v2 on v1's vectors, v2, the verdict.

    python benchmarks/demo_seeds.py            seeds 0 to 9, one thread: about 80 seconds of CPU time per seed

Only the weights and the order of the images change with the seed; the characters are the same. Finished seeds are kept
in --out and not repeated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

from fixstar import demo
from fixstar.durable import replace_json
from fixstar.workspace import Workspace


def measured(seed: int) -> dict[str, object]:
    """What the demo's compatible upgrade measures with one seed."""
    started = time.process_time()
    gallery = demo.characters(demo.UNSEEN, demo.GALLERY, seed=1)
    queries = demo.characters(demo.UNSEEN, demo.QUERIES, seed=2)
    with tempfile.TemporaryDirectory() as folder, Workspace.create(Path(folder) / "shop", device="cpu") as space:
        check = demo.train_and_check(space, "compatible", gallery, queries, seed, progress=False, say=lambda _: None)
    (cell,) = check.cells
    return {
        "seed": seed,
        "v1": cell.self_test,
        "v2 on v1": cell.cross_test,
        "low": cell.low,
        "high": cell.high,
        "v2": check.self_test,
        "outcome": check.outcome,
        "cpu_seconds": round(time.process_time() - started),
    }


def main() -> None:
    """Print one line per seed and keep all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/demo_seeds.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = json.loads(args.out.read_text())["runs"] if args.out.is_file() else []
    print("seed     v1  v2 on v1     v2  difference         verdict", flush=True)
    for seed in args.seeds:
        if (run := next((run for run in runs if run["seed"] == seed), None)) is None:
            run = measured(seed)
            runs = sorted([*runs, run], key=lambda run: run["seed"])
            replace_json(args.out, {"command": "python benchmarks/demo_seeds.py", "threads": 1, "runs": runs})
        accuracies = f"{run['v1']:6.1%}    {run['v2 on v1']:6.1%} {run['v2']:6.1%}"
        print(f"{seed:4} {accuracies}  {run['low']:+.1%} to {run['high']:+.1%}  {run['outcome']}", flush=True)


if __name__ == "__main__":
    main()
