"""Losses: tensors in, scalar out. No model, no configuration, no logger."""

from fixstar.losses.boundary import centre_alignment, centre_distance, cosine_boundary, elastic_boundary
from fixstar.losses.classification import cross_entropy, neighbourhood_components
from fixstar.losses.contrastive import SameClass, info_nce, info_nce_of, search_contrast, two_view_contrast
from fixstar.losses.distillation import (
    balanced_distillation,
    feature_distance,
    feature_distillation,
    knowledge_distillation,
    pooled_outputs,
)
from fixstar.losses.ranking import cross_model_triplet, margin_ranking

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
