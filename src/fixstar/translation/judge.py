"""The referee: is a migration better than keeping the old model, and how far is it from embedding everything again?

A migration is stored vectors that something made from those of an old model, so that queries of a new model can search
them: a map of this package, of another tool, or a vendor's. Only vectors are needed, so it does not matter what.

Three searches of the same items by the same queries are compared, query by query:

    old          the old model's queries on its own vectors: what there is without a migration
    migrated     the new model's queries on the migrated vectors
    re-embedded  the new model's queries on its own vectors: the best there is, at full cost

Labels or known relevant items say what is right. The verdict is about migrated - old, by a paired bootstrap. A share of
the new model's figure ("retention") would not show it: 87 % of a better model may be less than the old one had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError, NextStep, UnknownNameError, plural
from fixstar.evaluation import gallery_query_split, matched, retrieval_measure
from fixstar.evaluation.evidence import Difference
from fixstar.evaluation.relevance import Grades, Relevance, Relevant, query_ids, read_relevance
from fixstar.evaluation.retrieval import MEASURED
from fixstar.evaluation.verdicts import GateRules, in_points, judged_difference, needed_queries
from fixstar.translation.sides import Embedded, Labels, Side, read_labels, read_queries, read_side
from fixstar.wording import percent, points

Vectors = NDArray[np.float32]
Fractions = NDArray[np.float64]
Ruling = Literal["better", "no worse", "worse", "cannot be told"]
Proof = Literal["labels", "relevance"]

OLD = "old"
MIGRATED = "migrated"
AGAIN = "re-embedded"
AT_LEAST = ("better", "no-worse")
"""What may be demanded of a migration."""
USUAL: dict[Proof, str] = {"labels": "top-1", "relevance": "nDCG@10"}
"""The measure that decides, by what says what is right."""
TOLERANCE = 0.01
_SCORES = 1 << 24  # computed at a time


class Compared(NamedTuple):
    """One search by one measure: its mean, and its difference from the old model with the interval.

    ``share`` is the part of what re-embedding gains; None where that gains nothing.
    """

    value: float
    difference: float
    low: float
    high: float
    share: float | None


@dataclass(frozen=True, eq=False)
class Judged:
    """What ``judge`` found: the verdict, in a ``sentence`` too, and every measure of every search.

    ``measure`` is the one that decided. ``skipped`` counts what could not be used, by reason.
    """

    verdict: Ruling
    sentence: str
    measure: str
    evidence: Proof
    queries: int
    gallery: int
    measured: Mapping[str, Mapping[str, Compared]]
    skipped: Mapping[str, int] = field(default_factory=dict)
    rules: GateRules = field(default_factory=GateRules)

    def __str__(self) -> str:
        return self.sentence

    @property
    def gain(self) -> Compared:
        """The migration by the measure that decided."""
        return self.measured[self.measure][MIGRATED]

    def reaches(self, at_least: str = "better") -> bool:
        """Whether the migration is shown to be better, or at least no worse."""
        if at_least not in AT_LEAST:
            raise UnknownNameError("demand", at_least, AT_LEAST)
        return self.verdict == "better" or (at_least == "no-worse" and self.verdict == "no worse")

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "measure": self.measure,
            "evidence": self.evidence,
            "queries": self.queries,
            "gallery": self.gallery,
            "confidence": self.rules.confidence,
            "tolerance": self.rules.tolerance,
            "skipped": dict(self.skipped),
            "measured": {
                name: {search: row._asdict() for search, row in rows.items()}
                for name, rows in self.measured.items()
            },
        }


def judge(
    old: Side,
    migrated: Side,
    new: Side | None = None,
    *,
    queries_old: Side | None = None,
    queries_new: Side | None = None,
    queries_migrated: Side | None = None,
    relevant: Relevance | None = None,
    labels: Labels | None = None,
    measure: str | None = None,
    rules: GateRules | None = None,
) -> Judged:
    """Whether ``migrated`` vectors of the ``old`` ones are better, searched by the ``new`` model's queries.

    All are matrices, row by row of the same item, or addresses of vectors, matched by ids. ``new`` are the items by the
    new model; without them re-embedding is not measured. Queries are in files of their own, or among the items.
    ``queries_migrated`` are for migrations that change queries too. ``relevant`` are the ids that each query should
    find, or a file; otherwise ``labels``, also those that come with the vectors, say what is right. The tolerance of
    the ``rules`` is a loss that still counts as no worse.
    """
    rules = rules or GateRules(tolerance=TOLERANCE)
    if relevant is not None and labels is not None:
        raise InputError(
            "labels or relevant items say what is right, not both; leave one of them out"
        )
    if relevant is None:
        wanted = None
    else:
        wanted = read_relevance(relevant)
    items = {OLD: read_side(old, OLD), MIGRATED: read_side(migrated, MIGRATED)}
    if new is not None:
        items[AGAIN] = read_side(new, "new")
    names = query_ids(relevant)
    known: dict[str, str] = {}
    if relevant is None:
        known = _labels_of(items, labels)
    asked = _asked(items, {OLD: queries_old, AGAIN: queries_new, MIGRATED: queries_migrated}, names)
    stored = _same_items(items, "items")
    used = set(stored[OLD].ids)
    proof: Proof = "labels"
    if wanted is not None:
        proof = "relevance"
    decides = _spelled(measure or USUAL[proof])
    if asked is None:
        asked, stored, wanted = _among_items(stored, wanted=wanted, known=known, seed=rules.seed)
        used = {*stored[OLD].ids, *asked[OLD].ids}
    else:
        asked = _same_items(asked, "queries")
        if wanted is None:
            right = known
            if labels is None:
                right = _labels_of(asked, None)
            wanted = _of_one_label(asked, stored=stored, right=right, known=known)
    found = matched(wanted, asked[OLD].ids, stored[OLD].ids)
    measures = list(dict.fromkeys([*MEASURED, decides]))
    outcomes = {
        search: _outcomes(asked[search], stored=part, found=found, names=measures)
        for search, part in stored.items()
    }
    measured = {
        name: _compared({search: of[name] for search, of in outcomes.items()}, rules)
        for name in measures
    }
    decided = judged_difference(
        outcomes[MIGRATED][decides],
        before=outcomes[OLD][decides],
        confidence=rules.confidence,
        rules=rules,
    )
    judged = Judged(
        verdict=_ruling(decided, rules),
        sentence="",
        measure=decides,
        evidence=proof,
        queries=len(found.queries),
        gallery=len(stored[OLD].ids),
        measured=measured,
        skipped=_skipped(found, items, used),
        rules=rules,
    )
    return replace(judged, sentence=_sentence(judged, decided))


# --- the same items and queries in all searches


def _asked(
    items: Mapping[str, Embedded], given: Mapping[str, Side | None], names: Sequence[str] | None
) -> dict[str, Embedded] | None:
    """The queries of each search; None if they are among the items."""
    if all(side is None for side in given.values()):
        if AGAIN not in items:
            raise InputError(
                "queries of the new model are needed: their vectors, or the new model's vectors of the items",
                NextStep("repeat", {"queries_old": ..., "queries_new": ...}),
                NextStep("repeat", {"new": ...}),
            )
        _require_width(items[AGAIN], items[MIGRATED])
        return None
    lacking = [
        f"queries_{'new' if search == AGAIN else search}"
        for search in (OLD, AGAIN)
        if given[search] is None
    ]
    if lacking:
        raise InputError(
            "queries need vectors by the old and by the new model",
            NextStep("repeat", dict.fromkeys(lacking, ...)),
        )
    one = given[OLD]
    other = given[AGAIN]
    mapped = given[MIGRATED]
    assert one is not None
    assert other is not None
    asked = {
        OLD: read_queries(one, items[OLD], names),
        AGAIN: read_queries(other, items.get(AGAIN), names),
    }
    if mapped is None:
        _require_width(asked[AGAIN], items[MIGRATED])
        asked[MIGRATED] = asked[AGAIN]
    else:
        asked[MIGRATED] = read_queries(mapped, items[MIGRATED], names)
    return asked


def _require_width(queries: Embedded, migrated: Embedded) -> None:
    width = queries.vectors.shape[1]
    if width != migrated.vectors.shape[1]:
        raise InputError(
            f"the migrated vectors have {plural(migrated.vectors.shape[1], 'component')}, and queries of the new model "
            f"{width}: they search the migrated vectors, so both must be in one space. If other queries search them, "
            "give these too",
            NextStep("repeat", {"queries_migrated": ...}),
        )


def _same_items(sides: Mapping[str, Embedded], what: str) -> dict[str, Embedded]:
    """What all sides have, in one order."""
    first = sides[OLD]
    if len({side.counted for side in sides.values()}) > 1:
        told = ", ".join(
            f"{search} has {'none' if side.counted else 'ids'}" for search, side in sides.items()
        )
        raise InputError(
            f"{what} are matched by their ids in all files, or row by row in all: {told}"
        )
    if first.counted and len({len(side.ids) for side in sides.values()}) > 1:
        told = ", ".join(f"{len(side.ids):,} {search}" for search, side in sides.items())
        raise InputError(
            f"{what} without ids are matched row by row, and their numbers differ: {told}. Add ids"
        )
    places = {
        search: {item: row for row, item in enumerate(side.ids)} for search, side in sides.items()
    }
    common = [item for item in first.ids if all(item in place for place in places.values())]
    if not common:
        told = ", ".join(f"{search} has {side.ids[0]!r}" for search, side in sides.items())
        raise InputError(
            f"the files have no {what} in common: {told}. Write the same ids into all of them"
        )
    return {
        search: _taken(side, [places[search][item] for item in common])
        for search, side in sides.items()
    }


def _taken(side: Embedded, rows: Sequence[int]) -> Embedded:
    return side._replace(ids=[side.ids[row] for row in rows], vectors=side.vectors[list(rows)])


class _JudgedItems(NamedTuple):
    asked: dict[str, Embedded]
    stored: dict[str, Embedded]
    wanted: Grades


def _among_items(
    items: Mapping[str, Embedded], wanted: Grades | None, known: Mapping[str, str], seed: int
) -> _JudgedItems:
    """Queries that are items themselves are taken out of the gallery; by labels they are half of each class."""
    ids = items[OLD].ids
    if wanted is not None:
        is_query = np.array([item in wanted for item in ids])
        if is_query.all():
            raise InputError("every item is a query itself, so that nothing is left to search")
        if not is_query.any():
            matched(wanted, ids, ids)  # says which ids there are
        queries = np.flatnonzero(is_query).tolist()
        gallery = np.flatnonzero(~is_query).tolist()
    else:
        classes = {label: number for number, label in enumerate(sorted(set(known.values())))}
        labelled = np.array([row for row, item in enumerate(ids) if item in known], np.int64)
        if not len(labelled):
            raise _unlabelled("item")
        split = gallery_query_split(
            np.array([classes[known[ids[row]]] for row in labelled]), seed=seed
        )
        queries = labelled[split.queries].tolist()
        gallery = labelled[split.gallery].tolist()
    stored = {search: _taken(side, gallery) for search, side in items.items()}
    by_new = {**items, MIGRATED: items[AGAIN]}
    asked = {search: _taken(side, queries) for search, side in by_new.items()}
    if wanted is None:
        wanted = _of_one_label(asked, stored=stored, right=known, known=known)
    return _JudgedItems(asked, stored, wanted)


def _of_one_label(
    asked: Mapping[str, Embedded],
    stored: Mapping[str, Embedded],
    right: Mapping[str, str],
    known: Mapping[str, str],
) -> Grades:
    """All stored items of a query's label are relevant for it: ``right`` are labels of queries, ``known`` of items."""
    members: dict[str, dict[str, float]] = {}
    for item in stored[OLD].ids:
        if item in known:
            members.setdefault(known[item], {})[item] = 1.0
    if not members or not right:
        raise _unlabelled("query" if members else "item")
    return {query: members.get(right[query], {}) for query in asked[OLD].ids if query in right}


def _labels_of(sides: Mapping[str, Embedded], labels: Labels | None) -> dict[str, str]:
    """Labels by id: those given, else those that came with any of the files."""
    if labels is not None:
        return read_labels(labels, sides[OLD], sides[MIGRATED])
    found: dict[str, str] = {}
    for side in sides.values():
        found = {**side.labels, **found}
    return found


def _unlabelled(what: str) -> InputError:
    return InputError(
        f"no {what} has a label, and no relevant items are given, so nothing says which answers are right. How far two "
        "searches agree would not show which is better",
        NextStep("repeat", {"relevant": ...}, "what each query should find"),
        NextStep("repeat", {"labels": ...}, "a CSV of id and label"),
    )


# --- measuring


def _spelled(name: str) -> str:
    """The name of a measure as it is shown."""
    retrieval_measure(name)
    return next((known for known in MEASURED if known.lower() == name.lower()), name)


def _outcomes(
    asked: Embedded, stored: Embedded, found: Relevant, names: Sequence[str]
) -> dict[str, Fractions]:
    """Every measure of every query that counts, [N] each."""
    count = len(found.queries)
    items = len(stored.ids)
    step = max(1, _SCORES // items)
    parts: dict[str, list[Fractions]] = {name: [] for name in names}
    for start in range(0, count, step):
        rows = np.arange(start, min(start + step, count))
        scores = asked.vectors[found.queries[rows]] @ stored.vectors.T
        grades = found.matrix(rows, items)
        for name in names:
            parts[name].append(retrieval_measure(name)(scores, grades))
    return {name: np.concatenate(each) for name, each in parts.items()}


def _compared(outcomes: Mapping[str, Fractions], rules: GateRules) -> dict[str, Compared]:
    before = outcomes[OLD]
    whole = 0.0
    if AGAIN in outcomes:
        whole = float((outcomes[AGAIN] - before).mean())
    rows = {
        OLD: Compared(value=float(before.mean()), difference=0.0, low=0.0, high=0.0, share=None)
    }
    for search in (MIGRATED, AGAIN):
        if search in outcomes:
            judged = judged_difference(
                outcomes[search], before=before, confidence=rules.confidence, rules=rules
            )
            if whole > 0:
                share = judged.mean / whole
            else:
                share = None
            rows[search] = Compared(
                value=float(outcomes[search].mean()),
                difference=judged.mean,
                low=judged.low,
                high=judged.high,
                share=share,
            )
    return rows


def _ruling(found: Difference, rules: GateRules) -> Ruling:
    """Better: the interval lies above 0. No worse: above -tolerance. Worse: it has nothing above 0."""
    if found.low > 0:
        return "better"
    if found.low > -rules.tolerance:
        return "no worse"
    if found.high <= 0:
        return "worse"
    return "cannot be told"


def _skipped(found: Relevant, items: Mapping[str, Embedded], used: set[str]) -> dict[str, int]:
    """How many items were not used, by reason; reasons that did not occur are omitted."""
    everything = {item for side in items.values() for item in side.ids}
    counts = {
        "queries without vectors": found.unknown,
        "queries without a relevant item among the stored ones": found.alone,
        "relevant items that are not stored": found.missing,
        "items that some files lack, or without a label": len(everything - used),
    }
    return {reason: count for reason, count in counts.items() if count}


# --- words


def _sentence(judged: Judged, decided: Difference) -> str:
    rows = judged.measured[judged.measure]
    mine = rows[MIGRATED]
    rules = judged.rules
    verdict = judged.verdict[0].upper() + judged.verdict[1:]
    what = judged.measure
    if what == "top-1":
        what = "top-1 accuracy"
    figures = (
        f"the migrated vectors reach {what} {percent(mine.value)} on {plural(judged.queries, 'query')}, the old model "
        f"{percent(rows[OLD].value)}: {points(mine.difference)} points, with {100 * rules.confidence:g} % confidence "
        f"between {points(mine.low)} and {points(mine.high)}"
    )
    told = [f"{verdict}: {figures}"]
    if judged.verdict == "no worse":
        told.append(f"A loss of up to {in_points(rules.tolerance)} points counts as no worse")
    if judged.verdict == "cannot be told":
        needed = needed_queries(
            decided, queries=judged.queries, confidence=rules.confidence, tolerance=rules.tolerance
        )
        more = "More of the same queries would not show a gain"
        if needed is not None:
            more = f"If it stays like this, about {needed:,} queries would decide"
        told.append(more)
    told += _compared_with_all(rows)
    return ". ".join(told)


def _compared_with_all(rows: Mapping[str, Compared]) -> list[str]:
    """The share of re-embedding's gain that is reached, in words."""
    again = rows.get(AGAIN)
    if again is None:
        return []
    whole = (
        f"Re-embedding everything gains {points(again.difference)} points ({percent(again.value)})"
    )
    share = rows[MIGRATED].share
    if share is None:
        return [f"Re-embedding everything would gain nothing: {points(again.difference)} points"]
    if share < 0:
        return [f"{whole}; the migration has none of that"]
    return [f"{whole}; the migration has {100 * share:.0f} % of that"]
