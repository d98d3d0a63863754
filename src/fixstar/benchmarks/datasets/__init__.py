"""The datasets of the papers: where each comes from, how it must lie in the data folder, and what is missing there."""

from fixstar.benchmarks.datasets.entries import DATASETS
from fixstar.benchmarks.datasets.layout import Dataset, Part
from fixstar.errors import UnknownNameError

__all__ = ["DATASETS", "Dataset", "Part", "dataset"]


def dataset(name: str) -> Dataset:
    """The dataset of that name.

    >>> dataset("cifar100").url
    'https://www.cs.toronto.edu/~kriz/cifar.html'
    """
    if name not in DATASETS:
        raise UnknownNameError("dataset", name, DATASETS)
    return DATASETS[name]
