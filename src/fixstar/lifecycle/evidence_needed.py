"""Where a difference is not decided: how many queries would decide it, and what may be lost for these to do."""

from __future__ import annotations

import math
from typing import NamedTuple

from fixstar.evaluation import Difference

__all__ = ["WayOut", "least_differing", "needed_queries", "way_out"]

_SMALL = 0.05  # a tolerance that somebody may mean; larger ones only show that evidence is missing
_POINT = 0.01


class WayOut(NamedTuple):
    """A tolerance by which a difference would be compatible: with ``needed`` queries; None stands for these."""

    tolerance: float
    needed: int | None


def needed_queries(found: Difference, queries: int, confidence: float, tolerance: float = 0.0) -> int | None:
    """About how many queries would decide, if the difference stays what it is: rounded up to two digits.

    An interval narrows with the square root of the queries, hence n (half width / distance from -tolerance)^2. Where
    almost none differ its width falls with the queries themselves, and enough of them must differ. None where no
    number would do.

    >>> needed_queries(Difference(0.02, -0.02, 0.06, "not decided", 30), 200, 0.95)
    800
    """
    distance = found.mean + tolerance
    half = found.mean - found.low if distance > 0 else found.high - found.mean
    if not distance or (not found.differing and not tolerance):
        return None
    least = least_differing(confidence)
    if found.differing >= least:
        needed = queries * (half / distance) ** 2
    elif tolerance:
        needed = queries * half / abs(distance)
    else:
        needed = queries * least / found.differing
    unit = int(10 ** max(0, math.floor(math.log10(max(needed, 1))) - 1))
    return max(queries + 1, math.ceil(round(needed / unit, 9)) * unit)


def way_out(found: Difference, queries: int, confidence: float, tolerance: float = 0.0) -> WayOut | None:
    """The least tolerance in whole points that these queries show to be kept, if it is a small one.

    Else a point, or twice the present tolerance, with the queries that it takes. None where that would be refused.

    >>> way_out(Difference(-0.001, -0.013, 0.011, "not decided", 411), 3290, 0.95)
    WayOut(tolerance=0.02, needed=None)
    >>> way_out(Difference(0.0, -0.214, 0.214, "not decided", 6), 28, 0.95)
    WayOut(tolerance=0.01, needed=13000)
    """
    least = (math.floor(round(-found.low / _POINT, 9)) + 1) * _POINT
    if least <= _SMALL:
        return WayOut(round(least, 2), None)
    wanted = 2 * tolerance or _POINT
    if found.mean + wanted <= 0 or wanted >= 1:
        return None
    return WayOut(wanted, needed_queries(found, queries, confidence, wanted))


def least_differing(confidence: float) -> int:
    """So many differing queries, all of one mind, are evidence: n coins agree with probability 2^(1-n)."""
    return math.ceil(1 - math.log2(1 - confidence) - 1e-9)
