"""What the gate found out, in sentences with numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fixstar.evaluation.report_words import percent, points
from fixstar.lifecycle.calibrating import LEAST, Fold, tried_curve
from fixstar.lifecycle.checks import Check, CheckedCell
from fixstar.lifecycle.evidence_needed import WayOut

if TYPE_CHECKING:
    from fixstar.evaluation import CrossTest
    from fixstar.evaluation.trial import Trial

__all__ = [
    "alone_sentence",
    "apart_sentence",
    "cell_sentence",
    "facts",
    "foreign_sentence",
    "image_notes",
    "mixture_notes",
    "needed_sentence",
    "tolerance_sentence",
    "without_images",
]

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of a gallery re-embedded
VISIBLE = 0.005  # a fall that is worth a warning


def cell_sentence(version: str, cell: CheckedCell, confidence: float, cells: int, tolerance: float) -> str:
    """The evidence of one cell."""
    limit = "above it" if not tolerance else f"less than {percent(tolerance)[:-2]} points below it"
    verdict = {
        "compatible": f"this is {limit}",
        "incompatible": f"this is not {limit}",
        "not decided": f"it is not decided whether this is {limit}",
    }[cell.verdict]
    together = "" if cells == 1 else f", all {cells} galleries together"
    return (
        f"on {cell.version}'s gallery {version}'s queries reach {percent(cell.cross_test)}, {cell.version}'s own "
        f"{percent(cell.self_test)}: {verdict}. The difference is {points(cell.difference)} points, with "
        f"{100 * confidence:g} % confidence{together} between {points(cell.low)} and {points(cell.high)}"
    )


def needed_sentence(cell: CheckedCell, queries: int, needed: int | None, more: str) -> str:
    """How much evidence would decide a cell; ``more`` is the command that takes it."""
    if needed is None:
        seen = "balance exactly" if cell.differing else "do not occur"
        return f"Among {queries:,} queries gains and losses {seen}: more of the same would not show a gain"
    return (
        f"If it stays so, about {needed:,} queries would decide; there were {queries:,}. Half of each class is the "
        f"gallery: give about {2 * needed:,} labelled images with {more}"
    )


def tolerance_sentence(command: str, cell: CheckedCell, queries: int, way: WayOut | None, more: str = "") -> str:
    """What it takes where a small loss is allowed; empty where that does not help. ``more`` gives ``command`` more."""
    if way is None:
        return ""
    allowed = f"If it is enough to lose less than {percent(way.tolerance)[:-2]} points"
    if way.needed is None:
        return f"{allowed}, these queries show that: {command} --tolerance {way.tolerance:g}"
    return (
        f"{allowed}, about {way.needed:,} queries ({2 * way.needed:,} labelled images) would show that; these "
        f"{queries:,} leave a loss of {percent(-cell.low)[:-2]} points open: {command} --tolerance "
        f"{way.tolerance:g}{more}"
    )


def alone_sentence(version: str) -> str:
    """Of a version that has nothing to be compatible with."""
    return f"only vectors of {version} itself are searched: there is no older gallery that it could fail on"


def apart_sentence(version: str, other: str) -> str:
    """Of versions whose vectors have nothing in common."""
    return f"vectors of {version} and of {other} have different widths: its queries cannot search {other}'s gallery"


def foreign_sentence(version: str, other: str) -> str:
    """Of live vectors whose model is not here."""
    return (
        f"the gallery holds vectors of {other}, and no model of that name is here: what {other}'s own queries reach "
        f"cannot be measured. Searches leave them out, unless {version} was trained to agree with them. Fit an "
        f"adapter, which is checked on labelled items (fixstar adapt {other} --for {version}), or compare features "
        f"(fixstar evaluate --features {other}=FILE --features {version}=FILE); vectors that {version}'s model made "
        f"elsewhere are imported with: fixstar gallery import FILE --as "
        f"{other.partition('@')[0]}@{version}"
    )


def without_images(version: str, live: Sequence[str], images: int, learnt_by: Sequence[str] = ()) -> str:
    """What is missing where there are no labelled images to ask about."""
    if learnt_by:
        seen = f"{_may_have_learnt(learnt_by)}, and {'no two of one class are' if images else 'none is'} left"
    elif images:
        seen = f"{images:,} labelled images are there, but no two of one class"
    else:
        seen = f"no labelled images were held out when the versions up to {version} were trained"
    return (
        f"{seen}, so nothing shows what {version}'s queries find among vectors of {', '.join(live)}. Give labelled "
        f"images that it was not trained on: fixstar check {version} --data LABELLED_IMAGES. The next training can "
        "keep some itself: --hold-out 0.1"
    )


def image_notes(version: str, selected: bool, learnt_by: Sequence[str]) -> Iterator[str]:
    """Of held-out images that were looked at before, and of those that are no longer asked about."""
    others = f"fixstar check {version} --data LABELLED_IMAGES"
    if selected:
        yield (
            f"the images held out from {version}'s training also chose its epoch, so its figures are a little too "
            f"kind; others would be fairer: {others}"
        )
    if learnt_by:
        yield (
            f"{_may_have_learnt(learnt_by)}: those are not asked about. Hold out the same share at every training, or "
            f"give others: {others}"
        )


def _may_have_learnt(learnt_by: Sequence[str]) -> str:
    has = "has" if len(learnt_by) == 1 else "have"
    return f"{' and '.join(learnt_by)} {has} learnt, or may have learnt, images that others held out"


def mixture_notes(trial: Trial, tested: CrossTest, folds: Sequence[Fold] = ()) -> Iterator[str]:
    """A warning for each old gallery that, partly re-embedded, does worse than as it is and worse than all new.

    Hits are merged as in a search: by calibrations where there are ``folds``, else by cosine, and that is told.
    """
    vectors = {version.name: version for version in trial.versions}
    *names, version = tested.names
    visible = max(VISIBLE, 2 / len(trial.query_labels))  # one or two queries are no reason to warn
    for name in names:
        labels = trial.query_labels, trial.gallery_labels
        curve = tried_curve((vectors[name], vectors[version]), *labels, SHARES, folds, orders=3).accuracy
        worst = int(curve[1:-1].argmin()) + 1
        if curve[worst] < min(curve[0], curve[-1]) - visible:
            yield (
                f"a gallery that is {percent(SHARES[worst])} {version}'s and for the rest {name}'s finds only "
                f"{percent(float(curve[worst]))}, less than one that is all {name}'s ({percent(float(curve[0]))}) or "
                f"all {version}'s ({percent(float(curve[-1]))}): a partial backfill is worse than none. Backfill all "
                "of it, or nothing"
            )
    if names and not folds:
        yield (
            f"no calibrations: they need {LEAST} queries and two classes in each half of the classes, and queries that "
            "are closer to their own. Hits among vectors of several versions are merged by cosine. More images help: "
            f"fixstar check {version} --data LABELLED_IMAGES"
        )


def facts(check: Check, each: float) -> dict[str, str]:
    """What the report's last section says of the gate."""
    below = f" less than {percent(check.tolerance)[:-2]} points below" if check.tolerance else " strictly above"
    found = {
        "Gate": f"{check.outcome}: {'; '.join(check.reasons)}",
        "Criterion": f"compatible where the cross-test is{below} the old version's self-test",
        "Confidence": (
            f"{100 * check.confidence:g} % for all cross-tests of {check.version} together, {100 * each:.3g} % for "
            "each cell, drawing single answers"
        ),
    }
    return {**found, "Notes": "; ".join(check.notes)} if check.notes else found
