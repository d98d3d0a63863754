"""A gallery on a Qdrant server or cluster: one collection per version.

Qdrant has no transactions over collections, nor over requests. What holds instead:

- Everything is checked before anything is written. A write that returned was acknowledged by the server (``wait``).
- A batch is sent in requests of some megabytes. If one fails, the call raises and those before it are written;
  repeating the call is safe and completes it.
- An item that moves to another version is first written there and then removed where it was, so it is never lost.
  Every write has a number, higher than any earlier write of the item; of two copies the one with the higher number
  counts, in every answer. A removal names the number it is about, so it never removes a newer write.
- A payload is changed by one request that names the number it is about: the server changes the point only if nobody has
  written it since, and the change is read back. Else it is made again from what is there by then. If others change the
  same item in that moment, a change that asked for a revision may be refused although it was made.
- A move is noted before it begins. If the writer dies between its two steps, the next process that opens or flushes
  the gallery removes the old copy. Until then ``count`` counts both, and a search returns one of them: the newer one
  if both are near, else the one that is.
- Searches ask old versions first. So an item that moves to a newer version is found once by every search. One that
  moves back to an older version may be missed by a search that runs in that moment.

The server ranks by its own product in float32 and returns the vectors; their cosines are computed again here, as in
every gallery. While something as good as the k-th best may still be missing, or the filter has left fewer than k, more
points are requested.

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
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import DamagedItemError, GalleryError, GalleryUnavailableError, MissingExtraError
from fixstar.gallery.filters import Payload, Where, conditions, payload_test
from fixstar.gallery.ranking import Bridges, Candidate, best_hits, exact_cosines
from fixstar.gallery.store import (
    Floats,
    Gallery,
    Hit,
    IndexState,
    Item,
    SearchRequest,
    Vectors,
    VersionSpace,
    check_new_version,
    checked_vectors,
    known_version,
    measured_recall,
    replaceable,
    require_revision,
    stored_payload,
    stored_projection,
)

if TYPE_CHECKING:
    from qdrant_client import QdrantClient, models

PAGE = 1000  # points read at once
_FORMAT = 1
_PART = 2 << 20  # bytes of a projection in one point; servers refuse requests over 32 MiB
_NAMESPACE = uuid.UUID("6d1f6a0e-9a3c-5c5b-8d53-0f1b7a1c2e44")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")  # names that need no quotes in Qdrant's paths
_LONG = 100  # longer terms are stored as their hash
_WHOLE = 1 << 53  # below, every integer is a float
_NEVER = ""  # a term that no point has, for "in" of an empty list
_PAGE = 256  # points with vectors in one answer
_MOVED = 64  # items given new vectors at a time
_WRITTEN = 1 << 18  # components in one request
_ROWS = 1000  # points in one request
_SPARE = 8  # requested beyond k: for ties, and for an item that is moving
_MORE = 4
_READ = 1 << 22  # components in one answer, which is text
_QUERIES = 128
_ABANDONED = 3600.0  # seconds after which a move is no longer running
_PAUSE = 0.5  # seconds between two checks of an index
_IDLE = 4  # checks without work: the optimizer starts a moment after it is told to
_SAMPLE = 100

Places = dict[str, dict[str, int]]  # point -> version -> number of the write


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


def scrolled(client: QdrantClient, collection: str, rows: int, **options: Any) -> Iterator[list[Any]]:
    """All points of a collection, at most ``rows`` at a time; ``options`` are those of the client's ``scroll``."""
    after: Any = None
    while True:
        page, after = client.scroll(collection, limit=rows, offset=after, **options)
        yield page
        if after is None:
            return


class QdrantServer:
    """The collections with one prefix."""

    def __init__(self, client: QdrantClient, address: str, prefix: str, shards: int | None, replicas: int) -> None:
        if not _PLAIN.fullmatch(prefix):
            raise GalleryError(f"the prefix of Qdrant collections has letters, digits, _ and - only; got {prefix!r}")
        self.client, self.address, self.prefix = client, address, prefix
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
            if fields["format"] > _FORMAT:
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
            "format": _FORMAT,
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
        # one at a time: together they may be too large for one answer
        found = [record.payload["part"] for one in wanted for record in self.retrieve(self._meta, [one], True)]
        if len(found) != parts:
            raise GalleryError(
                f"the projection of version {version.space.name!r} is damaged; restore the collection {self._meta}"
            )
        return stored_projection(b"".join(map(base64.b64decode, found)), version.space.full_width)

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
        self, version: StoredVersion, points: Sequence[str], vectors: Floats, payloads: list[dict[str, Any]]
    ) -> None:
        """Write points; they are in the server's log and visible when it returns."""
        from qdrant_client import models

        batch = models.Batch(ids=list(points), vectors=vectors.tolist(), payloads=payloads)
        self.client.upsert(version.collection, batch, wait=True)

    def remove(self, version: StoredVersion, points: Sequence[str], written: Sequence[int]) -> None:
        """Remove points whose write number is one of these; newer ones stay. 0 stands for points without a number."""
        from qdrant_client import models

        selected = models.FilterSelector(filter=_still_written(points, written))
        self.client.delete(version.collection, selected, wait=True)

    def change_payload(self, version: StoredVersion, point: str, written: int, payload: dict[str, Any]) -> None:
        """Give a point a new payload, unless it was written again since it had this number."""
        from qdrant_client import models

        self.client.set_payload(
            version.collection,
            payload,
            points=_still_written([point], [written]),
            wait=True,
            ordering=models.WriteOrdering.STRONG,  # all replicas compare in the same order
        )

    def retrieve(self, collection: str, points: Sequence[str], payload: bool | list[str], vectors: bool = False) -> Any:
        """The points of these ids that exist."""
        return self.client.retrieve(
            collection, list(points), with_payload=payload, with_vectors=vectors, consistency=self._majority
        )

    def scroll(self, collection: str, condition: models.Filter | None, payload: bool | list[str]) -> Iterator[Any]:
        """All points of a collection."""
        options = {"scroll_filter": condition, "with_payload": payload, "consistency": self._majority}
        for page in scrolled(self.client, collection, PAGE, **options):
            yield from page

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

        if not self.client.collection_exists(collection):
            self.client.create_collection(
                collection,
                vectors_config={} if width is None else models.VectorParams(size=width, distance=models.Distance.DOT),
                shard_number=self._shards if width is not None else None,
                replication_factor=self._replicas,
                write_consistency_factor=self._replicas // 2 + 1,
            )
        for field, kind in indexed.items() if not self.is_engine else ():
            self.client.create_payload_index(collection, field, field_schema=models.PayloadSchemaType(kind), wait=True)


def _still_written(points: Sequence[str], written: Sequence[int]) -> models.Filter:
    """A filter for points whose write number is one of these; 0 stands for points without a number."""
    from qdrant_client import models

    same: list[Any] = [models.FieldCondition(key="written", match=models.MatchAny(any=list(written)))]
    if 0 in written:
        same.append(models.IsEmptyCondition(is_empty=models.PayloadField(key="written")))
    return models.Filter(must=[models.HasIdCondition(has_id=list(points)), models.Filter(should=same)])


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


def _is_written(point: Any, payload: dict[str, Any]) -> bool:
    """Whether a point has the number and the text that were to be written."""
    stored = point.payload or {}
    return all(stored.get(field) == payload[field] for field in ("written", "text"))


def item_payload(point: Any, version: str) -> Payload:
    """The payload of a point's item; raises if it is damaged."""
    return stored_payload(known_name(point) or str(point.id), version, (point.payload or {}).get("text"))


def as_item(name: str, version: str, point: Any) -> Item:
    """A point as the item of this name; raises if it is damaged."""
    if known_name(point) is None:
        raise DamagedItemError(name, version, "its point has lost its id")
    return Item(name, version, np.array(point.vector, np.float32), item_payload(point, version), written_as(point))


def server_filter(where: Where | None) -> models.Filter | None:
    """A Qdrant filter that holds wherever ``where`` does."""
    if where is None:
        return None
    from qdrant_client import models

    must: list[Any] = []
    must_not: list[Any] = []
    for field, name, operand in conditions(where):
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


def _candidates(
    server: QdrantServer, target: StoredVersion, queries: NDArray[np.float64], request: SearchRequest, ef: int
) -> list[Candidate]:
    """The k best points of one version for each query, and some others."""
    from qdrant_client import models

    params = None  # the client's engine warns about them
    if not server.is_engine:
        params = models.SearchParams(exact=request.exact, hnsw_ef=None if request.exact else ef)
    condition, name = server_filter(request.where), target.space.name
    test = None if request.where is None else payload_test(request.where)
    slack = 2e-6 * max(1.0, target.space.width**0.5 / 8)  # float32 rounding of a dot product, with a margin
    found: list[tuple[int, models.ScoredPoint]] = []
    pending, limit = list(range(len(queries))), request.k + _SPARE
    while pending:
        requests = [
            models.QueryRequest(
                query=queries[q].astype(np.float32).tolist(),
                limit=limit,
                filter=condition,
                params=params,
                with_vector=True,
                with_payload=["id", "written", "text"],
            )
            for q in pending
        ]
        unfinished = []
        for q, points in zip(pending, server.query(target.collection, requests), strict=True):
            passing = points if test is None else [point for point in points if test(item_payload(point, name))]
            enough = len(passing) >= request.k
            if enough and request.exact:  # and all that may tie with the k-th
                enough = points[-1].score < passing[request.k - 1].score - slack
            if len(points) == limit and not enough:
                unfinished.append(q)
            else:
                found += [(q, point) for point in passing]
        pending, limit = unfinished, limit * _MORE
    vectors = np.array([point.vector for _, point in found], np.float32).reshape(-1, target.space.width)
    query = np.array([q for q, _ in found], np.intp)
    cosines = exact_cosines(vectors, queries, query, np.arange(len(found))).tolist()
    return [
        Candidate(q, item_name(point, name), name, cosine, written_as(point), point)
        for (q, point), cosine in zip(found, cosines, strict=True)
    ]


def _finish_moves(server: QdrantServer) -> None:
    """Remove old copies of items whose move was interrupted. Running moves are not affected.

    This and the functions below may be repeated by anyone at any time: they only remove copies of which a newer one
    exists.
    """
    for name, points, begun in server.moves():
        _settle(server, server.versions(), points)
        if time.time() - begun > _ABANDONED:
            server.end_move(name)


def _places_of(server: QdrantServer, versions: dict[str, StoredVersion], points: Sequence[str]) -> Places:
    """Where these points are, oldest version first."""
    places: Places = {}
    for name, version in versions.items():
        for record in server.retrieve(version.collection, points, ["written"]):
            places.setdefault(record.id, {})[name] = written_as(record)
    return places


def _settle(server: QdrantServer, versions: dict[str, StoredVersion], points: Sequence[str]) -> Places:
    """Keep each item only where it was written last; returns where that is."""
    places = _places_of(server, versions, points)
    kept = {point: dict([max(numbers.items(), key=lambda pair: pair[1])]) for point, numbers in places.items()}
    older = {p: {name: n for name, n in numbers.items() if name not in kept[p]} for p, numbers in places.items()}
    _remove(server, versions, older)
    return kept


def _remove(server: QdrantServer, versions: dict[str, StoredVersion], places: Places) -> None:
    """Remove points from where they were seen, unless they were written again since."""
    for name, version in versions.items():
        gone = {point: numbers[name] for point, numbers in places.items() if name in numbers}
        if gone:
            server.remove(version, list(gone), list(gone.values()))


def _newest(server: QdrantServer, names: Sequence[str]) -> dict[str, tuple[str, Any]]:
    """By id: the version and the point that was written last, damaged ones included.

    A point that has lost its item's id is found too: its own id is made from it.
    """
    found: dict[str, tuple[str, Any]] = {}
    for version in server.versions().values():
        for start in range(0, len(names), _PAGE):
            asked = {point_id(name): name for name in names[start : start + _PAGE]}
            for point in server.retrieve(version.collection, list(asked), ["id", "written", "text"], vectors=True):
                name = asked[str(point.id)]
                if name not in found or written_as(found[name][1]) < written_as(point):
                    found[name] = version.space.name, point
    return found


def _listed(server: QdrantServer, versions: Iterable[StoredVersion], after: str) -> tuple[dict[str, str], list[str]]:
    """Points that have lost their item's id, by version; and all ids behind ``after``, sorted, these included."""
    lost: dict[str, str] = {}
    names: set[str] = set()
    for version in versions:
        for point in server.scroll(version.collection, None, ["id"]):
            if (name := known_name(point)) is None:
                lost[str(point.id)] = version.space.name
            else:
                names.add(name)
    return lost, sorted(name for name in names | lost.keys() if name > after)


def _set_threshold(server: QdrantServer, version: StoredVersion, kilobytes: int) -> None:
    from qdrant_client import models

    settings = models.OptimizersConfigDiff(indexing_threshold=kilobytes)
    server.client.update_collection(version.collection, optimizers_config=settings)


def _await(server: QdrantServer, version: StoredVersion) -> None:
    idle = 0
    while idle < _IDLE:
        info: Any = server.client.get_collection(version.collection)
        if info.status.value == "red":
            raise GalleryError(f"the server could not index {version.collection}: {info.optimizer_status}")
        if (info.indexed_vectors_count or 0) >= (info.points_count or 0) and info.status.value == "green":
            return
        idle = idle + 1 if info.status.value == "green" else 0
        time.sleep(_PAUSE)


class QdrantGallery(Gallery):
    """See ``Gallery``, and above what holds for batches and moves. Threads and processes may share it.

    ``server`` is http(s)://host:6333, or a client. Collections are called PREFIX_...; ``shards`` and ``replicas`` are
    those of new collections. ``ef`` is the search breadth of the index in approximate mode.
    """

    def __init__(
        self,
        server: str | QdrantClient,
        prefix: str = "fixstar",
        api_key: str | None = None,
        create: bool = True,
        read_only: bool = False,
        shards: int | None = None,
        replicas: int = 1,
        grpc_port: int | None = None,
        timeout: int = 60,
        ef: int = 128,
    ) -> None:
        address = server if isinstance(server, str) else "the given client"
        client = connect(server, api_key, grpc_port, timeout) if isinstance(server, str) else server
        self._server: QdrantServer | None = QdrantServer(client, address, prefix, shards, replicas)
        self._owned, self.read_only, self.ef = isinstance(server, str), read_only, ef
        self._address, self._last, self._lock = f"{address} ({prefix})", 0, threading.Lock()
        self._bridges = Bridges(self.projection)
        with self._asking() as opened:
            opened.prepare(create and not read_only)
            if not read_only:
                _finish_moves(opened)

    def _create_version(self, space: VersionSpace, projection: Floats | None) -> None:
        """Only one process at a time should do this."""
        with self._writing() as server:
            check_new_version(space.name, server.versions())
            server.create_version(space, projection)

    def versions(self) -> list[VersionSpace]:
        """All versions, oldest first."""
        with self._asking() as server:
            return [version.space for version in server.versions().values()]

    def projection(self, version: str) -> Floats | None:
        """P [d, m] of a version whose vectors are short forms."""
        with self._asking() as server:
            return server.projection(known_version(server.versions(), version))

    def _upsert(
        self, version: str, names: list[str], rows: Floats, texts: list[str], revision: int | None = None
    ) -> Sequence[int]:
        """Without transactions: a write by others after a look at the revision is undone."""
        numbers: list[int] = []
        with self._writing() as server:
            versions = server.versions()
            target = known_version(versions, version)
            if revision is not None:
                found = self._get(names).get(names[0])
                require_revision(names[0], revision, found and found.revision)
            step = max(1, min(_ROWS, _WRITTEN // target.space.width))
            for start in range(0, len(names), step):
                part = slice(start, start + step)
                numbers += self._write(server, versions, target, names[part], rows[part], texts[part])
        return numbers

    def _replace_vectors(
        self, version: str, items: Sequence[Item], rows: Floats, payloads: Sequence[Payload] | None
    ) -> list[str]:
        """Without transactions: a write by others between the two steps is undone. So few items are moved at a time."""
        moved: list[str] = []
        for start in range(0, len(items), _MOVED):
            part = slice(start, start + _MOVED)
            known = self._get([item.id for item in items[part]])
            same, names, texts = replaceable(items[part], known, None if payloads is None else payloads[part])
            self._upsert(version, names, rows[part][same], texts)
            moved += names
        return moved

    def _write(
        self,
        server: QdrantServer,
        versions: dict[str, StoredVersion],
        target: StoredVersion,
        names: list[str],
        rows: Floats,
        texts: list[str],
    ) -> Sequence[int]:
        points = [point_id(name) for name in names]
        places = _places_of(server, versions, points) if len(versions) > 1 else {}
        moving = [point for point, numbers in places.items() if numbers.keys() - {target.space.name}]
        move = server.begin_move(moving) if moving else None
        first = self._numbers(len(names), max((max(numbers.values()) for numbers in places.values()), default=0))
        stored = [point_payload(name, first + i, texts[i]) for i, name in enumerate(names)]
        server.upsert(target, points, rows, stored)
        if len(versions) > 1:
            _settle(server, versions, points)
        if move is not None:
            server.end_move(move)
        return range(first, first + len(names))

    def _update_payload(self, name: str, changed: Callable[[Item], str]) -> Item | None:
        """The new number is the next one, so any other write since then, which has the time, is newer and counts."""
        point = point_id(name)
        with self._writing() as server:
            while (found := _newest(server, [name]).get(name)) is not None:
                versions = server.versions()
                item = as_item(name, *found)
                text = changed(item)
                payload = point_payload(name, item.revision + 1, text)
                server.change_payload(versions[item.version], point, item.revision, payload)
                now = _newest(server, [name]).get(name)
                if now is not None and _is_written(now[1], payload):
                    return as_item(name, *now)
                _settle(server, versions, [point])  # it may have moved meanwhile
        return None

    def _numbers(self, count: int, above: int) -> int:
        """The first of ``count`` write numbers: the time, or more if needed to exceed all earlier ones."""
        with self._lock:
            first = max(time.time_ns(), self._last + 1, above + 1)
            self._last = first + count - 1
        return first

    def _delete(self, names: list[str], revision: int | None) -> int:
        points = list(dict.fromkeys(map(point_id, names)))
        removed = 0
        with self._writing() as server:
            versions = server.versions()
            for start in range(0, len(points), _ROWS):
                part = points[start : start + _ROWS]
                places = _settle(server, versions, part)
                removed += len(places)
                while places:  # again, where a payload was changed in between
                    for numbers in places.values():
                        require_revision(names[0], revision, max(numbers.values()))
                    _remove(server, versions, places)
                    places = _places_of(server, versions, list(places))
        return removed

    def _get(self, names: list[str]) -> dict[str, Item]:
        with self._asking() as server:
            found = _newest(server, list(dict.fromkeys(names)))
        return {name: as_item(name, *found[name]) for name in names if name in found}

    def _search(self, version: str, queries: Vectors, request: SearchRequest) -> list[list[Hit]]:
        with self._asking() as server:
            known = server.versions()
            source = known_version(known, version).space
            asked = known if request.versions is None else request.versions
            for name in asked:
                known_version(known, name)
            targets = [stored for name, stored in known.items() if name in asked]
            unit_queries = checked_vectors(queries, source.width, version)
            if not targets:
                return [[] for _ in unit_queries]
            widest = max(target.space.width for target in targets)
            step = max(1, min(_QUERIES, _READ // ((request.k + _SPARE) * widest)))
            hits: list[list[Hit]] = []
            for start in range(0, len(unit_queries), step):
                part = unit_queries[start : start + step]
                found: list[Candidate] = []
                for target in targets:  # oldest first: an item that moves is written before it is removed
                    carried = self._bridges.carried(part, source, target.space)
                    found += _candidates(server, target, carried, request, self.ef)
                hits += best_hits(found, len(part), request.k, lambda one: item_payload(one.source, one.version))
            return hits

    def _build_index(self, versions: list[str]) -> None:
        """Have the server index everything, and measure it.

        A server indexes a part of a collection when it has grown beyond a threshold (20 MB of vectors by default) and
        searches the rest exactly. The threshold is lowered until everything is indexed, then restored.
        """
        with self._writing() as server:
            if server.is_engine:
                return
            for name in versions:
                version = server.versions()[name]
                usual: Any = server.client.get_collection(version.collection).config.optimizer_config.indexing_threshold
                _set_threshold(server, version, 1)
                try:
                    _await(server, version)
                finally:
                    _set_threshold(server, version, 20_000 if usual is None else usual)
                sample, _ = server.client.scroll(version.collection, limit=_SAMPLE, with_vectors=True)
                queries = np.array([record.vector for record in sample], np.float32)
                server.set_recall(name, measured_recall(self, name, queries, versions=[name]) if sample else 1.0)

    def indexes(self) -> list[IndexState]:
        """The indexes that the server has built so far, with the recall that ``build_index`` measured."""
        states = []
        with self._asking() as server:
            for version in server.versions().values():
                items = server.client.get_collection(version.collection).indexed_vectors_count or 0
                if items:
                    states.append(IndexState(version.space.name, "qdrant hnsw", items, version.fields.get("recall")))
        return states

    def _iterate(self, version: str | None, after: str) -> Iterator[Item]:
        """Qdrant cannot sort by a string. So all ids are read first, without vectors, and sorted here.

        That takes about 100 bytes of memory per item, and a pass over the collection before the first item.
        """
        with self._asking() as server:
            known = server.versions()
            chosen = list(known.values()) if version is None else [known_version(known, version)]
            lost, names = _listed(server, chosen, after)
        for start in range(0, len(names), _PAGE):
            page = names[start : start + _PAGE]
            with self._asking() as server:
                found = _newest(server, [name for name in page if name not in lost])
            for name in page:  # a damaged one does not keep those before it from being read
                if name in lost:
                    raise lost_name(name, lost[name])
                if name in found and version in (None, found[name][0]):
                    yield as_item(name, *found[name])

    def count(self) -> dict[str, int]:
        """The number of items by version."""
        with self._asking() as server:
            versions = server.versions().items()
            return {name: server.client.count(stored.collection, exact=True).count for name, stored in versions}

    def flush(self) -> None:
        """Finish interrupted moves; acknowledged writes are already in the server's log."""
        with self._asking() as server:
            if not self.read_only:
                _finish_moves(server)

    def close(self) -> None:
        """Disconnect; a client that was passed in stays open."""
        server, self._server = self._server, None
        if server is not None and self._owned:
            server.client.close()

    @contextmanager
    def _asking(self) -> Iterator[QdrantServer]:
        if self._server is None:
            raise GalleryError(f"the gallery at {self._address} is closed; open it again")
        with translated(self._address):
            yield self._server

    @contextmanager
    def _writing(self) -> Iterator[QdrantServer]:
        if self.read_only:
            raise GalleryError(f"the gallery at {self._address} was opened read only; open it without read_only")
        with self._asking() as server:
            yield server
