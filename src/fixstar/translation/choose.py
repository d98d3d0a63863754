"""Choosing a translation by evidence: which maps, which weight w, and whether the old side is whitened.

What searches find decides, not cosines. One part of the queries chooses, another judges (``evaluation.verdicts``). A
change from what is usual must be worth more than its own error: with few queries the best of many settings is best by
chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.evaluation import Relevant, VersionFeatures, retrieval_measure
from fixstar.translation.score import unit_rows
from fixstar.translation.translation import USUAL, Models, Translation

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]
Indices = NDArray[np.int64]
Measure = Callable[[Floats, Indices], NDArray[Any]]
"""Scores [n, M] of the queries in some rows [n] among all stored items -> how right each answer is, [n]."""

WEIGHTS = (USUAL, 0.5, 0.7, 0.4, 0.8, 0.3, 0.9, 0.2, 1.0, 0.1, 0.0)
"""The weights that are tried; of equal ones the first is taken."""
_BLOCK = 512  # queries at a time
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Evidence:
    """The same items by both versions, as queries and as gallery, and how right the answers are."""

    old: VersionFeatures
    new: VersionFeatures
    measure: Measure

    def outcomes(self, way: Translation) -> NDArray[Any]:
        """How right the answers are to queries of ``new`` among ``old``'s vectors, [N]."""
        rows = np.arange(len(self.new.queries))
        models: Models = "one"
        if way.two is not None:
            models = "two"
        return self.by_weight(way, models, [way.weight], rows)[way.weight]

    def by_weight(
        self, way: Translation, models: Models, weights: Sequence[float], rows: Indices
    ) -> dict[float, NDArray[Any]]:
        """The same for some queries and for several weights: each cosine is computed once."""
        if models == "one":
            asking = replace(way, one=0.0, two=None)
        else:
            asking = replace(way, two=0.0)
        new = unit_rows(self.new.queries[rows])
        if way.shared:
            carried = self.new.queries_in(self.old)[rows]
        else:
            carried = None
        asked = asking.asks(new, carried, unit_rows(self.old.queries[rows]))
        stored = unit_rows(self.old.gallery)
        if way.forward is None:
            ahead = stored
        else:
            ahead = way.forward(stored)
        found: dict[float, list[NDArray[Any]]] = {weight: [] for weight in weights}
        asked = way.compared(asked)
        compared = way.compared(stored)
        for start in range(0, len(rows), _BLOCK):
            part = slice(start, start + _BLOCK)
            back = asked[part] @ compared.T
            if way.forward is None:
                forward = back
            else:
                forward = new[part] @ ahead.T
            for weight in weights:
                scores = weight * forward + (1 - weight) * back
                found[weight].append(self.measure(scores, rows[part]))
        return {weight: np.concatenate(parts) for weight, parts in found.items()}

    def reembedded(self) -> NDArray[Any]:
        """How right the answers are if everything is embedded again with ``new``, [N]."""
        return self._own(self.new)

    def before(self) -> NDArray[Any]:
        """How right ``old``'s own queries are on its own vectors, [N]."""
        return self._own(self.old)

    def _own(self, version: VersionFeatures) -> NDArray[Any]:
        queries = unit_rows(version.queries)
        stored = unit_rows(version.gallery)
        rows = np.arange(len(queries))
        parts = [rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK)]
        return np.concatenate([self.measure(queries[part] @ stored.T, part) for part in parts])


def by_class(query_labels: Labels, gallery_labels: Labels) -> Measure:
    """Whether the best item is of the query's class; of equal scores the first item counts."""

    def measure(scores: Floats, rows: Indices) -> NDArray[np.bool_]:
        right: NDArray[np.bool_] = gallery_labels[scores.argmax(axis=1)] == query_labels[rows]
        return right

    return measure


def by_relevance(relevant: Relevant, measure: str = "nDCG@10") -> Measure:
    """How good an answer is by the grades of known relevant items (``evaluation.retrieval``)."""
    how_good = retrieval_measure(measure)

    def of_scores(scores: Floats, rows: Indices) -> NDArray[np.float64]:
        return how_good(scores, relevant.matrix(rows, scores.shape[1]))

    return of_scores


def choose(
    ways: Sequence[Translation], evidence: Evidence, rows: Indices, two: bool
) -> Translation:
    """The best maps and weights by the queries in ``rows``; with ``two``, the source's own query may ask too.

    The first of the ways at the usual weight stays, unless another gains more than one standard error over it. Ways
    with a whitening are also tried with a whitened old side.
    """
    models: Models = "two" if two else "one"
    whitened = [replace(way, whitened=True) for way in ways if way.whitening and not way.whitened]
    best, weight = _best([*ways, *whitened], evidence=evidence, rows=rows, models=models)
    if not best.whitened:
        best = replace(best, whitening=None)
    if models == "one":
        return replace(best, one=weight, two=None)
    alone = None
    if best.shared or best.backward is not None:
        _, alone = _best([best], evidence=evidence, rows=rows, models="one")
    return replace(best, one=alone, two=weight)


def with_fewest_models(way: Translation, evidence: Evidence, rows: Indices) -> Translation:
    """The translation with one model per query, if that finds as much by the queries in ``rows``: it costs less."""
    if way.one is None or way.two is None or way.forward is None:
        return way
    by_one = evidence.by_weight(way, "one", [way.one], rows)[way.one]
    by_two = evidence.by_weight(way, "two", [way.two], rows)[way.two]
    if by_one.mean() >= by_two.mean():
        return way.with_one_model()
    return way


def _best(
    ways: Sequence[Translation], evidence: Evidence, rows: Indices, models: Models
) -> tuple[Translation, float]:
    usual: NDArray[Any] | None = None
    best = ways[0]
    best_weight = USUAL
    if best.forward is None:
        best_weight = 0.0
    best_gain = 0.0
    for way in ways:
        weights: Sequence[float] = WEIGHTS
        if way.forward is None:
            weights = (0.0,)
        elif way.whitened:  # where the old side asks alone, an index answers
            weights = [weight for weight in WEIGHTS if weight > 0]
        for weight, outcomes in evidence.by_weight(way, models, weights, rows).items():
            if usual is None:
                usual = outcomes
            gained = gain(outcomes, usual)
            if gained > best_gain:
                best = way
                best_weight = weight
                best_gain = gained
    return best, best_weight


def gain(outcomes: NDArray[Any], usual: NDArray[Any]) -> float:
    """The mean gain over the usual setting; 0 if it is not larger than its standard error.

    A single query that differs is never enough: it is as large as its own error.

    >>> gain(np.array([1, 1, 0, 0]), np.array([1, 0, 0, 0])), gain(np.array([1, 1, 1, 0]), np.array([1, 0, 0, 0]))
    (0.0, 0.5)
    """
    if len(outcomes) < 2:
        return 0.0
    differences = outcomes.astype(np.float64) - usual.astype(np.float64)
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / len(differences) ** 0.5
    if mean > error * (1 + _ROUNDING):
        return mean
    return 0.0
