"""The losses of PODNet, FOSTER and contrastive CoReS against slow loops and hand-worked numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fixstar.errors import InputError
from fixstar.losses import (
    balanced_distillation,
    neighbourhood_components,
    pooled_outputs,
    two_view_contrast,
)

SEEDS = st.integers(0, 10_000)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# NCA (PODNet, eq. 9)


@given(batch=st.integers(1, 6), classes=st.integers(2, 5), scale=st.floats(0.1, 20), seed=SEEDS)
@settings(max_examples=50, deadline=None)
def test_nca_equals_the_slow_loop(batch: int, classes: int, scale: float, seed: int) -> None:
    logits, targets = scale * normal(seed, batch, classes), torch.arange(batch) % classes
    losses = []
    for row, target in zip(logits.double().tolist(), targets.tolist(), strict=True):
        others = sum(math.exp(value) for i, value in enumerate(row) if i != target)
        losses.append(max(0.0, -math.log(math.exp(row[target]) / others)))
    assert neighbourhood_components(logits, targets).item() == pytest.approx(
        sum(losses) / batch, abs=1e-4
    )


def test_nca_by_hand() -> None:
    """Logits 1, 0, 0 with target 0: log(e^0 + e^0) - 1 < 0, so nothing; with target 1: log(e + 1) - 0."""
    logits = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    expected = (0.0 + math.log(math.e + 1)) / 2
    assert neighbourhood_components(logits, torch.tensor([0, 1])).item() == pytest.approx(expected)


def test_nca_leaves_an_image_alone_that_is_right_by_far_and_one_class_has_nothing_to_tell_apart() -> (
    None
):
    logits = torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(
        neighbourhood_components(logits, torch.tensor([0, 0])), logits
    )
    assert not gradient[0].any()
    assert gradient[1].tolist() == pytest.approx([-0.5, 0.25, 0.25])
    single = torch.zeros(3, 1, requires_grad=True)
    loss = neighbourhood_components(single, torch.zeros(3, dtype=torch.long))
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, single)[0].any()


# Balanced distillation (FOSTER, eq. 14)


@given(
    batch=st.integers(1, 5), classes=st.integers(2, 5), temperature=st.floats(0.5, 4), seed=SEEDS
)
@settings(max_examples=50, deadline=None)
def test_balanced_distillation_equals_the_slow_loop(
    batch: int, classes: int, temperature: float, seed: int
) -> None:
    new, old = normal(seed, batch, classes), normal(seed + 1, batch, classes)
    weights = normal(seed + 2, classes).abs() + 0.1
    total = 0.0
    for i in range(batch):
        answer = np.exp(new[i].double().numpy() / temperature)
        target = np.exp(old[i].double().numpy() / temperature) * weights.double().numpy()
        total -= float((target / target.sum() * np.log(answer / answer.sum())).sum())
    assert balanced_distillation(new, old, weights, temperature).item() == pytest.approx(
        total / batch, abs=1e-4
    )


def test_balanced_distillation_by_hand() -> None:
    """Old answers 1/2 and 1/2, weights 1 and 3: targets 1/4 and 3/4. New answers 1/3 and 2/3."""
    new, old = torch.log(torch.tensor([[1.0, 2.0]])), torch.zeros(1, 2)
    expected = -(math.log(1 / 3) / 4 + 3 * math.log(2 / 3) / 4)
    loss = balanced_distillation(new, old, torch.tensor([1.0, 3.0]), temperature=1.0)
    assert loss.item() == pytest.approx(expected)


def test_balanced_distillation_is_least_where_the_weighted_answers_are_met() -> None:
    old, weights = normal(0, 4, 3), torch.tensor([1.0, 2.0, 5.0])
    new = (
        old + 2.0 * weights.log()
    ).requires_grad_()  # softmax(new / 2) is softmax(old / 2) * weights, at sum 1
    (gradient,) = torch.autograd.grad(
        balanced_distillation(new, old, weights, temperature=2.0), new
    )
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-6, rtol=0)


# POD (PODNet, eq. 4)


def slow_pod(new: list[Tensor], old: list[Tensor]) -> float:
    """One image, one channel, one row and one column at a time."""

    def pooled(maps: Tensor) -> Any:
        squared = maps.double().numpy() ** 2  # [D, h, w]
        rows = [
            squared[d, y].sum() for d in range(squared.shape[0]) for y in range(squared.shape[1])
        ]
        columns = [
            squared[d, :, x].sum() for d in range(squared.shape[0]) for x in range(squared.shape[2])
        ]
        vector = np.array(rows + columns)
        return vector / np.linalg.norm(vector)

    of_maps = []
    for a, b in zip(new, old, strict=True):
        of_maps.append(
            np.mean([np.linalg.norm(pooled(x) - pooled(y)) for x, y in zip(a, b, strict=True)])
        )
    return float(np.mean(of_maps))


@given(batch=st.integers(1, 3), seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_pooled_outputs_equal_the_slow_loop(batch: int, seed: int) -> None:
    shapes = [(batch, 2, 4, 3), (batch, 3, 2, 2)]
    new = [normal(seed + i, *shape) for i, shape in enumerate(shapes)]
    old = [normal(seed + 9 + i, *shape) for i, shape in enumerate(shapes)]
    assert pooled_outputs(new, old).item() == pytest.approx(slow_pod(new, old), abs=1e-5)


def test_pooled_outputs_by_hand() -> None:
    """A 1x2 map (1, 0) pools to rows (1), columns (1, 0); (0, 1) to (1), (0, 1): both of length sqrt 2, 1 apart."""
    a, b = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2), torch.tensor([0.0, 1.0]).view(1, 1, 1, 2)
    assert pooled_outputs([a], [b]).item() == pytest.approx(1.0)
    assert pooled_outputs([a], [-3 * a]).item() == pytest.approx(
        0.0, abs=1e-5
    )  # squares, brought to unit length


def test_equal_maps_have_a_finite_gradient() -> None:
    new = normal(0, 2, 3, 4, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(pooled_outputs([new], [new.detach()]), new)
    assert torch.isfinite(gradient).all()


def test_models_must_have_as_many_maps() -> None:
    with pytest.raises(ValueError, match="zip"):
        pooled_outputs([torch.ones(1, 1, 2, 2)], [])


# Two views (CoReS, section 5.5)


@given(images=st.integers(2, 5), temperature=st.floats(0.1, 2), seed=SEEDS)
@settings(max_examples=50, deadline=None)
def test_two_view_contrast_equals_the_slow_loop(images: int, temperature: float, seed: int) -> None:
    z = normal(seed, 2 * images, 4)
    rows = z.double().numpy() / np.linalg.norm(z.double().numpy(), axis=1, keepdims=True)
    losses = []
    for i in range(2 * images):
        positive = i + images if i < images else i - images
        similarity = {
            j: math.exp(float(rows[i] @ rows[j]) / temperature) for j in range(2 * images) if j != i
        }
        losses.append(-math.log(similarity[positive] / sum(similarity.values())))
    assert two_view_contrast(z, temperature).item() == pytest.approx(
        sum(losses) / len(losses), abs=1e-3
    )


def test_two_view_contrast_by_hand() -> None:
    """Two images along the axes, views equal, temperature 1: -log(e / (e + 1 + 1)) for each of the four."""
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 3.0]])
    assert two_view_contrast(z, 1.0).item() == pytest.approx(-math.log(math.e / (math.e + 2)))


@pytest.mark.parametrize("rows", [2, 5])
def test_fewer_than_two_images_and_odd_numbers_cannot_be_contrasted(rows: int) -> None:
    with pytest.raises(InputError, match=f"got {rows} rows"):
        two_view_contrast(torch.ones(rows, 2))
