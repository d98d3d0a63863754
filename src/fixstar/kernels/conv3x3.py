"""3x3 convolutions of few channels, channels last, in bfloat16, for a GPU.

The library's kernels are made for wide layers: at 16 channels of 32x32 pixels they take several times as long as their
bytes need. These take one tile of pixels and all channels at once. ``benchmarks/narrow_convolutions.py`` measures both.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, library, nn

from fixstar.kernels import AVAILABLE, INTERPRETED

__all__ = ["convolve", "fused_conv3x3", "suits"]


# By channels, in and out: pixels and warps of a program; and, for the gradient, programs a processor. Measured best.
_TILES = {16: (256, 2), 32: (64, 4)}
_GRADIENT_TILES = {16: (64, 2, 2), 32: (64, 4, 1)}


@functools.cache
def _kernels() -> tuple[Any, Any]:
    """The two kernels, made when first used: Triton comes with CUDA builds of torch only."""
    import triton
    import triton.language as tl

    @triton.jit
    def forward(  # type: ignore[no-untyped-def]
        x, w, y, bias, residual, total, w_out, w_in, w_tap, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr,
        CO: tl.constexpr, P: tl.constexpr, FLIPPED: tl.constexpr, FUSED: tl.constexpr, RESIDUAL: tl.constexpr,
        FACTOR: tl.constexpr,
    ):  # fmt: skip
        pixel = tl.program_id(0) * P + tl.arange(0, P)
        row, column = (pixel // W) % H, pixel % W
        ci, co = tl.arange(0, CI), tl.arange(0, CO)
        sums = tl.zeros((P, CO), tl.float32)
        for tap in tl.static_range(9):
            dy, dx = tap // 3 - 1, tap % 3 - 1
            inside = (pixel < total) & (row + dy >= 0) & (row + dy < H) & (column + dx >= 0) & (column + dx < W)
            near = tl.load(x + (pixel + dy * W + dx)[:, None] * CI + ci[None, :], mask=inside[:, None], other=0.0)
            if FLIPPED:  # the gradient by the input: taps turned round, channels exchanged
                weight = tl.load(w + ci[:, None] * w_out + co[None, :] * w_in + (8 - tap) * w_tap)
            else:
                weight = tl.load(w + co[None, :] * w_out + ci[:, None] * w_in + tap * w_tap)
            sums = tl.dot(near.to(FACTOR), weight.to(tl.bfloat16).to(FACTOR), sums)
        at = pixel[:, None] * CO + co[None, :]
        if FUSED:
            sums += tl.load(bias + co)[None, :].to(tl.float32)
            if RESIDUAL:
                sums += tl.load(residual + at, mask=(pixel < total)[:, None], other=0.0).to(tl.float32)
            sums = tl.where(sums < 0, 0.0, sums)  # keeps NaN, which the maximum would hide
        tl.store(y + at, sums.to(tl.bfloat16), mask=(pixel < total)[:, None])

    @triton.jit
    def weight_gradient(  # type: ignore[no-untyped-def]
        x, dy, parts, total, w_out, w_in, w_tap, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr,
        P: tl.constexpr, STEPS: tl.constexpr, FACTOR: tl.constexpr,
    ):  # fmt: skip
        """One row of taps: [CO, P] x [P, 4 CI], the fourth of them empty, summed over the program's pixels."""
        chunk, down = tl.program_id(0), tl.program_id(1) - 1
        co, lane = tl.arange(0, CO), tl.arange(0, 4 * CI)
        dx, ci = lane // CI - 1, lane % CI
        sums = tl.zeros((CO, 4 * CI), tl.float32)
        for step in range(STEPS):
            pixel = (chunk * STEPS + step) * P + tl.arange(0, P)
            row, column = (pixel // W) % H, pixel % W
            valid = (pixel < total) & (row + down >= 0) & (row + down < H)
            inside = valid[:, None] & (column[:, None] + dx[None, :] >= 0) & (column[:, None] + dx[None, :] < W)
            near = tl.load(
                x + (pixel + down * W)[:, None] * CI + (dx * CI + ci)[None, :],
                mask=inside & (dx < 2)[None, :], other=0.0,
            )  # fmt: skip
            grad = tl.load(dy + pixel[:, None] * CO + co[None, :], mask=(pixel < total)[:, None], other=0.0)
            sums = tl.dot(tl.trans(grad.to(FACTOR)), near.to(FACTOR), sums)
        tap = (down + 1) * 3 + dx + 1
        out = parts + chunk * (CO * CI * 9) + co[:, None] * w_out + (ci * w_in + tap * w_tap)[None, :]
        tl.store(out, sums, mask=(dx < 2)[None, :])

    return forward, weight_gradient


def _factor() -> Any:
    """The type of a product's factors."""
    import triton.language as tl

    return tl.float32 if INTERPRETED else tl.bfloat16


def _strides(w: Tensor) -> tuple[int, int, int]:
    """Of output channel, input channel and tap; taps must follow each other evenly, as they do in both layouts."""
    return w.stride(0), w.stride(1), w.stride(3)


def _launch(
    x: Tensor, w: Tensor, outputs: int, flipped: bool, bias: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    n, inputs, height, width = x.shape
    y = torch.empty(
        (n, outputs, height, width), dtype=torch.bfloat16, device=x.device, memory_format=torch.channels_last
    )
    total, (tile, warps) = n * height * width, _TILES[outputs]
    _kernels()[0][(-(-total // tile),)](
        x, w, y, bias if bias is not None else x, residual if residual is not None else x, total, *_strides(w), height,
        width, inputs, outputs, tile, flipped, bias is not None, residual is not None, _factor(), num_warps=warps,
    )  # fmt: skip
    return y


def _weight_gradient(dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
    n, inputs, height, width = x.shape
    outputs, total, (tile, warps, programs) = w.shape[0], n * height * width, _GRADIENT_TILES[w.shape[0]]
    steps = max(1, -(-total * 3 // (tile * 132 * programs)))
    chunks = -(-total // (tile * steps))
    parts = torch.empty((chunks, w.numel()), dtype=torch.float32, device=x.device)
    _kernels()[1][(chunks, 3)](
        x, dy, parts, total, *_strides(w), height, width, inputs, outputs, tile, steps, _factor(), num_warps=warps
    )
    return parts.sum(dim=0).as_strided(w.shape, w.stride())


@library.custom_op("fixstar::conv3x3", mutates_args=())
def _conv3x3(x: Tensor, w: Tensor) -> Tensor:
    """Stride 1, padding 1, no bias: x [B, C, H, W] bfloat16, channels last; w [D, C, 3, 3] float32."""
    return _launch(x.contiguous(memory_format=torch.channels_last), w, w.shape[0], flipped=False)


@_conv3x3.register_fake
def _(x: Tensor, w: Tensor) -> Tensor:
    shape = (x.shape[0], w.shape[0], x.shape[2], x.shape[3])
    return torch.empty(shape, dtype=torch.bfloat16, device=x.device).contiguous(memory_format=torch.channels_last)


@library.custom_op("fixstar::conv3x3_backward", mutates_args=())
def _backward(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    dy, x = (t.to(torch.bfloat16).contiguous(memory_format=torch.channels_last) for t in (dy, x))
    return _launch(dy, w, x.shape[1], flipped=True), _weight_gradient(dy, x, w)


@_backward.register_fake
def _(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return torch.empty_like(x, memory_format=torch.channels_last), torch.empty_like(w)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
    x, w = ctx.saved_tensors
    gradients: tuple[Tensor, Tensor] = _backward(dy, x, w)
    return gradients


_conv3x3.register_autograd(_gradient, setup_context=_setup)


def suits(conv: nn.Conv2d) -> bool:
    """Whether the kernels are made for a layer of this shape, and can run where it is: they multiply bfloat16."""
    shape = (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.bias is None)
    narrow = conv.in_channels == conv.out_channels and conv.in_channels in _TILES
    made = narrow and shape == ((3, 3), (1, 1), (1, 1), (1, 1), 1, True) and AVAILABLE
    return made and (INTERPRETED or _multiplies_bfloat16(conv.weight.device))


def _multiplies_bfloat16(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_properties(device).major >= 8


def convolve(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """``conv(x)``, by these kernels where they are faster: narrow layers on bfloat16 on a GPU."""
    if x.is_cuda and x.dtype == torch.bfloat16 and suits(conv):
        y: Tensor = _conv3x3(x, conv.weight)
        return y
    return conv(x)  # type: ignore[no-any-return]


def fused_conv3x3(x: Tensor, w: Tensor, bias: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(conv(x, w) + bias + residual) in one kernel, without gradients: what a frozen network needs."""
    return _launch(x, w, w.shape[0], flipped=False, bias=bias, residual=residual)
