"""What a gallery on a server says to PostgreSQL, within a transaction that its caller holds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import DamagedItemError
from fixstar.gallery.arguments import unknown_version
from fixstar.gallery.postgres.vectors import copy_vectors, read_vectors
from fixstar.gallery.store import Item, VersionSpace

if TYPE_CHECKING:
    from fixstar.gallery.postgres.connection import Database

__all__ = [
    "NumberedVersion",
    "Row",
    "all_versions",
    "as_item",
    "find_version",
    "lock_writing",
    "read_rows",
    "remove_items",
    "write_items",
]


Row = tuple[str, str, NDArray[np.float32] | None, str]  # id, version, vector if it is there, payload


class NumberedVersion(NamedTuple):
    """A version, and the number that its table of vectors has."""

    number: int
    space: VersionSpace


def lock_writing(db: Database, more: int = 0) -> int:
    """Be the only one who writes until the transaction ends; the number of the last of ``more`` new items."""
    ((last,),) = db.execute("UPDATE gallery SET written = written + %s RETURNING written", (more,))
    return int(last)


def all_versions(db: Database) -> dict[str, NumberedVersion]:
    """All versions by name, oldest first."""
    rows = db.execute("SELECT number, name, width, full_width FROM versions ORDER BY number")
    return {name: NumberedVersion(number, VersionSpace(name, width, full)) for number, name, width, full in rows}


def find_version(db: Database, name: str) -> NumberedVersion:
    """One version, or an error that names those there are."""
    known = all_versions(db)
    if not isinstance(name, str) or name not in known:
        raise unknown_version(name, known)
    return known[name]


def read_rows(db: Database, condition: str, values: Sequence[Any]) -> list[Row]:
    """Items that meet a condition, as they are stored: a damaged one does not keep the others from being read."""
    rows = db.execute(f"SELECT id, version, number, payload::text FROM items WHERE {condition}", values).fetchall()
    vectors: dict[int, NDArray[np.float32]] = {}
    names: dict[int, str] = {}
    for number, space in all_versions(db).values():
        names[number] = space.name
        if wanted := [row[2] for row in rows if row[1] == number]:
            text = f"SELECT number, vector_send(vector) FROM vectors_{number} WHERE number = ANY (%s)"
            found = db.execute(text, (wanted,), binary=True).fetchall()
            vectors |= zip((row[0] for row in found), read_vectors([row[1] for row in found], space.width), strict=True)
    return [(item, names[version], vectors.get(number), text) for item, version, number, text in rows]


def as_item(row: Row) -> Item:
    """A stored row as an item, or what is wrong with it."""
    name, version, vector, text = row
    if vector is None:
        raise DamagedItemError(name, version, "the vector is missing")
    try:
        return Item(name, version, vector, json.loads(text))
    except ValueError as error:
        raise DamagedItemError(name, version, f"the payload is damaged ({error})") from error


def remove_items(db: Database, names: list[str]) -> int:
    """Remove items within a transaction that holds the lock."""
    rows = db.execute("DELETE FROM items WHERE id = ANY (%s) RETURNING version, number", (names,)).fetchall()
    for version, fewer in Counter(row[0] for row in rows).items():
        numbers = [number for owner, number in rows if owner == version]
        db.execute(f"DELETE FROM vectors_{version} WHERE number = ANY (%s)", (numbers,))
        db.execute("UPDATE versions SET items = items - %s WHERE number = %s", (fewer, version))
    return len(rows)


def write_items(
    db: Database, version: int, names: list[str], rows: NDArray[np.float32], texts: Sequence[str], last: int
) -> None:
    """Store items of a version, by its number, in the place of those of the same ids; ``last`` is the last's number."""
    remove_items(db, names)
    numbers = np.arange(last - len(names) + 1, last + 1)
    with db.cursor().copy("COPY items (id, version, number, payload) FROM STDIN") as copy:
        for row in zip(names, [version] * len(names), numbers.tolist(), texts, strict=True):
            copy.write_row(row)
    copy_vectors(db, version, numbers, rows)
    db.execute("UPDATE versions SET items = items + %s WHERE number = %s", (len(names), version))
