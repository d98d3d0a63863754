"""The sampler against rejection and known values; the inequalities where they must hold and where they must not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from dense_geometry import simplex_prototypes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

from fixstar.cli import app
from fixstar.errors import InputError
from fixstar.research.theorem import (
    check_theorem,
    draw_theorem,
    mean_cosine,
    polar_angles,
    sample_cap,
)

Floats = NDArray[np.float64]


def rejected(axis: Floats, angle: float, count: int, rng: np.random.Generator) -> Floats:
    """Uniform points of the whole sphere, thrown away until enough lie on the cap."""
    kept: list[Floats] = []
    while len(kept) < count:
        point = rng.standard_normal(len(axis))
        point /= np.linalg.norm(point)
        if point @ axis >= math.cos(angle):
            kept.append(point)
    return np.array(kept)


def largest_gap(a: Floats, b: Floats) -> float:
    """Between two empirical distribution functions (Kolmogorov and Smirnov), over its 0.1 % critical value."""
    values = np.concatenate([a, b])
    gap = np.abs(
        np.searchsorted(np.sort(a), values, "right") / len(a)
        - np.searchsorted(np.sort(b), values, "right") / len(b)
    )
    return float(gap.max() / (1.95 * math.sqrt((len(a) + len(b)) / (len(a) * len(b)))))


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("angle", [0.6, 1.3, 2.4])
def test_samples_are_those_of_rejection(d: int, angle: float) -> None:
    rng = np.random.default_rng(d)
    axis = simplex_prototypes(d + 1)[d]
    ours, slow = sample_cap(axis, angle, 4000, rng), rejected(axis, angle, 2000, rng)
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1)
    assert (ours @ axis).min() >= math.cos(angle) - 1e-9
    assert largest_gap(ours @ axis, slow @ axis) < 1
    sideways = simplex_prototypes(d + 1)[0]
    assert largest_gap(ours @ sideways, slow @ sideways) < 1


def test_that_comparison_sees_a_cap_that_is_a_little_too_wide() -> None:
    axis = np.array([1.0, 0.0, 0.0])
    rng = np.random.default_rng(0)
    assert (
        largest_gap(
            sample_cap(axis, 1.3, 4000, rng) @ axis, sample_cap(axis, 1.4, 2000, rng) @ axis
        )
        > 1
    )


@given(angle=st.floats(0.05, math.pi))
@settings(max_examples=30, deadline=None)
def test_mean_cosines_that_are_known(angle: float) -> None:
    assert mean_cosine(2, angle) == pytest.approx(math.sin(angle) / angle, abs=1e-6)
    assert mean_cosine(3, angle) == pytest.approx((1 + math.cos(angle)) / 2, abs=1e-6)


@pytest.mark.parametrize("d", [2, 7, 50, 300])
def test_the_mean_cosine_of_a_half_sphere(d: int) -> None:
    expected = math.exp(math.lgamma(d / 2) - math.lgamma((d + 1) / 2)) / math.sqrt(math.pi)
    assert mean_cosine(d, math.pi / 2) == pytest.approx(expected, rel=1e-6)
    assert mean_cosine(d, math.pi) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("d", [2, 10, 100, 1000])
@pytest.mark.parametrize("angle", [0.5, 1.5, 2.5])
def test_sampled_cosines_have_that_mean(d: int, angle: float) -> None:
    cosines = np.cos(polar_angles(d, angle, np.random.default_rng(1).random(20_000)))
    error = cosines.std() / math.sqrt(len(cosines))
    assert cosines.mean() == pytest.approx(mean_cosine(d, angle), abs=4 * error)


def test_quantiles_are_those_of_the_ordinary_sphere() -> None:
    """Archimedes: heights are uniform."""
    quantiles = np.linspace(0, 1, 11)
    np.testing.assert_allclose(
        np.cos(polar_angles(3, 1.2, quantiles)), 1 - quantiles * (1 - math.cos(1.2)), atol=1e-6
    )


def test_both_inequalities_hold_and_the_estimates_are_the_closed_forms() -> None:
    for check in check_theorem([2, 10, 100], math.radians(45), math.radians(30), samples=10_000):
        for case in (check.same, check.different):
            assert case.holds is True, check
            assert case.margin == pytest.approx(case.exact_margin, abs=4 * case.error)
            assert case.old == pytest.approx(case.exact_old, abs=4 * case.old_error)
            assert case.cross == pytest.approx(case.exact_cross, abs=4 * case.cross_error)
        assert check.same.cross < check.same.old
        assert check.different.cross > check.different.old


def test_the_closed_form_is_what_pairs_of_points_around_real_prototypes_give() -> None:
    """Eqs. 1a and 1b once more, slowly: points drawn by rejection around rows of the simplex."""
    W, rng, n = simplex_prototypes(4), np.random.default_rng(0), 3000
    (check,) = check_theorem([3], 0.9, 0.5, samples=2)
    for j, case in ((0, check.same), (2, check.different)):
        h = rejected(W[0], 0.9, n, rng)
        for angle, exact in ((0.9, case.exact_old), (0.5, case.exact_cross)):
            distances = 1 - (h * rejected(W[j], angle, n, rng)).sum(1)
            assert distances.mean() == pytest.approx(exact, abs=4 * distances.std() / math.sqrt(n))


def test_equal_angles_give_equality() -> None:
    (check,) = check_theorem([20], 0.7, 0.7, samples=500)
    for case in (check.same, check.different):
        assert abs(case.margin) <= 2 * case.error + 1e-12
        assert case.exact_margin == 0
        assert case.holds is None


def test_a_class_that_widens_breaks_both() -> None:
    (check,) = check_theorem([10], math.radians(30), math.radians(45), samples=10_000)
    assert check.same.holds is False
    assert check.different.holds is False


def test_the_picture_has_a_dot_where_each_estimate_is(tmp_path: Path) -> None:
    checks = check_theorem([30, 5], 0.8, 0.5, samples=200)
    figure = draw_theorem(checks, tmp_path / "theorem.png", "title")
    assert Image.open(tmp_path / "theorem.png").format == "PNG"
    drawn = [np.asarray(line.get_data()).tolist() for axes in figure.axes for line in axes.lines]
    for values in (
        [c.same.old for c in checks],
        [c.different.cross for c in checks],
        [c.same.margin for c in checks],
    ):
        assert [[5, 30], values[::-1]] in drawn
    with pytest.raises(InputError, match="no dimension"):
        draw_theorem([])


@pytest.mark.parametrize("angle", [0.0, -1.0, 3.2])
def test_a_cap_has_an_angle(angle: float) -> None:
    with pytest.raises(InputError, match="0 to 180 degrees"):
        check_theorem([5], 1.0, angle)


@pytest.mark.long
def test_the_command_prints_what_it_measured(tmp_path: Path) -> None:
    words = [
        "theorem",
        "--dimensions",
        "4,8",
        "--samples",
        "2000",
        "--out",
        str(tmp_path / "t.png"),
    ]
    shown = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    expected = check_theorem([4, 8], math.radians(45), math.radians(30), 2000)
    assert [row["same"]["margin"] for row in shown["dimensions"]] == [
        check.same.margin for check in expected
    ]
    assert Path(shown["picture"]).is_file()
    text = CliRunner().invoke(app, words, env={"COLUMNS": "160"}).stdout
    assert text.count("holds") == 4
    assert f"{expected[1].different.margin:+.5f}" in text
    refused = CliRunner().invoke(app, ["theorem", "--dimensions", "4;8"])
    assert isinstance(refused.exception, InputError)
    assert "10,100" in str(refused.exception)
