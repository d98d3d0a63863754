"""Vectors in other databases' collections and tables and in FAISS indexes, as sources for ``import_version``.

    import_version(gallery, "clip", qdrant_collection("qdrant://localhost:6333", "photos"))
    import_version(gallery, "clip", postgres_table("postgresql://me@host/shop", "photos", "sku", "embedding"))
    import_version(gallery, "clip", faiss_index("photos.faiss"))

Nothing is changed there. Rows are read twice, to check everything before anything is stored, so import while nobody
writes there. All ids are kept in memory, vectors only one block at a time.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fixstar.errors import DataError, GalleryUnavailableError, InputError, MissingExtraError
from fixstar.gallery.addresses import QdrantAddress, parse_postgres_address, parse_qdrant_address
from fixstar.gallery.filters import Payload
from fixstar.gallery.postgres import require_psycopg, without_password
from fixstar.gallery.store import Floats
from fixstar.gallery.vector_files import FileRows, VectorSource

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

PAGE = 1000  # rows read at once, without vectors


def qdrant_collection(
    server: str | QdrantClient, name: str, vector: str | None = None, id_field: str | None = None
) -> VectorSource:
    """The points of a Qdrant collection; ``server`` is qdrant://host:6333 or a client.

    ``vector`` names the vector if points have several. Ids are the points' own, or a field of their payload.
    """
    if isinstance(server, str):
        address = parse_qdrant_address(server)
        return _QdrantCollection(_connect(address), address.url, name, vector, id_field)
    return _QdrantCollection(server, "the given client", name, vector, id_field)


def _connect(address: QdrantAddress) -> QdrantClient:
    try:
        from qdrant_client import QdrantClient
    except ImportError as error:
        raise MissingExtraError(
            "qdrant-client", "qdrant", f"a collection on a Qdrant server ({address.url})"
        ) from error
    return QdrantClient(
        url=address.url,
        api_key=address.api_key,
        grpc_port=address.grpc_port or 6334,
        prefer_grpc=address.grpc_port is not None,
        timeout=address.timeout,
        check_compatibility=False,  # would contact the server before errors can be explained
    )


@contextmanager
def _translated(address: str) -> Iterator[None]:
    """Translate the errors of Qdrant's client."""
    from qdrant_client.http.exceptions import ApiException

    try:
        yield
    except (ApiException, importlib.import_module("grpc").RpcError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        status = getattr(error, "status_code", None)
        hint = "nothing was changed there; try again"
        if status is None:
            hint = "is it running, and does the address name its port?"
        elif status in (401, 403):
            hint = "put its API key into the environment variable QDRANT_API_KEY"
        reason = " ".join(lines)[:300]
        raise GalleryUnavailableError(f"the Qdrant server at {address} failed ({reason}); {hint}") from error


class _QdrantCollection:
    projection: Floats | None = None
    origin: str | None = None

    def __init__(self, client: QdrantClient, address: str, name: str, vector: str | None, field: str | None) -> None:
        self.name = f"collection {name!r}"
        self._client, self._address, self._collection, self._vector, self._field = client, address, name, vector, field
        with _translated(address):
            if not client.collection_exists(name):
                there = ", ".join(sorted(one.name for one in client.get_collections().collections)) or "none"
                raise InputError(f"{address} has no collection {name!r}; it has {there}")
            self.width = self._width(client.get_collection(name).config.params.vectors)
        self.ids = [
            self._id(record) for page in self._pages(PAGE, payload=[field] if field else False) for record in page
        ]
        if not self.ids:
            raise DataError(f"{self.name} is empty")

    def blocks(self, rows: int) -> Iterator[FileRows]:
        """All points, ``rows`` at a time."""
        for page in self._pages(rows, payload=True, vectors=True if self._vector is None else [self._vector]):
            vectors = [r.vector.get(self._vector) if isinstance(r.vector, dict) else r.vector for r in page]
            if missing := [record.id for record, vector in zip(page, vectors, strict=True) if vector is None]:
                raise DataError(f"{self.name}: point {missing[0]} has no vector; nothing was stored")
            matrix = np.array(vectors, np.float32)
            yield FileRows([self._id(record) for record in page], matrix, [dict(r.payload or {}) for r in page])

    def _width(self, kinds: Any) -> int:
        if isinstance(kinds, dict):
            if self._vector not in kinds:
                raise InputError(
                    f"{self.name} has vectors {', '.join(sorted(kinds)) or 'of no dense kind'}; set vector"
                )
            kinds = kinds[self._vector]
        elif self._vector is not None:
            raise InputError(f"{self.name} has one vector per point, without a name; do not set vector")
        if kinds.multivector_config is not None:
            raise DataError(f"{self.name} holds several vectors per point; a gallery holds one")
        return int(kinds.size)

    def _id(self, record: Any) -> str:
        if self._field is None:
            return str(record.id)
        value = (record.payload or {}).get(self._field)
        if value is None or isinstance(value, (dict, list)):
            raise DataError(f"{self.name}: point {record.id} has no id in its field {self._field!r}")
        return str(value)

    def _pages(self, rows: int, payload: bool | list[str], vectors: bool | list[str] = False) -> Iterator[list[Any]]:
        after: Any = None
        with _translated(self._address):
            while True:
                page, after = self._client.scroll(
                    self._collection, limit=rows, offset=after, with_payload=payload, with_vectors=vectors
                )
                yield page
                if after is None:
                    return


def postgres_table(url: str, table: str, id_column: str = "id", vector_column: str = "vector") -> VectorSource:
    """The rows of a table with vectors (pgvector's types, or arrays of numbers); other columns are the payload.

    ``table`` may be "schema.table".
    """
    return _PostgresTable(url, table, id_column, vector_column)


class _PostgresTable:
    projection: Floats | None = None
    origin: str | None = None

    def __init__(self, url: str, table: str, id_column: str, vector_column: str) -> None:
        self.name, self._url, self._table = f"table {table!r}", url, table.split(".")
        self._id, self._vector = id_column, vector_column
        columns = self._columns()
        for column, what in ((id_column, "id"), (vector_column, "vector")):
            if column not in columns:
                seen = f"it has the columns {', '.join(columns)}" if columns else "there is no such table"
                raise InputError(f"{self.name} has no column {column!r}; {seen}. Set {what}_column")
        first: list[Any] = next(
            self._rows("SELECT {vector}::real[] FROM {table} WHERE {vector} IS NOT NULL LIMIT 1"), []
        )
        if not first or not first[0]:
            raise DataError(f"{self.name} has no vectors in {vector_column!r}")
        self.width = len(first[0])
        self.ids = [row[0] for row in self._rows("SELECT {id}::text FROM {table} ORDER BY {id}")]

    def blocks(self, rows: int) -> Iterator[FileRows]:
        """All rows, ``rows`` at a time."""
        query = (
            "SELECT {id}::text, {vector}::real[], to_jsonb(t) - {id_text} - {vector_text} FROM {table} t ORDER BY {id}"
        )
        stored = self._rows(query)
        while some := list(islice(stored, rows)):
            for name, vector, _ in some:
                if vector is None or len(vector) != self.width:
                    seen = "none" if vector is None else f"one of {len(vector)}"
                    raise DataError(f"{self.name}: {name!r} needs a vector of {self.width} components and has {seen}")
            payloads: list[Payload] = [{field: v for field, v in row[2].items() if v is not None} for row in some]
            yield FileRows([row[0] for row in some], np.array([row[1] for row in some], np.float32), payloads)

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
            "table": Identifier(*self._table),
            "id": Identifier(self._id),
            "vector": Identifier(self._vector),
            "id_text": Literal(self._id),
            "vector_text": Literal(self._vector),
            "table_text": Literal(".".join('"' + part.replace('"', '""') + '"' for part in self._table)),
        }
        address = parse_postgres_address(self._url)
        try:
            with psycopg.connect(address.conninfo) as connection, connection.cursor("fixstar_import") as cursor:
                cursor.itersize = PAGE
                yield from cursor.execute(SQL(query).format(**names))
        except psycopg.Error as error:
            reason = without_password(str(error).strip().splitlines()[0], address)
            raise DataError(f"{self.name} cannot be read: {reason}") from None  # its text may hold the password


def faiss_index(path: str | Path) -> VectorSource:
    """The vectors of a FAISS index file, as the index reconstructs them: exactly, or nearly if it compresses them.

    Ids are those of an IndexIDMap, or FILE/0, FILE/1, ...
    """
    return _FaissIndex(Path(path))


class _FaissIndex:
    projection: Floats | None = None
    origin: str | None = None

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        try:
            faiss = importlib.import_module("faiss")
        except ImportError as error:
            raise MissingExtraError("faiss-cpu", "index", f"reading {path}") from error
        if not path.is_file():
            raise DataError(f"there is no file {path}")
        try:
            index = faiss.read_index(str(path))
        except (RuntimeError, MemoryError) as error:
            raise DataError(f"{path} is damaged, or not a FAISS index: {_last_line(error)}") from error
        self.width, count = int(index.d), int(index.ntotal)
        self.ids = [f"{path.stem}/{row}" for row in range(count)]
        if isinstance(index, faiss.IndexIDMap):  # IndexIDMap2 as well
            self.ids = [str(one) for one in faiss.vector_to_array(index.id_map).tolist()]
            self._outer = index  # which owns the one inside
            index = faiss.downcast_index(index.index)
        if not count:
            raise DataError(f"{path} holds no vectors")
        if hasattr(index, "make_direct_map"):  # an inverted file knows where a vector is only after this
            index.make_direct_map()
        self._index = index

    def blocks(self, rows: int) -> Iterator[FileRows]:
        """All vectors, ``rows`` at a time."""
        for start in range(0, len(self.ids), rows):
            ids = self.ids[start : start + rows]
            try:
                vectors = self._index.reconstruct_n(start, len(ids))
            except RuntimeError as error:
                raise DataError(
                    f"{self.name}: this kind of index does not give its vectors back ({_last_line(error)})"
                ) from error
            yield FileRows(ids, vectors, [{}] * len(ids))


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
