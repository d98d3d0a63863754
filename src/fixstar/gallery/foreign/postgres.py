"""Tables of PostgreSQL. Translated vectors go into a second table; a view joins them to the old table's rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np

from fixstar.errors import DataError, InputError, NextStep
from fixstar.gallery.addresses import parse_postgres_address
from fixstar.gallery.filters import Payload
from fixstar.gallery.postgres import require_psycopg, without_password
from fixstar.gallery.store import Floats
from fixstar.gallery.vector_files import MARK, PAGE, FileRows, VectorPlace

_MADE = "made by fixstar migrate"  # the comment of a view that may be replaced


def postgres_table(
    url: str, table: str, id_column: str = "id", vector_column: str = "vector"
) -> VectorPlace:
    """The rows of a table with vectors (pgvector's types, or arrays of numbers); other columns are the payload.

    ``table`` may be "schema.table".
    """
    return _PostgresTable(url=url, table=table, id_column=id_column, vector_column=vector_column)


class _PostgresTable:
    projection: Floats | None = None
    origin: str | None = None

    def __init__(self, url: str, table: str, id_column: str, vector_column: str) -> None:
        self.name = f"table {table!r}"
        self.url = url
        self.table = table.split(".")
        self.id = id_column
        self.vector = vector_column
        columns = self._columns()
        for column, what in ((id_column, "id"), (vector_column, "vector")):
            if column not in columns:
                seen = "there is no such table"
                if columns:
                    seen = f"it has the columns {', '.join(columns)}"
                raise InputError(f"{self.name} has no column {column!r}; {seen}. Set {what}_column")
        first: list[Any] = next(
            self._rows("SELECT {vector}::real[] FROM {table} WHERE {vector} IS NOT NULL LIMIT 1"),
            [],
        )
        if not first or not first[0]:
            raise DataError(f"{self.name} has no vectors in {vector_column!r}")
        self.width = len(first[0])
        self.ids = [row[0] for row in self._rows("SELECT {id}::text FROM {table} ORDER BY {id}")]

    def blocks(self, rows: int) -> Iterator[FileRows]:
        """All rows, ``rows`` at a time."""
        query = (
            "SELECT {id}::text, {vector}::real[], to_jsonb(t) - {id_text} - {vector_text} "
            "FROM {table} t ORDER BY {id}"
        )
        stored = self._rows(query)
        while some := list(islice(stored, rows)):
            for name, vector, _ in some:
                if vector is None or len(vector) != self.width:
                    seen = "none" if vector is None else f"one of {len(vector)}"
                    raise DataError(
                        f"{self.name}: {name!r} needs a vector of {self.width} components and has {seen}. Repair that "
                        "row, or name a view without such rows as the table"
                    )
            payloads: list[Payload] = [
                {field: v for field, v in row[2].items() if v is not None} for row in some
            ]
            yield FileRows(
                [row[0] for row in some], np.array([row[1] for row in some], np.float32), payloads
            )

    def beside(self, to: str) -> _PostgresBeside:
        """Another table, of ids and vectors."""
        return _PostgresBeside(self, to)

    def _columns(self) -> list[str]:
        found = self._rows(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass({table_text}) AND attnum > 0 "
            "AND NOT attisdropped ORDER BY attnum"
        )
        return [row[0] for row in found]

    def _rows(self, query: str) -> Iterator[Any]:
        """Rows one by one, without holding all of them."""
        require_psycopg(f"reading {self.name}")
        import psycopg
        from psycopg.sql import SQL, Identifier, Literal

        names = {
            "table": Identifier(*self.table),
            "id": Identifier(self.id),
            "vector": Identifier(self.vector),
            "id_text": Literal(self.id),
            "vector_text": Literal(self.vector),
            "table_text": Literal(quoted(self.table)),
        }
        address = parse_postgres_address(self.url)
        try:
            with (
                psycopg.connect(address.conninfo) as connection,
                connection.cursor("fixstar_import") as cursor,
            ):
                cursor.itersize = PAGE
                yield from cursor.execute(SQL(query).format(**names))
        except psycopg.Error as error:
            reason = without_password(str(error).strip().splitlines()[0], address)
            raise DataError(
                f"{self.name} cannot be read: {reason}"
            ) from None  # the text may contain the password


def quoted(table: Sequence[str]) -> str:
    """The quoted name of a table for SQL.

    >>> quoted(["public", "Photos"])
    '"public"."Photos"'
    """
    return ".".join('"' + part.replace('"', '""') + '"' for part in table)


class _PostgresBeside:
    """A table of ids, vectors and marks. The old table is not altered, so its writers never wait."""

    copies = False

    def __init__(self, old: _PostgresTable, to: str) -> None:
        table = to.split(".")
        if len(table) < len(old.table):
            table = [*old.table[:-1], *table]  # in the schema of the old one
        if table == old.table:
            raise InputError(
                f"{old.name} is the old one, which is never written; choose another name"
            )
        self.name = f"table {'.'.join(table)!r}"
        self._old = old
        self._table = table
        self._id_type = ""
        self._vector_type = ""

    def there(self) -> bool:
        """Whether the table exists."""
        with self._connected() as db:
            return bool(_columns(db, self._table))

    def open(self, width: int) -> None:
        """Create the table, with ids and vectors of the old one's types; one that exists must be as wide."""
        from psycopg.sql import SQL

        self._require_unique()
        with self._connected() as db:
            self._learn_types(db)
            columns = _columns(db, self._table)
            if self._vector_type.endswith("[]"):
                wanted = self._vector_type
            else:
                wanted = f"{self._vector_type}({width})"
            if not columns:
                db.execute(
                    self._sql(
                        "CREATE TABLE {new} ({id} {id_type} PRIMARY KEY, {vector} {wanted} NOT NULL, {mark} text)",
                        wanted=SQL(wanted),
                    )
                )
                return
        if columns.get(self._old.vector) != wanted or MARK not in columns:
            seen = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            raise InputError(
                f"{self.name} exists with the columns {seen}; needed are {self._old.id} {self._id_type}, "
                f"{self._old.vector} {wanted} and {MARK} text. Choose another name",
                NextStep("repeat", {"to": ...}),
            )

    def marks(self, ids: Sequence[str]) -> dict[str, str | None]:
        """The marks of existing rows."""
        with self._connected() as db:
            if not _columns(db, self._table):
                return {}
            self._learn_types(db)
            query = self._sql(
                "SELECT {id}::text, {mark} FROM {new} WHERE {id} = ANY(%s::{id_type}[])"
            )
            return dict(db.execute(query, [list(ids)]).fetchall())

    def marked(self) -> Iterator[list[str]]:
        """The ids of rows with a mark, page by page."""
        with self._connected() as db, db.cursor("fixstar_marked") as cursor:
            cursor.execute(self._sql("SELECT {id}::text FROM {new} WHERE {mark} IS NOT NULL"))
            while page := cursor.fetchmany(PAGE):
                yield [row[0] for row in page]

    def write(self, rows: FileRows, marks: Sequence[str]) -> None:
        """Store rows in one transaction; rows that the user has written since are kept."""
        if self._vector_type.endswith("[]"):
            brackets = "{}"
        else:
            brackets = "[]"
        texts = [
            brackets[0] + ",".join(map(repr, row)) + brackets[1] for row in rows.vectors.tolist()
        ]
        query = self._sql(
            "INSERT INTO {new} AS n VALUES (%s::{id_type}, %s::{vector_type}, %s) ON CONFLICT ({id}) DO UPDATE SET "
            "{vector} = excluded.{vector}, {mark} = excluded.{mark} WHERE n.{mark} IS NOT NULL"
        )
        with self._connected() as db, db.cursor() as cursor:
            cursor.executemany(query, list(zip(rows.ids, texts, marks, strict=True)))

    def remove(self, ids: Sequence[str]) -> None:
        """Delete rows."""
        with self._connected() as db:
            db.execute(
                self._sql("DELETE FROM {new} WHERE {id} = ANY(%s::{id_type}[])"), [list(ids)]
            )

    def close(self) -> None:
        """Nothing to do: every block is already committed."""

    def switch(self, alias: str | None) -> str:
        """Let the view show the new vectors."""
        view = self._replace_view(alias, "n.{vector}", "JOIN {new} n USING ({id})")
        return (
            f"The view {view} shows the rows of {self._old.name} with the vectors of {self.name}. Let your searches "
            f"read {view}. For large tables, index the new vectors first: CREATE INDEX CONCURRENTLY ON "
            f"{quoted(self._table)} USING hnsw ({quoted([self._old.vector])} vector_cosine_ops)"
        )

    def undo(self, alias: str | None) -> str:
        """Let the view show the old vectors."""
        view = self._replace_view(alias, "t.{vector}", "")
        return f"The view {view} shows {self._old.name} with its own vectors again. {self.name} is still there"

    def _replace_view(self, alias: str | None, vector: str, join: str) -> str:
        from psycopg.sql import SQL, Identifier, Literal

        view = (alias or f"{self._old.table[-1]}_current").split(".")
        if len(view) < len(self._old.table):
            view = [*self._old.table[:-1], *view]
        with self._connected() as db:
            self._learn_types(db)
            there = db.execute(
                "SELECT relkind::text, obj_description(oid, 'pg_class') FROM pg_class WHERE oid = to_regclass(%s)",
                [quoted(view)],
            ).fetchone()
            if there is not None and there != ("v", _MADE):
                raise InputError(
                    f"{'.'.join(view)!r} exists, and fixstar did not make it; choose another name for the view",
                    NextStep("repeat", {"alias": ...}),
                )
            # without its number of components, so that one view can show vectors of both widths and keep its grants
            shown = [
                self._sql(vector + "::{vector_type} AS {vector}")
                if column == self._old.vector
                else SQL("t.") + Identifier(column)
                for column in _columns(db, self._old.table)
            ]
            made = SQL("CREATE OR REPLACE VIEW {view} AS SELECT {shown} FROM {old} t ").format(
                view=Identifier(*view),
                shown=SQL(", ").join(shown),
                old=Identifier(*self._old.table),
            )
            db.execute(made + self._sql(join))
            db.execute(SQL("COMMENT ON VIEW {} IS {}").format(Identifier(*view), Literal(_MADE)))
        return ".".join(view)

    def _require_unique(self) -> None:
        if len(set(self._old.ids)) < len(self._old.ids) or None in self._old.ids:
            raise DataError(
                f"{self._old.name}: the column {self._old.id!r} has duplicate or missing values; rows need unique ids. "
                "Name a column that is unique: ...&id=COLUMN"
            )

    def _learn_types(self, db: Any) -> None:
        columns = _columns(db, self._old.table)
        self._id_type = columns[self._old.id]
        self._vector_type = columns[self._old.vector].partition("(")[0]

    def _sql(self, query: str, **more: Any) -> Any:
        from psycopg.sql import SQL, Identifier

        names = {
            "new": Identifier(*self._table),
            "id": Identifier(self._old.id),
            "vector": Identifier(self._old.vector),
            "mark": Identifier(MARK),
            "id_type": SQL(self._id_type),  # types are the server's own words for them
            "vector_type": SQL(self._vector_type),
        }
        return SQL(query).format(**names, **more)

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """A connection whose transaction is committed at the end."""
        import psycopg

        address = parse_postgres_address(self._old.url)
        try:
            with psycopg.connect(address.conninfo) as db:
                yield db
        except psycopg.Error as error:
            reason = without_password(str(error).strip().splitlines()[0], address)
            hint = "Stored data is unchanged"
            if isinstance(
                error, (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction)
            ):
                hint = "Connect as a user who may create tables in that schema, to a server that takes writes"
            raise DataError(f"{self.name} cannot be read or written: {reason}. {hint}") from None


def _columns(db: Any, table: Sequence[str]) -> dict[str, str]:
    """The columns of a table and their types; empty if there is no such table."""
    found = db.execute(
        "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass(%s) "
        "AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [quoted(table)],
    )
    return dict(found.fetchall())
