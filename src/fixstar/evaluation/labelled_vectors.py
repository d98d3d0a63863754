"""Several versions' vectors of the same labelled images, some as gallery and some as queries."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import DataError, InputError, plural
from fixstar.evaluation.cross_test import CrossTest, cross_test_cmc, cross_test_scores, takes_pairs
from fixstar.evaluation.evidence import flips
from fixstar.evaluation.features import VersionFeatures
from fixstar.evaluation.mixed import BackfillCurve, backfill_curve
from fixstar.evaluation.report import (
    CellDifferences,
    RateTable,
    Report,
    Thumbnails,
    lost_queries,
)
from fixstar.evaluation.search import PROTOCOLS, Labels
from fixstar.evaluation.verification import (
    Split,
    VerificationPairs,
    gallery_query_split,
    roc,
    sample_pairs,
    tar_at_far,
)

if TYPE_CHECKING:
    from PIL import Image

    from fixstar.data import ImageSet
    from fixstar.images import Preprocessing
    from fixstar.texts import Prompts

Features = Callable[["ImageSet", "ImageSet"], "Sequence[VersionFeatures]"]  # of queries and gallery

# pairs of each kind, as in CoReS
PAIRS = 3000
FOLDS = 10
RANKS = (1, 5, 10)
FARS = (0.1, 0.01, 0.001)
SHARES = tuple(number / 10 for number in range(11))


@dataclass(frozen=True, eq=False)
class LabelledVectors:
    """Every version's vectors of the same labelled images; with ``pairs`` queries and gallery are both all images."""

    versions: Sequence[VersionFeatures]
    query_labels: Labels
    gallery_labels: Labels
    classes: Mapping[int, str]
    facts: Mapping[str, str]
    pairs: VerificationPairs | None = None
    thumbnails: Thumbnails | None = None

    @property
    def images(self) -> tuple[Sequence[VersionFeatures], Labels, Labels]:
        """The first three arguments of ``cross_test``."""
        return self.versions, self.query_labels, self.gallery_labels

    def answered(self, protocol: str) -> Labels:
        """The class of each answer: of the queries, of those with an average precision, or of the pairs' first."""
        if self.pairs is not None:
            first = self.query_labels[self.pairs.first]
            if protocol.startswith("TAR"):
                return first[self.pairs.same]
            return first
        if protocol.startswith("map"):
            return self.query_labels[np.isin(self.query_labels, self.gallery_labels)]
        return self.query_labels

    def report(
        self,
        result: CrossTest,
        confidence: float = 0.95,
        by_class: bool = False,
        seed: int = 0,
        curve: BackfillCurve | None = None,
        evidence: CellDifferences | None = None,
    ) -> Report:
        """The report of a cross-test, with details of the newest upgrade.

        ``curve`` is the accuracy while the newest version re-embeds its predecessor's gallery, and ``evidence`` the
        verdicts on the cells, if they are known.
        """
        *older, newest = result.names
        details = self._upgrade_details(result, curve)
        return Report(
            result,
            title=f"{newest} over "
            + (" and ".join(older) if len(older) < 3 else f"{len(older)} older versions"),
            query_labels=self.answered(result.protocol),
            classes=self.classes,
            confidence=confidence,
            by_class=by_class,
            seed=seed,
            thumbnails=self.thumbnails,
            facts=self.facts,
            evidence=None if evidence is None else {"": evidence},
            **details,
        )

    def _upgrade_details(self, result: CrossTest, curve: BackfillCurve | None) -> dict[str, Any]:
        """For the newest version over its predecessor: lost queries, backfill and Rank-k; for verification the ROC."""
        old, new = last = self.versions[-2:]
        names = {
            (t, k): f"queries by {last[t].name}, gallery by {last[k].name}"
            for t, k in ((0, 0), (1, 0), (1, 1))
        }
        if self.pairs is not None:
            scores = cross_test_scores(last, self.pairs)
            same = self.pairs.same
            rates = {
                name: tuple(tar_at_far(scores[cell], same, far) for far in FARS)
                for cell, name in names.items()
            }
            return {
                "rocs": {name: roc(scores[cell], same)[:2] for cell, name in names.items()},
                "tables": [
                    RateTable("True accept rate at", tuple(f"FAR {far:g}" for far in FARS), rates)
                ],
            }
        if result.protocol not in PROTOCOLS:
            return {}
        labels = self.query_labels, self.gallery_labels
        by_rank = cross_test_cmc(last, *labels, RANKS)
        ranks = {name: tuple(by_rank[cell].values()) for cell, name in names.items()}
        newest = len(result.names) - 1
        found = flips(
            result.hits[newest - 1, newest - 1], result.hits[newest, newest - 1], self.query_labels
        )
        if curve is None:
            curve = backfill_curve(old, new, *labels, SHARES, orders=3, protocol=result.protocol)
        return {
            "lost": {"": lost_queries(found, self.query_labels, old, new)},
            "backfill": {"": curve},
            "tables": [
                RateTable(
                    "The class is among the nearest images",
                    tuple(f"Rank-{k}" for k in RANKS),
                    ranks,
                )
            ],
        }


def vectors_of_images(
    features: Features,
    images: ImageSet,
    protocol: str = "image",
    seed: int = 0,
    split_file: Path | None = None,
    pairs_file: Path | None = None,
) -> LabelledVectors:
    """Labelled images, embedded by ``features``. Split or pairs come from their file, or are saved there."""
    classes = dict(enumerate(images.classes))
    if takes_pairs(protocol):
        pairs, how = kept_pairs(images.labels, pairs_file, seed)
        made = features(images, images.take([0]))  # pairs take both images from one set
        both = [replace(version, gallery=version.queries) for version in made]
        facts = {"Images": counted(images.labels), "Pairs drawn": how}
        return LabelledVectors(
            versions=both,
            query_labels=images.labels,
            gallery_labels=images.labels,
            classes=classes,
            facts=facts,
            pairs=pairs,
        )
    split, how = _kept_split(images.labels, split_file, seed, protocol.startswith("TPIR"))
    queries = images.take(split.queries)
    gallery = images.take(split.gallery)
    facts = {"Gallery": counted(gallery.labels), "Split": how}
    shown = None if images.has_texts else Thumbnails(_by_row(queries), _by_row(gallery))
    return LabelledVectors(
        features(queries, gallery), queries.labels, gallery.labels, classes, facts, thumbnails=shown
    )


def searchable(images: ImageSet, inputs: Preprocessing | Prompts, bad_images: str) -> ImageSet:
    """The readable images of classes with two or more; ``bad_images`` is "refuse" or "skip"."""
    if bad_images not in ("refuse", "skip"):
        raise InputError(f"bad_images is refuse or skip, got {bad_images!r}")
    kept, unreadable = images.readable(inputs, cast(Literal["refuse", "skip"], bad_images))
    for image in unreadable:
        warnings.warn(f"left out {image.name}: {image.reason}", stacklevel=2)
    counts = kept.counts()
    if single := [name for name in kept.classes if counts[name] < 2]:
        named = ", ".join(single[:10]) + (", ..." if len(single) > 10 else "")
        warnings.warn(
            f"{plural(len(single), 'class')} with only one image to measure with, not measured: {named}. "
            "Training and search are not affected",
            stacklevel=2,
        )
    if len(single) == len(kept.classes):
        raise InputError(
            "every class has fewer than two images; search needs one in the gallery and one as a query"
        )
    return kept.of_classes([name for name in kept.classes if counts[name] >= 2])


def counted(labels: Labels) -> str:
    """The number of images and classes as text."""
    return f"{plural(len(labels), 'image')} of {plural(len(np.unique(labels)), 'class')}"


def _kept_split(labels: Labels, path: Path | None, seed: int, open_set: bool) -> tuple[Split, str]:
    """The split in a file, or a new one, which is saved there; and its origin as text.

    An open-set search asks for classes that the gallery lacks, too: half of them are only among the queries.
    """
    if path is None or not path.exists():
        split = gallery_query_split(labels, seed=_checked_seed(seed))
        classes = "each class"
        if open_set:
            enrolled = np.random.default_rng(seed).permutation(np.unique(labels))[::2]
            split = Split(split.gallery[np.isin(labels[split.gallery], enrolled)], split.queries)
            classes = "every second class"
        if path is not None:
            split.save(path)
        return split, f"half of {classes} is the gallery, seed {seed}"
    split = Split.load(path)
    _check_rows(path, np.concatenate([split.gallery, split.queries]), len(labels))
    if left := len(labels) - len(split.gallery) - len(split.queries):
        warnings.warn(f"{path} leaves out {left} of {len(labels)} images", stacklevel=2)
    return split, f"from {path.name}"


def kept_pairs(labels: Labels, path: Path | None, seed: int) -> tuple[VerificationPairs, str]:
    """The pairs in a file, or new ones, which are saved there; and their origin as text."""
    if path is None or not path.exists():
        count = _pair_count(labels)
        pairs = sample_pairs(labels, count, count, _checked_seed(seed))
        if path is not None:
            pairs.save(path)
        return pairs, f"{count:,} genuine and {count:,} impostor, seed {seed}"
    pairs = VerificationPairs.load(path)
    _check_rows(path, np.concatenate([pairs.first, pairs.second]), len(labels))
    if not np.array_equal(labels[pairs.first] == labels[pairs.second], pairs.same):
        raise DataError(
            f"{path} was drawn from other images: its genuine pairs are not of one class here"
        )
    return (
        pairs,
        f"{pairs.same.sum():,} genuine and {(~pairs.same).sum():,} impostor, from {path.name}",
    )


def _pair_count(labels: Labels) -> int:
    """Pairs of each kind: as many as in CoReS, at most half the images (or they repeat), a multiple of the folds."""
    counts = np.unique(labels, return_counts=True)[1]
    genuine = int((counts * (counts - 1) // 2).sum())
    count = min(
        PAIRS, max(FOLDS, len(labels) // 2), genuine, len(labels) * (len(labels) - 1) // 2 - genuine
    )
    if count < FOLDS:
        raise InputError(
            f"verification needs {FOLDS} pairs of one class and {FOLDS} of two; these images allow {count} of a kind"
        )
    return count - count % FOLDS


def _check_rows(path: Path, rows: NDArray[np.int64], images: int) -> None:
    if rows.max() >= images:
        raise DataError(
            f"{path} refers to image {rows.max()}, but there are {images}: it was made for other images"
        )


def _checked_seed(seed: int) -> int:
    if seed < 0:
        raise InputError(f"a seed is a number from 0 on, got {seed}")
    return seed


def _by_row(images: ImageSet) -> Callable[[int], Image.Image]:
    from PIL import Image

    from fixstar.images import Preprocessing, read_pixels

    small = Preprocessing(size=(96, 96), mean=(0, 0, 0), std=(1, 1, 1), fit="pad")
    return lambda row: Image.fromarray(read_pixels(images.images[row], small, position=row))
