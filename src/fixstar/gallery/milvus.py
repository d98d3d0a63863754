"""A gallery that a Milvus server or cluster searches, over items in SQLite or PostgreSQL.

Milvus has no transactions: it cannot change an item only if no one else did, move one from a version to another at
once, or store many or none. So the items, with their vectors, payloads and revisions, are in a gallery that can, and
Milvus holds copies of vectors to search. Whatever happens to it, they can be made again.

A write is done when the gallery of the items has it. Then its vectors are sent to Milvus; if that fails, the next call
that finds the server sends them. What was sent is a number in Milvus itself: all items with revisions up to this one.
A search first compares it with the revision of the items, and sends what is missing, no matter who wrote it. It is
stored after the vectors, so a kill in between costs nothing but sending them again, and sending twice changes nothing.

A server that was killed was seen to lose vectors that it took, also some seconds after it was back, and to leave out of
a search what it counted. So no vector outlives the run of the server that took it. The server says since when it runs,
and the name of each collection has the run in which it was made. The first process that finds a new run removes the
collections of others and sends all items into new ones. The run is looked at before an answer and, if that is more than
a second ago, after it: a call may last from one run into the next.

Where more than a few items are missing, a thread sends them, and until it is done the items' own gallery answers.

Milvus finds candidates by the inner product, in float32. Each is read from the items: its vector gives the exact score,
its payload decides about the filter, and its revision whether it is still the one that was sent. Copies of items that
were removed or written again since are deleted from Milvus, by their number, which no other item ever gets. As with
PostgreSQL, four times as many candidates are requested while one that was left out may be among the k best; beyond what
Milvus returns at most, the items' own gallery searches.

NAME_sent_RUN     one row: the revision up to which items were sent. Its description says whose items they are
NAME_N_RUN        the vectors of version number N: one collection per version, because a collection has one width
    number        the item's revision, the primary key
    item          its id
    vector
    fields        the strings, numbers and booleans of its payload, for filters, if ``whole``; JSON in Milvus is short

The index of a gallery is FLAT, and searches are exact, or HNSW, and only approximate ones are Milvus's.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError, GalleryUnavailableError, MissingExtraError
from fixstar.gallery.addresses import MilvusAddress
from fixstar.gallery.filters import Payload, Where, conditions, payload_test
from fixstar.gallery.postgres import PostgresGallery, full_scores
from fixstar.gallery.ranking import (
    Candidate,
    Carrier,
    as_scores,
    best_hits,
    exact_products,
    in_float64,
    scored,
)
from fixstar.gallery.sqlite import SqliteGallery
from fixstar.gallery.store import (
    Floats,
    Gallery,
    Hit,
    IndexState,
    Item,
    Question,
    SearchRequest,
    Vectors,
    VersionSpace,
    check_width,
    checked_vectors,
)

_MORE = 16  # vectors requested beyond k
_GROWTH = 4
_MOST = 16_384  # vectors that Milvus returns for a query
_QUERIES = 64  # in one call
_ANSWERS = 1 << 17  # rows in one answer
_WIDEST = 32_768  # components of a vector in Milvus
_LONGEST_ID = 65_535  # bytes of a VARCHAR in Milvus
_FIELDS = 60_000  # bytes of JSON; Milvus takes 65,536
_VALUES = 64  # of a condition that Milvus decides
_EXACT = 2**53  # below, every integer is a float
_COMPARED = {"eq": "==", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_HNSW = {"M": 16, "efConstruction": 200}
_EF_SEARCH = 100
_PAUSE = 10.0  # seconds after a failure in which writes do not wait for Milvus
_SAME_RUN = 1.0  # seconds after a look in which no server can have ended and be there again
_AT_ONCE = 1_000  # items that a search or a write sends by itself; if there are more, a thread does
_IN_TURN = 10_000  # items that the thread sends before it lets others in
_BREAK = 0.01
_BOUNDED = (
    10.0  # seconds after which a bounded search sees everything; in Milvus gracefulTime is 5 s
)
_SEALED = 3  # the state of a part that gets no more vectors
_INDEXED_FROM = 1024  # vectors of a part; smaller ones have no index
_INDEXING = 0.2  # seconds between two looks whether an index is finished
_INDEXED_WITHIN = 1800.0  # seconds for the next part, of up to a million vectors
_COORDINATORS = (
    "rootcoord",
    "mixcoord",
)  # the part of a server by which runs are told apart, before 2.6 and since

Numbers = NDArray[np.int64]


def require_pymilvus(purpose: str) -> None:
    """Raise an error that says what to install if pymilvus is missing."""
    try:
        import pymilvus  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("pymilvus", "milvus", purpose) from error


# --- what Milvus is given of a payload


def narrowing(where: Where | None) -> str:
    """The part of a valid filter that Milvus decides; empty if there is none.

    What it excludes is excluded; what it lets through is tested again in Python. So only conditions that mean the same
    in both are here: strings in ASCII that need no escapes, and numbers that are exact as floats.

    >>> narrowing({"shop": "paris"})
    'whole == false or (fields["shop"] == "paris")'
    """
    texts = [_condition(*one) for one in conditions(where or {})]
    known = " and ".join(f"({text})" for text in texts if text)
    return f"whole == false or {known}" if known else ""


def _condition(name: str, operation: str, operand: Any) -> str:
    if not _is_plain(name):
        return ""
    if operation == "in":
        values = list(operand)
        if not values or len(values) > _VALUES or not all(map(_is_plain, values)):
            return ""
        return " or ".join(f'fields["{name}"] == {_literal(value)}' for value in values)
    if operation not in _COMPARED or not _is_plain(operand):
        return ""
    return f'fields["{name}"] {_COMPARED[operation]} {_literal(operand)}'


def _is_plain(value: Any) -> bool:
    """Whether it means the same in Python and Milvus."""
    if isinstance(value, str):
        return (
            bool(value)
            and value.isascii()
            and value.isprintable()
            and not set(value) & set("\"'\\[]")
        )
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < _EXACT and "e" not in repr(value)


def _literal(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value)


def sent_fields(payload: Payload) -> tuple[dict[str, Any], bool]:
    """What Milvus is given of a payload, and whether that is all that a filter could ask it for.

    >>> sent_fields({"shop": "paris", "price": 3, "tags": ["new"]})
    ({'shop': 'paris', 'price': 3}, True)
    >>> sent_fields({"text": "x" * 100_000})
    ({}, False)
    """
    fields = {
        name: value for name, value in payload.items() if isinstance(value, (str, int, float))
    }
    safe = all(map(_is_safe, fields)) and all(map(_is_safe, fields.values()))
    if not safe or len(json.dumps(fields, ensure_ascii=False).encode()) > _FIELDS:
        return {}, False
    return fields, True


def _is_safe(value: Any) -> bool:
    """Whether Milvus's JSON holds it as it is."""
    if isinstance(value, str):
        return "\0" not in value
    return isinstance(value, bool) or (math.isfinite(value) and abs(value) < _EXACT)


# --- the server


class _Row(NamedTuple):
    """A vector that Milvus found: the place of its query, the item's number and id, and Milvus's score."""

    query: int
    number: int
    item: str
    score: float


class _Collection(NamedTuple):
    """Where the vectors of a version are, by its number and their width: in the collection made in this run."""

    run: str
    number: int
    width: int


def run_name(metrics: str) -> str:
    """A name for the present run of a server, from what it says about its parts; empty if it does not know yet.

    It is the run of the root coordinator. On one machine all parts are one process. Parts of an earlier run are listed
    for minutes after a restart, with an error.

    >>> run_name('{"nodes_info": [{"infos": {"has_error": false, "type": "rootcoord", "id": 2, "created_time": "1"}}]}')
    're57acc10f53c'
    """
    parts = [node["infos"] for node in json.loads(metrics)["nodes_info"]]
    known = [part for part in parts if part["type"] in _COORDINATORS and not part["has_error"]]
    if not known:
        return ""
    starts = sorted({f"{part['id']} {part['created_time']}" for part in known})
    digest = hashlib.sha256("\n".join(starts).encode())
    return f"r{digest.hexdigest()[:12]}"


def collections_of(gallery: str, names: Iterable[str]) -> list[str]:
    """The collections of a gallery, of any run, among those of a server.

    >>> collections_of("shop", ["shop_1_re57acc10f53c", "shop_sent_re57acc10f53c", "shop_1_2_re57acc10f53c", "shop_1"])
    ['shop_1_re57acc10f53c', 'shop_sent_re57acc10f53c']
    """
    own = re.compile(rf"{re.escape(gallery)}_(\d+|sent)_r[0-9a-f]{{12}}")
    return [name for name in names if own.fullmatch(name)]


class _Server:
    """The collections of one gallery on a Milvus server."""

    def __init__(self, address: MilvusAddress) -> None:
        require_pymilvus("a gallery that Milvus searches")
        from pymilvus import MilvusClient

        self._address = address
        self.failures = 0  # calls that were not answered
        self._run = ""
        self._looked = -math.inf
        self._known: set[str] = set()  # collections that exist
        self._loaded: set[str] = set()  # those that can be searched
        self._sent_here: set[str] = (
            set()
        )  # collections whose last vectors were sent by this process
        self._waited: dict[
            str, float
        ] = {}  # when a search had waited for what others sent to a collection
        with self._translated("nothing was changed"):
            self._client = MilvusClient(
                uri=address.url,
                token=address.token,
                db_name=address.database,
                timeout=address.timeout,
            )

    def run(self) -> str:
        """The server's run, as of a second ago at most. After a call that failed, the server is asked again."""
        if time.monotonic() < self._looked + _SAME_RUN:
            return self._run
        return self._look()

    def _look(self) -> str:
        """Ask for the server's run."""
        from pymilvus.decorators import retry_on_rpc_failure
        from pymilvus.grpc_gen import milvus_pb2

        @retry_on_rpc_failure()  # type: ignore[untyped-decorator]
        def get_metrics(handler: Any, timeout: float) -> Any:
            return handler._stub.GetMetrics(request, timeout=timeout)

        request = milvus_pb2.GetMetricsRequest(request=json.dumps({"metric_type": "system_info"}))
        start = time.monotonic()
        with self._translated("nothing was changed"):
            answer = get_metrics(self._client._get_connection(), timeout=self._address.timeout)
        run = run_name(answer.response) if answer.response else ""
        if not run:
            reason = answer.status.reason or "its root coordinator did not answer"
            raise GalleryUnavailableError(
                f"the Milvus server of {self._address.shown} does not say since when it runs ({reason[:300]}); nothing "
                "was changed. If it is starting, try again; else let this user read the server's metrics"
            )
        self._run = run
        self._looked = start
        return run

    def check_owner(self, created: str) -> None:
        """Raise if the vectors on the server are those of other items; ``created`` is when the items' gallery was."""
        with self._translated("nothing was changed"):
            noted = [name for name in self._own() if name.startswith(self._sent_name(""))]
            owners = {self._client.describe_collection(name)["description"] for name in noted}
        if owners - {created}:
            raise GalleryError(
                f"{self._address.shown} holds the vectors of other items than those of {self._address.items}; nothing "
                "was changed. Choose another name, gallery=NAME, and everything is sent there"
            )

    def sent(self, run: str) -> int:
        """All items with revisions up to this one were sent, by any process; a search sees all of them."""
        name = self._sent_name(run)
        with self._translated("nothing was changed"):
            self._sent_here.clear()
            self._waited.clear()
            if not self._exists(name):
                return 0
            self._load(name)
            rows = self._client.query(
                name, filter="number == 0", output_fields=["revision"], consistency_level="Strong"
            )
        return max((int(row["revision"]) for row in rows), default=0)

    def note_sent(self, run: str, revision: int, created: str) -> None:
        """Say that all items with revisions up to this one were sent, and whose they are."""
        from pymilvus import DataType

        def schema(made: Any) -> None:
            made.add_field("number", DataType.INT64, is_primary=True)
            made.add_field("revision", DataType.INT64)
            made.add_field("vector", DataType.FLOAT_VECTOR, dim=2)  # Milvus wants one

        name = self._sent_name(run)
        with self._translated("nothing was changed"):
            self._require(name, schema, description=created)
            self._client.upsert(name, [{"number": 0, "revision": revision, "vector": [1.0, 0.0]}])

    def send(self, collection: _Collection, items: Sequence[Item]) -> None:
        """Store the vectors of items of a version; those that are there already are replaced."""
        rows = []
        for item in items:
            fields, whole = sent_fields(item.payload)
            rows.append(
                {
                    "number": item.revision,
                    "item": item.id,
                    "vector": np.asarray(item.vector, np.float32),
                    "fields": fields,
                    "whole": whole,
                }
            )
        with self._translated("the items are stored, and are sent again by the next call"):
            name = self._made(collection)
            self._client.upsert(name, rows)
            self._sent_here.add(name)

    def forget(self, collection: _Collection, numbers: Iterable[int]) -> None:
        """Delete vectors of a version."""
        with self._translated("vectors of removed items stay in Milvus, and are not found"):
            name = self._name(collection)
            if self._exists(name):
                self._client.delete(name, ids=sorted(numbers))

    def holds(self, collection: _Collection) -> bool:
        """Whether there is the collection of a version; it can then be searched."""
        name = self._name(collection)
        with self._translated("nothing was changed"):
            if not self._exists(name):
                return False
            self._load(name)
        return True

    def nearest(
        self, collection: _Collection, queries: Floats, limit: int, narrowed: str
    ) -> list[_Row]:
        """The vectors of a version with the highest inner products, for each query, that were sent before this call."""
        name = self._name(collection)
        parameters = {}
        if self._address.index == "HNSW":
            parameters["ef"] = max(limit, _EF_SEARCH)
        level = self._consistency(name)
        with self._translated("nothing was changed"):
            answers = self._client.search(
                name,
                data=list(queries),
                filter=narrowed,
                limit=limit,
                output_fields=["item"],
                search_params={"metric_type": "IP", "params": parameters},
                consistency_level=level,
            )
            if level == "Strong":
                self._waited.setdefault(name, time.monotonic())
            return [
                _Row(query, int(hit["id"]), hit["entity"]["item"], float(hit["distance"]))
                for query, hits in enumerate(answers)
                for hit in hits
            ]

    def _consistency(self, name: str) -> str:
        """The weakest level of Milvus at which a search of a collection sees what was sent before it.

        A strong search waits for the server's next time tick, which takes up to 0.2 s.
        """
        if name in self._sent_here:
            return "Session"
        waited = self._waited.get(name)
        if waited is not None and time.monotonic() > waited + _BOUNDED:
            return "Bounded"
        return "Strong"

    def write_out(self, collection: _Collection) -> None:
        """Let the server write the vectors of a version that it has only in memory to its disk."""
        with self._translated("nothing was changed"):
            self._client.flush(self._made(collection))

    def wait_for_index(self, collection: _Collection) -> None:
        """Wait until searches use the index for all that was written out of a version; raise if that takes long.

        The server begins to use the index of a part some ten seconds after it has built it. Until then it searches that
        part by a makeshift index, which misses one in ten of the nearest.
        """
        name = self._name(collection)
        with self._translated("nothing was changed"):
            self._load(name)
        least = math.inf
        end = 0.0
        while left := self._not_indexed(name):
            if left < least:
                least = left
                end = time.monotonic() + _INDEXED_WITHIN
            elif time.monotonic() > end:
                raise GalleryUnavailableError(
                    f"Milvus has no index in use for {left:,} vectors of {self._address.shown} yet, and took up none "
                    f"in the last {_INDEXED_WITHIN / 60:.0f} minutes; nothing is lost, and they are searched without "
                    "it. Build the index again to wait for longer, or give the server more cores"
                )
            time.sleep(_INDEXING)

    def _not_indexed(self, name: str) -> int:
        """How many of the vectors that the server wrote out of a collection are not searched by an index.

        Those that it calls pending are others: for a long time it merges parts, and indexes them again. Small parts
        never get an index; they are searched exactly.
        """
        with self._translated("nothing was changed"):
            told = self._client.describe_index(name, "vector")
            parts = self._client.list_loaded_segments(name)
        searched = {
            part.segment_id: int(part.num_rows)
            for part in parts
            if part.state == _SEALED and (part.index_name or part.num_rows < _INDEXED_FROM)
        }
        ready = min(int(told.get("indexed_rows", 0)), sum(searched.values()))
        return max(0, int(told.get("total_rows", 0)) - ready)

    def remove_others(self, run: str) -> None:
        """Remove the collections of this gallery that other runs left, if the server still is in this one.

        The look comes after the list, so a list from here on has no collections of a later run.
        """
        with self._translated("some collections may be left"):
            old = [name for name in self._own() if not name.endswith(run)]
            if old and self._look() == run:
                self._remove(old)

    def drop(self) -> None:
        """Remove everything that this gallery has on the server."""
        with self._translated("some collections may be left"):
            self._remove(self._own())

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            self._client.close()

    def _own(self) -> list[str]:
        return collections_of(self._address.gallery, self._client.list_collections())

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._client.drop_collection(name)
        self._known.clear()
        self._loaded.clear()
        self._sent_here.clear()
        self._waited.clear()

    def _sent_name(self, run: str) -> str:
        return f"{self._address.gallery}_sent_{run}"

    def _name(self, collection: _Collection) -> str:
        return f"{self._address.gallery}_{collection.number}_{collection.run}"

    def _made(self, collection: _Collection) -> str:
        """The name of the collection of a version's vectors, which is made if it does not exist."""
        from pymilvus import DataType

        def schema(made: Any) -> None:
            made.add_field("number", DataType.INT64, is_primary=True)
            made.add_field("item", DataType.VARCHAR, max_length=_LONGEST_ID)
            made.add_field("vector", DataType.FLOAT_VECTOR, dim=collection.width)
            made.add_field("fields", DataType.JSON)
            made.add_field("whole", DataType.BOOL)

        name = self._name(collection)
        self._require(name, schema)
        return name

    def _exists(self, name: str) -> bool:
        """Whether there is such a collection."""
        if name not in self._known:
            if not self._client.has_collection(name):
                return False
            self._known.add(name)
        return True

    def _load(self, name: str) -> None:
        """Wait until a collection can be searched."""
        from pymilvus import MilvusException

        if name in self._loaded:
            return
        try:
            self._client.load_collection(name)
        except MilvusException:
            self._add_index(name)  # who created it has not done that yet, or ended before it could
            self._client.load_collection(name)
        self._loaded.add(name)

    def _add_index(self, name: str) -> None:
        """Say how a collection is indexed; saying it again changes nothing."""
        kind = "FLAT" if name.startswith(self._sent_name("")) else self._address.index
        indexes = self._client.prepare_index_params()
        indexes.add_index(
            "vector", index_type=kind, metric_type="IP", params=_HNSW if kind == "HNSW" else {}
        )
        self._client.create_index(name, indexes, sync=False)

    def _require(self, name: str, add_fields: Callable[[Any], None], description: str = "") -> None:
        """Create a collection, once, even if several processes try at the same moment.

        Milvus takes vectors at once. Loading the collection takes it two seconds, for which only a search waits.
        """
        from pymilvus import MilvusException

        if self._exists(name):
            return
        schema = self._client.create_schema(
            auto_id=False, enable_dynamic_field=False, description=description
        )
        add_fields(schema)
        try:
            self._client.create_collection(name, schema=schema, consistency_level="Strong")
        except MilvusException:
            if not self._client.has_collection(name):
                raise
        self._add_index(name)
        self._client.load_collection(name, _async=True)
        self._known.add(name)

    @contextmanager
    def _translated(self, kept: str) -> Iterator[None]:
        """Translate the server's errors."""
        import grpc
        from pymilvus import MilvusException

        try:
            yield
        except (MilvusException, grpc.RpcError, grpc.FutureTimeoutError) as error:
            self.failures += 1
            self._looked = -math.inf
            self._known.clear()  # it may have lost its collections
            self._loaded.clear()
            self._sent_here.clear()
            self._waited.clear()
            reason = " ".join(str(getattr(error, "message", "") or error).split())
            if self._address.token:
                reason = reason.replace(self._address.token, "***")
            raise GalleryUnavailableError(
                f"Milvus did not answer for {self._address.shown} ({reason[:300]}); {kept}. Check that the server "
                "runs, then try again"
            ) from error


# --- the gallery


class _Asked(NamedTuple):
    """What the vectors of one version are asked: queries in float64, and how many candidates."""

    collection: _Collection
    question: Question
    k: int


class _Found(NamedTuple):
    """The candidates of some queries, the queries that may have better ones, and what turned out to be old.

    ``moved`` are (query, item) that were found by an older vector. ``gone`` are numbers that no item has any more.
    """

    candidates: list[Candidate]
    incomplete: list[int]
    moved: list[tuple[int, Item]]
    gone: set[int]


class MilvusGallery(Gallery):
    """See ``Gallery``. Threads may share one; it closes ``items`` when it is closed."""

    def __init__(self, address: MilvusAddress, items: Gallery, read_only: bool = False) -> None:
        if not isinstance(items, (SqliteGallery, PostgresGallery)):
            raise GalleryError(
                f"items are kept in an SQLite or a PostgreSQL gallery, got {type(items).__name__}"
            )
        self.address = address
        self.items = items
        self.read_only = read_only
        self._server = _Server(address)
        self._carrier = Carrier(items.projection)
        self._lock = threading.RLock()
        self._run = ""
        self._failures = 0  # of the server, when what follows was known
        self._seen: int | None = None  # the revision of the items when all had been sent
        self._sent: int | None = None
        self._sender: threading.Thread | None = None
        self._closing = threading.Event()
        self._away_until = 0.0
        self._server.check_owner(items.created())

    def _create_version(self, space: VersionSpace, projection: Floats | None) -> None:
        if space.width > _WIDEST:
            raise GalleryError(
                f"Milvus holds vectors of at most {_WIDEST:,} components, got {space.width:,}; store short forms (pass "
                "the projection), or use an SQLite gallery"
            )
        self.items._create_version(space, projection)

    def versions(self) -> list[VersionSpace]:
        """All versions, oldest first."""
        return self.items.versions()

    def space(self, version: str) -> VersionSpace:
        """One version, or an error that names those there are."""
        return self.items.space(version)

    def projection(self, version: str) -> Floats | None:
        """P [d, m] of a version whose vectors are short forms."""
        return self.items.projection(version)

    def _upsert(
        self, version: str, names: list[str], rows: Floats, texts: list[str], revision: int | None
    ) -> Sequence[int]:
        _check_lengths(names)
        with self._replacing(names):
            return self.items._upsert(version, names, rows, texts, revision)

    def _replace_vectors(
        self, version: str, items: Sequence[Item], rows: Floats, payloads: Sequence[Payload] | None
    ) -> list[str]:
        with self._replacing([item.id for item in items]):
            return self.items._replace_vectors(version, items, rows, payloads)

    def _update_payload(self, name: str, changed: Callable[[Item], str]) -> Item | None:
        with self._replacing([name]):
            return self.items._update_payload(name, changed)

    def _delete(self, names: list[str], revision: int | None) -> int:
        with self._replacing(names):
            return self.items._delete(names, revision)

    def _get(self, names: list[str]) -> dict[str, Item]:
        return self.items._get(names)

    def _search(self, version: str, queries: Vectors, request: SearchRequest) -> list[list[Hit]]:
        source = self.items.space(version)
        unit_queries = checked_vectors(queries, source.width, version)
        spaces = self.items.versions()
        if request.versions is not None:
            spaces = [self.items.space(name) for name in dict.fromkeys(request.versions)]
        questions = [
            Question(space.name, self._carrier.carried(unit_queries, source, space))
            for space in spaces
        ]
        hits = self._answers(questions, len(unit_queries), request)
        return self.items._search(version, queries, request) if hits is None else hits

    def _ask(self, questions: list[Question], request: SearchRequest) -> list[list[Hit]]:
        if request.versions is None:
            wanted = None
        else:
            wanted = {self.items.space(name).name for name in request.versions}
        chosen = []
        for question in questions:
            check_width(question, self.items.space(question.version))
            if wanted is None or question.version in wanted:
                chosen.append(in_float64(question))
        hits = self._answers(chosen, len(questions[0].own), request)
        return self.items._ask(questions, request) if hits is None else hits

    def _build_index(self, versions: list[str]) -> None:
        """Send what is missing; with HNSW, let the server index what it has not indexed yet. FLAT needs no index."""
        if self.read_only:
            raise GalleryUnavailableError(
                f"{self.address.shown} was opened for reading only; nothing was changed"
            )
        run = self._send_all()
        if self.address.index == "FLAT":
            return
        for name in versions:
            collection = self._collection(run, name)
            self._server.write_out(collection)
            self._server.wait_for_index(collection)

    def indexes(self) -> list[IndexState]:
        """One for each version with HNSW; none with FLAT, where search is always exact."""
        counts = self.items.count()
        if self.address.index == "FLAT":
            return []
        return [
            IndexState(version=name, kind="Milvus HNSW", items=items, recall=None)
            for name, items in counts.items()
        ]

    def _iterate(self, version: str | None, after: str) -> Iterator[Item]:
        return self.items._iterate(version, after)

    def count(self) -> dict[str, int]:
        """The number of items by version."""
        return self.items.count()

    def revision(self) -> int:
        """The revision of the items."""
        return self.items.revision()

    def damage(self) -> list[str]:
        """What is wrong with the items' own gallery."""
        return self.items.damage()

    def flush(self) -> None:
        """Send what is missing; a write that returned is stored without it."""
        self.items.flush()
        if not self.read_only:
            self._send_all()

    def close(self) -> None:
        """Close the items and the connection; both stay where they are."""
        self._closing.set()
        if self._sender is not None:
            self._sender.join()
        self.items.close()
        self._server.close()

    def drop_vectors(self) -> None:
        """Remove this gallery's vectors from Milvus; the items stay, and the next search sends them again.

        No other process may use the gallery meanwhile: it would take what is sent again for everything.
        """
        with self._lock:
            self._seen = None
            self._sent = None
            self._server.drop()

    def _numbers(self) -> dict[str, int]:
        """The number of each version; versions are never removed."""
        return {space.name: number for number, space in enumerate(self.items.versions(), start=1)}

    @contextmanager
    def _replacing(self, names: list[str]) -> Iterator[None]:
        """Write items, then send them. The write is done when the items' gallery did it, with or without Milvus.

        What it replaced is deleted from Milvus. If that fails, searches find these vectors, see that they are old and
        delete them.
        """
        before = self.items._get(names) if names else {}
        yield
        if time.monotonic() < self._away_until:
            return
        try:
            run = self._catch_up(_AT_ONCE + len(names), frozenset(names))
            if run is None:
                return
            now = self.items._get(list(before)) if before else {}
            old: dict[str, set[int]] = {}
            for name, item in before.items():
                if name not in now or now[name].revision != item.revision:
                    old.setdefault(item.version, set()).add(item.revision)
            self._forget(run, old)
        except GalleryError:
            self._away_until = time.monotonic() + _PAUSE

    def _forget(self, run: str, old: Mapping[str, Iterable[int]]) -> None:
        """Delete vectors from Milvus, by version."""
        for version, gone in old.items():
            self._server.forget(self._collection(run, version), gone)

    def _collection(self, run: str, version: str) -> _Collection:
        return _Collection(run, self._numbers()[version], self.items.space(version).width)

    def _current_run(self) -> str:
        """The server's run. What was known of an earlier one is forgotten, and its collections are removed.

        After a failure, what was sent is read again: others may have begun again.
        """
        run = self._server.run()
        failures = self._server.failures
        if run != self._run:
            self._server.check_owner(self.items.created())
            if not self.read_only:
                self._server.remove_others(run)
        if (run, failures) != (self._run, self._failures):
            self._seen = None  # first: ``_sent_by_now`` looks without the lock
            self._sent = None
            self._run = run
            self._failures = failures
        return run

    def _sent_by_now(self, revision: int) -> str | None:
        """The server's run if it is known to have all items up to a revision. Waits for no thread that sends others."""
        run = self._server.run()
        if (run, self._server.failures) != (self._run, self._failures):
            return None
        seen = self._seen
        if seen is None or seen < revision:
            return None
        return run

    def _catch_up(self, most: float, own: frozenset[str] = frozenset()) -> str | None:
        """Send the items that were written since the last look; ``own`` are ids that the caller just wrote.

        Returns the run of the server that has all of them. None if there are more than ``most``: a thread sends the
        rest. Who finds items of others asks first whether they were sent by now.
        """
        if self._is_sending():
            return None
        run = self._send_some(most, own)
        if run is None:
            self._send_in_background()
        return run

    def _send_some(self, most: float, own: frozenset[str] = frozenset()) -> str | None:
        """Send items as ``_catch_up`` does; None if there were more than ``most``."""
        revision = self.items.revision()
        known = self._sent_by_now(revision)
        if known is not None:
            return known
        with self._lock:
            run = self._current_run()
            if self._seen is not None and revision <= self._seen:
                return run
            if self._sent is None:
                self._sent = self._first_look(run, revision)
            pages = self.items.written_since(self._sent)
            first = next(pages, [])
            if first and first[0].id not in own:
                self._sent = max(self._sent, self._server.sent(run))
                pages = self.items.written_since(self._sent)
                first = next(pages, [])
            count = 0
            for page in chain([first] if first else [], pages):
                if count >= most or self._closing.is_set():
                    return None
                self._send(run, page)
                self._sent = page[-1].revision
                count += len(page)
            self._seen = revision
            return run

    def _send_all(self) -> str:
        """Send everything that is missing, and wait for it."""
        while True:
            if self._sender is not None:
                self._sender.join()
            run = self._catch_up(math.inf)
            if run is not None:
                return run

    def _is_sending(self) -> bool:
        return self._sender is not None and self._sender.is_alive()

    def _send_in_background(self) -> None:
        """Start the thread that sends, if there is none."""
        with self._lock:
            if self._is_sending() or self._closing.is_set():
                return
            self._sender = threading.Thread(target=self._keep_sending, daemon=True)
            self._sender.start()

    def _keep_sending(self) -> None:
        with suppress(GalleryError):  # the next call tries again, and says what is wrong
            while not self._closing.wait(_BREAK):
                if self._send_some(_IN_TURN) is not None:
                    return

    def _first_look(self, run: str, revision: int) -> int:
        """What was sent so far. More than there is means that older items were restored: all are sent again."""
        sent = self._server.sent(run)
        if sent <= revision:
            return sent
        self._server.drop()
        return 0

    def _send(self, run: str, items: Sequence[Item]) -> None:
        """Send items in the order of their revisions, then say so."""
        for version in dict.fromkeys(item.version for item in items):
            part = [item for item in items if item.version == version]
            self._server.send(self._collection(run, version), part)
        self._server.note_sent(run, items[-1].revision, self.items.created())

    def _start_again(self, run: str) -> None:
        """Send all items once more: somebody removed a collection."""
        with self._lock:
            if run == self._run:
                self._server.note_sent(run, 0, self.items.created())
                self._sent = 0
                self._seen = None

    def _complete_run(self) -> str | None:
        """The server's run, if its collections have all items; sends what is missing, unless this is only read."""
        if not self.read_only:
            return self._catch_up(_AT_ONCE)
        revision = self.items.revision()
        with self._lock:
            run = self._current_run()
            if self._seen is None or revision > self._seen:
                sent = self._server.sent(run)
                if sent > revision or next(self.items.written_since(sent), None):
                    return None
                self._seen = revision
        return run

    def _answers(
        self, questions: Sequence[Question], queries: int, request: SearchRequest
    ) -> list[list[Hit]] | None:
        """The best of all versions that are asked, for each query; None if Milvus cannot tell.

        An answer counts only if the run in which the server had all vectors is still the same.
        """
        if self.address.index == "HNSW" and request.exact:
            return None
        counts = self.items.count()
        run = self._complete_run()
        if run is None:
            return None
        filled = [question for question in questions if counts.get(question.version) and queries]
        try:
            hits = self._answers_of(run, filled, queries, request)
        except GalleryUnavailableError:
            if self._server.run() == run:
                raise
            return None
        if self._server.run() != run:
            return None
        return hits

    def _answers_of(
        self, run: str, questions: Sequence[Question], queries: int, request: SearchRequest
    ) -> list[list[Hit]] | None:
        """The same from the collections of a run."""
        approximate = self.address.index == "HNSW"
        if request.where is None:
            test = None
        else:
            test = payload_test(request.where)
        found: list[Candidate] = []
        moved: list[tuple[int, Item]] = []
        old: dict[str, set[int]] = {}
        for question in questions:
            collection = self._collection(run, question.version)
            if not self._server.holds(collection):
                if not self.read_only:
                    self._start_again(run)
                return None
            if question.map is None:
                k = int(request.k)
            else:
                k = scored(int(request.k))
            here = self._nearest(_Asked(collection, question, k), narrowing(request.where), test)
            if here.incomplete and not approximate:
                return None
            found += here.candidates
            moved += here.moved
            old[question.version] = here.gone
        found += _moved(moved, questions, test)
        if not self.read_only and any(old.values()):
            with suppress(GalleryUnavailableError):
                self._forget(run, {version: gone for version, gone in old.items() if gone})
        return best_hits(
            found, queries=queries, request=request, payload=lambda candidate: candidate.source
        )

    def _nearest(
        self, asked: _Asked, narrowed: str, test: Callable[[Payload], bool] | None
    ) -> _Found:
        """The k nearest of each query among the vectors of one version, and some others."""
        limit = min(_MOST, asked.k + _MORE)
        pending = list(range(len(asked.question.own)))
        total = _Found(candidates=[], incomplete=[], moved=[], gone=set())
        while pending:
            block = max(1, min(_QUERIES, _ANSWERS // limit))
            incomplete: list[int] = []
            for start in range(0, len(pending), block):
                places = pending[start : start + block]
                own = asked.question.own[places].astype(np.float32)
                rows = self._server.nearest(asked.collection, own, limit, narrowed)
                here = self._judged(asked, places, rows, limit, test)
                total.candidates.extend(here.candidates)
                total.moved.extend(here.moved)
                total.gone.update(here.gone)
                incomplete += here.incomplete
            pending = incomplete
            if limit == _MOST:
                break
            limit = min(_MOST, limit * _GROWTH)
        return total._replace(incomplete=pending)

    def _judged(
        self,
        asked: _Asked,
        places: Sequence[int],
        rows: Sequence[_Row],
        limit: int,
        test: Callable[[Payload], bool] | None,
    ) -> _Found:
        """What Milvus found, scored by what the items are now."""
        now = self.items._get(list({row.item for row in rows}))
        gone: set[int] = set()
        moved: list[tuple[int, Item]] = []
        kept: list[tuple[int, Item]] = []
        returned = dict.fromkeys(places, 0)
        floor = dict.fromkeys(places, math.inf)  # the server's lowest score
        for row in rows:
            query = places[row.query]
            returned[query] += 1
            floor[query] = min(floor[query], row.score)
            item = now.get(row.item)
            if item is None or item.revision != row.number:
                gone.add(row.number)
                if item is not None:
                    moved.append((query, item))
            elif test is None or test(item.payload):
                kept.append((query, item))
        made, cosines = _candidates(asked.question, kept)
        near: dict[int, list[float]] = {place: [] for place in places}
        for (query, _), cosine in zip(kept, cosines.tolist(), strict=True):
            near[query].append(cosine)
        rounding = 4e-6 * max(
            1.0, asked.question.own.shape[1] ** 0.5 / 8
        )  # of a dot product in float32
        incomplete = []
        for query in places:
            best = sorted(near[query], reverse=True)[: asked.k]
            enough = len(best) == asked.k
            certain = self.address.index == "HNSW" or (
                enough and floor[query] < best[-1] - rounding
            )
            if returned[query] >= limit and not (enough and certain):
                incomplete.append(query)
        return _Found(candidates=made, incomplete=incomplete, moved=moved, gone=gone)


def _candidates(
    question: Question, pairs: Sequence[tuple[int, Item]]
) -> tuple[list[Candidate], Floats]:
    """Items with their scores, each for one of a question's queries, and their cosines with its own queries."""
    if not pairs:
        return [], np.empty(0, np.float32)
    query = np.array([place for place, _ in pairs], np.intp)
    vectors = np.stack([item.vector for _, item in pairs])
    cosines = as_scores(exact_products(vectors, question.own, query))
    scores = cosines
    if question.map is not None:
        numbers: Numbers = np.array([item.revision for _, item in pairs], np.int64)
        scores = full_scores(question, vectors=vectors, query=query, number=numbers)
    ranks = question.slope * scores.astype(np.float64) + question.offset
    columns = zip(pairs, scores.tolist(), ranks.tolist(), strict=True)
    made = [
        Candidate(place, item.id, item.version, score, rank, item.revision, item.payload)
        for (place, item), score, rank in columns
    ]
    return made, cosines


def _moved(
    pairs: Sequence[tuple[int, Item]],
    questions: Sequence[Question],
    test: Callable[[Payload], bool] | None,
) -> list[Candidate]:
    """Items that were found by an older vector, as they are now, if their version is asked."""
    made: list[Candidate] = []
    for question in questions:
        here = [pair for pair in pairs if pair[1].version == question.version]
        made += _candidates(
            question, [pair for pair in here if test is None or test(pair[1].payload)]
        )[0]
    return made


def _check_lengths(ids: Iterable[str]) -> None:
    """Refuse ids that do not fit into Milvus."""
    for item in ids:
        if (size := len(item.encode())) > _LONGEST_ID:
            raise GalleryError(
                f"Milvus holds ids of at most {_LONGEST_ID:,} bytes in UTF-8, got {size:,} in {item[:40] + '...'!r}; "
                "nothing of this write was kept. Use a shorter id, such as a hash"
            )
