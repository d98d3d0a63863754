"""The kernels against the library's operations. They need a GPU: elsewhere these tests are skipped, and say so."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from fixstar.geometry import simplex_logits
from fixstar.kernels.conv3x3 import convolve, fused_conv3x3, suits
from fixstar.kernels.simplex_ce import AVAILABLE, simplex_cross_entropy
from fixstar.models import Encoder, FrozenEncoder

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and AVAILABLE), reason="needs a CUDA GPU and Triton; run it on a machine with both"
)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).abs().max() / b.double().abs().max())


@pytest.mark.parametrize(("K", "images", "length"), [(2, 3, 1.0), (3, 5, 1.0), (101, 64, 2.0), (8194, 16, 30.0)])
def test_the_fused_cross_entropy_is_that_of_the_logits(K: int, images: int, length: float) -> None:
    torch.manual_seed(K)
    z = (3 * torch.randn(images, K - 1, device="cuda")).requires_grad_()
    targets = torch.randint(K, (images,), device="cuda")
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


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("channels", "side", "images"), [(16, 32, 8), (32, 16, 8), (16, 9, 3), (32, 5, 1)])
def test_narrow_convolutions_and_their_gradients(
    channels: int, side: int, images: int, layout: torch.memory_format
) -> None:
    torch.manual_seed(channels)
    conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False).cuda()
    conv.weight = nn.Parameter(conv.weight.detach().contiguous(memory_format=layout))
    assert suits(conv)
    x = torch.randn(images, channels, side, side, device="cuda").to(torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    y = convolve(conv, x)
    weight = conv.weight.detach().to(torch.bfloat16).double().requires_grad_()
    exact = x.detach().double().requires_grad_()
    expected = functional.conv2d(exact, weight, padding=1)
    grad = torch.randn_like(y)
    torch.autograd.backward(y, grad)
    torch.autograd.backward(expected, grad.double())
    assert x.grad is not None
    assert exact.grad is not None
    assert conv.weight.grad is not None
    assert weight.grad is not None
    assert relative(y, expected) < 0.01  # bfloat16 has eight bits
    assert relative(x.grad, exact.grad) < 0.01
    assert relative(conv.weight.grad, weight.grad) < 0.01
    bias, residual = torch.randn(channels, device="cuda"), torch.randn_like(y)
    fused = fused_conv3x3(x.detach(), conv.weight.detach(), bias, residual)
    whole = functional.relu(expected + bias.double().view(1, -1, 1, 1) + residual.double())
    assert relative(fused, whole) < 0.01


def test_a_folded_teacher_sees_what_the_teacher_sees() -> None:
    torch.manual_seed(0)
    encoder = Encoder.create("resnet20", classes=["a"], capacity=50).cuda().train()
    pixels = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, device="cuda")
    encoder(pixels)  # statistics that are not those of the start
    frozen = FrozenEncoder(encoder)
    plain, folded = frozen(pixels).z, frozen(pixels, bfloat16=True).z
    assert functional.cosine_similarity(plain, folded).min() > 0.999
