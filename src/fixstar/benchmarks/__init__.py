"""The papers' experiments, their datasets and their published figures, as data; and runs of them."""

from fixstar.benchmarks.catalogue import Benchmark, MethodChoice, Replacement, Tasks, benchmark, catalogue
from fixstar.benchmarks.datasets import DATASETS, Dataset, dataset
from fixstar.benchmarks.plan import Run
from fixstar.benchmarks.published import METHOD_NAMES, Figure, Row, published
from fixstar.benchmarks.result import RunResult
from fixstar.benchmarks.runner import run_benchmark

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
