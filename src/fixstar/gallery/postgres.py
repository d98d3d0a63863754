"""A gallery on a PostgreSQL server with pgvector, shared by machines.

Every call asks the server, so everybody sees at once what anybody wrote. Threads may share a gallery; they share a few
connections, which are reopened after the server restarted. One writes at a time, others wait; searches never wait.

The server ranks by its own inner product, in float32, and returns a few more than k rows. Their cosines are computed
again in float64 (``ranking.exact_cosines``). While the last row may still tie with the k-th, or the filter left too
few, four times as many are requested; so ties and filters come out as in memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import DamagedItemError, GalleryError
from fixstar.gallery.addresses import parse_postgres_address
from fixstar.gallery.filters import payload_test
from fixstar.gallery.matrix import parsed
from fixstar.gallery.postgres_server import (
    EF_SEARCH,
    READ,
    WRITE,
    Pool,
    add_vectors_table,
    check_lengths,
    check_width,
    copy_vectors,
    index_type,
    prepare,
    read_vectors,
    require_driver,
    translated,
    vector_text,
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
    Where,
    check_new_version,
    checked_vectors,
    is_unicode,
    measured_recall,
    replaceable,
    unknown_version,
)

if TYPE_CHECKING:
    from fixstar.gallery.postgres_server import Database

__all__ = ["PostgresGallery", "candidates_query", "narrowing"]

_PAGE = 256  # items read at once by iterate
_EXACT = 2**53  # below, every integer is a float
_ORDERS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_MORE = 16  # vectors requested beyond k
_GROWTH = 4
_QUERIES = 64  # in one statement
_NUMBERS = 1 << 22  # components in one answer: 16 MiB
_EF_MOST = 1000
# The JSON text is parsed as jsonb once per row (OFFSET 0 ensures it), and not if jsonb cannot hold it.
_FIELDS = (
    "JOIN items p ON p.number = v.number CROSS JOIN LATERAL (SELECT CASE WHEN strpos(p.payload::text, '\\u0000') = 0 "
    "THEN p.payload::jsonb END AS fields OFFSET 0) f WHERE p.version = {number} AND (fields IS NULL OR ({narrowing}))"
)
_BUILDING = 0x66787369  # "fxsi": the lock of an index build, with the table's oid
_SAMPLE = 100
_INDEXES = (
    "SELECT v.number, v.name, v.items, x.recall, i.indexrelid::regclass::text, i.indisvalid FROM versions v "
    "JOIN pg_index i ON i.indrelid = to_regclass('vectors_' || v.number) JOIN pg_class c ON c.oid = i.indexrelid "
    "JOIN pg_am a ON a.oid = c.relam LEFT JOIN indexes x ON x.version = v.number "
    "WHERE a.amname = 'hnsw' ORDER BY v.number"
)

Row = tuple[str, str, Floats | None, str]  # id, version, vector if it exists, payload


class Narrowing(NamedTuple):
    """An SQL condition on ``fields`` (jsonb), and its parameters; empty if nothing is narrowed.

    What it excludes is excluded; what it lets through is tested again in Python. So conditions that PostgreSQL sees
    differently are left to Python: numbers of 2^53 and more (1e23 is not 10^23 in Python), objects (where Python takes
    1 and true for equal) and strings with NUL. Payloads with NUL, which jsonb cannot hold, are all let through.
    """

    text: str
    values: list[Any]


def narrowing(where: Where | None) -> Narrowing:
    """The part of a valid filter that PostgreSQL can decide.

    >>> narrowing({"shop": "paris"})
    Narrowing(text='fields -> %s::text = %s::jsonb', values=['shop', '"paris"'])
    """
    texts: list[str] = []
    values: list[Any] = []
    for name, condition in (where or {}).items():
        named = condition if isinstance(condition, Mapping) else {"eq": condition}
        for operation, operand in named.items():
            if _is_plain(name) and _is_plain(operand):
                text, more = _condition(name, operation, operand)
                texts.append(text)
                values += more
    return Narrowing(" AND ".join(texts), values)


def _condition(name: str, operation: str, operand: Any) -> tuple[str, list[Any]]:
    if operation == "exists":
        return f"fields -> %s::text IS {'NOT ' if operand else ''}NULL", [name]
    if operation == "in":
        return "fields -> %s::text = ANY (%s::jsonb[])", [name, [json.dumps(one) for one in operand]]
    if operation in ("eq", "ne"):
        return f"fields -> %s::text {'=' if operation == 'eq' else '<>'} %s::jsonb", [name, json.dumps(operand)]
    sign = _ORDERS[operation]
    if isinstance(operand, str):  # by code point, as Python does
        return (
            f"(jsonb_typeof(fields -> %s::text) = 'string' AND (fields ->> %s::text) COLLATE \"C\" {sign} %s)",
            [name, name, operand],
        )
    return (
        f"(jsonb_typeof(fields -> %s::text) = 'number' AND fields -> %s::text {sign} %s::jsonb)",
        [name, name, json.dumps(operand)],
    )


def _is_plain(value: Any) -> bool:
    """Whether it means the same in Python and PostgreSQL."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return "\0" not in value and is_unicode(value)
    if isinstance(value, (int, float)):
        return abs(value) < _EXACT
    return value is None


class _Request(NamedTuple):
    """What is searched in one version: its number and width, the queries [N, width], and the filter."""

    version: str
    number: int
    width: int
    queries: NDArray[np.float64]
    k: int
    narrowing: Narrowing
    test: Callable[[Payload], bool] | None
    approximate: bool


def _nearest(db: Database, request: _Request) -> list[Candidate]:
    """The k nearest of each query among the vectors of one version, and some others."""
    found: list[Candidate] = []
    limit, approximate = request.k + _MORE, request.approximate
    pending = list(range(len(request.queries)))
    while pending:
        if approximate and limit > EF_SEARCH:
            db.execute("SELECT set_config('hnsw.ef_search', %s, true)", (str(min(limit, _EF_MOST)),))
        block = max(1, min(_QUERIES, _NUMBERS // (limit * request.width)))
        incomplete: list[int] = []
        for start in range(0, len(pending), block):
            for query, here in _ask(db, request, pending[start : start + block], limit, approximate).items():
                if here is None:
                    incomplete.append(query)
                else:
                    found += here
        pending = incomplete
        limit = limit if approximate else limit * _GROWTH
        approximate = False  # if the index returned too few, search without it
    return found


def _ask(
    db: Database, request: _Request, places: list[int], limit: int, approximate: bool
) -> dict[int, list[Candidate] | None]:
    """The candidates of some queries; None if a vector outside the answer may be among the k nearest."""
    text = candidates_query(request.number, request.width, len(places), limit, request.narrowing.text, approximate)
    values = [*map(vector_text, request.queries[places].astype(np.float32)), *request.narrowing.values]
    rows = db.execute(text, values, binary=True).fetchall()
    query = np.array([places[row[0]] for row in rows], np.intp)
    vectors = read_vectors([row[5] for row in rows], request.width)
    cosines = exact_cosines(vectors, request.queries, query, np.arange(len(rows))).tolist()
    found: dict[int, list[Candidate]] = {place: [] for place in places}
    returned, floor = Counter(query.tolist()), dict.fromkeys(places, np.inf)  # the server's lowest score
    for (place, number, distance, name, payload, _), cosine in zip(rows, cosines, strict=True):
        q = places[place]
        floor[q] = min(floor[q], -distance)
        if request.test is None or request.test(parsed(payload)):
            found[q].append(Candidate(q, name, request.version, cosine, number, payload))
    rounding = 4e-6 * max(1.0, request.width**0.5 / 8)  # of a dot product in float32, with a margin

    def is_complete(q: int) -> bool:
        best = sorted((one.score for one in found[q]), reverse=True)[: request.k]
        enough = len(best) == request.k
        return enough if approximate else returned[q] < limit or (enough and floor[q] < best[-1] - rounding)

    return {q: here if is_complete(q) else None for q, here in found.items()}


def candidates_query(
    number: int, width: int, queries: int, limit: int, narrowing: str = "", approximate: bool = False
) -> str:
    """SQL that returns, for each query, its place and the number, score, id, payload and vector of the nearest items.

    Parameters are the queries, then those of the narrowing. Adding 0 to the inner product hides it from the index.
    """
    places = ", ".join(f"({place}, %s::vector)" for place in range(queries))
    fields = _FIELDS.format(number=number, narrowing=narrowing) if narrowing else ""
    kind = index_type(width)
    order = f"v.vector::{kind} <#> q.query::{kind}" if approximate else "score, v.number"
    return (
        f"SELECT q.place, c.number, c.score, i.id, i.payload::text, vector_send(c.vector) "
        f"FROM (VALUES {places}) q (place, query) CROSS JOIN LATERAL ("
        f"SELECT v.number, v.vector, (v.vector <#> q.query) + 0 AS score FROM vectors_{number} v {fields} "
        f"ORDER BY {order} LIMIT {limit}) c JOIN items i ON i.number = c.number"
    )


def _build(connect: Callable[[], Database], number: int, width: int) -> None:
    """Build pgvector's HNSW index of a version, on a connection of its own: it may take hours.

    Others keep reading and writing (CONCURRENTLY). It gets a new name; then older indexes are dropped, and with them
    what a killed build left behind.
    """
    operators = f"{index_type(width).partition('(')[0]}_ip_ops"
    table, name = f"vectors_{number}", f"vectors_{number}_hnsw_{token_hex(4)}"
    with closing(connect()) as db:
        db.execute("SELECT set_config('lock_timeout', '0', false), set_config('statement_timeout', '0', false)")
        # Do not wait here: a builder waits for everybody who waits in a statement, which would be forever.
        locked = db.execute(f"SELECT pg_try_advisory_lock({_BUILDING}, '{table}'::regclass::oid::int)").fetchone()
        if locked == (False,):
            raise GalleryError("the index of this version is already being built; wait for it, see indexes()")
        expression = f"(vector::{index_type(width)})" if operators.startswith("half") else "vector"
        db.execute(f"CREATE INDEX CONCURRENTLY {name} ON {table} USING hnsw ({expression} {operators})")
        for row in db.execute(_INDEXES).fetchall():
            if row[0] == number and not row[4].endswith(name):
                db.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {row[4]}")


def _sample(db: Database, number: int, width: int) -> Floats:
    """Some stored vectors [n, width], spread over the table, always the same ones."""
    rows = db.execute(
        f"SELECT vector_send(vector) FROM vectors_{number} ORDER BY hashint8(number), number LIMIT {_SAMPLE}",
        binary=True,
    )
    return read_vectors([row[0] for row in rows], width)


def _record(db: Database, number: int, recall: float | None) -> None:
    """Store the measured recall."""
    db.execute(
        "INSERT INTO indexes (version, recall) VALUES (%s, %s) "
        "ON CONFLICT (version) DO UPDATE SET recall = excluded.recall",
        (number, recall),
    )


class _Version(NamedTuple):
    """A version, and the number that its table of vectors has."""

    number: int
    space: VersionSpace


def _lock_writing(db: Database, more: int = 0) -> int:
    """Lock out other writers until the transaction ends; returns the number of the last of ``more`` new items."""
    ((last,),) = db.execute("UPDATE gallery SET written = written + %s RETURNING written", (more,))
    return int(last)


def _all_versions(db: Database) -> dict[str, _Version]:
    """All versions by name, oldest first."""
    rows = db.execute("SELECT number, name, width, full_width FROM versions ORDER BY number")
    return {name: _Version(number, VersionSpace(name, width, full)) for number, name, width, full in rows}


def _find_version(db: Database, name: str) -> _Version:
    """One version, or an error that names those there are."""
    known = _all_versions(db)
    if not isinstance(name, str) or name not in known:
        raise unknown_version(name, known)
    return known[name]


def _read_rows(db: Database, condition: str, values: Sequence[Any]) -> list[Row]:
    """Items that meet a condition, as stored: a damaged one does not keep the others from being read."""
    rows = db.execute(f"SELECT id, version, number, payload::text FROM items WHERE {condition}", values).fetchall()
    vectors: dict[int, Floats] = {}
    names: dict[int, str] = {}
    for number, space in _all_versions(db).values():
        names[number] = space.name
        if wanted := [row[2] for row in rows if row[1] == number]:
            text = f"SELECT number, vector_send(vector) FROM vectors_{number} WHERE number = ANY (%s)"
            found = db.execute(text, (wanted,), binary=True).fetchall()
            vectors |= zip((row[0] for row in found), read_vectors([row[1] for row in found], space.width), strict=True)
    return [(item, names[version], vectors.get(number), text) for item, version, number, text in rows]


def _as_item(row: Row) -> Item:
    """A stored row as an item, or what is wrong with it."""
    name, version, vector, text = row
    if vector is None:
        raise DamagedItemError(name, version, "the vector is missing")
    try:
        return Item(name, version, vector, json.loads(text))
    except ValueError as error:
        raise DamagedItemError(name, version, f"the payload is damaged ({error})") from error


def _items_of(db: Database, names: list[str]) -> dict[str, Item]:
    return {row[0]: _as_item(row) for row in _read_rows(db, "id = ANY (%s)", [names])}


def _remove_items(db: Database, names: list[str]) -> int:
    """Remove items within a transaction that holds the lock."""
    rows = db.execute("DELETE FROM items WHERE id = ANY (%s) RETURNING version, number", (names,)).fetchall()
    for version, fewer in Counter(row[0] for row in rows).items():
        numbers = [number for owner, number in rows if owner == version]
        db.execute(f"DELETE FROM vectors_{version} WHERE number = ANY (%s)", (numbers,))
        db.execute("UPDATE versions SET items = items - %s WHERE number = %s", (fewer, version))
    return len(rows)


def _write_items(db: Database, version: int, names: list[str], rows: Floats, texts: Sequence[str], last: int) -> None:
    """Store items of a version, by its number, and remove older ones; ``last`` is the number of the last item."""
    _remove_items(db, names)
    numbers = np.arange(last - len(names) + 1, last + 1)
    with db.cursor().copy("COPY items (id, version, number, payload) FROM STDIN") as copy:
        for row in zip(names, [version] * len(names), numbers.tolist(), texts, strict=True):
            copy.write_row(row)
    copy_vectors(db, version, numbers, rows)
    db.execute("UPDATE versions SET items = items + %s WHERE number = %s", (len(names), version))


class PostgresGallery(Gallery):
    """See ``Gallery``. The URL is postgresql://user:password@host:port/database?gallery=NAME.

    ``wait`` is how many seconds a write waits for another one, and any call for a server that is starting;
    ``connections`` is how many connections the threads share.
    """

    def __init__(
        self, url: str, create: bool = True, read_only: bool = False, wait: float = 30.0, connections: int = 8
    ) -> None:
        require_driver()
        self.address = parse_postgres_address(url)
        self.read_only = read_only
        prepare(self.address, create, read_only, wait)
        self._pool = Pool(self.address, wait, read_only, connections)
        self._bridges = Bridges(self.projection)
        self._known: dict[str, _Version] = {}

    def _create_version(self, space: VersionSpace, projection: Floats | None, copied: bool) -> None:
        with self._pool.transaction(WRITE) as db:
            _lock_writing(db)
            known = _all_versions(db)
            check_new_version(space.name, known, copied)
            check_width(space.width)
            blob = None if projection is None else projection.astype("<f4").tobytes()
            db.execute(
                "INSERT INTO versions (number, name, width, full_width, projection) VALUES (%s, %s, %s, %s, %s)",
                (len(known) + 1, *space, blob),
            )
            add_vectors_table(db, len(known) + 1, space.width)

    def versions(self) -> list[VersionSpace]:
        """All versions, oldest first."""
        with self._pool.transaction(READ) as db:
            return [version.space for version in _all_versions(db).values()]

    def projection(self, version: str) -> Floats | None:
        """P [d, m] of a version whose vectors are short forms."""
        with self._pool.transaction(READ) as db:
            number, space = _find_version(db, version)
            ((blob,),) = db.execute("SELECT projection FROM versions WHERE number = %s", (number,))
        return None if blob is None else np.frombuffer(blob, "<f4").reshape(space.full_width, -1).astype(np.float32)

    def _upsert(self, version: str, names: list[str], rows: Floats, texts: list[str]) -> None:
        check_lengths(names)
        if names:
            with self._pool.transaction(WRITE) as db:
                last = _lock_writing(db, len(names))
                _write_items(db, _find_version(db, version).number, names, rows, texts, last)

    def _replace_vectors(
        self, version: str, items: Sequence[Item], rows: Floats, payloads: Sequence[Payload] | None
    ) -> list[str]:
        with self._pool.transaction(WRITE) as db:
            last = _lock_writing(db, len(items))
            now = _items_of(db, [item.id for item in items])
            same, names, texts = replaceable(items, now, payloads)
            _write_items(db, _find_version(db, version).number, names, rows[same], texts, last)
        return names

    def _delete(self, names: list[str]) -> int:
        with self._pool.transaction(WRITE) as db:
            _lock_writing(db)
            return _remove_items(db, names)

    def _get(self, names: list[str]) -> dict[str, Item]:
        with self._pool.transaction(READ) as db:
            return _items_of(db, names)

    def _search(self, version: str, queries: Vectors, request: SearchRequest) -> list[list[Hit]]:
        asked, narrowed, k = request.versions, narrowing(request.where), int(request.k)
        test = None if request.where is None else payload_test(request.where)
        while True:
            known = self._with((version,) if asked is None else (version, *asked))
            source = known[version].space
            unit_queries = checked_vectors(queries, source.width, version)
            targets = [known[name] for name in (known if asked is None else dict.fromkeys(asked))]
            carried = [self._bridges.carried(unit_queries, source, target.space) for target in targets]
            with self._pool.transaction(READ) as db:
                self._known = live = _all_versions(db)
                if asked is None and len(live) > len(targets):
                    continue  # a version was added since: its bridge is made while nothing is held on the server
                indexed = set() if request.exact else {row[0] for row in db.execute(_INDEXES) if row[5]}
                found: list[Candidate] = []
                for (number, space), here in zip(targets, carried, strict=True):
                    one = _Request(space.name, number, space.width, here, k, narrowed, test, number in indexed)
                    found += _nearest(db, one)
            return best_hits(found, len(unit_queries), k, lambda one: parsed(one.source))

    def _with(self, names: Sequence[str]) -> dict[str, _Version]:
        """The versions as of the last search, which never change; read again if one of these is missing."""
        if not all(isinstance(name, str) and name in self._known for name in names):
            with self._pool.transaction(READ) as db:
                self._known = _all_versions(db)
        for name in names:
            if not isinstance(name, str) or name not in self._known:
                raise unknown_version(name, self._known)
        return self._known

    def _build_index(self, versions: list[str]) -> None:
        with self._pool.transaction(READ) as db:
            chosen = [_find_version(db, name) for name in versions]
        for _, space in chosen:
            if not index_type(space.width):
                raise GalleryError(
                    "pgvector indexes vectors of at most 4,000 components (above 2,000 in half precision); those of "
                    f"{space.name!r} have {space.width:,}. Search it exactly, or store short forms"
                )
        for number, space in chosen:
            with translated(self.address):
                _build(self._pool.fresh, number, space.width)
            with self._pool.transaction(READ) as db:
                queries = _sample(db, number, space.width)
            recall = measured_recall(self, space.name, queries, versions=[space.name]) if len(queries) else None
            with self._pool.transaction(WRITE) as db:
                _record(db, number, recall)

    def indexes(self) -> list[IndexState]:
        """The approximate indexes that can be used."""
        with self._pool.transaction(READ) as db:
            rows = {row[0]: row for row in db.execute(_INDEXES) if row[5]}
        return [IndexState(name, "pgvector HNSW", items, recall) for _, name, items, recall, _, _ in rows.values()]

    def _iterate(self, version: str | None, after: str) -> Iterator[Item]:
        """Page by page: nothing is held on the server in between."""
        owner, first = ("", []) if version is None else ("version = %s AND ", [self._with([version])[version].number])
        while True:
            with self._pool.transaction(READ) as db:
                page = _read_rows(db, f"{owner}id > %s ORDER BY id LIMIT {_PAGE}", [*first, after])
            if not page:
                return
            yield from map(_as_item, page)
            after = page[-1][0]

    def count(self) -> dict[str, int]:
        """The number of items by version."""
        with self._pool.transaction(READ) as db:
            return dict(db.execute("SELECT name, items FROM versions ORDER BY number").fetchall())

    def flush(self) -> None:
        """Nothing to do: a write that returned is on the server's disk. Raises if the server is gone."""
        with self._pool.transaction(READ) as db:
            db.execute("SELECT 1")

    def close(self) -> None:
        """Close all connections; the gallery stays on the server."""
        self._pool.close()
