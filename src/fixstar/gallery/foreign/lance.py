"""Tables of LanceDB, in a folder. Translated vectors go into a second table, with all other columns of the old one."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fixstar.errors import (
    DataError,
    FixstarError,
    GalleryUnavailableError,
    InputError,
    MissingExtraError,
    NextStep,
)
from fixstar.gallery.filters import Payload
from fixstar.gallery.store import Floats
from fixstar.gallery.vector_files import MARK, PAGE, FileRows, VectorPlace, json_fields


def lance_table(
    folder: str | Path, table: str, id_column: str = "id", vector_column: str = "vector"
) -> VectorPlace:
    """The rows of a LanceDB table; other columns are the payload."""
    return _LanceTable(
        folder=Path(folder), table=table, id_column=id_column, vector_column=vector_column
    )


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    """Translate the errors of LanceDB, which are built-in exceptions."""
    try:
        yield
    except FixstarError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise GalleryUnavailableError(
            f"LanceDB in {folder} failed ({reason}). Stored data is unchanged; is the folder writable?"
        ) from error


class _LanceTable:
    projection: Floats | None = None
    origin: str | None = None

    def __init__(self, folder: Path, table: str, id_column: str, vector_column: str) -> None:
        self.name = f"table {table!r}"
        self.folder = folder
        self.title = table
        self.id = id_column
        self.vector = vector_column
        try:
            library = importlib.import_module("lancedb")
        except ImportError as error:
            raise MissingExtraError(
                "lancedb", "lancedb", f"a table of LanceDB ({folder})"
            ) from error
        if not folder.is_dir():
            raise DataError(f"there is no folder {folder}")
        with _translated(folder):
            self.database = library.connect(str(folder))
            there = names_of(self.database)
            if table not in there:
                raise InputError(
                    f"{folder} has no table {table!r}; it has {', '.join(there) or 'none'}"
                )
            self.table = self.database.open_table(table)
            self._check_columns()
            self.ids = [
                str(name)
                for batch in self._batches([id_column], PAGE)
                for name in batch[0].to_pylist()
            ]
        self.width = int(self.table.schema.field(vector_column).type.list_size)
        if not self.ids:
            raise DataError(f"{self.name} has no rows")
        self.read_last: Any = None  # the rows of the last block, with all columns

    def blocks(self, rows: int) -> Iterator[FileRows]:
        """All rows, ``rows`` at a time."""
        names = self.table.schema.names
        others = [name for name in names if name not in (self.id, self.vector)]
        start = 0
        for batch in self._batches(names, rows):
            column = batch.column(self.vector)
            if column.null_count:
                raise DataError(
                    f"{self.name}: a row from row {start} on has no vector. Delete such rows, or fill their vectors"
                )
            matrix = column.flatten().to_numpy(zero_copy_only=False).reshape(len(batch), self.width)
            payloads: list[Payload] = [json_fields(row) for row in batch.select(others).to_pylist()]
            self.read_last = batch
            yield FileRows(
                [str(name) for name in batch.column(self.id).to_pylist()], matrix, payloads
            )
            start += len(batch)

    def beside(self, to: str) -> _LanceBeside:
        """Another table of the same database."""
        return _LanceBeside(self, to)

    def _batches(self, columns: list[str], rows: int) -> Iterator[Any]:
        with _translated(self.folder):
            for batch in self.table.search().select(columns).to_batches(batch_size=rows):
                if len(batch):
                    yield batch

    def _check_columns(self) -> None:
        types = importlib.import_module("pyarrow").types
        schema = self.table.schema
        for column, what in ((self.id, "id"), (self.vector, "vector")):
            if column not in schema.names:
                raise InputError(
                    f"{self.name} has no column {column!r}; it has {', '.join(schema.names)}. Write ...&{what}=COLUMN"
                )
        kind = schema.field(self.vector).type
        if not types.is_fixed_size_list(kind):
            raise DataError(
                f"{self.name}: vectors are lists of one length, column {self.vector!r} holds {kind}"
            )
        kind = schema.field(self.id).type
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind)):
            raise DataError(
                f"{self.name}: ids are strings or integers, column {self.id!r} holds {kind}"
            )
        self.numbered = types.is_integer(kind)


def names_of(database: Any) -> list[str]:
    """The tables of a database."""
    found: list[str] = []
    token = None
    while True:
        page = database.list_tables(page_token=token, limit=PAGE)
        found += page.tables
        token = page.page_token
        if not token:
            return sorted(found)


class _LanceBeside:
    copies = True

    def __init__(self, old: _LanceTable, to: str) -> None:
        if to == old.title:
            raise InputError(
                f"{old.name} is the old one, which is never written; choose another name"
            )
        self.name = f"table {to!r}"
        self._old = old
        self._to = to

    def there(self) -> bool:
        """Whether the table exists."""
        with _translated(self._old.folder):
            return self._to in names_of(self._old.database)

    def open(self, width: int) -> None:
        """Create the table, with the old one's columns; one that exists must be as wide."""
        if len(set(self._old.ids)) < len(self._old.ids) or "None" in self._old.ids:
            raise DataError(
                f"{self._old.name}: the column {self._old.id!r} has duplicate or missing values; rows need unique ids. "
                "Name a column that is unique: ...&id=COLUMN"
            )
        wanted = self._schema(width)
        with _translated(self._old.folder):
            if not self.there():
                self._old.database.create_table(self._to, schema=wanted)
                return
            seen = self._table().schema
        if (
            MARK not in seen.names
            or seen.field(self._old.vector).type != wanted.field(self._old.vector).type
        ):
            raise InputError(
                f"{self.name} exists, and is not for vectors of {width} components with the mark {MARK}; choose "
                "another name",
                NextStep("repeat", {"to": ...}),
            )

    def _schema(self, width: int) -> Any:
        arrow = importlib.import_module("pyarrow")
        vector = arrow.field(self._old.vector, arrow.list_(arrow.float32(), width))
        fields = [vector if one.name == self._old.vector else one for one in self._old.table.schema]
        return arrow.schema([*fields, arrow.field(MARK, arrow.string())])

    def _table(self) -> Any:
        return self._old.database.open_table(self._to)

    def marks(self, ids: Sequence[str]) -> dict[str, str | None]:
        """The marks of existing rows."""
        if not self.there():
            return {}
        with _translated(self._old.folder):
            found = self._table().search().where(self._among(ids)).select([self._old.id, MARK])
            rows = found.to_arrow().to_pylist()
        return {str(row[self._old.id]): row[MARK] for row in rows}

    def marked(self) -> Iterator[list[str]]:
        """The ids of rows with a mark, page by page."""
        with _translated(self._old.folder):
            found = self._table().search().where(f"{MARK} IS NOT NULL").select([self._old.id])
            for batch in found.to_batches(batch_size=PAGE):
                yield [str(name) for name in batch.column(self._old.id).to_pylist()]

    def write(self, rows: FileRows, marks: Sequence[str]) -> None:
        """Store rows with the other columns of the old table."""
        arrow = importlib.import_module("pyarrow")
        read = self._old.read_last
        place = {str(name): row for row, name in enumerate(read.column(self._old.id).to_pylist())}
        width = rows.vectors.shape[1]
        schema = self._schema(width)
        kept = read.take(arrow.array([place[name] for name in rows.ids]))
        flat = arrow.array(np.ascontiguousarray(rows.vectors, np.float32).reshape(-1))
        made = {
            self._old.vector: arrow.FixedSizeListArray.from_arrays(flat, width),
            MARK: arrow.array(list(marks), arrow.string()),
        }
        columns = [made[name] if name in made else kept.column(name) for name in schema.names]
        table = arrow.table(columns, schema=schema)
        with _translated(self._old.folder):
            merged = self._table().merge_insert(self._old.id)
            merged.when_matched_update_all().when_not_matched_insert_all().execute(table)

    def remove(self, ids: Sequence[str]) -> None:
        """Delete rows."""
        with _translated(self._old.folder):
            self._table().delete(self._among(ids))

    def close(self) -> None:
        """Nothing to do: every block is already committed."""

    def switch(self, alias: str | None) -> str:
        """LanceDB in a folder has no aliases and cannot rename tables; returns what to do instead."""
        _refuse_alias(alias)
        return (
            f"LanceDB in a folder has no aliases and renames no tables. Let your program open table {self._to!r} "
            f"instead of {self._old.title!r}, and embed queries with the new model from then on"
        )

    def undo(self, alias: str | None) -> str:
        """Returns how to go back."""
        _refuse_alias(alias)
        return f"{self._old.name} was never changed. Let your program open it again, with the old model's queries"

    def _among(self, ids: Sequence[str]) -> str:
        if self._old.numbered:
            values = ids
        else:
            values = ["'" + name.replace("'", "''") + "'" for name in ids]
        return f"`{self._old.id}` IN ({', '.join(values)})"


def _refuse_alias(alias: str | None) -> None:
    if alias is not None:
        raise InputError("LanceDB in a folder has no aliases; leave the alias out")
