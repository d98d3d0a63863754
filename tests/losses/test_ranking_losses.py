"""Ranking and boundary losses against slow loops and hand-worked numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fixstar.losses import (
    centre_alignment,
    centre_distance,
    cosine_boundary,
    cross_model_triplet,
    elastic_boundary,
    margin_ranking,
)


def unit(vector: Tensor) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    values = vector.double().numpy()
    return np.asarray(values / np.linalg.norm(values))


# Ranking


def slow_margin_ranking(cosines: Tensor, targets: Tensor, old: int, k: int, margin: float) -> float:
    """Equation 8 of LUCIR, one image at a time, averaged over prototypes too."""
    losses = []
    for row, target in zip(cosines.tolist(), targets.tolist(), strict=True):
        if target < old:
            hardest = sorted(row[old:], reverse=True)[:k]
            losses += [max(0.0, margin - row[target] + cosine) for cosine in hardest]
    return sum(losses) / len(losses) if losses else 0.0


@given(
    batch=st.integers(1, 6),
    old=st.integers(1, 4),
    new=st.integers(0, 4),
    k=st.integers(1, 3),
    seed=st.integers(0),
)
@settings(max_examples=60, deadline=None)
def test_margin_ranking_equals_the_slow_loop(
    batch: int, old: int, new: int, k: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed % 2**31)
    cosines = torch.rand(batch, old + new, generator=generator) * 2 - 1
    targets = torch.randint(0, old + new, (batch,), generator=generator)
    expected = slow_margin_ranking(cosines, targets, old, k, 0.5)
    assert margin_ranking(cosines, targets, old, k, 0.5).item() == pytest.approx(expected, abs=1e-5)


def test_margin_ranking_by_hand() -> None:
    """One old class, three new ones; the two hardest are 0.7 and 0.2, the image of a new class does not count."""
    cosines = torch.tensor([[0.6, 0.2, -0.9, 0.7], [0.9, 0.9, 0.9, 0.9]])
    loss = margin_ranking(cosines, torch.tensor([0, 2]), old_classes=1)
    assert loss.item() == pytest.approx(((0.5 - 0.6 + 0.7) + (0.5 - 0.6 + 0.2)) / 2)


def slow_triplet(new: Tensor, old: Tensor, targets: Tensor, margin: float) -> float:
    """Two images, three embeddings, one anchor at a time."""
    losses = []
    for i in range(len(targets)):
        others = [j for j in range(len(targets)) if targets[j] != targets[i]]
        away = [float(np.linalg.norm(unit(new[i]) - unit(old[j]))) for j in others]
        home = float(np.linalg.norm(unit(new[i]) - unit(old[i])))
        losses.append(max(0.0, home - min(away) + margin) if others else 0.0)
    return sum(losses) / len(losses)


@given(
    batch=st.integers(1, 7),
    classes=st.integers(1, 3),
    margin=st.floats(0, 1),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_the_triplet_equals_the_slow_loop(
    batch: int, classes: int, margin: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    new, old = (torch.randn(batch, 3, generator=generator) for _ in range(2))
    targets = torch.randint(0, classes, (batch,), generator=generator)
    expected = slow_triplet(new, old, targets, margin)
    assert cross_model_triplet(new, old, targets, margin).item() == pytest.approx(
        expected, abs=1e-4
    )


def test_the_triplet_of_a_model_with_itself_is_finite_with_its_gradient() -> None:
    """Every version starts as a copy of its predecessor: distances of zero must not give a gradient of NaN."""
    new = torch.tensor([[1.0, 0.0], [1.0, 0.05]], requires_grad=True)
    loss = cross_model_triplet(new, new.detach(), torch.tensor([0, 1]), margin=0.1)
    (gradient,) = torch.autograd.grad(loss, new)
    assert loss.item() == pytest.approx(
        0.05, abs=1e-3
    )  # the two classes are 0.05 apart, the margin is 0.1
    assert torch.isfinite(gradient).all()


# Boundaries


def test_alignment_by_hand() -> None:
    """Cosines 0.6 and 0: squared distances 0.8 and 2 over two components; the third class is not known."""
    prototypes = torch.tensor([[3.0, 4.0], [0.0, 7.0], [1.0, 1.0]])
    centres = torch.tensor([[0.5, 0.0], [0.1, 0.0], [0.0, 0.0]])
    known = torch.tensor([True, True, False])
    assert centre_alignment(prototypes, centres, known).item() == pytest.approx(
        (0.8 / 2 + 2.0 / 2) / 2
    )


def test_cosine_boundary_by_hand() -> None:
    """Cosines 0.6, 0.6, 0: outside by 0.2, inside, unknown class."""
    new = torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 1.0]])
    centres = torch.tensor([[1.0, 0.0]]).expand(3, 2)
    loss = cosine_boundary(
        new, centres, torch.tensor([0.8, 0.5, 0.9]), torch.tensor([True, True, False])
    )
    assert loss.item() == pytest.approx(0.2 / 2)


def test_elastic_boundary_by_hand() -> None:
    """Distances sqrt(0.8), 1 and 0 to (1, 0) and (0, 0): only images outside are averaged."""
    new = torch.tensor([[3.0, 4.0], [0.0, 5.0], [2.0, 0.0]])
    centres = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    loss = elastic_boundary(
        new, centres, torch.tensor([0.5, 0.4, 0.1]), torch.ones(3, dtype=torch.bool)
    )
    assert loss.item() == pytest.approx((0.8**0.5 - 0.5 + 1 - 0.4) / 2)


def test_centre_distance_by_hand() -> None:
    new, centres = torch.tensor([[0.0, 2.0], [3.0, 0.0]]), torch.tensor([[0.0, 0.5], [0.0, 0.0]])
    assert centre_distance(new, centres, torch.tensor([True, True])).item() == pytest.approx(
        (0.25 + 1) / 2
    )
    assert centre_distance(new, centres, torch.tensor([True, False])).item() == pytest.approx(0.25)


NOTHING: dict[str, Callable[[Tensor], Tensor]] = {
    "margin ranking, new classes only": lambda new: margin_ranking(new, torch.tensor([2, 3, 3]), 2),
    "margin ranking, no new class": lambda new: margin_ranking(new, torch.tensor([0, 1, 3]), 4),
    "triplet, one class": lambda new: cross_model_triplet(
        new, torch.randn(3, 4), torch.zeros(3, dtype=torch.long)
    ),
    "alignment": lambda new: centre_alignment(
        new, torch.zeros(3, 4), torch.zeros(3, dtype=torch.bool)
    ),
    "boundary": lambda new: cosine_boundary(
        new, torch.zeros(3, 4), torch.ones(3), torch.zeros(3, dtype=torch.bool)
    ),
    "elastic": lambda new: elastic_boundary(
        new, torch.zeros(3, 4), torch.zeros(3), torch.zeros(3, dtype=torch.bool)
    ),
    "centre distance": lambda new: centre_distance(
        new, torch.zeros(3, 4), torch.zeros(3, dtype=torch.bool)
    ),
}


@pytest.mark.parametrize("case", NOTHING)
def test_nothing_to_compare_is_no_loss_and_no_gradient(case: str) -> None:
    new = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = NOTHING[case](new)
    (gradient,) = torch.autograd.grad(loss, new)
    assert loss.item() == 0
    assert loss.ndim == 0
    assert not gradient.any()
