"""Curves in panels: what is drawn where, read back from the figure's artists and from the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fixstar.errors import InputError
from fixstar.evaluation import accuracy_panels
from fixstar.evaluation.pictures import DPI

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
        assert all(line.get_zorder() < mine[0].get_zorder() for line in axes.lines if line.get_gid() == "other")
    assert len({axes.get_ylim() for axes in figure.axes}) == 1  # one scale: panels can be compared
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    low, high = figure.axes[0].get_ylim()
    assert low < 10 < 60 < high
    assert [axes.get_ylabel() for axes in figure.axes] == ["BC (%)", "", "", "BC (%)"]
    assert {axes.get_xlabel() for axes in figure.axes} == {"version"}
    words = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    assert not any(text.get_parse_math() for text in words)  # a dollar in a name is a dollar
    assert [[text.get_text() for text in legend.get_texts()] for legend in figure.legends] == [
        list(members) for members in GROUPS.values()
    ]


@pytest.mark.parametrize("methods", [1, 8])
@pytest.mark.parametrize("name", ["setting", "a setting with lam=0.2, rho=10, K=1000 and more (own class order)"])
def test_nothing_overlaps_and_nothing_is_cut_off(name: str, methods: int) -> None:
    many = {f"method {number}": {f"{name} {number}-{i}": [0.1, 0.2] for i in range(1 + number)} for number in range(8)}
    groups = many if methods == 8 else {"method 0": many["method 0"]}
    figure = accuracy_panels(groups, title="Eight methods, by nearest image, in three class orders")
    figure.canvas.draw()
    planes = [axes.get_tightbbox() for axes in figure.axes]  # with their titles, labels and numbers
    boxes = [*filter(None, planes), *(box.get_window_extent() for box in (*figure.legends, *figure.texts))]
    assert len(boxes) == 2 * len(groups) + 1
    for place, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:place])


def test_the_file_has_the_size_that_the_figure_says(tmp_path: Path) -> None:
    path = tmp_path / "panels.png"
    figure = accuracy_panels(GROUPS, path)
    assert Image.open(path).size == pytest.approx(DPI * figure.get_size_inches(), abs=1)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({}, "at least one curve a group"),
        ({"hoc": {}}, "at least one curve a group"),
        ({"hoc": {"hoc": []}}, "'hoc' needs a list of fractions, not empty"),
        ({"hoc": {"hoc": [50.0]}}, "Divide percentages by 100"),
    ],
)
def test_what_is_no_curve_is_refused(groups: dict[str, dict[str, list[float]]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        accuracy_panels(groups)


def test_values_that_are_all_missing_still_have_a_plane() -> None:
    figure = accuracy_panels({"er": {"er": [np.nan, np.nan]}})
    assert np.isfinite(figure.axes[0].get_ylim()).all()
