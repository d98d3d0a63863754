"""A gallery on a Qdrant server or cluster: one collection a version.

Qdrant knows no transactions over collections, nor over requests. What holds instead:

- Everything is checked before anything is written. A write that returned was acknowledged by the server (``wait``).
- A batch is sent in requests of some megabytes. If one fails, the call raises and those before it are written;
  repeating the call is safe and completes it.
- An item that moves to another version is first written there and then removed where it was, so it is never lost.
  Every write has a number, higher than that of any write of the item before; of two copies the one with the higher
  number counts, in every answer. A removal names the number that it is about: it never meets a newer write.
- A move is noted before it begins. If the writer dies between its two steps, whoever opens or flushes the gallery next
  removes the old copy. Until then ``count`` counts both, and a search shows one of them: the newer one if both are
  near, else the one that is.
- Searches ask old versions first. So an item that moves to a newer version is found once by every search. One that
  moves back to an older version may be missed by a search that runs in that moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError
from fixstar.gallery.arguments import (
    checked_ids,
    checked_projection,
    checked_vectors,
    payload_texts,
    replaceable,
    unknown_version,
)
from fixstar.gallery.bridging import Bridges
from fixstar.gallery.qdrant.index import build_indexes, index_states
from fixstar.gallery.qdrant.moves import finish_moves, places_of, remove, settle
from fixstar.gallery.qdrant.points import as_item, lost_name, point_id, point_payload
from fixstar.gallery.qdrant.reading import listed, newest
from fixstar.gallery.qdrant.search import at_once, nearest
from fixstar.gallery.qdrant.server import QdrantServer, StoredVersion, connect, qdrant_translated
from fixstar.gallery.store import Hit, IndexState, Item, Payload, SearchOptions, SearchRequest, Vectors, VersionSpace

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

__all__ = ["QdrantGallery"]

_PAGE = 256  # items read at once by iterate
_NUMBERS = 1 << 18  # components in one request
_ROWS = 1000


class QdrantGallery:
    """See ``Gallery``, and above what a batch and a move are here. Threads and processes may share it.

    ``server`` is http(s)://host:6333, or a client. Collections are called PREFIX_...; ``shards`` and ``replicas`` are
    those of collections made from now on. ``ef`` is how widely the index is searched in approximate mode.
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
                finish_moves(opened)

    def create_version(self, name: str, width: int, projection: Vectors | None = None, copied: bool = False) -> None:
        """Make room for vectors of a version. One process at a time should."""
        with self._writing() as server:
            matrix = checked_projection(name, width, projection, server.versions(), copied)
            full = int(width) if matrix is None else len(matrix)
            server.create_version(VersionSpace(name, int(width), full), matrix)

    def versions(self) -> list[VersionSpace]:
        """All versions, oldest first."""
        with self._asking() as server:
            return [version.space for version in server.versions().values()]

    def projection(self, version: str) -> NDArray[np.float32] | None:
        """P [d, m] of a version whose vectors are short forms."""
        with self._asking() as server:
            return server.projection(_version(server.versions(), version))

    def upsert(
        self, version: str, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload] | None = None
    ) -> None:
        """Store unit vectors of a version. If it raises midway, repeat it: see above."""
        with self._writing() as server:
            versions = server.versions()
            target = _version(versions, version)
            rows = checked_vectors(vectors, target.space.width, version)
            names = checked_ids(ids)
            texts = payload_texts(names, len(rows), payloads)
            step = max(1, min(_ROWS, _NUMBERS // target.space.width))
            for start in range(0, len(names), step):
                part = slice(start, start + step)
                self._write(server, versions, target, names[part], rows[part], texts[part])

    def replace_vectors(
        self, version: str, items: Sequence[Item], vectors: Vectors, payloads: Sequence[Payload] | None = None
    ) -> list[str]:
        """Give items new vectors, and payloads, where they still hold the vectors given with them; the ids of these.

        Qdrant has no transactions: a write by others between the look and the new vector would be undone.
        """
        rows, now = np.asarray(vectors), self.get([item.id for item in items])
        same, contents = replaceable(items, now, len(rows), payloads)
        self.upsert(version, names := [items[row].id for row in same], rows[same], contents)
        return names

    def _write(
        self,
        server: QdrantServer,
        versions: dict[str, StoredVersion],
        target: StoredVersion,
        names: list[str],
        rows: NDArray[np.float32],
        texts: list[str],
    ) -> None:
        points = [point_id(name) for name in names]
        places = places_of(server, versions, points) if len(versions) > 1 else {}
        moving = [point for point, numbers in places.items() if numbers.keys() - {target.space.name}]
        move = server.begin_move(moving) if moving else None
        first = self._numbers(len(names), max((max(numbers.values()) for numbers in places.values()), default=0))
        stored = [point_payload(name, first + i, texts[i]) for i, name in enumerate(names)]
        server.upsert(target, points, rows, stored)
        if len(versions) > 1:
            settle(server, versions, points)
        if move is not None:
            server.end_move(move)

    def _numbers(self, count: int, above: int) -> int:
        """The first of so many numbers of writes: the time, or what is needed to be higher than those before."""
        with self._lock:
            first = max(time.time_ns(), self._last + 1, above + 1)
            self._last = first + count - 1
        return first

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items; how many there were. If it raises midway, some are left: repeat it."""
        points = list(dict.fromkeys(point_id(name) for name in checked_ids(ids, distinct=False)))
        removed = 0
        with self._writing() as server:
            versions = server.versions()
            for start in range(0, len(points), _ROWS):
                places = settle(server, versions, points[start : start + _ROWS])
                remove(server, versions, places)
                removed += len(places)
        return removed

    def get(self, ids: Sequence[str]) -> dict[str, Item]:
        """The items of these ids, as far as there are any."""
        with self._asking() as server:
            found = newest(server, server.versions(), list(dict.fromkeys(checked_ids(ids, distinct=False))))
        return {name: as_item(name, *stored) for name, stored in found.items()}

    def search(
        self,
        version: str,
        queries: Vectors,
        request: SearchRequest | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[list[Hit]]:
        """The k nearest items of each query, best first."""
        wanted = SearchRequest.of(request, **options)
        with self._asking() as server:
            known = server.versions()
            source = _version(known, version).space
            asked = {
                _version(known, name).space.name for name in (known if wanted.versions is None else wanted.versions)
            }
            targets = [stored for name, stored in known.items() if name in asked]
            unit_queries = checked_vectors(queries, source.width, version)
            if not targets:
                return [[] for _ in unit_queries]
            step = at_once(wanted.k, max(target.space.width for target in targets))
            hits: list[list[Hit]] = []
            for start in range(0, len(unit_queries), step):
                part = unit_queries[start : start + step]
                carried = {t.space.name: self._bridges.carried(part, source, t.space) for t in targets}
                hits += nearest(server, carried, targets, wanted, self.ef)
            return hits

    def build_index(self, version: str | None = None) -> list[IndexState]:
        """Have the server index what it has not indexed yet, and measure it; Qdrant itself keeps an index up to date.

        The client's in-memory engine has no index and answers with none.
        """
        with self._writing() as server:
            known = server.versions()
            chosen = list(known.values()) if version is None else [_version(known, version)]
            return build_indexes(server, chosen, self.search)

    def indexes(self) -> list[IndexState]:
        """The indexes that the server has made so far, with the recall that ``build_index`` measured."""
        with self._asking() as server:
            return index_states(server, list(server.versions().values()))

    def iterate(self, version: str | None = None, after: str | None = None) -> Iterator[Item]:
        """All items, or those of one version, sorted by id.

        Qdrant cannot sort by a string. So all ids are read first, without vectors, and sorted here: some 100 bytes an
        item in memory, and a pass over the collection before the first item comes.
        """
        with self._asking() as server:
            known = server.versions()
            chosen = list(known.values()) if version is None else [_version(known, version)]
        return self._each(chosen, version, after)

    def _each(self, chosen: list[StoredVersion], version: str | None, after: str | None) -> Iterator[Item]:
        with self._asking() as server:
            lost, names = listed(server, chosen, after)
        for start in range(0, len(names), _PAGE):
            page = names[start : start + _PAGE]
            with self._asking() as server:
                found = newest(server, server.versions(), [name for name in page if name not in lost])
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
        """Finish what others broke off; acknowledged writes are in the server's log already."""
        with self._asking() as server:
            if not self.read_only:
                finish_moves(server)

    def close(self) -> None:
        """Let go of the server; a client that was given stays open."""
        server, self._server = self._server, None
        if server is not None and self._owned:
            server.client.close()

    def __enter__(self) -> QdrantGallery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _asking(self) -> Iterator[QdrantServer]:
        if self._server is None:
            raise GalleryError(f"the gallery at {self._address} is closed; open it again")
        with qdrant_translated(self._address):
            yield self._server

    @contextmanager
    def _writing(self) -> Iterator[QdrantServer]:
        if self.read_only:
            raise GalleryError(f"the gallery at {self._address} was opened to be read only; open it without read_only")
        with self._asking() as server:
            yield server


def _version(known: dict[str, StoredVersion], name: str) -> StoredVersion:
    try:
        return known[name]
    except (KeyError, TypeError):
        raise unknown_version(name, known) from None
