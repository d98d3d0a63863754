"""Is a cross-test better than the old self-test, or is it luck with the queries? Paired bootstrap over queries.

Both searches answer the same queries, so it is their difference, query by query, that is resampled. For hits it is -1,
0 or 1: drawing N rows with replacement then means drawing three counts from one multinomial, which is the same
experiment and costs the same for a thousand queries and for millions.

**The interval** is the percentile interval, with its tails widened as a t interval is (Hesterberg, "What Teachers
Should Know About the Bootstrap", 2015). BCa corrects bias and skewness; a mean difference has no bias and hardly any
skewness. What fails in practice is the width with few clusters (ten classes), and that the t factor repairs. With
hundreds of queries it is the plain percentile interval.

**The verdict** follows eq. 6 of HOC, which is strict: "compatible" where the interval lies above 0, "incompatible"
where no part of it does. Otherwise "not decided", and also where so few queries (or clusters) changed at all that even
unanimous ones would be no evidence: n coins agree with probability 2^(1-n), so 95 % needs six.

It speaks of other queries of the same kind. The gallery stays as it is, and so do the weights: the spread between
training runs is ``fixstar.evaluation.seeds``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation.cross_test import CrossTest

__all__ = ["CellEvidence", "Difference", "cell_evidence", "paired_bootstrap", "verdicts"]

Floats = NDArray[np.float64]
Verdict = Literal["compatible", "incompatible", "not decided"]

FAMILIES = ("cell", "matrix")

_FEW_VALUES = 64  # up to here three counts, or sixty-four, are drawn instead of rows
_BLOCK = 2**22  # row numbers drawn at a time
_BEYOND = 5  # resamples that must lie beyond each end of the interval


@dataclass(frozen=True)
class Difference:
    """cross - old, averaged over queries, with the ends of its confidence interval: fractions from -1 to 1.

    ``differing`` counts the queries (with clusters: the clusters) in which the two differ.
    """

    mean: float
    low: float
    high: float
    verdict: Verdict
    differing: int


class CellEvidence(NamedTuple):
    """How many cross-tests are compatible, incompatible and not decided."""

    compatible: int
    incompatible: int
    not_decided: int

    @property
    def ac_range(self) -> tuple[float, float]:
        """The lowest and the highest AC that the evidence leaves open (eq. 7 of CoReS)."""
        cells = sum(self)
        return self.compatible / cells, 1 - self.incompatible / cells


def paired_bootstrap(
    cross: ArrayLike,
    old: ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    clusters: ArrayLike | None = None,
) -> Difference:
    """How far a cross-test lies above the old self-test, from outcomes [N] of the same queries.

    Outcomes are hits (bool) or fractions such as average precisions. One query has no spread: its interval is the
    whole range, -1 to 1.

    ``clusters`` [N], such as the class or identity of each query, draws whole clusters instead of queries. Queries of
    one class rise and fall together, so they are fewer independent observations than they seem. Pass it where the
    claim is about classes other than those tested (faces, products); leave it out where these are the classes to be
    searched. The interval is then usually much wider.

    >>> old = np.arange(1000) % 10 < 6  # 0.6 right
    >>> paired_bootstrap(np.arange(1000) % 10 < 7, old).verdict
    'compatible'
    >>> paired_bootstrap(np.arange(1000) < 602, np.arange(1000) < 600).verdict
    'not decided'
    """
    differences = _paired(cross, old)
    _check_precision(confidence, resamples)
    rng = np.random.default_rng(seed)
    if clusters is None:
        units, differing = len(differences), int(np.count_nonzero(differences))
        means = _means_over_queries(differences, resamples, rng)
    else:
        sums, sizes = _cluster_sums(differences, clusters)
        units, differing = len(sums), int(np.count_nonzero(sums))
        means = _means_over_clusters(sums, sizes, resamples, rng)
    low, high = _interval(means, units, confidence)
    mean = float(differences.mean(dtype=np.float64))
    return Difference(mean, low, high, _verdict(low, high, differing, confidence), differing)


def verdicts(
    result: CrossTest,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    clusters: ArrayLike | None = None,
    family: str = "cell",
) -> dict[tuple[int, int], Difference]:
    """``paired_bootstrap`` of every cross-test (t, k), t > k, against the self-test (k, k) of its gallery.

    With ``family="cell"`` each verdict is right with the given confidence. A matrix of seven versions has 21 of them,
    so one wrong verdict among them is to be expected now and then. ``family="matrix"`` makes *all* of them right at
    once with that confidence (Bonferroni: each cell gets its share of the error, and as many more resamples). The
    intervals are then wider. Holm's procedure decides a little more but leaves no interval to print.
    """
    if family not in FAMILIES:
        raise UnknownNameError("family", family, FAMILIES)
    cells = sorted(cell for cell in result.hits if cell[0] > cell[1])
    if not cells:
        raise InputError("verdicts need two versions or more, with their hits query by query; run cross_test on them")
    shared = len(cells) if family == "matrix" else 1
    _check_precision(confidence, resamples)
    return {
        (t, k): paired_bootstrap(
            result.hits[t, k],
            result.hits[k, k],
            confidence=1 - (1 - confidence) / shared,
            resamples=resamples * shared,
            seed=seed,
            clusters=clusters,
        )
        for t, k in cells
    }


def cell_evidence(cells: Mapping[tuple[int, int], Difference]) -> CellEvidence:
    """The verdicts counted.

    >>> one = Difference(0.02, 0.01, 0.03, "compatible", 90)
    >>> two = Difference(0.00, -0.01, 0.01, "not decided", 50)
    >>> cell_evidence({(1, 0): one, (2, 0): one, (2, 1): two})
    CellEvidence(compatible=2, incompatible=0, not_decided=1)
    """
    if not cells:
        raise InputError("there is no cross-test to count; compatibility needs two versions or more")
    count = Counter(cell.verdict for cell in cells.values())
    return CellEvidence(count["compatible"], count["incompatible"], count["not decided"])


def _paired(cross: ArrayLike, old: ArrayLike) -> NDArray[Any]:
    """cross - old, [N], checked: int8 for hits, float64 for fractions."""
    pair = _outcomes(cross, "cross-test"), _outcomes(old, "self-test")
    if len(pair[0]) != len(pair[1]):
        raise InputError(
            f"{len(pair[0])} outcomes of the cross-test, {len(pair[1])} of the self-test: both must answer the same "
            "queries in the same order"
        )
    hits = all(outcomes.dtype == np.bool_ for outcomes in pair)
    differences: NDArray[Any] = np.subtract(*pair, dtype=np.int8 if hits else np.float64)
    return differences


def _outcomes(values: ArrayLike, whose: str) -> NDArray[Any]:
    outcomes = np.asarray(values)
    if outcomes.ndim != 1 or outcomes.dtype.kind not in "bfiu":
        raise InputError(
            f"outcomes of the {whose} are one bool or fraction a query, [N]; got {outcomes.dtype} {outcomes.shape}"
        )
    if not len(outcomes):
        raise InputError(f"the {whose} has no queries; a difference needs at least one, a verdict at least six")
    if outcomes.dtype.kind != "b":
        if np.isnan(outcomes).any():
            raise InputError(f"the {whose} holds NaN at query {int(np.isnan(outcomes).argmax())}; leave it out of both")
        outside = outcomes[(outcomes < 0) | (outcomes > 1)]
        if outside.size:
            raise InputError(f"outcomes are fractions from 0 to 1, got {outside[0]:g}. Divide percent by 100")
    return outcomes


def _check_precision(confidence: float, resamples: int) -> None:
    if not 0 < confidence < 1:
        raise InputError(f"confidence is a fraction between 0 and 1, such as 0.95; got {confidence}")
    enough = math.ceil(2 * _BEYOND / (1 - confidence) - 1e-6)
    if resamples < enough:
        raise InputError(f"{resamples} resamples are too few for confidence {confidence:g}; pass {enough} or more")


def _cluster_sums(differences: NDArray[Any], clusters: ArrayLike) -> tuple[Floats, Floats]:
    """The sum of differences and the number of queries of each cluster, [G] and [G]."""
    labels = np.asarray(clusters)
    if labels.shape != differences.shape:
        raise InputError(f"clusters are one label a query, {differences.shape}; got shape {labels.shape}")
    inverse = np.unique(labels, return_inverse=True)[1]
    sums: Floats = np.bincount(inverse, weights=differences).astype(np.float64)
    return sums, np.bincount(inverse).astype(np.float64)


def _means_over_queries(differences: NDArray[Any], resamples: int, rng: np.random.Generator) -> Floats:
    """The mean differences [resamples] of N queries drawn with replacement."""
    N = len(differences)
    values, counts = np.unique(differences, return_counts=True)
    if len(values) > _FEW_VALUES:
        return _means_over_clusters(differences, np.ones(N), resamples, rng)
    drawn = rng.multinomial(N, counts / N, size=resamples)  # how often each value, [resamples, values]
    means: Floats = drawn @ values.astype(np.float64) / N
    return means


def _means_over_clusters(sums: Floats, sizes: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """The mean differences [resamples] over the queries of G clusters drawn with replacement."""
    G = len(sums)
    means = np.empty(resamples)
    step = max(1, _BLOCK // G)
    for start in range(0, resamples, step):
        rows = rng.integers(G, size=(min(step, resamples - start), G))
        means[start : start + step] = sums[rows].sum(axis=1) / sizes[rows].sum(axis=1)
    return means


def _interval(means: Floats, units: int, confidence: float) -> tuple[float, float]:
    if units == 1:
        return -1.0, 1.0
    tail = _tail(units, confidence)
    return float(np.quantile(means, tail, method="lower")), float(np.quantile(means, 1 - tail, method="higher"))


def _tail(units: int, confidence: float) -> float:
    """The share of resamples beyond each end: (1 - confidence) / 2, made smaller as a t interval is wider.

    The bootstrap sees the sample's spread with divisor n, hence sqrt(n / (n - 1)); t has n - 1 degrees of freedom.
    """
    normal = NormalDist()
    t = _student_quantile(normal.inv_cdf((1 + confidence) / 2), units - 1)
    return normal.cdf(-math.sqrt(units / (units - 1)) * t)


def _student_quantile(z: float, freedom: int) -> float:
    """The quantile of Student's t where the normal one is z (Abramowitz and Stegun, 26.7.5): to 1 % from three on."""
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))


def _verdict(low: float, high: float, differing: int, confidence: float) -> Verdict:
    if 2.0 ** (1 - differing) > 1 - confidence:
        return "not decided"
    if low > 0:
        return "compatible"
    return "incompatible" if high <= 0 else "not decided"
