"""Evaluation: 1:N search, the cross-test between versions, compatibility metrics and their pictures.

NumPy in, NumPy out: nothing here needs torch.
"""

from fixstar.evaluation.compatibility import (
    absolute_gain,
    average_accuracy,
    average_compatibility,
    average_compatibility_accuracy,
    backward_compatibility,
    compatible_cells,
    forward_compatibility,
    is_compatible,
    multi_model_compatible,
    summary,
    update_gain,
)
from fixstar.evaluation.contact_sheet import Found, contact_sheet
from fixstar.evaluation.cross_test import CrossTest, VersionFeatures, cross_test
from fixstar.evaluation.pictures import compatibility_heat_map, side_by_side
from fixstar.evaluation.search import PROTOCOLS, image_search, nearest, template_search, templates

__all__ = [
    "PROTOCOLS",
    "CrossTest",
    "Found",
    "VersionFeatures",
    "absolute_gain",
    "average_accuracy",
    "average_compatibility",
    "average_compatibility_accuracy",
    "backward_compatibility",
    "compatibility_heat_map",
    "compatible_cells",
    "contact_sheet",
    "cross_test",
    "forward_compatibility",
    "image_search",
    "is_compatible",
    "multi_model_compatible",
    "nearest",
    "side_by_side",
    "summary",
    "template_search",
    "templates",
    "update_gain",
]
