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
from fixstar.evaluation import (
    Pairs,
    VersionFeatures,
    cross_test,
    cross_test_scores,
    draw_pairs,
    kfold_accuracy,
    sample_pairs,
)

__all__ = ["PAIRS_SEED", "Searched"]

PAIRS_SEED = 0  # the same pairs in every run


@dataclass(frozen=True, eq=False)
class Searched:
    """Queries and gallery, one and the same set for verification, and the ``pairs`` drawn from it.

    ``drawn`` are pairs in the order in which the code of CoReS and CL2R draws them, for "verification-published": they
    are cut into folds as they stand, which is what sets its figures apart from ours. Two things stay ours: the images
    are normalised as in training (theirs by CIFAR-10's own figures), and equal accuracies are not compatible.
    """

    queries: ImageSet
    gallery: ImageSet
    pairs: Pairs | None = None
    drawn: Pairs | None = None

    @classmethod
    def open(cls, benchmark: Benchmark, data: str | Path) -> Searched:
        """The benchmark's splits of its evaluation dataset, below the data folder."""
        source = dataset(benchmark.evaluation)
        gallery = source.open(data, benchmark.gallery_split)
        same = benchmark.query_split == benchmark.gallery_split
        queries = gallery if same else source.open(data, benchmark.query_split)
        if benchmark.pairs is None:
            return cls(queries, gallery)
        pairs, drawn = (draw(gallery.labels, *benchmark.pairs, seed=PAIRS_SEED) for draw in (sample_pairs, draw_pairs))
        return cls(queries, gallery, pairs, drawn)

    @property
    def images(self) -> int:
        """How many images every version embeds."""
        return len(self.gallery) + (0 if self.queries is self.gallery else len(self.queries))

    def matrix(
        self, versions: Sequence[VersionFeatures], protocol: str, device: str | None = None
    ) -> NDArray[np.float64]:
        """C[t, k] for t >= k, NaN above; in verification the first image of a pair is by t, the second by k."""
        if protocol == "verification-published" and self.drawn is not None:
            return self._published(versions, self.drawn)
        labels = self.queries.labels, self.gallery.labels
        return cross_test(versions, *labels, protocol, pairs=self.pairs, device=device).matrix

    def _published(self, versions: Sequence[VersionFeatures], pairs: Pairs) -> NDArray[np.float64]:
        matrix = np.full((len(versions), len(versions)), np.nan)
        for cell, scores in cross_test_scores(versions, pairs).items():
            matrix[cell] = kfold_accuracy(scores, pairs.same, stratified=False).mean
        return matrix
