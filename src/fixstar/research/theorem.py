"""Theorem 1 of HOC, checked by Monte Carlo: stationarity implies compatibility (appendix A, figure 12).

The features of a class are uniform on a hyperspherical cap around its simplex prototype, of polar angle theta_k before
an upgrade and theta_t after it. With D the cosine distance, E[D_kt] must not exceed E[D_kk] within a class (eq. 1a) and
must not fall below it between classes (eq. 1b; the last formula of the proof prints the opposite sign).

The paper gives no closed form. For cosines there is one, which checks the estimates: features are independent and
symmetric about their prototypes, so E[h] = m(theta) w, and with m from ``mean_cosine``

    E[D_kt] = 1 - m(theta_k) m(theta_t) cos(w_i, w_j),   cos = 1 within a class, -1/(K-1) between classes.

Both inequalities follow whenever m(theta_t) >= m(theta_k) >= 0, that is theta_t <= theta_k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError
from fixstar.evaluation.pictures import DPI, GREY, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
Case = Literal["same", "different"]

_KNOTS = 20_001  # of the table of the inverse distribution function: accurate to 1e-7
_NEGLIGIBLE = 40.0  # the table omits densities below exp(-40) of the peak
_BLOCK = 2**21  # numbers drawn at a time


@dataclass(frozen=True)
class Distances:
    """Estimated cosine distances of one case; ``exact_*`` are the closed forms.

    ``margin`` is positive where the inequality holds, ``error`` its standard error: both use the same random numbers.
    """

    old: float  # E[D_kk]
    cross: float  # E[D_kt]
    old_error: float
    cross_error: float
    margin: float
    error: float
    exact_old: float
    exact_cross: float
    exact_margin: float

    @property
    def holds(self) -> bool | None:
        """Whether the inequality holds, by more than two standard errors; None if it is too close to say."""
        if abs(self.margin) <= 2 * self.error:
            return None
        return self.margin > 0


@dataclass(frozen=True)
class DimensionCheck:
    """Both inequalities in d = K - 1 dimensions."""

    dimension: int
    same: Distances  # eq. 1a
    different: Distances  # eq. 1b


def check_theorem(
    dimensions: Sequence[int],
    old_angle: float,
    new_angle: float,
    samples: int = 40_000,
    seed: int = 0,
) -> list[DimensionCheck]:
    """Estimate both sides of eqs. 1a and 1b for caps of these polar angles (radians), dimension by dimension."""
    if not dimensions or min(dimensions) < 2 or samples < 2:
        raise InputError(
            f"need dimensions of at least 2 and samples >= 2, got {list(dimensions)} and {samples}"
        )
    for angle in (old_angle, new_angle):
        _require_angle(angle)
    return [
        _check(d, old_angle, new_angle, samples, np.random.default_rng([seed, d]))
        for d in dimensions
    ]


def _check(
    d: int, old_angle: float, new_angle: float, samples: int, rng: np.random.Generator
) -> DimensionCheck:
    # K - 1 = d. By assumption A1 any two classes represent all.
    cosines: dict[Case, float] = {"same": 1.0, "different": -1.0 / d}
    drawn: dict[Case, list[Floats]] = {case: [] for case in cosines}
    step = max(1, _BLOCK // d)
    for start in range(0, samples, step):
        count = min(step, samples - start)
        h = sample_cap(_axis(d, 1.0), old_angle, count, rng)
        quantiles = rng.random(count)
        directions = _directions(count, d, rng)
        polar = np.stack([polar_angles(d, angle, quantiles) for angle in (old_angle, new_angle)])
        for case, cosine in cosines.items():
            seen = _turned(h, _axis(d, cosine))  # turn h instead of the points of the other cap
            across = np.einsum("nd,nd->n", seen[:, 1:], directions)
            drawn[case].append(1 - np.cos(polar) * seen[:, 0] - np.sin(polar) * across)
    means = mean_cosine(d, old_angle), mean_cosine(d, new_angle)
    results = {
        case: _distances(
            np.concatenate(blocks, axis=1), means, cosines[case], 1 if case == "same" else -1
        )
        for case, blocks in drawn.items()
    }
    return DimensionCheck(d, results["same"], results["different"])


def _distances(drawn: Floats, means: tuple[float, float], cosine: float, sign: int) -> Distances:
    """Means and standard errors of ``drawn`` [2, samples]: D_kk and D_kt."""
    margin = sign * (drawn[0] - drawn[1])
    old, cross, kept = (float(values.mean()) for values in (*drawn, margin))
    errors = [float(values.std(ddof=1)) / math.sqrt(len(values)) for values in (*drawn, margin)]
    exact_old, exact_cross = (1 - means[0] * mean * cosine for mean in means)
    exact_margin = sign * (exact_old - exact_cross)
    return Distances(
        old=old,
        cross=cross,
        old_error=errors[0],
        cross_error=errors[1],
        margin=kept,
        error=errors[2],
        exact_old=exact_old,
        exact_cross=exact_cross,
        exact_margin=exact_margin,
    )


def sample_cap(axis: Floats, angle: float, count: int, rng: np.random.Generator) -> Floats:
    """Points [count, d], uniform on the cap of the unit sphere within ``angle`` radians of the unit vector ``axis``."""
    polar = polar_angles(len(axis), angle, rng.random(count))[:, None]
    upright = np.concatenate(
        [np.cos(polar), np.sin(polar) * _directions(count, len(axis), rng)], axis=1
    )
    return _turned(upright, axis)


def _turned(points: Floats, axis: Floats) -> Floats:
    """Points [n, d] reflected so that e_1 and ``axis`` change places."""
    mirror = -axis
    mirror[0] += 1
    length = float(mirror @ mirror)
    if length == 0:
        return points
    return points - np.outer(points @ mirror * (2 / length), mirror)


def _directions(count: int, d: int, rng: np.random.Generator) -> Floats:
    """Uniform unit vectors [count, d-1]."""
    normal = rng.standard_normal((count, d - 1))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    return normal


def _axis(d: int, cosine: float) -> Floats:
    """A prototype at this cosine to e_1, the other prototype."""
    axis = np.zeros(d)
    axis[:2] = cosine, math.sqrt(1 - cosine * cosine)
    return axis


def polar_angles(d: int, angle: float, quantiles: Floats) -> Floats:
    """The polar angles at ``quantiles`` in [0, 1], for points uniform on a cap: density sin^(d-2) on [0, angle].

    >>> polar_angles(2, 1.0, np.array([0.0, 0.25, 1.0])).round(6)  # on a circle all angles are equally likely
    array([0.  , 0.25, 1.  ])
    """
    polar, below = _distribution(d, angle)
    return np.interp(quantiles, below / below[-1], polar)


def mean_cosine(d: int, angle: float) -> float:
    """m = E[cos polar] = sin^(d-1)(angle) / ((d-1) int_0^angle sin^(d-2)), for points uniform on a cap.

    >>> round(mean_cosine(3, math.pi / 3), 6)  # on the ordinary sphere (1 + cos) / 2: Archimedes
    0.75
    """
    _, below = _distribution(d, angle)
    peak = math.sin(min(angle, math.pi / 2))
    return max(0.0, math.sin(angle) / peak) ** (d - 1) * peak / ((d - 1) * float(below[-1]))


def _distribution(d: int, angle: float) -> tuple[Floats, Floats]:
    """A table of polar angles and the integral of (sin / peak)^(d-2) up to each, without the negligible part."""
    if d < 2:
        raise InputError(f"a cap needs a sphere in d >= 2 dimensions, got d={d}")
    _require_angle(angle)
    peak = math.sin(min(angle, math.pi / 2))
    low = math.asin(peak * math.exp(-_NEGLIGIBLE / (d - 2))) if d > 2 else 0.0
    polar = np.linspace(low, min(angle, math.pi - low), _KNOTS)
    density = (np.sin(polar).clip(0) / peak) ** (d - 2)
    pieces = (density[1:] + density[:-1]) / 2 * np.diff(polar)
    return polar, np.concatenate([[0.0], np.cumsum(pieces)])


def _require_angle(angle: float) -> None:
    if not 0 < angle <= math.pi:
        raise InputError(
            f"the polar angle of a cap lies in (0, pi] radians, 0 to 180 degrees; got {angle:g} radians"
        )


# before the upgrade, after it
OLD = "#b3591c"
NEW = "#1d5a98"


def draw_theorem(
    checks: Sequence[DimensionCheck], path: str | Path | None = None, title: str = ""
) -> Figure:
    """Figure 12, and the margins of both inequalities: lines are exact, dots estimates with two standard errors."""
    from matplotlib.figure import Figure

    if not checks:
        raise InputError("there are no dimensions to draw")
    checks = sorted(checks, key=lambda check: check.dimension)
    figure = Figure(figsize=(11.4, 3.9), dpi=DPI, facecolor="white", layout="constrained")
    figure.suptitle(title, x=0.008, ha="left", size=12, weight="bold", color=INK)
    left, middle, right = figure.subplots(1, 3)
    for axes, case, words in (
        (left, "same", "within a class (eq. 1a)"),
        (middle, "different", "two classes (eq. 1b)"),
    ):
        _frame(axes, checks, f"Expected distance, {words}")
        for side, colour, label in (
            ("old", OLD, "old query, old item"),
            ("cross", NEW, "new query, old item"),
        ):
            _curve(axes, checks, (case, f"exact_{side}", side, f"{side}_error"), colour, label)
    _frame(right, checks, "Margins of the inequalities")
    for case, colour, label in (
        ("same", INK, "within a class"),
        ("different", "#8f7ab8", "two classes"),
    ):
        _curve(right, checks, (case, "exact_margin", "margin", "error"), colour, label)
    if all(c.same.exact_margin > 0 and c.different.exact_margin > 0 for c in checks):
        right.set_yscale("log", nonpositive="mask")
    note = "Lines: closed form.  Dots: Monte Carlo, with bars of two standard errors."
    figure.supxlabel(note, x=0.008, ha="left", size=8.5, color=GREY)
    for axes in (left, middle, right):
        axes.minorticks_off()
        axes.legend(frameon=False, fontsize=8.5, labelcolor=INK)
    if path is not None:
        figure.savefig(path, dpi=DPI)
    return figure


def _curve(
    axes: Axes,
    checks: Sequence[DimensionCheck],
    names: tuple[str, str, str, str],
    colour: str,
    label: str,
) -> None:
    """One quantity over the dimension: ``names`` are its case and the attributes of exact value, estimate, error."""
    case, *attributes = names
    d = [check.dimension for check in checks]
    exact, estimate, error = (
        [getattr(getattr(check, case), name) for check in checks] for name in attributes
    )
    look: dict[str, Any] = {
        "fmt": "s" if "cross" in names else "o",
        "markersize": 4.5,
        "capsize": 2.5,
    }
    axes.plot(d, exact, color=colour, linewidth=1.4)
    axes.errorbar(d, estimate, 2 * np.array(error), color=colour, elinewidth=1, label=label, **look)


def _frame(axes: Axes, checks: Sequence[DimensionCheck], title: str) -> None:
    axes.set_title(title, loc="left", size=9.5, color=INK)
    axes.set_xlabel("dimension d", size=9, color=GREY)
    axes.set_xscale("log")
    axes.set_xticks(
        [check.dimension for check in checks], [str(check.dimension) for check in checks]
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=GREY, labelsize=8.5)
    axes.grid(axis="y", color="#e6eaee", linewidth=0.8)
    axes.set_axisbelow(True)
