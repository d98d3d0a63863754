"""Calibrations for a gallery of several versions: fitted on labelled images, and tried on classes they have not seen.

The newest version's queries meet every version's vectors. For each a logistic curve is fitted through pairs of one
class and of two, a query image and a gallery image each: cosines become probabilities, which can be compared although
the cosines cannot. A probability of 0.5 is where a pair of one class and a pair of two are equally likely, if there
were as many of either kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError
from fixstar.evaluation.backfill import BackfillCurve, Order, backfill_curve
from fixstar.evaluation.cross_test import VersionFeatures
from fixstar.evaluation.mixed import carried_queries
from fixstar.gallery import Calibration, fit_calibration
from fixstar.geometry import unit

__all__ = ["LEAST", "PAIRS", "Fold", "class_folds", "fit_calibrations", "tried_calibrations", "tried_curve"]

PAIRS = 10_000  # of each kind, at most
LEAST = 50  # of each kind: fewer are no evidence

Labels = NDArray[np.integer[Any]]
Indices = NDArray[np.int64]


class Fold(NamedTuple):
    """Queries by row, and calibrations that were fitted without any image of their classes."""

    rows: Indices
    calibrations: dict[str, Calibration]


def fit_calibrations(
    versions: Sequence[VersionFeatures], query_labels: Labels, gallery_labels: Labels, seed: int = 0
) -> dict[str, Calibration]:
    """Queries of the last version against the vectors of each, by name; the same pairs for all.

    Empty where the images make fewer than ``LEAST`` pairs of a kind, or where pairs of one class are no closer than
    others in one of the spaces: all versions are calibrated, or none.
    """
    truth, owners = np.asarray(query_labels), np.asarray(gallery_labels)
    drawn = _drawn(truth, owners, np.random.default_rng(seed))
    if min(len(kind[0]) for kind in drawn) < LEAST:
        return {}
    rows, columns = np.concatenate(drawn, axis=1)
    same = truth[rows] == owners[columns]
    found = {}
    for version, queries in zip(versions, carried_queries(versions[-1], versions), strict=True):
        cosines = np.einsum("nd,nd->n", queries[rows], unit(np.asarray(version.gallery, np.float32))[columns])
        try:
            found[version.name] = fit_calibration(cosines, same, prior=0.5)
        except InputError:  # nothing to calibrate
            return {}
    return found


def _drawn(truth: Labels, owners: Labels, rng: np.random.Generator) -> list[tuple[Indices, Indices]]:
    """Rows of queries and of gallery images: pairs of one class, then of two; all there are, or ``PAIRS`` at random."""
    order = np.argsort(owners, kind="stable")
    start, end = (np.searchsorted(owners[order], truth, side) for side in ("left", "right"))  # type: ignore[call-overload]
    pairs = []
    for counts in (end - start, len(owners) - (end - start)):  # gallery images that each query [Q] makes a pair with
        first = np.cumsum(counts) - counts
        total = int(counts.sum())
        numbers = np.arange(total) if total <= PAIRS else rng.integers(total, size=PAIRS)
        rows = np.searchsorted(first + counts, numbers, side="right")
        pairs.append((rows, numbers - first[rows]))
    (ours, inside), (others, outside) = pairs
    beyond = np.where(outside < start[others], outside, outside + (end - start)[others])  # past the query's own class
    return [(ours, order[start[ours] + inside]), (others, order[beyond])]


def class_folds(
    versions: Sequence[VersionFeatures], query_labels: Labels, gallery_labels: Labels, seed: int = 0
) -> list[Fold]:
    """Two folds of the classes; the queries of each get what was fitted on the other. Empty where one cannot be."""
    truth, owners = np.asarray(query_labels), np.asarray(gallery_labels)
    classes = np.random.default_rng(seed).permutation(np.unique(truth))
    folds = []
    for tried in (classes[::2], classes[1::2]):
        rows, learnt = np.flatnonzero(np.isin(truth, tried)), np.flatnonzero(~np.isin(owners, tried))
        others = np.flatnonzero(~np.isin(truth, tried))
        parts = [_part(version, others, learnt) for version in versions]
        fitted = fit_calibrations(parts, truth[others], owners[learnt], seed) if len(others) and len(learnt) else {}
        if not fitted:
            return []
        folds.append(Fold(rows, fitted))
    return folds


def tried_calibrations(
    versions: Sequence[VersionFeatures], query_labels: Labels, gallery_labels: Labels, seed: int = 0
) -> tuple[dict[str, Calibration], list[Fold]]:
    """Calibrations from all images, and folds to try such ones with. Both empty where there is no evidence for either.

    What was not tried on other classes is not worth keeping.
    """
    folds = class_folds(versions, query_labels, gallery_labels, seed)
    fitted = fit_calibrations(versions, query_labels, gallery_labels, seed) if folds else {}
    return fitted, folds if fitted else []


def tried_curve(
    versions: tuple[VersionFeatures, VersionFeatures],
    query_labels: Labels,
    gallery_labels: Labels,
    shares: ArrayLike,
    folds: Sequence[Fold],
    order: Order | Labels = "images",
    *,
    rows: Indices | None = None,
    orders: int = 1,
    seed: int = 0,
) -> BackfillCurve:
    """``backfill_curve`` of the queries in ``rows`` from the old version to the new one, as a search would merge them.

    Each query goes by calibrations that have not seen its class. Without folds cosines decide, as in a search.
    """
    truth, owners = np.asarray(query_labels), np.asarray(gallery_labels)
    asked = np.arange(len(truth)) if rows is None else np.asarray(rows)
    runs, counts = [], []
    for part, scores in [(fold.rows, fold.calibrations) for fold in folds] or [(asked, None)]:
        mine = np.intersect1d(part, asked)
        if len(mine):
            old, new = (_part(version, mine) for version in versions)
            ways: dict[str, Any] = {"orders": orders, "seed": seed, "scores": scores}
            curve = backfill_curve(old, new, truth[mine], owners, shares, order, **ways)
            runs.append(curve.runs)
            counts.append(len(mine))
    return BackfillCurve(curve.shares, np.average(runs, axis=0, weights=counts))


def _part(version: VersionFeatures, queries: Indices, gallery: Indices | None = None) -> VersionFeatures:
    """The version's vectors of some of the images."""
    stored = version.gallery if gallery is None else version.gallery[gallery]
    return VersionFeatures(version.name, version.queries[queries], stored, version.projection, parts=version.parts)
