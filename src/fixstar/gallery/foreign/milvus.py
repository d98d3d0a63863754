"""Collections of a Milvus server. Translated vectors go into a second collection; an alias selects the searched one."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fixstar.errors import DataError, GalleryUnavailableError, InputError, NextStep
from fixstar.gallery.addresses import MilvusServerAddress, parse_milvus_server
from fixstar.gallery.filters import Payload
from fixstar.gallery.milvus import require_pymilvus
from fixstar.gallery.store import Floats
from fixstar.gallery.vector_files import MARK, PAGE, FileRows, VectorPlace, json_fields

_ABOUT_INDEX = (
    "field_name",
    "index_name",
    "total_rows",
    "indexed_rows",
    "pending_index_rows",
    "state",
)
_KEPT = ("max_length", "max_capacity", "element_type")  # parameters of a field to copy
_DYNAMIC = "$meta"


def milvus_collection(server: str, name: str, vector: str | None = None) -> VectorPlace:
    """The entities of a Milvus collection; ``server`` is milvus://host:19530/database.

    ``vector`` names the field if there are several. Ids are the primary key; other fields are the payload.
    """
    address = parse_milvus_server(server)
    require_pymilvus(f"a collection on a Milvus server ({address.shown})")
    with _translated(address):
        client = importlib.import_module("pymilvus").MilvusClient(
            uri=address.url, token=address.token, db_name=address.database, timeout=address.timeout
        )
    return _MilvusCollection(client=client, address=address, name=name, vector=vector)


@contextmanager
def _translated(address: MilvusServerAddress) -> Iterator[None]:
    """Translate the errors of Milvus's client."""
    failures = (
        importlib.import_module("pymilvus").MilvusException,
        importlib.import_module("grpc").RpcError,
    )
    try:
        yield
    except failures as error:
        reason = " ".join(str(getattr(error, "message", "") or error).split())
        if address.token:
            reason = reason.replace(address.token, "***")
        raise GalleryUnavailableError(
            f"the Milvus server at {address.shown} failed ({reason[:300]}); stored data is unchanged. Check "
            "that it runs, then try again"
        ) from error


class _MilvusCollection:
    projection: Floats | None = None
    origin: str | None = None

    def __init__(
        self, client: Any, address: MilvusServerAddress, name: str, vector: str | None
    ) -> None:
        self.name = f"collection {name!r}"
        self.client = client
        self.address = address
        self.collection = name
        with _translated(address):
            if not client.has_collection(name):
                there = ", ".join(sorted(client.list_collections())) or "none"
                raise InputError(f"{address.shown} has no collection {name!r}; it has {there}")
            self.schema: dict[str, Any] = client.describe_collection(name)
        self.fields: list[dict[str, Any]] = self.schema["fields"]
        (self.id,) = [field["name"] for field in self.fields if field.get("is_primary")]
        self.vector = self._vector_field(vector)
        self.width = int(
            next(field for field in self.fields if field["name"] == self.vector)["params"]["dim"]
        )
        with _translated(address):
            client.load_collection(name)
        self.ids = [str(row[self.id]) for page in self.pages([self.id], PAGE) for row in page]
        if not self.ids:
            raise DataError(f"{self.name} is empty")
        self.read_last: dict[str, dict[str, Any]] = {}  # the entities of the last block, by id

    def blocks(self, rows: int) -> Iterator[FileRows]:
        """All entities, ``rows`` at a time."""
        for page in self.pages(["*"], rows):
            matrix = np.array([row[self.vector] for row in page], np.float32)
            payloads: list[Payload] = [self._payload(row) for row in page]
            ids = [str(row[self.id]) for row in page]
            self.read_last = dict(zip(ids, page, strict=True))
            yield FileRows(ids, matrix, payloads)

    def beside(self, to: str) -> _MilvusBeside:
        """Another collection, of entities with the same ids and fields."""
        return _MilvusBeside(self, to)

    def pages(
        self, fields: list[str], rows: int, collection: str | None = None
    ) -> Iterator[list[dict[str, Any]]]:
        """All entities of this or another collection in the order of their ids, page by page."""
        name = collection or self.collection
        with _translated(self.address):
            # an iterator uses the collection's consistency level: wait until all writes are visible
            self.client.query(
                name, filter="", output_fields=["count(*)"], consistency_level="Strong"
            )
            found = self.client.query_iterator(
                name, batch_size=rows, filter="", output_fields=fields
            )
            try:
                while page := found.next():
                    yield [dict(row) for row in page]
            finally:
                found.close()

    def _payload(self, row: dict[str, Any]) -> Payload:
        vectors = {field["name"] for field in self.fields if "VECTOR" in field["type"].name}
        return json_fields(
            {name: value for name, value in row.items() if name not in (self.id, *vectors)}
        )

    def _vector_field(self, wanted: str | None) -> str:
        there = [
            str(field["name"]) for field in self.fields if field["type"].name == "FLOAT_VECTOR"
        ]
        if wanted is None and len(there) == 1:
            return there[0]
        if wanted not in there:
            raise InputError(
                f"{self.name} has vectors {', '.join(there) or 'of no float32 kind'}; set vector"
            )
        return str(wanted)


class _MilvusBeside:
    copies = True

    def __init__(self, old: _MilvusCollection, to: str) -> None:
        if to == old.collection:
            raise InputError(
                f"{old.name} is the old one, which is never written; choose another name"
            )
        self.name = f"collection {to!r}"
        self._old = old
        self._client = old.client
        self._to = to

    def there(self) -> bool:
        """Whether the collection exists."""
        with _translated(self._old.address):
            return bool(self._client.has_collection(self._to))

    def open(self, width: int) -> None:
        """Create the collection, with the old one's fields and kind of index; one that exists must be as wide."""
        if not self.there():
            with _translated(self._old.address):
                self._client.create_collection(
                    self._to, schema=self._schema(width), index_params=self._index()
                )
        with _translated(self._old.address):
            seen = self._client.describe_collection(self._to)
            widths = [
                field["params"].get("dim")
                for field in seen["fields"]
                if field["name"] == self._old.vector
            ]
            if widths != [width] or not seen["enable_dynamic_field"]:
                raise InputError(
                    f"{self.name} exists, and is not for vectors of {width} components with the mark {MARK} among its "
                    "dynamic fields; choose another name",
                    NextStep("repeat", {"to": ...}),
                )
            self._client.load_collection(self._to)

    def _schema(self, width: int) -> Any:
        made = self._client.create_schema(auto_id=False, enable_dynamic_field=True)
        for field in self._old.fields:
            name = field["name"]
            if name == self._old.vector:
                made.add_field(name, field["type"], dim=width)
                continue
            if "VECTOR" in field["type"].name:
                raise InputError(
                    f"{self._old.name} has several vectors; the second collection would need them all"
                )
            parameters = {
                key: value for key, value in field.get("params", {}).items() if key in _KEPT
            }
            made.add_field(name, field["type"], is_primary=name == self._old.id, **parameters)
        return made

    def _index(self) -> Any:
        made = self._client.prepare_index_params()
        names = self._client.list_indexes(self._old.collection, field_name=self._old.vector)
        if not names:
            raise InputError(
                f"{self._old.name} has no index of {self._old.vector!r}, and no kind of distance; make one"
            )
        seen = dict(self._client.describe_index(self._old.collection, names[0]))
        kind = seen.pop("index_type")
        metric = seen.pop("metric_type")
        rest = {name: value for name, value in seen.items() if name not in _ABOUT_INDEX}
        made.add_index(self._old.vector, index_type=kind, metric_type=metric, params=rest)
        return made

    def marks(self, ids: Sequence[str]) -> dict[str, str | None]:
        """The marks of existing entities."""
        if not ids or not self.there():
            return {}
        with _translated(self._old.address):
            self._client.load_collection(self._to)
            found = self._client.query(
                self._to,
                ids=self._keys(ids),
                output_fields=[self._old.id, MARK],
                consistency_level="Strong",
            )
        return {str(row[self._old.id]): row.get(MARK) for row in found}

    def marked(self) -> Iterator[list[str]]:
        """The ids of entities with a mark, page by page."""
        for page in self._old.pages([self._old.id, MARK], PAGE, self._to):
            yield [str(row[self._old.id]) for row in page if row.get(MARK) is not None]

    def write(self, rows: FileRows, marks: Sequence[str]) -> None:
        """Store entities with the other fields of the old collection."""
        made = []
        for name, vector, mark in zip(rows.ids, rows.vectors, marks, strict=True):
            own = {
                key: value for key, value in self._old.read_last[name].items() if key != _DYNAMIC
            }
            made.append({**own, self._old.vector: np.asarray(vector, np.float32), MARK: mark})
        with _translated(self._old.address):
            self._client.upsert(self._to, made)

    def remove(self, ids: Sequence[str]) -> None:
        """Delete entities."""
        with _translated(self._old.address):
            self._client.delete(self._to, ids=self._keys(ids))

    def close(self) -> None:
        """Flush the server's memory to its disk."""
        with _translated(self._old.address):
            self._client.flush(self._to)

    def switch(self, alias: str | None) -> str:
        """Point the alias to this collection."""
        return self._point(alias, self._to)

    def undo(self, alias: str | None) -> str:
        """Point the alias to the old collection."""
        return self._point(alias, self._old.collection)

    def _point(self, alias: str | None, collection: str) -> str:
        alias = alias or f"{self._old.collection}_current"
        with _translated(self._old.address):
            if alias in self._client.list_collections():
                raise InputError(
                    f"{alias!r} is a collection, so it cannot be an alias; choose another",
                    NextStep("repeat", {"alias": ...}),
                )
            if not self._client.has_collection(alias):
                self._client.create_alias(collection, alias)
            else:
                before = self._client.describe_collection(alias)["collection_name"]
                if before not in (self._old.collection, self._to):
                    raise InputError(
                        f"the alias {alias!r} leads to collection {before!r}, not to one of these; choose another",
                        NextStep("repeat", {"alias": ...}),
                    )
                self._client.alter_alias(collection, alias)
        return (
            f"The alias {alias!r} leads to collection {collection!r}, at once for all clients. Let your searches name "
            f"{alias!r} as their collection"
        )

    def _keys(self, ids: Sequence[str]) -> list[Any]:
        kind = next(
            field["type"].name for field in self._old.fields if field["name"] == self._old.id
        )
        if kind == "INT64":
            return [int(name) for name in ids]
        return list(ids)
