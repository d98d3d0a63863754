"""Pairs: vectors of the same items by two versions. A translation is fitted on them and judged with them.

They come from images that both models embed: training images, a folder without labels, or items of the gallery, whose
old vectors are already stored. They may also come from a file. If no image is left, the class means of labelled vectors
are paired.
"""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fixstar.data.image_set import ImageSet
from fixstar.data.pixels import Augmentation
from fixstar.data.texts import text_rows
from fixstar.durable import DAMAGED_ARCHIVE, require_plausible_archive
from fixstar.errors import DataError, InputError, NextStep, plural
from fixstar.evaluation import VersionFeatures, gallery_query_split, nearest
from fixstar.gallery import Gallery, Item
from fixstar.geometry import short_basis, unit
from fixstar.models import Encoder, FrozenEncoder
from fixstar.progress import progress_bar
from fixstar.texts import Reads
from fixstar.translation import Evidence, Pairs, Translation, by_class, translated
from fixstar.translation.calibrate import standardised
from fixstar.translation.fit import as_labels, fit_translations
from fixstar.workspace.items import LABEL, ImageStore, LocalEmbedder
from fixstar.workspace.options import SAMPLE, FitOptions
from fixstar.workspace.translations import ONE_SCALE, SCALE, TARGET_SCALE, sharing_space

if TYPE_CHECKING:
    from fixstar.workspace.search import Serving

Vectors = NDArray[np.float32]

HELD_OUT = 0.4  # share of the items of a version without a model that judge and are never fitted
VIEWS = 3  # augmented views of each training image, in addition to the image itself
LEAST_CLASSES = 10  # minimum number of classes for pairs of class means
_EMBED_BATCH = 256
_SAME = 1e-6  # below 1: the cosine of two equal vectors, up to rounding
_ROUNDING = (
    0.01  # tolerance for a full unit feature, even in half precision, outside its version's span
)


@dataclass(frozen=True, eq=False)
class Sample:
    """Items embedded by both versions, ``old`` [N, a] and ``new`` [N, b], and their labels (None if unknown)."""

    old: Vectors
    new: Vectors
    labels: Sequence[str | None]
    weights: NDArray[np.float64] | None = None
    origin: str = ""

    def __len__(self) -> int:
        return len(self.old)

    def take(self, rows: NDArray[Any]) -> Sample:
        """A subset by rows."""
        if self.weights is None:
            weights = None
        else:
            weights = self.weights[rows]
        labels = [self.labels[row] for row in rows.tolist()]
        return replace(self, old=self.old[rows], new=self.new[rows], labels=labels, weights=weights)

    def coded(self) -> NDArray[np.int64]:
        """The number of each item's class, -1 if unknown."""
        classes = sorted({label for label in self.labels if label is not None})
        number: dict[str | None, int] = {name: place for place, name in enumerate(classes)}
        return np.array([number.get(label, -1) for label in self.labels], np.int64)

    def pairs(self, seed: int = 0) -> Pairs:
        """Pairs for fitting; classes are kept together if all labels are known."""
        codes = self.coded()
        groups = None
        if len(codes) and (codes >= 0).all() and len(np.unique(codes)) > 1:
            groups = codes
        return Pairs.checked(self.old, self.new, weights=self.weights, groups=groups, seed=seed)

    def searchable(self) -> Sample:
        """The items of classes with at least two items."""
        codes = self.coded()
        counts = np.bincount(codes + 1)
        return self.take(np.flatnonzero((codes >= 0) & (counts[codes + 1] > 1)))

    def without(self, fitted: Sample) -> Sample:
        """Without items that were fitted, recognised by their old vectors."""
        if not len(self) or not len(fitted):
            return self
        closest = nearest(self.old, fitted.old)[0][:, 0]
        cosines = np.einsum("ij,ij->i", self.old, fitted.old[closest], dtype=np.float64)
        return self.take(np.flatnonzero(cosines < 1 - _SAME))

    def divided(self, held_out: float, seed: int) -> tuple[Sample, Sample]:
        """Split into items for fitting and a share for judging; duplicates go to the same side."""
        order = np.random.default_rng(seed).permutation(len(self))
        out = round(held_out * len(self))
        fitted = self.take(np.sort(order[out:]))
        return fitted, self.take(np.sort(order[:out])).without(fitted)

    def evidence(self, source: str, target: str, seed: int) -> Evidence:
        """Labelled items as evidence: half of each class as gallery, half as queries."""
        codes = self.coded()
        split = gallery_query_split(codes, seed=seed)
        old = VersionFeatures(source, self.old[split.queries], self.old[split.gallery])
        new = VersionFeatures(target, self.new[split.queries], self.new[split.gallery])
        return Evidence(old, new, by_class(codes[split.queries], codes[split.gallery]))


def together(samples: Sequence[Sample]) -> Sample:
    """Join several samples; empty ones are skipped."""
    kept = [sample for sample in samples if len(sample)]
    if len(kept) < 2:
        return kept[0] if kept else samples[0]
    labels = [label for sample in kept for label in sample.labels]
    origin = ", ".join(sample.origin for sample in kept)
    old = np.concatenate([sample.old for sample in kept])
    new = np.concatenate([sample.new for sample in kept])
    return Sample(old, new, labels, origin=origin)


# --- from images that both models embed


def from_images(
    old: Encoder,
    new: Encoder,
    images: ImageSet,
    *,
    origin: str,
    augmentation: Augmentation | None = None,
    most: int = SAMPLE,
    seed: int = 0,
    progress: bool = False,
) -> Sample:
    """Up to ``most`` images, embedded by both models; with an augmentation, ``VIEWS`` more views of each.

    Both models see the same views. Views vary like other photos of the same thing, so a map fitted on views generalises
    better to images that neither model was trained on.
    """
    if len(images) > most:
        chosen = np.random.default_rng(seed).permutation(len(images))[:most]
        images = images.take(np.sort(chosen))
    loaded = images.load(new.inputs, "skip").images
    known = len(loaded.classes) > 1
    names = [loaded.classes[label] if known else None for label in loaded.labels.tolist()]
    if loaded.has_texts:
        vectors = [
            encoder.encode(loaded.images, form="short", progress=progress) for encoder in (old, new)
        ]
        return Sample(vectors[0], vectors[1], names, origin=origin)
    pixels = np.stack([np.asarray(image) for image in loaded.images])
    shown = [pixels]
    if augmentation is not None:
        rng = np.random.default_rng(seed)
        shown += [augmented(pixels, augmentation, rng) for _ in range(VIEWS)]
    parts = []
    first = FrozenEncoder(old)
    second = FrozenEncoder(new)
    with progress_bar(
        "embedding with both models", len(shown) * len(pixels), "images", show=progress
    ) as advance:
        for view in shown:
            parts.append(
                Sample(first.encode(view, form="short"), second.encode(view, form="short"), names)
            )
            advance(len(view))
    found = together(parts)
    kept = np.flatnonzero(np.isfinite(found.old).all(axis=1) & np.isfinite(found.new).all(axis=1))
    return replace(found.take(kept), origin=origin)


def augmented(
    pixels: NDArray[np.uint8], augmentation: Augmentation, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """One view of each image [N, H, W, C]: a random crop of the padded image, flipped or not, as in training."""
    count, height, width, _ = pixels.shape
    pad = augmentation.crop_padding
    edges = ((0, 0), (pad, pad), (pad, pad), (0, 0))
    padded: NDArray[Any] = np.pad(pixels, edges, constant_values=augmentation.fill)
    tops: list[int] = rng.integers(0, 2 * pad + 1, (count,)).tolist()
    lefts: list[int] = rng.integers(0, 2 * pad + 1, (count,)).tolist()
    flipped: list[bool] = (rng.random((count,)) < 0.5).tolist()
    out = np.empty(pixels.shape, np.uint8)
    for row in range(count):
        top = tops[row]
        left = lefts[row]
        view = padded[row, top : top + height, left : left + width]
        if augmentation.flip and flipped[row]:
            out[row] = view[:, ::-1]
        else:
            out[row] = view
    return out


def unlabelled_images(path: Path, reads: Reads = "images", text: str | None = None) -> ImageSet:
    """All images or texts below a folder, whatever its subfolders mean. Or the texts of a file.

    ``text`` names the field of a file that holds the text.
    """
    from fixstar.data.formats import list_images

    if path.is_file() or (reads == "texts" and path.is_dir()):
        texts = tuple(row.text for row in text_rows(path, text))
        return ImageSet(
            images=texts,
            labels=np.zeros(len(texts), np.int64),
            classes=("unlabelled",),
            name=path.name,
        )
    if not path.is_dir():
        kinds = "texts, or a file of them," if reads == "texts" else "images"
        raise InputError(
            f"{path} is not a folder; give a folder of {kinds} for both models to embed"
        )
    images, _ = list_images(path)
    if not images:
        raise DataError(f"{path} holds no images")
    return ImageSet(
        images=tuple(images),
        labels=np.zeros(len(images), np.int64),
        classes=("unlabelled",),
        name=path.name,
    )


# --- from items of the gallery


def from_gallery(
    serving: Serving,
    source: str,
    target: str,
    *,
    judging: bool | None = None,
    most: int = SAMPLE,
    seed: int = 0,
    progress: bool = False,
) -> tuple[Sample, int]:
    """Random items of a version that have images, embedded by ``target``, and their total number.

    ``judging=True`` takes labelled items for judging, False takes all items for fitting, None takes both.
    """
    find = ImageStore(serving.path, serving.registry.reads()).original

    def wanted(item: Item) -> bool:
        if judging is not None and judges(item.id) != judging:
            return False
        if judging and label_of(item) is None:
            return False
        return find(item) is not None

    items, of = _draw(serving.gallery, version=source, wanted=wanted, most=most, seed=seed)
    return from_items(serving, source=source, target=target, items=items, progress=progress), of


def from_items(
    serving: Serving, source: str, target: str, items: Sequence[Item], progress: bool = False
) -> Sample:
    """Items of a version, embedded by ``target``; items with a missing or unreadable image are skipped."""
    find = ImageStore(serving.path, serving.registry.reads()).original
    embedder = LocalEmbedder(serving.encoder(target))
    made = [np.empty((0, serving.gallery.space(target).width), np.float32)]
    with progress_bar(
        f"embedding with {target}", len(items), "items", show=progress and bool(items)
    ) as advance:
        for start in range(0, len(items), _EMBED_BATCH):
            paths = [find(item) or Path("gone") for item in items[start : start + _EMBED_BATCH]]
            made.append(embedder.one(paths).vectors)
            advance(len(paths))
    old = _stacked(items, serving.gallery.space(source).width)
    labels = [label_of(item) for item in items]
    found = Sample(
        old, np.concatenate(made), labels, origin=f"{plural(len(items), 'item')} of the gallery"
    )
    return found.take(np.flatnonzero(~np.isnan(found.new).any(axis=1)))


def judges(item: str) -> bool:
    """Whether an item is reserved for judging translations and never fitted. A hash of its id decides."""
    drawn = int.from_bytes(hashlib.blake2b(item.encode(), digest_size=8).digest(), "big") / 2**64
    return drawn < HELD_OUT


def by_class_means(
    serving: Serving, source: str, target: str, *, most: int = SAMPLE, seed: int = 0
) -> Sample:
    """Pairs of weighted class means of two gallery versions without common images, by the labels of their items."""
    from fixstar.translation.unpaired import paired_by_class

    sides = []
    for name in (source, target):
        items, _ = _draw(
            serving.gallery,
            version=name,
            wanted=lambda item: label_of(item) is not None,
            most=most,
            seed=seed,
        )
        sides.append(
            (
                _stacked(items, serving.gallery.space(name).width),
                [str(label_of(item)) for item in items],
            )
        )
    (old, old_labels), (new, new_labels) = sides
    shared = set(old_labels) & set(new_labels)
    kind = serving.registry.reads().removesuffix("s")
    if len(shared) < LEAST_CLASSES:
        seen = (
            f"no {kind} of {source}'s items can be found, and the labelled items of {source} and {target} share "
            f"{plural(len(shared), 'class')} of at least {LEAST_CLASSES}"
        )
        pairs = NextStep(
            "check", {"version": target, "pairs": ...}, "vectors by both models, FILE.npz"
        )
        if source not in serving.registry.names():
            raise InputError(
                f"{seen}. Give a file of pairs: the model of {source} is not available", pairs
            )
        images = NextStep(
            "check",
            {"version": target, "images": ...},
            f"{kind}s without labels, for both models to embed",
        )
        raise InputError(
            f"{seen}. Give {kind}s for both models to embed, or a file of pairs", images, pairs
        )
    means = paired_by_class(old, labels_x=old_labels, Y=new, labels_y=new_labels)
    origin = (
        f"the means of {plural(len(means), 'class')}: no {kind} of {source}'s items can be found"
    )
    first = np.asarray(means.X, np.float32)
    second = np.asarray(means.Y, np.float32)
    return Sample(
        old=first, new=second, labels=[None] * len(means), weights=means.weights, origin=origin
    )


def _draw(
    gallery: Gallery, version: str, wanted: Callable[[Item], bool], most: int, seed: int
) -> tuple[list[Item], int]:
    """A uniform sample of up to ``most`` wanted items (reservoir sampling), and their total number."""
    rng = np.random.default_rng(seed)
    kept: list[Item] = []
    seen = 0
    for item in gallery.iterate(version):
        if not wanted(item):
            continue
        seen += 1
        if len(kept) < most:
            kept.append(item)
            continue
        place = int(rng.integers(seen))
        if place < most:
            kept[place] = item
    return kept, seen


def label_of(item: Item) -> str | None:
    """The label in an item's payload, if there is one."""
    return known_label(item.payload.get(LABEL))


def known_label(label: object) -> str | None:
    """A label as text; an empty cell of a table or an array is not a class."""
    unknown = (
        label is None or label in ("", b"") or (isinstance(label, float) and math.isnan(label))
    )
    return None if unknown else str(label)


def _stacked(items: Sequence[Item], width: int) -> Vectors:
    if items:
        return np.stack([item.vector for item in items])
    return np.empty((0, width), np.float32)


# --- from a file


def from_file(path: Path, gallery: Gallery, source: str, target: str) -> Sample:
    """Read FILE.npz: arrays ``old`` and ``new`` (stored or full vectors of the same items), optionally ``labels``."""
    if not path.is_file():
        raise InputError(f"there is no file {path}; pairs are FILE.npz with arrays old and new")
    try:
        require_plausible_archive(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, *DAMAGED_ARCHIVE) as error:
        raise DataError(f"{path} cannot be read as FILE.npz: {error}") from error
    missing = {"old", "new"} - set(arrays)
    if missing:
        there = ", ".join(arrays) or "none"
        raise DataError(
            f"{path} lacks {' and '.join(sorted(missing))}; it needs arrays old and new, and has: {there}"
        )
    old = _as_stored(
        unit_rows(arrays["old"], "old", path), where=f"{path}: old", gallery=gallery, version=source
    )
    new = _as_stored(
        unit_rows(arrays["new"], "new", path), where=f"{path}: new", gallery=gallery, version=target
    )
    labels: list[str | None] = [None] * len(old)
    if "labels" in arrays:
        labels = [known_label(label) for label in as_labels(arrays["labels"]).tolist()]
    if not len(old) == len(new) == len(labels):
        raise DataError(
            f"{path}: {len(old)} rows of old, {len(new)} of new, {len(labels)} labels; they must be equal"
        )
    return Sample(old, new, labels, origin=f"{plural(len(old), 'pair')} of {path.name}")


def unit_rows(array: NDArray[Any], name: str, where: str | Path) -> Vectors:
    """The rows of a matrix, normalised to unit length as an import does."""
    if array.dtype.kind not in "fiu" or array.ndim != 2 or 0 in array.shape:
        raise DataError(
            f"{where}: {name} is a matrix [items, components] of numbers; got {array.dtype} {array.shape}"
        )
    lengths = np.linalg.norm(array.astype(np.float64), axis=1)
    bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if bad.size:
        raise DataError(
            f"{where}: row {bad[0]} of {name} is zero, NaN or infinite; leave that item out of both"
        )
    rows: Vectors = (array / lengths[:, None]).astype(np.float32)
    return rows


def _as_stored(rows: Vectors, where: str, gallery: Gallery, version: str) -> Vectors:
    """Unit vectors as the gallery stores them. A full feature is z = Q u, u its short form, so u = Q^T z exactly."""
    width = gallery.space(version).width
    seen = rows.shape[1]
    if seen == width:
        return rows
    Q = short_basis(gallery.projection(version))  # [full width, width]
    if Q is None or seen != len(Q):
        full = ""
        if Q is not None:
            full = f" in the short form (encode(images, form='short')) and {len(Q)} in full"
        raise DataError(f"{where} has {seen} components, vectors of {version} have {width}{full}")
    short = rows.astype(np.float64) @ Q
    outside = np.linalg.norm(rows - short @ Q.T, axis=1)
    far = np.flatnonzero(outside > _ROUNDING)
    if far.size:
        raise DataError(
            f"{where} has {seen} components like full features of {version}, but row {far[0]} is not one: "
            f"{outside[far[0]]:.2f} of its length lies where {version} has no features. Make them with {version}"
        )
    found: Vectors = unit(short).astype(np.float32)
    return found


# --- the scale of a translation's scores


def with_scales(way: Translation, old: VersionFeatures, new: VersionFeatures) -> Translation:
    """Add the scales of its scores, and of scores among the target's own vectors. Needs no labels."""
    own = replace(new, queries=unit(np.asarray(new.queries, np.float32)))
    about = {
        **way.about,
        SCALE: list(standardised(translated(way, old, new))),
        TARGET_SCALE: list(standardised(own)),
    }
    if way.one is not None and way.two is not None:
        about[ONE_SCALE] = list(standardised(translated(way.with_one_model(), old, new)))
    return replace(way, about=about)


# --- pairs for a check


@dataclass(frozen=True, eq=False)
class Searched:
    """A version whose vectors the candidate would search.

    ``ways`` are the candidate translations, the default one first. If the version has no model, ``sample`` holds
    labelled items by both versions that were not fitted, from the gallery or from a file of pairs. ``lacking`` says
    what is missing and why, ``next_steps`` how to provide it.
    """

    name: str
    ways: tuple[Translation, ...] = ()
    has_model: bool = True
    sample: Sample | None = None
    lacking: str = ""
    next_steps: tuple[NextStep, ...] = ()

    @property
    def measurable(self) -> bool:
        """Whether the candidate's own queries can search these vectors."""
        return any(way.shared or way.forward is not None for way in self.ways)

    @property
    def chooses(self) -> bool:
        """Whether there is a choice to make."""
        return len(self.ways) > 1 or any(way.forward is not None for way in self.ways)


def fit(
    serving: Serving,
    source: str,
    target: str,
    options: FitOptions | None = None,
    progress: bool = False,
) -> list[Translation]:
    """Fit translations from one version to another on all available pairs, and store them."""
    options = options or FitOptions()
    for name in (source, target):
        if name in serving.registry.names():
            serving.encoder(name)  # registers the version in the gallery
    samples = list(
        _samples(serving, source=source, target=target, options=options, progress=progress)
    )
    if not samples:
        samples = [by_class_means(serving, source, target, most=options.sample, seed=options.seed)]
    return keep_fitted(
        serving, sample=together(samples), source=source, target=target, seed=options.seed
    )


def _samples(
    serving: Serving, source: str, target: str, options: FitOptions, progress: bool
) -> Iterator[Sample]:
    """Pairs from a file, from images for both models, and from items of the gallery; only those with items."""
    has_model = source in serving.registry.names()
    if options.pairs is not None:
        fitted, _ = _of_file(
            serving, path=options.pairs, source=source, target=target, seed=options.seed
        )
        yield fitted
    if options.images is not None:
        if not has_model:
            raise InputError(
                f"the model of {source} is not available, so it cannot embed them; pass vectors by both models instead",
                NextStep(
                    "check", {"version": target, "pairs": ...}, "FILE.npz with arrays old and new"
                ),
            )
        kind = serving.registry.reads().removesuffix("s")
        count = min(len(options.images), options.sample)
        yield from_images(
            serving.encoder(source),
            serving.encoder(target),
            options.images,
            origin=f"{plural(count, kind)} of {options.images.name}",
            most=options.sample,
            seed=options.seed,
            progress=progress,
        )
    judging = None if has_model else False
    drawn, _ = from_gallery(
        serving,
        source,
        target,
        judging=judging,
        most=options.sample,
        seed=options.seed,
        progress=progress,
    )
    if len(drawn):
        yield drawn


def _of_file(
    serving: Serving, path: Path, source: str, target: str, seed: int
) -> tuple[Sample, Sample]:
    """Split a file's pairs into those for fitting and those for judging.

    Only labelled pairs judge, and only if the model of ``source`` is gone.
    """
    whole = from_file(path, gallery=serving.gallery, source=source, target=target)
    if source in serving.registry.names() or not len(whole.searchable()):
        return whole, whole.take(np.arange(0))
    fitted, held = whole.divided(HELD_OUT, seed)
    origin = f"{plural(len(fitted), 'pair')} of {path.name}"
    return replace(fitted, origin=origin), held.searchable()


def keep_fitted(
    serving: Serving, sample: Sample, source: str, target: str, seed: int = 0
) -> list[Translation]:
    """Fit translations on a sample and store them in the workspace; the preferred one first."""
    spaces = serving.gallery.versions()
    shared = source in sharing_space(serving.registry, target, spaces)
    pairs = sample.pairs(seed)
    device = "cpu"
    if serving.device.startswith("cuda"):
        device = "cuda"
    has_model = source in serving.registry.names()
    brought = "added" in serving.registry.card(target)["about"]  # whitening was measured for these
    found = fit_translations(
        pairs,
        source,
        target,
        shared=shared,
        old_model=has_model,
        whiten=brought and not shared,
        device=device,
    )
    token = uuid.uuid4().hex[:12]
    old = VersionFeatures(
        name=source,
        queries=sample.old,
        gallery=sample.old,
        projection=serving.gallery.projection(source),
    )
    new = VersionFeatures(
        name=target,
        queries=sample.new,
        gallery=sample.new,
        projection=serving.gallery.projection(target),
    )
    kept = []
    for way in found:
        scaled = with_scales(way, old, new)
        whole = replace(scaled, about={**scaled.about, "fit": token, "fitted_on": sample.origin})
        serving.translations.keep(whole)
        kept.append(whole)
    return kept


def searched_versions(
    serving: Serving, version: str, options: FitOptions | None = None, progress: bool = False
) -> list[Searched]:
    """The versions whose vectors a version would search, with their translations; missing ones are fitted.

    Pairs from a file are used for vectors whose model is not available, if there are any: others do not need them.
    """
    options = options or FitOptions()
    homes = serving.registry.homes(serving.live())
    for name in (version, *homes.values()):
        if name in serving.registry.names():
            serving.encoder(name)  # registers the version in the gallery
    shared = sharing_space(serving.registry, version, serving.gallery.versions())
    older = [name for name in dict.fromkeys(homes.values()) if name != version]
    without_model = [name for name in older if name not in serving.registry.names()]
    paired = without_model or older
    found = []
    for name in older:
        held = any(one in shared for one, home in homes.items() if home == name)
        if name in paired:
            own = options
        else:
            own = replace(options, pairs=None)
        found.append(
            _searched(
                serving, source=name, version=version, options=own, shared=held, progress=progress
            )
        )
    return found


def _searched(
    serving: Serving, source: str, version: str, options: FitOptions, shared: bool, progress: bool
) -> Searched:
    has_model = source in serving.registry.names()
    ways = serving.translations.fitted(source, version)
    lacking = ""
    steps: tuple[NextStep, ...] = ()
    if options.asks or (not ways and not shared):
        try:
            ways = fit(serving, source=source, target=version, options=options, progress=progress)
        except InputError as error:
            if options.asks:
                raise
            lacking = str(error)
            steps = error.next_steps
    usual: list[Translation] = []
    if shared:
        usual = [Translation.between_shared(source, version)]
    elif not ways and has_model:
        usual = [Translation.by_old_queries(source, version)]
    sample = None
    if not has_model and ways:
        drawn, _ = from_gallery(
            serving,
            source,
            version,
            judging=True,
            most=options.sample,
            seed=options.seed,
            progress=progress,
        )
        judging = drawn.searchable()
        if not len(judging) and options.pairs is not None:
            _, judging = _of_file(
                serving, path=options.pairs, source=source, target=version, seed=options.seed
            )
        sample = judging if len(judging) else None
    return Searched(
        source,
        (*usual, *ways),
        has_model=has_model,
        sample=sample,
        lacking=lacking,
        next_steps=steps,
    )
