"""A gallery on a PostgreSQL server with pgvector: shared by machines, with all that a database server brings.

Every call asks the server, so everybody sees at once what anybody wrote. Threads may share a gallery; they share a few
connections, which are made again after the server restarted. One writes at a time, others wait; no search waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from fixstar.gallery.arguments import (
    checked_ids,
    checked_projection,
    checked_vectors,
    payload_texts,
    replaceable,
    unknown_version,
)
from fixstar.gallery.bridging import Bridges
from fixstar.gallery.filters import payload_test
from fixstar.gallery.postgres import index
from fixstar.gallery.postgres.address import parse_address
from fixstar.gallery.postgres.connection import READ, WRITE, Pool, require_driver, translated
from fixstar.gallery.postgres.filters import narrowing
from fixstar.gallery.postgres.schema import add_vectors_table, check_lengths, checked_width, prepare
from fixstar.gallery.postgres.search import Found, Request, merged, nearest
from fixstar.gallery.postgres.statements import (
    NumberedVersion,
    all_versions,
    as_item,
    find_version,
    lock_writing,
    read_rows,
    remove_items,
    write_items,
)
from fixstar.gallery.store import Hit, IndexState, Item, Payload, SearchOptions, SearchRequest, Vectors, VersionSpace

__all__ = ["PostgresGallery"]

_PAGE = 256  # items read at once by iterate


class PostgresGallery:
    """See ``Gallery``. The URL is postgresql://user:password@host:port/database?gallery=NAME.

    ``wait`` is how many seconds a write waits for another one, and anybody for a server that is starting;
    ``connections`` is how many connections threads share.
    """

    def __init__(
        self, url: str, create: bool = True, read_only: bool = False, wait: float = 30.0, connections: int = 8
    ) -> None:
        require_driver()
        self.address = parse_address(url)
        self.read_only = read_only
        prepare(self.address, create, read_only, wait)
        self._pool = Pool(self.address, wait, read_only, connections)
        self._bridges = Bridges(self.projection)
        self._known: dict[str, NumberedVersion] = {}

    def create_version(self, name: str, width: int, projection: Vectors | None = None, copied: bool = False) -> None:
        """Make room for vectors of a version: a table of its own."""
        with self._pool.transaction(WRITE) as db:
            lock_writing(db)
            known = all_versions(db)
            matrix = checked_projection(name, width, projection, known, copied)
            checked_width(width)
            full, blob = (width, None) if matrix is None else (len(matrix), matrix.astype("<f4").tobytes())
            db.execute(
                "INSERT INTO versions (number, name, width, full_width, projection) VALUES (%s, %s, %s, %s, %s)",
                (len(known) + 1, name, int(width), int(full), blob),
            )
            add_vectors_table(db, len(known) + 1, int(width))

    def versions(self) -> list[VersionSpace]:
        """All versions, oldest first."""
        with self._pool.transaction(READ) as db:
            return [version.space for version in all_versions(db).values()]

    def projection(self, version: str) -> NDArray[np.float32] | None:
        """P [d, m] of a version whose vectors are short forms."""
        with self._pool.transaction(READ) as db:
            found = find_version(db, version)
            ((blob,),) = db.execute("SELECT projection FROM versions WHERE number = %s", (found.number,))
        return (
            None if blob is None else np.frombuffer(blob, "<f4").reshape(found.space.full_width, -1).astype(np.float32)
        )

    def upsert(
        self, version: str, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload] | None = None
    ) -> None:
        """Store unit vectors of a version, all or none; on the server's disk when it returns."""
        with self._pool.transaction(READ) as db:
            number, space = find_version(db, version)
        rows = checked_vectors(vectors, space.width, version)
        names = checked_ids(ids)
        check_lengths(names)
        texts = payload_texts(names, len(rows), payloads)
        if not names:
            return
        with self._pool.transaction(WRITE) as db:
            write_items(db, number, names, rows, texts, lock_writing(db, len(names)))

    def replace_vectors(
        self, version: str, items: Sequence[Item], vectors: Vectors, payloads: Sequence[Payload] | None = None
    ) -> list[str]:
        """Give items new vectors, and payloads, where they still hold the vectors given with them; the ids of these."""
        with self._pool.transaction(WRITE) as db:
            last = lock_writing(db, len(items))
            number, space = find_version(db, version)
            rows = checked_vectors(vectors, space.width, version)
            now = {row[0]: as_item(row) for row in read_rows(db, "id = ANY (%s)", [[item.id for item in items]])}
            same, contents = replaceable(items, now, len(rows), payloads)
            names = [items[row].id for row in same]
            texts = payload_texts(names, len(same), contents)
            write_items(db, number, names, rows[same], texts, last)
        return names

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items; how many there were."""
        names = checked_ids(ids, distinct=False)
        if not names:
            return 0
        with self._pool.transaction(WRITE) as db:
            lock_writing(db)
            return remove_items(db, names)

    def get(self, ids: Sequence[str]) -> dict[str, Item]:
        """The items of these ids, as far as there are any."""
        names = checked_ids(ids, distinct=False)
        with self._pool.transaction(READ) as db:
            found = {row[0]: as_item(row) for row in read_rows(db, "id = ANY (%s)", [names])}
        return {name: found[name] for name in names if name in found}

    def search(
        self,
        version: str,
        queries: Vectors,
        request: SearchRequest | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[list[Hit]]:
        """The k nearest items of each query, best first."""
        wanted = SearchRequest.of(request, **options)
        k, versions, narrowed = int(wanted.k), wanted.versions, narrowing(wanted.where)
        test = None if wanted.where is None else payload_test(wanted.where)
        while True:
            known = self._with((version,) if versions is None else (version, *versions))
            source = known[version].space
            unit_queries = checked_vectors(queries, source.width, version)
            targets = [known[name] for name in (known if versions is None else dict.fromkeys(versions))]
            carried = [self._bridges.carried(unit_queries, source, target.space) for target in targets]
            with self._pool.transaction(READ) as db:
                self._known = live = all_versions(db)
                if versions is None and len(live) > len(targets):
                    continue  # a version came since: its bridge is made while nothing is held on the server
                quick = set() if wanted.exact else index.indexed(db)
                parts: list[Found] = []
                for (number, space), here in zip(targets, carried, strict=True):
                    asked = Request(space.name, number, space.width, here, k, narrowed, test, number in quick)
                    parts += nearest(db, asked)
            return merged(parts, len(unit_queries), k)

    def _with(self, names: Sequence[str]) -> dict[str, NumberedVersion]:
        """The versions as of the last search, which never change; read again where one of these is not among them."""
        if not all(isinstance(name, str) and name in self._known for name in names):
            with self._pool.transaction(READ) as db:
                self._known = all_versions(db)
        for name in names:
            if not isinstance(name, str) or name not in self._known:
                raise unknown_version(name, self._known)
        return self._known

    def build_index(self, version: str | None = None) -> list[IndexState]:
        """Build pgvector's HNSW index of a version, or of all, and measure it; reading and writing go on meanwhile."""
        with self._pool.transaction(READ) as db:
            chosen = list(all_versions(db).values()) if version is None else [find_version(db, version)]
        for _, space in chosen:
            index.checked_indexable(space.name, space.width)
        for number, space in chosen:
            with translated(self.address):
                index.build(self._pool.fresh, number, space.width)
            self._measure(number, space)
        names = {space.name for _, space in chosen}
        return [state for state in self.indexes() if state.version in names]

    def _measure(self, number: int, space: VersionSpace) -> None:
        with self._pool.transaction(READ) as db:
            queries = index.sample(db, number, space.width)
        exact, quick = (self.search(space.name, queries, versions=[space.name], exact=exact) for exact in (True, False))
        with self._pool.transaction(WRITE) as db:
            index.record(db, number, index.share_found(exact, quick))

    def indexes(self) -> list[IndexState]:
        """The approximate indexes there are."""
        with self._pool.transaction(READ) as db:
            return index.states(db)

    def iterate(self, version: str | None = None, after: str | None = None) -> Iterator[Item]:
        """All items, or those of one version, sorted by id; nothing is held on the server between two pages."""
        number = None
        if version is not None:
            with self._pool.transaction(READ) as db:
                number = find_version(db, version).number
        return self._each(number, "" if after is None else after)

    def _each(self, number: int | None, after: str) -> Iterator[Item]:
        narrowed, first = ("", []) if number is None else ("version = %s AND ", [number])
        while True:
            with self._pool.transaction(READ) as db:
                page = read_rows(db, f"{narrowed}id > %s ORDER BY id LIMIT {_PAGE}", [*first, after])
            if not page:
                return
            yield from map(as_item, page)
            after = page[-1][0]

    def count(self) -> dict[str, int]:
        """The number of items by version."""
        with self._pool.transaction(READ) as db:
            return dict(db.execute("SELECT name, items FROM versions ORDER BY number").fetchall())

    def flush(self) -> None:
        """Nothing to do: a write that returned is on the server's disk. Says so if the server is gone."""
        with self._pool.transaction(READ) as db:
            db.execute("SELECT 1")

    def close(self) -> None:
        """Close all connections; the gallery stays on the server."""
        self._pool.close()

    def __enter__(self) -> PostgresGallery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
