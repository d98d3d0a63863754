"""Proposition 2 and figure 11 of HOC: how near is the nearest of n random unit vectors, and how dense is that angle?

The others are independent and uniform, so the mean angle to the nearest of them is an integral that can be computed:

    F(t)  the share of the sphere within the angle t         its density f is eq. 8 without the bar
    mean  the integral of (1 - F(t))^(n - 1) over 0 to pi

Beside it stand a simulation, eq. 11 of the paper as printed, and eq. 11 with Gamma(d / (d - 1)), the mean of a Weibull
distribution, in the place of Gamma(d / 2), and without the factor 2, which belongs to the nearest of all pairs.

    python benchmarks/nearest_prototype.py --out benchmarks/results/nearest_prototype.json
    python benchmarks/nearest_prototype.py --picture docs/pictures/nearest_prototype.png FILE
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.durable import replace_json

Row = dict[str, Any]
VECTORS = (10, 100, 1000)
WIDTHS = (3, 8, 16, 32, 64, 99)
STEPS = 200_000  # of the integrals
DRAWS = 20


def log_constant(width: int) -> float:
    """The logarithm of Gamma(d / 2) / (sqrt(pi) Gamma((d - 1) / 2))."""
    return math.lgamma(width / 2) - math.log(math.pi) / 2 - math.lgamma((width - 1) / 2)


def density(angle: float, width: int) -> float:
    """Of the angle between a fixed and a random unit vector, eq. 8.

    >>> round(density(math.pi / 2, 3), 6)  # sin(t) / 2 on a sphere
    0.5
    """
    return math.exp(log_constant(width) + (width - 2) * math.log(math.sin(angle)))


def mean_angle(count: int, width: int) -> float:
    """The mean angle of one of ``count`` random vectors to the nearest other one.

    >>> round(mean_angle(2, 16) / math.pi, 4)  # to a single other one
    0.5
    """
    step = math.pi / STEPS
    middle = (np.arange(STEPS) + 0.5) * step
    share = np.exp(log_constant(width) + (width - 2) * np.log(np.sin(middle))) * step
    within: NDArray[np.float64] = np.minimum(1.0, np.cumsum(share) - share / 2)
    return float(((1 - within) ** (count - 1)).sum() * step)


def equation_11(count: int, width: int) -> float:
    """The mean angle as the paper prints it; infinite where a float cannot hold it."""
    inner = log_constant(width) - math.log(2 * (width - 1))
    return _exp(math.lgamma(width / 2) - (math.log(count) + inner) / (width - 1))


def corrected_11(count: int, width: int) -> float:
    """The mean of a Weibull distribution: what eq. 11 comes to for small angles."""
    inner = log_constant(width) - math.log(width - 1)
    return _exp(math.lgamma(width / (width - 1)) - (math.log(count) + inner) / (width - 1))


def _exp(logarithm: float) -> float:
    return math.exp(logarithm) if logarithm < 700 else math.inf


def simulated(count: int, width: int, seed: int) -> list[float]:
    """The mean angle to the nearest other vector, of each draw."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(DRAWS):
        vectors = rng.standard_normal((count, width))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = vectors @ vectors.T
        np.fill_diagonal(cosines, -1)
        found.append(float(np.arccos(np.clip(cosines.max(axis=1), -1, 1)).mean()))
    return found


def measured(count: int, width: int) -> Row:
    """Everything of one number of vectors and one width."""
    draws = simulated(count, width, seed=1000 * width + count)
    exact = mean_angle(count, width)
    return {
        "n": count,
        "d": width,
        "exact": exact,
        "simulated": float(np.mean(draws)),
        "deviation": float(np.std(draws, ddof=1)),
        "printed": equation_11(count, width),
        "corrected": corrected_11(count, width),
        "density": density(exact, width),
    }


def table(rows: list[Row]) -> str:
    """The table of the docs."""
    lines = [
        "| n | d | mean angle | simulated | eq. 11 as printed | eq. 11, corrected | density there (eq. 8) |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        printed = f"{row['printed']:.2f}" if row["printed"] < 100 else f"{row['printed']:.0e}"
        lines.append(
            f"| {row['n']:,} | {row['d']} | {row['exact']:.3f} | {row['simulated']:.3f} ± {row['deviation']:.3f} "
            f"| {printed} | {row['corrected']:.3f} | {row['density']:.3f} |"
        )
    return "\n".join(lines)


def draw_picture(rows: list[Row], path: Path) -> None:
    """The mean angle and the density there over the dimension, a line for each number of vectors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    angle, dense = figure.subplots(1, 2)
    for place, count in enumerate(VECTORS):
        mine = [row for row in rows if row["n"] == count]
        widths = [row["d"] for row in mine]
        colour = f"C{place}"
        angle.semilogx(
            widths, [row["exact"] for row in mine], "-", color=colour, label=f"n = {count:,}"
        )
        angle.semilogx(widths, [row["simulated"] for row in mine], "o", color=colour)
        angle.semilogx(widths, [row["corrected"] for row in mine], ":", color=colour)
        dense.loglog(widths, [row["density"] for row in mine], "o-", color=colour)
    angle.axhline(math.pi / 2, color="grey", linewidth=0.8)
    angle.set_title("mean angle to the nearest, and eq. 11 corrected (dotted)")
    dense.set_title("density of the angle there, eq. 8")
    for axes in (angle, dense):
        axes.set_xlabel("d")
        axes.grid(alpha=0.3)
    angle.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path, metavar="PNG", help="only draw what is in RESULTS")
    parser.add_argument("results", type=Path, nargs="?", metavar="RESULTS")
    options = parser.parse_args()
    if bool(options.picture) != bool(options.results):
        parser.error("give --picture together with the file of results")
    if options.picture:
        draw_picture(json.loads(options.results.read_text())["rows"], options.picture)
        return
    rows = [measured(count, width) for count in VECTORS for width in WIDTHS]
    print(table(rows))
    if options.out is not None:
        replace_json(options.out, {"rows": rows, "draws": DRAWS})


if __name__ == "__main__":
    main()
