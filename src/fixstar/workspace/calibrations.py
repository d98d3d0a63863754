"""Calibrations for a gallery of several versions: fitted on labelled images, and tried on classes they have not seen.

The newest version's queries search every version's vectors. For each version a logistic curve is fitted to pairs of a
query and the nearest gallery image of a class, its own or another: cosines become probabilities, which are comparable
although the cosines are not. The nearest of each class are what a search has to choose between; pairs of any two images
would fit the curve where no hit is. At a probability of 0.5 the query's own class and another are equally likely, given
as many pairs of either kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError
from fixstar.evaluation.features import VersionFeatures
from fixstar.evaluation.mixed import BackfillCurve, Order, backfill_curve
from fixstar.gallery import Calibration, fit_calibration
from fixstar.geometry import unit
from fixstar.workspace.checks import Threshold

QUERIES = 2_000  # that are asked, at most
PAIRS = 10_000  # with another class than the query's, at most
LEAST = 50  # pairs of each kind, or queries: fewer are no evidence
FALSE_ALARMS = 0.05  # of the queries whose class is in the gallery, so many have a best hit under the threshold

Labels = NDArray[np.integer[Any]]
Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]

_BLOCK = 256


class Fold(NamedTuple):
    """Queries by row, and calibrations that were fitted without any image of their classes."""

    rows: Indices
    calibrations: dict[str, Calibration]


def fit_calibrations(
    versions: Sequence[VersionFeatures],
    query_labels: Labels,
    gallery_labels: Labels,
    seed: int = 0,
    searched_by: Mapping[str, Floats] | None = None,
) -> dict[str, Calibration]:
    """Queries of the last version against the vectors of each, by name: all versions are calibrated, or none.

    ``searched_by`` are other queries [N, s] for some versions, such as blended ones.
    """
    classes = np.unique(gallery_labels)
    asked, own, rows, others = _drawn(query_labels, classes, np.random.default_rng(seed))
    if min(len(asked), len(rows)) < LEAST:
        return {}
    same = np.arange(len(asked) + len(rows)) < len(asked)
    found = {}
    for name, nearest in _nearest_of_classes(versions, asked, gallery_labels, searched_by or {}):
        cosines = np.concatenate([nearest[np.arange(len(asked)), own], nearest[rows, others]])
        try:
            found[name] = fit_calibration(cosines, same, prior=0.5)
        except InputError:  # nothing to calibrate
            return {}
    return found


def _drawn(truth: Labels, classes: Labels, rng: np.random.Generator) -> tuple[Indices, Indices, Indices, Indices]:
    """Which queries ask, by row, each one's own class, and pairs of an asking query and another class."""
    asked = np.sort(rng.permutation(np.flatnonzero(np.isin(truth, classes)))[:QUERIES])
    own = np.searchsorted(classes, truth[asked])
    each = max(len(classes) - 1, 1)
    total = len(asked) * (len(classes) - 1)
    numbers = np.arange(total) if total <= PAIRS else rng.integers(total, size=PAIRS)
    rows, others = numbers // each, numbers % each
    return asked, own, rows, others + (others >= own[rows])  # past the query's own class


def _nearest_of_classes(
    versions: Sequence[VersionFeatures], asked: Indices, owners: Labels, searched_by: Mapping[str, Floats]
) -> Iterator[tuple[str, Floats]]:
    """For each version the highest cosine of each asking query in each class, [Q, C]."""
    order = np.argsort(owners, kind="stable")
    starts = np.unique(owners[order], return_index=True)[1]
    for version in versions:
        other = searched_by.get(version.name)
        queries = (versions[-1].queries_in(version) if other is None else other)[asked]
        gallery = unit(np.asarray(version.gallery, np.float32))[order]
        blocks = (queries[start : start + _BLOCK] @ gallery.T for start in range(0, len(queries), _BLOCK))
        yield version.name, np.concatenate([np.maximum.reduceat(block, starts, axis=1) for block in blocks])


def catalogue_thresholds(
    versions: Sequence[VersionFeatures], query_labels: Labels, gallery_labels: Labels, seed: int = 0
) -> dict[str, Threshold]:
    """Under which cosine the last version's queries probably have no match among each version's vectors.

    Each query is asked with its class in the gallery, and without it. A threshold that tells nothing is left out.
    """
    classes = np.unique(gallery_labels)
    asked, own, *_ = _drawn(query_labels, classes, np.random.default_rng(seed))
    if len(asked) < LEAST or len(classes) < 2:
        return {}
    found = {}
    for name, nearest in _nearest_of_classes(versions, asked, gallery_labels, {}):
        with_class = nearest.max(axis=1)
        nearest[np.arange(len(asked)), own] = -np.inf
        cosine = float(np.quantile(with_class, FALSE_ALARMS, method="lower"))
        alarms, detected = (float((best < cosine).mean()) for best in (with_class, nearest.max(axis=1)))
        if detected > FALSE_ALARMS:
            found[name] = Threshold(cosine, alarms, detected, len(asked))
    return found


def class_folds(
    versions: Sequence[VersionFeatures],
    query_labels: Labels,
    gallery_labels: Labels,
    seed: int = 0,
    searched_by: Mapping[str, Floats] | None = None,
) -> list[Fold]:
    """Two folds of the classes; the queries of each get what was fitted on the other. Empty if one cannot be fitted."""
    truth, owners = query_labels, gallery_labels
    classes = np.random.default_rng(seed).permutation(np.unique(truth))
    folds = []
    for tried in (classes[::2], classes[1::2]):
        rows, learnt = np.flatnonzero(np.isin(truth, tried)), np.flatnonzero(~np.isin(owners, tried))
        others = np.flatnonzero(~np.isin(truth, tried))
        parts = [_part(version, others, learnt) for version in versions]
        asking = {name: queries[others] for name, queries in (searched_by or {}).items()}
        labels = truth[others], owners[learnt]
        fitted = fit_calibrations(parts, *labels, seed, asking) if len(others) and len(learnt) else {}
        if not fitted:
            return []
        folds.append(Fold(rows, fitted))
    return folds


def calibrations_and_folds(
    versions: Sequence[VersionFeatures],
    query_labels: Labels,
    gallery_labels: Labels,
    seed: int = 0,
    searched_by: Mapping[str, Floats] | None = None,
) -> tuple[dict[str, Calibration], list[Fold]]:
    """Calibrations from all images, and folds that such ones were tried on; empty if either lacks evidence."""
    folds = class_folds(versions, query_labels, gallery_labels, seed, searched_by)
    fitted = fit_calibrations(versions, query_labels, gallery_labels, seed, searched_by) if folds else {}
    return fitted, folds if fitted else []


def search_curve(
    versions: tuple[VersionFeatures, VersionFeatures],
    query_labels: Labels,
    gallery_labels: Labels,
    shares: ArrayLike,
    folds: Sequence[Fold],
    order: Order | Labels = "images",
    *,
    rows: Indices | None = None,
    **ways: Any,
) -> BackfillCurve:
    """``backfill_curve`` of the queries in ``rows``, merged as in a search by calibrations of other classes."""
    asked = np.arange(len(query_labels)) if rows is None else rows
    curves = []
    parts: list[tuple[Indices, dict[str, Calibration] | None]] = [*folds] or [(asked, None)]
    for part, scores in parts:
        mine = np.intersect1d(part, asked)
        if len(mine):
            old, new = (_part(version, mine) for version in versions)
            labels = query_labels[mine], gallery_labels
            curves.append(backfill_curve(old, new, *labels, shares, order, scores=scores, **ways))
    hits = np.concatenate([np.asarray(curve.hits) for curve in curves], axis=2)  # at every share the same queries
    return BackfillCurve(curves[0].shares, hits.mean(axis=2), hits)


def _part(version: VersionFeatures, queries: Indices, gallery: Indices | None = None) -> VersionFeatures:
    stored = version.gallery if gallery is None else version.gallery[gallery]
    return replace(version, queries=version.queries[queries], gallery=stored, adapt=None)
