"""Flips: the queries that an upgrade loses and wins.

A **negative flip** was right before and is wrong after. Two versions of equal accuracy may differ in many queries, and
users notice those they lose. Before is the self-test of the gallery's version, ``hits[k, k]``; after is the cross-test
``hits[t, k]`` on the same gallery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError
from fixstar.evaluation.cross_test import VersionFeatures
from fixstar.evaluation.mixed import carried_queries, stored_galleries
from fixstar.evaluation.search import nearest

__all__ = ["ClassFlips", "Flips", "FoundRows", "flips", "found_before_after"]

Labels = NDArray[np.integer[Any]]
Hits = NDArray[np.bool_]
Indices = NDArray[np.int64]


class ClassFlips(NamedTuple):
    """The flips of one class: counts of its queries."""

    label: int
    queries: int
    negative: int
    positive: int

    @property
    def net(self) -> int:
        """Queries won minus queries lost; below zero the class has lost."""
        return self.positive - self.negative


@dataclass(frozen=True, eq=False)
class Flips:
    """``negative`` and ``positive`` are query numbers, ascending; ``classes`` counts them, heaviest net loss first."""

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
        """The share of all queries that are won. Minus ``negative_rate``, it is C[t, k] - C[k, k]."""
        return len(self.positive) / self.queries


class FoundRows(NamedTuple):
    """Gallery rows found for n queries, [n, k] each, nearest first: by the old version, and by the new one."""

    before: Indices
    after: Indices


def flips(before: Hits, after: Hits, labels: Labels) -> Flips:
    """Which queries flip between two searches, from their hits [N] and the queries' classes [N].

    >>> before, after = np.array([True, True, False, False]), np.array([True, False, False, True])
    >>> found = flips(before, after, np.array([5, 5, 5, 3]))
    >>> found.negative.tolist(), found.positive.tolist(), [(c.label, c.net) for c in found.classes]
    ([1], [3], [(5, -1), (3, 1)])
    """
    old, new, classes = np.asarray(before), np.asarray(after), np.asarray(labels)
    if old.dtype != np.bool_ or new.dtype != np.bool_ or old.ndim != 1 or not len(old):
        raise InputError(f"flips compare hits, one bool a query, not empty; got {_seen(old)} and {_seen(new)}")
    if not len(old) == len(new) == len(classes) or classes.ndim != 1 or classes.dtype.kind not in "iu":
        raise InputError(
            f"flips need both searches and one integer class for the same queries; got {_seen(old)}, {_seen(new)} and "
            f"classes {_seen(classes)}"
        )
    lost, won = old & ~new, new & ~old
    names, inverse, counts = np.unique(classes, return_inverse=True, return_counts=True)
    columns = (names, counts, *(np.bincount(inverse[which], minlength=len(names)) for which in (lost, won)))
    table = (ClassFlips(*row) for row in zip(*(column.tolist() for column in columns), strict=True))
    ranked = sorted(table, key=lambda row: (row.net, -row.negative, row.label))
    return Flips(len(old), np.flatnonzero(lost), np.flatnonzero(won), tuple(ranked))


def found_before_after(
    queries: Sequence[int] | Indices,
    old: VersionFeatures,
    new: VersionFeatures,
    k: int = 1,
    *,
    shared_components: bool = False,
) -> FoundRows:
    """What chosen queries, such as ``Flips.negative``, find in the old gallery: by the old version, and by the new.

    The rows are gallery images, nearest first. By image search the first row is the answer that was right or wrong; by
    template search the answer was a class mean, and the rows are only its nearest examples.
    """
    rows = np.asarray(queries)
    if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
        raise InputError(f"queries to look up are a list of query numbers; got {_seen(rows)}")
    if not len(rows):
        return FoundRows(np.empty((0, k), np.int64), np.empty((0, k), np.int64))
    for version in (old, new):
        if rows.min() < 0 or rows.max() >= len(version.queries):
            seen = f"{rows.min()} to {rows.max()}"
            raise InputError(f"version {version.name!r} has queries 0 to {len(version.queries) - 1}; got {seen}")
    chosen = replace(new, queries=new.queries[rows], adapt=None)
    stored = stored_galleries([old, new])[0]
    (carried,) = carried_queries(chosen, [stored], shared_components=shared_components)
    return FoundRows(nearest(old.queries[rows], old.gallery, k)[0], nearest(carried, stored.gallery, k)[0])


def _seen(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"
