"""What would hold where a version's own queries do not: proposals as next steps, measured on the check's images.

A map brings the new queries to the stored vectors, which stay as they are (``adapters``); a backfill re-embeds a stated
share of them; or the old version stays. Queries by two models are proposed by the gate itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import FixstarError, NextStep
from fixstar.evaluation import Difference, VersionFeatures, paired_bootstrap
from fixstar.evaluation.report import percent, points
from fixstar.evaluation.search import searcher
from fixstar.evaluation.trial import SHARES, Trial
from fixstar.workspace.adapters.fitting import fit_adapter
from fixstar.workspace.calibrations import Fold, search_curve
from fixstar.workspace.checks import Check

MAP = "ridge"
LEAST_QUERIES = 50  # fewer say nothing about a proposal


def proposals(trial: Trial, check: Check, folds: Sequence[Fold]) -> tuple[NextStep, ...]:
    """Ways to get past a check that did not pass, for the gallery that loses most; empty if too little was measured."""
    failed = [cell for cell in check.cells if cell.verdict != "compatible"]
    if check.outcome == "pass" or not failed or len(trial.query_labels) < LEAST_QUERIES:
        return ()
    worst = min(failed, key=lambda cell: cell.difference)
    *older, new = trial.versions
    (old,) = [one for one in older if one.name == worst.version]
    keep = f"keep {old.name}, whose own queries find {percent(worst.self_test)}"
    return (
        *_map_step(trial, old, new, check),
        *_backfill_step(trial, old, new, folds, worst.self_test),
        NextStep("drop", {"version": check.version}, keep),
    )


def _map_step(trial: Trial, old: VersionFeatures, new: VersionFeatures, check: Check) -> Iterator[NextStep]:
    """A map from the new queries to the stored vectors, if it is measured to find more than now."""
    find = searcher("image", old.gallery, trial.gallery_labels)
    now = find(old.queries, trial.query_labels)
    mapped = _mapped_hits(trial, old, new)
    if mapped is None or mapped.mean() <= now.mean():
        return
    found = paired_bootstrap(mapped, now, confidence=check.confidence)
    yield NextStep(
        "adapt",
        {"version": old.name, "queries_by": new.name, "kind": MAP},
        f"a map of queries: {_expected(float(mapped.mean()), found)} on {old.name}'s vectors, which stay as they are",
    )


def _mapped_hits(trial: Trial, old: VersionFeatures, new: VersionFeatures) -> NDArray[Any] | None:
    """Whether each new query finds its class among old vectors through a map that was fitted on other classes."""
    classes = np.random.default_rng(0).permutation(np.unique(trial.query_labels))
    halves = classes[::2], classes[1::2]
    hits = np.zeros(len(trial.query_labels), bool)
    for fitted, judged in (halves, halves[::-1]):
        known = np.isin(trial.gallery_labels, fitted), np.isin(trial.query_labels, fitted)
        X, Y = (np.concatenate([one.gallery[known[0]], one.queries[known[1]]]).astype(np.float32) for one in (new, old))
        asked = np.isin(trial.query_labels, judged)
        try:
            adapter = fit_adapter(MAP, X, Y)
        except FixstarError:  # too few pairs
            return None
        find = searcher("image", old.gallery, trial.gallery_labels)
        hits[asked] = find(adapter(new.queries[asked]), trial.query_labels[asked])
    return hits


def _expected(accuracy: float, found: Difference) -> str:
    return f"{percent(accuracy)} expected ({points(found.low)} to {points(found.high)} points)"


def _backfill_step(
    trial: Trial, old: VersionFeatures, new: VersionFeatures, folds: Sequence[Fold], now: float
) -> Iterator[NextStep]:
    """The smallest share of the gallery that, re-embedded in random order, is measured to find more than now."""
    curve = search_curve((old, new), trial.query_labels, trial.gallery_labels, SHARES, folds, orders=3).accuracy
    for share, accuracy in list(zip(SHARES, curve.tolist(), strict=True))[1:]:
        if accuracy > now:
            yield NextStep(
                "backfill",
                {"budget": "all" if share == 1 else f"{share:.0%}"},
                f"once it is deployed: {percent(accuracy)} expected with {share:.0%} re-embedded, {percent(now)} now",
            )
            return
