"""Ours beside the papers': grouping, means, what is marked, and what the text says about the difference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from wording import check_wording

from fixstar.cli.bench import _commands
from fixstar.research.benchmarks import benchmark, tables
from fixstar.research.benchmarks.comparison import Comparison, Line, compare, read_results
from fixstar.research.benchmarks.plan import Run
from fixstar.research.benchmarks.result import RunResult, measured
from fixstar.research.benchmarks.tables import (
    draw,
    markdown,
    put_section,
    table_of,
    tables_of,
    what_differs,
)

SEVEN = benchmark("cifar100-10/7")


def invented(
    run: Run, level: float, protocols: tuple[str, ...] = ("template", "image")
) -> RunResult:
    """A result as a run would write it; cross-tests lie 0.01 above the old self-test."""
    T = run.benchmark.tasks.count
    matrix = np.add.outer(np.zeros(T), level + 0.02 * np.arange(T)) + 0.01
    np.fill_diagonal(matrix, level + 0.02 * np.arange(T))
    matrix[np.triu_indices(T, 1)] = np.nan
    method, settings = run.create(), run.settings("cpu")
    return RunResult(
        benchmark=run.benchmark.name,
        method=run.method,
        settings={
            "method": {"name": method.name, "options": dict(method.options)},
            **settings.to_json(),
        },
        tasks=run.benchmark.tasks.sizes,
        class_order=run.class_order,
        seed=run.seed,
        epochs=settings.recipe.epochs,
        seconds=100.0,
        seconds_training=90.0,
        seconds_evaluation=10.0,
        device="invented",
        fixstar="0",
        torch="0",
        restarts=0,
        versions=[],
        protocols={name: measured(matrix - 0.1 * (name == "image")) for name in protocols},
    )


@pytest.fixture(scope="module")
def seven() -> Comparison:
    """HOC in two orders at two levels, HOC with lam 0.25 and K 1000, ER with fewer epochs."""
    special: dict[str, Any] = {"capacity": 1000, "options": {"lam": 0.25}}
    runs = [
        invented(Run(SEVEN, "hoc", 1), 0.30),
        invented(Run(SEVEN, "hoc", 2), 0.32),
        invented(Run(SEVEN, "hoc", 1, **special), 0.40),
        invented(Run(SEVEN, "er", 1, epochs=40), 0.20),
    ]
    return compare(SEVEN, runs)


ORDERS = [
    *((name, 1) for name in ("er", "cvs", "fd", "lce-er")),
    ("fan", 2),
    ("bct-er", 2),
    ("hoc", 2),
]


def line(comparison: Comparison, label: str) -> Line:
    (found,) = [line for line in comparison.lines if line.label == label]
    return found


def test_runs_that_differ_in_order_and_seed_alone_are_one_line(seven: Comparison) -> None:
    hoc = line(seven, "hoc")
    assert len(hoc.runs) == 2
    aa = hoc.ours["template"]["AA"]
    assert aa.mean == pytest.approx(np.mean([run.metrics("template")["AA"] for run in hoc.runs]))
    assert aa.deviation == pytest.approx(0.02 / np.sqrt(2))
    assert hoc.matrices["template"][0, 0] == pytest.approx(0.31)
    assert line(seven, "hoc lam=0.25 K=1000").special == ("lam=0.25", "K=1000")
    assert line(seven, "er").epochs == 40


def test_published_figures_stand_beside_ours_and_methods_without_a_run_stay(
    seven: Comparison,
) -> None:
    hoc, cvs = line(seven, "hoc"), line(seven, "cvs")
    assert hoc.printed is not None
    assert cvs.printed is not None
    assert hoc.printed.source == "HOC, table 2"
    assert hoc.printed.values["AC"].fraction == 0.86
    assert cvs.printed.values["AA"].fraction == 0.5169
    assert not cvs.runs
    assert [entry.method for entry in seven.lines] == [
        *("er", "fan", "bct-er", "lce-er", "advbct-er", "cvs", "fd", "hoc", "hoc")
    ]


def test_the_table_has_both_protocols_and_marks_the_best(seven: Comparison) -> None:
    (_, head, body), (_, others, _) = tables_of(seven)
    assert head[3:] == [
        f"{who}: {name}" for who in ("paper", "template", "image") for name in ("AC", "AA", "ACA")
    ]
    assert others[3:] == [
        f"{who}: {name}" for who in ("template", "image") for name in ("BC", "FC")
    ]
    rows = {row[0]: row[1:] for row in body}
    assert rows["hoc"][:5] == ["2", "70", "**0.86**", "48.21", "**42.41**"]
    assert rows["cvs"][:5] == ["—", "—", "0.29", "**51.69**", "12.70"]
    assert not rows["hoc lam=0.25 K=1000"][6].startswith("**")  # highest, but one run
    assert " ± " in rows["hoc"][6]
    assert rows["hoc"][5] == "1.00 ± 0.00"  # every line has AC 1: there is no best
    assert set(rows["cvs"][5:]) == {"—"}


def test_changed_settings_are_a_line_of_their_own_with_its_command() -> None:
    run = Run(SEVEN, "hoc", 1, changes={"length": 0.1, "weight_decay": 5e-4})
    comparison = compare(SEVEN, [invented(Run(SEVEN, "hoc", 1), 0.3), invented(run, 0.4)])
    assert len(line(comparison, "hoc weight_decay=0.0005 length=0.1").runs) == 1
    told = "--method hoc --orders 1 --seeds 1 --setting weight_decay=0.0005 --setting length=0.1"
    assert told in markdown(comparison, _commands(comparison))


def test_markdown_says_how_it_was_made_and_what_differs(seven: Comparison, tmp_path: Path) -> None:
    text = markdown(seven, _commands(seven), [tmp_path / "pictures" / "a.png"], tmp_path)
    assert text.startswith("## cifar100-10/7: CIFAR-100 learnt in 7 tasks")
    assert "fixstar bench run cifar100-10/7 --data DATA --method hoc --orders 2 --seeds 1\n" in text
    assert "--method er --orders 1 --seeds 1 --epochs 40" in text
    assert "--method hoc --orders 1 --seeds 1 --capacity 1000 --option lam=0.25" in text
    assert "![a](pictures/a.png)" in text
    assert "4 runs, 100 s each on average (invented)" in text
    differs = "\n".join(what_differs(seven))
    assert "The class order is not stated." in differs
    assert "Epochs per version: 40 instead of 70" in differs
    assert "hoc: lam=0.25, K=1000 instead of the paper's" in differs
    assert (
        "ours are means over class orders (1) and seeds (0); class orders (1, 2) and seeds (0) for hoc."
        in differs
    )
    assert "Not run here: fan, bct-er, lce-er, advbct-er, cvs, fd." in differs


def test_the_datasets_own_order_is_one_order_and_not_averaged_with_draws() -> None:
    comparison = compare(
        SEVEN, [invented(Run(SEVEN, "hoc", order), 0.3 + 0.1 * order) for order in (0, 1, 2)]
    )
    assert len(line(comparison, "hoc").runs) == 2
    own = line(comparison, "hoc (own class order)")
    assert [run.class_order for run in own.runs] == [0]
    assert own.ours["template"]["AA"].mean < line(comparison, "hoc").ours["template"]["AA"].mean
    assert "--method hoc --order 0 --seeds 1" in _commands(comparison)[-1]
    asked = benchmark(
        "cifar100-10-upgrades/9:order=alphabetical"
    )  # where it is the one asked for: nothing to say
    assert asked.orders == (None,)
    other = compare(
        asked, [invented(Run(asked, "cores", order), 0.6, ("verification",)) for order in (0, 1, 2)]
    )
    assert [len(line(other, label).runs) for label in ("cores", "cores (shuffled classes)")] == [
        1,
        2,
    ]


def test_the_best_is_found_among_the_lines_with_most_runs() -> None:
    runs = [Run(SEVEN, name, order) for name in ("er", "fan") for order in (1, 2)]
    results = [invented(run, 0.3 + 0.1 * (run.method == "fan")) for run in runs]
    comparison = compare(SEVEN, [*results, invented(Run(SEVEN, "hoc", 1), 0.6)])
    best = {
        entry.label for entry in comparison.lines if comparison.is_best(entry, "template", "AA")
    }
    assert best == {"fan"}  # one run of HOC is higher, and is one run
    assert comparison.is_best(
        line(comparison, "cvs"), None, "AA"
    )  # among the printed figures all count
    assert "lines with 2 or more runs are compared" in markdown(comparison)


def test_queries_by_two_models_have_a_table_of_their_own() -> None:
    both = ("template", "template, two models")
    comparison = compare(
        SEVEN, [invented(Run(SEVEN, "hoc", 1), 0.6, both), invented(Run(SEVEN, "er", 1), 0.5)]
    )
    *_, (title, head, body) = tables_of(comparison)
    check_wording(title)
    assert head[3:] == [f"template, two models: {name}" for name in ("AC", "AA", "ACA")]
    assert [row[0] for row in body] == ["hoc"]
    assert title in markdown(comparison)


def test_runs_from_before_a_protocol_was_there_stay_in_the_table(tmp_path: Path) -> None:
    entry = benchmark("cifar100-10-verification/3")
    both = ("verification", "verification-published")
    runs = [invented(Run(entry, "fd", 1), 0.5, both[:1]), invented(Run(entry, "fd", 2), 0.6, both)]
    comparison = compare(entry, [*runs, invented(Run(entry, "er", 1), 0.4, both[:1])])
    fd = line(comparison, "fd")
    assert fd.ours["verification"]["AA"].mean < fd.ours["verification-published"]["AA"].mean
    assert np.allclose(
        fd.matrices["verification-published"],
        runs[1].matrix("verification-published"),
        equal_nan=True,
    )
    head, body = table_of(comparison, ["AC"])
    assert head[-2:] == ["verification: AC", "verification-published: AC"]
    assert {row[0]: row[-1] for row in body}["er"] == "—"
    assert len(draw(comparison, tmp_path)) == 6
    assert "Runs that were not judged by verification-published: 1 of er, 1 of fd." in what_differs(
        comparison
    )


def test_settings_of_a_method_stand_in_one_sentence() -> None:
    runs = [Run(SEVEN, "hoc", 1, options={"lam": lam}) for lam in (0.2, 0.3)]
    comparison = compare(
        SEVEN, [invented(run, 0.3) for run in (*runs, Run(SEVEN, "hoc", 1), Run(SEVEN, "er", 1))]
    )
    assert "hoc: lam=0.2; lam=0.3 instead of the paper's." in what_differs(comparison)
    runs_of_two = compare(SEVEN, [invented(Run(SEVEN, name, order), 0.3) for name, order in ORDERS])
    assert any(
        sentence.endswith(
            "(1) and seeds (0); class orders (2) and seeds (0) for fan, bct-er and hoc."
        )
        for sentence in what_differs(runs_of_two)
    )


def test_a_setting_that_the_paper_varies_stands_beside_its_own_figures() -> None:
    sixteen = benchmark("cifar100-10/16")
    runs = [
        Run(sixteen, "hoc", 1),
        Run(sixteen, "hoc", 1, capacity=1000),
        Run(sixteen, "hoc", 1, options={"lam": 0.25, "rho": 5.0}),
        Run(sixteen, "hoc", 1, capacity=3000),  # not in table 8
        Run(sixteen, "er", 1, capacity=200),  # the paper varies HOC alone
    ]
    comparison = compare(sixteen, [invented(run, 0.3) for run in runs])
    printed = {
        entry.label: str(entry.printed.values["AA"])
        for entry in comparison.lines
        if entry.runs and entry.printed
    }
    assert printed == {
        "hoc": "47.56",
        "hoc K=1000": "46.44",
        "hoc lam=0.25": "48.63",
        "hoc K=3000": "47.56",
        "er K=200": "44.91",
    }
    differs = what_differs(comparison)
    assert "hoc: K=1000 as in HOC, table 8a, whose figures are those printed here." in differs
    assert "hoc: lam=0.25 as in HOC, table 8b, whose figures are those printed here." in differs
    assert "hoc: K=3000 instead of the paper's." in differs


def test_commands_of_the_text_plan_the_same_runs(seven: Comparison) -> None:
    from typer.testing import CliRunner

    from fixstar.cli import app

    planned = []
    for command in _commands(seven):
        result = CliRunner().invoke(app, [*command.split()[1:], "--dry-run"])
        assert result.exit_code == 0, result.output
        planned += [entry.split()[-1] for entry in result.output.splitlines()]
    assert sorted(planned) == sorted(
        [
            "cifar100-10_7__er__order1__seed0__e40",
            "cifar100-10_7__hoc__lam=0.25__K=1000__order1__seed0",
            "cifar100-10_7__hoc__order1__seed0",
            "cifar100-10_7__hoc__order2__seed0",
        ]
    )


def test_two_tasks_of_cl2r_compare_single_cells_and_count_the_marks() -> None:
    entry = benchmark("cifar100-10-verification/2")
    comparison = compare(entry, [invented(Run(entry, "fd", 1), 0.6, ("verification",))])
    assert comparison.printed_columns == ("AC", "BC", "FC", "C[2,1]", "C[2,2]")
    fd = line(comparison, "fd")
    assert fd.printed is not None
    assert fd.printed.counted
    assert (fd.printed.values["AC"].fraction, fd.printed.values["C[2,1]"].fraction) == (1.0, 0.67)
    assert fd.ours["verification"]["C[2,1]"].mean == pytest.approx(0.61)
    rows = {row[0]: row for row in table_of(comparison, comparison.printed_columns)[1]}
    assert rows["er"][5] == "-0.210?"  # it contradicts the cells beside it
    assert rows["fd"][6] == "67"
    assert any("marked ?" in sentence for sentence in what_differs(comparison))


def test_pairs_of_cores_become_cells_and_am_is_aa() -> None:
    two = compare(benchmark("cifar100-10-upgrades/2"), [])
    bct = line(two, "bct").printed
    assert bct is not None
    assert (bct.values["C[3,1]"].fraction, bct.values["AC"].fraction) == (0.58, 0.33)
    assert two.printed_columns[-1] == "C[3,3]"
    nine = line(
        compare(benchmark("cifar100-10-upgrades/9:initialisation=fresh"), []), "cores"
    ).printed
    assert nine is not None
    assert str(nine.values["AA"]) == "0.60 ± 0.11"


def test_settings_stand_in_the_order_of_their_numbers() -> None:
    runs = [Run(SEVEN, "hoc", 1, capacity=K) for K in (1000, 200, 10_000)]
    runs += [Run(SEVEN, "hoc", 1, options={"rho": rho}) for rho in (10.0, 4.0)]
    runs += [Run(SEVEN, "hoc", 1, options={"same_class": "kept"})]
    comparison = compare(SEVEN, [invented(run, 0.3, ("template",)) for run in runs])
    labels = [line.label for line in comparison.lines if line.method == "hoc"]
    assert labels == [
        *("hoc K=200", "hoc K=1000", "hoc K=10000"),
        *("hoc rho=4.0", "hoc rho=10.0", "hoc same_class=kept"),
    ]


def test_pictures_of_every_line_and_the_curves(tmp_path: Path) -> None:
    entry = benchmark("cifar100-10-verification/3")
    runs = [Run(entry, "fd", 1), Run(entry, "fd", 2), Run(entry, "fd", 1, epochs=9)]
    comparison = compare(entry, [invented(run, 0.5, ("verification",)) for run in runs])
    drawn = draw(comparison, tmp_path / "pictures")
    stems = [
        path.name.removeprefix("cifar100-10-verification_3__").removesuffix("__verification.png")
        for path in drawn
    ]
    assert stems == ["matrices", "AA", "BC"]
    assert all(Image.open(path).format == "PNG" for path in drawn)
    assert all(Image.open(path).mode == "P" for path in drawn)
    assert draw(compare(entry, []), tmp_path / "none") == []


@pytest.mark.long
def test_more_curves_than_colours_are_drawn_in_one_panel_per_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = replace(SEVEN, protocols=("template",))
    special = [Run(entry, "hoc", 1, options={"lam": lam / 100}) for lam in range(11, 17)]
    runs = [
        invented(run, 0.3, ("template",))
        for run in (*special, Run(entry, "er", 1), Run(entry, "fan", 1))
    ]
    few, many = tmp_path / "few", tmp_path / "many"
    monkeypatch.setattr(tables, "side_by_side", lambda _, path: Image.new("RGB", (1, 1)).save(path))
    draw(compare(entry, runs), few)
    draw(compare(entry, [*runs, invented(Run(entry, "cvs", 1), 0.3, ("template",))]), many)
    name = "cifar100-10_7__AA__template.png"
    plane, panels = Image.open(few / name), Image.open(many / name)
    assert panels.width > plane.width  # three panels beside each other, and a row below
    assert panels.height > plane.height


def test_a_section_takes_the_place_of_the_one_before_and_leaves_the_rest() -> None:
    text = put_section(put_section("first\n", "a/2", "two\n"), "a/3", "three\n") + "last\n"
    assert put_section(text, "a/2", "TWO\n") == text.replace("two\n", "TWO\n")
    assert put_section(text, "a/3", "THREE\n") == text.replace("three\n", "THREE\n")
    assert put_section("", "a/2", "two\n").startswith("<!-- a/2 -->")


def test_results_of_other_benchmarks_are_left_alone(tmp_path: Path) -> None:
    run = Run(SEVEN, "hoc", 1)
    invented(run, 0.3).save(tmp_path / f"{run.name}.json")
    other = Run(benchmark("cifar100-10/2"), "hoc", 1)
    invented(other, 0.3).save(tmp_path / f"{other.name}.json")
    (tmp_path / "something.json").write_text("[]")
    assert [result.benchmark for result in read_results(SEVEN, tmp_path)] == ["cifar100-10/7"]
