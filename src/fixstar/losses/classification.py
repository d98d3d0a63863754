"""Losses that compare logits with targets."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

__all__ = ["cross_entropy"]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean softmax cross-entropy over all outputs, the unassigned ones included (CoReS, eq. 9).

    ``logits`` [B, K], ``targets`` [B].
    """
    return functional.cross_entropy(logits.float(), targets)
