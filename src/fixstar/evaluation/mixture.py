"""Detects vectors of two models in one collection, from the vectors alone, without labels.

Two models of the same width have unrelated axes. A model spreads its vectors along some directions much more than along
others, and topics of the same model share most of these directions. So the vectors are divided into small clusters,
each from one model, and the clusters into two groups, A and B. With S the covariance within clusters, in d dimensions,

    alignment(A, B) = d tr(S_A S_B) / (tr S_A tr S_B)

is 1 if the axes of A and B are unrelated, and well above 1 for two topics of one model. Measured on vectors
of seven models (docs/how-to/migrate.md).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError

CLUSTERS = 16
SAMPLE = 4000
LEAST = 400
"""Minimum number of vectors for a verdict."""
UNRELATED = 1.1
"""Below this alignment two groups are of two models."""
OWN = 1.25
"""Above this alignment with itself a group has axes that can be compared."""
_SMALLEST = 20  # minimum number of vectors of a cluster
_ROUNDS = 20

Vectors = NDArray[np.floating]
Labels = NDArray[np.int64]


class Mixture(NamedTuple):
    """The result: ``alignment`` of the two least aligned groups, and the ``share`` of the smaller one."""

    verdict: Literal["one model", "mixed", "cannot be told"]
    alignment: float
    share: float
    looked_at: int


def find_mixture(vectors: Vectors, seed: int = 0) -> Mixture:
    """Whether vectors [N, d] are from two models, judged by a sample of them."""
    array = np.asarray(vectors, np.float64)
    if array.ndim != 2 or not np.isfinite(array).all():
        raise InputError(f"vectors are a matrix of finite numbers, got shape {array.shape}")
    rng = np.random.default_rng(seed)
    lengths = np.linalg.norm(array, axis=1)
    rows = array[lengths > 0] / lengths[lengths > 0, None]
    rows = rows[rng.permutation(len(rows))[:SAMPLE]]
    if len(rows) < LEAST:
        return Mixture("cannot be told", float("nan"), 0.0, len(rows))
    clusters = _clusters(rows, rng)
    sizes = np.bincount(clusters)
    large = np.flatnonzero(sizes >= _SMALLEST)
    kept = np.isin(clusters, large)
    rows = rows[kept]
    clusters = np.searchsorted(large, clusters[kept])
    if len(large) < 2:
        return Mixture("cannot be told", float("nan"), 0.0, len(rows))
    return _least_aligned(_Spread.of(rows, clusters), len(rows))


class _Spread(NamedTuple):
    """Of all clusters: sums of squared inner products between two [k, k], of squared lengths [k], and sizes [k].

    The products are of deviations from the mean of a cluster.
    """

    products: NDArray[np.float64]
    lengths: NDArray[np.float64]
    sizes: NDArray[np.int64]
    own: NDArray[
        np.float64
    ]  # [k]: products of a vector with itself, which carry no information about axes
    width: int

    @classmethod
    def of(cls, rows: Vectors, clusters: Labels) -> _Spread:
        """Compute the sums for rows [N, d] and their clusters [N]."""
        members = np.eye(int(clusters.max()) + 1)[clusters]
        sizes = members.sum(axis=0)
        means = (members.T @ rows) / sizes[:, None]
        apart = rows - means[clusters]
        squares = (apart @ apart.T) ** 2
        lengths = (apart**2).sum(axis=1)
        return cls(
            products=members.T @ squares @ members,
            lengths=members.T @ lengths,
            sizes=sizes.astype(np.int64),
            own=members.T @ lengths**2,
            width=rows.shape[1],
        )

    def between(self, one: list[int], other: list[int]) -> float:
        """The alignment of two groups of clusters."""
        products = self.products[np.ix_(one, other)].sum()
        return float(self.width * products / (self.lengths[one].sum() * self.lengths[other].sum()))

    def within(self, group: list[int]) -> float:
        """The alignment of a group with itself, by pairs of different vectors."""
        products = self.products[np.ix_(group, group)].sum() - self.own[group].sum()
        size = self.sizes[group].sum()
        mean = products / (size * (size - 1))
        return float(self.width * mean / (self.lengths[group].sum() / size) ** 2)


def _least_aligned(spread: _Spread, count: int) -> Mixture:
    """Join the best aligned clusters one by one; returns the group that is least aligned with the rest."""
    everything = range(len(spread.sizes))
    found = Mixture("one model", float("inf"), 0.0, count)
    for group in _groups(spread):
        others = [cluster for cluster in everything if cluster not in group]
        alignment = spread.between(group, others)
        if alignment >= found.alignment:
            continue
        size = int(spread.sizes[group].sum())
        share = min(size, count - size) / count
        clear = min(spread.within(group), spread.within(others)) > OWN
        verdict: Literal["one model", "mixed", "cannot be told"] = "one model"
        if alignment < UNRELATED:
            verdict = "mixed" if clear else "cannot be told"
        found = Mixture(verdict, alignment, share, count)
    return found


def _groups(spread: _Spread) -> list[list[int]]:
    """Single clusters, and the groups from joining the two best aligned ones until two are left."""
    parts = [[cluster] for cluster in range(len(spread.sizes))]
    found = list(parts)
    while len(parts) > 2:
        pairs = [(one, other) for one in range(len(parts)) for other in range(one)]
        one, other = max(pairs, key=lambda pair: spread.between(parts[pair[0]], parts[pair[1]]))
        parts[other] = parts[other] + parts[one]
        del parts[one]
        found.append(parts[other])
    return found


def _clusters(rows: Vectors, rng: np.random.Generator) -> Labels:
    """Spherical k-means: the cluster of each row."""
    centres = rows[rng.choice(len(rows), CLUSTERS, replace=False)].copy()
    for _ in range(_ROUNDS):
        nearest = np.argmax(rows @ centres.T, axis=1)
        for cluster in range(CLUSTERS):
            total = rows[nearest == cluster].sum(axis=0)
            length = np.linalg.norm(total)
            if length > 0:
                centres[cluster] = total / length
    return np.asarray(np.argmax(rows @ centres.T, axis=1), np.int64)
