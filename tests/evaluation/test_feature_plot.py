from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fixstar.errors import InputError
from fixstar.evaluation.feature_plot import Plane, class_turns, feature_plot


def cloud(degrees: list[float], reserved: int = 0, length: float = 1.0, seed: int = 0) -> Plane:
    """Twenty features around each angle, and prototypes at the angles."""
    rng = np.random.default_rng(seed)
    angles = np.radians(degrees)
    spread = rng.uniform(-0.1, 0.1, (len(degrees), 20))
    spread -= spread.mean(axis=1, keepdims=True)
    around = angles[:, None] + spread
    radius = length * rng.uniform(0.5, 1, around.shape)
    features = np.stack([radius * np.cos(around), radius * np.sin(around)], axis=-1).reshape(-1, 2)
    spokes = np.concatenate([angles, np.linspace(0, 3, reserved)])
    return Plane(features, np.repeat(np.arange(len(degrees)), 20), np.stack([np.cos(spokes), np.sin(spokes)], axis=1))


@given(turn=st.floats(-170, 170), start=st.floats(0, 360))
def test_a_turned_cloud_has_turned_by_that_much(turn: float, start: float) -> None:
    before, after = cloud([start, start + 90]), cloud([start + turn, start + 90 + turn, 10], length=7)
    assert class_turns(before, after) == pytest.approx({0: turn, 1: turn}, abs=1e-6)


def test_long_features_do_not_count_more_than_short_ones() -> None:
    plane = Plane(np.array([[100.0, 0.0], [0.0, 1.0]]), np.array([0, 0]), np.eye(2))
    assert plane.directions()[0] == pytest.approx(math.pi / 4)


def test_every_version_of_every_method_is_drawn(tmp_path: Path) -> None:
    still, turning = [cloud([0, 90], 3), cloud([0, 90, 180], 2)], [cloud([0, 90]), cloud([30, 140, 200])]
    names = ["ant", "bee", "cat"]
    figure = feature_plot({"still": still, "turning": turning}, names, ["v1", "v2"], tmp_path / "f.png", "title")
    assert Image.open(tmp_path / "f.png").format == "PNG"
    assert len(figure.axes) == 4
    words = [{text.get_text() for text in axes.texts} for axes in figure.axes]
    assert words[0] == {"ant", "bee"}
    assert words[1] == {"ant", "bee", "cat", "known classes turned by 0°"}
    assert "known classes turned by 40°" in words[3]
    dashed = [sum(line.get_linestyle() != "-" for line in axes.lines) for axes in figure.axes]
    assert dashed == [3, 2, 0, 0]
    texts = {text.get_text() for text in figure.texts}
    assert {"title", "still", "turning", "v1", "v2"} <= texts


def test_dots_stay_inside_the_rim_whatever_the_length() -> None:
    plane = cloud([0, 90, 200], length=1000)
    (axes,) = feature_plot({"": [plane]}, ["a", "b", "c"], ["v1"]).axes
    dots = np.asarray(axes.collections[0].get_offsets())
    assert len(dots) == 60
    lengths = np.linalg.norm(dots, axis=1)
    assert 0.9 < lengths.max() <= 1 + 1e-9


def test_mistakes_are_told() -> None:
    with pytest.raises(InputError, match=r"features \[N, 2\]"):
        Plane(np.zeros((4, 3)), np.zeros(4, int), np.eye(2))
    with pytest.raises(InputError, match="between 0 and 1"):
        Plane(np.zeros((4, 2)), np.full(4, 2), np.eye(2))
    with pytest.raises(InputError, match="one plane for each version"):
        feature_plot({"a": [cloud([0])]}, ["x"], ["v1", "v2"])
