"""A copy of stored vectors with 8 bits per component: one exact query then reads a quarter of the bytes.

A search for one query waits for memory: every vector is read once, and little is computed with it. So blocks of vectors
are also kept as codes, and for each block the largest distance E between a vector and its code. By Cauchy and Schwarz
the score of a row is no further than |query| E from the score of its code. That is a bound, not an estimate:

    low = score of the code - |query| E  <=  score of the row  <=  score of the code + |query| E = high

The k-th highest ``low`` is a lower bound of the k-th best score, so only rows whose ``high`` reaches it can be among
the best. They are scored again from the vectors themselves, and answers stay exact. A block tells its nearest few by
codes; if even the last of them could be among the best, others could be too, and the whole block is scored as without
codes. With a filter the codes of what does not pass are skipped: a filter that goes against the query raises no doubt.

FAISS makes the codes and scans them. Without it there are none.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError
from fixstar.gallery import ranking
from fixstar.gallery.ranking import Block, Indices, candidates, on_threads
from fixstar.gallery.store import Floats

MOST_HITS = 250  # with more, too many rows of each block are in doubt
NUMBERS = 1 << 21  # of a block
_NEAREST = 100  # rows that a block tells, at least,
_PER_HIT = 4  # and so many for each hit
_USELESS = (
    0.5  # of the searches were in doubt about a block: reading its codes costs more than it saves
)
_MEMORY = 0.1  # how much one search counts in that share


@cache
def are_available() -> bool:
    """Whether codes can be made."""
    return find_spec("faiss") is not None


def rows_per_block(width: int) -> int:
    """How many vectors are coded together."""
    return max(1, NUMBERS // width)


class Nearest(NamedTuple):
    """The nearest ``places`` of a block by codes, how far their scores may be from ``scores``, and the same of others.

    No other row of the block that passes scores more than ``highest_other``; if there is no other, that is -inf.
    """

    places: NDArray[np.int64]
    scores: NDArray[np.float64]
    doubt: float
    highest_other: float


class CodedBlock:
    """The codes of some vectors [n, width], without their mean, and the largest distance of a vector to its code."""

    def __init__(self, vectors: Floats) -> None:
        self._faiss = importlib.import_module("faiss")
        kind = self._faiss.ScalarQuantizer.QT_8bit_uniform
        width = vectors.shape[1]
        self._mean = vectors.mean(axis=0)
        rest = vectors - self._mean
        self._index = self._faiss.IndexScalarQuantizer(
            width, kind, self._faiss.METRIC_INNER_PRODUCT
        )
        threads = self._faiss.omp_get_max_threads()
        self._faiss.omp_set_num_threads(1)  # of this thread
        self._index.train(rest)
        self._index.add(rest)
        codes = self._index.reconstruct_n(0, len(vectors)).astype(np.float64)
        scores, places = self._index.search(vectors[:1], len(vectors))
        self._faiss.omp_set_num_threads(threads)
        off = vectors.astype(np.float64) - self._mean - codes
        self.error = float(np.sqrt(np.einsum("ij,ij->i", off, off).max()))
        self._rounding = (
            1e-6 + max(64, width) * 2.0**-22
        )  # of sums in float32 and of scores: more than enough
        self._in_doubt = (
            0.0  # the share of searches that were in doubt about it, in the mean over the last ones
        )
        if (np.abs(scores[0] - codes[places[0]] @ vectors[0]) > self._rounding).any():
            raise GalleryError(
                f"FAISS {self._faiss.__version__} rounds the queries that it multiplies codes with, so nothing can be "
                "said for certain; install another version"
            )

    @property
    def helps(self) -> bool:
        """Whether its codes save time; they do not if many vectors are nearly equal."""
        return self._in_doubt < _USELESS

    def nearest(self, query: Floats, k: int, allowed: NDArray[np.bool_] | None = None) -> Nearest:
        """What the codes say about a query [width] for k hits among the ``allowed`` rows [n]; None allows all."""
        wide = query.astype(np.float64)
        passing = self._index.ntotal if allowed is None else int(np.count_nonzero(allowed))
        count = min(passing, max(_NEAREST, _PER_HIT * k))
        if not count:
            return Nearest(np.empty(0, np.int64), np.empty(0), doubt=0.0, highest_other=-np.inf)
        if allowed is None:
            selected = {}
        else:
            bits = np.packbits(allowed, bitorder="little")
            selector = self._faiss.IDSelectorBitmap(bits)
            selected = {"params": self._faiss.SearchParameters(sel=selector)}
        threads = self._faiss.omp_get_max_threads()
        self._faiss.omp_set_num_threads(1)  # other threads scan other blocks
        found, places = self._index.search(query[None], count, **selected)
        self._faiss.omp_set_num_threads(threads)
        scores = found[0].astype(np.float64) + wide @ self._mean
        length = float(np.sqrt(wide @ wide))
        doubt = length * self.error + max(1.0, length) * self._rounding
        highest_other = float(scores[-1]) + doubt if count < passing else -np.inf
        return Nearest(places=places[0], scores=scores, doubt=doubt, highest_other=highest_other)

    def note(self, in_doubt: bool) -> None:
        """Take in whether a search was in doubt about this block."""
        self._in_doubt += _MEMORY * (in_doubt - self._in_doubt)


def candidates_by_codes(
    coded: Sequence[tuple[CodedBlock, Block]], others: Sequence[Block], query: Floats, k: int
) -> tuple[Indices, Indices]:
    """See ``ranking.candidates``: for one query [1, width] and blocks with codes, and others without."""
    used = [(codes, block) for codes, block in coded if codes.helps]
    left = [*others, *(block for codes, block in coded if not codes.helps)]
    told = on_threads(
        lambda one: one[0].nearest(query[0], k, one[1].allowed), used, ranking.THREADS
    )
    low = np.concatenate([one.scores - one.doubt for one in told] or [np.empty(0)])
    least = np.partition(low, -k)[-k] if len(low) >= k else -np.inf  # k rows reach it
    rows: list[Indices] = []
    for (codes, block), one in zip(used, told, strict=True):
        in_doubt = one.highest_other >= least and one.highest_other > -np.inf
        codes.note(in_doubt)
        if in_doubt:
            left.append(block)
        else:
            rows.append(block.rows(one.places[one.scores + one.doubt >= least]))
    rows.append(candidates(left, [query], k)[1])
    row = np.concatenate(rows)
    return np.zeros(len(row), np.intp), row
