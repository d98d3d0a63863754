"""All cells of a compatibility matrix: seconds by protocol, and what bounds them.

The features are synthetic: 10 unseen classes that overlap heavily (self-tests near 0.4 by image), backbone features
h = ReLU(W f + b) of 64 components, z = P h of 99, and versions that drift (cosine near 0.9 between consecutive ones).
Where only some versions are searched by image, the time of all cells is that of one cell times their number. CPU
seconds, and the speed of a plain product before and after, tell how much of the machine there was.

    python benchmarks/cross_test.py --image-versions 7         31 versions, 50,000 queries, 10,000 gallery images
    python benchmarks/cross_test.py --device cuda --out benchmarks/results/cross_test_h200.json
"""

from __future__ import annotations

import argparse
import platform
import resource
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fixstar import geometry
from fixstar.durable import replace_json
from fixstar.evaluation import VersionFeatures, cross_test
from fixstar.progress import progress_bar

Array = NDArray[Any]
Figures = dict[str, Any]
CLASSES, LATENT, BACKBONE, WIDTH = 10, 24, 64, 99


def make_versions(count: int, queries: int, gallery: int) -> tuple[list[VersionFeatures], Array, Array]:
    rng = np.random.default_rng(0)
    scale = np.arange(1, LATENT + 1) ** -0.6  # some directions matter more
    centres = 0.5 * rng.normal(size=(CLASSES, LATENT))
    labels = np.arange(queries) % CLASSES, np.arange(gallery) % CLASSES
    latent = [((centres[y] + rng.normal(size=(len(y), LATENT))) * scale).astype(np.float32) for y in labels]
    W, P = Drift(rng, (LATENT, BACKBONE)), Drift(rng, (WIDTH, BACKBONE))
    bias = 0.3 * np.linalg.norm(scale)
    versions = []
    for t in range(count):
        weights, projection = W.step(), P.step() / 8
        noise = [0.05 * rng.standard_normal((len(f), BACKBONE), dtype=np.float32) for f in latent]
        h = [np.maximum(f @ weights + bias + e, 0) for f, e in zip(latent, noise, strict=True)]
        u = [geometry.short_form(x.astype(np.float32), projection).astype(np.float32) for x in h]
        versions.append(VersionFeatures(f"v{t + 1}", u[0], u[1], projection))
    return versions, *labels


class Drift:
    """A random matrix of which four fifths stay and one fifth wanders."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, int]) -> None:
        self.rng, self.core, self.rest = rng, rng.normal(size=shape), rng.normal(size=shape)

    def step(self) -> Array:
        """The matrix of the next version."""
        self.rest = 0.7 * self.rest + np.sqrt(1 - 0.7**2) * self.rng.normal(size=self.rest.shape)
        return np.asarray(np.sqrt(0.8) * self.core + np.sqrt(0.2) * self.rest, dtype=np.float32)


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result, the seconds, and the CPU seconds of all threads."""
    start, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - start, time.process_time() - cpu


def gflops() -> dict[str, float]:
    """The speed of the product that the exhaustive search consists of, [2048, 64] by [64, 2048], in NumPy and torch."""
    a, b = np.random.default_rng(0).standard_normal((2, 2048, BACKBONE), dtype=np.float32)
    left, right = torch.from_numpy(a), torch.from_numpy(b)

    def best(product: Callable[[], object]) -> float:
        return round(2e-9 * 2048 * 2048 * BACKBONE / min(timed(product)[1] for _ in range(20)), 1)

    return {"numpy": best(lambda: a @ b.T), "torch": best(lambda: left @ right.T)}


def consecutive_cosine(versions: list[VersionFeatures]) -> float:
    """The mean cosine between the full features that consecutive versions make of the same query."""
    bases = [geometry.short_basis(version.projection) for version in versions]
    full = [version.queries[:1000] @ Q.T for version, Q in zip(versions, bases, strict=True) if Q is not None]
    return float(np.mean([(a * b).sum(1).mean() for a, b in pairwise(full)]))


def measure(
    protocol: str, versions: list[VersionFeatures], labels: tuple[Array, Array], cells: int, device: str | None
) -> Figures:
    """Seconds for the matrix of these versions, and for ``cells`` cells at that rate."""
    measured = len(versions) * (len(versions) + 1) // 2
    with progress_bar(protocol, measured, "cells") as advance:
        work = partial(cross_test, versions, *labels, protocol, progress=lambda *_: advance(), device=device)
        answer, seconds, cpu = timed(work)
    return {
        "cells": measured,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "all_cells_seconds": seconds * cells / measured,
        "all_cells_cpu_seconds": cpu * cells / measured,
        "self_test": float(np.diag(answer.matrix).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=31)
    parser.add_argument("--queries", type=int, default=50_000)
    parser.add_argument("--gallery", type=int, default=10_000)
    parser.add_argument("--image-versions", type=int, help="search by image among the first so many (default: all)")
    parser.add_argument("--device", help="a torch device to search on, such as cuda")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    versions, *both = make_versions(options.versions, options.queries, options.gallery)
    labels, cells = (both[0], both[1]), options.versions * (options.versions + 1) // 2
    report: Figures = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "features": "synthetic",
        "consecutive_cosine": consecutive_cosine(versions),
        "versions": options.versions,
        "queries": options.queries,
        "gallery": options.gallery,
        "cells": cells,
        "gflops_before": gflops(),
    }
    report["template"] = measure("template", versions, labels, cells, options.device)
    some = versions[: options.image_versions or len(versions)]
    report["image"] = measure("image", some, labels, cells, options.device)
    report["gflops_after"] = gflops()
    report["peak_GiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    show(report)
    if options.out:
        replace_json(options.out, report)


def show(report: Figures) -> None:
    print(
        f"{report['cells']} cells of {report['queries']} x {report['gallery']}, {report['device']}, {report['machine']}"
    )
    print(f"GFLOP/s of a plain product: {report['gflops_before']} before, {report['gflops_after']} after")
    print(f"{'search':<10}{'cells':>7}{'seconds':>10}{'CPU s':>10}{'all cells s':>14}{'all cells CPU s':>18}")
    for name in ("template", "image"):
        keys = ("seconds", "cpu_seconds", "all_cells_seconds", "all_cells_cpu_seconds")
        row = "".join(f"{report[name][key]:>{w}.1f}" for key, w in zip(keys, (10, 10, 14, 18), strict=True))
        print(f"{name:<10}{report[name]['cells']:>7}{row}")
    print(f"peak memory {report['peak_GiB']:.2f} GiB")


if __name__ == "__main__":
    main()
