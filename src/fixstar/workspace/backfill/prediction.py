"""What a backfill will bring, and what it brought: accuracy of labelled queries over the share re-embedded.

Predicted on held-out images that act as gallery and queries, before anything is embedded: the planner's order beside
random ones. Measured on the gallery itself, as far as its items have labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fixstar.data.image_set import ImageSet
from fixstar.errors import InputError, plural
from fixstar.evaluation import (
    BackfillCurve,
    Split,
    VersionFeatures,
    backfill_curves,
    cross_test,
    gallery_query_split,
    paired_bootstrap,
)
from fixstar.evaluation.features import blended_version, version_features
from fixstar.gallery import Calibration, Gallery, calibrated_search
from fixstar.geometry import carry, short_basis, unit
from fixstar.models import Encoder
from fixstar.workspace.backfill.orders import LabelledQueries, OldItems, planned_order
from fixstar.workspace.calibrations import class_folds, search_curve
from fixstar.workspace.items import LABEL

SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
_LARGE_LOSS, _FEWEST_LOST = 0.05, 3  # share and number of lost queries that always count as a loss


class MeasuredPoint(NamedTuple):
    """Accuracy of the labelled queries when a share of the old items had been re-embedded."""

    share: float
    accuracy: float


@dataclass(frozen=True, eq=False)
class PredictedCurve:
    """The planner's order beside random ones on held-out images; ``images`` counts gallery and queries.

    ``self_tests`` are the old and the new version's; ``calibrated`` if hits were merged by probability.
    """

    order: str
    planned: BackfillCurve
    random: BackfillCurve
    self_tests: tuple[float, float]
    images: tuple[int, int]
    calibrated: bool = False

    def at(self, share: float) -> tuple[float, float]:
        """Accuracy by the planner's order and by random order at a share between those measured."""
        shares = self.planned.shares
        planned, random = (np.interp(share, shares, curve.accuracy) for curve in (self.planned, self.random))
        return float(planned), float(random)

    def to_json(self) -> dict[str, Any]:
        """As JSON: accuracy in the planner's order and in random order over the share re-embedded."""
        return {
            "order": self.order,
            "shares": self.planned.shares.tolist(),
            "planned": self.planned.accuracy.tolist(),
            "random": self.random.accuracy.tolist(),
            "self_tests": list(self.self_tests),
            "calibrated": self.calibrated,
        }

    def loses(self, share: float) -> bool:
        """Whether the planner's order is significantly less accurate at a share than at none.

        That is beyond chance by a paired bootstrap at 95 %, or by five points and three queries.
        """
        hits = self.planned.hits
        if hits is None:
            return self.at(share)[0] < float(self.planned.accuracy[0])
        shares = self.planned.shares
        weights = np.array([np.interp(share, shares, row) for row in np.eye(len(shares))])
        then = weights @ hits[0]  # [queries], between the outcomes at the shares beside it
        lost = hits[0, 0].sum() - then.sum()  # queries
        if lost >= max(_LARGE_LOSS * len(then), _FEWEST_LOST):
            return True
        return paired_bootstrap(hits[0, 0], then).verdict == "compatible"  # none re-embedded is strictly better


def predicted_curve(
    old: tuple[str, Encoder],
    new: tuple[str, Encoder],
    images: ImageSet,
    order: str = "gain",
    shares: Sequence[float] = SHARES,
    random_orders: int = 5,
    seed: int = 0,
    calibrate: bool = False,
    blend: float = 1.0,
) -> PredictedCurve:
    """Re-embed held-out images of the ``old`` version with the ``new`` one, in the planner's order and at random.

    A third of each class is the gallery, a third the planner's queries, a third those that measure. ``blend`` is the
    alpha of queries by two models for the old vectors.
    """
    gallery, asking, split = _thirds(images, seed)
    first, second = (version_features(name, encoder, asking, gallery) for name, encoder in (old, new))
    names = [asking.classes[label] for label in asking.labels[split.gallery].tolist()]
    queries = LabelledQueries(second.queries[split.gallery], names)
    rows = planned_order(order, _as_old_items(first, second, gallery), queries, seed)
    truth = asking.labels, gallery.labels
    both = {} if blend == 1 else {first.name: blended_version(first, second, blend).queries}
    folds = class_folds([first, second], *truth, seed, both) if calibrate else []
    measured: dict[str, Any] = {"folds": folds, "rows": split.queries, "seed": seed, "blend": blend}
    planned = search_curve((first, second), *truth, shares, order=rows, **measured)
    random = search_curve((first, second), *truth, shares, orders=random_orders, **measured)
    judging = [replace(version, queries=version.queries[split.queries]) for version in (first, second)]
    tests = cross_test(judging, truth[0][split.queries], truth[1], "image").matrix.diagonal()
    sizes = len(gallery), len(split.queries)
    return PredictedCurve(order, planned, random, (float(tests[0]), float(tests[1])), sizes, bool(folds))


def _thirds(images: ImageSet, seed: int) -> tuple[ImageSet, ImageSet, Split]:
    """A third of each class as gallery, and the rest with its split: for the planner, and to measure with."""
    counts = images.counts()
    several = images.of_classes([name for name in images.classes if counts[name] >= 3])
    if len(several.classes) < 2:
        raise InputError(
            "a backfill is predicted on labelled images, at least three of each of two classes; "
            f"these are {len(images)} of {plural(len(images.classes), 'class')}"
        )
    split = gallery_query_split(several.labels, share=1 / 3, seed=seed)
    rest = several.take(split.queries)
    return several.take(split.gallery), rest, gallery_query_split(rest.labels, seed=seed)


def _as_old_items(old: VersionFeatures, new: VersionFeatures, gallery: ImageSet) -> OldItems:
    vectors = carry(unit(old.gallery), short_basis(old.projection), short_basis(new.projection), new.width)
    labels = [gallery.classes[label] for label in gallery.labels.tolist()]
    count = len(gallery)
    names = [str(row) for row in range(count)]
    return OldItems(names, np.zeros(count, np.int64), vectors.astype(np.float32), labels, np.zeros(count))


def gallery_accuracy(
    gallery: Gallery,
    version: str,
    queries: LabelledQueries,
    calibrations: Mapping[str, Calibration] | None = None,
    among: Sequence[str] | None = None,
) -> float | None:
    """The share of labelled queries, of classes that the gallery has, that find their class first; else None."""
    names = sorted(set(queries.labels))
    probe = np.asarray(queries.vectors[:1])
    known = {name for name in names if gallery.search(version, probe, k=1, where={LABEL: name}, versions=among)[0]}
    rows = [row for row, name in enumerate(queries.labels) if name in known]
    if not rows:
        return None
    asked = np.asarray(queries.vectors)[rows]
    if calibrations:
        hits = calibrated_search(gallery, version, asked, calibrations, k=1)
    else:
        hits = gallery.search(version, asked, k=1, versions=among)
    right = [found[0].payload.get(LABEL) == queries.labels[row] for row, found in zip(rows, hits, strict=True)]
    return float(np.mean(right))


def draw_curves(path: Path, predicted: PredictedCurve | None, measured: Sequence[MeasuredPoint] = ()) -> Path:
    """The picture of a backfill: PNG, or by its suffix SVG or PDF."""
    curves, tests = {}, {}
    if predicted is not None:
        planned = f"predicted, order: {predicted.order}"
        curves = {planned: predicted.planned, "predicted, random order": predicted.random}
        tests = {planned: predicted.self_tests}
    if measured:
        shares, accuracies = (np.array(values, np.float64) for values in zip(*measured, strict=True))
        curves["measured on the gallery"] = BackfillCurve(shares, accuracies[None])
    path.parent.mkdir(parents=True, exist_ok=True)
    backfill_curves(curves, path, tests, title="Accuracy while the gallery is re-embedded")
    return path
