"""The simplex classifier in closed form against the dense matrix: time and memory of one cross-entropy step.

One step is logits, cross-entropy and the gradient of the features. Each row runs in a process of its own, so that the
memory is that of the head alone: what the step adds to a process that holds the features and their gradient's space.
On a GPU there is also the fused kernel, a mere copy of the features (the floor: read once, write once), and the time of
each as a recorded graph, without the cost of starting kernels, which is how training runs it.

    python benchmarks/simplex_head.py                       the sizes for a CPU
    python benchmarks/simplex_head.py --device cuda         the sizes for a GPU
    python benchmarks/simplex_head.py --sizes 1000,10000 --batch 64 --out head.json
    python benchmarks/simplex_head.py --device cuda --sizes 81313 --kinds copy,fused
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fixstar.durable import replace_json
from fixstar.geometry import simplex_logits
from fixstar.kernels.simplex_ce import simplex_cross_entropy
from fixstar.losses import cross_entropy
from fixstar.progress import progress_bar

CPU_SIZES = (1_000, 10_000, 100_000)
GPU_SIZES = (22_000, 81_313)
BATCHES = {22_000: 320, 81_313: 256}  # the papers' batch sizes at the papers' sizes
DENSE_LIMIT = {
    "cpu": 4e9,
    "cuda": 60e9,
}  # bytes of the K x (K-1) matrix that are still reasonable to try


def dense_prototypes(K: int, device: str) -> Tensor:
    """The matrix [K, K-1] in float32, made in place: what the published code keeps on the device."""
    W = torch.zeros(K, K - 1, device=device)
    W.fill_diagonal_(1.0)
    W[-1] = (1 - K**0.5) / (K - 1)
    W -= W.mean(dim=0)
    for start in range(0, K, 1024):
        W[start : start + 1024] /= W[start : start + 1024].norm(dim=1, keepdim=True)
    return W


def bytes_of_dense(K: int) -> int:
    return 4 * K * (K - 1)


def measure(kind: str, K: int, batch: int, device: str) -> dict[str, Any]:
    z = torch.randn(batch, K - 1, device=device, requires_grad=True)
    z.grad = torch.zeros_like(z)
    targets = torch.randint(K, (batch,), device=device)
    before = memory(device)
    W = dense_prototypes(K, device) if kind.startswith("dense") else None
    if kind == "dense tf32":
        torch.backends.cuda.matmul.allow_tf32 = True

    def step() -> None:
        z.grad = None
        if kind == "copy":
            z.grad = z.detach().clone()
        elif kind == "fused":
            torch.autograd.backward(simplex_cross_entropy(z, targets))
        else:
            logits = simplex_logits(z, K) if W is None else z @ W.T
            torch.autograd.backward(cross_entropy(logits, targets))

    step()
    figures = {
        "kind": kind,
        "K": K,
        "batch": batch,
        "ms": median_ms(step, device),
        "MiB": memory(device) - before,
    }
    return figures | ({"graph_ms": graph_ms(step)} if device == "cuda" else {})


def graph_ms(step: Callable[[], None], count: int = 20) -> float:
    """Milliseconds a step, where ``count`` of them are recorded and replayed."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(aside):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            step()
    return median_ms(graph.replay, "cuda") / count


def memory(device: str) -> float:
    """The peak so far, in MiB."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def median_ms(step: Callable[[], None], device: str) -> float:
    """Of 5 on a CPU; on a GPU of up to 50, within about two seconds."""
    times: list[float] = []
    while len(times) < 5 or (device == "cuda" and len(times) < 50 and sum(times) < 2000):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return sorted(times)[len(times) // 2]


def rows(sizes: list[int], batch: int | None, device: str) -> list[tuple[str, int, int]]:
    dense = ["dense fp32", "dense tf32"] if device == "cuda" else ["dense fp32"]
    fits = {K: bytes_of_dense(K) <= DENSE_LIMIT[device] for K in sizes}
    ours = ["copy", "fused", "closed"] if device == "cuda" else ["closed"]
    return [
        (kind, K, batch or BATCHES.get(K, 128))
        for K in sizes
        for kind in [*ours, *(dense if fits[K] else [])]
    ]


def in_process(row: tuple[str, int, int], device: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--device", device, "--row", json.dumps(row)]
    result: dict[str, Any] = json.loads(subprocess.check_output(command, text=True))
    return result


def machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {torch.get_num_threads()} threads"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--sizes", help="K, comma separated")
    parser.add_argument("--batch", type=int)
    parser.add_argument(
        "--kinds", help="of copy, fused, closed, dense fp32, dense tf32; all that fit unless given"
    )
    parser.add_argument("--out", type=Path, help="write the rows to this JSON file")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        kind, K, batch = json.loads(options.row)
        print(json.dumps(measure(kind, K, batch, options.device)))
        return
    default = GPU_SIZES if options.device == "cuda" else CPU_SIZES
    sizes = [int(K) for K in options.sizes.split(",")] if options.sizes else list(default)
    plan = rows(sizes, options.batch, options.device)
    if options.kinds:
        plan = [row for row in plan if row[0] in options.kinds.split(",")]
    results = []
    with progress_bar("measuring", len(plan), "rows") as advance:
        for row in plan:
            results.append(in_process(row, options.device))
            advance()
    print(f"{machine(options.device)}, torch {torch.__version__}")
    for r in results:
        graph = f"  {r['graph_ms']:>10.3f} ms as a graph" if "graph_ms" in r else ""
        step = f"K={r['K']:>9,}  batch {r['batch']:>4}  {r['kind']:<10}  {r['ms']:>10.2f} ms  {r['MiB']:>10.1f} MiB"
        print(step + graph)
    if options.out:
        replace_json(
            options.out,
            {"machine": machine(options.device), "torch": torch.__version__, "rows": results},
        )


if __name__ == "__main__":
    main()
