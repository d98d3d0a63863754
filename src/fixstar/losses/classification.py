"""Losses that compare logits with targets."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from fixstar.losses.averages import mean_over


def cross_entropy(logits: Tensor, targets: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Softmax cross-entropy over all outputs, the unassigned ones included (CoReS, eq. 9), mean over the chosen images.

    ``logits`` [B, K], ``targets`` [B], ``chosen`` [B] bool. A target need be an output only where it is chosen; the
    loss is zero if no image is.
    """
    if chosen is None:
        return functional.cross_entropy(logits.float(), targets)
    losses = functional.cross_entropy(logits.float(), targets.where(chosen, 0), reduction="none")
    return mean_over(losses, chosen)


def neighbourhood_components(logits: Tensor, targets: Tensor) -> Tensor:
    """max(0, log sum_{i != y} exp(logit_i) - logit_y), mean over the batch: the NCA loss of PODNet (eq. 9).

    The target is not in the denominator, so an image that is right by far enough adds nothing. [B, C], [B]. With one
    class there is nothing to tell apart: zero.
    """
    own = logits.float().gather(1, targets[:, None])
    others = logits.float().scatter(1, targets[:, None], -1e9).logsumexp(dim=1, keepdim=True)
    return (others - own).clamp(min=0).mean()
