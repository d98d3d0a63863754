"""Filters on the payloads of a search.

A filter maps top-level fields of the payload to conditions; all of them must hold.

    {"shop": "paris"}                          equal to a string, a number, true, false or null
    {"price": {"ge": 10, "lt": 20}}            gt, ge, lt, le: numbers with numbers, strings with strings
    {"colour": {"in": ["red", "blue"]}}        equal to one of the values
    {"colour": {"ne": "red"}}                  present, and different
    {"sold": {"exists": False}}                present, or not

An absent field satisfies only ``{"exists": False}``. True is not 1. A list in the payload is compared as a whole.
The cost of a filter is limited: the number of conditions and values, and the time it takes.
"""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from fixstar.errors import GalleryError

Payload = Mapping[str, Any]
Where = Mapping[str, Any]
_Test = Callable[[Any], bool]
_MISSING: Any = object()
_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
}
_CONDITIONS = sorted([*_ORDERS, "eq", "exists", "in", "ne"])
_MAX_CONDITIONS = 100
_MAX_VALUES = 10_000  # in all lists of a filter together
_SECONDS = 10.0  # CPU time of the thread for all payloads of one test; the time of a server is not included
_OFTEN = 256  # payloads between two checks of the clock


def payload_test(where: Where) -> Callable[[Payload], bool]:
    """A function that tests payloads; raises if the filter is invalid. The time limit starts now.

    >>> cheap = payload_test({"price": {"lt": 20}})
    >>> cheap({"price": 10}), cheap({"price": 30}), cheap({})
    (True, False, False)
    """
    if not isinstance(where, Mapping) or not all(isinstance(field, str) for field in where):
        raise GalleryError(
            f'a filter maps payload fields to conditions, such as {{"shop": "paris"}}; got {where!r}'
        )
    wanted = conditions(where)
    if len(wanted) > _MAX_CONDITIONS:
        raise GalleryError(f"a filter has up to {_MAX_CONDITIONS} conditions, got {len(wanted)}")
    if (values := sum(_count(operand) for _, _, operand in wanted)) > _MAX_VALUES:
        raise GalleryError(f"a filter has up to {_MAX_VALUES:,} values, got {values:,}")
    tests = [(field, _operation(field, name, operand)) for field, name, operand in wanted]
    end = time.thread_time() + _SECONDS
    asked = 0

    def passes(payload: Payload) -> bool:
        nonlocal asked
        asked += 1
        if asked % _OFTEN == 0 and time.thread_time() > end:
            raise GalleryError(
                f"this filter took more than {_SECONDS:g} s; use fewer conditions, or ask again: what was compared "
                "so far may be remembered"
            )
        return all(test(payload.get(field, _MISSING)) for field, test in tests)

    return passes


def _count(operand: Any) -> int:
    if isinstance(operand, (list, tuple)):
        return sum(map(_count, operand))
    return 1


def filter_key(where: Where) -> str:
    """A text that is equal for equal filters."""
    try:
        return json.dumps(where, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise GalleryError(
            f"a filter holds strings, numbers, true, false, null and lists of them: {error}"
        ) from error


def conditions(where: Where) -> list[tuple[str, str, Any]]:
    """(field, condition, operand) of a filter; a plain value is a condition "eq"."""
    named = {
        field: cond if isinstance(cond, Mapping) else {"eq": cond} for field, cond in where.items()
    }
    return [
        (field, name, operand)
        for field, condition in named.items()
        for name, operand in condition.items()
    ]


def _operation(field: str, name: str, operand: Any) -> _Test:
    if name not in _CONDITIONS:
        raise GalleryError(
            f"field {field!r}: no condition {name!r}; use one of {', '.join(_CONDITIONS)}"
        )
    if name == "exists":
        if not isinstance(operand, bool):
            raise GalleryError(f"field {field!r}: 'exists' takes True or False, got {operand!r}")
        return lambda value: (value is not _MISSING) is operand
    if name == "in":
        if not isinstance(operand, (list, tuple)):
            raise GalleryError(f"field {field!r}: 'in' takes a list of values, got {operand!r}")
        keys = frozenset(map(_key, operand))
        return lambda value: _key(value) in keys
    key = _key(operand)
    if name == "eq":
        return lambda value: _key(value) == key
    if name == "ne":
        return lambda value: value is not _MISSING and _key(value) != key
    kind = _kind(operand)
    compare = _ORDERS[name]
    if kind not in (float, str):
        raise GalleryError(f"field {field!r}: {name!r} takes a number or a string, got {operand!r}")
    return lambda value: _kind(value) is kind and bool(compare(value, operand))


def _kind(value: Any) -> type:
    """The type for comparisons: all numbers have one, true and false another."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float
    return type(value)


def _key(value: Any) -> Hashable:
    """Type and value, equal for equal values, also inside lists and objects."""
    if isinstance(value, (list, tuple)):
        return list, tuple(map(_key, value))
    if isinstance(value, Mapping):
        return dict, frozenset((field, _key(one)) for field, one in value.items())
    return _kind(value), value
