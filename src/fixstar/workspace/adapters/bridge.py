"""Bridges: vectors of an old model are stored, and a new model was never trained with it. What is the best way across?

Every kind of adapter is fitted on pairs, vectors that both models made of the same images; labels are not needed. Each
is tried in three ways:

    queries     the new model's queries are mapped into the old space; nothing stored changes
    stored      the stored vectors are mapped into the new space; no image is needed
    blended     slerp(old query, mapped new query, alpha): queries by two models; nothing stored changes

The old model stays the one to beat: its own queries on its own vectors. Held-out evidence decides, none of it fitted:
labelled images, or known relevant items. Half of the queries choose each alpha and the best way; the other half judges
it by the gate's rule, so the verdict needs no correction for the choice. Intervals of the others are for comparison.

Without labels, only the agreement with what the old model finds can be measured. That shows how much would change, not
whether it is better: the result is unproven. So is a bridge between sets that have no image in common.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import DataError, InputError, NextStep, UnknownNameError, plural
from fixstar.evaluation import Difference, gallery_query_split, nearest, paired_bootstrap
from fixstar.evaluation.search import searcher
from fixstar.evaluation.verdicts import GateRules, halves, judged_difference, needed_queries
from fixstar.gallery.transfer import BATCH, open_vectors
from fixstar.gallery.vector_files import VectorSource
from fixstar.geometry import slerp
from fixstar.images import Preprocessing
from fixstar.progress import progress_bar
from fixstar.wording import percent, points
from fixstar.workspace.adapters.fitting import ADAPTERS, Pairs, checked_pairs, fit_checked, fitting_kinds
from fixstar.workspace.adapters.maps import Applied, VectorAdapter
from fixstar.workspace.adapters.portable import Bridge
from fixstar.workspace.adapters.unpaired import pseudo_pairs
from fixstar.workspace.adapters.use import PairedVectors, known_label, unit_rows
from fixstar.workspace.checks import Outcome
from fixstar.workspace.gate import ALPHAS
from fixstar.workspace.items import LABEL, catalogue

Floats = NDArray[np.floating[Any]]
Vectors = NDArray[np.float32]
Way = Literal["queries", "stored", "blended"]
Side = ArrayLike | str | Path | VectorSource
"""Vectors [N, width], or the address of vectors or of a model."""

NEIGHBOURS = 10  # whose agreement is measured if there are no labels
_VECTORS = (".npy", ".npz", ".parquet", ".faiss", ".index")
_IMAGENET = {"mean": "0.485,0.456,0.406", "std": "0.229,0.224,0.225"}
_EMBED_BATCH = 64


class Candidate(NamedTuple):
    """One way to search the old vectors with the new model, by the queries that judge.

    ``low`` and ``high`` are the interval of the difference from the old model's own queries (without labels: of the
    result itself), ``chosen_by`` the result of the queries that choose, ``lost`` and ``won`` count changed queries.
    """

    kind: str
    way: Way
    alpha: float | None
    chosen_by: float
    result: float
    low: float
    high: float
    verdict: str
    lost: int
    won: int

    @property
    def words(self) -> str:
        """The way in words."""
        if self.way == "blended":
            return f"{self.kind} blended with old queries, alpha {self.alpha:g}"
        return f"{self.kind} on {'queries' if self.way == 'queries' else 'stored vectors'}"


@dataclass(frozen=True, eq=False)
class Bridged:
    """What ``bridge`` found: the verdict in a ``sentence``, the best ``bridge``, and its card's figures.

    ``old`` is the result of the old model's own queries, ``reembedded`` that of re-embedding everything.
    """

    outcome: Outcome
    sentence: str
    evidence: str
    fitted_on: str
    bridge: Bridge
    queries: int = 0
    gallery: int = 0
    old: float | None = None
    reembedded: Candidate | None = None
    candidates: tuple[Candidate, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.sentence

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "outcome": self.outcome,
            "verdict": self.sentence,
            "evidence": self.evidence,
            "fitted_on": self.fitted_on,
            "queries": self.queries,
            "gallery": self.gallery,
            "old": self.old,
            "reembedded": None if self.reembedded is None else self.reembedded._asdict(),
            "candidates": [one._asdict() for one in self.candidates],
            "left_out": dict(self.left_out),
        }


@dataclass(frozen=True)
class BridgeOptions:
    """How a bridge is made. ``held_out`` is the share of labelled images that judge and are not fitted."""

    kinds: tuple[str, ...] = tuple(ADAPTERS)
    sample: int = 8000  # images by both models, at most
    held_out: float = 0.4
    rules: GateRules = field(default_factory=GateRules)

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in ADAPTERS:
                raise UnknownNameError("adapter", kind, ADAPTERS)
        if self.sample < 20:
            raise InputError(f"a sample is 20 images or more, got {self.sample}")
        if not 0 < self.held_out <= 1:
            raise InputError(f"the held-out share of labelled images lies between 0 and 1; got {self.held_out}")


def bridge(
    old: Side,
    new: Side,
    *,
    labels: Sequence[Any] | NDArray[Any] | Mapping[str, Any] | str | Path | None = None,
    relevant: Mapping[str, Collection[str]] | str | Path | None = None,
    images: str | Path | None = None,
    options: BridgeOptions | None = None,
    progress: bool = False,
) -> Bridged:
    """The best way to search vectors of the ``old`` model with the ``new`` one, judged on held-out evidence.

    Both are matrices, row by row of the same image; addresses of vectors (``gallery.transfer.open_vectors``), paired by
    ids; or models, which embed ``images`` (``open_model``). ``labels`` are one per row, by id, or a CSV file of id and
    label; otherwise those in payloads or of image folders. ``relevant`` are the ids that each query should find, or a
    CSV file.
    """
    options = options or BridgeOptions()
    one, other = (
        _read(side, name, images, options.sample, options.rules.seed, progress)
        for side, name in ((old, "old"), (new, "new"))
    )
    named = _labels(labels, one, other)
    wanted = _relevance(relevant)
    common = _common_rows(one, other, options)
    if common is None:
        found = _without_pairs(one, other, named, options)
    else:
        ids = [one.ids[row] for row in common[0]]
        both = PairedVectors(one.vectors[common[0]], other.vectors[common[1]], [named.get(name) for name in ids])
        fitted, trial, evidence = _divided(both, ids, wanted, options)
        found = _judged(one.name, other.name, fitted, trial, evidence, options, progress)
    limits = {"confidence": options.rules.confidence, "tolerance": options.rules.tolerance}
    card = {**found.to_json(), **limits, "made": datetime.now(UTC).isoformat(timespec="seconds")}
    return replace(found, bridge=replace(found.bridge, card=card))


def apply_bridge(made: Bridge, old: Side, new: Side) -> tuple[list[str], Vectors]:
    """Ids and vectors [N, width] that a bridge makes; blended queries need both models' of the same images."""
    sides = {"queries": new, "stored": old}
    given = _read(sides[made.applied], "new", None, 0, 0, False)
    if made.alpha is None:
        return given.ids, made(given.vectors)
    own = _read(old, "old", None, 0, 0, False)
    place = {item: row for row, item in enumerate(own.ids)}
    rows = [row for row, item in enumerate(given.ids) if item in place]
    if not rows:
        raise InputError("this bridge blends queries by two models, and no id occurs on both sides")
    ids = [given.ids[row] for row in rows]
    return ids, made(given.vectors[rows], own.vectors[[place[item] for item in ids]])


# --- reading both sides


class _Embedded(NamedTuple):
    """Vectors of one model: unit rows, their ids, and the labels that are known. ``counted``: ids are row numbers."""

    name: str
    ids: list[str]
    vectors: Vectors
    labels: dict[str, str]
    counted: bool


def _read(side: Side, name: str, images: str | Path | None, most: int, seed: int, progress: bool) -> _Embedded:
    if isinstance(side, (str, Path)):
        text = str(side)
        if "://" not in text and not text.partition("?")[0].endswith(_VECTORS):
            return _embedded(text, images, most, seed, progress)
        return _from_source(open_vectors(side), Path(text.partition("?")[0]).stem, progress)
    if hasattr(side, "blocks"):
        return _from_source(side, name, progress)  # type: ignore[arg-type]
    vectors = unit_rows(np.asarray(side), "vectors", name)
    return _Embedded(name, [str(row) for row in range(len(vectors))], vectors, {}, True)


def _from_source(source: VectorSource, name: str, progress: bool) -> _Embedded:
    if len(set(source.ids)) < len(source.ids):
        raise DataError(f"{source.name} has an id twice; ids must be distinct")
    parts, labels = [], dict[str, str]()
    with progress_bar(f"reading {name}", len(source.ids), "vectors", show=progress) as advance:
        for ids, vectors, payloads in source.blocks(BATCH):
            parts.append(np.asarray(vectors, np.float32))
            found = ((item, known_label(payload.get(LABEL))) for item, payload in zip(ids, payloads, strict=True))
            labels.update((item, label) for item, label in found if label is not None)
            advance(len(ids))
    counted = source.ids[-1].endswith(f"/{len(source.ids) - 1}") and source.ids[0].endswith("/0")
    ids = [str(row) for row in range(len(source.ids))] if counted else list(source.ids)
    if counted:
        labels = {item.rpartition("/")[2]: label for item, label in labels.items()}
    return _Embedded(name, ids, unit_rows(np.concatenate(parts), "vectors", source.name), labels, counted)


def _embedded(text: str, images: str | Path | None, most: int, seed: int, progress: bool) -> _Embedded:
    """Up to ``most`` images, the same for every model, as a model embeds them; unreadable ones are left out."""
    if images is None:
        raise InputError(
            f"{text} is a model: give images for it to embed", NextStep("repeat", {"images": ...}, "a folder of photos")
        )
    encoder, name = open_model(text), Path(text.partition("?")[0]).stem
    items = list(catalogue(Path(images)))
    if len(items) > most:
        chosen = np.random.default_rng(seed).permutation(len(items))[:most]
        items = [items[row] for row in sorted(chosen.tolist())]
    parts = []
    with progress_bar(f"embedding with {name}", len(items), "images", show=progress) as advance:
        for start in range(0, len(items), _EMBED_BATCH):
            batch = [item.image for item in items[start : start + _EMBED_BATCH]]
            parts.append(encoder.encode(batch, form="short", bad="skip"))
            advance(len(batch))
    vectors = np.concatenate(parts)
    readable = np.flatnonzero(~np.isnan(vectors).any(axis=1)).tolist()
    found = {items[row].id: known_label(items[row].payload.get(LABEL)) for row in readable}
    labels = {item: label for item, label in found.items() if label is not None}
    return _Embedded(name, list(found), vectors[readable], labels, False)


def open_model(text: str) -> Any:
    """The encoder of a saved version's folder, or of ``MODEL?size=224&mean=0.5,0.5,0.5&std=0.5,0.5,0.5&output=NAME``.

    ``fit``, ``crop_fraction`` and ``interpolation`` are understood too. The mean and std of ImageNet are the default.
    """
    from fixstar.models import Encoder

    place, _, query = text.partition("?")
    if (Path(place) / "card.json").is_file():
        return Encoder.load(place)
    given = {**_IMAGENET, **dict(part.split("=", 1) for part in query.split("&") if "=" in part)}
    known = ("size", "mean", "std", "fit", "crop_fraction", "interpolation", "output")
    if unknown := [name for name in given if name not in known]:
        raise UnknownNameError("parameter of a model's address", unknown[0], known)
    if "size" not in given and not place.startswith(("hf:", "open_clip:", "st:")):
        raise InputError(
            f"{text} does not say how its images are prepared: write {place}?size=224, with mean and std unless they "
            "are ImageNet's"
        )
    output, prepared = given.pop("output", None), None
    try:
        if "size" in given:
            sides = [int(side) for side in given.pop("size").lower().split("x")]
            mean, std = (tuple(float(part) for part in given.pop(name).split(",")) for name in ("mean", "std"))
            share = float(given.pop("crop_fraction", 1.0))
            prepared = Preprocessing(
                size=(sides[0], sides[-1]),
                channels=len(mean),
                mean=mean,
                std=std,
                crop_fraction=share,
                **given,  # type: ignore[arg-type]
            )
    except ValueError as error:
        raise InputError(f"{text}: {error}") from error
    return Encoder.wrap(place, prepared, output=output)


def _labels(labels: Any, one: _Embedded, other: _Embedded) -> dict[str, str]:
    if labels is None:
        return {**other.labels, **one.labels}
    if isinstance(labels, (str, Path)):
        return dict(_csv_rows(Path(labels), ("id", "label")))
    if not isinstance(labels, Mapping):
        if len(labels) != len(one.ids):
            raise InputError(f"labels are one for each of {len(one.ids):,} old vectors; got {len(labels):,}")
        labels = dict(zip(one.ids, labels, strict=True))
    found = ((str(item), known_label(label)) for item, label in labels.items())
    return {item: label for item, label in found if label is not None}


def _relevance(relevant: Mapping[str, Collection[str]] | str | Path | None) -> dict[str, set[str]]:
    if isinstance(relevant, (str, Path)):
        wanted: dict[str, set[str]] = {}
        for query, item in _csv_rows(Path(relevant), ("query", "item")):
            wanted.setdefault(query, set()).add(item)
        return wanted
    return {str(query): {str(item) for item in items} for query, items in (relevant or {}).items()}


def _csv_rows(path: Path, heads: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Two columns, with or without their heads."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for line, row in enumerate(csv.reader(file), start=1):
                if len(row) != 2 or not all(row):
                    raise DataError(f"{path}, line {line}: two columns are needed, {' and '.join(heads)}; got {row}")
                if line > 1 or tuple(row) != heads:
                    yield row[0], row[1]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a list of {' and '.join(heads)}: {error}") from error


def _common_rows(one: _Embedded, other: _Embedded, options: BridgeOptions) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Rows of both sides that are of one image, a sample of them; None if there are none."""
    if one.counted and other.counted and len(one.ids) != len(other.ids):
        return None
    place = {item: row for row, item in enumerate(other.ids)}
    rows = np.array([(row, place[item]) for row, item in enumerate(one.ids) if item in place]).reshape(-1, 2)
    if one.counted != other.counted or not len(rows):
        return None
    if len(rows) > options.sample:
        rows = rows[np.sort(np.random.default_rng(options.rules.seed).permutation(len(rows))[: options.sample])]
    return rows[:, 0], rows[:, 1]


# --- evidence


class _Trial(NamedTuple):
    """Held-out images as queries and gallery by both models; ``score(queries, gallery)`` is how right each query is."""

    old_queries: Vectors
    new_queries: Vectors
    old_gallery: Vectors
    new_gallery: Vectors
    score: Callable[[Floats, Floats], NDArray[Any]]
    choosing: NDArray[Any]
    judging: NDArray[Any]


def _divided(
    both: PairedVectors, ids: Sequence[str], wanted: Mapping[str, set[str]], options: BridgeOptions
) -> tuple[PairedVectors, _Trial | None, str]:
    """What to fit on, what to judge with, and what kind of evidence that is."""
    rng = np.random.default_rng(options.rules.seed)
    if wanted:
        return _by_relevance(both, ids, wanted, options, rng)
    labelled = np.array([row for row, label in enumerate(both.labels) if label is not None], np.int64)
    pool, evidence = (labelled, "labels") if len(labelled) else (np.arange(len(both)), "old neighbours")
    share = options.held_out if len(labelled) else min(options.held_out, 0.4)
    held = np.sort(rng.permutation(pool)[: round(share * len(pool))])
    fitted = both.take(np.setdiff1d(np.arange(len(both)), held))
    judged = both.take(held).without(fitted)
    if evidence == "labels":
        judged = judged.searchable()
        if not len(judged):
            return fitted, None, "none"
        _, codes = judged.coded()
        split = gallery_query_split(codes, seed=options.rules.seed)
        queries, gallery = split.queries, split.gallery
        truth, stored = codes[queries], codes[gallery]

        def score(asked: Floats, among: Floats) -> NDArray[Any]:
            return searcher("image", among, stored)(asked, truth)

        return fitted, _trial(judged, queries, gallery, score, truth, options), evidence
    if len(judged) < 4:
        return fitted, None, "none"
    queries, gallery = np.arange(0, len(judged), 2), np.arange(1, len(judged), 2)
    k = min(NEIGHBOURS, len(gallery))
    before = nearest(judged.old[queries], judged.old[gallery], k)[0]

    def agree(asked: Floats, among: Floats) -> NDArray[Any]:
        found = nearest(asked, among, k)[0]
        return np.array([len(set(a) & set(b)) / k for a, b in zip(found.tolist(), before.tolist(), strict=True)])

    return fitted, _trial(judged, queries, gallery, agree, np.zeros(len(queries), np.int64), options), evidence


def _by_relevance(
    both: PairedVectors,
    ids: Sequence[str],
    wanted: Mapping[str, set[str]],
    options: BridgeOptions,
    rng: np.random.Generator,
) -> tuple[PairedVectors, _Trial | None, str]:
    """Queries with known relevant items, those items, and a share of all others as the gallery they are found in."""
    row_of = {item: row for row, item in enumerate(ids)}
    asked = {query: {row_of[item] for item in items if item in row_of} for query, items in wanted.items()}
    queries = np.array(sorted(row_of[query] for query, items in asked.items() if items and query in row_of), np.int64)
    if not len(queries):
        raise InputError(
            f"none of the {len(wanted):,} queries and one of its relevant items have vectors by both models"
        )
    named = np.array(sorted({row for items in asked.values() for row in items} - set(queries.tolist())), np.int64)
    others = np.setdiff1d(np.arange(len(both)), np.concatenate([queries, named]))
    more = rng.permutation(others)[: round(options.held_out * len(others))] if options.held_out < 1 else others[:0]
    gallery = np.sort(np.concatenate([named, more]))
    if not len(gallery):
        raise InputError("every relevant item is a query itself, so that nothing is left to search")
    place = {row: number for number, row in enumerate(gallery.tolist())}
    right = [{place[row] for row in asked[ids[query]] if row in place} for query in queries.tolist()]
    kept = [number for number, rows in enumerate(right) if rows]
    queries, right = queries[kept], [right[number] for number in kept]

    def score(by: Floats, among: Floats) -> NDArray[Any]:
        found = nearest(by, among)[0][:, 0].tolist()
        return np.array([row in rows for row, rows in zip(found, right, strict=True)])

    fitted = both.take(np.setdiff1d(others, more))
    return fitted, _trial(both, queries, gallery, score, np.zeros(len(queries), np.int64), options), "relevance"


def _trial(
    both: PairedVectors, queries: NDArray[Any], gallery: NDArray[Any], score: Any, classes: Any, options: BridgeOptions
) -> _Trial | None:
    choosing, judging = halves(classes, options.rules.seed)
    if not len(judging):
        return None
    images = both.old[queries], both.new[queries], both.old[gallery], both.new[gallery]
    return _Trial(*images, score, choosing, judging)


# --- the judgement


def _judged(
    old: str,
    new: str,
    fitted: PairedVectors,
    trial: _Trial | None,
    evidence: str,
    options: BridgeOptions,
    progress: bool,
) -> Bridged:
    if not len(fitted):
        raise InputError("all images are held out to judge, so that none is left to fit on; hold out fewer")
    adapters, left_out = _fitted(old, new, fitted, options, progress)
    fitted_on = plural(len(fitted), "pair")
    if trial is None:
        kept = next(iter(adapters.values()))
        sentence = (
            f"Unproven: nothing shows what {new} finds among vectors of {old}. Two labelled images of one class that "
            "were not fitted are the least to judge with"
        )
        return Bridged("missing evidence", sentence, evidence, fitted_on, Bridge(kept), left_out=left_out)
    before = trial.score(trial.old_queries, trial.old_gallery)
    ranked: list[tuple[Candidate, VectorAdapter]] = []
    with progress_bar("judging", len(adapters), "adapters", show=progress) as advance:
        for (kind, applied), adapter in adapters.items():
            for way, alpha, hits in _ways(adapter, applied, trial, evidence):
                one = _candidate(kind, way, alpha, hits, before, trial, evidence, options.rules)
                ranked.append((one, adapter))
            advance()
    ranked.sort(key=lambda pair: -pair[0].chosen_by)
    best, adapter = ranked[0]
    everything = None
    if evidence != "old neighbours":
        again = trial.score(trial.new_queries, trial.new_gallery)
        everything = _candidate("re-embedded", "stored", None, again, before, trial, evidence, options.rules)
    made = Bridge(adapter, "stored" if best.way == "stored" else "queries", best.alpha)
    own = float(before[trial.judging].mean())
    outcome, sentence = _verdict(best, old, own, trial, evidence, options.rules)
    candidates = tuple(one for one, _ in ranked)
    sizes = len(trial.judging), len(trial.old_gallery)
    return Bridged(outcome, sentence, evidence, fitted_on, made, *sizes, own, everything, candidates, left_out)


def _fitted(
    old: str, new: str, pairs: PairedVectors, options: BridgeOptions, progress: bool
) -> tuple[dict[tuple[str, Applied], VectorAdapter], dict[str, str]]:
    """Every kind in both directions, as far as there are enough pairs."""
    seed, adapters = options.rules.seed, dict[tuple[str, Applied], VectorAdapter]()
    ends: dict[Applied, tuple[Pairs, str, str]] = {
        "queries": (checked_pairs(pairs.new, pairs.old, pairs.weights, None, seed), new, old),
        "stored": (checked_pairs(pairs.old, pairs.new, pairs.weights, None, seed), old, new),
    }
    kinds, left_out = fitting_kinds(options.kinds, ends["queries"][0])
    with progress_bar("fitting", 2 * len(kinds), "adapters", show=progress) as advance:
        for applied, end in ends.items():
            for kind in kinds:
                adapters[kind, applied] = fit_checked(kind, *end)
                advance()
    return adapters, left_out


def _ways(
    adapter: VectorAdapter, applied: Applied, trial: _Trial, evidence: str
) -> Iterator[tuple[Way, float | None, NDArray[Any]]]:
    """The ways to use an adapter, and what every query finds; half of the queries choose alpha."""
    if applied == "stored":
        yield "stored", None, trial.score(trial.new_queries, adapter(trial.old_gallery))
        return
    mapped = adapter(trial.new_queries)
    yield "queries", None, trial.score(mapped, trial.old_gallery)
    if evidence == "old neighbours":  # the old query agrees best with itself: nothing could be chosen
        return
    tried = {alpha: trial.score(slerp(trial.old_queries, mapped, alpha), trial.old_gallery) for alpha in ALPHAS[1:-1]}
    alpha = max(tried, key=lambda one: (float(tried[one][trial.choosing].mean()), -one))
    yield "blended", alpha, tried[alpha]


def _candidate(
    kind: str,
    way: Way,
    alpha: float | None,
    hits: NDArray[Any],
    before: NDArray[Any],
    trial: _Trial,
    evidence: str,
    rules: GateRules,
) -> Candidate:
    after, own = hits[trial.judging], before[trial.judging]
    chosen_by, result = float(hits[trial.choosing].mean()), float(after.mean())
    if evidence == "old neighbours":
        found = paired_bootstrap(after, np.zeros(len(after)), confidence=rules.confidence, seed=rules.seed)
        return Candidate(kind, way, alpha, chosen_by, result, found.low, found.high, "unproven", 0, 0)
    judged = judged_difference(after, own, rules.confidence, rules)
    lost, won = int(np.count_nonzero(own & ~after)), int(np.count_nonzero(after & ~own))
    return Candidate(kind, way, alpha, chosen_by, result, judged.low, judged.high, judged.verdict, lost, won)


def _verdict(
    best: Candidate, old: str, own: float, trial: _Trial, evidence: str, rules: GateRules
) -> tuple[Outcome, str]:
    asked = len(trial.judging)
    if evidence == "old neighbours":
        k = min(NEIGHBOURS, len(trial.old_gallery))
        return "missing evidence", (
            f"Unproven: there are no labels. {best.words} keeps most of what {old} finds: {percent(best.result)} of "
            f"its {k} nearest ({percent(best.low)} to {percent(best.high)}). That shows how much would change, not "
            "whether it is better. Labels, or known relevant items, would decide"
        )
    figures = (
        f"{best.words}, finds {percent(best.result)} of {asked:,} held-out queries, {old} itself {percent(own)}: "
        f"{points(best.result - own)} points, with {100 * rules.confidence:g} % confidence between {points(best.low)} "
        f"and {points(best.high)}"
    )
    if best.verdict == "compatible":
        return "pass", f"Use it: the best way, {figures}"
    if best.verdict == "incompatible":
        return "refuse", f"Keep the old model: the best way, {figures}"
    judged = Difference(best.result - own, best.low, best.high, "not decided", best.lost + best.won)
    needed = needed_queries(judged, asked, rules.confidence, rules.tolerance)
    more = "More of the same queries would not show a gain"
    if needed is not None:
        more = f"If it stays like this, about {needed:,} judging queries would decide: half of all queries judge"
    return "missing evidence", f"Keep the old model for now: the best way, {figures}. {more}"


# --- sets without a common image


def _without_pairs(one: _Embedded, other: _Embedded, named: Mapping[str, str], options: BridgeOptions) -> Bridged:
    """A rotation by pseudo-pairs: by class centres where both sides have labels, else by the vectors alone."""
    rng = np.random.default_rng(options.rules.seed)
    sides = []
    for side in (one, other):
        rows = np.sort(rng.permutation(len(side.ids))[: options.sample])
        labels = [side.labels.get(side.ids[row]) or named.get(side.ids[row]) for row in rows.tolist()]
        sides.append((side.vectors[rows], labels))
    if all(any(label is not None for label in labels) for _, labels in sides):
        kept = [np.array([row for row, label in enumerate(labels) if label is not None]) for _, labels in sides]
        sides = [(part[rows], [labels[row] for row in rows]) for (part, labels), rows in zip(sides, kept, strict=True)]
        known: tuple[Any, Any] = sides[1][1], sides[0][1]
    else:
        known = None, None
    (old, _), (new, _) = sides
    found = pseudo_pairs(new, old, *known)
    pairs = checked_pairs(new[found.first], old[found.second], None, None, options.rules.seed)
    made = Bridge(fit_checked("procrustes", pairs, other.name, one.name))
    sentence = (
        "Unproven: no image was embedded by both models, so nothing shows whether this works. A rotation was fitted "
        f"on {len(found.first):,} pseudo-pairs found from {found.anchors}. Keep the old model until labelled images "
        "embedded by both models have judged it"
    )
    fitted_on = f"{len(found.first):,} pseudo-pairs from {found.anchors}"
    return Bridged("missing evidence", sentence, "none", fitted_on, made)
