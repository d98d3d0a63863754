"""An item as a Qdrant point, and a filter as a Qdrant filter.

A point's payload is not the item's payload, because Qdrant's conditions do not mean what ``filters`` says: True may be
1 there, a list matches by any of its elements, nothing tells null from absent. It holds

    id        the item's id; the point's own id is a UUID made from it, since Qdrant takes no other strings
    written   the number of the write: a later write of the same item has a higher one
    text      the item's payload as JSON, which comes back as it was given
    terms     one text for each field ("it is there") and one for each field and value ("it is this"), made so that
              equal texts are equal values by the rules of ``filters``; one keyword index answers for every field
    numbers   the fields that are numbers, for ranges

The filter that the server gets lets through everything that ``payload_test`` would, and for most conditions nothing
else; whoever searches tests the rest.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fixstar.errors import DamagedItemError, GalleryError
from fixstar.gallery.filters import filter_key, payload_test
from fixstar.gallery.store import Item, Payload, Where

if TYPE_CHECKING:
    from qdrant_client import models

__all__ = [
    "as_item",
    "checked_prefix",
    "item_name",
    "item_payload",
    "known_name",
    "lost_name",
    "point_id",
    "point_payload",
    "server_filter",
    "written_as",
]

_NAMESPACE = uuid.UUID("6d1f6a0e-9a3c-5c5b-8d53-0f1b7a1c2e44")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")  # names that need no quotes in Qdrant's paths
_LONG = 100  # a longer term is kept as its hash: an index of whole descriptions serves nobody
_WHOLE = 1 << 53  # below, every integer is a float
_NEVER = ""  # no term is empty; "in" of nothing is a list all the same


def point_id(name: str) -> str:
    """The UUID that stands for an id, or for anything else that has a name."""
    return str(uuid.uuid5(_NAMESPACE, name))


def point_payload(item: str, written: int, text: str) -> dict[str, Any]:
    """What is stored beside the vector of an item whose payload is ``text``."""
    fields: dict[str, Any] = json.loads(text)
    terms = [_term(field) for field in fields]
    terms += [_term(field, _plain_value(value)) for field, value in fields.items() if _is_comparable(value)]
    numbers = {field: _float(value) for field, value in fields.items() if _is_number(value) and _PLAIN.fullmatch(field)}
    return {"id": item, "written": written, "text": text, "terms": terms, "numbers": numbers}


def known_name(point: Any) -> str | None:
    """The id of a point's item; None where the point has lost it."""
    name = (point.payload or {}).get("id")
    return name if isinstance(name, str) else None


def item_name(point: Any, version: str) -> str:
    """The id of a point's item, or what is wrong with the point."""
    name = known_name(point)
    if name is None:
        raise lost_name(str(point.id), version)
    return name


def lost_name(point: str, version: str) -> DamagedItemError:
    """What to say of a point that no longer says which item it is."""
    return DamagedItemError(point, version, "this is the id of a Qdrant point, which has lost the id of its item")


def written_as(point: Any) -> int:
    """The number of the write of a point; 0, which is older than any, where the point has lost it."""
    number: int = (point.payload or {}).get("written", 0)
    return number


def item_payload(point: Any, version: str) -> Payload:
    """The payload of a point's item, made anew, or what is wrong with it."""
    text: Any = (point.payload or {}).get("text")
    try:
        payload: Payload = json.loads(text)
    except (TypeError, ValueError) as error:
        reason = "the payload is missing" if text is None else f"the payload is damaged ({error})"
        raise DamagedItemError(known_name(point) or str(point.id), version, reason) from error
    return payload


def as_item(name: str, version: str, point: Any) -> Item:
    """A point as the item of this name, or what is wrong with it."""
    if known_name(point) is None:
        raise DamagedItemError(name, version, "its point has lost its id")
    return Item(name, version, np.array(point.vector, np.float32), item_payload(point, version))


def server_filter(where: Where | None) -> models.Filter | None:
    """A Qdrant filter that holds wherever ``where`` does; the filter is checked first."""
    if where is None:
        return None
    payload_test(where)
    filter_key(where)
    from qdrant_client import models

    must: list[Any] = []
    must_not: list[Any] = []
    for field, condition in where.items():
        for name, operand in (condition if isinstance(condition, Mapping) else {"eq": condition}).items():
            for wanted, one in _conditions(models, field, name, operand):
                (must if wanted else must_not).append(one)
    return models.Filter(must=must or None, must_not=must_not or None)


def _conditions(models: Any, field: str, name: str, operand: Any) -> list[tuple[bool, Any]]:
    """(must it hold, or must it not; the condition) for one condition on one field."""

    def one_of(*terms: str) -> Any:
        return models.FieldCondition(key="terms", match=models.MatchAny(any=list(terms)))

    there = (True, one_of(_term(field)))
    if name == "exists":
        return [(operand, there[1])]
    if name in ("eq", "ne"):
        if not _is_comparable(operand):
            return [there]
        same = one_of(_term(field, _plain_value(operand)))
        return [(True, same)] if name == "eq" else [there, (False, same)]
    if name == "in":
        if not all(map(_is_comparable, operand)):
            return [there]
        return [(True, one_of(_NEVER, *(_term(field, _plain_value(one)) for one in operand)))]
    if not _is_number(operand) or not _PLAIN.fullmatch(field):
        return [there]
    # The server compares floats: a large integer may fall on its neighbour, so the border itself is let through there
    side = name[0] + "t" + ("e" if name[1] == "e" or abs(operand) >= _WHOLE else "")
    return [(True, models.FieldCondition(key=f"numbers.{field}", range=models.Range(**{side: _float(operand)})))]


def _term(field: str, *value: Any) -> str:
    text = json.dumps([field, *value])
    return text if len(text) <= _LONG else hashlib.sha256(text.encode()).hexdigest()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_comparable(value: Any) -> bool:
    """Whether equal values have equal texts; objects do not, their order is free."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_comparable, value))
    return value is None or isinstance(value, (str, bool, int, float))


def _plain_value(value: Any) -> Any:
    """1 and 1.0 are one number."""
    if isinstance(value, (list, tuple)):
        return [_plain_value(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return sys.float_info.max if value > 0 else -sys.float_info.max


def checked_prefix(prefix: str) -> str:
    """A prefix of collection names."""
    if not _PLAIN.fullmatch(prefix):
        raise GalleryError(f"a prefix of Qdrant collections has letters, digits, _ and - only; got {prefix!r}")
    return prefix
