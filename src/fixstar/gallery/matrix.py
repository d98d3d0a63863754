"""The vectors of one version as one float32 matrix in memory, with what belongs to each row.

Rows are appended, and rows from the end fill the places of removed ones, so that a search always multiplies one solid
block. Every row has a number that is never used again; numbers grow in the order of writing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError
from fixstar.gallery.filters import filter_key, payload_test
from fixstar.gallery.store import Payload, Where

__all__ = ["VersionMatrix", "parsed"]

_FILTERS_KEPT = 16


class VersionMatrix:
    """Row i is the vector of ids[i], written as number numbers[i], with the payload texts[i] (JSON)."""

    def __init__(self, width: int) -> None:
        self.ids: list[str] = []
        self.texts: list[str] = []
        self._vectors = np.empty((0, width), np.float32)
        self._numbers = np.empty(0, np.int64)
        self._changed = np.empty(0, np.int64)  # when each row was last written, by the clock
        self._clock = 0
        self._rows: dict[int, int] = {}
        self._masks: dict[str, tuple[int, NDArray[np.bool_]]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def vectors(self) -> NDArray[np.float32]:
        """[rows, width]: a view, good until the next change."""
        return self._vectors[: len(self.ids)]

    @property
    def numbers(self) -> NDArray[np.int64]:
        """[rows]: the number that each row was written as."""
        return self._numbers[: len(self.ids)]

    def vector(self, number: int) -> NDArray[np.float32]:
        """A copy of one vector."""
        row: NDArray[np.float32] = self._vectors[self._rows[number]].copy()
        return row

    def payload(self, number: int) -> Payload:
        """The payload of one row."""
        return parsed(self.texts[self._rows[number]])

    def reserve(self, rows: int) -> None:
        """Make room for so many rows in all."""
        if rows <= len(self._numbers):
            return
        used = len(self.ids)
        for name in ("_vectors", "_numbers", "_changed"):
            old = getattr(self, name)
            grown = np.empty((rows, *old.shape[1:]), old.dtype)
            grown[:used] = old[:used]
            setattr(self, name, grown)

    def append(
        self, numbers: Sequence[int], ids: Sequence[str], vectors: NDArray[np.float32], texts: Sequence[str]
    ) -> None:
        """Add rows; the room grows by half at a time."""
        start, stop = len(self.ids), len(self.ids) + len(ids)
        if stop > len(self._numbers):
            self.reserve(max(stop, start + start // 2))
        self._clock += 1
        self._vectors[start:stop] = vectors
        self._numbers[start:stop] = numbers
        self._changed[start:stop] = self._clock
        self._rows.update(zip(numbers, range(start, stop), strict=True))
        self.texts.extend(texts)
        self.ids.extend(ids)

    def remove(self, numbers: Sequence[int]) -> None:
        """Take rows out; numbers that are not here are passed over."""
        self._clock += 1
        gone = {row for number in numbers if (row := self._rows.pop(number, None)) is not None}
        left = len(self.ids) - len(gone)
        holes = sorted(row for row in gone if row < left)
        tail = [row for row in range(left, len(self.ids)) if row not in gone]
        self._vectors[holes], self._numbers[holes] = self._vectors[tail], self._numbers[tail]
        self._changed[holes] = self._clock
        for hole, row in zip(holes, tail, strict=True):
            self.ids[hole], self.texts[hole] = self.ids[row], self.texts[row]
            self._rows[int(self._numbers[hole])] = hole
        del self.ids[left:], self.texts[left:]

    def allowed(self, where: Where) -> NDArray[np.bool_]:
        """[rows]: which payloads pass a filter. Kept for the next search; only rows written since are read again."""
        test, key, now = payload_test(where), filter_key(where), self._clock
        mask, stale = np.zeros(len(self.ids), bool), np.ones(len(self.ids), bool)
        with self._lock:  # searches run side by side
            since, old = self._masks.pop(key, (0, mask))
            shared = min(len(old), len(mask))
            mask[:shared] = old[:shared]
            stale[:shared] = self._changed[:shared] > since
            verdicts = _verdicts(test)
            for row in np.flatnonzero(stale).tolist():
                mask[row] = verdicts(self.texts[row])
            self._masks[key] = now, mask
            while len(self._masks) > _FILTERS_KEPT:
                del self._masks[next(iter(self._masks))]
        return mask


def parsed(text: str) -> Payload:
    """The payload of a JSON text."""
    try:
        payload: Payload = {} if text == "{}" else json.loads(text)
    except ValueError as error:
        raise GalleryError(f"a payload is damaged ({error}): {text[:80]!r}; restore the gallery from a copy") from error
    return payload


def _verdicts(test: Callable[[Payload], bool]) -> Callable[[str], bool]:
    """The test on texts; equal texts are parsed once."""
    known: dict[str, bool] = {}

    def verdict(text: str) -> bool:
        if text not in known:
            known[text] = test(parsed(text))
        return known[text]

    return verdict
