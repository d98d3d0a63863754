"""A gallery that a Milvus server or cluster searches, over items in SQLite or PostgreSQL.

Milvus has no transactions: it cannot change an item only if no one else did, move one from a version to another at
once, or store many or none. So the items, with their vectors, payloads and revisions, are in a gallery that can, and
Milvus holds copies of vectors to search. Whatever happens to it, they can be made again.

A write is done when the gallery of the items has it. Then its vectors are sent to Milvus; if that fails, the next call
that finds the server sends them. What was sent is a number in Milvus itself: all items with revisions up to this one.
A search first compares it with the revision of the items, and sends what is missing, no matter who wrote it. It is
stored after the vectors, so a kill in between costs nothing but sending them again, and sending twice changes nothing.

A server that was killed was seen to lose vectors that it took, also some seconds after it was back, and to leave out of
a search what a query by number found. So a gallery that was opened or met a failure compares before it answers, and
later again, every minute: the number of vectors of each version, and which of the last thousand revisions are there.
Where they differ, all numbers are compared; vectors that are missing are sent again, and old ones deleted. After a
failure, the server first writes what it has to its disk, and for a minute the items' own gallery answers exact
searches.

Milvus finds candidates by the inner product, in float32. Each is read from the items: its vector gives the exact score,
its payload decides about the filter, and its revision whether it is still the one that was sent. Copies of items that
were removed or written again since are deleted from Milvus, by their number, which no other item ever gets. As with
PostgreSQL, four times as many candidates are requested while one that was left out may be among the k best; beyond what
Milvus returns at most, the items' own gallery searches.

fixstar_sent      one row per gallery: its name, whose items they are, and the revision up to which they were sent
NAME_N            the vectors of version number N: one collection per version, because a collection has one width
    number        the item's revision, the primary key
    item          its id
    vector
    fields        the strings, numbers and booleans of its payload, for filters, if ``whole``; JSON in Milvus is short

The index of a gallery is FLAT, and searches are exact, or HNSW, and only approximate ones are Milvus's.
"""

from __future__ import annotations

import json
import math
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
from fixstar.gallery.ranking import Candidate, Carrier, as_scores, best_hits, exact_products, in_float64, scored
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

_SENT = "fixstar_sent"
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
_TRUSTED = 60.0  # seconds in which a server that had everything is believed to have it still
_RECOVERS = 60.0  # seconds after a failure in which the items' own gallery answers exact searches
_INDEXING = 0.2  # seconds between two looks whether an index is finished
_INDEXED_WITHIN = 600.0
_NEWEST = 1_000  # revisions of which a look compares each

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
        return bool(value) and value.isascii() and value.isprintable() and not set(value) & set("\"'\\[]")
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
    fields = {name: value for name, value in payload.items() if isinstance(value, (str, int, float))}
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


class _Server:
    """The collections of one gallery on a Milvus server."""

    def __init__(self, address: MilvusAddress) -> None:
        require_pymilvus("a gallery that Milvus searches")
        from pymilvus import MilvusClient

        self._address = address
        self.failures = 0  # calls that were not answered
        self._ready: set[str] = set()
        self._sent_here: set[str] = set()  # collections whose last vectors were sent by this process
        with self._translated("nothing was changed"):
            self._client = MilvusClient(
                uri=address.url, token=address.token, db_name=address.database, timeout=address.timeout
            )

    def sent(self, created: str) -> int:
        """All items with revisions up to this one were sent, by any process; searches wait until Milvus has them all.

        ``created`` is when the items' gallery was. Raises if the vectors on the server are those of another one.
        """
        with self._translated("nothing was changed"):
            self._sent_here.clear()
            if not self._client.has_collection(_SENT):
                return 0
            self._client.load_collection(_SENT)
            rows = self._client.query(
                _SENT,
                filter=f'gallery == "{self._address.gallery}"',
                output_fields=["revision", "created"],
                consistency_level="Strong",
            )
        if any(row["created"] != created for row in rows):
            raise GalleryError(
                f"{self._address.shown} holds the vectors of other items than those of {self._address.items}; nothing "
                "was changed. Choose another name, gallery=NAME, and everything is sent there"
            )
        return max((int(row["revision"]) for row in rows), default=0)

    def note_sent(self, revision: int, created: str) -> None:
        """Say that all items with revisions up to this one were sent."""
        from pymilvus import DataType

        def schema(made: Any) -> None:
            made.add_field("gallery", DataType.VARCHAR, is_primary=True, max_length=256)
            made.add_field("revision", DataType.INT64)
            made.add_field("created", DataType.VARCHAR, max_length=64)
            made.add_field("vector", DataType.FLOAT_VECTOR, dim=2)  # Milvus wants one

        with self._translated("nothing was changed"):
            self._require(_SENT, schema, "FLAT")
            row = {"gallery": self._address.gallery, "revision": revision, "created": created, "vector": [1.0, 0.0]}
            self._client.upsert(_SENT, [row])

    def send(self, number: int, width: int, items: Sequence[Item]) -> None:
        """Store the vectors of items of a version, by its number; those that are there already are replaced."""
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
            name = self._vectors(number, width)
            self._client.upsert(name, rows)
            self._sent_here.add(name)

    def forget(self, number: int, width: int, numbers: Iterable[int]) -> None:
        """Delete vectors of a version."""
        with self._translated("vectors of removed items stay in Milvus, and are not found"):
            self._client.delete(self._vectors(number, width), ids=sorted(numbers))

    def count(self, number: int, width: int) -> int:
        """How many vectors of a version there are."""
        with self._translated("nothing was changed"):
            name = self._vectors(number, width)
            (row,) = self._client.query(name, filter="", output_fields=["count(*)"], consistency_level="Strong")
        return int(row["count(*)"])

    def numbers(self, number: int, width: int, after: int, last: int) -> set[int]:
        """The numbers of a version's vectors above ``after`` and up to ``last``, which is at most 16,384 more."""
        with self._translated("nothing was changed"):
            rows = self._client.query(
                self._vectors(number, width),
                filter=f"number > {after} and number <= {last}",
                output_fields=["number"],
                limit=_MOST,
                consistency_level="Strong",
            )
        return {int(row["number"]) for row in rows}

    def nearest(self, number: int, queries: Floats, limit: int, narrowed: str) -> list[_Row]:
        """The vectors of a version with the highest inner products, for each query, that were sent before this call."""
        with self._translated("nothing was changed"):
            name = self._vectors(number, queries.shape[1])
            parameters = {}
            if self._address.index == "HNSW":
                parameters["ef"] = max(limit, _EF_SEARCH)
            level = "Strong"
            if name in self._sent_here:
                level = "Session"
            answers = self._client.search(
                name,
                data=list(queries),
                filter=narrowed,
                limit=limit,
                output_fields=["item"],
                search_params={"metric_type": "IP", "params": parameters},
                consistency_level=level,
            )
            return [
                _Row(query, int(hit["id"]), hit["entity"]["item"], float(hit["distance"]))
                for query, hits in enumerate(answers)
                for hit in hits
            ]

    def write_out(self, number: int, width: int) -> None:
        """Let the server write the vectors of a version that it has only in memory to its disk."""
        with self._translated("nothing was changed"):
            self._client.flush(self._vectors(number, width))

    def wait_for_index(self, number: int, width: int) -> None:
        """Wait until the server has indexed what it wrote out of a version, but not for ever: others may write."""
        end = time.monotonic() + _INDEXED_WITHIN
        with self._translated("nothing was changed"):
            name = self._vectors(number, width)
            while time.monotonic() < end:
                if not int(self._client.describe_index(name, "vector").get("pending_index_rows", 0)):
                    return
                time.sleep(_INDEXING)

    def drop(self) -> None:
        """Remove everything that this gallery has on the server."""
        prefix = f"{self._address.gallery}_"
        with self._translated("some collections may be left"):
            if self._client.has_collection(_SENT):
                self._client.delete(_SENT, ids=[self._address.gallery])
            for name in self._client.list_collections():
                if name.startswith(prefix) and name.removeprefix(prefix).isdigit():
                    self._client.drop_collection(name)
        self._ready.clear()
        self._sent_here.clear()

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            self._client.close()

    def _vectors(self, number: int, width: int) -> str:
        """The collection of a version's vectors, made if it does not exist."""
        from pymilvus import DataType

        def schema(made: Any) -> None:
            made.add_field("number", DataType.INT64, is_primary=True)
            made.add_field("item", DataType.VARCHAR, max_length=_LONGEST_ID)
            made.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
            made.add_field("fields", DataType.JSON)
            made.add_field("whole", DataType.BOOL)

        name = f"{self._address.gallery}_{number}"
        self._require(name, schema, self._address.index)
        return name

    def _require(self, name: str, add_fields: Callable[[Any], None], index: str) -> None:
        """Create and load a collection, once, even if several processes try at the same moment."""
        from pymilvus import MilvusException

        if name in self._ready:
            return
        if not self._client.has_collection(name):
            schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
            add_fields(schema)
            indexes = self._client.prepare_index_params()
            indexes.add_index("vector", index_type=index, metric_type="IP", params=_HNSW if index == "HNSW" else {})
            try:
                self._client.create_collection(name, schema=schema, index_params=indexes, consistency_level="Strong")
            except MilvusException:
                if not self._client.has_collection(name):
                    raise
        self._client.load_collection(name)
        self._ready.add(name)

    @contextmanager
    def _translated(self, kept: str) -> Iterator[None]:
        """Translate the server's errors."""
        import grpc
        from pymilvus import MilvusException

        try:
            yield
        except (MilvusException, grpc.RpcError, grpc.FutureTimeoutError) as error:
            self.failures += 1
            self._ready.clear()  # it may have lost its collections
            self._sent_here.clear()  # and what it read again after a restart may not be everything yet
            reason = " ".join(str(getattr(error, "message", "") or error).split())
            if self._address.token:
                reason = reason.replace(self._address.token, "***")
            raise GalleryUnavailableError(
                f"Milvus did not answer for {self._address.shown} ({reason[:300]}); {kept}. Check that the server "
                "runs, then try again"
            ) from error


# --- the gallery


class _Asked(NamedTuple):
    """What the vectors of one version, by its number, are asked: queries in float64, and how many candidates."""

    number: int
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
            raise GalleryError(f"items are kept in an SQLite or a PostgreSQL gallery, got {type(items).__name__}")
        self.address = address
        self.items = items
        self.read_only = read_only
        self._server = _Server(address)
        self._carrier = Carrier(items.projection)
        self._lock = threading.RLock()
        self._seen: int | None = None  # the revision of the items when all had been sent
        self._sent: int | None = None
        self._away_until = 0.0
        self._trusted_until = 0.0
        self._recovered_at = 0.0
        self._failures: int | None = None  # of the server, when it was last found to have everything
        self._server.sent(items.created())

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
        questions = [Question(space.name, self._carrier.carried(unit_queries, source, space)) for space in spaces]
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
            raise GalleryUnavailableError(f"{self.address.shown} was opened for reading only; nothing was changed")
        self._catch_up()
        self._mend()
        if self.address.index == "FLAT":
            return
        numbers = self._numbers()
        for name in versions:
            width = self.items.space(name).width
            self._server.write_out(numbers[name], width)
            self._server.wait_for_index(numbers[name], width)

    def indexes(self) -> list[IndexState]:
        """One for each version with HNSW; none with FLAT, where search is always exact."""
        counts = self.items.count()
        if self.address.index == "FLAT":
            return []
        return [
            IndexState(version=name, kind="Milvus HNSW", items=items, recall=None) for name, items in counts.items()
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
            self._catch_up()
            self._mend()

    def close(self) -> None:
        """Close the items and the connection; both stay where they are."""
        self.items.close()
        self._server.close()

    def drop_vectors(self) -> None:
        """Remove this gallery's vectors from Milvus; the items stay, and the next search sends them again."""
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
            self._catch_up(frozenset(names))
            now = self.items._get(list(before)) if before else {}
            old: dict[str, set[int]] = {}
            for name, item in before.items():
                if name not in now or now[name].revision != item.revision:
                    old.setdefault(item.version, set()).add(item.revision)
            self._forget(old)
        except GalleryError:
            self._away_until = time.monotonic() + _PAUSE

    def _forget(self, old: Mapping[str, Iterable[int]]) -> None:
        """Delete vectors from Milvus, by version."""
        numbers = self._numbers()
        for version, gone in old.items():
            self._server.forget(numbers[version], self.items.space(version).width, gone)

    def _catch_up(self, own: frozenset[str] = frozenset()) -> None:
        """Send the items that were written since the last look; ``own`` are ids that the caller just wrote.

        Who finds items of others asks first whether they were sent by now.
        """
        revision = self.items.revision()
        with self._lock:
            if self._seen is not None and revision <= self._seen:
                return
            if self._sent is None:
                self._sent = self._first_look(revision)
            pages = self.items.written_since(self._sent)
            first = next(pages, [])
            if first and first[0].id not in own:
                self._sent = max(self._sent, self._server.sent(self.items.created()))
                pages = self.items.written_since(self._sent)
                first = next(pages, [])
            for page in chain([first] if first else [], pages):
                self._send(page)
                self._sent = page[-1].revision
            self._seen = revision

    def _first_look(self, revision: int) -> int:
        """What was sent so far. More than there is means that older items were restored: all are sent again."""
        sent = self._server.sent(self.items.created())
        if sent <= revision:
            return sent
        self._server.drop()
        return 0

    def _send(self, items: Sequence[Item]) -> None:
        """Send items in the order of their revisions, then say so."""
        self._send_vectors(items)
        self._server.note_sent(items[-1].revision, self.items.created())

    def _send_vectors(self, items: Sequence[Item]) -> None:
        spaces = {space.name: space for space in self.items.versions()}
        numbers = self._numbers()
        for version in dict.fromkeys(item.version for item in items):
            part = [item for item in items if item.version == version]
            self._server.send(numbers[version], spaces[version].width, part)

    def _mend(self) -> None:
        """Send again what Milvus took and has lost, if a look shows that there may be such vectors."""
        with self._lock:
            if self._is_trusted():
                return
            failures = self._server.failures
            sent = self._sent or 0
            failed = self._failures is not None and self._failures != failures
            if failed:
                self._settle()
            if not self._looks_whole(sent):
                for after in range(0, sent, _MOST):
                    self._mend_between(after, min(after + _MOST, sent))
                self._server.note_sent(sent, self.items.created())
            self._trust(failures)

    def _settle(self) -> None:
        """Let the server write to its disk what it has of this gallery."""
        numbers = self._numbers()
        for version, items in self.items.count().items():
            if items:
                self._server.write_out(numbers[version], self.items.space(version).width)

    def _is_trusted(self) -> bool:
        return self._server.failures == self._failures and time.monotonic() < self._trusted_until

    def _trust(self, failures: int) -> None:
        """Believe that the server has everything, for a while."""
        now = time.monotonic()
        if self._failures not in (None, failures):
            self._recovered_at = now + _RECOVERS
        self._failures = failures
        self._trusted_until = now + _TRUSTED

    def _looks_whole(self, sent: int) -> bool:
        """Whether Milvus has as many vectors as there are items, and all of the newest.

        After a failure, vectors of removed items count as a difference: they may stand for others that were lost. At
        other times they are allowed, because other processes write and remove items while this one looks.
        """
        numbers = self._numbers()
        extra = self._server.failures == self._failures
        for version, items in self.items.count().items():
            if not items:
                continue
            width = self.items.space(version).width
            there = self._server.count(numbers[version], width)
            if there != items and not (extra and there > items):
                return False
            newest = self._server.numbers(numbers[version], width, sent - _NEWEST, sent)
            if not newest >= self.items.revisions(sent - _NEWEST, sent).get(version, set()):
                return False
        return True

    def _mend_between(self, after: int, last: int) -> None:
        """Make Milvus hold the vectors of these revisions and no others. Items get new revisions, never these."""
        numbers = self._numbers()
        lost: set[int] = set()
        for version, items in self.items.count().items():
            if not items:
                continue
            width = self.items.space(version).width
            there = self._server.numbers(numbers[version], width, after, last)
            here = self.items.revisions(after, last).get(version, set())
            lost |= here - there
            if there - here:
                self._server.forget(numbers[version], width, there - here)
        if not lost:
            return
        for page in self.items.written_since(min(lost) - 1):
            self._send_vectors([item for item in page if item.revision in lost])
            if page[-1].revision >= max(lost):
                return

    def _is_current(self) -> bool:
        """Whether Milvus has all items; sends what is missing, unless this gallery is only read."""
        if not self.read_only:
            self._catch_up()
            self._mend()
            return True
        revision = self.items.revision()
        with self._lock:
            if self._seen is None or revision > self._seen:
                sent = self._server.sent(self.items.created())
                if sent > revision or next(self.items.written_since(sent), None):
                    return False
                self._sent = sent
                self._seen = revision
            if not self._is_trusted():
                failures = self._server.failures
                if not self._looks_whole(self._sent or 0):
                    return False
                self._trust(failures)
        return True

    def _answers(self, questions: Sequence[Question], queries: int, request: SearchRequest) -> list[list[Hit]] | None:
        """The best of all versions that are asked, for each query; None if Milvus cannot tell."""
        approximate = self.address.index == "HNSW"
        if approximate and request.exact:
            return None
        if not self._is_current():
            return None
        if request.exact and time.monotonic() < self._recovered_at:
            return None
        counts = self.items.count()
        numbers = self._numbers()
        if request.where is None:
            test = None
        else:
            test = payload_test(request.where)
        found: list[Candidate] = []
        moved: list[tuple[int, Item]] = []
        old: dict[str, set[int]] = {}
        for question in questions:
            if not counts.get(question.version) or not queries:
                continue
            if question.map is None:
                k = int(request.k)
            else:
                k = scored(int(request.k))
            asked = _Asked(numbers[question.version], question, k)
            here = self._nearest(asked, narrowing(request.where), test)
            if here.incomplete and not approximate:
                return None
            found += here.candidates
            moved += here.moved
            old[question.version] = here.gone
        found += _moved(moved, questions, test)
        if not self.read_only and any(old.values()):
            with suppress(GalleryUnavailableError):
                self._forget({version: gone for version, gone in old.items() if gone})
        return best_hits(found, queries=queries, request=request, payload=lambda candidate: candidate.source)

    def _nearest(self, asked: _Asked, narrowed: str, test: Callable[[Payload], bool] | None) -> _Found:
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
                rows = self._server.nearest(asked.number, own, limit, narrowed)
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
        rounding = 4e-6 * max(1.0, asked.question.own.shape[1] ** 0.5 / 8)  # of a dot product in float32
        incomplete = []
        for query in places:
            best = sorted(near[query], reverse=True)[: asked.k]
            enough = len(best) == asked.k
            certain = self.address.index == "HNSW" or (enough and floor[query] < best[-1] - rounding)
            if returned[query] >= limit and not (enough and certain):
                incomplete.append(query)
        return _Found(candidates=made, incomplete=incomplete, moved=moved, gone=gone)


def _candidates(question: Question, pairs: Sequence[tuple[int, Item]]) -> tuple[list[Candidate], Floats]:
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
    pairs: Sequence[tuple[int, Item]], questions: Sequence[Question], test: Callable[[Payload], bool] | None
) -> list[Candidate]:
    """Items that were found by an older vector, as they are now, if their version is asked."""
    made: list[Candidate] = []
    for question in questions:
        here = [pair for pair in pairs if pair[1].version == question.version]
        made += _candidates(question, [pair for pair in here if test is None or test(pair[1].payload)])[0]
    return made


def _check_lengths(ids: Iterable[str]) -> None:
    """Refuse ids that do not fit into Milvus."""
    for item in ids:
        if (size := len(item.encode())) > _LONGEST_ID:
            raise GalleryError(
                f"Milvus holds ids of at most {_LONGEST_ID:,} bytes in UTF-8, got {size:,} in {item[:40] + '...'!r}; "
                "nothing of this write was kept. Use a shorter id, such as a hash"
            )
