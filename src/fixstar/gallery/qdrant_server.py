"""A Qdrant server that holds galleries: its collections, and what a point holds.

PREFIX_versions        one point per version (name, widths, creation time), and its projection in parts of 2 MiB
PREFIX_moves           one point for each unfinished move of items between versions
PREFIX_NAME-HASH       the vectors of one version, DOT, stored as given: unit vectors, so copies are equal to the bit

Reads ask the majority of the replicas and writes wait for it, so acknowledged writes are visible.

A point's payload is not the item's payload, because Qdrant's conditions differ from those of ``filters``: True may be
1 there, a list matches by any of its elements, nothing tells null from absent. It holds

    id        the item's id; the point's own id is a UUID made from it, since Qdrant accepts no other strings
    written   the number of the write: a later write of the same item has a higher one
    text      the item's payload as JSON, returned as given
    terms     one text per field ("it exists") and one per field and value ("it is this"), made so that equal texts are
              equal values by the rules of ``filters``; one keyword index serves every field
    numbers   the fields that are numbers, for ranges

The filter sent to the server lets through everything that ``payload_test`` would, and for most conditions nothing
else; the search tests the rest.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import re
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fixstar.errors import DamagedItemError, GalleryError, GalleryUnavailableError, MissingExtraError
from fixstar.gallery.store import Floats, Item, Payload, VersionSpace, Where

if TYPE_CHECKING:
    from qdrant_client import QdrantClient, models

__all__ = [
    "PAGE",
    "QdrantServer",
    "StoredVersion",
    "as_item",
    "connect",
    "item_name",
    "item_payload",
    "known_name",
    "lost_name",
    "point_id",
    "point_payload",
    "server_filter",
    "translated",
    "written_as",
]


FORMAT = 1
PAGE = 1000  # points read at once
_PART = 2 << 20  # bytes of a projection in one point; servers refuse requests over 32 MiB
_NAMESPACE = uuid.UUID("6d1f6a0e-9a3c-5c5b-8d53-0f1b7a1c2e44")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")  # names that need no quotes in Qdrant's paths
_LONG = 100  # longer terms are stored as their hash
_WHOLE = 1 << 53  # below, every integer is a float
_NEVER = ""  # a term that no point has, for "in" of an empty list


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
        check_compatibility=False,  # would contact the server before errors can be explained
    )


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Translate the client's errors."""
    from qdrant_client.http.exceptions import ApiException

    try:
        yield
    except (ApiException, importlib.import_module("grpc").RpcError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        status = getattr(error, "status_code", None)
        hint = "is it running, and does the address name its port?"
        if status in (401, 403):
            hint = "put its API key into the environment variable QDRANT_API_KEY"
        elif status is not None:
            hint = "acknowledged writes are safe; a failed write can be repeated"
        kind = GalleryError if status in (400, 422) else GalleryUnavailableError
        raise kind(f"the Qdrant server at {address} failed ({' '.join(lines)[:300]}); {hint}") from error


class QdrantServer:
    """The collections with one prefix."""

    def __init__(self, client: QdrantClient, address: str, prefix: str, shards: int | None, replicas: int) -> None:
        self.client, self.address, self.prefix = client, address, _checked_prefix(prefix)
        self._shards, self._replicas = shards, replicas
        self._meta, self._moves = f"{prefix}_versions", f"{prefix}_moves"
        self._majority: Any = importlib.import_module("qdrant_client.models").ReadConsistencyType.MAJORITY

    @property
    def is_engine(self) -> bool:
        """Whether this is the client's in-memory engine, for tests: one process, no index."""
        options = self.client.init_options
        return options.get("location") == ":memory:" or options.get("path") is not None

    def prepare(self, create: bool) -> None:
        """Check that the gallery exists, or create it."""
        if self.client.collection_exists(self._meta) and self.client.collection_exists(self._moves):
            return
        if not create:
            raise GalleryError(
                f"there is no gallery {self.prefix!r} at {self.address}; check the prefix, or open it for writing to "
                "create it"
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
                raise GalleryError(f"the gallery {self.prefix!r} was created by a newer fixstar. Update fixstar")
        found.sort(key=lambda fields: (fields["created"], fields["name"]))
        spaces = [VersionSpace(fields["name"], fields["width"], fields["full_width"]) for fields in found]
        return {space.name: StoredVersion(space, f["collection"], f) for space, f in zip(spaces, found, strict=True)}

    def create_version(self, space: VersionSpace, projection: Floats | None) -> None:
        """Create a version. Its point is written last: before, there is only an unused collection."""
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

    def projection(self, version: StoredVersion) -> Floats | None:
        """P [d, m] of a version."""
        parts = version.fields["parts"]
        if parts is None:
            return None
        wanted = [point_id(f"projection {i} of {version.space.name}") for i in range(parts)]
        found: dict[Any, str] = {}
        for one in wanted:  # one at a time: together they may be too large for one answer
            found |= {record.id: (record.payload or {})["part"] for record in self.retrieve(self._meta, [one], True)}
        if len(found) != parts:
            raise GalleryError(
                f"the projection of version {version.space.name!r} is damaged; restore the collection {self._meta}"
            )
        content = b"".join(base64.b64decode(found[one]) for one in wanted)
        return np.frombuffer(content, "<f4").reshape(version.space.full_width, -1).astype(np.float32)

    def set_recall(self, name: str, recall: float) -> None:
        """Store the measured recall of an index."""
        self.client.set_payload(self._meta, {"recall": recall}, points=[point_id(f"version {name}")], wait=True)

    def begin_move(self, points: Sequence[str]) -> str:
        """Note which points are about to move; returns the name of the note."""
        name = f"move {uuid.uuid4()}"
        self._note(self._moves, name, {"name": name, "points": list(points), "begun": time.time()})
        return name

    def end_move(self, name: str) -> None:
        """Remove the note of a finished move."""
        self.client.delete(self._moves, [point_id(name)], wait=True)

    def moves(self) -> list[tuple[str, list[str], float]]:
        """(name, points, start time) of unfinished moves."""
        notes = [record.payload or {} for record in self.scroll(self._moves, None, True)]
        return [(note["name"], note["points"], note["begun"]) for note in notes]

    def upsert(
        self,
        version: StoredVersion,
        points: Sequence[str],
        vectors: Floats,
        payloads: list[dict[str, Any]],
    ) -> None:
        """Write points; they are in the server's log and visible when it returns."""
        from qdrant_client import models

        batch = models.Batch(ids=list(points), vectors=vectors.tolist(), payloads=payloads)
        self.client.upsert(version.collection, batch, wait=True)

    def remove(self, version: StoredVersion, points: Sequence[str], written: Sequence[int]) -> None:
        """Remove points whose write number is one of these; newer ones stay. 0 stands for points without a number."""
        from qdrant_client import models

        same: list[Any] = [models.FieldCondition(key="written", match=models.MatchAny(any=list(written)))]
        if 0 in written:
            same.append(models.IsEmptyCondition(is_empty=models.PayloadField(key="written")))
        condition = models.Filter(must=[models.HasIdCondition(has_id=list(points)), models.Filter(should=same)])
        self.client.delete(version.collection, models.FilterSelector(filter=condition), wait=True)

    def retrieve(self, collection: str, points: Sequence[str], payload: bool | list[str], vectors: bool = False) -> Any:
        """The points of these ids that exist."""
        return self.client.retrieve(
            collection, list(points), with_payload=payload, with_vectors=vectors, consistency=self._majority
        )

    def scroll(self, collection: str, condition: models.Filter | None, payload: bool | list[str]) -> Iterator[Any]:
        """All points of a collection, page by page."""
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
        """Create a collection, or what is missing of it."""
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


def point_id(name: str) -> str:
    """The UUID of an id, or of any other name."""
    return str(uuid.uuid5(_NAMESPACE, name))


def point_payload(item: str, written: int, text: str) -> dict[str, Any]:
    """What is stored beside the vector of an item whose payload is ``text``."""
    fields: dict[str, Any] = json.loads(text)
    terms = [_term(field) for field in fields]
    terms += [_term(field, _plain_value(value)) for field, value in fields.items() if _is_comparable(value)]
    numbers = {field: _float(value) for field, value in fields.items() if _is_number(value) and _PLAIN.fullmatch(field)}
    return {"id": item, "written": written, "text": text, "terms": terms, "numbers": numbers}


def known_name(point: Any) -> str | None:
    """The id of a point's item; None if the point has lost it."""
    name = (point.payload or {}).get("id")
    return name if isinstance(name, str) else None


def item_name(point: Any, version: str) -> str:
    """The id of a point's item; raises if the point has lost it."""
    name = known_name(point)
    if name is None:
        raise lost_name(str(point.id), version)
    return name


def lost_name(point: str, version: str) -> DamagedItemError:
    """The error for a point that has lost the id of its item."""
    return DamagedItemError(point, version, "this is the id of a Qdrant point, which has lost the id of its item")


def written_as(point: Any) -> int:
    """The write number of a point; 0, older than any, if the point has lost it."""
    number: int = (point.payload or {}).get("written", 0)
    return number


def item_payload(point: Any, version: str) -> Payload:
    """The payload of a point's item; raises if it is damaged."""
    text: Any = (point.payload or {}).get("text")
    try:
        payload: Payload = json.loads(text)
    except (TypeError, ValueError) as error:
        reason = "the payload is missing" if text is None else f"the payload is damaged ({error})"
        raise DamagedItemError(known_name(point) or str(point.id), version, reason) from error
    return payload


def as_item(name: str, version: str, point: Any) -> Item:
    """A point as the item of this name; raises if it is damaged."""
    if known_name(point) is None:
        raise DamagedItemError(name, version, "its point has lost its id")
    return Item(name, version, np.array(point.vector, np.float32), item_payload(point, version))


def server_filter(where: Where | None) -> models.Filter | None:
    """A Qdrant filter that holds wherever ``where`` does."""
    if where is None:
        return None
    from qdrant_client import models

    must: list[Any] = []
    must_not: list[Any] = []
    for field, condition in where.items():
        for name, operand in (condition if isinstance(condition, Mapping) else {"eq": condition}).items():
            for wanted, one in _conditions(models, field, name, operand):
                (must if wanted else must_not).append(one)
    return models.Filter(must=must or None, must_not=must_not or None)


def _conditions(models: Any, field: str, name: str, operand: Any) -> list[tuple[bool, Any]]:
    """(whether it must hold or must not, Qdrant's condition) for one condition on one field."""

    def one_of(*terms: str) -> Any:
        return models.FieldCondition(key="terms", match=models.MatchAny(any=list(terms)))

    there = (True, one_of(_term(field)))
    if name == "exists":
        return [(operand, there[1])]
    if name in ("eq", "ne"):
        if not _is_comparable(operand):
            return [there]
        same = one_of(_term(field, _plain_value(operand)))
        return [(True, same)] if name == "eq" else [there, (False, same)]
    if name == "in":
        if not all(map(_is_comparable, operand)):
            return [there]
        return [(True, one_of(_NEVER, *(_term(field, _plain_value(one)) for one in operand)))]
    if not _is_number(operand) or not _PLAIN.fullmatch(field):
        return [there]
    # The server compares floats: a large integer may equal its neighbour, so the bound itself is let through
    side = name[0] + "t" + ("e" if name[1] == "e" or abs(operand) >= _WHOLE else "")
    return [(True, models.FieldCondition(key=f"numbers.{field}", range=models.Range(**{side: _float(operand)})))]


def _term(field: str, *value: Any) -> str:
    text = json.dumps([field, *value])
    return text if len(text) <= _LONG else hashlib.sha256(text.encode()).hexdigest()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_comparable(value: Any) -> bool:
    """Whether equal values have equal texts; objects do not, since their order is free."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_comparable, value))
    return value is None or isinstance(value, (str, bool, int, float))


def _plain_value(value: Any) -> Any:
    """1 and 1.0 are one number."""
    if isinstance(value, (list, tuple)):
        return [_plain_value(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return sys.float_info.max if value > 0 else -sys.float_info.max


def _checked_prefix(prefix: str) -> str:
    """A prefix of collection names."""
    if not _PLAIN.fullmatch(prefix):
        raise GalleryError(f"the prefix of Qdrant collections has letters, digits, _ and - only; got {prefix!r}")
    return prefix
