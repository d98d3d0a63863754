from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fixstar.data import ReplayMemory, concatenate, from_arrays
from fixstar.data.formats import image_folder
from fixstar.data.image_set import ImageSet
from fixstar.data.replay import herding, hold_out
from fixstar.errors import CheckpointError, InputError
from fixstar.images import Preprocessing

GREY = Preprocessing(size=(4, 4), channels=1, mean=(0.5,), std=(0.5,))


def images(names: str, per_class: int = 6, seed: int = 0) -> ImageSet:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (len(names) * per_class, 4, 4), dtype=np.uint8)
    return from_arrays(pixels, np.repeat(np.arange(len(names)), per_class), list(names))


def test_every_class_is_chosen_from_once() -> None:
    memory = ReplayMemory(2).extended(images("ab"), GREY)
    assert memory.images is not None
    first = np.asarray(memory.images.images).copy()
    memory = memory.extended(images("bcd", seed=1), GREY)
    assert memory.images is not None
    assert memory.images.counts() == {"a": 2, "b": 2, "c": 2, "d": 2}
    np.testing.assert_array_equal(np.asarray(memory.images.images)[:4], first)
    assert len(memory) == 8


def test_what_is_remembered_is_what_was_shown() -> None:
    source = images("abc")
    memory = ReplayMemory(3).extended(source, GREY).images
    assert memory is not None
    shown = {
        (image.tobytes(), source.classes[label])
        for image, label in zip(source.images, source.labels, strict=True)
    }
    kept = {
        (image.tobytes(), memory.classes[label])
        for image, label in zip(memory.images, memory.labels, strict=True)
    }
    assert kept <= shown
    assert len(kept) == 9


def test_the_seed_decides() -> None:
    def chosen(seed: int) -> Any:
        memory = ReplayMemory(2).extended(images("ab"), GREY, seed=seed).images
        assert memory is not None
        return memory.fingerprint()

    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)


def test_small_classes_give_all_they_have_and_zero_keeps_nothing() -> None:
    assert len(ReplayMemory(20).extended(images("ab", 3), GREY)) == 6
    assert len(ReplayMemory(0).extended(images("ab"), GREY)) == 0


def slow_herding(features: np.ndarray[Any, Any], count: int) -> list[int]:
    """Try every candidate at every step."""
    chosen: list[int] = []
    for _ in range(count):
        best = min(
            (i for i in range(len(features)) if i not in chosen),
            key=lambda i: float(np.linalg.norm(features.mean(0) - features[[*chosen, i]].mean(0))),
        )
        chosen.append(best)
    return chosen


def test_herding_follows_the_mean() -> None:
    features = np.random.default_rng(0).standard_normal((9, 3))
    assert herding(features, 5).tolist() == slow_herding(features, 5)
    assert len(herding(features, 50)) == 9


def test_herding_by_hand() -> None:
    """Mean 2: first 2 itself, then the pair (2, 1 or 3), lowest row first."""
    assert herding(np.array([[1.0], [2.0], [3.0]]), 2).tolist() == [1, 0]


def test_memory_by_herding_uses_the_features_it_is_given() -> None:
    source = images("ab", 5)
    memory = (
        ReplayMemory(1)
        .extended(source, GREY, "herding", features=lambda s: np.asarray(s.images).mean((1, 2)))
        .images
    )
    assert memory is not None
    means = np.asarray(source.images).mean((1, 2, 3)).reshape(2, 5)
    nearest = np.abs(means - means.mean(1, keepdims=True)).argmin(1) + np.array([0, 5])
    np.testing.assert_array_equal(np.asarray(memory.images), np.asarray(source.images)[nearest])


def test_herding_needs_features() -> None:
    with pytest.raises(InputError, match="features function"):
        ReplayMemory(1).extended(images("a"), GREY, "herding")


def test_files_are_remembered_as_pixels(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(3):
            Image.new("L", (8, 8), 40 * i).save(tmp_path / name / f"{i}.png")
    memory = ReplayMemory(3).extended(image_folder(tmp_path), GREY).images
    assert memory is not None
    assert memory.resident
    assert memory.counts() == {"a": 3, "b": 3}


def test_a_class_without_images_is_chosen_from_when_they_come() -> None:
    empty = from_arrays(np.zeros((2, 4, 4), np.uint8), [0, 0], ["a", "b"])
    memory = ReplayMemory(2).extended(empty, GREY)
    assert memory.extended(empty.of_classes(["b"]), GREY) is memory
    memory = memory.extended(images("b"), GREY)
    assert memory.images is not None
    assert memory.images.counts() == {"a": 2, "b": 2}


def test_pixels_that_do_not_lie_in_order_are_saved_in_order(tmp_path: Path) -> None:
    """A transposed view, the usual way from [N, C, H, W], must come back as it was."""
    pixels = (
        np.random.default_rng(0)
        .integers(0, 256, (4, 3, 4, 4), dtype=np.uint8)
        .transpose(0, 2, 3, 1)
    )
    colour = Preprocessing(size=(4, 4), mean=(0.5,) * 3, std=(0.5,) * 3)
    memory = ReplayMemory(2, from_arrays(pixels, [0, 0, 1, 1]))
    memory.save(tmp_path / "m.safetensors")
    again = ReplayMemory.load(tmp_path / "m.safetensors").images
    assert again is not None
    np.testing.assert_array_equal(np.asarray(again.images), pixels)
    assert colour.channels == 3


def test_a_saved_memory_comes_back(tmp_path: Path) -> None:
    memory = ReplayMemory(2).extended(images("ab"), GREY).extended(images("ç", seed=2), GREY)
    memory.save(tmp_path / "memory.safetensors")
    again = ReplayMemory.load(tmp_path / "memory.safetensors")
    assert again.per_class == 2
    assert again.images is not None
    assert memory.images is not None
    assert again.images.classes == ("a", "b", "ç")
    assert again.images.fingerprint() == memory.images.fingerprint()
    ReplayMemory(5).save(tmp_path / "empty.safetensors")
    assert ReplayMemory.load(tmp_path / "empty.safetensors") == ReplayMemory(5)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_a_damaged_memory_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "memory.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"memory\.safetensors"):
        ReplayMemory.load(path)
    with pytest.raises(CheckpointError):
        ReplayMemory.load(tmp_path / "absent")


def test_memory_joins_new_images_of_one_size() -> None:
    memory = ReplayMemory(2).extended(images("ab"), GREY)
    assert memory.images is not None
    assert len(concatenate([images("cd"), memory.images])) == 16


@pytest.mark.parametrize("scarcest", ["a", "b", "c", "d"])
@pytest.mark.parametrize("share", [0.2, 0.9])
def test_the_scarcest_class_remembered_or_new_keeps_its_last_image(
    scarcest: str, share: float
) -> None:
    def uneven(names: str) -> ImageSet:
        counts = [2 if name == scarcest else 10 for name in names]
        return from_arrays(
            np.zeros((sum(counts), 4, 4), np.uint8), np.repeat(np.arange(2), counts), list(names)
        )

    shown = hold_out(uneven("cd"), uneven("ab"), share, 0, lambda part: part)
    assert shown.held_out is not None
    assert shown.memory is not None
    assert shown.held_out.counts() == dict.fromkeys("cdab", 1)
    left = shown.images.counts() | shown.memory.counts()
    assert left == dict.fromkeys("abcd", 9) | {scarcest: 1}
