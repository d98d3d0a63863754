"""Search results as a picture: each query with what was found for it, right and wrong marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from fixstar.errors import InputError
from fixstar.evaluation.pictures import DPI, GREY, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["HitPicture", "contact_sheet"]

RIGHT, WRONG = "#1d7a3e", "#b3261e"
CELL, GAP, BAND, HEAD = 0.62, 0.10, 0.42, 0.62  # inches: a picture, between pictures, between groups, above all


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
    """One row a query: the query, then for each named searcher its hits, best first.

    A right hit has a green frame and a tick, a wrong one a thin red frame.
    """
    from matplotlib.figure import Figure

    groups = [list(rows) for rows in results.values()]
    if not groups or any(len(rows) != len(queries) for rows in groups):
        raise InputError("a contact sheet needs one list of hits for each query and searcher")
    depth = max(len(hits) for rows in groups for hits in rows)
    step = CELL + GAP
    width = 2 * BAND + CELL + len(groups) * (BAND + depth * step)
    height = 2 * HEAD + len(queries) * step
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")

    def put(pixels: NDArray[Any], left: float, row: int, colour: str, line: float, tick: str = "") -> None:
        top = HEAD + 0.28 + row * step
        axes = figure.add_axes((left / width, 1 - (top + CELL) / height, CELL / width, CELL / height))
        axes.imshow(pixels.squeeze(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_color(colour)
            spine.set_linewidth(line)
        if tick:
            axes.text(0.97, 0.03, tick, transform=axes.transAxes, ha="right", va="bottom", fontsize=9, color=colour)

    def write(text: str, left: float, top: float, size: float, colour: str, weight: str = "normal") -> None:
        figure.text(left / width, 1 - top / height, text, fontsize=size, color=colour, weight=weight, va="top")

    write(title, BAND, 0.16, 11, INK, "bold")
    write("query", BAND, HEAD, 9, GREY)
    for row, query in enumerate(queries):
        put(query, BAND, row, INK, 1.2)
    for number, (name, rows) in enumerate(results.items()):
        start = 2 * BAND + CELL + number * (BAND + depth * step)
        write(name, start, HEAD, 9, GREY)
        for row, hits in enumerate(rows):
            for place, hit in enumerate(hits):
                left = start + place * step
                put(hit.pixels, left, row, RIGHT if hit.right else WRONG, 2.0 if hit.right else 0.5, "✓" * hit.right)
    if path is not None:
        figure.savefig(path, dpi=DPI)
    return figure
