"""Pictures: compatibility matrices as the papers draw them (figure 4 of HOC), and search results.

Rows are the version of the query, columns that of the gallery. They do not depend on colour: failed cross-tests have a
cross, undecided ones a question mark. The cell size keeps both 2 and 31 versions readable.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError
from fixstar.evaluation import compatibility
from fixstar.evaluation.evidence import Difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

DPI = 200
# points
TITLE = 12.0
TEXT = 9.0
INK = "#17212b"
GREY = "#5a6877"
RED_INK = "#8f1d13"
BLUES = ("#e9f0f8", "#a6c6e3", "#5a93c7", "#1d5a98")
REDS = ("#fdf0ec", "#fbdfd8", "#f6c9be", "#f0b1a3")
GREYS = ("#f3f5f7", "#e4e8ec", "#d4dae0", "#c1c9d2")
MARKS = {"fails": ("x", RED_INK, "cross"), "not decided": ("$?$", INK, "question")}
RAMPS = {"self-test": BLUES, "compatible": BLUES, "fails": REDS, "not decided": GREYS}

SMALLEST_NUMBER = 5.5  # points
LONGEST_NAME = 18  # characters of a version's name

# frames of the contact sheet
RIGHT = "#1d7a3e"
WRONG = "#b3261e"
# inches: an image, between images, between groups, above all
IMAGE = 0.62
SPACE = 0.10
BAND = 0.42
HEAD = 0.62

Matrix = NDArray[np.float64]
Colour = str | tuple[float, float, float, float]
Cell = tuple[int, int]
Verdicts = Mapping[Cell, Difference]


def compatibility_heat_map(
    C: ArrayLike,
    names: Sequence[str] | None = None,
    title: str = "",
    path: str | Path | None = None,
    verdicts: Verdicts | None = None,
) -> Figure:
    """Draw one compatibility matrix; with ``path``, also write it there (PNG; SVG and PDF by their suffix)."""
    by_title = None if verdicts is None else {title: verdicts}
    return side_by_side({title: C}, path=path, names=names, verdicts=by_title)


def side_by_side(
    matrices: Mapping[str, ArrayLike],
    path: str | Path | None = None,
    names: Sequence[str] | None = None,
    verdicts: Mapping[str, Verdicts] | None = None,
) -> Figure:
    """Draw several matrices, title -> C, on one colour scale; ``verdicts``, by title, mark their cells."""
    panels = {title: _checked(C, names) for title, C in matrices.items()}
    if not panels:
        raise InputError("side_by_side needs at least one compatibility matrix: {title: C}")
    kinds = {title: _kinds(C, (verdicts or {}).get(title), title) for title, C in panels.items()}
    scale = _Scale.of(list(panels.values()))
    T = max(map(len, panels.values()))
    rows = math.ceil(len(panels) / 4)
    columns = math.ceil(len(panels) / rows)
    side = float(np.clip(0.68 * T, 2.7, {1: 6.6, 2: 4.8}.get(len(panels), 3.7)))
    size = columns * (side + 0.9) + 1.1, rows * (side + 1.5) + 0.6
    figure = laid_out_figure(size)
    grid = figure.add_gridspec(rows, columns + 1, width_ratios=[*columns * [1.0], 0.07])
    planes = [figure.add_subplot(grid[divmod(number, columns)]) for number in range(len(panels))]
    for number, (axes, (title, C)) in enumerate(zip(planes, panels.items(), strict=True)):
        _frame(axes, title, C, _shown_names(names, len(C)), side)
        axes.set_ylabel("" if number % columns else "query by", size=TEXT, color=GREY, labelpad=5)
    shown = [kind for kind in RAMPS if kind != "not decided" or verdicts]
    _draw_scale(figure.add_subplot(grid[0, -1]), scale, shown)
    _draw_legend(figure, shown)
    lay_out(figure)  # marks and numbers need cells of a known size
    for axes, (title, C) in zip(planes, panels.items(), strict=True):
        _draw_cells(
            axes, C, kinds[title], scale, axes.get_window_extent().width / figure.dpi / len(C)
        )
    if path is not None:
        figure.savefig(path, dpi=DPI)
    return figure


def laid_out_figure(size: tuple[float, float]) -> Figure:
    """An empty figure of a size in inches, laid out by matplotlib."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    return Figure(figsize=size, dpi=DPI, facecolor="white", layout=layout)


def lay_out(figure: Figure) -> None:
    """Place the axes once: matplotlib would repeat it for every drawing, which doubles the time."""
    layout = figure.get_layout_engine()
    if layout is None:
        return
    layout.execute(figure)
    for axes in figure.axes:
        axes.apply_aspect()
    figure.set_layout_engine("none")


def _shown_names(names: Sequence[str] | None, T: int) -> list[str]:
    """The displayed version names, long ones truncated; 1 to T without names."""
    if names is None:
        return [str(version) for version in range(1, T + 1)]
    shown = []
    for name in names:
        if len(name) > LONGEST_NAME:
            name = name[: LONGEST_NAME - 1] + "…"
        shown.append(name)
    return shown


@dataclass(frozen=True)
class _Scale:
    """Accuracies to colours: blue where eq. 6 holds (and for self-tests), light red where it fails, or grey."""

    low: float
    high: float

    @classmethod
    def of(cls, matrices: Sequence[Matrix]) -> _Scale:
        values = np.concatenate([C[np.tril_indices(len(C))] for C in matrices])
        low = float(values.min())
        high = float(values.max())
        spare = max(0.0, 0.02 - (high - low)) / 2  # a neutral colour for equal values
        return cls(low - spare, high + spare)

    def colour(self, value: float, kind: str) -> tuple[float, float, float, float]:
        return _ramp(RAMPS[kind])((value - self.low) / (self.high - self.low))

    def ink(self, value: float, kind: str) -> str:
        """Black or white, whichever is readable on the cell; dark red if eq. 6 fails."""
        if kind == "fails":
            return RED_INK
        red, green, blue, _ = self.colour(value, kind)
        if 0.299 * red + 0.587 * green + 0.114 * blue > 0.52:
            return INK
        return "white"


def _checked(C: ArrayLike, names: Sequence[str] | None) -> Matrix:
    compatibility.summary(C)  # raises unless it is a compatibility matrix of at least two versions
    matrix = np.tril(np.asarray(C, dtype=np.float64))
    if names is not None and len(names) != len(matrix):
        raise InputError(f"{len(names)} names for {len(matrix)} versions: {', '.join(names)}")
    return matrix


def _kinds(C: Matrix, verdicts: Verdicts | None, title: str) -> dict[Cell, str]:
    """The kind of each cell, a key of ``RAMPS``: by its verdict, or by eq. 6 without verdicts."""
    passed = compatibility.compatible_cells(C)
    kinds = {}
    for t, k in np.argwhere(np.tri(len(C))).tolist():
        if t == k:
            kinds[t, k] = "self-test"
        elif verdicts is None:
            kinds[t, k] = "compatible" if passed[t, k] else "fails"
        elif (t, k) in verdicts:
            verdict = verdicts[t, k].verdict
            kinds[t, k] = "fails" if verdict == "incompatible" else verdict
        else:
            raise InputError(
                f"the verdicts of {title!r} lack cell {t, k}; pass verdicts(cross_test(...)) of its matrix"
            )
    return kinds


@cache
def _ramp(colours: tuple[str, ...]) -> LinearSegmentedColormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("ramp", colours)


def _frame(axes: Axes, title: str, C: Matrix, names: Sequence[str], side: float) -> None:
    """An empty plane of about ``side`` inches: title, summary, and the names of the versions."""
    T = len(C)
    values = compatibility.summary(C)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set(xlim=(0, T), ylim=(T, 0), aspect="equal", anchor="NW")
    size = float(np.clip(72 * side / T * 0.42, 5.0, TEXT))
    axes.set_xticks(np.arange(T) + 0.5, names, size=size, color=INK)
    axes.set_yticks(np.arange(T) + 0.5, names, size=size, color=INK)
    if max(map(len, names)) * size * 0.62 / 72 > 0.9 * side / T:
        for text in axes.get_xticklabels():
            text.set(rotation=45, ha="right", rotation_mode="anchor")
    axes.set_xlabel("gallery by", size=TEXT, color=GREY, labelpad=5)
    line = (
        f"AC {values['AC']:.2f}    AA {100 * values['AA']:.1f} %    ACA {100 * values['ACA']:.1f} %"
    )
    axes.set_title(line, loc="left", size=TEXT, color=GREY, pad=10)
    look: dict[str, Any] = {
        "size": TITLE,
        "color": INK,
        "weight": "bold",
        "va": "bottom",
        "annotation_clip": False,
    }
    above: dict[str, Any] = {
        "xytext": (0, 26),
        "xycoords": "axes fraction",
        "textcoords": "offset points",
    }
    lines = textwrap.wrap(title, int(side * 72 / (TITLE * 0.62)))
    head = axes.annotate("\n".join(lines), (0, 1), **above, **look)
    for text in (head, *axes.get_xticklabels(), *axes.get_yticklabels()):
        text.set_parse_math(False)  # a dollar in a name is no formula


def _draw_cells(
    axes: Axes, C: Matrix, kinds: Mapping[Cell, str], scale: _Scale, cell: float
) -> None:
    """One square per test, ``cell`` inches wide."""
    size = min(11.0, 72 * cell * 0.285)
    numbered = size >= SMALLEST_NUMBER
    for (t, k), kind in kinds.items():
        value = float(C[t, k])
        _square(axes=axes, x=k, y=t, colour=scale.colour(value, kind), cell=cell, kind=kind)
        if numbered:
            text = axes.text(
                k + 0.5, t + 0.5, f"{100 * value:.1f}", ha="center", va="center_baseline", size=size
            )
            text.set(color=scale.ink(value, kind), weight="bold" if t == k else "normal")
    for kind in MARKS:
        _mark(
            axes,
            [place for place, seen in kinds.items() if seen == kind],
            kind,
            cell,
            corner=numbered,
        )


def _square(axes: Axes, x: float, y: float, colour: Colour, cell: float, kind: str) -> None:
    """The square of one test; ``kind`` is stored as its gid."""
    from matplotlib.patches import Rectangle

    framed = kind == "self-test"
    line = float(np.clip(2.6 * cell, 0.8, 1.6)) if framed else 0.0
    inset = (
        float(np.clip(0.018 / cell, 0.01, 0.035)) + line / 144 / cell
    )  # white between squares, outside the frame
    width = 1 - 2 * inset
    square = Rectangle(
        (x + inset, y + inset),
        width,
        width,
        facecolor=colour,
        edgecolor=INK,
        linewidth=line,
        gid=kind,
    )
    axes.add_artist(square)  # add_patch would also rescale the axes, 500 times


def _mark(
    axes: Axes, cells: Sequence[tuple[float, float]], kind: str, cell: float, *, corner: bool
) -> None:
    """Mark (row, column) cells without colour: in the corner beside a number, else in the middle."""
    shift = (0.5, 0.5)
    size = 0.36
    if corner:
        shift = (0.84, 0.16)
        size = 0.13
    marker, colour, gid = MARKS[kind]
    places = np.array(cells, dtype=np.float64).reshape(-1, 2)
    axes.plot(
        places[:, 1] + shift[0],
        places[:, 0] + shift[1],
        linestyle="none",
        marker=marker,
        color=colour,
        markersize=float(np.clip(72 * cell * size, 3.0, 7.0)) * (1.0 if marker == "x" else 1.3),
        markeredgewidth=float(np.clip(1.8 * cell, 0.7, 1.2)) if marker == "x" else 0.2,
        gid=gid,
    )


def _draw_scale(axes: Axes, scale: _Scale, kinds: Sequence[str]) -> None:
    """The colour scale: blue for tests that count as passed, beside it light red, and grey where it occurs."""
    ramps = list(dict.fromkeys(RAMPS[kind] for kind in kinds))
    image = np.stack([_ramp(ramp)(np.linspace(0, 1, 256)) for ramp in ramps], axis=1)
    extent = (0, len(ramps), 100 * scale.low, 100 * scale.high)
    axes.imshow(image, origin="lower", aspect="auto", interpolation="nearest", extent=extent)
    for edge in range(1, len(ramps)):
        axes.axvline(edge, color="white", linewidth=2)
    axes.spines[:].set_visible(False)
    axes.yaxis.tick_right()
    axes.locator_params(axis="y", nbins=5)
    axes.yaxis.set_major_formatter("{x:g} %")
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0, pad=4, labelsize=TEXT - 1, labelcolor=GREY)


def _draw_legend(figure: Figure, kinds: Sequence[str]) -> None:
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = list[Any]()
    for kind in kinds:
        marker, colour, _ = MARKS.get(kind, ("none", INK, ""))
        square = Patch(
            facecolor=RAMPS[kind][2 if kind in MARKS else 1],
            edgecolor=INK,
            linewidth=kind == "self-test",
        )
        handles.append(
            (square, Line2D([], [], linestyle="none", marker=marker, color=colour, markersize=5))
        )
    words = ["not compatible" if kind == "fails" else kind for kind in kinds]
    look: dict[str, Any] = {
        "frameon": False,
        "fontsize": TEXT - 0.5,
        "labelcolor": GREY,
        "ncols": len(kinds),
    }
    look |= {"handlelength": 1.2, "handleheight": 1.2, "columnspacing": 1.2, "handletextpad": 0.5}
    figure.legend(
        handles,
        words,
        handler_map={tuple: HandlerTuple(ndivide=1)},
        loc="outside lower left",
        **look,
    )


class HitPicture(NamedTuple):
    """One hit: its pixels [H, W] or [H, W, C], and whether it is of the query's class."""

    pixels: NDArray[Any]
    right: bool


def contact_sheet(
    queries: Sequence[NDArray[Any]],
    results: Mapping[str, Sequence[Sequence[HitPicture]]],
    path: str | Path | None = None,
    title: str = "",
) -> Figure:
    """One row per query: the query, then each searcher's hits; green frame and tick if right, thin red if wrong."""
    from matplotlib.figure import Figure

    groups = [list(rows) for rows in results.values()]
    if not groups or any(len(rows) != len(queries) for rows in groups):
        raise InputError("a contact sheet needs one list of hits for each query and searcher")
    depth = max(len(hits) for rows in groups for hits in rows)
    step = IMAGE + SPACE
    width = 2 * BAND + IMAGE + len(groups) * (BAND + depth * step)
    height = 2 * HEAD + len(queries) * step
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")

    def put(
        pixels: NDArray[Any], left: float, row: int, colour: str, line: float, tick: str = ""
    ) -> None:
        top = HEAD + 0.28 + row * step
        axes = figure.add_axes(
            (left / width, 1 - (top + IMAGE) / height, IMAGE / width, IMAGE / height)
        )
        axes.imshow(pixels.squeeze(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_color(colour)
            spine.set_linewidth(line)
        if tick:
            axes.text(
                0.97,
                0.03,
                tick,
                transform=axes.transAxes,
                ha="right",
                va="bottom",
                fontsize=9,
                color=colour,
            )

    def write(
        text: str, left: float, top: float, size: float, colour: str, weight: str = "normal"
    ) -> None:
        figure.text(
            left / width,
            1 - top / height,
            text,
            fontsize=size,
            color=colour,
            weight=weight,
            va="top",
        )

    write(title, BAND, 0.16, 11, INK, "bold")
    write("query", BAND, HEAD, 9, GREY)
    for row, query in enumerate(queries):
        put(query, BAND, row, INK, 1.2)
    for number, (name, rows) in enumerate(results.items()):
        start = 2 * BAND + IMAGE + number * (BAND + depth * step)
        write(name, start, HEAD, 9, GREY)
        for row, hits in enumerate(rows):
            for place, hit in enumerate(hits):
                left = start + place * step
                if hit.right:
                    put(hit.pixels, left, row, RIGHT, 2.0, "✓")
                else:
                    put(hit.pixels, left, row, WRONG, 0.5)
    if path is not None:
        figure.savefig(path, dpi=DPI)
    return figure
