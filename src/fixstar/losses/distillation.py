"""Losses that hold a new model to an old one, image by image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fixstar.losses.averages import mean_over


def feature_distillation(new: Tensor, old: Tensor, chosen: Tensor | None = None) -> Tensor:
    """1 - cos(new, old), mean over the chosen images (CL2R, eq. 8), zero if none is. [B, d], [B, d], [B] bool."""
    return mean_over(1 - functional.cosine_similarity(new.float(), old.float()), chosen)


def feature_distance(new: Tensor, old: Tensor, chosen: Tensor | None = None) -> Tensor:
    """|new - old|^2 / 2 of features as they are, mean over the chosen images (BCT, eq. 3)."""
    return mean_over((new.float() - old.float()).square().sum(dim=1) / 2, chosen)


def knowledge_distillation(new: Tensor, old: Tensor, temperature: float = 1.0, chosen: Tensor | None = None) -> Tensor:
    """KL(softmax(old / T) || softmax(new / T)) T^2, mean over the chosen images (Hinton et al. 2015). [B, C] each.

    T^2 keeps the size of the gradient independent of the temperature.
    """
    target = functional.log_softmax(old.float() / temperature, dim=1)
    answer = functional.log_softmax(new.float() / temperature, dim=1)
    divergence = (target.exp() * (target - answer)).sum(dim=1)
    return mean_over(divergence * temperature**2, chosen)


def balanced_distillation(new: Tensor, old: Tensor, weights: Tensor, temperature: float = 2.0) -> Tensor:
    """Cross-entropy with the old answers, each class weighted and the answers brought back to sum 1 (FOSTER, eq. 14).

    [B, C], [B, C], ``weights`` [C].
    """
    target = functional.softmax(old.float() / temperature, dim=1) * weights
    target = target / target.sum(dim=1, keepdim=True)
    return -(target * functional.log_softmax(new.float() / temperature, dim=1)).sum(dim=1).mean()


def pooled_outputs(new: Sequence[Tensor], old: Sequence[Tensor]) -> Tensor:
    """The distance of feature maps pooled along their width and along their height, mean over maps (PODNet, eq. 4).

    Squared maps [B, D, h, w] become [B, D (h + w)], brought to unit length; the Euclidean distance, mean over images.
    """
    distances = []
    for a, b in zip(new, old, strict=True):
        difference = _pooled(a) - _pooled(b)
        distances.append((difference.square().sum(dim=1) + 1e-12).sqrt().mean())  # a gradient of zero where equal
    return torch.stack(distances).mean()


def _pooled(maps: Tensor) -> Tensor:
    squared = maps.float().square()
    rows, columns = squared.sum(dim=3).flatten(1), squared.sum(dim=2).flatten(1)
    return functional.normalize(torch.cat([rows, columns], dim=1))
