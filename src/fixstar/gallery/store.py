"""What every gallery does, whatever it stores its vectors in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError
from fixstar.gallery.filters import Payload, Where, filter_key, payload_test

__all__ = [
    "Gallery",
    "Hit",
    "IndexState",
    "Item",
    "Payload",
    "SearchOptions",
    "SearchRequest",
    "SearchResult",
    "Vectors",
    "VersionSpace",
    "Where",
]

Vectors = NDArray[np.floating[Any]]


class SearchOptions(TypedDict, total=False):
    """The fields of ``SearchRequest`` as keyword arguments of a search."""

    k: int
    where: Where | None
    exact: bool
    calibrate: bool
    versions: Sequence[str] | None


@dataclass(frozen=True)
class SearchRequest:
    """What a search asks for.

    k          number of hits per query
    where      restricts by payload: see ``filters``
    exact      False lets an approximate index answer where there is one: faster, and a hit may be missing
    calibrate  rank the vectors of several versions by probability where the deployed version's check allows it;
               a gallery alone ranks by cosine
    versions   search only vectors of these versions

    >>> SearchRequest.of(SearchRequest(k=3), exact=False)
    SearchRequest(k=3, where=None, exact=False, calibrate=True, versions=None)
    """

    k: int = 10
    where: Where | None = None
    exact: bool = True
    calibrate: bool = True
    versions: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, (int, np.integer)) or self.k < 1:
            raise GalleryError(f"k is the number of hits per query, at least 1; got {self.k!r}")
        if self.where is not None:
            payload_test(self.where)
            filter_key(self.where)

    @classmethod
    def of(cls, request: SearchRequest | None, **options: Unpack[SearchOptions]) -> SearchRequest:
        """A request with some options replaced."""
        return cls(**options) if request is None else replace(request, **options) if options else request


class Hit(NamedTuple):
    """One result: the item, its exact cosine, the version whose vector was found, and the item's payload."""

    id: str
    score: float
    version: str
    payload: Payload


class SearchResult(NamedTuple):
    """The hits of each query, best first, and the version that embedded the queries.

    Scores are cosines; if ``calibrated``, probabilities that query and item show the same class. ``left_out`` are
    versions with vectors that these queries cannot reach: no adapter connects their models.
    """

    version: str
    hits: list[list[Hit]]
    left_out: tuple[str, ...] = ()
    calibrated: bool = False


class Item(NamedTuple):
    """What is stored under one id: the version that made the vector, the unit vector [width], and the payload."""

    id: str
    version: str
    vector: NDArray[np.float32]
    payload: Payload


class VersionSpace(NamedTuple):
    """The vectors of one version: numbers stored for each, and numbers of the full feature they stand for."""

    name: str
    width: int
    full_width: int


class IndexState(NamedTuple):
    """The approximate index of one version's vectors, derived from them and rebuildable at any time.

    ``recall`` is the share of the true 10 nearest that it found when it was built, asked with stored vectors; queries
    of a newer version find fewer (``measured_recall`` asks with those). None where it was not measured.
    """

    version: str
    kind: str
    items: int
    recall: float | None


class Gallery(Protocol):
    """Vectors by version. An item has one vector, made by one version; upserting it under another version moves it.

    A call that writes is done, for good, when it returns, and leaves nothing behind when it raises. Equal scores come
    in the order in which the items were last written. Ids are compared and sorted by code point, payloads are JSON.
    """

    def create_version(self, name: str, width: int, projection: Vectors | None = None, copied: bool = False) -> None:
        """Make room for vectors of a version: ``width`` numbers each, short forms where ``projection`` is given.

        A name has letters and digits of any script and . _ - + : @ only. One that is ``copied`` from another gallery,
        where it may be older than this rule, is taken as it is.
        """

    def versions(self) -> list[VersionSpace]:
        """All versions, in the order in which they were created."""

    def projection(self, version: str) -> NDArray[np.float32] | None:
        """P [d, m] of a version whose vectors are short forms."""

    def upsert(
        self, version: str, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload] | None = None
    ) -> None:
        """Store unit vectors [N, width] of a version, all or none; items that exist are replaced, payload included."""

    def replace_vectors(
        self, version: str, items: Sequence[Item], vectors: Vectors, payloads: Sequence[Payload] | None = None
    ) -> list[str]:
        """Give items new unit vectors [N, width], made by a version. The ids of those it was done for.

        Payloads stay unless new ones are given. Only items that still hold the vector given with them are touched: what
        was deleted or written meanwhile stays so. All at once, where the store has transactions.
        """

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items, all at once; how many there were."""

    def get(self, ids: Sequence[str]) -> dict[str, Item]:
        """The items of these ids; an id that is not in the gallery is not in the answer."""

    def search(
        self,
        version: str,
        queries: Vectors,
        request: SearchRequest | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[list[Hit]]:
        """The k nearest items of each query [N, width of ``version``], best first; scores are exact cosines.

        ``options`` are those of ``SearchRequest``; they replace what ``request`` says.
        """

    def build_index(self, version: str | None = None) -> list[IndexState]:
        """Make the approximate index of a version, or of all, anew, and wait for it; the vectors are not touched."""

    def indexes(self) -> list[IndexState]:
        """The approximate indexes there are; none where search is always exact."""

    def iterate(self, version: str | None = None, after: str | None = None) -> Iterator[Item]:
        """All items, or those of one version, sorted by id, from the first id greater than ``after`` on.

        Others may write meanwhile: an item that is there all the time comes exactly once.
        """

    def count(self) -> dict[str, int]:
        """The number of items by version."""

    def flush(self) -> None:
        """Bring everything to where the gallery is kept for good."""

    def close(self) -> None:
        """Let go of files and memory. Closing twice is allowed, anything else is refused afterwards."""

    def __enter__(self) -> Gallery: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
