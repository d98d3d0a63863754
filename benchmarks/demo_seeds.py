"""Does the demo gain whatever the seed? With ten seeds: v1, v2 on v1's untouched vectors, v2, and the gate's verdict.

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
from typing import Any

import torch

from fixstar import demo
from fixstar.durable import replace_json


def measured(seed: int) -> dict[str, Any]:
    """What the demo measures with one seed."""
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = demo.run_demo(
            Path(folder) / "demo", seed, "cpu", progress=False, say=lambda _: None
        )
    return {
        "seed": seed,
        "v1": result.now,
        "v2 untranslated": result.untranslated,
        "v2 on v1": result.at_once,
        "v2": result.reembedded,
        "curve": result.curve,
        "outcome": result.gate,
        "cpu_seconds": round(time.process_time() - started),
    }


def main() -> None:
    """Print one line per seed and keep all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/demo_seeds.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = json.loads(args.out.read_text())["runs"] if args.out.is_file() else []
    print("seed     v1  v2 on v1     v2    gain  verdict", flush=True)
    for seed in args.seeds:
        if (run := next((run for run in runs if run["seed"] == seed), None)) is None:
            run = measured(seed)
            runs = sorted([*runs, run], key=lambda run: run["seed"])
            replace_json(
                args.out, {"command": "python benchmarks/demo_seeds.py", "threads": 1, "runs": runs}
            )
        accuracies = f"{run['v1']:6.1%}    {run['v2 on v1']:6.1%} {run['v2']:6.1%}"
        print(
            f"{seed:4} {accuracies}  {run['v2 on v1'] - run['v1']:+.1%}  {run['outcome']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
