"""Translation: how queries of one version search what another version stored.

maps        one model's vectors to another's, in NumPy
fit         maps from pairs of vectors, and pairs from class means
translation two maps and a weight; a shared space is the special case without maps
score       the score over many queries, for evaluation
choose      kind and weight by evidence
calibrate   one scale for the scores of several versions
file        a translation as a file that works without fixstar
"""

from fixstar.translation.calibrate import Calibration, Threshold, fit_calibration
from fixstar.translation.choose import Evidence, by_class, choose
from fixstar.translation.file import load_translation, save_translation
from fixstar.translation.fit import KINDS, Pairs, fit_map
from fixstar.translation.maps import Layer, Map
from fixstar.translation.score import translated
from fixstar.translation.translation import Translation, Uncertainty

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
    "choose",
    "fit_calibration",
    "fit_map",
    "load_translation",
    "save_translation",
    "translated",
]
