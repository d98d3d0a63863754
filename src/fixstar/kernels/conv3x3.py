"""relu(conv(x) + bias + residual) for 3x3 convolutions of few channels, channels last, in bfloat16, for a GPU.

The library's kernels are made for wide layers: at 16 channels of 32x32 pixels they take several times as long as their
bytes need. This one takes one tile of pixels and all channels at once. ``benchmarks/narrow_convolutions.py`` measures
both. It has no gradient: frozen networks use it. Training uses ``normed_convolutions``, or the library's operation.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from fixstar.kernels import AVAILABLE, INTERPRETED

_TILES = {16: (256, 2), 32: (64, 4)}  # by channels: pixels and warps per program, measured best


@functools.cache
def _kernel() -> Any:
    """Made when first used: Triton comes with CUDA builds of torch only."""
    import triton
    import triton.language as tl

    @triton.jit
    def forward(  # type: ignore[no-untyped-def]
        x, w, y, bias, residual, total, w_out, w_in, w_tap, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
        P: tl.constexpr, RESIDUAL: tl.constexpr, FACTOR: tl.constexpr,
    ):  # fmt: skip
        pixel = tl.program_id(0) * P + tl.arange(0, P)
        row = (pixel // W) % H
        column = pixel % W
        ci = tl.arange(0, C)
        co = tl.arange(0, C)
        sums = tl.zeros((P, C), tl.float32)
        for tap in tl.static_range(9):
            dy = tap // 3 - 1
            dx = tap % 3 - 1
            inside = (
                (pixel < total)
                & (row + dy >= 0)
                & (row + dy < H)
                & (column + dx >= 0)
                & (column + dx < W)
            )
            near = tl.load(
                x + (pixel + dy * W + dx)[:, None] * C + ci[None, :],
                mask=inside[:, None],
                other=0.0,
            )
            weight = tl.load(w + co[None, :] * w_out + ci[:, None] * w_in + tap * w_tap)
            sums = tl.dot(near.to(FACTOR), weight.to(tl.bfloat16).to(FACTOR), sums)
        at = pixel[:, None] * C + co[None, :]
        sums += tl.load(bias + co)[None, :].to(tl.float32)
        if RESIDUAL:
            sums += tl.load(residual + at, mask=(pixel < total)[:, None], other=0.0).to(tl.float32)
        sums = tl.where(sums < 0, 0.0, sums)  # keeps NaN, which the maximum would hide
        tl.store(y + at, sums.to(tl.bfloat16), mask=(pixel < total)[:, None])

    return forward


def supports(conv: nn.Conv2d) -> bool:
    """Whether the kernel takes a layer of this shape, and runs where it is: it multiplies bfloat16."""
    shape = (
        conv.kernel_size,
        conv.stride,
        conv.padding,
        conv.dilation,
        conv.groups,
        conv.bias is None,
    )
    narrow = conv.in_channels == conv.out_channels and conv.in_channels in _TILES
    made = narrow and shape == ((3, 3), (1, 1), (1, 1), (1, 1), 1, True) and AVAILABLE
    return made and (INTERPRETED or _multiplies_bfloat16(conv.weight.device))


def _multiplies_bfloat16(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_properties(device).major >= 8


def fused_conv3x3(x: Tensor, w: Tensor, bias: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(conv(x, w) + bias + residual): x [B, C, H, W] bfloat16, channels last; w [C, C, 3, 3]; stride and padding 1.

    The taps of ``w`` must follow each other evenly, as they do in both memory formats.
    """
    import triton.language as tl

    n, channels, height, width = x.shape
    y = torch.empty(
        x.shape, dtype=torch.bfloat16, device=x.device, memory_format=torch.channels_last
    )
    total, (tile, warps) = n * height * width, _TILES[channels]
    _kernel()[(-(-total // tile),)](
        x, w, y, bias, residual if residual is not None else x, total, w.stride(0), w.stride(1), w.stride(3), height,
        width, channels, tile, residual is not None, tl.float32 if INTERPRETED else tl.bfloat16, num_warps=warps,
    )  # fmt: skip
    return y
