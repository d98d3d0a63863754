"""What the embedded gallery says to SQLite, within a transaction that its caller holds."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import DamagedItemError
from fixstar.gallery.arguments import unknown_version
from fixstar.gallery.store import Item

__all__ = ["Row", "as_item", "find_version", "items_of", "read_rows", "remove_items", "version_names", "write_items"]

Row = tuple[str, str | None, bytes, bytes]  # id, version, vector, payload

REMOVED_KEPT = 100_000  # a process that missed more reads everything anew


def version_names(db: sqlite3.Connection) -> list[tuple[int, str]]:
    """The number and name of every version."""
    return db.execute("SELECT number, name FROM versions ORDER BY number").fetchall()


def find_version(db: sqlite3.Connection, name: str) -> tuple[int, int]:
    """A version's number and width."""
    row = db.execute("SELECT number, width FROM versions WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise unknown_version(name, [known for _, known in version_names(db)])
    return row[0], row[1]


def read_rows(db: sqlite3.Connection, condition: str, values: Sequence[object]) -> list[Row]:
    """Items that meet a condition, as they are stored: a damaged one does not keep the others from being read."""
    return db.execute(
        "SELECT id, (SELECT name FROM versions WHERE versions.number = items.version), CAST(vector AS BLOB), "
        f"CAST(payload AS BLOB) FROM items WHERE {condition}",
        values,
    ).fetchall()


def as_item(row: Row) -> Item:
    """A stored row as an item, or what is wrong with it."""
    name, version, vector, payload = row
    if version is None:
        raise DamagedItemError(name, version, "it belongs to no version of this gallery")
    if len(vector) % 4:
        raise DamagedItemError(name, version, f"the vector is damaged ({len(vector)} bytes are no whole numbers)")
    try:
        return Item(name, version, np.frombuffer(vector, "<f4").astype(np.float32), json.loads(payload.decode()))
    except ValueError as error:
        raise DamagedItemError(name, version, f"the payload is damaged ({error})") from error


def remove_items(db: sqlite3.Connection, names: list[str]) -> int:
    """Remove items within a transaction, and note their numbers for whoever holds them in memory."""
    rows = db.execute(
        "SELECT version, number FROM items WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(names, ensure_ascii=False),),
    ).fetchall()
    if not rows:
        return 0
    db.executemany("DELETE FROM items WHERE number = ?", ((number,) for _, number in rows))
    db.executemany("INSERT INTO removed (version, item) VALUES (?, ?)", rows)
    fewer = Counter(version for version, _ in rows)
    db.executemany("UPDATE versions SET items = items - ? WHERE number = ?", ((n, v) for v, n in fewer.items()))
    oldest, newest = db.execute("SELECT min(number), max(number) FROM removed").fetchone()
    if newest - oldest >= 2 * REMOVED_KEPT:
        db.execute("DELETE FROM removed WHERE number <= ?", (newest - REMOVED_KEPT,))
    return len(rows)


def items_of(db: sqlite3.Connection, names: Sequence[str]) -> dict[str, Item]:
    """The items of these ids, as far as there are any."""
    wanted = json.dumps(list(names), ensure_ascii=False)
    rows = read_rows(db, "id IN (SELECT value FROM json_each(?))", (wanted,))
    return {row[0]: as_item(row) for row in rows}


def write_items(
    db: sqlite3.Connection, version: int, names: Sequence[str], rows: NDArray[np.float32], texts: Sequence[str]
) -> None:
    """Store items of a version, by its number, in the place of those of the same ids."""
    remove_items(db, list(names))
    blobs, size = memoryview(rows.astype("<f4", copy=False).tobytes()), 4 * rows.shape[1]
    db.executemany(
        "INSERT INTO items (version, id, payload, vector) VALUES (?, ?, ?, ?)",
        ((version, names[i], texts[i], blobs[i * size : (i + 1) * size]) for i in range(len(names))),
    )
    db.execute("UPDATE versions SET items = items + ? WHERE number = ?", (len(names), version))
