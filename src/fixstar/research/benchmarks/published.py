"""The papers' tables as data: every figure as printed, with its table, its unit and what is doubtful about it.

``published/`` has one JSON file per paper. A row is one method on one benchmark of the catalogue; tables of model pairs
have one row per pair. Numbers keep their printed digits; ``fraction`` converts them.

    dash or unreadable      None (``uncertain`` names the unreadable ones)
    "<0.01"                 Figure(below=True): a bound, not a value
    "0.51 ± 0.10"           Figure(deviation=0.10)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fixstar.errors import InputError, UnknownNameError

Unit = Literal["fraction", "percent"]

PAPERS = ("BCT", "CoReS", "CL2R", "HOC")

_FOLDER = Path(__file__).with_suffix("")
METHOD_NAMES: dict[str, str] = json.loads((_FOLDER / "methods.json").read_text(encoding="utf-8"))
"""Every method in the papers' tables, by its name here; not all of them can be trained here."""


@dataclass(frozen=True)
class Figure:
    """A number as a paper prints it."""

    printed: Decimal
    unit: Unit
    below: bool = False
    deviation: Decimal | None = None

    @property
    def fraction(self) -> float:
        """The number in fixstar's unit; the bound itself where ``below``.

        >>> Figure(Decimal("48.21"), "percent").fraction
        0.4821
        """
        if self.unit == "percent":
            return float(self.printed / 100)
        return float(self.printed)

    def __str__(self) -> str:
        text = str(self.printed)
        if self.below:
            text = f"<{text}"
        if self.deviation is not None:
            text += f" ± {self.deviation}"
        return text


@dataclass(frozen=True)
class Row:
    """One method (None: the old model alone) on one benchmark, or one pair of it; ``uncertain`` figures have a note."""

    paper: str
    table: str
    section: str
    benchmark: str
    method: str | None
    printed: str
    values: Mapping[str, Figure | None]
    pair: tuple[str, str] | None = None
    compatible: bool | None = None
    uncertain: frozenset[str] = frozenset()
    note: str = ""

    @property
    def source(self) -> str:
        """Where the row is printed, such as "HOC, table 2"."""
        if self.table.startswith("section"):
            return f"{self.paper}, {self.table}"
        return f"{self.paper}, table {self.table}"


def published(
    paper: str | None = None, benchmark: str | None = None, method: str | None = None
) -> list[Row]:
    """The matching rows, in the order of the papers; a variant has its own name, "cifar100-10/16:K=500".

    >>> [row.source for row in published(benchmark="cifar100-10/7", method="hoc")]
    ['HOC, table 2']
    """
    for kind, name, known in (("paper", paper, PAPERS), ("method", method, METHOD_NAMES)):
        if name is not None and name not in known:
            raise UnknownNameError(kind, name, known)
    return [
        row
        for row in _rows()
        if paper in (None, row.paper)
        and benchmark in (None, row.benchmark)
        and method in (None, row.method)
    ]


@cache
def _rows() -> tuple[Row, ...]:
    """All rows; numbers stay decimal, so that 0.90 is not 0.9."""
    texts = [(_FOLDER / f"{paper.lower()}.json").read_text(encoding="utf-8") for paper in PAPERS]
    papers = [json.loads(text, parse_float=Decimal, parse_int=Decimal) for text in texts]
    return tuple(
        _row(one["paper"], table, entry)
        for one in papers
        for table in one["tables"]
        for entry in table["rows"]
    )


def _row(paper: str, table: Mapping[str, Any], entry: Mapping[str, Any]) -> Row:
    where = f"{paper}, table {table['table']}, {entry['printed']}"
    columns = table["columns"]
    if unknown := sorted(set(entry["values"]) ^ set(columns)):
        raise InputError(f"{where}: values and columns differ in {', '.join(unknown)}")
    return Row(
        paper,
        table["table"],
        table["section"],
        **{
            **entry,
            "values": {
                name: _figure(value, columns[name]["unit"])
                for name, value in entry["values"].items()
            },
            "pair": tuple(entry["pair"]) if entry.get("pair") else None,
            "uncertain": frozenset(entry.get("uncertain", ())),
        },
    )


def _figure(value: Any, unit: Unit) -> Figure | None:
    if value is None:
        return None
    if isinstance(value, dict):
        if "below" in value:
            return Figure(value["below"], unit, below=True)
        return Figure(value["mean"], unit, deviation=value["deviation"])
    return Figure(value, unit)
