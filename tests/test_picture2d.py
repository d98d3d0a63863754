"""The picture in the plane, at a fraction of its size: what it says must follow from what it drew."""

from __future__ import annotations

import itertools
import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from wording import refuses

from fixstar.data import ImageSet
from fixstar.errors import InputError, UnknownNameError
from fixstar.models import Encoder
from fixstar.polytopes import polygon_prototypes
from fixstar.research import picture2d
from fixstar.research.picture2d import Plane, class_turns, feature_plot

plane = picture2d._plane


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = dict(list(picture2d.DIGITS.items())[:4])
    for name, value in {"FIRST": 2, "CLASSES": 4, "TEST": 12, "DIGITS": digits}.items():
        monkeypatch.setattr(picture2d, name, value)


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_three_methods_through_two_upgrades(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Plane] = []

    def watched(encoder: Encoder, test: ImageSet) -> Plane:
        seen.append(plane(encoder, test))
        return seen[-1]

    monkeypatch.setattr(picture2d, "_plane", watched)
    said: list[str] = []
    result = picture2d.run_picture2d(
        tmp_path / "f.png", per_class=40, epochs=4, device="cpu", progress=False, say=said.append
    )
    assert Image.open(result.picture).size[0] > 1000
    assert [sorted(set(p.labels.tolist())) for p in seen] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]] * 3
    ift, bct, cores = seen[:3], seen[3:6], seen[6:]
    np.testing.assert_array_equal(ift[0].features, bct[0].features)  # one first version serves both
    assert not np.array_equal(ift[1].features, bct[1].features)
    for version in cores:
        np.testing.assert_allclose(version.prototypes, polygon_prototypes(10), atol=1e-6)
    for name, planes in zip(result.turns, (ift, bct, cores), strict=True):
        turns = [class_turns(before, after) for before, after in itertools.pairwise(planes)]
        assert result.turns[name] == pytest.approx(
            [np.abs(list(turn.values())).mean() for turn in turns]
        )
        assert result.accuracy[name] == [picture2d._accuracy(version) for version in planes]
    assert len(said) == 4


def test_prototypes_are_the_classifiers_rows() -> None:
    torch.manual_seed(0)
    options = {"feature_dim": 2, "in_channels": 1, "width": 4}
    encoder = Encoder.create("tiny", "linear", classes=["2", "1"], backbone_options=options).eval()
    test = picture2d._drawn(3, seed=2)
    drawn = plane(encoder, test)
    weight = encoder.classifier.get_parameter("weight").detach()
    np.testing.assert_allclose(drawn.prototypes, weight, atol=1e-6)
    assert drawn.labels.tolist() == [1, 1, 1, 0, 0, 0]  # slots: class 2 came first
    np.testing.assert_array_equal(drawn.features, encoder.encode(test.images[:6], form="raw"))
    right = (drawn.features @ weight.numpy().T).argmax(1) == drawn.labels
    assert picture2d._accuracy(drawn) == right.mean()


def test_digits_are_light_on_black() -> None:
    images = picture2d._drawn(20, seed=1).images
    assert isinstance(images, np.ndarray)
    assert images.shape == (140, 28, 28, 1)
    assert np.median(images) == 0
    assert (images.max(axis=(1, 2, 3)) == 255).all()
    assert 0.03 < (images > 128).mean() < 0.35


def write_idx(folder: Path, prefix: str, images: ImageSet) -> None:
    pixels = np.asarray(images.images)
    head = struct.pack(">4I", 2051, *pixels.shape[:3])
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(
        struct.pack(">2I", 2049, len(pixels)) + images.labels.astype(np.uint8).tobytes()
    )


@pytest.mark.usefixtures("small")
def test_images_come_from_files_of_mnist(tmp_path: Path) -> None:
    train, test = picture2d._drawn(6, seed=1), picture2d._drawn(15, seed=2)
    write_idx(tmp_path, "train", train)
    write_idx(tmp_path, "t10k", test)
    read, held_out = picture2d._images(tmp_path, per_class=5)
    assert list(read.counts().values()) == [5] * 4
    assert list(held_out.counts().values()) == [12] * 4
    np.testing.assert_array_equal(read.images[5:10], train.images[6:11])
    np.testing.assert_array_equal(held_out.images[12:24], test.images[15:27])


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"lenet\+\+, tiny"):
        picture2d.run_picture2d(tmp_path / "f.png", backbone="resnet18")
    with refuses(InputError):
        picture2d.run_picture2d(tmp_path / "f.png", per_class=0, say=lambda _: None)


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
    return Plane(
        features,
        np.repeat(np.arange(len(degrees)), 20),
        np.stack([np.cos(spokes), np.sin(spokes)], axis=1),
    )


@given(turn=st.floats(-170, 170), start=st.floats(0, 360))
def test_a_turned_cloud_has_turned_by_that_much(turn: float, start: float) -> None:
    before, after = (
        cloud([start, start + 90]),
        cloud([start + turn, start + 90 + turn, 10], length=7),
    )
    assert class_turns(before, after) == pytest.approx({0: turn, 1: turn}, abs=1e-6)


def test_long_features_do_not_count_more_than_short_ones() -> None:
    plane = Plane(np.array([[100.0, 0.0], [0.0, 1.0]]), np.array([0, 0]), np.eye(2))
    assert plane.directions()[0] == pytest.approx(math.pi / 4)


def test_every_version_of_every_method_is_drawn(tmp_path: Path) -> None:
    still, turning = (
        [cloud([0, 90], 3), cloud([0, 90, 180], 2)],
        [cloud([0, 90]), cloud([30, 140, 200])],
    )
    names = ["ant", "bee", "cat"]
    figure = feature_plot(
        {"still": still, "turning": turning}, names, ["v1", "v2"], tmp_path / "f.png", "title"
    )
    assert Image.open(tmp_path / "f.png").format == "PNG"
    assert len(figure.axes) == 4
    words = [{text.get_text() for text in axes.texts} for axes in figure.axes]  # row by row
    assert words[0] == {"ant", "bee", "v1"}
    assert words[2] == {"ant", "bee", "cat", "known classes turned by 0°", "v2"}
    assert "known classes turned by 40°" in words[3]
    dashed = [sum(line.get_linestyle() != "-" for line in axes.lines) for axes in figure.axes]
    assert dashed == [3, 0, 2, 0]
    assert [axes.get_title() for axes in figure.axes] == ["still", "turning", "", ""]
    assert figure.get_suptitle() == "title"


def test_dots_stay_inside_the_rim_whatever_the_length() -> None:
    plane = cloud([0, 90, 200], length=1000)
    (axes,) = feature_plot({"": [plane]}, ["a", "b", "c"], ["v1"]).axes
    dots = np.asarray(axes.collections[0].get_offsets())
    assert len(dots) == 60
    lengths = np.linalg.norm(dots, axis=1)
    assert 0.9 < lengths.max() <= 1 + 1e-9


def test_wrong_planes_are_named() -> None:
    with pytest.raises(InputError, match=r"features \[N, 2\]"):
        Plane(np.zeros((4, 3)), np.zeros(4, int), np.eye(2))
    with pytest.raises(InputError, match="between 0 and 1"):
        Plane(np.zeros((4, 2)), np.full(4, 2), np.eye(2))
    with refuses(InputError):
        feature_plot({"a": [cloud([0])]}, ["x"], ["v1", "v2"])
