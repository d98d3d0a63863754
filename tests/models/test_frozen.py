"""A past model sees pictures at its own size, also those that were fitted to a successor of another one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fixstar.data import Augmentation, from_arrays
from fixstar.images import Preprocessing
from fixstar.methods import create_method
from fixstar.models import Encoder, FrozenEncoder
from fixstar.models.frozen import refit_pixels
from fixstar.training import Recipe, Settings, TrainingContext, train_version

SMALL = Preprocessing(size=(32, 32), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def pictures(side: int, count: int = 12) -> np.ndarray[Any, Any]:
    """[count, side, side, 3] uint8: smooth spots of colour, the same at every size."""
    y, x = (np.mgrid[:side, :side] + 0.5) / side
    rng = np.random.default_rng(0)
    spots = []
    for _ in range(count):
        cx, cy, width, *colour = rng.uniform(
            (0.2, 0.2, 0.15, 0.4, 0.4, 0.4), (0.8, 0.8, 0.3, 1, 1, 1)
        )
        spots.append(np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * width**2))[..., None] * colour)
    images: np.ndarray[Any, Any] = np.rint(255 * np.array(spots)).astype(np.uint8)
    return images


def planes(images: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def test_pixels_that_fit_are_left_alone() -> None:
    pixels = planes(pictures(32))
    assert refit_pixels(pixels, SMALL) is pixels


@pytest.mark.parametrize(("side", "size"), [(96, (32, 32)), (32, (96, 96)), (64, (20, 30))])
def test_resizing_is_that_of_files(side: int, size: tuple[int, int]) -> None:
    images = pictures(side, 3)
    found = refit_pixels(planes(images), replace(SMALL, size=size)).permute(0, 2, 3, 1)
    wanted = [
        np.asarray(Image.fromarray(one).resize(size[::-1], Image.Resampling.BICUBIC))
        for one in images
    ]
    assert (
        np.abs(found.numpy() - np.array(wanted, np.float32)).max() <= 1
    )  # of 255: PIL rounds after each direction


def test_colours_become_grey_as_in_files_and_grey_becomes_colours() -> None:
    images = pictures(32, 3)
    grey = Preprocessing(size=(32, 32), channels=1, mean=(0.5,), std=(0.5,))
    found = refit_pixels(planes(images), grey)
    wanted = np.array([np.asarray(Image.fromarray(one).convert("L")) for one in images], np.float32)
    assert np.abs(found[:, 0].numpy() - wanted).max() <= 1
    again = refit_pixels(found, SMALL)
    assert again.shape == (3, 3, 32, 32)
    assert torch.equal(again[:, 2], found[:, 0])


def test_features_are_those_of_the_pictures_at_its_own_size() -> None:
    torch.manual_seed(0)
    encoder = Encoder.create("tiny", classes=["a", "b"], capacity=10, preprocessing=SMALL).eval()
    old = FrozenEncoder(encoder)
    own = torch.from_numpy(encoder.encode(pictures(32)))
    apart = (own @ own.T).fill_diagonal_(-1).max()  # the cosine of the two most alike pictures
    large = pictures(96)
    for found in (
        torch.nn.functional.normalize(old(planes(large)).z),
        torch.from_numpy(old.encode(large)),
    ):
        assert (found * own).sum(dim=1).min() > max(0.999, float(apart))


def test_an_upgrade_to_another_input_size_learns_from_the_old_model_at_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = from_arrays(pictures(48, 16), np.arange(16) % 4, list("abcd"))
    settings = Settings(
        backbone="tiny",
        capacity=10,
        recipe=Recipe(epochs=1, milestones=(), batch_size=8),
        augmentation=Augmentation(crop_padding=0, flip=False),
        preprocessing=SMALL,
        device="cpu",
    )
    first = train_version(
        1, images, TrainingContext(), create_method("hoc"), settings, progress=False
    ).encoder
    seen = []
    normalise = Encoder.normalise

    def spied(self: Encoder, pixels: torch.Tensor) -> torch.Tensor:
        seen.append((self.preprocessing.size, tuple(pixels.shape[2:])))
        return normalise(self, pixels)

    monkeypatch.setattr(Encoder, "normalise", spied)
    larger = replace(settings, backbone="resnet20", preprocessing=replace(SMALL, size=(48, 48)))
    method = replace(create_method("hoc"), initialisation="fresh")
    train_version(2, images, TrainingContext(previous=first), method, larger, progress=False)
    assert set(seen) == {((32, 32), (32, 32)), ((48, 48), (48, 48))}
