"""All cells of a compatibility matrix: seconds by protocol, and what bounds them.

The features are synthetic: 10 unseen classes that overlap heavily (self-tests near 0.4 by image), backbone features
h = ReLU(W f + b) of 64 components, z = P h of 99, and versions that drift (cosine near 0.9 between consecutive ones).
CPU seconds, and the speed of a plain product before and after, tell how much of the machine there was.

    python benchmarks/cross_test.py                 31 versions, 50,000 queries, 10,000 gallery images; by image one row
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
from fixstar.evaluation.search import searcher
from fixstar.progress import progress_bar

Array = NDArray[Any]
Figures = dict[str, Any]
CLASSES = 10
LATENT = 24
BACKBONE = 64
WIDTH = 99


def make_versions(
    count: int, queries: int, gallery: int
) -> tuple[list[VersionFeatures], Array, Array]:
    rng = np.random.default_rng(0)
    scale = np.arange(1, LATENT + 1) ** -0.6  # some directions matter more
    centres = 0.5 * rng.normal(size=(CLASSES, LATENT))
    labels = np.arange(queries) % CLASSES, np.arange(gallery) % CLASSES
    latent = [
        ((centres[y] + rng.normal(size=(len(y), LATENT))) * scale).astype(np.float32)
        for y in labels
    ]
    W = Drift(rng, (LATENT, BACKBONE))
    P = Drift(rng, (WIDTH, BACKBONE))
    bias = 0.3 * np.linalg.norm(scale)
    versions = []
    for t in range(count):
        weights = W.step()
        projection = P.step() / 8
        noise = [0.05 * rng.standard_normal((len(f), BACKBONE), dtype=np.float32) for f in latent]
        h = [np.maximum(f @ weights + bias + e, 0) for f, e in zip(latent, noise, strict=True)]
        u = [geometry.short_form(x.astype(np.float32), projection).astype(np.float32) for x in h]
        versions.append(VersionFeatures(f"v{t + 1}", u[0], u[1], projection))
    return versions, *labels


class Drift:
    """A random matrix of which four fifths stay and one fifth wanders."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, int]) -> None:
        self.rng = rng
        self.core = rng.normal(size=shape)
        self.rest = rng.normal(size=shape)

    def step(self) -> Array:
        """The matrix of the next version."""
        self.rest = 0.7 * self.rest + np.sqrt(1 - 0.7**2) * self.rng.normal(size=self.rest.shape)
        return np.asarray(np.sqrt(0.8) * self.core + np.sqrt(0.2) * self.rest, dtype=np.float32)


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result, the seconds, and the CPU seconds of all threads."""
    start = time.perf_counter()
    cpu = time.process_time()
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
    full = [
        version.queries[:1000] @ Q.T
        for version, Q in zip(versions, bases, strict=True)
        if Q is not None
    ]
    return float(np.mean([(a * b).sum(1).mean() for a, b in pairwise(full)]))


def whole_matrix(
    protocol: str, versions: list[VersionFeatures], labels: tuple[Array, Array], device: str | None
) -> Figures:
    """Every cell t >= k."""
    cells = len(versions) * (len(versions) + 1) // 2
    with progress_bar(f"{protocol}, matrix", cells, "cells") as advance:
        work = partial(
            cross_test, versions, *labels, protocol, progress=lambda *_: advance(), device=device
        )
        answer, seconds, cpu = timed(work)
    return figures(cells, seconds, cpu, float(np.diag(answer.matrix).mean()))


def newest_row(
    protocol: str, versions: list[VersionFeatures], labels: tuple[Array, Array], device: str | None
) -> Figures:
    """The newest version's queries on every version's gallery: what an upgrade is judged by."""
    bases = [geometry.short_basis(version.projection) for version in versions]

    def search() -> float:
        hits = 0.0
        with progress_bar(f"{protocol}, newest row", len(versions), "cells") as advance:
            for version, basis in zip(versions, bases, strict=True):
                find = searcher(protocol, version.gallery, labels[1], device)
                hits = find(
                    geometry.carry(versions[-1].queries, bases[-1], basis, WIDTH), labels[0]
                ).mean()
                advance()
        return hits

    hits, seconds, cpu = timed(search)
    return figures(len(versions), seconds, cpu, hits)


def figures(cells: int, seconds: float, cpu: float, self_test: float) -> Figures:
    return {"cells": cells, "seconds": seconds, "cpu_seconds": cpu, "self_test": self_test}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--versions", type=int, default=31)
    parser.add_argument("--queries", type=int, default=50_000)
    parser.add_argument("--gallery", type=int, default=10_000)
    parser.add_argument(
        "--all-images", action="store_true", help="search the whole matrix by image too"
    )
    parser.add_argument("--device", help="a torch device to search on, such as cuda")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    versions, *both = make_versions(options.versions, options.queries, options.gallery)
    labels = (both[0], both[1])
    report: Figures = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "features": "synthetic",
        "consecutive_cosine": consecutive_cosine(versions),
        "versions": options.versions,
        "queries": options.queries,
        "gallery": options.gallery,
        "gflops_before": gflops(),
        "template, matrix": whole_matrix("template", versions, labels, options.device),
        "image, newest row": newest_row("image", versions, labels, options.device),
    }
    if options.all_images:
        report["image, matrix"] = whole_matrix("image", versions, labels, options.device)
    report["gflops_after"] = gflops()
    report["peak_GiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    show(report)
    if options.out:
        replace_json(options.out, report)


def show(report: Figures) -> None:
    sizes = f"{report['versions']} versions, {report['queries']} queries, {report['gallery']} gallery images"
    print(f"{sizes}; {report['device']}, {report['machine']}")
    print(
        f"GFLOP/s of a plain product: {report['gflops_before']} before, {report['gflops_after']} after"
    )
    print(f"{'search':<20}{'cells':>7}{'seconds':>10}{'CPU seconds':>14}")
    for name in ("template, matrix", "image, newest row", "image, matrix"):
        if name in report:
            row = report[name]
            print(f"{name:<20}{row['cells']:>7}{row['seconds']:>10.1f}{row['cpu_seconds']:>14.1f}")
    print(f"peak memory {report['peak_GiB']:.2f} GiB")


if __name__ == "__main__":
    main()
