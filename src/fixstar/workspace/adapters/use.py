"""Using an adapter: on queries or on stored vectors, and the cross-test that it must pass first.

The gate of an adapter: its cross-test on items that it was not fitted on, with the verdicts of any upgrade.

What adapters are fitted on and judged by: vectors of the same images by two models, from a gallery or a file.

Adapters in a workspace: fitted on its own gallery, gated like any upgrade, then used by every search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import DataError, GalleryError, GalleryUnavailableError, InputError, UnknownNameError
from fixstar.evaluation import PROTOCOLS, CrossTest, Difference, VersionFeatures, gallery_query_split, nearest
from fixstar.evaluation.search import searcher
from fixstar.evaluation.trial import Trial
from fixstar.gallery import Gallery, Item, VersionSpace
from fixstar.gallery.transfer import made_or_same
from fixstar.geometry import short_basis, unit
from fixstar.progress import Advance, progress_bar
from fixstar.workspace.adapters.fitting import ADAPTERS, ClassPairs, Ranked, best_adapter, fit_adapter, paired_by_class
from fixstar.workspace.adapters.maps import APPLIED, Applied, VectorAdapter
from fixstar.workspace.checks import Check, CheckedCell, Outcome, save_check
from fixstar.workspace.gate import GateRules, cell_sentence, needed_queries, tolerance_sentence, tried_cell, way_out
from fixstar.workspace.items import LABEL, LocalEmbedder

if TYPE_CHECKING:
    from fixstar.workspace.workspace import Workspace

__all__ = [
    "AdaptOptions",
    "Adapted",
    "BothSpaces",
    "Sample",
    "adapt",
    "adapt_gallery",
    "adapt_queries",
    "adapter_cross_test",
    "check_adapter",
    "class_pairs",
    "gallery_sample",
    "pairs_of_file",
    "unlike",
    "without_evidence",
]

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]
_BATCH = 1024


def adapt_queries(adapter: VectorAdapter, queries: Floats) -> NDArray[np.float32]:
    """Queries of the new model [N, a] in the space of the old one [N, b]: search the untouched gallery with them."""
    return adapter(queries)


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

    Without ``target`` the items move within their gallery and the old vectors are replaced: there is no way back but
    the new model or a copy. With ``target`` the source stays as it is. ``like`` names the version of the target
    gallery whose space the adapter leads to: its projection is taken over, so that its queries meet adapted vectors.

    It can be stopped or killed at any moment and repeated: an item is written as a whole, and what is done already is
    not done again. Items that the target has under another version were embedded by that version and stay.
    """
    into = source if target is None else target
    space = _space(source, version)
    if space.width != adapter.widths[0]:
        raise InputError(
            f"version {version!r} has vectors of {space.width} components, the adapter takes {adapter.widths[0]}; for "
            "stored vectors it must lead from the old space to the new one"
        )
    if into is source and new_version == version:
        raise GalleryError(f"adapted vectors of {version!r} need a version of their own; choose another name")
    _make_version(into, new_version, adapter.widths[1], None if like is None else into.projection(like))
    written = 0
    for batch in _batches(source.iterate(version)):
        vectors = adapter(np.stack([item.vector for item in batch]))
        if into is source:
            written += len(into.replace_vectors(new_version, batch, vectors))
        else:
            written += _write(_still_to_do(batch, vectors, new_version, into), new_version, into)
        if progress is not None:
            progress(len(batch))
    with suppress(GalleryUnavailableError):  # all is stored and safe, whoever holds the log
        into.flush()
    return written


def _batches(items: Iterator[Item]) -> Iterator[list[Item]]:
    while batch := list(islice(items, _BATCH)):
        yield batch


def _still_to_do(batch: list[Item], vectors: NDArray[np.float32], new_version: str, into: Gallery) -> list[Item]:
    """The items with their adapted vectors, without those that are done or were embedded anew meanwhile."""
    adapted = [item._replace(vector=row) for item, row in zip(batch, vectors, strict=True)]
    there = into.get([item.id for item in batch])
    return [item for item in adapted if item.id not in there or _is_stale(there[item.id], item, new_version)]


def _is_stale(there: Item, item: Item, new_version: str) -> bool:
    """Whether an adapted item of the target is of an older state of the source."""
    same = dict(there.payload) == dict(item.payload) and np.allclose(there.vector, item.vector, atol=1e-6)
    return there.version == new_version and not same


def _write(items: list[Item], version: str, into: Gallery) -> int:
    if items:
        vectors = np.stack([item.vector for item in items])
        into.upsert(version, [item.id for item in items], vectors, [item.payload for item in items])
    return len(items)


def _space(gallery: Gallery, version: str) -> VersionSpace:
    spaces = {space.name: space for space in gallery.versions()}
    if version not in spaces:
        raise GalleryError(f"the gallery has no version {version!r} (it has: {', '.join(spaces) or 'none yet'})")
    return spaces[version]


def _make_version(gallery: Gallery, name: str, width: int, projection: NDArray[np.float32] | None) -> None:
    """Create the version, or see that the one of an interrupted run is the same."""
    if not made_or_same(gallery, name, width, projection):
        raise GalleryError(
            f"the gallery has a version {name!r} of another kind ({_space(gallery, name).width} wide, the adapter "
            f"makes {width}, or another projection); versions never change, choose another name"
        )


def adapter_cross_test(
    adapter: VectorAdapter,
    old: VersionFeatures,
    new: VersionFeatures,
    query_labels: Labels,
    gallery_labels: Labels,
    applied: Applied = "queries",
    protocol: str = "image",
) -> CrossTest:
    """The gate's evidence: C[1, 0] is the new model's queries against the old gallery, with the adapter between.

    Both models embed the same held-out labelled images, none of which the adapter was fitted on. With ``"queries"``
    the adapter leads from the new space to the old one and carries the queries; with ``"stored"`` it leads from the
    old to the new and carries the gallery. ``fixstar.evaluation.verdicts(result)[1, 0]`` is the verdict, by paired
    bootstrap against the old self-test C[0, 0]; C[1, 1] is what re-embedding everything would give.
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
    find_old = searcher(protocol, old.gallery, gallery_labels)
    hits = {(0, 0): find_old(old.queries, query_labels)}
    if applied == "queries":
        hits[1, 0] = find_old(adapter(new.queries), query_labels)
    else:
        hits[1, 0] = searcher(protocol, adapter(old.gallery), gallery_labels)(new.queries, query_labels)
    hits[1, 1] = searcher(protocol, new.gallery, gallery_labels)(new.queries, query_labels)
    matrix = np.full((2, 2), np.nan)
    for cell, outcomes in hits.items():
        matrix[cell] = outcomes.mean()
    return CrossTest((old.name, new.name), protocol, matrix, hits)


_OUTCOMES: dict[str, Outcome] = {"compatible": "pass", "incompatible": "refuse", "not decided": "missing evidence"}


@dataclass(frozen=True, eq=False)
class BothSpaces:
    """Vectors that both models made of the same images, ``old`` [N, b] and ``new`` [N, a], with labels [N].

    None is the label of an image whose class is not known.
    """

    old: NDArray[np.float32]
    new: NDArray[np.float32]
    labels: Sequence[str | None]

    def take(self, rows: NDArray[Any]) -> BothSpaces:
        """Some of them."""
        return BothSpaces(self.old[rows], self.new[rows], [self.labels[row] for row in rows.tolist()])

    def __len__(self) -> int:
        return len(self.old)

    def coded(self) -> tuple[list[str], NDArray[np.int64]]:
        """The classes, and for every image the number of its own, -1 where it has none."""
        classes = sorted({label for label in self.labels if label is not None})
        number: dict[str | None, int] = {name: i for i, name in enumerate(classes)}
        return classes, np.array([number.get(label, -1) for label in self.labels], np.int64)

    def searchable(self) -> BothSpaces:
        """Those with a class of which there are two at least."""
        _, codes = self.coded()
        counts = np.bincount(codes + 1)
        return self.take(np.flatnonzero((codes >= 0) & (counts[codes + 1] > 1)))


def check_adapter(
    adapter: VectorAdapter,
    held_out: BothSpaces,
    version: str,
    queries_by: str,
    applied: Applied,
    rules: GateRules,
    more: str = "Judge it by more items with a label",
) -> Check:
    """The verdict on queries of ``queries_by`` over vectors of ``version``, with the adapter between.

    Passes, refuses or says what evidence is missing, as ``fixstar.workspace.gate`` does: by paired bootstrap against
    what the old system's own queries find among its own vectors. ``more`` says how to come by more evidence.
    """
    known = held_out.searchable()
    if not len(known):
        return without_evidence(version, queries_by, f"{len(held_out):,} were held out, no two of one class", rules)
    classes, labels = known.coded()
    split = gallery_query_split(labels, seed=rules.seed)
    old = VersionFeatures(version, known.old[split.queries], known.old[split.gallery])
    new = VersionFeatures(queries_by, known.new[split.queries], known.new[split.gallery])
    query_labels, gallery_labels = labels[split.queries], labels[split.gallery]
    tested = adapter_cross_test(adapter, old, new, query_labels, gallery_labels, applied)
    trial = Trial(
        _one_space(adapter, old, new, applied), query_labels, gallery_labels, dict(enumerate(classes)), facts={}
    )
    cell, judged = tried_cell(trial, tested, 0, rules)
    reason = cell_sentence(queries_by, cell, rules.confidence, 1, rules.tolerance)
    if judged.verdict == "not decided":
        reason = f"{reason}. {_to_decide(judged, cell, version, len(query_labels), rules, more)}"
    return Check(
        queries_by,
        _OUTCOMES[judged.verdict],
        (reason,),
        (cell,),
        float(tested.matrix[1, 1]),
        len(query_labels),
        len(gallery_labels),
        rules.confidence,
        rules.tolerance,
    )


def without_evidence(version: str, queries_by: str, seen: str, rules: GateRules) -> Check:
    """The verdict where nothing can be measured; ``seen`` says why."""
    reason = (
        f"nothing shows what {queries_by}'s queries find among vectors of {version} with this adapter between: that "
        "takes items with a label, and an image or vectors by both models, which it was not fitted on. " + seen
    )
    return Check(queries_by, "missing evidence", (reason,), (), None, 0, 0, rules.confidence, rules.tolerance)


def _one_space(
    adapter: VectorAdapter, old: VersionFeatures, new: VersionFeatures, applied: Applied
) -> list[VersionFeatures]:
    """Both versions in the space where they are compared, to name the answers that are lost."""
    if applied == "queries":
        return [old, replace(new, queries=adapter(new.queries), gallery=adapter(new.gallery))]
    return [replace(old, queries=adapter(old.queries), gallery=adapter(old.gallery)), new]


def _to_decide(judged: Difference, cell: CheckedCell, version: str, queries: int, rules: GateRules, more: str) -> str:
    """How much evidence would decide, and what to type."""
    needed = needed_queries(judged, queries, rules.confidence, rules.tolerance)
    way = way_out(judged, queries, rules.confidence, rules.tolerance)
    lose = tolerance_sentence(f"fixstar adapt {version}", cell, queries, way)
    if needed is None:
        seen = "balance exactly" if cell.differing else "do not occur"
        told = [f"Among {queries:,} queries gains and losses {seen}: more of the same would not show a gain"]
    else:
        told = [f"If it stays so, about {needed:,} queries would decide; there were {queries:,}", more]
    return ". ".join(filter(None, [*told, lose]))


_EMBED_BATCH = 256
_SAME = 1e-6  # below 1: the cosine of two vectors that are one, up to rounding
_ROUNDING = 0.01  # of a unit vector: how far a full feature, even in half precision, may lie outside its version's span


class Sample(NamedTuple):
    """Vectors by both models, and how many items of the gallery they could have been drawn from."""

    both: BothSpaces
    of: int


def gallery_sample(
    space: Workspace,
    version: str,
    queries_by: str,
    most: int,
    seed: int,
    progress: bool = True,
    labelled: bool = False,
) -> Sample:
    """Items of a gallery version whose images can be found, drawn at random, as another version embeds them.

    ``labelled`` draws only from those with a label. Images that cannot be read are left out.
    """
    find = space.images.find
    items, of = _drawn(
        space, version, lambda i: (_label(i) is not None or not labelled) and find(i) is not None, most, seed
    )
    embedder = LocalEmbedder(space.serving.encoder(queries_by))
    made = [np.empty((0, _width(space, queries_by)), np.float32)]
    with progress_bar(f"embedding with {queries_by}", len(items), "items", show=progress and bool(items)) as advance:
        for start in range(0, len(items), _EMBED_BATCH):
            paths = [find(item) or Path("gone") for item in items[start : start + _EMBED_BATCH]]
            made.append(embedder.one(paths).vectors)
            advance(len(paths))
    new = np.concatenate(made)
    old = _vectors(items, _width(space, version))
    read = np.flatnonzero(~np.isnan(new).any(axis=1))
    return Sample(BothSpaces(old, new, [_label(item) for item in items]).take(read), of)


def pairs_of_file(path: Path, gallery: Gallery, version: str, queries_by: str) -> BothSpaces:
    """The arrays ``old`` and ``new`` of FILE.npz, row by row of the same image, and ``labels`` if it has them.

    ``old`` are vectors of ``version``, ``new`` of ``queries_by``: as the gallery stores them, or full features.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}; pairs are FILE.npz with arrays old and new")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read as FILE.npz: {error}") from error
    if missing := {"old", "new"} - set(arrays):
        there = ", ".join(arrays) or "none"
        raise DataError(f"{path} lacks {' and '.join(sorted(missing))}; it takes arrays old and new, and has: {there}")
    old, new = (
        _as_stored(_unit_rows(arrays[key], key, path), f"{path}: {key}", gallery, name)
        for key, name in (("old", version), ("new", queries_by))
    )
    labels: list[str | None] = [None] * len(old)
    if "labels" in arrays:
        labels = [_known(label) for label in arrays["labels"].tolist()]
    if not len(old) == len(new) == len(labels):
        raise DataError(f"{path}: {len(old)} rows of old, {len(new)} of new, {len(labels)} labels; row i is one image")
    return BothSpaces(old, new, labels)


def _unit_rows(array: NDArray[Any], name: str, path: Path) -> NDArray[np.float32]:
    """A matrix of unit vectors; other lengths are divided out, as an import does."""
    if array.dtype.kind not in "fiu" or array.ndim != 2 or 0 in array.shape:
        raise DataError(f"{path}: {name} is a matrix [images, components] of numbers; got {array.dtype} {array.shape}")
    lengths = np.linalg.norm(array.astype(np.float64), axis=1)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        row = int(np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))[0])
        raise DataError(f"{path}: row {row} of {name} is zero, NaN or infinite; leave that image out of both")
    rows: NDArray[np.float32] = unit(array.astype(np.float64)).astype(np.float32)
    return rows


def _as_stored(rows: NDArray[np.float32], where: str, gallery: Gallery, version: str) -> NDArray[np.float32]:
    """Unit vectors as the gallery stores them. A full feature is z = Q u, u its short form, so u = Q^T z exactly."""
    stored = next(one for one in gallery.versions() if one.name == version)
    seen = rows.shape[1]
    if seen == stored.width:
        return rows
    Q = short_basis(gallery.projection(version))  # [full width, width]
    if Q is None or seen != len(Q):
        full = "" if Q is None else f" in the short form (encode(images, form='short')) and {len(Q)} in full"
        raise DataError(f"{where} has {seen} components, vectors of {version} have {stored.width}{full}")
    short = rows.astype(np.float64) @ Q
    outside = np.linalg.norm(rows - short @ Q.T, axis=1)
    if (far := np.flatnonzero(outside > _ROUNDING)).size:
        raise DataError(
            f"{where} has {seen} components as full features of {version} have, but row {far[0]} is none: "
            f"{outside[far[0]]:.2f} of its length lies where {version} has no features. Make them with {version}"
        )
    u: NDArray[np.float32] = unit(short).astype(np.float32)
    return u


def class_pairs(space: Workspace, version: str, queries_by: str, most: int, seed: int) -> ClassPairs:
    """Class means of two gallery versions that have no image in common, by the labels of their items."""
    old, _ = _drawn(space, version, lambda item: _label(item) is not None, most, seed)
    new, _ = _drawn(space, queries_by, lambda item: _label(item) is not None, most, seed)
    number = {name: i for i, name in enumerate(sorted({_named(item) for item in [*old, *new]}))}
    if not old or not new:
        raise InputError(
            f"no image of {version}'s items can be found, and for class means {len(old):,} of them have a label and "
            f"{len(new):,} items by {queries_by} do. Index labelled images with {queries_by} (fixstar index), give "
            f"pairs (--pairs FILE.npz), or store paths of images in {version}'s payloads (field image)"
        )
    X, Y = _vectors(new, _width(space, queries_by)), _vectors(old, _width(space, version))
    return paired_by_class(X, [number[_named(item)] for item in new], Y, [number[_named(item)] for item in old])


def unlike(both: BothSpaces, fitted: BothSpaces) -> BothSpaces:
    """Without images that are among the fitted ones, told by their old vectors."""
    if not len(both) or not len(fitted):
        return both
    closest = nearest(both.old, fitted.old)[0][:, 0]
    cosines = np.einsum("ij,ij->i", both.old, fitted.old[closest], dtype=np.float64)
    return both.take(np.flatnonzero(cosines < 1 - _SAME))


def _drawn(
    space: Workspace, version: str, wanted: Callable[[Item], bool], most: int, seed: int
) -> tuple[list[Item], int]:
    """Up to ``most`` of the wanted items, each as likely as any other (reservoir sampling), and how many there are."""
    rng, kept, seen = np.random.default_rng(seed), list[Item](), 0
    for item in space.gallery.iterate(version):
        if not wanted(item):
            continue
        seen += 1
        if len(kept) < most:
            kept.append(item)
        elif (place := int(rng.integers(seen))) < most:
            kept[place] = item
    return kept, seen


def _label(item: Item) -> str | None:
    return _known(item.payload.get(LABEL))


def _known(label: object) -> str | None:
    """A label by its name; an empty cell of a table or an array is none, and images without one are no class."""
    unknown = label is None or label in ("", b"") or (isinstance(label, float) and math.isnan(label))
    return None if unknown else str(label)


def _named(item: Item) -> str:
    return str(item.payload[LABEL])


def _vectors(items: list[Item], width: int) -> NDArray[np.float32]:
    return np.stack([item.vector for item in items]) if items else np.empty((0, width), np.float32)


def _width(space: Workspace, version: str) -> int:
    return next(one.width for one in space.gallery.versions() if one.name == version)


_LARGER = "Take a larger --sample, of {:,} items that can be used"
_ENOUGH_CLASSES = 20  # to choose a kind by searching for classes that were not fitted


@dataclass(frozen=True)
class AdaptOptions:
    """How an adapter is fitted, judged and used.

    ``queries_by`` is the version whose queries it serves, the deployed one if not given; ``kind`` one of ``ADAPTERS``,
    the best on held-out pairs if not given. ``pairs`` is a file of vectors by both models; without it, images of the
    gallery are embedded, ``sample`` at most. The share ``held_out`` of them is for the gate, which ``force``, a reason,
    passes over.
    """

    queries_by: str | None = None
    kind: str | None = None
    pairs: Path | None = None
    applied: Applied = "queries"
    force: str | None = None
    sample: int = 8000
    held_out: float = 0.4
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
    """What came of it. ``in_use`` says whether searches go through it now, or its vectors are stored.

    ``fitted_on`` says what the pairs were, ``ranked`` how the kinds did on held-out pairs: top-1 and mean cosine.
    ``moved`` counts vectors that were replaced, ``into`` names their version.
    """

    version: str
    queries_by: str
    kind: str
    applied: str
    fitted_on: str
    pairs: int
    ranked: tuple[tuple[str, float, float], ...]
    check: Check | None
    in_use: bool
    forced: str | None = None
    moved: int = 0
    into: str | None = None


@dataclass(frozen=True, eq=False)
class _Material:
    """What to fit on, in words too, and what to judge by; None where nothing can be measured, ``lacking`` says why.

    ``more`` says how to come by more to judge by.
    """

    words: str
    pairs: BothSpaces | ClassPairs
    held_out: BothSpaces | None
    lacking: str = ""
    more: str = ""


def adapt(space: Workspace, version: str, options: AdaptOptions, progress: bool = True) -> Adapted:
    """Fit an adapter between a gallery version and a version's queries, try it, and use it if it passes.

    Applied to queries nothing stored changes. Applied to stored vectors they move to a version of their own,
    VERSION@QUERIES; the same call goes on after an interruption, with the adapter that it began with.
    """
    from fixstar.workspace.deployment import checked_reason

    force = checked_reason(options.force, "an adapter")
    queries_by = space.registry.checked(options.queries_by or space.deployed())
    if version == queries_by:
        raise InputError(f"queries of {version} meet vectors of {version} as they are; an adapter is for another model")
    if not space.gallery.count().get(version):
        live = ", ".join(name for name, count in space.gallery.count().items() if count) or "nothing"
        raise GalleryError(f"the gallery holds no vectors of {version!r}; it holds those of: {live}")
    space.serving.encoder(queries_by)  # the gallery has room for its vectors then
    if options.applied == "stored" and (begun := space.adapters.find(version, queries_by, "stored")) is not None:
        done = Adapted(
            version, queries_by, begun.kind, "stored", "an earlier run", begun.about["pairs"], (), None, True
        )
        return _moved(space, done, begun, progress)
    material = _material(space, version, queries_by, options, progress)
    ranked, adapter = _fitted(material.pairs, version, queries_by, options)
    check = _gate_verdict(space, adapter, material, version, queries_by, options)
    done = Adapted(
        version,
        queries_by,
        adapter.kind,
        options.applied,
        material.words,
        len(material.pairs.old if isinstance(material.pairs, BothSpaces) else material.pairs.X),
        tuple((one.adapter.kind, one.held_out.top1, one.held_out.mean_cosine) for one in ranked),
        check,
        check.outcome == "pass" or force is not None,
        force if check.outcome != "pass" else None,
    )
    if not done.in_use:
        return done
    adapter = replace(adapter, about={**adapter.about, "check": check.outcome, "forced": done.forced})
    space.adapters.use(adapter, options.applied)
    return done if options.applied == "queries" else _moved(space, done, adapter, progress)


def _moved(space: Workspace, done: Adapted, adapter: VectorAdapter, progress: bool) -> Adapted:
    """Bring the stored vectors through the adapter, as many as are left."""
    into, total = f"{done.version}@{done.queries_by}", space.gallery.count()[done.version]
    with progress_bar("adapting stored vectors", total, "items", show=progress) as advance:
        moved = adapt_gallery(space.gallery, done.version, adapter, into, like=done.queries_by, progress=advance)
    if not space.gallery.count()[done.version]:
        space.adapters.end(done.version, done.queries_by, "stored")
    return replace(done, moved=moved, into=into)


def _material(space: Workspace, version: str, queries_by: str, options: AdaptOptions, progress: bool) -> _Material:
    """Pairs from the file; else from images of the gallery; else class means."""
    seed = options.rules.seed
    if options.pairs is not None:
        file, given = options.pairs.name, pairs_of_file(options.pairs, space.gallery, version, queries_by)
        if any(label is not None for label in given.labels):
            more = f"Put more images with a label into {file}"
            return _divided(given, f"pairs of {file}", options, more)
        drawn = gallery_sample(space, version, queries_by, options.sample, seed, progress, labelled=True)
        more = f"Give {file} the array labels" if drawn.of <= options.sample else _LARGER.format(drawn.of)
        lacking = f"{file} has no labels, and no labelled image of the gallery can be found"
        held = unlike(drawn.both, given) if len(drawn.both) else None
        return _Material(f"{len(given):,} pairs of {file}", given, held, lacking, more)
    drawn = gallery_sample(space, version, queries_by, options.sample, seed, progress)
    if len(drawn.both):
        all_used = (
            f"All {drawn.of:,} items of {version} whose image can be found were used: add labels (payload field "
            "label) or images to others, or give more pairs by both models (--pairs FILE.npz)"
        )
        more = all_used if drawn.of <= options.sample else _LARGER.format(drawn.of)
        return _divided(drawn.both, "items of the gallery", options, more)
    pairs = class_pairs(space, version, queries_by, options.sample, seed)
    if options.applied == "stored":
        pairs = pairs._replace(X=pairs.Y, Y=pairs.X)
    words = f"the means of {len(pairs.classes):,} classes: no image of {version}'s items can be found"
    return _Material(words, pairs, None, "Class means alone do not tell: the same images by both models would")


def _divided(both: BothSpaces, words: str, options: AdaptOptions, more: str) -> _Material:
    """Most to fit on, the others, with labels, to judge by; an image that is there twice is on one side only."""
    order = np.random.default_rng(options.rules.seed).permutation(len(both))
    out = round(options.held_out * len(both))
    fitted, held = both.take(np.sort(order[out:])), both.take(np.sort(order[:out]))
    return _Material(f"{len(fitted):,} {words}", fitted, unlike(held, fitted), more=more)


def _fitted(
    pairs: BothSpaces | ClassPairs, version: str, queries_by: str, options: AdaptOptions
) -> tuple[tuple[Ranked, ...], VectorAdapter]:
    """The adapter, with the comparison that its kind was chosen by."""
    ends = (queries_by, version) if options.applied == "queries" else (version, queries_by)
    known: dict[str, Any] = {"seed": options.rules.seed, "source": ends[0], "target": ends[1]}
    if isinstance(pairs, ClassPairs):
        X, Y, known["weights"] = pairs.X, pairs.Y, pairs.weights
    else:
        X, Y = (pairs.new, pairs.old) if options.applied == "queries" else (pairs.old, pairs.new)
        known["groups"] = _groups(pairs)
    if options.kind is not None:
        return (), fit_adapter(options.kind, X, Y, **known)
    compared = best_adapter(X, Y, **known)
    return compared.ranked, fit_adapter(compared.best.kind, X, Y, **known)


def _groups(pairs: BothSpaces) -> NDArray[np.int64] | None:
    """The classes, where all are known and there are enough to choose by classes that were not fitted."""
    classes, codes = pairs.coded()
    return codes if len(classes) >= _ENOUGH_CLASSES and (codes >= 0).all() else None


def _gate_verdict(
    space: Workspace,
    adapter: VectorAdapter,
    material: _Material,
    version: str,
    queries_by: str,
    options: AdaptOptions,
) -> Check:
    """The gate's verdict, kept in checks/adapter-VERSION.json."""
    if material.held_out is None:
        check = without_evidence(version, queries_by, material.lacking, options.rules)
    else:
        ends = (version, queries_by, options.applied)
        check = check_adapter(adapter, material.held_out, *ends, options.rules, material.more)
    about = {"adapter": adapter.kind, "applied": options.applied, "fitted_on": material.words}
    forced = options.force if check.outcome != "pass" else None
    check = replace(check, data={**about, "forced": forced}, when=datetime.now(UTC).isoformat(timespec="seconds"))
    save_check(space.path, check, f"adapter-{quote(version, safe='@')}")
    return check
