"""Losses: tensors in, scalar out. No model, no configuration, no logger."""

from fixstar.losses.classification import cross_entropy
from fixstar.losses.contrastive import SameClass, info_nce

__all__ = ["SameClass", "cross_entropy", "info_nce"]
