"""Cross-entropy against the fixed simplex in two passes over the features: logits are never stored.

With K prototypes the closed form of the logits is (z_j - c S) / r for j < K and (a - c) S / r for the last, S = sum(z)
(see ``fixstar.geometry``). The common -c S cancels in the softmax, so one pass gives S and sum_j exp(z_j / r) +
exp(a S / r), hence the loss. The gradient by z_j is (p_j - y_j + a (p_K - y_K)) / r, as S holds every z_j: one more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fixstar.errors import InputError
from fixstar.geometry import simplex_constants
from fixstar.kernels import INTERPRETED

_BLOCK = 4096
_WARPS = 4
_PART = (
    16_384  # components per program of the first pass: few long rows would leave most of a GPU idle
)


class _SimplexCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, targets: Tensor, length: float) -> Tensor:
        from fixstar.kernels import simplex_rows

        n = z.shape[1]
        a, _, r = simplex_constants(n + 1)
        parts = -(-n // _PART)
        block = _block(n)
        steps = -(-n // (parts * block))
        losses, totals, logs = memory = torch.empty(3, len(z), device=z.device)
        pieces = torch.empty(len(z), parts, 3, device=z.device) if parts > 1 else memory
        given = (z, targets, losses, totals, logs, pieces, n, a, length / r)
        simplex_rows.sums[(len(z), parts)](
            *given, PARTS=parts, STEPS=steps, BLOCK=block, num_warps=_WARPS
        )
        if parts > 1:
            simplex_rows.finish[(len(z),)](
                *given, PARTS=parts, WIDTH=1 << (parts - 1).bit_length(), num_warps=1
            )
        ctx.save_for_backward(z, targets, totals, logs)
        ctx.length = length
        loss: Tensor = losses.mean()
        return loss

    @staticmethod
    def backward(ctx: Any, *weights: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():  # create_graph=True: the gradient would silently be a constant
            raise InputError(
                "this gradient cannot be differentiated again; take the cross-entropy of simplex_logits"
            )
        from fixstar.kernels import simplex_rows

        z, targets, totals, logs = ctx.saved_tensors
        images, n = z.shape
        a, _, r = simplex_constants(n + 1)
        out = torch.empty_like(z)
        block = _block(n)
        simplex_rows.gradient[(images, -(-n // block))](
            z, targets, totals, logs, weights[0].contiguous(), out, images, n, a, ctx.length / r,
            BLOCK=block, num_warps=_WARPS,
        )  # fmt: skip
        return out, None, None


def _block(n: int) -> int:
    """Components that a program loads together: a power of two."""
    return min(_BLOCK, 1 << (n - 1).bit_length())


def simplex_cross_entropy(z: Tensor, targets: Tensor, length: float = 1.0) -> Tensor:
    """Mean cross-entropy of z [B, K - 1] against K prototypes of that length, on a GPU; differentiable once."""
    if z.ndim != 2 or targets.shape != z.shape[:1] or not (z.is_cuda or INTERPRETED):
        raise InputError(
            f"features [B, K - 1] and slots [B] on a GPU are needed, got {z.shape} and {targets.shape}"
        )
    given = (z.float().contiguous(), targets.contiguous(), length)
    loss: Tensor = _SimplexCrossEntropy.apply(*given)  # type: ignore[no-untyped-call]
    return loss
