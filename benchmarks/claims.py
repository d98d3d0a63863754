"""Claims about printed figures: whether a page prints what a claim says, and which figures have no claim.

A claim is a piece of a page with {} in place of each figure, and the values of the figures in that order. Bold marks
and line breaks do not count. ``figures.py`` has the claims.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
README = "README.md"
MEASURED = "\n## What was measured\n"

NUMBER = r"[-+\u2212]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"


class Claim(NamedTuple):
    """A piece of a page, {} in place of each figure, and what the figures are."""

    page: str
    text: str
    values: Sequence[float]


class Quote(NamedTuple):
    """A piece of a page with figures that were not measured by a file here, and where they come from."""

    page: str
    text: str
    source: str


# Pages


@cache
def page_text(page: str) -> str:
    """A page as claims see it."""
    return plain((ROOT / page).read_text(encoding="utf-8"))


def plain(text: str) -> str:
    """Without bold marks, on one line.

    >>> plain("AC **.97**,\\n  AA 52.2")
    'AC .97, AA 52.2'
    """
    return " ".join(text.replace("**", "").split())


def pattern(claim: Claim | Quote) -> re.Pattern[str]:
    """What finds a claim or a quote on its page."""
    escaped = re.escape(plain(claim.text))
    return re.compile(escaped.replace(re.escape("{}"), f"({NUMBER})"))


def agrees(printed: str, value: float) -> bool:
    """Whether a value is the printed figure, rounded to as many digits. A half may be rounded either way.

    >>> agrees("+1.1", 1.06), agrees(".85", 0.855), agrees("10,000", 10_000), agrees("0.9", 0.84)
    (True, True, True, False)
    """
    number = printed.replace(",", "").replace("\u2212", "-")
    digits = len(number.partition(".")[2])
    off = abs(float(number) - value) * 10.0**digits
    return off <= 0.5 + 1e-6


def problems(claim: Claim | Quote) -> list[str]:
    """What is wrong with a claim or a quote; empty if nothing is."""
    found = list(pattern(claim).finditer(page_text(claim.page)))
    start = claim.text[:90]
    if len(found) != 1:
        return [f"{claim.page}: {len(found)} places have {start!r}; one is expected"]
    if isinstance(claim, Quote):
        return []
    printed = found[0].groups()
    if len(printed) != len(claim.values):
        return [
            f"{claim.page}: {start!r} has {len(printed)} figures and {len(claim.values)} values"
        ]
    pairs = enumerate(zip(printed, claim.values, strict=True), start=1)
    return [
        f"{claim.page}: {start!r}, figure {place}: {text} is printed, the files give {value:.5g}"
        for place, (text, value) in pairs
        if not agrees(text, value)
    ]


# Figures without a claim


def uncovered(page: str, covered: Sequence[Claim | Quote]) -> list[str]:
    """Figures of a page that no claim or quote has: in table cells, and in the README's prose if they have a point.

    Tables between marks are left out: a program writes them, and ``figures.generated`` compares them. Of the
    README only the section "What was measured" counts, if it has one.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"(?s)<!-- ((?!end of )\S+(?: \S+)?) -->.*?<!-- end of \1 -->", "", text)
    if page == README and MEASURED in text:
        text = text.partition(MEASURED)[2].partition("\n## ")[0]
    patterns = [pattern(claim) for claim in covered if claim.page == page]
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [plain(line) for line in paragraph.strip().splitlines()]
        is_table = len(lines) > 1 and re.fullmatch(r"[|:\- ]+", lines[1]) is not None
        if is_table:
            rows = lines[2:]
            rest = _masked(" ".join(rows), patterns)
            for row in rows:
                mine = rest[: len(row)]
                rest = rest[len(row) + 1 :]
                if re.search(r"\d", mine[_label_end(row) :]):
                    found.append(f"{page}: {row}")
        elif page == README:
            rest = _masked(plain(paragraph), patterns)
            found += [
                f"{page}: {number} in {plain(paragraph)[:60]!r}"
                for number in re.findall(r"\d*\.\d+", rest)
            ]
    return found


def _masked(text: str, patterns: Iterable[re.Pattern[str]]) -> str:
    """A text of the same length, without the pieces that the patterns find."""
    rest = text
    for one in patterns:
        for match in one.finditer(text):
            rest = rest[: match.start()] + "#" * len(match[0]) + rest[match.end() :]
    return rest


def _label_end(row: str) -> int:
    """Where the label of a table's row ends: behind the first cell with letters, or behind the first cell.

    >>> "| 7 | Polaris, K = 10,000 | .97 |"[_label_end("| 7 | Polaris, K = 10,000 | .97 |") :]
    ' .97 |'
    """
    cells = list(re.finditer(r"[^|]*[A-Za-z][^|]*\|", row)) or list(re.finditer(r"[^|]+\|", row))
    if cells:
        return cells[0].end()
    return 0
