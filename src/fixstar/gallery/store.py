"""The interface and the argument checks of all galleries, independent of how they store vectors.

``Gallery`` validates arguments before anything is stored or searched. A backend implements the methods that begin with
an underscore and gets valid arrays, ids and JSON texts.
"""

from __future__ import annotations

import json
import math
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Self, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import (
    DamagedItemError,
    GalleryError,
    InputError,
    ItemChangedError,
    UnknownItemError,
    plural,
)
from fixstar.gallery.filters import Payload, Where, filter_key, payload_test

Vectors = NDArray[np.floating[Any]]
Floats = NDArray[np.float32]
Known = TypeVar("Known")

_LENGTH_TOLERANCE = 1e-3  # enough for half precision; refuses features that were not normalised
_ROUNDING = 5e-7  # vectors this close to length 1 are stored unchanged, so copies are bit-identical
_LISTED = 1000  # maximum number of damaged items to name; the rest are only counted
_NAME_MARKS = (
    "._-+:@"  # allowed in version names beside letters and digits: they need no quotes in a shell
)


class SearchOptions(TypedDict, total=False):
    """The fields of ``SearchRequest`` as keyword arguments of a search."""

    k: int
    where: Where | None
    exact: bool
    calibrate: bool
    versions: Sequence[str] | None
    min_score: float | None


@dataclass(frozen=True)
class SearchRequest:
    """What a search asks for.

    k          number of hits per query
    where      filter by payload: see ``filters``
    exact      False allows an approximate index, if there is one: faster, but may miss a hit
    calibrate  rank the vectors of several versions by probability if the deployed version's check allows it;
               a gallery alone ranks by cosine
    versions   search only vectors of these versions
    min_score  leave out hits with a lower score

    >>> SearchRequest.of(SearchRequest(k=3), exact=False)
    SearchRequest(k=3, where=None, exact=False, calibrate=True, versions=None, min_score=None)
    """

    k: int = 10
    where: Where | None = None
    exact: bool = True
    calibrate: bool = True
    versions: Sequence[str] | None = None
    min_score: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, (int, np.integer)) or self.k < 1:
            raise GalleryError(f"k is the number of hits per query, at least 1; got {self.k!r}")
        if self.where is not None:
            payload_test(self.where)
            filter_key(self.where)
        if self.min_score is not None and not -1 <= self.min_score <= 1:
            raise GalleryError(f"min_score must be a score from -1 to 1; got {self.min_score!r}")

    @classmethod
    def of(cls, request: SearchRequest | None, **options: Unpack[SearchOptions]) -> SearchRequest:
        """A request with some options replaced."""
        if request is None:
            return cls(**options)
        if not options:
            return request
        return replace(request, **options)


class Forward(NamedTuple):
    """A map of stored unit vectors to unit vectors of ``width`` components; equal keys mean equal maps."""

    key: str
    width: int
    apply: Callable[[Floats], Floats]

    def __call__(self, vectors: Floats) -> Floats:
        """Map vectors [n, s] to [n, width]."""
        made = np.asarray(self.apply(vectors))
        if made.shape != (len(vectors), self.width) or made.dtype.kind != "f":
            raise GalleryError(
                f"the forward map {self.key!r} made {made.dtype} {made.shape} of {len(vectors):,} vectors; the new "
                f"queries need real numbers [{len(vectors)}, {self.width}]"
            )
        lengths = np.sqrt(np.einsum("ij,ij->i", made, made, dtype=np.float64))
        if not (np.abs(lengths - 1) < _LENGTH_TOLERANCE).all():
            raise GalleryError(
                f"the forward map {self.key!r} made vectors that are not of length 1; it must normalise them"
            )
        return made.astype(np.float32, copy=False)


@dataclass(frozen=True, eq=False)
class Question:
    """Queries for the vectors of one stored version: score = weight new . forward(z) + (1 - weight) own . z.

    version   the version whose vectors z are searched
    own       [N, width of that version]: queries in its own space, by which an index finds candidates. Their length is
              at most 1; it is shorter if the space holds only a part of the query
    new       [N, b], unit length: queries in the space that ``forward`` maps to
    forward   maps stored unit vectors [n, width] to unit vectors [n, b]
    key       identifies the map: equal keys mean equal maps, so mapped vectors are reused, also by later calls
    weight    from 0 to 1; with 0, neither ``new`` nor ``forward`` nor ``key`` is needed
    slope     slope * score + offset ranks items of several versions together
    offset
    """

    version: str
    own: Vectors
    new: Vectors | None = None
    forward: Callable[[Floats], Floats] | None = None
    key: str = ""
    weight: float = 0.0
    slope: float = 1.0
    offset: float = 0.0

    @property
    def map(self) -> Forward | None:
        """The map of stored vectors; None if scores do not need it."""
        if self.weight == 0 or self.new is None or self.forward is None:
            return None
        return Forward(self.key, self.new.shape[1], self.forward)


class Hit(NamedTuple):
    """One result: the item, its exact score, the version whose vector was found, and the item's payload."""

    id: str
    score: float
    version: str
    payload: Payload


class SearchResult(NamedTuple):
    """The hits of each query, best first, and the deployed version.

    Scores are those of ``Question``, cosines where the versions share a space; if ``calibrated``, relative scores: the
    probability that query and item show the same class, if the gallery holds the query's class. ``left_out`` are
    versions with vectors that were not searched: no translation leads to them. ``models`` are the versions that
    embedded the queries, the deployed one first if it did. ``thresholds`` are scores by version under which a hit is
    probably no match, as measured by the check; empty if they were not. ``embedded`` counts items that got new vectors
    before the answer.
    """

    version: str
    hits: list[list[Hit]]
    left_out: tuple[str, ...] = ()
    calibrated: bool = False
    models: tuple[str, ...] = ()
    thresholds: Mapping[str, float] = {}
    embedded: int = 0

    def is_unlikely(self, hit: Hit) -> bool:
        """Whether a hit is probably not a match. If the best hit is not, the query is probably not in the catalogue."""
        return hit.score < self.thresholds.get(hit.version, -math.inf)


class Item(NamedTuple):
    """A stored item: id, version of its vector, unit vector [width], and payload.

    ``revision`` is a number that increases with every change; 0 for an item that was not read from a gallery.
    """

    id: str
    version: str
    vector: NDArray[np.float32]
    payload: Payload
    revision: int = 0


class VersionSpace(NamedTuple):
    """The vectors of one version: their stored width, and the width of the full feature."""

    name: str
    width: int
    full_width: int


class IndexState(NamedTuple):
    """The approximate index of one version's vectors. It is derived from them and can be rebuilt at any time.

    ``recall`` is the share of the true 10 nearest neighbours it found when it was built, with stored vectors as
    queries. Queries of a newer version find fewer (see ``measured_recall``). None if it was not measured.
    """

    version: str
    kind: str
    items: int
    recall: float | None


class Gallery(ABC):
    """Vectors by version. An item has one vector, made by one version; upserting it under another version moves it.

    A write is durable when the call returns, and has no effect when it raises. Equal scores are ordered by the last
    write of the items. Ids are compared and sorted by code point; payloads are JSON.
    """

    def create_version(self, name: str, width: int, projection: Vectors | None = None) -> None:
        """Add a version whose vectors have ``width`` components; with a ``projection`` they are short forms.

        A name may contain letters and digits of any script, and . _ - + : @.
        """
        checked_ids([name])
        if isinstance(width, bool) or not isinstance(width, (int, np.integer)) or width < 1:
            raise GalleryError(
                f"the width of a version is its number of components, at least 1; got {width!r}"
            )
        if projection is None:
            self._create_version(VersionSpace(name, int(width), int(width)), None)
            return
        matrix = np.ascontiguousarray(projection, dtype=np.float32)
        if matrix.ndim != 2 or 0 in matrix.shape or not np.isfinite(matrix).all():
            raise GalleryError(
                f"a projection is a matrix [d, m] of finite numbers, got shape {matrix.shape}"
            )
        if width != min(matrix.shape):
            raise GalleryError(
                f"short forms of a projection {matrix.shape} are {min(matrix.shape)} wide, got {width}"
            )
        self._create_version(VersionSpace(name, int(width), len(matrix)), matrix)

    @abstractmethod
    def versions(self) -> list[VersionSpace]:
        """All versions, in order of creation."""

    def space(self, version: str) -> VersionSpace:
        """One version; raises with the existing names if it is unknown."""
        return known_version({space.name: space for space in self.versions()}, version)

    @abstractmethod
    def projection(self, version: str) -> Floats | None:
        """P [d, m] of a version whose vectors are short forms."""

    def upsert(
        self,
        version: str,
        ids: Sequence[str],
        vectors: Vectors,
        payloads: Sequence[Payload] | None = None,
        revision: int | None = None,
    ) -> list[int]:
        """Store unit vectors [N, width] of a version, all or none; existing items are replaced, payload included.

        Returns the new revisions. With ``revision``, a single item is replaced if it still has that revision.
        """
        rows = checked_vectors(vectors, self.space(version).width, version)
        names = checked_ids(ids)
        texts = payload_texts(names, len(rows), payloads)
        _require_one(names, revision)
        return list(self._upsert(version, names, rows, texts, revision))

    def replace_vectors(
        self,
        version: str,
        items: Sequence[Item],
        vectors: Vectors,
        payloads: Sequence[Payload] | None = None,
    ) -> list[str]:
        """Give items new unit vectors [N, width], made by a version; returns the ids of the items that changed.

        Without ``payloads`` each item keeps its current payload, and is changed only if it still has the given vector.
        With ``payloads`` it is changed only if it still has the given revision. So items that others deleted or changed
        are left alone. All or none, if the store has transactions.
        """
        rows = checked_vectors(vectors, self.space(version).width, version)
        checked_ids([item.id for item in items])
        if len(items) != len(rows) or (payloads is not None and len(payloads) != len(rows)):
            given = ""
            if payloads is not None:
                given = f", {len(payloads)} payloads"
            raise GalleryError(
                f"replace_vectors takes one vector per item; got {plural(len(items), 'item')}, "
                f"{plural(len(rows), 'vector')}{given}"
            )
        return self._replace_vectors(version, items, rows, payloads)

    def update_payload(
        self,
        item: str,
        changes: Mapping[str, Any],
        revision: int | None = None,
        max_bytes: int | None = None,
    ) -> Item:
        """Change payload fields of an item, None removes one. Its vector does not change. Returns the new item.

        Reading and writing are one transaction, so concurrent changes to other fields are kept. With ``revision`` the
        item is changed only if it still has that revision. ``max_bytes`` limits the size of the payload as JSON.
        """
        (name,) = checked_ids([item])

        def changed(stored: Item) -> str:
            require_revision(name, revision, stored.revision)
            merged = {**stored.payload, **changes}
            (text,) = payload_texts(
                [name], 1, [{field: value for field, value in merged.items() if value is not None}]
            )
            if max_bytes is not None and (size := len(text.encode())) > max_bytes:
                (before,) = payload_texts([name], 1, [stored.payload])
                if size > len(before.encode()):
                    raise GalleryError(
                        f"the payload of {name!r} would have {size:,} bytes; {max_bytes:,} are allowed"
                    )
            return text

        updated = self._update_payload(name, changed)
        if updated is None:
            raise UnknownItemError(name)
        return updated

    def delete(self, ids: Sequence[str], revision: int | None = None) -> int:
        """Remove items atomically; returns how many existed. With ``revision``, one item that still has it."""
        names = checked_ids(ids, distinct=False)
        _require_one(names, revision)
        return self._delete(names, revision) if names else 0

    def get(self, ids: Sequence[str]) -> dict[str, Item]:
        """The items with these ids; unknown ids are left out."""
        names = checked_ids(ids, distinct=False)
        found = self._get(names)
        return {name: found[name] for name in names if name in found}

    def search(
        self,
        version: str,
        queries: Vectors,
        request: SearchRequest | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[list[Hit]]:
        """The k nearest items of each query [N, width of ``version``], best first; scores are exact cosines.

        ``options`` are those of ``SearchRequest``; they override ``request``.
        """
        return self._search(version, queries, SearchRequest.of(request, **options))

    def ask(
        self,
        questions: Sequence[Question],
        request: SearchRequest | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[list[Hit]]:
        """The k best items of each query among the vectors of all questions' versions, best first.

        Items are ranked by slope * score + offset, ties by the order of writing. A hit has the plain score. There is
        one question per version, all with the same N queries. ``versions`` restricts the questions, ``min_score`` the
        hits. Questions are processed in order, so an item that moves from one version to a later one is found once.

        An exact search scores all items in full. What ``forward`` makes of stored vectors is computed at the first
        search and kept in memory beside them, as much again; for items that are written later, at the next one. Where
        questions with a map ask more than 65,536 vectors, in all versions together, that goes on in the background and
        no search waits for it: until a version is done, its candidates are found by ``own``, as in an approximate
        search.

        An approximate search scores max(100, 10 k) candidates that the index finds by ``own``. It maps them itself
        where nothing is kept yet, and all vectors of the version are mapped in the background, so later ones are
        faster. A gallery on a server keeps nothing: it has the server find candidates by ``own`` also when the search
        is exact, and maps them each time.
        """
        return self._ask(checked_questions(questions), SearchRequest.of(request, **options))

    def build_index(self, version: str | None = None) -> list[IndexState]:
        """Rebuild the approximate index of a version, or of all, and wait. Vectors do not change; searches continue."""
        if version is None:
            chosen = self.versions()
        else:
            chosen = [self.space(version)]
        self._build_index([space.name for space in chosen])
        return [
            state
            for state in self.indexes()
            if any(space.name == state.version for space in chosen)
        ]

    @abstractmethod
    def indexes(self) -> list[IndexState]:
        """The approximate indexes that exist; empty if search is always exact."""

    def iterate(self, version: str | None = None, after: str | None = None) -> Iterator[Item]:
        """All items, or those of one version, sorted by id, starting after the id ``after``.

        Others may write meanwhile: an item that stays is returned exactly once.
        """
        if version is not None:
            self.space(version)
        return self._iterate(version, after or "")

    @abstractmethod
    def count(self) -> dict[str, int]:
        """The number of items by version."""

    def revision(self) -> int | None:
        """A number that changes with every write of an item, to detect whether derived data is up to date.

        None if the store does not support it.
        """
        return None

    def damage(self) -> list[str]:
        """Problems of the underlying files, one sentence each; only for SQLite galleries."""
        return []

    @abstractmethod
    def flush(self) -> None:
        """Write everything to its final place."""

    @abstractmethod
    def close(self) -> None:
        """Release files and memory. Closing twice is allowed; any other use is refused afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def _create_version(self, space: VersionSpace, projection: Floats | None) -> None: ...

    @abstractmethod
    def _upsert(
        self, version: str, names: list[str], rows: Floats, texts: list[str], revision: int | None
    ) -> Sequence[int]: ...

    @abstractmethod
    def _replace_vectors(
        self, version: str, items: Sequence[Item], rows: Floats, payloads: Sequence[Payload] | None
    ) -> list[str]: ...

    @abstractmethod
    def _update_payload(self, name: str, changed: Callable[[Item], str]) -> Item | None:
        """Replace an item's payload text by the result of ``changed``. None if there is no such item."""

    @abstractmethod
    def _delete(self, names: list[str], revision: int | None) -> int: ...

    @abstractmethod
    def _get(self, names: list[str]) -> dict[str, Item]: ...

    @abstractmethod
    def _search(
        self, version: str, queries: Vectors, request: SearchRequest
    ) -> list[list[Hit]]: ...

    @abstractmethod
    def _ask(self, questions: list[Question], request: SearchRequest) -> list[list[Hit]]: ...

    @abstractmethod
    def _build_index(self, versions: list[str]) -> None: ...

    @abstractmethod
    def _iterate(self, version: str | None, after: str) -> Iterator[Item]: ...


def measured_recall(
    gallery: Gallery,
    version: str,
    queries: Vectors,
    request: SearchRequest | None = None,
    **options: Unpack[SearchOptions],
) -> float:
    """The share of the true k nearest neighbours that ``search(..., exact=False)`` finds; ``queries`` are [N, width].

    Use real queries of the version that will search: recall falls as they drift from the stored vectors.

    >>> from fixstar.gallery import MemoryGallery
    >>> with MemoryGallery() as gallery:
    ...     gallery.create_version("v1", 2)
    ...     _ = gallery.upsert("v1", ["a", "b"], np.eye(2))
    ...     measured_recall(gallery, "v1", np.eye(2))
    1.0
    """
    wanted = SearchRequest.of(request, **options)
    exact = gallery.search(version, queries, wanted, exact=True)
    quick = gallery.search(version, queries, wanted, exact=False)
    total = sum(map(len, exact))
    found = 0
    if not total:
        raise InputError(
            "recall needs queries with results; there were no queries, or nothing to find"
        )
    for true, hits in zip(exact, quick, strict=True):  # a hit as near as the last true one counts
        ids = {hit.id for hit in true}
        last = min((hit.score for hit in true), default=0.0)
        found += min(len(true), sum(hit.id in ids or hit.score >= last for hit in hits))
    return found / total


# --- verifying


def verify_gallery(gallery: Gallery) -> list[str]:
    """Problems of a gallery, one sentence each, with the id of each damaged item; empty if there are none.

    Checks the structure of the file, all payloads, the width and length of all vectors, and the counts. If the
    structure is damaged, nothing else is checked. There should be no other writer.

    >>> from fixstar.gallery import MemoryGallery
    >>> verify_gallery(MemoryGallery())
    []
    """
    if damage := gallery.damage():
        return damage
    found = {space.name: 0 for space in gallery.versions()}
    problems: list[str] = []
    for name, version, problem in _checked(gallery):
        if version is not None:
            found[version] += 1
        if problem:
            problems.append(f"{name!r} of version {version!r}: {problem}")
    if len(problems) > _LISTED:
        problems[_LISTED:] = [f"and {len(problems) - _LISTED:,} more items"]
    counts = gallery.count()
    if found != counts:
        problems.append(f"the gallery counts {counts} items and holds {found}")
    return problems


def _checked(gallery: Gallery) -> Iterator[tuple[str, str | None, str]]:
    """(id, version, problem) of every item; the problem is empty if there is none."""
    widths = {space.name: space.width for space in gallery.versions()}
    after: str | None = None
    while True:
        try:
            for item in gallery.iterate(after=after):
                yield item.id, item.version, _problem(item, widths[item.version])
            return
        except DamagedItemError as error:
            yield error.item, error.version, error.reason
            after = error.item  # continue after it


def _problem(item: Item, width: int) -> str:
    if not isinstance(item.payload, Mapping):
        return "the payload is not a JSON object"
    if item.vector.shape != (width,):
        return f"the vector has {item.vector.size} components, the version {width}"
    length = float(np.linalg.norm(item.vector.astype(np.float64)))
    if abs(length - 1) < 1e-5:
        return ""
    return f"the vector has length {length:.4g}"


def require_digest(item: Item, width: int, matches: bool) -> Item:
    """The item if its digest matches its content; else raises with the most specific reason."""
    if not matches:
        reason = (
            _problem(item, width) or "its digest does not match its content: something changed it"
        )
        raise DamagedItemError(item.id, item.version, reason)
    return item


# --- arguments


def checked_vectors(vectors: Vectors, width: int, version: str) -> Floats:
    """Vectors [N, width] of length 1 up to the rounding of float32; the given array is never changed."""
    array = np.asarray(vectors)
    if array.dtype.kind not in "fiu" or array.ndim != 2 or array.shape[1] != width:
        raise GalleryError(
            f"version {version!r} takes a matrix [vectors, {width}] of real numbers, got {array.dtype} {array.shape}"
        )
    if len(array) == 1:  # a shortcut for single queries
        wide = array[0].astype(np.float64)
        if abs(math.sqrt(wide.dot(wide)) - 1) < 0.99 * _ROUNDING:
            return np.ascontiguousarray(array, dtype=np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", array, array, dtype=np.float64, casting="same_kind"))
    if wrong := np.flatnonzero(~(np.abs(lengths - 1) < _LENGTH_TOLERANCE)).tolist():
        raise GalleryError(
            f"{len(wrong)} of {len(array)} vectors are not of length 1: number {wrong[0]} has length "
            f"{lengths[wrong[0]]:.4g}. Divide by the length (fixstar.geometry.unit); zero or NaN come from a broken "
            "image or model"
        )
    return unit_rows(array, lengths)


def checked_questions(questions: Sequence[Question]) -> list[Question]:
    """Validate questions of one search; queries become float32 or float64."""
    if not questions:
        raise GalleryError(
            "there is no question, so no version would be searched; ask at least one"
        )
    names = [question.version for question in questions]
    for name in names:
        if names.count(name) > 1:
            raise GalleryError(f"version {name!r} is asked twice; one question per version")
    checked = [_checked_question(question) for question in questions]
    counts = {len(question.own) for question in checked}
    if len(counts) > 1:
        raise GalleryError(f"all questions ask the same queries; got {sorted(counts)} of them")
    return checked


def _checked_question(question: Question) -> Question:
    about = f"the question to version {question.version!r}"
    if not 0 <= question.weight <= 1:
        raise GalleryError(f"{about} has the weight {question.weight!r}; a weight is from 0 to 1")
    if not (0 < question.slope < math.inf and abs(question.offset) < math.inf):
        raise GalleryError(
            f"{about} has slope {question.slope!r} and offset {question.offset!r}; a slope is above 0, both are finite"
        )
    own = _not_longer(question.own, f"own of {about}")
    if question.weight == 0:
        return replace(question, own=own)
    if question.new is None or question.forward is None or not question.key:
        raise GalleryError(
            f"{about} has the weight {question.weight:g}, so it needs new queries, a forward map and a key for this map"
        )
    new = np.asarray(question.new)
    if new.ndim != 2 or len(new) != len(own):
        raise GalleryError(
            f"{about} has {len(own)} queries, so new is a matrix [{len(own)}, b]; got {new.shape}"
        )
    return replace(question, own=own, new=checked_vectors(new, new.shape[1], question.version))


def _not_longer(vectors: Vectors, what: str) -> NDArray[np.floating[Any]]:
    """Queries [N, width] of length at most 1."""
    array = np.asarray(vectors)
    if array.dtype.kind not in "fiu" or array.ndim != 2:
        raise GalleryError(
            f"{what} is a matrix [queries, width] of real numbers, got {array.dtype} {array.shape}"
        )
    lengths = np.sqrt(np.einsum("ij,ij->i", array, array, dtype=np.float64, casting="same_kind"))
    if wrong := np.flatnonzero(~(lengths < 1 + _LENGTH_TOLERANCE)).tolist():
        raise GalleryError(
            f"{what}: query {wrong[0]} has length {lengths[wrong[0]]:.4g}, 1 is the longest. Divide by the length "
            "(fixstar.geometry.unit)"
        )
    if array.dtype == np.float64:
        rows = array
    else:
        rows = array.astype(np.float32, copy=False)
    if len(long := np.flatnonzero(lengths > 1 + _ROUNDING)):
        rows = rows.copy()
        rows[long] = array[long] / lengths[long, None]
    return rows


def check_width(question: Question, space: VersionSpace) -> None:
    """Refuse queries whose width differs from the searched vectors."""
    if question.own.shape[1] != space.width:
        raise GalleryError(
            f"version {space.name!r} takes a matrix [queries, {space.width}] of own queries, got {question.own.shape}"
        )


def unit_rows(array: NDArray[Any], lengths: NDArray[np.float64]) -> Floats:
    """Vectors of these lengths, normalised to float32. Those of length 1 stay bit-identical."""
    rows = np.ascontiguousarray(array, dtype=np.float32)
    if len(off := np.flatnonzero(np.abs(lengths - 1) > _ROUNDING)):
        rows = rows.copy() if rows is array else rows
        rows[off] = array[off] / lengths[off, None]
    return rows


def replaceable(
    items: Sequence[Item], now: Mapping[str, Item], payloads: Sequence[Payload] | None
) -> tuple[list[int], list[str], list[str]]:
    """The items that may get new vectors, given their state ``now``: positions, ids and new payloads.

    If payloads are given, an item must have the same revision. Otherwise the same vector of the same version is
    enough, and the current payload is kept.
    """
    agrees = _same_vector if payloads is None else _same_revision
    same = [row for row, item in enumerate(items) if item.id in now and agrees(item, now[item.id])]
    names = [items[row].id for row in same]
    kept = [now[items[row].id].payload if payloads is None else payloads[row] for row in same]
    return same, names, payload_texts(names, len(same), kept)


def require_revision(item: str, expected: int | None, seen: int | None) -> None:
    """Raise unless an item has the expected revision; None skips the check."""
    if expected is not None and expected != seen:
        raise ItemChangedError(item, expected, seen)


def _require_one(names: Sequence[str], revision: int | None) -> None:
    if revision is not None and len(names) != 1:
        raise GalleryError(f"a revision applies to one item; got {plural(len(names), 'id')}")


def _same_vector(item: Item, now: Item) -> bool:
    return item.version == now.version and np.array_equal(np.asarray(item.vector), now.vector)


def _same_revision(item: Item, now: Item) -> bool:
    return item.revision == now.revision


def checked_ids(ids: Sequence[str], distinct: bool = True) -> list[str]:
    """Validate ids; every store can hold the resulting list of strings."""
    if isinstance(ids, str):
        raise GalleryError(
            f"ids must be a list of strings, got the string {ids!r}; write [{ids!r}]"
        )
    known = [str(item) if isinstance(item, np.str_) else item for item in ids]
    for item in known:
        if not isinstance(item, str) or not item or "\0" in item or not is_unicode(item):
            raise GalleryError(
                f"an id must be a non-empty string of valid characters other than NUL; got {item!r}"
            )
    if distinct and len(set(known)) != len(known):
        twice = next(item for item in known if known.count(item) > 1)
        raise GalleryError(
            f"ids must be distinct: {len(known)} ids, {len(set(known))} distinct; {twice!r} comes twice"
        )
    return known


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def payload_texts(ids: Sequence[str], rows: int, payloads: Sequence[Payload] | None) -> list[str]:
    """One JSON document per item."""
    if len(ids) != rows or (payloads is not None and len(payloads) != rows):
        raise GalleryError(
            f"upsert takes one vector and one payload per id; got {plural(len(ids), 'id')}, {plural(rows, 'vector')}"
            + ("" if payloads is None else f", {len(payloads)} payloads")
        )
    if payloads is None:
        return ["{}"] * rows
    return list(map(_payload_text, ids, payloads))


def _payload_text(item: str, payload: Any) -> str:
    if not isinstance(payload, Mapping) or not all(isinstance(field, str) for field in payload):
        raise GalleryError(
            f"the payload of {item!r} must map field names to values, got {payload!r}"
        )
    try:
        text = json.dumps(dict(payload), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError) as error:
        raise GalleryError(f"the payload of {item!r} cannot be written as JSON: {error}") from error
    return text


def check_new_version(name: str, known: Iterable[str]) -> None:
    """Refuse the name of a new version if it exists, or is not valid in commands and addresses."""
    if name in known:
        raise GalleryError(
            f"the gallery already has a version {name!r}; versions never change, choose a new name"
        )
    allowed = all(
        character in _NAME_MARKS or unicodedata.category(character)[0] in "LMN"
        for character in name
    )
    if name[:1] in ("-", ".") or not allowed:
        raise GalleryError(
            f"a version cannot be called {name!r}: a name has letters, digits and {' '.join(_NAME_MARKS)} only, and "
            "does not start with - or . (names appear in commands and addresses). Use a name such as old-system"
        )


def known_version(known: Mapping[str, Known], name: object) -> Known:
    """The entry of a version; raises with the existing names if it is unknown."""
    if not isinstance(name, str) or name not in known:
        raise GalleryError(
            f"the gallery has no version {name!r} (it has: {', '.join(known) or 'none yet'})"
        )
    return known[name]


# --- data read by backends


def stored_projection(content: bytes | None, full_width: int) -> Floats | None:
    """P [full_width, m] from the bytes of little-endian float32."""
    if content is None:
        return None
    return np.frombuffer(content, "<f4").reshape(full_width, -1).astype(np.float32)


def stored_payload(name: str, version: str, content: str | bytes | None) -> Payload:
    """The payload of an item from its JSON text; raises if it is damaged."""
    if content is None:
        raise DamagedItemError(name, version, "the payload is missing")
    try:
        payload: Payload = json.loads(content if isinstance(content, str) else content.decode())
    except (TypeError, ValueError, AttributeError) as error:
        raise DamagedItemError(name, version, f"the payload is damaged ({error})") from error
    return payload
