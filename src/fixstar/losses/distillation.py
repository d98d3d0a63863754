"""Losses that hold a new model to an old one, image by image."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from fixstar.losses.averages import mean_over

__all__ = ["feature_distance", "feature_distillation", "knowledge_distillation"]


def feature_distillation(new: Tensor, old: Tensor, chosen: Tensor | None = None) -> Tensor:
    """1 - cos(new, old), mean over the chosen images (CL2R, eq. 8), zero if none is. [B, d], [B, d], [B] bool."""
    return mean_over(1 - functional.cosine_similarity(new.float(), old.float()), chosen)


def feature_distance(new: Tensor, old: Tensor, chosen: Tensor | None = None) -> Tensor:
    """The squared l2 distance of unit features, mean over the chosen images (the l2 baseline of BCT)."""
    difference = functional.normalize(new.float()) - functional.normalize(old.float())
    return mean_over(difference.square().sum(dim=1), chosen)


def knowledge_distillation(new: Tensor, old: Tensor, temperature: float = 1.0, chosen: Tensor | None = None) -> Tensor:
    """KL(softmax(old / T) || softmax(new / T)) T^2, mean over the chosen images (Hinton et al. 2015). [B, C] each.

    T^2 keeps the size of the gradient independent of the temperature.
    """
    target = functional.log_softmax(old.float() / temperature, dim=1)
    answer = functional.log_softmax(new.float() / temperature, dim=1)
    divergence = (target.exp() * (target - answer)).sum(dim=1)
    return mean_over(divergence * temperature**2, chosen)
