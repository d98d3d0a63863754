"""Measures of ranked answers with known relevant items: nDCG, recall, reciprocal rank, top-1.

Relevance has **grades**: 0 (or less) is not relevant, higher is better. A plain list has grade 1 for all. Per query:

    nDCG@k    DCG / (DCG of the best order), DCG = sum over the first k places i of grade_i / log2(i + 1)
    Recall@k  relevant items among the first k / all relevant items
    MRR@k     1 / (place of the first relevant item), 0 if that is beyond k; MRR: no limit
    top-1     whether the first item is relevant

The gain is the grade itself, as in trec_eval, pytrec_eval and BEIR, not 2^grade - 1. A relevant item that is not in the
gallery does not count: no search could find it. Ties go to the first item, whereas trec_eval orders by id.

All take scores [n, M] of n queries among M items and grades [n, M], and return one fraction per query, [n], for
``paired_bootstrap`` and the verdicts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError

Floats = NDArray[np.floating[Any]]
Fractions = NDArray[np.float64]
Indices = NDArray[np.int64]
RetrievalMeasure = Callable[[Floats, Floats], Fractions]
"""Scores [n, M] and grades [n, M] -> the quality of the answer to each query, [n]."""

MEASURED = ("nDCG@10", "Recall@10", "MRR", "top-1")
"""The measures that a judgement reports."""
_NAMED = re.compile(r"(?P<what>ndcg|recall|mrr)@(?P<places>[1-9]\d{0,5})")


def retrieval_measure(name: str) -> RetrievalMeasure:
    """A measure by its name: nDCG@10, Recall@100, MRR, MRR@10, top-1; any number of places.

    >>> retrieval_measure("Recall@2")(np.array([[0.9, 0.5, 0.1]]), np.array([[1, 0, 1]])).tolist()
    [0.5]
    """
    asked = name.lower()
    if asked == "top-1":
        return top_1
    if asked == "mrr":
        return reciprocal_rank
    found = _NAMED.fullmatch(asked)
    if found is None:
        raise InputError(
            f"a measure is nDCG@K, Recall@K, MRR, MRR@K or top-1, such as nDCG@10; got {name!r}"
        )
    measures = {"ndcg": ndcg, "recall": recall, "mrr": reciprocal_rank}
    return partial(measures[found["what"]], k=int(found["places"]))


def ndcg(scores: Floats, grades: Floats, k: int = 10) -> Fractions:
    """Normalised discounted cumulative gain of the first k places; 0 for a query without a relevant item.

    >>> ndcg(np.array([[0.9, 0.8, 0.7]]), np.array([[0, 2, 1]])).round(4).tolist()  # (2/1.585 + 1/2) / (2 + 1/1.585)
    [0.6697]
    """
    gains = np.maximum(grades, 0)
    found = np.take_along_axis(gains, first_places(scores, k), axis=1)
    best = -np.sort(-gains, axis=1)[:, :k]
    discounts = np.log2(np.arange(found.shape[1]) + 2)
    return _share(
        (found / discounts).sum(axis=1, dtype=np.float64),
        (best / discounts).sum(axis=1, dtype=np.float64),
    )


def recall(scores: Floats, grades: Floats, k: int = 10) -> Fractions:
    """The share of a query's relevant items that is among the first k; 0 if it has none.

    >>> recall(np.array([[0.9, 0.8, 0.7]]), np.array([[0, 2, 1]]), k=2).tolist()
    [0.5]
    """
    relevant = grades > 0
    found = np.take_along_axis(relevant, first_places(scores, k), axis=1)
    return _share(found.sum(axis=1), relevant.sum(axis=1))


def reciprocal_rank(scores: Floats, grades: Floats, k: int | None = None) -> Fractions:
    """1 / the place of the first relevant item; 0 if it is not among the first k, or if there is none.

    >>> reciprocal_rank(np.array([[0.9, 0.8, 0.7]]), np.array([[0, 2, 1]])).tolist()
    [0.5]
    """
    relevant = grades > 0
    kept = np.where(relevant, scores, -np.inf)
    first = kept.argmax(axis=1)[:, None]
    best = np.take_along_axis(kept, first, axis=1)
    before = np.arange(scores.shape[1]) < first
    place = 1 + ((scores > best) | ((scores == best) & before)).sum(axis=1)
    counted = relevant.any(axis=1)
    if k is not None:
        counted &= place <= k
    return np.where(counted, 1.0 / place, 0.0)


def top_1(scores: Floats, grades: Floats) -> Fractions:
    """1 if the first item is relevant, else 0.

    >>> top_1(np.array([[0.9, 0.8], [0.1, 0.2]]), np.array([[0, 1], [0, 1]])).tolist()
    [0.0, 1.0]
    """
    first = np.take_along_axis(grades, scores.argmax(axis=1)[:, None], axis=1)
    return (first[:, 0] > 0).astype(np.float64)


def first_places(scores: Floats, k: int) -> Indices:
    """The k best items of each query, [n, k], best first; ties go to the first item. Fewer if there are fewer items.

    >>> first_places(np.array([[0.1, 0.7, 0.7, 0.9]]), 2).tolist()
    [[3, 1]]
    """
    queries, items = scores.shape
    if k >= items:
        return np.argsort(-scores, axis=1, kind="stable")
    least = np.partition(scores, items - k, axis=1)[:, items - k]  # the score of place k
    row, column = np.nonzero(scores >= least[:, None])
    order = np.lexsort((column, -scores[row, column], row))
    starts = np.searchsorted(row, np.arange(queries))
    return np.asarray(column[order[starts[:, None] + np.arange(k)]], np.int64)


def _share(part: NDArray[Any], whole: NDArray[Any]) -> Fractions:
    """part / whole, 0 where the whole is; never above 1 by rounding."""
    shares: Fractions = np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
    return np.minimum(shares, np.float64(1))
