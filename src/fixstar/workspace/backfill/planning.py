"""What a backfill to the deployed version could re-embed, and what it cannot, and why.

What a backfill replaces of the vectors that searches find: what a prediction of it is made from.

Vectors that no search reaches, such as imported ones without an adapter, have no part in the accuracy before it.

A planned backfill with what it will bring, and the refusal of one that would lose.

Backfill of a workspace: plan, predict, re-embed, measure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fixstar.data.image_set import ImageSet
from fixstar.durable import exclusive
from fixstar.errors import DeploymentMovedError, GateError, InputError, UnknownNameError
from fixstar.evaluation import gallery_query_split
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
from fixstar.workspace.cluster import RayEmbedder
from fixstar.workspace.held_out import unlearnt_images
from fixstar.workspace.items import Embedder, LocalEmbedder
from fixstar.workspace.search import Usage

if TYPE_CHECKING:
    from fixstar.workspace.workspace import Workspace

__all__ = [
    "LOOKED_AT",
    "BackfillOptions",
    "BackfillOutlook",
    "PlannedBackfill",
    "Replaced",
    "adapted_versions",
    "backfill",
    "backfill_outlook",
    "demand_gain",
    "expected_replaced",
    "newer_versions",
    "older_counts",
    "plan_backfill",
    "planned_replaced",
    "required_target",
]

LOOKED_AT = 5000  # items whose images are looked for, at most: a gallery may hold millions


@dataclass(frozen=True)
class BackfillOutlook:
    """What a backfill to ``version`` meets: ``older`` vectors, which its budget is a share of, and ``newer`` ones.

    Newer ones are never replaced. Of ``looked_at`` older items ``without_image`` have no image here, such as imported
    ones: they keep their vectors.
    """

    version: str
    older: int
    newer: dict[str, int]
    looked_at: int
    without_image: int

    @property
    def could(self) -> int:
        """Vectors that could be re-embedded; at most so many where not all items were looked at."""
        return self.older - self.without_image


def backfill_outlook(space: Workspace, most: int = LOOKED_AT) -> BackfillOutlook:
    """Look at the gallery; the images of ``most`` items at most, of every older version about as many."""
    target, counts = space.deployed(), space.gallery.count()
    newer, older = newer_versions(space, target), older_counts(space, target, counts)
    looked_at = without_image = 0
    waiting = sorted(older, key=lambda name: older[name])
    for row, name in enumerate(waiting):  # the smallest first: what it leaves of its share is the others'
        share = (most - looked_at) // (len(waiting) - row)
        with closing(cast(Any, space.gallery.iterate(name))) as items:
            for item in islice(items, share):
                looked_at += 1
                without_image += space.images.find(item) is None
    kept = {name: count for name, count in counts.items() if count and name in newer}
    return BackfillOutlook(target, sum(older.values()), kept, looked_at, without_image)


def newer_versions(space: Workspace, target: str) -> list[str]:
    """The versions whose vectors a backfill to ``target`` leaves as they are: of the registry, retired ones too.

    Vectors under a name that no version here has had, whatever it looks like, are foreign, and older than all.
    """
    return [name for name in (*space.registry.names(), *space.registry.retired()) if int(name[1:]) > int(target[1:])]


def older_counts(space: Workspace, target: str, counts: dict[str, int]) -> dict[str, int]:
    """Of the counts by version, those of vectors that a backfill to ``target`` may replace."""
    left = {target, *newer_versions(space, target)}
    return {name: count for name, count in counts.items() if count and name not in left}


_LOOKUP = 2048  # items that are looked up at a time


class Replaced(NamedTuple):
    """``old`` is the version that most vectors to be replaced are of, of those that searches find; None without any.

    ``share`` is their share of all older vectors that searches find. ``calibrated`` says that searches will merge hits
    of all versions by calibrations. ``unpredicted`` says in words why nothing can be predicted, where that is so.
    """

    old: str | None
    share: float
    calibrated: bool
    unpredicted: str | None


def planned_replaced(space: Workspace, plan: BackfillPlan) -> Replaced:
    """By the versions that the items of a plan are of now; those that are done count for the share."""
    versions: Counter[str] = Counter()
    for start in range(0, len(plan.ids), _LOOKUP):
        versions.update(item.version for item in space.gallery.get(plan.ids[start : start + _LOOKUP]).values())
    older, done = _found_older(space, plan.target), versions[plan.target]
    planned = {name: versions[name] for name in older if versions[name]}
    share = (sum(planned.values()) + done) / max(1, sum(older.values()) + done)
    return _replaced(space, plan.target, planned, share)


def expected_replaced(space: Workspace, target: str, budget: str) -> Replaced:
    """Before there is a plan: as if all that it replaces were found by searches. Other items seldom have images."""
    older = _found_older(space, target)
    items = budget_items(budget, sum(older_counts(space, target, space.gallery.count()).values()))
    return _replaced(space, target, older, min(1.0, items / max(1, sum(older.values()))))


def _replaced(space: Workspace, target: str, planned: Mapping[str, int], share: float) -> Replaced:
    old = max(planned, key=lambda name: planned[name], default=None)
    adapted, checked = adapted_versions(space, target), space.last_check(target)
    known = set() if checked is None else checked.calibrations.keys()
    calibrated = not adapted and {*_found(space, target), target} <= known
    why = None
    if old is None:
        why = "searches find none of the vectors that it replaces, so nothing is predicted"
    elif old in adapted:
        why = f"vectors of {old} are reached through an adapter, so nothing is predicted"
    elif old not in space.versions():
        why = f"the weights of {old} are not here, so nothing is predicted"
    return Replaced(old, share, calibrated, why)


def adapted_versions(space: Workspace, target: str) -> set[str]:
    """The versions with vectors that searches of ``target`` reach through an adapter."""
    reached = space.adapters.reached(target) - {target}
    return {name for name, count in space.gallery.count().items() if count and name in reached}


def _found(space: Workspace, target: str) -> dict[str, int]:
    """How many vectors of each version searches of ``target`` reach, as they are or through an adapter."""
    reached = {*space.serving.met(target), *adapted_versions(space, target)}
    return {name: count for name, count in space.gallery.count().items() if count and name in reached}


def _found_older(space: Workspace, target: str) -> dict[str, int]:
    return older_counts(space, target, _found(space, target))


@dataclass(frozen=True, eq=False)
class PlannedBackfill:
    """A plan, how many of its items have been dealt with, and what it will bring; None where no labels tell.

    ``replaced`` is what that was predicted from, or could not be; None where nobody looked.
    """

    plan: BackfillPlan
    position: int
    predicted: PredictedCurve | None
    replaced: Replaced | None = None

    @property
    def share(self) -> float:
        """The plan's share of the items with older vectors; where some are not found by searches, of the others."""
        if self.replaced is not None and self.replaced.old is not None:
            return self.replaced.share
        return len(self.plan.ids) / max(1, self.plan.old)

    @property
    def unpredicted(self) -> str | None:
        """Why nothing is predicted though there are labelled images, in words; None where that is not so."""
        return None if self.replaced is None else self.replaced.unpredicted

    @property
    def loss(self) -> str | None:
        """The loss that is predicted, be it by chance, in words; None where there is none, or part of it was done."""
        if self.predicted is None or self.position:
            return None
        now, then = float(self.predicted.planned.accuracy[0]), self.predicted.at(self.share)[0]
        queries = self.predicted.images[1]
        return f"lower the accuracy from {now:.1%} to {then:.1%} of {queries:,} queries" if then < now else None

    @property
    def loses(self) -> bool:
        """Whether it is predicted to lose in earnest (``PredictedCurve.loses``), and nothing of it was done yet."""
        return self.predicted is not None and self.loss is not None and self.predicted.loses(self.share)

    @property
    def larger_budgets(self) -> list[str]:
        """Larger budgets that are predicted not to lower the accuracy."""
        if self.predicted is None:
            return []
        curve = self.predicted.planned
        kept = [share for share, value in zip(curve.shares, curve.accuracy, strict=True) if value >= curve.accuracy[0]]
        return [f"{100 * share:g}%" if share < 1 else "all" for share in kept if share > self.share]


def demand_gain(planned: PlannedBackfill) -> None:
    """Refuse a plan that would lower the accuracy: vectors that it replaces are not kept."""
    if not planned.loses:
        return
    larger = ", ".join(planned.larger_budgets)
    take = f"with a larger --budget ({larger})" if larger else "(no larger budget is predicted to gain, either)"
    raise GateError(
        f"this plan is predicted to {planned.loss}, and the old vectors would not be kept; "
        f"nothing was embedded. Leave all as it is, or type the same command {take}, with --plan-only to look, or with "
        "--anyway to do it all the same (in Python BackfillOptions(anyway=True))"
    )


AUTO = "auto"
CHECKPOINTS = 4  # measurements along the way, after the first
_TOO_FEW = "it takes three labelled images of each of two classes, and there are fewer. Give some with --data"


@dataclass(frozen=True)
class BackfillOptions:
    """What to re-embed, in which order, how fast and where.

    ``budget`` is a share of the items with older vectors ("10%"), their number ("5000") or "all"; ``order`` one of
    ``ORDERS``, or "auto": whichever does best at this budget on labelled images; ``rate`` items a second at most.
    ``data`` are labelled images that no version was trained on; without them those are taken that were held out at
    training time. ``cluster`` is the address of a Ray cluster, or "local". ``stop`` is asked between batches.
    ``target`` is the version that must be deployed, if that matters: else nothing is done (``DeploymentMovedError``).
    ``anyway`` lets ``backfill`` run a plan though it is predicted to lower the accuracy.
    """

    budget: str = "10%"
    order: str = AUTO
    rate: float | None = None
    data: ImageSet | None = None
    cluster: str | None = None
    workers: int | None = None
    seed: int = 0
    stop: Callable[[], bool] = field(default=lambda: False, compare=False)
    target: str | None = None
    anyway: bool = False


def plan_backfill(space: Workspace, options: BackfillOptions, predict: bool = True) -> PlannedBackfill:
    """The plan under way, if it asks for the same and is not done; else a new one in its place.

    With ``predict``, what it will bring, where labelled images tell. Whoever lets it run may ask ``demand_gain`` first.
    """
    target = _checked(space, options)
    held = _held_out(space, options, target)
    planned = _under_way(space, options, target)
    if planned is None:
        planned = _made(space, options, target, held)
        _save(PlanFiles(space.path), planned.plan)
    return _foretold(space, planned, options, held) if predict else planned


def _checked(space: Workspace, options: BackfillOptions) -> str:
    """The version to re-embed with. A wrong budget or order is told before anything is computed."""
    target = required_target(space, options.target)
    budget_items(options.budget, 0)
    if options.order not in (AUTO, *ORDERS):
        raise UnknownNameError("order", options.order, (AUTO, *ORDERS))
    return target


def _under_way(space: Workspace, options: BackfillOptions, target: str) -> PlannedBackfill | None:
    """The plan on disk, if it asks for the same and is not done."""
    files = PlanFiles(space.path)
    plan = files.plan()
    if plan is None or files.position(plan) >= len(plan.ids) or not _is_asked_for(plan, target, options):
        return None
    return PlannedBackfill(plan, files.position(plan), None)


def _made(space: Workspace, options: BackfillOptions, target: str, held: ImageSet | None) -> PlannedBackfill:
    """A new plan, not saved yet; with what it will bring where that was needed to choose the order."""
    if options.order != AUTO:
        return PlannedBackfill(_new_plan(space, options, target, held), 0, None)
    expected = expected_replaced(space, target, options.budget)
    options, predicted = _best_order(space, options, target, held, expected)
    plan = _new_plan(space, options, target, held)
    if predicted is None:
        return PlannedBackfill(plan, 0, None)
    replaced = planned_replaced(space, plan)
    return PlannedBackfill(plan, 0, predicted if replaced.old == expected.old else None, replaced)


def _foretold(
    space: Workspace, planned: PlannedBackfill, options: BackfillOptions, held: ImageSet | None
) -> PlannedBackfill:
    """The plan with what it will bring, where labelled images tell."""
    if planned.predicted is not None or held is None or not planned.plan.ids:
        return planned
    options, replaced = replace(options, order=planned.plan.order), planned_replaced(space, planned.plan)
    predicted = _prediction(space, options, planned.plan.target, held, replaced)
    if predicted is None and replaced.unpredicted is None:
        replaced = replaced._replace(unpredicted=_TOO_FEW)
    return replace(planned, predicted=predicted, replaced=replaced)


def required_target(space: Workspace, target: str | None) -> str:
    """The version that is deployed, if it is the one named; None is any."""
    if target not in (None, deployed := space.deployed()):
        raise DeploymentMovedError(f"{deployed} is deployed now: nothing is re-embedded with {target}")
    return deployed


def _is_asked_for(plan: BackfillPlan, target: str, options: BackfillOptions) -> bool:
    return (plan.target, plan.budget) == (target, options.budget) and options.order in (plan.order, AUTO)


def _best_order(
    space: Workspace, options: BackfillOptions, target: str, held: ImageSet | None, expected: Replaced
) -> tuple[BackfillOptions, PredictedCurve | None]:
    """The order that does best on held-out images at the share that is expected; "gain" where there are none."""
    tried = [replace(options, order=order) for order in TRIED]
    curves = [_prediction(space, way, target, held, expected) for way in tried] if held is not None else []
    known = [(way, curve) for way, curve in zip(tried, curves, strict=False) if curve is not None]
    return max(known, key=lambda pair: pair[1].at(expected.share)[0], default=(tried[0], None))


def backfill(
    space: Workspace, options: BackfillOptions, progress: Advance | None = None, judged: str | None = None
) -> Backfilled:
    """Re-embed what the plan says; the same call goes on after an interruption. See ``run_backfill``.

    A plan of which nothing was done yet is refused where it is predicted to lose, unless ``anyway``. One that was made
    before may have been refused then. ``judged`` is the token of a plan that the caller has judged: it is run.
    """
    target = _checked(space, options)
    held = _held_out(space, options, target)
    under_way = _under_way(space, options, target)
    planned = _made(space, options, target, held) if under_way is None else under_way
    plan = planned.plan
    if not options.anyway and not planned.position and plan.token != judged:
        planned = _foretold(space, planned, options, held)
        demand_gain(planned)
    if under_way is None:
        _save(PlanFiles(space.path), plan)
    measure = _Measurement(space, planned, None if held is None else _queries(space, target, _halves(held, options)[1]))

    def advance(count: int = 1, note: str | None = None) -> None:
        measure(count)
        if progress is not None:
            progress(count, note)

    with _embedder(space, options, target) as embedder:
        done = run_backfill(
            space.gallery,
            space.images,
            PlanFiles(space.path),
            plan,
            embedder,
            space.deployed,
            lambda: newer_versions(space, target),
            options.rate,
            options.stop,
            advance,
        )
    return replace(done, measured=tuple(measure.points))


def _save(files: PlanFiles, plan: BackfillPlan) -> None:
    try:
        with exclusive(files.directory):
            files.save(plan)
    except BlockingIOError:
        raise InputError(
            f"another process is working on a backfill in {files.directory}; wait for it, or stop it first"
        ) from None


class _Measurement:
    """Accuracy of labelled queries on the gallery at a few points of the plan."""

    def __init__(self, space: Workspace, planned: PlannedBackfill, queries: LabelledQueries | None) -> None:
        if planned.replaced is None and queries is not None:
            planned = replace(planned, replaced=planned_replaced(space, planned.plan))
        self._space, self._plan, self._share, self._queries = space, planned.plan, planned.share, queries
        self._position, self._next = 0, 0.0
        self.points: list[MeasuredPoint] = []

    def __call__(self, count: int) -> None:
        self._position += count
        total = len(self._plan.ids)
        if self._queries is None or not total or self._position < self._next * total:
            return
        self._next = (int(self._position / total * CHECKPOINTS) + 1) / CHECKPOINTS
        target, serving = self._plan.target, self._space.serving
        if adapted_versions(self._space, target):
            return  # searches find their vectors through an adapter, which this does not know
        ways = serving.calibrations(target), serving.met(target)
        accuracy = gallery_accuracy(serving.gallery, target, self._queries, *ways)
        if accuracy is not None:
            self.points.append(MeasuredPoint(self._position / total * self._share, accuracy))


@contextmanager
def _embedder(space: Workspace, options: BackfillOptions, target: str) -> Iterator[Embedder]:
    encoder = space.serving.encoder(target)  # the gallery has room for its vectors then
    if options.cluster is None:
        yield LocalEmbedder(encoder)
        return
    with RayEmbedder(space.registry.directory(target).absolute(), options.cluster, options.workers) as embedder:
        yield embedder


def _new_plan(space: Workspace, options: BackfillOptions, target: str, held: ImageSet | None) -> BackfillPlan:
    space.serving.encoder(target)
    looked_at = options.order not in BLIND
    items = old_items(space.gallery, target, newer_versions(space, target), Usage(space.path).counts(), looked_at)
    if options.order == "queried" and not items.counts.any():
        raise InputError(
            "nothing is known about what is found most often: no search was counted so far (fixstar serve counts them, "
            "and Workspace(..., record_usage=True) in Python). Take another order"
        )
    queries = None
    if options.order in ("gain", "classes") and held is not None:
        queries = _queries(space, target, _halves(held, options)[0])
    rows, most = planned_order(options.order, items, queries, options.seed), budget_items(options.budget, len(items))
    ids, without = with_images(space.gallery, space.images, items, rows, most)
    return BackfillPlan.made(target, options.order, options.budget, len(items), ids, without)


def _held_out(space: Workspace, options: BackfillOptions, target: str) -> ImageSet | None:
    """Labelled images to ask with; None where there are none, or of no class two."""
    preprocessing = space.serving.encoder(target).preprocessing
    if options.data is not None:
        held: ImageSet | None = options.data.load(preprocessing, "skip").images
    else:
        held = unlearnt_images(space.registry, target, space.live(), preprocessing).images
    return held if held is not None and max(held.counts().values(), default=0) > 1 else None


def _halves(held: ImageSet, options: BackfillOptions) -> tuple[ImageSet, ImageSet]:
    """Images for the planner, and others to measure with: it must not know these."""
    split = gallery_query_split(held.labels, seed=options.seed)
    return held.take(split.gallery), held.take(split.queries)


def _queries(space: Workspace, target: str, images: ImageSet) -> LabelledQueries:
    vectors = space.serving.encoder(target).encode(images.images, form="short")
    return LabelledQueries(vectors, [images.classes[label] for label in images.labels.tolist()])


def _prediction(
    space: Workspace, options: BackfillOptions, target: str, held: ImageSet, replaced: Replaced
) -> PredictedCurve | None:
    """From the older version that most of the vectors replaced are of, as searches will merge."""
    if replaced.old is None or replaced.unpredicted is not None:
        return None
    try:
        return predicted_curve(
            (replaced.old, space.serving.encoder(replaced.old)),
            (target, space.serving.encoder(target)),
            held,
            options.order,
            seed=options.seed,
            calibrate=replaced.calibrated,
        )
    except InputError:  # too few images of a class
        return None
