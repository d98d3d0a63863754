"""A PostgreSQL server that holds galleries: its connections, its tables, and how vectors travel.

gallery     one row: the format, and ``written``, the number of the last item. Writers lock this row first, so one
            writes at a time and numbers grow in the order of writing; readers never wait for it
versions    one row per version; ``items`` counts its vectors
items       one row per item, whatever its version: an id cannot occur twice. ``payload`` is the JSON text as given
vectors_N   the vectors of version number N, by the item's number; inside the row if they fit in a page
indexes     the recall measured when the approximate index of a version was built

A vector travels as two 16-bit integers (its width, and 0) and its components as float32, all big-endian. The pgvector
package does that too, row by row: in three trials as fast to a third slower to copy, and 6 to 70 % slower to read.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError, GalleryUnavailableError, MissingExtraError
from fixstar.gallery.addresses import PostgresAddress
from fixstar.gallery.store import Floats

if TYPE_CHECKING:
    from psycopg import Connection

    Database = Connection[tuple[Any, ...]]

__all__ = [
    "EF_SEARCH",
    "READ",
    "WRITE",
    "Pool",
    "add_vectors_table",
    "check_lengths",
    "check_width",
    "copy_vectors",
    "index_type",
    "meaning",
    "prepare",
    "read_vectors",
    "require_driver",
    "translated",
    "vector_text",
    "without_password",
]


READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"  # one snapshot: an item that moves is seen exactly once
WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"  # what is read after waiting for another writer is new
_STARTING = ("starting up", "recovery mode", "not yet accepting connections", "shutting down")
_PAUSE = 0.1
EF_SEARCH = 100  # vectors that an index search visits per scan
FORMAT = 1
WIDEST = 16_000  # components of pgvector's vector
_LONGEST_ID = 2_600  # bytes: an entry of PostgreSQL's index holds 2,704, with its header and the version beside the id
_IN_ROW = 2_000  # components that fit in a page of 8 KiB; wider vectors are kept beside the table
_OLDEST = (0, 8)  # pgvector with iterative scans, without which a filter returns too few
_LOCK = 0x66787374  # "fxst", held while a gallery is created
_TABLES = (
    "CREATE TABLE gallery (format integer NOT NULL, written bigint NOT NULL)",
    'CREATE TABLE versions (number integer PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE, width integer NOT NULL, '
    "full_width integer NOT NULL, projection bytea, created timestamptz NOT NULL DEFAULT now(), "
    "items bigint NOT NULL DEFAULT 0)",
    'CREATE TABLE items (id text COLLATE "C" PRIMARY KEY, version integer NOT NULL REFERENCES versions (number), '
    "number bigint NOT NULL UNIQUE, payload json NOT NULL)",
    "CREATE INDEX items_by_version ON items (version, id)",
    "CREATE TABLE indexes (version integer PRIMARY KEY REFERENCES versions (number), recall double precision)",
)
_HEADER = 4  # bytes before the components
_COPY_START = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_END = b"\xff\xff"
_ROWS = 4096
_INDEXED = 2_000  # components of a vector that pgvector can index
_INDEXED_HALVES = 4_000  # and in half precision
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


def require_driver() -> None:
    """Raise an error that says what to install if psycopg is missing."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("psycopg", "postgres", "a gallery on a PostgreSQL server") from error


def connect(address: PostgresAddress, wait: float) -> Database:
    """A connection in autocommit. Waits for a server that is starting, but not for one that cannot be reached."""
    from psycopg import Connection, Error

    until = time.monotonic() + wait
    while True:
        try:
            return Connection.connect(address.conninfo, autocommit=True)
        except Error as error:
            reason = str(error)
            if any(sign in reason for sign in _STARTING) and time.monotonic() < until:
                time.sleep(_PAUSE)
                continue
            raise GalleryUnavailableError(
                f"cannot connect to {address.shown} ({without_password(reason, address)}); check that the server runs "
                "and accepts this user, and the address"
            ) from None


def configure(db: Database, schema: str, wait: float, read_only: bool) -> None:
    """Set up a connection in one round trip.

    Tables are found in the gallery's schema, types in pgvector's. Index scans continue until enough rows pass the
    filter; their order is computed here. Commits wait for the disk, also where the server's default is not to.
    """
    db.execute(
        "SELECT set_config('search_path', concat_ws(', ', quote_ident(%s), (SELECT quote_ident(nspname) "
        "FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace WHERE extname = 'vector')), false), "
        "set_config('lock_timeout', %s, false), set_config('default_transaction_read_only', %s, false), "
        "set_config('jit', 'off', false), set_config('hnsw.iterative_scan', 'relaxed_order', false), "
        "set_config('hnsw.ef_search', %s, false), CASE WHEN current_setting('synchronous_commit') = 'off' "
        "THEN set_config('synchronous_commit', 'on', false) END",
        (schema, f"{int(wait * 1000)}ms", "on" if read_only else "off", str(EF_SEARCH)),
    )


def check_place(db: Database, address: PostgresAddress) -> None:
    """Refuse a connection whose tables would come from another schema."""
    if (here := db.execute("SELECT current_schema()").fetchone()) != (address.schema,):
        raise GalleryError(
            f"{address.shown} is gone, or this user may not use it (tables would come from "
            f"{here and here[0]!r}); ask its owner for: GRANT USAGE ON SCHEMA ..."
        )


class Pool:
    """At most ``size`` connections, opened when needed; a thread that finds none free waits.

    Not psycopg_pool: it hides why a connection failed behind a timeout, and does not survive a fork.
    """

    def __init__(self, address: PostgresAddress, wait: float, read_only: bool, size: int) -> None:
        self._address, self._wait, self._read_only, self._size = address, wait, read_only, size
        self._closed = False
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._idle: list[Database] = []
        self._room = threading.Semaphore(self._size)

    @contextmanager
    def transaction(self, begin: str) -> Iterator[Database]:
        """Commit at the end, roll back if anything is raised."""
        if self._process != os.getpid():  # connections do not survive a fork; the parent keeps its own
            self._start()
        with self._room, translated(self._address):
            db = self._begun(begin)
            try:
                yield db
            except BaseException:
                with suppress(Exception):  # the server rolls back a lost connection
                    db.execute("ROLLBACK")
                self._give_back(db)
                raise
            self._commit(db, begin)
            self._give_back(db)

    def fresh(self) -> Database:
        """A connection outside the pool, to be closed by the caller."""
        if self._closed:
            raise GalleryUnavailableError(f"the {self._address.shown} is closed; open it again")
        db = connect(self._address, self._wait)
        try:
            configure(db, self._address.schema, self._wait, self._read_only)
            check_place(db, self._address)
        except BaseException:
            db.close()
            raise
        return db

    def close(self) -> None:
        """Close idle connections; those in use are closed when they are given back."""
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
                db.execute(begin)
            except OperationalError:
                db.close()
            else:
                return db
        db = self.fresh()
        db.execute(begin)
        return db

    def _commit(self, db: Database, begin: str) -> None:
        from psycopg import Error

        try:
            db.execute("COMMIT")
        except Error:
            lost = db.closed
            self._give_back(db)
            if lost and begin == WRITE:
                raise GalleryUnavailableError(
                    f"the connection to {self._address.shown} was lost during the commit: this write was kept "
                    "completely or not at all. Write it again: that is safe either way"
                ) from None
            raise

    def _give_back(self, db: Database) -> None:
        from psycopg.pq import TransactionStatus

        if self._closed or db.closed or db.info.transaction_status != TransactionStatus.IDLE:
            db.close()
        else:
            self._idle.append(db)


def meaning(error: Exception, address: PostgresAddress) -> str:
    """What an error of the server means for the gallery."""
    code = str(getattr(error, "sqlstate", None) or "")
    diagnosis = getattr(error, "diag", None)
    reason = without_password((diagnosis and diagnosis.message_primary) or str(error), address)
    from psycopg import OperationalError

    if (not code and isinstance(error, OperationalError)) or code.startswith(_LOST):
        return f"the connection to {address.shown} was lost ({reason}); nothing of this call was kept. Try again"
    return _MEANINGS.get(code, "{shown}: {error}").format(shown=address.shown, error=reason)


@contextmanager
def translated(address: PostgresAddress) -> Iterator[None]:
    """Translate the server's errors."""
    from psycopg import DataError, Error, IntegrityError

    try:
        yield
    except Error as error:
        kind = GalleryError if isinstance(error, (DataError, IntegrityError)) else GalleryUnavailableError
        raise kind(meaning(error, address)) from error


def without_password(text: str, address: PostgresAddress) -> str:
    """A message of the driver in one line, without the password."""
    line = " ".join(text.split()).rstrip(".")
    return line.replace(address.password, "***") if address.password else line


def prepare(address: PostgresAddress, create: bool, read_only: bool, wait: float) -> None:
    """Check that there is a gallery that this fixstar can open; create it if it does not exist."""
    db = connect(address, wait)
    with db, translated(address):
        create = create and not read_only
        _check_server(db, address, create)
        configure(db, address.schema, wait, read_only)
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
        check_place(db, address)
        (row,) = db.execute("SELECT format FROM gallery").fetchall()
    if row[0] > FORMAT:
        raise GalleryError(
            f"the {address.shown} has format {row[0]}; this fixstar reads formats up to {FORMAT}. Update fixstar"
        )


def _check_server(db: Database, address: PostgresAddress, create: bool) -> None:
    """Require UTF-8 and pgvector, which is installed into the database if possible."""
    encoding = db.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise GalleryError(f"the database of {address.shown} is encoded as {encoding}; a gallery needs one in UTF8")
    if _extension(db) is None:
        if create:
            _install(db, address)
        if _extension(db) is None:
            raise GalleryError(
                f"the database of {address.shown} has no pgvector; ask its owner to run: CREATE EXTENSION vector"
            )
    if (found := _extension(db) or "") and tuple(map(int, found.split(".")[:2])) < _OLDEST:
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

    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s, 0)", (_LOCK,))
        if not _tables(db, address):
            if not db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (address.schema,)).fetchone():
                db.execute(SQL("CREATE SCHEMA {}").format(Identifier(address.schema)))
            check_place(db, address)
            for table in _TABLES:
                db.execute(table)
            db.execute("INSERT INTO gallery (format, written) VALUES (%s, 0)", (FORMAT,))
    return _tables(db, address)


def check_width(width: int) -> None:
    """Refuse vectors that pgvector cannot hold."""
    if width > WIDEST:
        raise GalleryError(
            f"a gallery in PostgreSQL holds vectors of at most {WIDEST:,} components, got {width:,}; store short "
            "forms (pass the projection), or use an SQLite gallery"
        )


def check_lengths(ids: Iterable[str]) -> None:
    """Refuse ids that do not fit into the index over them."""
    for item in ids:
        if (size := len(item.encode())) > _LONGEST_ID:
            raise GalleryError(
                f"a gallery in PostgreSQL holds ids of at most {_LONGEST_ID:,} bytes in UTF-8, got {size:,} in "
                f"{item[:40] + '...'!r}; nothing of this write was kept. Use a shorter id, such as a hash"
            )


def add_vectors_table(db: Database, number: int, width: int) -> None:
    """Create the table for the vectors of a version."""
    db.execute(f"CREATE TABLE vectors_{number} (number bigint PRIMARY KEY, vector vector({width}) NOT NULL)")
    if width <= _IN_ROW:
        db.execute(f"ALTER TABLE vectors_{number} ALTER COLUMN vector SET STORAGE PLAIN")


def index_type(width: int) -> str:
    """The type under which vectors are indexed; empty if pgvector cannot index them.

    >>> index_type(512), index_type(3000), index_type(5000)
    ('vector(512)', 'halfvec(3000)', '')
    """
    if width <= _INDEXED:
        return f"vector({width})"
    return f"halfvec({width})" if width <= _INDEXED_HALVES else ""


def vector_text(vector: Floats) -> str:
    """A vector [width] as pgvector reads it."""
    return f"[{','.join(map(repr, vector.tolist()))}]"


def read_vectors(parts: Sequence[bytes], width: int) -> Floats:
    """[parts, width] from the output of ``vector_send``."""
    size = _HEADER + 4 * width
    if any(len(part) != size for part in parts):
        raise GalleryError(
            f"a vector is damaged: it does not have {width} components; restore the gallery from a backup"
        )
    raw = np.frombuffer(b"".join(parts), np.uint8).reshape(len(parts), size)
    return np.ascontiguousarray(raw[:, _HEADER:]).view(">f4").astype(np.float32)


def copy_vectors(db: Database, number: int, numbers: NDArray[np.int64], vectors: Floats) -> None:
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
    with db.cursor().copy(f"COPY vectors_{number} (number, vector) FROM STDIN (FORMAT BINARY)") as copy:
        copy.write(_COPY_START)
        for start in range(0, len(vectors), _ROWS):
            part = vectors[start : start + _ROWS]
            rows = np.zeros(len(part), row)
            rows["columns"], rows["number_size"], rows["vector_size"] = 2, 8, _HEADER + 4 * width
            rows["number"], rows["width"], rows["vector"] = numbers[start : start + _ROWS], width, part
            copy.write(rows.tobytes())
        copy.write(_COPY_END)
