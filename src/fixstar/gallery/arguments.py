"""What galleries refuse, and why: checked before anything is stored or searched."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError
from fixstar.gallery.store import Item, Payload, Vectors

__all__ = [
    "checked_ids",
    "checked_projection",
    "checked_vectors",
    "checked_version",
    "payload_texts",
    "replaceable",
    "unknown_version",
]

_LENGTH_TOLERANCE = 1e-3  # half precision is enough; features that nobody normalised are not
_NAME_MARKS = "._-+:@"  # what a version's name may have beside letters and digits: no shell needs quotes around them
_ROUNDING = 5e-7  # of a length in float32: such vectors are stored as they are, so that copies are equal to the bit


def checked_vectors(vectors: Vectors, width: int, version: str) -> NDArray[np.float32]:
    """Vectors [N, width] of length 1 up to the rounding of float32; the array that was given is never changed."""
    array = np.asarray(vectors)
    if array.dtype.kind not in "fiu" or array.ndim != 2 or array.shape[1] != width:
        raise GalleryError(
            f"version {version!r} takes a matrix [vectors, {width}] of real numbers, got {array.dtype} {array.shape}"
        )
    if len(array) == 1 and _is_unit(array[0]):
        return np.ascontiguousarray(array, dtype=np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", array, array, dtype=np.float64, casting="same_kind"))
    if wrong := np.flatnonzero(~(np.abs(lengths - 1) < _LENGTH_TOLERANCE)).tolist():
        raise GalleryError(
            f"{len(wrong)} of {len(array)} vectors are not of length 1: number {wrong[0]} has length "
            f"{lengths[wrong[0]]:.4g}. Divide by the length (fixstar.geometry.unit); zero or NaN come from a broken "
            "image or model"
        )
    rows = np.ascontiguousarray(array, dtype=np.float32)
    if len(off := np.flatnonzero(np.abs(lengths - 1) > _ROUNDING)):
        rows = rows.copy() if rows is array else rows
        rows[off] = array[off] / lengths[off, None]
    return rows


def _is_unit(vector: Vectors) -> bool:
    """Whether it is surely of length 1 up to rounding: a look that costs single queries little."""
    wide = vector.astype(np.float64)
    return abs(math.sqrt(wide.dot(wide)) - 1) < 0.99 * _ROUNDING


def replaceable(
    items: Sequence[Item], now: Mapping[str, Item], rows: int, payloads: Sequence[Payload] | None
) -> tuple[list[int], list[Payload]]:
    """Which of the items still hold the same vector of the same version, and the payloads that these are to have.

    ``rows`` vectors are to replace theirs; without ``payloads`` they keep those that they have ``now``.
    """
    checked_ids([item.id for item in items])
    if len(items) != rows or (payloads is not None and len(payloads) != rows):
        given = "" if payloads is None else f", {len(payloads)} payloads"
        raise GalleryError(f"replace_vectors takes one vector an item; got {len(items)} items, {rows} vectors{given}")
    same = [
        row
        for row, item in enumerate(items)
        if item.id in now
        and now[item.id].version == item.version
        and np.array_equal(now[item.id].vector, np.asarray(item.vector))
    ]
    return same, [now[items[row].id].payload if payloads is None else payloads[row] for row in same]


def checked_ids(ids: Sequence[str], distinct: bool = True) -> list[str]:
    """Ids as a list of strings that every store can hold."""
    if isinstance(ids, str):
        raise GalleryError(f"ids are a list of strings, got the string {ids!r}; write [{ids!r}]")
    known = [str(item) if isinstance(item, np.str_) else item for item in ids]
    for item in known:
        if not isinstance(item, str) or not item or "\0" in item or not _is_unicode(item):
            raise GalleryError(f"an id is a string, not empty, of valid characters other than NUL; got {item!r}")
    if distinct and len(set(known)) != len(known):
        twice = next(item for item in known if known.count(item) > 1)
        raise GalleryError(f"ids must be distinct: {len(known)} ids, {len(set(known))} distinct; {twice!r} comes twice")
    return known


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def payload_texts(ids: Sequence[str], rows: int, payloads: Sequence[Payload] | None) -> list[str]:
    """One JSON document an item."""
    if len(ids) != rows or (payloads is not None and len(payloads) != rows):
        raise GalleryError(
            f"upsert takes one vector and one payload an id; got {len(ids)} ids, {rows} vectors"
            + ("" if payloads is None else f", {len(payloads)} payloads")
        )
    return ["{}"] * rows if payloads is None else list(map(_payload_text, ids, payloads))


def _payload_text(item: str, payload: Any) -> str:
    if not isinstance(payload, Mapping) or not all(isinstance(field, str) for field in payload):
        raise GalleryError(f"the payload of {item!r} must map field names to values, got {payload!r}")
    try:
        text = json.dumps(dict(payload), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError) as error:
        raise GalleryError(f"the payload of {item!r} cannot be written as JSON: {error}") from error
    return text


def checked_projection(
    name: str, width: int, projection: Vectors | None, known: Iterable[str], copied: bool = False
) -> NDArray[np.float32] | None:
    """The projection of a version about to be created; a name that is ``copied`` from another gallery stays."""
    checked_ids([name])
    names = list(known)
    if name in names:
        raise GalleryError(f"the gallery has a version {name!r} already; versions never change, choose a new name")
    if not copied:
        _check_name(name, names)
    if isinstance(width, bool) or not isinstance(width, (int, np.integer)) or width < 1:
        raise GalleryError(f"the width of a version is a number of components, at least 1; got {width!r}")
    if projection is None:
        return None
    matrix = np.ascontiguousarray(projection, dtype=np.float32)
    if matrix.ndim != 2 or 0 in matrix.shape or not np.isfinite(matrix).all():
        raise GalleryError(f"a projection is a matrix [d, m] of finite numbers, got shape {matrix.shape}")
    if width != min(matrix.shape):
        raise GalleryError(f"short forms under a projection {matrix.shape} are {min(matrix.shape)} wide, got {width}")
    return matrix


def _check_name(name: str, known: Sequence[str]) -> None:
    """Refuse a name that no command line or address can hold as it is. NAME@v2 may go on with a name that is there."""
    stem, at, rest = name.rpartition("@")
    new = rest if at and stem in known else name
    if new[:1] in ("-", ".") or not all(map(_is_name_character, new)):
        raise GalleryError(
            f"a version cannot be called {name!r}: a name has letters, digits and {' '.join(_NAME_MARKS)} only, and "
            "does not begin with - or . (names are typed in commands and stand in addresses). Call it such as "
            "old-system"
        )


def _is_name_character(character: str) -> bool:
    """Letters and digits of any script, with their accents, and some marks."""
    return character in _NAME_MARKS or unicodedata.category(character)[0] in "LMN"


def checked_version(version: str, known: Iterable[str]) -> str:
    """A version that the gallery has."""
    if version not in (names := list(known)):
        raise unknown_version(version, names)
    return version


def unknown_version(version: object, known: Iterable[str]) -> GalleryError:
    """What to say about a version that the gallery does not have."""
    return GalleryError(f"the gallery has no version {version!r} (it has: {', '.join(known) or 'none yet'})")
