"""Our results and the papers': means over runs that differ only in class order and seed, with the printed figures.

Columns are AC, AA, ACA, BC and FC, and single cells such as "C[2,1]" where a paper prints them. CoReS's AM is AA.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fixstar.evaluation.compatibility import Spread, summarise, summarise_matrices
from fixstar.research.benchmarks.catalogue import Benchmark
from fixstar.research.benchmarks.plan import (
    changed_settings,
    file_stem,
    method_choice,
    translation_words,
    usual_capacity,
)
from fixstar.research.benchmarks.published import Figure, Row, published
from fixstar.research.benchmarks.result import METRICS, RunResult

_RENAMED = {"AM": "AA", "self": "C[2,2]", "cross": "C[2,1]"}  # CoReS, eq. 8; CL2R, tables 2 and 4
_OLD_AND_NEW = {"phi_old": 1, "phi_new": 2}


@dataclass(frozen=True)
class Printed:
    """What a paper prints, by column; ``uncertain`` is doubtful, ``counted`` if AC is counted from printed marks.

    ``ablation`` is true of figures for a setting that the paper varies.
    """

    source: str
    values: Mapping[str, Figure]
    uncertain: frozenset[str] = frozenset()
    counted: bool = False
    ablation: bool = False


@dataclass(frozen=True, eq=False)
class Line:
    """One method with one set of options: our runs, the paper's figures, or both.

    ``special`` says what differs from the catalogue, ``orders`` the kind of class order if it is not the catalogue's.
    """

    method: str
    special: tuple[str, ...] = ()
    orders: str = ""
    epochs: int | None = None
    runs: tuple[RunResult, ...] = ()
    ours: Mapping[str, Mapping[str, Spread]] = field(default_factory=dict)
    matrices: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    printed: Printed | None = None

    @property
    def label(self) -> str:
        """The method and how it differs from the catalogue."""
        words = [self.method, *self.special]
        if self.orders:
            words.append(f"({self.orders})")
        return " ".join(words)


@dataclass(frozen=True, eq=False)
class Comparison:
    """A benchmark's lines, in the order of the paper's table."""

    benchmark: Benchmark
    columns: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def printed_columns(self) -> tuple[str, ...]:
        """The columns that a paper prints; AC, AA and ACA if it prints none."""
        printed = {name for line in self.lines if line.printed for name in line.printed.values}
        return tuple(name for name in self.columns if name in (printed or METRICS[:3]))

    @property
    def enough(self) -> int:
        """The number of runs that the best line must have: three, or the most that any line has."""
        return min(3, max(len(line.runs) for line in self.lines))

    def is_best(self, line: Line, protocol: str | None, column: str) -> bool:
        """Whether a line has the best mean of a column, among ours with ``enough`` runs or (None) the papers'."""
        lines = [
            other for other in self.lines if protocol is None or len(other.runs) >= self.enough
        ]
        values = [
            value for other in lines if (value := _value(other, protocol, column)) is not None
        ]
        return (
            line in lines and len(set(values)) > 1 and _value(line, protocol, column) == max(values)
        )


def read_results(benchmark: Benchmark, folder: str | Path) -> list[RunResult]:
    """Every finished run of a benchmark in a folder of results."""
    return [
        RunResult.load(path)
        for path in sorted(Path(folder).glob(f"{file_stem(benchmark.name)}__*.json"))
    ]


def compare(benchmark: Benchmark, results: Sequence[RunResult]) -> Comparison:
    """Average the runs and put them next to the published figures; published methods without a run are kept."""
    theirs = _printed(benchmark)
    groups: dict[tuple[str, tuple[str, ...], str, int], list[RunResult]] = {}
    for result in results:
        key = (
            result.method,
            _special(benchmark, result),
            _orders(benchmark, result),
            result.epochs,
        )
        groups.setdefault(key, []).append(result)
    columns = [
        *METRICS,
        *sorted(
            {name for entry in theirs.values() for name in entry.values if name.startswith("C[")}
        ),
    ]
    order = {
        name: place for place, name in enumerate([*theirs, *benchmark.methods, *benchmark.ours])
    }
    lines = [
        _line(*key, runs, _printed_for(benchmark, runs[0], theirs), columns)
        for key, runs in sorted(
            groups.items(),
            key=lambda item: (
                order.get(item[0][0], len(order)),
                [_by_number(setting) for setting in item[0][1]],
                item[0],
            ),
        )
    ]
    lines += [
        Line(name, printed=entry)
        for name, entry in theirs.items()
        if name not in {m.method for m in lines}
    ]
    lines.sort(key=lambda line: order.get(line.method, len(order)))
    return Comparison(benchmark, tuple(columns), tuple(lines))


def _by_number(setting: str) -> tuple[str, float, str]:
    """Orders settings such as K=200 and K=1000 by name, then by value."""
    name, _, value = setting.partition("=")
    try:
        return name, float(value), value
    except ValueError:
        return name, 0.0, value


def _line(
    method: str,
    special: tuple[str, ...],
    orders: str,
    epochs: int,
    runs: Sequence[RunResult],
    printed: Printed | None,
    columns: Iterable[str],
) -> Line:
    cells = [name for name in columns if name not in METRICS]
    ours = {}
    matrices = {}
    for protocol in dict.fromkeys(name for run in runs for name in run.protocols):
        judged = [
            run for run in runs if protocol in run.protocols
        ]  # older runs may not have been judged by all
        matrices[protocol] = summarise_matrices([run.matrix(protocol) for run in judged]).mean
        ours[protocol] = summarise(
            [
                {
                    **run.metrics(protocol),
                    **{name: _cell(run.matrix(protocol), name) for name in cells},
                }
                for run in judged
            ]
        )
    return Line(
        method=method,
        special=special,
        orders=orders,
        epochs=epochs,
        runs=tuple(runs),
        ours=ours,
        matrices=matrices,
        printed=printed,
    )


def _cell(matrix: NDArray[np.float64], name: str) -> float:
    t, k = (int(number) for number in re.findall(r"\d+", name))
    return float(matrix[t - 1, k - 1])


def _special(benchmark: Benchmark, result: RunResult) -> tuple[str, ...]:
    """Options, capacity and settings of a run that differ from the catalogue's."""
    usual = method_choice(benchmark, result.method).create().options
    asked = result.settings["method"]["options"]
    words = [f"{key}={value}" for key, value in asked.items() if usual.get(key) != value]
    capacity = result.settings["capacity"]
    if capacity != usual_capacity(benchmark, result.method):
        words.append(f"K={capacity}")
    words += translation_words(
        benchmark, result.method, result.settings.get("translation", {}).get("weight")
    )
    return (
        *words,
        *(f"{key}={value}" for key, value in changed_settings(benchmark, result.settings).items()),
    )


def _orders(benchmark: Benchmark, result: RunResult) -> str:
    """The kind of a run's class order, where it is not the kind that the catalogue asks for."""
    if bool(result.class_order) == any(benchmark.orders):
        return ""
    if result.class_order:
        return "shuffled classes"
    return "own class order"


def _value(line: Line, protocol: str | None, column: str) -> float | None:
    if protocol is None:
        figure = line.printed.values.get(column) if line.printed else None
        if figure is None or figure.below:
            return None
        return figure.fraction
    spread = line.ours.get(protocol, {}).get(column)
    if spread is None:
        return None
    return spread.mean


def _printed(benchmark: Benchmark) -> dict[str, Printed]:
    """The published figures of every method on a benchmark: of its first table, or of its pairs of models."""
    T = benchmark.tasks.count
    rows: dict[str, list[Row]] = {}
    for row in published(benchmark=benchmark.name):
        if row.method is not None:
            rows.setdefault(row.method, []).append(row)
    found = {}
    for method, of_method in rows.items():
        whole = [row for row in of_method if row.pair is None]
        first = whole[:1] or [row for row in of_method if row.source == of_method[0].source]
        values = {name: figure for row in first for name, figure in _columns(row).items()}
        marks = [row.compatible for row in first if row.compatible is not None]
        counted = "AC" not in values and len(marks) == T * (T - 1) // 2
        if counted:
            values["AC"] = Figure(round(Decimal(sum(marks)) / len(marks), 2), "fraction")
        uncertain = frozenset(_RENAMED.get(name, name) for row in first for name in row.uncertain)
        if values:
            found[method] = Printed(first[0].source, values, uncertain & values.keys(), counted)
    return found


def _printed_for(
    benchmark: Benchmark, result: RunResult, theirs: Mapping[str, Printed]
) -> Printed | None:
    """The published figures that a run stands beside: those of an ablation, if it has just its settings."""
    variants = (
        benchmark.variant({ablation: value})
        for ablation, values in benchmark.ablations.items()
        for value in values
    )
    if _special(benchmark, result):
        for variant in variants:
            same = result.method in variant.methods and not _special(variant, result)
            if same and (found := _printed(variant).get(result.method)):
                return replace(found, ablation=True)
    return theirs.get(result.method)


def _columns(row: Row) -> dict[str, Figure]:
    """A row's figures under our names, without dashes and without columns that we do not have, such as gains."""
    if row.pair is None:
        named = {_RENAMED.get(name, name): figure for name, figure in row.values.items()}
        return {
            n: figure
            for n, figure in named.items()
            if figure and (n in METRICS or n.startswith("C["))
        }
    numbers = [_version(name) for name in row.pair]
    figure = row.values.get("M")
    if figure is None or None in numbers:
        return {}
    return {f"C[{numbers[0]},{numbers[1]}]": figure}


def _version(name: str) -> int | None:
    """The number of a model in a pair: phi_3 is 3, phi_old 1 and phi_new-BCT 2."""
    if found := re.fullmatch(r"phi_(\d+)", name):
        return int(found[1])
    return _OLD_AND_NEW.get(name.split("-")[0])
