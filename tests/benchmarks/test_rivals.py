"""benchmarks/rivals.py: FCT and BT2 against what they must do by definition, and the crops against slow code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixstar.data import Augmentation, ImageSet, from_arrays
from fixstar.models.backbones import create_backbone
from fixstar.training import Recipe, Settings

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import rivals


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow layers, so that a test takes a moment."""
    monkeypatch.setattr(rivals, "INNER", 64)
    monkeypatch.setattr(rivals, "FCT_EPOCHS", 40)
    monkeypatch.setattr(rivals, "FCT_RATE", 5e-3)


def vectors(count: int, width: int, seed: int) -> Any:
    rows = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def images(classes: int = 4, each: int = 8, seed: int = 0) -> ImageSet:
    rng = np.random.default_rng(seed)
    names = [f"class {i // each}" for i in range(classes * each)]
    base = rng.integers(0, 200, (classes, 1, 1, 3))
    pixels = np.concatenate(
        [base[i] + rng.integers(0, 56, (each, 32, 32, 3)) for i in range(classes)]
    )
    return from_arrays(pixels.astype(np.uint8), names)


SETTINGS = Settings(
    backbone="tiny",
    preprocessing=create_backbone("tiny").preprocessing,
    recipe=Recipe(epochs=1, milestones=(), batch_size=8),
    augmentation=Augmentation(flip=True),
    device="cpu",
)


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_fct_needs_the_side_vector_for_what_the_old_one_lacks() -> None:
    """The new vector is half in the old one and half in the side vector: only with both can it be told."""
    first = vectors(600, 4, seed=1)
    second = vectors(600, 4, seed=2)
    new = np.hstack([first, second]) / np.sqrt(2)
    alone = rivals.fct(first[:500], first[:500], new[:500], device="cpu", seed=0)
    both = rivals.fct(first[:500], second[:500], new[:500], device="cpu", seed=0)
    judged = slice(500, 600)
    cosine_alone = (alone(first[judged], first[judged]) * new[judged]).sum(axis=1).mean()
    cosine_both = (both(first[judged], second[judged]) * new[judged]).sum(axis=1).mean()
    assert cosine_both > 0.9
    assert 0.5 < cosine_alone < 0.8  # 1 / sqrt(2) is all that the old vector tells


def test_crops_are_those_of_slow_code() -> None:
    pool = images()
    pixels = rivals.Pixels(pool, SETTINGS)
    rows = torch.tensor([3, 5])
    found = pixels.crops(rows) * pixels.std + pixels.mean
    source = np.pad(np.asarray(pool.images)[rows.numpy()], ((0, 0), (4, 4), (4, 4), (0, 0)))
    for one, padded in zip(found, source, strict=True):
        crop = (one.permute(1, 2, 0) * 255).round().numpy().astype(np.uint8)
        windows = [padded[y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
        assert any(np.array_equal(crop, w) or np.array_equal(crop, w[:, ::-1]) for w in windows)


def test_jitter_changes_the_views_and_keeps_their_range() -> None:
    pixels = rivals.Pixels(images(), SETTINGS)
    values = torch.rand(4, 3, 32, 32)
    jittered = pixels._jittered(values, rivals.JITTER)
    assert not torch.allclose(values, jittered)
    assert jittered.min() >= 0
    assert jittered.max() <= 1


def test_bt2_keeps_all_of_the_feature_in_the_merged_vector() -> None:
    """Orthogonal changes of basis lose nothing: |merged|^2 = 1 + C^2, and the first part is compared with old ones."""
    pool = images()
    network = rivals.bt2(pool, vectors(32, 40, seed=1), vectors(32, 48, seed=2), SETTINGS)
    merged = network(pool.images)
    assert merged.shape == (32, 48 + rivals.ADDED)
    assert np.allclose((merged**2).sum(axis=1), 1 + rivals.SCALE**2, atol=1e-3)
    with torch.no_grad():
        _, compatible, whole = network.network(next(network.pixels.whole(pool.images)))
    assert torch.equal(whole[:, :40], compatible)


def test_side_vectors_learn_without_labels() -> None:
    pool = images()
    side = rivals.side_vectors(pool, SETTINGS)
    found = side(pool.images)
    assert found.shape == (32, rivals.SIDE_WIDTH)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
