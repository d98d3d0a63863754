"""Mixed galleries: while a gallery is re-embedded, some images hold an old vector and some a new one.

A query is compared with every vector in that vector's own space, so all images compete by the cosines of full features.
With ``scores`` (slope and offset by version name) slope * cosine + offset is compared instead.

Templates are normalised means over the full unit features of a class. They are never built: with s_v the sum of a
class's vectors of version v, a template's dot product with a query is the sum over v of (query carried to v) . s_v,
and its squared length the sum over v and w of s_v . (s_w carried to v). Both are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar import geometry
from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation.features import (
    VersionFeatures,
    check_images,
    stored_galleries,
)
from fixstar.evaluation.search import (
    BLOCK,
    PROTOCOLS,
    Floats,
    Hits,
    Indices,
    Labels,
    blocks,
    nearest,
)

Best = tuple[Indices, Floats]  # for each query the best gallery row and its cosine or score
Scores = Mapping[str, tuple[float, float]]
Order = Literal["images", "classes"]

ORDERS = ("images", "classes")


def mixed_gallery_search(
    versions: Sequence[VersionFeatures],
    held: Labels,
    query_labels: Labels,
    gallery_labels: Labels,
    *,
    protocol: str = "image",
    scores: Scores | None = None,
) -> Hits:
    """[N] bool: whether each query finds its class in a gallery whose image i holds its vector of version ``held[i]``.

    ``held`` [M] holds version numbers, 0 for the first; queries are by the last. See ``fixstar.evaluation.search`` for
    the protocols.

    >>> v1, v2 = (VersionFeatures(name, np.eye(2), np.eye(2)) for name in ("v1", "v2"))
    >>> mixed_gallery_search([v1, v2], np.array([0, 1]), np.array([7, 8]), np.array([7, 7]))
    array([ True, False])
    """
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    truth = np.asarray(query_labels)
    labels = np.asarray(gallery_labels)
    check_images(versions, truth, labels)
    if protocol == "image":
        return np.equal(labels[mixed_nearest(versions, held, scores=scores)[0]], truth)
    if scores is not None:
        raise InputError(
            "scores by version apply to protocol 'image' only; a template mixes several versions"
        )
    stored = stored_galleries(versions)
    classes, sums = _template_sums(stored, _checked_held(held, len(labels), len(stored)), labels)
    queries = [stored[-1].queries_in(stored[v]) for v in sums]
    winners: list[Indices] = []
    for rows in blocks(len(truth), BLOCK):
        dots: Floats = reduce(
            np.add, (q[rows] @ s.T for q, s in zip(queries, sums.values(), strict=True))
        )
        winners.append(dots.argmax(axis=1))  # ties go to the first
    return np.equal(classes[np.concatenate(winners)], truth)


def mixed_nearest(
    versions: Sequence[VersionFeatures], held: Labels, *, scores: Scores | None = None
) -> Best:
    """The nearest gallery image of each query, [N], and its cosine or score, [N]. Ties go to the lowest index."""
    stored = stored_galleries(versions)
    held = _checked_held(held, len(stored[-1].gallery), len(stored))
    found = (
        _nearest_of_rows(
            stored[-1].queries_in(stored[v]), stored[v], np.flatnonzero(held == v), scores
        )
        for v in np.unique(held).tolist()
    )
    return reduce(_better_of, found)


@dataclass(frozen=True, eq=False)
class BackfillCurve:
    """Accuracy of the new queries at each share re-embedded; ``runs`` [orders, shares] has each order.

    Share 0 is C[new, old], share 1 is C[new, new]. ``hits`` are [orders, shares, queries], or None if not known.
    """

    shares: NDArray[np.float64]
    runs: NDArray[np.float64]
    hits: Hits | None = None

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """The mean over the orders, [shares]."""
        means: NDArray[np.float64] = self.runs.mean(axis=0)
        return means


def backfill_curve(
    old: VersionFeatures,
    new: VersionFeatures,
    query_labels: Labels,
    gallery_labels: Labels,
    shares: ArrayLike,
    order: Order | Labels = "images",
    *,
    orders: int = 1,
    seed: int = 0,
    protocol: str = "image",
    scores: Scores | None = None,
) -> BackfillCurve:
    """Accuracy while the gallery is re-embedded with the new version, queries by the new one.

    ``order`` is a permutation of the gallery's rows; "images", a random permutation; or "classes", class by class as in
    the figure. The curve is the mean over ``orders`` of them.
    """
    shares = _checked_shares(shares)
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    if new.asked and protocol != "image":
        raise InputError(
            "a translated gallery is re-embedded by protocol 'image' only; a template mixes versions"
        )
    truth = np.asarray(query_labels)
    labels = np.asarray(gallery_labels)
    check_images([old, new], truth, labels)
    outcomes = []
    for steps in _steps(order, labels, orders, seed):
        done = np.rint(shares * (steps.max() + 1)).astype(np.int64)  # steps completed at each share
        if protocol == "image":
            found = _found_along(old, new, steps, np.unique(done), scores)
            outcomes.append([np.equal(labels[found[count]], truth) for count in done.tolist()])
        else:
            mixtures = ((steps < count).astype(np.int64) for count in done)
            ways: dict[str, Any] = {"protocol": protocol, "scores": scores}
            outcomes.append(
                [mixed_gallery_search([old, new], held, truth, labels, **ways) for held in mixtures]
            )
    hits: Hits = np.array(outcomes)
    return BackfillCurve(shares, hits.mean(axis=2), hits)


def _found_along(
    old: VersionFeatures,
    new: VersionFeatures,
    steps: Indices,
    stops: Indices,
    scores: Scores | None,
) -> dict[int, Indices]:
    """The nearest gallery image [N] at each stop, where all rows with ``steps`` below it are new.

    The gallery is split at the stops; each piece is searched once with its new and once with its old vectors.
    """
    old = stored_galleries([old, new])[0]
    to_new = new.queries_in(new)
    to_old = new.queries_in(old)
    place = np.searchsorted(stops, steps, side="right")
    pieces = [np.flatnonzero(place == number) for number in range(len(stops) + 1)]
    by_new = accumulate(
        (_nearest_of_rows(to_new, new, rows, scores) for rows in pieces[:-1]), _better_of
    )
    by_old = accumulate(
        (_nearest_of_rows(to_old, old, rows, scores) for rows in pieces[:0:-1]), _better_of
    )
    halves = zip(stops.tolist(), by_new, list(by_old)[::-1], strict=True)
    return {stop: _better_of(one, other)[0] for stop, one, other in halves}


def _nearest_of_rows(
    queries: Floats, version: VersionFeatures, rows: Indices, scores: Scores | None
) -> Best:
    """The nearest among some gallery rows of a version, [N], and its cosine or score, [N]; -inf without rows."""
    if scores is not None and not (version.name in scores and scores[version.name][0] > 0):
        raise InputError(
            f"scores need a positive slope and an offset for {version.name!r}; got {dict(scores)}"
        )
    if not len(rows):
        return np.full(len(queries), np.iinfo(np.int64).max), np.full(
            len(queries), -np.inf, np.float32
        )
    found, cosines = nearest(queries, version.gallery[rows])
    lengths = np.linalg.norm(queries, axis=1).astype(np.float32)  # ``nearest`` has divided by them
    values: Floats = cosines[:, 0] * lengths
    if scores is not None:
        slope, offset = scores[version.name]
        values = slope * values.astype(np.float64) + offset
    return rows[found[:, 0]], values


def _better_of(one: Best, two: Best) -> Best:
    """For each query the higher value; ties go to the lower index."""
    second = (two[1] > one[1]) | ((two[1] == one[1]) & (two[0] < one[0]))
    return np.where(second, two[0], one[0]), np.where(second, two[1], one[1])


def _steps(order: Order | Labels, labels: Labels, orders: int, seed: int) -> Iterator[Indices]:
    """For each order, the step [M] at which every gallery row is re-embedded."""
    if isinstance(order, str):
        if order not in ORDERS:
            raise UnknownNameError("order", order, ORDERS)
        if orders < 1:
            raise InputError(
                f"orders is the number of random orders to average, at least 1; got {orders}"
            )
        if order == "images":
            units = np.arange(len(labels))
        else:
            units = np.unique(labels, return_inverse=True)[1]
        return (
            np.random.default_rng(seed + i).permutation(units.max() + 1)[units]
            for i in range(orders)
        )
    rows = np.asarray(order)
    if rows.shape != labels.shape or not np.array_equal(np.sort(rows), np.arange(len(labels))):
        raise InputError(
            f"an order lists each of the {len(labels)} gallery rows once, from 0; got {rows!r}"
        )
    if orders != 1:
        raise InputError(
            f"{orders} runs of one given order would be equal; pass order='images' for random orders"
        )
    return iter([np.argsort(rows)])


def _checked_shares(shares: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(shares, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise InputError(f"shares are a non-empty list of fractions; got shape {values.shape}")
    outside = values[~((values >= 0) & (values <= 1))]
    if outside.size:
        raise InputError(
            f"shares are fractions from 0 to 1, got {outside[0]:g}. Divide percentages by 100"
        )
    return values


def _checked_held(held: Labels, images: int, versions: int) -> Labels:
    numbers = np.asarray(held)
    if numbers.shape != (images,) or numbers.dtype.kind not in "iu":
        raise InputError(
            f"held is one version number for each of {images} gallery images; got {numbers.dtype} {numbers.shape}"
        )
    if numbers.min() < 0 or numbers.max() >= versions:
        raise InputError(
            f"held holds version numbers, 0 to {versions - 1}; got {numbers.min()} to {numbers.max()}"
        )
    return numbers


def _template_sums(
    versions: Sequence[VersionFeatures], held: Labels, labels: Labels
) -> tuple[Labels, dict[int, Floats]]:
    """The classes [C], and by version the sums s_v [C, s] of their unit vectors, over the length of the template."""
    classes, inverse = np.unique(labels, return_inverse=True)
    sums = {}
    for v in np.unique(held).tolist():
        rows = np.flatnonzero(held == v)
        rows = rows[np.argsort(inverse[rows], kind="stable")]
        present, starts = np.unique(inverse[rows], return_index=True)
        gallery = geometry.unit(
            np.asarray(versions[v].gallery[rows]).astype(np.float32, copy=False)
        )
        sums[v] = np.zeros((len(classes), gallery.shape[1]))
        sums[v][present] = np.add.reduceat(gallery, starts, axis=0, dtype=np.float64)
    squares = np.zeros(len(classes))
    for v in sums:
        for w in sums:
            ends = versions[w].basis, versions[v].basis, versions[v].width
            carried = sums[w] if v == w else geometry.carry(sums[w], *ends)
            squares += (sums[v] * carried).sum(axis=1)
    lengths = np.sqrt(squares.clip(0)).clip(1e-12)[:, None]
    return classes, {v: (total / lengths).astype(np.float32) for v, total in sums.items()}
