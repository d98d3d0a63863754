"""Pairs: vectors that two versions made of the same items, which a translation is fitted on and judged with.

They come from images that both models embed: those of a training, those of a folder without labels, or those of items
in the gallery, whose old vectors are stored already. They may come from a file. Where no image is left, the class means
of labelled vectors are paired.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fixstar.data.image_set import ImageSet
from fixstar.data.pixels import Augmentation
from fixstar.errors import DataError, InputError, NextStep, plural
from fixstar.evaluation import VersionFeatures, gallery_query_split, nearest
from fixstar.gallery import Gallery, Item
from fixstar.geometry import short_basis, unit
from fixstar.models import Encoder
from fixstar.progress import progress_bar
from fixstar.translation import Evidence, Pairs, Translation, by_class, translated
from fixstar.translation.calibrate import standardised
from fixstar.translation.fit import as_labels
from fixstar.workspace.items import LABEL, ImageStore, LocalEmbedder
from fixstar.workspace.translations import SCALE, TARGET_SCALE

if TYPE_CHECKING:
    from fixstar.workspace.search import Serving

Vectors = NDArray[np.float32]

SAMPLE = 8000  # items by both models, at most
VIEWS = 3  # augmented views of each training image beside the image itself
LEAST_CLASSES = 10  # whose means are paired
_EMBED_BATCH = 256
_SAME = 1e-6  # below 1: the cosine of two equal vectors, up to rounding
_ROUNDING = 0.01  # of a unit vector: how far a full feature, even in half precision, may lie outside its version's span


@dataclass(frozen=True, eq=False)
class Sample:
    """Items by both versions, ``old`` [N, a] and ``new`` [N, b], with the label of each, None if unknown."""

    old: Vectors
    new: Vectors
    labels: Sequence[str | None]
    weights: NDArray[np.float64] | None = None
    origin: str = ""

    def __len__(self) -> int:
        return len(self.old)

    def take(self, rows: NDArray[Any]) -> Sample:
        """Some of them."""
        weights = None if self.weights is None else self.weights[rows]
        labels = [self.labels[row] for row in rows.tolist()]
        return replace(self, old=self.old[rows], new=self.new[rows], labels=labels, weights=weights)

    def coded(self) -> NDArray[np.int64]:
        """The number of each item's class, -1 if unknown."""
        classes = sorted({label for label in self.labels if label is not None})
        number: dict[str | None, int] = {name: place for place, name in enumerate(classes)}
        return np.array([number.get(label, -1) for label in self.labels], np.int64)

    def pairs(self, seed: int = 0) -> Pairs:
        """To fit on; classes stay together if all are known."""
        codes = self.coded()
        groups = codes if len(codes) and (codes >= 0).all() and len(np.unique(codes)) > 1 else None
        return Pairs.checked(self.old, self.new, weights=self.weights, groups=groups, seed=seed)

    def searchable(self) -> Sample:
        """Those of a class that has at least two."""
        codes = self.coded()
        counts = np.bincount(codes + 1)
        return self.take(np.flatnonzero((codes >= 0) & (counts[codes + 1] > 1)))

    def without(self, fitted: Sample) -> Sample:
        """Without items that are among the fitted ones, recognised by their old vectors."""
        if not len(self) or not len(fitted):
            return self
        closest = nearest(self.old, fitted.old)[0][:, 0]
        cosines = np.einsum("ij,ij->i", self.old, fitted.old[closest], dtype=np.float64)
        return self.take(np.flatnonzero(cosines < 1 - _SAME))

    def divided(self, held_out: float, seed: int) -> tuple[Sample, Sample]:
        """What to fit on, and a share to judge with; an item that occurs twice is on one side only."""
        order = np.random.default_rng(seed).permutation(len(self))
        out = round(held_out * len(self))
        fitted = self.take(np.sort(order[out:]))
        return fitted, self.take(np.sort(order[:out])).without(fitted)

    def evidence(self, source: str, target: str, seed: int) -> Evidence:
        """Half of each class as gallery and half as queries; of items with a label."""
        codes = self.coded()
        split = gallery_query_split(codes, seed=seed)
        old = VersionFeatures(source, self.old[split.queries], self.old[split.gallery])
        new = VersionFeatures(target, self.new[split.queries], self.new[split.gallery])
        return Evidence(old, new, by_class(codes[split.queries], codes[split.gallery]))


def together(samples: Sequence[Sample]) -> Sample:
    """Several samples as one; those without items are left out."""
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
    """Images as both models embed them, at most ``most``; with an augmentation, ``VIEWS`` more views of each.

    Both models see the same views. A model's vectors of views differ as those of other photos do, so a map that is
    fitted on views holds better on images that neither model was trained on.
    """
    if len(images) > most:
        chosen = np.random.default_rng(seed).permutation(len(images))[:most]
        images = images.take(np.sort(chosen))
    loaded = images.load(new.preprocessing, "skip").images
    pixels = np.stack([np.asarray(image) for image in loaded.images])
    shown = [pixels]
    if augmentation is not None:
        rng = np.random.default_rng(seed)
        shown += [augmented(pixels, augmentation, rng) for _ in range(VIEWS)]
    names = [loaded.classes[label] for label in loaded.labels.tolist()]
    parts = []
    with progress_bar("embedding with both models", len(shown) * len(pixels), "images", show=progress) as advance:
        for view in shown:
            made = [embed_pixels(encoder, view) for encoder in (old, new)]
            parts.append(Sample(made[0], made[1], names))
            advance(len(view))
    found = together(parts)
    kept = np.flatnonzero(np.isfinite(found.old).all(axis=1) & np.isfinite(found.new).all(axis=1))
    return replace(found.take(kept), origin=origin)


def embed_pixels(encoder: Encoder, pixels: NDArray[np.uint8]) -> Vectors:
    """Short unit vectors of pixels [N, H, W, C], brought to the encoder's own size."""
    from fixstar.models import FrozenEncoder

    return FrozenEncoder(encoder).encode(pixels, form="short")


def augmented(pixels: NDArray[np.uint8], augmentation: Augmentation, rng: np.random.Generator) -> NDArray[np.uint8]:
    """One view of each image [N, H, W, C]: a random crop of the padded image, flipped or not, as in training."""
    count, height, width, _ = pixels.shape
    pad = augmentation.crop_padding
    padded = np.pad(pixels, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    tops = rng.integers(0, 2 * pad + 1, count)
    lefts = rng.integers(0, 2 * pad + 1, count)
    flipped = rng.random(count) < 0.5
    out = np.empty_like(pixels)
    for row in range(count):
        view = padded[row, tops[row] : tops[row] + height, lefts[row] : lefts[row] + width]
        out[row] = view[:, ::-1] if augmentation.flip and flipped[row] else view
    return out


# --- from items of the gallery


def from_gallery(
    serving: Serving,
    source: str,
    target: str,
    *,
    most: int = SAMPLE,
    seed: int = 0,
    labelled: bool = False,
    progress: bool = False,
) -> tuple[Sample, int]:
    """Random items of a version whose images are here, as ``target`` embeds them, and how many there are."""
    find = ImageStore(serving.path).find

    def wanted(item: Item) -> bool:
        return (not labelled or label_of(item) is not None) and find(item) is not None

    items, of = _draw(serving.gallery, source, wanted, most, seed)
    embedder = LocalEmbedder(serving.encoder(target))
    made = [np.empty((0, serving.gallery.space(target).width), np.float32)]
    with progress_bar(f"embedding with {target}", len(items), "items", show=progress and bool(items)) as advance:
        for start in range(0, len(items), _EMBED_BATCH):
            paths = [find(item) or Path("gone") for item in items[start : start + _EMBED_BATCH]]
            made.append(embedder.one(paths).vectors)
            advance(len(paths))
    old = _stacked(items, serving.gallery.space(source).width)
    labels = [label_of(item) for item in items]
    found = Sample(old, np.concatenate(made), labels, origin=f"{plural(len(items), 'item')} of the gallery")
    return found.take(np.flatnonzero(~np.isnan(found.new).any(axis=1))), of


def by_class_means(serving: Serving, source: str, target: str, *, most: int = SAMPLE, seed: int = 0) -> Sample:
    """Weighted class means of two gallery versions that have no image in common, by the labels of their items."""
    from fixstar.translation.unpaired import paired_by_class

    sides = []
    for name in (source, target):
        items, _ = _draw(serving.gallery, name, lambda item: label_of(item) is not None, most, seed)
        sides.append((_stacked(items, serving.gallery.space(name).width), [str(label_of(item)) for item in items]))
    (old, old_labels), (new, new_labels) = sides
    shared = set(old_labels) & set(new_labels)
    if len(shared) < LEAST_CLASSES:
        raise InputError(
            f"no image of {source}'s items can be found, and the labelled items of {source} and {target} share "
            f"{plural(len(shared), 'class')} of at least {LEAST_CLASSES}. Give images for both models to embed, or a "
            "file of pairs",
            NextStep("check", {"version": target, "images": ...}, "images without labels, for both models to embed"),
            NextStep("check", {"version": target, "pairs": ...}, "vectors by both models, FILE.npz"),
        )
    means = paired_by_class(old, old_labels, new, new_labels)
    origin = f"the means of {plural(len(means.classes), 'class')}: no image of {source}'s items can be found"
    return Sample(means.X, means.Y, [None] * len(means.classes), means.weights, origin)


def _draw(
    gallery: Gallery, version: str, wanted: Callable[[Item], bool], most: int, seed: int
) -> tuple[list[Item], int]:
    """Up to ``most`` of the wanted items, each equally likely (reservoir sampling), and how many there are."""
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
    unknown = label is None or label in ("", b"") or (isinstance(label, float) and math.isnan(label))
    return None if unknown else str(label)


def _stacked(items: Sequence[Item], width: int) -> Vectors:
    return np.stack([item.vector for item in items]) if items else np.empty((0, width), np.float32)


# --- from a file


def from_file(path: Path, gallery: Gallery, source: str, target: str) -> Sample:
    """Arrays ``old``, ``new`` (stored or full vectors of the same items) and maybe ``labels`` of FILE.npz."""
    if not path.is_file():
        raise InputError(f"there is no file {path}; pairs are FILE.npz with arrays old and new")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read as FILE.npz: {error}") from error
    missing = {"old", "new"} - set(arrays)
    if missing:
        there = ", ".join(arrays) or "none"
        raise DataError(f"{path} lacks {' and '.join(sorted(missing))}; it needs arrays old and new, and has: {there}")
    old = _as_stored(unit_rows(arrays["old"], "old", path), f"{path}: old", gallery, source)
    new = _as_stored(unit_rows(arrays["new"], "new", path), f"{path}: new", gallery, target)
    labels: list[str | None] = [None] * len(old)
    if "labels" in arrays:
        labels = [known_label(label) for label in as_labels(arrays["labels"]).tolist()]
    if not len(old) == len(new) == len(labels):
        raise DataError(f"{path}: {len(old)} rows of old, {len(new)} of new, {len(labels)} labels; row i is one item")
    return Sample(old, new, labels, origin=f"{plural(len(old), 'pair')} of {path.name}")


def unit_rows(array: NDArray[Any], name: str, where: str | Path) -> Vectors:
    """A matrix of unit vectors; other lengths are divided out, as an import does."""
    if array.dtype.kind not in "fiu" or array.ndim != 2 or 0 in array.shape:
        raise DataError(f"{where}: {name} is a matrix [items, components] of numbers; got {array.dtype} {array.shape}")
    lengths = np.linalg.norm(array.astype(np.float64), axis=1)
    bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if bad.size:
        raise DataError(f"{where}: row {bad[0]} of {name} is zero, NaN or infinite; leave that item out of both")
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
        full = "" if Q is None else f" in the short form (encode(images, form='short')) and {len(Q)} in full"
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
    """The translation with what standardises its scores, and those among the target's own vectors; no labels needed."""
    own = replace(new, queries=unit(np.asarray(new.queries, np.float32)))
    about = {
        **way.about,
        SCALE: list(standardised(translated(way, old, new))),
        TARGET_SCALE: list(standardised(own)),
    }
    return replace(way, about=about)
