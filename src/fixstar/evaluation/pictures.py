"""Compatibility matrices as pictures, the way the papers draw them (figure 4 of HOC).

Rows are the version that embedded the query, columns the version that embedded the gallery. Self-tests on the diagonal
wear a dark frame; cross-tests that fail eq. 6 have a light-red ground **and** a cross, so that no reader depends on
colour. Blue and red both deepen with accuracy, on one scale.

The layout is computed in inches, so that 2 versions and 31 versions both come out readable. Numbers that would be
smaller than ``SMALLEST_NUMBER`` points are left out; the marks stay.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError
from fixstar.evaluation import compatibility

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

__all__ = ["compatibility_heat_map", "side_by_side"]

INK, GREY, RED_INK = "#17212b", "#5a6877", "#8f1d13"
BLUES = ("#e9f0f8", "#a6c6e3", "#5a93c7", "#1d5a98")
REDS = ("#fdf0ec", "#fbdfd8", "#f6c9be", "#f0b1a3")

DPI = 200
TITLE, TEXT = 12.0, 9.0  # points
SMALLEST_NUMBER = 5.5  # points
LONGEST_NAME = 18  # characters of a version's name
PAD, GAP = 0.22, 0.38  # inches around the figure, between panels
BAR = 1.0  # inches for the colour scale on the right
LEGEND = 0.36  # inches for the legend at the bottom

Matrix = NDArray[np.float64]
Colour = str | tuple[float, float, float, float]


def compatibility_heat_map(
    C: ArrayLike, names: Sequence[str] | None = None, title: str = "", path: str | Path | None = None
) -> Figure:
    """Draw one compatibility matrix; with ``path``, also write it there (PNG; SVG and PDF by their suffix)."""
    return side_by_side({title: C}, path, names)


def side_by_side(
    matrices: Mapping[str, ArrayLike], path: str | Path | None = None, names: Sequence[str] | None = None
) -> Figure:
    """Draw several matrices, title -> C, on one colour scale. ``names`` are their versions, oldest first."""
    from matplotlib.figure import Figure

    panels = {title: _checked(C, names) for title, C in matrices.items()}
    if not panels:
        raise InputError("side_by_side needs at least one compatibility matrix: {title: C}")
    grid = _Grid.of(panels, names)
    scale = _Scale.of(list(panels.values()))
    figure = Figure(figsize=(grid.width, grid.height), dpi=DPI, facecolor="white")
    for position, (title, C) in enumerate(panels.items()):
        left, top = grid.corner(position)
        axes = _axes(figure, left, top, grid.side, grid.side)
        _draw_cells(axes, C, scale, grid.side / len(C))
        _label_axes(axes, _shown(names, len(C)), grid, first=position % grid.columns == 0)
        _head(figure, title, C, left, top, grid)
    _draw_scale(figure, scale, grid)
    _draw_legend(figure, grid)
    if path is not None:
        figure.savefig(path, dpi=DPI)
    return figure


@dataclass(frozen=True)
class _Scale:
    """Accuracies to colours: blue where eq. 6 holds (and for self-tests), light red where it fails."""

    low: float
    high: float

    @classmethod
    def of(cls, matrices: Sequence[Matrix]) -> _Scale:
        values = np.concatenate([C[np.tril_indices(len(C))] for C in matrices])
        low, high = float(values.min()), float(values.max())
        spare = max(0.0, 0.02 - (high - low)) / 2  # no drama where all are equal
        return cls(low - spare, high + spare)

    def colour(self, value: float, passed: bool) -> tuple[float, float, float, float]:
        return _ramp(BLUES if passed else REDS)((value - self.low) / (self.high - self.low))

    def ink(self, value: float, passed: bool) -> str:
        """Black or white, whichever can be read on the cell; dark red where eq. 6 fails."""
        if not passed:
            return RED_INK
        red, green, blue, _ = self.colour(value, passed)
        return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.52 else "white"


@dataclass(frozen=True)
class _Grid:
    """Where everything stands, in inches from the upper left corner."""

    side: float  # of every matrix
    label: float  # font size of the version names, in points
    tilted: bool  # whether the names below a matrix need a slant
    columns: int
    rows: int
    head: float  # above a matrix: title and summary
    left: float  # beside a matrix: version names
    below: float

    @classmethod
    def of(cls, panels: Mapping[str, Matrix], names: Sequence[str] | None) -> _Grid:
        T = max(map(len, panels.values()))
        count = len(panels)
        rows = math.ceil(count / 4)
        side = float(np.clip(0.68 * T, 2.7, {1: 6.6, 2: 4.8}.get(count, 3.7)))
        label = float(np.clip(72 * side / T * 0.42, 5.0, TEXT))
        longest = max(map(len, _shown(names, T))) * label * 0.62 / 72
        tilted = longest > 0.9 * side / T
        lines = max(len(_wrapped(title, side)) for title in panels)
        return cls(
            side=side,
            label=label,
            tilted=tilted,
            columns=math.ceil(count / rows),
            rows=rows,
            head=0.42 + lines * TITLE * 1.3 / 72,
            left=longest + 0.48,
            below=(0.75 * longest if tilted else label / 72) + 0.42,
        )

    @property
    def width(self) -> float:
        return 2 * PAD + self.columns * (self.left + self.side) + (self.columns - 1) * GAP + BAR

    @property
    def height(self) -> float:
        return 2 * PAD + self.rows * (self.head + self.side + self.below) + LEGEND

    def corner(self, position: int) -> tuple[float, float]:
        """The upper left corner of a matrix."""
        row, column = divmod(position, self.columns)
        left = PAD + self.left + column * (self.left + self.side + GAP)
        return left, PAD + self.head + row * (self.head + self.side + self.below)


def _checked(C: ArrayLike, names: Sequence[str] | None) -> Matrix:
    compatibility.summary(C)  # refuses what is no compatibility matrix of two versions or more
    matrix = np.tril(np.asarray(C, dtype=np.float64))
    if names is not None and len(names) != len(matrix):
        raise InputError(f"{len(names)} names for {len(matrix)} versions: {', '.join(names)}")
    return matrix


def _shown(names: Sequence[str] | None, T: int) -> list[str]:
    """The version names as printed: 1 to T where there are none."""
    if names is None:
        return [str(version) for version in range(1, T + 1)]
    return [name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…" for name in names]


def _wrapped(title: str, width: float) -> list[str]:
    return textwrap.wrap(title, int(width * 72 / (TITLE * 0.62)))


@cache
def _ramp(colours: tuple[str, ...]) -> LinearSegmentedColormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("ramp", colours)


def _axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    W, H = figure.get_size_inches()
    axes = figure.add_axes((left / W, 1 - (top + height) / H, width / W, height / H))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return axes


def _draw_cells(axes: Axes, C: Matrix, scale: _Scale, cell: float) -> None:
    """One square a test, ``cell`` inches wide."""
    passed = compatibility.compatible_cells(C) | np.eye(len(C), dtype=bool)
    size = min(11.0, 72 * cell * 0.285)
    numbered = size >= SMALLEST_NUMBER
    for t, k in np.argwhere(np.tri(len(C))).tolist():
        ok, value = bool(passed[t, k]), float(C[t, k])
        _square(axes, k, t, scale.colour(value, ok), cell, "self-test" if t == k else "compatible" if ok else "fails")
        if numbered:
            text = axes.text(k + 0.5, t + 0.5, f"{100 * value:.1f}", ha="center", va="center_baseline", size=size)
            text.set(color=scale.ink(value, ok), weight="bold" if t == k else "normal")
    _cross(axes, np.argwhere(~passed & np.tri(len(C), dtype=bool)), cell, corner=numbered)
    axes.set(xlim=(0, len(C)), ylim=(len(C), 0))


def _square(axes: Axes, x: float, y: float, colour: Colour, cell: float, kind: str) -> None:
    """The square of one test; ``kind`` is kept as its gid."""
    from matplotlib.patches import Rectangle

    framed = kind == "self-test"
    line = float(np.clip(2.6 * cell, 0.8, 1.6)) if framed else 0.0
    inset = float(np.clip(0.018 / cell, 0.01, 0.035)) + line / 144 / cell  # white between squares, outside the frame
    width = 1 - 2 * inset
    square = Rectangle((x + inset, y + inset), width, width, facecolor=colour, edgecolor=INK, linewidth=line, gid=kind)
    axes.add_artist(square)  # add_patch would also rescale the axes, 500 times


def _cross(axes: Axes, cells: NDArray[np.int64], cell: float, *, corner: bool) -> None:
    """The mark of [row, column] cells that needs no colour: in the corner beside a number, else in the middle."""
    shift, size = ((0.84, 0.16), 0.13) if corner else ((0.5, 0.5), 0.36)
    axes.plot(
        cells[:, 1] + shift[0],
        cells[:, 0] + shift[1],
        linestyle="none",
        marker="x",
        color=RED_INK,
        markersize=float(np.clip(72 * cell * size, 3.0, 7.0)),
        markeredgewidth=float(np.clip(1.8 * cell, 0.7, 1.2)),
        gid="cross",
    )


def _label_axes(axes: Axes, names: Sequence[str], grid: _Grid, *, first: bool) -> None:
    centres = np.arange(len(names)) + 0.5
    axes.set_yticks(centres, names, size=grid.label, color=INK)
    axes.set_xticks(centres, names, size=grid.label, color=INK)
    for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        text.set_parse_math(False)  # a dollar in a name is a dollar
    if grid.tilted:
        for text in axes.get_xticklabels():
            text.set(rotation=45, ha="right", rotation_mode="anchor")
    axes.set_xlabel("gallery by", size=TEXT, color=GREY, labelpad=5)
    if first:
        axes.set_ylabel("query by", size=TEXT, color=GREY, labelpad=5)


def _head(figure: Figure, title: str, C: Matrix, left: float, top: float, grid: _Grid) -> None:
    """Title and summary line, flush with the left edge of the matrix."""
    W, H = figure.get_size_inches()
    values = compatibility.summary(C)
    line = f"AC {values['AC']:.2f}    AA {100 * values['AA']:.1f} %    ACA {100 * values['ACA']:.1f} %"
    figure.text(left / W, 1 - (top - 0.16) / H, line, size=TEXT, color=GREY, va="bottom")
    lines = "\n".join(_wrapped(title, grid.side))
    text = figure.text(left / W, 1 - (top - 0.38) / H, lines, size=TITLE, color=INK, weight="bold", va="bottom")
    text.set_parse_math(False)


def _draw_scale(figure: Figure, scale: _Scale, grid: _Grid) -> None:
    """The colour scale: blue for tests that count as passed, light red beside it for those that fail."""
    height = min(grid.side, 3.2)
    axes = _axes(figure, grid.width - PAD - BAR + 0.3, PAD + grid.head, 0.26, height)
    steps = np.linspace(0, 1, 256)
    image = np.stack([_ramp(BLUES)(steps), _ramp(REDS)(steps)], axis=1)
    axes.imshow(
        image, origin="lower", aspect="auto", interpolation="nearest", extent=(0, 2, 100 * scale.low, 100 * scale.high)
    )
    axes.axvline(1, color="white", linewidth=2)
    axes.yaxis.tick_right()
    axes.locator_params(axis="y", nbins=5)
    axes.yaxis.set_major_formatter("{x:g} %")
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0, pad=4, labelsize=TEXT - 1, labelcolor=GREY)


def _draw_legend(figure: Figure, grid: _Grid) -> None:
    size = 0.17
    left = PAD + grid.left
    axes = _axes(figure, left, grid.height - PAD - size, grid.width - left - PAD, size)
    axes.set(xlim=(0, (grid.width - left - PAD) / size), ylim=(1, 0), xticks=[], yticks=[])
    entries = {"self-test": (0.0, BLUES[1]), "compatible": (5.5, BLUES[1]), "fails": (12, REDS[2])}
    for kind, (x, colour) in entries.items():
        _square(axes, x, 0, colour, size, kind)
        text = "not compatible" if kind == "fails" else kind
        axes.text(x + 1.45, 0.5, text, size=TEXT - 0.5, color=GREY, va="center_baseline")
    _cross(axes, np.array([[0, 12]]), size * 1.3, corner=False)
