"""1:1 verification: are two images of one class? Accepted when their cosine reaches a threshold.

The first image of a pair is embedded by the new model, the second by the old one (section 7.1 of CL2R). TAR is the
share of genuine pairs that are accepted, FAR the share of impostor pairs.

A rate at a given FAR is read strictly: the largest TAR whose measured FAR is not above it. Nothing is interpolated, and
impostors of equal score are accepted together or not at all. N impostors resolve no FAR below 1/N: any smaller one,
zero included, gives the TAR without a single false accept, which claims too little and never too much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar import geometry
from fixstar.errors import InputError
from fixstar.evaluation.pairs import Pairs
from fixstar.evaluation.search import BLOCK, blocks, checked_labels, unit_features

__all__ = [
    "FoldAccuracy",
    "kfold_accuracy",
    "mean_templates",
    "pair_scores",
    "roc",
    "tar_at_far",
    "threshold_at_far",
]

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]
Same = NDArray[np.bool_]
Scores = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FoldAccuracy:
    """Accuracy fold by fold: ``accuracies`` [folds], the ``thresholds`` [folds] used, and the answer of every pair.

    ``right`` [N] bool says which pairs were answered correctly, for error bars.
    """

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


def pair_scores(first: Floats, second: Floats, pairs: Pairs) -> Scores:
    """[pairs] cosines: row ``pairs.first`` of ``first``, by the new model, with row ``pairs.second`` of ``second``.

    >>> pairs = Pairs(np.array([0, 0]), np.array([1, 2]), np.array([True, False]))
    >>> new, old = np.array([[2.0, 0.0]]), np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 1.0]])
    >>> pair_scores(new, old, pairs)
    array([1., 0.])
    """
    a, b = unit_features(first, "first"), unit_features(second, "second")
    if a.shape[1] != b.shape[1]:
        raise InputError(
            f"the first features have {a.shape[1]} components and the second {b.shape[1]}: they must share a space"
        )
    for rows, features, whose in ((pairs.first, a, "first"), (pairs.second, b, "second")):
        if rows.max() >= len(features):
            raise InputError(f"a pair names row {rows.max()} of the {whose} features, which have {len(features)} rows")
    scores = np.empty(len(pairs))
    for part in blocks(len(pairs), BLOCK):
        scores[part] = (a[pairs.first[part]] * b[pairs.second[part]]).sum(axis=1, dtype=np.float64)
    return scores


def kfold_accuracy(scores: Floats, same: Same, folds: int = 10, *, stratified: bool = True) -> FoldAccuracy:
    """Accuracy with the threshold chosen on all folds but one and used on that one, for each fold in turn.

    Folds are fixed: the genuine pairs are cut into ``folds`` runs in their order, the impostors likewise. The order of
    ``sample_pairs`` is random already; the order of LFW's own list gives LFW's own folds.

    Not ``stratified``, the list is cut as it stands, whichever pairs a fold then holds. Where genuine pairs are more
    frequent in one fold than in the rest, the threshold chosen on the rest accepts too few there: the accuracy is too
    low, and below 0.5 for scores that say nothing.

    The threshold lies halfway between the lowest score that it accepts and the highest that it rejects. Of equally
    good ones the highest is taken, which accepts least.

    >>> result = kfold_accuracy(np.array([0.9, 0.8, 0.2, 0.1]), np.array([True, True, False, False]), folds=2)
    >>> result.mean, result.thresholds
    (1.0, array([0.45, 0.55]))
    """
    values, genuine = _checked(scores, same)
    fewest = min(genuine.sum(), (~genuine).sum()) if stratified else len(values)
    if not 2 <= folds <= fewest:
        needs = "a genuine and an impostor pair" if stratified else "a pair"
        raise InputError(f"each fold needs {needs}: 2 to {fewest} folds here, got {folds}. Draw more pairs")
    fold = np.empty(len(values), dtype=np.int64)
    for kind in (genuine, ~genuine) if stratified else (np.ones_like(genuine),):
        count = int(kind.sum())
        fold[kind] = np.arange(count) * folds // count
    thresholds = np.array([_best_threshold(values[fold != f], genuine[fold != f]) for f in range(folds)])
    right = (values >= thresholds[fold]) == genuine
    return FoldAccuracy(np.array([right[fold == f].mean() for f in range(folds)]), thresholds, right)


def roc(scores: Floats, same: Same) -> tuple[Scores, Scores, Scores]:
    """FAR, TAR and thresholds, each [distinct scores + 1], from nothing accepted (threshold inf) to everything.

    >>> far, tar, thresholds = roc(np.array([0.9, 0.4, 0.4]), np.array([True, True, False]))
    >>> far.tolist(), tar.tolist(), thresholds.tolist()
    ([0.0, 0.0, 1.0], [0.0, 0.5, 1.0], [inf, 0.9, 0.4])
    """
    thresholds, accepts, false_accepts = _accepted(*_checked(scores, same))
    return false_accepts / false_accepts[-1], accepts / accepts[-1], thresholds


def threshold_at_far(scores: Floats, same: Same, far: float) -> float:
    """The lowest threshold whose measured FAR is not above ``far``; -inf where ``far`` is 1.

    ``scores >= threshold`` are the accepted pairs, one by one.
    """
    values, genuine = _checked(scores, same)
    if not 0 <= far <= 1:
        raise InputError(f"a false accept rate is a fraction from 0 to 1, got {far:g}. Divide percent by 100")
    impostors = np.sort(values[~genuine])[::-1]
    allowed = int((np.arange(1, len(impostors) + 1) / len(impostors) <= far).sum())
    if allowed == len(impostors):
        return float("-inf")
    # Just above the first impostor that is too many, in the precision of the scores: comparing keeps them apart.
    kind = np.result_type(np.asarray(scores), np.float16).type
    return float(np.nextafter(kind(impostors[allowed]), kind(np.inf)))


def tar_at_far(scores: Floats, same: Same, far: float) -> float:
    """The largest TAR whose measured FAR is not above ``far`` (tables 1b, 3b and 4b of BCT, at 1e-4).

    >>> scores, same = np.array([0.9, 0.5, 0.7, 0.1]), np.array([True, True, False, False])
    >>> [tar_at_far(scores, same, far) for far in (0, 0.49, 0.5)]
    [0.5, 0.5, 1.0]
    """
    return float((np.asarray(scores)[same] >= threshold_at_far(scores, same, far)).mean())


def mean_templates(
    features: Floats, template_ids: Labels, media_ids: Labels | None = None
) -> tuple[NDArray[np.float32], Labels]:
    """One unit vector a template, the mean of its unit features, and the template ids in ascending order (IJB-C).

    With ``media_ids`` the frames of one medium are averaged first, so that a long video weighs as much as a photograph.

    >>> mean_templates(np.array([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]]), np.array([5, 5, 2]))[1]
    array([2, 5])
    """
    unit = unit_features(features, "template")
    ids, template = np.unique(checked_labels(template_ids, unit, "template"), return_inverse=True)
    weights = np.ones(len(unit))
    if media_ids is not None:
        keys = np.stack([template, checked_labels(media_ids, unit, "media")])
        _, medium, frames = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
        weights = 1 / frames[medium.ravel()]
    sums = np.zeros((len(ids), unit.shape[1]))
    np.add.at(sums, template, weights[:, None] * unit)  # as good as means: the length goes
    return geometry.unit(sums).astype(np.float32), ids


def _best_threshold(scores: Scores, genuine: Same) -> float:
    thresholds, accepts, false_accepts = _accepted(scores, genuine)
    best = int(np.argmax(accepts - false_accepts))  # the first of equals is the highest
    if best == 0:
        return float(np.nextafter(thresholds[1], np.inf))
    if best == len(thresholds) - 1:
        return float(thresholds[best])
    halfway = (thresholds[best] + thresholds[best + 1]) / 2
    return float(
        halfway if halfway > thresholds[best + 1] else thresholds[best]
    )  # neighbouring floats: nothing between


def _accepted(scores: Scores, genuine: Same) -> tuple[Scores, NDArray[np.int64], NDArray[np.int64]]:
    """Thresholds, descending from inf over the distinct scores, and how many pairs of each kind reach them."""
    order = np.argsort(-scores)
    ordered = scores[order]
    last = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)  # of equal scores
    accepts, false_accepts = np.cumsum(genuine[order])[last], np.cumsum(~genuine[order])[last]
    return np.append(np.inf, ordered[last]), np.append(0, accepts), np.append(0, false_accepts)


def _checked(scores: Floats, same: Same) -> tuple[Scores, Same]:
    values, genuine = np.asarray(scores, dtype=np.float64), np.asarray(same)
    if values.ndim != 1 or genuine.shape != values.shape or genuine.dtype != np.bool_:
        seen = f"scores {values.shape}, same {genuine.dtype} {genuine.shape}"
        raise InputError(f"verification needs one score and one bool a pair; got {seen}")
    if not np.isfinite(values).all():
        raise InputError("the scores hold NaN or infinity; the model that made them is broken")
    if genuine.all() or not genuine.any():
        raise InputError(
            f"verification needs genuine and impostor pairs; got {genuine.sum()} of {len(genuine)} genuine"
        )
    return values, genuine
