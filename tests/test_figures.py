"""Printed figures are what their files say: claims of benchmarks/figures.py, and tables that programs write."""

from __future__ import annotations

import doctest
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import claims
import figures
from claims import Claim, Quote, problems, uncovered


@pytest.fixture(scope="module")
def everything() -> list[Claim | Quote]:
    return figures.claims()


def test_every_claimed_figure_is_what_its_file_says(everything: list[Claim | Quote]) -> None:
    assert [problem for claim in everything for problem in problems(claim)] == []
    assert sum(len(claim.values) for claim in everything if isinstance(claim, Claim)) > 900


@pytest.mark.parametrize("page", figures.COMPLETE)
def test_no_figure_is_without_a_claim_or_a_source(
    page: str, everything: list[Claim | Quote]
) -> None:
    assert uncovered(page, everything) == []


def test_written_tables_are_what_their_programs_write_now() -> None:
    for place, (there, now) in figures.generated().items():
        assert there == now, place


def test_a_quote_has_a_source(everything: list[Claim | Quote]) -> None:
    quotes = [claim for claim in everything if isinstance(claim, Quote)]
    assert all(quote.source for quote in quotes)


# That these tests can fail

PAGE = """
# A page

## What was measured

| | runs | AC | AA |
|---|---|---|---|
| 7 | ours, K = 10,000 | 3 | **.97** | 52.2 [+51.9, 52.6] |
| 7 | theirs | | .86 | 48.2 |

A step takes 1.45 ms, on
one of 16 cores.

<!-- a table -->
| | AC |
|---|---|
| written by a program | .11 |
<!-- end of a table -->

## Another section

Version 2.11 of torch.
"""
OURS = Claim(
    "README.md", "| ours, K = 10,000 | {} | {} | {} [{}, {}] |", [3, 0.968, 52.19, 51.9, 52.6]
)
THEIRS = Quote("README.md", "| theirs | | .86 | 48.2 |", "their table 2")
STEP = Claim("README.md", "takes {} ms, on one of", [1.4499])


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    claims.page_text.cache_clear()
    path = tmp_path / "README.md"
    path.write_text(PAGE)
    yield path
    claims.page_text.cache_clear()


@pytest.mark.usefixtures("page")
def test_claims_that_hold() -> None:
    assert [problem for claim in (OURS, THEIRS, STEP) for problem in problems(claim)] == []
    assert uncovered("README.md", [OURS, THEIRS, STEP]) == []


@pytest.mark.usefixtures("page")
@pytest.mark.parametrize(
    ("claim", "told"),
    [
        (
            OURS._replace(values=[3, 0.964, 52.19, 51.9, 52.6]),
            "figure 2: .97 is printed, the files give 0.964",
        ),
        (
            OURS._replace(values=[3, 0.968, 52.26, 51.9, 52.6]),
            "figure 3: 52.2 is printed, the files give 52.26",
        ),
        (
            OURS._replace(values=[3, 0.968, 52.19, -51.9, 52.6]),
            "figure 4: +51.9 is printed, the files give -51.9",
        ),
        (OURS._replace(values=[3]), "has 5 figures and 1 values"),
        (STEP._replace(text="takes {} s"), "0 places have"),
        (STEP._replace(text="A"), "places have 'A'; one is expected"),
        (THEIRS._replace(text="| theirs | | .87"), "0 places have"),
    ],
)
def test_a_claim_that_does_not_hold_is_told(claim: Claim | Quote, told: str) -> None:
    (problem,) = problems(claim)
    assert told in problem


def test_a_figure_without_a_claim_is_told(page: Path) -> None:
    every: list[Claim | Quote] = [OURS, THEIRS, STEP]
    assert uncovered("README.md", every[1:]) == [
        "README.md: | 7 | ours, K = 10,000 | 3 | .97 | 52.2 [+51.9, 52.6] |"
    ]
    assert uncovered("README.md", every[:2]) == [
        "README.md: 1.45 in 'A step takes 1.45 ms, on one of 16 cores.'"
    ]
    part = OURS._replace(text="| ours, K = 10,000 | {} | {} |")
    (row,) = uncovered(
        "README.md", [part, THEIRS, STEP]
    )  # two of its figures have a claim, three have none
    assert "ours" in row
    page.write_text(PAGE.replace("A step", "It is 3.7 times as fast. A step"))
    (found,) = uncovered("README.md", every)
    assert found.startswith("README.md: 3.7 in")
    page.write_text(PAGE.replace("What was measured", "Figures"))
    (found,) = uncovered("README.md", every)  # under another heading the whole page counts
    assert found.startswith("README.md: 2.11 in 'Version")


def test_examples_hold() -> None:
    assert doctest.testmod(claims).failed == 0
