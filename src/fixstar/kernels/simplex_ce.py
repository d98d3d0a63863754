"""Cross-entropy against the fixed simplex in two passes over the features: logits are never stored.

With K prototypes the closed form of the logits is (z_j - c S) / r for j < K and (a - c) S / r for the last, S = sum(z)
(see ``fixstar.geometry``). The softmax does not see the common -c S, so one pass gives S and sum_j exp(z_j / r) +
exp(a S / r), hence the loss. The gradient by z_j is (p_j - y_j + a (p_K - y_K)) / r, as S holds every z_j: one more.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from fixstar.errors import InputError
from fixstar.geometry import simplex_constants
from fixstar.kernels import INTERPRETED

__all__ = ["simplex_cross_entropy"]

_BLOCK, _WARPS = 4096, 4


@functools.cache
def _kernels() -> tuple[Any, Any]:
    import triton
    import triton.language as tl

    @triton.jit
    def sums(z, targets, losses, totals, logs, n, a, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """Per image: S, log sum exp and the loss. ``scale`` is prototype length / r."""
        image = tl.program_id(0)
        row, at = z + image.to(tl.int64) * n, tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        largest = tl.full((BLOCK,), -float("inf"), tl.float32)
        exponentials = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, n, BLOCK):
            value = tl.load(row + start + at, mask=start + at < n, other=-float("inf")).to(tl.float32)
            total += tl.where(start + at < n, value, 0.0)
            higher = tl.maximum(largest, value)
            safe = tl.where(higher == -float("inf"), 0.0, higher)
            exponentials = exponentials * tl.exp((largest - safe) * scale) + tl.exp((value - safe) * scale)
            largest = higher
        S = tl.sum(total)
        last = a * S * scale  # the last logit, without the common -c S
        top = tl.maximum(tl.max(largest) * scale, last)
        safe = tl.where(largest == -float("inf"), 0.0, largest)
        spread = tl.where(largest == -float("inf"), 0.0, exponentials * tl.exp(safe * scale - top))
        log = top + tl.log(tl.sum(spread) + tl.exp(last - top))
        target = tl.load(targets + image)
        own = tl.load(row + tl.minimum(target, n - 1)).to(tl.float32) * scale
        tl.store(losses + image, log - tl.where(target == n, last, own))
        tl.store(totals + image, S)
        tl.store(logs + image, log)

    @triton.jit
    def gradient(  # type: ignore[no-untyped-def]
        z, targets, totals, logs, weight, out, images, n, a, scale, BLOCK: tl.constexpr,
    ):  # fmt: skip
        image, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        offset = image.to(tl.int64) * n + at
        target, log = tl.load(targets + image), tl.load(logs + image)
        is_last = tl.where(target == n, 1.0, 0.0)
        off_last = tl.exp(a * tl.load(totals + image) * scale - log) - is_last  # p_K - y_K
        value = tl.load(z + offset, mask=at < n, other=0.0).to(tl.float32)
        by_logit = tl.exp(value * scale - log) - tl.where(at == target, 1.0, 0.0)
        factor = tl.load(weight) * scale / images
        tl.store(out + offset, factor * (by_logit + a * off_last), mask=at < n)

    return sums, gradient


class _SimplexCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, targets: Tensor, length: float) -> Tensor:
        n = z.shape[1]
        a, _, r = simplex_constants(n + 1)
        losses, totals, logs = torch.empty(3, len(z), device=z.device)
        _kernels()[0][(len(z),)](z, targets, losses, totals, logs, n, a, length / r, BLOCK=_BLOCK, num_warps=_WARPS)
        ctx.save_for_backward(z, targets, totals, logs)
        ctx.length = length
        loss: Tensor = losses.mean()
        return loss

    @staticmethod
    def backward(ctx: Any, *weights: Tensor) -> tuple[Tensor, None, None]:
        z, targets, totals, logs = ctx.saved_tensors
        images, n = z.shape
        a, _, r = simplex_constants(n + 1)
        out, block = torch.empty_like(z), min(_BLOCK, 1 << (n - 1).bit_length())
        _kernels()[1][(images, -(-n // block))](
            z, targets, totals, logs, weights[0].contiguous(), out, images, n, a, ctx.length / r,
            BLOCK=block, num_warps=_WARPS,
        )  # fmt: skip
        return out, None, None


def simplex_cross_entropy(z: Tensor, targets: Tensor, length: float = 1.0) -> Tensor:
    """The mean cross-entropy of features z [B, K - 1] and slots [B] against K prototypes of that length, on a GPU."""
    if z.ndim != 2 or targets.shape != z.shape[:1] or not (z.is_cuda or INTERPRETED):
        raise InputError(f"features [B, K - 1] and slots [B] on a GPU are needed, got {z.shape} and {targets.shape}")
    loss: Tensor = _SimplexCrossEntropy.apply(z.float().contiguous(), targets, length)  # type: ignore[no-untyped-call]
    return loss
