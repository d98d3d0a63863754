"""Verdicts: whether one way to search is better than another, and what more evidence an open verdict needs.

A verdict compares two searches query by query (paired bootstrap). It is "compatible" if the interval of the difference
lies above -tolerance, "incompatible" if it lies at or below it, else "not decided".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError, NextStep, plural
from fixstar.evaluation.evidence import Difference, Verdict, paired_bootstrap
from fixstar.options import described
from fixstar.wording import percent

Outcomes = NDArray[Any]  # per query: hits, or shares such as nDCG
Labels = NDArray[np.integer[Any]]
Indices = NDArray[np.int64]

_SMALL_TOLERANCE = 0.05  # maximum tolerance to suggest
_POINT = 0.01


@dataclass(frozen=True)
class GateRules:
    """The confidence of the verdict, and how much of the old self-test may be lost: fractions.

    ``weight`` fixes the w of translations, so that all queries judge; by default half of the queries choose w.
    """

    confidence: float = described(0.95, "Confidence of the verdict, between 0 and 1.")
    tolerance: float = described(
        0.0, "How much accuracy may be lost: 0.01 is one point, 0 requires a gain."
    )
    seed: int = described(0, "Seed of the split into gallery and queries and of the bootstrap.")
    weight: float | None = described(
        None,
        "Judge translations at this weight, from 0 (the old space alone) to 1 (the new space alone).",
    )

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise InputError(
                f"confidence is a fraction between 0 and 1, such as 0.95; got {self.confidence:g}"
            )
        if not 0 <= self.tolerance < 1:
            raise InputError(
                f"tolerance is a fraction from 0 to 1, such as 0.01 for a point; got {self.tolerance:g}"
            )
        if self.seed < 0:
            raise InputError(f"seed must be at least 0, got {self.seed}")
        if self.weight is not None and not 0 <= self.weight <= 1:
            raise InputError(
                f"the weight of a translation lies between 0 and 1; got {self.weight:g}"
            )

    def shared(self, cells: int) -> float:
        """The confidence of each of several intervals that must hold together (Bonferroni)."""
        return 1 - (1 - self.confidence) / max(cells, 1)


def judged_difference(
    after: Outcomes, before: Outcomes, confidence: float, rules: GateRules
) -> Difference:
    """The difference between two searches of the same queries [N], its interval, and the verdict by the tolerance.

    If few queries differ, the interval is at least that of the flips alone (Clopper and Pearson, 1934).
    """
    measured = paired_bootstrap(after, before, confidence=confidence, seed=rules.seed)
    low = measured.low
    high = measured.high
    if measured.differing < least_differing(confidence):
        lost = int(np.count_nonzero(after < before))
        won = int(np.count_nonzero(after > before))
        low = min(low, -highest_rate(lost, len(before), confidence))
        high = max(high, highest_rate(won, len(before), confidence))
    verdict: Verdict = "not decided"
    if low > -rules.tolerance:
        verdict = "compatible"
    elif high <= -rules.tolerance:
        verdict = "incompatible"
    return replace(measured, low=low, high=high, verdict=verdict)


def highest_rate(seen: int, of: int, confidence: float) -> float:
    """The highest rate at which an event is seen this rarely in a share (1 - confidence) / 2 of all cases."""
    low = seen / of
    high = 1.0
    for _ in range(60):
        rate = (low + high) / 2
        this_rarely = math.fsum(
            math.comb(of, i) * rate**i * (1 - rate) ** (of - i) for i in range(seen + 1)
        )
        if this_rarely > (1 - confidence) / 2:
            low = rate
        else:
            high = rate
    return high


def halves(labels: Labels, seed: int) -> tuple[Indices, Indices]:
    """Split the rows of queries in half within each class; for odd numbers the second half is smaller by one."""
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return np.sort(by_class[::2]), np.sort(by_class[1::2])


# --- how much evidence would decide


def least_differing(confidence: float) -> int:
    """The minimum number of differing queries for evidence if all agree: n coins agree with probability 2^(1-n)."""
    return math.ceil(1 - math.log2(1 - confidence) - 1e-9)


def needed_queries(
    found: Difference, queries: int, confidence: float, tolerance: float = 0.0
) -> int | None:
    """The approximate number of queries for a decision at the same difference, rounded up to two digits.

    An interval narrows with the square root of the queries: n (half width / distance from -tolerance)^2; if almost none
    differ, with the number itself. None if no number is enough.

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


def achievable_tolerance(
    found: Difference, queries: int, confidence: float, tolerance: float = 0.0
) -> tuple[float, int | None] | None:
    """The smallest tolerance in whole points that these queries already prove, if it is small, and None.

    Otherwise one point, or twice the current tolerance, and the number of queries for it. None if it would be refused.

    >>> achievable_tolerance(Difference(-0.001, -0.013, 0.011, "not decided", 411), 3290, 0.95)
    (0.02, None)
    >>> achievable_tolerance(Difference(0.0, -0.214, 0.214, "not decided", 6), 28, 0.95)
    (0.01, 13000)
    """
    least = (math.floor(round(-found.low / _POINT, 9)) + 1) * _POINT
    if least <= _SMALL_TOLERANCE:
        return round(least, 2), None
    wanted = 2 * tolerance or _POINT
    if found.mean + wanted <= 0 or wanted >= 1:
        return None
    return wanted, needed_queries(found, queries, confidence, wanted)


def missing_evidence(
    judged: Difference,
    queries: int,
    confidence: float,
    tolerance: float,
    more: NextStep,
    unit: str,
    chosen_by: bool = False,
) -> tuple[list[str], list[NextStep]]:
    """The evidence that an undecided cell needs, in sentences and as steps.

    One query takes two of ``unit``, since half of them are the gallery. It takes four if other queries chose the
    translation (``chosen_by``).
    """
    each = 4 if chosen_by else 2
    halved = "Half of each class is the gallery"
    if chosen_by:
        halved += ", and half of the queries choose the translation"
    needed = needed_queries(judged, queries, confidence, tolerance)
    if needed is None:
        asked = plural(queries, "query")
        told = [f"All {asked} have the same outcome as before, so there is no gain to show"]
        if judged.differing:
            told = [
                f"Among {asked} as many are lost as won: if it stays like this, more images would not show a gain"
            ]
        steps = []
    else:
        told = [
            f"If it stays like this, about {needed:,} queries would decide; there were {queries:,}. {halved}, so that "
            f"takes about {each * needed:,} {unit}"
        ]
        steps = [replace(more, note=f"about {each * needed:,} {unit}")]
    achievable = achievable_tolerance(judged, queries, confidence, tolerance)
    if achievable is None or (needed is not None and tolerance):
        return told, steps
    allowed, queries_for_it = achievable
    loss = f"If a loss of less than {in_points(allowed)} points is acceptable"
    arguments = {
        name: value for name, value in more.arguments.items() if value is not ... or queries_for_it
    }
    if queries_for_it is None:
        told.append(f"{loss}, these queries show that")
        note = f"accept a loss of less than {in_points(allowed)} points"
    else:
        told.append(
            f"{loss}, about {queries_for_it:,} queries ({each * queries_for_it:,} {unit}) would show that; these "
            f"{queries:,} leave a loss of {in_points(-judged.low)} points possible"
        )
        note = f"about {each * queries_for_it:,} {unit}, a loss of less than {in_points(allowed)} points accepted"
    return told, [*steps, NextStep(more.action, {**arguments, "tolerance": allowed}, note)]


def in_points(fraction: float) -> str:
    """A fraction in percentage points, without the sign for percent.

    >>> in_points(0.015)
    '1.5'
    """
    return percent(fraction)[:-2]
