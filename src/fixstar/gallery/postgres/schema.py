"""The tables of a gallery on a PostgreSQL server, in a schema of its own.

gallery     one row: the format, and ``written``, the number of the last item. Who writes locks this row first, so one
            writes at a time and numbers grow in the order of writing; nobody who reads waits for it
versions    what kinds of vectors there are; ``items`` counts them
items       one row an item, whatever its version: an id cannot be there twice. ``payload`` is the JSON text as it came
vectors_N   the vectors of version number N, by the item's number; inside the row where they fit in a page
indexes     what was measured when the approximate index of a version was built
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fixstar.errors import GalleryError
from fixstar.gallery.postgres.address import Address
from fixstar.gallery.postgres.connection import check_place, configure, connect, translated

if TYPE_CHECKING:
    from fixstar.gallery.postgres.connection import Database

__all__ = ["FORMAT", "WIDEST", "add_vectors_table", "check_lengths", "checked_width", "prepare"]

FORMAT = 1
WIDEST = 16_000  # numbers in pgvector's vector
_LONGEST_ID = 2_600  # bytes: an entry of PostgreSQL's index holds 2,704, with its header and the version beside the id
_IN_ROW = 2_000  # numbers that fit in a page of 8 KiB; wider ones are kept beside the table
_OLDEST = (0, 8)  # of pgvector: iterative scans, without which a filter leaves too few
_LOCK = 0x66787374  # "fxst", for who makes a gallery
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


def prepare(address: Address, create: bool, read_only: bool, wait: float) -> None:
    """See to it that there is a gallery that this fixstar can open; make it if it is absent."""
    db = connect(address, wait)
    with db, translated(address):
        create = create and not read_only
        _check_server(db, address, create)
        configure(db, address.schema, wait, read_only)
        if not (tables := _tables(db, address)):
            if not create:
                raise GalleryError(
                    f"there is no {address.shown}; check the name after ?gallery=, or open it for writing to make it"
                )
            tables = _make(db, address)
        if "gallery" not in tables:
            raise GalleryError(
                f"the schema of {address.shown} holds tables of another program ({', '.join(tables[:3])}); it was left "
                "as it is. Choose another name: ?gallery=NAME"
            )
        check_place(db, address)
        (row,) = db.execute("SELECT format FROM gallery").fetchall()
    if row[0] > FORMAT:
        raise GalleryError(
            f"the {address.shown} has format {row[0]} and this fixstar knows formats up to {FORMAT}; "
            "update with: pip install --upgrade fixstar"
        )


def _check_server(db: Database, address: Address, create: bool) -> None:
    """UTF-8, and pgvector; it is installed into the database where it may be."""
    encoding = db.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise GalleryError(f"the database of {address.shown} is encoded as {encoding}; a gallery needs one in UTF8")
    if _extension(db) is None:
        if create:
            _install(db, address)
        if _extension(db) is None:
            raise GalleryError(
                f"the database of {address.shown} has no pgvector; let its owner run: CREATE EXTENSION vector"
            )
    if (found := _extension(db) or "") and tuple(map(int, found.split(".")[:2])) < _OLDEST:
        raise GalleryError(
            f"the database of {address.shown} has pgvector {found}, a gallery needs 0.8 or newer; update it, then run: "
            "ALTER EXTENSION vector UPDATE"
        )


def _install(db: Database, address: Address) -> None:
    from psycopg import Error

    try:
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(%s, 0)", (_LOCK,))
            db.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except Error as error:
        raise GalleryError(
            f"the database of {address.shown} has no pgvector, and it could not be installed "
            f"({error.diag.message_primary or 'no reason given'}). Install pgvector on the server, then let the "
            "owner of the database run: CREATE EXTENSION vector"
        ) from error


def _extension(db: Database) -> str | None:
    row = db.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    return None if row is None else str(row[0])


def _tables(db: Database, address: Address) -> list[str]:
    rows = db.execute(
        "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
        "WHERE nspname = %s AND relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY relname",
        (address.schema,),
    )
    return [row[0] for row in rows]


def _make(db: Database, address: Address) -> list[str]:
    """Make the tables, once, even where several processes come at the same moment."""
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


def checked_width(width: int) -> None:
    """Refuse vectors that pgvector cannot hold."""
    if width > WIDEST:
        raise GalleryError(
            f"a gallery in PostgreSQL holds vectors of at most {WIDEST:,} numbers, got {width:,}; store short forms "
            "(give the projection), or take an SQLite gallery"
        )


def check_lengths(ids: Iterable[str]) -> None:
    """Refuse ids that do not fit into the index over them."""
    for item in ids:
        if (size := len(item.encode())) > _LONGEST_ID:
            raise GalleryError(
                f"a gallery in PostgreSQL holds ids of at most {_LONGEST_ID:,} bytes in UTF-8, got {size:,} in "
                f"{item[:40] + '...'!r}; nothing of this write was kept. Take a shorter id, such as a hash"
            )


def add_vectors_table(db: Database, number: int, width: int) -> None:
    """Make the table for the vectors of a version."""
    db.execute(f"CREATE TABLE vectors_{number} (number bigint PRIMARY KEY, vector vector({width}) NOT NULL)")
    if width <= _IN_ROW:
        db.execute(f"ALTER TABLE vectors_{number} ALTER COLUMN vector SET STORAGE PLAIN")
