"""Payload filters in SQL: what they leave out is surely out, what they let through is tested again in Python.

So a condition need not be said in SQL: one that PostgreSQL would see differently is left to Python. Those are numbers
of 2^53 and more (1e23 is no 10^23 in Python), objects (where Python takes 1 and true for equal) and strings with NUL.
Payloads that hold NUL in a string, which jsonb cannot, are all let through.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from fixstar.gallery.store import Where

__all__ = ["Narrowing", "narrowing"]

_EXACT = 2**53
_ORDERS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


class Narrowing(NamedTuple):
    """A condition about ``fields`` (jsonb), and its parameters; empty where nothing is narrowed."""

    text: str
    values: list[Any]


def narrowing(where: Where | None) -> Narrowing:
    """The part of a valid filter that PostgreSQL can decide.

    >>> narrowing({"shop": "paris"})
    Narrowing(text='fields -> %s::text = %s::jsonb', values=['shop', '"paris"'])
    """
    texts: list[str] = []
    values: list[Any] = []
    for name, condition in (where or {}).items():
        named = condition if isinstance(condition, Mapping) else {"eq": condition}
        for operation, operand in named.items():
            if _is_plain(name) and _is_plain(operand):
                text, more = _said(name, operation, operand)
                texts.append(text)
                values += more
    return Narrowing(" AND ".join(texts), values)


def _said(name: str, operation: str, operand: Any) -> tuple[str, list[Any]]:
    if operation == "exists":
        return f"fields -> %s::text IS {'NOT ' if operand else ''}NULL", [name]
    if operation == "in":
        return "fields -> %s::text = ANY (%s::jsonb[])", [name, [json.dumps(one) for one in operand]]
    if operation in ("eq", "ne"):
        return f"fields -> %s::text {'=' if operation == 'eq' else '<>'} %s::jsonb", [name, json.dumps(operand)]
    sign = _ORDERS[operation]
    if isinstance(operand, str):  # by code point, as Python does
        return (
            f"(jsonb_typeof(fields -> %s::text) = 'string' AND (fields ->> %s::text) COLLATE \"C\" {sign} %s)",
            [name, name, operand],
        )
    return (
        f"(jsonb_typeof(fields -> %s::text) = 'number' AND fields -> %s::text {sign} %s::jsonb)",
        [name, name, json.dumps(operand)],
    )


def _is_plain(value: Any) -> bool:
    """Whether Python and PostgreSQL see the same in it."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return "\0" not in value and _encodes(value)
    if isinstance(value, (int, float)):
        return abs(value) < _EXACT
    return value is None


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True
