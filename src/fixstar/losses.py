"""Losses: tensors in, scalar out. No model, no configuration, no logger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fixstar.errors import InputError
from fixstar.kernels.info_nce import fused_info_nce, suits

__all__ = [
    "SameClass",
    "balanced_distillation",
    "centre_alignment",
    "centre_distance",
    "cosine_boundary",
    "cross_entropy",
    "cross_model_triplet",
    "elastic_boundary",
    "feature_distance",
    "feature_distillation",
    "info_nce",
    "info_nce_of",
    "knowledge_distillation",
    "margin_ranking",
    "neighbourhood_components",
    "pooled_outputs",
    "search_contrast",
    "two_view_contrast",
]

SameClass = Literal["masked", "published", "kept"]

_EXCLUDED = -1e9  # a logit that adds nothing to a sum of exponentials and keeps its gradient finite


def mean_over(values: Tensor, chosen: Tensor | None) -> Tensor:
    """The mean of ``values`` [B] where ``chosen`` [B] (None: all); zero, with a zero gradient, if none is."""
    if chosen is None:
        return values.mean()
    weights = chosen.to(values.dtype)
    return (values * weights).sum() / weights.sum().clamp(min=1)


# Logits against targets.


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


# A new model held to an old one, image by image.


def feature_distillation(new: Tensor, old: Tensor, chosen: Tensor | None = None) -> Tensor:
    """1 - cos(new, old), mean over the chosen images (CL2R, eq. 8), zero if none is. [B, d], [B, d], [B] bool."""
    return mean_over(1 - functional.cosine_similarity(new.float(), old.float()), chosen)


def feature_distance(new: Tensor, old: Tensor, chosen: Tensor | None = None) -> Tensor:
    """|new - old|^2 / 2 of features as they are, mean over the chosen images (BCT, eq. 3)."""
    return mean_over((new.float() - old.float()).square().sum(dim=1) / 2, chosen)


def knowledge_distillation(
    new: Tensor, old: Tensor, temperature: float = 1.0, chosen: Tensor | None = None
) -> Tensor:
    """KL(softmax(old / T) || softmax(new / T)) T^2, mean over the chosen images (Hinton et al. 2015). [B, C] each.

    T^2 keeps the size of the gradient independent of the temperature.
    """
    target = functional.log_softmax(old.float() / temperature, dim=1)
    answer = functional.log_softmax(new.float() / temperature, dim=1)
    divergence = (target.exp() * (target - answer)).sum(dim=1)
    return mean_over(divergence * temperature**2, chosen)


def balanced_distillation(
    new: Tensor, old: Tensor, weights: Tensor, temperature: float = 2.0
) -> Tensor:
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
        distances.append(
            (difference.square().sum(dim=1) + 1e-12).sqrt().mean()
        )  # a gradient of zero where equal
    return torch.stack(distances).mean()


def _pooled(maps: Tensor) -> Tensor:
    squared = maps.float().square()
    rows = squared.sum(dim=3).flatten(1)
    columns = squared.sum(dim=2).flatten(1)
    return functional.normalize(torch.cat([rows, columns], dim=1))


# The features of a batch compared with one another across two models.


def info_nce(
    new: Tensor, old: Tensor, targets: Tensor, rho: float = 5.0, same_class: SameClass = "masked"
) -> Tensor:
    """Higher-order compatibility with the previous model (HOC, eqs. 4 and 5), mean over the batch.

    Anchor i is the old feature of image i, its positive the new feature of the same image, its negatives the new
    features of the others: -log(exp(rho cos(old_i, new_i)) / sum_{j != i} exp(rho cos(old_i, new_j))). ``new`` and
    ``old`` are [B, d], ``targets`` [B].

    Other images of the anchor's class are left out of the denominator (``same_class="masked"``), or stay with
    similarity 0, as does the positive, as in the published code (``"published"``), or stay as they are, as eq. 4 is
    printed (``"kept"``). On a GPU, where ``old`` wants no gradient, two kernels do it all.
    """
    if suits(new, old):
        return fused_info_nce(new, old, targets, rho, same_class)
    return _info_nce_by_torch(new, old, targets, rho, same_class)


def _info_nce_by_torch(
    new: Tensor, old: Tensor, targets: Tensor, rho: float, same_class: SameClass
) -> Tensor:
    return info_nce_of(
        functional.normalize(old.float()) @ functional.normalize(new.float()).T,
        targets,
        rho,
        same_class,
    )


def info_nce_of(
    across: Tensor, targets: Tensor, rho: float = 5.0, same_class: SameClass = "masked"
) -> Tensor:
    """``info_nce`` from cosines, ``across`` [B, B] = cos(old_i, new_j): for features too wide to be made."""
    similarity = rho * across
    itself = torch.eye(len(targets), dtype=torch.bool, device=targets.device)
    related = (targets[:, None] == targets[None, :]) & ~itself
    if same_class == "masked":
        excluded = itself | related
        candidates = similarity
    elif same_class == "published":
        excluded = torch.zeros_like(itself)
        candidates = similarity.masked_fill(related | itself, 0.0)
    elif same_class == "kept":
        excluded = itself
        candidates = similarity
    else:
        raise InputError(f"same_class={same_class!r} is not one of masked, published, kept")
    negatives = candidates.masked_fill(excluded, _EXCLUDED).logsumexp(dim=1)
    loss = negatives - similarity.diagonal()
    return loss.where(~excluded.all(dim=1), 0.0).mean()


def search_contrast(across: Tensor, within: Tensor, targets: Tensor, rho: float = 5.0) -> Tensor:
    """A contrastive loss in the direction of a search: new query i finds its own old vector, mean over the batch.

    ``across`` [B, B] holds cos(new_i, old_j), ``within`` cos(new_i, new_j). The positive is old_i; old vectors and new
    features of other classes are negatives: log(sum_{y_j != y_i} exp(rho across_ij) + exp(rho within_ij)) - rho
    across_ii. A batch of one class has no negatives: zero.
    """
    same = targets[:, None] == targets[None, :]
    candidates = torch.cat(
        [across.masked_fill(same, -torch.inf), within.masked_fill(same, -torch.inf)], dim=1
    )
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


# New features, or new prototypes, held to where the old model had their classes. A class of the old model is a centre
# and a boundary: how far from the centre its images reached.


def centre_alignment(prototypes: Tensor, centres: Tensor, chosen: Tensor) -> Tensor:
    """The mean squared difference of unit prototypes and unit centres over the chosen classes (LCE, alignment loss).

    [C, d], [C, d], [C] bool. The mean is over components too, as in the published code: 2 (1 - cos) / d.
    """
    difference = functional.normalize(prototypes.float()) - functional.normalize(centres.float())
    return mean_over(difference.square().mean(dim=1), chosen)


def cosine_boundary(new: Tensor, centres: Tensor, loosest: Tensor, chosen: Tensor) -> Tensor:
    """A class does not get looser: max(0, loosest - cos(new, centre)), mean over the chosen (LCE, boundary loss).

    ``loosest`` [B] is the least cosine to the centre that the old model gave to an image of that class. ``new`` [B, d],
    ``centres`` [B, d], each image's own, ``chosen`` [B] bool.
    """
    cosines = functional.cosine_similarity(new.float(), centres.float())
    return mean_over((loosest - cosines).clamp(min=0), chosen)


def elastic_boundary(new: Tensor, centres: Tensor, radii: Tensor, chosen: Tensor) -> Tensor:
    """max(0, |new - centre| - radius) of unit features, mean over the chosen images that lie outside (AdvBCT).

    The centres are means of unit features, not brought back to unit length. ``new`` and ``centres`` [B, d], ``radii``
    [B], ``chosen`` [B] bool.
    """
    squared = (functional.normalize(new.float()) - centres).square().sum(dim=1)
    excess = (squared + 1e-12).sqrt() - radii  # a gradient of zero at the centre itself
    return mean_over(excess, chosen & (excess > 0))


def centre_distance(new: Tensor, centres: Tensor, chosen: Tensor) -> Tensor:
    """|new - centre|^2 of unit features and means of unit features, over the chosen images (CVS, data coherence).

    ``new`` and ``centres`` [B, d], ``chosen`` [B] bool.
    """
    return mean_over((functional.normalize(new.float()) - centres).square().sum(dim=1), chosen)


# An order: the right class, or the right image, must come first by a margin.


def margin_ranking(
    cosines: Tensor, targets: Tensor, old_classes: int, k: int = 2, margin: float = 0.5
) -> Tensor:
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
    anchor = functional.normalize(new.float())
    positive = functional.normalize(old.float())
    same = targets[:, None] == targets[None, :]
    with torch.no_grad():
        nearest = (
            (anchor @ positive.T).masked_fill(same, -2.0).argmax(dim=1)
        )  # no cosine is below -1
    gap = _distance(anchor, positive) - _distance(anchor, positive[nearest]) + margin
    return gap.clamp(min=0).where(~same.all(dim=1), 0.0).mean()


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean, row by row, with a gradient of zero where the rows are equal."""
    return ((a - b).square().sum(dim=1) + 1e-12).sqrt()
