"""The images that a benchmark judges its versions with, and its protocols as matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fixstar.benchmarks.catalogue import Benchmark
from fixstar.benchmarks.datasets import dataset
from fixstar.data import ImageSet
from fixstar.evaluation import VersionFeatures
from fixstar.evaluation.measures import cross_test_by
from fixstar.evaluation.pairs import Pairs, sample_pairs

__all__ = ["PAIRS_SEED", "Searched"]

PAIRS_SEED = 0  # the same pairs in every run


@dataclass(frozen=True, eq=False)
class Searched:
    """Queries and gallery, one and the same set for verification, and the ``pairs`` drawn from it."""

    queries: ImageSet
    gallery: ImageSet
    pairs: Pairs | None = None

    @classmethod
    def open(cls, benchmark: Benchmark, data: str | Path) -> Searched:
        """The benchmark's splits of its evaluation dataset, below the data folder."""
        source = dataset(benchmark.evaluation)
        gallery = source.open(data, benchmark.gallery_split)
        same = benchmark.query_split == benchmark.gallery_split
        queries = gallery if same else source.open(data, benchmark.query_split)
        drawn = None
        if benchmark.pairs is not None:
            drawn = sample_pairs(gallery.labels, *benchmark.pairs, seed=PAIRS_SEED)
        return cls(queries, gallery, drawn)

    @property
    def images(self) -> int:
        """How many images every version embeds."""
        return len(self.gallery) + (0 if self.queries is self.gallery else len(self.queries))

    def matrix(
        self, versions: Sequence[VersionFeatures], protocol: str, device: str | None = None
    ) -> NDArray[np.float64]:
        """C[t, k] for t >= k, NaN above; in verification the first image of a pair is by t, the second by k."""
        labels = self.queries.labels, self.gallery.labels
        return cross_test_by(protocol, versions, *labels, pairs=self.pairs, device=device).matrix
