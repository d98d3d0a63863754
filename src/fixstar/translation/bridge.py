"""Bridges: vectors of an old model are stored, and a new model was never trained with it. How to search them best?

A bridge is a translation between two models, saved as a file (``translation.file``). Its maps are fitted on pairs:
vectors that both models made of the same items, images or texts. Labels are not needed for that.

The old model stays the one to beat: its own queries on its own vectors. Held-out evidence decides: labelled items, or
known relevant ones, none of them fitted. With labels a query is right if the nearest item has its label ("top-1");
relevant items may have grades and count by nDCG@10 (``evaluation.retrieval``). Half of the queries choose the maps, the
weights, and whether the old side is whitened, for one model per query and for two (``translation.choose``). Both models
embedded these queries, so they are pairs too, and of what is really asked: the chosen maps are fitted again on items
and on these queries. The other half of the queries judges these two ways by the gate's rule; their verdicts hold
together (Bonferroni). Intervals of the other ways to search are for comparison.

Without labels, only the agreement with what the old model finds can be measured. That shows how much would change, not
whether it is better: the result is unproven. So is a bridge between sets that have no item in common.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError, NextStep, UnknownNameError, plural
from fixstar.evaluation import (
    Difference,
    VersionFeatures,
    gallery_query_split,
    matched,
    nearest,
    paired_bootstrap,
)
from fixstar.evaluation.relevance import Grades, Relevance, query_ids, read_relevance
from fixstar.evaluation.verdicts import (
    GateRules,
    halves,
    in_points,
    judged_difference,
    needed_queries,
)
from fixstar.progress import progress_bar
from fixstar.translation.choose import Evidence, Measure, by_class, by_relevance, choose, gain
from fixstar.translation.fit import KINDS, Pairs, fit_map, fit_whitening, lacking_pairs
from fixstar.translation.maps import Map
from fixstar.translation.sides import (
    Embedded,
    Labels,
    Side,
    common_rows,
    read_labels,
    read_queries,
    read_side,
)
from fixstar.translation.translation import USUAL, Translation
from fixstar.translation.unpaired import pseudo_pairs
from fixstar.wording import percent, points

Floats = NDArray[np.floating[Any]]
Vectors = NDArray[np.float32]
Classes = NDArray[np.int64]
Indices = NDArray[np.int64]
Outcome = Literal["pass", "refuse", "missing evidence"]
Proof = Literal["labels", "relevance", "old neighbours", "none"]
"""What the judgement rests on."""

FORWARD = ("ridge", "residual", "rotation")
"""Kinds of maps for stored vectors; the first that has enough pairs is the usual one."""
BACKWARD = ("contrast", "ridge", "rotation")
"""Kinds of maps for queries."""
MEASURE: dict[Proof, str] = {
    "labels": "top-1",
    "relevance": "nDCG@10",
    "old neighbours": "same neighbours",
    "none": "none",
}
"""How right an answer is, by what the judgement rests on."""
NEIGHBOURS = 10  # whose agreement is measured if there are no labels
MUCH = 0.05  # by which re-embedding everything must be better to be said first
OLD = "old model"
AHEAD = "stored mapped forward"
BACK = "query mapped back"
ONE = "both sides, one model"
TWO = "both sides, two models"
AGAIN = "all re-embedded"
_MOST = 3.0  # items that a fitted query counts as, at most
_SAME = 1e-6  # below 1: the cosine of two equal vectors, up to rounding


class Measured(NamedTuple):
    """What one way to search finds, by the queries that judge.

    ``low`` and ``high`` are the interval of the difference from the old model's own queries (without labels: of what
    it finds), ``models`` embed each query, and ``weight`` is w. ``lost`` and ``won`` count changed queries.
    """

    finds: float
    difference: float | None
    low: float
    high: float
    verdict: str
    lost: int
    won: int
    models: int
    weight: float | None


@dataclass(frozen=True, eq=False)
class Bridged:
    """What ``bridge`` found: the verdict in a ``sentence``, the ``translation``, and what every way to search finds.

    ``chosen`` is the way that was judged, one of the names in ``measured``.
    """

    outcome: Outcome
    sentence: str
    evidence: Proof
    fitted_on: str
    translation: Translation
    queries: int = 0
    gallery: int = 0
    chosen: str | None = None
    measured: Mapping[str, Measured] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.sentence

    @property
    def measure(self) -> str:
        """How right an answer is: what ``finds`` of every way to search is the mean of."""
        return MEASURE[self.evidence]

    @property
    def best(self) -> Measured | None:
        """What the chosen way finds."""
        if self.chosen is None:
            return None
        return self.measured[self.chosen]

    @property
    def share(self) -> float | None:
        """The share of re-embedding's gain that the translation reaches; None if re-embedding gains nothing."""
        again = self.measured.get(AGAIN)
        if again is None or self.best is None or not again.difference or again.difference < 0:
            return None
        assert self.best.difference is not None
        return self.best.difference / again.difference

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "outcome": self.outcome,
            "verdict": self.sentence,
            "evidence": self.evidence,
            "measure": self.measure,
            "fitted_on": self.fitted_on,
            "maps": self.translation.about["maps"],
            "queries": self.queries,
            "gallery": self.gallery,
            "chosen": self.chosen,
            "measured": {name: row._asdict() for name, row in self.measured.items()},
            "share": self.share,
            "left_out": dict(self.left_out),
        }


@dataclass(frozen=True)
class BridgeOptions:
    """How a bridge is made.

    ``held_out`` is the share of labelled items that judge and are not fitted. ``one_model`` is for those who will not
    run the old model any longer: only the new one embeds queries.
    """

    kinds: tuple[str, ...] = tuple(KINDS)
    sample: int = 8000  # items by both models, at most
    held_out: float = 0.4
    one_model: bool = False
    rules: GateRules = field(default_factory=GateRules)

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in KINDS:
                raise UnknownNameError("kind of map", kind, KINDS)
        if not set(self.kinds) & set(FORWARD):
            raise InputError(
                f"stored vectors are mapped by {' or '.join(FORWARD)}; got {', '.join(self.kinds)}"
            )
        if self.one_model and not set(self.kinds) & set(BACKWARD):
            raise InputError(
                f"with one model per query, queries are mapped by {' or '.join(BACKWARD)}; got {', '.join(self.kinds)}"
            )
        if self.sample < 20:
            raise InputError(f"a sample is 20 items or more, got {self.sample}")
        if not 0 < self.held_out <= 1:
            raise InputError(
                f"the held-out share of labelled items lies between 0 and 1; got {self.held_out}"
            )


def bridge(
    old: Side,
    new: Side,
    *,
    labels: Labels | None = None,
    relevant: Relevance | None = None,
    queries: tuple[Side, Side] | None = None,
    images: str | Path | None = None,
    options: BridgeOptions | None = None,
    progress: bool = False,
) -> Bridged:
    """The best way to search vectors of the ``old`` model with the ``new`` one, judged on held-out evidence.

    Both are matrices, row by row of the same item; addresses of vectors (``gallery.transfer.open_vectors``), paired by
    ids; or models, which embed ``images`` (``sides.open_model``). ``labels`` are one per row, by id, or a CSV file of
    id and label; otherwise those in payloads or of image folders. ``relevant`` are the ids that each query should
    find, or a file (``evaluation.relevance``); ``queries`` are their vectors by both models, if they are not among the
    items.
    """
    options = options or BridgeOptions()
    reading: dict[str, Any] = {
        "images": images,
        "sample": options.sample,
        "seed": options.rules.seed,
        "progress": progress,
    }
    one, other = _named_apart(read_side(old, "old", **reading), read_side(new, "new", **reading))
    known = read_labels(labels, one, other)
    if relevant is None:
        wanted = {}
    else:
        wanted = read_relevance(relevant)
    if queries is None:
        asked = None
    else:
        asked = _both_queries(
            queries, one=one, other=other, wanted=wanted, names=query_ids(relevant)
        )
    common = common_rows(one, other)
    if common is None:
        found = _without_pairs(one, other=other, known=known, options=options)
    else:
        items = _both(one, other=other, common=common, known=known)
        if labels is not None and not (items.classes >= 0).any():
            raise InputError(
                f"none of the {len(known):,} labels is for an item that both models embedded; ids there are such as "
                f"{items.ids[0]!r}"
            )
        everything = len(items) == len(one.ids)
        sampled = items.sample(options.sample, options.rules.seed, _named(wanted))
        found = _judged(
            items=sampled,
            asked=asked,
            wanted=wanted,
            everything=everything,
            options=options,
            progress=progress,
        )
    about = {
        **found.to_json(),
        "widths": [one.vectors.shape[1], other.vectors.shape[1]],
        "confidence": options.rules.confidence,
        "tolerance": options.rules.tolerance,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return replace(found, translation=replace(found.translation, about=about))


def apply_translation(
    way: Translation, old: Side, new: Side, direction: str = "forward"
) -> tuple[list[str], Vectors]:
    """Ids and vectors of the old side mapped ``forward``, or of the new one ``backward``; the other is not read."""
    maps = {"forward": way.forward, "backward": way.backward}
    if direction not in maps:
        raise UnknownNameError("side", direction, maps)
    part = maps[direction]
    if part is None:
        raise InputError(f"this translation has no map {direction}")
    if direction == "forward":
        given = read_side(old, "old")
    else:
        given = read_side(new, "new")
    return given.ids, part(given.vectors)


def _named_apart(one: Embedded, other: Embedded) -> tuple[Embedded, Embedded]:
    """Different names for two files of the same name."""
    if one.name != other.name:
        return one, other
    return one._replace(name=f"old {one.name}"), other._replace(name=f"new {other.name}")


# --- what is fitted, and what judges


@dataclass(frozen=True, eq=False)
class _Items:
    """The same items by both models: unit rows ``old`` [N, a] and ``new`` [N, b], classes [N], -1 if unknown."""

    names: tuple[str, str]
    ids: list[str]
    old: Vectors
    new: Vectors
    classes: Classes

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Indices) -> _Items:
        """Some of them."""
        ids = [self.ids[row] for row in rows.tolist()]
        return _Items(
            names=self.names,
            ids=ids,
            old=self.old[rows],
            new=self.new[rows],
            classes=self.classes[rows],
        )

    def sample(self, most: int, seed: int, kept: Collection[str] = ()) -> _Items:
        """All of them, or ``most``, drawn by the seed; those that are ``kept`` first."""
        if len(self) <= most:
            return self
        drawn = np.random.default_rng(seed).permutation(len(self))
        if kept:
            others = np.array([self.ids[row] not in kept for row in drawn.tolist()])
            drawn = drawn[np.argsort(others, kind="stable")]
        return self.take(np.sort(drawn[:most]))

    def without(self, fitted: _Items) -> _Items:
        """Without items that are among the fitted ones, recognised by their old vectors."""
        if not len(self) or not len(fitted):
            return self
        return self.take(_unlike(self.old, fitted.old))

    def searchable(self) -> _Items:
        """Those of a class that has at least two."""
        counts = np.bincount(self.classes + 1)
        return self.take(np.flatnonzero((self.classes >= 0) & (counts[self.classes + 1] > 1)))

    def pairs(self, seed: int) -> Pairs:
        """From the old space to the new one; an item without a label is a group of its own."""
        if len(np.unique(self.classes[self.classes >= 0])) < 2:
            return Pairs.checked(self.old, self.new, seed=seed)
        groups = np.where(self.classes >= 0, self.classes, -1 - np.arange(len(self)))
        return Pairs.checked(self.old, self.new, groups=groups, seed=seed)


def _unlike(vectors: Vectors, others: Vectors) -> Indices:
    """Rows of the vectors that equal none of the others."""
    closest = nearest(vectors, others)[0][:, 0]
    cosines = np.einsum("ij,ij->i", vectors, others[closest], dtype=np.float64)
    return np.flatnonzero(cosines < 1 - _SAME)


def _both(
    one: Embedded, other: Embedded, common: tuple[Indices, Indices], known: Mapping[str, str]
) -> _Items:
    first, second = common
    ids = [one.ids[row] for row in first.tolist()]
    numbers = {label: number for number, label in enumerate(sorted(set(known.values())))}
    classes = np.array([numbers[known[item]] if item in known else -1 for item in ids], np.int64)
    return _Items(
        names=(one.name, other.name),
        ids=ids,
        old=one.vectors[first],
        new=other.vectors[second],
        classes=classes,
    )


def _both_queries(
    queries: tuple[Side, Side],
    one: Embedded,
    other: Embedded,
    wanted: Grades,
    names: Sequence[str] | None,
) -> _Items:
    """The same queries by both models; what is relevant for them must be known. ``names`` are for those without ids."""
    if not wanted:
        raise InputError(
            "queries of their own need relevant items: say which items each of them should find"
        )
    first = read_queries(queries[0], one, names)
    second = read_queries(queries[1], other, names)
    common = common_rows(first, second)
    if common is None:
        raise InputError(
            f"no query has vectors by both models: those of {one.name} are called {first.ids[0]!r}, ..., those of "
            f"{other.name} {second.ids[0]!r}, ... Write the same ids into both files"
        )
    return _both(first, other=second, common=common, known={})


def _named(wanted: Grades) -> set[str]:
    """All ids of queries and of items that were judged for them."""
    return {*wanted, *(item for judged in wanted.values() for item in judged)}


class _Trial(NamedTuple):
    """Held-out items by both models, as queries and as gallery; rows of queries that choose, and that judge."""

    evidence: Evidence
    choosing: Indices
    judging: Indices


class _Division(NamedTuple):
    """What to fit on, what to judge with (None: nothing can), and what kind of evidence that is."""

    fitted: _Items
    trial: _Trial | None
    proof: Proof


def _divided(
    items: _Items, asked: _Items | None, wanted: Grades, options: BridgeOptions
) -> _Division:
    if wanted:
        return _by_relevance(items, asked=asked, wanted=wanted, options=options)
    rows = np.arange(len(items))
    labelled = np.flatnonzero(items.classes >= 0)
    pool = labelled if len(labelled) else rows
    if len(labelled):
        share = options.held_out
    else:
        share = min(options.held_out, 0.4)
    shuffled = np.random.default_rng(options.rules.seed).permutation(pool)
    held = np.sort(shuffled[: round(share * len(pool))])
    fitted = items.take(np.setdiff1d(rows, held))
    judged = items.take(held).without(fitted)
    if len(labelled):
        return _Division(fitted, _by_labels(judged.searchable(), options), "labels")
    return _Division(fitted, _by_neighbours(judged, options), "old neighbours")


def _by_labels(judged: _Items, options: BridgeOptions) -> _Trial | None:
    """Half of each class is the gallery; right is an item of the query's class."""
    if not len(judged):
        return None
    split = gallery_query_split(judged.classes, seed=options.rules.seed)
    truth = judged.classes[split.queries]
    measure = by_class(truth, judged.classes[split.gallery])
    return _trial(
        judged.take(split.queries),
        gallery=judged.take(split.gallery),
        measure=measure,
        classes=truth,
        options=options,
    )


def _by_neighbours(judged: _Items, options: BridgeOptions) -> _Trial | None:
    """Half of the items are the gallery; measured is the share of the old model's nearest that is found again."""
    queries = np.arange(0, len(judged), 2)
    gallery = np.arange(1, len(judged), 2)
    if len(gallery) < 2:
        return None
    k = min(NEIGHBOURS, len(gallery))
    before = nearest(judged.old[queries], judged.old[gallery], k)[0]

    def agree(scores: Floats, rows: Indices) -> NDArray[np.float64]:
        found = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        same = (found[:, :, None] == before[rows][:, None, :]).any(axis=2)
        return np.asarray(same.mean(axis=1))

    classes = np.zeros(len(queries), np.int64)
    return _trial(
        judged.take(queries),
        gallery=judged.take(gallery),
        measure=agree,
        classes=classes,
        options=options,
    )


def _by_relevance(
    items: _Items, asked: _Items | None, wanted: Grades, options: BridgeOptions
) -> _Division:
    """Queries with known relevant items, those items, and a share of all others as the gallery they are found in.

    Queries that are items themselves (``asked`` is None) are in neither the gallery nor what is fitted.
    """
    queries = items if asked is None else asked
    rows = np.arange(len(items))
    place = {item: row for row, item in enumerate(items.ids)}
    if asked is None:
        there = set(place)
    else:
        there = set(asked.ids)
    named: set[int] = set()
    asking: set[int] = set()
    for query, judged in wanted.items():
        relevant = {place[item] for item, grade in judged.items() if grade > 0 and item in place}
        if not relevant or query not in there:
            continue
        named |= relevant
        if asked is None:
            asking.add(place[query])
    if asking and named <= asking:
        raise InputError("every relevant item is a query itself, so that nothing is left to search")
    judged_rows = np.array(sorted(named - asking), np.int64)
    others = np.setdiff1d(rows, [*named, *asking])
    shuffled = np.random.default_rng(options.rules.seed).permutation(others)
    if options.held_out < 1:
        more = shuffled[: round(options.held_out * len(others))]
    else:
        more = others[:0]
    gallery = items.take(np.sort(np.concatenate([judged_rows, more])))
    found = matched(wanted, queries.ids, gallery.ids)
    fitted = items.take(np.setdiff1d(others, more))
    classes = np.zeros(len(found.queries), np.int64)
    trial = _trial(
        queries.take(found.queries),
        gallery=gallery,
        measure=by_relevance(found),
        classes=classes,
        options=options,
    )
    return _Division(fitted, trial, "relevance")


def _trial(
    queries: _Items, gallery: _Items, measure: Measure, classes: Classes, options: BridgeOptions
) -> _Trial | None:
    source, target = gallery.names
    old = VersionFeatures(source, queries.old, gallery.old)
    new = VersionFeatures(target, queries.new, gallery.new)
    evidence = Evidence(old, new, measure)
    if options.rules.weight is not None:  # nothing is chosen: all judge
        rows = np.arange(len(queries))
        return _Trial(evidence, rows[:0], rows)
    choosing, judging = halves(classes, options.rules.seed)
    if len(judging):
        return _Trial(evidence, choosing, judging)
    return None


# --- fitting and choosing


class _Ways(NamedTuple):
    """Translations by all kinds of maps at the usual weight, the usual maps first, and why kinds are left out."""

    ways: list[Translation]
    left_out: dict[str, str]


def _fitted_ways(
    names: tuple[str, str], pairs: Pairs, options: BridgeOptions, progress: bool
) -> _Ways:
    left_out = {kind: short for kind in options.kinds if (short := lacking_pairs(kind, len(pairs)))}
    forward = [kind for kind in FORWARD if kind in options.kinds and kind not in left_out]
    backward = [kind for kind in BACKWARD if kind in options.kinds and kind not in left_out]
    if not forward or (options.one_model and not backward):
        least = ", ".join(f"{kind} {KINDS[kind].least}" for kind in options.kinds)
        raise InputError(
            f"no map can be fitted on {plural(len(pairs), 'pair')}; needed are, by kind: {least}. Embed more items "
            "with both models"
        )
    ahead: list[_Made] = []
    back: list[_Made] = []
    with progress_bar("fitting", len(forward) + len(backward), "maps", show=progress) as advance:
        for kind in forward:
            ahead.append(_Made(kind, fit_map(kind, pairs).map))
            advance()
        for kind in backward:
            back.append(_Made(kind, fit_map(kind, pairs.reversed).map))
            advance()
    tried: list[_Made | None] = [*back] or [None]
    whitening = fit_whitening(pairs)
    ways = [
        _usual_way(names, forward=there, backward=here, options=options, whitening=whitening)
        for there in ahead
        for here in tried
    ]
    return _Ways(ways, left_out)


class _Made(NamedTuple):
    """A map and its kind."""

    kind: str
    map: Map


def _usual_way(
    names: tuple[str, str],
    forward: _Made,
    backward: _Made | None,
    options: BridgeOptions,
    whitening: Map | None = None,
) -> Translation:
    """Two maps at the usual weight, or at the one that is given."""
    weight = USUAL if options.rules.weight is None else options.rules.weight
    return Translation(
        *names,
        forward=forward.map,
        backward=None if backward is None else backward.map,
        one=None if backward is None else weight,
        two=None if options.one_model else weight,
        about={
            "maps": {
                "forward": forward.kind,
                "backward": None if backward is None else backward.kind,
            }
        },
        whitening=whitening,
    )


def _chosen(ways: Sequence[Translation], trial: _Trial, options: BridgeOptions) -> Translation:
    """The best maps and weights; where two models may ask, their forward map and old side are also those of one."""
    usual = ways[0]
    if options.rules.weight is not None:
        return replace(usual, whitening=None)
    if options.one_model:
        return choose(ways, trial.evidence, trial.choosing, two=False)
    ahead = [way for way in ways if way.backward is usual.backward]
    both = choose(ahead, trial.evidence, trial.choosing, two=True)
    if both.backward is None:
        return both
    same_forward = [
        replace(way, whitening=both.whitening, whitened=both.whitened)
        for way in ways
        if way.forward is both.forward
    ]
    alone = choose(same_forward, trial.evidence, trial.choosing, two=False)
    return replace(alone, two=both.two)


def _with_old_side(way: Translation) -> Translation:
    """The same; if its old side is whitened, its maps say so."""
    if not way.whitened:
        return way
    maps = {**way.about["maps"], "old side": "half whitened"}
    return replace(way, about={**way.about, "maps": maps})


def _with_queries(pairs: Pairs, trial: _Trial) -> Pairs:
    """The pairs, and the queries that chose as more of them.

    All queries together weigh as much as all items, but a query weighs at most as much as three items. Stored items may
    be of other classes than those that are asked for, or longer texts; queries are what is asked. One that equals a
    stored item or a query that judges is left out: what judges is not fitted.
    """
    if not len(trial.choosing):
        return pairs
    old = np.asarray(trial.evidence.old.queries, np.float32)
    judged = np.concatenate(
        [np.asarray(trial.evidence.old.gallery, np.float32), old[trial.judging]]
    )
    rows = trial.choosing[_unlike(old[trial.choosing], judged)]
    if not len(rows):
        return pairs
    weight = min(len(pairs) / len(rows), _MOST)
    if pairs.groups is None:
        groups = None
    else:
        groups = np.concatenate([pairs.groups, pairs.groups.max() + 1 + np.arange(len(rows))])
    return Pairs.checked(
        np.concatenate([pairs.X, old[rows]]),
        np.concatenate([pairs.Y, trial.evidence.new.queries[rows]]),
        weights=np.concatenate([pairs.weights, np.full(len(rows), weight)]),
        groups=groups,
        seed=pairs.seed,
    )


def _fitted_again(way: Translation, pairs: Pairs) -> Translation:
    """The same kinds of maps and weights, fitted on other pairs."""
    maps = way.about["maps"]
    forward = fit_map(maps["forward"], pairs).map
    backward = None
    if way.backward is not None:
        backward = fit_map(maps["backward"], pairs.reversed).map
    return replace(way, forward=forward, backward=backward)


# --- the judgement


def _judged(
    items: _Items,
    asked: _Items | None,
    wanted: Grades,
    everything: bool,
    options: BridgeOptions,
    progress: bool,
) -> Bridged:
    """``everything``: all old items have a new vector, so that re-embedding all of them is possible."""
    fitted, trial, proof = _divided(items, asked=asked, wanted=wanted, options=options)
    if not len(fitted):
        raise InputError(
            "all items are held out to judge, so that none is left to fit on; hold out fewer",
            NextStep("repeat", {"held_out": 0.4}),
        )
    pairs = fitted.pairs(options.rules.seed)
    ways, left_out = _fitted_ways(items.names, pairs=pairs, options=options, progress=progress)
    fitted_on = plural(len(fitted), "pair")
    usual = replace(ways[0], whitening=None)
    if trial is None:
        return _unproven(usual, fitted_on, left_out, by_relevance=bool(wanted))
    if proof == "old neighbours":
        return _agreeing(
            usual, trial=trial, fitted_on=fitted_on, left_out=left_out, options=options
        )
    way = _with_old_side(_chosen(ways, trial, options))
    ranked = _by_preference(way, _outcomes(way, trial.evidence), trial)
    more = _with_queries(pairs, trial)
    if len(more) > len(pairs):
        way = _fitted_again(way, more)
        fitted_on += f" and {plural(len(more) - len(pairs), 'query')}"
    outcomes = _outcomes(way, trial.evidence)
    confidence = options.rules.shared(len(ranked))
    measured = {
        name: _measured(
            name=name,
            way=way,
            hits=hits,
            before=outcomes[OLD],
            trial=trial,
            rules=replace(options.rules, confidence=confidence),
        )
        for name, hits in outcomes.items()
    }
    outcome, chosen = _decided(ranked, measured)
    found = Bridged(
        outcome=outcome,
        sentence="",
        evidence=proof,
        fitted_on=fitted_on,
        translation=way.with_one_model() if chosen == ONE else way,
        queries=len(trial.judging),
        gallery=len(trial.evidence.old.gallery),
        chosen=chosen,
        measured=measured,
        left_out=left_out,
    )
    sentence = _verdict_words(found, confidence, options.rules)
    if everything and _much_better(
        outcomes[AGAIN], after=outcomes[chosen], trial=trial, rules=options.rules
    ):
        better = _reembedding_words(found, chosen)
        sentence = f"{better}. {sentence}"
    return replace(found, sentence=sentence)


def _unproven(
    way: Translation, fitted_on: str, left_out: Mapping[str, str], by_relevance: bool
) -> Bridged:
    """A bridge that nothing could judge."""
    least = "Two labelled items of one class that were not fitted are"
    if by_relevance:
        least = "Two queries with relevant items, one to choose and one to judge, are"
    return Bridged(
        outcome="missing evidence",
        sentence=f"Unproven: nothing shows what {way.target} finds among vectors of {way.source}. {least} the least to "
        "judge with",
        evidence="none",
        fitted_on=fitted_on,
        translation=way,
        left_out=left_out,
    )


def _reembedding_words(found: Bridged, chosen: str) -> str:
    """What embedding everything again would find beside this bridge."""
    again = percent(found.measured[AGAIN].finds)
    here = percent(found.measured[chosen].finds)
    if found.evidence == "relevance":
        return f"Re-embedding everything would reach an {found.measure} of {again}; this reaches {here} without it"
    return f"Re-embedding everything would find {again}; this finds {here} without it"


def _outcomes(way: Translation, evidence: Evidence) -> dict[str, NDArray[Any]]:
    """How right each query is, [N], in every way to search."""
    rows = np.arange(len(evidence.new.queries))
    found = {OLD: evidence.before()}
    with_old = evidence.by_weight(way, "two", [1.0, *([] if way.two is None else [way.two])], rows)
    found[AHEAD] = with_old[1.0]
    if way.one is not None:
        plain = replace(way, whitened=False)
        found[BACK] = evidence.by_weight(plain, "one", [0.0], rows)[0.0]
        found[ONE] = evidence.by_weight(way, "one", [way.one], rows)[way.one]
    if way.two is not None:
        found[TWO] = with_old[way.two]
    found[AGAIN] = evidence.reembedded()
    return found


def _by_preference(
    way: Translation, outcomes: Mapping[str, NDArray[Any]], trial: _Trial
) -> list[str]:
    """The ways to search that are judged, the better first, by the queries that choose.

    Two models per query come first if they gain more than their standard error: one model costs less. With weight 0
    two models are the old model's own queries, and there is nothing to judge.
    """
    names = [
        name for name, weight in ((ONE, way.one), (TWO, way.two or None)) if weight is not None
    ]
    if len(names) < 2 or not len(trial.choosing):
        return names[::-1]
    gained = gain(outcomes[TWO][trial.choosing], outcomes[ONE][trial.choosing])
    if gained > 0:
        return [TWO, ONE]
    return [ONE, TWO]


def _decided(ranked: Sequence[str], measured: Mapping[str, Measured]) -> tuple[Outcome, str]:
    """The outcome, and the way to search that it is about: the best that passes, else the best that may."""
    passing = [name for name in ranked if measured[name].verdict == "compatible"]
    if passing:
        return "pass", passing[0]
    undecided = [name for name in ranked if measured[name].verdict == "not decided"]
    if undecided:
        return "missing evidence", undecided[0]
    return "refuse", ranked[0] if ranked else TWO


def _measured(
    name: str,
    way: Translation,
    hits: NDArray[Any],
    before: NDArray[Any],
    trial: _Trial,
    rules: GateRules,
) -> Measured:
    after = hits[trial.judging]
    own = before[trial.judging]
    weights = {AHEAD: 1.0, BACK: 0.0, ONE: way.one, TWO: way.two}
    judged = judged_difference(after, before=own, confidence=rules.confidence, rules=rules)
    return Measured(
        finds=float(after.mean()),
        difference=judged.mean,
        low=0.0 if name == OLD else judged.low,
        high=0.0 if name == OLD else judged.high,
        verdict="the one to beat" if name == OLD else judged.verdict,
        lost=int(np.count_nonzero(after < own)),
        won=int(np.count_nonzero(after > own)),
        models=2 if name == TWO else 1,
        weight=weights.get(name),
    )


def _much_better(again: NDArray[Any], after: NDArray[Any], trial: _Trial, rules: GateRules) -> bool:
    judged = judged_difference(
        again[trial.judging], before=after[trial.judging], confidence=rules.confidence, rules=rules
    )
    return judged.mean >= MUCH and judged.low > 0


def _verdict_words(found: Bridged, confidence: float, rules: GateRules) -> str:
    best = found.best
    assert best is not None
    assert best.difference is not None
    old = found.translation.source
    own = found.measured[OLD].finds
    if best.models == 2 and not best.weight:
        return (
            f"Keep the old model: no way to search with {found.translation.target} was better than its own queries, "
            f"which {'find' if found.evidence == 'labels' else f'reach an {found.measure} of'} {percent(own)}"
        )
    how_much = f"finds {percent(best.finds)} of {found.queries:,} held-out queries"
    if found.evidence == "relevance":
        how_much = f"reaches an {found.measure} of {percent(best.finds)} on {found.queries:,} held-out queries"
    figures = (
        f"{found.chosen} per query, w {best.weight:g}, {how_much}, {old} itself {percent(own)}: "
        f"{points(best.difference)} points, with {100 * confidence:g} % confidence between {points(best.low)} and "
        f"{points(best.high)}"
    )
    if found.outcome == "pass":
        return f"Use it: {figures}{_gain_words(found)}"
    if found.outcome == "refuse":
        return f"Keep the old model: {figures}"
    judged = Difference(
        mean=best.difference,
        low=best.low,
        high=best.high,
        verdict="not decided",
        differing=best.lost + best.won,
    )
    needed = needed_queries(
        judged, queries=found.queries, confidence=confidence, tolerance=rules.tolerance
    )
    more = "More of the same queries would not show a gain"
    if needed is not None:
        half = ""
        if rules.weight is None:
            half = ": half of all queries judge"
        more = f"If it stays like this, about {needed:,} judging queries would decide{half}"
    return f"Keep the old model for now: {figures}. {more}"


def _gain_words(found: Bridged) -> str:
    """The share of re-embedding's gain that is reached, in words."""
    best = found.best
    again = found.measured[AGAIN].difference
    assert best is not None
    if best.difference is None or again is None or best.difference <= 0:
        return ""
    if found.share is None or found.share >= 1:
        return f". Re-embedding everything would not gain more: {points(again)} points"
    return f". It gains {in_points(best.difference)} of {in_points(again)} points, {100 * found.share:.0f} %"


def _agreeing(
    way: Translation,
    trial: _Trial,
    fitted_on: str,
    left_out: Mapping[str, str],
    options: BridgeOptions,
) -> Bridged:
    """Without labels: how many of the old model's nearest each way finds again. Nothing is chosen by that."""
    rules = options.rules
    rows = np.concatenate([trial.choosing, trial.judging])
    outcomes = _outcomes(way, trial.evidence)
    measured = {}
    for name in (AHEAD, BACK, ONE, TWO):
        if name not in outcomes:
            continue
        share = outcomes[name][rows]
        found = paired_bootstrap(
            share, np.zeros(len(share)), confidence=rules.confidence, seed=rules.seed
        )
        weights = {AHEAD: 1.0, BACK: 0.0, ONE: way.one, TWO: way.two}
        measured[name] = Measured(
            finds=found.mean,
            difference=None,
            low=found.low,
            high=found.high,
            verdict="unproven",
            lost=0,
            won=0,
            models=2 if name == TWO else 1,
            weight=weights[name],
        )
    told = [f"{percent(measured[name].finds)} ({name})" for name in (ONE, TWO) if name in measured]
    k = min(NEIGHBOURS, len(trial.evidence.old.gallery))
    return Bridged(
        outcome="missing evidence",
        sentence=f"Unproven: there are no labels. Of the {k} nearest that {way.source} finds, {' or '.join(told)} are "
        "found again. That shows how much would change, not whether it is better. Labels, or known relevant items, "
        "would decide",
        evidence="old neighbours",
        fitted_on=fitted_on,
        translation=way,
        queries=len(rows),
        gallery=len(trial.evidence.old.gallery),
        measured=measured,
        left_out=left_out,
    )


# --- sets without a common item


def _without_pairs(
    one: Embedded, other: Embedded, known: Mapping[str, str], options: BridgeOptions
) -> Bridged:
    """Rotations by pseudo-pairs: by class centres where both sides have labels, else by the vectors alone."""
    seed = options.rules.seed
    rng = np.random.default_rng(seed)
    old, old_labels = _drawn(one, known=known, sample=options.sample, rng=rng)
    new, new_labels = _drawn(other, known=known, sample=options.sample, rng=rng)
    first = old_labels != ""
    second = new_labels != ""
    if first.any() and second.any():
        found = pseudo_pairs(
            old[first],
            Y=new[second],
            labels_x=old_labels[first],
            labels_y=new_labels[second],
            seed=seed,
        )
    else:
        found = pseudo_pairs(old, new, seed=seed)
    forward = _Made("rotation", fit_map("rotation", found.pairs).map)
    backward = _Made("rotation", fit_map("rotation", found.pairs.reversed).map)
    fitted_on = f"{len(found.pairs):,} pseudo-pairs from {found.anchors}"
    return Bridged(
        outcome="missing evidence",
        sentence="Unproven: no item has vectors by both models, so nothing shows whether this works. Rotations were "
        f"fitted on {fitted_on}. Keep the old model until labelled items embedded by both models have judged it",
        evidence="none",
        fitted_on=fitted_on,
        translation=_usual_way(
            (one.name, other.name), forward=forward, backward=backward, options=options
        ),
    )


def _drawn(
    side: Embedded, known: Mapping[str, str], sample: int, rng: np.random.Generator
) -> tuple[Vectors, NDArray[np.str_]]:
    """Some vectors of a side, and their labels, empty where unknown."""
    rows = np.sort(rng.permutation(len(side.ids))[:sample])
    ids = [side.ids[row] for row in rows.tolist()]
    labels = [side.labels.get(item) or known.get(item, "") for item in ids]
    return side.vectors[rows], np.array(labels, str)
