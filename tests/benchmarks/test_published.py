"""The typed tables: spot values, what arithmetic says about them, and that nothing unknown is in them."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from itertools import product
from pathlib import Path

import pytest

from fixstar.errors import UnknownNameError
from fixstar.research.benchmarks import METHOD_NAMES, Figure, Row, benchmark, catalogue, published
from fixstar.research.benchmarks.published import PAPERS

FOLDER = Path(__file__).parents[2] / "src" / "fixstar" / "research" / "benchmarks" / "published"


def published_summary(name: str, method: str) -> Row | None:
    """The first row of a method on a benchmark that is not about a single pair of models."""
    return next((row for row in published(benchmark=name, method=method) if row.pair is None), None)


def numbers(row: Row) -> dict[str, float]:
    """The values that are numbers, as fractions; dashes and bounds are left out."""
    return {name: value.fraction for name, value in row.values.items() if value and not value.below}


def half_digit(value: Figure) -> float:
    """The rounding error of a printed number: half of its last digit, as a fraction."""
    exponent = value.printed.as_tuple().exponent
    assert isinstance(exponent, int)
    half = Decimal(5).scaleb(exponent - 1)
    return float(half / 100 if value.unit == "percent" else half)


def fractions(name: str, method: str) -> dict[str, float]:
    row = published_summary(name, method)
    assert row is not None
    return numbers(row)


def figure(row: Row, name: str) -> Figure:
    found = row.values[name]
    assert found is not None
    return found


def of_table(paper: str, table: str) -> list[Row]:
    rows = [row for row in published(paper) if row.table == table]
    assert rows, f"{paper} has no table {table}"
    return rows


def pairs(paper: str, table: str) -> dict[tuple[str, str], Row]:
    return {row.pair: row for row in of_table(paper, table) if row.pair is not None}


SPOTS: list[tuple[str, str, str, dict[str, str]]] = [
    ("HOC, table 2", "cifar100-10/7", "hoc", {"AC": "0.86", "AA": "48.21", "ACA": "42.41"}),
    ("HOC, table 2", "cifar100-10/7", "fan", {"AC": "0.14", "AA": "47.59", "ACA": "5.63"}),
    ("HOC, table 2", "cifar100-10/31", "er", {"AC": "0.02", "AA": "40.78", "ACA": "0.93"}),
    ("HOC, table 2", "cifar100-10/2", "cvs", {"AC": "1.00", "AA": "51.31", "ACA": "52.89"}),
    ("HOC, table 3", "tinyimagenet200-20/31", "hoc", {"AC": "0.77", "AA": "32.35", "ACA": "25.14"}),
    ("HOC, table 3", "tinyimagenet200-20/31", "er", {"AC": "<0.01", "AA": "19.15", "ACA": "0.05"}),
    ("HOC, table 4", "cub180-20/16", "fd", {"AC": "0.60", "AA": "39.09", "ACA": "24.03"}),
    ("HOC, table 6", "cifar100r-10/31", "hoc", {"AC": "0.65", "AA": "67.40"}),
    (
        "HOC, table 8c",
        "cifar100-10/16:rho=25",
        "hoc",
        {"AC": "0.53", "AA": "46.70", "ACA": "26.20"},
    ),
    (
        "CL2R, table 3",
        "cifar100-10-verification/10",
        "fd",
        {"AC": "0.44", "BC": "-0.003", "FC": "0.005"},
    ),
    (
        "CL2R, table 5",
        "tinyimagenet200-imagenet20/10",
        "cl2r-ub",
        {"AC": "0.62", "BC": "0.005", "FC": "-0.008"},
    ),
    (
        "CL2R, table 9",
        "cifar100-10-verification/10",
        "simplex-er",
        {"AC": "0.27", "BC": "-0.078", "FC": "0.003"},
    ),
    ("CoReS, table 4", "market1501/2", "bct", {"AC": "0.3", "AM": "0.50"}),
    (
        "CoReS, table 9",
        "cifar100-10-upgrades/9:initialisation=fresh",
        "cores",
        {"AC": "0.45 ± 0.09", "AM": "0.60 ± 0.11"},
    ),
    ("CoReS, table 11", "cifar100-10-upgrades/4:K=500", "cores", {"AC": "0.7", "AM": "0.64"}),
    ("CoReS, section 5.1", "cifar100-10-upgrades/9", "bct", {"AC": "0.11"}),
]


@pytest.mark.parametrize(("source", "name", "method", "values"), SPOTS)
def test_spot_values_read_as_they_are_printed(
    source: str, name: str, method: str, values: dict[str, str]
) -> None:
    (row,) = [row for row in published(benchmark=name, method=method) if row.source == source]
    assert {key: str(value) for key, value in row.values.items()} == values


def test_a_summary_is_in_fractions_with_its_source() -> None:
    row = published_summary("cifar100-10/7", "hoc")
    assert row is not None
    assert row.source == "HOC, table 2"
    assert numbers(row) == {"AC": 0.86, "AA": 0.4821, "ACA": 0.4241}


def test_bounds_and_dashes_are_not_numbers() -> None:
    bound = published_summary("tinyimagenet200-20/31", "er")
    assert bound is not None
    assert "AC" not in numbers(bound)
    assert figure(bound, "AC").below
    dash = published_summary("cifar100r-10/31:replacements=architectures", "er")
    assert dash is not None
    assert dash.values["AC"] is None
    assert numbers(dash).keys() == {"AC_11", "AA_11", "AC_21", "AA_21"}
    assert published_summary("celeba/16", "hoc") is None


def test_a_figure_knows_its_digits() -> None:
    assert half_digit(Figure(Decimal("26.26"), "percent")) == pytest.approx(0.00005)
    assert half_digit(Figure(Decimal("0.9"), "fraction")) == pytest.approx(0.05)
    assert half_digit(Figure(Decimal("1"), "fraction")) == pytest.approx(0.5)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'hoc'"):
        published(method="hco")
    with pytest.raises(UnknownNameError, match="Known: BCT, CL2R, CoReS, HOC"):
        published(paper="LWF")
    assert published(benchmark="no such benchmark") == []


def test_every_row_names_a_known_method_and_a_benchmark_of_the_catalogue() -> None:
    for row in published():
        assert row.method is None or row.method in METHOD_NAMES, row
        entry = benchmark(row.benchmark)  # raises if it is not there
        number = row.source if row.table.startswith("section") else row.source.rstrip("abc")
        base = catalogue()[row.benchmark.partition(":")[0]]
        assert number in base.sources or row.table.startswith("section"), (
            f"{row.source} is not a source of {base.name}"
        )
        assert row.method is None or row.method in entry.methods, (
            f"{row.method} is not in {entry.name}"
        )


def test_all_tables_are_there() -> None:
    expected = {
        "HOC": {"2", "3", "4", "6", "7", "8a", "8b", "8c"},
        "CL2R": {str(i) for i in range(2, 10)},
        "CoReS": {str(i) for i in range(1, 13)} | {"section 5.1", "section 5.2", "section 6.3"},
        "BCT": {"1b", "1c", "2", "3b", "3c", "4b", "4c", "5", "7b", "7c", "8b", "8c", "9b", "9c"},
    }
    assert {paper: {row.table for row in published(paper)} for paper in PAPERS} == expected


def test_no_value_is_outside_its_range() -> None:
    for paper in PAPERS:
        for table in json.loads((FOLDER / f"{paper.lower()}.json").read_text())["tables"]:
            signed = {name for name, column in table["columns"].items() if column.get("signed")}
            for row in of_table(paper, table["table"]):
                for name, value in row.values.items():
                    low = -1 if name in signed else 0
                    assert value is None or low <= value.fraction <= 1, (
                        row.source,
                        row.printed,
                        name,
                    )


def test_doubtful_values_say_why() -> None:
    doubtful: dict[str, int] = {}
    for paper in PAPERS:
        for table in json.loads((FOLDER / f"{paper.lower()}.json").read_text())["tables"]:
            for row in table["rows"]:
                if names := row.get("uncertain"):
                    assert {*names} <= {*row["values"], "compatible", "pair"}
                    assert row.get("note") or table.get("note"), row
                    doubtful[paper] = doubtful.get(paper, 0) + 1
    assert doubtful == {"HOC": 8, "CL2R": 15, "CoReS": 5, "BCT": 2}


# What AC says about itself: with T versions it is a multiple of 2 / (T (T - 1)).

OFF_GRID = {  # printed so; averages of several runs, or mistakes
    ("CL2R, table 3", "cifar100-10-verification/3", "bct-er"),
    *{
        ("CL2R, table 3", "cifar100-10-verification/5", method)
        for method in ("er", "lwf", "bic", "lucir", "fan", "fd")
    },
}


def cells(name: str, metric: str) -> int:
    T = benchmark(name).tasks.count
    T = int(metric.partition("_")[2]) if "_" in metric else T
    return T * (T - 1) // 2


def test_compatibility_counts_cells() -> None:
    off = set()
    for row in published():
        for name, value in row.values.items():
            if (
                not name.startswith("AC")
                or name.startswith("ACA")
                or value is None
                or value.below
                or value.deviation
            ):
                continue
            total = cells(row.benchmark, name)
            nearest = round(value.fraction * total) / total
            if abs(nearest - value.fraction) > half_digit(value) + 1e-9:
                off.add((row.source, row.benchmark, row.method))
    assert off == OFF_GRID


def test_compatible_accuracy_is_an_accuracy_times_the_share_of_compatible_cells() -> None:
    rows = [row for row in published("HOC") if "ACA" in row.values]
    assert len(rows) == 3 * 32 + 18
    for row in rows:
        ac, aca = figure(row, "AC"), figure(row, "ACA")
        if ac.below:
            continue
        assert (ac.fraction == 0) == (aca.fraction == 0), row
        if ac.fraction:  # the mean accuracy of the compatible cells is not far from that of all
            highest = (aca.fraction + half_digit(aca)) / (ac.fraction - half_digit(ac))
            lowest = (aca.fraction - half_digit(aca)) / (ac.fraction + half_digit(ac))
            assert lowest - 0.15 < figure(row, "AA").fraction < highest + 0.15, row


def test_the_ablations_of_hoc_contain_the_main_result() -> None:
    main = fractions("cifar100-10/16", "hoc")
    for variant in ("K=100", "lam=0.1", "rho=5"):
        assert fractions(f"cifar100-10/16:{variant}", "hoc") == main


def test_two_tasks_of_cl2r_follow_from_their_tests() -> None:
    wrong = set()
    for table in ("2", "4"):
        first, *rows = of_table("CL2R", table)
        for row in rows:
            cross, own = figure(row, "cross"), figure(row, "self")
            for name, other in (("BC", figure(first, "self")), ("FC", own)):
                slack = half_digit(cross) + half_digit(other) + half_digit(figure(row, name)) + 1e-9
                if abs(cross.fraction - other.fraction - figure(row, name).fraction) > slack:
                    wrong.add((table, row.method, name))
            if row.compatible is not None:  # the criterion is BC > 0
                assert row.compatible == (figure(row, "BC").fraction > 0), row
    assert wrong == {("2", "er", "FC"), ("4", "bct", "FC")}
    doubtful = {
        (row.table, row.method, name) for row in published("CL2R") for name in row.uncertain
    }
    assert wrong <= doubtful


def test_the_ablation_of_cl2r_begins_and_ends_in_its_main_table() -> None:
    first, *_, last = of_table("CL2R", "9")
    assert numbers(first) == fractions("cifar100-10-verification/10", "er")
    assert numbers(last) == fractions("cifar100-10-verification/10", "fd")


def test_the_pairs_of_cores_average_to_its_am() -> None:
    for table, upgrades in (("1", 1), ("2", 2)):
        by_pair = pairs("CoReS", table)
        if upgrades == 1:
            rows = [
                by_pair["phi_old", "phi_old"],
                by_pair["phi_new-CoReS", "phi_old"],
                by_pair["phi_new", "phi_new"],
            ]
        else:
            rows = [row for row in of_table("CoReS", table) if row.method == "cores"]
        expected = published_summary(f"cifar100-10-upgrades/{upgrades}:K=100", "cores")
        assert expected is not None
        mean = sum(figure(row, "M").fraction for row in rows) / len(rows)
        assert abs(mean - figure(expected, "AM").fraction) <= 0.005 + 0.005
        marks = [row.compatible for row in rows if row.compatible is not None]
        assert sum(marks) / len(marks) == pytest.approx(figure(expected, "AC").fraction, abs=0.005)


def test_the_default_of_cores_has_one_figure_in_all_its_ablations() -> None:
    same = ("selection=no", "initialisation=same", "order=alphabetical")
    assert [fractions(f"cifar100-10-upgrades/9:{name}", "cores") for name in same] == [
        {"AC": 0.51, "AM": 0.59}
    ] * 3
    assert fractions("cifar100-10-upgrades/9:K=100", "cores") == {"AC": 0.51, "AM": 0.59}


WRONG_GAINS = {("1c", "bct-kd", "BCT-kd"), ("12", "cores", "OLD & NEW CLASSES")}  # printed so


def possible_gains(old: Figure, cross: Figure, new: Figure) -> tuple[float, float]:
    """The range of (cross - old) / (new - old) over all numbers that round to the printed ones (eq. 9 of BCT)."""
    ends = [(f.fraction - half_digit(f), f.fraction + half_digit(f)) for f in (old, cross, new)]
    gains = [(c - o) / (n - o) for o, c, n in product(*ends) if n - o > 1e-12]
    unbounded = ends[2][0] - ends[0][1] <= 0  # the printed self-tests may be equal
    return min(gains), math.inf if unbounded else max(gains)


def gain_rows(paper: str, table: str, metric: str) -> list[tuple[Row, Figure, Figure, Figure]]:
    """Rows that print a gain, with the old self-test, the cross-test and the paragon's self-test."""
    rows = [row for row in of_table(paper, table) if row.values["gain"] is not None]
    return [(row, old_test(row, metric), figure(row, metric), paragon(row, metric)) for row in rows]


def old_test(row: Row, metric: str) -> Figure:
    assert row.pair is not None
    return self_test(row, row.pair[1], metric)


def self_test(row: Row, model: str, metric: str) -> Figure:
    """Of the same variant and method, where the table has one for each."""
    found = [other for other in of_table(row.paper, row.table) if other.pair == (model, model)]
    found.sort(key=lambda other: (other.benchmark != row.benchmark, other.method != row.method))
    return figure(found[0], metric)


def paragon(row: Row, metric: str) -> Figure:
    assert row.pair is not None
    new, old = row.pair
    if row.paper == "CoReS":
        return self_test(row, "phi_new" if row.table == "1" else new, metric)
    return self_test(row, {"phi_1": "phi_2*", "phi_2": "phi_3*"}.get(old, "phi_new*"), metric)


@pytest.mark.parametrize(
    ("paper", "table", "metric"),
    [
        *(("BCT", table, "TAR@FAR=1e-4") for table in ("1b", "3b", "4b")),
        *(("BCT", table, "TPIR@FPIR=1e-2") for table in ("1c", "3c", "4c")),
        *(("CoReS", table, "M") for table in ("1", "2", "3", "5", "6", "12")),
    ],
)
def test_update_gains_follow_from_the_pairs(paper: str, table: str, metric: str) -> None:
    rows = gain_rows(paper, table, metric)
    assert rows
    for row, old, cross, new in rows:
        gain = figure(row, "gain")
        low, high = possible_gains(old, cross, new)
        fits = low - half_digit(gain) - 1e-9 <= gain.fraction <= high + half_digit(gain) + 1e-9
        assert fits == ((row.table, row.method, row.printed) not in WRONG_GAINS), (row, low, high)
        assert row.compatible


@pytest.mark.parametrize(
    ("table", "metric"), [("1b", "TAR@FAR=1e-4"), ("3c", "TPIR@FPIR=1e-2"), ("4b", "TAR@FAR=1e-4")]
)
def test_absolute_gains_follow_from_the_pairs(table: str, metric: str) -> None:
    for row, old, cross, _ in gain_rows("BCT", table, metric):
        assert cross.fraction - old.fraction == pytest.approx(
            figure(row, "absolute gain").fraction, abs=1e-9
        )


def test_marks_follow_from_the_pairs_of_bct() -> None:
    for table, metric in (
        ("1b", "TAR@FAR=1e-4"),
        ("1c", "TPIR@FPIR=1e-2"),
        ("3b", "TAR@FAR=1e-4"),
        ("4c", "TPIR@FPIR=1e-2"),
    ):
        rows = of_table("BCT", table)
        for row in (row for row in rows if row.compatible is not None and row.pair is not None):
            assert row.compatible == (
                figure(row, metric).fraction > old_test(row, metric).fraction
            ), row


@pytest.mark.parametrize(
    ("short", "long", "metric"),
    [
        *(("1b", "8b", "TAR@FAR=1e-4"), ("3b", "7b", "TAR@FAR=1e-4"), ("4b", "9b", "TAR@FAR=1e-4")),
        *(
            ("1c", "8c", "TPIR@FPIR=1e-2"),
            ("3c", "7c", "TPIR@FPIR=1e-2"),
            ("4c", "9c", "TPIR@FPIR=1e-2"),
        ),
        *(("2", "1b", "TAR@FAR=1e-4"), ("2", "1c", "TPIR@FPIR=1e-2")),
    ],
)
def test_the_appendix_of_bct_repeats_its_tables(short: str, long: str, metric: str) -> None:
    one, other = pairs("BCT", short), pairs("BCT", long)
    shared = one.keys() & other.keys()
    assert len(shared) >= 2
    assert {p: str(one[p].values[metric]) for p in shared} == {
        p: str(other[p].values[metric]) for p in shared
    }


def test_curves_rise_with_the_rate_that_they_allow() -> None:
    for table in ("7b", "8b", "9b", "7c", "8c", "9c"):
        for row in of_table("BCT", table):
            rates = [name for name in row.values if "=" in name]
            values = [figure(row, name).fraction for name in rates]
            assert values == sorted(values), (table, row.pair)
            if "Rank-1" in row.values:
                assert figure(row, "Rank-1").fraction <= figure(row, "Rank-5").fraction
