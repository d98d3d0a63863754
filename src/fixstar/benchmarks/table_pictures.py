"""A comparison as pictures: the mean matrices of all methods side by side, and AA and BC version by version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fixstar.benchmarks.comparison import Comparison, Line
from fixstar.benchmarks.plan import file_stem
from fixstar.evaluation import accuracy_panels, side_by_side
from fixstar.evaluation.curves import COLOURS, accuracy_curves, metric_curve

__all__ = ["draw"]

_METRICS = ("AA", "BC")


def draw(comparison: Comparison, folder: str | Path) -> list[Path]:
    """Write the pictures of everything that was run and say where they are.

    A matrix is the mean over runs; the AC that stands above it is that of the mean, not the mean of AC. More curves
    than there are colours are drawn in a panel a method.
    """
    place, stem = Path(folder), file_stem(comparison.benchmark.name)
    place.mkdir(parents=True, exist_ok=True)
    drawn = []
    for protocol in comparison.benchmark.protocols:
        means = {_title(comparison, line): line for line in comparison.lines if protocol in line.matrices}
        if not means:
            continue
        drawn.append(place / f"{stem}__matrices__{protocol}.png")
        side_by_side({title: line.matrices[protocol] for title, line in means.items()}, drawn[-1])
        for metric in _METRICS:
            path = place / f"{stem}__{metric}__{protocol}.png"
            _draw_curves(means, protocol, metric, path, f"{comparison.benchmark.name}, {protocol}")
            drawn.append(path)
    return drawn


def _draw_curves(means: Mapping[str, Line], protocol: str, metric: str, path: Path, title: str) -> None:
    curves = {name: metric_curve(line.matrices[protocol], metric) for name, line in means.items()}
    if len(curves) <= len(COLOURS):
        accuracy_curves(curves, path, metric=metric, title=title)
        return
    methods = dict.fromkeys(line.method for line in means.values())
    of_method = {m: {name: curves[name] for name, line in means.items() if line.method == m} for m in methods}
    accuracy_panels(of_method, path, metric=metric, title=title)


def _title(comparison: Comparison, line: Line) -> str:
    """The line's label, with its epochs where two lines differ in nothing else."""
    alone = sum(other.label == line.label for other in comparison.lines) == 1
    return line.label if alone else f"{line.label}, e{line.epochs}"
