"""A comparison as pictures: the mean matrices of all methods side by side, and AA and BC version by version."""

from __future__ import annotations

from pathlib import Path

from fixstar.benchmarks.comparison import Comparison, Line
from fixstar.benchmarks.plan import file_stem
from fixstar.evaluation import side_by_side
from fixstar.evaluation.curves import accuracy_curves, metric_curve

__all__ = ["draw"]

_METRICS = ("AA", "BC")


def draw(comparison: Comparison, folder: str | Path) -> list[Path]:
    """Write the pictures of everything that was run and say where they are.

    A matrix is the mean over runs; the AC that stands above it is that of the mean, not the mean of AC.
    """
    place, stem = Path(folder), file_stem(comparison.benchmark.name)
    place.mkdir(parents=True, exist_ok=True)
    drawn = []
    for protocol in comparison.benchmark.protocols:
        means = {_title(comparison, line): line for line in comparison.lines if line.matrices}
        if not means:
            continue
        drawn.append(place / f"{stem}__matrices__{protocol}.png")
        side_by_side({title: line.matrices[protocol] for title, line in means.items()}, drawn[-1])
        for metric in _METRICS:
            path = place / f"{stem}__{metric}__{protocol}.png"
            curves = {title: metric_curve(line.matrices[protocol], metric) for title, line in means.items()}
            accuracy_curves(curves, path, metric=metric, title=f"{comparison.benchmark.name}, {protocol}")
            drawn.append(path)
    return drawn


def _title(comparison: Comparison, line: Line) -> str:
    """The line's label, with its epochs where two lines differ in nothing else."""
    alone = sum(other.label == line.label for other in comparison.lines) == 1
    return line.label if alone else f"{line.label}, e{line.epochs}"
