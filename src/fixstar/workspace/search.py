"""Answering queries: the deployed version embeds them, the gallery of all versions is searched.

Every answer is of one version, the one that was deployed when it began; a deployment in between changes the next one.
Where vectors of several versions live, hits are merged by probability, if the version's last check has calibrations for
all of them; else by cosine. Vectors of a model that was not trained together with it are searched through an adapter,
where one is in use, or not at all (``reach``). Threads may share it.

How often items are found: state/usage.db, one row an item. A backfill re-embeds first what is looked for.

Counts are gathered in memory and written now and then by a thread of their own, so a search pays for a dictionary
entry. They are a help, not a record: what was not written yet when a process is killed is not counted.

Search results of a workspace as one picture.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import DataError, GalleryError, ImageError
from fixstar.evaluation import HitPicture, contact_sheet
from fixstar.gallery import (
    Calibration,
    Gallery,
    Hit,
    SearchOptions,
    SearchRequest,
    SearchResult,
    Vectors,
    VersionSpace,
    calibrated_search,
)
from fixstar.images import ImageSource, Preprocessing, read_pixels
from fixstar.models import Encoder
from fixstar.workspace.adapters.maps import VectorAdapter
from fixstar.workspace.adapters.registry import AdapterBook
from fixstar.workspace.checks import CheckedCalibrations
from fixstar.workspace.deployment import Rollout
from fixstar.workspace.items import ImageStore, LocalEmbedder, ensure_version
from fixstar.workspace.reachability import Reach
from fixstar.workspace.registry import Registry

__all__ = ["Serving", "Usage", "draw_answer"]


class _Ways(NamedTuple):
    """Gallery versions that queries meet as they are, those that they meet through an adapter, and the others."""

    direct: list[str]
    adapted: dict[str, VectorAdapter]
    unreached: list[str]


class Serving:
    """Search through whatever version is deployed. The ``keep`` encoders used last stay in memory.

    With ``usage`` the best hit of every query is counted. ``adapters`` are those in use.
    """

    def __init__(
        self,
        registry: Registry,
        rollout: Rollout,
        gallery: Gallery,
        device: str = "cpu",
        keep: int = 3,
        usage: Usage | None = None,
        adapters: AdapterBook | None = None,
    ) -> None:
        self._registry, self._rollout, self.gallery = registry, rollout, gallery
        self._device, self._keep, self._usage, self._adapters = device, keep, usage, adapters
        self._checked, self._reach = CheckedCalibrations(registry.path), Reach(registry)
        self._encoders: OrderedDict[str, Encoder] = OrderedDict()
        self._lock, self._loading = threading.Lock(), threading.Lock()

    def encoder(self, version: str) -> Encoder:
        """A version's encoder, read from disk the first time; the gallery then has room for its vectors.

        Queries of versions in memory do not wait while another one is read.
        """
        if (known := self._known(version)) is not None:
            return known
        with self._loading:
            if (known := self._known(version)) is not None:  # another thread has read it meanwhile
                return known
            encoder = self._registry.encoder(version, self._device)
            ensure_version(self.gallery, version, encoder)
            with self._lock:
                self._encoders[version] = encoder
                while len(self._encoders) > self._keep:
                    self._encoders.popitem(last=False)
            return encoder

    def _known(self, version: str) -> Encoder | None:
        with self._lock:
            if version in self._encoders:
                self._encoders.move_to_end(version)
            return self._encoders.get(version)

    def embed(self, version: str, images: Sequence[ImageSource]) -> Vectors:
        """Query vectors [N, width] of a version; an image that cannot be read raises ``ImageError``."""
        vectors, bad = LocalEmbedder(self.encoder(version)).one(images)
        if bad:
            raise bad[0]
        return vectors

    def search(
        self,
        images: Sequence[ImageSource],
        request: SearchRequest | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The nearest items of each image; see ``search_vectors``."""
        version = self._rollout.current()
        return self.search_vectors(version, self.embed(version, images), request, **options)

    def search_vectors(
        self,
        version: str,
        vectors: Vectors,
        request: SearchRequest | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The nearest items of vectors that a version made.

        Where ``calibrations`` apply, and the request asks for them, the most probable ones. Else scores are cosines in
        the space of the version found, and those of different versions are not on one scale.
        """
        answer = self._found(version, vectors, SearchRequest.of(request, **options))
        self._count(answer)
        return answer

    def _found(self, version: str, vectors: Vectors, request: SearchRequest) -> SearchResult:
        ways = self._ways(version)
        calibrations = self._calibrations(version, ways) if request.calibrate else {}
        if calibrations:
            hits = calibrated_search(self.gallery, version, vectors, calibrations, request)
        elif not ways.adapted:
            among = ways.direct if ways.unreached else None
            hits = self.gallery.search(version, vectors, request, versions=among)
        else:
            hits = self._search_adapted(ways, version, vectors, request)
        counts = self.gallery.count() if ways.unreached else {}
        left_out = tuple(name for name in ways.unreached if counts.get(name))
        return SearchResult(version, hits, left_out, calibrated=bool(calibrations))

    def _count(self, answer: SearchResult) -> None:
        if self._usage is not None:
            self._usage.record(found[0].id for found in answer.hits if found)

    def calibrations(self, version: str) -> dict[str, Calibration]:
        """What makes probabilities of the cosines between a version's queries and all vectors that they reach.

        Empty where it is not needed, since one version's vectors alone live, or not known: the version's last check
        has none for one that lives, or one has a space of its own. What is deployed comes last: vectors move there
        meanwhile.
        """
        return self._calibrations(version, self._ways(version))

    def _calibrations(self, version: str, ways: _Ways) -> dict[str, Calibration]:
        known = self._checked.of(version)
        if len(known) < 2:
            return {}
        counts = self.gallery.count()
        live = {name for name, count in counts.items() if count} - set(ways.unreached)
        apart = set() if self._adapters is None else self._adapters.apart()
        if len(live) < 2 or not live <= known.keys() or apart & {version, *live}:
            return {}
        deployed = self._rollout.current()
        reached = (name for name in counts if name in known and name not in ways.unreached)
        return {name: known[name] for name in sorted(reached, key=lambda name: name == deployed)}

    def met(self, version: str) -> list[str]:
        """The gallery versions whose vectors queries of a version meet as they are, without an adapter."""
        return self._met(version, self.gallery.versions())

    def _met(self, version: str, spaces: Sequence[VersionSpace]) -> list[str]:
        met = self._reach.met(version, spaces)
        apart = set() if self._adapters is None else self._adapters.apart()
        names = (space.name for space in spaces)
        return [name for name in names if name == version or (name in met and not apart & {name, version})]

    def _ways(self, version: str) -> _Ways:
        """How queries of a version come to each gallery version."""
        spaces = self.gallery.versions()
        ways = _Ways(self._met(version, spaces), {}, [])
        for name in (space.name for space in spaces if space.name not in ways.direct):
            if self._adapters is not None and (adapter := self._adapters.find(name, version)) is not None:
                ways.adapted[name] = adapter
            else:
                ways.unreached.append(name)
        return ways

    def _search_adapted(self, ways: _Ways, version: str, vectors: Vectors, request: SearchRequest) -> list[list[Hit]]:
        """Search where some versions have a space of their own: there with what their adapters make of the queries."""
        parts = [
            self.gallery.search(name, adapter(vectors), request, versions=[name])
            for name, adapter in ways.adapted.items()
            if len(vectors)
        ]
        parts.append(self.gallery.search(version, vectors, request, versions=ways.direct))
        return [
            _best(chain(*found), request.k) for found in zip(*parts, strict=True)
        ]  # what may move there was searched last

    def close(self) -> None:
        """Close the gallery, and write down what was counted."""
        self.gallery.close()
        if self._usage is not None:
            self._usage.flush()

    def like(self, item: str, request: SearchRequest | None = None, **options: Unpack[SearchOptions]) -> SearchResult:
        """The nearest items of one that is stored, itself left out, by the vector that it was stored with.

        Refused where nothing connects the model of that vector with the version deployed.
        """
        known = self.gallery.get([item]).get(item)
        if known is None:
            raise GalleryError(f"the gallery has no item {item!r}")
        self._demand_reached(item, known.version)
        wanted = SearchRequest.of(request, **options)
        answer = self._found(known.version, known.vector[None], SearchRequest.of(wanted, k=wanted.k + 1))
        answer = answer._replace(hits=[[hit for hit in answer.hits[0] if hit.id != item][: wanted.k]])
        self._count(answer)
        return answer

    def _demand_reached(self, item: str, version: str) -> None:
        if not self._registry.names() or (self._adapters is not None and version in self._adapters.apart()):
            return  # compared with its own kind
        deployed = self._rollout.current()
        if version not in {deployed, *self._reach.met(deployed, self.gallery.versions())}:
            raise GalleryError(
                f"{item!r} holds a vector of {version}, and nothing connects that model with {deployed}, which is "
                f"deployed: cosines between the two would mean nothing. Run: fixstar adapt {version} --for {deployed}, "
                "or see docs/adapters.md on vectors that the same model made elsewhere"
            )


def _best(hits: Iterable[Hit], k: int) -> list[Hit]:
    """The k highest scores; of an item that moved meanwhile, what was found last."""
    last = {hit.id: hit for hit in hits}
    return sorted(last.values(), key=lambda hit: -hit.score)[:k]


_MOST_WAITING = 100_000  # ids that wait in memory; more are written at once
_TABLE = "CREATE TABLE IF NOT EXISTS usage (id TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID"
_ADD = "INSERT INTO usage VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET count = count + excluded.count"


class Usage:
    """The counts of one workspace. Threads and processes may share them; ``every`` is seconds between two writes."""

    def __init__(self, workspace: Path, every: float = 5.0) -> None:
        self.path = workspace / "state" / "usage.db"
        self._every, self._next = every, time.monotonic() + every
        self._waiting: Counter[str] = Counter()
        self._lock, self._write = threading.Lock(), threading.Lock()

    def record(self, ids: Iterable[str]) -> None:
        """Count items that were found. Never raises and never waits for the disk."""
        with self._lock:
            self._waiting.update(ids)
            due = time.monotonic() >= self._next or len(self._waiting) >= _MOST_WAITING
            if due:
                self._next = time.monotonic() + self._every
        if due and not self._write.locked():
            threading.Thread(target=self._flush_quietly, name="fixstar-usage", daemon=True).start()

    def flush(self) -> None:
        """Write what waits in memory."""
        with self._write:
            with self._lock:
                rows, self._waiting = self._waiting, Counter()
            if not rows:
                return
            try:
                with closing(self._open()) as db, db:
                    db.executemany(_ADD, rows.items())
            except sqlite3.Error as error:
                with self._lock:
                    if len(self._waiting) < _MOST_WAITING:
                        self._waiting.update(rows)
                raise DataError(
                    f"{self.path} cannot be written ({error}); if it is damaged, delete it: it holds counts only"
                ) from error

    def counts(self) -> dict[str, int]:
        """How often each item was found, of all that ever were."""
        self.flush()
        if not self.path.exists():
            return {}
        try:
            with closing(self._open()) as db:
                return dict(db.execute("SELECT id, count FROM usage"))
        except sqlite3.Error as error:
            raise DataError(f"{self.path} cannot be read ({error}); delete it: it holds counts only") from error

    def _flush_quietly(self) -> None:
        try:
            self.flush()
        except (DataError, OSError):  # searching goes on; whoever asks for the counts is told
            return

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self.path, timeout=30)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute(_TABLE)
        return db


_THUMBNAIL = Preprocessing(size=(96, 96), mean=(0, 0, 0), std=(1, 1, 1), fit="pad")


def draw_answer(
    gallery: Gallery, images: ImageStore, queries: Sequence[str], answer: SearchResult, stored: bool, path: Path
) -> Path:
    """Draw each query with its hits; a frame is green where labels agree. ``stored`` says that queries are item ids."""
    items = gallery.get([hit.id for hits in answer.hits for hit in hits] + (list(queries) if stored else []))
    labels = [items[name].payload.get("label") if stored and name in items else None for name in queries]

    def picture(name: str) -> NDArray[Any]:
        return _pixels(images.find(items[name]) if name in items else None)

    shown = [picture(name) if stored else _pixels(Path(name)) for name in queries]
    rows = [
        [HitPicture(picture(hit.id), label is not None and hit.payload.get("label") == label) for hit in hits]
        for hits, label in zip(answer.hits, labels, strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    contact_sheet(shown, {f"found by {answer.version}": rows}, path)
    return path


def _pixels(path: Path | None) -> NDArray[Any]:
    """An image, or a grey square where it is gone."""
    if path is not None:
        try:
            return read_pixels(path, _THUMBNAIL)
        except ImageError:
            pass
    return np.full((96, 96, 3), 225, np.uint8)
