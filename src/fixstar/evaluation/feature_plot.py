"""Features in the plane, version by version and method by method, as figures 3 and 10 of CoReS draw them.

A row is a version, a column a method. Dots are test features, coloured by class; spokes are the prototypes of the
classifier, dashed where no class owns them yet. Names at the rim stand where the classes are, so that no reader depends
on colour; hollow rings mark where they were in the version before, and an arc how far they have turned since.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError
from fixstar.evaluation.pictures import DPI, GREY, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Plane", "class_turns", "feature_plot"]

# Paul Tol's "muted" scheme, ordered so that classes that come one after the other differ most; for any colour vision.
COLOURS = ("#332288", "#cc6677", "#117733", "#88ccee", "#ddaa33", "#882255", "#44aa99", "#997733", "#aa4499", "#5a6877")
LIGHT = ("#88ccee", "#ddaa33", "#44aa99")  # those that dark figures can be read on
RIM, EDGE = 1.0, 1.24  # radius of the rim of a panel, and where the panel ends
LABEL, CAPTION = 1.12, -1.46  # radius of the numbers, height of the words below
PANEL, STEP, PAD, HEAD, LEFT, FOOT = 2.7, 3.02, 0.16, 0.8, 0.85, 0.58  # inches; STEP from one row to the next


@dataclass(frozen=True, eq=False)
class Plane:
    """One version: features [N, 2] with their classes [N], and prototypes [P, 2], those of class c in row c.

    Rows beyond the classes are kept for the future.
    """

    features: NDArray[np.floating]
    labels: NDArray[np.integer]
    prototypes: NDArray[np.floating]

    def __post_init__(self) -> None:
        shapes = self.features.shape, self.labels.shape, self.prototypes.shape
        if shapes[0] != (len(self.labels), 2) or self.prototypes.shape[1:] != (2,) or not len(self.labels):
            raise InputError(f"a plane needs features [N, 2], labels [N] and prototypes [P, 2], got {shapes}")
        if not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.prototypes):
            raise InputError(f"labels lie between 0 and {len(self.prototypes) - 1}, the rows of the prototypes")

    def directions(self) -> dict[int, float]:
        """The angle of each class, in radians: that of the mean of its unit features."""
        lengths = np.linalg.norm(self.features, axis=1, keepdims=True)
        units = self.features / np.maximum(lengths, 1e-12)
        means = {int(c): units[self.labels == c].mean(axis=0) for c in np.unique(self.labels)}
        return {c: math.atan2(mean[1], mean[0]) for c, mean in means.items()}


def class_turns(before: Plane, after: Plane) -> dict[int, float]:
    """How far each class that both know has turned, in degrees from -180 to 180; positive is anticlockwise.

    >>> axes = np.eye(2)
    >>> turned = class_turns(Plane(axes, np.arange(2), axes), Plane(-axes[::-1], np.arange(2), axes))
    >>> {c: round(turn) for c, turn in turned.items()}
    {0: -90, 1: 90}
    """
    old, new = before.directions(), after.directions()
    turns = {c: math.degrees(new[c] - old[c]) for c in old if c in new}
    return {c: (turn + 180) % 360 - 180 for c, turn in turns.items()}


def feature_plot(
    methods: Mapping[str, Sequence[Plane]],
    names: Sequence[str],
    versions: Sequence[str],
    path: str | Path | None = None,
    title: str = "",
) -> Figure:
    """Draw every version of every method; ``names`` are the classes, ``versions`` the rows' titles."""
    from matplotlib.figure import Figure

    if not methods or any(len(planes) != len(versions) for planes in methods.values()) or not versions:
        raise InputError("feature_plot needs one plane for each version of each method")
    width = 2 * PAD + LEFT + len(methods) * PANEL
    height = HEAD + len(versions) * STEP + FOOT
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    figure.text(PAD / width, 1 - 0.13 / height, title, size=13, weight="bold", color=INK, va="top")
    for column, (method, planes) in enumerate(methods.items()):
        left = PAD + LEFT + column * PANEL
        place = (left + PANEL / 2) / width
        figure.text(place, 1 - (HEAD - 0.08) / height, method, size=12, weight="bold", color=INK, ha="center")
        for row, plane in enumerate(planes):
            bottom = FOOT + (len(versions) - row) * STEP - PANEL
            axes = figure.add_axes((left / width, bottom / height, PANEL / width, PANEL / height))
            _draw_plane(axes, plane, planes[row - 1] if row else None, names)
    for row, version in enumerate(versions):
        middle = (FOOT + (len(versions) - row) * STEP - PANEL / 2) / height
        figure.text(PAD / width, middle, version, size=10, color=INK, va="center", linespacing=1.5)
    _draw_key(figure, width, height)
    if path is not None:
        figure.savefig(path, dpi=DPI)
    return figure


def _draw_plane(axes: Axes, plane: Plane, before: Plane | None, names: Sequence[str]) -> None:
    from matplotlib.patches import Circle

    axes.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), aspect="equal")
    axes.axis("off")
    axes.add_patch(Circle((0, 0), RIM, facecolor="#f7f8fa", edgecolor="#d9dee4", linewidth=0.8, zorder=0))
    where = plane.directions()
    for row, (x, y) in enumerate(plane.prototypes / np.linalg.norm(plane.prototypes, axis=1, keepdims=True)):
        (spoke,) = axes.plot([0, RIM * x], [0, RIM * y], color=INK, linewidth=1.0, zorder=3)
        if row not in where:
            spoke.set(color="#aab4be", linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
    reach = np.quantile(np.linalg.norm(plane.features, axis=1), 0.99) / (0.96 * RIM)
    dots = plane.features / reach
    dots /= np.maximum(1, np.linalg.norm(dots, axis=1, keepdims=True) / RIM)  # the farthest ones stop at the rim
    colours = [COLOURS[label % len(COLOURS)] for label in plane.labels]
    axes.scatter(dots[:, 0], dots[:, 1], c=colours, s=7, alpha=0.6, linewidths=0, zorder=2)
    for c, angle in where.items():
        spot = LABEL * math.cos(angle), LABEL * math.sin(angle)
        colour = COLOURS[c % len(COLOURS)]
        axes.scatter(*spot, s=125, color=colour, linewidths=0, zorder=5)
        text = axes.text(*spot, names[c], size=9, weight="bold", ha="center", va="center_baseline", zorder=6)
        text.set(color=INK if colour in LIGHT else "white", parse_math=False)
    if before is not None:
        _draw_turns(axes, before, plane)


def _draw_turns(axes: Axes, before: Plane, after: Plane) -> None:
    """Where the classes were, and the way from there; with the mean of the turns."""
    old, turns = before.directions(), class_turns(before, after)
    for c, turn in turns.items():
        arc = old[c] + np.radians(np.linspace(0, turn, 40))
        colour = COLOURS[c % len(COLOURS)]
        axes.plot(LABEL * np.cos(arc), LABEL * np.sin(arc), color=colour, linewidth=2, alpha=0.8, zorder=4)
        ring = LABEL * math.cos(old[c]), LABEL * math.sin(old[c])
        axes.scatter(*ring, s=62, facecolor="white", edgecolor=colour, linewidths=1.4, zorder=4)
    mean = np.abs(list(turns.values())).mean()
    axes.text(0, CAPTION, f"known classes turned by {mean:.0f}°", size=9, color=GREY, ha="center", va="bottom")


def _draw_key(figure: Figure, width: float, height: float) -> None:
    lines = (
        "Dots: test images.  Spokes: prototypes, dashed where kept for classes to come.",
        "Numbers at the rim: where each class points.  Hollow rings: where it pointed in the version before.",
    )
    for row, line in enumerate(lines):
        place = (0.36 - 0.19 * row) / height
        figure.text((PAD + LEFT) / width, place, line, size=8.5, color=GREY)
