"""Curves: what is drawn where, read back from the figure's artists and from the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from PIL import Image
from wording import refuses

from fixstar.errors import InputError
from fixstar.evaluation import accuracy_panels, compatibility
from fixstar.evaluation.curves import (
    METRICS,
    accuracy_curves,
    backfill_curves,
    metric_curve,
    roc_curves,
)
from fixstar.evaluation.mixed import BackfillCurve
from fixstar.evaluation.pictures import DPI
from fixstar.evaluation.verification import roc

C = np.tril(np.random.default_rng(0).uniform(0.2, 0.6, size=(9, 9)))


def lines(figure: Figure, gid: str) -> list[Line2D]:
    return [line for line in figure.axes[0].lines if line.get_gid() == gid]


def points(line: Line2D) -> NDArray[np.float64]:
    return np.asarray(line.get_xydata(), dtype=np.float64)


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_curve_is_the_metric_of_the_first_versions(metric: str) -> None:
    curve = metric_curve(C, metric)
    assert curve.shape == (9,)
    assert np.isnan(curve[0]) == (metric != "AA")
    for tau in range(2, 10):
        assert curve[tau - 1] == METRICS[metric](C[:tau, :tau])
    if metric != "BC":
        assert curve[-1] == compatibility.summary(C)[metric]


def test_accuracy_curves_draw_percent_and_mark_replacements() -> None:
    figure = accuracy_curves(
        {"HOC": metric_curve(C), "costs $5": [0.5, np.nan, 0.25]}, None, (3, 7), metric="AA"
    )
    first, second = lines(figure, "curve")
    assert np.allclose(points(first), np.stack([np.arange(1, 10), 100 * metric_curve(C)], axis=1))
    assert np.allclose(points(second), np.array([[1, 50], [2, np.nan], [3, 25]]), equal_nan=True)
    assert first.get_color() != second.get_color()
    assert first.get_marker() != second.get_marker()
    assert [points(line)[0, 0] for line in lines(figure, "replacement")] == [3, 7]
    assert legend(figure) == ["HOC", "costs $5"]
    assert not any(text.get_parse_math() for text in figure.legends[0].get_texts())
    assert figure.axes[0].get_ylabel() == "AA (%)"


def test_a_backfill_curve_stands_between_its_self_tests() -> None:
    shares = np.array([1.0, 0.0, 0.5])  # in any order
    curve = BackfillCurve(shares, np.array([[0.9, 0.5, 0.7], [0.9, 0.5, 0.8]]))
    figure = backfill_curves(
        {"v2": curve, "alone": BackfillCurve(shares, curve.runs[:1])}, None, {"v2": (0.4, 0.9)}
    )
    drawn, alone = lines(figure, "curve")
    assert np.allclose(points(drawn), [[0, 50], [50, 75], [100, 90]])
    assert np.allclose(points(alone), [[0, 50], [50, 70], [100, 90]])
    old, new = lines(figure, "self-test")
    assert [points(old)[0, 1], points(new)[0, 1]] == [40, 90]
    assert len(figure.axes[0].collections) == 1  # the spread of two orders; one order has none


def test_a_roc_is_a_staircase_without_the_false_accept_rate_zero() -> None:
    rng = np.random.default_rng(1)
    same = rng.random(400) < 0.5
    far, tar, _ = roc(rng.normal(size=400) + same, same)
    figure = roc_curves({"new": (far, tar)})
    (line,) = lines(figure, "curve")
    assert np.allclose(points(line), np.stack([far, 100 * tar], axis=1)[far > 0])
    assert line.get_drawstyle() == "steps-post"
    assert figure.axes[0].get_xscale() == "log"


CURVE = BackfillCurve(np.array([0.0, 1.0]), np.array([[0.5, 0.6]]))


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: accuracy_curves(
            {f"method {i}": metric_curve(C) for i in range(8)}, path, title="Nine versions"
        ),
        lambda path: backfill_curves({"v2": CURVE}, path, {"v2": (0.4, 0.6)}),
        lambda path: roc_curves({"v2": ([0, 0.1, 1], [0.2, 0.5, 1])}, path, title="ROC"),
    ],
)
def test_the_file_is_a_png_of_the_figures_size_with_nothing_cut_off(
    draw: Callable[[Path], Figure], tmp_path: Path
) -> None:
    path = tmp_path / "curve.png"
    figure = draw(path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert np.allclose(image.size, figure.get_size_inches() * 200, atol=1)
        assert (
            len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3)[::50], axis=0)) > 20
        )  # not blank
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= 0
    assert (np.array([box.x1, box.y1]) <= figure.get_size_inches()).all()
    below = figure.axes[0].xaxis.get_label().get_window_extent()
    assert figure.legends[0].get_window_extent().y1 <= below.y0


@pytest.mark.parametrize(
    "call",
    [
        lambda: metric_curve(C, "FC"),
        lambda: accuracy_curves({}),
        lambda: accuracy_curves({"a": []}),
        lambda: accuracy_curves({"a": [50.0]}),
        lambda: accuracy_curves({"a": [0.5]}, None, (2,)),
        lambda: backfill_curves({}),
        lambda: backfill_curves({"a": CURVE}, None, {"b": (0, 1)}),
        lambda: roc_curves({}),
        lambda: roc_curves({"a": ([0.1], [0.1, 0.2])}),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object]) -> None:
    with refuses(InputError):
        call()


GROUPS = {
    "hoc": {"hoc": [0.3, 0.4, 0.5], "hoc lam=0.2": [0.3, np.nan, 0.6]},
    "er": {"er": [0.2, 0.1, 0.15]},
    "fd": {"fd costs $5": [0.25, 0.2]},
    "cvs": {"cvs": [0.35, 0.3, 0.3]},
}


def test_every_method_has_a_plane_with_its_curves_and_the_others_behind() -> None:
    figure = accuracy_panels(GROUPS, metric="BC", title="Four methods")
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(GROUPS)
    for axes, members in zip(figure.axes, GROUPS.values(), strict=True):
        mine = [line for line in axes.lines if line.get_gid() == "curve"]
        assert [line.get_label() for line in mine] == list(members)
        for line, values in zip(mine, members.values(), strict=True):
            drawn = np.asarray(line.get_xydata(), dtype=np.float64)
            assert np.allclose(drawn[:, 0], 1 + np.arange(len(values)))
            assert np.allclose(drawn[:, 1], 100 * np.array(values), equal_nan=True)
        assert len([line for line in axes.lines if line.get_gid() == "other"]) == 5 - len(mine)
        assert all(
            line.get_zorder() < mine[0].get_zorder()
            for line in axes.lines
            if line.get_gid() == "other"
        )
    assert len({axes.get_ylim() for axes in figure.axes}) == 1  # one scale: panels can be compared
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    low, high = figure.axes[0].get_ylim()
    assert low < 10 < 60 < high
    assert [axes.get_ylabel() for axes in figure.axes] == ["BC (%)", "", "", "BC (%)"]
    assert {axes.get_xlabel() for axes in figure.axes} == {"version"}
    legends = [legend for axes in figure.axes if (legend := axes.get_legend()) is not None]
    words = [*figure.texts, *(text for legend in legends for text in legend.get_texts())]
    assert not any(text.get_parse_math() for text in words)  # a dollar in a name is a dollar
    assert [[text.get_text() for text in legend.get_texts()] for legend in legends] == [
        list(members) for members in GROUPS.values()
    ]


@pytest.mark.parametrize("methods", [1, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "name", ["setting", "a setting with lam=0.2, rho=10, K=1000 and more (own class order)"]
)
def test_nothing_overlaps_and_nothing_is_cut_off(name: str, methods: int) -> None:
    many = {
        f"method {number}": {f"{name} {number}-{i}": [0.1, 0.2] for i in range(1 + number)}
        for number in range(8)
    }
    groups = many if methods == 8 else {"method 0": many["method 0"]}
    figure = accuracy_panels(groups, title="Eight methods, by nearest image, in three class orders")
    figure.canvas.draw()
    planes = [
        axes.get_tightbbox() for axes in figure.axes
    ]  # with their titles, labels, numbers and legends
    boxes = [*filter(None, planes), *(box.get_window_extent() for box in figure.texts)]
    assert len(boxes) == len(groups) + 1
    for axes in figure.axes:
        legend, below = axes.get_legend(), axes.xaxis.get_label().get_window_extent()
        assert legend is not None
        assert legend.get_window_extent().y1 <= below.y0
    for place, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:place])


def test_the_file_has_the_size_that_the_figure_says(tmp_path: Path) -> None:
    path = tmp_path / "panels.png"
    figure = accuracy_panels(GROUPS, path)
    assert Image.open(path).size == pytest.approx(DPI * figure.get_size_inches(), abs=1)


@pytest.mark.parametrize(
    "groups",
    [
        {},
        {"hoc": {}},
        {"hoc": {"hoc": []}},
        {"hoc": {"hoc": [50.0]}},
    ],
)
def test_wrong_panels_are_named(groups: dict[str, dict[str, list[float]]]) -> None:
    with refuses(InputError):
        accuracy_panels(groups)


def test_values_that_are_all_missing_still_have_a_plane() -> None:
    figure = accuracy_panels({"er": {"er": [np.nan, np.nan]}})
    assert np.isfinite(figure.axes[0].get_ylim()).all()
