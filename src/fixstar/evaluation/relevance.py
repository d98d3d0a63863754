"""Relevant items by query, with grades ("qrels"): read from files, and matched with vectors by id.

A line of a file judges one item for one query. Columns are separated by tabs, commas, or spaces:

    query-id  corpus-id  score       BEIR, with or without its header
    query  0  item  grade            TREC
    query  item                      a plain list, such as a search log: all are relevant, and pairs may repeat

A grade above 0 means relevant; higher is more relevant. The ids of queries may come from BEIR's ``queries.jsonl``.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.durable import require_regular_file
from fixstar.errors import DataError, InputError, plural

Indices = NDArray[np.int64]
Grades = dict[str, dict[str, float]]
"""The grade of each judged item, by query."""
Relevance = Mapping[str, Collection[str] | Mapping[str, float]] | str | Path | Sequence[str | Path]
"""The relevant items of each query, as a list or with grades; or a file; or BEIR's queries.jsonl and a file."""

_HEADS = (("query", "item"), ("query", "item", "grade"), ("query-id", "corpus-id", "score"))
_ALLOWED = (
    "a line has query, item and grade parted by tabs (BEIR's query-id, corpus-id, score), TREC's four columns (query 0 "
    "item grade), or only query and item"
)
_LONGEST = 1 << 24  # maximum characters of a line


def read_relevance(relevant: Relevance) -> Grades:
    """Grades by query and item; those of 0 and below are kept and mean not relevant.

    >>> read_relevance({"q1": ["a", "b"], "q2": {"a": 2}})
    {'q1': {'a': 1.0, 'b': 1.0}, 'q2': {'a': 2.0}}
    """
    if not isinstance(relevant, Mapping):
        return _read_file(_files(relevant)[0])
    found: Grades = {}
    for query, judged in relevant.items():
        graded = dict.fromkeys(judged, 1.0)
        if isinstance(judged, Mapping):
            graded = dict(judged)
        found[str(query)] = {
            str(item): _grade(value, f"query {query!r}") for item, value in graded.items()
        }
    if not found:
        raise InputError(
            "there is no query with relevant items; each needs at least one to judge a search"
        )
    return found


def query_ids(relevant: Relevance | None) -> list[str] | None:
    """The ids of BEIR's ``queries.jsonl``, in its order, if it is among the files."""
    if relevant is None or isinstance(relevant, Mapping):
        return None
    texts = _files(relevant)[1]
    if texts is None:
        return None
    return list(_read_queries(texts))


def query_texts(relevant: Sequence[str | Path]) -> dict[str, str]:
    """The texts of BEIR's ``queries.jsonl`` by their ids; it must be among these files."""
    place = _files(relevant)[1]
    if place is None:
        raise InputError(
            f"the texts of the queries are missing: give BEIR's queries.jsonl beside {', '.join(map(str, relevant))}"
        )
    found: dict[str, str] = {}
    for query, record in _read_queries(place).items():
        text = record.get("text")
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{place}: query {query!r} has no text; got {text!r:.80}")
        found[query] = text
    return found


def _files(relevant: str | Path | Sequence[str | Path]) -> tuple[Path, Path | None]:
    """The file of relevant items, and the file of queries."""
    if isinstance(relevant, (str, Path)):
        given = [Path(relevant)]
    else:
        given = [Path(one) for one in relevant]
    texts = [path for path in given if path.suffix == ".jsonl"]
    judged = [path for path in given if path.suffix != ".jsonl"]
    if len(judged) != 1 or len(texts) > 1:
        raise InputError(
            "relevant items are in one file, such as qrels/test.tsv, and may come with one queries.jsonl; got "
            f"{', '.join(map(str, given)) or 'none'}"
        )
    return judged[0], texts[0] if texts else None


def _read_queries(place: Path) -> dict[str, dict[str, Any]]:
    """One JSON object per line, by its ``_id``."""
    first: dict[str, int] = {}
    found: dict[str, dict[str, Any]] = {}
    for number, line in _lines(place):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(
                f"{place}, line {number}: looks like JSON but does not parse: {error}"
            ) from error
        known = record.get("_id", record.get("id")) if isinstance(record, dict) else None
        if not isinstance(known, (str, int)) or known == "":
            raise DataError(
                f'{place}, line {number}: a query is {{"_id": "q1", "text": "..."}}; got {line.strip()[:80]}'
            )
        if str(known) in first:
            raise DataError(
                f"{place}, line {number}: duplicate id {known!r} (first used on line {first[str(known)]})"
            )
        first[str(known)] = number
        found[str(known)] = record
    if not first:
        raise DataError(f"{place} has no queries")
    return found


class Relevant(NamedTuple):
    """Relevant gallery rows of each usable query, with their grades; and counts of what could not be used.

    ``queries`` are the rows of matched queries. ``unknown`` counts judged queries without a vector, ``alone`` queries
    whose relevant items are all missing from the gallery, and ``missing`` the missing relevant items.
    """

    queries: Indices
    items: list[Indices]
    grades: list[NDArray[np.float32]]
    unknown: int
    alone: int
    missing: int

    def matrix(self, rows: Indices, width: int) -> NDArray[np.float32]:
        """Grades [n, width] of some queries, 0 if not judged; ``rows`` are positions in ``queries``."""
        grades = np.zeros((len(rows), width), np.float32)
        for place, row in enumerate(rows.tolist()):
            grades[place, self.items[row]] = self.grades[row]
        return grades


def matched(wanted: Grades, queries: Sequence[str], gallery: Sequence[str]) -> Relevant:
    """Relevant items as rows of these queries and of this gallery; raises unless at least one query is usable.

    >>> matched({"q": {"a": 1, "x": 1}, "r": {"x": 2}, "s": {"a": 1}}, ["q", "r"], ["b", "a"])[3:]
    (1, 1, 2)
    """
    place = {query: row for row, query in enumerate(queries)}
    row_of = {item: row for row, item in enumerate(gallery)}
    rows = []
    items = []
    grades = []
    unknown = 0
    alone = 0
    missing = 0
    for query, judged in wanted.items():
        relevant = {item: grade for item, grade in judged.items() if grade > 0}
        there = {row_of[item]: grade for item, grade in relevant.items() if item in row_of}
        if query not in place:
            unknown += 1
            continue
        missing += len(relevant) - len(there)
        if not there:
            alone += 1
            continue
        rows.append(place[query])
        items.append(np.array(list(there), np.int64))
        grades.append(np.array(list(there.values()), np.float32))
    if not rows:
        raise InputError(_nothing_matches(wanted, queries, gallery, unknown))
    return Relevant(
        queries=np.array(rows, np.int64),
        items=items,
        grades=grades,
        unknown=unknown,
        alone=alone,
        missing=missing,
    )


def _nothing_matches(
    wanted: Grades, queries: Sequence[str], gallery: Sequence[str], unknown: int
) -> str:
    judged = f"{plural(len(wanted), 'query')} with known relevant items"
    if unknown == len(wanted):
        return (
            f"{judged}, and none of them has a vector: their ids are such as {_some(wanted)}, those of the queries' "
            f"vectors such as {_some(queries)}. Write the same ids into both files"
        )
    named = [item for items in wanted.values() for item, grade in items.items() if grade > 0]
    if not named:
        return f"{judged}, and all grades are 0 or less. An item that a query should find has 1 or more"
    return (
        f"{judged}, and none of these items is stored: their ids are such as {_some(named)}, those of stored vectors "
        f"such as {_some(gallery)}. Write the same ids into both files"
    )


def _some(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name, _ in zip(names, range(3), strict=False))


# --- files


def _read_file(path: Path) -> Grades:
    found: Grades = {}
    lines: dict[tuple[str, str], int] = {}
    for number, row in _rows(path):
        where = f"{path}, line {number}"
        query = row[0]
        item = row[2] if len(row) == 4 else row[1]
        if not query or not item:
            raise DataError(f"{where}: the id of the query or of the item is empty; got {row}")
        if (query, item) in lines and len(row) > 2:
            raise DataError(
                f"{where}: item {item!r} was already judged for query {query!r} on line {lines[query, item]}; keep one "
                "of the two lines"
            )
        lines[query, item] = number
        grade = 1.0
        if len(row) > 2:
            grade = _grade(row[-1], where)
        found.setdefault(query, {})[item] = grade
    if not found:
        raise DataError(f"{path} judges nothing: {_ALLOWED}")
    return found


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The numbered rows without header; all have as many columns as the first."""
    columns = 0
    parted: str | None = None
    for number, line in _lines(path):
        if not columns:
            parted = next((mark for mark in "\t," if mark in line), None)
        row = _cells(path, number, line, parted)
        if not columns:
            columns = len(row)
            if columns not in (2, 3, 4):
                raise DataError(
                    f"{path}, line {number} has {plural(columns, 'column')}: {row[:8]}. Instead, {_ALLOWED}"
                )
            if tuple(cell.lower() for cell in row) in _HEADS:
                continue
        if len(row) != columns:
            raise DataError(
                f"{path}, line {number} has {plural(len(row), 'column')}, the first line {columns}: {row[:8]}. All "
                f"need the same: {_ALLOWED}"
            )
        yield number, row


def _cells(path: Path, number: int, line: str, parted: str | None) -> list[str]:
    if parted is None:
        return line.split()
    try:
        row = next(csv.reader([line], delimiter=parted))
    except csv.Error as error:
        raise DataError(f"{path}, line {number}: {error}. Instead, {_ALLOWED}") from error
    return [cell.strip() for cell in row]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a text that are not empty."""
    if path.is_dir():
        raise InputError(
            f"{path} is a folder; name the file in it, in BEIR's layout {path / 'qrels' / 'test.tsv'}"
        )
    try:
        require_regular_file(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            number = 0
            while line := file.readline(_LONGEST):
                number += 1
                if len(line) == _LONGEST:
                    raise DataError(f"{path}, line {number} is longer than {_LONGEST:,} characters")
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not a text in UTF-8 (byte {error.start}: {error.reason}); convert it with iconv -t UTF-8"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _grade(value: Any, where: str) -> float:
    try:
        grade = float(value)
    except (TypeError, ValueError):
        grade = math.nan
    if not math.isfinite(grade):
        raise DataError(
            f"{where}: a grade is a number, 0 for not relevant, 1 or more for relevant; got {value!r}"
        )
    return grade
