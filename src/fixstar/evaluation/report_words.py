"""What a cross-test says, in sentences: may the newest version search the galleries of the older ones?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fixstar.evaluation.cross_test import CrossTest
from fixstar.evaluation.evidence import Difference
from fixstar.evaluation.mixed import BackfillCurve

__all__ = ["MARKS", "Sentence", "backfill_sentence", "percent", "points", "verdict_sentences"]

Cell = tuple[int, int]

MARKS = {"compatible": "", "incompatible": "x", "not decided": "?"}
"""How a cell is marked beside its number."""

LONGEST = 6  # names that are listed in full
VISIBLE = 0.005  # a fall that is worth a warning


class Sentence(NamedTuple):
    """A verdict and the sentence that states it."""

    verdict: str
    text: str


def verdict_sentences(test: CrossTest, evidence: Mapping[Cell, Difference], confidence: float) -> list[Sentence]:
    """One sentence a verdict about the newest version: over which galleries it can be deployed, and over which not."""
    newest = len(test.names) - 1
    said = []
    for verdict in ("compatible", "not decided", "incompatible"):
        older = [k for k in range(newest) if evidence[newest, k].verdict == verdict]
        if older:
            said.append(Sentence(verdict, _sentence(verdict, test, evidence, older, confidence)))
    return said


def _sentence(
    verdict: str, test: CrossTest, evidence: Mapping[Cell, Difference], older: Sequence[int], confidence: float
) -> str:
    newest = len(test.names) - 1
    name = test.names[newest]
    whose = _listed([f"{test.names[k]}'s" for k in older]) + (" gallery" if len(older) == 1 else " galleries")
    begin = {
        "compatible": f"{name} can be deployed over {whose}",
        "not decided": f"It is not decided whether {name} can be deployed over {whose}",
        "incompatible": f"{name} must not be deployed over {whose}",
    }[verdict]
    if len(older) == 1:
        (k,) = older
        cell = evidence[newest, k]
        return (
            f"{begin}: its queries reach {percent(float(test.matrix[newest, k]))} there, {test.names[k]}'s own "
            f"{percent(float(test.matrix[k, k]))}. The difference is {points(cell.mean)} points, and with "
            f"{100 * confidence:g} % confidence between {points(cell.low)} and {points(cell.high)}."
        )
    means = [evidence[newest, k].mean for k in older]
    return (
        f"{begin}: its queries differ from those of the gallery's own version by {points(min(means))} to "
        f"{points(max(means))} points there."
    )


def backfill_sentence(curve: BackfillCurve) -> str:
    """A warning where a gallery that is partly re-embedded does worse than one that is not; empty where it does not.

    New queries may lie nearer to new vectors than to old ones of their own class: these then crowd the answers.
    """
    between = np.flatnonzero((curve.shares > 0) & (curve.shares < 1))
    if not len(between):
        return ""
    start, worst = int(curve.shares.argmin()), int(between[curve.accuracy[between].argmin()])
    before, after = float(curve.accuracy[start]), float(curve.accuracy[worst])
    if after > before - VISIBLE:
        return ""
    return (
        f"A gallery that is {percent(float(curve.shares[worst]))} re-embedded reaches {percent(after)}, one that is "
        f"{percent(float(curve.shares[start]))} re-embedded {percent(before)}. Do not serve from a mixed gallery: "
        "re-embed it aside, and switch at once."
    )


def percent(fraction: float) -> str:
    """For people.

    >>> percent(0.4567)
    '45.7 %'
    """
    return f"{100 * fraction:z.1f} %"


def points(fraction: float) -> str:
    """A difference of two fractions, in percentage points and with its sign.

    >>> points(0.0123), points(-0.2), points(-0.00001)
    ('+1.2', '−20.0', '+0.0')
    """
    return f"{100 * fraction:+z.1f}".replace("-", "\N{MINUS SIGN}")


def _listed(names: Sequence[str]) -> str:
    """Names with commas between and "and" before the last; in the middle of many, how many more there are."""
    if len(names) > LONGEST:
        names = [*names[:3], f"{len(names) - 4} others'", names[-1]]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
