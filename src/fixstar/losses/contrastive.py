"""Losses that compare the features of a batch with one another across two models."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fixstar.errors import InputError
from fixstar.kernels.info_nce import fused_info_nce, suits

SameClass = Literal["masked", "published", "kept"]

_EXCLUDED = -1e9  # a logit that adds nothing to a sum of exponentials and keeps its gradient finite


def info_nce(new: Tensor, old: Tensor, targets: Tensor, rho: float = 5.0, same_class: SameClass = "masked") -> Tensor:
    """Higher-order compatibility with the previous model (HOC, eqs. 4 and 5), mean over the batch.

    Anchor i is the old feature of image i, its positive the new feature of the same image, its negatives the new
    features of the others: -log(exp(rho cos(old_i, new_i)) / sum_{j != i} exp(rho cos(old_i, new_j))). The positive is
    not in the denominator. ``new`` and ``old`` are [B, d], ``targets`` [B].

    Other images of the anchor's class are left out of the denominator (``same_class="masked"``), or stay in it with
    similarity 0, and so does the positive, as the published code has it (``"published"``), or stay as they are, as
    eq. 4 is printed (``"kept"``). An anchor without anything in its denominator adds nothing. On a GPU, where ``old``
    wants no gradient, two kernels do it all, whose gradient cannot be differentiated again.
    """
    if suits(new, old):
        return fused_info_nce(new, old, targets, rho, same_class)
    return _info_nce_by_torch(new, old, targets, rho, same_class)


def _info_nce_by_torch(new: Tensor, old: Tensor, targets: Tensor, rho: float, same_class: SameClass) -> Tensor:
    return info_nce_of(
        functional.normalize(old.float()) @ functional.normalize(new.float()).T, targets, rho, same_class
    )


def info_nce_of(across: Tensor, targets: Tensor, rho: float = 5.0, same_class: SameClass = "masked") -> Tensor:
    """``info_nce`` from cosines, ``across`` [B, B] = cos(old_i, new_j): for features too wide to be made."""
    similarity = rho * across
    itself = torch.eye(len(targets), dtype=torch.bool, device=targets.device)
    related = (targets[:, None] == targets[None, :]) & ~itself
    if same_class == "masked":
        excluded, candidates = itself | related, similarity
    elif same_class == "published":
        excluded, candidates = torch.zeros_like(itself), similarity.masked_fill(related | itself, 0.0)
    elif same_class == "kept":
        excluded, candidates = itself, similarity
    else:
        raise InputError(f"same_class={same_class!r} is not one of masked, published, kept")
    negatives = candidates.masked_fill(excluded, _EXCLUDED).logsumexp(dim=1)
    loss = negatives - similarity.diagonal()
    return loss.where(~excluded.all(dim=1), 0.0).mean()


def search_contrast(across: Tensor, within: Tensor, targets: Tensor, rho: float = 5.0) -> Tensor:
    """A contrastive loss in the direction of a search: new query i finds its own old vector, mean over the batch.

    ``across`` [B, B] holds cos(new_i, old_j), ``within`` cos(new_i, new_j). The positive is old_i. The negatives are
    the old vectors of other classes, which a search in the old gallery must rank lower, and the new features of other
    classes: log(sum_{y_j != y_i} exp(rho across_ij) + exp(rho within_ij)) - rho across_ii. HOC's iNCE (``info_nce``)
    has the old vector as the anchor and new features as negatives. A batch of one class has no negatives: zero.
    """
    same = targets[:, None] == targets[None, :]
    candidates = torch.cat([across.masked_fill(same, -torch.inf), within.masked_fill(same, -torch.inf)], dim=1)
    alone = same.all(dim=1)
    negatives = (rho * candidates).masked_fill(alone[:, None], 0.0).logsumexp(dim=1)
    return (negatives - rho * across.diagonal()).where(~alone, 0.0).mean()


def two_view_contrast(z: Tensor, temperature: float = 0.1) -> Tensor:
    """Each image's two views find one another among all others (NT-Xent of Chen et al. 2020), mean over 2B anchors.

    ``z`` [2B, d]: all images once, then all of them again. -log(exp(cos(i, i') / T) / sum_{j != i} exp(cos(i, j) / T)).
    """
    if len(z) < 4 or len(z) % 2:
        raise InputError(f"two views of two images or more are contrasted, got {len(z)} rows")
    features = functional.normalize(z.float())
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    similarity = (features @ features.T / temperature).masked_fill(itself, _EXCLUDED)
    other_view = torch.arange(len(z), device=z.device).roll(len(z) // 2)
    return functional.cross_entropy(similarity, other_view)
