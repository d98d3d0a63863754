"""Collections of a Qdrant server. Translated vectors go into a second collection; an alias selects the searched one."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from fixstar.errors import (
    DataError,
    GalleryUnavailableError,
    InputError,
    MissingExtraError,
    NextStep,
)
from fixstar.gallery.addresses import QdrantAddress, parse_qdrant_address
from fixstar.gallery.store import Floats
from fixstar.gallery.vector_files import MARK, PAGE, FileRows, VectorPlace

if TYPE_CHECKING:
    from qdrant_client import QdrantClient


def qdrant_collection(
    server: str | QdrantClient, name: str, vector: str | None = None, id_field: str | None = None
) -> VectorPlace:
    """The points of a Qdrant collection; ``server`` is qdrant://host:6333 or a client.

    ``vector`` names the vector if points have several. Ids are the points' own, or a field of their payload.
    """
    if isinstance(server, str):
        address = parse_qdrant_address(server)
        return _QdrantCollection(
            client=_connect(address), address=address.url, name=name, vector=vector, field=id_field
        )
    return _QdrantCollection(
        client=server, address="the given client", name=name, vector=vector, field=id_field
    )


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
        hint = "stored data is unchanged; try again"
        if status is None:
            hint = "is it running, and does the address name its port?"
        elif status in (401, 403):
            hint = "put an API key that may do this into the environment variable QDRANT_API_KEY"
        reason = " ".join(lines)[:300]
        raise GalleryUnavailableError(
            f"the Qdrant server at {address} failed ({reason}); {hint}"
        ) from error


class _QdrantCollection:
    projection: Floats | None = None
    origin: str | None = None

    def __init__(
        self, client: QdrantClient, address: str, name: str, vector: str | None, field: str | None
    ) -> None:
        self.name = f"collection {name!r}"
        self.client = client
        self.address = address
        self.collection = name
        self.vector = vector
        self._field = field
        with _translated(address):
            if not client.collection_exists(name):
                there = (
                    ", ".join(sorted(one.name for one in client.get_collections().collections))
                    or "none"
                )
                raise InputError(f"{address} has no collection {name!r}; it has {there}")
            kind = self._kind(client.get_collection(name).config.params.vectors)
        self.width = int(kind.size)
        self.distance = kind.distance
        self.ids = [
            self._id(record)
            for page in self._pages(PAGE, payload=[field] if field else False)
            for record in page
        ]
        if not self.ids:
            raise DataError(f"{self.name} is empty")

    def blocks(self, rows: int) -> Iterator[FileRows]:
        """All points, ``rows`` at a time."""
        for page in self._pages(
            rows, payload=True, vectors=True if self.vector is None else [self.vector]
        ):
            vectors = [
                r.vector.get(self.vector) if isinstance(r.vector, dict) else r.vector for r in page
            ]
            if missing := [
                record.id for record, vector in zip(page, vectors, strict=True) if vector is None
            ]:
                raise DataError(
                    f"{self.name}: point {missing[0]} has no vector; nothing was stored"
                )
            matrix = np.array(vectors, np.float32)
            yield FileRows(
                [self._id(record) for record in page], matrix, [dict(r.payload or {}) for r in page]
            )

    def beside(self, to: str) -> _QdrantBeside:
        """Another collection, of points with the same ids and payloads."""
        if self._field is not None:
            raise InputError(
                f"{self.name}: the points of a second collection have the ids of these points, not a field of their "
                "payload; leave id= out of the address"
            )
        return _QdrantBeside(self, to)

    def _kind(self, kinds: Any) -> Any:
        if isinstance(kinds, dict):
            if self.vector not in kinds:
                raise InputError(
                    f"{self.name} has vectors {', '.join(sorted(kinds)) or 'of no dense kind'}; set vector"
                )
            kinds = kinds[self.vector]
        elif self.vector is not None:
            raise InputError(
                f"{self.name} has one vector per point, without a name; do not set vector"
            )
        if kinds.multivector_config is not None:
            raise DataError(f"{self.name} holds several vectors per point; a gallery holds one")
        return kinds

    def _id(self, record: Any) -> str:
        if self._field is None:
            return str(record.id)
        value = (record.payload or {}).get(self._field)
        if value is None or isinstance(value, (dict, list)):
            raise DataError(
                f"{self.name}: point {record.id} has no id in its field {self._field!r}"
            )
        return str(value)

    def _pages(
        self, rows: int, payload: bool | list[str], vectors: bool | list[str] = False
    ) -> Iterator[list[Any]]:
        with _translated(self.address):
            yield from _scrolled(
                self.client, collection=self.collection, rows=rows, payload=payload, vectors=vectors
            )


def _scrolled(
    client: QdrantClient,
    collection: str,
    rows: int,
    payload: bool | list[str],
    vectors: bool | list[str] = False,
) -> Iterator[list[Any]]:
    """All points of a collection, page by page."""
    after: Any = None
    while True:
        page, after = client.scroll(
            collection, limit=rows, offset=after, with_payload=payload, with_vectors=vectors
        )
        yield page
        if after is None:
            return


class _QdrantBeside:
    copies = True

    def __init__(self, old: _QdrantCollection, to: str) -> None:
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
            return self._client.collection_exists(self._to)

    def open(self, width: int) -> None:
        """Create the collection, with the old one's kind of distance; one that exists must be as wide."""
        from qdrant_client import models

        vector = self._old.vector
        if not self.there():
            made = models.VectorParams(size=width, distance=self._old.distance)
            with _translated(self._old.address):
                self._client.create_collection(
                    self._to, vectors_config=made if vector is None else {vector: made}
                )
            return
        with _translated(self._old.address):
            kinds: Any = self._client.get_collection(self._to).config.params.vectors
        if isinstance(kinds, dict) and vector is not None:
            kind = kinds.get(vector)
        else:
            kind = kinds
        if getattr(kind, "size", None) != width:
            raise InputError(
                f"{self.name} exists, and is not for vectors of {width} components; choose another name",
                NextStep("repeat", {"to": ...}),
            )

    def marks(self, ids: Sequence[str]) -> dict[str, str | None]:
        """The marks of existing points."""
        if not self.there():
            return {}
        with _translated(self._old.address):
            found = self._client.retrieve(
                self._to, [_point_id(name) for name in ids], with_payload=[MARK]
            )
        return {str(record.id): (record.payload or {}).get(MARK) for record in found}

    def marked(self) -> Iterator[list[str]]:
        """The ids of points with a mark, page by page."""
        with _translated(self._old.address):
            for page in _scrolled(self._client, collection=self._to, rows=PAGE, payload=[MARK]):
                yield [str(record.id) for record in page if MARK in (record.payload or {})]

    def write(self, rows: FileRows, marks: Sequence[str]) -> None:
        """Store points, replacing those with the same ids."""
        from qdrant_client import models

        points = []
        for name, vector, payload, mark in zip(
            rows.ids, rows.vectors.tolist(), rows.payloads, marks, strict=True
        ):
            if self._old.vector is None:
                named = vector
            else:
                named = {self._old.vector: vector}
            points.append(
                models.PointStruct(
                    id=_point_id(name), vector=named, payload={**payload, MARK: mark}
                )
            )
        with _translated(self._old.address):
            self._client.upsert(self._to, points, wait=True)

    def remove(self, ids: Sequence[str]) -> None:
        """Delete points."""
        from qdrant_client import models

        with _translated(self._old.address):
            self._client.delete(
                self._to, models.PointIdsList(points=[_point_id(name) for name in ids]), wait=True
            )

    def close(self) -> None:
        """Nothing to do: every block is already stored."""

    def switch(self, alias: str | None) -> str:
        """Point the alias to this collection."""
        return self._point(alias, self._to)

    def undo(self, alias: str | None) -> str:
        """Point the alias to the old collection."""
        return self._point(alias, self._old.collection)

    def _point(self, alias: str | None, collection: str) -> str:
        from qdrant_client import models

        alias = alias or f"{self._old.collection}_current"
        with _translated(self._old.address):
            if self._client.collection_exists(alias) and alias not in self._aliases():
                raise InputError(
                    f"{alias!r} is a collection, so it cannot be an alias; choose another",
                    NextStep("repeat", {"alias": ...}),
                )
            before = self._aliases().get(alias)
            if before not in (None, self._old.collection, self._to):
                raise InputError(
                    f"the alias {alias!r} leads to collection {before!r}, not to one of these; choose another",
                    NextStep("repeat", {"alias": ...}),
                )
            changes: list[Any] = []
            if before is not None:
                changes.append(
                    models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias))
                )
            made = models.CreateAlias(collection_name=collection, alias_name=alias)
            changes.append(models.CreateAliasOperation(create_alias=made))
            self._client.update_collection_aliases(changes)
        return (
            f"The alias {alias!r} leads to collection {collection!r}, at once for all clients. Let your searches name "
            f"{alias!r} as their collection"
        )

    def _aliases(self) -> dict[str, str]:
        return {one.alias_name: one.collection_name for one in self._client.get_aliases().aliases}


def _point_id(name: str) -> int | str:
    """The id of a point: a number, or a UUID."""
    return int(name) if name.isdecimal() else name
