"""Backfill of a workspace: plan, predict, re-embed, measure.

A plan is predicted from the vectors that it replaces and that searches find. Vectors that no search reaches, such as
imported ones without an adapter, do not count towards the accuracy before it. Predictions are made on held-out images
that act as gallery and queries, before anything is embedded: the planner's order beside random ones. Measurements are
made on the gallery itself, as far as its items have labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from fixstar.data.image_set import ImageSet
from fixstar.errors import DeploymentMovedError, GateError, InputError, NextStep, UnknownNameError, plural
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
from fixstar.progress import Advance
from fixstar.wording import percent
from fixstar.workspace.backfill.orders import (
    BLIND,
    ORDERS,
    TRIED,
    LabelledQueries,
    OldItems,
    old_items,
    planned_order,
    with_images,
)
from fixstar.workspace.backfill.run import Backfilled, BackfillPlan, BackfillRun, MeasuredPoint, PlanFiles, budget_items
from fixstar.workspace.calibrations import class_folds, search_curve
from fixstar.workspace.checks import last_check
from fixstar.workspace.cluster import RayEmbedder
from fixstar.workspace.held_out import unlearnt_images
from fixstar.workspace.items import LABEL, Embedder, ImageStore, LocalEmbedder
from fixstar.workspace.registry import Registry
from fixstar.workspace.search import Serving, Usage

AUTO = "auto"
SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
_LARGE_LOSS, _FEWEST_LOST = 0.05, 3  # share and number of lost queries that always count as a loss
LOOKED_AT = 5000  # items whose images are looked for, at most: a gallery may hold millions
_MEASUREMENTS = 4  # along the way, after the first
_LOOKUP = 2048  # items that are looked up at a time
_TOO_FEW = "it takes three labelled images of each of two classes, and there are fewer"


@dataclass(frozen=True)
class BackfillOptions:
    """What to re-embed, in which order, how fast and where."""

    budget: str = "10%"  # a share of the items with older vectors, their number ("5000"), or "all"
    order: str = AUTO  # one of ORDERS, or "auto": the one that does best at this budget on labelled images
    rate: float | None = None  # items per second, at most
    data: ImageSet | None = None  # labelled images that no version was trained on; by default those held out
    cluster: str | None = None  # the address of a Ray cluster, or "local"
    workers: int | None = None
    seed: int = 0
    stop: Callable[[], bool] = field(default=lambda: False, compare=False)  # asked between batches
    target: str | None = None  # the version that must be deployed, or nothing is done (DeploymentMovedError)
    anyway: bool = False  # run a plan although it is predicted to lower the accuracy


class Replaced(NamedTuple):
    """What a plan replaces, of the vectors that searches find."""

    old: str | None  # the version of most of them
    share: float  # of all older vectors that searches find
    calibrated: bool  # searches will merge hits of all versions by calibrations
    unpredicted: str | None  # why nothing can be predicted, if so
    blend: float = 1.0  # the alpha of queries by two models for the vectors of ``old``


@dataclass(frozen=True, eq=False)
class PlannedBackfill:
    """A plan, how many items are done, what it will bring, and what that was predicted from (None: unknown)."""

    plan: BackfillPlan
    position: int
    predicted: PredictedCurve | None
    replaced: Replaced | None = None

    @property
    def share(self) -> float:
        """The plan's share of the items with older vectors that searches find."""
        if self.replaced is not None and self.replaced.old is not None:
            return self.replaced.share
        return len(self.plan.ids) / max(1, self.plan.old)

    @property
    def unpredicted(self) -> str | None:
        """Why nothing is predicted although there are labelled images; None if that is not so."""
        return None if self.replaced is None else self.replaced.unpredicted

    @property
    def loss(self) -> str | None:
        """The predicted loss in words, even if it may be chance; None without one, or if part of the plan is done."""
        if self.predicted is None or self.position:
            return None
        now, then = float(self.predicted.planned.accuracy[0]), self.predicted.at(self.share)[0]
        if then >= now:
            return None
        return (
            f"lower the accuracy from {percent(now)} to {percent(then)} of {plural(self.predicted.images[1], 'query')}"
        )

    @property
    def loses(self) -> bool:
        """Whether a significant loss is predicted (``PredictedCurve.loses``), and nothing of the plan is done yet."""
        return self.predicted is not None and self.loss is not None and self.predicted.loses(self.share)

    @property
    def larger_budgets(self) -> list[str]:
        """Larger budgets that are predicted not to lower the accuracy."""
        if self.predicted is None:
            return []
        curve = self.predicted.planned
        kept = [share for share, value in zip(curve.shares, curve.accuracy, strict=True) if value >= curve.accuracy[0]]
        return [f"{100 * share:g}%" if share < 1 else "all" for share in kept if share > self.share]


def require_gain(planned: PlannedBackfill) -> None:
    """Refuse a plan that is predicted to lower the accuracy: the vectors that it replaces are not kept."""
    if not planned.loses:
        return
    larger = planned.larger_budgets
    other = (
        f"A budget of {' or '.join(larger)} is predicted not to lose"
        if larger
        else "No larger budget is predicted to gain"
    )
    raise GateError(
        f"this plan is predicted to {planned.loss}, and the old vectors would not be kept; nothing was embedded. "
        f"{other}",
        *[NextStep("backfill", {"budget": budget}) for budget in larger[:1]],
        NextStep("backfill", {"plan_only": True}, "look at the prediction"),
        NextStep("backfill", {"anyway": True}, "run it anyway"),
    )


def plan_backfill(serving: Serving, options: BackfillOptions, predict: bool = True) -> PlannedBackfill:
    """The unfinished plan if it asks for the same, else a new one; with ``predict``, what it will bring."""
    planner = _Planner(serving, options)
    if (planned := planner.unfinished()) is None:
        planned = planner.new()
        planner.save(planned.plan)
    return planner.with_prediction(planned) if predict else planned


def backfill(
    serving: Serving, options: BackfillOptions, progress: Advance | None = None, judged: str | None = None
) -> Backfilled:
    """Re-embed what the plan says; the same call resumes.

    A new plan with a significant predicted loss is refused, unless ``anyway``, or ``judged`` is its token.
    """
    planner, target = _Planner(serving, options), require_target(serving, options.target)
    unfinished = planner.unfinished()
    planned = planner.new() if unfinished is None else unfinished
    if not options.anyway and not planned.position and planned.plan.token != judged:
        planned = planner.with_prediction(planned)
        require_gain(planned)
    if unfinished is None:
        planner.save(planned.plan)
    measure = _Measurement(serving, planned, planner.measuring_queries())

    def advance(count: int = 1, note: str | None = None) -> None:
        measure(count)
        if progress is not None:
            progress(count, note)

    with serving.registry.using(target), _embedder(serving, options, target) as embedder:
        work = BackfillRun(
            serving.gallery,
            ImageStore(serving.path),
            PlanFiles(serving.path),
            planned.plan,
            serving.deployed,
            lambda: newer_versions(serving.registry, target),
            options.rate,
            options.stop,
            advance,
        )
        done = work.run(embedder)
    return replace(done, measured=tuple(measure.points))


def require_target(serving: Serving, target: str | None) -> str:
    """The deployed version, if it is the one named; None is any."""
    if target not in (None, deployed := serving.deployed()):
        raise DeploymentMovedError(f"{deployed} is deployed now: nothing is re-embedded with {target}")
    return deployed


@contextmanager
def _embedder(serving: Serving, options: BackfillOptions, target: str) -> Iterator[Embedder]:
    encoder = serving.encoder(target)  # makes room for its vectors
    if options.cluster is None:
        yield LocalEmbedder(encoder)
        return
    with RayEmbedder(serving.registry.directory(target).absolute(), options.cluster, options.workers) as embedder:
        yield embedder


class _Planner:
    """Makes the plan that the options ask for. A wrong budget or order is refused before anything is computed."""

    def __init__(self, serving: Serving, options: BackfillOptions) -> None:
        self._serving, self._options, self._files = serving, options, PlanFiles(serving.path)
        self._target = require_target(serving, options.target)
        budget_items(options.budget, 0)
        if options.order not in (AUTO, *ORDERS):
            raise UnknownNameError("order", options.order, (AUTO, *ORDERS))
        self._images = labelled_images(serving, options.data, self._target)

    def unfinished(self) -> PlannedBackfill | None:
        """The plan on disk, if it asks for the same and is not done."""
        plan, options = self._files.plan(), self._options
        if plan is None or (position := self._files.position(plan)) >= len(plan.ids):
            return None
        same = (plan.target, plan.budget) == (self._target, options.budget) and options.order in (plan.order, AUTO)
        return PlannedBackfill(plan, position, None) if same else None

    def new(self) -> PlannedBackfill:
        """A new plan, not saved. "auto" is the order that is best on labelled images, "gain" without any."""
        if self._options.order != AUTO:
            return PlannedBackfill(self._plan(self._options.order), 0, None)
        expected = expected_replaced(self._serving, self._target, self._options.budget)
        curves = {order: self._prediction(order, expected) for order in TRIED}
        known = {order: curve for order, curve in curves.items() if curve is not None}
        if not known:
            return PlannedBackfill(self._plan(TRIED[0]), 0, None)
        best = max(known, key=lambda order: known[order].at(expected.share)[0])
        plan = self._plan(best)
        replaced = _planned_replaced(self._serving, plan)
        return PlannedBackfill(plan, 0, known[best] if replaced.old == expected.old else None, replaced)

    def save(self, plan: BackfillPlan) -> None:
        """Put a plan in the place of the last one."""
        with self._files.exclusive():
            self._files.save(plan)

    def with_prediction(self, planned: PlannedBackfill) -> PlannedBackfill:
        """The plan with what it will bring, if labelled images tell."""
        if planned.predicted is not None or self._images is None or not planned.plan.ids:
            return planned
        replaced = _planned_replaced(self._serving, planned.plan)
        predicted = self._prediction(planned.plan.order, replaced)
        if predicted is None and replaced.unpredicted is None:
            replaced = replaced._replace(unpredicted=_TOO_FEW)
        return replace(planned, predicted=predicted, replaced=replaced)

    def measuring_queries(self) -> LabelledQueries | None:
        """Queries to measure the accuracy with: of images that the planner does not know."""
        return None if self._images is None else self._queries(self._halves()[1])

    def _plan(self, order: str) -> BackfillPlan:
        serving, options = self._serving, self._options
        serving.encoder(self._target)  # makes room for its vectors
        newer, counts = newer_versions(serving.registry, self._target), Usage(serving.path).counts()
        items = old_items(serving.gallery, self._target, newer, counts, order not in BLIND)
        if order == "queried" and not items.counts.any():
            raise InputError(
                "nothing is known about what is found most often: no search was counted so far. A service counts them, "
                "and so does Workspace(..., record_usage=True). Choose another order"
            )
        queries = None
        if order in ("gain", "classes") and self._images is not None:
            queries = self._queries(self._halves()[0])
        rows, most = planned_order(order, items, queries, options.seed), budget_items(options.budget, len(items))
        ids, without = with_images(serving.gallery, ImageStore(serving.path), items, rows, most)
        return BackfillPlan.made(self._target, order, options.budget, len(items), ids, without)

    def _prediction(self, order: str, replaced: Replaced) -> PredictedCurve | None:
        """From the version of most replaced vectors to the target, merged as searches will."""
        if self._images is None or replaced.old is None or replaced.unpredicted is not None:
            return None
        old, new = ((name, self._serving.encoder(name)) for name in (replaced.old, self._target))
        try:
            ways: dict[str, Any] = {"calibrate": replaced.calibrated, "blend": replaced.blend}
            return predicted_curve(old, new, self._images, order, seed=self._options.seed, **ways)
        except InputError:  # too few images of a class
            return None

    def _halves(self) -> tuple[ImageSet, ImageSet]:
        """Images for the planner, and others to measure with: it must not know these."""
        assert self._images is not None
        split = gallery_query_split(self._images.labels, seed=self._options.seed)
        return self._images.take(split.gallery), self._images.take(split.queries)

    def _queries(self, images: ImageSet) -> LabelledQueries:
        vectors = self._serving.encoder(self._target).encode(images.images, form="short")
        return LabelledQueries(vectors, [images.classes[label] for label in images.labels.tolist()])


def labelled_images(serving: Serving, data: ImageSet | None, target: str) -> ImageSet | None:
    """Labelled images to predict and measure with; None without two of one class."""
    preprocessing = serving.encoder(target).preprocessing
    if data is not None:
        images: ImageSet | None = data.load(preprocessing, "skip").images
    else:
        images = unlearnt_images(serving.registry, target, serving.live(), preprocessing).images
    return images if images is not None and max(images.counts().values(), default=0) > 1 else None


class _Measurement:
    """Accuracy of labelled queries on the gallery at a few points of the plan."""

    def __init__(self, serving: Serving, planned: PlannedBackfill, queries: LabelledQueries | None) -> None:
        if planned.replaced is None and queries is not None:
            planned = replace(planned, replaced=_planned_replaced(serving, planned.plan))
        self._serving, self._plan, self._share, self._queries = serving, planned.plan, planned.share, queries
        self._position, self._next = 0, 0.0
        self.points: list[MeasuredPoint] = []

    def __call__(self, count: int) -> None:
        self._position += count
        total = len(self._plan.ids)
        if self._queries is None or not total or self._position < self._next * total:
            return
        self._next = (int(self._position / total * _MEASUREMENTS) + 1) / _MEASUREMENTS
        target, gallery = self._plan.target, self._serving.gallery
        reach, counts = self._serving.reachability.of(target), gallery.count()
        if any(counts.get(name) for name in reach.adapted) or len(self._serving.asking()[1]) > 1:
            return  # searches find these through an adapter or by two models, which this measurement does not use
        calibrations = self._serving.calibrations(target, reach)
        accuracy = gallery_accuracy(gallery, target, self._queries, calibrations, reach.direct)
        if accuracy is not None:
            self.points.append(MeasuredPoint(self._position / total * self._share, accuracy))


# --- what a backfill replaces


def newer_versions(registry: Registry, target: str) -> list[str]:
    """The workspace's versions, retired too, newer than ``target``: a backfill leaves their vectors alone."""
    return [name for name in (*registry.names(), *registry.retired()) if int(name[1:]) > int(target[1:])]


def _older(registry: Registry, target: str, counts: Mapping[str, int]) -> dict[str, int]:
    """Of the counts by version, those of vectors that a backfill to ``target`` may replace."""
    kept = {target, *newer_versions(registry, target)}
    return {name: count for name, count in counts.items() if count and name not in kept}


@dataclass(frozen=True)
class BackfillOutlook:
    """What a backfill to ``version`` finds."""

    version: str
    older: int  # vectors that its budget is a share of
    newer: dict[str, int]  # vectors that are never replaced
    looked_at: int  # of the older items
    without_image: int  # of these: they keep their vectors

    @property
    def could(self) -> int:
        """Vectors that could be re-embedded; an upper bound if not all items were looked at."""
        return self.older - self.without_image


def backfill_outlook(serving: Serving, most: int = LOOKED_AT) -> BackfillOutlook:
    """Look at the gallery: at the images of at most ``most`` items, about as many of every older version."""
    target, counts, images = serving.deployed(), serving.gallery.count(), ImageStore(serving.path)
    newer, older = newer_versions(serving.registry, target), _older(serving.registry, target, counts)
    looked_at = without_image = 0
    for row, name in enumerate(sorted(older, key=lambda name: older[name])):  # small ones leave their share to others
        share = (most - looked_at) // (len(older) - row)
        with closing(cast(Any, serving.gallery.iterate(name))) as items:
            for item in islice(items, share):
                looked_at += 1
                without_image += images.find(item) is None
    kept = {name: count for name, count in counts.items() if count and name in newer}
    return BackfillOutlook(target, sum(older.values()), kept, looked_at, without_image)


def expected_replaced(serving: Serving, target: str, budget: str) -> Replaced:
    """Before there is a plan: as if searches found all that it replaces. Other items rarely have images."""
    counts = serving.gallery.count()
    found = _found_older(serving, target, counts)
    items = budget_items(budget, sum(_older(serving.registry, target, counts).values()))
    return _replaced(serving, target, found, min(1.0, items / max(1, sum(found.values()))))


def _planned_replaced(serving: Serving, plan: BackfillPlan) -> Replaced:
    """By the present versions of the plan's items; finished ones count for the share."""
    versions: Counter[str] = Counter()
    for start in range(0, len(plan.ids), _LOOKUP):
        versions.update(item.version for item in serving.gallery.get(plan.ids[start : start + _LOOKUP]).values())
    found, done = _found_older(serving, plan.target, serving.gallery.count()), versions[plan.target]
    planned = {name: versions[name] for name in found if versions[name]}
    share = (sum(planned.values()) + done) / max(1, sum(found.values()) + done)
    return _replaced(serving, plan.target, planned, share)


def _found_older(serving: Serving, target: str, counts: Mapping[str, int]) -> dict[str, int]:
    """How many older vectors of each version searches of ``target`` find, directly or through an adapter."""
    reach = serving.reachability.of(target)
    found = {*reach.direct, *reach.adapted, *serving.asking()[1]}
    return {name: count for name, count in _older(serving.registry, target, counts).items() if name in found}


def _replaced(serving: Serving, target: str, planned: Mapping[str, int], share: float) -> Replaced:
    old = max(planned, key=lambda name: planned[name], default=None)
    counts, reach, check = serving.gallery.count(), serving.reachability.of(target), last_check(serving.path, target)
    adapted = [name for name in reach.adapted if counts.get(name)]
    move, (_, *blended) = serving.asking()
    searched = {target, *(name for name in reach.direct if counts.get(name)), *blended, *(adapted if blended else ())}
    fitted = move.calibrations if blended else {} if adapted or check is None else check.calibrations
    calibrated = searched <= fitted.keys()
    why = None
    if old is None:
        why = "searches find none of the vectors that it replaces, so nothing is predicted"
    elif old in adapted:
        why = f"vectors of {old} are reached through an adapter, so nothing is predicted"
    elif old in reach.unreachable:
        why = f"vectors of {old} are searched by their own model's queries alone, so nothing is predicted"
    elif old not in serving.registry.names():
        why = f"the weights of {old} are not here, so nothing is predicted"
    return Replaced(old, share, calibrated, why, move.blend[old] if old in blended else 1.0)


# --- what a plan will bring, and what it brought


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
