"""The two passes over features that the simplex cross-entropy needs, in Triton. Imported only where Triton is.

``scale`` is prototype length / r, ``a`` that of ``fixstar.geometry.simplex_constants``, n = K - 1.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _finished(  # type: ignore[no-untyped-def]
    z, targets, losses, totals, logs, image, S, largest, exponentials, n, a, scale
):  # fmt: skip
    """Loss and log sum exp of an image, from its sum and from maxima [m] and sums of exponentials below them [m]."""
    last = a * S * scale  # the last logit, without the common -c S
    top = tl.maximum(tl.max(largest) * scale, last)
    safe = tl.where(largest == -float("inf"), 0.0, largest)
    spread = tl.where(largest == -float("inf"), 0.0, exponentials * tl.exp(safe * scale - top))
    log = top + tl.log(tl.sum(spread) + tl.exp(last - top))
    target = tl.load(targets + image)
    own = tl.load(z + image.to(tl.int64) * n + tl.minimum(target, n - 1)).to(tl.float32) * scale
    tl.store(losses + image, log - tl.where(target == n, last, own))
    tl.store(totals + image, S)
    tl.store(logs + image, log)


@triton.jit
def sums(  # type: ignore[no-untyped-def]
    z, targets, losses, totals, logs, parts, n, a, scale, PARTS: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Per image: S, log sum exp and the loss; or, of each of PARTS parts of its row, what ``finish`` needs for them."""
    image = tl.program_id(0)
    part = tl.program_id(1)
    row = z + image.to(tl.int64) * n
    at = part * STEPS * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    exponentials = tl.zeros((BLOCK,), tl.float32)
    for step in range(STEPS):
        place = at + step * BLOCK
        value = tl.load(row + place, mask=place < n, other=-float("inf")).to(tl.float32)
        total += tl.where(place < n, value, 0.0)
        higher = tl.maximum(largest, value)
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        exponentials = exponentials * tl.exp((largest - safe) * scale) + tl.exp(
            (value - safe) * scale
        )
        largest = higher
    S = tl.sum(total)
    if PARTS == 1:
        _finished(z, targets, losses, totals, logs, image, S, largest, exponentials, n, a, scale)
    else:
        top = tl.max(largest)
        below = tl.where(
            largest == -float("inf"), 0.0, exponentials * tl.exp((largest - top) * scale)
        )
        out = parts + (image * PARTS + part) * 3
        tl.store(out, S)
        tl.store(out + 1, top)
        tl.store(out + 2, tl.sum(below))


@triton.jit
def finish(  # type: ignore[no-untyped-def]
    z, targets, losses, totals, logs, parts, n, a, scale, PARTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """S, log sum exp and the loss of an image from its parts; WIDTH is a power of two that holds them."""
    image = tl.program_id(0)
    part = tl.arange(0, WIDTH)
    at = parts + (image * PARTS + part) * 3
    S = tl.sum(tl.load(at, mask=part < PARTS, other=0.0))
    largest = tl.load(at + 1, mask=part < PARTS, other=-float("inf"))
    exponentials = tl.load(at + 2, mask=part < PARTS, other=0.0)
    _finished(z, targets, losses, totals, logs, image, S, largest, exponentials, n, a, scale)


@triton.jit
def gradient(  # type: ignore[no-untyped-def]
    z, targets, totals, logs, weight, out, images, n, a, scale, BLOCK: tl.constexpr,
):  # fmt: skip
    """By z_j: (p_j - y_j + a (p_K - y_K)) / r, times the gradient of the mean loss."""
    image = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    offset = image.to(tl.int64) * n + at
    target = tl.load(targets + image)
    log = tl.load(logs + image)
    is_last = tl.where(target == n, 1.0, 0.0)
    off_last = tl.exp(a * tl.load(totals + image) * scale - log) - is_last  # p_K - y_K
    value = tl.load(z + offset, mask=at < n, other=0.0).to(tl.float32)
    by_logit = tl.exp(value * scale - log) - tl.where(at == target, 1.0, 0.0)
    factor = tl.load(weight) * scale / images
    tl.store(out + offset, factor * (by_logit + a * off_last), mask=at < n)
