"""Evaluation: search and verification, the cross-test between versions, evidence, metrics, pictures and reports.

NumPy in, NumPy out: nothing here needs torch to start.
"""

from fixstar.evaluation.backfill import BackfillCurve, backfill_curve
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
from fixstar.evaluation.curves import accuracy_curves, backfill_curves, metric_curve, roc_curves
from fixstar.evaluation.evidence import CellEvidence, Difference, cell_evidence, paired_bootstrap, verdicts
from fixstar.evaluation.feature_files import LabelFile, read_features, read_labels
from fixstar.evaluation.flips import ClassFlips, Flips, FoundRows, flips, found_before_after
from fixstar.evaluation.identification import cmc, open_set_hits, rank_hits, tpir_at_fpir
from fixstar.evaluation.knn import knn_accuracy, knn_classes, knn_hits
from fixstar.evaluation.measures import MEASURES, cross_test_by, cross_test_cmc, cross_test_scores
from fixstar.evaluation.mixed import mixed_gallery_search, mixed_nearest
from fixstar.evaluation.pairs import Pairs, Split, draw_pairs, gallery_query_split, sample_pairs
from fixstar.evaluation.panels import accuracy_panels
from fixstar.evaluation.pictures import compatibility_heat_map, side_by_side
from fixstar.evaluation.report import LostQuery, RateTable, Report, Thumbnails, lost_queries
from fixstar.evaluation.retrieval import MeanAveragePrecision, average_precisions, mean_average_precision
from fixstar.evaluation.search import PROTOCOLS, image_search, nearest, template_search, templates
from fixstar.evaluation.seeds import MatrixSpread, Spread, format_spread, summarise, summarise_matrices
from fixstar.evaluation.verification import (
    FoldAccuracy,
    kfold_accuracy,
    mean_templates,
    pair_scores,
    roc,
    tar_at_far,
    threshold_at_far,
)

__all__ = [
    "MEASURES",
    "PROTOCOLS",
    "BackfillCurve",
    "CellEvidence",
    "ClassFlips",
    "CrossTest",
    "Difference",
    "Flips",
    "FoldAccuracy",
    "Found",
    "FoundRows",
    "LabelFile",
    "LostQuery",
    "MatrixSpread",
    "MeanAveragePrecision",
    "Pairs",
    "RateTable",
    "Report",
    "Split",
    "Spread",
    "Thumbnails",
    "VersionFeatures",
    "absolute_gain",
    "accuracy_curves",
    "accuracy_panels",
    "average_accuracy",
    "average_compatibility",
    "average_compatibility_accuracy",
    "average_precisions",
    "backfill_curve",
    "backfill_curves",
    "backward_compatibility",
    "cell_evidence",
    "cmc",
    "compatibility_heat_map",
    "compatible_cells",
    "contact_sheet",
    "cross_test",
    "cross_test_by",
    "cross_test_cmc",
    "cross_test_scores",
    "draw_pairs",
    "flips",
    "format_spread",
    "forward_compatibility",
    "found_before_after",
    "gallery_query_split",
    "image_search",
    "is_compatible",
    "kfold_accuracy",
    "knn_accuracy",
    "knn_classes",
    "knn_hits",
    "lost_queries",
    "mean_average_precision",
    "mean_templates",
    "metric_curve",
    "mixed_gallery_search",
    "mixed_nearest",
    "multi_model_compatible",
    "nearest",
    "open_set_hits",
    "pair_scores",
    "paired_bootstrap",
    "rank_hits",
    "read_features",
    "read_labels",
    "roc",
    "roc_curves",
    "sample_pairs",
    "side_by_side",
    "summarise",
    "summarise_matrices",
    "summary",
    "tar_at_far",
    "template_search",
    "templates",
    "threshold_at_far",
    "tpir_at_fpir",
    "update_gain",
    "verdicts",
]
