"""A gallery on a Qdrant server or cluster: one collection per version.

Qdrant has no transactions over collections, nor over requests. What holds instead:

- Everything is checked before anything is written. A write that returned was acknowledged by the server (``wait``).
- A batch is sent in requests of some megabytes. If one fails, the call raises and those before it are written;
  repeating the call is safe and completes it.
- An item that moves to another version is first written there and then removed where it was, so it is never lost.
  Every write has a number, higher than any earlier write of the item; of two copies the one with the higher number
  counts, in every answer. A removal names the number it is about, so it never removes a newer write.
- A move is noted before it begins. If the writer dies between its two steps, the next process that opens or flushes
  the gallery removes the old copy. Until then ``count`` counts both, and a search returns one of them: the newer one
  if both are near, else the one that is.
- Searches ask old versions first. So an item that moves to a newer version is found once by every search. One that
  moves back to an older version may be missed by a search that runs in that moment.

The server ranks by its own product in float32 and returns the vectors; their cosines are computed again here, as in
every gallery. While something as good as the k-th best may still be missing, or the filter has left fewer than k, more
points are requested.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError
from fixstar.gallery.filters import payload_test
from fixstar.gallery.qdrant_server import (
    QdrantServer,
    StoredVersion,
    as_item,
    connect,
    item_name,
    item_payload,
    known_name,
    lost_name,
    point_id,
    point_payload,
    server_filter,
    translated,
    written_as,
)
from fixstar.gallery.ranking import Bridges, Candidate, best_hits, exact_cosines
from fixstar.gallery.store import (
    Floats,
    Gallery,
    Hit,
    IndexState,
    Item,
    Payload,
    SearchRequest,
    Vectors,
    VersionSpace,
    check_new_version,
    checked_vectors,
    measured_recall,
    replaceable,
    unknown_version,
)

if TYPE_CHECKING:
    from qdrant_client import QdrantClient, models

__all__ = ["QdrantGallery"]

_PAGE = 256  # points with vectors in one answer
_WRITTEN = 1 << 18  # components in one request
_ROWS = 1000  # points in one request
_SPARE = 8  # requested beyond k: for ties, and for an item that is moving
_MORE = 4
_READ = 1 << 22  # components in one answer, which is text
_QUERIES = 128
_ABANDONED = 3600.0  # seconds after which a move is no longer running
_PAUSE = 0.5  # seconds between two checks of an index
_IDLE = 4  # checks without work: the optimizer starts a moment after it is told to
_SAMPLE = 100

Places = dict[str, dict[str, int]]  # point -> version -> number of the write


def _candidates(
    server: QdrantServer, target: StoredVersion, queries: NDArray[np.float64], request: SearchRequest, ef: int
) -> list[Candidate]:
    """The k best points of one version for each query, and some others."""
    from qdrant_client import models

    params = None  # the client's engine warns about them
    if not server.is_engine:
        params = models.SearchParams(exact=request.exact, hnsw_ef=None if request.exact else ef)
    condition, name = server_filter(request.where), target.space.name
    test = None if request.where is None else payload_test(request.where)
    slack = 2e-6 * max(1.0, target.space.width**0.5 / 8)  # float32 rounding of a dot product, with a margin
    found: list[tuple[int, models.ScoredPoint]] = []
    pending, limit = list(range(len(queries))), request.k + _SPARE
    while pending:
        requests = [
            models.QueryRequest(
                query=queries[q].astype(np.float32).tolist(),
                limit=limit,
                filter=condition,
                params=params,
                with_vector=True,
                with_payload=["id", "written", "text"],
            )
            for q in pending
        ]
        unfinished = []
        for q, points in zip(pending, server.query(target.collection, requests), strict=True):
            passing = points if test is None else [point for point in points if test(item_payload(point, name))]
            enough = len(passing) >= request.k
            if enough and request.exact:  # and all that may tie with the k-th
                enough = points[-1].score < passing[request.k - 1].score - slack
            if len(points) == limit and not enough:
                unfinished.append(q)
            else:
                found += [(q, point) for point in passing]
        pending, limit = unfinished, limit * _MORE
    vectors = np.array([point.vector for _, point in found], np.float32).reshape(-1, target.space.width)
    query = np.array([q for q, _ in found], np.intp)
    cosines = exact_cosines(vectors, queries, query, np.arange(len(found))).tolist()
    return [
        Candidate(q, item_name(point, name), name, cosine, written_as(point), point)
        for (q, point), cosine in zip(found, cosines, strict=True)
    ]


def _finish_moves(server: QdrantServer) -> None:
    """Remove old copies of items whose move was interrupted. Running moves are not affected.

    This and the functions below may be repeated by anyone at any time: they only remove copies of which a newer one
    exists.
    """
    for name, points, begun in server.moves():
        _settle(server, server.versions(), points)
        if time.time() - begun > _ABANDONED:
            server.end_move(name)


def _places_of(server: QdrantServer, versions: dict[str, StoredVersion], points: Sequence[str]) -> Places:
    """Where these points are, oldest version first."""
    places: Places = {}
    for name, version in versions.items():
        for record in server.retrieve(version.collection, points, ["written"]):
            places.setdefault(record.id, {})[name] = written_as(record)
    return places


def _settle(server: QdrantServer, versions: dict[str, StoredVersion], points: Sequence[str]) -> Places:
    """Keep each item only where it was written last; returns where that is."""
    places = _places_of(server, versions, points)
    kept = {point: dict([max(numbers.items(), key=lambda pair: pair[1])]) for point, numbers in places.items()}
    older = {p: {name: n for name, n in numbers.items() if name not in kept[p]} for p, numbers in places.items()}
    _remove(server, versions, older)
    return kept


def _remove(server: QdrantServer, versions: dict[str, StoredVersion], places: Places) -> None:
    """Remove points from where they were seen, unless they were written again since."""
    for name, version in versions.items():
        gone = {point: numbers[name] for point, numbers in places.items() if name in numbers}
        if gone:
            server.remove(version, list(gone), list(gone.values()))


def _newest(
    server: QdrantServer, versions: dict[str, StoredVersion], names: Sequence[str]
) -> dict[str, tuple[str, Any]]:
    """By id: the version and the point that was written last, damaged ones included.

    A point that has lost its item's id is found too: its own id is made from it.
    """
    found: dict[str, tuple[str, Any]] = {}
    for version in versions.values():
        for start in range(0, len(names), _PAGE):
            asked = {point_id(name): name for name in names[start : start + _PAGE]}
            for point in server.retrieve(version.collection, list(asked), ["id", "written", "text"], vectors=True):
                name = asked[str(point.id)]
                if name not in found or written_as(found[name][1]) < written_as(point):
                    found[name] = version.space.name, point
    return found


def _listed(
    server: QdrantServer, versions: Iterable[StoredVersion], after: str | None
) -> tuple[dict[str, str], list[str]]:
    """Points that have lost their item's id, by version; and all ids behind ``after``, sorted, these included."""
    lost: dict[str, str] = {}
    names: set[str] = set()
    for version in versions:
        for point in server.scroll(version.collection, None, ["id"]):
            name = known_name(point)
            if name is None:
                lost[str(point.id)] = version.space.name
            else:
                names.add(name)
    return lost, sorted(name for name in names | lost.keys() if name > (after or ""))


def _set_threshold(server: QdrantServer, version: StoredVersion, kilobytes: int) -> None:
    from qdrant_client import models

    settings = models.OptimizersConfigDiff(indexing_threshold=kilobytes)
    server.client.update_collection(version.collection, optimizers_config=settings)


def _await(server: QdrantServer, version: StoredVersion) -> None:
    idle = 0
    while idle < _IDLE:
        info: Any = server.client.get_collection(version.collection)
        if info.status.value == "red":
            raise GalleryError(f"the server could not index {version.collection}: {info.optimizer_status}")
        if (info.indexed_vectors_count or 0) >= (info.points_count or 0) and info.status.value == "green":
            return
        idle = idle + 1 if info.status.value == "green" else 0
        time.sleep(_PAUSE)


class QdrantGallery(Gallery):
    """See ``Gallery``, and above what holds for batches and moves. Threads and processes may share it.

    ``server`` is http(s)://host:6333, or a client. Collections are called PREFIX_...; ``shards`` and ``replicas`` are
    those of new collections. ``ef`` is the search breadth of the index in approximate mode.
    """

    def __init__(
        self,
        server: str | QdrantClient,
        prefix: str = "fixstar",
        api_key: str | None = None,
        create: bool = True,
        read_only: bool = False,
        shards: int | None = None,
        replicas: int = 1,
        grpc_port: int | None = None,
        timeout: int = 60,
        ef: int = 128,
    ) -> None:
        address = server if isinstance(server, str) else "the given client"
        client = connect(server, api_key, grpc_port, timeout) if isinstance(server, str) else server
        self._server: QdrantServer | None = QdrantServer(client, address, prefix, shards, replicas)
        self._owned, self.read_only, self.ef = isinstance(server, str), read_only, ef
        self._address, self._last, self._lock = f"{address} ({prefix})", 0, threading.Lock()
        self._bridges = Bridges(self.projection)
        with self._asking() as opened:
            opened.prepare(create and not read_only)
            if not read_only:
                _finish_moves(opened)

    def _create_version(self, space: VersionSpace, projection: Floats | None, copied: bool) -> None:
        """Only one process at a time should do this."""
        with self._writing() as server:
            check_new_version(space.name, server.versions(), copied)
            server.create_version(space, projection)

    def versions(self) -> list[VersionSpace]:
        """All versions, oldest first."""
        with self._asking() as server:
            return [version.space for version in server.versions().values()]

    def projection(self, version: str) -> Floats | None:
        """P [d, m] of a version whose vectors are short forms."""
        with self._asking() as server:
            return server.projection(_version(server.versions(), version))

    def _upsert(self, version: str, names: list[str], rows: Floats, texts: list[str]) -> None:
        with self._writing() as server:
            versions = server.versions()
            target = _version(versions, version)
            step = max(1, min(_ROWS, _WRITTEN // target.space.width))
            for start in range(0, len(names), step):
                part = slice(start, start + step)
                self._write(server, versions, target, names[part], rows[part], texts[part])

    def _replace_vectors(
        self, version: str, items: Sequence[Item], rows: Floats, payloads: Sequence[Payload] | None
    ) -> list[str]:
        """Without transactions: a write by others between the two steps is undone."""
        same, names, texts = replaceable(items, self._get([item.id for item in items]), payloads)
        self._upsert(version, names, rows[same], texts)
        return names

    def _write(
        self,
        server: QdrantServer,
        versions: dict[str, StoredVersion],
        target: StoredVersion,
        names: list[str],
        rows: Floats,
        texts: list[str],
    ) -> None:
        points = [point_id(name) for name in names]
        places = _places_of(server, versions, points) if len(versions) > 1 else {}
        moving = [point for point, numbers in places.items() if numbers.keys() - {target.space.name}]
        move = server.begin_move(moving) if moving else None
        first = self._numbers(len(names), max((max(numbers.values()) for numbers in places.values()), default=0))
        stored = [point_payload(name, first + i, texts[i]) for i, name in enumerate(names)]
        server.upsert(target, points, rows, stored)
        if len(versions) > 1:
            _settle(server, versions, points)
        if move is not None:
            server.end_move(move)

    def _numbers(self, count: int, above: int) -> int:
        """The first of ``count`` write numbers: the time, or more if needed to exceed all earlier ones."""
        with self._lock:
            first = max(time.time_ns(), self._last + 1, above + 1)
            self._last = first + count - 1
        return first

    def _delete(self, names: list[str]) -> int:
        points = list(dict.fromkeys(map(point_id, names)))
        removed = 0
        with self._writing() as server:
            versions = server.versions()
            for start in range(0, len(points), _ROWS):
                places = _settle(server, versions, points[start : start + _ROWS])
                _remove(server, versions, places)
                removed += len(places)
        return removed

    def _get(self, names: list[str]) -> dict[str, Item]:
        with self._asking() as server:
            found = _newest(server, server.versions(), list(dict.fromkeys(names)))
        return {name: as_item(name, *found[name]) for name in names if name in found}

    def _search(self, version: str, queries: Vectors, request: SearchRequest) -> list[list[Hit]]:
        with self._asking() as server:
            known = server.versions()
            source = _version(known, version).space
            asked = (
                known if request.versions is None else [_version(known, name).space.name for name in request.versions]
            )
            targets = [stored for name, stored in known.items() if name in asked]
            unit_queries = checked_vectors(queries, source.width, version)
            if not targets:
                return [[] for _ in unit_queries]
            widest = max(target.space.width for target in targets)
            step = max(1, min(_QUERIES, _READ // ((request.k + _SPARE) * widest)))
            hits: list[list[Hit]] = []
            for start in range(0, len(unit_queries), step):
                part = unit_queries[start : start + step]
                found: list[Candidate] = []
                for target in targets:  # oldest first: an item that moves is written before it is removed
                    carried = self._bridges.carried(part, source, target.space)
                    found += _candidates(server, target, carried, request, self.ef)
                hits += best_hits(found, len(part), request.k, lambda one: item_payload(one.source, one.version))
            return hits

    def _build_index(self, versions: list[str]) -> None:
        """Have the server index everything, and measure it.

        A server indexes a part of a collection when it has grown beyond a threshold (20 MB of vectors by default) and
        searches the rest exactly. The threshold is lowered until everything is indexed, then restored.
        """
        with self._writing() as server:
            if server.is_engine:
                return
            for name in versions:
                version = server.versions()[name]
                usual: Any = server.client.get_collection(version.collection).config.optimizer_config.indexing_threshold
                _set_threshold(server, version, 1)
                try:
                    _await(server, version)
                finally:
                    _set_threshold(server, version, 20_000 if usual is None else usual)
                sample, _ = server.client.scroll(version.collection, limit=_SAMPLE, with_vectors=True)
                queries = np.array([record.vector for record in sample], np.float32)
                server.set_recall(name, measured_recall(self, name, queries, versions=[name]) if sample else 1.0)

    def indexes(self) -> list[IndexState]:
        """The indexes that the server has built so far, with the recall that ``build_index`` measured."""
        states = []
        with self._asking() as server:
            for version in server.versions().values():
                items = server.client.get_collection(version.collection).indexed_vectors_count or 0
                if items:
                    states.append(IndexState(version.space.name, "qdrant hnsw", items, version.fields.get("recall")))
        return states

    def _iterate(self, version: str | None, after: str) -> Iterator[Item]:
        """Qdrant cannot sort by a string. So all ids are read first, without vectors, and sorted here.

        That takes about 100 bytes of memory per item, and a pass over the collection before the first item.
        """
        with self._asking() as server:
            known = server.versions()
            chosen = list(known.values()) if version is None else [_version(known, version)]
            lost, names = _listed(server, chosen, after)
        for start in range(0, len(names), _PAGE):
            page = names[start : start + _PAGE]
            with self._asking() as server:
                found = _newest(server, server.versions(), [name for name in page if name not in lost])
            for name in page:  # a damaged one does not keep those before it from being read
                if name in lost:
                    raise lost_name(name, lost[name])
                if name in found and version in (None, found[name][0]):
                    yield as_item(name, *found[name])

    def count(self) -> dict[str, int]:
        """The number of items by version."""
        with self._asking() as server:
            versions = server.versions().items()
            return {name: server.client.count(stored.collection, exact=True).count for name, stored in versions}

    def flush(self) -> None:
        """Finish interrupted moves; acknowledged writes are already in the server's log."""
        with self._asking() as server:
            if not self.read_only:
                _finish_moves(server)

    def close(self) -> None:
        """Disconnect; a client that was passed in stays open."""
        server, self._server = self._server, None
        if server is not None and self._owned:
            server.client.close()

    @contextmanager
    def _asking(self) -> Iterator[QdrantServer]:
        if self._server is None:
            raise GalleryError(f"the gallery at {self._address} is closed; open it again")
        with translated(self._address):
            yield self._server

    @contextmanager
    def _writing(self) -> Iterator[QdrantServer]:
        if self.read_only:
            raise GalleryError(f"the gallery at {self._address} was opened read only; open it without read_only")
        with self._asking() as server:
            yield server


def _version(known: dict[str, StoredVersion], name: str) -> StoredVersion:
    try:
        return known[name]
    except (KeyError, TypeError):
        raise unknown_version(name, known) from None
