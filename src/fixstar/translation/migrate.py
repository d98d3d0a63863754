"""Migration: an old model's vectors in a user's own store, translated and written beside the old ones.

The store's old vectors are never written. Translated ones go into a table, collection or file of their own (``Beside``
of ``gallery.vector_files``). Each row there has a mark: the translation, and a digest of the old row that it was made
of. So the same call goes on after a kill, takes in what is new, translates again what was changed since, and removes
what is gone. Rows without a mark were made by the new model itself, and stay.

Stored vectors that are mapped forward and searched by the new model alone mostly lose against the old model
(docs/appendix/translation.md). A migration whose translation was measured to lose is refused, and a switch of searches
asks for evidence of a gain, unless the caller wants it ``anyway``.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import DataError, GateError, InputError, NextStep, plural
from fixstar.gallery.transfer import BATCH, open_vectors
from fixstar.gallery.vector_files import Beside, FileRows, VectorPlace
from fixstar.progress import progress_bar
from fixstar.translation.bridge import AGAIN, AHEAD, ONE, TWO
from fixstar.translation.file import load_translation
from fixstar.translation.maps import Map
from fixstar.translation.translation import Translation
from fixstar.wording import points

Store = str | Path | VectorPlace
"""Old vectors, by their address or opened."""
Way = str | Path | Translation
"""A translation, or its file."""
Forecast = Literal["gains", "loses", "not decided", "unproven"]
"""What the evidence says about the translated vectors alone, searched by the new model."""

_TIMED = 2  # blocks that are read and mapped to estimate the time
_SHOWN = (AHEAD, ONE, TWO, AGAIN)
_OTHERWISE = (
    NextStep(
        "init",
        {"path": ...},
        "a workspace that searches both sides; then import the old vectors there",
    ),
    NextStep("repeat", {"anyway": True}, "do it all the same"),
)


@dataclass(frozen=True)
class MigrationPlan:
    """What a migration would do, and what its translation was measured to gain.

    ``there`` of the ``items`` have a translated vector already, ``bytes`` are those of all new vectors, ``seconds``
    estimate reading and mapping (not the store's writing), ``measured`` are points over the old model, each with
    ``low`` and ``high``, by way to search, and ``cost`` is that of embedding everything again.
    """

    source: str
    target: str
    items: int
    there: int
    widths: tuple[int, int]
    bytes: int
    seconds: float
    models: tuple[str, str]
    made: str | None
    forecast: Forecast
    measure: str | None
    measured: Mapping[str, Mapping[str, float]]
    cost: float | None = None

    @property
    def sentence(self) -> str:
        """What the evidence says, in words."""
        return _forecast_words(self.forecast, self.measured.get(AHEAD))

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "sentence": self.sentence}


class Migrated(NamedTuple):
    """What a migration did: rows written now, rows that were right already, rows of the user's own, rows removed."""

    written: int
    unchanged: int
    own: int
    removed: int


def plan_migration(
    store: Store, translation: Way, to: str, price: float | None = None
) -> MigrationPlan:
    """What ``migrate`` would do; nothing is written. ``price`` is what embedding a million items costs."""
    if price is not None and not price >= 0:
        raise InputError(f"a price is what embedding a million items costs, 0 or more; got {price}")
    source, way, target = _opened(store, translation, to)
    forward = _forward(way, source)
    there = 0
    if target.there():
        there = sum(len(page) for page in target.marked())
    count = len(source.ids)
    measured = _measured(way)
    return MigrationPlan(
        source=source.name,
        target=target.name,
        items=count,
        there=there,
        widths=forward.widths,
        bytes=4 * count * forward.widths[1],
        seconds=_seconds(source, forward),
        models=(way.source, way.target),
        made=way.about.get("made"),
        forecast=_forecast(measured),
        measure=way.about.get("measure"),
        measured=measured,
        cost=None if price is None else price * count / 1e6,
    )


def migrate(
    store: Store, translation: Way, to: str, anyway: bool = False, progress: bool = False
) -> Migrated:
    """Translate what is new or changed, and write it to the table, collection or file called ``to``."""
    source, way, target = _opened(store, translation, to)
    forward = _forward(way, source)
    _require_distinct(source)
    measured = _measured(way)
    if _forecast(measured) == "loses" and not anyway:
        raise GateError(
            f"{_forecast_words('loses', measured[AHEAD])} Nothing was written. {_both_sides(way)}",
            *_OTHERWISE,
        )
    if target.there():
        _require_same_translation(target, way)
    target.open(forward.widths[1])
    removed = _remove_gone(source, target)
    written = 0
    unchanged = 0
    own = 0
    with progress_bar("translating", len(source.ids), "vectors", show=progress) as advance:
        for rows, marks, there in _compared(source, target, way):
            theirs = [
                row for row, name in enumerate(rows.ids) if name in there and there[name] is None
            ]
            waiting = [
                row
                for row, name in enumerate(rows.ids)
                if there.get(name, "") not in (None, marks[row])
            ]
            if waiting:
                mapped = forward(_unit(rows, source.name)[waiting])
                new = FileRows(
                    [rows.ids[row] for row in waiting],
                    mapped,
                    [rows.payloads[row] for row in waiting],
                )
                target.write(new, [marks[row] for row in waiting])
            own += len(theirs)
            written += len(waiting)
            unchanged += len(rows.ids) - len(theirs) - len(waiting)
            advance(len(rows.ids))
    target.close()
    return Migrated(written=written, unchanged=unchanged, own=own, removed=removed)


def switch_migration(
    store: Store, translation: Way, to: str, alias: str | None = None, anyway: bool = False
) -> str:
    """Let searches find the translated vectors, where the store can; returns what was done, or what is to be done.

    Refused while rows are missing or have changed, and, unless ``anyway``, without evidence of a gain.
    """
    source, way, target = _opened(store, translation, to)
    _forward(way, source)
    measured = _measured(way)
    forecast = _forecast(measured)
    if forecast != "gains" and not anyway:
        raise GateError(
            f"{_forecast_words(forecast, measured.get(AHEAD))} Searches were left as they are. {_both_sides(way)}",
            *_OTHERWISE,
        )
    if not target.there():
        raise InputError(f"there is no {target.name}: run the migration first")
    _require_same_translation(target, way)
    waiting = sum(
        there.get(name, "") not in (None, mark)
        for rows, marks, there in _compared(source, target, way)
        for name, mark in zip(rows.ids, marks, strict=True)
    )
    if waiting:
        raise InputError(
            f"{target.name} lacks {plural(waiting, 'item')} of {source.name}, or has an outdated vector of them: run "
            "the migration again, then switch"
        )
    return target.switch(alias)


def undo_migration(store: Store, to: str, alias: str | None = None) -> str:
    """Let searches find the old vectors again; returns what was done, or what is to be done. Nothing is deleted."""
    return _source(store).beside(to).undo(alias)


def _source(store: Store) -> VectorPlace:
    if isinstance(store, (str, Path)):
        return open_vectors(store, old=True)
    return store


def _opened(store: Store, translation: Way, to: str) -> tuple[VectorPlace, Translation, Beside]:
    if isinstance(translation, Translation):
        way = translation
    else:
        way = load_translation(translation)
    source = _source(store)
    return source, way, source.beside(to)


def _forward(way: Translation, source: VectorPlace) -> Map:
    if way.forward is None:
        raise InputError(
            f"the translation from {way.source} to {way.target} maps no stored vectors, only queries: there is nothing "
            "to write. Make one with fixstar bridge"
        )
    width = way.forward.widths[0]
    if source.width != width:
        raise InputError(
            f"{source.name} has vectors of {plural(source.width, 'component')}, and the translation is for those of "
            f"{way.source}, which have {width}: another model made these vectors, or name the right vector column"
        )
    return way.forward


def _require_distinct(source: VectorPlace) -> None:
    if len(set(source.ids)) < len(source.ids):
        raise DataError(
            f"{source.name} has an id twice; rows are told apart by their ids. Name a column or field that is unique"
        )


# --- marks


def _key(way: Translation) -> str:
    return way.key[:16]


def _mark(way: Translation, vector: NDArray[Any], payload: Mapping[str, Any] | None) -> str:
    """The translation and a digest of the old row; of its payload too where that is copied."""
    digest = hashlib.sha256(np.ascontiguousarray(vector, "<f4").tobytes())
    if payload is not None:
        digest.update(json.dumps(payload, sort_keys=True, default=str).encode())
    return f"{_key(way)}.{digest.hexdigest()[:16]}"


def _compared(
    source: VectorPlace, target: Beside, way: Translation
) -> Iterator[tuple[FileRows, list[str], dict[str, str | None]]]:
    """Blocks of the source, the marks that their rows should have, and those that they have."""
    for rows in source.blocks(BATCH):
        if target.copies:
            payloads: Sequence[Mapping[str, Any] | None] = rows.payloads
        else:
            payloads = [None] * len(rows.ids)
        marks = [
            _mark(way, vector, payload)
            for vector, payload in zip(rows.vectors, payloads, strict=True)
        ]
        yield rows, marks, target.marks(rows.ids)


def _require_same_translation(target: Beside, way: Translation) -> None:
    for page in target.marked():
        for mark in target.marks(page).values():
            if mark is not None and not mark.startswith(f"{_key(way)}."):
                raise InputError(
                    f"{target.name} holds vectors of another translation than this one: those of two would be mixed. "
                    "Choose another name",
                    NextStep("repeat", {"to": ...}),
                )
        if page:
            return


def _remove_gone(source: VectorPlace, target: Beside) -> int:
    """Remove rows that were written for items that the source no longer has."""
    here = set(source.ids)
    gone = [name for page in target.marked() for name in page if name not in here]
    for start in range(0, len(gone), BATCH):
        target.remove(gone[start : start + BATCH])
    return len(gone)


def _unit(rows: FileRows, name: str) -> NDArray[np.float32]:
    vectors = np.asarray(rows.vectors, np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    wrong = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(wrong):
        raise DataError(
            f"{name}: the vector of {rows.ids[wrong[0]]!r} is zero, NaN or infinite. Mend or delete that row; the same "
            "command then goes on"
        )
    unit: NDArray[np.float32] = (vectors / lengths[:, None]).astype(np.float32)
    return unit


def _seconds(source: VectorPlace, forward: Map) -> float:
    """An estimate of reading and mapping, by the first blocks."""
    start = time.perf_counter()
    done = 0
    for number, rows in enumerate(source.blocks(BATCH), start=1):
        forward(_unit(rows, source.name))
        done += len(rows.ids)
        if number == _TIMED:
            break
    return (time.perf_counter() - start) * len(source.ids) / max(done, 1)


# --- evidence


def _measured(way: Translation) -> dict[str, dict[str, float]]:
    """The points over the old model that were measured, by way to search; empty without such evidence."""
    found = {}
    for name, row in way.about.get("measured", {}).items():
        if name in _SHOWN and row.get("difference") is not None:
            found[name] = {part: float(row[part]) for part in ("difference", "low", "high")}
    return found


def _forecast(measured: Mapping[str, Mapping[str, float]]) -> Forecast:
    ahead = measured.get(AHEAD)
    if ahead is None:
        return "unproven"
    if ahead["low"] > 0:
        return "gains"
    if ahead["high"] <= 0:
        return "loses"
    return "not decided"


def _forecast_words(forecast: Forecast, ahead: Mapping[str, float] | None) -> str:
    if ahead is None:
        return "Unproven: nothing shows what the translated vectors alone find. Mostly that is less than the old model."
    figures = f"{points(ahead['difference'])} points, between {points(ahead['low'])} and {points(ahead['high'])}"
    told = {
        "gains": f"The translated vectors alone gain over the old model: {figures}.",
        "not decided": f"Whether the translated vectors alone gain over the old model is not decided: {figures}.",
        "loses": f"The translated vectors alone lose against the old model: {figures}.",
    }
    return told[forecast]


def _both_sides(way: Translation) -> str:
    """What usually gains: adding the scores of both sides, as a workspace does."""
    asked = "queries mapped back"
    if way.two is not None:
        asked = "queries of both models"
    measured = _measured(way).get(TWO if way.two is not None else ONE)
    figures = ""
    if measured is not None:
        figures = f" ({points(measured['difference'])} [{points(measured['low'])}, {points(measured['high'])}])"
    return (
        f"Searching both sides, old vectors by {asked} and translated ones by {way.target}{figures}, needs no switch: "
        "import the old vectors into a workspace and let fixstar search and serve them"
    )
