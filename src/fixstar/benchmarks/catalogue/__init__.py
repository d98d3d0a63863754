"""The papers' experiments by name: what is trained on what, how, in which tasks, and how it is judged.

cifar100-10/7                   a benchmark: CIFAR-100 in 7 tasks, CIFAR-10 searched
cifar100-10/16:K=500            one of its ablations
cifar100-10-upgrades/9:pretraining=50,selection=yes     two at once
"""

from fixstar.benchmarks.catalogue import bct, cl2r, cores, hoc
from fixstar.benchmarks.catalogue.entry import Benchmark, MethodChoice, Replacement, Tasks
from fixstar.errors import InputError, UnknownNameError

__all__ = ["Benchmark", "MethodChoice", "Replacement", "Tasks", "benchmark", "catalogue"]

_CATALOGUE: dict[str, Benchmark] = {
    entry.name: entry for paper in (hoc, cl2r, cores, bct) for entry in paper.BENCHMARKS
}


def catalogue() -> dict[str, Benchmark]:
    """Every benchmark by name; ablations are in their ``ablations``."""
    return dict(_CATALOGUE)


def benchmark(name: str) -> Benchmark:
    """The benchmark of that name, or the variant that is named after a colon.

    >>> benchmark("cifar100-10/7").tasks.sizes
    (10, 15, 15, 15, 15, 15, 15)
    >>> benchmark("cifar100-10/16:K=500").capacity
    500
    """
    base, colon, chosen = name.partition(":")
    if base not in _CATALOGUE:
        raise UnknownNameError("benchmark", base, _CATALOGUE)
    if not colon:
        return _CATALOGUE[base]
    choices = [choice.partition("=") for choice in chosen.split(",")]
    if not all(ablation and value for ablation, _, value in choices):
        raise InputError(f"a variant is written {base}:NAME=VALUE, several with commas; got {name!r}")
    return _CATALOGUE[base].variant({ablation: value for ablation, _, value in choices})
