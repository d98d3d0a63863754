"""The papers' experiments, their datasets and their published figures, as data; and runs of them."""

from fixstar.research.benchmarks.catalogue import (
    Benchmark,
    MethodChoice,
    Replacement,
    Tasks,
    benchmark,
    catalogue,
)
from fixstar.research.benchmarks.datasets import DATASETS, Dataset, dataset
from fixstar.research.benchmarks.plan import Run
from fixstar.research.benchmarks.published import METHOD_NAMES, Figure, Row, published
from fixstar.research.benchmarks.result import RunResult
from fixstar.research.benchmarks.runner import run_benchmark

__all__ = [
    "DATASETS",
    "METHOD_NAMES",
    "Benchmark",
    "Dataset",
    "Figure",
    "MethodChoice",
    "Replacement",
    "Row",
    "Run",
    "RunResult",
    "Tasks",
    "benchmark",
    "catalogue",
    "dataset",
    "published",
    "run_benchmark",
]
