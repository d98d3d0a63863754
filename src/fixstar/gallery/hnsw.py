"""An approximate index of one version's rows: FAISS's HNSW graph over them, in half precision.

The index is a cache, derived from the rows and never the truth. It finds rows that are likely among the nearest; their
cosines are then computed from the vectors themselves. Rows that are gone are passed over, rows written after the
newest one in the index are looked at one by one, so an index that is behind costs time and never an item.

Half precision halves what the second copy of the vectors takes, and is enough to find candidates.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import MissingExtraError
from fixstar.gallery.matrix import Rows
from fixstar.gallery.ranking import Floats, Indices, exact_cosines, first_of_each
from fixstar.gallery.segments import Mask, Numbers

__all__ = ["KIND", "HnswIndex", "build_hnsw", "engine", "row_digests"]

KIND = "FAISS HNSW"
LINKS = 32  # of a row to others (M)
BREADTH_BUILDING = 100  # candidates kept while a row is linked (efConstruction)
BREADTH = 40  # candidates kept by a search (efSearch), more where some rows are left out
_SPARE = 6  # asked for beyond k: half precision may swap neighbours
_LEAST = 8  # where fewer than an eighth of the rows may be found, looking at all of those is as fast, and exact
_CHUNK = 128  # rows linked between two looks at whether to go on: some 0.1 s
_SAMPLE, _NEAREST = 200, 10  # queries and results of the recall that is stated

Digests = NDArray[np.uint32]


class _Choice(NamedTuple):
    """Which rows of the graph may be found: how many, and which ones if not all."""

    size: int
    mask: Mask | None


class HnswIndex:
    """A graph whose nodes 0, 1, ... are the rows of these ``numbers``; see ``RowIndex``.

    ``digests`` tell whether the vectors are the ones that it was built from; ``recall`` is what was measured then.
    """

    def __init__(self, graph: Any, numbers: Numbers, digests: Digests, recall: float | None) -> None:
        self.graph, self.numbers, self.digests, self.recall = graph, numbers, digests, recall
        self.last = int(numbers[-1])
        self._lock = threading.Lock()
        self._places: tuple[int, Indices] | None = None  # the rows of the nodes, in one layout
        self._chosen: tuple[int, Mask | None, _Choice] | None = None

    def candidates(self, rows: Rows, queries: Floats, k: int, allowed: Mask | None) -> tuple[Indices, Indices]:
        """Pairs (query, row) that hold most of the k nearest of each query [N, width]."""
        place, choice = self._look(rows, allowed)
        if max(k, _LEAST) * _LEAST > choice.size or choice.size * _LEAST < len(self.numbers):
            return rows.candidates(queries, k, allowed)
        nodes = self._ask(queries, k + _SPARE, choice)
        query, column = np.nonzero(nodes >= 0)
        found = [(query, place[nodes[query, column]])]
        missed = np.flatnonzero(np.count_nonzero(nodes >= 0, axis=1) < k)  # nearly all around them may not be found
        if len(missed):
            query, row = rows.candidates(queries[missed], k, allowed)
            found.append((missed[query], row))
        if (first := rows.after(self.last)) < rows.end:
            found.append(rows.candidates(queries, k, allowed, first))
        if len(found) == 1:
            return found[0]
        pairs = np.unique(np.concatenate([query * rows.end + row for query, row in found]))
        return pairs // rows.end, pairs % rows.end

    def lag(self, rows: Rows) -> tuple[int, int]:
        """How many rows came since, and how many in the index are gone."""
        came = rows.count_from(rows.after(self.last))
        return came, len(self.numbers) - (len(rows) - came)

    def _ask(self, queries: Floats, wanted: int, choice: _Choice) -> NDArray[np.int64]:
        """[N, some]: so many of the nearest nodes that may be found, as far as they are among the nearest of all."""
        params = engine().SearchParametersHNSW
        if choice.mask is None:
            nodes: NDArray[np.int64] = self.graph.search(queries, wanted, params=params(efSearch=max(BREADTH, wanted)))[
                1
            ]
            return nodes
        breadth = max(BREADTH, 2 * wanted) * len(self.numbers) // choice.size + 1
        nodes = self.graph.search(queries, breadth, params=params(efSearch=breadth))[1]
        good = (nodes >= 0) & choice.mask[nodes]
        nodes[~good | (np.cumsum(good, axis=1) > wanted)] = -1  # nearest first
        return nodes

    def _look(self, rows: Rows, allowed: Mask | None) -> tuple[Indices, _Choice]:
        """Where the nodes' rows are now, and which of them may be found; kept until the rows change."""
        with self._lock:  # searches run side by side
            if self._places is None or self._places[0] != rows.layout:
                self._places, self._chosen = (rows.layout, rows.find(self.numbers)), None
            place = self._places[1]
            if self._chosen is None or self._chosen[0] != rows.layout or self._chosen[1] is not allowed:
                self._chosen = rows.layout, allowed, _choice(place, allowed)
            return place, self._chosen[2]


def _choice(place: Indices, allowed: Mask | None) -> _Choice:
    mask = place >= 0
    if allowed is not None:
        mask &= allowed[place]
    size = int(np.count_nonzero(mask))
    return _Choice(size, None if size == len(mask) else mask)


def engine() -> Any:
    """FAISS, or an error that says how to get it."""
    try:
        return importlib.import_module("faiss")
    except ImportError as error:
        raise MissingExtraError("faiss-cpu", "index", "an approximate index of an embedded gallery") from error


def build_hnsw(
    rows: Rows, going_on: Callable[[], bool], threads: int = 1, base: HnswIndex | None = None
) -> HnswIndex | None:
    """The index of all rows, made anew or from ``base`` and what came since; None if it was told not to go on.

    Sets the number of threads that FAISS uses in the calling thread.
    """
    faiss = engine()
    faiss.omp_set_num_threads(threads)
    if base is None:
        graph = faiss.IndexHNSWSQ(rows.width, faiss.ScalarQuantizer.QT_fp16, LINKS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = BREADTH_BUILDING
        numbers, digests, first = [], [], 0
    else:
        graph, first = faiss.clone_index(base.graph), rows.after(base.last)
        numbers, digests = [base.numbers], [base.digests]
    for some, vectors in rows.pages(first, _CHUNK * threads):
        if not going_on():
            return None
        graph.add(vectors)
        numbers.append(some)
        digests.append(row_digests(vectors))
    index = HnswIndex(graph, np.concatenate(numbers), np.concatenate(digests), None)
    index.recall = _recall(index, rows, going_on)
    return None if index.recall is None else index


def row_digests(vectors: Floats) -> Digests:
    """[n]: a number that depends on every bit of a vector [n, width]."""
    weights = np.random.default_rng(0).integers(1 << 31, size=vectors.shape[1], dtype=np.uint32) * np.uint32(
        2
    ) + np.uint32(1)
    digests: Digests = np.ascontiguousarray(vectors, "<f4").view("<u4") @ weights
    return digests


def _recall(index: HnswIndex, rows: Rows, going_on: Callable[[], bool]) -> float | None:
    """The share of the true nearest that are found, asked with stored vectors; None if told not to go on."""
    row = rows.find(index.numbers)
    row = row[row >= 0]
    asked = rows.vectors(row[np.linspace(0, len(row) - 1, min(_SAMPLE, len(row))).astype(np.intp)])
    allowed, found, there = rows.allowed(None), 0, 0
    for query in asked:
        if not going_on():
            return None
        one = query[None]
        exact = _nearest(rows, one, rows.candidates(one, _NEAREST, allowed))
        quick = _nearest(rows, one, index.candidates(rows, one, _NEAREST, allowed))
        found, there = found + len(exact & quick), there + len(exact)
    return found / there


def _nearest(rows: Rows, query: Floats, pairs: tuple[Indices, Indices]) -> set[int]:
    row = pairs[1]
    cosine = exact_cosines(rows.vectors(row), query.astype(np.float64), pairs[0], np.arange(len(row)))
    return set(row[first_of_each(pairs[0], cosine, rows.numbers(row), _NEAREST)].tolist())
