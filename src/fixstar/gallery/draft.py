"""Changes to the vectors of one version in memory, made aside and then used as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fixstar.gallery.matrix import Rows
from fixstar.gallery.ranking import Floats
from fixstar.gallery.segments import Numbers, Part, Segment, filled, find

__all__ = ["Draft"]

_BYTES = 32 << 20  # of a full segment: large enough to multiply at full speed, small enough to copy in some 20 ms
_ROWS = 1 << 15  # at most, where vectors are short
_PAGE = 1024  # rows copied at once
_SPARE = 8  # a segment is written anew when an eighth of it is struck out,
_AT_ONCE = 1  # one in one draft; those with half of it struck out always


class Draft:
    """The next ``Rows`` of a version in the making. One at a time, from the newest; nobody sees it until it is used."""

    def __init__(self, rows: Rows) -> None:
        self._width, self._parts, self._layout = rows.width, list(rows.parts), rows.layout
        self._old: Rows | None = rows
        self._full = max(1, min(_ROWS, _BYTES // (4 * rows.width)))
        if rows.parts:  # a draft that failed may have left something
            last = rows.parts[-1]
            del last.segment.ids[last.size :], last.segment.texts[last.size :]

    def rows(self) -> Rows:
        """What the version will hold."""
        return self._old if self._old is not None else Rows(self._width, self._parts, self._layout)

    def append(self, numbers: Sequence[int], ids: Sequence[str], vectors: Floats, texts: Sequence[str]) -> None:
        """Add rows; their numbers are higher than those of all before, and rise."""
        self._old, done = None, 0
        while done < len(ids):
            if not self._parts or self._parts[-1].size == len(self._parts[-1].segment.numbers):
                self._add_segment(len(ids) - done)
            part = self._parts[-1]
            taken = slice(done, min(len(ids), done + len(part.segment.numbers) - part.size))
            done = taken.stop
            self._parts[-1] = filled(part, numbers[taken], ids[taken], vectors[taken], texts[taken])

    def _add_segment(self, wanted: int) -> None:
        """Room for more, about as much as there is: small versions stay small."""
        end = self._parts[-1].end if self._parts else 0
        room = min(self._full, max(wanted, end, 1024))
        self._parts.append(Part(end, Segment(room, self._width), 0, None))

    def remove(self, numbers: Sequence[int] | Numbers) -> None:
        """Strike rows out; numbers that are not here are passed over."""
        row = find(self._parts, np.array(numbers, np.int64))
        row = np.sort(row[row >= 0])
        if not len(row):
            return
        self._old = None
        for place, part in enumerate(self._parts):
            local = row[np.searchsorted(row, part.start) : np.searchsorted(row, part.end)] - part.start
            if len(local):
                gone = np.zeros(len(part.segment.numbers), bool) if part.gone is None else part.gone.copy()
                gone[local] = True
                self._parts[place] = part._replace(gone=gone)
        self._tidy()

    def _tidy(self) -> None:
        """Write segments anew, the emptiest first, without the rows that are struck out."""
        shares = {place: part.live() / max(1, part.size) for place, part in enumerate(self._parts)}
        spare = sorted((share, place) for place, share in shares.items() if share <= 1 - 1 / _SPARE)
        chosen = [place for turn, (share, place) in enumerate(spare) if turn < _AT_ONCE or share <= 0.5]
        if not chosen:
            return
        for place in sorted(chosen, reverse=True):  # so that the places of those to come stay as they are
            self._rewrite(place)
        self._layout += 1
        start = 0
        for place, part in enumerate(self._parts):
            self._parts[place] = part._replace(start=start)
            start += len(part.segment.numbers)

    def _rewrite(self, place: int) -> None:
        """A new segment for what is left of one, joined to the one before if both are small."""
        first = place - (
            place > 0 and sum(part.live() for part in self._parts[place - 1 : place + 1]) <= self._full // 2
        )
        old = self._parts[first : place + 1]
        live = sum(part.live() for part in old)
        grows = place == len(self._parts) - 1  # the last one takes in what comes next
        new = Part(0, Segment(max(live, len(old[-1].segment.numbers) if grows else 1), self._width), 0, None)
        for part in old:
            kept = np.arange(part.size) if part.gone is None else np.flatnonzero(~part.gone[: part.size])
            for some in np.split(kept, range(_PAGE, len(kept), _PAGE)):
                segment, each = part.segment, some.tolist()
                ids, texts = [segment.ids[i] for i in each], [segment.texts[i] for i in each]
                new = filled(new, segment.numbers[some], ids, segment.vectors[some], texts)
        self._parts[first : place + 1] = [new] if live else []
