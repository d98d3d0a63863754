"""The gate decides whether a version may answer queries over the stored vectors, by searches for unlearnt images.

The candidate's queries search the vectors of every other version through their translations (``translations``). Each
search is exact and compared with that version's own queries on its own vectors, query by query (paired bootstrap).
All intervals together have the requested confidence: each of m cells gets an m-th of the error (Bonferroni). The
candidate

    passes              if every interval lies above -tolerance (0 by default: eq. 6 of HOC is strict),
    is refused          if one interval lies at or below -tolerance,
    misses evidence     otherwise; the check then says how many more queries are needed.

**Queries that choose do not judge.** Half of the queries of each class choose the maps and the weight of a translation.
The other half judges, and all figures of the check come from it. If there is nothing to choose, all queries judge. The
choosing half prefers one model per query over two if it finds as much. If it takes two, one model is judged too, as a
separate family of tests.

The check also fits calibrations, which let a search rank vectors of several versions together, and thresholds below
which a hit is probably not a match. No verdict depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import NextStep, plural
from fixstar.evaluation import (
    CrossTest,
    Report,
    VersionFeatures,
    flips,
    gallery_query_split,
    lost_queries,
)
from fixstar.evaluation.labelled_vectors import (
    SHARES,
    LabelledVectors,
    searchable,
    vectors_of_images,
)
from fixstar.evaluation.relevance import Relevant
from fixstar.evaluation.retrieval import MEASURED
from fixstar.evaluation.verdicts import (
    GateRules,
    halves,
    in_points,
    judged_difference,
    missing_evidence,
    needed_queries,
)
from fixstar.images import Preprocessing
from fixstar.models.encoder import inputs_of
from fixstar.texts import Prompts, in_words_of
from fixstar.translation import Evidence, Translation, by_class, choose, translated
from fixstar.translation.calibrate import (
    LEAST,
    Calibration,
    calibrations_and_folds,
    catalogue_thresholds,
    fit_calibrations,
    search_curve,
)
from fixstar.translation.choose import by_relevance, gain, with_fewest_models
from fixstar.translation.score import translated_pair
from fixstar.versions import named_in_space
from fixstar.wording import percent, points
from fixstar.workspace.checks import (
    Check,
    CheckedCell,
    ClassChange,
    FlippedAnswer,
    OneModel,
    Outcome,
    delete_old_flips,
    outweighing_check,
    save_check,
    save_flips,
)
from fixstar.workspace.deployment import Rollout
from fixstar.workspace.held_out import named_images, unlearnt_images
from fixstar.workspace.pairs import Searched, with_scales
from fixstar.workspace.registry import Registry
from fixstar.workspace.relevant import KnownRelevant
from fixstar.workspace.translations import CHOSEN

if TYPE_CHECKING:
    from fixstar.data import ImageSet
    from fixstar.evaluation import BackfillCurve

Labels = NDArray[np.integer[Any]]
Indices = NDArray[np.int64]
Features = Callable[["ImageSet", "ImageSet", Sequence[str]], "Sequence[VersionFeatures]"]
"""Embeds query and gallery images with the named versions."""

DECIDING = "nDCG@10"  # with known relevant items
LISTED = 20  # lost queries listed per cell, and won queries likewise
LISTED_CLASSES = 10  # the classes that lose most and win most
OUTCOMES: dict[str, Outcome] = {
    "compatible": "pass",
    "incompatible": "refuse",
    "not decided": "missing evidence",
}
LEAST_PROPOSING = 50  # minimum number of queries for a proposal
_VISIBLE = 0.005  # a drop that deserves a warning
_NO_CALIBRATIONS = (
    f"no calibrations: they need {LEAST} queries and two classes in each half of the classes, and queries that "
    "are closer to their own class. Hits among vectors of several versions are ranked by scores that are "
    "standardised without labels. More labelled images help"
)


class Finding(NamedTuple):
    """The finding on one version's vectors: verdict, evidence in a sentence, and next steps."""

    verdict: str
    reason: str
    next_steps: tuple[NextStep, ...] = ()


class GateResult(NamedTuple):
    """A check, the vectors that it judged, its cross-test, what was chosen, and accuracy over a backfill by version."""

    check: Check
    labelled: LabelledVectors
    tested: CrossTest
    chosen: Mapping[str, Translation]
    curves: Mapping[str, BackfillCurve]


def check_version(
    registry: Registry,
    rollout: Rollout,
    version: str,
    searched: Sequence[Searched],
    features: Features,
    keep: Callable[[Translation], str],
    *,
    images: ImageSet | None = None,
    rules: GateRules | None = None,
    report: bool = True,
    data: str | None = None,
) -> Check:
    """Check a version against those whose vectors it would search; store verdict, translations and report.

    ``images`` default to those named ``data`` or pinned, else held-out images that no version has learnt. ``keep``
    stores a translation and returns its file name.
    """
    rules = rules or GateRules()
    card = registry.card(registry.checked(version))
    inputs = inputs_of(card)
    names = [one.name for one in searched]
    learnt_by: tuple[str, ...] = ()
    source = "given"
    if images is None:
        source = "named"
        images = named_images(registry.path, data)
    if images is None:
        source = "held out"
        if isinstance(inputs, Preprocessing):  # nothing is trained on texts, so nothing is held out
            images, learnt_by = unlearnt_images(
                registry, version=version, searched=names, preprocessing=inputs
            )
    judged: GateResult | None = None
    usable = images is not None and max(images.counts().values(), default=0) > 1
    if images is not None and usable:
        images = searchable(images, inputs, "skip")
        models = [one.name for one in searched if one.has_model]
        ordered = [name for name in registry.names() if name in models]
        labelled = vectors_of_images(
            lambda q, g: features(q, g, [*ordered, version]), images, seed=rules.seed
        )
        judged = judge(labelled, searched, rules)
        has_chosen = card["about"].get("validation") is not None or bool(
            card["about"].get("trials")
        )
        check = _with_image_notes(judged.check, source == "held out" and has_chosen, learnt_by)
        proposed = proposals(judged, deployed=rollout.current())
        check = replace(check, next_steps=_distinct([*check.next_steps, *proposed]))
        check = _with_files(check, judged.chosen, keep)
    else:
        check = _without_images(
            version,
            searched=searched,
            images=len(images or ()),
            learnt_by=learnt_by,
            rules=rules,
            keep=keep,
            can_upgrade=registry.can_upgrade(),
        )
    check = replace(
        check, data=_described(images, source), when=datetime.now(UTC).isoformat(timespec="seconds")
    )
    stronger = outweighing_check(registry.path, check)
    if stronger is not None:
        check = replace(check, notes=(*check.notes, _outweighed(stronger)))
    if isinstance(inputs, Prompts):
        check = _about_texts(check)
    if judged is not None:
        if stronger is None:
            check = replace(
                check, pictures=save_flips(registry.path, check, judged.labelled.thumbnails)
            )
        if report and len(judged.tested.names) > 1:
            if stronger is None:
                folder = f"checks/{version}"
            else:
                folder = f"checks/{version}/weaker"
            _report(judged._replace(check=check), rules).write(registry.path / folder)
            check = replace(check, report=f"{folder}/report.html")
    save_check(registry.path, check)
    if stronger is None:
        delete_old_flips(registry.path, check)
    return check


def check_relevance(
    registry: Registry,
    version: str,
    searched: Sequence[Searched],
    features: Features,
    keep: Callable[[Translation], str],
    *,
    known: KnownRelevant,
    rules: GateRules | None = None,
) -> Check:
    """As ``check_version``, judged by queries with known relevant items of the gallery instead of labels."""
    rules = rules or GateRules()
    registry.checked(version)
    models = [one.name for one in searched if one.has_model]
    ordered = [name for name in registry.names() if name in models]
    made = [known.features(features, name) for name in [*ordered, version]]
    check, chosen = judge_relevance(made, searched=searched, known=known, rules=rules)
    check = _with_files(check, chosen, keep)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    check = _about_texts(replace(check, data=known.data, when=when))
    stronger = outweighing_check(registry.path, check)
    if stronger is not None:
        check = replace(check, notes=(*check.notes, _outweighed(stronger)))
    save_check(registry.path, check)
    if stronger is None:
        delete_old_flips(registry.path, check)
    return check


def judge_relevance(
    made: Sequence[VersionFeatures],
    searched: Sequence[Searched],
    known: KnownRelevant,
    rules: GateRules,
) -> tuple[Check, dict[str, Translation]]:
    """The verdict on the last version by known relevant items: nDCG@10 decides, other measures are reported."""
    *older, newest = made
    features = {one.name: one for one in older}
    measured = [one for one in searched if one.name in features and one.measurable]
    number = len(known.queries)
    choosing, judging = halves(np.zeros(number, np.int64), rules.seed)
    chooses = rules.weight is None and any(one.chooses for one in measured) and len(judging) > 0
    rows = judging if chooses else np.arange(number)
    judged_by = _with_rows(known.relevant, rows)
    chosen: dict[str, Translation] = {}
    cells: list[CheckedCell] = []
    findings: list[Finding] = []
    for one in searched:
        if one not in measured:
            findings.append(_unmeasured(newest.name, one))
            continue
        evidence = Evidence(features[one.name], newest, by_relevance(known.relevant, DECIDING))
        way = _as_chosen(
            _chosen(one, evidence=evidence, rows=choosing if chooses else None, rules=rules),
            evidence,
        )
        chosen[one.name] = way
        old = features[one.name].take(rows)
        new = newest.take(rows)
        part = Evidence(old, new, by_relevance(judged_by, DECIDING))
        cell = _evidence_cell(
            one.name,
            way=way,
            evidence=part,
            rows=np.arange(len(rows)),
            rules=rules,
            cells=len(measured),
        )
        beside = {
            name: _beside(Evidence(old, new, by_relevance(judged_by, name)), way)
            for name in MEASURED
        }
        alone = _one_model(
            way, evidence=part, before=part.before(), rules=rules, cells=len(measured)
        )
        cells.append(replace(cell, measured=beside, one_model=alone))
        findings.append(
            _relevance_finding(
                newest.name,
                cell=cells[-1],
                queries=len(rows),
                cells=len(measured),
                rules=rules,
                chooses=chooses,
            )
        )
    outcome = _worst([finding.verdict for finding in findings])
    findings.sort(key=lambda finding: OUTCOMES[finding.verdict] != outcome)
    steps = [step for finding in findings for step in finding.next_steps]
    if outcome != "pass" and cells and all(one.has_model for one in searched):
        steps.append(_old_queries_step(newest.name, [cell.version for cell in cells]))
    own = Evidence(newest.take(rows), newest.take(rows), by_relevance(judged_by, DECIDING))
    check = Check(
        version=newest.name,
        outcome=outcome,
        reasons=tuple(finding.reason for finding in findings) or (_alone(newest.name),),
        cells=tuple(cells),
        self_test=float(own.reembedded().mean()),
        queries=len(rows),
        gallery=len(known.gallery),
        confidence=rules.confidence,
        tolerance=rules.tolerance,
        notes=tuple(
            _relevance_notes(known, any(way.forward is not None for way in chosen.values()))
        ),
        next_steps=_distinct(steps),
    )
    return check, chosen


def _with_rows(relevant: Relevant, rows: Indices) -> Relevant:
    """The relevant items of a subset of the queries."""
    places = rows.tolist()
    return relevant._replace(
        queries=relevant.queries[rows],
        items=[relevant.items[row] for row in places],
        grades=[relevant.grades[row] for row in places],
    )


def _beside(evidence: Evidence, way: Translation) -> dict[str, float]:
    """One measure for the three searches: now, at once, and with everything re-embedded."""
    return {
        "before": float(evidence.before().mean()),
        "after": float(evidence.outcomes(way).mean()),
        "reembedded": float(evidence.reembedded().mean()),
    }


def _relevance_finding(
    version: str, cell: CheckedCell, queries: int, cells: int, rules: GateRules, chooses: bool
) -> Finding:
    evidence = cell_sentence(
        version, cell=cell, confidence=rules.confidence, cells=cells, tolerance=rules.tolerance
    )
    if cell.verdict != "not decided":
        return Finding(cell.verdict, evidence)
    needed = needed_queries(
        cell.judged, queries=queries, confidence=rules.shared(cells), tolerance=rules.tolerance
    )
    told = "If it stays like this, more queries would not show a gain"
    if needed is not None:
        told = (
            f"If it stays like this, about {needed:,} queries would decide; there were {queries:,}"
        )
        if chooses:
            told += f". Half of them choose, so that takes about {2 * needed:,} queries with known relevant items"
    return Finding(cell.verdict, f"{evidence}. {told}")


def _relevance_notes(known: KnownRelevant, translated_by_map: bool) -> Iterator[str]:
    relevant = known.relevant
    if relevant.unknown:
        yield f"left out: {plural(relevant.unknown, 'judged query')} without a text in the file of queries"
    if relevant.alone:
        yield f"left out: {plural(relevant.alone, 'query')} whose relevant items are not stored"
    if len(known.gallery) < known.stored:
        yield f"{len(known.gallery):,} of {known.stored:,} stored items were searched; in all of them less is found"
    if translated_by_map:
        yield "maps may be fitted on some of the items that are searched here, and on none of the queries"


def _about_texts(check: Check) -> Check:
    """The check with its sentences, which are written for images, rephrased for texts."""
    worded = partial(in_words_of, "texts")
    return replace(
        check,
        reasons=tuple(map(worded, check.reasons)),
        notes=tuple(map(worded, check.notes)),
        next_steps=tuple(replace(step, note=worded(step.note)) for step in check.next_steps),
    )


def _with_files(
    check: Check, chosen: Mapping[str, Translation], keep: Callable[[Translation], str]
) -> Check:
    """Store the chosen translations, and add their file names to the check."""
    cells = []
    for cell in check.cells:
        way = chosen[cell.version]
        plain = way.shared and way.forward is None
        cells.append(cell if plain else replace(cell, translation=keep(way)))
    return replace(check, cells=tuple(cells))


def judge(
    labelled: LabelledVectors, searched: Sequence[Searched], rules: GateRules | None = None
) -> GateResult:
    """The verdict on the last version: what its queries find among the vectors of each version searched."""
    rules = rules or GateRules()
    known = {one.name for one in labelled.versions[:-1]}
    measured = [one for one in searched if one.name in known and one.measurable]
    choosing, judging = halves(labelled.query_labels, rules.seed)
    chooses = rules.weight is None and any(one.chooses for one in measured) and len(judging) > 0
    chosen = _chosen_ways(
        labelled, measured=measured, rows=choosing if chooses else None, rules=rules
    )
    if chooses:
        labelled = _with_queries(labelled, judging)
    asked = len(labelled.query_labels)
    *older, newest = [replace(one, adapt=None) for one in labelled.versions]
    features = {one.name: one for one in older}
    pairs = {name: translated_pair(way, features[name], newest) for name, way in chosen.items()}
    tested = _cross_test(labelled, chosen)
    cells: list[CheckedCell] = []
    findings: list[Finding] = []
    count = len(measured) + sum(one.sample is not None for one in searched)
    for one in measured:
        cell = evaluate_cell(
            labelled,
            tested=tested,
            pair=pairs[one.name],
            way=chosen[one.name],
            rules=rules,
            cells=count,
        )
        cells.append(cell)
        findings.append(
            _cell_finding(
                newest.name, cell=cell, queries=asked, cells=count, rules=rules, chosen_by=chooses
            )
        )
    for one in [one for one in searched if one not in measured]:
        if one.sample is not None and one.measurable:
            way, cell, queries = _sampled_cell(newest.name, one=one, rules=rules, cells=count)
            chosen[one.name] = way
            cells.append(cell)
            halved = rules.weight is None
            findings.append(
                _cell_finding(
                    newest.name,
                    cell=cell,
                    queries=queries,
                    cells=count,
                    rules=rules,
                    one=one,
                    chosen_by=halved,
                )
            )
        else:
            findings.append(_unmeasured(newest.name, one))
    outcome = _worst([finding.verdict for finding in findings])
    findings.sort(
        key=lambda finding: OUTCOMES[finding.verdict] != outcome
    )  # deciding findings first
    views = [
        translated(way, features[name], newest) for name, way in chosen.items() if name in features
    ]
    own = replace(newest, queries=newest.queries_in(newest))
    labels = (labelled.query_labels, labelled.gallery_labels)
    calibrations, folds = calibrations_and_folds([*views, own], *labels, rules.seed)
    curves = {
        name: search_curve(*pair, *labels, SHARES, folds, orders=3) for name, pair in pairs.items()
    }
    notes = list(_mixture_notes(newest.name, curves, asked))
    steps = [step for finding in findings for step in finding.next_steps]
    if views and not folds:
        notes.append(_NO_CALIBRATIONS)
        steps.append(
            NextStep(
                "check",
                {"version": newest.name, "data": ...},
                "more labelled images, for calibrations",
            )
        )
    if calibrations:
        scaled = {**calibrations, **_sampled_calibrations(searched, chosen, rules)}
    else:
        scaled = {}
    if outcome != "pass" and cells and all(one.has_model for one in searched):
        steps.append(_old_queries_step(newest.name, [cell.version for cell in cells]))
    check = Check(
        version=newest.name,
        outcome=outcome,
        reasons=tuple(finding.reason for finding in findings) or (_alone(newest.name),),
        cells=tuple(cells),
        self_test=float(tested.matrix[-1, -1]),
        queries=asked,
        gallery=len(labelled.gallery_labels),
        confidence=rules.confidence,
        tolerance=rules.tolerance,
        notes=tuple(notes),
        calibrations={name: (one.slope, one.offset) for name, one in scaled.items()},
        next_steps=_distinct(steps),
        thresholds=catalogue_thresholds([*views, own], *labels, rules.seed),
    )
    return GateResult(check=check, labelled=labelled, tested=tested, chosen=chosen, curves=curves)


def _chosen_ways(
    labelled: LabelledVectors, measured: Sequence[Searched], rows: Indices | None, rules: GateRules
) -> dict[str, Translation]:
    """The chosen translation of each version's vectors; the queries in ``rows``, if any, choose."""
    *older, newest = [replace(one, adapt=None) for one in labelled.versions]
    features = {one.name: one for one in older}
    measure = by_class(labelled.query_labels, labelled.gallery_labels)
    chosen: dict[str, Translation] = {}
    for one in measured:
        evidence = Evidence(features[one.name], newest, measure)
        chosen[one.name] = _as_chosen(
            _chosen(one, evidence=evidence, rows=rows, rules=rules), evidence
        )
    return chosen


def _worst(verdicts: Sequence[str]) -> Outcome:
    """The outcome of a check: the worst verdict."""
    if "incompatible" in verdicts:
        return "refuse"
    if "not decided" in verdicts:
        return "missing evidence"
    return "pass"


def _chosen(
    one: Searched, evidence: Evidence, rows: Indices | None, rules: GateRules
) -> Translation:
    """The translation chosen by some queries. Without queries the first one, or one with the weight of the rules.

    In a shared space vectors are searched unchanged, unless a translation gains more than its standard error.
    """
    direct = [way for way in one.ways if way.shared and way.forward is None]
    mapped = [way for way in one.ways if way.forward is not None]
    if rows is not None and mapped:
        found = choose(mapped, evidence, rows, two=one.has_model and mapped[0].two is not None)
        found = with_fewest_models(found, evidence, rows)
        if not direct or gain(evidence.outcomes(found)[rows], evidence.outcomes(direct[0])[rows]):
            return found
        return direct[0]
    if rules.weight is None or not mapped:
        return one.ways[0]
    way = mapped[0]
    if way.two is None:
        return replace(way, one=rules.weight)
    return replace(way, two=rules.weight)


def _as_chosen(way: Translation, evidence: Evidence) -> Translation:
    """The chosen translation with the scale of its scores."""
    scaled = with_scales(way, evidence.old, evidence.new)
    return replace(scaled, about={**scaled.about, CHOSEN: True})


def _with_queries(labelled: LabelledVectors, rows: Indices) -> LabelledVectors:
    """The vectors with some of the queries."""
    thumbnails = labelled.thumbnails
    if thumbnails is not None:
        picture = thumbnails.query
        places = rows.tolist()
        thumbnails = thumbnails._replace(query=lambda row: picture(places[row]))
    return replace(
        labelled,
        versions=[version.take(rows) for version in labelled.versions],
        query_labels=labelled.query_labels[rows],
        thumbnails=thumbnails,
    )


def _cross_test(labelled: LabelledVectors, chosen: Mapping[str, Translation]) -> CrossTest:
    """C[t, k] of the searched versions: their own queries, and the newest version's queries on all of them."""
    newest = labelled.versions[-1]
    older = [version for version in labelled.versions[:-1] if version.name in chosen]
    measure = by_class(labelled.query_labels, labelled.gallery_labels)
    last = len(older)
    matrix = np.full((last + 1, last + 1), np.nan)
    hits: dict[tuple[int, int], NDArray[Any]] = {}
    for place, version in enumerate(older):
        evidence = Evidence(version, newest, measure)
        hits[place, place] = evidence.before()
        hits[last, place] = evidence.outcomes(chosen[version.name])
    hits[last, last] = Evidence(newest, newest, measure).reembedded()
    for cell, outcomes in hits.items():
        matrix[cell] = outcomes.mean()
    names = (*(version.name for version in older), newest.name)
    return CrossTest(names=names, protocol="image", matrix=matrix, hits=hits)


def _distinct(steps: Sequence[NextStep]) -> tuple[NextStep, ...]:
    return tuple(step for row, step in enumerate(steps) if step not in steps[:row])


def evaluate_cell(
    labelled: LabelledVectors,
    tested: CrossTest,
    pair: tuple[VersionFeatures, VersionFeatures],
    way: Translation,
    rules: GateRules,
    cells: int,
) -> CheckedCell:
    """The newest version's queries on the vectors of one older version."""
    k = tested.names.index(pair[0].name)
    newest = len(tested.names) - 1
    before = tested.hits[k, k]
    after = tested.hits[newest, k]
    queries = labelled.query_labels
    found = flips(before, after, queries)
    swapped = flips(after, before, queries)  # losses of the old version are wins of the newest
    judged = judged_difference(after, before=before, confidence=rules.shared(cells), rules=rules)
    lost = lost_queries(found, queries, *pair, shown=LISTED)
    won = lost_queries(swapped, queries, *pair, shown=LISTED)
    changed = [one for one in found.classes if one.negative or one.positive]
    named_classes = dict.fromkeys([*changed[:LISTED_CLASSES], *changed[-LISTED_CLASSES:]])
    original = next(version for version in labelled.versions if version.name == pair[0].name)
    evidence = Evidence(original, labelled.versions[-1], by_class(queries, labelled.gallery_labels))

    def named(label: int) -> str:
        return labelled.classes.get(int(label), str(label))

    return CheckedCell(
        version=tested.names[k],
        self_test=float(tested.matrix[k, k]),
        cross_test=float(tested.matrix[newest, k]),
        low=judged.low,
        high=judged.high,
        verdict=judged.verdict,
        differing=judged.differing,
        negative_flips=len(found.negative),
        positive_flips=len(found.positive),
        lost=tuple(
            FlippedAnswer(named(queries[one.query]), named(labelled.gallery_labels[one.after]), one)
            for one in lost
        ),
        won=tuple(
            FlippedAnswer(
                named(queries[one.query]), named(labelled.gallery_labels[one.before]), one
            )
            for one in won
        ),
        classes=tuple(
            ClassChange(named(one.label), one.queries, one.negative, one.positive)
            for one in named_classes
        ),
        weight=way.weight,
        models=way.models,
        reembedded=float(tested.matrix[newest, newest]),
        one_model=_one_model(way, evidence=evidence, before=before, rules=rules, cells=cells),
    )


def _one_model(
    way: Translation, evidence: Evidence, before: NDArray[Any], rules: GateRules, cells: int
) -> OneModel | None:
    """The verdict on queries by the new version alone, if two models were judged."""
    if way.two is None or way.one is None:
        return None
    alone = way.with_one_model()
    after = evidence.outcomes(alone)
    judged = judged_difference(after, before=before, confidence=rules.shared(cells), rules=rules)
    return OneModel(float(after.mean()), judged.low, judged.high, judged.verdict, alone.weight)


# --- vectors without a model


def _sampled_cell(
    version: str, one: Searched, rules: GateRules, cells: int
) -> tuple[Translation, CheckedCell, int]:
    """The verdict by labelled items with vectors of both versions: half of the queries choose, half judge."""
    assert one.sample is not None
    evidence = one.sample.evidence(one.name, version, rules.seed)
    rows = np.arange(len(evidence.new.queries))
    choosing, judging = halves(np.zeros(len(rows), np.int64), rules.seed)
    if rules.weight is not None or not len(judging):
        way = _chosen(one, evidence=evidence, rows=None, rules=rules)
        judging = rows
    else:
        way = choose(one.ways, evidence, choosing, two=False)
    way = _as_chosen(way, evidence)
    cell = _evidence_cell(
        one.name, way=way, evidence=evidence, rows=judging, rules=rules, cells=cells
    )
    return way, cell, len(judging)


def _evidence_cell(
    name: str, way: Translation, evidence: Evidence, rows: Indices, rules: GateRules, cells: int
) -> CheckedCell:
    """The verdict on a translation by the queries in ``rows``."""
    before = evidence.before()[rows]
    after = evidence.outcomes(way)[rows]
    judged = judged_difference(after, before=before, confidence=rules.shared(cells), rules=rules)
    return CheckedCell(
        version=name,
        self_test=float(before.mean()),
        cross_test=float(after.mean()),
        low=judged.low,
        high=judged.high,
        verdict=judged.verdict,
        differing=judged.differing,
        negative_flips=int(np.count_nonzero(after < before)),
        positive_flips=int(np.count_nonzero(after > before)),
        weight=way.weight,
        models=way.models,
        reembedded=float(evidence.reembedded()[rows].mean()),
    )


def _sampled_calibrations(
    searched: Sequence[Searched], chosen: Mapping[str, Translation], rules: GateRules
) -> dict[str, Calibration]:
    """Calibrations for vectors without a model, from the labelled items that judged them."""
    found: dict[str, Calibration] = {}
    for one in searched:
        if one.sample is None or one.name not in chosen:
            continue
        evidence = one.sample.evidence(one.name, chosen[one.name].target, rules.seed)
        codes = one.sample.coded()
        split = gallery_query_split(codes, seed=rules.seed)
        view = translated(chosen[one.name], evidence.old, evidence.new)
        found |= fit_calibrations(
            [view],
            query_labels=codes[split.queries],
            gallery_labels=codes[split.gallery],
            seed=rules.seed,
        )
    return found


def _unmeasured(version: str, one: Searched) -> Finding:
    """The finding for searched vectors that could not be measured."""
    why = one.lacking or (
        f"there is no model of {one.name}, and no labelled item of it with an image, so what its own queries find "
        "cannot be measured"
    )
    steps = one.next_steps or (
        NextStep(
            "check",
            {"version": version, "pairs": ...},
            "vectors by both models, with labels, FILE.npz",
        ),
        NextStep(
            "import-vectors",
            {"file": ..., "name": named_in_space(one.name, version)},
            f"if {version}'s model made these vectors elsewhere",
        ),
    )
    return Finding(
        "not decided",
        f"nothing shows what {version}'s queries find among vectors of {one.name}: {why}",
        steps,
    )


# --- sentences


def cell_sentence(
    version: str, cell: CheckedCell, confidence: float, cells: int, tolerance: float
) -> str:
    """The evidence of one cell in words."""
    limit = "above it"
    if tolerance:
        limit = f"less than {in_points(tolerance)} points below it"
    verdict = {
        "compatible": f"this is {limit}",
        "incompatible": f"this is not {limit}",
        "not decided": f"it is not decided whether this is {limit}",
    }[cell.verdict]
    together = ""
    if cells > 1:
        together = f" for all {cells} versions together"
    find = "find"
    if cell.measured:
        find = f"reach an {DECIDING} of"
    return (
        f"on {cell.version}'s vectors {version}'s queries {find} {percent(cell.cross_test)}, {cell.version}'s own "
        f"{percent(cell.self_test)}: {verdict}. The difference is {points(cell.difference)} points, with "
        f"{100 * confidence:g} % confidence{together} between {points(cell.low)} and {points(cell.high)}"
    )


def _cell_finding(
    version: str,
    cell: CheckedCell,
    queries: int,
    cells: int,
    rules: GateRules,
    one: Searched | None = None,
    chosen_by: bool = False,
) -> Finding:
    """The finding of a cell; ``chosen_by`` is the number of queries that chose its translation."""
    evidence = cell_sentence(
        version, cell=cell, confidence=rules.confidence, cells=cells, tolerance=rules.tolerance
    )
    if cell.verdict != "not decided":
        return Finding(cell.verdict, evidence)
    more = NextStep("check", {"version": version, "data": ...})
    unit = "labelled images"
    if one is not None:  # judged by items of the gallery
        more = one.next_steps[0] if one.next_steps else more
        unit = "labelled items"
    told, steps = missing_evidence(
        cell.judged,
        queries=queries,
        confidence=rules.shared(cells),
        tolerance=rules.tolerance,
        more=more,
        unit=unit,
        chosen_by=chosen_by,
    )
    return Finding(cell.verdict, ". ".join([evidence, *told]), tuple(steps))


def _old_queries_step(version: str, names: Sequence[str]) -> NextStep:
    """A deployment that cannot lose: old vectors are still searched by the model that made them."""
    return NextStep(
        "deploy",
        {"version": version, "queries": "old"},
        f"vectors of {' and '.join(names)} keep their own model's queries and find what they find now",
    )


def _alone(version: str) -> str:
    return f"only vectors of {version} itself are searched: there is nothing older to compare with"


def _without_images(
    version: str,
    searched: Sequence[Searched],
    images: int,
    learnt_by: Sequence[str],
    rules: GateRules,
    keep: Callable[[Translation], str],
    can_upgrade: bool,
) -> Check:
    """The check without labelled images: a version passes if it is alone, else evidence is missing."""
    judged: list[tuple[CheckedCell, Finding]] = []
    missing = [one for one in searched if one.sample is None or not one.measurable]
    for one in searched:
        if one not in missing:
            way, cell, queries = _sampled_cell(version, one=one, rules=rules, cells=len(searched))
            cell = replace(cell, translation=keep(way))
            finding = _cell_finding(
                version,
                cell=cell,
                queries=queries,
                cells=len(searched),
                rules=rules,
                one=one,
                chosen_by=rules.weight is None,
            )
            judged.append((cell, finding))
    outcome: Outcome = "pass"
    if missing:
        outcome = "missing evidence"
    for _, finding in judged:
        if OUTCOMES[finding.verdict] != "pass" and outcome != "refuse":
            outcome = OUTCOMES[finding.verdict]
    reasons = [finding.reason for _, finding in judged]
    steps = [step for _, finding in judged for step in finding.next_steps]
    with_model = [one.name for one in missing if one.has_model]
    if with_model:
        reasons.insert(
            0, _without_evidence(version, names=with_model, images=images, learnt_by=learnt_by)
        )
        steps += [
            NextStep(
                "check",
                {"version": version, "data": ...},
                "labelled images that it was not trained on",
            ),
        ]
        if can_upgrade:
            steps.append(
                NextStep(
                    "upgrade", {"data": ..., "hold_out": 0.1}, "the next training holds out some"
                )
            )
    for one in missing:
        if not one.has_model:
            finding = _unmeasured(version, one)
            reasons.append(finding.reason)
            steps += finding.next_steps
    return Check(
        version=version,
        outcome=outcome,
        reasons=tuple(reasons) or (_alone(version),),
        cells=tuple(cell for cell, _ in judged),
        self_test=None,
        queries=0,
        gallery=0,
        confidence=rules.confidence,
        tolerance=rules.tolerance,
        next_steps=_distinct(steps),
    )


def _without_evidence(
    version: str, names: Sequence[str], images: int, learnt_by: Sequence[str]
) -> str:
    seen = f"no labelled images were held out when the versions up to {version} were trained"
    if images:
        seen = f"there are {images:,} labelled images, but no two of one class"
    if learnt_by:
        left = "none is left"
        if images:
            left = "no two of one class are left"
        seen = f"{_may_have_learnt(learnt_by)}, and {left}"
    return (
        f"{seen}, so nothing shows what {version}'s queries find among vectors of {', '.join(names)}. The check needs "
        "labelled images that the version was not trained on. The next training can hold out some"
    )


def _with_image_notes(check: Check, selected: bool, learnt_by: Sequence[str]) -> Check:
    """Add notes on held-out images that also chose the epoch, and on images that could not be used."""
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
    of = ""
    if stronger.classes:
        of = f" of {plural(stronger.classes, 'class')}"
    return (
        f"the check of {stronger.when[:10]} still counts ({stronger.outcome}): it asked "
        f"{plural(stronger.queries, 'query')}{of} ({stronger.images}). "
        "This one is kept in the history"
    )


def _may_have_learnt(learnt_by: Sequence[str]) -> str:
    has = "has" if len(learnt_by) == 1 else "have"
    return f"{' and '.join(learnt_by)} {has} learnt images that others held out"


def _mixture_notes(newest: str, curves: Mapping[str, BackfillCurve], queries: int) -> Iterator[str]:
    """A warning for each old gallery that does worse when partly re-embedded than unchanged or all new."""
    visible = max(_VISIBLE, 2 / queries)  # no warning for one or two queries
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


def _report(judged: GateResult, rules: GateRules) -> Report:
    """The report of an evaluation, with the gate's intervals and its verdict."""
    check, labelled, tested, chosen, curves = judged
    each = rules.shared(len(check.cells))
    newest = len(tested.names) - 1
    below = "strictly above"
    if check.tolerance:
        below = f"less than {in_points(check.tolerance)} points below"
    facts = {
        **labelled.facts,
        "Gate": f"{check.outcome}: {'; '.join(check.reasons)}",
        "Criterion": f"compatible if the cross-test is {below} the old version's self-test",
        "Confidence": (
            f"{100 * check.confidence:g} % for all cross-tests of {check.version} together, {100 * each:.3g} % for "
            "each cell; the bootstrap draws single answers"
        ),
        "Queries": "; ".join(
            f"{cell.version}'s vectors are asked by {' and '.join(cell.models)}, w = {cell.weight:g}"
            for cell in check.cells
        ),
    }
    if check.notes:
        facts["Notes"] = "; ".join(check.notes)
    before = tested.names[-2]
    versions = {version.name: version for version in labelled.versions}
    pair = translated_pair(chosen[before], versions[before], labelled.versions[-1])
    judged_cells = {
        tested.names.index(cell.version): cell.judged
        for cell in check.cells
        if cell.version in versions
    }
    evidence = {(newest, k): judged_cells[k] for k in sorted(judged_cells)}
    return replace(labelled, facts=facts, versions=pair).report(
        tested, each, seed=rules.seed, curve=curves[before], evidence=evidence
    )


def _described(images: ImageSet | None, source: str) -> dict[str, Any]:
    if images is None:
        return {}
    counts = {"images": len(images), "classes": len(images.classes)}
    digest = images.fingerprint(read=source == "named")
    return {"name": images.name, "source": source, **counts, "fingerprint": digest}


# --- proposals after a check that did not pass: a backfill, or the old version


def proposals(judged: GateResult, deployed: str | None = None) -> tuple[NextStep, ...]:
    """Proposals after a check that did not pass, for the vectors that lose most; empty with too few measurements.

    For the deployed version, which cannot be dropped, only a backfill is proposed.
    """
    check = judged.check
    failed = [
        cell
        for cell in check.cells
        if cell.verdict != "compatible" and cell.version in judged.curves
    ]
    if check.outcome == "pass" or not failed or len(judged.labelled.query_labels) < LEAST_PROPOSING:
        return ()
    worst = min(failed, key=lambda cell: cell.difference)
    steps = list(_backfill_step(judged.curves[worst.version], worst.self_test))
    if check.version != deployed:
        keep = f"keep {worst.version}, whose own queries find {percent(worst.self_test)}"
        steps.append(NextStep("drop", {"version": check.version}, keep))
    return tuple(steps)


def _backfill_step(curve: BackfillCurve, now: float) -> Iterator[NextStep]:
    """A backfill with the smallest share that, in random order, was measured to find more than now.

    It must also find more than with nothing re-embedded, and no smaller share may find less than that.
    """
    accuracies = curve.accuracy.tolist()
    at_once = accuracies[0]
    dips = min(accuracies[1:-1]) < at_once
    for share, accuracy in list(zip(SHARES, accuracies, strict=True))[1:]:
        if dips and share < 1:
            continue
        if accuracy > max(now, at_once) and percent(accuracy) != percent(now):
            yield NextStep(
                "backfill",
                {"budget": "all" if share == 1 else f"{share:.0%}"},
                f"once it is deployed: {percent(accuracy)} expected with {share:.0%} re-embedded, {percent(now)} now",
            )
            return
