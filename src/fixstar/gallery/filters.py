"""Filters: which payloads a search may find.

A filter maps top-level fields of the payload to conditions; all of them must hold.

    {"shop": "paris"}                          equal to a string, a number, true, false or null
    {"price": {"ge": 10, "lt": 20}}            gt, ge, lt, le: numbers with numbers, strings with strings
    {"colour": {"in": ["red", "blue"]}}        equal to one of these
    {"colour": {"ne": "red"}}                  present, and different
    {"sold": {"exists": False}}                present, or not

An absent field satisfies only ``{"exists": False}``. True is not 1. A list in the payload is compared as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fixstar.errors import GalleryError

Payload = Mapping[str, Any]
Where = Mapping[str, Any]
_Test = Callable[[Any], bool]
_MISSING: Any = object()


def payload_test(where: Where) -> Callable[[Payload], bool]:
    """A function that tests payloads; raises if the filter is invalid.

    >>> cheap = payload_test({"price": {"lt": 20}})
    >>> cheap({"price": 10}), cheap({"price": 30}), cheap({})
    (True, False, False)
    """
    if not isinstance(where, Mapping) or not all(isinstance(field, str) for field in where):
        raise GalleryError(f'a filter maps payload fields to conditions, such as {{"shop": "paris"}}; got {where!r}')
    tests = [(field, _operation(field, name, operand)) for field, name, operand in conditions(where)]
    return lambda payload: all(test(payload.get(field, _MISSING)) for field, test in tests)


def filter_key(where: Where) -> str:
    """A text that is equal for equal filters."""
    try:
        return json.dumps(where, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise GalleryError(f"a filter holds strings, numbers, true, false, null and lists of them: {error}") from error


def conditions(where: Where) -> list[tuple[str, str, Any]]:
    """(field, condition, operand) of a filter; a plain value is a condition "eq"."""
    named = {field: cond if isinstance(cond, Mapping) else {"eq": cond} for field, cond in where.items()}
    return [(field, name, operand) for field, condition in named.items() for name, operand in condition.items()]


def _operation(field: str, name: str, operand: Any) -> _Test:
    if name not in _OPERATIONS:
        raise GalleryError(f"field {field!r}: no condition {name!r}; use one of {', '.join(sorted(_OPERATIONS))}")
    if name == "in" and not isinstance(operand, (list, tuple)):
        raise GalleryError(f"field {field!r}: 'in' takes a list of values, got {operand!r}")
    if name == "exists" and not isinstance(operand, bool):
        raise GalleryError(f"field {field!r}: 'exists' takes True or False, got {operand!r}")
    if name in ("gt", "ge", "lt", "le") and _kind(operand) not in (float, str):
        raise GalleryError(f"field {field!r}: {name!r} takes a number or a string, got {operand!r}")
    test = _OPERATIONS[name]
    return lambda value: test(value, operand)


def _kind(value: Any) -> type:
    """All numbers are of one kind, true and false of another."""
    return float if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value)


def _same(value: Any, operand: Any) -> bool:
    if isinstance(operand, (list, tuple)):
        return isinstance(value, list) and len(value) == len(operand) and all(map(_same, value, operand))
    return _kind(value) is _kind(operand) and bool(value == operand)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda value, operand: _kind(value) is _kind(operand) and compare(value, operand)


_OPERATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": _same,
    "ne": lambda value, operand: value is not _MISSING and not _same(value, operand),
    "in": lambda value, operand: any(_same(value, one) for one in operand),
    "exists": lambda value, operand: (value is not _MISSING) is operand,
    "gt": _ordered(lambda value, operand: bool(value > operand)),
    "ge": _ordered(lambda value, operand: bool(value >= operand)),
    "lt": _ordered(lambda value, operand: bool(value < operand)),
    "le": _ordered(lambda value, operand: bool(value <= operand)),
}
