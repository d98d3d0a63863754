"""The cross-test: every version's queries on every older version's gallery. The result is the compatibility matrix.

``MEASURES`` lists the possible measures of a cell C[t, k]. Each gives one answer per query (verification: per pair),
and a cell is their mean, so evidence, metrics and pictures work for all measures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation import compatibility
from fixstar.evaluation.features import (
    VersionFeatures,
    check_images,
    incomparable_widths,
    stored_over_time,
)
from fixstar.evaluation.search import (
    PROTOCOLS,
    Floats,
    Indices,
    Labels,
    average_precisions,
    cmc,
    knn_hits,
    listed_precisions,
    rank_hits,
    searcher,
)
from fixstar.evaluation.verification import (
    VerificationPairs,
    kfold_accuracy,
    open_set_hits,
    pair_scores,
    threshold_at_far,
)

Outcomes = NDArray[Any]
Cell = tuple[int, int]

MEASURES = {
    "image": "the nearest gallery image is of the query's class, as in a search service",
    "template": "the nearest class mean is of the query's class, as in the tables of HOC",
    "rankK": "one of the K nearest gallery images is of the query's class, such as rank5",
    "knnK": "the K nearest gallery images vote for the query's class, such as knn10",
    "map": "average precision of the whole ranked gallery",
    "mapK": "average precision of the first K, such as map100",
    "verification": "pairs of images are classified as same or different, 10 folds, as in CoReS and CL2R",
    "TAR@FAR=F": "genuine pairs that are accepted where a share F of the impostors is, such as TAR@FAR=1e-4",
    "TPIR@FPIR=F": "queries answered rightly where a share F of those without an answer gets one: TPIR@FPIR=1e-2",
}
"""The measures of a cell by name; K is a number, F a fraction."""


@dataclass(frozen=True, eq=False)
class CrossTest:
    """``matrix[t, k]``: accuracy of queries by version t on gallery k, NaN if not measured; ``hits``: the answers."""

    names: tuple[str, ...]
    protocol: str
    matrix: NDArray[np.float64]
    hits: dict[Cell, Outcomes]

    def summary(self) -> dict[str, float]:
        """AC, AA, ACA, BC and FC of the matrix."""
        return compatibility.summary(self.matrix)


def cross_test(
    versions: Sequence[VersionFeatures],
    query_labels: Labels,
    gallery_labels: Labels,
    protocol: str = "template",
    upper: bool = False,
    progress: Callable[[int, int], object] | None = None,
    *,
    pairs: VerificationPairs | None = None,
    device: str | None = None,
    cameras: tuple[Labels, Labels] | None = None,
    relevant: Sequence[Indices] | None = None,
) -> CrossTest:
    """Measure every cell C[t, k], t >= k (eq. 7 of HOC), oldest version first.

    ``protocol`` is one of ``MEASURES``. For average precision ``cameras`` of queries and gallery ignore images of the
    query's class and camera, and ``relevant`` lists the gallery rows that each query should find. Verification and TAR
    need ``pairs`` of a query row and a gallery row.

    ``upper`` adds t < k. ``progress(done, total)`` is called after each cell. Versions of different width cannot be
    compared (the dashes of table 7), unless one has grown from the other (``VersionFeatures.parts``), or the newer one
    has ``shared_components``. A version with ``adapt`` first moves the stored galleries of all older versions.
    ``device`` is a torch device; without one, NumPy searches.

    >>> features = np.eye(2)
    >>> old, new = VersionFeatures("v1", features, features), VersionFeatures("v2", features, features)
    >>> cross_test([old, new], np.array([0, 1]), np.array([0, 1])).matrix
    array([[ 1., nan],
           [ 1.,  1.]])
    """
    kind, number = _parse(protocol)
    truth = np.asarray(query_labels)
    labels = np.asarray(gallery_labels)
    _check(versions, upper)
    check_images(versions, truth, labels)
    if takes_pairs(protocol) and pairs is None:
        raise InputError(f"{protocol} needs pairs; draw them with sample_pairs(labels)")
    # Every gallery is prepared once, and discarded when an ``adapt`` has moved it.
    searches: WeakKeyDictionary[VersionFeatures, Callable[[Floats, Labels], Outcomes]] = (
        WeakKeyDictionary()
    )
    T = len(versions)
    total = T * T if upper else T * (T + 1) // 2
    matrix = np.full((T, T), np.nan)
    hits: dict[Cell, Outcomes] = {}
    for cell, query, gallery in _cells(versions, upper):
        if pairs is not None and takes_pairs(protocol):
            scores = _pair_cosines(query, gallery, pairs)
            if kind == "TAR@FAR":
                hits[cell] = scores[pairs.same] >= threshold_at_far(scores, pairs.same, number)
            else:
                hits[cell] = kfold_accuracy(scores, pairs.same).right
        else:
            # An open-set search has one threshold for all queries, so carried queries keep their length.
            open_set = kind == "TPIR@FPIR"
            queries = query.queries_in(gallery) if open_set else query.searching(gallery)
            if kind in PROTOCOLS:
                if gallery not in searches:
                    searches[gallery] = searcher(kind, gallery.gallery, labels, device)
                hits[cell] = searches[gallery](queries, truth)
            else:
                hits[cell] = _answers(
                    kind=kind,
                    number=number,
                    queries=queries,
                    truth=truth,
                    gallery=gallery.gallery,
                    labels=labels,
                    cameras=cameras,
                    relevant=relevant,
                )
        matrix[cell] = hits[cell].mean()
        if progress is not None:
            progress(len(hits), total)
    return CrossTest(tuple(version.name for version in versions), protocol, matrix, hits)


def cross_test_scores(
    versions: Sequence[VersionFeatures], pairs: VerificationPairs
) -> dict[Cell, NDArray[np.float64]]:
    """The cosine of every pair, [pairs], by cell (t, k), t >= k: first image by version t, second by k."""
    return {cell: _pair_cosines(query, gallery, pairs) for cell, query, gallery in _cells(versions)}


def cross_test_cmc(
    versions: Sequence[VersionFeatures],
    query_labels: Labels,
    gallery_labels: Labels,
    ranks: Sequence[int] = (1, 5, 10),
) -> dict[Cell, dict[int, float]]:
    """Rank-k by image for each cell (t, k), t >= k, and each k of ``ranks``: every gallery is searched once."""
    return {
        cell: cmc(query.searching(gallery), query_labels, gallery.gallery, gallery_labels, ranks)
        for cell, query, gallery in _cells(versions)
    }


def check_protocol(name: str) -> None:
    """Raise unless ``name`` is one of ``MEASURES``."""
    _parse(name)


def takes_pairs(protocol: str) -> bool:
    """Whether a measure uses pairs of images instead of queries."""
    return protocol.startswith(("verification", "TAR@FAR="))


def _parse(protocol: str) -> tuple[str, float]:
    """The kind of measure and its K or F; 0 without one."""
    if protocol in PROTOCOLS:
        return protocol, 0
    found = re.fullmatch(
        r"(verification|map)|(rank|knn|map)([1-9][0-9]*)|(TAR@FAR|TPIR@FPIR)=(1|0?\.[0-9]+|[0-9]e-[0-9]+)",
        protocol,
    )
    if found is None:
        raise UnknownNameError(
            "protocol",
            protocol,
            MEASURES,
            "K is a number, as in rank5, F a fraction, as in TAR@FAR=1e-4",
        )
    if found[4]:
        return found[4], float(found[5])
    if found[1]:
        return (found[1], 0)
    return (found[2], int(found[3]))


def _cells(
    versions: Sequence[VersionFeatures], upper: bool = False
) -> Iterator[tuple[Cell, VersionFeatures, VersionFeatures]]:
    """((t, k), version t, version k with its gallery as stored when t searches), row by row."""
    for t, stored in enumerate(stored_over_time(versions)):
        for k, gallery in enumerate([*stored, *versions[t + 1 :]] if upper else stored):
            yield (t, k), versions[t], gallery


def _pair_cosines(
    query: VersionFeatures, gallery: VersionFeatures, pairs: VerificationPairs
) -> NDArray[np.float64]:
    queries = query.queries_in(gallery)
    lengths = np.linalg.norm(
        queries, axis=1
    )  # of the part in the old space; pair_scores divides by it
    return np.asarray(pair_scores(queries, gallery.gallery, pairs) * lengths[pairs.first])


def _answers(
    kind: str,
    number: float,
    queries: Floats,
    truth: Labels,
    gallery: Floats,
    labels: Labels,
    cameras: tuple[Labels, Labels] | None,
    relevant: Sequence[Indices] | None,
) -> Outcomes:
    K = int(number)
    if kind == "rank":
        return rank_hits(queries, truth, gallery, labels, K)
    if kind == "knn":
        return knn_hits(queries, truth, gallery, labels, K)
    if kind == "TPIR@FPIR":
        values = open_set_hits(
            queries, truth, gallery, labels, number, lengths=np.linalg.norm(queries, axis=1)
        )
    elif relevant is not None:
        values = listed_precisions(queries, gallery, relevant, at=K or None)
    else:
        if cameras is None:
            views = {}
        else:
            views = {"query_cameras": cameras[0], "gallery_cameras": cameras[1]}
        values = average_precisions(queries, truth, gallery, labels, at=K or None, **views)
    if np.isnan(values).all():
        raise InputError(
            f"none of the {len(values)} queries has an image of its class in the gallery"
        )
    return values[
        ~np.isnan(values)
    ]  # the same queries in every cell, as this depends only on the labels


def _check(versions: Sequence[VersionFeatures], upper: bool) -> None:
    if not versions:
        raise InputError("a cross-test needs at least one version")
    names = [version.name for version in versions]
    if len(set(names)) < len(names):
        raise InputError(f"every version needs its own name, got {', '.join(names)}")
    for t, version in enumerate(versions):
        for k, gallery in enumerate(versions if upper else versions[:t]):
            moved = any(later.adapt is not None for later in versions[k + 1 : t + 1])
            if not (version.shared_components or moved or version.comparable_with(gallery)):
                raise incomparable_widths(versions)
