"""A gallery on a PostgreSQL server with pgvector, shared by machines.

Every call queries the server, so writes are visible to all clients immediately. Threads may share a gallery; they share
a few connections, which are reopened after a restart of the server. One client writes at a time and others wait;
searches never wait.

The server ranks by its own inner product, in float32, and returns a few more than k rows. Their cosines are computed
again in float64 (``ranking.exact_products``). While the last row may tie with the k-th, or the filter left too few,
four times as many are requested, so ties and filters give the same results as in memory.

A question with a map is different: the server knows only the stored vectors. It finds max(100, 10 k) candidates by the
question's own queries, and they are scored in full here. So an exact search of this kind misses an item that ranks high
only through the map.

gallery     one row: the format, and ``written``, the number of the last change, which items get theirs from. Writers
            lock this row first, so one writes at a time and numbers grow in the order of writing; readers never wait
versions    one row per version; ``items`` counts its vectors
items       one row per item of any version, so ids are unique. ``payload`` is the original JSON text,
            ``fields`` the same as jsonb, parsed once, for filters; NUL, which jsonb cannot hold, is U+0001 there
vectors_N   the vectors of version number N, by the item's number; inside the row if they fit in a page
indexes     the recall measured when the approximate index of a version was built

A vector travels as two 16-bit integers (its width, and 0) and its components as float32, all big-endian. The pgvector
package does the same row by row: in three trials, copying was equally fast to a third slower, reading 6 to 70 % slower.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import (
    DamagedItemError,
    GalleryError,
    GalleryUnavailableError,
    MissingExtraError,
)
from fixstar.gallery.addresses import PostgresAddress, parse_postgres_address
from fixstar.gallery.filters import Payload, Where, conditions, payload_test
from fixstar.gallery.matrix import parsed
from fixstar.gallery.ranking import (
    Candidate,
    Carrier,
    as_scores,
    best_hits,
    exact_products,
    in_float64,
    scored,
)
from fixstar.gallery.store import (
    Floats,
    Gallery,
    Hit,
    IndexState,
    Item,
    Question,
    SearchRequest,
    Vectors,
    VersionSpace,
    check_new_version,
    check_width,
    checked_vectors,
    is_unicode,
    known_version,
    measured_recall,
    replaceable,
    require_revision,
    stored_payload,
    stored_projection,
)

if TYPE_CHECKING:
    from psycopg import Connection

    Database = Connection[tuple[Any, ...]]

READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"  # one snapshot: an item that moves is seen exactly once
WRITE = (
    "BEGIN ISOLATION LEVEL READ COMMITTED"  # reads after waiting for another writer see its changes
)
_STARTING = ("starting up", "recovery mode", "not yet accepting connections", "shutting down")
_PAUSE = 0.1
_EF_SEARCH = 100  # vectors that an index search visits per scan, if hnsw.ef_search asks for no more
_EF_MOST = 1000  # pgvector takes no more
_WIDEST = 16_000  # maximum number of components of pgvector's vector
_LONGEST_ID = 2_600  # bytes: an entry of PostgreSQL's index holds 2,704, with its header and the version beside the id
_IN_ROW = 2_000  # components that fit in a page of 8 KiB; wider vectors are kept beside the table
_OLDEST = (0, 8)  # the first pgvector with iterative scans, without which filters return too few
_LOCK = 0x66787374  # "fxst", held while a gallery is created
_SCHEMA = (
    "CREATE TABLE gallery (format integer NOT NULL, written bigint NOT NULL)",
    'CREATE TABLE versions (number integer PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE, '
    "width integer NOT NULL, full_width integer NOT NULL, projection bytea, "
    "created timestamptz NOT NULL DEFAULT now(), items bigint NOT NULL DEFAULT 0)",
    'CREATE TABLE items (id text COLLATE "C" PRIMARY KEY, version integer NOT NULL REFERENCES versions (number), '
    "number bigint NOT NULL UNIQUE, payload json NOT NULL, fields jsonb NOT NULL "
    r"GENERATED ALWAYS AS (replace(payload::text, '\u0000', '\u0001')::jsonb) STORED)",
    "CREATE INDEX items_by_version ON items (version, id)",
    "CREATE TABLE indexes (version integer PRIMARY KEY REFERENCES versions (number), recall double precision)",
    "CREATE INDEX items_by_field ON items USING gin (fields jsonb_path_ops) WITH (fastupdate = off)",
)
_FORMAT = 2
_HEADER = 4  # bytes before the components
_COPY_START = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_END = b"\xff\xff"
_ROWS = 4096
_INDEXED = 2_000  # components of a vector that pgvector can index
_INDEXED_HALVES = 4_000  # and in half precision
_LINKED = 1_200  # bytes per row of a graph that is being built, beside the vector
_MOST_MEMORY = 1 << 20  # kB for building an index, if nobody gave it more
_MEANINGS = {
    "53100": "the server of {shown} has a full disk; nothing of this write was kept. Free some space and write again",
    "53300": "the server of {shown} has no free connection; close others, or raise its max_connections",
    "42501": "this user may not do that in {shown} ({error}); nothing was changed. Ask the owner for rights: GRANT ...",
    "25006": "{shown} cannot be written (opened for reading only, or a standby server); nothing was changed",
    "55P03": "another writer of {shown} did not finish in time; nothing was changed. Try again",
    "57014": "the server cancelled the call ({error}); nothing was changed in {shown}",
    "42P01": "{shown} is gone or incomplete ({error}); restore it from a backup",
    "3F000": "{shown} is gone ({error}); restore it from a backup",
    "XX001": "{shown} is damaged ({error}); restore it from a backup",
    "XX002": "an index of {shown} is damaged ({error}); let the owner run REINDEX",
}
_LOST = ("08", "57P")


def require_psycopg(purpose: str) -> None:
    """Raise with the package to install if psycopg is missing."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("psycopg", "postgres", purpose) from error


def _connect(address: PostgresAddress, wait: float) -> Database:
    """A connection in autocommit, without prepared statements, which a pooler would lose.

    Waits for a server that is starting, but not for one that cannot be reached.
    """
    from psycopg import Connection, Error

    until = time.monotonic() + wait
    while True:
        try:
            return Connection.connect(address.conninfo, autocommit=True, prepare_threshold=None)
        except Error as error:
            reason = str(error)
            if any(sign in reason for sign in _STARTING) and time.monotonic() < until:
                time.sleep(_PAUSE)
                continue
            raise GalleryUnavailableError(
                f"cannot connect to {address.shown} ({without_password(reason, address)}); check that the server runs "
                "and accepts this user, and the address"
            ) from None


def _setup(db: Database, schema: str, wait: float, read_only: bool) -> list[str]:
    """Statements that set up a transaction, sent in one round trip with its BEGIN.

    They apply only to this transaction: behind a pooler the next one may run in another session. Tables are looked up
    in the gallery's schema, types in pgvector's. Index scans continue until enough rows pass the filter; they are
    sorted here. Commits wait for the disk, even if that is not the server's default. A search by the index is as broad
    as the address, the role or the database asks for, and never narrower than ours.
    """
    ((path, commit, breadth),) = db.execute(
        "SELECT concat_ws(', ', quote_ident(%s), (SELECT quote_ident(nspname) FROM pg_extension "
        "JOIN pg_namespace n ON n.oid = extnamespace WHERE extname = 'vector')), "
        "current_setting('synchronous_commit'), current_setting('hnsw.ef_search', true)",
        (schema,),
    )
    return [
        f"SET LOCAL search_path TO {path}",
        f"SET LOCAL lock_timeout TO '{int(wait * 1000)}ms'",
        "SET LOCAL jit TO off",
        "SET LOCAL hnsw.iterative_scan TO relaxed_order",
        f"SET LOCAL hnsw.ef_search TO {max(_EF_SEARCH, _breadth(breadth))}",
        *(["SET LOCAL synchronous_commit TO on"] if commit == "off" else []),
        *(["SET TRANSACTION READ ONLY"] if read_only else []),
    ]


def _breadth(setting: str | None) -> int:
    """The session's ``hnsw.ef_search``; 0 if nobody set it. The server does not check it before it loads pgvector."""
    if not setting:
        return 0
    if not setting.isdecimal() or not 1 <= int(setting) <= _EF_MOST:
        raise GalleryError(
            f"hnsw.ef_search is {setting!r}; pgvector takes whole numbers from 1 to {_EF_MOST}. Change it where it is "
            "set: in the address (options=-c%20hnsw.ef_search%3D200), for the role or for the database"
        )
    return int(setting)


def _check_place(db: Database, address: PostgresAddress) -> None:
    """Refuse a connection whose tables would come from another schema."""
    here = db.execute("SELECT current_schema()").fetchone()
    if here != (address.schema,):
        raise GalleryError(
            f"{address.shown} is gone, or this user may not use it (tables would come from "
            f"{here and here[0]!r}); ask its owner for: GRANT USAGE ON SCHEMA ..."
        )


class Pool:
    """Up to ``size`` connections, opened on demand; threads wait for a free one.

    Not psycopg_pool, which hides the reason of a failed connection behind a timeout and does not survive a fork.
    """

    def __init__(self, address: PostgresAddress, wait: float, read_only: bool, size: int) -> None:
        self.address = address
        self.wait = wait
        self._read_only = read_only
        self._size = size
        self._closed = False
        self._start()

    def _start(self) -> None:
        self._setup: list[str] = []
        self._process = os.getpid()
        self._idle: list[Database] = []
        self._room = threading.Semaphore(self._size)

    @contextmanager
    def transaction(self, begin: str) -> Iterator[Database]:
        """Commit at the end, roll back if anything is raised."""
        from psycopg import Error

        if (
            self._process != os.getpid()
        ):  # connections do not survive a fork; the parent keeps its own
            self._start()
        with self._room, _translated(self.address):
            db = self._begun(begin)
            committing = False
            try:
                yield db
                committing = True
                db.execute("COMMIT")
            except BaseException as error:
                if committing and db.closed and begin == WRITE and isinstance(error, Error):
                    raise GalleryUnavailableError(
                        f"the connection to {self.address.shown} was lost during the commit: this write was kept "
                        "completely or not at all. Write it again: that is safe either way"
                    ) from None
                with suppress(Exception):  # the server rolls back a lost connection
                    db.execute("ROLLBACK")
                raise
            finally:
                self._give_back(db)

    def _begin_fresh(self, begin: str) -> Database:
        """A new connection in a new transaction."""
        if self._closed:
            raise GalleryUnavailableError(f"the {self.address.shown} is closed; open it again")
        db = _connect(self.address, self.wait)
        try:
            self._setup = _setup(
                db, schema=self.address.schema, wait=self.wait, read_only=self._read_only
            )
            db.execute("; ".join([begin, *self._setup]))
            _check_place(db, self.address)
        except BaseException:
            db.close()
            raise
        return db

    def close(self) -> None:
        """Close idle connections; others are closed when they are returned."""
        self._closed = True
        if self._process == os.getpid():
            while self._idle:
                self._idle.pop().close()

    def _begun(self, begin: str) -> Database:
        """A connection in a new transaction. A connection lost while idle is replaced."""
        from psycopg import OperationalError

        while not self._closed:
            try:
                db = self._idle.pop()
            except IndexError:
                break
            try:
                db.execute("; ".join([begin, *self._setup]))
            except OperationalError:
                db.close()
            else:
                return db
        return self._begin_fresh(begin)

    def _give_back(self, db: Database) -> None:
        from psycopg.pq import TransactionStatus

        if self._closed or db.closed or db.info.transaction_status != TransactionStatus.IDLE:
            db.close()
        else:
            self._idle.append(db)


def meaning(error: Exception, address: PostgresAddress) -> str:
    """The message for a server error, in terms of the gallery."""
    code = str(getattr(error, "sqlstate", None) or "")
    diagnosis = getattr(error, "diag", None)
    reason = without_password((diagnosis and diagnosis.message_primary) or str(error), address)
    from psycopg import OperationalError

    if (not code and isinstance(error, OperationalError)) or code.startswith(_LOST):
        return f"the connection to {address.shown} was lost ({reason}); nothing of this call was kept. Try again"
    return _MEANINGS.get(code, "{shown}: {error}").format(shown=address.shown, error=reason)


@contextmanager
def _translated(address: PostgresAddress) -> Iterator[None]:
    """Translate the server's errors."""
    from psycopg import DataError, Error, IntegrityError

    try:
        yield
    except Error as error:
        if isinstance(error, (DataError, IntegrityError)):
            kind = GalleryError
        else:
            kind = GalleryUnavailableError
        raise kind(meaning(error, address)) from error


def without_password(text: str, address: PostgresAddress) -> str:
    """A message of the driver on one line, without the password."""
    line = " ".join(text.split()).rstrip(".")
    if address.password:
        return line.replace(address.password, "***")
    return line


def _prepare(address: PostgresAddress, create: bool, read_only: bool, wait: float) -> None:
    """Check that there is a gallery that this fixstar can open; create one if there is none."""
    db = _connect(address, wait)
    with db, _translated(address):
        create = create and not read_only
        _check_server(db, address, create)
        db.execute(
            "; ".join([WRITE, *_setup(db, schema=address.schema, wait=wait, read_only=read_only)])
        )
        if not (tables := _tables(db, address)):
            if not create:
                raise GalleryError(
                    f"there is no {address.shown}; check the name after ?gallery=, or open it for writing to create it"
                )
            tables = _make(db, address)
        if "gallery" not in tables:
            raise GalleryError(
                f"the schema of {address.shown} holds tables of another program ({', '.join(tables[:3])}); it was left "
                "unchanged. Choose another name: ?gallery=NAME"
            )
        _check_place(db, address)
        ((found,),) = db.execute("SELECT format FROM gallery")
        db.execute("COMMIT")
    if found != _FORMAT:
        raise GalleryError(
            f"the {address.shown} has format {found}; this fixstar reads format {_FORMAT}. Nothing was changed. "
            "Use the version of fixstar that created it"
        )


def _check_server(db: Database, address: PostgresAddress, create: bool) -> None:
    """Require UTF-8 and pgvector, which is installed into the database if possible."""
    encoding = db.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise GalleryError(
            f"the database of {address.shown} is encoded as {encoding}; a gallery needs one in UTF8"
        )
    if not (found := _extension(db)) and create:
        _install(db, address)
        found = _extension(db)
    if not found:
        raise GalleryError(
            f"the database of {address.shown} has no pgvector; ask its owner to run: CREATE EXTENSION vector"
        )
    if tuple(map(int, found.split(".")[:2])) < _OLDEST:
        raise GalleryError(
            f"the database of {address.shown} has pgvector {found}, a gallery needs 0.8 or newer; update it, then run: "
            "ALTER EXTENSION vector UPDATE"
        )


def _install(db: Database, address: PostgresAddress) -> None:
    from psycopg import Error

    try:
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(%s, 0)", (_LOCK,))
            db.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except Error as error:
        raise GalleryError(
            f"the database of {address.shown} has no pgvector, and it could not be installed "
            f"({error.diag.message_primary or 'no reason given'}). Install pgvector on the server, then ask the "
            "owner of the database to run: CREATE EXTENSION vector"
        ) from error


def _extension(db: Database) -> str | None:
    row = db.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    return None if row is None else str(row[0])


def _tables(db: Database, address: PostgresAddress) -> list[str]:
    rows = db.execute(
        "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
        "WHERE nspname = %s AND relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY relname",
        (address.schema,),
    )
    return [row[0] for row in rows]


def _make(db: Database, address: PostgresAddress) -> list[str]:
    """Create the tables, once, even if several processes try at the same moment."""
    from psycopg.sql import SQL, Identifier

    db.execute("SELECT pg_advisory_xact_lock(%s, 0)", (_LOCK,))
    if not _tables(db, address):
        if not db.execute(
            "SELECT 1 FROM pg_namespace WHERE nspname = %s", (address.schema,)
        ).fetchone():
            db.execute(SQL("CREATE SCHEMA {}").format(Identifier(address.schema)))
        _check_place(db, address)
        for statement in _SCHEMA:
            db.execute(statement)
        db.execute("INSERT INTO gallery (format, written) VALUES (%s, 0)", (_FORMAT,))
    return _tables(db, address)


def _check_lengths(ids: Iterable[str]) -> None:
    """Refuse ids that do not fit into the index over them."""
    for item in ids:
        if (size := len(item.encode())) > _LONGEST_ID:
            raise GalleryError(
                f"a gallery in PostgreSQL holds ids of at most {_LONGEST_ID:,} bytes in UTF-8, got {size:,} in "
                f"{item[:40] + '...'!r}; nothing of this write was kept. Use a shorter id, such as a hash"
            )


def _add_vectors_table(db: Database, number: int, width: int) -> None:
    """Create the table for the vectors of a version."""
    if width > _WIDEST:
        raise GalleryError(
            f"a gallery in PostgreSQL holds vectors of at most {_WIDEST:,} components, got {width:,}; store short "
            "forms (pass the projection), or use an SQLite gallery"
        )
    db.execute(
        f"CREATE TABLE vectors_{number} (number bigint PRIMARY KEY, vector vector({width}) NOT NULL)"
    )
    if width <= _IN_ROW:
        db.execute(f"ALTER TABLE vectors_{number} ALTER COLUMN vector SET STORAGE PLAIN")


def _index_type(width: int) -> str:
    """The type under which vectors are indexed; empty if pgvector cannot index them.

    >>> _index_type(512), _index_type(3000), _index_type(5000)
    ('vector(512)', 'halfvec(3000)', '')
    """
    if width <= _INDEXED:
        return f"vector({width})"
    if width <= _INDEXED_HALVES:
        return f"halfvec({width})"
    return ""


def vector_text(vector: Floats) -> str:
    """A vector [width] as pgvector reads it."""
    return f"[{','.join(map(repr, vector.tolist()))}]"


def _read_vectors(parts: Sequence[bytes], width: int) -> Floats:
    """[parts, width] from the output of ``vector_send``."""
    size = _HEADER + 4 * width
    if any(len(part) != size for part in parts):
        raise GalleryError(
            f"a vector is damaged: it does not have {width} components; restore the gallery from a backup"
        )
    raw = np.frombuffer(b"".join(parts), np.uint8).reshape(len(parts), size)
    return np.ascontiguousarray(raw[:, _HEADER:]).view(">f4").astype(np.float32)


def _copy_vectors(db: Database, number: int, numbers: NDArray[np.int64], vectors: Floats) -> None:
    """Write vectors [N, width] of the items ``numbers`` to the table of a version, in COPY's binary format."""
    width = vectors.shape[1]
    row = np.dtype(
        [
            ("columns", ">i2"),
            ("number_size", ">i4"),
            ("number", ">i8"),
            ("vector_size", ">i4"),
            ("width", ">i2"),
            ("unused", ">i2"),
            ("vector", ">f4", (width,)),
        ]
    )
    with db.cursor().copy(
        f"COPY vectors_{number} (number, vector) FROM STDIN (FORMAT BINARY)"
    ) as copy:
        copy.write(_COPY_START)
        for start in range(0, len(vectors), _ROWS):
            part = vectors[start : start + _ROWS]
            rows = np.zeros(len(part), row)
            rows["columns"] = 2
            rows["number_size"] = 8
            rows["vector_size"] = _HEADER + 4 * width
            rows["number"] = numbers[start : start + _ROWS]
            rows["width"] = width
            rows["vector"] = part
            copy.write(rows.tobytes())
        copy.write(_COPY_END)


_PAGE = 256  # items read at once by iterate, at most
_FIRST_PAGE = 16
_PAGE_CHARACTERS = 8 << 20  # characters of payloads above which fewer items are read
_EXACT = 2**53  # smaller integers are exact floats
_COMPARED = {"eq": "==", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}  # jsonpath operators
_MORE = 16  # vectors requested beyond k
_GROWTH = 4
_QUERIES = 64  # per statement
_NUMBERS = 1 << 22  # components per answer: 16 MiB
_FEW = 2000  # a version of at most this many items is not worth a look at how many pass a filter
_SAMPLED = 2000  # items of a version, about, that such a look reads
_SAMPLED_AT_MOST = 20_000  # items of all versions that it reads
_READ = 0.05  # what reading an item for a filter takes: this part of comparing its vector, which takes 14 us
_VISIT = 6  # what a visit by the index takes: as long as comparing so many vectors
_BUILDING = 0x66787369  # "fxsi": the lock of an index build, with the table's oid
_SAMPLE = 100
_INDEXES = (
    "SELECT v.number, v.name, v.items, x.recall, i.indexrelid::regclass::text, i.indisvalid, "
    "(SELECT sum(items) FROM versions)::bigint FROM versions v "
    "JOIN pg_index i ON i.indrelid = to_regclass('vectors_' || v.number) JOIN pg_class c ON c.oid = i.indexrelid "
    "JOIN pg_am a ON a.oid = c.relam LEFT JOIN indexes x ON x.version = v.number "
    "WHERE a.amname = 'hnsw' ORDER BY v.number"
)

Row = tuple[str, str, Floats | None, str, int]  # id, version, vector if it exists, payload, number


class Narrowing(NamedTuple):
    """An SQL condition on ``fields`` (jsonb), and its parameters; empty if it excludes nothing.

    If it is ``indexed``, the server finds what passes without reading all items.

    Rows that pass are tested again in Python, so the condition may only be too weak. Values that PostgreSQL compares
    differently are left to Python: numbers of 2^53 and more (1e23 is not 10^23 in Python), objects (where Python treats
    1 and true as equal) and strings that ``fields`` may not store unchanged.
    """

    text: str
    values: list[Any]
    indexed: bool = False


def narrowing(where: Where | None) -> Narrowing:
    """The part of a valid filter that PostgreSQL can decide.

    >>> narrowing({"shop": "paris"})
    Narrowing(text='fields @@ %s::jsonpath', values=['strict $."shop" == "paris"'], indexed=True)
    """
    texts: list[str] = []
    values: list[Any] = []
    indexed = False
    for name, operation, operand in conditions(where or {}):
        if _is_plain(name) and _is_plain(operand):
            text, more = _condition(name, operation, operand)
            texts.append(text)
            values += more
            indexed |= operation == "eq" and not isinstance(operand, (list, tuple))
    return Narrowing(" AND ".join(texts), values, indexed)


def _condition(name: str, operation: str, operand: Any) -> tuple[str, list[Any]]:
    if operation in _COMPARED and not isinstance(
        operand, (list, tuple)
    ):  # only with the same type, as in Python
        return "fields @@ %s::jsonpath", [
            f"strict $.{json.dumps(name)} {_COMPARED[operation]} {json.dumps(operand)}"
        ]
    if operation == "exists":
        return f"fields -> %s::text IS {'NOT ' if operand else ''}NULL", [name]
    if operation == "in":
        return "fields -> %s::text = ANY (%s::jsonb[])", [
            name,
            [json.dumps(one) for one in operand],
        ]
    return f"fields -> %s::text {'=' if operation == 'eq' else '<>'} %s::jsonb", [
        name,
        json.dumps(operand),
    ]


def _is_plain(value: Any) -> bool:
    """Whether a value compares the same in Python and PostgreSQL."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return not any(sign in value for sign in ("\0", "\1", "\\u000")) and is_unicode(value)
    if isinstance(value, (int, float)):
        return abs(value) < _EXACT
    return value is None


class _Version(NamedTuple):
    """A version, and the number of its vectors table."""

    number: int
    space: VersionSpace


class _Filter(NamedTuple):
    """A filter: the part that the server decides, and the whole filter."""

    narrowing: Narrowing
    test: Callable[[Payload], bool] | None


class _VersionQuestion(NamedTuple):
    """A question to one version, with queries in float64, and the number of candidates."""

    version: _Version
    question: Question
    k: int


def _nearest(
    db: Database, asked: _VersionQuestion, where: _Filter, approximate: bool
) -> list[Candidate]:
    """The k nearest of each query among the vectors of one version, and possibly more."""
    found: list[Candidate] = []
    limit = asked.k + _MORE
    pending = list(range(len(asked.question.own)))
    while pending:
        if approximate and limit > _EF_SEARCH:
            db.execute(
                "SELECT set_config('hnsw.ef_search', "
                "greatest(%s, current_setting('hnsw.ef_search')::integer)::text, true)",
                (min(limit, _EF_MOST),),
            )
        block = max(1, min(_QUERIES, _NUMBERS // (limit * asked.version.space.width)))
        incomplete: list[int] = []
        for start in range(0, len(pending), block):
            places = pending[start : start + block]
            fetched = _fetch(
                db, asked=asked, where=where, places=places, limit=limit, approximate=approximate
            )
            for query, here in fetched.items():
                if here is None:
                    incomplete.append(query)
                else:
                    found += here
        pending = incomplete
        limit = limit if approximate else limit * _GROWTH
        approximate = False  # if the index returned too few, search without it
    return found


def _fetch(
    db: Database,
    asked: _VersionQuestion,
    where: _Filter,
    places: list[int],
    limit: int,
    approximate: bool,
) -> dict[int, list[Candidate] | None]:
    """The candidates of some queries; None if a vector outside the answer may be among the k nearest."""
    number, space = asked.version
    own = asked.question.own
    text = candidates_query(
        number,
        width=space.width,
        queries=len(places),
        limit=limit,
        narrowing=where.narrowing.text,
        approximate=approximate,
    )
    values = [*map(vector_text, own[places].astype(np.float32)), *where.narrowing.values]
    rows = db.execute(text, values, binary=True).fetchall()
    query = np.array([places[row[0]] for row in rows], np.intp)
    vectors = _read_vectors([row[5] for row in rows], space.width)
    cosines = as_scores(exact_products(vectors, own, query))
    scores = cosines
    if asked.question.map is not None:
        numbers = np.array([row[1] for row in rows], np.int64)
        scores = full_scores(asked.question, vectors=vectors, query=query, number=numbers)
    ranks = asked.question.slope * scores.astype(np.float64) + asked.question.offset
    found: dict[int, list[Candidate]] = {place: [] for place in places}
    near: dict[int, list[float]] = {place: [] for place in places}  # the cosines of the found items
    returned = Counter(query.tolist())
    floor = dict.fromkeys(places, np.inf)  # the server's lowest score
    columns = zip(rows, cosines.tolist(), scores.tolist(), ranks.tolist(), strict=True)
    for (place, row, distance, name, payload, _), cosine, score, rank in columns:
        q = places[place]
        floor[q] = min(floor[q], -distance)
        if where.test is None or where.test(parsed(payload)):
            found[q].append(Candidate(q, name, space.name, score, rank, row, payload))
            near[q].append(cosine)
    rounding = 4e-6 * max(1.0, space.width**0.5 / 8)  # of a dot product in float32, with a margin

    def is_complete(q: int) -> bool:
        best = sorted(near[q], reverse=True)[: asked.k]
        enough = len(best) == asked.k
        if approximate:
            return enough
        return returned[q] < limit or (enough and floor[q] < best[-1] - rounding)

    return {q: here if is_complete(q) else None for q, here in found.items()}


def full_scores(
    question: Question, vectors: Floats, query: NDArray[np.intp], number: NDArray[np.int64]
) -> Floats:
    """[pairs]: the scores of stored vectors [pairs, width], each for one of a question's queries.

    ``number`` [pairs] identifies the vectors: a vector that several queries found is mapped once.
    """
    sums = (1 - question.weight) * exact_products(vectors, question.own, query)
    if question.map is not None and question.new is not None and len(vectors):
        _, first, inverse = np.unique(number, return_index=True, return_inverse=True)
        mapped = question.map(vectors[first])[inverse]
        sums += question.weight * exact_products(mapped, question.new, query)
    return as_scores(sums)


def _answers(
    db: Database, asked: Sequence[_VersionQuestion], queries: int, request: SearchRequest
) -> list[list[Hit]]:
    """The best hits of all questions for each query, from one snapshot, so that a moving item is found once."""
    where = _Filter(
        narrowing(request.where), None if request.where is None else payload_test(request.where)
    )
    if request.exact:
        indexed = {}
    else:
        indexed = {row[0]: (row[2], row[6]) for row in db.execute(_INDEXES) if row[5]}
    found: list[Candidate] = []
    for one in asked:
        number = one.version.number
        by_index = number in indexed
        if by_index:
            items, stored = indexed[number]
            narrowed = where.narrowing
            limit = one.k + _MORE
            by_index = not _leaves_few(
                db, number, narrowed, items=items, stored=stored, limit=limit
            )
        found += _nearest(db, asked=one, where=where, approximate=by_index)
    return best_hits(
        found, queries=queries, request=request, payload=lambda candidate: parsed(candidate.source)
    )


def _leaves_few(
    db: Database, number: int, narrowed: Narrowing, *, items: int, stored: int, limit: int
) -> bool:
    """Whether comparing all items of a version that pass a filter is faster than a search by the index.

    ``items`` are the version's, ``stored`` those of all versions; the index would return ``limit`` items. How many pass
    is estimated from a sample of pages: counting them can take longer than the search. If n of N items pass, they are
    compared; without an index for the filter, all N are read. The index visits N / n items for each that passes.
    """
    if not narrowed.text:
        return False
    if items <= _FEW:
        return True
    percent = 100 * min(1.0, _SAMPLED / items, _SAMPLED_AT_MOST / stored)
    sample = f"items TABLESAMPLE SYSTEM ({percent}) REPEATABLE (0) WHERE version = {number}"
    ((passed, seen),) = db.execute(
        f"SELECT count(*) FILTER (WHERE {narrowed.text}), count(*) FROM {sample}", narrowed.values
    ).fetchall()
    passing = items * passed / max(1, seen)
    read = 0.0 if narrowed.indexed else items * _READ
    return bool(passing * (passing + read) <= _VISIT * limit * items)


def candidates_query(
    number: int,
    width: int,
    queries: int,
    limit: int,
    narrowing: str = "",
    approximate: bool = False,
) -> str:
    """SQL that returns for each query: its position, and number, score, id, payload and vector of the nearest items.

    Parameters are the queries, then those of the narrowing. Adding 0 to the inner product hides it from the index.
    An exact search evaluates the narrowing once for all queries. In an approximate one the server decides whether
    to filter what the index finds, or to search what passes the filter.
    """
    places = ", ".join(f"({place}, %s::vector)" for place in range(queries))
    if approximate:
        kind = _index_type(width)
        order = f"v.vector::{kind} <#> q.query::{kind}"
        among = f"JOIN items p USING (number) WHERE p.version = {number} AND {narrowing}"
    else:
        order = "score, v.number"
        among = f"WHERE v.number = ANY (ARRAY(SELECT number FROM items WHERE version = {number} AND {narrowing}))"
    return (
        f"SELECT q.place, c.number, c.score, i.id, i.payload::text, vector_send(w.vector) "
        f"FROM (VALUES {places}) q (place, query) CROSS JOIN LATERAL ("
        f"SELECT v.number, (v.vector <#> q.query) + 0 AS score FROM vectors_{number} v {among if narrowing else ''} "
        f"ORDER BY {order} LIMIT {limit}) c JOIN items i USING (number) JOIN vectors_{number} w USING (number)"
    )


def _graph_memory(rows: int, width: int) -> int:
    """The kB that pgvector needs to build an index of so many vectors in memory, with a margin; 1 GB at most.

    >>> _graph_memory(rows=100_000, width=384)
    267188
    """
    component = 4 if width <= _INDEXED else 2
    return min(_MOST_MEMORY, -(-rows * (component * width + _LINKED) // 1024))


def _give_memory(db: Database, rows: int, width: int) -> None:
    """Let the session build an index in memory, if nobody else said how much it may take.

    PostgreSQL's default, 64 MB, holds the graph of 25,000 vectors of 384 components. From there on pgvector links each
    row on disk.
    """
    ((memory, source),) = db.execute(
        "SELECT setting, source FROM pg_settings WHERE name = 'maintenance_work_mem'"
    )
    needed = _graph_memory(rows, width)
    if source == "default" and needed > int(memory):
        db.execute("SELECT set_config('maintenance_work_mem', %s, false)", (f"{needed}kB",))


def _build(pool: Pool, number: int, width: int) -> None:
    """Build pgvector's HNSW index of a version, on a separate connection, as it may take hours.

    Others keep reading and writing (CONCURRENTLY). It gets a new name; then older indexes are dropped, including
    leftovers of killed builds. An open transaction keeps other builders out. It has no snapshot between its statements,
    so the build does not wait for it. Behind a pooler, every statement outside of a transaction may run in another
    session, so no settings are used then, and all names are qualified with their schema.
    """
    table = f"vectors_{number}"
    with pool.transaction(WRITE) as holder, closing(_connect(pool.address, pool.wait)) as db:
        ((schema, types),) = holder.execute(
            "SELECT quote_ident(current_schema()), quote_ident(nspname) FROM pg_type t "
            "JOIN pg_namespace n ON n.oid = typnamespace WHERE t.oid = 'vector'::regtype"
        )
        ((rows,),) = holder.execute("SELECT items FROM versions WHERE number = %s", (number,))
        holder.execute("SET LOCAL idle_in_transaction_session_timeout TO 0")
        # Do not wait here: an index build waits for every waiting statement, which would be a deadlock.
        locked = holder.execute(
            f"SELECT pg_try_advisory_xact_lock({_BUILDING}, '{table}'::regclass::oid::int)"
        )
        if locked.fetchone() == (False,):
            raise GalleryError(
                "the index of this version is already being built; wait for it, see indexes()"
            )
        is_own_session = db.execute("SELECT pg_backend_pid()").fetchone() == (db.info.backend_pid,)
        if is_own_session:
            db.execute(
                "SELECT set_config('lock_timeout', '0', false), set_config('statement_timeout', '0', false)"
            )
            _give_memory(db, rows, width)
        name = _create_index(
            db, table=f"{schema}.{table}", types=types, width=width, may_set=is_own_session
        )
        for row in holder.execute(_INDEXES).fetchall():
            if row[0] == number and row[4] != name:
                db.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema}.{row[4]}")


def _create_index(db: Database, table: str, types: str, width: int, may_set: bool) -> str:
    """Create the index of a table under a new name, which is returned; ``types`` is the schema of pgvector.

    Processes that build together share memory. In a container there may be too little of it: then one builds alone.
    """
    from psycopg.errors import DiskFull, OutOfMemory

    kind = _index_type(width).partition("(")[0]
    expression = "vector"
    if kind == "halfvec":
        expression = f"(vector::{types}.{_index_type(width)})"
    definition = f"ON {table} USING hnsw ({expression} {types}.{kind}_ip_ops)"

    def create() -> str:
        name = f"{table.rpartition('.')[2]}_hnsw_{token_hex(4)}"
        db.execute(f"CREATE INDEX CONCURRENTLY {name} {definition}")
        return name

    try:
        return create()
    except (DiskFull, OutOfMemory):
        if not may_set:
            raise
        db.execute("SELECT set_config('max_parallel_maintenance_workers', '0', false)")
        return create()


def _lock_writing(db: Database, more: int = 0) -> int:
    """Lock out other writers until the transaction ends; returns the number of the last of ``more`` changes."""
    ((last,),) = db.execute("UPDATE gallery SET written = written + %s RETURNING written", (more,))
    return int(last)


def _all_versions(db: Database) -> dict[str, _Version]:
    """All versions by name, oldest first."""
    rows = db.execute("SELECT number, name, width, full_width FROM versions ORDER BY number")
    return {
        name: _Version(number, VersionSpace(name, width, full))
        for number, name, width, full in rows
    }


def _read_rows(db: Database, condition: str, values: Sequence[Any]) -> list[Row]:
    """Rows that match a condition, undecoded, so that other items can be read if one is damaged."""
    rows = db.execute(
        f"SELECT id, version, number, payload::text FROM items WHERE {condition}", values
    ).fetchall()
    vectors: dict[int, Floats] = {}
    names: dict[int, str] = {}
    for number, space in _all_versions(db).values():
        names[number] = space.name
        if wanted := [row[2] for row in rows if row[1] == number]:
            text = (
                f"SELECT number, vector_send(vector) FROM vectors_{number} WHERE number = ANY (%s)"
            )
            found = db.execute(text, (wanted,), binary=True).fetchall()
            read = _read_vectors([row[1] for row in found], space.width)
            vectors |= zip((row[0] for row in found), read, strict=True)
    return [
        (item, names[version], vectors.get(number), text, number)
        for item, version, number, text in rows
    ]


def _next_limit(limit: int, page: Sequence[Row]) -> int:
    """The number of items to read after a page: fewer if payloads are large, more if they are small."""
    size = sum(len(text) for _, _, _, text, _ in page)
    if size > _PAGE_CHARACTERS:
        return max(1, limit // 4)
    if 4 * size <= _PAGE_CHARACTERS:
        return min(_PAGE, 4 * limit)
    return limit


def _as_item(row: Row) -> Item:
    """Decode a row; raises if it is damaged."""
    name, version, vector, text, revision = row
    if vector is None:
        raise DamagedItemError(name, version, "the vector is missing")
    return Item(name, version, vector, stored_payload(name, version, text), revision)


def _items_of(db: Database, names: list[str]) -> dict[str, Item]:
    return {row[0]: _as_item(row) for row in _read_rows(db, "id = ANY (%s)", [names])}


def _remove_items(db: Database, names: list[str], revision: int | None = None) -> int:
    """Remove items within a transaction that holds the lock. With ``revision``, one item that must still have it."""
    rows = db.execute(
        "DELETE FROM items WHERE id = ANY (%s) RETURNING version, number", (names,)
    ).fetchall()
    if rows:
        require_revision(names[0], revision, rows[0][1])  # if it raises, nothing is removed
    for version, fewer in Counter(row[0] for row in rows).items():
        numbers = [number for owner, number in rows if owner == version]
        db.execute(f"DELETE FROM vectors_{version} WHERE number = ANY (%s)", (numbers,))
        db.execute("UPDATE versions SET items = items - %s WHERE number = %s", (fewer, version))
    return len(rows)


def _write_items(
    db: Database,
    version: int,
    names: list[str],
    rows: Floats,
    texts: Sequence[str],
    last: int,
    revision: int | None = None,
) -> Sequence[int]:
    """Store items of a version, by its number, and remove older ones; ``last`` is the number of the last item.

    Returns the numbers of all items.
    """
    if not _remove_items(db, names, revision):
        require_revision(names[0], revision, None)
    numbers = np.arange(last - len(names) + 1, last + 1)
    with db.cursor().copy("COPY items (id, version, number, payload) FROM STDIN") as copy:
        for row in zip(names, [version] * len(names), numbers.tolist(), texts, strict=True):
            copy.write_row(row)
    _copy_vectors(db, number=version, numbers=numbers, vectors=rows)
    db.execute("UPDATE versions SET items = items + %s WHERE number = %s", (len(names), version))
    return range(last - len(names) + 1, last + 1)


class PostgresGallery(Gallery):
    """See ``Gallery``. The URL is postgresql://user:password@host:port/database?gallery=NAME.

    ``wait`` is the maximum number of seconds that a write waits for another one, and any call for a starting server.
    ``connections`` is the number of connections that threads share.
    """

    def __init__(
        self,
        url: str,
        create: bool = True,
        read_only: bool = False,
        wait: float = 30.0,
        connections: int = 8,
    ) -> None:
        require_psycopg("a gallery on a PostgreSQL server")
        self.address = parse_postgres_address(url)
        self.read_only = read_only
        _prepare(self.address, create=create, read_only=read_only, wait=wait)
        self._pool = Pool(address=self.address, wait=wait, read_only=read_only, size=connections)
        self._carrier = Carrier(self.projection)
        self._known: dict[str, _Version] = {}

    def _create_version(self, space: VersionSpace, projection: Floats | None) -> None:
        with self._pool.transaction(WRITE) as db:
            _lock_writing(db)
            known = _all_versions(db)
            check_new_version(space.name, known)
            if projection is None:
                blob = None
            else:
                blob = projection.astype("<f4").tobytes()
            db.execute(
                "INSERT INTO versions (number, name, width, full_width, projection) VALUES (%s, %s, %s, %s, %s)",
                (len(known) + 1, *space, blob),
            )
            _add_vectors_table(db, len(known) + 1, space.width)

    def versions(self) -> list[VersionSpace]:
        """All versions, oldest first."""
        with self._pool.transaction(READ) as db:
            return [version.space for version in _all_versions(db).values()]

    def space(self, version: str) -> VersionSpace:
        """One version; versions never change, so they are cached."""
        return self._version(version).space

    def projection(self, version: str) -> Floats | None:
        """P [d, m] of a version whose vectors are short forms."""
        number, space = self._version(version)
        with self._pool.transaction(READ) as db:
            ((blob,),) = db.execute("SELECT projection FROM versions WHERE number = %s", (number,))
        return stored_projection(blob, space.full_width)

    def _upsert(
        self, version: str, names: list[str], rows: Floats, texts: list[str], revision: int | None
    ) -> Sequence[int]:
        _check_lengths(names)
        if not names:
            return ()
        number = self._version(version).number
        with self._pool.transaction(WRITE) as db:
            last = _lock_writing(db, len(names))
            return _write_items(
                db,
                version=number,
                names=names,
                rows=rows,
                texts=texts,
                last=last,
                revision=revision,
            )

    def _replace_vectors(
        self, version: str, items: Sequence[Item], rows: Floats, payloads: Sequence[Payload] | None
    ) -> list[str]:
        number = self._version(version).number
        with self._pool.transaction(WRITE) as db:
            last = _lock_writing(db, len(items))
            same, names, texts = replaceable(
                items, _items_of(db, [item.id for item in items]), payloads
            )
            if names:
                _write_items(
                    db, version=number, names=names, rows=rows[same], texts=texts, last=last
                )
        return names

    def _update_payload(self, name: str, changed: Callable[[Item], str]) -> Item | None:
        with self._pool.transaction(WRITE) as db:
            last = _lock_writing(db, 1)
            item = _items_of(db, [name]).get(name)
            if item is None:
                return None
            text = changed(item)
            number = _all_versions(db)[item.version].number
            _write_items(
                db, version=number, names=[name], rows=item.vector[None], texts=[text], last=last
            )
            return _items_of(db, [name])[name]

    def _delete(self, names: list[str], revision: int | None) -> int:
        with self._pool.transaction(WRITE) as db:
            _lock_writing(db, 1)
            return _remove_items(db, names, revision)

    def _get(self, names: list[str]) -> dict[str, Item]:
        with self._pool.transaction(READ) as db:
            return _items_of(db, names)

    def _search(self, version: str, queries: Vectors, request: SearchRequest) -> list[list[Hit]]:
        chosen = request.versions
        while True:
            source = self._version(version).space
            unit_queries = checked_vectors(queries, source.width, version)
            if chosen is None:
                names = list(self._known)
            else:
                names = list(dict.fromkeys(chosen))
            targets = [self._version(name) for name in names]
            asked = []
            for target in targets:
                own = self._carrier.carried(unit_queries, source, target.space)
                asked.append(
                    _VersionQuestion(target, Question(target.space.name, own), int(request.k))
                )
            with self._pool.transaction(READ) as db:
                self._known = _all_versions(db)
                if chosen is None and len(self._known) > len(targets):
                    continue  # a version was added since: create its matrix outside of a transaction
                return _answers(db, asked=asked, queries=len(unit_queries), request=request)

    def _ask(self, questions: list[Question], request: SearchRequest) -> list[list[Hit]]:
        if request.versions is None:
            wanted = None
        else:
            wanted = {self._version(name).space.name for name in request.versions}
        asked = []
        for question in questions:
            target = self._version(question.version)
            check_width(question, target.space)
            if wanted is None or question.version in wanted:
                if question.map is None:
                    candidates = int(request.k)
                else:
                    candidates = scored(int(request.k))
                asked.append(_VersionQuestion(target, in_float64(question), candidates))
        with self._pool.transaction(READ) as db:
            return _answers(db, asked=asked, queries=len(questions[0].own), request=request)

    def _version(self, name: str) -> _Version:
        """A version from the cache, which is read again if it is missing."""
        if not isinstance(name, str) or name not in self._known:
            with self._pool.transaction(READ) as db:
                self._known = _all_versions(db)
        return known_version(self._known, name)

    def _build_index(self, versions: list[str]) -> None:
        if self.read_only:
            raise GalleryUnavailableError(_MEANINGS["25006"].format(shown=self.address.shown))
        chosen = [self._version(name) for name in versions]
        for _, space in chosen:
            if not _index_type(space.width):
                raise GalleryError(
                    "pgvector indexes vectors of at most 4,000 components (above 2,000 in half precision); those of "
                    f"{space.name!r} have {space.width:,}. Search it exactly, or store short forms"
                )
        for number, space in chosen:
            _build(self._pool, number, space.width)
            with self._pool.transaction(READ) as db:  # a fixed sample, spread over the table
                ordered = f"ORDER BY hashint8(number), number LIMIT {_SAMPLE}"
                rows = db.execute(
                    f"SELECT vector_send(vector) FROM vectors_{number} {ordered}", binary=True
                ).fetchall()
            queries = _read_vectors([row[0] for row in rows], space.width)
            if rows:
                recall = measured_recall(self, space.name, queries, versions=[space.name])
            else:
                recall = None
            with self._pool.transaction(WRITE) as db:
                db.execute(
                    "INSERT INTO indexes (version, recall) VALUES (%s, %s) "
                    "ON CONFLICT (version) DO UPDATE SET recall = excluded.recall",
                    (number, recall),
                )

    def indexes(self) -> list[IndexState]:
        """The approximate indexes that can be used."""
        with self._pool.transaction(READ) as db:
            rows = {row[0]: row for row in db.execute(_INDEXES) if row[5]}
        return [
            IndexState(version=name, kind="pgvector HNSW", items=items, recall=recall)
            for _, name, items, recall, *_ in rows.values()
        ]

    def _iterate(self, version: str | None, after: str) -> Iterator[Item]:
        """Page by page: nothing is held on the server in between."""
        owner = ""
        first: list[int] = []
        if version is not None:
            owner = "version = %s AND "
            first = [self._version(version).number]
        limit = _FIRST_PAGE
        while True:
            with self._pool.transaction(READ) as db:
                page = _read_rows(db, f"{owner}id > %s ORDER BY id LIMIT {limit}", [*first, after])
            if not page:
                return
            yield from map(_as_item, page)
            after = page[-1][0]
            limit = _next_limit(limit, page)

    def created(self) -> str:
        """The creation time of the first version, which identifies this gallery; empty if there is no version."""
        text = "SELECT (created AT TIME ZONE 'UTC')::text FROM versions ORDER BY number LIMIT 1"
        with self._pool.transaction(READ) as db:
            row = db.execute(text).fetchone()
        return "" if row is None else str(row[0])

    def written_since(self, revision: int) -> Iterator[list[Item]]:
        """The items with a higher revision, lowest first, page by page: nothing is held on the server in between."""
        limit = _FIRST_PAGE
        while True:
            with self._pool.transaction(READ) as db:
                page = _read_rows(db, f"number > %s ORDER BY number LIMIT {limit}", [revision])
            if not page:
                return
            yield list(map(_as_item, page))
            revision = page[-1][4]
            limit = _next_limit(limit, page)

    def count(self) -> dict[str, int]:
        """The number of items by version."""
        with self._pool.transaction(READ) as db:
            return dict(db.execute("SELECT name, items FROM versions ORDER BY number").fetchall())

    def revision(self) -> int:
        """The number of the last change."""
        with self._pool.transaction(READ) as db:
            ((written,),) = db.execute("SELECT written FROM gallery")
        return int(written)

    def flush(self) -> None:
        """Nothing to do: finished writes are on the server's disk. Raises if the server is gone."""
        with self._pool.transaction(READ) as db:
            db.execute("SELECT 1")

    def close(self) -> None:
        """Close all connections; the gallery stays on the server."""
        self._pool.close()
