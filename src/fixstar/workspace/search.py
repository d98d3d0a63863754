"""Answering queries: the deployed version embeds them, the vectors of all versions are searched.

Every result belongs to one version, the one that was deployed when the search began. Hits among vectors of several
versions are merged by probability if the version's last check has calibrations for all of them, else by cosine. What a
version's queries can search is answered by ``reachability``.

A deployment may **blend** queries for an older version's vectors with that version's own: slerp(old(x), new(x), alpha).
That takes the image, and one more forward pass for each such version, as long as it has vectors and weights. A vector
that a client sends, or a stored one, is a query of one model and is not blended.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import DataError, GalleryError, ImageError, InputError, NextStep
from fixstar.gallery import (
    Calibration,
    Gallery,
    Hit,
    Item,
    SearchOptions,
    SearchRequest,
    SearchResult,
    Vectors,
    calibrated_search,
)
from fixstar.gallery.ranking import Bridges
from fixstar.gallery.store import reaching
from fixstar.geometry import blended, unit
from fixstar.images import ImageSource, Preprocessing, read_pixels
from fixstar.models import Encoder
from fixstar.workspace.adapters.maps import AdapterRegistry, VectorAdapter
from fixstar.workspace.checks import LastChecks
from fixstar.workspace.deployment import Move, Rollout
from fixstar.workspace.items import LABEL, Decode, ImageStore, LocalEmbedder, ensure_version
from fixstar.workspace.reachability import Reach, Reachability
from fixstar.workspace.registry import Registry

VERIFY_EVERY = 600.0  # seconds after which a model in memory must show again that it makes the same vectors


class Serving:
    """Search by whatever is deployed; the ``keep`` last used encoders stay in memory. Threads may share it."""

    def __init__(
        self,
        registry: Registry,
        rollout: Rollout,
        gallery: Gallery,
        device: str = "cpu",
        keep: int = 3,
        usage: Usage | None = None,
    ) -> None:
        self.path, self.registry, self.rollout, self.gallery = registry.path, registry, rollout, gallery
        self.adapters = AdapterRegistry(self.path)
        self.reachability = Reachability(registry, self.adapters, gallery)
        self._device, self._keep, self._usage = device, keep, usage
        self._checks = LastChecks(self.path)
        self._bridges = Bridges(gallery.projection)
        self._encoders: OrderedDict[str, Encoder] = OrderedDict()
        self._verified: dict[str, float] = {}  # when each was last seen to be what it was when saved
        self._lock, self._loading = threading.Lock(), threading.Lock()

    def deployed(self) -> str:
        """The version that embeds queries and new items; the first one before any deployment."""
        self.registry.newest()  # raises without a version
        return self.rollout.current()

    def live(self) -> list[str]:
        """The versions with vectors in the gallery, and the deployed one."""
        found = [name for name, count in self.gallery.count().items() if count]
        return list(dict.fromkeys([*found, self.deployed()]))

    def adapters_of(self, version: str) -> dict[str, VectorAdapter]:
        """The adapters by which a version's queries search stored vectors, by the version that made these."""
        counts = self.gallery.count()
        live = (name for name in self.reachability.of(version).adapted if counts.get(name))
        return {name: found for name in live if (found := self.adapters.find(name, version)) is not None}

    def encoder(self, version: str) -> Encoder:
        """A version's encoder, loaded once and verified every ten minutes; the gallery has room for its vectors."""
        if (known := self._loaded(version)) is not None:
            if time.monotonic() - self._verified[version] > VERIFY_EVERY:
                known.require_unchanged()
                self._verified[version] = time.monotonic()
            return known
        with self._loading:
            if (known := self._loaded(version)) is not None:  # another thread has loaded it meanwhile
                return known
            encoder = self.registry.encoder(version, self._device)
            ensure_version(self.gallery, version, encoder)
            with self._lock:
                self._encoders[version], self._verified[version] = encoder, time.monotonic()
                while len(self._encoders) > max(self._keep, 1 + len(self.rollout.current_move().blend)):
                    self._encoders.popitem(last=False)
            return encoder

    def _loaded(self, version: str) -> Encoder | None:
        with self._lock:
            if version in self._encoders:
                self._encoders.move_to_end(version)
            return self._encoders.get(version)

    def embed(self, version: str, images: Sequence[ImageSource], decode: Decode | None = None) -> Vectors:
        """Query vectors [N, width] of a version; an unreadable image raises ``ImageError``."""
        vectors, bad = LocalEmbedder(self.encoder(version), decode).one(images)
        if bad:
            raise bad[0]
        return vectors

    def search(
        self, images: Sequence[ImageSource], request: SearchRequest | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """The nearest items of each image; see ``search_vectors``. Queries are blended as deployed."""
        move, models = self.asking()
        return self.search_queries(move, {name: self.embed(name, images) for name in models}, request, **options)

    def asking(self) -> tuple[Move, list[str]]:
        """The deployment now, and the versions that embed each query: the deployed one, then those blended in."""
        move = self.rollout.current_move()
        counts = self.gallery.count() if move.blend else {}
        live = (name for name in move.blend if counts.get(name) and self.registry.directory(name).is_dir())
        return move, [move.version, *live]

    def search_queries(
        self,
        move: Move,
        vectors: Mapping[str, Vectors],
        request: SearchRequest | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The nearest items of queries, as all versions of ``asking`` embedded them, [N, width] each."""
        return self._counted(
            self._search(move.version, vectors[move.version], SearchRequest.of(request, **options), move, vectors)
        )

    def search_vectors(
        self, version: str, vectors: Vectors, request: SearchRequest | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """The nearest items of vectors that a version made: by probability if calibrated, else by cosine."""
        return self._counted(self._search(version, vectors, SearchRequest.of(request, **options)))

    def like(self, item: str, request: SearchRequest | None = None, **options: Unpack[SearchOptions]) -> SearchResult:
        """The nearest items of a stored one, itself left out, by its stored vector."""
        return self.by_examples(Examples(ids=(item,)), Examples(), request, **options)

    def by_examples(
        self,
        positive: Examples,
        negative: Examples | None = None,
        request: SearchRequest | None = None,
        decode: Decode | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The nearest items of several examples, themselves left out: like the positive, unlike the negative ones.

        The query is the positive mean minus half of the negative one. Stored vectors of one version are used as they
        are, otherwise the deployed version embeds all images.
        """
        negative, wanted = negative or Examples(), SearchRequest.of(request, **options)
        if not positive.ids and not positive.images:
            raise InputError("a search by examples needs a positive one: an item's id, or an image")
        names = tuple(dict.fromkeys((*positive.ids, *negative.ids)))
        items = self.gallery.get(names)
        if unknown := [name for name in names if name not in items]:
            raise GalleryError(f"the gallery has no item {unknown[0]!r}")
        more = SearchRequest.of(wanted, k=wanted.k + len(names))
        versions = {item.version for item in items.values()}
        if len(versions) == 1 and not positive.images and not negative.images:
            (version,) = versions
            self._require_connected(names[0], version)
            sides = [[items[name].vector for name in side.ids] for side in (positive, negative)]
            result = self._search(version, _combined(*sides), more)
        else:
            move, models = self.asking()
            pictures = [[*self._images_of(side.ids, items), *side.images] for side in (positive, negative)]
            made = {
                name: _combined(*(list(self.embed(name, some, decode)) if some else [] for some in pictures))
                for name in models
            }
            result = self._search(move.version, made[move.version], more, move, made)
        if len(names) + len(positive.images) + len(negative.images) > 1:
            result = result._replace(thresholds={})  # they were measured with single images
        found = [hit for hit in result.hits[0] if hit.id not in items][: wanted.k]
        return self._counted(result._replace(hits=[found]))

    def _images_of(self, names: Sequence[str], items: Mapping[str, Item]) -> list[ImageSource]:
        """The images of stored items, which must be here."""
        store = ImageStore(self.path)
        found = {name: store.find(items[name]) for name in names}
        if missing := [name for name, path in found.items() if path is None]:
            raise GalleryError(
                f"{missing[0]!r} has no image here, so its vector, of {items[missing[0]].version}, cannot be combined "
                "with images or with vectors of other versions; use examples of one version, or leave it out"
            )
        return [path for path in found.values() if path is not None]

    def calibrations(self, version: str, reach: Reach) -> dict[str, Calibration]:
        """What turns cosines between a version's queries and vectors into probabilities; empty unless complete."""
        check = self._checks.of(version)
        known = {} if check is None else {name: Calibration(*pair) for name, pair in check.calibrations.items()}
        if len(known) < 2 or any(self.gallery.count().get(name) for name in reach.adapted):
            return {}
        return self._usable(known, reach.direct)

    def _usable(self, known: Mapping[str, Calibration], searched: Sequence[str]) -> dict[str, Calibration]:
        """Calibrations of the versions that are searched; empty if one with vectors lacks one, or only one has any."""
        counts = self.gallery.count()
        live = {name for name in searched if counts.get(name)}
        if len(live) < 2 or not live <= known.keys():
            return {}
        deployed = self.rollout.current()
        usable = (name for name in searched if name in known)
        return {name: known[name] for name in sorted(usable, key=lambda name: name == deployed)}

    def _search(
        self,
        version: str,
        vectors: Vectors,
        request: SearchRequest,
        move: Move | None = None,
        by_models: Mapping[str, Vectors] | None = None,
    ) -> SearchResult:
        """Search with one version's vectors; those of ``by_models`` are blended in as a deployment says."""
        least, request = request.min_score, SearchRequest.of(request, min_score=None)  # of the scores in the result
        reach, blend = self.reachability.of(version), dict[str, float]()
        if move is not None and by_models is not None:
            blend = {name: move.blend[name] for name in by_models if name != version}
        if request.versions is not None:
            reach = reach.among(request.versions)
            blend = {name: alpha for name, alpha in blend.items() if name in request.versions}
        direct = [name for name in reach.direct if name not in blend]
        own = {}  # vectors of the same queries in the space of the version that they search
        for name in dict.fromkeys([*reach.adapted, *blend]):
            helping = by_models[name] if by_models is not None and name in blend else None
            made = self.queries_for(name, version, vectors, reach, helping, blend.get(name, 1.0))
            if made is not None:
                own[name] = made
        calibrations: dict[str, Calibration] = {}
        if request.calibrate and move is not None and blend:
            fitted = {name: Calibration(*pair) for name, pair in move.calibrations.items()}
            calibrations = self._usable(fitted, [*own, *direct])
        elif request.calibrate:
            calibrations = self.calibrations(version, reach)
        if calibrations:
            hits = calibrated_search(self.gallery, version, vectors, calibrations, request, own)
        elif own:
            parts = [self.gallery.search(name, made, request, versions=[name]) for name, made in own.items()]
            parts.append(self.gallery.search(version, vectors, request, versions=direct))
            hits = _merged_by_cosine(parts, request.k)
        else:
            among = reach.direct if reach.unreachable or request.versions is not None else None
            hits = self.gallery.search(version, vectors, request, versions=among)
        counts = self.gallery.count() if reach.unreachable else {}
        left_out = tuple(name for name in reach.unreachable if counts.get(name) and name not in own)
        thresholds = self._thresholds(version, direct, calibrations)
        return SearchResult(version, reaching(hits, least), left_out, bool(calibrations), blend, thresholds)

    def _thresholds(
        self, version: str, direct: Sequence[str], calibrations: Mapping[str, Calibration]
    ) -> dict[str, float]:
        """The measured scores, by version that is searched directly, under which a hit is probably no match."""
        check = self._checks.of(version)
        measured = {} if check is None else check.thresholds
        known = {name: measured[name].cosine for name in direct if name in measured}
        if not calibrations:
            return known
        usable = [name for name in known if name in calibrations]
        return {name: float(calibrations[name].probability(known[name])) for name in usable}

    def queries_for(
        self, to: str, version: str, vectors: Vectors, reach: Reach, helping: Vectors | None = None, alpha: float = 1.0
    ) -> Vectors | None:
        """A version's queries as they search vectors of ``to``, blended with ``helping``; None if unconnected."""
        carried: Vectors | None = None
        if to in reach.adapted:
            adapter = self.adapters.find(to, version)
            carried = None if adapter is None else adapter(vectors)
        elif to in reach.direct:
            narrow = np.asarray(vectors, np.float32)
            carried = self._bridges.carried(narrow, self.gallery.space(version), self.gallery.space(to))
        if helping is None:
            return carried
        return helping if carried is None else blended(helping, carried, alpha)

    def _require_connected(self, item: str, version: str) -> None:
        """Refuse a stored vector as a query if it and those of the deployed version cannot be compared."""
        if not self.registry.names() or version in self.adapters.isolated():
            return  # searched among vectors of its own version
        deployed = self.rollout.current()
        ways = ((deployed, version), (version, deployed))
        if not any(end in (*(reach := self.reachability.of(start)).direct, *reach.adapted) for start, end in ways):
            raise GalleryError(
                f"{item!r} holds a vector of {version}, and nothing connects that model with {deployed}, which is "
                "deployed: cosines between the two would mean nothing",
                NextStep("adapt", {"version": version, "queries_by": deployed}),
                NextStep(
                    "import-vectors",
                    {"file": ..., "name": f"{version.partition('@')[0]}@{deployed}"},
                    f"if {deployed}'s model made these vectors elsewhere",
                ),
            )

    def _counted(self, result: SearchResult) -> SearchResult:
        if self._usage is not None:
            self._usage.record(found[0].id for found in result.hits if found)
        return result

    def close(self) -> None:
        """Close the gallery, and write down what was counted."""
        self.gallery.close()
        if self._usage is not None:
            self._usage.flush()


class Examples(NamedTuple):
    """What a search is to find more of, or less of: stored items by their ids, and images."""

    ids: Sequence[str] = ()
    images: Sequence[ImageSource] = ()


def _combined(positive: Sequence[Vectors], negative: Sequence[Vectors]) -> Vectors:
    """One unit query [1, width]: the mean of the positive vectors minus half of the mean of the negative ones."""
    if len(positive) == 1 and not negative:
        return positive[0][None]
    query = np.mean(positive, axis=0, dtype=np.float64, keepdims=True)
    if negative:
        query = query - 0.5 * np.mean(negative, axis=0, dtype=np.float64, keepdims=True)
    if np.linalg.norm(query) < 1e-6:
        raise InputError("the examples cancel each other out: no direction is left to search; use other ones")
    return unit(np.asarray(query)).astype(np.float32)


def _merged_by_cosine(parts: Sequence[list[list[Hit]]], k: int) -> list[list[Hit]]:
    merged = []
    for found in zip(*parts, strict=True):
        last = {hit.id: hit for hit in chain(*found)}  # of an item that moved meanwhile, what was found last
        merged.append(sorted(last.values(), key=lambda hit: -hit.score)[:k])
    return merged


# --- how often items are found

_MOST_WAITING = 100_000  # ids that wait in memory; more are written at once
_TABLE = "CREATE TABLE IF NOT EXISTS usage (id TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID"
_ADD = "INSERT INTO usage VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET count = count + excluded.count"


class Usage:
    """How often items are found, in state/usage.db, for a backfill. Threads and processes may share it.

    Counts are written every few seconds by a background thread; a killed process loses the last ones.
    """

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
            raise DataError(
                f"{self.path} cannot be read ({error}); if it is damaged, delete it: it holds counts only"
            ) from error

    def _flush_quietly(self) -> None:
        try:
            self.flush()
        except (DataError, OSError):  # ``counts`` will raise it
            return

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self.path, timeout=30)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute(_TABLE)
        return db


# --- results as one picture

_THUMBNAIL = Preprocessing(size=(96, 96), mean=(0, 0, 0), std=(1, 1, 1), fit="pad")


def draw_result(serving: Serving, queries: Sequence[str], result: SearchResult, stored: bool, path: Path) -> Path:
    """Draw each query with its hits; a frame is green if labels agree. ``stored`` says that queries are item ids."""
    from fixstar.evaluation import HitPicture, contact_sheet

    images = ImageStore(serving.path)
    items = serving.gallery.get([hit.id for hits in result.hits for hit in hits] + (list(queries) if stored else []))
    labels = [items[name].payload.get(LABEL) if stored and name in items else None for name in queries]

    def picture(name: str) -> NDArray[Any]:
        return _pixels(images.find(items[name]) if name in items else None)

    shown = [picture(name) if stored else _pixels(Path(name)) for name in queries]
    rows = [
        [HitPicture(picture(hit.id), label is not None and hit.payload.get(LABEL) == label) for hit in hits]
        for hits, label in zip(result.hits, labels, strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    contact_sheet(shown, {f"found by {result.version}": rows}, path)
    return path


def _pixels(path: Path | None) -> NDArray[Any]:
    """An image, or a grey square if it is gone."""
    if path is not None:
        try:
            return read_pixels(path, _THUMBNAIL)
        except ImageError:
            pass
    return np.full((96, 96, 3), 225, np.uint8)
