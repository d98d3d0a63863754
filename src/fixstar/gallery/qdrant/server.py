"""The collections of a gallery on a Qdrant server: how they are named, made, read and written.

PREFIX_versions        one point a version (name, widths, when it was made), and its projection in parts of 2 MiB
PREFIX_moves           one point for each move of items between versions that is under way
PREFIX_NAME-HASH       the vectors of one version, DOT, as they were given: unit vectors, so that copies are equal to
                       the bit

Reads ask the majority of the replicas and writes wait for it, so that what was acknowledged is seen.
"""

from __future__ import annotations

import base64
import importlib
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError, GalleryUnavailableError, MissingExtraError
from fixstar.gallery.qdrant.points import checked_prefix, point_id
from fixstar.gallery.store import VersionSpace

if TYPE_CHECKING:
    from qdrant_client import QdrantClient, models

__all__ = ["QdrantServer", "StoredVersion", "connect", "qdrant_translated"]

FORMAT = 1
PAGE = 1000  # points read at once
_PART = 2 << 20  # bytes of a projection in one point; servers refuse requests over 32 MiB


class StoredVersion(NamedTuple):
    """A version, the collection of its vectors, and what its point says."""

    space: VersionSpace
    collection: str
    fields: dict[str, Any]


def connect(url: str, api_key: str | None, grpc_port: int | None, timeout: int) -> QdrantClient:
    """A client of a server at http(s)://host:port."""
    try:
        from qdrant_client import QdrantClient
    except ImportError as error:
        raise MissingExtraError("qdrant-client", "qdrant", f"a gallery on a Qdrant server ({url})") from error
    return QdrantClient(
        url=url,
        api_key=api_key,
        grpc_port=grpc_port or 6334,
        prefer_grpc=grpc_port is not None,
        timeout=timeout,
        check_compatibility=False,  # asks the server before anybody can say what is wrong with the address
    )


@contextmanager
def qdrant_translated(address: str) -> Iterator[None]:
    """Say what a client's error means."""
    from qdrant_client.http.exceptions import ApiException

    try:
        yield
    except (ApiException, importlib.import_module("grpc").RpcError) as error:
        told = str(error).strip().splitlines() or [type(error).__name__]
        status = getattr(error, "status_code", None)
        hint = "is it running, and does the address name its port?"
        if status in (401, 403):
            hint = "put its API key into the environment variable QDRANT_API_KEY"
        elif status is not None:
            hint = "what was acknowledged is there; a write that failed can be repeated as it is"
        kind = GalleryError if status in (400, 422) else GalleryUnavailableError
        raise kind(f"the Qdrant server at {address} did not do it ({' '.join(told)[:300]}); {hint}") from error


class QdrantServer:
    """The collections with one prefix."""

    def __init__(self, client: QdrantClient, address: str, prefix: str, shards: int | None, replicas: int) -> None:
        self.client, self.address, self.prefix = client, address, checked_prefix(prefix)
        self._shards, self._replicas = shards, replicas
        self._meta, self._moves = f"{prefix}_versions", f"{prefix}_moves"
        self._majority: Any = importlib.import_module("qdrant_client.models").ReadConsistencyType.MAJORITY

    @property
    def is_engine(self) -> bool:
        """Whether this is the client's own engine, which is for tests: one process, no index."""
        options = self.client.init_options
        return options.get("location") == ":memory:" or options.get("path") is not None

    def prepare(self, create: bool) -> None:
        """See that the gallery is there, or make it."""
        if self.client.collection_exists(self._meta) and self.client.collection_exists(self._moves):
            return
        if not create:
            raise GalleryError(
                f"there is no gallery {self.prefix!r} at {self.address}: check the prefix, or open it for writing to "
                "make it"
            )
        self._create(self._moves, None, {})
        self._create(self._meta, None, {"kind": "keyword"})

    def versions(self) -> dict[str, StoredVersion]:
        """All versions by name, oldest first; one short request."""
        from qdrant_client import models

        wanted = models.Filter(must=[models.FieldCondition(key="kind", match=models.MatchValue(value="version"))])
        found = [record.payload or {} for record in self.scroll(self._meta, wanted, True)]
        for fields in found:
            if fields["format"] > FORMAT:
                raise GalleryError(f"the gallery {self.prefix!r} was made by a newer fixstar; update this one")
        found.sort(key=lambda fields: (fields["created"], fields["name"]))
        spaces = [VersionSpace(fields["name"], fields["width"], fields["full_width"]) for fields in found]
        return {space.name: StoredVersion(space, f["collection"], f) for space, f in zip(spaces, found, strict=True)}

    def create_version(self, space: VersionSpace, projection: NDArray[np.float32] | None) -> None:
        """Make a version. Its point comes last: before, there is only a collection that nobody knows."""
        hashed = uuid.UUID(point_id(f"{space.width} {space.name}")).hex[:12]
        readable = re.sub(r"[^A-Za-z0-9]+", "-", space.name).strip("-")[:40]
        collection = f"{self.prefix}_{readable}-{hashed}"
        self._create(collection, space.width, {"terms": "keyword", "written": "integer"})
        content = b"" if projection is None else projection.astype("<f4").tobytes()
        parts = [content[start : start + _PART] for start in range(0, len(content), _PART)]
        for i, part in enumerate(parts):
            text = base64.b64encode(part).decode("ascii")
            self._note(self._meta, f"projection {i} of {space.name}", {"kind": "projection", "part": text})
        fields = {
            "kind": "version",
            "format": FORMAT,
            "created": time.time_ns(),
            "collection": collection,
            "parts": len(parts) if projection is not None else None,
        }
        self._note(self._meta, f"version {space.name}", fields | space._asdict())

    def projection(self, version: StoredVersion) -> NDArray[np.float32] | None:
        """P [d, m] of a version."""
        parts = version.fields["parts"]
        if parts is None:
            return None
        wanted = [point_id(f"projection {i} of {version.space.name}") for i in range(parts)]
        found: dict[Any, str] = {}
        for one in wanted:  # one at a time: together they may be larger than an answer should be
            found |= {record.id: (record.payload or {})["part"] for record in self.retrieve(self._meta, [one], True)}
        if len(found) != parts:
            raise GalleryError(f"the projection of version {version.space.name!r} is damaged; restore {self._meta}")
        content = b"".join(base64.b64decode(found[one]) for one in wanted)
        return np.frombuffer(content, "<f4").reshape(version.space.full_width, -1).astype(np.float32)

    def set_recall(self, name: str, recall: float) -> None:
        """Note what an index found."""
        self.client.set_payload(self._meta, {"recall": recall}, points=[point_id(f"version {name}")], wait=True)

    def begin_move(self, points: Sequence[str]) -> str:
        """Note which points are about to change their collection; what the note is called."""
        name = f"move {uuid.uuid4()}"
        self._note(self._moves, name, {"name": name, "points": list(points), "begun": time.time()})
        return name

    def end_move(self, name: str) -> None:
        """Forget a move that is done."""
        self.client.delete(self._moves, [point_id(name)], wait=True)

    def moves(self) -> list[tuple[str, list[str], float]]:
        """(name, points, when it began) of moves under way, or broken off."""
        notes = [record.payload or {} for record in self.scroll(self._moves, None, True)]
        return [(note["name"], note["points"], note["begun"]) for note in notes]

    def upsert(
        self,
        version: StoredVersion,
        points: Sequence[str],
        vectors: NDArray[np.float32],
        payloads: list[dict[str, Any]],
    ) -> None:
        """Write points; on the server, in its log and visible, when it returns."""
        from qdrant_client import models

        batch = models.Batch(ids=list(points), vectors=vectors.tolist(), payloads=payloads)
        self.client.upsert(version.collection, batch, wait=True)

    def remove(self, version: StoredVersion, points: Sequence[str], written: Sequence[int]) -> None:
        """Remove points that still are what was read: written as one of these numbers. Newer ones stay.

        0 is the number of points that have lost theirs.
        """
        from qdrant_client import models

        same: list[Any] = [models.FieldCondition(key="written", match=models.MatchAny(any=list(written)))]
        if 0 in written:
            same.append(models.IsEmptyCondition(is_empty=models.PayloadField(key="written")))
        condition = models.Filter(must=[models.HasIdCondition(has_id=list(points)), models.Filter(should=same)])
        self.client.delete(version.collection, models.FilterSelector(filter=condition), wait=True)

    def retrieve(self, collection: str, points: Sequence[str], payload: bool | list[str], vectors: bool = False) -> Any:
        """Points by their ids, as far as they are there."""
        return self.client.retrieve(
            collection, list(points), with_payload=payload, with_vectors=vectors, consistency=self._majority
        )

    def scroll(self, collection: str, condition: models.Filter | None, payload: bool | list[str]) -> Iterator[Any]:
        """All points of a collection, a page at a time."""
        after: Any = None
        while True:
            page, after = self.client.scroll(
                collection, condition, limit=PAGE, offset=after, with_payload=payload, consistency=self._majority
            )
            yield from page
            if after is None:
                return

    def query(self, collection: str, requests: list[models.QueryRequest]) -> list[list[models.ScoredPoint]]:
        """The answers to several queries."""
        answers = self.client.query_batch_points(collection, requests, consistency=self._majority)
        return [answer.points for answer in answers]

    def _note(self, collection: str, name: str, fields: dict[str, Any]) -> None:
        from qdrant_client import models

        point = models.PointStruct(id=point_id(name), vector={}, payload=fields)
        self.client.upsert(collection, [point], wait=True)

    def _create(self, collection: str, width: int | None, indexed: dict[str, Any]) -> None:
        """Make a collection, or what is missing of it."""
        from qdrant_client import models

        kinds = {"keyword": models.PayloadSchemaType.KEYWORD, "integer": models.PayloadSchemaType.INTEGER}
        if not self.client.collection_exists(collection):
            self.client.create_collection(
                collection,
                vectors_config={} if width is None else models.VectorParams(size=width, distance=models.Distance.DOT),
                shard_number=self._shards if width is not None else None,
                replication_factor=self._replicas,
                write_consistency_factor=self._replicas // 2 + 1,
            )
        for field, kind in indexed.items() if not self.is_engine else ():
            self.client.create_payload_index(collection, field, field_schema=kinds[kind], wait=True)
