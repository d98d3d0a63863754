"""Pictures: what is drawn where, read back from the figure's artists and from the file."""

from __future__ import annotations

import itertools
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image
from wording import refuses

from fixstar.errors import InputError
from fixstar.evaluation.compatibility import compatible_cells
from fixstar.evaluation.evidence import Difference
from fixstar.evaluation.pictures import compatibility_heat_map, side_by_side

Cell = tuple[int, int]

# (1, 0) passes, (2, 0) ties, (2, 1) falls short.
SMALL = np.array([[0.30, np.nan, np.nan], [0.35, 0.50, np.nan], [0.30, 0.421, 0.60]])


def random_matrix(T: int) -> NDArray[np.float64]:
    return np.tril(np.random.default_rng(T).uniform(0.2, 0.6, size=(T, T)))


@cache
def drawn(T: int) -> Figure:
    return compatibility_heat_map(random_matrix(T), title="d-Simplex-HOC")


def failing(C: NDArray[np.float64]) -> set[Cell]:
    return {(t, k) for t in range(len(C)) for k in range(t) if not compatible_cells(C)[t, k]}


def squares(axes: Axes, kind: str) -> dict[Cell, Rectangle]:
    found = [
        patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_gid() == kind
    ]
    return {(int(patch.get_y()), int(patch.get_x())): patch for patch in found}


def crosses(axes: Axes) -> set[Cell]:
    (marks,) = (line for line in axes.lines if line.get_gid() == "cross")
    assert marks.get_marker() == "x"
    assert marks.get_markersize() >= 3
    return {(int(y), int(x)) for x, y in np.asarray(marks.get_xydata())}


def numbers(axes: Axes) -> dict[Cell, str]:
    _, *texts = axes.texts  # the title comes first
    return {
        (int(text.get_position()[1]), int(text.get_position()[0])): text.get_text()
        for text in texts
    }


def heads(figure: Figure) -> list[str]:
    planes = [axes for axes in figure.axes if axes.texts]
    return [
        text for axes in planes for text in (axes.get_title(loc="left"), axes.texts[0].get_text())
    ]


@pytest.mark.parametrize("T", [2, 7, 16, 31])
def test_exactly_the_failing_cells_are_marked(T: int) -> None:
    C = random_matrix(T)
    axes = drawn(T).axes[0]
    assert crosses(axes) == failing(C)
    assert set(squares(axes, "fails")) == failing(C)
    assert set(squares(axes, "self-test")) == {(t, t) for t in range(T)}
    assert len(squares(axes, "compatible")) == T * (T - 1) // 2 - len(failing(C))


def test_a_tie_is_marked_and_the_mark_does_not_rest_on_colour_alone() -> None:
    axes = compatibility_heat_map(SMALL).axes[0]
    assert crosses(axes) == {(2, 0), (2, 1)}
    for square in squares(axes, "fails").values():
        red, _, blue = to_rgb(square.get_facecolor())
        assert red > 0.9  # light red
        assert red > blue
    for square in squares(axes, "compatible").values():
        red, _, blue = to_rgb(square.get_facecolor())
        assert blue > red
    assert all(square.get_linewidth() > 0 for square in squares(axes, "self-test").values())
    assert all(square.get_linewidth() == 0 for square in squares(axes, "compatible").values())


def test_cells_print_percent_with_one_decimal() -> None:
    axes = compatibility_heat_map(SMALL).axes[0]
    expected = {
        (0, 0): "30.0",
        (1, 0): "35.0",
        (1, 1): "50.0",
        (2, 0): "30.0",
        (2, 1): "42.1",
        (2, 2): "60.0",
    }
    assert numbers(axes) == expected
    assert len(numbers(drawn(16).axes[0])) == 136
    assert not numbers(drawn(31).axes[0])


def test_numbers_fit_their_cells() -> None:
    for T in (2, 7, 20):
        figure = compatibility_heat_map(np.ones((T, T)))  # "100.0" is the longest number
        axes = figure.axes[0]
        cell = axes.get_window_extent().width / T
        assert len(axes.texts) > 1, T
        assert axes.texts[-1].get_fontweight() == "bold"  # the widest
        assert axes.texts[-1].get_window_extent().width < 0.95 * cell


def test_labels_title_and_summary() -> None:
    figure = compatibility_heat_map(
        SMALL, names=["v1", "v2", "a name far too long to print"], title="shop, $5 to $6"
    )
    axes = figure.axes[0]
    assert axes.get_xlabel() == "gallery by"
    assert axes.get_ylabel() == "query by"
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "v1",
        "v2",
        "a name far too lo…",
    ]
    assert axes.yaxis_inverted()
    texts = [axes.texts[0], *axes.get_xticklabels(), *axes.get_yticklabels()]
    assert not any(text.get_parse_math() for text in texts)  # a dollar is a dollar
    assert heads(figure) == ["AC 0.33    AA 41.2 %    ACA 11.7 %", "shop, $5 to $6"]
    default = compatibility_heat_map(SMALL).axes[0]
    assert [label.get_text() for label in default.get_xticklabels()] == ["1", "2", "3"]


@pytest.mark.parametrize(
    "names", [None, ["v1 resnet18, 2024", "v2 resnet50, 2025", "$v3$ of a long name"]]
)
def test_nothing_is_cut_off(names: list[str] | None) -> None:
    title = "a rather long title of an experiment with very many words"
    figure = compatibility_heat_map(SMALL, names=names, title=title)
    width, height = figure.bbox.width, figure.bbox.height
    box = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    assert min(box.x0, box.y0) > 0
    assert box.x1 < width
    assert box.y1 < height


@pytest.mark.parametrize("T", [2, 31])
def test_the_file_is_a_png_of_the_figures_size(T: int, tmp_path: Path) -> None:
    path = tmp_path / "matrix.png"
    figure = compatibility_heat_map(random_matrix(T), title="d-Simplex-HOC", path=path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with Image.open(path) as image:
        assert np.allclose(image.size, figure.get_size_inches() * 200, atol=1)
        assert all(800 <= pixels <= 2000 for pixels in image.size)
        assert (
            len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3)[::50], axis=0)) > 50
        )  # not blank


def test_side_by_side_shares_one_colour_scale(tmp_path: Path) -> None:
    low, high = SMALL - 0.2, SMALL + 0.3
    high[0, 0] = low[1, 1]  # one value, in both
    path = tmp_path / "both.png"
    figure = side_by_side({"low": low, "high": high}, path)
    left, right = figure.axes[:2]
    shared = squares(left, "self-test")[1, 1].get_facecolor()
    assert np.allclose(squares(right, "self-test")[0, 0].get_facecolor(), shared)
    alone = squares(compatibility_heat_map(low).axes[0], "self-test")[1, 1].get_facecolor()
    assert not np.allclose(alone, shared)
    assert crosses(left) == failing(low)
    assert crosses(right) == failing(high)
    assert "low" in heads(figure)
    assert "high" in heads(figure)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_many_panels_wrap_and_do_not_overlap() -> None:
    figure = side_by_side({f"method {i}": random_matrix(2) for i in range(5)})
    boxes = [axes.get_position() for axes in figure.axes[:5]]
    assert len({round(box.y0, 3) for box in boxes}) == 2
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_equal_values_still_draw() -> None:
    axes = compatibility_heat_map(np.full((2, 2), 0.0)).axes[0]
    assert crosses(axes) == {(1, 0)}
    assert np.isfinite(squares(axes, "self-test")[0, 0].get_facecolor()).all()


def test_wrong_input_is_named() -> None:
    with pytest.raises(InputError, match="2 names for 3 versions: v1, v2"):
        compatibility_heat_map(SMALL, names=["v1", "v2"])
    with pytest.raises(InputError, match="two versions"):
        compatibility_heat_map([[0.5]])
    with pytest.raises(InputError, match="Divide percentages by 100"):
        side_by_side({"percent": 100 * SMALL})
    with pytest.raises(InputError, match="at least one"):
        side_by_side({})


def test_importing_evaluation_loads_no_matplotlib_and_drawing_no_pyplot() -> None:
    code = (
        "import sys, fixstar.evaluation as e\n"
        "print('matplotlib' in sys.modules, 'torch' in sys.modules)\n"
        "e.compatibility_heat_map([[0.5, 0], [0.6, 0.7]]).canvas.draw()\n"
        "print('matplotlib.figure' in sys.modules, 'matplotlib.pyplot' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True", "False"]


C = np.array([[0.30, 0, 0], [0.35, 0.50, 0], [0.31, 0.421, 0.60]])
VERDICTS = {
    (1, 0): Difference(0.05, 0.01, 0.09, "compatible", 50),
    (2, 0): Difference(0.01, -0.02, 0.03, "not decided", 50),
    (2, 1): Difference(-0.079, -0.1, -0.02, "incompatible", 50),
}


def marked(axes: Axes, gid: str) -> set[tuple[int, int]]:
    (line,) = (line for line in axes.lines if line.get_gid() == gid)
    return {(int(y), int(x)) for x, y in np.asarray(line.get_xydata())}


def test_cells_are_marked_by_their_verdicts() -> None:
    axes = compatibility_heat_map(C, verdicts=VERDICTS).axes[0]
    assert squares(axes, "compatible").keys() == {(1, 0)}
    assert squares(axes, "fails").keys() == marked(axes, "cross") == {(2, 1)}
    assert squares(axes, "not decided").keys() == marked(axes, "question") == {(2, 0)}
    red, green, blue = to_rgb(squares(axes, "not decided")[2, 0].get_facecolor())
    assert max(red, green, blue) - min(red, green, blue) < 0.08  # grey


def test_without_verdicts_nothing_is_left_open() -> None:
    figure = compatibility_heat_map(C)
    assert not marked(figure.axes[0], "question")
    assert squares(figure.axes[0], "compatible").keys() == {(1, 0), (2, 0)}
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["self-test", "compatible", "not compatible"]


@pytest.mark.parametrize("T", [2, 3])
def test_the_legend_explains_the_third_mark_and_nothing_is_cut_off(T: int) -> None:
    cells = {cell: found for cell, found in VERDICTS.items() if cell[0] < T}
    figure = side_by_side({"one": C[:T, :T]}, verdicts={"one": cells})
    figure.draw_without_rendering()  # places the texts of a legend
    shown = figure.legends[0].get_texts()
    assert [text.get_text() for text in shown] == [
        "self-test",
        "compatible",
        "not compatible",
        "not decided",
    ]
    box = figure.get_tightbbox()
    assert box.x1 < figure.get_size_inches()[0]
    extents = [text.get_window_extent() for text in shown]
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(extents))


def test_every_method_has_its_own_verdicts() -> None:
    other = dict.fromkeys(VERDICTS, VERDICTS[1, 0])
    figure = side_by_side({"one": C, "two": C}, verdicts={"one": VERDICTS, "two": other})
    assert squares(figure.axes[1], "compatible").keys() == VERDICTS.keys()
    assert len(squares(figure.axes[0], "compatible")) == 1


def test_missing_verdicts_are_named() -> None:
    with refuses(InputError):
        side_by_side({"one": C}, verdicts={"one": {}})
