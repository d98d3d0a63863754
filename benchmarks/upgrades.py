"""What an ordinary upgrade gives: v1 and v2 trained on real images with the defaults, then searched on new classes.

Each run takes the path of a new user: ``train`` on some classes, ``upgrade`` on more classes or more images, ``check``.
It then searches classes that neither version has seen, by nearest image and by class template:

    v1          v1's queries on v1's vectors: the system before the upgrade
    one         v2's queries on v1's vectors through the translation: v2 deployed, nothing re-embedded
    two         the same with v1's own query too: two models per query
    v2          v2's queries on v2's vectors: everything re-embedded
    direct      v2's queries on v1's vectors as they are, without a translation
    half        half of the vectors re-embedded in random order, the others translated, all in one ranking
    scaled      the same with scores standardised per version; by nearest image only
    area        the mean accuracy while everything is re-embedded in random order: the area under the backfill curve
    unsure      the same, vectors first whose translation is expected to be furthest off
    fastfill    the same in the order of FastFill (Jaeckle et al. 2023): by a variance that a perceptron has learnt
    rotation, low-rank, mlp     maps of Drift-Adapter: v2's query in v1's space, and nothing else
    plain area  as area, but v1's vectors are searched as they are: what a rival of one shared space has

``--way independent`` also has the rivals that start from such a model (``benchmarks/rivals.py``):

    fct, side   v2's queries on v1's vectors carried by FCT, without and with side information; "fct area", "side area"
    bt2         queries of BT2's network on v1's vectors; "bt2 v2" with all re-embedded by it, "bt2 area"

The translation is what the workspace has after a check with images that were held out, before any searched image is
shown. Rivals' maps and orders are fitted on the images that v2 was trained on, in the same views.

The seed draws the classes, the images and the initial weights; all methods get the same draws. Cases marked "confirm"
are set aside: tune on the others, and look at these once at the end. Every run on them is noted in
``benchmarks/looks.json``, and a case that was run with another setting of the same method is named before it is run
again. Intervals are bootstraps over the seeds, which are a little too narrow for five of them.

    python benchmarks/upgrades.py --data DATA                                 the tuning cases, 5 seeds
    python benchmarks/upgrades.py --data DATA --way free                      a rival or control by its name
    python benchmarks/upgrades.py --data DATA --cases photos-30+30 --method fd --option on=all --capacity 10000
    python benchmarks/upgrades.py --data DATA --cases confirm --device cuda --picture docs/pictures/upgrades.png

DATA holds any of cifar-100-binary/, omniglot/ (images_background, images_evaluation), celeba-identities/ and
CUB_200_2011/; cases without data are skipped. Every run uses one thread; cases with ``resnet20`` take several times as
long as the others. Finished runs are kept in --out and not repeated; give each command that runs at the same time its
own file.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rivals import bt2, fct, side_vectors

from fixstar.cli.versions import train
from fixstar.data import Augmentation, ImageSet, ReplayMemory, concatenate, from_arrays
from fixstar.data.formats import cifar100, image_folder, omniglot_folder
from fixstar.data.glyphs import SCRIPTS, glyph_pixels
from fixstar.durable import replace_json
from fixstar.errors import DataError, FixstarError, InputError, UnknownNameError
from fixstar.evaluation import VersionFeatures, backfill_curve
from fixstar.evaluation.features import version_features
from fixstar.evaluation.search import searcher
from fixstar.geometry import CAPACITY, unit
from fixstar.images import Preprocessing
from fixstar.methods import create_method
from fixstar.models import Encoder
from fixstar.models.backbones import create_backbone
from fixstar.research.benchmarks.ledger import Look, default_path, known_looks, note, warning
from fixstar.research.benchmarks.translations import VIEWS, drawn, embedded, views_of
from fixstar.training import Recipe, Settings, paper_recipe
from fixstar.translation import Map, Pairs, Translation, fit_map
from fixstar.translation.calibrate import standardised
from fixstar.translation.fit import gcv_penalty
from fixstar.translation.score import translated, translated_pair
from fixstar.translation.translation import USUAL

Floats = NDArray[np.float32]
Labels = NDArray[np.integer[Any]]
Indices = NDArray[np.int64]
Record = dict[str, Any]

PROTOCOLS = {"image": "nearest image", "template": "class template"}
HEADLINE = ("v1", "one", "two", "v2")
DETAILS = ("direct", "half", "scaled", "area", "unsure", "fastfill", "rotation", "low-rank", "mlp")
GAINS = ("one", "two", "half", "direct", "fct", "side", "bt2")  # whose difference to v1 is kept too
SHARES = np.linspace(0, 1, 11)  # of the gallery that is re-embedded
HALF = 5  # the place of one half in them
RANDOM_ORDERS = 3
MOST_PAIRED = 10_000  # images that rivals' maps are fitted on, each also in a few crops
REMEMBERED = 20  # images of a class of v1 that its replay memory has
HOLD_OUT = 0.1  # the command line's default
OUTCOMES = ("pass", "missing evidence", "refuse")


@dataclass(frozen=True)
class Case:
    """An upgrade: what each version learns, what is searched, and with which model.

    v1 learns ``old`` classes, v2 ``new`` others; with ``more`` v2 also gets further images of v1's classes. ``images``
    are the images per class of v1 and of v2. ``searched`` more classes have ``gallery`` images and ``queries`` each.
    """

    source: str
    old: int
    new: int
    images: tuple[int, int]
    searched: int
    gallery: int
    queries: int
    epochs: int
    more: bool = False
    backbone: str = "tiny"
    backbone_options: Mapping[str, Any] = field(default_factory=dict)
    size: int = 32
    batch_size: int = 64
    flip: bool = True
    confirm: bool = False
    gpu: bool = False  # too slow for a CPU
    learnt: bool = False  # searched are other images of the learnt classes, not other classes

    def inputs(self) -> Preprocessing:
        """The backbone's own preprocessing, at the size of this case."""
        own = create_backbone(self.backbone, **self.backbone_options).preprocessing
        return replace(own, size=(self.size, self.size))

    def described(self) -> Record:
        """As it reads back from JSON."""
        if not self.more:
            kind = "new classes"
        elif self.new:
            kind = "both"
        else:
            kind = "more images"
        content: Record = json.loads(json.dumps({"kind": kind, **asdict(self)}))
        if not self.learnt:
            del content["learnt"]  # runs that were kept before there were such cases do not have it
        return content


_photos = partial(Case, "photos", searched=40, gallery=50, queries=50)
_drawings = partial(Case, "drawings", searched=200, gallery=10, queries=10, epochs=20, flip=False)
_birds = partial(Case, "birds", 60, 60, (40, 40), searched=80, gallery=15, queries=25, confirm=True)
_resnet18: Record = {
    "backbone": "resnet18",
    "backbone_options": {"stem": "cifar"},
    "size": 64,
    "gpu": True,
}
CASES: dict[str, Case] = {
    "photos-30+30": _photos(30, 30, (80, 80), epochs=20),
    "photos-10+10": _photos(10, 10, (400, 400), epochs=15),
    "photos-more": _photos(30, 0, (40, 160), epochs=20, more=True),
    "photos-both": _photos(20, 20, (100, 100), epochs=20, more=True),
    "photos-resnet20": _photos(20, 20, (100, 100), epochs=15, backbone="resnet20"),
    "photos-resnet32": _photos(
        30, 30, (500, 500), epochs=40, backbone="resnet32", batch_size=128, gpu=True
    ),
    "photos-50+50": Case(
        *("photos", 50, 50, (400, 400), 100, 50, 50),
        epochs=15,
        backbone="resnet32",
        batch_size=128,
        gpu=True,
        learnt=True,
    ),
    "drawings-100+100": _drawings(100, 100, (15, 15)),
    "drawings-200+200": _drawings(200, 200, (10, 10)),
    "faces-70+70": Case("faces", 70, 70, (25, 25), searched=60, gallery=10, queries=20, epochs=30),
    "characters-60+60": Case("characters", 60, 60, (20, 20), 100, 10, 20, epochs=20, flip=False),
    "characters-more": Case(
        "characters", 60, 0, (10, 20), 100, 10, 20, epochs=20, more=True, flip=False
    ),
    "characters-both": Case(
        *("characters", 60, 60, (20, 20), 100, 10, 20),
        epochs=20,
        more=True,
        flip=False,
        confirm=True,
    ),
    "photos-20+40": _photos(20, 40, (50, 50), epochs=30, confirm=True),
    "faces-more": Case("faces", 100, 0, (12, 16), 100, 10, 20, epochs=30, more=True, confirm=True),
    "birds-60+60": _birds(epochs=20, backbone="resnet20"),
    "birds-resnet18": _birds(epochs=60, **_resnet18),
}
FOLDERS: dict[str, tuple[str, Callable[[Path], ImageSet]]] = {
    "photos": ("cifar-100-binary", partial(cifar100, split="train")),
    "drawings": ("omniglot", omniglot_folder),
    "faces": ("celeba-identities", image_folder),
    "birds": ("CUB_200_2011/images", image_folder),
}


class Images(NamedTuple):
    """What each version learns, and what is searched."""

    first: ImageSet
    later: ImageSet
    gallery: ImageSet
    queries: ImageSet


def draw_images(name: str, case: Case, seed: int, data: Path) -> Images:
    """The images of one run, at the model's size."""
    rng = np.random.default_rng([seed, *name.encode()])
    shown = max(case.images[0] + case.images[1] * case.more, case.images[1])
    found = case.gallery + case.queries
    most = shown + found if case.learnt else max(shown, found)
    wanted = case.old + case.new + (0 if case.learnt else case.searched)
    if case.source == "characters":
        alphabet = [character for script in SCRIPTS.values() for character in script]
        classes = [alphabet[i] for i in rng.permutation(len(alphabet))[:wanted]]
        pool = from_arrays(*glyph_pixels(classes, most, seed=seed, workers=1), classes)
    else:
        folder, read = FOLDERS[case.source]
        pool = read(data / folder)
        enough = [one for one, count in pool.counts().items() if count >= most]
        if len(enough) < wanted:
            raise DataError(
                f"{name} needs {wanted} classes of {most} images; {data / folder} has {len(enough)}"
            )
        classes = [enough[i] for i in rng.permutation(len(enough))[:wanted]]
    inputs = case.inputs()

    rows = {
        one: rng.permutation(np.flatnonzero(pool.labels == label))
        for label, one in enumerate(pool.classes)
    }

    def part(names: Sequence[str], start: int, count: int) -> ImageSet:
        chosen = np.concatenate([rows[one][start : start + count] for one in names])
        return pool.take(chosen).of_classes(names).load(inputs).images

    old = classes[: case.old]
    new = classes[case.old : case.old + case.new]
    searched = classes if case.learnt else classes[-case.searched :]
    begin = shown if case.learnt else 0
    first = part(old, 0, case.images[0])
    later = [part(old, *case.images)] if case.more else []
    later += [part(new, 0, case.images[1])] if new else []
    gallery = part(searched, begin, case.gallery)
    queries = part(searched, begin + case.gallery, case.queries)
    return Images(first, concatenate(later), gallery, queries)


@dataclass(frozen=True)
class Way:
    """How the versions are trained; ``epochs=None`` leaves the number to the case.

    With ``replay`` v2 gets v1's replay memory, also where its method would take all earlier images.
    """

    method: str
    capacity: int = CAPACITY
    options: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    longer: float = 1.0  # times as many epochs for v2
    replay: bool = False

    def __str__(self) -> str:
        options = "".join(f" {key}={value}" for key, value in sorted(self.options.items()))
        epochs = f" epochs={self.epochs}" * (
            self.epochs is not None
        ) + f" longer={self.longer:g}" * (self.longer != 1)
        return f"{self.method}{options} K={self.capacity}{epochs}{' replay' * self.replay}"


WAYS: dict[str, Way] = {
    "vega": Way("vega"),
    "free": Way("vega", options={"head": 0.0, "contrast": 0.0}),  # the control: no heads
    "polaris": Way("polaris"),
    "hoc": Way("hoc", 1000),
    "bct": Way("bct"),
    "independent": Way("itm"),
    "vega-short": Way("vega", options={"rotated": False, "longer": 1.0}),
    "bct-long": Way("bct", longer=4.0),
    "independent-long": Way("itm", longer=4.0),
}
"""Rivals and controls by name.

Vega's v2 passes four times as many images through the network as the others: twice the epochs, two views of each image.
The short and long ways compare at equal budgets, with the few passes and with the many.
"""


def setting_of(way: Way, case: Case) -> Record:
    """How a case is trained, as the ledger of looks notes it: with all options, also those that were not given."""
    changed: Record = {"longer": way.longer} if way.longer != 1 else {}
    if way.replay:
        changed["replay"] = True
    return {
        "method": way.method,
        "options": dict(create_method(way.method, **way.options).options),
        "capacity": way.capacity,
        "epochs": way.epochs or case.epochs,
        **changed,
    }


def default_of(option: str) -> Any:
    """What ``fixstar train`` takes where an option is not given."""
    return inspect.signature(train).parameters[option].default


class Upgraded(NamedTuple):
    """Both encoders, the translation between them, the images that v2 was trained on, and what the gate said."""

    encoders: tuple[Encoder, Encoder]
    translation: Translation
    learnt: ImageSet
    facts: Record


def upgrade(case: Case, images: Images, way: Way, seed: int, device: str) -> Upgraded:
    """Train v1, upgrade to v2, check v2: all that this benchmark asks of the library."""
    from fixstar.workspace import FitOptions, UpgradeOptions, Workspace

    method = create_method(way.method, **way.options)
    settings = Settings(
        backbone=case.backbone,
        backbone_options=case.backbone_options,
        capacity=way.capacity,
        preprocessing=case.inputs(),
        recipe=replace(
            paper_recipe(method.scenario).shortened(way.epochs or case.epochs),
            batch_size=case.batch_size,
        ),
        augmentation=Augmentation(flip=case.flip),
        replay_per_class=REMEMBERED,
        seed=seed,
        device=device,
    )
    everything = "all images" in method.needs or (method.own_space and not way.replay)
    later = concatenate([images.first, images.later]) if everything else images.later
    labelled = concatenate([images.gallery, images.queries])
    recipe = settings.recipe.shortened(round(way.longer * settings.recipe.epochs))
    options = UpgradeOptions(recipe, device=device, hold_out=HOLD_OUT, progress=False)
    with (
        tempfile.TemporaryDirectory() as folder,
        Workspace.create(Path(folder) / "w", device=device) as space,
    ):
        times = [time.perf_counter()]
        space.train(images.first, settings, method, progress=False, hold_out=HOLD_OUT)
        times.append(time.perf_counter())
        space.upgrade(later, options, trials=0)
        times.append(time.perf_counter())
        learnt = learnt_images(images, everything, settings)
        fitting = (
            None if method.own_space else FitOptions(learnt)
        )  # after training in a shared space nothing is fitted
        held_out = space.check("v2", fitting=fitting, report=False, progress=False)
        found = space.translations.of("v2")["v1"]  # before a searched image is shown to the gate
        if found.forward is None:  # no gain was seen over searching the vectors as they are
            found = space.translations.fitted("v1", "v2")[0]
        shown = space.check("v2", labelled, report=False, progress=False)
        old, new = (space.encoder(name, device) for name in ("v1", "v2"))
    facts = {
        "gate": {"held out": held_out.outcome, "labelled": shown.outcome},
        "weights": {"one": found.one, "two": found.two},
        "seconds": np.diff(times).round(1).tolist(),
    }
    return Upgraded((old, new), found, learnt, facts)


def learnt_images(images: Images, everything: bool, settings: Settings) -> ImageSet:
    """What v2 is trained on: all images, or the later ones and as many of each earlier class as a memory has."""
    if everything:
        return concatenate([images.first, images.later])
    inputs = settings.preprocessing
    assert inputs is not None
    memory = ReplayMemory(settings.replay_per_class).extended(
        images.first, inputs, seed=settings.seed
    )
    return concatenate([images.later, *([] if memory.images is None else [memory.images])])


def pairs_of(
    encoders: tuple[Encoder, Encoder], learnt: ImageSet, augmentation: Augmentation, seed: int
) -> Pairs:
    """Vectors of both models of the images that v2 was trained on, each also in a few crops."""
    pixels = views_of(learnt, augmentation, seed)
    vectors = [embedded(encoder, pixels) for encoder in encoders]
    return Pairs.checked(*vectors, groups=np.tile(learnt.labels, 1 + VIEWS), seed=seed)


def low_rank(pairs: Pairs) -> Map:
    """x A B + c of the rank whose map has the largest mean cosine on pairs that were not fitted (Drift-Adapter).

    Reduced-rank ridge regression: of all matrices of rank r the one of least ridge error.
    """
    shown, judged = pairs.inner
    most = min(pairs.X.shape[1], pairs.Y.shape[1])
    ranks = sorted({min(most, 2**power) for power in range(most.bit_length() + 1)})

    def mean_cosine(rank: int) -> float:
        mapped = _of_rank(shown, rank)(judged.X)
        return float(np.einsum("ij,ij->i", mapped, judged.Y).mean())

    return _of_rank(pairs, max(ranks, key=mean_cosine))


def _of_rank(pairs: Pairs, rank: int) -> Map:
    """W V V^T, with W the ridge solution and V the leading right singular vectors of what it fits."""
    found = pairs.spectrum
    penalty = gcv_penalty(found)
    W = found.ridge(penalty)
    fits = found.targets / np.sqrt(found.values + penalty)[:, None]
    V = np.linalg.svd(fits, full_matrices=False)[2][:rank].T
    reduced = W @ V @ V.T
    return Map.linear(reduced, found.y - found.x @ reduced)


def rival_maps(pairs: Pairs, device: str) -> dict[str, Map]:
    """Drift-Adapter's maps from v2's queries to v1's space."""
    back = pairs.reversed
    return {
        "rotation": fit_map("rotation", back).map,
        "low-rank": low_rank(back),
        "mlp": fit_map("residual", back, device=device).map,
    }


def fastfill_order(forward: Map, pairs: Pairs, stored: Floats, epochs: int = 100) -> Indices:
    """The stored vectors, those of largest variance first: FastFill's order.

    A perceptron learns log s^2(x) by the likelihood |F(x) - y|^2 / (2 s^2) + log(s^2) / 2 on the pairs.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(pairs.seed)
        width = pairs.X.shape[1]
        model = torch.nn.Sequential(
            torch.nn.Linear(width, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )
        x = torch.tensor(np.asarray(pairs.X, np.float32))
        off = torch.tensor(((forward(pairs.X) - pairs.Y) ** 2).sum(axis=1), dtype=torch.float32)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(epochs):
            for rows in torch.split(torch.randperm(len(x)), 512):
                log_variance = model(x[rows])[:, 0]
                loss = (off[rows] / (2 * log_variance.exp()) + log_variance / 2).mean()
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                optimiser.step()
        with torch.no_grad():
            variance = model(torch.tensor(np.asarray(stored, np.float32)))[:, 0].numpy()
    return np.argsort(-variance, kind="stable")


def with_models(way: Translation, models: str) -> Translation | None:
    """The translation with one model per query or two, at its own weight or the usual one; None if that cannot be."""
    usual = 0.0 if way.forward is None else USUAL
    if models == "two":
        return replace(way, two=usual if way.two is None else way.two)
    if not (way.shared or way.backward is not None):
        return None
    return replace(way, one=usual if way.one is None else way.one, two=None)


class Measured(NamedTuple):
    """What is searched: v1 and v2 on the same queries and gallery, with the labels of both."""

    old: VersionFeatures
    new: VersionFeatures
    query_labels: Labels
    gallery_labels: Labels

    def accuracy(self, queries: Any, gallery: Any, protocol: str) -> float:
        """Top-1 of queries in a gallery."""
        hits = searcher(protocol, gallery, self.gallery_labels)(queries, self.query_labels)
        return round(float(hits.mean()), 5)

    def curve(
        self, way: Translation, order: Indices | None, protocol: str, scaled: bool = False
    ) -> Floats:
        """Accuracies at ``SHARES`` while the gallery is re-embedded in an order, by default a mean of random ones."""
        if protocol == "template":
            return self._template_curve(way, order)
        old, new = translated_pair(way, self.old, self.new)
        scales = {}
        if scaled:
            scales = {
                old.name: standardised(translated(way, self.old, self.new)),
                new.name: standardised(self.new),
            }
        found = backfill_curve(
            old,
            new,
            self.query_labels,
            self.gallery_labels,
            SHARES,
            "images" if order is None else order,
            orders=RANDOM_ORDERS if order is None else 1,
            scores=scales or None,
        )
        accuracies: Floats = found.accuracy.astype(np.float32)
        return accuracies

    def _template_curve(self, way: Translation, order: Indices | None) -> Floats:
        """A class is the mean of its items, each in the space that it is stored in: translated ones beside new ones."""
        view = translated(way, self.old, self.new)
        own = unit(np.asarray(self.new.gallery, np.float32))
        queries = np.hstack([view.queries, unit(np.asarray(self.new.queries, np.float32))])
        stored = np.hstack([view.gallery, np.zeros_like(own)])
        renewed = np.hstack([np.zeros_like(view.gallery), own])
        count = len(stored)
        orders = [order]
        if order is None:
            orders = [
                np.random.default_rng(seed).permutation(count) for seed in range(RANDOM_ORDERS)
            ]
        runs = []
        for rows in orders:
            assert rows is not None
            place = np.argsort(rows)
            mixed = [
                np.where((place < round(share * count))[:, None], renewed, stored)
                for share in SHARES
            ]
            runs.append([self.accuracy(queries, gallery, "template") for gallery in mixed])
        means: Floats = np.mean(runs, axis=0, dtype=np.float32)
        return means


def area(curve: Floats) -> float:
    """The mean height of a curve over ``SHARES``, by trapezoids.

    >>> area(np.linspace(0.0, 1.0, 11, dtype=np.float32))
    0.5
    """
    return round(float(np.mean((curve[1:] + curve[:-1]) / 2)), 5)


def measure(
    searched: Measured,
    way: Translation,
    pairs: Pairs | None = None,
    rivals: Mapping[str, Rival] | None = None,
    device: str = "cpu",
) -> Record:
    """Top-1 accuracy of every kind of query, by protocol; rivals' maps need ``pairs`` to be fitted on."""
    old = searched.old
    new = searched.new
    asked = {models: with_models(way, models) for models in ("one", "two")}
    views = {models: translated(one, old, new) for models, one in asked.items() if one is not None}
    maps = {} if pairs is None else rival_maps(pairs, device)
    orders: dict[str, Indices] = {}
    if way.uncertainty is not None:
        orders["unsure"] = np.argsort(
            -way.uncertainty(unit(np.asarray(old.gallery, np.float32))), kind="stable"
        )
    if pairs is not None and way.forward is not None:
        orders["fastfill"] = fastfill_order(way.forward, pairs, old.gallery)
    found: Record = {}
    for protocol in PROTOCOLS:
        figures: Record = {
            "v1": searched.accuracy(old.queries, old.gallery, protocol),
            "v2": searched.accuracy(new.queries, new.gallery, protocol),
        }
        for models, view in views.items():
            figures[models] = searched.accuracy(view.queries, view.gallery, protocol)
        if new.comparable_with(old):
            figures["direct"] = searched.accuracy(new.searching(old), old.gallery, protocol)
            as_they_are = Translation.between_shared(way.source, way.target)
            figures["plain area"] = area(searched.curve(as_they_are, None, protocol))
        for name, one in maps.items():
            mapped = one(unit(np.asarray(new.queries, np.float32)))
            figures[name] = searched.accuracy(mapped, old.gallery, protocol)
        for name, rival in (rivals or {}).items():
            figures |= rival.figures(name, searched, protocol)
        served = asked["one"] or asked["two"]
        assert served is not None
        figures |= backfilled(searched, served, orders, protocol)
        figures |= {
            f"{kind} - v1": figures[kind] - figures["v1"] for kind in GAINS if kind in figures
        }
        found[protocol] = figures
    return found


class Rival(NamedTuple):
    """Vectors of a way of its own: queries, what v1 stored as they are compared with it, and all re-embedded."""

    queries: Floats
    stored: Floats
    renewed: Floats

    def figures(self, name: str, searched: Measured, protocol: str) -> Record:
        """On v1's vectors, with all re-embedded, and the mean accuracy on the way."""
        found = [
            searched.accuracy(self.queries, gallery, protocol)
            for gallery in (self.stored, self.renewed)
        ]
        runs = []
        for seed in range(RANDOM_ORDERS):
            place = np.random.default_rng(seed).permutation(len(self.stored))
            mixed = [
                np.where((place < round(share * len(place)))[:, None], self.renewed, self.stored)
                for share in SHARES
            ]
            runs.append([searched.accuracy(self.queries, gallery, protocol) for gallery in mixed])
        curve: Floats = np.mean(runs, axis=0, dtype=np.float32)
        return {name: found[0], f"{name} v2": found[1], f"{name} area": area(curve)}


def trained_rivals(
    case: Case, images: Images, done: Upgraded, searched: Measured, *, seed: int, device: str
) -> dict[str, Rival]:
    """FCT without and with side information, and BT2: all start from the independent model that v2 is."""
    learnt = done.learnt
    settings = Settings(
        backbone=case.backbone,
        backbone_options=case.backbone_options,
        preprocessing=case.inputs(),
        recipe=Recipe(epochs=2 * case.epochs, milestones=(), batch_size=case.batch_size),
        augmentation=Augmentation(flip=case.flip),
        seed=seed,
        device=device,
    )
    pixels = views_of(drawn(learnt, MOST_PAIRED, seed), settings.augmentation, seed)
    stored, new = (unit(embedded(encoder, pixels)) for encoder in done.encoders)
    whole = [unit(embedded(encoder, learnt.images)) for encoder in done.encoders]
    side = side_vectors(images.first, settings)
    beside = side(pixels)
    gallery = unit(np.asarray(searched.old.gallery, np.float32))
    queries = unit(np.asarray(searched.new.queries, np.float32))
    renewed = unit(np.asarray(searched.new.gallery, np.float32))
    alone = fct(stored, stored, new, device=device, seed=seed)
    with_side = fct(stored, beside, new, device=device, seed=seed)
    merged = bt2(learnt, whole[0], whole[1], settings)
    asked = unit(merged(images.queries.images))
    again = unit(merged(images.gallery.images))
    padded = np.hstack(
        [gallery, np.zeros((len(gallery), again.shape[1] - gallery.shape[1]), np.float32)]
    )
    return {
        "fct": Rival(queries, alone(gallery, gallery), renewed),
        "side": Rival(queries, with_side(gallery, side(images.gallery.images)), renewed),
        "bt2": Rival(asked, padded, again),
    }


def backfilled(
    searched: Measured, way: Translation, orders: Mapping[str, Indices], protocol: str
) -> Record:
    """What is found while the gallery is re-embedded: half way, and on average, in random and in given orders."""
    plain = searched.curve(way, None, protocol)
    figures: Record = {"half": round(float(plain[HALF]), 5), "area": area(plain)}
    if protocol == "image":
        figures["scaled"] = round(float(searched.curve(way, None, protocol, scaled=True)[HALF]), 5)
    for name, order in orders.items():
        figures[name] = area(searched.curve(way, order, protocol))
    return figures


def run(name: str, case: Case, seed: int, way: Way, data: Path, device: str) -> Record:
    """One upgrade, in any process."""
    warnings.filterwarnings("ignore", "left out classes")  # of which too few images were held out
    images = draw_images(name, case, seed, data)
    done = upgrade(case, images, way, seed, device)
    old, new = (
        version_features(called, encoder, images.queries, images.gallery)
        for called, encoder in zip(("v1", "v2"), done.encoders, strict=True)
    )
    augmentation = Augmentation(flip=case.flip)
    pairs = pairs_of(done.encoders, drawn(done.learnt, MOST_PAIRED, seed), augmentation, seed)
    searched = Measured(old, new, images.queries.labels, images.gallery.labels)
    rivals = {}
    if way.method == "itm":
        rivals = trained_rivals(case, images, done, searched, seed=seed, device=device)
    about = {
        "case": name,
        "seed": seed,
        "way": str(way),
        "device": device,
        "queries": len(images.queries),
    }
    figures = measure(searched, done.translation, pairs, rivals, device)
    return {**about, **figures, **done.facts, "definition": case.described()}


def set_aside(name: str) -> str:
    """What the ledger calls a case that is set aside."""
    return f"case {name}"


def look_at(result: Record, setting: Record, file: Path) -> Look:
    """A finished run of a set-aside case, as the ledger notes it."""
    figures: Record = {
        protocol: {kind: result[protocol][kind] for kind in HEADLINE if kind in result[protocol]}
        for protocol in PROTOCOLS
    }
    return Look(
        set=set_aside(result["case"]),
        benchmark="upgrades",
        seed=result["seed"],
        setting=setting,
        result={**figures, "gate": result["gate"]},
        file=file.name,
    )


def warn_of_looks(names: Sequence[str], way: Way, ledger: Path) -> None:
    """Print which of the cases are set aside, but were run before with another setting of this method."""
    entries = known_looks(ledger)
    for name in names:
        if CASES[name].confirm and (
            sentence := warning(entries, set_aside(name), setting_of(way, CASES[name]))
        ):
            print(sentence, flush=True)


def chosen_cases(words: Sequence[str], data: Path | None, device: str) -> list[str]:
    """The cases that are named and can run here; the others are printed with the reason."""
    groups: dict[str, list[str]] = {
        "all": list(CASES),
        "tune": [name for name, case in CASES.items() if not case.confirm],
        "confirm": [name for name, case in CASES.items() if case.confirm],
    }
    chosen = []
    for name in dict.fromkeys(name for word in words for name in groups.get(word, [word])):
        if name not in CASES:
            raise UnknownNameError("case", name, [*groups, *CASES])
        folder = FOLDERS.get(CASES[name].source, ("",))[0]
        if folder and (data is None or not (data / folder).is_dir()):
            print(f"skipped {name}: no {folder} " + (f"in {data}" if data else "without --data"))
        elif CASES[name].gpu and device == "cpu" and name not in words:
            print(
                f"skipped {name}: {CASES[name].backbone} is slow on a CPU; name the case, or --device cuda"
            )
        else:
            chosen.append(name)
    return chosen


def spread(cases: Sequence[Sequence[float]]) -> Record:
    """Mean over cases and runs, deviation of single runs, and the 95 % interval of the mean by resampling runs.

    Deviation and interval are None where a case has one run.

    >>> spread([[0.25, 0.75]])["mean"], spread([[0.25]])["interval"]
    (0.5, None)
    """
    rng = np.random.default_rng(0)
    resampled = [
        np.asarray(runs)[rng.integers(len(runs), size=(10_000, len(runs)))].mean(axis=1)
        for runs in cases
    ]
    several = all(len(runs) > 1 for runs in cases)
    return {
        "mean": round(float(np.mean([np.mean(runs) for runs in cases])), 5),
        "deviation": round(float(np.mean([np.std(runs, ddof=1) for runs in cases])), 5)
        if several
        else None,
        "interval": np.quantile(np.mean(resampled, axis=0), (0.025, 0.975)).round(5).tolist()
        if several
        else None,
        "runs": sum(map(len, cases)),
    }


def summarise(runs: Sequence[Record]) -> Record:
    """Each case, and the mean over cases."""
    cases = {
        name: [run for run in runs if run["case"] == name]
        for name in dict.fromkeys(run["case"] for run in runs)
    }

    def spreads(groups: Sequence[Sequence[Record]]) -> Record:
        return {
            protocol: _spreads([[run[protocol] for run in group] for group in groups])
            for protocol in PROTOCOLS
        }

    summary = {name: spreads([mine]) for name, mine in cases.items()}
    for name, mine in cases.items():
        summary[name]["gate"] = {
            on: Counter(run["gate"][on] for run in mine) for on in mine[0]["gate"]
        }
        summary[name]["seconds"] = (
            np.mean([run["seconds"] for run in mine], axis=0).round(1).tolist()
        )
    return {"cases": summary, "mean over cases": spreads(list(cases.values()))}


def _spreads(groups: Sequence[Sequence[Record]]) -> Record:
    """The spread of every kind that all runs have."""
    kinds = [
        kind
        for kind in groups[0][0]
        if all(kind in figures for group in groups for figures in group)
    ]
    return {
        kind: spread([[figures[kind] for figures in group] for group in groups]) for kind in kinds
    }


def tables(summary: Record) -> str:
    """Per cent and points, at 80 columns."""
    lines = []
    rows = {**summary["cases"], "mean over cases": summary["mean over cases"]}
    for protocol, title in PROTOCOLS.items():
        lines.append(f"{title:16s}  n    v1   one   two    v2    one - v1          two - v1")
        for name, row in rows.items():
            found = row[protocol]
            differences = "".join(points(found.get(kind)) for kind in ("one - v1", "two - v1"))
            lines.append(
                f"{name:16s}{found['v1']['runs']:3d}{accuracies(found, HEADLINE)}{differences}".rstrip()
            )
        lines.append("")
        heads = "".join(f"{kind[:6]:>7s}" for kind in DETAILS)
        lines.append(f"{title:16s}{heads}")
        lines += [
            f"{name:16s}{accuracies(row[protocol], DETAILS, width=7)}" for name, row in rows.items()
        ]
        lines.append("")
    lines.append("                  deviation of one - v1     pass/undecided/refused      seconds")
    lines.append("                       image     template     held out    labelled    v1    v2")
    for name, row in summary["cases"].items():
        found = [row[protocol].get("one - v1", {}).get("deviation") for protocol in PROTOCOLS]
        deviations = "".join(
            f"{'-' if one is None else format(100 * one, '.1f'):>13s}" for one in found
        )
        gates = "".join(
            f"{'/'.join(str(gate.get(one, 0)) for one in OUTCOMES):>12s}"
            for gate in row["gate"].values()
        )
        lines.append(
            f"{name:16s}{deviations} {gates}" + "".join(f"{one:6.0f}" for one in row["seconds"])
        )
    return "\n".join(lines)


class Row(NamedTuple):
    """A line of the tables of rivals: a way of training, and the kinds of figures that it is judged by."""

    label: str
    way: str
    at_once: str
    area: str = ""
    again: str = "v2"


RIVALS = (
    Row("BCT", "bct", "direct", "plain area"),
    Row("d-Simplex-HOC, K = 1,000", "hoc", "direct", "plain area"),
    Row("Polaris", "polaris", "direct", "plain area"),
    Row("independent, FCT", "independent", "fct", "fct area"),
    Row("independent, FCT with side information", "independent", "side", "side area"),
    Row("independent, BT2", "independent", "bt2", "bt2 area", "bt2 v2"),
    Row("independent, our translation, two models", "independent", "two"),
    Row("free, Drift-Adapter: rotation", "free", "rotation"),
    Row("free, Drift-Adapter: low rank", "free", "low-rank"),
    Row("free, Drift-Adapter: MLP", "free", "mlp"),
    Row("free, our translation, one model", "free", "one", "area"),
    Row("free, our translation, two models", "free", "two"),
    Row("**Vega**, one model per query", "vega", "one", "area"),
    Row("**Vega**, two models per query", "vega", "two"),
    Row("Vega, as few passes as the others, one model", "vega-short", "one", "area"),
    Row("Vega, as few passes as the others, two models", "vega-short", "two"),
)
SHORT = tuple(row.label for row in RIVALS if "Drift" not in row.label and "our" not in row.label)
LEARNT = "photos-50+50"
ORDERS = {"area": "random", "unsure": "uncertainty", "fastfill": "FastFill"}
ORDERED = {
    "Polaris": "polaris",
    "independent": "independent",
    "free": "free",
    "**Vega**": "vega",
    "Vega, as few passes as the others": "vega-short",
}
GROUPS: dict[str, tuple[str, ...]] = {
    "photos": tuple(
        name
        for name in CASES
        if name.startswith("photos-") and name not in (LEARNT, "photos-resnet32")
    ),
    "characters": tuple(name for name in CASES if name.startswith("characters-")),
    "drawings": tuple(name for name in CASES if name.startswith("drawings-")),
    "faces": tuple(name for name in CASES if name.startswith("faces-")),
    "birds": ("birds-60+60",),
}
ORDINARY = tuple(name for names in GROUPS.values() for name in names)


def runs_of(runs: Sequence[Record], way: str, cases: Sequence[str]) -> list[list[Record]]:
    """The runs of a way, case by case."""
    named = str(WAYS[way])
    return [[run for run in runs if run["way"] == named and run["case"] == case] for case in cases]


def level(groups: Sequence[Sequence[Record]], kind: str, protocol: str) -> float:
    """The mean over cases, in percent; every case has runs."""
    return 100 * float(np.mean([np.mean([run[protocol][kind] for run in mine]) for mine in groups]))


def rivals_table(runs: Sequence[Record]) -> str:
    """Means over the ordinary cases: v1, at once, while everything is embedded again, and then.

    The area is that by nearest image: a class template of items in two spaces at once is no good measure.
    """
    lines = [
        "| way | runs | image: v1 | at once | area | embedded again | template: v1 | at once | embedded again |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in RIVALS:
        mine = runs_of(runs, row.way, ORDINARY)
        places = [
            ("v1", "image"),
            (row.at_once, "image"),
            (row.area, "image"),
            (row.again, "image"),
        ]
        places += [("v1", "template"), (row.at_once, "template"), (row.again, "template")]
        cells = [row.label, str(sum(map(len, mine)))]
        cells += [f"{level(mine, kind, protocol):.1f}" if kind else "" for kind, protocol in places]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def orders_table(runs: Sequence[Record]) -> str:
    """Mean accuracies during a backfill in three orders, between what is found at once and with all embedded again.

    "Random best" counts the cases in which the random order is above both others.
    """
    titles = [
        " | ".join([f"{protocol}: at once", *ORDERS.values(), "embedded again"])
        for protocol in PROTOCOLS
    ]
    lines = [
        f"| way | runs | {' | '.join(titles)} | random best: image | template |",
        "|---|" + "---:|" * (3 + 2 * (2 + len(ORDERS))),
    ]
    for label, way in ORDERED.items():
        mine = runs_of(runs, way, ORDINARY)
        cells = [label, str(sum(map(len, mine)))]
        for protocol in PROTOCOLS:
            cells += [f"{level(mine, kind, protocol):.1f}" for kind in ("one", *ORDERS, "v2")]
        cells += [f"{random_best(mine, protocol)} of {len(mine)}" for protocol in PROTOCOLS]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def random_best(groups: Sequence[Sequence[Record]], protocol: str) -> int:
    """The number of cases in which a backfill in random order finds more on the way than in both other orders."""
    best = 0
    for group in groups:
        random, *others = (level([group], kind, protocol) for kind in ORDERS)
        best += random > max(others)
    return best


def short_table(runs: Sequence[Record]) -> str:
    """The README's: points over v1 in the mean over the ordinary cases."""
    lines = [
        "| | at once: nearest image | class template | everything embedded again: nearest image | class template |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in RIVALS:
        if row.label not in SHORT:
            continue
        mine = runs_of(runs, row.way, ORDINARY)
        cells = [row.label]
        for kind in (row.at_once, row.again):
            for protocol in PROTOCOLS:
                cells.append(f"{level(mine, kind, protocol) - level(mine, 'v1', protocol):+.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def gains_table(runs: Sequence[Record]) -> str:
    """Points over v1, by nearest image and by template, at once and embedded again, by the kind of images."""
    titles = [f"{group} ({len(names)})" for group, names in GROUPS.items()]
    lines = [f"| way | {' | '.join([*titles, LEARNT])} |", "|---|" + "---|" * (len(titles) + 1)]
    for row in RIVALS:
        cells = [row.label]
        for names in (*GROUPS.values(), (LEARNT,)):
            mine = runs_of(runs, row.way, names)
            if not all(mine):
                cells.append("")
                continue
            both = []
            for kind in (row.at_once, row.again):
                gains = [
                    level(mine, kind, protocol) - level(mine, "v1", protocol)
                    for protocol in PROTOCOLS
                ]
                both.append(f"{gains[0]:+.1f} ({gains[1]:+.1f})")
            cells.append(", then ".join(both))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def vega_table(runs: Sequence[Record]) -> str:
    """Each case with the default method: v1, at once, embedded again, beside Polaris and the control; and the gate."""
    lines = [
        "| case | runs | v1 | Polaris at once | one model | two models | embedded again | control embedded again "
        "| gate, labelled: pass, undecided, refused | gate, held out |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for case in (*ORDINARY, LEARNT):
        mine, held, free = (runs_of(runs, way, [case]) for way in ("vega", "polaris", "free"))
        name = f"{case}, set aside" if CASES[case].confirm else case
        cells = [name, str(len(mine[0]))]
        start = [level(mine, "v1", protocol) for protocol in PROTOCOLS]
        cells.append(f"{start[0]:.1f} ({start[1]:.1f})")
        for found, kind in (
            (held, "direct"),
            (mine, "one"),
            (mine, "two"),
            (mine, "v2"),
            (free, "v2"),
        ):
            gains = [
                level(found, kind, protocol) - level(found, "v1", protocol)
                for protocol in PROTOCOLS
            ]
            cells.append(f"{gains[0]:+.1f} ({gains[1]:+.1f})")
        for evidence in ("labelled", "held out"):
            counts = Counter(run["gate"][evidence] for run in mine[0])
            cells.append(", ".join(str(counts[outcome]) for outcome in OUTCOMES))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES = {
    "rivals": rivals_table,
    "rivals' gains": gains_table,
    "ordinary upgrades": vega_table,
    "orders": orders_table,
}
"""What docs/appendix/translation.md shows, by its mark."""


def accuracies(found: Record, kinds: Sequence[str], width: int = 6) -> str:
    """Per cent, or a dash where a kind was not measured."""
    texts = [f"{100 * found[kind]['mean']:.1f}" if kind in found else "-" for kind in kinds]
    return "".join(f"{text:>{width}s}" for text in texts)


def points(difference: Record | None) -> str:
    """A difference in points with its interval."""
    if difference is None:
        return f"{'-':>6s}{'':12s}"
    interval = difference["interval"]
    shown = f"[{100 * interval[0]:+.1f} {100 * interval[1]:+.1f}]" if interval else ""
    return f"{100 * difference['mean']:+6.1f} {shown:11s}"


def draw_picture(summary: Record, title: str, path: Path) -> None:
    """Per case the headline accuracies as dots, with the 95 % intervals of their means."""
    from matplotlib.figure import Figure

    cases = summary["cases"]
    colours = dict(zip(HEADLINE, ("#777777", "#d1495b", "#edae49", "#00798c"), strict=True))
    figure = Figure(figsize=(10, 1.5 + 0.45 * len(cases)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (protocol, label) in zip(panels, PROTOCOLS.items(), strict=True):
        for place, (kind, colour) in enumerate(colours.items()):
            if any(kind not in row[protocol] for row in cases.values()):
                continue
            found = [row[protocol][kind] for row in cases.values()]
            means = np.array([one["mean"] for one in found])
            ends = np.array([one["interval"] or [one["mean"]] * 2 for one in found])
            rows = np.arange(len(cases)) + 0.16 * (place - 1.5)
            axes.errorbar(
                100 * means,
                rows,
                xerr=100 * np.abs(ends.T - means),
                fmt="o",
                ms=5,
                color=colour,
                label=kind,
            )
        axes.set_xlabel(f"top-1 by {label}, per cent")
        axes.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(cases)), list(cases))
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=4)
    figure.suptitle(title, x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def parse_options(given: Sequence[str]) -> Record:
    """``key=value`` pairs; a value is JSON where it parses, else a word.

    >>> parse_options(["lam=0.5", "on=all"])
    {'lam': 0.5, 'on': 'all'}
    """
    options: Record = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise InputError(f"--option takes key=value, got {pair!r}")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing, then print and keep the summary; the number of runs that failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, help="a folder with the image sets; characters need none"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/upgrades.json"))
    parser.add_argument(
        "--cases", default="tune", help="tune, confirm, all, or names separated by commas"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument(
        "--way", choices=tuple(WAYS), help="a rival or control by its name, instead of a method"
    )
    parser.add_argument("--method", default=default_of("method"))
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="of the method"
    )
    parser.add_argument("--capacity", type=int, default=CAPACITY)
    parser.add_argument("--epochs", type=int, help="for every case, instead of its own number")
    parser.add_argument("--longer", type=float, default=1.0, help="times as many epochs for v2")
    parser.add_argument(
        "--replay", action="store_true", help="v2 gets the replay memory, not all earlier images"
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--picture", type=Path, help="draw the accuracies of every case")
    parser.add_argument(
        "--ledger", type=Path, default=default_path(), help="notes runs of set-aside cases"
    )
    given = parser.parse_args(words)
    way = Way(given.method, given.capacity, parse_options(given.option))
    if given.way is not None:
        way = WAYS[given.way]
    way = replace(way, epochs=given.epochs, longer=given.longer, replay=given.replay)
    create_method(way.method, **way.options)  # an unknown name fails here, not in every run
    content: Record = (
        json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    )
    runs = content.setdefault("runs", {})
    names = chosen_cases(given.cases.split(","), given.data, given.device)
    plan = {  # the first seed of every case comes first
        f"{name} seed={seed} {replace(way, epochs=way.epochs or CASES[name].epochs)}": (
            name,
            CASES[name],
            seed,
        )
        for seed in range(1, given.seeds + 1)
        for name in names
    }

    def is_done(key: str) -> bool:
        known = runs.get(key)
        return (
            known is not None
            and "area" in known["image"]
            and known["definition"] == plan[key][1].described()
        )

    warn_of_looks(
        list(dict.fromkeys(plan[key][0] for key in plan if not is_done(key))), way, given.ledger
    )
    os.environ.update(
        OMP_NUM_THREADS="1", MKL_NUM_THREADS="1"
    )  # for the processes that are started here
    failed = 0
    with ProcessPoolExecutor(
        given.jobs, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)
    ) as pool:
        missing = [key for key in plan if not is_done(key)]
        started = {
            pool.submit(run, *plan[key], way, given.data or Path(), given.device): key
            for key in missing
        }
        for ended in as_completed(started):
            if error := ended.exception():
                failed += 1
                print(
                    f"failed: {started[ended]}: {type(error).__name__}: {error}",
                    file=sys.stderr,
                    flush=True,
                )
                continue
            result = runs[started[ended]] = ended.result()
            if CASES[result["case"]].confirm:
                setting = setting_of(way, CASES[result["case"]])
                note(given.ledger, [look_at(result, setting, given.out)])
            replace_json(given.out, content)
            shown = [kind for kind in HEADLINE if kind in result["image"]]
            found = "  ".join(f"{kind} {100 * result['image'][kind]:.1f}" for kind in shown)
            print(
                f"{result['case']} {result['seed']}: {found}  {result['gate']['labelled']}",
                flush=True,
            )
    if finished := [runs[key] for key in plan if is_done(key)]:
        summary = summarise(finished)
        content.setdefault("summary", {})[f"{way}, {given.cases}"] = summary
        content["machine"] = (
            f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
        )
        replace_json(given.out, content)
        print(f"\n{way}\n{tables(summary)}")
        if given.picture:
            draw_picture(summary, str(way), given.picture)
    return failed


if __name__ == "__main__":
    try:
        sys.exit(main() > 0)
    except FixstarError as error:
        sys.exit(f"upgrades.py: {error}")
