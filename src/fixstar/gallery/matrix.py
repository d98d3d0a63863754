"""The vectors of one version in memory, as they are at one moment.

``Rows`` never change, so searches need no lock and wait for nobody; a ``Draft`` makes the next ones. Both share their
segments: what a draft adds lies where older ``Rows`` do not look, and what it removes is struck out in a list of its
own. So a change costs what it changes, whatever the size of the version.

Every row has a number that is never used again. Numbers grow in the order of writing, and so do rows.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError
from fixstar.gallery.filters import filter_key, payload_test
from fixstar.gallery.ranking import Block, Floats, Indices, candidates
from fixstar.gallery.segments import Mask, Numbers, Part, Segment, find
from fixstar.gallery.store import Payload, Where

__all__ = ["Rows", "all_parsed", "parsed"]

_JSON = json.JSONDecoder()
_FEW = 8  # a filter that leaves less than an eighth of the rows is cheaper to gather
_ONE_BY_ONE = 128  # as many rows are gathered faster one by one than segment by segment


class Rows:
    """What one version holds at one moment. Rows are called 0 to ``end``, with gaps.

    ``layout`` changes whenever a row that stays gets another place.
    """

    def __init__(self, width: int, parts: Sequence[Part] = (), layout: int = 0) -> None:
        self.width, self.parts, self.layout = width, tuple(parts), layout
        self.end = self.parts[-1].end if self.parts else 0
        self._live = sum(part.live() for part in self.parts)
        self._first = [part.start for part in self.parts]
        self._starts = np.array(self._first, np.intp)
        self._segments = [part.segment for part in self.parts]
        self._newest = int(self.parts[-1].numbers[-1]) if self.parts else -1

    def __len__(self) -> int:
        return self._live

    def vectors(self, row: Indices) -> Floats:
        """[n, width] of n rows."""
        out = np.empty((len(row), self.width), np.float32)
        self._gather(row, [segment.vectors for segment in self._segments], out)
        return out

    def numbers(self, row: Indices) -> Numbers:
        """[n]: the numbers that rows were written as."""
        out = np.empty(len(row), np.int64)
        self._gather(row, [segment.numbers for segment in self._segments], out)
        return out

    def id_and_text(self, row: int) -> tuple[str, str]:
        """The id of one row, and its payload as JSON."""
        start, segment, *_ = self.parts[bisect_right(self._first, row) - 1]
        return segment.ids[row - start], segment.texts[row - start]

    def ids_and_texts(self, row: Indices) -> tuple[list[str], list[str]]:
        """The same of n rows."""
        places, local = self._places(row)
        held = list(zip(map(self._segments.__getitem__, places.tolist()), local.tolist(), strict=True))
        return [segment.ids[one] for segment, one in held], [segment.texts[one] for segment, one in held]

    def held(self, row: Indices) -> list[tuple[Segment, int]]:
        """The segment of each of a few rows, and its place there."""
        first, segments, held = self._first, self._segments, []
        for one in row.tolist():
            place = bisect_right(first, one) - 1
            held.append((segments[place], one - first[place]))
        return held

    def find(self, numbers: Numbers) -> Indices:
        """[n]: the row of each number, also if it is struck out; -1 where there is none."""
        return find(self.parts, numbers)

    def after(self, number: int) -> int:
        """The first row with a higher number; all behind it have higher ones too."""
        for part in self.parts if self._newest > number else ():
            if part.numbers[-1] > number:
                return part.start + int(np.searchsorted(part.numbers, number, "right"))
        return self.end

    def count_from(self, first: int) -> int:
        """How many rows there are from ``first`` on."""
        if self._kept is not None:
            return int(np.count_nonzero(self._kept[first:]))
        return sum(max(0, part.size - max(0, first - part.start)) for part in self.parts)

    def pages(self, first: int, size: int) -> Iterator[tuple[Numbers, Floats]]:
        """Numbers and vectors from a row on, so many at a time; none that is struck out."""
        for part in self.parts:
            for start in range(max(0, first - part.start), part.size, size):
                page = slice(start, min(start + size, part.size))
                if part.gone is None:
                    yield part.segment.numbers[page], part.segment.vectors[page]
                else:
                    kept = start + np.flatnonzero(~part.gone[page])
                    yield part.segment.numbers[kept], part.segment.vectors[kept]

    def allowed(self, where: Where | None) -> Mask | None:
        """[end]: the rows that a search may find; None stands for all."""
        if where is None:
            return self._kept
        test, key = _verdicts(payload_test(where)), filter_key(where)
        mask = np.zeros(self.end, bool)
        for part in self.parts:
            mask[part.start : part.start + part.size] = part.segment.passing(key, test, part.size)
        return mask if self._kept is None else mask & self._kept

    def candidates(self, queries: Floats, k: int, allowed: Mask | None, first: int = 0) -> tuple[Indices, Indices]:
        """Pairs (query, row) that hold the k nearest of each query [N, width] among rows from ``first`` on."""
        if allowed is not None and np.count_nonzero(allowed[first:]) * _FEW < self.end - first:
            rows = first + np.flatnonzero(allowed[first:])
            query, place = candidates([Block(0, self.vectors(rows))], queries, k)
            return query, rows[place]
        return candidates(self._blocks(allowed, first), queries, k)

    def _blocks(self, allowed: Mask | None, first: int) -> Iterator[Block]:
        for part in self.parts:
            start = max(part.start, first)
            vectors = part.segment.vectors[start - part.start : part.size]
            mask = None if allowed is None else allowed[start : start + len(vectors)]
            yield Block(start, vectors, None if mask is None or mask.all() else mask)

    @cached_property
    def _kept(self) -> Mask | None:
        """[end]: rows that are not struck out."""
        if all(part.gone is None for part in self.parts):
            return None
        mask = np.zeros(self.end, bool)
        for part in self.parts:
            mask[part.start : part.start + part.size] = True if part.gone is None else ~part.gone[: part.size]
        return mask

    def _places(self, row: Indices) -> tuple[Indices, Indices]:
        """[n], [n]: the segment of each of n rows, and its place there."""
        places = self._starts.searchsorted(row, "right") - 1
        return places, row - self._starts[places]

    def _gather(self, row: Indices, sources: Sequence[NDArray[Any]], out: NDArray[Any]) -> None:
        """Fill ``out`` [n, ...] with what segments hold of n rows."""
        places, local = self._places(row)
        if len(row) <= _ONE_BY_ONE:
            for i, (place, one) in enumerate(zip(places.tolist(), local.tolist(), strict=True)):
                out[i] = sources[place][one]
            return
        for place in np.unique(places).tolist():
            here = np.flatnonzero(places == place)
            out[here] = sources[place][local[here]]


def parsed(text: str) -> Payload:
    """The payload of a JSON text, made anew: it belongs to whoever asked."""
    try:
        payload: Payload = json.loads(text)
    except ValueError as error:
        raise GalleryError(f"a payload is damaged ({error}): {text[:80]!r}; restore the gallery from a copy") from error
    return payload


def all_parsed(texts: Sequence[str]) -> list[Payload]:
    """The payloads of JSON texts, each made anew: read as one list, which takes a quarter of the time."""
    text = f"[{','.join(texts)}]"
    try:
        payloads, end = _JSON.raw_decode(text)
    except ValueError:
        payloads, end = [], 0
    if end != len(text) or len(payloads) != len(texts):
        return list(map(parsed, texts))  # says which one is damaged
    return payloads  # type: ignore[no-any-return]


def _verdicts(test: Callable[[Payload], bool]) -> Callable[[str], bool]:
    """The test on texts; equal texts are parsed once."""
    known: dict[str, bool] = {}

    def verdict(text: str) -> bool:
        if text not in known:
            known[text] = test(parsed(text))
        return known[text]

    return verdict
