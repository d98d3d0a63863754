"""Evaluation: search and verification, the cross-test between versions, evidence, metrics, pictures and reports.

NumPy in, NumPy out: importing it loads no torch.
"""

from fixstar.evaluation.compatibility import (
    average_accuracy,
    average_compatibility,
    average_compatibility_accuracy,
    backward_compatibility,
    compatible_cells,
    format_spread,
    forward_compatibility,
    is_compatible,
    summarise,
    summarise_matrices,
    summary,
    update_gain,
)
from fixstar.evaluation.cross_test import MEASURES, CrossTest, cross_test, cross_test_scores
from fixstar.evaluation.curves import accuracy_curves, accuracy_panels, backfill_curves, metric_curve, roc_curves
from fixstar.evaluation.evidence import (
    Difference,
    Flips,
    cell_evidence,
    flips,
    found_before_after,
    needed_resamples,
    paired_bootstrap,
    verdicts,
)
from fixstar.evaluation.features import VersionFeatures
from fixstar.evaluation.mixed import BackfillCurve, backfill_curve, mixed_gallery_search, mixed_nearest
from fixstar.evaluation.pictures import HitPicture, compatibility_heat_map, contact_sheet, side_by_side
from fixstar.evaluation.relevance import Relevant, matched, read_relevance
from fixstar.evaluation.report import RateTable, Report, Thumbnails, lost_queries
from fixstar.evaluation.retrieval import ndcg, recall, reciprocal_rank, retrieval_measure, top_1
from fixstar.evaluation.search import PROTOCOLS, cmc, mean_average_precision, nearest, store_search, templates
from fixstar.evaluation.verification import (
    Split,
    VerificationPairs,
    draw_pairs,
    gallery_query_split,
    kfold_accuracy,
    pair_scores,
    roc,
    sample_pairs,
    tar_at_far,
    tpir_at_fpir,
)

__all__ = [
    "MEASURES",
    "PROTOCOLS",
    "BackfillCurve",
    "CrossTest",
    "Difference",
    "Flips",
    "HitPicture",
    "RateTable",
    "Relevant",
    "Report",
    "Split",
    "Thumbnails",
    "VerificationPairs",
    "VersionFeatures",
    "accuracy_curves",
    "accuracy_panels",
    "average_accuracy",
    "average_compatibility",
    "average_compatibility_accuracy",
    "backfill_curve",
    "backfill_curves",
    "backward_compatibility",
    "cell_evidence",
    "cmc",
    "compatibility_heat_map",
    "compatible_cells",
    "contact_sheet",
    "cross_test",
    "cross_test_scores",
    "draw_pairs",
    "flips",
    "format_spread",
    "forward_compatibility",
    "found_before_after",
    "gallery_query_split",
    "is_compatible",
    "kfold_accuracy",
    "lost_queries",
    "matched",
    "mean_average_precision",
    "metric_curve",
    "mixed_gallery_search",
    "mixed_nearest",
    "ndcg",
    "nearest",
    "needed_resamples",
    "pair_scores",
    "paired_bootstrap",
    "read_relevance",
    "recall",
    "reciprocal_rank",
    "retrieval_measure",
    "roc",
    "roc_curves",
    "sample_pairs",
    "side_by_side",
    "store_search",
    "summarise",
    "summarise_matrices",
    "summary",
    "tar_at_far",
    "templates",
    "top_1",
    "tpir_at_fpir",
    "update_gain",
    "verdicts",
]
