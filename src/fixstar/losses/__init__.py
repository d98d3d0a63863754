"""Losses: tensors in, scalar out. No model, no configuration, no logger."""

from fixstar.losses.classification import cross_entropy
from fixstar.losses.contrastive import SameClass, info_nce
from fixstar.losses.distillation import feature_distance, feature_distillation, knowledge_distillation

__all__ = [
    "SameClass",
    "cross_entropy",
    "feature_distance",
    "feature_distillation",
    "info_nce",
    "knowledge_distillation",
]
