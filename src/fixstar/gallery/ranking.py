"""Exact scores: the k highest of each query among many rows, and queries of one version in another one's space.

A score is a product of two vectors, a cosine, or a weighted sum of two such products (``store.Question``). Products in
float32 find the candidates: everything within rounding of the k-th best. Their scores are then computed again in
float64, each from its own vectors alone, and rounded to float32. So a result does not depend on the size of the
batch, on the place of a row or on the number of threads, and equal vectors have equal scores.

A query of version t meets the vectors of version k through one small matrix, B = Q_t^T Q_k, made once per pair
(``geometry.carry``). Versions never change, so it is never made again (``Carrier``).
"""

from __future__ import annotations

import math
import os
from _thread import start_new_thread
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fixstar.gallery.filters import Payload
from fixstar.gallery.store import Floats, Hit, Question, SearchRequest, VersionSpace
from fixstar.geometry import carry, short_basis

CELLS = 1 << 22  # cosines at once: 16 MiB
CHUNK = 1 << 19  # numbers that a thread multiplies at once, at least: 2 MiB, about 0.2 ms
_LARGEST = 16  # such chunks at once, where much is left: after each one, Python's own data is out of the cache
GROUP = 64
_TILE = 9215  # numbers of a matrix that OpenBLAS multiplies in the calling thread, at most
_GATHERED = 256  # rows that are copied to be multiplied, at once
PRODUCTS = 1 << 16  # of numbers, added up at once: 512 KiB, which stays near the processor
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
THREADS = 1 + min(8, _CORES)  # where other programs compute too, one of them often waits for a core

Indices = NDArray[np.intp]
_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")


class Block(NamedTuple):
    """Rows to search, numbered from ``start``: the matrices [n, s] that queries are multiplied with, one or several.

    ``allowed`` [n] excludes rows. Where few are left, ``places`` are theirs, ascending, and no others are read; if
    ``copied``, the matrices hold no others.
    """

    start: int
    vectors: tuple[Floats, ...]
    allowed: NDArray[np.bool_] | None = None
    places: Indices | None = None
    copied: bool = False

    @property
    def size(self) -> int:
        """The number of rows that are scored."""
        return len(self.vectors[0]) if self.places is None else len(self.places)

    def part(self, some: slice) -> Block:
        """Some of its rows."""
        if self.places is not None and not self.copied:
            return self._replace(places=self.places[some])
        vectors = tuple([matrix[some] for matrix in self.vectors])
        if self.places is not None:
            return self._replace(vectors=vectors, places=self.places[some])
        return Block(
            self.start + some.start, vectors, None if self.allowed is None else self.allowed[some]
        )

    def rows(self, scored: Indices) -> Indices:
        """The numbers of some of the rows that were scored."""
        return self.start + (scored if self.places is None else self.places[scored])

    def gathered(self) -> tuple[Floats, ...]:
        """The rows to score of each matrix; a copy if they are few."""
        if self.places is None or self.copied:
            return self.vectors
        return tuple([matrix.take(self.places, axis=0) for matrix in self.vectors])


def candidates(
    blocks: Iterable[Block], queries: Sequence[Floats], k: int
) -> tuple[Indices, Indices]:
    """Pairs (query, row) that include the k best rows of each query in all blocks, and few others.

    ``queries`` are matrices [N, s], one for each matrix of a block; a score is the sum of the products with them.
    """
    slack = np.float32(rounding([one.shape[1] for one in queries]))
    if len(queries[0]) == 1:
        return _candidates_of_one(list(blocks), query=[one[0] for one in queries], k=k, slack=slack)
    floor = np.full(len(queries[0]), -2, np.float32)  # k rows at least reach it
    found: list[tuple[Indices, Indices, Floats]] = []
    for piece, scores in _scores(blocks, queries):
        floor = np.maximum(floor, _kth_at_least(scores, k))
        query, place = _at_least(scores, floor - slack)
        found.append((query, piece.rows(place), scores[query, place]))
    if not found:
        return np.empty(0, np.intp), np.empty(0, np.intp)
    query, row, score = (np.concatenate([part[i] for part in found]) for i in range(3))
    kept = score >= (floor - slack)[query]  # the floor has risen since the first blocks
    return query[kept], row[kept]


def rounding(widths: Sequence[int]) -> float:
    """Of a sum of dot products of vectors of these widths in float32, with a margin."""
    return 1e-6 * max(1.0, math.sqrt(sum(widths)) / 8)


def _candidates_of_one(
    blocks: Sequence[Block], query: Sequence[Floats], k: int, slack: np.float32
) -> tuple[Indices, Indices]:
    """The same for one query, vectors [s]: all rows are scored before any are chosen."""
    blocks = [block for block in blocks if block.size]
    if not blocks:
        return np.empty(0, np.intp), np.empty(0, np.intp)
    scores = _scores_of_one(blocks, query)
    floor = max(np.float32(-2), _kth_at_least(scores[None], k)[0])
    place = np.flatnonzero(scores >= floor - slack)
    ends = np.cumsum([block.size for block in blocks])
    parts = np.split(place, np.searchsorted(place, ends[:-1]))
    each = zip(blocks, parts, ends, strict=True)
    row = np.concatenate([block.rows(part - (end - block.size)) for block, part, end in each])
    return np.zeros(len(row), np.intp), row


def _scores(blocks: Iterable[Block], queries: Sequence[Floats]) -> Iterator[tuple[Block, Floats]]:
    """The scores [N, n] of several queries with all rows, in pieces that stay small, and each piece."""
    step = max(GROUP, CELLS // max(1, len(queries[0])) // GROUP * GROUP)
    copied = max(
        GROUP, CELLS // sum(one.shape[1] for one in queries)
    )  # rows of a copy that stays small too
    for block in blocks:
        rows = step if block.places is None else min(step, copied)
        for first in range(0, block.size, rows):
            piece = block.part(slice(first, first + rows))
            vectors = piece.gathered()
            scores = queries[0] @ vectors[0].T
            for asked, matrix in zip(queries[1:], vectors[1:], strict=True):
                scores += asked @ matrix.T
            if piece.allowed is not None:
                np.copyto(scores, -np.inf, where=~piece.allowed)
            yield piece, scores


def _scores_of_one(blocks: Sequence[Block], query: Sequence[Floats]) -> Floats:
    """The scores of one query, vectors [s], with the rows of all blocks, one block behind the other."""
    width = sum(map(len, query))
    rows = sum([block.size for block in blocks])
    threads = min(THREADS, width * rows // (2 * CHUNK))
    if threads <= 1:
        return np.concatenate([_score(block, query) for block in blocks])
    pieces = list(_pieces(blocks, left=rows, least=max(1, CHUNK // width), threads=threads))
    return np.concatenate(on_threads(lambda piece: _score(piece, query), pieces, threads))


def on_threads(
    work: Callable[[_Piece], _Result], pieces: Sequence[_Piece], threads: int
) -> list[_Result]:
    """The result of each piece of work, which this thread and others share out one by one.

    The threads of a BLAS would split every block evenly, and wait for the slowest at every one, which on a busy machine
    costs more than the product. Here the only wait is for pieces that were begun. Median times of scores of one query
    on two busy cores, against ``matrix @ query``:

        20,000 x 128     one caller 0.9 ms against 9 ms,    four callers 0.9 ms against 30 ms
        100,000 x 512    one caller 31 ms against 28 ms,    four callers 84 ms against 175 ms
    """
    if threads == 1 or len(pieces) < 2:
        return [work(piece) for piece in pieces]
    waiting = iter(range(len(pieces)))
    finished: SimpleQueue[tuple[int, _Result | Exception]] = SimpleQueue()

    def share() -> None:
        for place in waiting:
            try:
                finished.put((place, work(pieces[place])))
            except Exception as error:
                finished.put((place, error))

    for _ in range(min(threads, len(pieces)) - 1):
        # threading.Thread.start waits until the thread runs. On two busy cores it took 129 us, and 6 ms once in 100
        # times; this takes 23 and 45 us. A pool's submit takes as little, but a pool has no threads after a fork.
        start_new_thread(share, ())
    share()
    results: dict[int, _Result] = {}
    for _ in pieces:
        place, result = finished.get()
        if isinstance(result, Exception):
            raise result
        results[place] = result
    return [results[place] for place in range(len(pieces))]


def _pieces(blocks: Sequence[Block], left: int, least: int, threads: int) -> Iterator[Block]:
    """All rows, ``left`` of them, in pieces that get smaller, so that all threads finish at about the same time."""
    for block in blocks:
        first = 0
        size = block.size
        while first < size:
            part = slice(first, first + min(_LARGEST * least, max(least, left // (4 * threads))))
            yield block if part.stop - first >= size else block.part(part)
            left -= part.stop - first
            first = part.stop


def _score(block: Block, query: Sequence[Floats]) -> Floats:
    """[n]: the scores of a query."""
    places = None if block.copied else block.places
    scores = _product(block.vectors[0], query[0], places)
    for matrix, asked in zip(block.vectors[1:], query[1:], strict=True):
        scores += _product(matrix, asked, places)
    if block.allowed is not None:
        scores[~block.allowed] = -np.inf
    return scores


def _product(vectors: Floats, query: Floats, places: Indices | None) -> Floats:
    """[n]: the products of vectors [n, s], or of those at ``places``, and a query [s], in the calling thread."""
    if places is not None:
        return _gathered_product(vectors, query, places)
    out = np.empty(len(vectors), np.float32)
    size = max(1, _TILE // len(query))
    whole = len(vectors) // size * size
    np.matmul(
        vectors[:whole].reshape(-1, size, len(query)), query, out=out[:whole].reshape(-1, size)
    )
    np.matmul(vectors[whole:], query, out=out[whole:])
    return out


def _gathered_product(vectors: Floats, query: Floats, places: Indices) -> Floats:
    """[n]: the same for few rows, which are copied a few at a time, so that they are still in the cache."""
    out = np.empty(len(places), np.float32)
    size = max(1, _TILE // len(query))
    tiles = max(1, _GATHERED // size)
    copy = np.empty((tiles * size, len(query)), np.float32)
    for start in range(0, len(places), len(copy)):
        some = places[start : start + len(copy)]
        gathered = vectors.take(
            some, axis=0, out=copy[: len(some)], mode="clip"
        )  # other modes fill a copy of out
        out[start : start + len(some)] = _product(gathered, query, None)
    return out


def _kth_at_least(scores: Floats, k: int) -> Floats:
    """[N]: a lower bound of the k-th best of each line: the k-th best maximum of groups, if there are enough."""
    lines, n = scores.shape
    if n // GROUP >= k:
        scores = (
            scores[:, : n // GROUP * GROUP].reshape(lines, GROUP, -1).max(axis=1)
        )  # the faster axis
    elif n < k:
        return np.full(lines, -2, np.float32)
    kth: Floats = np.partition(scores, -k, axis=1)[:, -k]
    return kth


def _at_least(scores: Floats, floor: Floats) -> tuple[Indices, Indices]:
    query, place = np.divmod(
        np.flatnonzero(scores >= floor[:, None]), scores.shape[1]
    )  # np.nonzero is much slower
    return query, place


def exact_cosines(vectors: Floats, queries: NDArray[np.float64], query: Indices) -> Floats:
    """[pairs] float32: the cosines of pairs; ``vectors`` has one row per pair."""
    return as_scores(exact_products(vectors, queries, query))


def exact_products(
    vectors: Floats, queries: NDArray[np.floating[Any]], query: Indices
) -> NDArray[np.float64]:
    """[pairs]: the products of pairs with queries in float64; ``vectors`` has one row per pair."""
    out = np.empty(len(query))
    block = 1 + PRODUCTS // vectors.shape[1]
    for start in range(0, len(query), block):
        part = slice(start, start + block)
        out[part] = paired_products(
            vectors[part], queries if len(queries) == 1 else queries[query[part]]
        )
    return out


def paired_products(vectors: Floats, queries: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """[n]: the products of vectors [n, s] with a query each, or with one [1, s]."""
    products: NDArray[np.float64] = np.add.reduce(vectors * queries, axis=1)
    return products


def as_scores(products: NDArray[np.float64]) -> Floats:
    """[n] float32: scores from -1 to 1."""
    scores: Floats = products.astype(np.float32)
    return np.minimum(
        np.maximum(scores, -1, out=scores), 1, out=scores
    )  # lengths are 1 only up to rounding


def first_of_each(
    query: Indices, rank: NDArray[np.floating[Any]], number: NDArray[np.int64], k: int
) -> Indices:
    """The k pairs of each query with the highest ranks, best first; among equals the lowest number first.

    >>> first_of_each(np.array([0, 0, 0]), np.array([0.5, 0.9, 0.9], np.float32), np.array([1, 8, 7]), 2)
    array([2, 1])
    """
    order = np.lexsort((number, -rank, query))
    line = query[order]
    place = np.arange(len(order)) - np.searchsorted(line, line)
    return order[place < k]


def scored(k: int) -> int:
    """How many candidates, found by their own vectors, are scored in full for k hits: fewer would cost matches."""
    return max(100, 10 * k)


def in_float64(question: Question) -> Question:
    """The same with queries in float64."""
    own = question.own.astype(np.float64)
    if question.new is None:
        return replace(question, own=own)
    return replace(question, own=own, new=question.new.astype(np.float64))


class Carrier:
    """Carries queries from one version's space to another's. Its matrices are made when first needed. Thread-safe.

    ``projection`` returns P [d, m] of a version, or None if its vectors are full features.
    """

    def __init__(self, projection: Callable[[str], NDArray[np.float32] | None]) -> None:
        self._projection = projection
        self._bases: dict[str, NDArray[np.float64] | None] = {}
        self._matrices: dict[tuple[str, str], NDArray[np.float64]] = {}

    def carried(
        self, queries: NDArray[np.float32], source: VersionSpace, target: VersionSpace
    ) -> NDArray[np.float64]:
        """Queries [N, source width] as [N, target width]; dot products there are cosines of full features."""
        wide = queries.astype(np.float64)
        if source.name == target.name:
            return wide
        old = self._basis(source.name)
        new = self._basis(target.name)
        if old is None or new is None:
            return carry(wide, Q_from=old, Q_to=new, width=target.full_width)
        pair = source.name, target.name
        if pair not in self._matrices:
            self._matrices[pair] = carry(
                np.eye(source.width), Q_from=old, Q_to=new, width=target.full_width
            )
        return wide @ self._matrices[pair]

    def _basis(self, name: str) -> NDArray[np.float64] | None:
        """Q [d, s] of a version."""
        if name not in self._bases:
            projection = self._projection(name)
            if projection is None:
                self._bases[name] = None
            else:
                self._bases[name] = short_basis(projection.astype(np.float64))
        return self._bases[name]


class Candidate(NamedTuple):
    """An item that a server found for a query.

    ``rank`` orders the scores of several versions. ``number`` grows in the order of writing. ``source`` is the payload.
    """

    query: int
    id: str
    version: str
    score: float
    rank: float
    number: int
    source: Any


def best_hits(
    found: Iterable[Candidate],
    queries: int,
    request: SearchRequest,
    payload: Callable[[Candidate], Payload],
) -> list[list[Hit]]:
    """The k best of each query, equal ranks in the order of writing; of an item found twice the last write counts."""
    last: dict[tuple[int, str], Candidate] = {}
    for one in found:
        key = (one.query, one.id)
        if key not in last or last[key].number < one.number:
            last[key] = one
    hits: list[list[Hit]] = [[] for _ in range(queries)]
    least = -2.0 if request.min_score is None else request.min_score
    for one in sorted(last.values(), key=lambda one: (-one.rank, one.number)):
        if one.score >= least and len(hits[one.query]) < request.k:
            hits[one.query].append(Hit(one.id, one.score, one.version, payload(one)))
    return hits
