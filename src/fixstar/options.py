"""Options that users set by name. Default and description stand once, at the field of a dataclass.

Every front end reads them there: the command line for its help, the HTTP schemas for their defaults.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any, TypeVar

Value = TypeVar("Value")


def described(default: Value, what: str) -> Value:
    """A field of a dataclass with its default, and what it does in a sentence that every front end can show."""
    return field(default=default, metadata={"what": what})


def description(kind: Any, name: str) -> str:
    """What the field ``name`` of a dataclass does.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Pace:
    ...     rate: float = described(2.0, "Items per second.")
    >>> Pace().rate, description(Pace, "rate")
    (2.0, 'Items per second.')
    """
    what: str = next(one for one in fields(kind) if one.name == name).metadata["what"]
    return what
