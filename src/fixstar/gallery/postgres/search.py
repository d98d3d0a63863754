"""The nearest vectors of one version, asked of the server and scored again here.

The server orders by its own inner product, in float32, and gives the first few more than k. Their cosines are computed
again in float64 (``ranking.exact_cosines``). If the last one given may still be as good as the k-th, or the filter
left too few, four times as many are asked for; so ties and filters come out as in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.gallery.matrix import parsed
from fixstar.gallery.postgres.connection import EF_SEARCH
from fixstar.gallery.postgres.filters import Narrowing
from fixstar.gallery.postgres.vectors import index_type, read_vectors, vector_text
from fixstar.gallery.ranking import exact_cosines, first_of_each
from fixstar.gallery.store import Hit, Payload

if TYPE_CHECKING:
    from fixstar.gallery.postgres.connection import Database

__all__ = ["Found", "Request", "candidates_query", "merged", "nearest"]

_MORE = 16  # vectors asked for beyond k
_GROWTH = 4
_QUERIES = 64  # in one statement
_NUMBERS = 1 << 22  # of vectors in one answer: 16 MiB
_EF_MOST = 1000
# The JSON text is read as jsonb once a row (OFFSET 0 keeps it so), and not where jsonb cannot hold it.
_FIELDS = (
    "JOIN items p ON p.number = v.number CROSS JOIN LATERAL (SELECT CASE WHEN strpos(p.payload::text, '\\u0000') = 0 "
    "THEN p.payload::jsonb END AS fields OFFSET 0) f WHERE p.version = {number} AND (fields IS NULL OR ({narrowing}))"
)


class Request(NamedTuple):
    """What is asked of one version: its number and width, the queries [N, width], and who may be found."""

    version: str
    number: int
    width: int
    queries: NDArray[np.float64]
    k: int
    narrowing: Narrowing
    test: Callable[[Payload], bool] | None
    approximate: bool


class Found(NamedTuple):
    """Vectors of one version that hold the k nearest: by pair, which query, how near, and what was found."""

    version: str
    query: NDArray[np.intp]
    cosine: NDArray[np.float32]
    number: NDArray[np.int64]
    ids: list[str]
    payloads: list[Payload]


class _Rows(NamedTuple):
    """An answer of the server, those that fail the filter left out; ``floor`` and ``full`` are by query."""

    found: Found
    floor: NDArray[np.float64]  # the server's score of the last vector given
    full: NDArray[np.bool_]  # whether it had as many as it was asked for


def nearest(db: Database, request: Request) -> list[Found]:
    """The k nearest of each query among the vectors of one version, and some others."""
    parts, limit, approximate = [], request.k + _MORE, request.approximate
    pending = np.arange(len(request.queries))
    while len(pending):
        if approximate and limit > EF_SEARCH:
            db.execute("SELECT set_config('hnsw.ef_search', %s, true)", (str(min(limit, _EF_MOST)),))
        block = max(1, min(_QUERIES, _NUMBERS // (limit * request.width)))
        left: list[NDArray[np.intp]] = []
        for start in range(0, len(pending), block):
            places = pending[start : start + block]
            rows = _ask(db, request, places, limit, approximate)
            done = _is_complete(rows, request, places, approximate)
            parts.append(_only(rows.found, np.isin(rows.found.query, places[done])))
            left.append(places[~done])
        pending = np.concatenate(left)
        limit = limit if approximate else limit * _GROWTH
        approximate = False  # where the index gave too few, ask without it
    return parts


def _is_complete(rows: _Rows, request: Request, places: NDArray[np.intp], approximate: bool) -> NDArray[np.bool_]:
    """[places]: whether no vector that was not given can be among the k nearest."""
    found = rows.found
    kept = first_of_each(found.query, found.cosine, found.number, request.k)
    count = np.bincount(found.query[kept], minlength=len(request.queries))[places]
    enough: NDArray[np.bool_] = count >= request.k
    if approximate:
        return enough
    kth = np.full(len(request.queries), np.inf)
    np.minimum.at(kth, found.query[kept], found.cosine[kept])
    rounding = 4e-6 * max(1.0, request.width**0.5 / 8)  # of a dot product in float32, with a margin
    complete: NDArray[np.bool_] = ~rows.full | (enough & (rows.floor < kth[places] - rounding))
    return complete


def _ask(db: Database, request: Request, places: NDArray[np.intp], limit: int, approximate: bool) -> _Rows:
    queries = request.queries[places].astype(np.float32)
    text = candidates_query(request.number, request.width, len(places), limit, request.narrowing.text, approximate)
    values = [*map(vector_text, queries), *request.narrowing.values]
    rows = db.execute(text, values, binary=True).fetchall()
    place = np.array([row[0] for row in rows], np.intp)
    floor = np.full(len(places), np.inf)
    np.minimum.at(floor, place, [-row[2] for row in rows])
    full = np.bincount(place, minlength=len(places)) >= limit
    payloads = [parsed(row[4]) for row in rows]
    vectors = read_vectors([row[5] for row in rows], request.width)
    query = places[place]
    found = Found(
        request.version,
        query,
        exact_cosines(vectors, request.queries, query, np.arange(len(rows))),
        np.array([row[1] for row in rows], np.int64),
        [row[3] for row in rows],
        payloads,
    )
    if request.test is not None:
        found = _only(found, np.array([request.test(payload) for payload in payloads], bool))
    return _Rows(found, floor, full)


def candidates_query(
    number: int, width: int, queries: int, limit: int, narrowing: str = "", approximate: bool = False
) -> str:
    """The statement: for each query its number, and the item's number, score, id, payload and vector.

    Parameters are the queries, then those of the narrowing. Adding 0 to the inner product hides it from the index.
    """
    places = ", ".join(f"({place}, %s::vector)" for place in range(queries))
    fields = _FIELDS.format(number=number, narrowing=narrowing) if narrowing else ""
    kind = index_type(width)
    order = f"v.vector::{kind} <#> q.query::{kind}" if approximate else "score, v.number"
    return (
        f"SELECT q.place, c.number, c.score, i.id, i.payload::text, vector_send(c.vector) "
        f"FROM (VALUES {places}) q (place, query) CROSS JOIN LATERAL ("
        f"SELECT v.number, v.vector, (v.vector <#> q.query) + 0 AS score FROM vectors_{number} v {fields} "
        f"ORDER BY {order} LIMIT {limit}) c JOIN items i ON i.number = c.number"
    )


def _only(found: Found, kept: NDArray[np.bool_]) -> Found:
    rows = np.flatnonzero(kept).tolist()
    return Found(
        found.version,
        found.query[kept],
        found.cosine[kept],
        found.number[kept],
        [found.ids[row] for row in rows],
        [found.payloads[row] for row in rows],
    )


def merged(parts: Sequence[Found], queries: int, k: int) -> list[list[Hit]]:
    """The k best of all versions for each query."""
    hits: list[list[Hit]] = [[] for _ in range(queries)]
    if not parts:
        return hits
    query, cosine, number = (np.concatenate([part[i] for part in parts]) for i in (1, 2, 3))
    owner: list[tuple[Found, int]] = [(part, row) for part in parts for row in range(len(part.ids))]
    for pair in first_of_each(query, cosine, number, k).tolist():
        part, row = owner[pair]
        hits[query[pair]].append(Hit(part.ids[row], float(cosine[pair]), part.version, part.payloads[row]))
    return hits
