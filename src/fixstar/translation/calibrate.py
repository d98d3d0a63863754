"""One scale for all versions: what turns a score into the probability that query and item show the same class.

Scores of different versions are not comparable: 0.6 may be certain among v1's vectors and a guess among v2's. A
calibration p = 1 / (1 + exp(-(slope * score + offset))) rises with the score, so the order within a version is kept. It
is fitted to pairs of a query and the best gallery item of a class, its own or another. The best of each class are what
a search has to choose between. At a probability of 0.5 the query's own class and another are equally likely, given as
many pairs of either kind.

Without labels, scores are standardised: the mean and the deviation among items that have nothing to do with a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError
from fixstar.evaluation import VersionFeatures
from fixstar.evaluation.mixed import BackfillCurve, Order, backfill_curve
from fixstar.geometry import unit

QUERIES = 2_000  # that are asked, at most
PAIRS = 10_000  # with another class than the query's, at most
LEAST = 50  # pairs of each kind, or queries: fewer are no evidence
LEAST_DETECTED = (
    0.25  # of the queries without a match that a threshold must find: with fewer it tells nothing
)
FALSE_ALARMS = (
    0.05  # share of queries with a match in the gallery whose best hit is below the threshold
)

Labels = NDArray[np.integer[Any]]
Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]

_BLOCK = 256


class Calibration(NamedTuple):
    """Scores of one version's queries among another's vectors, as probabilities."""

    slope: float
    offset: float

    def probability(self, scores: NDArray[Any] | float) -> NDArray[np.float64]:
        """The probability that query and item show the same class.

        >>> float(Calibration(slope=10.0, offset=-5.0).probability(0.5))
        0.5
        """
        return np.asarray(
            0.5 * (1 + np.tanh(0.5 * self.logit(scores)))
        )  # the logistic function, without overflow

    def logit(self, scores: NDArray[Any] | float) -> NDArray[np.float64]:
        """The score that ranks items of several versions: probabilities near 1 are all rounded to 1, these are not."""
        return np.asarray(self.slope * np.asarray(scores, np.float64) + self.offset)


@dataclass(frozen=True)
class Threshold:
    """The score under which a query's best hit says that its class is probably not in the gallery.

    ``false_alarms`` is the share under it with the class in the gallery, ``detected`` without it.
    """

    score: float
    false_alarms: float
    detected: float
    queries: int


class Fold(NamedTuple):
    """Queries by row, and calibrations that were fitted without any image of their classes."""

    rows: Indices
    calibrations: dict[str, Calibration]


def fit_calibration(
    scores: NDArray[Any], same: NDArray[np.bool_], prior: float | None = None
) -> Calibration:
    """Logistic regression on pairs: ``scores`` [N], ``same`` [N]. Newton's method; targets are Platt's, never 0 or 1.

    ``prior`` is the share of same-class pairs in use, if it differs from that of these pairs.
    """
    x = np.asarray(scores, np.float64)
    y = np.asarray(same)
    if y.dtype == bool:
        positive = int(y.sum())
    else:
        positive = -1
    if x.ndim != 1 or x.shape != y.shape or not np.isfinite(x).all() or not 0 < positive < len(y):
        raise InputError(
            "a calibration takes one finite score and one True (same class) or False per pair, and some of each; got "
            f"scores {x.shape}, same {y.dtype} {y.shape} with {max(positive, 0)} True"
        )
    if prior is not None and not 0 < prior < 1:
        raise InputError(f"prior is a share of pairs, between 0 and 1; got {prior}")
    target = np.where(y, (positive + 1) / (positive + 2), 1 / (len(y) - positive + 2))
    slope, offset = _newton(x, target)
    if slope <= 0:
        raise InputError(
            "pairs of the same class do not have higher scores than others: there is nothing to calibrate"
        )
    shift = 0.0
    if prior is not None:
        shift = _logit(prior) - _logit(positive / len(y))
    return Calibration(slope, offset + shift)


def _logit(share: float) -> float:
    return float(np.log(share / (1 - share)))


def _newton(
    x: NDArray[np.float64], target: NDArray[np.float64], steps: int = 100
) -> tuple[float, float]:
    """The maximum-likelihood slope and offset; steps are halved until they improve it."""
    design = np.stack([x, np.ones_like(x)], axis=1)

    def loss(w: NDArray[np.float64]) -> float:
        logit = design @ w
        return float(np.sum(np.logaddexp(0, logit) - target * logit))

    weights = np.array([0.0, _logit(float(target.mean()))])
    for _ in range(steps):
        p = Calibration(*weights).probability(x)
        gradient = design.T @ (p - target)
        curvature = (design * (p * (1 - p))[:, None]).T @ design + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        now = loss(weights)
        while loss(weights - step) > now and np.abs(step).max() > 1e-12:
            step = step / 2
        weights = weights - step
        if np.abs(step).max() < 1e-9 * (1 + np.abs(weights).max()):
            break
    return float(weights[0]), float(weights[1])


# Views: each version's gallery as the newest version's queries see it, and these queries (``score.translated``).


def fit_calibrations(
    views: Sequence[VersionFeatures], query_labels: Labels, gallery_labels: Labels, seed: int = 0
) -> dict[str, Calibration]:
    """A calibration for each view, by name: all are calibrated, or none."""
    classes = np.unique(gallery_labels)
    drawn = _drawn(query_labels, classes, np.random.default_rng(seed))
    if min(len(drawn.asked), len(drawn.rows)) < LEAST:
        return {}
    same = np.arange(len(drawn.asked) + len(drawn.rows)) < len(drawn.asked)
    found = {}
    for name, best in _best_of_classes(views, drawn.asked, gallery_labels):
        own = best[np.arange(len(drawn.asked)), drawn.own]
        others = best[drawn.rows, drawn.others]
        try:
            found[name] = fit_calibration(np.concatenate([own, others]), same, prior=0.5)
        except InputError:  # nothing to calibrate
            return {}
    return found


class _Drawn(NamedTuple):
    """Which queries ask, by row, each one's own class, and pairs of an asking query and another class."""

    asked: Indices
    own: Indices
    rows: Indices
    others: Indices


def _drawn(truth: Labels, classes: Labels, rng: np.random.Generator) -> _Drawn:
    asked = np.sort(rng.permutation(np.flatnonzero(np.isin(truth, classes)))[:QUERIES])
    own = np.searchsorted(classes, truth[asked])
    each = max(len(classes) - 1, 1)
    total = len(asked) * (len(classes) - 1)
    if total <= PAIRS:
        numbers = np.arange(total)
    else:
        numbers = rng.integers(total, size=PAIRS)
    rows = numbers // each
    others = numbers % each
    past_own = others + (others >= own[rows])
    return _Drawn(asked=asked, own=own, rows=rows, others=past_own)


def _best_of_classes(
    views: Sequence[VersionFeatures], asked: Indices, owners: Labels
) -> Iterator[tuple[str, Floats]]:
    """For each view the highest score of each asking query in each class, [Q, C]."""
    order = np.argsort(owners, kind="stable")
    starts = np.unique(owners[order], return_index=True)[1]
    for view in views:
        queries = np.asarray(view.queries, np.float32)[asked]
        gallery = unit(np.asarray(view.gallery, np.float32))[order]
        blocks = (
            queries[start : start + _BLOCK] @ gallery.T for start in range(0, len(queries), _BLOCK)
        )
        yield (
            view.name,
            np.concatenate([np.maximum.reduceat(block, starts, axis=1) for block in blocks]),
        )


def catalogue_thresholds(
    views: Sequence[VersionFeatures], query_labels: Labels, gallery_labels: Labels, seed: int = 0
) -> dict[str, Threshold]:
    """Under which score the queries probably have no match among each version's vectors.

    Each query is asked with its class in the gallery, and without it. A threshold that tells nothing is left out.
    """
    classes = np.unique(gallery_labels)
    drawn = _drawn(query_labels, classes, np.random.default_rng(seed))
    asked = drawn.asked
    if len(asked) < LEAST or len(classes) < 2:
        return {}
    found = {}
    for name, best in _best_of_classes(views, asked, gallery_labels):
        with_class = best.max(axis=1)
        best[np.arange(len(asked)), drawn.own] = -np.inf
        without_class = best.max(axis=1)
        score = float(np.quantile(with_class, FALSE_ALARMS, method="lower"))
        alarms = float((with_class < score).mean())
        detected = float((without_class < score).mean())
        if detected >= LEAST_DETECTED:
            found[name] = Threshold(
                score=score, false_alarms=alarms, detected=detected, queries=len(asked)
            )
    return found


def class_folds(
    views: Sequence[VersionFeatures], query_labels: Labels, gallery_labels: Labels, seed: int = 0
) -> list[Fold]:
    """Two folds of the classes; the queries of each get what was fitted on the other. Empty if one cannot be fitted."""
    classes = np.random.default_rng(seed).permutation(np.unique(query_labels))
    folds = []
    for tried in (classes[::2], classes[1::2]):
        rows = np.flatnonzero(np.isin(query_labels, tried))
        others = np.flatnonzero(~np.isin(query_labels, tried))
        learnt = np.flatnonzero(~np.isin(gallery_labels, tried))
        if not len(others) or not len(learnt):
            return []
        parts = [view.take(others, learnt) for view in views]
        fitted = fit_calibrations(
            parts,
            query_labels=query_labels[others],
            gallery_labels=gallery_labels[learnt],
            seed=seed,
        )
        if not fitted:
            return []
        folds.append(Fold(rows, fitted))
    return folds


def calibrations_and_folds(
    views: Sequence[VersionFeatures], query_labels: Labels, gallery_labels: Labels, seed: int = 0
) -> tuple[dict[str, Calibration], list[Fold]]:
    """Calibrations from all images, and the folds that tested them; empty if there is too little evidence."""
    folds = class_folds(views, query_labels=query_labels, gallery_labels=gallery_labels, seed=seed)
    if not folds:
        return {}, []
    fitted = fit_calibrations(
        views, query_labels=query_labels, gallery_labels=gallery_labels, seed=seed
    )
    if not fitted:
        return {}, []
    return fitted, folds


def search_curve(
    old: VersionFeatures,
    new: VersionFeatures,
    query_labels: Labels,
    gallery_labels: Labels,
    shares: ArrayLike,
    folds: Sequence[Fold],
    order: Order | Labels = "images",
    *,
    rows: Indices | None = None,
    **ways: Any,
) -> BackfillCurve:
    """``backfill_curve`` of the queries in ``rows``, merged as in a search by calibrations of other classes.

    ``old`` and ``new`` are those of ``score.translated_pair``.
    """
    asked = np.arange(len(query_labels)) if rows is None else rows
    parts: list[tuple[Indices, dict[str, Calibration] | None]] = [*folds] or [(asked, None)]
    curves = []
    for part, scores in parts:
        mine = np.intersect1d(part, asked)
        if len(mine):
            labels = (query_labels[mine], gallery_labels)
            curves.append(
                backfill_curve(
                    old.take(mine), new.take(mine), *labels, shares, order, scores=scores, **ways
                )
            )
    hits = np.concatenate(
        [np.asarray(curve.hits) for curve in curves], axis=2
    )  # at every share the same queries
    return BackfillCurve(curves[0].shares, hits.mean(axis=2), hits)


def standardised(view: VersionFeatures, seed: int = 0) -> Calibration:
    """A scale without labels: how many deviations a score lies above what unrelated items score.

    Query i and gallery item j are taken for unrelated: almost all pairs are.
    """
    rng = np.random.default_rng(seed)
    queries = rng.integers(len(view.queries), size=PAIRS)
    items = rng.integers(len(view.gallery), size=PAIRS)
    rows = unit(np.asarray(view.gallery, np.float32))[items]
    scores = np.einsum(
        "ij,ij->i", np.asarray(view.queries, np.float32)[queries], rows, dtype=np.float64
    )
    deviation = max(float(scores.std()), 1e-9)
    return Calibration(1 / deviation, -float(scores.mean()) / deviation)
