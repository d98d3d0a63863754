"""HOC's contrastive loss (eqs. 4 and 5): one kernel between the library's product and the mean, and one backward.

With s_ij = rho cos(old_i, new_j) the loss of anchor i is log sum_{j counted} exp(s_ij) - s_ii. The first kernel holds
all s_ij of a few anchors at once and keeps w_ij = d loss_i / d s_ij. (One that made the products too was slower: a few
anchors per program leave most of a GPU idle.) By the unit vector of new_j the gradient is
g_j = rho sum_i w_ij old_i / |old_i|, and by new_j itself (g_j - unit_j (unit_j . g_j)) / |new_j|, where unit_j . g_j =
sum_i w_ij s_ij is known without a second pass over the features. ``fixstar.losses.info_nce`` has it in plain torch.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from fixstar.errors import InputError
from fixstar.kernels import AVAILABLE

_MOST = 256  # images: all similarities of an anchor are in the registers of one program
_ROWS = 4  # anchors per program
# rows per program (the fewest that a matrix product takes), and anchors summed at a time
_TILE = 16
_BLOCK = 64
_WARPS = 8
_SHORTEST = 1e-12  # functional.normalize divides a shorter feature by this


@functools.cache
def _anchors() -> Any:
    """The kernel of the losses, made when first used: Triton comes with CUDA builds of torch only."""
    import triton
    import triton.language as tl

    @triton.jit
    def anchors(  # type: ignore[no-untyped-def]
        products, targets, losses, slopes, similarities, new_lengths, old_lengths, images, rho,
        SAME_CLASS: tl.constexpr, SHORTEST: tl.constexpr, TILE: tl.constexpr, B: tl.constexpr,
    ):  # fmt: skip
        """Losses of TILE anchors i against all images j, with w_ij and s_ij, from products old_i . new_j."""
        i = tl.program_id(0) * TILE + tl.arange(0, TILE)
        j = tl.arange(0, B)
        inside = (i < images)[:, None] & (j < images)[None, :]
        pair = i[:, None] * images + j[None, :]
        old_length = tl.load(old_lengths + i, mask=i < images, other=1.0)
        new_length = tl.load(new_lengths + j, mask=j < images, other=1.0)
        s = tl.load(products + pair, mask=inside, other=0.0) * rho
        s = (
            s
            / tl.maximum(old_length, SHORTEST)[:, None]
            / tl.maximum(new_length, SHORTEST)[None, :]
        )

        itself = i[:, None] == j[None, :]
        own = tl.load(targets + i, mask=i < images, other=0)
        foreign = own[:, None] != tl.load(targets + j, mask=j < images, other=0)[None, :]
        counted = (i[:, None] != j[None, :]) & (j < images)[None, :]
        moving = foreign
        candidates = s
        if SAME_CLASS == "masked":
            counted &= foreign
        elif SAME_CLASS == "published":
            counted = (j < images)[None, :] & (i < images)[:, None]
            candidates = tl.where(foreign, s, 0.0)
        else:  # kept
            moving = counted
        some = tl.max(counted.to(tl.int32), axis=1) > 0
        largest = tl.max(tl.where(counted, candidates, -float("inf")), axis=1)
        largest = tl.where(largest == -float("inf"), 0.0, largest)
        exponentials = tl.where(counted, tl.exp(candidates - largest[:, None]), 0.0)
        total = tl.where(some, tl.sum(exponentials, axis=1), 1.0)
        loss = largest + tl.log(total) - tl.sum(tl.where(itself, s, 0.0), axis=1)
        w = tl.where(counted & moving, exponentials / total[:, None], 0.0) - tl.where(
            itself, 1.0, 0.0
        )

        tl.store(losses + i, tl.where(some, loss, 0.0), mask=i < images)
        tl.store(slopes + pair, tl.where(some[:, None], w, 0.0), mask=inside)
        tl.store(similarities + pair, s, mask=inside)

    return anchors


@functools.cache
def _gradient() -> Any:
    import triton
    import triton.language as tl

    @triton.jit
    def gradient(  # type: ignore[no-untyped-def]
        new, old, slopes, similarities, new_lengths, old_lengths, weight, out, images, d, rho,
        STEPS: tl.constexpr, SHORTEST: tl.constexpr, TILE: tl.constexpr, ANCHORS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        """WIDTH coordinates of the gradient of TILE new features j, from all anchors i, ANCHORS at a time."""
        j = tl.program_id(0) * TILE + tl.arange(0, TILE)
        at = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        g = tl.zeros((TILE, WIDTH), tl.float32)
        along = tl.zeros((TILE, ANCHORS), tl.float32)
        for step in range(STEPS):
            i = step * ANCHORS + tl.arange(0, ANCHORS)
            pair = i[None, :] * images + j[:, None]
            inside = (j < images)[:, None] & (i < images)[None, :]
            w = tl.load(slopes + pair, mask=inside, other=0.0)
            along += w * tl.load(similarities + pair, mask=inside, other=0.0)
            w *= (rho / tl.maximum(tl.load(old_lengths + i, mask=i < images, other=1.0), SHORTEST))[
                None, :
            ]
            o = tl.load(
                old + i[:, None] * d + at[None, :],
                mask=(i < images)[:, None] & (at < d)[None, :],
                other=0.0,
            )
            g = tl.dot(w, o, g, input_precision="tf32x3")
        length = tl.load(new_lengths + j, mask=j < images, other=1.0)
        divisor = tl.maximum(length, SHORTEST)
        radial = tl.where(
            length < SHORTEST, 0.0, tl.sum(along, axis=1)
        )  # divided by a constant: no direction is lost
        spot = j[:, None] * d + at[None, :]
        valid = (j < images)[:, None] & (at < d)[None, :]
        unit = tl.load(new + spot, mask=valid, other=0.0) / divisor[:, None]
        factor = tl.load(weight) / images
        tl.store(out + spot, factor * ((g - unit * radial[:, None]) / divisor[:, None]), mask=valid)

    return gradient


class _InfoNCE(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, new: Tensor, old: Tensor, targets: Tensor, rho: float, same_class: str
    ) -> Tensor:
        images = len(new)
        new_lengths, old_lengths = (
            torch.linalg.vector_norm(features, dim=1) for features in (new, old)
        )
        losses = torch.empty(images, dtype=torch.float32, device=new.device)
        slopes, similarities = torch.empty(
            2, images, images, dtype=torch.float32, device=new.device
        )
        _anchors()[(-(-images // _ROWS),)](
            old @ new.T, targets, losses, slopes, similarities, new_lengths, old_lengths, images, rho,
            SAME_CLASS=same_class, SHORTEST=_SHORTEST, TILE=_ROWS, B=1 << (images - 1).bit_length(), num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(new, old, slopes, similarities, new_lengths, old_lengths)
        ctx.rho = rho
        loss: Tensor = losses.mean()
        return loss

    @staticmethod
    def backward(ctx: Any, *weights: Tensor) -> tuple[Tensor, None, None, None, None]:
        if torch.is_grad_enabled():  # create_graph=True: the gradient would silently be a constant
            raise InputError(
                "this gradient cannot be differentiated again; old.requires_grad_() selects plain torch"
            )
        new, *saved = ctx.saved_tensors
        (images, d), out = new.shape, torch.empty_like(new)
        _gradient()[(-(-images // _TILE), -(-d // _BLOCK))](
            new, *saved, weights[0].contiguous(), out, images, d, ctx.rho,
            STEPS=-(-images // _BLOCK), SHORTEST=_SHORTEST, TILE=_TILE, ANCHORS=_BLOCK, WIDTH=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip
        return out, None, None, None, None


def suits(new: Tensor, old: Tensor) -> bool:
    """Whether the kernels support these features: on a GPU, not too many, no gradient for the old ones."""
    return (
        new.is_cuda
        and AVAILABLE
        and new.numel() > 0
        and len(new) <= _MOST
        and not old.requires_grad
    )


def fused_info_nce(
    new: Tensor, old: Tensor, targets: Tensor, rho: float, same_class: str
) -> Tensor:
    """``fixstar.losses.info_nce`` for up to 256 images, with a gradient for ``new`` alone, differentiable once.

    ``new`` and ``old`` are [B, d], ``targets`` [B]. Nothing is read back, so a CUDA graph can record it.
    """
    if new.ndim != 2 or old.shape != new.shape or targets.shape != new.shape[:1]:
        shapes = f"{tuple(new.shape)}, {tuple(old.shape)} and {tuple(targets.shape)}"
        raise InputError(f"new and old features [B, d] and targets [B] are needed, got {shapes}")
    if new.numel() == 0 or len(new) > _MOST:
        raise InputError(
            f"1 to {_MOST} features are supported, got {tuple(new.shape)}; call fixstar.losses.info_nce"
        )
    if same_class not in {"masked", "published", "kept"}:
        raise InputError(f"same_class={same_class!r} is not one of masked, published, kept")
    features = (new.float().contiguous(), old.detach().float().contiguous())
    loss: Tensor = _InfoNCE.apply(*features, targets.contiguous(), float(rho), same_class)  # type: ignore[no-untyped-call]
    return loss
