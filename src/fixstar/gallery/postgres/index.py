"""The approximate index of a version: pgvector's HNSW, beside the vectors and kept up to date by the server.

It is built while everybody goes on reading and writing (CONCURRENTLY), under a new name; then older ones are dropped,
and with them what a killed build left behind.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from secrets import token_hex
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError
from fixstar.gallery.postgres.vectors import index_type, read_vectors
from fixstar.gallery.store import Hit, IndexState

if TYPE_CHECKING:
    from fixstar.gallery.postgres.connection import Database

__all__ = ["build", "checked_indexable", "indexed", "record", "sample", "share_found", "states"]

_BUILDING = 0x66787369  # "fxsi", with the table's oid: who builds its index
_SAMPLE = 100
_INDEXES = (
    "SELECT v.number, v.name, v.items, x.recall, i.indexrelid::regclass::text, i.indisvalid FROM versions v "
    "JOIN pg_index i ON i.indrelid = to_regclass('vectors_' || v.number) JOIN pg_class c ON c.oid = i.indexrelid "
    "JOIN pg_am a ON a.oid = c.relam LEFT JOIN indexes x ON x.version = v.number "
    "WHERE a.amname = 'hnsw' ORDER BY v.number"
)


def states(db: Database) -> list[IndexState]:
    """The indexes that can be used."""
    rows = {row[0]: row for row in db.execute(_INDEXES) if row[5]}
    return [IndexState(name, "pgvector HNSW", items, recall) for _, name, items, recall, _, _ in rows.values()]


def indexed(db: Database) -> set[int]:
    """The numbers of the versions that have an index."""
    return {row[0] for row in db.execute(_INDEXES) if row[5]}


def checked_indexable(version: str, width: int) -> None:
    """Refuse vectors that pgvector cannot index."""
    if not index_type(width):
        raise GalleryError(
            f"pgvector indexes vectors of at most 4,000 numbers (above 2,000 in half precision); those of {version!r} "
            f"have {width:,}. Search it exactly, or store short forms"
        )


def build(connect: Callable[[], Database], number: int, width: int) -> None:
    """Build the index of a version anew and drop older ones, on a connection of its own: it may take hours."""
    operators = f"{index_type(width).partition('(')[0]}_ip_ops"
    table, name = f"vectors_{number}", f"vectors_{number}_hnsw_{token_hex(4)}"
    with closing(connect()) as db:
        db.execute("SELECT set_config('lock_timeout', '0', false), set_config('statement_timeout', '0', false)")
        # Not waiting here: a builder waits until everybody who waits in a statement is done, that is for ever.
        locked = db.execute(f"SELECT pg_try_advisory_lock({_BUILDING}, '{table}'::regclass::oid::int)").fetchone()
        if locked == (False,):
            raise GalleryError("somebody is building the index of this version; wait for it, see indexes()")
        expression = f"(vector::{index_type(width)})" if operators.startswith("half") else "vector"
        db.execute(f"CREATE INDEX CONCURRENTLY {name} ON {table} USING hnsw ({expression} {operators})")
        for row in db.execute(_INDEXES).fetchall():
            if row[0] == number and not row[4].endswith(name):
                db.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {row[4]}")


def sample(db: Database, number: int, width: int) -> NDArray[np.float32]:
    """Some stored vectors [n, width], scattered, always the same ones."""
    rows = db.execute(
        f"SELECT vector_send(vector) FROM vectors_{number} ORDER BY hashint8(number), number LIMIT {_SAMPLE}",
        binary=True,
    )
    return read_vectors([row[0] for row in rows], width)


def share_found(exact: list[list[Hit]], approximate: list[list[Hit]]) -> float | None:
    """Which share of the true nearest was found; equal scores count as the same.

    >>> share_found([[Hit("a", 1.0, "v1", {}), Hit("b", 0.5, "v1", {})]], [[Hit("a", 1.0, "v1", {})]])
    0.5
    """
    wanted = sum(map(len, exact))
    pairs = zip(exact, approximate, strict=True)
    found = sum(sum(hit.score >= true[-1].score for hit in hits) for true, hits in pairs if true)
    return found / wanted if wanted else None


def record(db: Database, number: int, recall: float | None) -> None:
    """Keep what was measured."""
    db.execute(
        "INSERT INTO indexes (version, recall) VALUES (%s, %s) "
        "ON CONFLICT (version) DO UPDATE SET recall = excluded.recall",
        (number, recall),
    )
