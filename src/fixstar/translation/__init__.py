"""Translation: how queries of one version search what another version stored.

maps        one model's vectors to another's, in NumPy
fit         maps from pairs of vectors
unpaired    pairs from class means, and pseudo-pairs, where no item was embedded by both models
translation two maps and a weight; a shared space is the special case without maps
score       the score over many queries, for evaluation
choose      kind and weight by evidence
calibrate   one scale for the scores of several versions
file        a translation as a file that works without fixstar
bridge      a translation between two models that never met: fitted, chosen and judged on held-out items
judge       any migration between two models, against keeping the old one and against re-embedding
sides       the vectors of both models, from matrices, files, stores, or the models themselves
"""

from fixstar.translation.calibrate import Calibration, Threshold, fit_calibration
from fixstar.translation.choose import Evidence, by_class, by_relevance, choose
from fixstar.translation.file import load_translation, save_translation
from fixstar.translation.fit import KINDS, Pairs, fit_map
from fixstar.translation.maps import Layer, Map
from fixstar.translation.score import translated
from fixstar.translation.translation import Translation, Uncertainty
from fixstar.translation.unpaired import paired_by_class, pseudo_pairs

__all__ = [
    "KINDS",
    "Calibration",
    "Evidence",
    "Layer",
    "Map",
    "Pairs",
    "Threshold",
    "Translation",
    "Uncertainty",
    "by_class",
    "by_relevance",
    "choose",
    "fit_calibration",
    "fit_map",
    "load_translation",
    "paired_by_class",
    "pseudo_pairs",
    "save_translation",
    "translated",
]
