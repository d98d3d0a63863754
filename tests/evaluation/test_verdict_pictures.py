"""Heat maps by evidence: what the verdicts say stands in the picture, whatever the numbers say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from fixstar.errors import InputError
from fixstar.evaluation.evidence import Difference
from fixstar.evaluation.pictures import compatibility_heat_map, side_by_side

C = np.array([[0.30, 0, 0], [0.35, 0.50, 0], [0.31, 0.421, 0.60]])
VERDICTS = {
    (1, 0): Difference(0.05, 0.01, 0.09, "compatible", 50),
    (2, 0): Difference(0.01, -0.02, 0.03, "not decided", 50),
    (2, 1): Difference(-0.079, -0.1, -0.02, "incompatible", 50),
}


def squares(axes: Axes, kind: str) -> dict[tuple[int, int], Rectangle]:
    found = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_gid() == kind]
    return {(int(patch.get_y()), int(patch.get_x())): patch for patch in found}


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
    texts = [text.get_text() for text in figure.axes[-1].texts]
    assert texts == ["self-test", "compatible", "not compatible"]


@pytest.mark.parametrize("T", [2, 3])
def test_the_legend_explains_the_third_mark_and_nothing_is_cut_off(T: int) -> None:
    cells = {cell: found for cell, found in VERDICTS.items() if cell[0] < T}
    figure = side_by_side({"one": C[:T, :T]}, verdicts={"one": cells})
    shown = figure.axes[-1].texts
    assert [text.get_text() for text in shown] == ["self-test", "compatible", "not compatible", "not decided"]
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
    with pytest.raises(InputError, match=r"verdicts of 'one' lack cell \(1, 0\)"):
        side_by_side({"one": C}, verdicts={"one": {}})
