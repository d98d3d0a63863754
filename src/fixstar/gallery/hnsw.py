"""An approximate index of one version's rows: FAISS's HNSW graph over them, with 8 bits a number.

The index is a cache, derived from the rows and never the truth. It finds rows that are likely among the nearest; their
cosines are then computed from the vectors themselves. Rows that are gone are passed over, rows written after the
newest one in the index are looked at one by one, so an index that is behind costs time and never an item.

A quarter of the memory is a quarter of what a search reads, and 8 bits are enough to find candidates: all that may be
among the nearest, for all that the rounding hides, are looked at again. The graph is made by distances, which do not
see that the mean was taken off, and searched by products, whose ranking does not depend on the length of the query.
"""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import MissingExtraError
from fixstar.gallery.codes import Codes, fitted_codes
from fixstar.gallery.large_pages import use_large_pages
from fixstar.gallery.matrix import Rows
from fixstar.gallery.ranking import Floats, Indices, exact_cosines, first_of_each
from fixstar.gallery.segments import Mask, Numbers

__all__ = ["KIND", "HnswIndex", "build_hnsw", "engine", "row_digests"]

KIND = "FAISS HNSW"
LINKS = 32  # of a row to others (M)
BREADTH_BUILDING = 100  # candidates kept while a row is linked (efConstruction)
BREADTH = 40  # candidates kept by a search (efSearch), more where some rows are left out
_SPARE = 6  # asked for beyond k, at least: rounding may swap neighbours
_LEAST = 8  # where fewer than an eighth of the rows may be found, looking at all of those is as fast, and exact
_CHUNK = 128  # rows linked between two looks at whether to go on: some 0.1 s
_PAGE = 4096  # rows looked at once
_SAMPLE, _NEAREST = 200, 10  # queries and results of the recall that is stated

Digests = NDArray[np.uint32]


class _Choice(NamedTuple):
    """Which rows of the graph may be found: how many, and which ones if not all."""

    size: int
    mask: Mask | None


class HnswIndex:
    """A graph whose nodes 0, 1, ... are the rows of these ``numbers``, as ``codes``; see ``RowIndex``.

    ``digests`` tell whether the vectors are the ones that it was built from; ``recall`` is what was measured then.
    """

    def __init__(self, graph: Any, numbers: Numbers, digests: Digests, codes: Codes, recall: float | None) -> None:
        self.graph, self.numbers, self.digests, self.codes, self.recall = graph, numbers, digests, codes, recall
        self.last = int(numbers[-1])
        stored, links = engine().downcast_index(graph.storage).codes, graph.hnsw.neighbors
        use_large_pages(int(stored.data()), stored.size())
        use_large_pages(int(links.data()), 4 * links.size())
        self._lock = threading.Lock()
        self._places: tuple[int, Indices] | None = None  # the rows of the nodes, in one layout
        self._chosen: tuple[int, Mask | None, _Choice] | None = None
        self._whole: tuple[weakref.ref[Rows], Indices] | None = None  # the last rows that it had all of, and no others

    def candidates(self, rows: Rows, queries: Floats, k: int, allowed: Mask | None) -> tuple[Indices, Indices]:
        """Pairs (query, row) that hold most of the k nearest of each query [N, width]."""
        if len(queries) == 1 and allowed is None and (row := self._likely(rows, queries, k)) is not None:
            return np.zeros(len(row), np.intp), row
        place, choice = self._look(rows, allowed)
        if max(k, _LEAST) * _LEAST > choice.size or choice.size * _LEAST < len(self.numbers):
            return rows.candidates(queries, k, allowed)
        query, node = self._ask(queries, k, choice)
        found, count = [(query, place[node])], np.bincount(query, minlength=len(queries))
        if count.min() < k:  # nearly all around some may not be found
            missed = np.flatnonzero(count < k)
            query, row = rows.candidates(queries[missed], k, allowed)
            found.append((missed[query], row))
        if (first := rows.after(self.last)) < rows.end:
            found.append(rows.candidates(queries, k, allowed, first))
        if len(found) == 1:
            return found[0]
        pairs = np.unique(np.concatenate([query * rows.end + row for query, row in found]))
        return pairs // rows.end, pairs % rows.end

    def _likely(self, rows: Rows, query: Floats, k: int) -> Indices | None:
        """The rows of ``candidates`` for one query [1, width]; None if rows came or went since the graph was made.

        In few steps: a search of the graph leaves little else in the processor's cache, so each costs several times
        what it seems to.
        """
        whole = self._whole
        if whole is None or whole[0]() is not rows:
            whole = self._whole = self._all_of(rows)
        breadth = max(BREADTH, k + _SPARE)
        if whole is None or max(k, _LEAST) * _LEAST > len(self.numbers):
            return None
        codes, rounding = self.codes.of_one_query(query)
        score, nodes = self.graph.search(codes, breadth, params=_parameters(breadth))
        if nodes[0, k - 1] < 0:
            return None
        count = np.count_nonzero(score >= score[0, k - 1] - rounding)  # nearest first
        row: Indices = whole[1][nodes[0, :count]]
        return row

    def _all_of(self, rows: Rows) -> tuple[weakref.ref[Rows], Indices] | None:
        place, choice = self._look(rows, rows.allowed(None))
        if choice.mask is not None or rows.after(self.last) < rows.end:
            return None
        return weakref.ref(rows), place

    def lag(self, rows: Rows) -> tuple[int, int]:
        """How many rows came since, and how many in the index are gone."""
        came = rows.count_from(rows.after(self.last))
        return came, len(self.numbers) - (len(rows) - came)

    def _ask(self, queries: Floats, k: int, choice: _Choice) -> tuple[Indices, Indices]:
        """Pairs (query, node): nodes that may be found and may be among the k nearest, as far as the graph knows."""
        breadth = max(BREADTH, k + _SPARE)
        if choice.mask is not None:
            breadth = max(breadth, 5 * (k + _SPARE) // 2) * len(self.numbers) // choice.size + 1
        codes, rounding = self.codes.of_queries(queries)
        score, nodes = self.graph.search(codes, breadth, params=_parameters(breadth))
        good = nodes >= 0
        if choice.mask is None:
            kth = score[:, k - 1 : k]  # nearest first
        else:
            good &= choice.mask[nodes]
            kth = np.sort(np.where(good, score, -np.inf), axis=1)[:, -k, None]
        good &= score >= kth - rounding
        return good.nonzero()[0], nodes[good]

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


@lru_cache(maxsize=64)
def _parameters(breadth: int) -> Any:
    """FAISS's parameters of a search; searches side by side only read them."""
    return engine().SearchParametersHNSW(efSearch=breadth)


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

    There must be rows. Sets the number of threads that FAISS uses in the calling thread.
    """
    faiss = engine()
    faiss.omp_set_num_threads(threads)
    if base is None:
        kind = faiss.ScalarQuantizer.QT_8bit_direct_signed
        graph = faiss.IndexHNSWSQ(rows.width, kind, LINKS, faiss.METRIC_L2)
        graph.hnsw.efConstruction = BREADTH_BUILDING
        first_look, second_look = ((vectors for _, vectors in rows.pages(0, _PAGE)) for _ in range(2))
        codes = fitted_codes(first_look, second_look, rows.width)
        numbers, digests, first = [], [], 0
    else:
        graph, codes, first = faiss.clone_index(base.graph), base.codes, rows.after(base.last)
        numbers, digests = [base.numbers], [base.digests]
        _measure_by(graph, faiss.METRIC_L2)
    for some, vectors in rows.pages(first, _CHUNK * threads):
        if not going_on():
            return None
        graph.add(codes.of(vectors))
        numbers.append(some)
        digests.append(row_digests(vectors))
    _measure_by(graph, faiss.METRIC_INNER_PRODUCT)
    index = HnswIndex(graph, np.concatenate(numbers), np.concatenate(digests), codes, None)
    index.recall = _recall(index, rows, going_on)
    return None if index.recall is None else index


def _measure_by(graph: Any, metric: int) -> None:
    """What adding and searching goes by from now on; what is stored stays as it is.

    On features of a ReLU, efSearch 40: .99 of the true nearest, as without codes; by products alone .21 to .79.
    """
    graph.metric_type = engine().downcast_index(graph.storage).metric_type = metric
    if hasattr(graph.hnsw, "is_similarity"):  # newer ones keep it here as well
        graph.hnsw.is_similarity = metric == engine().METRIC_INNER_PRODUCT


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
    cosine = exact_cosines(rows.vectors(row), query.astype(np.float64), pairs[0])
    return set(row[first_of_each(pairs[0], cosine, rows.numbers(row), _NEAREST)].tolist())
