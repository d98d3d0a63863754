"""What ``fixstar evaluate`` measures of another system: features from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fixstar.errors import DataError, InputError
from fixstar.evaluation.features import LabelFile, VersionFeatures, read_features, read_labels
from fixstar.evaluation.trial import Trial, counted, kept_pairs, with_vectors

__all__ = ["from_files", "require_two_classes"]


def from_files(
    features: Sequence[str], labels: str | None, protocol: str, seed: int, pairs_file: Path | None, shared: bool
) -> Trial:
    """Versions of any system, given as NAME=FILES; see ``fixstar.evaluation.features``."""
    named = [_named(word) for word in features]
    versions = [read_features(name, files) for name, files in named]
    seen = ", ".join(f"{version.name} {version.width}" for version in versions)
    if len({version.width for version in versions}) > 1 and not shared:
        raise InputError(
            f"the versions have features of different width ({seen}). With --shared-components they are compared over "
            "the first components that both have"
        )
    if labels is None and not named[0][1].endswith(".npz"):
        raise InputError("say what the images show: --labels QUERY_LABELS.npy,GALLERY_LABELS.npy, or one .npz file")
    known = read_labels(labels or named[0][1])
    for version, (_, files) in zip(versions, named, strict=True):
        _require_labels(version, files, known, labels or named[0][1])
    facts = {"Gallery": counted(known.gallery), "Features": seen}
    if protocol != "verification":
        require_two_classes(sorted({known.classes.get(y, str(y)) for y in known.gallery.tolist()}), "the gallery")
        return Trial(versions, known.queries, known.gallery, known.classes, facts, shared_components=shared)
    same = all(np.array_equal(version.queries, version.gallery) for version in versions)
    truth = known.queries if same else np.concatenate([known.queries, known.gallery])
    whole = [v.queries if same else np.concatenate([v.queries, v.gallery]) for v in versions]
    both = [with_vectors(version, vectors) for version, vectors in zip(versions, whole, strict=True)]
    pairs, how = kept_pairs(truth, pairs_file, seed)
    facts = {"Images": counted(truth), "Pairs drawn": how, "Features": seen}
    return Trial(both, truth, truth, known.classes, facts, pairs, shared_components=shared)


def require_two_classes(classes: Sequence[str], what: str) -> None:
    """Among images of one class every answer is right, by any model: that would read as perfect."""
    if len(classes) == 1:
        raise InputError(
            f"{what} has one class only, {classes[0]!r}: every answer would be right, whatever the model. Give images "
            "of two classes or more: one folder a class, or the folder above if this is one class of several"
        )


def _require_labels(version: VersionFeatures, files: str, known: LabelFile, label_files: str) -> None:
    for which, vectors, truth in (
        ("query", version.queries, known.queries),
        ("gallery", version.gallery, known.gallery),
    ):
        if len(vectors) != len(truth):
            raise DataError(
                f"version {version.name!r} ({files}) has {len(vectors)} {which} images, and {label_files} has "
                f"{len(truth)} {which} labels. Every version embeds the same images in the same order"
            )


def _named(word: str) -> tuple[str, str]:
    name, equals, files = word.partition("=")
    if not (name and equals and files):
        raise InputError(f"--features {word!r} is not NAME=FILE.npz or NAME=QUERIES.npy,GALLERY.npy")
    return name, files
