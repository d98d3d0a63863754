"""Formatting of numbers. Imports nothing, so that the command line starts quickly."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

MINUS = "\N{MINUS SIGN}"


def rounded(value: float, digits: int) -> str:
    """A number as text, rounding ties away from zero like JavaScript, so that the page shows the same digits.

    >>> rounded(21.25, 1), rounded(-0.01, 1)
    ('21.3', '0.0')
    """
    return f"{Decimal(value).quantize(Decimal(10) ** -digits, ROUND_HALF_UP) + 0}"


def percent(fraction: float) -> str:
    """A fraction as text.

    >>> percent(0.4567), percent(0.2125)
    ('45.7 %', '21.3 %')
    """
    return f"{rounded(100 * fraction, 1)} %"


def points(fraction: float) -> str:
    """A difference of two fractions as text, in percentage points and with its sign.

    >>> points(0.0123), points(-0.2), points(-0.00001)
    ('+1.2', '−20.0', '±0.0')
    """
    size = rounded(abs(100 * fraction), 1)
    if float(size) == 0:
        return f"±{size}"
    if fraction > 0:
        return f"+{size}"
    return f"{MINUS}{size}"
