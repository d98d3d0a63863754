"""Vectors in memory, and exact search over them: what the memory gallery and the SQLite gallery search with.

``Rows`` are the vectors of one version at one moment. They never change, so searches run in parallel and never wait; a
``Draft`` makes the next ones. Both share their segments: what a draft adds is stored where older ``Rows`` do not look,
and what it removes is marked in a new mask. So a change costs what it changes, whatever the size of the version.
``ExactSearch`` holds the rows of all versions and replaces them at once: no search sees part of a change.

Every row has a sequence number that is never used again. Numbers grow in the order of writing, and so do rows.

What a question's map makes of stored vectors is derived from them and kept beside them, segment by segment. Where maps
are asked about ``AT_ONCE`` vectors at most, in all versions together, an exact search computes what is missing. Where
there are more, no search waits for them: one thread computes them, version by version, and until a version is done
exact searches score the candidates that their own queries find, as a gallery on a server always does. An approximate
search uses what is there, computes the rest for its candidates alone, and leaves what is missing to the same thread.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError, GalleryUnavailableError
from fixstar.gallery import ranking
from fixstar.gallery.coded import (
    MOST_HITS,
    CodedBlock,
    are_available,
    candidates_by_codes,
    rows_per_block,
)
from fixstar.gallery.filters import Payload, Where, filter_key, payload_test
from fixstar.gallery.ranking import (
    CELLS,
    PRODUCTS,
    Block,
    Carrier,
    Indices,
    as_scores,
    candidates,
    exact_products,
    first_of_each,
    on_threads,
    paired_products,
    rounding,
    scored,
)
from fixstar.gallery.store import (
    Floats,
    Forward,
    Hit,
    Question,
    SearchRequest,
    Vectors,
    VersionSpace,
    check_width,
    checked_vectors,
    known_version,
)

AT_ONCE = (
    1 << 16
)  # vectors under maps, of all versions together: a search maps up to so many itself, in about a second
CODED_FROM = 1 << 24  # numbers of a version that single queries read as codes: 64 MiB of vectors,
CODED_AFTER = 50  # each time once there were so many queries: coding takes about as long as they do
_PART_AT_ONCE = 8  # where there are more, its answer is not complete anyway, and it maps an eighth of that at most
_FILTERS_KEPT = 16  # per segment: which of its rows pass
_ALLOWED_KEPT = 4  # per version: which of all rows pass, and their numbers
_MAPS_KEPT = 2  # per segment: the one in use, and the one before or after it
_MAPPED_AT_ONCE = (
    4096  # vectors: with fewer the threads of a BLAS wait for each other more than they compute
)

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Objects = NDArray[np.object_]
Strings = Sequence[str] | Objects


def _space(shape: tuple[int, int], folder: Path | None) -> Floats:
    """Space for vectors: in memory, or in a file without a name in a folder, which lasts as long as the array.

    The disk is reserved first: if it were full later, the kernel would kill the process.
    """
    if folder is None:
        return np.empty(shape, np.float32)
    size = 4 * shape[0] * shape[1]
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.write(bytes(size))
                file.flush()
            return np.frombuffer(mmap.mmap(file.fileno(), size), np.float32).reshape(shape)
    except OSError as error:
        raise GalleryUnavailableError(
            f"{folder} has no room for {size:,} more bytes of mapped vectors ({error.strerror}). Nothing is lost: free "
            "some space, or map vectors in a folder on another disk"
        ) from error


class _Derived:
    """What one map makes of a segment's vectors: [room, width], computed from the front as far as requested."""

    def __init__(self) -> None:
        self.vectors: Floats | None = None
        self.size = 0
        self.lock = threading.Lock()


class Segment:
    """Space for rows, filled from the front. Rows never change.

    Ids and payloads are in arrays: Python's garbage collector looks into lists, each time at all their strings.
    """

    def __init__(self, room: int, width: int, folder: Path | None) -> None:
        self.vectors = _space((room, width), folder)
        self.numbers = np.empty(room, np.int64)
        self.ids = np.empty(room, np.object_)
        self.texts = np.empty(room, np.object_)  # payloads, as JSON
        self._folder = folder
        self._masks: dict[str, Mask] = {}
        self._lock = threading.Lock()
        self._derived: dict[
            tuple[str, int], _Derived
        ] = {}  # by the map's key and width, the last one used last
        self._choosing = threading.Lock()  # never held while a map computes
        self.codes: list[
            CodedBlock
        ] = []  # of the first rows, so many each; added by one thread, never changed

    def passing(self, key: str, test: Callable[[str], bool], count: int) -> Mask:
        """[count]: which payloads pass a filter. Cached for the next search, which reads only rows written since."""
        with self._lock:  # searches run side by side
            known = self._masks.pop(key, np.zeros(0, bool))
            more: list[bool] = []
            try:
                for text in self.texts[len(known) : count].tolist():
                    more.append(test(text))
            finally:  # a filter whose time is over continues here when it is asked again
                known = self._masks[key] = (
                    np.concatenate([known, np.array(more, bool)]) if more else known
                )
                while len(self._masks) > _FILTERS_KEPT:
                    del self._masks[next(iter(self._masks))]
        return known[:count]

    def kept_count(self, forward: Forward) -> int:
        """How many of the first rows are kept under a map."""
        return self._derived.get((forward.key, forward.width), _NOTHING).size

    def first(self, count: int, forward: Forward | None) -> Floats:
        """[count, width]: the first rows, without a copy, as they are or under a map.

        What a map makes is kept for the next search, which computes only rows written since. Of the maps that are kept
        the one that was not used for longest makes room.
        """
        if forward is None:
            return self.vectors[:count]
        name = forward.key, forward.width
        with self._choosing:
            derived = self._derived.pop(name, None) or _Derived()
            self._derived[name] = derived
            while len(self._derived) > _MAPS_KEPT:
                del self._derived[next(iter(self._derived))]
        if derived.size < count:
            with derived.lock:  # of this segment and this map: searches by others go on
                self._compute(derived, forward, count)
        assert derived.vectors is not None
        return derived.vectors[:count]

    def take(self, places: Indices, forward: Forward | None, out: Floats) -> int:
        """Copy ascending rows, as they are or under a map, into ``out`` [n, width]; returns how many were copied.

        Those are all; under a map, the first ones, up to where vectors are kept.
        """
        vectors: Floats | None = self.vectors
        known = len(places)
        if forward is not None:
            derived = self._derived.get((forward.key, forward.width), _NOTHING)
            vectors = derived.vectors
            known = int(places.searchsorted(derived.size))
        if vectors is not None:  # other modes than clip fill a copy of out
            vectors.take(places[:known], axis=0, out=out[:known], mode="clip")
        return known

    def inherit(self, sources: Sequence[tuple[Segment, Indices]]) -> None:
        """Keep what maps made of this segment's first rows, which are these rows of others."""
        names = [name for name, derived in list(sources[0][0]._derived.items()) if derived.size]
        for name in names:
            derived = self._derived[name] = _Derived()
            derived.vectors = _space((len(self.numbers), name[1]), self._folder)
            for segment, rows in sources:
                older = segment._derived.get(name, _NOTHING)
                known = int(rows.searchsorted(older.size))
                if older.vectors is not None:
                    derived.vectors[derived.size : derived.size + known] = older.vectors[
                        rows[:known]
                    ]
                derived.size += known
                if known < len(rows):
                    break

    def _compute(self, derived: _Derived, forward: Forward, count: int) -> None:
        if derived.vectors is None:
            derived.vectors = _space((len(self.numbers), forward.width), self._folder)
        while derived.size < count:  # a search whose time is over leaves what it has computed
            end = min(count, derived.size + _MAPPED_AT_ONCE)
            derived.vectors[derived.size : end] = forward(self.vectors[derived.size : end])
            derived.size = end


_NOTHING = _Derived()


class SegmentPart(NamedTuple):
    """The first ``size`` rows of a segment, numbered from ``start``, without the removed ones (``gone`` [room])."""

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
        """[size], ascending."""
        return self.segment.numbers[: self.size]

    def live(self) -> int:
        """How many are not removed."""
        return self.size - (0 if self.gone is None else int(np.count_nonzero(self.gone)))


def _filled(
    part: SegmentPart,
    numbers: Sequence[int] | Numbers,
    ids: Strings,
    vectors: Floats,
    texts: Strings,
) -> SegmentPart:
    """The part with more rows; its segment has room for them."""
    segment = part.segment
    size = part.size + len(ids)
    segment.vectors[part.size : size] = vectors
    segment.numbers[part.size : size] = numbers
    segment.ids[part.size : size] = ids
    segment.texts[part.size : size] = texts
    return part._replace(size=size)


def _find(parts: Sequence[SegmentPart], numbers: Numbers) -> Indices:
    row = np.full(len(numbers), -1, np.intp)
    firsts = np.array([part.numbers[0] for part in parts], np.int64)
    places = np.searchsorted(firsts, numbers, "right") - 1
    for place in np.unique(places[places >= 0]).tolist():
        part = parts[place]
        here = np.flatnonzero(places == place)
        local = np.searchsorted(part.numbers, numbers[here])
        found = local < part.size
        found[found] = part.numbers[local[found]] == numbers[here[found]]
        row[here[found]] = part.start + local[found]
    return row


_JSON = json.JSONDecoder()
_COPIED = 320.0  # components that one query reads in the time of a jump to a row elsewhere
_CODED = 3.5  # rows that are read as codes, if they pass a filter, in the time of one that is not
_FEW_ROWS = 128  # up to so many candidates of one query take the short way
_FEW_MAPPED = 256  # up to this many rows of a segment are mapped by themselves: the whole segment takes seconds, once


class Side(NamedTuple):
    """One part of a score: ``weight`` times the products of queries [N, s] with stored vectors, or with mapped ones."""

    queries: NDArray[np.floating[Any]]
    weight: float = 1.0
    forward: Forward | None = None

    def weighed(self) -> Floats:
        """[N, s]: the queries times the weight."""
        return (self.queries if self.weight == 1 else self.weight * self.queries).astype(np.float32)


class Allowed:
    """The rows that a search may find, as a ``mask`` [end]; their numbers are computed when first needed."""

    def __init__(self, mask: Mask) -> None:
        self.mask = mask
        self.count = int(np.count_nonzero(mask))

    @cached_property
    def rows(self) -> Indices:
        """[count], ascending."""
        return np.flatnonzero(self.mask)


class Rows:
    """What one version holds at one moment. Rows are numbered 0 to ``end``, with gaps.

    ``layout`` changes whenever a row moves. With a ``folder``, vectors are in files there and not in memory.
    """

    def __init__(
        self,
        width: int,
        parts: Sequence[SegmentPart] = (),
        layout: int = 0,
        folder: Path | None = None,
    ) -> None:
        self.width = width
        self.parts = tuple(parts)
        self.layout = layout
        self.folder = folder
        self.end = self.parts[-1].end if self.parts else 0
        self._live = sum(part.live() for part in self.parts)
        # what a search reads: removed rows too, but not the room that is left
        self._read = sum(part.size for part in self.parts)
        self._starts = np.array([part.start for part in self.parts], np.intp)
        self._segments = [part.segment for part in self.parts]
        self._allowed: dict[str, Allowed] = {}  # by filter, the last one used last
        self._choosing = threading.Lock()
        self.is_large = self._live * width >= CODED_FROM
        if self.parts:
            self._newest = int(self.parts[-1].numbers[-1])
        else:
            self._newest = -1

    def __len__(self) -> int:
        return self._live

    def pieces(self, row: Indices) -> list[tuple[Segment, Indices]]:
        """Ascending rows by segment: their places there. At least one piece, which may be empty."""
        if len(self._segments) == 1:
            return [(self._segments[0], row)]
        ends = row.searchsorted(self._starts[1:]).tolist()
        each = zip(
            self._segments, self._starts.tolist(), pairwise([0, *ends, len(row)]), strict=True
        )
        pieces = [
            (segment, row[first:last] - start)
            for segment, start, (first, last) in each
            if first < last
        ]
        return pieces or [(self._segments[0], row)]

    def vectors(self, row: Indices, forward: Forward | None = None) -> Floats:
        """[n, width] of n ascending rows, as they are or under a map.

        Those that are not kept under the map are computed together, and not kept.
        """
        out = np.empty((len(row), self.width if forward is None else forward.width), np.float32)
        unknown: list[Indices] = []
        start = 0
        for segment, places in self.pieces(row):
            end = start + len(places)
            known = segment.take(places, forward, out[start:end])
            if known < len(places):
                unknown.append(np.arange(start + known, end))
            start = end
        if forward is not None and unknown:
            left = np.concatenate(unknown)
            rows, inverse = np.unique(row[left], return_inverse=True)
            out[left] = forward(self.vectors(rows))[inverse]
        return out

    def missing(self, forward: Forward) -> int:
        """How many rows are not kept under a map yet."""
        return sum(max(0, part.size - part.segment.kept_count(forward)) for part in self.parts)

    def map_all(self, forward: Forward, stop: threading.Event) -> None:
        """Map all rows, a block at a time, unless it is stopped."""
        for part in self.parts:
            done = part.segment.kept_count(forward)
            while done < part.size and not stop.is_set():
                done = min(part.size, done + _MAPPED_AT_ONCE)
                part.segment.first(done, forward)

    def numbers(self, row: Indices) -> Numbers:
        """[n]: the sequence numbers of ascending rows."""
        return np.concatenate(
            [segment.numbers.take(places) for segment, places in self.pieces(row)]
        )

    def labels(self, row: Indices) -> tuple[Objects, Objects]:
        """[n], [n]: the ids of ascending rows, and their payloads as JSON."""
        pieces = self.pieces(row)
        ids = [segment.ids.take(places) for segment, places in pieces]
        texts = [segment.texts.take(places) for segment, places in pieces]
        return np.concatenate(ids), np.concatenate(texts)

    def find(self, numbers: Numbers) -> Indices:
        """[n]: the row of each number, removed ones included; -1 where there is none."""
        return _find(self.parts, numbers)

    def after(self, number: int) -> int:
        """The first row with a higher number; all later rows have higher ones too."""
        for part in self.parts if self._newest > number else ():
            if part.numbers[-1] > number:
                return part.start + int(np.searchsorted(part.numbers, number, "right"))
        return self.end

    def count_from(self, first: int) -> int:
        """The number of rows from ``first`` on."""
        if self._kept is not None:
            return int(np.count_nonzero(self._kept.mask[first:]))
        return sum(max(0, part.size - max(0, first - part.start)) for part in self.parts)

    def pages(self, first: int, size: int) -> Iterator[tuple[Numbers, Floats]]:
        """Numbers and vectors from row ``first`` on, at most ``size`` at a time, without removed rows."""
        for part in self.parts:
            for start in range(max(0, first - part.start), part.size, size):
                page = slice(start, min(start + size, part.size))
                if part.gone is None:
                    yield part.segment.numbers[page], part.segment.vectors[page]
                else:
                    kept = start + np.flatnonzero(~part.gone[page])
                    yield part.segment.numbers[kept], part.segment.vectors[kept]

    def allowed(self, where: Where | None) -> Allowed | None:
        """The rows that a search may find; None means all. The same object again for the same filter."""
        if where is None:
            return self._kept
        test = _verdicts(payload_test(where))
        key = filter_key(where)
        with self._choosing:
            known = self._allowed.pop(key, None)
            if known is not None:
                self._allowed[key] = known  # as the one used last
                return known
        mask = np.zeros(self.end, bool)
        for part in self.parts:
            mask[part.start : part.start + part.size] = part.segment.passing(key, test, part.size)
        if self._kept is not None:
            mask &= self._kept.mask
        with self._choosing:
            found = self._allowed.setdefault(key, Allowed(mask))
            while len(self._allowed) > _ALLOWED_KEPT:
                del self._allowed[next(iter(self._allowed))]
        return found

    def candidates(
        self, queries: Floats, k: int, allowed: Allowed | None, first: int = 0
    ) -> tuple[Indices, Indices]:
        """Pairs (query, row) that hold the k nearest of each query [N, width] among rows from ``first`` on."""
        return self.best([Side(queries)], k, allowed, first)

    def best(
        self, sides: Sequence[Side], k: int, allowed: Allowed | None, first: int = 0
    ) -> tuple[Indices, Indices]:
        """Pairs (query, row) that hold the k rows from ``first`` on with the highest sums over all sides."""
        queries = [side.weighed() for side in sides]
        mask = None if allowed is None else allowed.mask
        of_one = len(sides) == len(queries[0]) == 1 and k <= MOST_HITS
        coded = of_one and self.is_large and any(segment.codes for segment in self._segments)
        if allowed is not None and self._is_few(allowed, queries, coded):
            blocks = self._blocks_of_few(
                sides, allowed.rows[np.searchsorted(allowed.rows, first) :]
            )
        elif coded:
            return self._best_by_codes(sides[0], k, mask, first)
        else:
            blocks = self._blocks(sides, mask, first)
        return candidates(blocks, queries, k)

    def _is_few(self, allowed: Allowed, queries: Sequence[Floats], coded: bool) -> bool:
        """Whether so few rows pass a filter that it is cheaper to copy them than to read all."""
        width = sum(one.shape[1] for one in queries) / len(queries)
        return allowed.count * rows_per_copy(len(queries[0]), width, coded) < self._read

    def _blocks(self, sides: Sequence[Side], allowed: Mask | None, first: int) -> Iterator[Block]:
        for part in self.parts:
            start = max(part.start, first)
            vectors = tuple(
                [
                    part.segment.first(part.size, side.forward)[start - part.start :]
                    for side in sides
                ]
            )
            if allowed is None:
                mask = None
            else:
                mask = allowed[start : part.start + part.size]
            yield Block(start, vectors, None if mask is None or mask.all() else mask)

    def _best_by_codes(
        self, side: Side, k: int, allowed: Mask | None, first: int
    ) -> tuple[Indices, Indices]:
        """The same for one query and vectors as they are, most of which are read as codes."""
        size = rows_per_block(self.width)
        coded: list[tuple[CodedBlock, Block]] = []
        others: list[Block] = []
        for part, block in zip(self.parts, self._blocks([side], allowed, first), strict=True):
            start = 0
            if block.start == part.start:
                for codes in part.segment.codes[: part.size // size]:  # those of its rows alone
                    coded.append((codes, block.part(slice(start, start + size))))
                    start += size
            others.append(block.part(slice(start, block.size)))
        return candidates_by_codes(coded, others, side.weighed(), k)

    def missing_codes(self) -> int:
        """How many blocks are not coded yet."""
        size = rows_per_block(self.width)
        return sum([max(0, part.size // size - len(part.segment.codes)) for part in self.parts])

    def code_all(self, stop: threading.Event) -> None:
        """Code all blocks that are full, unless it is stopped. One thread at a time."""
        size = rows_per_block(self.width)
        for part in self.parts:
            codes = part.segment.codes
            while len(codes) < part.size // size and not stop.is_set():
                start = len(codes) * size
                codes.append(CodedBlock(part.segment.vectors[start : start + size]))

    def _blocks_of_few(self, sides: Sequence[Side], rows: Indices) -> Iterator[Block]:
        """The same for ascending rows only. Maps segments as a whole where more than a few rows of them are needed."""
        ends = rows.searchsorted([part.end for part in self.parts])
        for part, some in zip(self.parts, np.split(rows, ends[:-1]), strict=True):
            if not len(some):
                continue
            places = some - part.start
            if len(some) > _FEW_MAPPED or all(side.forward is None for side in sides):
                used = int(places[-1]) + 1
                vectors = tuple([part.segment.first(used, side.forward) for side in sides])
                yield Block(part.start, vectors, places=places)
            else:
                copies = [self.vectors(some, side.forward) for side in sides]
                yield Block(part.start, tuple(copies), places=places, copied=True)

    @cached_property
    def _kept(self) -> Allowed | None:
        """Rows that are not removed."""
        if all(part.gone is None for part in self.parts):
            return None
        mask = np.zeros(self.end, bool)
        for part in self.parts:
            if part.gone is None:
                mask[part.start : part.start + part.size] = True
            else:
                mask[part.start : part.start + part.size] = ~part.gone[: part.size]
        return Allowed(mask)


def rows_per_copy(queries: int, width: float, coded: bool) -> float:
    """How many rows a search reads in the time that it takes to copy one row and score the copy, at least 2.

    Copying costs a jump to each row, which for one query weighs more the narrower the rows are; codes are read faster.
    Several queries share a copy. A question of two sides jumps to both: ``width`` is the mean of theirs. Measured on
    two cores (``python benchmarks/growth.py --steps fill,filters``).

    >>> rows_per_copy(1, 320, coded=False), rows_per_copy(64, 64, coded=False)
    (2.0, 2.0)
    """
    if queries > 1:
        return 2.0
    return max(2.0, (1 + _COPIED / width) * (_CODED if coded else 1.0))


def parsed(text: str) -> Payload:
    """The payload of a JSON text, a new object per call."""
    try:
        payload: Payload = json.loads(text)
    except ValueError as error:
        raise GalleryError(
            f"a payload is damaged ({error}): {text[:80]!r}; restore the gallery from a backup"
        ) from error
    return payload


def all_parsed(texts: Sequence[str]) -> list[Payload]:
    """The payloads of JSON texts, parsed as one list, which takes a quarter of the time."""
    text = f"[{','.join(texts)}]"
    try:
        payloads, end = _JSON.raw_decode(text)
    except ValueError:
        payloads = []
        end = 0
    if end != len(text) or len(payloads) != len(texts):
        return list(map(parsed, texts))  # its error names the damaged one
    return payloads  # type: ignore[no-any-return]


def _verdicts(test: Callable[[Payload], bool]) -> Callable[[str], bool]:
    """The test on JSON texts; equal texts are parsed once."""
    known: dict[str, bool] = {}

    def verdict(text: str) -> bool:
        if text not in known:
            known[text] = test(parsed(text))
        return known[text]

    return verdict


_BYTES = (
    128 << 20
)  # of a full segment: every product makes threads wait for each other, every rewrite copies one
_ROWS = 1 << 17  # at most, where vectors are short
_PAGE = 1024  # rows copied at once
_SPARE = 8  # a segment is rewritten when an eighth of it is removed,
_AT_ONCE = 1  # one per draft; those with half of it removed always


class Draft:
    """Builds the next ``Rows`` of a version from the newest. One at a time; not visible until it is used.

    If as many rows as ``expected`` will be there in the end, they get as few segments as possible.
    """

    def __init__(self, rows: Rows, expected: int = 0) -> None:
        self._width = rows.width
        self._parts = list(rows.parts)
        self._layout = rows.layout
        self._folder = rows.folder
        self._expected = expected
        self._old: Rows | None = rows
        self._full = max(1, min(_ROWS, _BYTES // (4 * rows.width)))

    def rows(self) -> Rows:
        """The new rows."""
        if self._old is not None:
            return self._old
        return Rows(width=self._width, parts=self._parts, layout=self._layout, folder=self._folder)

    def append(
        self, numbers: Sequence[int], ids: Sequence[str], vectors: Floats, texts: Sequence[str]
    ) -> None:
        """Add rows; their numbers are ascending and higher than all before."""
        self._old = None
        done = 0
        while done < len(ids):
            if not self._parts or self._parts[-1].size == len(self._parts[-1].segment.numbers):
                self._add_segment(len(ids) - done)
            part = self._parts[-1]
            taken = slice(done, min(len(ids), done + len(part.segment.numbers) - part.size))
            done = taken.stop
            self._parts[-1] = _filled(
                part,
                numbers=numbers[taken],
                ids=ids[taken],
                vectors=vectors[taken],
                texts=texts[taken],
            )

    def _add_segment(self, wanted: int) -> None:
        """Make room for what is expected, or double the space, up to a full segment: small versions stay small."""
        end = self._parts[-1].end if self._parts else 0
        room = min(self._full, max(wanted, self._expected - end, end, 1024))
        self._parts.append(
            SegmentPart(
                start=end, segment=Segment(room, self._width, self._folder), size=0, gone=None
            )
        )

    def remove(self, numbers: Sequence[int] | Numbers) -> None:
        """Remove rows; unknown numbers are ignored."""
        row = _find(self._parts, np.array(numbers, np.int64))
        row = np.sort(row[row >= 0])
        if not len(row):
            return
        self._old = None
        for place, part in enumerate(self._parts):
            local = (
                row[np.searchsorted(row, part.start) : np.searchsorted(row, part.end)] - part.start
            )
            if len(local):
                if part.gone is None:
                    gone = np.zeros(len(part.segment.numbers), bool)
                else:
                    gone = part.gone.copy()
                gone[local] = True
                self._parts[place] = part._replace(gone=gone)
        self._tidy()

    def _tidy(self) -> None:
        """Rewrite segments without their removed rows, the emptiest first."""
        shares = {place: part.live() / max(1, part.size) for place, part in enumerate(self._parts)}
        spare = sorted((share, place) for place, share in shares.items() if share <= 1 - 1 / _SPARE)
        chosen = [
            place for turn, (share, place) in enumerate(spare) if turn < _AT_ONCE or share <= 0.5
        ]
        if not chosen:
            return
        for place in sorted(chosen, reverse=True):  # so that earlier places stay valid
            self._rewrite(place)
        self._layout += 1
        start = 0
        for place, part in enumerate(self._parts):
            self._parts[place] = part._replace(start=start)
            start += len(part.segment.numbers)

    def _rewrite(self, place: int) -> None:
        """Copy what is left of a segment to a new one, joined with its predecessor if both are small."""
        first = place - (
            place > 0
            and sum(part.live() for part in self._parts[place - 1 : place + 1]) <= self._full // 2
        )
        old = self._parts[first : place + 1]
        live = sum(part.live() for part in old)
        grows = place == len(self._parts) - 1  # the last segment takes new rows
        room = max(live, len(old[-1].segment.numbers) if grows else 1)
        new = SegmentPart(
            start=0, segment=Segment(room, self._width, self._folder), size=0, gone=None
        )
        copied: list[tuple[Segment, Indices]] = []
        for part in old:
            if part.gone is None:
                kept = np.arange(part.size)
            else:
                kept = np.flatnonzero(~part.gone[: part.size])
            copied.append((part.segment, kept))
            for some in np.split(kept, range(_PAGE, len(kept), _PAGE)):
                segment = part.segment
                ids = segment.ids[some]
                texts = segment.texts[some]
                new = _filled(
                    new,
                    numbers=segment.numbers[some],
                    ids=ids,
                    vectors=segment.vectors[some],
                    texts=texts,
                )
        self._parts[first : place + 1] = [new] if live else []
        if live:
            with suppress(GalleryUnavailableError):  # no room on the disk: it is computed again
                new.segment.inherit(copied)


_QUERIES = 128  # queries at once: their memory stays small
QUERIES_OF_A_THREAD = 32  # of an index: one thread scores what it found while others search
_LEAST_OF_A_THREAD = 4  # fewer are not worth a thread


_Derivation = tuple[
    str, str | None, int
]  # a version, the key of a map and its width; None for codes


class RowIndex(Protocol):
    """Finds likely rows without looking at all of them."""

    def candidates(
        self, rows: Rows, queries: Floats, k: int, allowed: Allowed | None
    ) -> tuple[Indices, Indices]:
        """Pairs (query, row) that include most of the k nearest of each query [N, width]; see ``Rows.candidates``."""


class _ByOwnQueries:
    """Finds the rows that are nearest to queries in the version's own space, while a map is still at work."""

    def candidates(
        self, rows: Rows, queries: Floats, k: int, allowed: Allowed | None
    ) -> tuple[Indices, Indices]:
        return rows.candidates(queries, k, allowed)


class _Background:
    """A thread that derives what makes later searches faster, one version after the other. No search waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: dict[
            _Derivation, Callable[[threading.Event], None]
        ] = {}  # the first one is under way
        self._failed: set[_Derivation] = set()
        self._thread: threading.Thread | None = None
        self._threads: list[threading.Thread] = []  # the last one
        self._stop = threading.Event()
        self._end = weakref.finalize(
            self, _stop_and_wait, self._stop, self._threads
        )  # at exit, if nobody closes

    def maps(self, version: str, rows: Rows, forward: Forward) -> bool:
        """Map rows if that is not planned yet; returns False where it failed before.

        The search then does it itself, so that it fails too and says why.
        """
        return self._accepts((version, forward.key, forward.width), partial(rows.map_all, forward))

    def codes(self, version: str, rows: Rows) -> None:
        """Code rows if that is not planned yet, and did not fail before."""
        self._accepts((version, None, 0), rows.code_all)

    def _accepts(self, name: _Derivation, derive: Callable[[threading.Event], None]) -> bool:
        with self._lock:
            if name in self._failed or self._stop.is_set():
                return False
            self._queue.setdefault(name, derive)
            if self._thread is None or not self._thread.is_alive():  # after a fork it is not
                self._thread = threading.Thread(
                    target=self._work, name="fixstar-derive", daemon=True
                )
                self._threads[:] = [self._thread]
                self._thread.start()
        return True

    def _work(self) -> None:
        """Do what is in the queue; ends when it is empty."""
        while True:
            with self._lock:
                if self._stop.is_set() or not self._queue:
                    self._thread = None
                    return
                name, derive = next(iter(self._queue.items()))
            failure: Exception | None = None
            try:
                derive(self._stop)
            except Exception as error:
                failure = error
            with self._lock:
                del self._queue[name]
                if failure is not None:
                    self._failed.add(name)
            if failure is not None:
                if name[1] is None:
                    told = f"could not be coded in 8 bits ({failure}); single exact searches read them as they are"
                else:
                    told = f"could not be mapped in the background ({failure}); searches map what they need themselves"
                warnings.warn(f"the vectors of version {name[0]!r} {told}", stacklevel=1)

    def close(self) -> None:
        """Stop, and wait for the block that is under way."""
        with self._lock:  # none is being started
            self._stop.set()
        self._end()


def _stop_and_wait(stop: threading.Event, threads: list[threading.Thread]) -> None:
    stop.set()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()


class _Target(NamedTuple):
    """A version to search for some queries, and what finds its rows.

    ``own`` [N, width] are the queries in the version's own space. ``sides`` are those parts of a score that count, with
    the map ``forward`` if one of them needs it. ``slope`` and ``offset`` rank scores among those of other versions.
    ``allowed`` are the rows that may be found. An index ``quick`` finds candidates by ``own``.
    """

    name: str
    rows: Rows
    own: NDArray[np.float64]
    sides: tuple[Side, ...]
    forward: Forward | None = None
    slope: float = 1.0
    offset: float = 0.0
    allowed: Allowed | None = None
    quick: RowIndex | None = None

    def scores(self, query: Indices, row: Indices) -> Floats:
        """[pairs]: exact scores, some pairs at a time. If there is a map, rows are ascending."""
        size = 1 + CELLS // self.rows.width
        scores = np.empty(len(row), np.float32)
        for start in range(0, len(row), size):
            part = slice(start, start + size)
            sums = np.zeros(len(row[part]))
            for side in self.sides:
                vectors = self.rows.vectors(row[part], side.forward)
                sums += side.weight * exact_products(vectors, side.queries, query[part])
            scores[part] = as_scores(sums)
        return scores

    def may_be_best(self, query: Indices, row: Indices, k: int) -> NDArray[np.bool_]:
        """[pairs]: whether pairs with ascending rows may be among the k best of their query: by float32, which is fast.

        Of many candidates few are scored in float64.
        """
        rough = np.zeros(len(row), np.float32)
        step = 1 + PRODUCTS // self.rows.width
        for side in self.sides:
            queries = side.weighed()
            for start in range(0, len(row), step):
                part = slice(start, start + step)
                vectors = self.rows.vectors(row[part], side.forward)
                rough[part] += np.einsum("ij,ij->i", vectors, queries[query[part]])
        order = np.lexsort((-rough, query))
        line = query[order]
        kth = order[np.arange(len(order)) - np.searchsorted(line, line) == k - 1]
        floor = np.full(len(self.own), -np.inf)
        floor[query[kth]] = rough[kth] - rounding([side.queries.shape[1] for side in self.sides])
        return rough >= floor[query]

    def ranks(self, scores: Floats) -> NDArray[np.floating[Any]]:
        """[n]: what orders these scores among those of other versions."""
        if self.slope == 1 and self.offset == 0:
            return scores
        return self.slope * scores.astype(np.float64) + self.offset


class ExactSearch:
    """Versions and their rows, searched by exact scores. One thread at a time may change them.

    Vectors are in memory, or in files in a ``folder``.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._spaces: dict[str, VersionSpace] = {}
        self._projections: dict[str, Floats | None] = {}
        self._carrier = Carrier(self.projection)
        self._background = _Background()
        self._singles: dict[
            str, int
        ] = {}  # single queries that read a whole version since it was coded
        self.rows: Mapping[str, Rows] = {}  # replaced as a whole, never changed
        self.indexes: Mapping[str, RowIndex] = {}  # likewise

    def close(self) -> None:
        """Stop what runs in the background."""
        self._background.close()

    def add_version(self, space: VersionSpace, projection: Floats | None) -> None:
        """Add a version without rows."""
        self.rows = {**self.rows, space.name: Rows(space.width, folder=self._folder)}
        self._projections = {**self._projections, space.name: projection}
        self._spaces = {**self._spaces, space.name: space}

    def spaces(self) -> list[VersionSpace]:
        """All versions, in the order they were added."""
        return list(self._spaces.values())

    def projection(self, name: str) -> Floats | None:
        """P [d, m] of a version."""
        return known_version(self._projections, name)

    def use(self, rows: Mapping[str, Rows]) -> None:
        """Replace the rows of some versions, all at once: no search sees part of a change."""
        self.rows = {**self.rows, **rows}

    def search(self, version: str, queries: Vectors, request: SearchRequest) -> list[list[Hit]]:
        """See ``Gallery.search``."""
        rows = self.rows  # before the versions: one that comes now is empty to this search
        known = self._spaces
        source = known_version(known, version)
        names = known if request.versions is None else request.versions
        spaces = [known_version(known, name) for name in dict.fromkeys(names)]
        unit_queries = checked_vectors(queries, source.width, version)

        def asked(part: slice) -> list[_Target]:
            targets: list[_Target] = []
            for space in spaces:
                if len(rows.get(space.name, ())):
                    own = self._carrier.carried(unit_queries[part], source, space)
                    targets.append(_Target(space.name, rows[space.name], own, (Side(own),)))
            return targets

        return self._answers(asked, len(unit_queries), request)

    def ask(self, questions: Sequence[Question], request: SearchRequest) -> list[list[Hit]]:
        """See ``Gallery.ask``."""
        rows = self.rows
        if request.versions is None:
            wanted = set(self._spaces)
        else:
            wanted = {known_version(self._spaces, name).name for name in request.versions}
        for question in questions:
            check_width(question, known_version(self._spaces, question.version))
        asked = [
            one for one in questions if one.version in wanted and len(rows.get(one.version, ()))
        ]

        def targets(part: slice) -> list[_Target]:
            return [_target(one, rows[one.version], part) for one in asked]

        return self._answers(targets, len(questions[0].own), request)

    def _answers(
        self, asked: Callable[[slice], list[_Target]], queries: int, request: SearchRequest
    ) -> list[list[Hit]]:
        """The best of all versions for each query. ``asked`` makes what some of the queries ask of the versions."""
        indexes = {} if request.exact else self.indexes
        size = _QUERIES
        first = asked(slice(0, min(size, queries)))
        unmapped = self._left_to_background(first, indexes)
        allowed = [target.rows.allowed(request.where) for target in first]
        threads = 1
        if indexes and all(target.name in indexes for target in first):
            threads = max(1, ranking.THREADS - 1)  # one per core: each search fills its cache
            share = -(-queries // threads)
            size = min(QUERIES_OF_A_THREAD, max(_LEAST_OF_A_THREAD, share))

        def best(part: slice) -> list[list[Hit]]:
            count = part.stop - part.start
            targets = first if count == queries else asked(part)
            live = []
            for target, rows in zip(targets, allowed, strict=True):
                quick = indexes.get(target.name)
                if quick is None and target.name in unmapped:
                    quick = _ByOwnQueries()
                if (
                    quick is None
                    and queries == 1
                    and target.forward is None
                    and target.rows.is_large
                ):
                    self._code(target.name, target.rows)
                live.append(target._replace(allowed=rows, quick=quick))
            return _best(live, queries=count, k=int(request.k), least=request.min_score)

        if queries <= size:
            return best(slice(0, queries))
        even = -(-queries // -(-queries // size))  # no part is much smaller than the others
        parts = [slice(start, min(start + even, queries)) for start in range(0, queries, even)]
        return list(chain.from_iterable(on_threads(best, parts, threads)))

    def _code(self, version: str, rows: Rows) -> None:
        """Have a version coded that single queries read as a whole, once there were enough since the last time."""
        if self._folder is not None:  # vectors are in a folder to save memory
            return
        asked = self._singles.get(version, 0) + 1
        if asked > CODED_AFTER and are_available() and rows.missing_codes():
            self._background.codes(version, rows)
            asked = 0
        self._singles[version] = asked

    def _left_to_background(
        self, targets: Sequence[_Target], indexes: Mapping[str, RowIndex]
    ) -> set[str]:
        """The versions that a thread maps while this search is answered without; the search maps the others itself.

        A version with an index is always left to the thread: its candidates are few. Of the others the smallest are
        mapped by the search.
        """
        in_full: list[tuple[_Target, Forward]] = []
        for one in targets:
            if one.forward is None:
                continue
            if one.name not in indexes:
                in_full.append((one, one.forward))
            elif one.rows.missing(one.forward) > _FEW_MAPPED:
                self._background.maps(one.name, one.rows, one.forward)
        left: set[str] = set()
        if sum([len(one.rows) for one, _ in in_full]) <= AT_ONCE:
            return left
        missing = [(one.rows.missing(forward), one, forward) for one, forward in in_full]
        total = 0
        for count, one, forward in sorted(missing, key=lambda found: found[0]):
            total += count
            if total > AT_ONCE // _PART_AT_ONCE and self._background.maps(
                one.name, one.rows, forward
            ):
                left.add(one.name)
        return left


def _target(question: Question, rows: Rows, part: slice) -> _Target:
    """What is asked of a version's rows by some of the queries."""
    own = question.own[part].astype(np.float64)
    sides = [Side(own, 1 - question.weight)]
    forward = question.map
    if forward is not None and question.new is not None:
        sides.append(Side(question.new[part].astype(np.float64), question.weight, forward))
    return _Target(
        name=question.version,
        rows=rows,
        own=own,
        sides=tuple([side for side in sides if side.weight]),  # without weight vectors are not read
        forward=forward,
        slope=question.slope,
        offset=question.offset,
    )


def _best(live: list[_Target], queries: int, k: int, least: float | None) -> list[list[Hit]]:
    """The k best of all versions for each query, of those with at least the score ``least``."""
    found = []
    for target in live:
        if target.quick is None:
            query, row = target.rows.best(target.sides, k, target.allowed)
        else:
            count = k if target.forward is None else scored(k)
            own = target.own.astype(np.float32)
            query, row = target.quick.candidates(target.rows, own, count, target.allowed)
        if len(live) == queries == 1 and len(row) <= _FEW_ROWS:
            return [_best_of_few(target, row=row, k=k, least=least)]
        mapped = target.forward is not None
        if mapped or len(target.rows.parts) > 1:  # they are read segment by segment
            order = row.argsort()
            query = query[order]
            row = row[order]
        if mapped and target.quick is not None:  # of many candidates for each hit
            chosen = target.may_be_best(query, row, k)
            query = query[chosen]
            row = row[chosen]
        score = target.scores(query, row)
        if least is not None:
            reached = score.astype(np.float64) >= least
            query = query[reached]
            row = row[reached]
            score = score[reached]
        number = (
            target.rows.numbers(row) if len(live) > 1 else row
        )  # rows of one version are in this order
        found.append((query, score, target.ranks(score), number, *target.rows.labels(row)))
    if not found:
        return [[] for _ in range(queries)]
    versions = np.repeat(
        np.array([target.name for target in live], np.object_), [len(part[0]) for part in found]
    )
    query, score, rank, number, ids, texts = (
        np.concatenate(part) for part in zip(*found, strict=True)
    )
    best = first_of_each(query, rank=rank, number=number, k=k)
    hits = _hits(ids[best], score=score[best], versions=versions[best].tolist(), texts=texts[best])
    ends = np.searchsorted(query[best], np.arange(queries + 1)).tolist()
    return [hits[start:end] for start, end in pairwise(ends)]


def _best_of_few(target: _Target, row: Indices, k: int, least: float | None) -> list[Hit]:
    """The same for one query and few candidates, in few steps: after an index search little is left in the cache."""
    row.sort()
    sums = np.zeros(len(row))
    for side in target.sides:
        vectors = target.rows.vectors(row, side.forward)
        sums += side.weight * paired_products(vectors, side.queries)
    score = as_scores(sums)
    best = (-score).argsort(kind="stable")[:k]
    if least is not None:
        best = best[score[best].astype(np.float64) >= least]
    ids, texts = target.rows.labels(row)
    return _hits(ids[best], score=score[best], versions=repeat(target.name), texts=texts[best])


def _hits(ids: Objects, score: Floats, versions: Iterable[str], texts: Objects) -> list[Hit]:
    columns = zip(ids.tolist(), score.tolist(), versions, all_parsed(texts.tolist()))  # noqa: B905  one may repeat
    return [Hit(*row) for row in columns]
