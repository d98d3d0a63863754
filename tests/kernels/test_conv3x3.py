"""The narrow convolutions against the library's, in float64."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from kernel_device import DEVICE, GPU, needs_triton, on_a_gpu, relative
from torch import nn
from torch.nn import functional

from fixstar.kernels import conv3x3
from fixstar.kernels.conv3x3 import _conv3x3, convolve, fused_conv3x3, suits
from fixstar.models import Encoder, FrozenEncoder

pytestmark = needs_triton

SIZES = [(16, 32, 8), (32, 16, 8), (16, 9, 3), (32, 5, 1)] if GPU else [(16, 9, 3), (32, 5, 1)]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("channels", "side", "images"), SIZES)
def test_narrow_convolutions_and_their_gradients(
    channels: int, side: int, images: int, layout: torch.memory_format
) -> None:
    torch.manual_seed(channels)
    conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False).to(DEVICE)
    conv.weight = nn.Parameter(conv.weight.detach().contiguous(memory_format=layout))
    assert suits(conv)
    x = torch.randn(images, channels, side, side, device=DEVICE).to(torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    y = convolve(conv, x) if GPU else _conv3x3(x, conv.weight)
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
    bias, residual = torch.randn(channels, device=DEVICE), torch.randn_like(y)
    fused = fused_conv3x3(x.detach(), conv.weight.detach(), bias, residual)
    whole = functional.relu(expected + bias.double().view(1, -1, 1, 1) + residual.double())
    assert relative(fused, whole) < 0.01


@on_a_gpu
def test_a_folded_teacher_sees_what_the_teacher_sees() -> None:
    torch.manual_seed(0)
    encoder = Encoder.create("resnet20", classes=["a"], capacity=50).cuda().train()
    pixels = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, device="cuda")
    encoder(pixels)  # statistics that are not those of the start
    frozen = FrozenEncoder(encoder)
    plain, folded = frozen(pixels).z, frozen(pixels, bfloat16=True).z
    assert functional.cosine_similarity(plain, folded).min() > 0.999


@pytest.mark.parametrize(
    ("device", "capability", "suited"),
    [("cuda", (9, 0), True), ("cuda", (8, 0), True), ("cuda", (7, 5), False), ("cpu", (9, 0), False)],
)
def test_layers_on_a_gpu_that_multiplies_bfloat16_are_taken(
    device: str, capability: tuple[int, int], suited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv3x3, "INTERPRETED", False)
    properties = SimpleNamespace(major=capability[0], minor=capability[1])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    conv = nn.Conv2d(16, 16, 3, padding=1, bias=False)
    del conv.weight
    object.__setattr__(conv, "weight", SimpleNamespace(device=torch.device(device)))
    assert suits(conv) == suited
