"""The nearest points of several Qdrant collections, by exact cosine.

The server ranks by its own product in float32 and returns the vectors; their cosines are computed again here, as every
gallery computes them. The server's order is trusted only up to rounding: while something as good as the k-th best may
still be missing, or the filter has left fewer than k, more is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.gallery.filters import payload_test
from fixstar.gallery.qdrant.points import item_name, item_payload, server_filter, written_as
from fixstar.gallery.qdrant.server import QdrantServer, StoredVersion
from fixstar.gallery.ranking import exact_cosines, first_of_each
from fixstar.gallery.store import Hit, SearchRequest

if TYPE_CHECKING:
    from qdrant_client import models

__all__ = ["at_once", "nearest"]

_SPARE = 8  # asked for beyond k: sees ties, and makes up for an item that is moving
_MORE = 4
_NUMBERS = 1 << 22  # components in one answer, which is text
_QUERIES = 128


class _Found(NamedTuple):
    query: int
    version: str
    point: Any


def at_once(k: int, width: int) -> int:
    """How many queries to send together."""
    return max(1, min(_QUERIES, _NUMBERS // ((k + _SPARE) * width)))


def nearest(
    server: QdrantServer,
    carried: dict[str, NDArray[np.float64]],
    targets: list[StoredVersion],
    request: SearchRequest,
    ef: int,
) -> list[list[Hit]]:
    """The k best of all versions for each query; ``carried`` has the queries [N, width] in each version's space.

    Versions are asked one after the other, oldest first. An item that moves to a newer version meanwhile is in its new
    collection before it leaves the old one, so one of the two answers has it.
    """
    found: list[_Found] = []
    cosines = [np.empty(0, np.float32)]
    for target in targets:
        queries = carried[target.space.name]
        here = _candidates(server, target, queries.astype(np.float32), request, ef)
        found += here
        vectors = np.array([one.point.vector for one in here], np.float32).reshape(-1, target.space.width)
        query = np.array([one.query for one in here], np.intp)
        cosines.append(exact_cosines(vectors, queries, query, np.arange(len(here))))
    number_of_queries = len(next(iter(carried.values()))) if carried else 0
    return _merged(found, np.concatenate(cosines), number_of_queries, request.k)


def _candidates(
    server: QdrantServer, target: StoredVersion, queries: NDArray[np.float32], request: SearchRequest, ef: int
) -> list[_Found]:
    """The k best points of one version for each query, and some others."""
    from qdrant_client import models

    params = None  # the client's engine searches in full, and warns if it is told how
    if not server.is_engine:
        params = models.SearchParams(exact=request.exact, hnsw_ef=None if request.exact else ef)
    condition, name = server_filter(request.where), target.space.name
    test = None if request.where is None else payload_test(request.where)
    slack = 2e-6 * max(1.0, target.space.width**0.5 / 8) if request.exact else None
    found: list[_Found] = []
    pending, limit = list(range(len(queries))), request.k + _SPARE
    while pending:
        requests = [
            models.QueryRequest(
                query=queries[q].tolist(),
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
            if len(points) == limit and not _is_enough(points, passing, request.k, slack):
                unfinished.append(q)
            else:
                found += [_Found(q, name, point) for point in passing]
        pending, limit = unfinished, limit * _MORE
    return found


def _is_enough(
    points: list[models.ScoredPoint], passing: list[models.ScoredPoint], k: int, slack: float | None
) -> bool:
    """Whether the k best are among them; with ``slack``, also all that may be equal to the k-th."""
    return len(passing) >= k and (slack is None or points[-1].score < passing[k - 1].score - slack)


def _merged(found: list[_Found], cosines: NDArray[np.float32], queries: int, k: int) -> list[list[Hit]]:
    """The k best; of an item found under two versions, the one written last counts."""
    last: dict[tuple[int, str], int] = {}
    for i, one in enumerate(found):
        key = one.query, item_name(one.point, one.version)
        if key not in last or written_as(found[last[key]].point) < written_as(one.point):
            last[key] = i
    kept = np.fromiter(last.values(), np.intp, len(last))
    query = np.array([found[i].query for i in last.values()], np.intp)
    number = np.array([written_as(found[i].point) for i in last.values()], np.int64)
    hits: list[list[Hit]] = [[] for _ in range(queries)]
    for i in kept[first_of_each(query, cosines[kept], number, k)].tolist():
        one = found[i]
        payload = item_payload(one.point, one.version)
        hits[one.query].append(Hit(item_name(one.point, one.version), float(cosines[i]), one.version, payload))
    return hits
