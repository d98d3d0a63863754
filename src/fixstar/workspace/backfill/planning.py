"""Backfill of a workspace: plan, predict, re-embed, measure.

A plan is predicted from the vectors that it replaces and that searches find. Vectors that no search reaches, such as
imported ones without an adapter, do not count towards the accuracy before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, cast

from fixstar.data.image_set import ImageSet
from fixstar.errors import DeploymentMovedError, GateError, InputError, NextStep, UnknownNameError, plural
from fixstar.evaluation import gallery_query_split
from fixstar.evaluation.report import percent
from fixstar.progress import Advance
from fixstar.workspace.backfill.orders import (
    BLIND,
    ORDERS,
    TRIED,
    LabelledQueries,
    old_items,
    planned_order,
    with_images,
)
from fixstar.workspace.backfill.prediction import MeasuredPoint, PredictedCurve, gallery_accuracy, predicted_curve
from fixstar.workspace.backfill.run import Backfilled, BackfillPlan, PlanFiles, budget_items, run_backfill
from fixstar.workspace.checks import last_check
from fixstar.workspace.cluster import RayEmbedder
from fixstar.workspace.held_out import unlearnt_images
from fixstar.workspace.items import Embedder, ImageStore, LocalEmbedder
from fixstar.workspace.registry import Registry
from fixstar.workspace.search import Serving, Usage

AUTO = "auto"
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
    """Re-embed what the plan says; the same call resumes. See ``run_backfill``.

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
        done = run_backfill(
            serving.gallery,
            ImageStore(serving.path),
            PlanFiles(serving.path),
            planned.plan,
            embedder,
            serving.deployed,
            lambda: newer_versions(serving.registry, target),
            options.rate,
            options.stop,
            advance,
        )
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
        calibrations = self._serving.calibrations(target)
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
