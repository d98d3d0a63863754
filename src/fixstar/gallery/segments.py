"""Solid blocks of vectors, with what belongs to each row: what the matrices in memory are made of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.gallery.ranking import Floats, Indices

__all__ = ["Mask", "Numbers", "Part", "Segment", "filled", "find"]

_FILTERS_KEPT = 16

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]


class Segment:
    """Room for rows, filled from the front. A row that is there stays as it is."""

    def __init__(self, room: int, width: int) -> None:
        self.vectors = np.empty((room, width), np.float32)
        self.numbers = np.empty(room, np.int64)
        self.ids: list[str] = []
        self.texts: list[str] = []  # payloads, as JSON
        self._masks: dict[str, Mask] = {}
        self._lock = threading.Lock()

    def passing(self, key: str, test: Callable[[str], bool], count: int) -> Mask:
        """[count]: which payloads pass a filter. Kept for the next search; only rows written since are read again."""
        with self._lock:  # searches run side by side
            known = self._masks.pop(key, np.zeros(0, bool))
            if len(known) < count:
                more = [test(text) for text in self.texts[len(known) : count]]
                known = np.concatenate([known, np.array(more, bool)])
            self._masks[key] = known
            while len(self._masks) > _FILTERS_KEPT:
                del self._masks[next(iter(self._masks))]
        return known[:count]


class Part(NamedTuple):
    """The first ``size`` rows of a segment, called ``start`` and so on, less those struck out (``gone`` [room])."""

    start: int
    segment: Segment
    size: int
    gone: Mask | None

    @property
    def end(self) -> int:
        """Where the next part starts."""
        return self.start + len(self.segment.numbers)

    @property
    def numbers(self) -> Numbers:
        """[size]; they rise."""
        return self.segment.numbers[: self.size]

    def live(self) -> int:
        """How many are not struck out."""
        return self.size - (0 if self.gone is None else int(np.count_nonzero(self.gone)))


def filled(
    part: Part, numbers: Sequence[int] | Numbers, ids: Sequence[str], vectors: Floats, texts: Sequence[str]
) -> Part:
    """The part with more rows, which its segment has room for."""
    segment, size = part.segment, part.size + len(ids)
    segment.vectors[part.size : size] = vectors
    segment.numbers[part.size : size] = numbers
    segment.ids.extend(ids)
    segment.texts.extend(texts)
    return part._replace(size=size)


def find(parts: Sequence[Part], numbers: Numbers) -> Indices:
    """[n]: the row of each number, also if it is struck out; -1 where there is none."""
    row = np.full(len(numbers), -1, np.intp)
    firsts = np.array([part.numbers[0] for part in parts], np.int64)
    places = np.searchsorted(firsts, numbers, "right") - 1
    for place in np.unique(places[places >= 0]).tolist():
        part, here = parts[place], np.flatnonzero(places == place)
        local = np.searchsorted(part.numbers, numbers[here])
        found = local < part.size
        found[found] = part.numbers[local[found]] == numbers[here[found]]
        row[here[found]] = part.start + local[found]
    return row
