"""The fused simplex cross-entropy against that of the logits, in float64."""

from __future__ import annotations

import pytest
import torch
from kernel_device import DEVICE, needs_triton, relative
from torch.nn import functional

from fixstar.geometry import simplex_logits
from fixstar.kernels.simplex_ce import simplex_cross_entropy

pytestmark = needs_triton

# K, images, length of a prototype; above 16,385 a row is taken in parts
SIZES = [(2, 3, 1.0), (3, 5, 1.0), (101, 64, 2.0), (8194, 16, 30.0), (16_386, 5, 1.0), (81_313, 4, 3.0)]


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
