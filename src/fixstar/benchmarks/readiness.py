"""Whether a benchmark can be run here, and what is missing."""

from __future__ import annotations

from pathlib import Path

from fixstar.benchmarks.catalogue import Benchmark
from fixstar.benchmarks.datasets import Dataset, dataset

__all__ = ["MEASURED", "datasets_of", "missing_data", "obstacles", "require_data"]

MEASURED = ("template", "image", "verification", "verification-published")
"""The protocols that a run can be judged by."""


def obstacles(benchmark: Benchmark) -> list[str]:
    """What keeps a benchmark from being run, wherever it is; its data may be missing beside."""
    lines = benchmark.obstacles()
    lines += [f"no run measures {protocol}" for protocol in benchmark.protocols if protocol not in MEASURED]
    if benchmark.scenario == "replacing":
        lines.append("no run trains the models that take over")
    if benchmark.pairs is None and any(protocol.startswith("verification") for protocol in benchmark.protocols):
        lines.append(f"no reader for the pairs of {dataset(benchmark.evaluation).title}")
    return lines


def datasets_of(benchmark: Benchmark) -> list[Dataset]:
    """The datasets that it needs: to train, to search, and to pre-train the models that take over."""
    names = [benchmark.training, benchmark.evaluation, *(model.dataset for model in benchmark.replacements)]
    return [dataset(name) for name in dict.fromkeys(names)]


def missing_data(benchmark: Benchmark, data: str | Path) -> list[str]:
    """What is missing below the data folder, in readable lines; nothing means that all is there."""
    return [line for source in datasets_of(benchmark) for line in source.check(data)]


def require_data(benchmark: Benchmark, data: str | Path) -> None:
    """Refuse to begin without the datasets, and say where to get them."""
    for source in datasets_of(benchmark):
        source.require(data)
