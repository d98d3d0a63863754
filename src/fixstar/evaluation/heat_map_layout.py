"""Where everything stands in a picture of compatibility matrices, in inches and points."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BAR", "PAD", "TEXT", "TITLE", "Grid", "shown_names", "wrapped"]

TITLE, TEXT = 12.0, 9.0  # points
LONGEST_NAME = 18  # characters of a version's name
PAD, GAP = 0.22, 0.38  # inches around the figure, between panels
BAR = 1.0  # inches for the colour scale on the right
LEGEND = 0.36  # inches for the legend at the bottom


@dataclass(frozen=True)
class Grid:
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
    def of(cls, panels: Mapping[str, NDArray[Any]], names: Sequence[str] | None) -> Grid:
        """The layout of some matrices, title -> C, whose versions have these names."""
        T = max(map(len, panels.values()))
        count = len(panels)
        rows = math.ceil(count / 4)
        side = float(np.clip(0.68 * T, 2.7, {1: 6.6, 2: 4.8}.get(count, 3.7)))
        label = float(np.clip(72 * side / T * 0.42, 5.0, TEXT))
        longest = max(map(len, shown_names(names, T))) * label * 0.62 / 72
        tilted = longest > 0.9 * side / T
        lines = max(len(wrapped(title, side)) for title in panels)
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
        """Of the whole figure."""
        return 2 * PAD + self.columns * (self.left + self.side) + (self.columns - 1) * GAP + BAR

    @property
    def height(self) -> float:
        """Of the whole figure."""
        return 2 * PAD + self.rows * (self.head + self.side + self.below) + LEGEND

    def corner(self, position: int) -> tuple[float, float]:
        """The upper left corner of a matrix."""
        row, column = divmod(position, self.columns)
        left = PAD + self.left + column * (self.left + self.side + GAP)
        return left, PAD + self.head + row * (self.head + self.side + self.below)


def shown_names(names: Sequence[str] | None, T: int) -> list[str]:
    """The version names as printed, long ones cut; 1 to T where there are none."""
    if names is None:
        return [str(version) for version in range(1, T + 1)]
    return [name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…" for name in names]


def wrapped(title: str, width: float) -> list[str]:
    """The lines of a title that is to fit into ``width`` inches."""
    return textwrap.wrap(title, int(width * 72 / (TITLE * 0.62)))
