"""The narrow convolutions against the library's, in float64."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from kernel_device import DEVICE, GPU, needs_triton, on_a_gpu, relative
from torch import nn
from torch.nn import functional

from fixstar.kernels import conv3x3
from fixstar.kernels.conv3x3 import fused_conv3x3, supports
from fixstar.models import Encoder, FrozenEncoder

pytestmark = needs_triton

SIZES = [(16, 32, 8), (32, 16, 8), (16, 9, 3), (32, 5, 1)] if GPU else [(16, 9, 3), (32, 5, 1)]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("channels", "side", "images"), SIZES)
def test_narrow_convolutions(
    channels: int, side: int, images: int, layout: torch.memory_format
) -> None:
    torch.manual_seed(channels)
    conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False).to(DEVICE)
    assert supports(conv)
    w = conv.weight.detach().contiguous(memory_format=layout)
    x = torch.randn(images, channels, side, side, device=DEVICE).to(torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last)
    bias, residual = torch.randn(channels, device=DEVICE), torch.randn_like(x)
    plain = functional.conv2d(x.double(), w.to(torch.bfloat16).double(), bias.double(), padding=1)
    assert (
        relative(fused_conv3x3(x, w, bias), functional.relu(plain)) < 0.01
    )  # bfloat16 has eight bits
    assert (
        relative(fused_conv3x3(x, w, bias, residual), functional.relu(plain + residual.double()))
        < 0.01
    )


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
    [
        ("cuda", (9, 0), True),
        ("cuda", (8, 0), True),
        ("cuda", (7, 5), False),
        ("cpu", (9, 0), False),
    ],
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
    assert supports(conv) == suited
