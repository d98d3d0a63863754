"""Backfill of a workspace: plan, predict, re-embed, measure.

A prediction covers the vectors that the plan replaces and that searches can find. Vectors that no search reaches do not
count towards the accuracy before the backfill. Predictions are made before anything is embedded. They compare the
planner's order with random orders, on held-out images that act as gallery and queries, or on labelled items if the old
model is not available. Measurements use the gallery itself, where its items have labels.

Every re-embedded item gives a pair: its old vector and its new one. After a run the translation is fitted again on
these pairs. The new fit replaces the deployed translation if it finds more of the held-out pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from fixstar.data.image_set import ImageSet
from fixstar.errors import (
    DeploymentMovedError,
    FixstarError,
    GateError,
    InputError,
    NextStep,
    UnknownNameError,
    plural,
)
from fixstar.evaluation import (
    BackfillCurve,
    Split,
    VersionFeatures,
    backfill_curves,
    cross_test,
    gallery_query_split,
    paired_bootstrap,
)
from fixstar.evaluation.features import version_features
from fixstar.gallery import Item
from fixstar.geometry import carry, short_basis, unit
from fixstar.images import Preprocessing
from fixstar.models import Encoder
from fixstar.progress import Advance
from fixstar.translation import Translation, translated
from fixstar.translation.calibrate import class_folds, search_curve
from fixstar.translation.fit import fit_translations
from fixstar.translation.score import translated_pair
from fixstar.versions import version_number
from fixstar.wording import percent
from fixstar.workspace.backfill.orders import (
    BLIND,
    ORDERS,
    TRIED,
    LabelledQueries,
    OldItems,
    old_items,
    planned_order,
    uncertainty_of,
    with_images,
)
from fixstar.workspace.backfill.run import (
    Backfilled,
    BackfillPlan,
    BackfillRun,
    MeasuredPoint,
    PlanFiles,
    budget_items,
)
from fixstar.workspace.checks import HELD_OUT_WORDS, LastChecks
from fixstar.workspace.cluster import RayEmbedder
from fixstar.workspace.held_out import named_images, unlearnt_images
from fixstar.workspace.items import LABEL, Embedder, ImageStore, LocalEmbedder, text_of
from fixstar.workspace.options import AUTO, SAMPLE, BackfillOptions
from fixstar.workspace.pairs import Sample, from_items, judges
from fixstar.workspace.registry import Registry
from fixstar.workspace.search import Serving
from fixstar.workspace.translations import CHOSEN
from fixstar.workspace.usage import Usage

SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
_LARGE_LOSS = 0.05  # share of lost queries that always counts as a loss
_FEWEST_LOST = 3  # number of lost queries that always counts as a loss
LOOKED_AT = 5000  # maximum number of items whose images are looked for: a gallery may hold millions
_MEASUREMENTS = 4  # during a run, after the first one
LEAST_REFITTED = 200  # minimum number of pairs to fit a translation again
MOST_REFITTED = 20_000
_LOOKUP = 2048  # items per lookup
_PRICED = 500  # items whose text lengths estimate the price of one item
_CHARACTERS_PER_TOKEN = 3.5  # of English; rather overestimates the number of tokens
_TOO_FEW = "a prediction needs at least two classes with three labelled images each"


class Replaced(NamedTuple):
    """The vectors that a plan replaces, as far as searches find them."""

    old: str | None  # the most frequent version among them
    share: float  # as a fraction of all older vectors that searches find
    calibrated: bool  # whether searches will rank hits of all versions by calibrations
    unpredicted: str | None  # the reason if nothing can be predicted


@dataclass(frozen=True, eq=False)
class PlannedBackfill:
    """A plan, how many of its items are done, and its prediction (None: unknown).

    ``measured_on`` describes the labelled images, like ``Check.images``.
    """

    plan: BackfillPlan
    position: int
    predicted: PredictedCurve | None
    replaced: Replaced | None = None
    measured_on: str = ""

    @property
    def share(self) -> float:
        """The plan's share of the items with older vectors that searches find."""
        if self.replaced is not None and self.replaced.old is not None:
            return self.replaced.share
        return len(self.plan.ids) / max(1, self.plan.old)

    @property
    def unpredicted(self) -> str | None:
        """Why there is no prediction in spite of labelled images; None if not applicable."""
        if self.replaced is None:
            return None
        return self.replaced.unpredicted

    @property
    def loss(self) -> str | None:
        """The predicted loss in words, significant or not; None without a loss, or if part of the plan is done."""
        if self.predicted is None or self.position:
            return None
        now = float(self.predicted.planned.accuracy[0])
        then = self.predicted.at(self.share)[0]
        if then >= now:
            return None
        queries = plural(self.predicted.images[1], "query")
        return f"lower the accuracy from {percent(now)} to {percent(then)} of {queries}"

    @property
    def loses(self) -> bool:
        """Whether a significant loss is predicted (``PredictedCurve.loses``), and the plan has not been started."""
        return (
            self.predicted is not None
            and self.loss is not None
            and self.predicted.loses(self.share)
        )

    @property
    def larger_budgets(self) -> list[str]:
        """Larger budgets without a predicted loss of accuracy."""
        if self.predicted is None:
            return []
        curve = self.predicted.planned
        kept = [
            share
            for share, value in zip(curve.shares, curve.accuracy, strict=True)
            if value >= curve.accuracy[0]
        ]
        return [f"{100 * share:g}%" if share < 1 else "all" for share in kept if share > self.share]


def require_gain(planned: PlannedBackfill) -> None:
    """Refuse a plan with a predicted loss of accuracy: the vectors that it replaces are not kept."""
    if not planned.loses:
        return
    larger = planned.larger_budgets
    other = "No larger budget is predicted to gain"
    if larger:
        other = f"A budget of {' or '.join(larger)} is predicted not to lose"
    raise GateError(
        f"this plan is predicted to {planned.loss}, and the old vectors would not be kept; nothing was embedded. "
        f"{other}",
        *[NextStep("backfill", {"budget": budget}) for budget in larger[:1]],
        NextStep("backfill", {"plan_only": True}, "look at the prediction"),
        NextStep("backfill", {"anyway": True}, "run it anyway"),
    )


def plan_backfill(
    serving: Serving, options: BackfillOptions, predict: bool = True
) -> PlannedBackfill:
    """The unfinished plan if it has the same options, else a new one; with a prediction if ``predict``."""
    planner = _Planner(serving, options)
    if (planned := planner.unfinished()) is None:
        planned = planner.new()
        planner.save(planned.plan)
    if predict:
        planned = planner.with_prediction(planned)
    return replace(planned, measured_on=planner.measured_on())


def backfill(
    serving: Serving,
    options: BackfillOptions,
    progress: Advance | None = None,
    judged: str | None = None,
) -> Backfilled:
    """Re-embed the items of the plan; the same call resumes after an interruption.

    A new plan with a significant predicted loss is refused, unless ``anyway``, or ``judged`` is its token.
    """
    planner = _Planner(serving, options)
    target = require_target(serving, options.target)
    unfinished = planner.unfinished()
    planned = planner.new() if unfinished is None else unfinished
    if not options.anyway and not planned.position and planned.plan.token != judged:
        planned = planner.with_prediction(planned)
        require_gain(planned)
    if unfinished is None:
        planner.save(planned.plan)
    measure = _Measurement(serving, planned, planner.measuring_images())
    del planner  # it holds the old items, which may be millions
    refit = _Refit(serving, target, options.seed)

    def advance(count: int = 1, note: str | None = None) -> None:
        measure(count)
        if progress is not None:
            progress(count, note)

    with serving.registry.using(target), _embedder(serving, options, target) as embedder:
        work = BackfillRun(
            gallery=serving.gallery,
            images=ImageStore(serving.path, serving.registry.reads()),
            files=PlanFiles(serving.path),
            plan=planned.plan,
            deployed=serving.deployed,
            newer=lambda: newer_versions(serving.registry, target),
            rate=options.rate,
            stop=options.stop,
            progress=advance,
            made=refit.take,
        )
        done = work.run(embedder)
    return replace(done, measured=tuple(measure.points), refitted=refit.finish())


def require_target(serving: Serving, target: str | None) -> str:
    """The deployed version; raises unless it is ``target``. None accepts any version."""
    deployed = serving.deployed()
    if target is not None and target != deployed:
        raise DeploymentMovedError(
            f"{deployed} is deployed now: nothing is re-embedded with {target}"
        )
    return deployed


@contextmanager
def _embedder(serving: Serving, options: BackfillOptions, target: str) -> Iterator[Embedder]:
    encoder = serving.encoder(target)  # registers the version in the gallery
    if options.cluster is None:
        yield LocalEmbedder(encoder)
        return
    with RayEmbedder(
        serving.registry.directory(target).absolute(), options.cluster, options.workers
    ) as embedder:
        yield embedder


def item_cost(serving: Serving, target: str) -> float | None:
    """The price of embedding one item, estimated from a sample of older texts; None if the version has no price."""
    price = (
        serving.registry.card(target)["backbone"].get("options", {}).get("price")
    )  # asks no server
    if price is None:
        return None
    older = _older(serving.registry, target, serving.gallery.count())
    lengths: list[int] = []
    for name in older:
        with closing(cast(Any, serving.gallery.iterate(name))) as items:
            texts = map(text_of, islice(items, _PRICED // len(older)))
            lengths += [len(text) for text in texts if text is not None]
    tokens = max(1.0, sum(lengths) / max(1, len(lengths)) / _CHARACTERS_PER_TOKEN)
    return float(tokens * price / 1e6)


class _Planner:
    """Makes the plan that the options describe. An invalid budget or order is refused before any computation."""

    def __init__(self, serving: Serving, options: BackfillOptions) -> None:
        self._serving = serving
        self._options = options
        self._files = PlanFiles(serving.path)
        self._target = require_target(serving, options.target)
        self._cost = item_cost(serving, self._target)
        budget_items(options.budget, 0, self._cost)
        if options.order not in (AUTO, *ORDERS):
            raise UnknownNameError("order", options.order, (AUTO, *ORDERS))
        self._images = labelled_images(serving, options.data, self._target)
        self._originals = ImageStore(serving.path, serving.registry.reads())
        self._samples: dict[str, Sample] = {}

    def unfinished(self) -> PlannedBackfill | None:
        """The plan on disk, if it has the same options and is not finished."""
        plan = self._files.plan()
        options = self._options
        if plan is None or (position := self._files.position(plan)) >= len(plan.ids):
            return None
        same = (plan.target, plan.budget) == (self._target, options.budget) and options.order in (
            plan.order,
            AUTO,
        )
        if same:
            return PlannedBackfill(plan, position, None)
        return None

    def new(self) -> PlannedBackfill:
        """A new plan, not saved. "auto" takes the best order on labelled images, or "gain" without them."""
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
        predicted = None
        if replaced.old == expected.old:
            predicted = known[best]
        return PlannedBackfill(plan=plan, position=0, predicted=predicted, replaced=replaced)

    def save(self, plan: BackfillPlan) -> None:
        """Replace the current plan."""
        with self._files.exclusive():
            self._files.save(plan)

    def with_prediction(self, planned: PlannedBackfill) -> PlannedBackfill:
        """The plan with a prediction, if there are enough labelled images."""
        if planned.predicted is not None or not planned.plan.ids:
            return planned
        replaced = _planned_replaced(self._serving, planned.plan)
        predicted = self._prediction(planned.plan.order, replaced)
        if predicted is None and replaced.unpredicted is None and self._images is not None:
            replaced = replaced._replace(unpredicted=_TOO_FEW)
        return replace(planned, predicted=predicted, replaced=replaced)

    def measured_on(self) -> str:
        """The labelled images of the prediction, in words."""
        if self._images is None:
            return "labelled items of the gallery"
        if (
            self._options.data is not None
            or checked_images(self._serving, self._target) is not None
        ):
            return self._images.name
        return HELD_OUT_WORDS

    def measuring_images(self) -> ImageSet | None:
        """Labelled images for measuring the accuracy. The planner does not see them."""
        return None if self._images is None else self._halves()[1]

    def _plan(self, order: str) -> BackfillPlan:
        options = self._options
        items = self._items
        if order == "queried" and not items.counts.any():
            raise InputError(
                "no search was counted so far, and this order needs hit counts. A service counts hits, and so does "
                "Workspace(..., record_usage=True). Choose another order"
            )
        queries = None
        if order in ("gain", "classes") and self._images is not None:
            queries = self._queries(self._halves()[0])
        rows = planned_order(order, items=items, queries=queries, seed=options.seed)
        most = budget_items(options.budget, len(items), self._cost)
        chosen, without = with_images(self._originals, items=items, order=rows, most=most)
        return BackfillPlan.made(
            target=self._target,
            order=order,
            budget=options.budget,
            old=len(items),
            ids=[items.ids[row] for row in chosen],
            without_image=without,
            versions=dict(Counter(items.versions[age] for age in items.ages[chosen].tolist())),
        )

    @cached_property
    def _items(self) -> OldItems:
        """The items with older vectors, read once for the plan and its prediction."""
        serving = self._serving
        serving.encoder(self._target)  # registers the version in the gallery
        return old_items(
            serving.gallery,
            images=self._originals,
            target=self._target,
            ways=serving.translations.of(self._target),
            newer=newer_versions(serving.registry, self._target),
            usage=Usage(serving.path).counts(),
            vectors=self._options.order not in BLIND,
        )

    def _prediction(self, order: str, replaced: Replaced) -> PredictedCurve | None:
        """From the most frequent replaced version to the target, ranked like future searches."""
        if replaced.old is None or replaced.unpredicted is not None:
            return None
        serving = self._serving
        way = serving.translations.of(self._target)[replaced.old]
        try:
            if way.source in serving.registry.names():
                if self._images is None:
                    return None
                thirds = of_images(
                    serving.encoder(way.source),
                    new=serving.encoder(self._target),
                    images=self._images,
                    seed=self._seed,
                )
            else:
                thirds = of_items(
                    self._judging(way.source), old=way.source, new=self._target, seed=self._seed
                )
            return predicted_curve(
                thirds, way, order, seed=self._seed, calibrate=replaced.calibrated
            )
        except InputError:  # too few images per class
            return None

    @property
    def _seed(self) -> int:
        return self._options.seed

    def _judging(self, source: str) -> Sample:
        """Labelled items embedded by both versions, which no translation was fitted on."""
        if source not in self._samples:
            gallery = self._serving.gallery
            names = self._judging_ids(source)
            items: list[Item] = []
            for start in range(0, len(names), _LOOKUP):
                items += gallery.get(names[start : start + _LOOKUP]).values()
            still = [item for item in items if item.version == source]
            self._samples[source] = from_items(self._serving, source, self._target, still)
        return self._samples[source]

    def _judging_ids(self, source: str) -> list[str]:
        items = self._items
        age = items.versions.index(source)
        wanted = [
            row
            for row in np.flatnonzero(items.ages == age).tolist()
            if items.labels[row] and judges(items.ids[row])
        ]
        drawn = np.random.default_rng(self._seed).permutation(np.array(wanted, np.int64))
        rows, _ = with_images(self._originals, items=items, order=drawn, most=SAMPLE)
        return [items.ids[row] for row in rows]

    def _halves(self) -> tuple[ImageSet, ImageSet]:
        """Images for the planner, and others for measuring, which it must not see."""
        assert self._images is not None
        split = gallery_query_split(self._images.labels, seed=self._options.seed)
        return self._images.take(split.gallery), self._images.take(split.queries)

    def _queries(self, images: ImageSet) -> LabelledQueries:
        vectors = self._serving.encoder(self._target).encode(
            images.images, form="short", role="query"
        )
        return LabelledQueries(vectors, [images.classes[label] for label in images.labels.tolist()])


def labelled_images(serving: Serving, data: ImageSet | None, target: str) -> ImageSet | None:
    """Labelled images for predictions and measurements; None unless a class has two.

    Without ``data``: the named images that judged the version, else the images held out from training.
    """
    inputs = serving.encoder(target).inputs
    images: ImageSet | None = None
    if data is None:
        data = checked_images(serving, target)
    if data is not None:
        images = data.load(inputs, "skip").images
    elif isinstance(inputs, Preprocessing):  # nothing is trained on texts, so nothing is held out
        images = unlearnt_images(
            serving.registry, version=target, searched=serving.live(), preprocessing=inputs
        ).images
    if images is not None and max(images.counts().values(), default=0) > 1:
        return images
    return None


def checked_images(serving: Serving, target: str) -> ImageSet | None:
    """The named images that the version's check used; None if it used others, or if they have changed."""
    check = LastChecks(serving.path).of(target)
    if check is None or check.data.get("source") != "named":
        return None
    try:
        return named_images(serving.path, check.images)
    except FixstarError:
        return None


class _Measurement:
    """Accuracy of labelled queries on the gallery at a few points of the plan."""

    def __init__(self, serving: Serving, planned: PlannedBackfill, images: ImageSet | None) -> None:
        if planned.replaced is None and images is not None:
            planned = replace(planned, replaced=_planned_replaced(serving, planned.plan))
        self._serving = serving
        self._plan = planned.plan
        self._share = planned.share
        self._images = images
        self._vectors: dict[str, Any] = {}
        self._position = 0
        self._next = 0.0
        self.points: list[MeasuredPoint] = []

    def __call__(self, count: int) -> None:
        self._position += count
        total = len(self._plan.ids)
        if self._images is None or not total or self._position < self._next * total:
            return
        self._next = (int(self._position / total * _MEASUREMENTS) + 1) / _MEASUREMENTS
        accuracy = gallery_accuracy(
            self._serving, version=self._plan.target, images=self._images, made=self._vectors
        )
        if accuracy is not None:
            self.points.append(MeasuredPoint(self._position / total * self._share, accuracy))


class _Refit:
    """Refits the deployed translations on the pairs that a backfill creates."""

    def __init__(self, serving: Serving, target: str, seed: int) -> None:
        self._serving = serving
        self._target = target
        self._seed = seed
        self._move = serving.rollout.current_move()
        self._old: dict[str, list[Any]] = {}
        self._new: dict[str, list[Any]] = {}

    def take(self, items: Sequence[Item], vectors: Any) -> None:
        """Remember some pairs of each version."""
        for item, vector in zip(items, vectors, strict=True):
            known = self._old.setdefault(item.version, [])
            if len(known) < MOST_REFITTED:
                known.append(item.vector)
                self._new.setdefault(item.version, []).append(vector)

    def finish(self) -> tuple[str, ...]:
        """Replace deployed translations by better ones; returns the stored versions that they translate."""
        ways = self._serving.translations.of(self._target)
        counts = self._serving.gallery.count()
        files = {}
        for name, old in self._old.items():
            way = ways.get(name)
            if (
                way is None
                or way.forward is None
                or len(old) < LEAST_REFITTED
                or not counts.get(name)
            ):
                continue
            sample = Sample(
                np.stack(old), np.stack(self._new[name]), [None] * len(old), origin="a backfill"
            )
            better = refitted(way, sample, self._seed)
            if better is not None:
                files[way.source] = self._serving.translations.keep(better)
        if not files or self._serving.rollout.retranslate(self._move, files) is None:
            return ()
        return tuple(files)


def refitted(way: Translation, sample: Sample, seed: int = 0) -> Translation | None:
    """The translation with maps fitted on a sample, if they find more of its held-out pairs than the current maps.

    A fifth of the pairs is held out. Each old vector, mapped forward, must find the new vector of the same item among
    those of all held-out items. The weights do not change.
    """
    shown, judged = sample.pairs(seed).split()
    (*_, linear) = ways = fit_translations(
        shown, way.source, way.target, shared=way.shared, old_model=True
    )
    now = _found_again(way, judged.X, judged.Y)
    best = max(ways, key=lambda one: float(_found_again(one, judged.X, judged.Y).mean()))
    then = _found_again(best, judged.X, judged.Y)
    if paired_bootstrap(then, now).verdict != "compatible":  # not strictly better
        return None
    about = {**way.about, "refitted_on": len(sample), "kind": best.about["kind"], CHOSEN: True}
    return replace(
        way,
        forward=best.forward,
        backward=best.backward,
        uncertainty=linear.uncertainty,
        about=about,
    )


def _found_again(way: Translation, old: Any, new: Any) -> Any:
    assert way.forward is not None
    cosines = way.forward(old) @ np.asarray(new, np.float32).T
    return cosines.argmax(axis=1) == np.arange(len(new))


# --- what a backfill replaces


def newer_versions(registry: Registry, target: str) -> list[str]:
    """Versions newer than ``target``, including retired ones: a backfill does not replace their vectors."""
    return [name for name in registry.known() if version_number(name) > version_number(target)]


def _older(registry: Registry, target: str, counts: Mapping[str, int]) -> dict[str, int]:
    """The counts of versions whose vectors a backfill to ``target`` may replace."""
    kept = {target, *newer_versions(registry, target)}
    return {name: count for name, count in counts.items() if count and name not in kept}


@dataclass(frozen=True)
class BackfillOutlook:
    """What a backfill to ``version`` would work on."""

    version: str
    older: int  # vectors of older versions; a budget in percent refers to them
    newer: dict[str, int]  # vectors that are never replaced
    looked_at: int  # number of older items whose images were looked for
    without_image: int  # how many of them have no image and keep their vectors
    cost: float | None = None  # of embedding one item, about, where the version has a price

    @property
    def could(self) -> int:
        """Number of vectors that can be re-embedded; an upper bound if not all items were looked at."""
        return self.older - self.without_image


def backfill_outlook(serving: Serving, most: int = LOOKED_AT) -> BackfillOutlook:
    """Count older vectors, and look for the images of up to ``most`` items, spread over the older versions."""
    target = serving.deployed()
    counts = serving.gallery.count()
    images = ImageStore(serving.path, serving.registry.reads())
    newer = newer_versions(serving.registry, target)
    older = _older(serving.registry, target, counts)
    looked_at = without_image = 0
    for row, name in enumerate(
        sorted(older, key=lambda name: older[name])
    ):  # small ones leave room for the others
        share = (most - looked_at) // (len(older) - row)
        with closing(cast(Any, serving.gallery.iterate(name))) as items:
            for item in islice(items, share):
                looked_at += 1
                without_image += images.original(item) is None
    kept = {name: count for name, count in counts.items() if count and name in newer}
    return BackfillOutlook(
        version=target,
        older=sum(older.values()),
        newer=kept,
        looked_at=looked_at,
        without_image=without_image,
        cost=item_cost(serving, target),
    )


def expected_replaced(serving: Serving, target: str, budget: str) -> Replaced:
    """An estimate without a plan: assumes that searches find everything it replaces."""
    counts = serving.gallery.count()
    found = _found_older(serving, target, counts)
    older = sum(_older(serving.registry, target, counts).values())
    items = budget_items(budget, older, item_cost(serving, target))
    return _replaced(
        serving, target=target, planned=found, share=min(1.0, items / max(1, sum(found.values())))
    )


def _planned_replaced(serving: Serving, plan: BackfillPlan) -> Replaced:
    """From the versions of the plan's items when it was made; finished items count towards the share."""
    if plan.versions is None:
        return expected_replaced(serving, plan.target, plan.budget)
    found = _found_older(serving, plan.target, serving.gallery.count())
    ways = serving.translations.of(plan.target)
    reachable = sum(count for name, count in plan.versions.items() if name in ways)
    counts = PlanFiles(serving.path).counts(plan)
    done = min(reachable, counts.get("done", 0) + counts.get("done before", 0))
    planned = {name: count for name, count in plan.versions.items() if name in found}
    share = min(1.0, reachable / max(1, sum(found.values()) + done))
    return _replaced(serving, target=plan.target, planned=planned, share=share)


def _found_older(serving: Serving, target: str, counts: Mapping[str, int]) -> dict[str, int]:
    """The number of older vectors that searches of ``target`` find, by version."""
    ways = serving.translations.of(target)
    return {
        name: count
        for name, count in _older(serving.registry, target, counts).items()
        if name in ways
    }


def _replaced(serving: Serving, target: str, planned: Mapping[str, int], share: float) -> Replaced:
    old = max(planned, key=lambda name: planned[name], default=None)
    counts = serving.gallery.count()
    ways = serving.translations.of(target)
    asked = {name: way for name, way in ways.items() if counts.get(name) or name == target}
    calibrated = serving.translations.scales(target, asked).calibrated
    why = None
    if old is None:
        why = "searches find none of the vectors that it replaces, so nothing is predicted"
    return Replaced(old=old, share=share, calibrated=calibrated, unpredicted=why)


# --- predictions and measurements


@dataclass(frozen=True, eq=False)
class PredictedCurve:
    """The planner's order and random orders on held-out images; ``images`` counts gallery and queries.

    ``self_tests`` are those of the old and the new version; ``calibrated``: hits were merged by probability.
    """

    order: str
    planned: BackfillCurve
    random: BackfillCurve
    self_tests: tuple[float, float]
    images: tuple[int, int]
    calibrated: bool = False

    def at(self, share: float) -> tuple[float, float]:
        """Interpolated accuracy at a share, in the planner's order and in random order."""
        shares = self.planned.shares
        planned, random = (
            np.interp(share, shares, curve.accuracy) for curve in (self.planned, self.random)
        )
        return float(planned), float(random)

    def to_json(self) -> dict[str, Any]:
        """As JSON: accuracy over the re-embedded share, in the planner's order and in random order."""
        return {
            "order": self.order,
            "shares": self.planned.shares.tolist(),
            "planned": self.planned.accuracy.tolist(),
            "random": self.random.accuracy.tolist(),
            "self_tests": list(self.self_tests),
            "calibrated": self.calibrated,
        }

    def loses(self, share: float) -> bool:
        """Whether the planner's order is significantly less accurate at a share than at 0.

        Significant: by a paired bootstrap at 95 %, or by at least five points and three queries.
        """
        hits = self.planned.hits
        if hits is None:
            return self.at(share)[0] < float(self.planned.accuracy[0])
        shares = self.planned.shares
        weights = np.array([np.interp(share, shares, row) for row in np.eye(len(shares))])
        then = weights @ hits[0]  # [queries], interpolated between the neighbouring shares
        lost = hits[0, 0].sum() - then.sum()  # queries
        if lost >= max(_LARGE_LOSS * len(then), _FEWEST_LOST):
            return True
        return (
            paired_bootstrap(hits[0, 0], then).verdict == "compatible"
        )  # share 0 is strictly better


class Thirds(NamedTuple):
    """Labelled items by both versions: one third gallery, one third queries of the planner, one third for measuring."""

    old: VersionFeatures
    new: VersionFeatures
    query_labels: Any
    gallery_labels: Any
    names: Sequence[str]  # of the classes
    split: Split  # of the queries: "gallery" for the planner, "queries" for measuring


def of_images(old: Encoder, new: Encoder, images: ImageSet, seed: int) -> Thirds:
    """Labelled images as both models embed them."""
    counts = images.counts()
    several = images.of_classes([name for name in images.classes if counts[name] >= 3])
    _require_classes(len(several.classes), len(images))
    parts = gallery_query_split(several.labels, share=1 / 3, seed=seed)
    gallery = several.take(parts.gallery)
    asking = several.take(parts.queries)
    first = version_features("old", encoder=old, queries=asking, gallery=gallery)
    second = version_features("new", encoder=new, queries=asking, gallery=gallery)
    split = gallery_query_split(asking.labels, seed=seed)
    return Thirds(
        old=first,
        new=second,
        query_labels=asking.labels,
        gallery_labels=gallery.labels,
        names=several.classes,
        split=split,
    )


def of_items(sample: Sample, old: str, new: str, seed: int) -> Thirds:
    """Labelled items whose vectors by both versions are known."""
    codes = sample.coded()
    counts = np.bincount(codes + 1)
    known = sample.take(np.flatnonzero((codes >= 0) & (counts[codes + 1] >= 3)))
    codes = known.coded()
    _require_classes(len(np.unique(codes)), len(sample))
    names = sorted({str(label) for label in known.labels})
    parts = gallery_query_split(codes, share=1 / 3, seed=seed)
    first = VersionFeatures(old, known.old[parts.queries], known.old[parts.gallery])
    second = VersionFeatures(new, known.new[parts.queries], known.new[parts.gallery])
    asking = codes[parts.queries]
    return Thirds(
        old=first,
        new=second,
        query_labels=asking,
        gallery_labels=codes[parts.gallery],
        names=names,
        split=gallery_query_split(asking, seed=seed),
    )


def _require_classes(classes: int, items: int) -> None:
    if classes < 2:
        raise InputError(
            "a backfill prediction needs labelled items of at least two classes, three or more each; "
            f"got {items} items, with {plural(classes, 'class')} of three or more"
        )


def predicted_curve(
    thirds: Thirds,
    way: Translation,
    order: str = "gain",
    shares: Sequence[float] = SHARES,
    random_orders: int = 5,
    seed: int = 0,
    calibrate: bool = False,
) -> PredictedCurve:
    """Re-embed labelled items of the old version with the new one, in the planner's order and at random."""
    old = thirds.old
    new = thirds.new
    split = thirds.split
    asked = [thirds.names[label] for label in thirds.query_labels[split.gallery].tolist()]
    queries = LabelledQueries(new.queries[split.gallery], asked)
    rows = planned_order(order, items=_as_old_items(thirds, way), queries=queries, seed=seed)
    truth = (thirds.query_labels, thirds.gallery_labels)
    views = [translated(way, old, new), replace(new, queries=new.queries_in(new))]
    if calibrate:
        folds = class_folds(views, *truth, seed)
    else:
        folds = []
    pair = translated_pair(way, old, new)
    measured: dict[str, Any] = {"folds": folds, "rows": split.queries, "seed": seed}
    planned = search_curve(*pair, *truth, shares, order=rows, **measured)
    random = search_curve(*pair, *truth, shares, orders=random_orders, **measured)
    tests = []
    for version in (old, new):
        judging = version.take(split.queries)
        query_labels = thirds.query_labels[split.queries]
        tested = cross_test(
            [judging],
            query_labels=query_labels,
            gallery_labels=thirds.gallery_labels,
            protocol="image",
        )
        tests.append(float(tested.matrix[0, 0]))
    sizes = (len(thirds.gallery_labels), len(split.queries))
    return PredictedCurve(
        order=order,
        planned=planned,
        random=random,
        self_tests=(tests[0], tests[1]),
        images=sizes,
        calibrated=bool(folds),
    )


def _as_old_items(thirds: Thirds, way: Translation) -> OldItems:
    old = thirds.old
    new = thirds.new
    stored = unit(np.asarray(old.gallery, np.float32))
    if way.forward is not None:
        vectors = way.forward(stored)
    elif way.shared:
        vectors = carry(
            stored,
            Q_from=short_basis(old.projection),
            Q_to=short_basis(new.projection),
            width=new.width,
        )
    else:
        vectors = np.zeros((len(stored), new.gallery.shape[1]), np.float32)
    labels = [thirds.names[label] for label in thirds.gallery_labels.tolist()]
    count = len(labels)
    names = [str(row) for row in range(count)]
    unsure = uncertainty_of(way, stored)
    ages = np.zeros(count, np.int64)
    return OldItems(
        ids=names,
        ages=ages,
        vectors=vectors.astype(np.float32),
        labels=labels,
        counts=np.zeros(count),
        uncertainty=unsure,
    )


def gallery_accuracy(
    serving: Serving, version: str, images: ImageSet, made: dict[str, Any] | None = None
) -> float | None:
    """Top-1 accuracy of labelled images whose class is in the gallery; None if there are none.

    They are searched like any query, by all models that the deployment needs. ``made`` caches their vectors.
    """
    known = {} if made is None else made
    move, models = serving.asking()
    if move.version != version:
        return None
    for name in models:
        if name not in known:
            known[name] = serving.encoder(name).encode(images.images, form="short", role="query")
    labels = [images.classes[label] for label in images.labels.tolist()]
    there = set()
    for name in sorted(set(labels)):
        probe = {model: known[model][:1] for model in models}
        if serving.search_queries(move, probe, k=1, where={LABEL: name}).hits[0]:
            there.add(name)
    rows = [row for row, name in enumerate(labels) if name in there]
    if not rows:
        return None
    asked = {model: known[model][rows] for model in models}
    hits = serving.search_queries(move, asked, k=1).hits
    right = [
        bool(found) and found[0].payload.get(LABEL) == labels[row]
        for row, found in zip(rows, hits, strict=True)
    ]
    return float(np.mean(right))


def draw_curves(
    path: Path, predicted: PredictedCurve | None, measured: Sequence[MeasuredPoint] = ()
) -> Path:
    """Draw a backfill's curves as PNG, or as SVG or PDF by the suffix of ``path``."""
    curves = {}
    tests = {}
    if predicted is not None:
        planned = f"predicted, order: {predicted.order}"
        curves = {planned: predicted.planned, "predicted, random order": predicted.random}
        tests = {planned: predicted.self_tests}
    if measured:
        shares, accuracies = (
            np.array(values, np.float64) for values in zip(*measured, strict=True)
        )
        curves["measured on the gallery"] = BackfillCurve(shares, accuracies[None])
    path.parent.mkdir(parents=True, exist_ok=True)
    backfill_curves(curves, path, tests, title="Accuracy while the gallery is re-embedded")
    return path
