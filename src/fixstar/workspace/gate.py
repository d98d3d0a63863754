"""The gate: may a version answer queries over the stored vectors? Cross-tests on images it never learnt decide.

The candidate's queries search the gallery of every version whose vectors they would meet. Each search is compared with
that version's own self-test, query by query (paired bootstrap), by exact search. All intervals hold together with the
confidence asked for: each of m cells gets an m-th of the error (Bonferroni). The candidate

    passes              if every interval lies above -tolerance (0 by default: eq. 6 is strict),
    is refused          if one lies wholly at or below it,
    misses evidence     otherwise; the check then says how much more is needed.

Calibrations, which let a search merge hits of several versions, are fitted on the way, and thresholds that tell a match
from what is probably not in the gallery; no verdict depends on them.

**Queries by two models**, slerp(old(x), new(x), alpha), are tried too, on every gallery whose model is here. Half of
the queries of each class choose alpha, the other half judges it by the same rule, so the choice among alphas needs no
correction. The verdicts on blended queries are a family of their own: all of them hold together with the confidence
asked for. Together with those on the new queries alone the error may be twice as large: take the confidence higher if
that matters. Where blended queries are not shown to be compatible, alpha is 0: the old query alone finds what it finds
now, and nothing is left to chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import FixstarError, NextStep, plural
from fixstar.evaluation import Difference, RateTable, Report, cross_test, flips, lost_queries, paired_bootstrap
from fixstar.evaluation.search import searcher
from fixstar.evaluation.trial import SHARES, Trial, searchable, trial_of_images
from fixstar.evaluation.verdicts import (
    GateRules,
    halves,
    in_points,
    judged_difference,
    missing_evidence,
    needed_queries,
)
from fixstar.geometry import blended
from fixstar.images import Preprocessing
from fixstar.wording import percent, points
from fixstar.workspace.adapters.fitting import fit_adapter
from fixstar.workspace.adapters.maps import VectorAdapter
from fixstar.workspace.calibrations import LEAST, calibrations_and_folds, catalogue_thresholds, search_curve
from fixstar.workspace.checks import (
    Blend,
    Check,
    CheckedCell,
    ClassChange,
    FlippedAnswer,
    Outcome,
    delete_old_flips,
    outweighing_check,
    save_check,
    save_flips,
)
from fixstar.workspace.files import require_writable
from fixstar.workspace.held_out import named_images, unlearnt_images
from fixstar.workspace.registry import Registry

if TYPE_CHECKING:
    from fixstar.data import ImageSet
    from fixstar.evaluation import BackfillCurve, CrossTest, VersionFeatures

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]
Hits = NDArray[np.bool_]
Indices = NDArray[np.int64]
Features = Callable[["ImageSet", "ImageSet", Sequence[str]], "Sequence[VersionFeatures]"]
"""The vectors that the named versions make of query and of gallery images."""

ALPHAS = tuple(number / 10 for number in range(11))
"""The shares of the way from the old query to the new one that are tried."""
LISTED = 20  # lost queries listed per cell, and as many won ones
LISTED_CLASSES = 10  # those that lose most, and those that win most
OUTCOMES: dict[str, Outcome] = {"compatible": "pass", "incompatible": "refuse", "not decided": "missing evidence"}
_VISIBLE = 0.005  # a drop that deserves a warning
PROPOSED_MAP = "ridge"
LEAST_PROPOSING = 50  # queries; fewer say nothing about a proposal


class _Finding(NamedTuple):
    """What was found about one gallery: the verdict, the evidence in a sentence, and what to do about it."""

    verdict: str
    reason: str
    next_steps: tuple[NextStep, ...] = ()


class Judged(NamedTuple):
    """A check, the trial that it judged, its cross-test, and accuracy over a backfill of each older gallery."""

    check: Check
    trial: Trial
    tested: CrossTest
    curves: Mapping[str, BackfillCurve]


def check_version(
    registry: Registry,
    version: str,
    searched: Sequence[str],
    features: Features,
    images: ImageSet | None = None,
    rules: GateRules | None = None,
    report: bool = True,
    adapters: Mapping[str, VectorAdapter] | None = None,
    data: str | None = None,
) -> Check:
    """Check a version against those whose vectors it would search; keep the verdict and the report.

    Without ``images``, those named ``data`` or pinned are used, else held-out ones that no version has learnt. Blended
    queries are tried through ``adapters``.
    """
    rules = rules or GateRules()
    require_writable(registry.path / "checks", "checks")
    known, card = registry.names(), registry.card(registry.checked(version))
    preprocessing = Preprocessing.from_json(card["preprocessing"])
    older = [name for name in known if name in searched and name != version]
    foreign = [name for name in searched if name not in known]
    source, learnt_by = "given", ()  # type: str, tuple[str, ...]
    if images is None:
        source, images = "named", named_images(registry.path, data)
    if images is None:
        source = "held out"
        images, learnt_by = unlearnt_images(registry, version, searched, preprocessing)
    judged: Judged | None = None
    if images is None or max(images.counts().values(), default=0) < 2:
        check = _without_images(version, [*older, *foreign], len(images or ()), learnt_by, rules)
    else:
        images = searchable(images, preprocessing, "skip")
        models = [name for name in known if name in (adapters or {})] + [*older, version]
        trial = trial_of_images(lambda q, g: features(q, g, models), images, seed=rules.seed)
        judged = judge(trial, rules, foreign, adapters)
        has_chosen = card["about"].get("validation") is not None or bool(card["about"].get("trials"))
        check = _with_image_notes(judged.check, source == "held out" and has_chosen, learnt_by)
        check = replace(check, next_steps=_distinct([*check.next_steps, *proposals(judged)]))
    check = replace(check, data=_described(images, source), when=datetime.now(UTC).isoformat(timespec="seconds"))
    if (stronger := outweighing_check(registry.path, check)) is not None:
        check = replace(check, notes=(*check.notes, _outweighed(stronger)))
    if judged is not None:
        if stronger is None:
            check = replace(check, pictures=save_flips(registry.path, check, judged.trial.thumbnails))
        if report and len(judged.tested.names) > 1:
            folder = f"checks/{version}" if stronger is None else f"checks/{version}/weaker"
            _report(judged._replace(check=check), rules).write(registry.path / folder)
            check = replace(check, report=f"{folder}/report.html")
    save_check(registry.path, check)
    if stronger is None:
        delete_old_flips(registry.path, check)
    return check


def judge(
    trial: Trial,
    rules: GateRules | None = None,
    foreign: Sequence[str] = (),
    adapters: Mapping[str, VectorAdapter] | None = None,
) -> Judged:
    """The verdict on a trial's last version; ``foreign`` versions are searched too, but their model is not here."""
    rules, adapters = rules or GateRules(), adapters or {}
    versions = [replace(one, adapt=None) for one in trial.versions]  # as they are stored
    direct = [one for one in versions if versions[-1].comparable_with(one) and one.name not in adapters]
    apart = [one for one in versions if one not in direct]
    trial = replace(trial, versions=direct)
    tested = cross_test(*trial.images, "image")
    version, cells, findings = tested.names[-1], list[CheckedCell](), list[_Finding]()
    for k in range(len(tested.names) - 1):
        cells.append(evaluate_cell(trial, tested, k, rules))
        findings.append(_cell_finding(version, cells[-1], len(trial.query_labels), len(tested.names) - 1, rules))
    findings += [
        _Finding(
            "incompatible",
            f"vectors of {version} and of {name} have different widths: its queries cannot search {name}'s gallery",
        )
        for name in (one.name for one in apart)
        if name not in adapters
    ]
    findings += [_foreign_finding(version, name) for name in foreign]
    verdicts = [finding.verdict for finding in findings]
    outcome: Outcome = "missing evidence" if "not decided" in verdicts else "pass"
    outcome = "refuse" if "incompatible" in verdicts else outcome
    findings.sort(key=lambda finding: OUTCOMES[finding.verdict] != outcome)  # what decided comes first
    calibrations, folds = calibrations_and_folds(*trial.images, rules.seed)
    *older, newest = direct
    curves = {old.name: search_curve((old, newest), *trial.images[1:], SHARES, folds, orders=3) for old in older}
    notes = list(_mixture_notes(newest.name, curves, len(trial.query_labels)))
    steps = [step for finding in findings for step in finding.next_steps]
    if len(tested.names) > 1 and not folds:
        notes.append(
            f"no calibrations: they need {LEAST} queries and two classes in each half of the classes, and queries that "
            "are closer to their own class. Hits among vectors of several versions are merged by cosine. More labelled "
            "images help"
        )
        steps.append(NextStep("check", {"version": version, "data": ...}, "more labelled images, for calibrations"))
    blends, searched_by, more = _blends(trial, apart, cells, rules, adapters)
    blend_calibrations = (
        calibrations_and_folds([*apart, *direct], *trial.images[1:], rules.seed, searched_by)[0] if searched_by else {}
    )
    if blends and not foreign and (outcome != "pass" or adapters):
        steps += [*more, _blend_step(version, blends)]
    check = Check(
        version,
        outcome,
        tuple(finding.reason for finding in findings) or (_alone(version),),
        tuple(cells),
        float(tested.matrix[-1, -1]),
        len(trial.query_labels),
        len(trial.gallery_labels),
        rules.confidence,
        rules.tolerance,
        notes=tuple(notes),
        calibrations={name: (one.slope, one.offset) for name, one in calibrations.items()},
        next_steps=_distinct(steps),
        blends=tuple(blends),
        blend_calibrations={name: (one.slope, one.offset) for name, one in blend_calibrations.items()},
        thresholds=catalogue_thresholds(*trial.images, rules.seed),
    )
    return Judged(check, trial, tested, curves)


def _distinct(steps: Sequence[NextStep]) -> tuple[NextStep, ...]:
    return tuple(step for row, step in enumerate(steps) if step not in steps[:row])


def evaluate_cell(trial: Trial, tested: CrossTest, k: int, rules: GateRules) -> CheckedCell:
    """The newest version's queries on gallery k."""
    newest = len(tested.names) - 1
    found = flips(tested.hits[k, k], tested.hits[newest, k], trial.query_labels)
    judged = judged_difference(tested.hits[newest, k], tested.hits[k, k], rules.shared(newest), rules)
    queries, gallery = trial.query_labels, trial.gallery_labels
    versions = trial.versions[k], trial.versions[newest]
    lost = lost_queries(found, queries, *versions, shown=LISTED)
    swapped = flips(tested.hits[newest, k], tested.hits[k, k], queries)  # its losses are what the newest version wins
    won = lost_queries(swapped, queries, *versions, shown=LISTED)
    changed = [one for one in found.classes if one.negative or one.positive]
    named_classes = dict.fromkeys([*changed[:LISTED_CLASSES], *changed[-LISTED_CLASSES:]])

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
        tuple(FlippedAnswer(named(queries[one.query]), named(gallery[one.after]), one) for one in lost),
        tuple(FlippedAnswer(named(queries[one.query]), named(gallery[one.before]), one) for one in won),
        tuple(ClassChange(named(one.label), one.queries, one.negative, one.positive) for one in named_classes),
    )


# --- queries by two models


def _blends(
    trial: Trial,
    apart: Sequence[VersionFeatures],
    cells: Sequence[CheckedCell],
    rules: GateRules,
    adapters: Mapping[str, VectorAdapter],
) -> tuple[list[Blend], dict[str, Floats], list[NextStep]]:
    """Blended queries on every older gallery, those [N, s] that search it instead of new ones, what would decide."""
    *older, newest = trial.versions
    labels = trial.query_labels
    choosing, judging = halves(labels, rules.seed)
    if rules.weight is not None:
        judging = np.arange(len(labels))
    asked = []
    for old in (*apart, *older):
        own = old.queries_in(old)
        adapter = adapters.get(old.name)
        by_new = adapter(newest.queries) if adapter else newest.queries_in(old) if old in older else None
        find, tried = searcher("image", old.gallery, trial.gallery_labels), rules.weight
        if by_new is None or not len(judging):
            tried = 0.0
        elif tried is None:
            pair, truth = (own[choosing], by_new[choosing]), labels[choosing]
            found = [find(blended(*pair, alpha), truth).mean() for alpha in ALPHAS]
            tried = ALPHAS[int(np.argmax(found))]  # of equal ones the closest to the old query
        asked.append(_Asked(old.name, own, by_new, find, tried))
    passed = {cell.version for cell in cells if cell.verdict == "compatible"}
    confidence = rules.shared(sum(one.tried > 0 for one in asked))
    judged = [_blend(one, judging, labels, one.name in passed, confidence, rules) for one in asked]
    blends, steps = [blend for blend, _ in judged], list[NextStep]()
    for blend, difference in judged:
        if difference is not None and blend.verdict == "not decided":
            needed = needed_queries(difference, blend.queries, confidence, rules.tolerance)
            images = 0 if needed is None else needed * 2 * (1 if rules.weight is not None else 2)
            note = f"about {images:,} labelled images would decide on queries blended with {blend.version}'s"
            steps += [NextStep("check", {"version": newest.name, "data": ...}, note)] if images else []
    names = {one.name for one in apart}
    searched_by = {
        one.name: one.at(blend.alpha)
        for one, blend in zip(asked, blends, strict=True)
        if blend.alpha < 1 or one.name in names
    }
    return blends, searched_by, steps


class _Asked(NamedTuple):
    """An older gallery, its own and the new version's queries in its space, and the best alpha of the choosing half."""

    name: str
    own: Floats
    by_new: Floats | None
    find: Callable[[Floats, Labels], Hits]
    tried: float

    def at(self, alpha: float) -> Floats:
        """The blended queries [N, s]."""
        return self.own if self.by_new is None else blended(self.own, self.by_new, alpha)


def _blend(
    asked: _Asked, judging: Indices, labels: Labels, passed: bool, confidence: float, rules: GateRules
) -> tuple[Blend, Difference | None]:
    """The verdict on the alpha that was chosen; ``passed`` says that the new queries alone are compatible."""
    own, alpha = asked.find(asked.own, labels), asked.tried
    if not alpha:
        accuracy, verdict = float(own.mean()), "apart" if asked.by_new is None else "unchanged"
        return Blend(asked.name, float(passed), 0.0, accuracy, accuracy, 0.0, 0.0, verdict, len(labels)), None
    before, after = own[judging], asked.find(asked.at(alpha)[judging], labels[judging])
    judged = judged_difference(after, before, confidence, rules)
    blend = Blend(
        asked.name,
        alpha if judged.verdict == "compatible" else float(passed),
        alpha,
        float(before.mean()),
        float(after.mean()),
        judged.low,
        judged.high,
        judged.verdict,
        len(judging),
    )
    return blend, judged


def _blend_step(version: str, blends: Sequence[Blend]) -> NextStep:
    """A deployment with blended queries, which finds no less than now."""
    shown = [f"{blend.alpha:g} with {blend.version}'s" for blend in blends if 0 < blend.alpha < 1]
    kept = [blend.version for blend in blends if not blend.alpha]
    parts = [f"queries by two models, alpha {', '.join(shown)}"] if shown else []
    parts += [f"vectors of {' and '.join(kept)} keep the old queries"] if kept else []
    return NextStep("deploy", {"version": version, "blend": "auto"}, "; ".join(parts))


# --- what the gate says


def cell_sentence(version: str, cell: CheckedCell, confidence: float, cells: int, tolerance: float) -> str:
    """The evidence of one cell."""
    limit = "above it" if not tolerance else f"less than {in_points(tolerance)} points below it"
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


def _cell_finding(version: str, cell: CheckedCell, queries: int, cells: int, rules: GateRules) -> _Finding:
    evidence = cell_sentence(version, cell, rules.confidence, cells, rules.tolerance)
    if cell.verdict != "not decided":
        return _Finding(cell.verdict, evidence)
    more = NextStep("check", {"version": version, "data": ...})
    told, steps = missing_evidence(cell.judged, queries, rules.shared(cells), rules.tolerance, more, "labelled images")
    return _Finding(cell.verdict, ". ".join([evidence, *told]), tuple(steps))


def _foreign_finding(version: str, other: str) -> _Finding:
    """Of searched vectors whose model is not here."""
    return _Finding(
        "not decided",
        f"the gallery holds vectors of {other}, and there is no model of that name: the accuracy of {other}'s own "
        f"queries cannot be measured. Searches leave its vectors out, unless {version} was trained to agree with them",
        (
            NextStep(
                "adapt", {"version": other, "queries_by": version}, "fit an adapter; labelled items are checked with it"
            ),
            NextStep(
                "import-vectors",
                {"file": ..., "name": f"{other.partition('@')[0]}@{version}"},
                f"if {version}'s model made these vectors elsewhere",
            ),
        ),
    )


def _alone(version: str) -> str:
    return f"only vectors of {version} itself are searched: there is no older gallery that it could fail on"


def _without_images(
    version: str, searched: Sequence[str], images: int, learnt_by: Sequence[str], rules: GateRules
) -> Check:
    """What can be said without labelled images: a version that is alone passes, another one misses all evidence."""
    outcome: Outcome = "pass" if not searched else "missing evidence"
    reason, steps = _alone(version), tuple[NextStep, ...]()
    if searched:
        if learnt_by:
            seen = f"{_may_have_learnt(learnt_by)}, and {'no two of one class are' if images else 'none is'} left"
        elif images:
            seen = f"there are {images:,} labelled images, but no two of one class"
        else:
            seen = f"no labelled images were held out when the versions up to {version} were trained"
        reason = (
            f"{seen}, so nothing shows what {version}'s queries find among vectors of {', '.join(searched)}. The check "
            "needs labelled images that the version was not trained on. The next training can hold out some"
        )
        steps = (
            NextStep("check", {"version": version, "data": ...}, "labelled images that it was not trained on"),
            NextStep("upgrade", {"data": ..., "hold_out": 0.1}, "the next training holds out some"),
        )
    return Check(version, outcome, (reason,), (), None, 0, 0, rules.confidence, rules.tolerance, next_steps=steps)


def _with_image_notes(check: Check, selected: bool, learnt_by: Sequence[str]) -> Check:
    """Notes on held-out images that also chose the epoch, and on those that could not be used."""
    notes = list(check.notes)
    if selected:
        notes.append(
            f"the images held out from {check.version}'s training also chose its epoch or its settings, so its figures "
            "are slightly too good; other images would be fairer"
        )
    if learnt_by:
        notes.append(
            f"{_may_have_learnt(learnt_by)}: those were not used. Hold out the same share at every training, or check "
            "with other images"
        )
    if len(notes) == len(check.notes):
        return check
    other = NextStep("check", {"version": check.version, "data": ...}, "other labelled images")
    return replace(check, notes=tuple(notes), next_steps=_distinct([*check.next_steps, other]))


def _outweighed(stronger: Check) -> str:
    return (
        f"the check of {stronger.when[:10]} still counts ({stronger.outcome}): it asked "
        f"{plural(stronger.queries, 'query')} of {plural(stronger.classes, 'class')} ({stronger.images}). "
        "This one is kept beside it"
    )


def _may_have_learnt(learnt_by: Sequence[str]) -> str:
    has = "has" if len(learnt_by) == 1 else "have"
    return f"{' and '.join(learnt_by)} {has} learnt images that others held out"


def _mixture_notes(newest: str, curves: Mapping[str, BackfillCurve], queries: int) -> Iterator[str]:
    """A warning for each old gallery that, partly re-embedded, does worse than as it is and than all new."""
    visible = max(_VISIBLE, 2 / queries)  # one or two queries are no reason to warn
    for old, curve in curves.items():
        accuracy = curve.accuracy
        worst = int(accuracy[1:-1].argmin()) + 1
        if accuracy[worst] < min(accuracy[0], accuracy[-1]) - visible:
            yield (
                f"a gallery that is {percent(SHARES[worst])} {newest}'s and the rest {old}'s finds only "
                f"{percent(float(accuracy[worst]))}, less than one that is all {old}'s ({percent(float(accuracy[0]))}) "
                f"or all {newest}'s ({percent(float(accuracy[-1]))}): a partial backfill is worse than none. "
                "Backfill all of it, or nothing"
            )


def _report(judged: Judged, rules: GateRules) -> Report:
    """The report of an evaluation, with the gate's intervals and its verdict."""
    check, trial, tested, curves = judged
    each, newest = rules.shared(len(check.cells)), len(tested.names) - 1
    below = f"less than {in_points(check.tolerance)} points below" if check.tolerance else "strictly above"
    facts = {
        **trial.facts,
        "Gate": f"{check.outcome}: {'; '.join(check.reasons)}",
        "Criterion": f"compatible if the cross-test is {below} the old version's self-test",
        "Confidence": (
            f"{100 * check.confidence:g} % for all cross-tests of {check.version} together, {100 * each:.3g} % for "
            "each cell; the bootstrap draws single answers"
        ),
    }
    if check.notes:
        facts["Notes"] = "; ".join(check.notes)
    made = replace(trial, facts=facts).report(tested, each, seed=rules.seed, curve=curves[tested.names[-2]])
    made.evidence[""] = {**made.evidence[""], **{(newest, k): cell.judged for k, cell in enumerate(check.cells)}}
    rows = {
        f"{check.version} with {blend.version}, alpha {blend.tried:g}: {blend.verdict}": (
            blend.self_test,
            blend.cross_test,
        )
        for blend in check.blends
    }
    columns = "the gallery's own queries", "both blended"
    table = RateTable("Queries by two models, on queries that did not choose alpha", columns, rows)
    made.tables = [*made.tables, table]
    return made


def _described(images: ImageSet | None, source: str) -> dict[str, Any]:
    if images is None:
        return {}
    counts = {"images": len(images), "classes": len(images.classes)}
    digest = images.fingerprint(read=source == "named")
    return {"name": images.name, "source": source, **counts, "fingerprint": digest}


# --- what would hold where the version's own queries do not: a map of queries, a backfill, or the old version


def proposals(judged: Judged) -> tuple[NextStep, ...]:
    """Ways to get past a check that did not pass, for the gallery that loses most; empty if too little was measured."""
    check, trial, _, curves = judged
    failed = [cell for cell in check.cells if cell.verdict != "compatible"]
    if check.outcome == "pass" or not failed or len(trial.query_labels) < LEAST_PROPOSING:
        return ()
    worst = min(failed, key=lambda cell: cell.difference)
    *older, new = trial.versions
    (old,) = [one for one in older if one.name == worst.version]
    keep = f"keep {old.name}, whose own queries find {percent(worst.self_test)}"
    return (
        *_map_step(trial, old, new, check),
        *_backfill_step(curves[old.name], worst.self_test),
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
        {"version": old.name, "queries_by": new.name, "kind": PROPOSED_MAP},
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
            adapter = fit_adapter(PROPOSED_MAP, X, Y)
        except FixstarError:  # too few pairs
            return None
        find = searcher("image", old.gallery, trial.gallery_labels)
        hits[asked] = find(adapter(new.queries[asked]), trial.query_labels[asked])
    return hits


def _expected(accuracy: float, found: Difference) -> str:
    return f"{percent(accuracy)} expected ({points(found.low)} to {points(found.high)} points)"


def _backfill_step(curve: BackfillCurve, now: float) -> Iterator[NextStep]:
    """The smallest share of the gallery that, re-embedded in random order, is measured to find more than now."""
    for share, accuracy in list(zip(SHARES, curve.accuracy.tolist(), strict=True))[1:]:
        if accuracy > now:
            yield NextStep(
                "backfill",
                {"budget": "all" if share == 1 else f"{share:.0%}"},
                f"once it is deployed: {percent(accuracy)} expected with {share:.0%} re-embedded, {percent(now)} now",
            )
            return
