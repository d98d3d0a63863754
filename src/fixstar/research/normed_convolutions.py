"""3x3 convolutions together with the batch norms around them, forward and backward, channels last, for a GPU.

A training step of a narrow network is hundreds of small kernels that wait for each other. Here a convolution also
computes the statistics of its output, and its gradient computes those that the batch norm below it needs. Between two
convolutions there is one kernel with one program per channel, and one pass over pixels. (Normalising while loading
would save that pass, but every pixel is loaded nine times: on an H200 it took longer.)

Every tensor is [pixels, channels]. A batch norm makes y * gain + shift of a raw output y. Its gradient is affine in
what comes from above, g, and in y: dy = a g + b y + c, per channel. Imported only where Triton is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TYPES = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
"""The types that a product's factors may have, as Triton calls them."""


@triton.jit
def forward(  # type: ignore[no-untyped-def]
    x, w, y, parts, total, programs, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr,
    STRIDE: tl.constexpr, TAPS: tl.constexpr, P: tl.constexpr, LANES: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """y = conv(x); also, per program and channel, the mean of its pixels and the sum of squares around it.

    One tap at a time, or a row of three, whose pixels are adjacent (a fourth lane stays empty).
    """
    OH: tl.constexpr = H // STRIDE
    OW: tl.constexpr = W // STRIDE
    WIDTH: tl.constexpr = LANES * (4 if TAPS == 3 else 1)
    program = tl.program_id(0)
    pixel = program * P + tl.arange(0, P)
    image = pixel // (OH * OW)
    row = (pixel // OW) % OH * STRIDE
    column = pixel % OW * STRIDE
    co = tl.arange(0, CO)
    lane = tl.arange(0, WIDTH)
    beside = lane // LANES
    ci = lane % LANES
    used = (beside < TAPS) & (ci < CI)
    sums = tl.zeros((P, CO), tl.float32)
    for group in tl.static_range(9 // TAPS):
        first = group * TAPS
        up = row + first // 3 - 1
        aside = first % 3 - 1 + beside
        left = column[:, None] + aside[None, :]
        inside = (
            ((pixel < total) & (up >= 0) & (up < H))[:, None]
            & used[None, :]
            & (left >= 0)
            & (left < W)
        )
        at = ((image * H + up) * W + column)[:, None] * CI + (aside * CI + ci)[None, :]
        near = tl.load(x + at, mask=inside, other=0.0)
        weight = tl.load(
            w + co[None, :] * (9 * CI) + ((first + beside) * CI + ci)[:, None],
            used[:, None],
            other=0.0,
        )
        sums = tl.dot(near.to(PRODUCT), weight.to(PRODUCT), sums, input_precision="ieee")
    stored = sums.to(y.dtype.element_ty)
    valid = (pixel < total)[:, None]
    tl.store(y + pixel[:, None] * CO + co[None, :], stored, mask=valid)
    value = stored.to(tl.float32)
    mean = tl.sum(value, axis=0) / tl.minimum(
        P, total - program * P
    )  # rows beyond the end are zero
    off = tl.where(valid, value - mean[None, :], 0.0)
    tl.store(parts + co * programs + program, mean)
    tl.store(parts + (CO + co) * programs + program, tl.sum(off * off, axis=0))


@triton.jit
def statistics(  # type: ignore[no-untyped-def]
    parts, gamma, beta, running_mean, running_var, norm, total, programs, eps, momentum, C: tl.constexpr,
    P: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The parts of one channel together: norm = gain, shift, mean, 1 / deviation; and the running statistics."""
    c = tl.program_id(0)
    sums = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for step in range(STEPS):
        part = step * BLOCK + tl.arange(0, BLOCK)
        count = tl.where(part < programs, tl.minimum(P, total - part * P), 0).to(tl.float32)
        sums += count * tl.load(parts + c * programs + part, mask=part < programs, other=0.0)
    mean = tl.sum(sums) / total
    for step in range(STEPS):
        part = step * BLOCK + tl.arange(0, BLOCK)
        count = tl.where(part < programs, tl.minimum(P, total - part * P), 0).to(tl.float32)
        off = tl.load(parts + c * programs + part, mask=part < programs, other=0.0) - mean
        squares += (
            tl.load(parts + (C + c) * programs + part, mask=part < programs, other=0.0)
            + count * off * off
        )
    variance = tl.sum(squares) / total
    inverse = 1 / tl.sqrt(variance + eps)
    gain = tl.load(gamma + c) * inverse
    tl.store(norm + c, gain)
    tl.store(norm + C + c, tl.load(beta + c) - mean * gain)
    tl.store(norm + 2 * C + c, mean)
    tl.store(norm + 3 * C + c, inverse)
    unbiased = variance * (total / tl.maximum(total - 1, 1).to(tl.float32))
    tl.store(running_mean + c, tl.load(running_mean + c) * (1 - momentum) + mean * momentum)
    tl.store(running_var + c, tl.load(running_var + c) * (1 - momentum) + unbiased * momentum)


@triton.jit
def joint(  # type: ignore[no-untyped-def]
    y, norm, before, out, total, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, CB: tl.constexpr,
    STRIDE: tl.constexpr, RELU: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """out = relu(y * gain + shift + shortcut); ``before`` has CB channels, 0 for no shortcut; H, W are of out."""
    pixel = tl.program_id(0) * P + tl.arange(0, P)
    c = tl.arange(0, C)
    at = pixel[:, None] * C + c[None, :]
    valid = (pixel < total)[:, None]
    value = tl.load(y + at, mask=valid, other=0.0).to(tl.float32)
    value = value * tl.load(norm + c)[None, :] + tl.load(norm + C + c)[None, :]
    if CB > 0:
        image = pixel // (H * W)
        row = (pixel // W) % H
        column = pixel % W
        source = (image * H * STRIDE + row * STRIDE) * (W * STRIDE) + column * STRIDE
        there = valid & (c < CB)[None, :]
        value += tl.load(before + source[:, None] * CB + c[None, :], mask=there, other=0.0).to(
            tl.float32
        )
    if RELU:
        value = tl.where(
            value < 0, 0.0, value
        )  # not the maximum, which would make 0 of NaN and hide a failed training
    tl.store(out + at, value.to(out.dtype.element_ty), mask=valid)


@triton.jit
def _gathered(grad, y, norm, parts, at, valid, program, programs, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of a gradient at the output of a batch norm: the sums that the batch norm's own gradient needs."""
    c = tl.arange(0, C)
    mean = tl.load(norm + 2 * C + c)[None, :]
    inverse = tl.load(norm + 3 * C + c)[None, :]
    normal = (tl.load(y + at, mask=valid, other=0.0).to(tl.float32) - mean) * inverse
    tl.store(parts + c * programs + program, tl.sum(grad, axis=0))
    tl.store(parts + (C + c) * programs + program, tl.sum(grad * normal, axis=0))


@triton.jit
def backward(  # type: ignore[no-untyped-def]
    dy, w, x, skip, y_below, norm_below, out, parts, total, programs, H: tl.constexpr, W: tl.constexpr,
    CI: tl.constexpr, CO: tl.constexpr, STRIDE: tl.constexpr, CS: tl.constexpr, SKIP_STRIDE: tl.constexpr,
    TAPS: tl.constexpr, P: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """The gradient of the convolution's input x, masked by the ReLU that made it: that of the batch norm below.

    Where a shortcut left from x, its gradient ``skip`` with CS channels (0 for none) is added.
    """
    OH: tl.constexpr = H // STRIDE
    OW: tl.constexpr = W // STRIDE
    WIDTH: tl.constexpr = CO * (4 if TAPS == 3 else 1)
    program = tl.program_id(0)
    pixel = program * P + tl.arange(0, P)
    image = pixel // (H * W)
    row = (pixel // W) % H
    column = pixel % W
    ci = tl.arange(0, CI)
    lane = tl.arange(0, WIDTH)
    beside = lane // CO
    co = lane % CO
    used = beside < TAPS
    sums = tl.zeros((P, CI), tl.float32)
    for group in tl.static_range(9 // TAPS):
        first = group * TAPS
        aside = beside - 1 if TAPS == 3 else 1 - first % 3 + beside
        # over the stride: where the output lies
        up = row + 1 - first // 3
        left = column[:, None] + aside[None, :]
        inside = (
            ((pixel < total) & (up >= 0) & (up < H))[:, None]
            & used[None, :]
            & (left >= 0)
            & (left < W)
        )
        if STRIDE > 1:
            inside = inside & (up % STRIDE == 0)[:, None] & (left % STRIDE == 0)
            at = (
                ((image * OH + up // STRIDE) * OW)[:, None] * CO + left // STRIDE * CO + co[None, :]
            )
        else:
            at = ((image * H + up) * W + column)[:, None] * CO + (aside * CO + co)[None, :]
        near = tl.load(dy + at, mask=inside, other=0.0)
        tap = first // 3 * 3 + 1 - aside
        weight = tl.load(
            w + (co * (9 * CI) + tap * CI)[:, None] + ci[None, :], mask=used[:, None], other=0.0
        )
        sums = tl.dot(near.to(PRODUCT), weight.to(PRODUCT), sums, input_precision="ieee")
    at = pixel[:, None] * CI + ci[None, :]
    valid = (pixel < total)[:, None]
    if CS > 0:
        there = (pixel < total) & (row % SKIP_STRIDE == 0) & (column % SKIP_STRIDE == 0)
        source = (image * (H // SKIP_STRIDE) + row // SKIP_STRIDE) * (
            W // SKIP_STRIDE
        ) + column // SKIP_STRIDE
        sums += tl.load(
            skip + source[:, None] * CS + ci[None, :], mask=there[:, None], other=0.0
        ).to(tl.float32)
    positive = tl.load(x + at, mask=valid, other=0.0) > 0
    stored = tl.where(positive, sums, 0.0).to(out.dtype.element_ty)
    tl.store(out + at, stored, mask=valid)
    _gathered(stored.to(tl.float32), y_below, norm_below, parts, at, valid, program, programs, CI)


@triton.jit
def tail(  # type: ignore[no-untyped-def]
    gh, top, y, norm, out, parts, total, programs, HW: tl.constexpr, C: tl.constexpr, RELU: tl.constexpr,
    P: tl.constexpr,
):  # fmt: skip
    """The gradient of the mean over pixels, at the last batch norm."""
    program = tl.program_id(0)
    pixel = program * P + tl.arange(0, P)
    c = tl.arange(0, C)
    at = pixel[:, None] * C + c[None, :]
    valid = (pixel < total)[:, None]
    grad = tl.load(gh + (pixel // HW)[:, None] * C + c[None, :], mask=valid, other=0.0) / HW
    if RELU:
        grad = tl.where(tl.load(top + at, mask=valid, other=0.0) > 0, grad, 0.0)
    stored = grad.to(out.dtype.element_ty)
    tl.store(out + at, stored, mask=valid)
    _gathered(stored.to(tl.float32), y, norm, parts, at, valid, program, programs, C)


@triton.jit
def coefficients(  # type: ignore[no-untyped-def]
    parts, norm, line, d_gamma, d_beta, total, programs, C: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sums of one channel together: the gradients of gain and shift, and a, b, c of the batch norm's own."""
    channel = tl.program_id(0)
    shifts = tl.zeros((BLOCK,), tl.float32)
    gains = tl.zeros((BLOCK,), tl.float32)
    for step in range(STEPS):
        part = step * BLOCK + tl.arange(0, BLOCK)
        shifts += tl.load(parts + channel * programs + part, mask=part < programs, other=0.0)
        gains += tl.load(parts + (C + channel) * programs + part, mask=part < programs, other=0.0)
    by_beta = tl.sum(shifts)
    by_gamma = tl.sum(gains)
    tl.store(d_gamma + channel, by_gamma)
    tl.store(d_beta + channel, by_beta)
    gain = tl.load(norm + channel)
    mean = tl.load(norm + 2 * C + channel)
    inverse = tl.load(norm + 3 * C + channel)
    slope = inverse * by_gamma / total
    tl.store(line + channel, gain)
    tl.store(line + C + channel, -gain * slope)
    tl.store(line + 2 * C + channel, gain * (mean * slope - by_beta / total))


@triton.jit
def along(g, y, line, dy, total, C: tl.constexpr, P: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient of a batch norm: dy = a g + b y + c."""
    pixel = tl.program_id(0) * P + tl.arange(0, P)
    c = tl.arange(0, C)
    at = pixel[:, None] * C + c[None, :]
    valid = (pixel < total)[:, None]
    above = tl.load(g + at, mask=valid, other=0.0)
    raw = tl.load(y + at, mask=valid, other=0.0)
    slope = tl.load(line + c)
    turn = tl.load(line + C + c)
    level = tl.load(line + 2 * C + c)
    value = (
        slope[None, :] * above.to(tl.float32) + turn[None, :] * raw.to(tl.float32) + level[None, :]
    )
    tl.store(dy + at, value.to(dy.dtype.element_ty), mask=valid)


@triton.jit
def weights(  # type: ignore[no-untyped-def]
    x, dy, parts, total, STEPS: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr,
    STRIDE: tl.constexpr, TAPS: tl.constexpr, P: tl.constexpr, LANES: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """The weights' gradient of one chunk of pixels, by one tap or by a row of three."""
    OH: tl.constexpr = H // STRIDE
    OW: tl.constexpr = W // STRIDE
    WIDTH: tl.constexpr = LANES * (4 if TAPS == 3 else 1)
    chunk = tl.program_id(0)
    first = tl.program_id(1) * TAPS
    co = tl.arange(0, CO)
    lane = tl.arange(0, WIDTH)
    beside = lane // LANES
    ci = lane % LANES
    used = (beside < TAPS) & (ci < CI)
    aside = first % 3 - 1 + beside
    sums = tl.zeros((CO, WIDTH), tl.float32)
    for step in range(STEPS):
        pixel = (chunk * STEPS + step) * P + tl.arange(0, P)
        image = pixel // (OH * OW)
        row = (pixel // OW) % OH * STRIDE
        column = pixel % OW * STRIDE
        up = row + first // 3 - 1
        left = column[:, None] + aside[None, :]
        inside = (
            ((pixel < total) & (up >= 0) & (up < H))[:, None]
            & used[None, :]
            & (left >= 0)
            & (left < W)
        )
        at = ((image * H + up) * W + column)[:, None] * CI + (aside * CI + ci)[None, :]
        near = tl.load(x + at, mask=inside, other=0.0)
        grad = tl.load(
            dy + pixel[:, None] * CO + co[None, :], mask=(pixel < total)[:, None], other=0.0
        )
        sums = tl.dot(tl.trans(grad.to(PRODUCT)), near.to(PRODUCT), sums, input_precision="ieee")
    out = (
        parts
        + chunk * (CO * CI * 9)
        + co[:, None] * (9 * CI)
        + ((first + beside) * CI + ci)[None, :]
    )
    tl.store(out, sums, mask=used[None, :])


@triton.jit
def summed(  # type: ignore[no-untyped-def]
    parts, out, SIZE: tl.constexpr, CHUNKS: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr
):
    """The chunks of a layer's gradient together, in a fixed order."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    chunk = tl.arange(0, AT_ONCE)
    total = tl.zeros((AT_ONCE, BLOCK), tl.float32)
    for start in range(0, CHUNKS, AT_ONCE):
        there = (start + chunk < CHUNKS)[:, None] & (at < SIZE)[None, :]
        total += tl.load(
            parts + (start + chunk)[:, None] * SIZE + at[None, :], mask=there, other=0.0
        )
    tl.store(out + at, tl.sum(total, axis=0), mask=at < SIZE)
