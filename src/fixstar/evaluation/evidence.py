"""Whether a cross-test is better than the old self-test beyond chance: paired bootstrap over queries, and flips.

The differences per query are resampled. For hits they are -1, 0 or 1, so drawing N rows with replacement is the same as
drawing three counts from a multinomial, at the same cost for a thousand queries and for millions. **The interval** is
the percentile interval, widened like a t interval (Hesterberg, "What Teachers Should Know About the Bootstrap", 2015):
the plain one is too narrow with few clusters, such as ten classes.

**The verdict** follows eq. 6 of HOC, which is strict: "compatible" if the interval lies above 0, "incompatible" if no
part of it does, else "not decided". It is also "not decided" if so few queries (or clusters) changed that even
unanimous changes prove nothing: n coins agree with probability 2^(1-n), so 95 % needs six. A **negative flip** is a
query that the self-test of the gallery's version answers correctly, ``hits[k, k]``, but the cross-test ``hits[t, k]``
does not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation.cross_test import CrossTest
from fixstar.evaluation.features import VersionFeatures, stored_galleries
from fixstar.evaluation.search import Hits, Indices, Labels, nearest

Floats = NDArray[np.float64]
Verdict = Literal["compatible", "incompatible", "not decided"]

FAMILIES = ("cell", "matrix")

_FEW_VALUES = 64  # with up to this many distinct values, counts are drawn instead of rows
_BLOCK = 2**22  # row numbers per draw
_BEYOND = 5  # resamples that must lie beyond each end of the interval


@dataclass(frozen=True)
class Difference:
    """cross - old, mean over queries, with its interval; ``differing`` counts queries (or clusters) that differ."""

    mean: float
    low: float
    high: float
    verdict: Verdict
    differing: int


class CellEvidence(NamedTuple):
    """The number of cross-tests that are compatible, incompatible and not decided."""

    compatible: int
    incompatible: int
    not_decided: int

    @property
    def ac_range(self) -> tuple[float, float]:
        """The lowest and the highest AC that the evidence allows (eq. 7 of CoReS)."""
        cells = sum(self)
        return self.compatible / cells, 1 - self.incompatible / cells


def paired_bootstrap(
    cross: ArrayLike,
    old: ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int | None = None,
    seed: int = 0,
    clusters: ArrayLike | None = None,
) -> Difference:
    """How far a cross-test is above the old self-test, from outcomes [N] of the same queries: hits or fractions.

    ``clusters`` [N], such as the class of each query, resamples whole clusters, for claims about classes that were not
    tested; the interval is usually much wider. ``resamples`` defaults to what the confidence needs, at least 2,000.

    >>> old = np.arange(1000) % 10 < 6  # 0.6 right
    >>> paired_bootstrap(np.arange(1000) % 10 < 7, old).verdict
    'compatible'
    >>> paired_bootstrap(np.arange(1000) < 602, np.arange(1000) < 600).verdict
    'not decided'
    """
    differences = _paired(cross, old)
    enough = needed_resamples(confidence, fewest=1)
    resamples = needed_resamples(confidence) if resamples is None else resamples
    if resamples < enough:
        raise InputError(
            f"{resamples} resamples are too few for confidence {confidence:g}; pass at least {enough}"
        )
    rng = np.random.default_rng(seed)
    if clusters is None:
        units = len(differences)
        differing = int(np.count_nonzero(differences))
        means = _means_over_queries(differences, resamples, rng)
    else:
        sums, sizes = _cluster_sums(differences, clusters)
        units = len(sums)
        differing = int(np.count_nonzero(sums))
        means = _means_over_clusters(sums, sizes, resamples, rng)
    low, high = _interval(means, units, confidence)
    mean = float(differences.mean(dtype=np.float64))
    return Difference(mean, low, high, _verdict(low, high, differing, confidence), differing)


def verdicts(
    result: CrossTest,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    clusters: ArrayLike | None = None,
    family: str = "cell",
) -> dict[tuple[int, int], Difference]:
    """``paired_bootstrap`` of every cross-test (t, k), t > k, against the self-test (k, k) of its gallery.

    ``family="matrix"`` gives the confidence for *all* verdicts together, by wider intervals (Bonferroni).
    """
    if family not in FAMILIES:
        raise UnknownNameError("family", family, FAMILIES)
    cells = sorted(cell for cell in result.hits if cell[0] > cell[1])
    if not cells:
        raise InputError("verdicts need the hits of at least two versions; run cross_test on them")
    shared = len(cells) if family == "matrix" else 1
    ways: dict[str, Any] = {
        "confidence": 1 - (1 - confidence) / shared,
        "seed": seed,
        "clusters": clusters,
    }
    ways["resamples"] = shared * needed_resamples(confidence)
    return {
        (t, k): paired_bootstrap(result.hits[t, k], result.hits[k, k], **ways) for t, k in cells
    }


def cell_evidence(cells: Mapping[tuple[int, int], Difference]) -> CellEvidence:
    """Count the verdicts.

    >>> one = Difference(0.02, 0.01, 0.03, "compatible", 90)
    >>> two = Difference(0.00, -0.01, 0.01, "not decided", 50)
    >>> cell_evidence({(1, 0): one, (2, 0): one, (2, 1): two})
    CellEvidence(compatible=2, incompatible=0, not_decided=1)
    """
    if not cells:
        raise InputError(
            "there is no cross-test to count; compatibility needs at least two versions"
        )
    count = Counter(cell.verdict for cell in cells.values())
    return CellEvidence(count["compatible"], count["incompatible"], count["not decided"])


def needed_resamples(confidence: float, fewest: int = 2000) -> int:
    """The number of resamples for an interval of this confidence: 2,000, or more for a high confidence."""
    if not 0 < confidence < 1:
        raise InputError(
            f"confidence is a fraction between 0 and 1, such as 0.95; got {confidence:g}"
        )
    return max(fewest, math.ceil(2 * _BEYOND / (1 - confidence) - 1e-6))


class ClassFlips(NamedTuple):
    """The number of queries of one class, and of its negative and positive flips."""

    label: int
    queries: int
    negative: int
    positive: int

    @property
    def net(self) -> int:
        """Queries won minus queries lost."""
        return self.positive - self.negative


@dataclass(frozen=True, eq=False)
class Flips:
    """``negative`` and ``positive`` are query numbers, ascending; ``classes`` counts them, largest net loss first."""

    queries: int
    negative: Indices
    positive: Indices
    classes: tuple[ClassFlips, ...]

    @property
    def negative_rate(self) -> float:
        """The share of all queries that are lost."""
        return len(self.negative) / self.queries

    @property
    def positive_rate(self) -> float:
        """The share of all queries that are won; minus ``negative_rate`` it is C[t, k] - C[k, k]."""
        return len(self.positive) / self.queries


class FoundRows(NamedTuple):
    """Gallery rows found for n queries by the old and by the new version, [n, k] each, nearest first."""

    before: Indices
    after: Indices


def flips(before: Hits, after: Hits, labels: Labels) -> Flips:
    """Which queries flip between two searches, from their hits [N] and the queries' classes [N].

    >>> before, after = np.array([True, True, False, False]), np.array([True, False, False, True])
    >>> found = flips(before, after, np.array([5, 5, 5, 3]))
    >>> found.negative.tolist(), found.positive.tolist(), [(c.label, c.net) for c in found.classes]
    ([1], [3], [(5, -1), (3, 1)])
    """
    old = np.asarray(before)
    new = np.asarray(after)
    classes = np.asarray(labels)
    hits = all(one.dtype == np.bool_ and one.ndim == 1 and len(one) for one in (old, new))
    if not hits or not old.shape == new.shape == classes.shape or classes.dtype.kind not in "iu":
        raise InputError(
            "flips need the hits of both searches, one bool per query, not empty, and one integer class per query; got "
            f"{_seen(old)}, {_seen(new)} and classes {_seen(classes)}"
        )
    lost = old & ~new
    won = new & ~old
    names, inverse, counts = np.unique(classes, return_inverse=True, return_counts=True)
    columns = (
        names,
        counts,
        *(np.bincount(inverse[which], minlength=len(names)) for which in (lost, won)),
    )
    table = (ClassFlips(*row) for row in zip(*(column.tolist() for column in columns), strict=True))
    ranked = sorted(table, key=lambda row: (row.net, -row.negative, row.label))
    return Flips(len(old), np.flatnonzero(lost), np.flatnonzero(won), tuple(ranked))


def found_before_after(
    queries: Sequence[int] | Indices,
    old: VersionFeatures,
    new: VersionFeatures,
    k: int = 1,
) -> FoundRows:
    """The rows that some queries, such as ``Flips.negative``, find in the old gallery by both versions."""
    rows = np.asarray(queries)
    if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
        raise InputError(f"queries is a list of query numbers; got {_seen(rows)}")
    if not len(rows):
        return FoundRows(np.empty((0, k), np.int64), np.empty((0, k), np.int64))
    for version in (old, new):
        if rows.min() < 0 or rows.max() >= len(version.queries):
            seen = f"{rows.min()} to {rows.max()}"
            raise InputError(
                f"version {version.name!r} has queries 0 to {len(version.queries) - 1}; got {seen}"
            )
    chosen = replace(new.take(rows), adapt=None)
    stored = stored_galleries([old, new])[0]
    after = nearest(chosen.queries_in(stored), stored.gallery, k)[0]
    return FoundRows(nearest(old.queries[rows], old.gallery, k)[0], after)


def _paired(cross: ArrayLike, old: ArrayLike) -> NDArray[Any]:
    """cross - old, [N], checked: int8 for hits, float64 for fractions."""
    pair = _outcomes(cross, "cross-test"), _outcomes(old, "self-test")
    if len(pair[0]) != len(pair[1]):
        raise InputError(
            f"{len(pair[0])} outcomes of the cross-test, {len(pair[1])} of the self-test: pass the same queries in the "
            "same order for both"
        )
    hits = all(outcomes.dtype == np.bool_ for outcomes in pair)
    differences: NDArray[Any] = np.subtract(*pair, dtype=np.int8 if hits else np.float64)
    return differences


def _outcomes(values: ArrayLike, name: str) -> NDArray[Any]:
    outcomes = np.asarray(values)
    if outcomes.ndim != 1 or outcomes.dtype.kind not in "bfiu":
        raise InputError(
            f"outcomes of the {name} are one bool or fraction per query, [N]; got {outcomes.dtype} {outcomes.shape}"
        )
    if not len(outcomes):
        raise InputError(
            f"the {name} has no queries; a difference needs at least one, a verdict at least six"
        )
    if outcomes.dtype.kind != "b":
        if np.isnan(outcomes).any():
            raise InputError(
                f"the {name} is NaN at query {int(np.isnan(outcomes).argmax())}; leave it out of both"
            )
        outside = outcomes[(outcomes < 0) | (outcomes > 1)]
        if outside.size:
            raise InputError(
                f"outcomes are fractions from 0 to 1, got {outside[0]:g}. Divide percentages by 100"
            )
    return outcomes


def _cluster_sums(differences: NDArray[Any], clusters: ArrayLike) -> tuple[Floats, Floats]:
    """The sum of differences and the number of queries of each cluster, [G] and [G]."""
    labels = np.asarray(clusters)
    if labels.shape != differences.shape:
        raise InputError(
            f"clusters are one label per query, {differences.shape}; got shape {labels.shape}"
        )
    inverse = np.unique(labels, return_inverse=True)[1]
    sums: Floats = np.bincount(inverse, weights=differences).astype(np.float64)
    return sums, np.bincount(inverse).astype(np.float64)


def _means_over_queries(
    differences: NDArray[Any], resamples: int, rng: np.random.Generator
) -> Floats:
    """The mean differences [resamples] of N queries drawn with replacement."""
    N = len(differences)
    values, counts = np.unique(differences, return_counts=True)
    if len(values) > _FEW_VALUES:
        return _means_over_clusters(differences, np.ones(N), resamples, rng)
    drawn = rng.multinomial(
        N, counts / N, size=resamples
    )  # counts of each value, [resamples, values]
    means: Floats = drawn @ values.astype(np.float64) / N
    return means


def _means_over_clusters(
    sums: Floats, sizes: Floats, resamples: int, rng: np.random.Generator
) -> Floats:
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
    return float(np.quantile(means, tail, method="lower")), float(
        np.quantile(means, 1 - tail, method="higher")
    )


def _tail(units: int, confidence: float) -> float:
    """The share of resamples beyond each end: (1 - confidence) / 2, reduced as a t interval is wider.

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
    return z + math.fsum(
        term / float(freedom) ** power for power, term in enumerate(terms, start=1)
    )


def _verdict(low: float, high: float, differing: int, confidence: float) -> Verdict:
    if 2.0 ** (1 - differing) > 1 - confidence:
        return "not decided"
    if low > 0:
        return "compatible"
    if high <= 0:
        return "incompatible"
    return "not decided"


def _seen(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"
