"""Losses that compare logits with targets."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from fixstar.losses.averages import mean_over

__all__ = ["cross_entropy"]


def cross_entropy(logits: Tensor, targets: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Softmax cross-entropy over all outputs, the unassigned ones included (CoReS, eq. 9), mean over the chosen images.

    ``logits`` [B, K], ``targets`` [B], ``chosen`` [B] bool. A target need be an output only where it is chosen; the
    loss is zero if no image is.
    """
    if chosen is None:
        return functional.cross_entropy(logits.float(), targets)
    losses = functional.cross_entropy(logits.float(), targets.where(chosen, 0), reduction="none")
    return mean_over(losses, chosen)
