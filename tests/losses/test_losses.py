"""Losses against slow loops and hand-worked numbers."""

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
from fixstar.geometry import simplex_logits
from fixstar.losses import (
    SameClass,
    cross_entropy,
    feature_distance,
    feature_distillation,
    info_nce,
    knowledge_distillation,
    search_contrast,
)


def slow_info_nce(new: Tensor, old: Tensor, targets: Tensor, rho: float, same_class: str) -> float:
    """Equations 4 and 5 of HOC, one image at a time."""

    def delta(i: int, j: int) -> float:
        a, b = old[i].double().numpy(), new[j].double().numpy()
        return math.exp(rho * float(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b)))

    losses = []
    for i in range(len(targets)):
        total, negatives = 0.0, 0
        for j in range(len(targets)):
            if j == i and same_class != "published":
                continue
            same = targets[i] == targets[j]
            if same and same_class == "masked":
                continue
            total += 1.0 if same and same_class == "published" else delta(i, j)
            negatives += 1
        losses.append(-math.log(delta(i, i) / total) if negatives else 0.0)
    return sum(losses) / len(losses)


@given(
    batch=st.integers(1, 7),
    classes=st.integers(1, 4),
    rho=st.floats(0.5, 20),
    same_class=st.sampled_from(["masked", "published", "kept"]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=80, deadline=None)
def test_info_nce_equals_the_slow_loop(
    batch: int, classes: int, rho: float, same_class: SameClass, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    new, old = (torch.randn(batch, 3, generator=generator) for _ in range(2))
    targets = torch.randint(0, classes, (batch,), generator=generator)
    expected = slow_info_nce(new, old, targets, rho, same_class)
    assert info_nce(new, old, targets, rho, same_class).item() == pytest.approx(expected, abs=1e-3)


def test_info_nce_by_hand() -> None:
    """Two images of two classes, unit features along the axes, rho 1: -log(e^1 / e^0) for both anchors."""
    features = torch.eye(2)
    assert info_nce(features, features, torch.tensor([0, 1]), rho=1.0).item() == pytest.approx(-1.0)


def test_the_positive_is_not_in_the_denominator() -> None:
    """With it the loss could never fall below zero."""
    features = torch.eye(3)
    assert info_nce(features, features, torch.arange(3), rho=5.0).item() < 0


def test_a_batch_of_one_class_has_no_negatives_and_no_gradient() -> None:
    new = torch.randn(4, 3, requires_grad=True)
    loss = info_nce(new, torch.randn(4, 3), torch.zeros(4, dtype=torch.long))
    torch.autograd.backward(loss)
    assert loss.item() == 0
    assert new.grad is not None
    assert torch.isfinite(new.grad).all()
    assert not new.grad.any()


def test_info_nce_pulls_a_new_feature_towards_its_old_one() -> None:
    old = torch.eye(4)
    new = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for _ in range(200):
        (gradient,) = torch.autograd.grad(info_nce(new, old, torch.arange(4)), new)
        new = (new - 0.5 * gradient).detach().requires_grad_()
    cosines = torch.nn.functional.cosine_similarity(new, old)
    assert (cosines > 0.85).all()


def test_unknown_reading_is_refused() -> None:
    with pytest.raises(InputError, match="masked, published, kept"):
        info_nce(torch.eye(2), torch.eye(2), torch.arange(2), same_class="ignored")  # type: ignore[arg-type]


def test_future_classes_stay_in_the_denominator() -> None:
    """Equation 9 of CoReS by hand: a feature at the origin is -log(1/K) away from every class, learnt or not."""
    z = torch.zeros(1, 9)
    assert cross_entropy(simplex_logits(z, 10), torch.tensor([0])).item() == pytest.approx(
        math.log(10), abs=1e-6
    )


# Distillation


def test_feature_losses_by_hand() -> None:
    new, old = (
        torch.tensor([[3.0, 4.0], [2.0, 0.0]]),
        torch.tensor([[10.0, 0.0], [0.0, 1.0]]),
    )  # cosines 0.6 and 0
    assert feature_distillation(new, old).item() == pytest.approx((0.4 + 1.0) / 2)
    assert feature_distance(new, old).item() == pytest.approx(
        ((49 + 16) / 2 + (4 + 1) / 2) / 2
    )  # BCT, eq. 3
    assert feature_distance(new, old, torch.tensor([False, True])).item() == pytest.approx(
        (4 + 1) / 2
    )
    assert feature_distillation(new, old, torch.tensor([True, False])).item() == pytest.approx(0.4)


@given(temperature=st.floats(0.5, 8), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_knowledge_distillation_equals_the_slow_divergence(temperature: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    new, old = (torch.randn(3, 4, generator=generator) * 3 for _ in range(2))
    total = 0.0
    for i in range(3):
        p, q = (np.exp(x[i].double().numpy() / temperature) for x in (old, new))
        p, q = p / p.sum(), q / q.sum()
        total += float((p * np.log(p / q)).sum()) * temperature**2 / 3
    assert knowledge_distillation(new, old, temperature).item() == pytest.approx(total, abs=1e-4)
    assert knowledge_distillation(old, old, temperature).item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("loss", [feature_distillation, feature_distance, knowledge_distillation])
def test_no_image_chosen_is_no_loss_and_no_gradient(loss: Any) -> None:
    new = torch.randn(3, 4, requires_grad=True)
    value = loss(new, torch.randn(3, 4), chosen=torch.zeros(3, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(value, new)
    assert value.item() == 0
    assert not gradient.any()


def test_cross_entropy_of_chosen_images_may_ignore_foreign_targets() -> None:
    logits = torch.tensor([[1.0, 0.0], [0.0, 5.0]])
    chosen = torch.tensor([True, False])
    expected = cross_entropy(logits[:1], torch.tensor([0]))
    torch.testing.assert_close(cross_entropy(logits, torch.tensor([0, 99]), chosen), expected)
    assert cross_entropy(logits, torch.tensor([99, 99]), torch.tensor([False, False])).item() == 0


def slow_search_contrast(new: Tensor, old: Tensor, targets: Tensor, rho: float) -> float:
    """One query at a time."""

    def similarity(a: Tensor, b: Tensor) -> float:
        return float(a.double() @ b.double() / (a.double().norm() * b.double().norm()))

    losses = []
    for i in range(len(targets)):
        others = [j for j in range(len(targets)) if targets[j] != targets[i]]
        total = sum(
            math.exp(rho * similarity(new[i], vectors[j])) for j in others for vectors in (old, new)
        )
        losses.append(math.log(total) - rho * similarity(new[i], old[i]) if others else 0.0)
    return sum(losses) / len(losses)


@given(
    batch=st.integers(1, 7),
    classes=st.integers(1, 4),
    rho=st.floats(0.5, 20),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_search_contrast_equals_the_slow_loop(
    batch: int, classes: int, rho: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    new, old = (torch.randn(batch, 3, generator=generator) for _ in range(2))
    targets = torch.randint(0, classes, (batch,), generator=generator)
    a, b = torch.nn.functional.normalize(new), torch.nn.functional.normalize(old)
    assert float(search_contrast(a @ b.T, a @ a.T, targets, rho)) == pytest.approx(
        slow_search_contrast(new, old, targets, rho), abs=1e-4
    )


def test_search_contrast_by_hand_and_its_gradient() -> None:
    across = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    within = torch.eye(2)
    loss = search_contrast(across, within, torch.tensor([0, 1]), rho=1.0)
    assert float(loss.detach()) == pytest.approx(
        math.log(2) - 1
    )  # two negatives at cosine 0, the positive at 1
    (gradient,) = torch.autograd.grad(loss, across)
    assert torch.allclose(gradient, torch.tensor([[-0.5, 0.25], [0.25, -0.5]]))
    alone = search_contrast(across, within, torch.tensor([3, 3]))
    assert float(alone) == 0
    assert torch.isfinite(torch.autograd.grad(alone, across)[0]).all()
