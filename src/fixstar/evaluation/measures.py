"""The cross-test by any measure: what a cell C[t, k] means is a word.

Every measure answers once per query (verification: once per pair), and a cell is the mean of its answers. So evidence,
metrics and pictures are the same for all of them. As in ``cross_test`` the gallery stays as it is stored, and the query
is carried to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation.cross_test import CrossTest, VersionFeatures, cross_test
from fixstar.evaluation.identification import cmc, rank_hits
from fixstar.evaluation.knn import knn_hits
from fixstar.evaluation.mixed import carried_queries, check_images, stored_galleries
from fixstar.evaluation.pairs import Pairs
from fixstar.evaluation.retrieval import average_precisions
from fixstar.evaluation.search import PROTOCOLS
from fixstar.evaluation.verification import kfold_accuracy, pair_scores

__all__ = ["MEASURES", "check_measure", "cross_test_by", "cross_test_cmc", "cross_test_scores"]

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]
Outcomes = NDArray[Any]

MEASURES = {
    "image": "the nearest gallery image is of the query's class: what a search service does",
    "template": "the nearest class mean is of the query's class: the tables of HOC",
    "rankK": "one of the K nearest gallery images is of the query's class, such as rank5",
    "knnK": "the K nearest gallery images vote for the query's class, such as knn10",
    "map": "average precision of the whole ranked gallery",
    "mapK": "average precision of the first K, such as map100",
    "verification": "pairs of images are told apart, 10 folds: CoReS and CL2R",
}
"""What can stand in a cell, by name; K is a number."""


def check_measure(name: str) -> None:
    """Refuse a name that is not one of ``MEASURES``."""
    _parts(name)


def cross_test_by(
    measure: str,
    versions: Sequence[VersionFeatures],
    query_labels: Labels,
    gallery_labels: Labels,
    *,
    pairs: Pairs | None = None,
    folds: int = 10,
    shared_components: bool = False,
    device: str | None = None,
) -> CrossTest:
    """``cross_test`` by one of ``MEASURES``: "image", "template", "rank5", "knn10", "map", "map100", "verification".

    ``hits`` then holds the answers of that measure: bool, or for average precision fractions. Queries without an image
    of their class in the gallery have no average precision and are left out. Verification needs ``pairs``: their first
    rows are queries, their second rows gallery images, and a pair counts as right by its fold's threshold.

    >>> v1 = VersionFeatures("v1", np.eye(3), np.eye(3))
    >>> cross_test_by("rank2", [v1], np.array([5, 6, 7]), np.array([5, 7, 6])).matrix.round(2)
    array([[0.33]])
    """
    kind, number = _parts(measure)
    if kind in PROTOCOLS:
        return cross_test(
            versions, query_labels, gallery_labels, kind, shared_components=shared_components, device=device
        )
    if not versions:
        raise InputError("a cross-test needs at least one version")
    truth, labels = np.asarray(query_labels), np.asarray(gallery_labels)
    check_images(versions, truth, labels)
    if kind == "verification":
        same = _checked(pairs).same
        cells = cross_test_scores(versions, _checked(pairs), shared_components=shared_components)
        outcomes = {cell: kfold_accuracy(scores, same, folds).right for cell, scores in cells.items()}
    else:
        answer = _answer(kind, number)
        outcomes = {
            cell: answer(queries, truth, gallery, labels)
            for cell, queries, gallery in _cells(versions, shared_components)
        }
    matrix = np.full((len(versions), len(versions)), np.nan)
    for cell, values in outcomes.items():
        matrix[cell] = values.mean()
    return CrossTest(tuple(version.name for version in versions), measure, matrix, outcomes)


def cross_test_scores(
    versions: Sequence[VersionFeatures], pairs: Pairs, *, shared_components: bool = False
) -> dict[tuple[int, int], NDArray[np.float64]]:
    """The cosine of every pair, [pairs], for each cell (t, k), t >= k: first image by version t, second by k.

    They are the cosines of the full features, whatever the short forms: comparable from pair to pair, as a threshold
    needs them. ``roc`` and ``tar_at_far`` take them.
    """
    scores = {}
    for cell, queries, gallery in _cells(versions, shared_components):
        lengths = np.linalg.norm(queries, axis=1)  # of the part that the old space can hold; pair_scores divides by it
        scores[cell] = pair_scores(queries, gallery, pairs) * lengths[pairs.first]
    return scores


def cross_test_cmc(
    versions: Sequence[VersionFeatures],
    query_labels: Labels,
    gallery_labels: Labels,
    ranks: Sequence[int] = (1, 5, 10),
    *,
    shared_components: bool = False,
) -> dict[tuple[int, int], dict[int, float]]:
    """Rank-k by image for each cell (t, k), t >= k, and each k of ``ranks``: every gallery is searched once."""
    return {
        cell: cmc(queries, query_labels, gallery, gallery_labels, ranks)
        for cell, queries, gallery in _cells(versions, shared_components)
    }


def _cells(
    versions: Sequence[VersionFeatures], shared_components: bool
) -> Iterator[tuple[tuple[int, int], Floats, Floats]]:
    """((t, k), queries by t carried to k, gallery of k as it is stored when t searches), row by row."""
    for t in range(len(versions)):
        stored = stored_galleries(versions, t)[: t + 1]
        carried = carried_queries(stored[t], stored, shared_components=shared_components)
        for k, queries in enumerate(carried):
            yield (t, k), queries, stored[k].gallery


def _answer(kind: str, number: int | None) -> Callable[[Floats, Labels, Floats, Labels], Outcomes]:
    def precisions(queries: Floats, truth: Labels, gallery: Floats, labels: Labels) -> Outcomes:
        values = average_precisions(queries, truth, gallery, labels, at=number)
        if np.isnan(values).all():
            raise InputError(f"none of the {len(values)} queries has an image of its class in the gallery")
        return values[~np.isnan(values)]  # the same queries in every cell: labels alone decide

    if kind == "map":
        return precisions
    hits: Callable[..., Outcomes] = rank_hits if kind == "rank" else knn_hits
    return lambda queries, truth, gallery, labels: hits(queries, truth, gallery, labels, k=number)


def _parts(measure: str) -> tuple[str, int | None]:
    """The kind and its K, if it has one."""
    found = re.fullmatch(r"(image|template|verification|map)|(rank|knn|map)([1-9][0-9]*)", measure)
    if found is None:
        raise UnknownNameError("protocol", measure, MEASURES, "K is a number, as in rank5")
    return (found[1], None) if found[1] else (found[2], int(found[3]))


def _checked(pairs: Pairs | None) -> Pairs:
    if pairs is None:
        raise InputError("verification needs pairs; draw them with sample_pairs(labels)")
    return pairs
