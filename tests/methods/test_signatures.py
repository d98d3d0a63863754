"""What each method is for, seen in a short run: two versions of a tiny network on handwritten digits, CPU only.

v1 learns the digits 0 to 4, v2 the digits 5 to 9 too, by the method and by a control that lacks what makes the method.
Each line of ``SIGNATURES`` says what must be larger than what, and by how much. The margins are at most half of
the least difference in three seeds (0, 1, 2).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fixstar.data import (
    Augmentation,
    Batches,
    BatchSource,
    ImageSet,
    ReplayMemory,
    from_arrays,
    pixel_source,
)
from fixstar.evaluation import cross_test
from fixstar.losses import pooled_outputs
from fixstar.methods import METHODS, create_method
from fixstar.methods.incremental import BiasCorrection
from fixstar.models import Encoder
from fixstar.training import (
    EpochLog,
    Recipe,
    Settings,
    Training,
    TrainingContext,
    train,
    train_version,
    version_features,
)
from fixstar.translation import Pairs, fit_map

OLD, NEW = [str(digit) for digit in range(5)], [str(digit) for digit in range(5, 10)]
SETTINGS = Settings(
    backbone="tiny",
    backbone_options={"in_channels": 1, "width": 6, "feature_dim": 24},
    capacity=20,
    recipe=Recipe(epochs=8, learning_rate=0.05, milestones=(6,), batch_size=32),
    augmentation=Augmentation(crop_padding=3, flip=False),
    device="cpu",
)


class Claim(NamedTuple):
    """That a figure is larger than another one, by a margin."""

    what: str
    seen: float
    than: float
    by: float


class Pair(NamedTuple):
    """Two versions, and the objective's module of the second one."""

    old: Encoder
    new: Encoder
    module: torch.nn.Module | None


@functools.cache
def digits() -> tuple[ImageSet, ImageSet, ImageSet]:
    """To train on (40 of each class), to search for (25), and to search among (25)."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pixels = np.kron(pixels.reshape(-1, 8, 8) * 15, np.ones((4, 4))).astype(np.uint8)  # 32 x 32
    order = np.random.default_rng(0).permutation(len(labels))
    rows = np.stack([order[labels[order] == digit][:90] for digit in range(10)])
    parts = (rows[:, :40], rows[:, 40:65], rows[:, 65:])
    train_on, queries, gallery = (
        from_arrays(pixels[part.ravel()], labels[part.ravel()], OLD + NEW) for part in parts
    )
    return train_on, queries, gallery


@functools.cache
def first(name: str, seed: int, pretrained: bool = False) -> Encoder:
    """v1. Methods whose first version is plain training with the same head share it."""
    settings, past = (
        replace(SETTINGS, seed=seed),
        TrainingContext(pretrained=first("cores", seed) if pretrained else None),
    )
    return train_version(
        1, digits()[0].of_classes(OLD), past, create_method(name), settings, progress=False
    ).encoder


def _shared(name: str) -> str:
    method = create_method(name)
    if name in ("podnet", "cores-contrastive"):
        return name
    head = (method.classifier, dict(method.classifier_options))
    plain = sorted(METHODS.keys() - {"podnet", "cores-contrastive"})
    heads = {other: create_method(other) for other in plain}
    return next(
        o for o in plain if (heads[o].classifier, dict(heads[o].classifier_options)) == head
    )


def trained(
    name: str, seed: int, *, remembered: int = 10, pretrained: bool = False, **options: Any
) -> Pair:
    """Both versions; each starts from CoReS's first one if ``pretrained``."""
    return _trained(name, seed, remembered, pretrained, tuple(options.items()))


@functools.cache
def _trained(
    name: str, seed: int, remembered: int, pretrained: bool, options: tuple[tuple[str, Any], ...]
) -> Pair:
    method, old, everything = (
        create_method(name, **dict(options)),
        first(_shared(name), seed, pretrained),
        digits()[0],
    )
    images, memory = everything, ReplayMemory(0)
    if method.scenario == "lifelong":
        images = everything.of_classes(NEW)
        memory = ReplayMemory(remembered).extended(
            everything.of_classes(OLD), old.preprocessing, seed=seed
        )
    modules: list[torch.nn.Module | None] = []

    def keep(run: Training) -> list[EpochLog]:
        modules.append(run.objective.module)
        return train(run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fixstar.training.version.train", keep)
        settings = replace(SETTINGS, seed=seed)
        past = TrainingContext(old, memory, pretrained=first("cores", seed) if pretrained else None)
        new = train_version(2, images, past, method, settings, progress=False).encoder
    return Pair(old, new, modules[0])


# What is measured, on images that no version was trained on


def crossed(pair: Pair, adapt: bool = True) -> NDArray[np.float64]:
    """C[t, k] among the gallery images, nearest image."""
    _, queries, gallery = digits()
    made = [
        version_features(n, e, queries, gallery) for n, e in (("v1", pair.old), ("v2", pair.new))
    ]
    if not adapt:
        made[1] = replace(made[1], adapt=None)
    return cross_test(made, queries.labels, gallery.labels, "image").matrix


def cross(pair: Pair, adapt: bool = True) -> float:
    return float(crossed(pair, adapt)[1, 0])


def vectors(encoder: Encoder, classes: list[str]) -> NDArray[np.float32]:
    return encoder.encode(digits()[1].of_classes(classes).images)


def nearness(pair: Pair) -> float:
    """The mean cosine of an image's new and old feature."""
    return float((vectors(pair.old, OLD + NEW) * vectors(pair.new, OLD + NEW)).sum(axis=1).mean())


def logits(encoder: Encoder, classes: list[str], raw: Encoder | None = None) -> Tensor:
    """The answers of one model's classifier to (another one's, if ``raw``) features."""
    features = (raw or encoder).encode(digits()[1].of_classes(classes).images, form="raw")
    with torch.no_grad():
        answers: Tensor = encoder.classifier(torch.from_numpy(features))
    return answers


def judged(pair: Pair) -> float:
    """How often the old classifier is right about new features of old classes."""
    truth = torch.from_numpy(digits()[1].of_classes(OLD).labels)
    return (logits(pair.old, OLD, raw=pair.new).argmax(dim=1) == truth).float().mean().item()


def trusted(pair: Pair) -> float:
    """Minus the old classifier's cross-entropy on new features of old classes: finer than how often it is right."""
    truth = torch.from_numpy(digits()[1].of_classes(OLD).labels)
    return -functional.cross_entropy(logits(pair.old, OLD, raw=pair.new), truth).item()


def follows(pair: Pair) -> float:
    """How near the answers for old classes stay to the old model's: minus the divergence, on images of all classes."""
    old = logits(pair.old, OLD + NEW).log_softmax(dim=1)
    new = logits(pair.new, OLD + NEW)[:, :5].log_softmax(dim=1)
    return -functional.kl_div(new, old, reduction="batchmean", log_target=True).item()


def right(pair: Pair, classes: list[str]) -> float:
    truth = torch.tensor([int(c) for c in classes])[
        torch.from_numpy(digits()[1].of_classes(classes).labels)
    ]
    return (logits(pair.new, classes).argmax(dim=1) == truth).float().mean().item()


def judged_by_vectors(pair: Pair) -> float:
    """How often the class means of the old gallery's vectors are right about new features of old classes."""
    gallery = digits()[2].of_classes(OLD)
    stored = pair.old.encode(gallery.images)
    means = np.stack([stored[gallery.labels == label].mean(axis=0) for label in range(5)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return float(
        (
            (vectors(pair.new, OLD) @ means.T).argmax(axis=1) == digits()[1].of_classes(OLD).labels
        ).mean()
    )


def aligned(pair: Pair) -> float:
    """The mean cosine of a new prototype and the old model's centre of its class."""
    everything = digits()[0]
    made = pair.old.encode(everything.images)
    centres = torch.from_numpy(
        np.stack([made[everything.labels == label].mean(axis=0) for label in range(10)])
    )
    return (
        functional.cosine_similarity(pair.new.classifier.get_parameter("weight"), centres)
        .mean()
        .item()
    )


def same_maps(pair: Pair) -> float:
    """Minus the distance of pooled feature maps."""
    pixels = torch.from_numpy(np.asarray(digits()[1].images)).permute(0, 3, 1, 2).contiguous()
    with torch.no_grad():
        return -pooled_outputs(
            pair.new(pixels, maps=True).maps, pair.old(pixels, maps=True).maps
        ).item()


def views_found(encoder: Encoder) -> float:
    """How often a crop finds another crop of its image first, among those of all query images."""
    queries = digits()[1]
    source, _ = pixel_source(
        queries, encoder.preprocessing, SETTINGS.augmentation, torch.device("cpu")
    )
    batches = Batches(
        [BatchSource(source, torch.from_numpy(queries.labels))],
        len(queries),
        SETTINGS.augmentation,
        0,
        views=2,
    )
    (batch,) = batches.epoch(0)
    with torch.no_grad():
        a, b = encoder.eval().features(batch.pixels).chunk(2)
    return ((a @ b.T).argmax(dim=1) == torch.arange(len(a))).float().mean().item()


def agreement(pair: Pair, encoder: Encoder) -> float:
    """How often an encoder answers as the boosted pair of FOSTER does."""
    boosted: Any = pair.module
    with torch.no_grad():
        old, new = (
            torch.from_numpy(e.encode(digits()[1].images, form="raw"))
            for e in (pair.old, boosted.boosted)
        )
        answers: Tensor = boosted(old, new).argmax(dim=1)
    return (logits(encoder, OLD + NEW).argmax(dim=1) == answers).float().mean().item()


# The signatures


Figures = dict[Callable[[Pair], float], float]


def _beats(
    name: str, control: str, figures: Figures, **without: Any
) -> Callable[[int], list[Claim]]:
    """Figures are larger, by what is given, than those of a control."""

    def signature(seed: int) -> list[Claim]:
        whole, other = trained(name, seed), trained(control, seed, **without)
        return [
            Claim(figure.__name__, figure(whole), figure(other), by)
            for figure, by in figures.items()
        ]

    return signature


def _polaris(seed: int) -> list[Claim]:
    # At the full rate, where a model that nothing holds drifts: cross(held) - cross(free) is 0.116, 0.132 and 0.124 in
    # seeds 0 to 2, and 0.052 and 0.032 in two more. At Polaris's own small steps it is -0.008 to 0.096.
    held = trained("polaris", seed, rotated=False, rate=1.0)
    free = trained("polaris", seed, rotated=False, rate=1.0, hold=0.0, contrast=0.0)
    return [
        Claim("nearness", nearness(held), nearness(free), 0.17),
        Claim("cross", cross(held), cross(free), 0.05),
    ]


def mapped_back(pair: Pair) -> float:
    """The mean cosine of new features, mapped by a ridge of the training images, and the old ones of the same image."""
    images = digits()[0].images
    back = fit_map("ridge", Pairs.checked(pair.new.encode(images), pair.old.encode(images))).map
    return float(
        (back(vectors(pair.new, OLD + NEW)) * vectors(pair.old, OLD + NEW)).sum(axis=1).mean()
    )


def _vega(seed: int) -> list[Claim]:
    """It is not held at the old features, yet they can be read from it."""
    pair = trained("vega", seed, rotated=False)
    headless = trained("vega", seed, rotated=False, head=0.0, contrast=0.0)
    held = trained("polaris", seed, rotated=False)
    return [
        Claim("mapped back", mapped_back(pair), mapped_back(headless), 0.01),
        Claim("self-test", crossed(pair)[1, 1], crossed(held)[1, 1], 0.12),
    ]


def _er(seed: int) -> list[Claim]:
    with_memory, without = trained("er", seed), trained("er", seed, remembered=0)
    return [
        Claim("old classes right", right(with_memory, OLD), right(without, OLD), 0.4),
        Claim("new classes right", right(with_memory, NEW), 0.7, 0.0),
    ]


def _itm(seed: int) -> list[Claim]:
    matrix = crossed(trained("itm", seed))
    return [
        Claim("the cross-test is near chance, which is 0.1", 0.3, matrix[1, 0], 0.0),
        Claim("self-test", matrix[1, 1], 0.8, 0.0),
    ]


def _ift(seed: int) -> list[Claim]:
    pairs = [trained("ift", seed), trained("itm", seed)]
    name = "backbone.fc.weight"
    moved = [
        (pair.new.get_parameter(name) - pair.old.get_parameter(name)).norm().item()
        for pair in pairs
    ]
    return [
        Claim("nearer to the last weights", -moved[0], -moved[1], 2.0),
        Claim("cross-test", cross(pairs[0]), cross(pairs[1]), 0.3),
    ]


def _cores_contrastive(seed: int) -> list[Claim]:
    """The loss does not see a rotation of the features: versions meet because they start from the same model."""
    pair, independent = trained("cores-contrastive", seed, pretrained=True), trained("itm", seed)
    untrained = SETTINGS.new_encoder(create_method("cores"), OLD, seed)
    return [
        Claim("views found", views_found(pair.new), views_found(untrained), 0.15),
        Claim("cross-test", cross(pair), cross(independent), 0.07),
    ]


def _bic(seed: int) -> list[Claim]:
    corrected = trained("bic", seed, hold_out=0.3)
    correction = corrected.module
    assert isinstance(correction, BiasCorrection)
    answers, truth = logits(corrected.new, OLD + NEW), torch.from_numpy(digits()[1].labels)
    before = answers.clone()
    before[:, 5:] = (answers[:, 5:] - correction.beta.detach()) / correction.alpha.detach()
    errors = [functional.cross_entropy(made, truth).item() for made in (answers, before)]
    return [
        Claim("follows the old model", follows(corrected), follows(trained("er", seed)), 0.1),
        Claim("better answers to balanced images once corrected", -errors[0], -errors[1], 0.004),
    ]


def _fan(seed: int) -> list[Claim]:
    """Features are let go (lam 0), and the adapter is given time."""
    pair = trained("fan", seed, lam=0.0, learning_rate=1.0, epochs=2.0)
    return [Claim("cross-test with adapted vectors", cross(pair), cross(pair, adapt=False), 0.03)]


def _foster(seed: int) -> list[Claim]:
    pair = trained("foster", seed, epochs=1.5)
    return [
        Claim(
            "agreement with the pair", agreement(pair, pair.new), agreement(pair, pair.old), 0.15
        ),
        Claim("old classes right", right(pair, OLD), 0.7, 0.0),
        Claim("new classes right", right(pair, NEW), 0.5, 0.0),
    ]


# A control lacks the method's own terms. Without them bct and l2 are itm, lwf is ift, bct-er and advbct-er are er.
SIGNATURES: dict[str, Callable[[int], list[Claim]]] = {
    "advbct-er": _beats("advbct-er", "er", {nearness: 0.06, cross: 0.01}),
    "bct": _beats("bct", "itm", {judged: 0.2, cross: 0.2}),
    "bct-er": _beats("bct-er", "er", {trusted: 0.02}),
    "bct-vectors": _beats(
        "bct-vectors", "bct-vectors", {judged_by_vectors: 0.25, cross: 0.08}, lam=0.0
    ),
    "bic": _bic,
    "cl2r-ub": _beats("cl2r-ub", "itm", {cross: 0.25}),
    "cores": _beats("cores", "itm", {cross: 0.2}),
    "cores-contrastive": _cores_contrastive,
    "cvs": _beats("cvs", "cvs", {nearness: 0.03, cross: 0.01}, model=0.0, data=0.0),
    "er": _er,
    "fan": _fan,
    "fd": _beats("fd", "fd", {nearness: 0.05, cross: 0.01}, base=0.0),
    "foster": _foster,
    "hoc": _beats("hoc", "fd", {nearness: 0.1, cross: 0.01}, base=0.0),
    "ift": _ift,
    "itm": _itm,
    "l2": _beats("l2", "itm", {nearness: 0.35, cross: 0.3}),
    "lce-er": _beats("lce-er", "lce-er", {aligned: 0.17}, align=0.0, boundary=0.0),
    "lucir": _beats("lucir", "lucir", {nearness: 0.07}, base=0.0),
    "lwf": _beats("lwf", "ift", {follows: 0.1}),
    "podnet": _beats("podnet", "podnet", {same_maps: 0.07, nearness: 0.08}, spatial=0.0, flat=0.0),
    "polaris": _polaris,
    "vega": _vega,
}


def test_every_method_has_a_signature() -> None:
    assert SIGNATURES.keys() == METHODS.keys()


# what a workspace trains by default, what holds by the old features, and replay alone
USUAL = ("vega", "hoc", "er")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in USUAL else pytest.mark.long) for name in METHODS],
)
def test_a_short_run_shows_what_the_method_is_for(name: str) -> None:
    for claim in SIGNATURES[name](0):
        assert claim.seen > claim.than + claim.by, f"{name}: {claim}"
