"""Vectors on their way to and from pgvector, many at once and to the bit.

A vector travels as two 16-bit integers (its width, and 0) and its numbers as float32, all big-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError

if TYPE_CHECKING:
    from fixstar.gallery.postgres.connection import Database

__all__ = ["copy_vectors", "index_type", "read_vectors", "vector_text"]

_HEADER = 4  # bytes before the numbers
_COPY_START = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_END = b"\xff\xff"
_ROWS = 4096
_INDEXED = 2_000  # numbers in a vector that pgvector can index as it is
_INDEXED_HALVES = 4_000  # and in half precision


def index_type(width: int) -> str:
    """The type under which vectors are indexed; empty where pgvector has no index for them.

    >>> index_type(512), index_type(3000), index_type(5000)
    ('vector(512)', 'halfvec(3000)', '')
    """
    if width <= _INDEXED:
        return f"vector({width})"
    return f"halfvec({width})" if width <= _INDEXED_HALVES else ""


def vector_text(vector: NDArray[np.float32]) -> str:
    """A vector [width] as pgvector reads it."""
    return f"[{','.join(map(repr, vector.tolist()))}]"


def read_vectors(parts: Sequence[bytes], width: int) -> NDArray[np.float32]:
    """[parts, width] of what ``vector_send`` gave."""
    size = _HEADER + 4 * width
    if any(len(part) != size for part in parts):
        raise GalleryError(f"a vector is damaged: it has not {width} numbers; restore the gallery from a copy")
    raw = np.frombuffer(b"".join(parts), np.uint8).reshape(len(parts), size)
    return np.ascontiguousarray(raw[:, _HEADER:]).view(">f4").astype(np.float32)


def copy_vectors(db: Database, number: int, numbers: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
    """Write vectors [N, width] of the items numbered ``numbers`` to the table of a version, in COPY's binary format."""
    width = vectors.shape[1]
    row = np.dtype(
        [
            ("columns", ">i2"),
            ("number_size", ">i4"),
            ("number", ">i8"),
            ("vector_size", ">i4"),
            ("width", ">i2"),
            ("unused", ">i2"),
            ("vector", ">f4", (width,)),
        ]
    )
    with db.cursor().copy(f"COPY vectors_{number} (number, vector) FROM STDIN (FORMAT BINARY)") as copy:
        copy.write(_COPY_START)
        for start in range(0, len(vectors), _ROWS):
            part = vectors[start : start + _ROWS]
            rows = np.zeros(len(part), row)
            rows["columns"], rows["number_size"], rows["vector_size"] = 2, 8, _HEADER + 4 * width
            rows["number"], rows["width"], rows["vector"] = numbers[start : start + _ROWS], width, part
            copy.write(rows.tobytes())
        copy.write(_COPY_END)
