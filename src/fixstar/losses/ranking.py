"""Losses that ask for an order: the right class, or the right image, must come first by a margin."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def margin_ranking(cosines: Tensor, targets: Tensor, old_classes: int, k: int = 2, margin: float = 0.5) -> Tensor:
    """An image of an old class is nearer to its own prototype than to the k nearest new ones (LUCIR, eq. 8).

    max(0, margin - cos(own) + cos(new)), mean over the images of old classes and their k hardest new prototypes.
    Classes below ``old_classes`` are old. ``cosines`` [B, C], ``targets`` [B]. Zero without an image of an old
    class, and without a new class.
    """
    hardest = cosines[:, old_classes:].float()
    hardest = hardest.topk(min(k, hardest.shape[1]), dim=1).values  # [B, k]
    own = cosines.float().gather(1, targets[:, None])
    old = (targets < old_classes).to(own.dtype)[:, None]
    violations = (margin - own + hardest).clamp(min=0) * old
    return violations.sum() / (old.sum() * hardest.shape[1]).clamp(min=1)


def cross_model_triplet(new: Tensor, old: Tensor, targets: Tensor, margin: float = 0.1) -> Tensor:
    """A new feature is nearer to its image's old feature than to those of other classes (CVS, model coherence).

    max(0, |new_i - old_i| - |new_i - old_j| + margin) of unit features, mean over the batch, with j the nearest image
    of another class: two images, three embeddings. ``new`` and ``old`` are [B, d], ``targets`` [B]. An anchor without
    a negative adds nothing.
    """
    anchor, positive = functional.normalize(new.float()), functional.normalize(old.float())
    same = targets[:, None] == targets[None, :]
    with torch.no_grad():
        nearest = (anchor @ positive.T).masked_fill(same, -2.0).argmax(dim=1)  # no cosine is below -1
    gap = _distance(anchor, positive) - _distance(anchor, positive[nearest]) + margin
    return gap.clamp(min=0).where(~same.all(dim=1), 0.0).mean()


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean, row by row, with a gradient of zero where the rows are equal."""
    return ((a - b).square().sum(dim=1) + 1e-12).sqrt()
