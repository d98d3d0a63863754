"""The gate: may a version answer queries over the vectors that are there? By cross-tests on images it never learnt.

The candidate's queries search the gallery of every version whose vectors live; each search is held against that
version's own self-test, query by query (paired bootstrap), by exact search. All intervals hold together with the
confidence asked for: each of m cells gets an m-th of the error (Bonferroni). The candidate

    passes                    where every interval lies above -tolerance (0 unless told: eq. 6 is strict),
    is refused                where one lies wholly at or below it,
    lacks evidence            otherwise, and then it is said how much.

Calibrations, by which a search merges hits of several versions, are fitted on the way; no verdict rests on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fixstar.errors import InputError
from fixstar.evaluation import Difference, Flips, Report, cross_test, flips, lost_queries, paired_bootstrap
from fixstar.evaluation.report import needed_resamples
from fixstar.evaluation.trial import SHARES, Trial, searchable, trial_of_images
from fixstar.images import Preprocessing
from fixstar.lifecycle import gate_words
from fixstar.lifecycle.calibrating import tried_calibrations, tried_curve
from fixstar.lifecycle.checks import Check, CheckedCell, LostAnswer, Outcome, save_check
from fixstar.lifecycle.evidence_needed import least_differing, needed_queries, way_out
from fixstar.lifecycle.flip_pictures import forget_flips, keep_flips
from fixstar.lifecycle.held_out import unlearnt_images
from fixstar.lifecycle.registry import Registry

if TYPE_CHECKING:
    from fixstar.data import ImageSet
    from fixstar.evaluation import CrossTest, VersionFeatures

__all__ = ["GateRules", "check_version", "run_check", "tried_cell"]

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
        missing = gate_words.without_images(version, [*older, *foreign], len(images or ()), learnt_by)
        check = _unmeasured(version, missing if older or foreign else None, rules)
    else:
        images = searchable(images, preprocessing, "skip")
        trial = trial_of_images(lambda q, g: features(q, g, [*older, version]), images, seed=rules.seed)
        tested = _tested(trial)
        check = run_check(trial, rules, tested, foreign)
        check = replace(check, pictures=keep_flips(registry.path, check, trial.thumbnails))
        selected = source == "held out" and card["about"].get("validation") is not None
        check = replace(check, notes=(*check.notes, *gate_words.image_notes(version, selected, learnt_by)))
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
    said += [("incompatible", gate_words.apart_sentence(version, name)) for name in apart]
    said += [("not decided", gate_words.foreign_sentence(version, name)) for name in foreign]
    outcome = _outcome([verdict for verdict, _ in said])
    decisive = {"refuse": "incompatible", "missing evidence": "not decided", "pass": "compatible"}[outcome]
    said.sort(key=lambda one: one[0] != decisive)  # what decided it comes first
    fitted, folds = tried_calibrations(*_met(trial, tested), rules.seed)
    return Check(
        version,
        outcome,
        tuple(text for _, text in said) or (gate_words.alone_sentence(version),),
        tuple(cells),
        float(tested.matrix[newest, newest]),
        len(trial.query_labels),
        len(trial.gallery_labels),
        rules.confidence,
        rules.tolerance,
        notes=tuple(gate_words.mixture_notes(_as_searched(trial), tested, folds)),
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
    met = [version for version in versions if versions[-1].meets(version)]
    return cross_test(met, trial.query_labels, trial.gallery_labels, "image")


def _cell_reason(
    version: str, cell: CheckedCell, judged: Difference, queries: int, cells: int, rules: GateRules
) -> str:
    """The evidence in words; where it does not decide, also how much would."""
    evidence = gate_words.cell_sentence(version, cell, rules.confidence, cells, rules.tolerance)
    if judged.verdict != "not decided":
        return evidence
    each, command, more = rules.shared(cells), f"fixstar check {version}", " --data LABELLED_IMAGES"
    needed = needed_queries(judged, queries, each, rules.tolerance)
    told = [gate_words.needed_sentence(cell, queries, needed, command + more)]
    if needed is None or not rules.tolerance:
        way = way_out(judged, queries, each, rules.tolerance)
        told.append(gate_words.tolerance_sentence(command, cell, queries, way, more))
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
    facts = {**trial.facts, **gate_words.facts(check, each)}
    made = replace(trial, versions=met, facts=facts).report(tested, each, seed=rules.seed)
    measured = {
        (newest, k): Difference(cell.difference, cell.low, cell.high, cell.verdict, cell.differing)  # type: ignore[arg-type]
        for k, cell in enumerate(check.cells)
    }
    folds = tried_calibrations(met, queries, gallery, rules.seed)[1]
    curve = tried_curve((met[-2], met[-1]), queries, gallery, SHARES, folds, orders=3)
    return replace(made, evidence={"": {**made.evidence[""], **measured}}, backfill={"": curve})


def _unmeasured(version: str, missing: str | None, rules: GateRules) -> Check:
    """What can be said without images: a version that is alone passes, another one lacks all evidence."""
    outcome: Outcome = "pass" if missing is None else "missing evidence"
    reason = missing or gate_words.alone_sentence(version)
    return Check(version, outcome, (reason,), (), None, 0, 0, rules.confidence, rules.tolerance)


def _described(images: ImageSet | None, source: str) -> dict[str, Any]:
    if images is None:
        return {}
    counts = {"images": len(images), "classes": len(images.classes)}
    return {"name": images.name, "source": source, **counts, "fingerprint": images.fingerprint()}
