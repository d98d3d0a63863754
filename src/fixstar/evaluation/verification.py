"""Decisions by threshold: 1:1 verification and open-set search. Also the pairs and splits to measure on.

A pair is accepted as one class when its cosine reaches a threshold; its first image is embedded by the new model, its
second by the old one (section 7.1 of CL2R). TAR is the share of genuine pairs that are accepted, FAR of impostors.
In open-set search, queries whose class is not in the gallery are **non-mated** and must be rejected.

Rates are strict: the largest TAR whose measured FAR does not exceed the given one, without interpolation. N impostors
cannot resolve a FAR below 1/N: a smaller one gives the TAR without any false accept.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from types import EllipsisType
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import DataError, InputError, NextStep, plural
from fixstar.evaluation.features import load_arrays, save_arrays
from fixstar.evaluation.search import (
    BLOCK,
    Floats,
    Labels,
    blocks,
    check_widths,
    checked_labels,
    gallery_entries,
    nearest,
    unit_features,
)

Rows = NDArray[np.int64]
Same = NDArray[np.bool_]
Scores = NDArray[np.float64]


class _RowFile:
    """Row numbers stored in one .npz file. ``argument`` takes the file, together with ``others``."""

    content: ClassVar[str]
    argument: ClassVar[str]
    others: ClassVar[dict[str, str]] = {}

    def save(self, path: str | Path) -> None:
        """Write the rows to one .npz file, atomically."""
        save_arrays(Path(path), vars(self))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what ``save`` wrote; ``DataError`` if the file is missing, damaged or something else."""
        path = Path(path)
        remake = cls._evaluate(str(path), "after deleting the file; a missing file is created")
        try:
            arrays = load_arrays(path)
        except DataError as error:
            raise DataError(str(error), remake) from error
        if not isinstance(arrays, dict):
            raise DataError(f"{path} holds one bare array, not {cls.content}", remake)
        if arrays.keys() != cls._names():  # never suggest deleting a valid file of another kind
            steps = [cls._evaluate(..., "with another file; a missing file is created")]
            other = next(
                (kind for kind in (VerificationPairs, Split) if arrays.keys() == kind._names()),
                None,
            )
            found = ", ".join(sorted(arrays)) or "nothing"
            if other is not None:
                found = other.content
                steps.append(other._evaluate(str(path), f"to use {path.name}"))
            raise DataError(f"{path} holds {found}, not {cls.content}", *steps)
        try:
            return cls(**arrays)
        except InputError as error:
            raise DataError(f"{path} is damaged: {error}", remake) from error

    @classmethod
    def _names(cls) -> set[str]:
        return {field.name for field in fields(cls)}  # type: ignore[arg-type]

    @classmethod
    def _evaluate(cls, file: str | EllipsisType, note: str) -> NextStep:
        return NextStep("evaluate", {"data": ..., **cls.others, cls.argument: file}, note)


@dataclass(frozen=True, eq=False)
class VerificationPairs(_RowFile):
    """Rows ``first`` [N] (queries), ``second`` [N] (gallery) and ``same`` [N] bool: **genuine**, else **impostor**."""

    content = "pairs"
    argument = "pairs_file"
    others: ClassVar[dict[str, str]] = {"protocol": "verification"}

    first: Rows
    second: Rows
    same: Same

    def __post_init__(self) -> None:
        _check_rows(self.first, "first")
        _check_rows(self.second, "second")
        if self.same.ndim != 1 or self.same.dtype != np.bool_:
            raise InputError(
                f"same is one bool per pair, got {self.same.dtype} of shape {self.same.shape}"
            )
        if not len(self.first) == len(self.second) == len(self.same):
            seen = f"{len(self.first)} first, {len(self.second)} second and {len(self.same)} same"
            raise InputError(f"first, second and same must have the same length; got {seen}")

    def __len__(self) -> int:
        return len(self.same)


@dataclass(frozen=True, eq=False)
class Split(_RowFile):
    """Images divided for 1:N search: row numbers of the ``gallery`` [G] and of the ``queries`` [Q], ascending."""

    content = "a split into gallery and queries"
    argument = "split_file"

    gallery: Rows
    queries: Rows

    def __post_init__(self) -> None:
        _check_rows(self.gallery, "gallery")
        _check_rows(self.queries, "queries")
        rows = np.concatenate([self.gallery, self.queries])
        if len(np.unique(rows)) < len(rows):
            raise InputError(
                "each image appears once, in the gallery or among the queries; this split repeats one"
            )


def sample_pairs(
    labels: Labels, genuine: int = 3000, impostor: int = 3000, seed: int = 0
) -> VerificationPairs:
    """Draw pairs of images, the genuine ones first; CoReS takes 3,000 + 3,000 from the CIFAR-10 test images.

    Uniform over all pairs of a kind. No image is paired with itself, and no pair occurs twice, in either order. The
    order within a pair is random too.

    >>> labels = np.array([4, 4, 4, 9])
    >>> pairs = sample_pairs(labels, genuine=2, impostor=3)
    >>> np.array_equal(labels[pairs.first] == labels[pairs.second], pairs.same), pairs.same.sum()
    (True, np.int64(2))
    """
    classes = _classes(labels)
    order = np.argsort(classes, kind="stable")
    position = np.arange(len(order))
    end = np.searchsorted(
        classes[order], classes[order], side="right"
    )  # the end of the class of each position
    rng = np.random.default_rng(seed)
    drawn = [
        # The later images of the same class, and all images of later classes: every pair has one number.
        _draw_pairs(position + 1, end, genuine, "genuine", rng),
        _draw_pairs(end, np.full_like(end, len(order)), impostor, "impostor", rng),
    ]
    both = order[np.concatenate(drawn, axis=1)]
    swapped = rng.random(both.shape[1]) < 0.5
    first, second = np.where(swapped, both[::-1], both)
    return VerificationPairs(first, second, classes[first] == classes[second])


def _draw_pairs(start: Rows, stop: Rows, count: int, kind: str, rng: np.random.Generator) -> Rows:
    """[2, count]: pairs (p, q) with start[p] <= q < stop[p], all different, all equally likely."""
    if count < 1:
        raise InputError(f"ask for at least one {kind} pair, got {count}")
    ends = np.cumsum(stop - start)
    if count > ends[-1]:
        raise InputError(
            f"these labels allow {plural(int(ends[-1]), f'{kind} pair')}, not {count}. Ask for fewer pairs, or "
            "pass more images"
        )
    numbers = rng.choice(int(ends[-1]), size=count, replace=False)
    p = np.searchsorted(ends, numbers, side="right")
    return np.stack([p, stop[p] - (ends[p] - numbers)])


def draw_pairs(
    labels: Labels, genuine: int = 3000, impostor: int = 3000, seed: int = 0
) -> VerificationPairs:
    """Draw two images at a time until there are enough pairs of both kinds, as the code of CoReS and CL2R does.

    Pairs stay in the order of drawing, so unstratified folds give numbers comparable with theirs.

    >>> draw_pairs(np.arange(100) % 10, genuine=40, impostor=40).same[-20:].all()
    np.True_
    """
    classes = _classes(labels)
    if min(genuine, impostor) < 1:
        raise InputError(
            f"ask for at least one pair of each kind, got {genuine} genuine and {impostor} impostors"
        )
    if len(np.unique(classes)) < 2:
        raise InputError("impostor pairs need images of two classes; there is only one class")
    rng = np.random.default_rng(seed)
    missing = {True: genuine, False: impostor}
    parts = []
    while any(missing.values()):
        drawn = rng.integers(len(classes), size=(10 * (genuine + impostor), 2))
        same = classes[drawn[:, 0]] == classes[drawn[:, 1]]
        kept = np.where(same, np.cumsum(same) <= missing[True], np.cumsum(~same) <= missing[False])
        missing = {kind: count - int((same[kept] == kind).sum()) for kind, count in missing.items()}
        parts.append(drawn[kept])
    first, second = np.concatenate(parts).T
    return VerificationPairs(first, second, classes[first] == classes[second])


def gallery_query_split(labels: Labels, share: float = 0.5, seed: int = 0) -> Split:
    """Put ``share`` of the images of every class into the gallery, and the others among the queries.

    Rounded within each class, but a class of two or more images is in both. A class of one image is in the gallery
    only: as a query it could not be found.

    >>> split = gallery_query_split(np.array([7, 7, 7, 7, 8]), share=0.75)
    >>> len(split.gallery), len(split.queries), 4 in split.gallery
    (4, 1, True)
    """
    classes = _classes(labels)
    if not 0 < share < 1:
        raise InputError(
            f"share is the gallery's share of each class, between 0 and 1; got {share:g}"
        )
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(classes))
    order = shuffled[
        np.argsort(classes[shuffled], kind="stable")
    ]  # class by class, in random order within it
    _, starts, counts = np.unique(classes[order], return_index=True, return_counts=True)
    wanted = np.clip(np.floor(share * counts + 0.5), 1, np.maximum(counts - 1, 1))
    place = np.arange(len(order)) - np.repeat(starts, counts)
    chosen = place < np.repeat(wanted, counts)
    if chosen.all():
        raise InputError(
            f"no class has two images ({plural(counts.size, 'class')}): nothing is left to query with"
        )
    return Split(np.sort(order[chosen]), np.sort(order[~chosen]))


@dataclass(frozen=True, eq=False)
class FoldAccuracy:
    """``accuracies`` and ``thresholds`` [folds], and ``right`` [N] bool: which pairs were classified correctly."""

    accuracies: Scores
    thresholds: Scores
    right: Same

    @property
    def mean(self) -> float:
        """The mean over folds: the verification accuracy of the papers."""
        return float(self.accuracies.mean())

    @property
    def std(self) -> float:
        """The standard deviation over folds (n - 1). LFW prints it divided by the square root of the folds."""
        return float(self.accuracies.std(ddof=1))


def pair_scores(first: Floats, second: Floats, pairs: VerificationPairs) -> Scores:
    """[pairs] cosines of row ``pairs.first`` of ``first`` (new model) with row ``pairs.second`` of ``second`` (old).

    >>> pairs = VerificationPairs(np.array([0, 0]), np.array([1, 2]), np.array([True, False]))
    >>> new, old = np.array([[2.0, 0.0]]), np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 1.0]])
    >>> pair_scores(new, old, pairs)
    array([1., 0.])
    """
    a = unit_features(first, "first")
    b = unit_features(second, "second")
    check_widths(a, b)
    for rows, features, name in ((pairs.first, a, "first"), (pairs.second, b, "second")):
        if rows.max() >= len(features):
            raise InputError(
                f"a pair uses row {rows.max()} of the {name} features, which have {len(features)} rows"
            )
    scores = np.empty(len(pairs))
    for part in blocks(len(pairs), BLOCK):
        scores[part] = (a[pairs.first[part]] * b[pairs.second[part]]).sum(axis=1, dtype=np.float64)
    return scores


def kfold_accuracy(
    scores: Floats, same: Same, folds: int = 10, *, stratified: bool = True
) -> FoldAccuracy:
    """Accuracy of each fold at the threshold that is best on the other folds; ties go to the highest.

    Genuine pairs and impostors are each split into ``folds`` consecutive parts, so LFW's list gives LFW's folds. With
    ``stratified=False`` the whole list is split.

    >>> result = kfold_accuracy(np.array([0.9, 0.8, 0.2, 0.1]), np.array([True, True, False, False]), folds=2)
    >>> result.mean, result.thresholds
    (1.0, array([0.45, 0.55]))
    """
    values, genuine = _checked(scores, same)
    fewest = min(genuine.sum(), (~genuine).sum()) if stratified else len(values)
    if not 2 <= folds <= fewest:
        needs = "a genuine and an impostor pair" if stratified else "a pair"
        raise InputError(
            f"each fold needs {needs}: 2 to {fewest} folds here, got {folds}. Draw more pairs"
        )
    fold = np.empty(len(values), dtype=np.int64)
    for kind in (genuine, ~genuine) if stratified else (np.ones_like(genuine),):
        count = int(kind.sum())
        fold[kind] = np.arange(count) * folds // count
    thresholds = np.array(
        [_best_threshold(values[fold != f], genuine[fold != f]) for f in range(folds)]
    )
    right = (values >= thresholds[fold]) == genuine
    return FoldAccuracy(
        np.array([right[fold == f].mean() for f in range(folds)]), thresholds, right
    )


def roc(scores: Floats, same: Same) -> tuple[Scores, Scores, Scores]:
    """FAR, TAR and thresholds, each [distinct scores + 1], from nothing accepted (threshold inf) to everything.

    >>> far, tar, thresholds = roc(np.array([0.9, 0.4, 0.4]), np.array([True, True, False]))
    >>> far.tolist(), tar.tolist(), thresholds.tolist()
    ([0.0, 0.0, 1.0], [0.0, 0.5, 1.0], [inf, 0.9, 0.4])
    """
    thresholds, accepts, false_accepts = _accepted(*_checked(scores, same))
    return false_accepts / false_accepts[-1], accepts / accepts[-1], thresholds


def threshold_at_far(scores: Floats, same: Same, far: float) -> float:
    """The lowest threshold (accepted: score >= it) whose FAR does not exceed ``far``; -inf where that is 1."""
    values, genuine = _checked(scores, same)
    if not 0 <= far <= 1:
        raise InputError(
            f"a false accept rate is a fraction from 0 to 1, got {far:g}. Divide percentages by 100"
        )
    impostors = np.sort(values[~genuine])[::-1]
    allowed = int((np.arange(1, len(impostors) + 1) / len(impostors) <= far).sum())
    if allowed == len(impostors):
        return float("-inf")
    # Just above the first impostor too many, in the precision of the scores.
    kind = np.result_type(np.asarray(scores), np.float16).type
    return float(np.nextafter(kind(impostors[allowed]), kind(np.inf)))


def tar_at_far(scores: Floats, same: Same, far: float) -> float:
    """The largest TAR whose measured FAR does not exceed ``far`` (tables 1b, 3b and 4b of BCT, at 1e-4).

    >>> scores, same = np.array([0.9, 0.5, 0.7, 0.1]), np.array([True, True, False, False])
    >>> [tar_at_far(scores, same, far) for far in (0, 0.49, 0.5)]
    [0.5, 0.5, 1.0]
    """
    return float((np.asarray(scores)[same] >= threshold_at_far(scores, same, far)).mean())


def tpir_at_fpir(
    queries: Floats,
    query_labels: Labels,
    gallery: Floats,
    gallery_labels: Labels,
    fpir: float,
    protocol: str = "image",
) -> float:
    """The largest TPIR whose measured FPIR does not exceed ``fpir`` (tables 1c, 3c and 4c of BCT, at 1e-2).

    FPIR is the share of non-mated searches that reach the threshold, TPIR that of mated ones with the right answer.

    >>> queries, truth = np.array([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]]), np.array([7, 7, 9])
    >>> [tpir_at_fpir(queries, truth, np.array([[1.0, 0.0]]), np.array([7]), fpir) for fpir in (0, 1)]
    [0.5, 1.0]
    """
    return float(
        np.nanmean(
            open_set_hits(
                queries=queries,
                query_labels=query_labels,
                gallery=gallery,
                gallery_labels=gallery_labels,
                fpir=fpir,
                protocol=protocol,
            )
        )
    )


def open_set_hits(
    queries: Floats,
    query_labels: Labels,
    gallery: Floats,
    gallery_labels: Labels,
    fpir: float,
    protocol: str = "image",
    lengths: Floats | None = None,
) -> Scores:
    """[N]: at the threshold of ``fpir`` 1 for a mated search with the right answer, 0 for another, NaN if non-mated.

    ``lengths`` [N] are factors on the cosines of queries that only partly lie in the gallery's space.
    """
    truth = checked_labels(query_labels, queries, "query")
    entries, classes = gallery_entries(gallery, gallery_labels, protocol)
    indices, cosines = nearest(queries, entries)
    mated = np.isin(truth, classes)
    if mated.all() or not mated.any():
        raise InputError(
            "an open-set search needs queries with and without their class in the gallery; "
            f"got {mated.sum()} of {len(mated)} with it. Remove some classes from the gallery"
        )
    best = cosines[:, 0] if lengths is None else cosines[:, 0] * lengths
    found = best >= threshold_at_far(best, mated, fpir)
    return np.where(mated, found & (classes[indices[:, 0]] == truth), np.nan)


def _best_threshold(scores: Scores, genuine: Same) -> float:
    thresholds, accepts, false_accepts = _accepted(scores, genuine)
    best = int(np.argmax(accepts - false_accepts))  # the first of equals is the highest
    if best == 0:
        return float(np.nextafter(thresholds[1], np.inf))
    if best == len(thresholds) - 1:
        return float(thresholds[best])
    halfway = (thresholds[best] + thresholds[best + 1]) / 2
    if halfway > thresholds[best + 1]:
        return float(halfway)
    return float(thresholds[best])  # adjacent floats have no middle


def _accepted(scores: Scores, genuine: Same) -> tuple[Scores, Rows, Rows]:
    """Thresholds, descending from inf over the distinct scores, and how many pairs of each kind reach them."""
    order = np.argsort(-scores)
    ordered = scores[order]
    last = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)  # of equal scores
    accepts = np.cumsum(genuine[order])[last]
    false_accepts = np.cumsum(~genuine[order])[last]
    return np.append(np.inf, ordered[last]), np.append(0, accepts), np.append(0, false_accepts)


def _checked(scores: Floats, same: Same) -> tuple[Scores, Same]:
    values = np.asarray(scores, dtype=np.float64)
    genuine = np.asarray(same)
    if values.ndim != 1 or genuine.shape != values.shape or genuine.dtype != np.bool_:
        seen = f"scores {values.shape}, same {genuine.dtype} {genuine.shape}"
        raise InputError(f"verification needs one score and one bool per pair; got {seen}")
    if not np.isfinite(values).all():
        raise InputError("the scores contain NaN or infinity; the model that made them is broken")
    if genuine.all() or not genuine.any():
        raise InputError(
            f"verification needs genuine and impostor pairs; got {genuine.sum()} of {len(genuine)} genuine"
        )
    return values, genuine


def _classes(labels: Labels) -> Labels:
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise InputError(
            f"labels are one integer per image, not empty; got {array.dtype} of shape {array.shape}"
        )
    return array


def _check_rows(rows: Rows, name: str) -> None:
    if rows.ndim != 1 or rows.dtype != np.int64 or not len(rows):
        raise InputError(
            f"{name} holds row numbers, int64 and not empty; got {rows.dtype} of shape {rows.shape}"
        )
    if rows.min() < 0:
        raise InputError(f"{name} holds row numbers, starting at 0; got {rows.min()}")
