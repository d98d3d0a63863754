"""Using adapters: fitted on the workspace's own gallery, checked like any upgrade, then part of every search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.errors import (
    DataError,
    GalleryError,
    GalleryUnavailableError,
    InputError,
    NextStep,
    UnknownNameError,
    plural,
)
from fixstar.evaluation import PROTOCOLS, CrossTest, VersionFeatures, gallery_query_split, nearest
from fixstar.evaluation.search import searcher
from fixstar.evaluation.trial import Trial
from fixstar.evaluation.verdicts import GateRules, missing_evidence
from fixstar.gallery import Gallery, Item
from fixstar.gallery.transfer import made_or_same
from fixstar.geometry import short_basis, unit
from fixstar.progress import Advance, progress_bar
from fixstar.workspace.adapters.fitting import ADAPTERS, Ranked, best_adapter, fit_adapter, paired_by_class
from fixstar.workspace.adapters.maps import APPLIED, Applied, VectorAdapter
from fixstar.workspace.checks import Check, save_check
from fixstar.workspace.deployment import checked_reason
from fixstar.workspace.gate import OUTCOMES, cell_sentence, evaluate_cell
from fixstar.workspace.items import LABEL, ImageStore, LocalEmbedder
from fixstar.workspace.search import Serving

Labels = NDArray[np.integer[Any]]

_BATCH = 1024  # stored vectors at a time
_EMBED_BATCH = 256
_LEAST_CLASSES = 10  # whose means are paired: four fifths of them are what the simplest kind needs
_ENOUGH_CLASSES = 20  # to choose a kind by searching for classes that were not fitted
_SAME = 1e-6  # below 1: the cosine of two equal vectors, up to rounding
_ROUNDING = 0.01  # of a unit vector: how far a full feature, even in half precision, may lie outside its version's span


@dataclass(frozen=True)
class AdaptOptions:
    """How an adapter is fitted, checked and used."""

    queries_by: str | None = None  # the version whose queries it serves; by default the deployed one
    kind: str | None = None  # one of ADAPTERS; by default the best on held-out pairs
    pairs: Path | None = None  # a file of vectors by both models; by default images of the gallery are embedded
    applied: Applied = "queries"
    force: str | None = None  # a reason to use it without a passed check
    sample: int = 8000  # images to embed, at most
    held_out: float = 0.4  # their share that is for the gate
    rules: GateRules = field(default_factory=GateRules)

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in ADAPTERS:
            raise UnknownNameError("adapter", self.kind, ADAPTERS)
        if self.applied not in APPLIED:
            raise UnknownNameError("use of an adapter", self.applied, APPLIED)
        if self.sample < 1:
            raise InputError(f"a sample is one item or more, got {self.sample}")
        if not 0 < self.held_out < 1:
            raise InputError(f"the share held out for the gate lies between 0 and 1, such as 0.4; got {self.held_out}")


@dataclass(frozen=True)
class Adapted:
    """The result."""

    version: str
    queries_by: str
    kind: str
    applied: str
    fitted_on: str
    pairs: int
    ranked: tuple[tuple[str, float, float], ...]  # kind, top-1 and mean cosine on held-out pairs
    check: Check | None
    in_use: bool  # searches go through the adapter now, or its vectors are stored
    forced: str | None = None
    moved: int = 0  # vectors that were replaced
    into: str | None = None  # the version of their new vectors

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {**vars(self), "check": None if self.check is None else self.check.to_json()}


def adapt(serving: Serving, version: str, options: AdaptOptions, progress: bool = True) -> Adapted:
    """Fit an adapter between a gallery version and a version's queries, check it, and use it if it passes.

    Stored vectors move to VERSION@QUERIES; after an interruption the same call resumes with the same adapter.
    """
    force = checked_reason(options.force, "an adapter")
    queries_by = serving.registry.checked(options.queries_by or serving.deployed())
    if version == queries_by:
        raise InputError(f"queries by {version} search vectors of {version} directly; an adapter is for another model")
    counts = serving.gallery.count()
    if not counts.get(version):
        live = ", ".join(name for name, count in counts.items() if count) or "nothing"
        raise GalleryError(f"the gallery holds no vectors of {version!r}; it holds those of: {live}")
    serving.encoder(queries_by)  # makes room for its vectors
    if options.applied == "stored" and (begun := serving.adapters.find(version, queries_by, "stored")) is not None:
        pairs: int = begun.about["pairs"]
        resumed = Adapted(version, queries_by, begun.kind, "stored", "an earlier run", pairs, (), None, True)
        return _move_stored(serving, resumed, begun, progress)
    evidence = _evidence(serving, version, queries_by, options, progress)
    ranked, adapter = _fit(evidence.pairs, version, queries_by, options)
    check = _checked(serving.path, adapter, evidence, version, queries_by, options)
    passed = check.outcome == "pass"
    done = Adapted(
        version,
        queries_by,
        adapter.kind,
        options.applied,
        evidence.fitted_on,
        len(evidence.pairs),
        tuple((one.adapter.kind, one.held_out.top1, one.held_out.mean_cosine) for one in ranked),
        check,
        passed or force is not None,
        None if passed else force,
    )
    if not done.in_use:
        return done
    adapter = replace(adapter, about={**adapter.about, "check": check.outcome, "forced": done.forced})
    serving.adapters.use(adapter, options.applied)
    return done if options.applied == "queries" else _move_stored(serving, done, adapter, progress)


def _move_stored(serving: Serving, done: Adapted, adapter: VectorAdapter, progress: bool) -> Adapted:
    """Bring the stored vectors through the adapter, as many as are left."""
    gallery, into = serving.gallery, f"{done.version}@{done.queries_by}"
    with progress_bar("adapting stored vectors", gallery.count()[done.version], "items", show=progress) as advance:
        moved = adapt_gallery(gallery, done.version, adapter, into, like=done.queries_by, progress=advance)
    if not gallery.count()[done.version]:
        serving.adapters.remove(done.version, done.queries_by, "stored")
    return replace(done, moved=moved, into=into)


def _fit(
    pairs: PairedVectors, version: str, queries_by: str, options: AdaptOptions
) -> tuple[tuple[Ranked, ...], VectorAdapter]:
    """The adapter, with the comparison that its kind was chosen by."""
    if pairs.weights is not None and len(pairs.new) < _LEAST_CLASSES:
        raise InputError(
            f"no image of {version}'s items can be found, so class means would be paired. But {version} and "
            f"{queries_by} share only {plural(len(pairs.new), 'class')} of at least {_LEAST_CLASSES}. Pass pairs, "
            f"or store paths of images in {version}'s payloads (field image)",
            NextStep("adapt", {"version": version, "queries_by": queries_by, "pairs": ...}),
        )
    (X, source), (Y, target) = (pairs.new, queries_by), (pairs.old, version)
    if options.applied == "stored":
        (X, source), (Y, target) = (Y, target), (X, source)
    classes, codes = pairs.coded()
    groups = codes if len(classes) >= _ENOUGH_CLASSES and (codes >= 0).all() else None
    known: dict[str, Any] = {"weights": pairs.weights, "groups": groups, "seed": options.rules.seed}
    known |= {"source": source, "target": target}
    if options.kind is not None:
        return (), fit_adapter(options.kind, X, Y, **known)
    compared = best_adapter(X, Y, **known)
    return compared.ranked, fit_adapter(compared.best.kind, X, Y, **known)


# --- what adapters are fitted on and checked with


@dataclass(frozen=True, eq=False)
class PairedVectors:
    """Vectors by both models of the same images, ``old`` [N, b] and ``new`` [N, a]; labels [N], None if unknown."""

    old: NDArray[np.float32]
    new: NDArray[np.float32]
    labels: Sequence[str | None]
    weights: NDArray[np.float64] | None = None

    def take(self, rows: NDArray[Any]) -> PairedVectors:
        """Some of them."""
        weights = None if self.weights is None else self.weights[rows]
        return PairedVectors(self.old[rows], self.new[rows], [self.labels[row] for row in rows.tolist()], weights)

    def __len__(self) -> int:
        return len(self.old)

    def coded(self) -> tuple[list[str], NDArray[np.int64]]:
        """The classes, and for every image the number of its own, -1 if unknown."""
        classes = sorted({label for label in self.labels if label is not None})
        number: dict[str | None, int] = {name: i for i, name in enumerate(classes)}
        return classes, np.array([number.get(label, -1) for label in self.labels], np.int64)

    def searchable(self) -> PairedVectors:
        """Those of a class that has at least two."""
        _, codes = self.coded()
        counts = np.bincount(codes + 1)
        return self.take(np.flatnonzero((codes >= 0) & (counts[codes + 1] > 1)))

    def without(self, fitted: PairedVectors) -> PairedVectors:
        """Without images that are among the fitted ones, recognised by their old vectors."""
        if not len(self) or not len(fitted):
            return self
        closest = nearest(self.old, fitted.old)[0][:, 0]
        cosines = np.einsum("ij,ij->i", self.old, fitted.old[closest], dtype=np.float64)
        return self.take(np.flatnonzero(cosines < 1 - _SAME))


class _Evidence(NamedTuple):
    """What to fit on, and what to check with."""

    fitted_on: str
    pairs: PairedVectors
    held_out: PairedVectors | None  # None if nothing can be measured; ``missing`` says why
    step: NextStep  # how to get more to check with, which ``more`` says in words
    more: str = ""
    missing: str = ""


def _evidence(serving: Serving, version: str, queries_by: str, options: AdaptOptions, progress: bool) -> _Evidence:
    """Pairs from the file; otherwise from images of the gallery; otherwise class means."""
    seed, same = options.rules.seed, NextStep("adapt", {"version": version, "queries_by": queries_by})
    larger = replace(same, arguments={**same.arguments, "sample": ...})
    if options.pairs is not None:
        file, given = options.pairs.name, pairs_from_file(options.pairs, serving.gallery, version, queries_by)
        if any(label is not None for label in given.labels):
            return _divided(given, f"pairs of {file}", options, same, f"Add more labelled images to {file}")
        drawn, of = _gallery_sample(serving, version, queries_by, options.sample, seed, progress, labelled=True)
        more, step = _larger_sample(of, options, larger) or (f"Add the array labels to {file}", same)
        missing = f"{file} has no labels, and no labelled image of the gallery can be found"
        held_out = drawn.without(given) if len(drawn) else None
        return _Evidence(f"{plural(len(given), 'pair')} of {file}", given, held_out, step, more, missing)
    drawn, of = _gallery_sample(serving, version, queries_by, options.sample, seed, progress)
    with_pairs = replace(same, arguments={**same.arguments, "pairs": ...})
    if len(drawn):
        all_used = (
            f"All {of:,} items of {version} whose image can be found were used: add labels (payload field label) or "
            "images to others, or pass more pairs by both models"
        )
        more, step = _larger_sample(of, options, larger) or (all_used, with_pairs)
        return _divided(drawn, "items of the gallery", options, step, more)
    pairs = class_pairs(serving, version, queries_by, options.sample, seed)
    fitted_on = f"the means of {plural(len(pairs), 'class')}: no image of {version}'s items can be found"
    missing = "Class means alone are not enough: the check needs the same images by both models"
    return _Evidence(fitted_on, pairs, None, with_pairs, missing=missing)


def _larger_sample(of: int, options: AdaptOptions, step: NextStep) -> tuple[str, NextStep] | None:
    return (f"Take a larger sample: {of:,} items can be used", step) if of > options.sample else None


def _divided(both: PairedVectors, words: str, options: AdaptOptions, step: NextStep, more: str) -> _Evidence:
    """Most to fit on, the others to check with; an image that occurs twice is on one side only."""
    order = np.random.default_rng(options.rules.seed).permutation(len(both))
    out = round(options.held_out * len(both))
    fitted, held = both.take(np.sort(order[out:])), both.take(np.sort(order[:out]))
    return _Evidence(f"{len(fitted):,} {words}", fitted, held.without(fitted), step, more)


def _gallery_sample(
    serving: Serving, version: str, queries_by: str, most: int, seed: int, progress: bool = True, labelled: bool = False
) -> tuple[PairedVectors, int]:
    """Random items of a version whose images are here, as another version embeds them, and how many exist."""
    find = ImageStore(serving.path).find
    items, of = _draw(
        serving.gallery,
        version,
        lambda item: (not labelled or _label(item) is not None) and find(item) is not None,
        most,
        seed,
    )
    embedder = LocalEmbedder(serving.encoder(queries_by))
    new = [np.empty((0, serving.gallery.space(queries_by).width), np.float32)]
    with progress_bar(f"embedding with {queries_by}", len(items), "items", show=progress and bool(items)) as advance:
        for start in range(0, len(items), _EMBED_BATCH):
            paths = [find(item) or Path("gone") for item in items[start : start + _EMBED_BATCH]]
            new.append(embedder.one(paths).vectors)
            advance(len(paths))
    old = _stacked(items, serving.gallery.space(version).width)
    both = PairedVectors(old, np.concatenate(new), [_label(item) for item in items])
    return both.take(np.flatnonzero(~np.isnan(both.new).any(axis=1))), of


def class_pairs(serving: Serving, version: str, queries_by: str, most: int, seed: int) -> PairedVectors:
    """Weighted class means of two gallery versions that have no image in common, by the labels of their items."""
    new, old = (
        _draw(serving.gallery, name, lambda item: _label(item) is not None, most, seed)[0]
        for name in (queries_by, version)
    )
    if not old or not new:
        raise InputError(
            f"no image of {version}'s items can be found, and for class means {len(old):,} of them have a label and "
            f"{len(new):,} items by {queries_by} do. Index labelled images with {queries_by}, pass pairs, or store "
            f"paths of images in {version}'s payloads (field image)",
            NextStep("index", {"items": ...}, "labelled images"),
            NextStep("adapt", {"version": version, "queries_by": queries_by, "pairs": ...}),
        )
    number = {name: i for i, name in enumerate(sorted({str(_label(item)) for item in [*old, *new]}))}
    sides = ((new, queries_by), (old, version))
    vectors = [_stacked(items, serving.gallery.space(name).width) for items, name in sides]
    labels = [[number[str(_label(item))] for item in items] for items, _ in sides]
    means = paired_by_class(vectors[0], labels[0], vectors[1], labels[1])
    return PairedVectors(means.Y, means.X, [None] * len(means.classes), means.weights)


def _draw(
    gallery: Gallery, version: str, wanted: Callable[[Item], bool], most: int, seed: int
) -> tuple[list[Item], int]:
    """Up to ``most`` of the wanted items, each equally likely (reservoir sampling), and how many there are."""
    rng, kept, seen = np.random.default_rng(seed), list[Item](), 0
    for item in gallery.iterate(version):
        if not wanted(item):
            continue
        seen += 1
        if len(kept) < most:
            kept.append(item)
        elif (place := int(rng.integers(seen))) < most:
            kept[place] = item
    return kept, seen


def _label(item: Item) -> str | None:
    return known_label(item.payload.get(LABEL))


def known_label(label: object) -> str | None:
    """A label as text; an empty cell of a table or an array is not a class."""
    unknown = label is None or label in ("", b"") or (isinstance(label, float) and math.isnan(label))
    return None if unknown else str(label)


def _stacked(items: list[Item], width: int) -> NDArray[np.float32]:
    return np.stack([item.vector for item in items]) if items else np.empty((0, width), np.float32)


def pairs_from_file(path: Path, gallery: Gallery, version: str, queries_by: str) -> PairedVectors:
    """Arrays ``old``, ``new`` (stored or full vectors of the same images) and maybe ``labels`` of FILE.npz."""
    if not path.is_file():
        raise InputError(f"there is no file {path}; pairs are FILE.npz with arrays old and new")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read as FILE.npz: {error}") from error
    if missing := {"old", "new"} - set(arrays):
        there = ", ".join(arrays) or "none"
        raise DataError(f"{path} lacks {' and '.join(sorted(missing))}; it needs arrays old and new, and has: {there}")
    old, new = (
        _as_stored(unit_rows(arrays[key], key, path), f"{path}: {key}", gallery, name)
        for key, name in (("old", version), ("new", queries_by))
    )
    labels = [known_label(label) for label in arrays["labels"].tolist()] if "labels" in arrays else [None] * len(old)
    if not len(old) == len(new) == len(labels):
        raise DataError(f"{path}: {len(old)} rows of old, {len(new)} of new, {len(labels)} labels; row i is one image")
    return PairedVectors(old, new, labels)


def unit_rows(array: NDArray[Any], name: str, where: str | Path) -> NDArray[np.float32]:
    """A matrix of unit vectors; other lengths are divided out, as an import does."""
    if array.dtype.kind not in "fiu" or array.ndim != 2 or 0 in array.shape:
        raise DataError(f"{where}: {name} is a matrix [images, components] of numbers; got {array.dtype} {array.shape}")
    lengths = np.linalg.norm(array.astype(np.float64), axis=1)
    if (bad := np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))).size:
        raise DataError(f"{where}: row {bad[0]} of {name} is zero, NaN or infinite; leave that image out of both")
    rows: NDArray[np.float32] = (array / lengths[:, None]).astype(np.float32)
    return rows


def _as_stored(rows: NDArray[np.float32], where: str, gallery: Gallery, version: str) -> NDArray[np.float32]:
    """Unit vectors as the gallery stores them. A full feature is z = Q u, u its short form, so u = Q^T z exactly."""
    width, seen = gallery.space(version).width, rows.shape[1]
    if seen == width:
        return rows
    Q = short_basis(gallery.projection(version))  # [full width, width]
    if Q is None or seen != len(Q):
        full = "" if Q is None else f" in the short form (encode(images, form='short')) and {len(Q)} in full"
        raise DataError(f"{where} has {seen} components, vectors of {version} have {width}{full}")
    short = rows.astype(np.float64) @ Q
    outside = np.linalg.norm(rows - short @ Q.T, axis=1)
    if (far := np.flatnonzero(outside > _ROUNDING)).size:
        raise DataError(
            f"{where} has {seen} components like full features of {version}, but row {far[0]} is not one: "
            f"{outside[far[0]]:.2f} of its length lies where {version} has no features. Make them with {version}"
        )
    u: NDArray[np.float32] = unit(short).astype(np.float32)
    return u


# --- the gate of an adapter


def _checked(
    path: Path, adapter: VectorAdapter, evidence: _Evidence, version: str, queries_by: str, options: AdaptOptions
) -> Check:
    """The gate's verdict on queries by ``queries_by`` over vectors of ``version``, kept in checks/ too."""
    held_out, rules = evidence.held_out, options.rules
    known = None if held_out is None else held_out.searchable()
    if known is not None and len(known):
        check = _measured(adapter, evidence, known, version, queries_by, options)
    else:
        seen = evidence.missing if held_out is None else f"{len(held_out):,} were held out, no two of one class"
        reason = (
            f"nothing shows what {queries_by}'s queries find among vectors of {version} through this adapter: that "
            f"takes labelled items with an image, or with vectors by both models, that it was not fitted on. {seen}"
        )
        rest = (None, 0, 0, rules.confidence, rules.tolerance)
        check = Check(queries_by, "missing evidence", (reason,), (), *rest, next_steps=(evidence.step,))
    about = {"adapter": adapter.kind, "applied": options.applied, "fitted_on": evidence.fitted_on}
    forced = options.force if check.outcome != "pass" else None
    check = replace(check, data={**about, "forced": forced}, when=datetime.now(UTC).isoformat(timespec="seconds"))
    save_check(path, check, f"adapter-{quote(version, safe='@')}")
    return check


def _measured(
    adapter: VectorAdapter,
    evidence: _Evidence,
    known: PairedVectors,
    version: str,
    queries_by: str,
    options: AdaptOptions,
) -> Check:
    """The verdict on labelled images that the adapter was not fitted on, at least two of each class."""
    rules, (classes, labels) = options.rules, known.coded()
    split = gallery_query_split(labels, seed=rules.seed)
    old = VersionFeatures(version, known.old[split.queries], known.old[split.gallery])
    new = VersionFeatures(queries_by, known.new[split.queries], known.new[split.gallery])
    truth = labels[split.queries], labels[split.gallery]
    tested = adapter_cross_test(adapter, old, new, *truth, options.applied)
    if options.applied == "queries":  # both in the space where they are compared, to name the answers that are lost
        new = replace(new, queries=adapter(new.queries), gallery=adapter(new.gallery))
    else:
        old = replace(old, queries=adapter(old.queries), gallery=adapter(old.gallery))
    trial = Trial([old, new], *truth, dict(enumerate(classes)), facts={})
    cell = evaluate_cell(trial, tested, 0, rules)
    reason, steps = cell_sentence(queries_by, cell, rules.confidence, 1, rules.tolerance), list[NextStep]()
    if cell.verdict == "not decided":
        limits = rules.confidence, rules.tolerance
        told, steps = missing_evidence(cell.judged, len(truth[0]), *limits, evidence.step, "labelled items")
        reason = ". ".join([reason, *told, evidence.more])
    return Check(
        queries_by,
        OUTCOMES[cell.verdict],
        (reason,),
        (cell,),
        float(tested.matrix[1, 1]),
        len(truth[0]),
        len(truth[1]),
        rules.confidence,
        rules.tolerance,
        next_steps=tuple(steps),
    )


def adapter_cross_test(
    adapter: VectorAdapter,
    old: VersionFeatures,
    new: VersionFeatures,
    query_labels: ArrayLike,
    gallery_labels: ArrayLike,
    applied: Applied = "queries",
    protocol: str = "image",
) -> CrossTest:
    """The gate's evidence: C[1, 0] is the new model's queries against the old gallery, with the adapter between.

    C[0, 0] is the old self-test, C[1, 1] what re-embedding would give. The adapter was fitted on none of these images.
    """
    if applied not in APPLIED:
        raise UnknownNameError("use of an adapter", applied, APPLIED)
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    one, other = (new, old) if applied == "queries" else (old, new)
    wanted = one.queries.shape[1], other.queries.shape[1]
    if adapter.widths != wanted:
        raise InputError(
            f"applied to {applied}, an adapter between {old.name} and {new.name} leads from {wanted[0]} to "
            f"{wanted[1]} components ({one.name} to {other.name}); this one leads from {adapter.widths[0]} to "
            f"{adapter.widths[1]}. Fit it the other way round, or apply it to the {APPLIED[applied == 'queries']}"
        )
    wanted_labels, stored_labels = coded_labels(query_labels, gallery_labels)
    find_old = searcher(protocol, old.gallery, stored_labels)
    hits = {(0, 0): find_old(old.queries, wanted_labels)}
    if applied == "queries":
        hits[1, 0] = find_old(adapter(new.queries), wanted_labels)
    else:
        hits[1, 0] = searcher(protocol, adapter(old.gallery), stored_labels)(new.queries, wanted_labels)
    hits[1, 1] = searcher(protocol, new.gallery, stored_labels)(new.queries, wanted_labels)
    matrix = np.full((2, 2), np.nan)
    for cell, outcomes in hits.items():
        matrix[cell] = outcomes.mean()
    return CrossTest((old.name, new.name), protocol, matrix, hits)


def coded_labels(*parts: ArrayLike) -> list[Labels]:
    """Labels of any kind as integers, the same for equal ones of all parts.

    >>> [part.tolist() for part in coded_labels(["cat", "dog"], ["dog"])]
    [[0, 1], [1]]
    """
    arrays = [np.asarray(part) for part in parts]
    codes = np.unique(np.concatenate(arrays), return_inverse=True)[1]
    return np.split(codes, np.cumsum([len(array) for array in arrays])[:-1])


# --- stored vectors


def adapt_gallery(
    source: Gallery,
    version: str,
    adapter: VectorAdapter,
    new_version: str,
    *,
    like: str | None = None,
    target: Gallery | None = None,
    progress: Advance | None = None,
) -> int:
    """Bring the stored vectors of ``version`` through the adapter into ``new_version``; how many were written.

    Without ``target`` they replace the old ones. ``like`` names the version whose projection is taken over. It can be
    killed and repeated: finished items, and those embedded by another version meanwhile, are not written again.
    """
    into = source if target is None else target
    if (width := source.space(version).width) != adapter.widths[0]:
        raise InputError(
            f"version {version!r} has vectors of {width} components, the adapter takes {adapter.widths[0]}; for "
            "stored vectors it must lead from the old space to the new one"
        )
    if into is source and new_version == version:
        raise GalleryError(f"adapted vectors of {version!r} need a version of their own; choose another name")
    projection = None if like is None else into.projection(like)
    if not made_or_same(into, new_version, adapter.widths[1], projection):
        raise GalleryError(
            f"the gallery has a version {new_version!r} of another kind ({into.space(new_version).width} wide, the "
            f"adapter makes {adapter.widths[1]}, or another projection); versions never change, choose another name"
        )
    written = 0
    stored = source.iterate(version)
    while batch := list(islice(stored, _BATCH)):
        vectors = adapter(np.stack([item.vector for item in batch]))
        if into is source:
            written += len(into.replace_vectors(new_version, batch, vectors))
        elif items := list(_outdated(batch, vectors, new_version, into)):
            payloads = [item.payload for item in items]
            into.upsert(new_version, [item.id for item in items], np.stack([item.vector for item in items]), payloads)
            written += len(items)
        if progress is not None:
            progress(len(batch))
    with suppress(GalleryUnavailableError):  # everything is stored and safe, even if a reader holds the log
        into.flush()
    return written


def _outdated(batch: list[Item], vectors: NDArray[np.float32], new_version: str, into: Gallery) -> Iterator[Item]:
    """The items with their adapted vectors that the target lacks, or has from an older state of the source."""
    there = into.get([item.id for item in batch])
    for item, vector in zip(batch, vectors, strict=True):
        known = there.get(item.id)
        if known is not None and known.version != new_version:  # that version embedded it
            continue
        same = known is not None and dict(known.payload) == dict(item.payload)
        if known is None or not (same and np.allclose(known.vector, vector, atol=1e-6)):
            yield item._replace(vector=vector)
