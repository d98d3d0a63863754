"""The gate: may a version answer queries over the vectors that are there? By cross-tests on images it never learnt.

The candidate's queries search the gallery of every version whose vectors live; each search is held against that
version's own self-test, query by query (paired bootstrap), by exact search. All intervals hold together with the
confidence asked for: each of m cells gets an m-th of the error (Bonferroni). The candidate

    passes                    where every interval lies above -tolerance (0 unless told: eq. 6 is strict),
    is refused                where one lies wholly at or below it,
    lacks evidence            otherwise, and then it is said how much.

Calibrations, by which a search merges hits of several versions, are fitted on the way; no verdict rests on them.

What the gate found out, in sentences with numbers.

Where a difference is not decided: how many queries would decide it, and what may be lost for these to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from fixstar.errors import InputError
from fixstar.evaluation import Difference, Flips, Report, cross_test, flips, lost_queries, paired_bootstrap
from fixstar.evaluation.evidence import needed_resamples
from fixstar.evaluation.report import percent, points
from fixstar.evaluation.trial import SHARES, Trial, searchable, trial_of_images
from fixstar.images import Preprocessing
from fixstar.workspace.calibrations import LEAST, Fold, tried_calibrations, tried_curve
from fixstar.workspace.checks import Check, CheckedCell, LostAnswer, Outcome, forget_flips, keep_flips, save_check
from fixstar.workspace.held_out import unlearnt_images
from fixstar.workspace.registry import Registry

if TYPE_CHECKING:
    from fixstar.data import ImageSet
    from fixstar.evaluation import CrossTest, VersionFeatures

__all__ = [
    "GateRules",
    "WayOut",
    "alone_sentence",
    "apart_sentence",
    "cell_sentence",
    "check_version",
    "facts",
    "foreign_sentence",
    "image_notes",
    "least_differing",
    "mixture_notes",
    "needed_queries",
    "needed_sentence",
    "run_check",
    "tolerance_sentence",
    "tried_cell",
    "way_out",
    "without_images",
]

Features = Callable[["ImageSet", "ImageSet", Sequence[str]], "Sequence[VersionFeatures]"]
"""The vectors that the named versions make of query and of gallery images."""

LISTED = 20  # lost queries that a cell names


@dataclass(frozen=True)
class GateRules:
    """How sure the gate wants to be, and how much of the old self-test may be lost: fractions.

    ``seed`` divides the images into gallery and queries and draws the resamples.
    """

    confidence: float = 0.95
    tolerance: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence is a fraction between 0 and 1, such as 0.95; got {self.confidence:g}")
        if not 0 <= self.tolerance < 1:
            raise InputError(f"tolerance is a fraction from 0 to 1, such as 0.01 for a point; got {self.tolerance:g}")
        if self.seed < 0:
            raise InputError(f"a seed is a number from 0 on, got {self.seed}")

    def shared(self, cells: int) -> float:
        """The confidence of each of several intervals that are to hold together (Bonferroni)."""
        return 1 - (1 - self.confidence) / max(cells, 1)


def check_version(
    registry: Registry,
    version: str,
    live: Sequence[str],
    features: Features,
    images: ImageSet | None = None,
    rules: GateRules | None = None,
    report: bool = True,
) -> Check:
    """Check a version against the ``live`` ones, keep the verdict (checks/v2.json) and the report (checks/v2/).

    Without ``images`` those are asked about that were held out at training and that none of these versions has learnt.
    """
    rules = rules or GateRules()
    known, card = registry.names(), registry.card(registry.checked(version))
    preprocessing = Preprocessing.from_json(card["preprocessing"])
    older = [name for name in known if name in live and name != version]
    foreign = [name for name in live if name not in known]
    source, learnt_by = "given" if images is not None else "held out", ()  # type: str, tuple[str, ...]
    if images is None:
        images, learnt_by = unlearnt_images(registry, version, live, preprocessing)
    if images is None or max(images.counts().values(), default=0) < 2:
        missing = without_images(version, [*older, *foreign], len(images or ()), learnt_by)
        check = _unmeasured(version, missing if older or foreign else None, rules)
    else:
        images = searchable(images, preprocessing, "skip")
        trial = trial_of_images(lambda q, g: features(q, g, [*older, version]), images, seed=rules.seed)
        tested = _tested(trial)
        check = run_check(trial, rules, tested, foreign)
        check = replace(check, pictures=keep_flips(registry.path, check, trial.thumbnails))
        selected = source == "held out" and card["about"].get("validation") is not None
        check = replace(check, notes=(*check.notes, *image_notes(version, selected, learnt_by)))
        if report and len(tested.names) > 1:
            _report(trial, tested, check, rules).write(registry.path / "checks" / version)
            check = replace(check, report=f"checks/{version}/report.html")
    check = replace(check, data=_described(images, source), when=datetime.now(UTC).isoformat(timespec="seconds"))
    save_check(registry.path, check)
    forget_flips(registry.path, check)
    return check


def run_check(
    trial: Trial, rules: GateRules | None = None, tested: CrossTest | None = None, foreign: Sequence[str] = ()
) -> Check:
    """The verdict on the last version of a trial against all others.

    ``tested`` saves making the cross-test again. ``foreign`` names live vectors whose model is not here to be asked.
    """
    rules = rules or GateRules()
    tested = tested or _tested(trial)
    *names, version = tested.names
    newest = len(names)
    cells, said = [], []
    for k in range(newest):
        cell, judged = tried_cell(trial, tested, k, rules)
        cells.append(cell)
        said.append((judged.verdict, _cell_reason(version, cell, judged, len(trial.query_labels), newest, rules)))
    apart = [old.name for old in trial.versions if old.name not in tested.names]
    said += [("incompatible", apart_sentence(version, name)) for name in apart]
    said += [("not decided", foreign_sentence(version, name)) for name in foreign]
    outcome = _outcome([verdict for verdict, _ in said])
    decisive = {"refuse": "incompatible", "missing evidence": "not decided", "pass": "compatible"}[outcome]
    said.sort(key=lambda one: one[0] != decisive)  # what decided it comes first
    fitted, folds = tried_calibrations(*_met(trial, tested), rules.seed)
    return Check(
        version,
        outcome,
        tuple(text for _, text in said) or (alone_sentence(version),),
        tuple(cells),
        float(tested.matrix[newest, newest]),
        len(trial.query_labels),
        len(trial.gallery_labels),
        rules.confidence,
        rules.tolerance,
        notes=tuple(mixture_notes(_as_searched(trial), tested, folds)),
        calibrations={name: (one.slope, one.offset) for name, one in fitted.items()},
    )


def tried_cell(trial: Trial, tested: CrossTest, k: int, rules: GateRules) -> tuple[CheckedCell, Difference]:
    """The newest version's queries on gallery k: what is kept of it, and the difference with its verdict."""
    newest = len(tested.names) - 1
    found = flips(tested.hits[k, k], tested.hits[newest, k], trial.query_labels)
    judged = _judged(tested, k, found, rules)
    return _cell(trial, tested, k, found, judged), judged


def _as_searched(trial: Trial) -> Trial:
    """A gallery is searched as it is: without what a version has to move old vectors into its own space."""
    return replace(trial, versions=[replace(version, adapt=None) for version in trial.versions])


def _met(trial: Trial, tested: CrossTest) -> tuple[list[VersionFeatures], Any, Any]:
    """The vectors of the versions that were tested, and the labels of queries and gallery."""
    versions = [version for version in _as_searched(trial).versions if version.name in tested.names]
    return versions, trial.query_labels, trial.gallery_labels


def _tested(trial: Trial) -> CrossTest:
    """The cross-test, without versions whose vectors the newest one's cannot be compared with."""
    versions = _as_searched(trial).versions
    met = [version for version in versions if versions[-1].comparable_with(version)]
    return cross_test(met, trial.query_labels, trial.gallery_labels, "image")


def _cell_reason(
    version: str, cell: CheckedCell, judged: Difference, queries: int, cells: int, rules: GateRules
) -> str:
    """The evidence in words; where it does not decide, also how much would."""
    evidence = cell_sentence(version, cell, rules.confidence, cells, rules.tolerance)
    if judged.verdict != "not decided":
        return evidence
    each, command, more = rules.shared(cells), f"fixstar check {version}", " --data LABELLED_IMAGES"
    needed = needed_queries(judged, queries, each, rules.tolerance)
    told = [needed_sentence(cell, queries, needed, command + more)]
    if needed is None or not rules.tolerance:
        way = way_out(judged, queries, each, rules.tolerance)
        told.append(tolerance_sentence(command, cell, queries, way, more))
    return ". ".join([evidence, *filter(None, told)])


def _judged(tested: CrossTest, k: int, found: Flips, rules: GateRules) -> Difference:
    """The difference on gallery k with its interval, and the verdict by the tolerance.

    Where few queries differ the bootstrap sees too little. The interval is then at least that of the flips alone: the
    exact one of a rare event (Clopper and Pearson, 1934).
    """
    newest = len(tested.names) - 1
    each = rules.shared(newest)
    outcomes = tested.hits[newest, k], tested.hits[k, k]
    measured = paired_bootstrap(*outcomes, confidence=each, resamples=needed_resamples(each), seed=rules.seed)
    low, high = measured.low, measured.high
    if measured.differing < least_differing(each):
        low = min(low, -_highest_rate(len(found.negative), found.queries, each))
        high = max(high, _highest_rate(len(found.positive), found.queries, each))
    if low > -rules.tolerance:
        return replace(measured, low=low, high=high, verdict="compatible")
    return replace(measured, low=low, high=high, verdict="incompatible" if high <= -rules.tolerance else "not decided")


def _highest_rate(seen: int, of: int, confidence: float) -> float:
    """The highest rate at which an event is seen so seldom in a share (1 - confidence) / 2 of all cases."""
    low, high = seen / of, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        so_seldom = math.fsum(math.comb(of, i) * rate**i * (1 - rate) ** (of - i) for i in range(seen + 1))
        low, high = (rate, high) if so_seldom > (1 - confidence) / 2 else (low, rate)
    return high


def _outcome(verdicts: Sequence[str]) -> Outcome:
    if "incompatible" in verdicts:
        return "refuse"
    return "missing evidence" if "not decided" in verdicts else "pass"


def _cell(trial: Trial, tested: CrossTest, k: int, found: Flips, judged: Difference) -> CheckedCell:
    newest, vectors = len(tested.names) - 1, {version.name: version for version in _as_searched(trial).versions}
    both = vectors[tested.names[k]], vectors[tested.names[newest]]
    queries, gallery = trial.query_labels, trial.gallery_labels
    lost = lost_queries(found, queries, *both, shown=LISTED)

    def named(label: int) -> str:
        return trial.classes.get(int(label), str(label))

    return CheckedCell(
        tested.names[k],
        float(tested.matrix[k, k]),
        float(tested.matrix[newest, k]),
        judged.low,
        judged.high,
        judged.verdict,
        judged.differing,
        len(found.negative),
        len(found.positive),
        tuple(LostAnswer(named(queries[one.query]), named(gallery[one.after]), one) for one in lost),
    )


def _report(trial: Trial, tested: CrossTest, check: Check, rules: GateRules) -> Report:
    """The report of ``fixstar evaluate``, with the gate's intervals and its verdict."""
    each, newest = rules.shared(len(check.cells)), len(tested.names) - 1
    met, queries, gallery = _met(trial, tested)
    described = {**trial.facts, **facts(check, each)}
    made = replace(trial, versions=met, facts=described).report(tested, each, seed=rules.seed)
    measured = {
        (newest, k): Difference(cell.difference, cell.low, cell.high, cell.verdict, cell.differing)  # type: ignore[arg-type]
        for k, cell in enumerate(check.cells)
    }
    folds = tried_calibrations(met, queries, gallery, rules.seed)[1]
    curve = tried_curve((met[-2], met[-1]), queries, gallery, SHARES, folds, orders=3)
    made.evidence[""] = {**made.evidence[""], **measured}
    made.backfill = {"": curve}
    return made


def _unmeasured(version: str, missing: str | None, rules: GateRules) -> Check:
    """What can be said without images: a version that is alone passes, another one lacks all evidence."""
    outcome: Outcome = "pass" if missing is None else "missing evidence"
    reason = missing or alone_sentence(version)
    return Check(version, outcome, (reason,), (), None, 0, 0, rules.confidence, rules.tolerance)


def _described(images: ImageSet | None, source: str) -> dict[str, Any]:
    if images is None:
        return {}
    counts = {"images": len(images), "classes": len(images.classes)}
    return {"name": images.name, "source": source, **counts, "fingerprint": images.fingerprint()}


MIXTURE_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of a gallery re-embedded
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
        curve = tried_curve((vectors[name], vectors[version]), *labels, MIXTURE_SHARES, folds, orders=3).accuracy
        worst = int(curve[1:-1].argmin()) + 1
        if curve[worst] < min(curve[0], curve[-1]) - visible:
            yield (
                f"a gallery that is {percent(MIXTURE_SHARES[worst])} {version}'s and for the rest {name}'s finds only "
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


_SMALL_TOLERANCE = 0.05  # a tolerance that somebody may mean; larger ones only show that evidence is missing
_POINT = 0.01


class WayOut(NamedTuple):
    """A tolerance by which a difference would be compatible: with ``needed`` queries; None stands for these."""

    tolerance: float
    needed: int | None


def needed_queries(found: Difference, queries: int, confidence: float, tolerance: float = 0.0) -> int | None:
    """About how many queries would decide, if the difference stays what it is: rounded up to two digits.

    An interval narrows with the square root of the queries, hence n (half width / distance from -tolerance)^2. Where
    almost none differ its width falls with the queries themselves, and enough of them must differ. None where no
    number would do.

    >>> needed_queries(Difference(0.02, -0.02, 0.06, "not decided", 30), 200, 0.95)
    800
    """
    distance = found.mean + tolerance
    half = found.mean - found.low if distance > 0 else found.high - found.mean
    if not distance or (not found.differing and not tolerance):
        return None
    least = least_differing(confidence)
    if found.differing >= least:
        needed = queries * (half / distance) ** 2
    elif tolerance:
        needed = queries * half / abs(distance)
    else:
        needed = queries * least / found.differing
    unit = int(10 ** max(0, math.floor(math.log10(max(needed, 1))) - 1))
    return max(queries + 1, math.ceil(round(needed / unit, 9)) * unit)


def way_out(found: Difference, queries: int, confidence: float, tolerance: float = 0.0) -> WayOut | None:
    """The least tolerance in whole points that these queries show to be kept, if it is a small one.

    Else a point, or twice the present tolerance, with the queries that it takes. None where that would be refused.

    >>> way_out(Difference(-0.001, -0.013, 0.011, "not decided", 411), 3290, 0.95)
    WayOut(tolerance=0.02, needed=None)
    >>> way_out(Difference(0.0, -0.214, 0.214, "not decided", 6), 28, 0.95)
    WayOut(tolerance=0.01, needed=13000)
    """
    least = (math.floor(round(-found.low / _POINT, 9)) + 1) * _POINT
    if least <= _SMALL_TOLERANCE:
        return WayOut(round(least, 2), None)
    wanted = 2 * tolerance or _POINT
    if found.mean + wanted <= 0 or wanted >= 1:
        return None
    return WayOut(wanted, needed_queries(found, queries, confidence, wanted))


def least_differing(confidence: float) -> int:
    """So many differing queries, all of one mind, are evidence: n coins agree with probability 2^(1-n)."""
    return math.ceil(1 - math.log2(1 - confidence) - 1e-9)
