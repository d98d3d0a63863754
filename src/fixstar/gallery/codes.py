"""Vectors as whole numbers of 8 bits, for an index that only has to find candidates.

The mean is taken off first: many features share a large one, and it changes no ranking. What is left is spread over the
codes; the few components beyond eight times the usual size are cut off there, so that one odd vector does not cost all
others their precision. Each query has a scale of its own, which changes no ranking either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fixstar.gallery.ranking import Floats

__all__ = ["Codes", "fitted_codes"]

_LARGEST = 127
_REACH = 8  # root mean squares of a component
_TINY = 1e-30  # of queries that are 0 in another version's space
_ROUNDING = 1.2  # three standard deviations of the difference of two products: 3 sqrt(2 / 12)


@dataclass(frozen=True, eq=False)
class Codes:
    """(vector - mean) * scale, in whole numbers from -127 to 127, usually of that ``length``; float32 for FAISS."""

    mean: Floats
    scale: float
    length: float

    def of(self, vectors: Floats) -> Floats:
        """[N, width] of vectors."""
        codes = vectors - self.mean
        codes *= np.float32(self.scale)
        return np.clip(np.rint(codes, out=codes), -_LARGEST, _LARGEST, out=codes)

    def of_one_query(self, query: Floats) -> tuple[Floats, float]:
        """[1, width] of a query, and by how much rounding may change the difference of its products with two vectors.

        A component of either is off by 1 / sqrt(12) of a code.
        """
        codes = query * np.float32(_LARGEST / max(float(np.maximum.reduce(np.abs(query), axis=None)), _TINY))
        np.rint(codes, out=codes)
        return codes, _ROUNDING * math.sqrt(float(np.dot(codes[0], codes[0])) + self.length**2)

    def of_queries(self, queries: Floats) -> tuple[Floats, Floats]:
        """[N, width] and [N, 1]: the same of many."""
        codes = queries * (_LARGEST / np.maximum(np.abs(queries).max(axis=1, keepdims=True), np.float32(_TINY)))
        np.rint(codes, out=codes)
        squares = np.einsum("ij,ij->i", codes, codes)[:, None]
        return codes, _ROUNDING * np.sqrt(squares + np.float32(self.length**2))


def fitted_codes(pages: Iterable[Floats], again: Iterable[Floats], width: int) -> Codes:
    """The codes for vectors that come page by page, and a second time."""
    total, count = np.zeros(width), 0
    for vectors in pages:
        total += vectors.sum(axis=0, dtype=np.float64)
        count += len(vectors)
    mean = (total / max(count, 1)).astype(np.float32)
    squares, largest = 0.0, 0.0
    for vectors in again:
        off = vectors - mean
        squares += float(np.einsum("ij,ij->", off, off, dtype=np.float64))
        largest = max(largest, float(np.abs(off).max(initial=0)))
    usual = math.sqrt(squares / max(count * width, 1))
    scale = _LARGEST / max(min(largest, _REACH * usual), _TINY)
    return Codes(mean, scale, scale * usual * math.sqrt(width))
