"""Losses that hold new features, or new prototypes, to where the old model had their classes.

A class of the old model is a centre and a boundary: how far from the centre its images reached.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from fixstar.losses.averages import mean_over


def centre_alignment(prototypes: Tensor, centres: Tensor, chosen: Tensor) -> Tensor:
    """The mean squared difference of unit prototypes and unit centres over the chosen classes (LCE, alignment loss).

    [C, d], [C, d], [C] bool. The mean is over components too, as in the published code: 2 (1 - cos) / d.
    """
    difference = functional.normalize(prototypes.float()) - functional.normalize(centres.float())
    return mean_over(difference.square().mean(dim=1), chosen)


def cosine_boundary(new: Tensor, centres: Tensor, loosest: Tensor, chosen: Tensor) -> Tensor:
    """A class is no looser than it was: max(0, loosest - cos(new, centre)), mean over the chosen (LCE, boundary loss).

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
