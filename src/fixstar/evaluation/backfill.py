"""Partial backfill: how accuracy grows while a gallery is re-embedded with the new version (figure 3 of BCT)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation.cross_test import VersionFeatures
from fixstar.evaluation.mixed import (
    Scores,
    better_of,
    carried_queries,
    check_images,
    mixed_gallery_search,
    nearest_rows,
    scored,
    stored_galleries,
)
from fixstar.evaluation.search import PROTOCOLS

__all__ = ["BackfillCurve", "backfill_curve"]

Labels = NDArray[np.integer[Any]]
Indices = NDArray[np.int64]
Order = Literal["images", "classes"]

ORDERS = ("images", "classes")


@dataclass(frozen=True, eq=False)
class BackfillCurve:
    """Accuracy of the new queries at each share of the gallery re-embedded; ``runs`` [orders, shares] has each order.

    Share 0 is the cross-test C[new, old], share 1 the self-test C[new, new]. ``hits`` [orders, shares, queries] says
    which queries found their class; None where only accuracies are known.
    """

    shares: NDArray[np.float64]
    runs: NDArray[np.float64]
    hits: NDArray[np.bool_] | None = None

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
    shared_components: bool = False,
    scores: Scores | None = None,
) -> BackfillCurve:
    """Accuracy while the gallery is re-embedded with the new version (figure 3 of BCT), queries by the new one.

    ``order`` says what is re-embedded first: a permutation of the gallery's rows; "images", a random one; or
    "classes", whole classes in random order as in the figure, where shares count classes. ``orders`` random orders
    are averaged; order number i is drawn with seed + i.

    By image search each vector, old and new, is compared once, however many shares the curve has. ``scores`` are a
    slope and an offset for each version by name: what then competes is slope * cosine + offset.
    """
    shares = _checked_shares(shares)
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    truth, labels = np.asarray(query_labels), np.asarray(gallery_labels)
    check_images([old, new], truth, labels)
    outcomes = []
    for turns in _turns(order, labels, orders, seed):
        done = np.rint(shares * (turns.max() + 1)).astype(np.int64)  # turns that are over at each share
        if protocol == "image":
            found = _found_along(old, new, turns, np.unique(done), shared_components, scores)
            outcomes.append([np.equal(labels[found[count]], truth) for count in done.tolist()])
        else:
            ways: dict[str, Any] = {"protocol": protocol, "shared_components": shared_components, "scores": scores}
            mixtures = ((turns < count).astype(np.int64) for count in done)
            outcomes.append([mixed_gallery_search([old, new], held, truth, labels, **ways) for held in mixtures])
    hits: NDArray[np.bool_] = np.array(outcomes)
    return BackfillCurve(shares, hits.mean(axis=2), hits)


def _found_along(
    old: VersionFeatures,
    new: VersionFeatures,
    turns: Indices,
    stops: Indices,
    shared_components: bool,
    scores: Scores | None,
) -> dict[int, Indices]:
    """The nearest gallery image [N] at each stop, when all rows with ``turns`` below it are new.

    The gallery is cut at the stops. Each piece is searched once by its new vectors and once by its old ones; a stop
    then takes the best of the new pieces before it and of the old pieces after it.
    """
    old = stored_galleries([old, new])[0]
    to_old, to_new = carried_queries(new, [old, new], shared_components=shared_components)
    place = np.searchsorted(stops, turns, side="right")
    pieces = [np.flatnonzero(place == number) for number in range(len(stops) + 1)]
    newly = (scored(nearest_rows(to_new, new.gallery, rows), new.name, scores) for rows in pieces[:-1])
    before = (scored(nearest_rows(to_old, old.gallery, rows), old.name, scores) for rows in pieces[:0:-1])
    by_new, by_old = accumulate(newly, better_of), accumulate(before, better_of)
    halves = zip(stops.tolist(), by_new, list(by_old)[::-1], strict=True)
    return {stop: better_of(one, other)[0] for stop, one, other in halves}


def _turns(order: Order | Labels, labels: Labels, orders: int, seed: int) -> Iterator[Indices]:
    """For each order, the turn [M] at which every gallery row is re-embedded."""
    if isinstance(order, str):
        if order not in ORDERS:
            raise UnknownNameError("order", order, ORDERS)
        if orders < 1:
            raise InputError(f"orders counts the random orders to average, at least 1; got {orders}")
        units = np.arange(len(labels)) if order == "images" else np.unique(labels, return_inverse=True)[1]
        return (np.random.default_rng(seed + i).permutation(units.max() + 1)[units] for i in range(orders))
    rows = np.asarray(order)
    if rows.shape != labels.shape or not np.array_equal(np.sort(rows), np.arange(len(labels))):
        raise InputError(f"an order names each of the {len(labels)} gallery rows once, from 0; got {rows!r}")
    if orders != 1:
        raise InputError(f"{orders} orders of one given order would be the same; pass order='images' for random ones")
    return iter([np.argsort(rows)])


def _checked_shares(shares: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(shares, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise InputError(f"shares are a list of fractions, not empty; got shape {values.shape}")
    outside = values[~((values >= 0) & (values <= 1))]
    if outside.size:
        raise InputError(f"shares are fractions from 0 to 1, got {outside[0]:g}. Divide percent by 100")
    return values
