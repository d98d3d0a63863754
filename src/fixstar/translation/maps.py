"""Maps from one model's vectors to another's: a few products in NumPy, so that searching needs no torch.

A map is one or more layers. A layer takes unit vectors x [N, a] to unit vectors [N, b]:

    linear      unit(x W + c)                               W [a, b], c [b]
    residual    unit(x W + c + relu(x A + e) B)             A [a, h], e [h], B [h, b]

Maps in a row are a map: from v1 to v2, then from v2 to v3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError, ModelError
from fixstar.geometry import unit

Floats = NDArray[np.floating[Any]]
Vectors = NDArray[np.float32]

LINEAR = {"W": "ab", "c": "b"}
"""The arrays of every layer, and their dimensions by letter."""
RESIDUAL = {"A": "ah", "e": "h", "B": "hb"}
"""The arrays that a residual layer has beside those."""

_BLOCK = 8192  # rows at a time
_LENGTH_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class Layer:
    """The arrays of one layer, float32; the last three are None in a linear one."""

    W: Vectors
    c: Vectors
    A: Vectors | None = None
    e: Vectors | None = None
    B: Vectors | None = None

    def __post_init__(self) -> None:
        for name, array in checked_arrays(self.arrays()).items():
            object.__setattr__(self, name, array)

    def arrays(self) -> dict[str, Vectors]:
        """Those it has, by name."""
        named = {name: getattr(self, name) for name in (*LINEAR, *RESIDUAL)}
        return {name: array for name, array in named.items() if array is not None}

    @property
    def widths(self) -> tuple[int, int]:
        """The components of vectors that go in, a, and of those that come out, b."""
        return self.W.shape[0], self.W.shape[1]

    def raw(self, x: Floats) -> Floats:
        """[N, b] before it is brought to unit length."""
        y = x @ self.W + self.c
        if self.A is None or self.B is None or self.e is None:
            return y
        return y + np.maximum(x @ self.A + self.e, 0) @ self.B


def checked_arrays(arrays: Mapping[str, ArrayLike]) -> dict[str, Vectors]:
    """Read-only float32 copies of a layer's arrays, whose shapes fit each other."""
    if set(arrays) == set(LINEAR):
        wanted = dict(LINEAR)
    else:
        wanted = {**LINEAR, **RESIDUAL}
    if set(arrays) != set(wanted):
        raise ModelError(
            f"a layer has the arrays {', '.join(wanted)}, got {', '.join(sorted(arrays)) or 'none'}"
        )
    sizes: dict[str, int] = {}
    found = {}
    for name, letters in wanted.items():
        array = np.array(arrays[name], dtype=np.float32)  # always a copy
        fits = array.ndim == len(letters) and 0 not in array.shape
        if not fits or any(
            sizes.setdefault(d, n) != n for d, n in zip(letters, array.shape, strict=True)
        ):
            raise ModelError(
                f"array {name} of a layer is [{', '.join(letters)}], got shape {array.shape}"
            )
        if not np.isfinite(array).all():
            raise ModelError(f"array {name} of a layer holds NaN or infinity")
        array.setflags(write=False)
        found[name] = array
    return found


@dataclass(frozen=True, eq=False)
class Map:
    """Layers applied in order; each takes the width that the previous one returns."""

    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        if not self.layers:
            raise ModelError("a map has one layer or more")
        for one, other in zip(self.layers, self.layers[1:], strict=False):
            if one.widths[1] != other.widths[0]:
                raise ModelError(
                    f"a layer that puts out {one.widths[1]} components stands before one that takes {other.widths[0]}"
                )

    @classmethod
    def linear(cls, W: ArrayLike, c: ArrayLike | None = None) -> Map:
        """x W + c at unit length; without ``c``, zero.

        >>> Map.linear(np.array([[0.0, 2.0], [1.0, 0.0]]))(np.array([[1.0, 0.0]])).tolist()
        [[0.0, 1.0]]
        """
        matrix = np.asarray(W, np.float32)
        offset = np.zeros(matrix.shape[-1]) if c is None else c
        return cls((Layer(matrix, np.asarray(offset, np.float32)),))

    @cached_property
    def widths(self) -> tuple[int, int]:
        """The components of vectors that go in, and of those that come out."""
        return self.layers[0].widths[0], self.layers[-1].widths[1]

    def then(self, after: Map) -> Map:
        """This map, followed by another."""
        return Map((*self.layers, *after.layers))

    def __call__(self, vectors: ArrayLike) -> Vectors:
        """Unit vectors [N, a] in the other space: float32 [N, b], of length 1."""
        array = np.asarray(vectors)
        a, b = self.widths
        if array.ndim != 2 or array.shape[1] != a or array.dtype.kind not in "fiu":
            raise InputError(f"this map takes vectors [N, {a}], got {array.dtype} {array.shape}")
        mapped = np.empty((len(array), b), np.float32)
        for start in range(0, len(array), _BLOCK):
            rows = array[start : start + _BLOCK].astype(np.float32, copy=False)
            for layer in self.layers:
                rows = unit(layer.raw(rows))
            mapped[start : start + _BLOCK] = rows
        lengths = np.linalg.norm(mapped, axis=1)
        lost = np.flatnonzero(~(np.abs(lengths - 1) < _LENGTH_TOLERANCE))
        if len(lost):
            raise InputError(
                f"vector {lost[0]} has no direction after this map; is it of length 1, and not NaN?"
            )
        return mapped

    def named_arrays(self) -> Iterator[tuple[str, Vectors]]:
        """All arrays with the number of their layer in front: 0.W, 0.c, 1.W, ..."""
        for number, layer in enumerate(self.layers):
            for name, array in layer.arrays().items():
                yield f"{number}.{name}", array

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Map:
        """From what ``named_arrays`` gave."""
        layers: dict[int, dict[str, NDArray[Any]]] = {}
        for key, array in arrays.items():
            number, _, name = key.partition(".")
            if not number.isdigit():
                raise ModelError(f"an array of a map is called NUMBER.NAME, got {key!r}")
            layers.setdefault(int(number), {})[name] = array
        if sorted(layers) != list(range(len(layers))):
            raise ModelError(
                f"the layers of a map are numbered from 0 without gaps, got {sorted(layers)}"
            )
        return cls(tuple(_layer(layers[number]) for number in range(len(layers))))


def _layer(arrays: Mapping[str, NDArray[Any]]) -> Layer:
    if unknown := sorted(set(arrays) - {*LINEAR, *RESIDUAL}):
        raise ModelError(f"a layer has no array {unknown[0]!r}")
    if missing := [name for name in LINEAR if name not in arrays]:
        raise ModelError(f"a layer lacks its array {missing[0]}")
    return Layer(**{name: np.asarray(array) for name, array in arrays.items()})


def composed(maps: Sequence[Map]) -> Map:
    """Several maps, applied in order, as one."""
    first, *others = maps
    for other in others:
        first = first.then(other)
    return first
