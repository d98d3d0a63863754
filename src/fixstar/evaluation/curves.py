"""Curves over versions and over a backfill, and the ROC. Every line has a colour **and** a marker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation import compatibility
from fixstar.evaluation.mixed import BackfillCurve
from fixstar.evaluation.pictures import DPI, GREY, INK, TEXT, TITLE, laid_out_figure, lay_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1d5a98", "#b3402c", "#117733", "#a8780f", "#882255", "#2f8f80", "#5a6877", "#aa4499")
MARKERS = "osD^vPX*"
RULE = "#dfe4e9"  # grid lines
# inches
WIDTH = 6.4
HEIGHT = 3.8
LOWEST_FAR = 1e-6
COLUMNS = 3
# inches: minimum width of a panel, and height without its legend
SIDE = 3.1
TALL = 2.7
ENTRY = 0.18  # inches: a line of a legend
# inches per character of a legend and of the title, rounded up
LETTER = 0.073
CAPITAL = 0.12
BEHIND = "#d3d9df"  # colour of the curves of other groups

Floats = NDArray[np.float64]
Metric = Callable[..., float]

METRICS: dict[str, Metric] = {
    "AA": compatibility.average_accuracy,
    "AC": compatibility.average_compatibility,
    "ACA": compatibility.average_compatibility_accuracy,
    "BC": compatibility.backward_compatibility,
}


def metric_curve(C: ArrayLike, metric: str = "AA") -> Floats:
    """A metric over the first tau versions, tau = 1 to T, [T]; NaN where it does not exist.

    >>> metric_curve([[0.30, 0], [0.35, 0.50]], "AC").tolist()
    [nan, 1.0]
    """
    if metric not in METRICS:
        raise UnknownNameError("metric", metric, METRICS)
    T = len(np.asarray(C))
    first = 1 if metric == "AA" else 2
    return np.array(
        [METRICS[metric](C, up_to=tau) if tau >= first else np.nan for tau in range(1, T + 1)]
    )


def accuracy_curves(
    series: Mapping[str, ArrayLike],
    path: str | Path | None = None,
    replacements: Sequence[int] = (),
    *,
    metric: str = "AA",
    title: str = "",
) -> Figure:
    """Draw a value at each version, method -> fractions [T]; NaN leaves a gap.

    ``replacements`` are the versions, counted from 1, that came from a replaced model (figures 6 and 8 of HOC).
    """
    lines = {name: _checked_series(name, values) for name, values in series.items()}
    if not lines:
        raise InputError(
            "accuracy_curves needs at least one method: {name: one fraction per version}"
        )
    T = max(map(len, lines.values()))
    if outside := [version for version in replacements if not 1 <= version <= T]:
        raise InputError(f"replacements are version numbers, 1 to {T} here; got {outside[0]}")
    figure, axes = _figure(title, "version", f"{metric} (%)", len(lines))
    for version in replacements:
        axes.axvline(
            version, color=GREY, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1, gid="replacement"
        )
    for number, (name, values) in enumerate(lines.items()):
        _draw_curve(axes, np.arange(1, len(values) + 1), 100 * values, name, number)
    axes.set_xlim(0.6, T + 0.4)
    axes.locator_params(axis="x", integer=True, steps=[1, 2, 5, 10])
    return _finished(figure, axes, path, "dashed: the model was replaced" if replacements else "")


def backfill_curves(
    curves: Mapping[str, BackfillCurve],
    path: str | Path | None = None,
    self_tests: Mapping[str, tuple[float, float]] | None = None,
    *,
    title: str = "",
) -> Figure:
    """Draw the accuracy over the share of the gallery that is re-embedded (figure 3 of BCT).

    ``self_tests``, by curve, belong to the old and the new version: a dotted and a dashed line.
    """
    if not curves:
        raise InputError("backfill_curves needs at least one curve: {name: backfill_curve(...)}")
    tests = self_tests or {}
    if unknown := sorted(tests.keys() - curves.keys()):
        raise UnknownNameError("curve", unknown[0], curves)
    figure, axes = _figure(title, "gallery re-embedded (%)", "accuracy (%)", len(curves))
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        order = np.argsort(curve.shares)
        shares = 100 * curve.shares[order]
        runs = 100 * curve.runs[:, order]
        if len(runs) > 1:
            axes.fill_between(
                shares, runs.min(axis=0), runs.max(axis=0), color=colour, alpha=0.15, linewidth=0
            )
        for accuracy, style in zip(tests.get(name, ()), ((0, (1, 2)), (0, (6, 3))), strict=False):
            axes.axhline(
                100 * accuracy,
                color=colour,
                linewidth=1.2,
                linestyle=style,
                zorder=1,
                gid="self-test",
            )
        _draw_curve(axes, shares, 100 * curve.accuracy[order], name, number)
    axes.set_xlim(-2, 102)
    return _finished(
        figure, axes, path, "dotted: old self-test   dashed: new self-test" if tests else ""
    )


def roc_curves(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    path: str | Path | None = None,
    *,
    title: str = "",
) -> Figure:
    """Draw TAR over FAR as a staircase, name -> (far, tar) of ``roc``. FAR is logarithmic; 0 is left out."""
    if not curves:
        raise InputError("roc_curves needs at least one curve: {name: roc(scores, same)[:2]}")
    figure, axes = _figure(title, "false accept rate", "true accept rate (%)", len(curves))
    lowest = 1.0
    for number, (name, (far, tar)) in enumerate(curves.items()):
        x, y = (_checked_series(name, values) for values in (far, tar))
        if x.shape != y.shape:
            raise InputError(
                f"the ROC of {name!r} needs as many FAR as TAR values; got {len(x)} and {len(y)}"
            )
        shown = x >= LOWEST_FAR
        lowest = min(lowest, float(x[shown].min(initial=1.0)))
        marks = max(1, int(shown.sum()) // 6)
        _draw_curve(
            axes, x[shown], 100 * y[shown], name, number, drawstyle="steps-post", markevery=marks
        )
    axes.set(xscale="log", xlim=(lowest * 0.9, 1.1))
    axes.minorticks_off()
    return _finished(figure, axes, path, "")


def accuracy_panels(
    groups: Mapping[str, Mapping[str, ArrayLike]],
    path: str | Path | None = None,
    *,
    metric: str = "AA",
    title: str = "",
) -> Figure:
    """Draw a value at each version, group -> name -> fractions [T]: one panel per group. NaN leaves a gap."""
    series = {
        group: {name: _checked_series(name, v) for name, v in of.items()}
        for group, of in groups.items()
    }
    if not series or not all(series.values()):
        raise InputError(
            "accuracy_panels needs a curve per group: {method: {name: one fraction per version}}"
        )
    columns = min(COLUMNS, len(series))
    rows = -(-len(series) // columns)
    longest = max(len(name) for of in series.values() for name in of)
    width = max(columns * max(SIDE, 0.7 + LETTER * longest), 0.3 + CAPITAL * len(title))
    height = rows * (TALL + ENTRY * max(map(len, series.values()))) + 0.4
    figure = laid_out_figure((width, height))
    _draw_title(figure, title)
    planes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for number, (axes, group) in enumerate(zip(planes.flat, series, strict=False)):
        _draw_panel(axes, group, series)
        axes.set_ylabel("" if number % columns else f"{metric} (%)", size=TEXT, color=GREY)
    for axes in planes.flat[len(series) :]:
        axes.remove()
    figure.draw_without_rendering()  # a second layout places the legends below the panels
    if path is not None:
        figure.savefig(path, dpi=DPI)
    return figure


def _draw_panel(axes: Axes, group: str, series: Mapping[str, Mapping[str, Floats]]) -> None:
    """The curves of one group with their legend below, and the other curves in the background."""
    _style_axes(axes)
    axes.tick_params(labelbottom=True, labelleft=True)
    axes.set_xlabel("version", size=TEXT - 1, color=GREY, labelpad=1)
    axes.set_xlim(0.6, max(len(values) for of in series.values() for values in of.values()) + 0.4)
    axes.locator_params(axis="x", integer=True, steps=[1, 2, 5, 10])
    axes.set_title(group, loc="left", size=TEXT + 1, color=INK, weight="bold").set_parse_math(False)
    for values in (
        values for other, of in series.items() if other != group for values in of.values()
    ):
        axes.plot(
            np.arange(1, len(values) + 1),
            100 * values,
            color=BEHIND,
            linewidth=1.0,
            zorder=1,
            gid="other",
        )
    for number, (name, values) in enumerate(series[group].items()):
        _draw_curve(axes, np.arange(1, len(values) + 1), 100 * values, name, number)
    _draw_legend(
        axes, axes, bbox_to_anchor=(0, -0.25), loc="upper left", borderaxespad=0, labelspacing=0.25
    )


def _checked_series(name: str, values: ArrayLike) -> Floats:
    """The values of a curve as an array of fractions; raises with the name of the curve."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise InputError(f"{name!r} needs a non-empty list of fractions; got shape {array.shape}")
    if (np.abs(array[~np.isnan(array)]) > 1).any():
        raise InputError(
            f"{name!r} has values outside -1 to 1; curves take fractions. Divide percentages by 100"
        )
    return array


def _figure(title: str, x: str, y: str, lines: int) -> tuple[Figure, Axes]:
    """An empty plane with a title, and space for a legend of ``lines`` curves below."""
    figure = laid_out_figure((WIDTH, HEIGHT + 0.25 * bool(title) + 0.2 * ((lines - 1) // 2)))
    axes = figure.add_subplot()
    _style_axes(axes)
    axes.set_xlabel(x, size=TEXT, color=GREY)
    axes.set_ylabel(y, size=TEXT, color=GREY)
    _draw_title(figure, title)
    return figure, axes


def _draw_title(figure: Figure, title: str) -> None:
    left = 0.22 / figure.get_size_inches()[0]
    figure.suptitle(title, x=left, ha="left", size=TITLE, color=INK, weight="bold").set_parse_math(
        False
    )


def _style_axes(axes: Axes) -> None:
    """Grey horizontal grid lines and no frame."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(RULE)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=TEXT, labelcolor=GREY)


def _draw_curve(
    axes: Axes, x: NDArray[Any], y: Floats, name: str, number: int, **style: Any
) -> None:
    """Draw a curve with the colour and marker of its number; dashed when the colours repeat."""
    again = number >= len(COLOURS)
    look: dict[str, Any] = {"linewidth": 1.8, "markersize": 4.5, "markeredgewidth": 0}
    if again:
        look["linestyle"] = (0, (4, 2))
    look |= style
    look |= {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
    axes.plot(x, y, label=name, gid="curve", **look)


def _draw_legend(place: Figure | Axes, axes: Axes, **style: Any) -> None:
    lines = [line for line in axes.lines if line.get_gid() == "curve"]
    look: dict[str, Any] = {"frameon": False, "fontsize": TEXT, "labelcolor": INK, "borderpad": 0}
    legend = place.legend(lines, [str(line.get_label()) for line in lines], **look, **style)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar in a name is no formula


def _finished(figure: Figure, axes: Axes, path: str | Path | None, note: str) -> Figure:
    """Add the legend below, in two columns, and a note; then write the file."""
    _draw_legend(figure, axes, loc="outside lower left", borderaxespad=1.2, ncols=2)
    axes.set_title(note, loc="right", size=TEXT - 1, color=GREY)
    lay_out(figure)
    if path is not None:
        figure.savefig(path, dpi=DPI)
    return figure
