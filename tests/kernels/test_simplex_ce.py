"""The fused simplex cross-entropy against that of the logits, in float64."""

from __future__ import annotations

import pytest
import torch
from kernel_device import DEVICE, needs_triton, relative
from torch.nn import functional

from fixstar.errors import InputError
from fixstar.geometry import simplex_logits
from fixstar.kernels.simplex_ce import simplex_cross_entropy

pytestmark = needs_triton

# K, images, length of a prototype; above 16,385 a row is taken in parts
SIZES = [
    (2, 3, 1.0),
    (3, 5, 1.0),
    (101, 64, 2.0),
    (8194, 16, 30.0),
    (16_386, 5, 1.0),
    (81_313, 4, 3.0),
]


@pytest.mark.parametrize(("K", "images", "length"), SIZES)
def test_the_fused_cross_entropy_is_that_of_the_logits(K: int, images: int, length: float) -> None:
    torch.manual_seed(K)
    z = (3 * torch.randn(images, K - 1, device=DEVICE)).requires_grad_()
    targets = torch.randint(K, (images,), device=DEVICE)
    targets[0] = K - 1  # the prototype that is not on an axis
    loss = simplex_cross_entropy(z, targets, length)
    torch.autograd.backward(2 * loss)
    exact = z.detach().double().requires_grad_()
    expected = functional.cross_entropy(simplex_logits(exact, K, length), targets)
    torch.autograd.backward(2 * expected)
    assert z.grad is not None
    assert exact.grad is not None
    assert relative(loss, expected) < 1e-5
    assert relative(z.grad, exact.grad) < 1e-4


def test_slots_may_lie_apart() -> None:
    torch.manual_seed(0)
    z, targets = torch.randn(12, 6, device=DEVICE), torch.randint(7, (12,), device=DEVICE)
    strided = torch.stack([targets, (targets + 1) % 7], dim=1)[:, 0]
    losses, gradients = [], []
    for slots in (targets, strided):
        features = z.clone().requires_grad_()
        losses.append(simplex_cross_entropy(features, slots))
        gradients.append(torch.autograd.grad(losses[-1], features)[0])
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(gradients[0], gradients[1])


def test_the_gradient_is_not_differentiated_again() -> None:
    z = torch.ones(4, 2, device=DEVICE, requires_grad=True)
    loss = simplex_cross_entropy(z, torch.zeros(4, dtype=torch.int64, device=DEVICE))
    with pytest.raises(InputError, match="simplex_logits"):
        torch.autograd.grad(loss, z, create_graph=True)
