"""Curves in small panels: where one plane would hold too many lines to follow, every method has a plane of its own.

All planes have one scale, and the curves of the others stand behind in grey, so that panels can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fixstar.errors import InputError
from fixstar.evaluation.curves import Floats, checked_series, draw_curve, draw_legend, style_axes
from fixstar.evaluation.heat_map_layout import TEXT, TITLE
from fixstar.evaluation.pictures import DPI, GREY, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["accuracy_panels"]

COLUMNS = 3
SIDE, TALL = 3.1, 1.75  # inches: a panel with its margin, at least, and its plane
LEFT, TOP, HEAD, FOOT = 0.62, 0.55, 0.34, 0.44  # inches: left of all, above all, above a plane, below it
ENTRY = 0.18  # inches: a line of a legend
LETTER, CAPITAL = 0.073, 0.12  # inches: of a legend, and of the title, on average and a little more
BEHIND = "#d3d9df"  # curves of the other groups


def accuracy_panels(
    groups: Mapping[str, Mapping[str, ArrayLike]],
    path: str | Path | None = None,
    *,
    metric: str = "AA",
    title: str = "",
) -> Figure:
    """Draw a value at each version in one plane a group, group -> name -> fractions [T], such as ``metric_curve``.

    A group is a method and its members are its settings. NaN leaves a gap. ``metric`` names the vertical axis.
    """
    from matplotlib.figure import Figure

    series = {group: {name: checked_series(name, v) for name, v in of.items()} for group, of in groups.items()}
    if not series or not all(series.values()):
        raise InputError("accuracy_panels needs at least one curve a group: {method: {name: fractions, one a version}}")
    rows = [list(series)[start : start + COLUMNS] for start in range(0, len(series), COLUMNS)]
    heights = [HEAD + TALL + FOOT + ENTRY * max(len(series[group]) for group in row) for row in rows]
    longest = max(len(name) for of in series.values() for name in of)
    side = max(SIDE, 0.6 + LETTER * longest, (0.3 + CAPITAL * len(title) - LEFT) / len(rows[0]))
    width, top = LEFT + side * len(rows[0]), TOP + sum(heights)
    figure = Figure(figsize=(width, top), dpi=DPI, facecolor="white")
    head = figure.text(0.22 / width, 1 - 0.16 / top, title, size=TITLE, color=INK, weight="bold", va="top")
    head.set_parse_math(False)
    top -= TOP
    for row, tall in zip(rows, heights, strict=True):
        for column, group in enumerate(row):
            axes = _panel(figure, (LEFT + side * column, top - HEAD - TALL, side - 0.35), group, series)
            axes.set_ylabel("" if column else f"{metric} (%)", size=TEXT, color=GREY)
        top -= tall
    if path is not None:
        figure.savefig(path, dpi=DPI)
    return figure


def _panel(
    figure: Figure, place: tuple[float, float, float], group: str, series: Mapping[str, Mapping[str, Floats]]
) -> Axes:
    """The plane of one group with its legend below; its lower left corner and its width are given in inches."""
    left, bottom, wide = place
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, bottom / height, wide / width, TALL / height))
    style_axes(axes)
    axes.set_xlabel("version", size=TEXT - 1, color=GREY, labelpad=1)
    curves = [values for of in series.values() for values in of.values()]
    axes.set(xlim=(0.6, max(map(len, curves)) + 0.4), ylim=_limits(curves))
    axes.locator_params(axis="x", integer=True, steps=[1, 2, 5, 10])
    axes.set_title(group, loc="left", size=TEXT + 1, color=INK, weight="bold").set_parse_math(False)
    for values in (values for other, of in series.items() if other != group for values in of.values()):
        axes.plot(np.arange(1, len(values) + 1), 100 * values, color=BEHIND, linewidth=1.0, zorder=1, gid="other")
    for number, (name, values) in enumerate(series[group].items()):
        draw_curve(axes, np.arange(1, len(values) + 1), 100 * values, name, number)
    below = (left / width, (bottom - FOOT) / height)
    draw_legend(figure, axes, below, loc="upper left", fontsize=TEXT - 1, labelspacing=0.25)
    return axes


def _limits(curves: Sequence[Floats]) -> tuple[float, float]:
    """The lowest and highest percent of all curves, with a little air."""
    values = 100 * np.concatenate(curves)
    values = values[~np.isnan(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    air = max(0.05 * (high - low), 0.5)
    return low - air, high + air
