"""The authors' loop of d-Simplex-FD and ours, side by side; single steps of FD and of CoReS, theirs and ours.

The public code of CL2R is run as it is, from a checkout. Only what it is given is replaced: images come from memory,
its network may be less deep, and its own evaluation is left out; with --device cpu, calls that move to a GPU do
nothing. Both loops start from the same weights, and one evaluator judges both. The new and the replayed half of each
batch are recorded apart.

    python benchmarks/authors_loops.py authors --checkout CL2R --data DATA --seed 0 --out FILE
    python benchmarks/authors_loops.py authors --checkout CL2R_2023 --data DATA --seed 0 --out FILE
    python benchmarks/authors_loops.py ours --checkout CL2R --data DATA --seed 0 --out FILE
    python benchmarks/authors_loops.py authors --checkout CL2R --data DATA --device cuda --depth 32 --first 50 \\
        --second 50 --images 450 --held-out 50 --batch-size 128 --workers 3 --out FILE
    python benchmarks/authors_loops.py judge --data DATA --device cuda --out FILE
    python benchmarks/authors_loops.py fd-steps --checkout CL2R --data DATA --out FILE
    python benchmarks/authors_loops.py cores-steps --checkout CORES --data DATA --out FILE

A training writes its epochs to FILE and its weights beside it before they are judged; ``judge`` does that again.

CL2R and CORES are checkouts of the public repositories, CL2R_2023 is one of its first code (af6025a); they need
torchvision, continuum and scikit-learn. The steps
start from the same weights, batches and previous model: losses, gradients and updated weights are compared, in float64.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn, optim

from fixstar.data import Augmentation, ImageSet, TaskStream
from fixstar.data.batches import Batches, BatchSource
from fixstar.data.pixels import ResidentPixels
from fixstar.durable import replace_json
from fixstar.evaluation import VersionFeatures
from fixstar.evaluation.verification import draw_pairs, kfold_accuracy, pair_scores
from fixstar.geometry import unit
from fixstar.images import Preprocessing
from fixstar.losses import feature_distillation
from fixstar.methods import Method, Objective, Step, Terms, Upgrade, create_method
from fixstar.models import Encoder
from fixstar.models.backbones.resnets import CifarResNet
from fixstar.research.benchmarks.datasets import dataset
from fixstar.research.benchmarks.runner import SearchedImages
from fixstar.training import Recipe, Settings, loop, run_scenario

CAPACITY = 100
PAIRS = (3000, 3000)
CIFAR10 = Preprocessing(size=(32, 32), mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
PROTOCOLS = ("verification", "verification-published")
STEPS = 5
MEAN = (0.5071, 0.4867, 0.4408)  # of CIFAR-100, as both sides normalise training images
DEVIATION = (0.2675, 0.2565, 0.2761)
State = dict[str, Tensor]
Row = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """The reduced experiment: two tasks, few images per class, a network of few layers."""

    first: int = 10
    second: int = 20
    images: int = 50  # per class, to train on
    held_out: int = 10  # per class, for the authors' validation, which decides nothing
    replayed: int = 20  # per class
    depth: int = 8
    batch_size: int = 64
    epochs: int = 70
    milestones: tuple[int, int] = (49, 64)  # as in the public code
    weight_decay: float = 5e-4
    base: float = 5.0
    judged_on: int = 10_000  # test images of CIFAR-10
    pairs: int = 3_000  # of each kind


def training_images(scale: Scale, data: Path) -> tuple[ImageSet, ImageSet]:
    """The first images of each class to train on, and the next ones to validate on; the dataset's own order."""
    every = dataset("cifar100").open(data, "train")
    classes = every.classes[: scale.first + scale.second]
    rows = [np.flatnonzero(every.labels == label) for label in range(len(classes))]
    last = scale.images + scale.held_out
    trained = every.take(np.concatenate([own[: scale.images] for own in rows]))
    held_out = every.take(np.concatenate([own[scale.images : last] for own in rows]))
    return trained.of_classes(classes), held_out.of_classes(classes)


class Halves:
    """Sums of each half of the batches of an epoch: cross-entropy, share classified, distillation loss."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []
        self._rows: list[dict[str, float]] = []

    def add(self, logits: Tensor, targets: Tensor, replay: Tensor, fd: float | None) -> None:
        """One batch; ``replay`` [B] bool."""
        row: dict[str, float] = {}
        losses = nn.functional.cross_entropy(logits.detach(), targets, reduction="none")
        right = (logits.detach().argmax(dim=1) == targets).float()
        for name, chosen in (("new", ~replay), ("replay", replay)):
            if bool(chosen.any()):
                row[f"ce {name}"] = float(losses[chosen].mean())
                row[f"accuracy {name}"] = float(right[chosen].mean())
        if fd is not None:
            row["fd"] = fd
        self._rows.append(row)

    def close(self) -> None:
        """The end of an epoch."""
        names = self._rows[0].keys()
        means = {name: float(np.mean([row[name] for row in self._rows])) for name in names}
        self.epochs.append({name: round(value, 5) for name, value in means.items()})
        print(len(self.epochs), self.epochs[-1], flush=True)
        self._rows = []


# The authors' side.


def import_authors(package: str, checkout: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Modules of a checkout, by name."""
    sys.path.insert(0, str(checkout / "src"))
    return {name: importlib.import_module(f"{package}.{name}") for name in names}


def on_cpu(thing: Any, *_: Any, **__: Any) -> Any:
    """In place of ``.cuda(...)``."""
    return thing


def their_network(authors: dict[str, Any]) -> nn.Module:
    """Their network, with random weights, on the CPU."""
    with mock.patch.object(nn.Module, "cuda", on_cpu):
        network: nn.Module = authors["model"].ResNet32Cifar(None, 100, 99, torch.device("cpu"))
    return network


def patches(authors: dict[str, Any], scale: Scale, device: str) -> list[Any]:
    """As many layers as are asked for, and no GPU unless it is."""
    gpu = [
        mock.patch.object(torch.Tensor, "cuda", on_cpu),
        mock.patch.object(nn.Module, "cuda", on_cpu),
    ]
    if device != "cpu":
        gpu = []
    if not hasattr(authors["model"], "CifarResNet"):
        return gpu
    network = authors["model"].CifarResNet
    build = network.__init__

    def shallow(self: Any, block: Any, _depth: int, classes: int) -> None:
        build(self, block, scale.depth, classes)

    return [*gpu, mock.patch.object(network, "__init__", shallow)]


def their_versions(
    authors: dict[str, Any],
    scale: Scale,
    start: State,
    images: tuple[ImageSet, ImageSet],
    seed: int,
    workers: int,
) -> tuple[list[State], list[list[dict[str, float]]]]:
    """Their ``main`` from the weights ``start``: the weights of each version, and its epochs."""
    in_memory = importlib.import_module("continuum.datasets").InMemoryDataset
    main = authors["main"]
    train = authors["train"]
    whole = {True: images[0], False: images[1]}
    build = main.ResNet32Cifar
    distil = train.EmbeddingsSimilarity
    judge = train.accuracy
    followed: list[Halves] = []
    seen: dict[str, float] = {}

    def cifar100(train: bool, **_: Any) -> Any:
        chosen = whole[train]
        return in_memory(chosen.images, chosen.labels)

    def network(resume_path: str | None, **options: Any) -> nn.Module:
        model: nn.Module = build(resume_path=resume_path, **options)
        if resume_path is None:
            model.load_state_dict(start)
        return model

    def similarity(new: Tensor, old: Tensor) -> Tensor:
        loss: Tensor = distil(new, old)
        seen["fd"] = float(loss.detach())
        return loss

    def accuracy(output: Tensor, target: Tensor, topk: tuple[int, ...] = (1,)) -> Any:
        if output.requires_grad:  # not their validation
            replay = torch.zeros(len(target), dtype=torch.bool, device=target.device)
            if "fd" in seen:
                replay[: scale.batch_size // 2] = True
            followed[-1].add(output, target, replay, seen.get("fd"))
        return judge(output, target, topk=topk)

    def epoch(args: Any, net: Any, loader: Any, optimizer: Any, number: int, *rest: Any) -> None:
        if number == 0:
            followed.append(Halves())
        seen.clear()
        train.train(args, net, loader, optimizer, number, *rest)
        followed[-1].close()

    classification = main.classification

    def validated(*given: Any) -> float:
        share = float(classification(*given)) / 100
        followed[-1].epochs[-1]["accuracy held out"] = round(share, 5)
        return share

    states = []
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yml"
        config.write_text(
            f"root_folder: {folder}\nepochs: {scale.epochs}\nstages: {list(scale.milestones)}\n"
            f"batch_size: {scale.batch_size}\nnum_workers: {workers}\nstart: {scale.first}\n"
            f"increment: {scale.second}\ncriterion_weight_base: {scale.base}\n"
            f"rehearsal: {scale.replayed}\n"
        )
        loader = mock.Mock(dataset=mock.Mock(targets=()))
        replaced: dict[str, Any] = {
            "CIFAR100": cifar100,
            "ResNet32Cifar": network,
            "train": epoch,
            "classification": validated,
            "create_pairs": lambda **_: (loader.dataset, loader.dataset),
            "evaluate": lambda *_: None,
        }
        own_loader = main.DataLoader
        replaced["DataLoader"] = lambda images, **options: (
            loader if images is loader.dataset else own_loader(images, **options)
        )
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - what their code draws from
        with (
            mock.patch.multiple(main, **replaced),
            mock.patch.object(train, "EmbeddingsSimilarity", similarity),
            mock.patch.object(train, "accuracy", accuracy),
            mock.patch.object(sys, "argv", ["cl2r", "--config_path", str(config)]),
        ):
            main.main()
        for file in sorted(Path(folder).glob("checkpoints*/ckpt_*.pt")):
            states.append(torch.load(file, map_location="cpu"))
    return states, [one.epochs for one in followed]


# Our side.


def renamed(theirs: State) -> State:
    """Their weights under our names."""
    names = {
        "conv_1_3x3": "conv1",
        "bn_1": "bn1",
        "stage_": "layer",
        "conv_a": "conv1",
        "bn_a": "bn1",
        "conv_b": "conv2",
        "bn_b": "bn2",
    }
    ours = {}
    for key, value in theirs.items():
        if key == "fc2.weight":  # the fixed prototypes
            continue
        name = key
        for old, new in names.items():
            name = name.replace(old, new)
        name = re.sub(r"(layer\d\.\d)\.(fc\d)", r"\1.excitation.\2", name)
        if name.startswith("fc1."):
            name = name.replace("fc1.", "projection.")
        ours[re.sub(r"shortcut\.0", "shortcut", name)] = value.clone()
    return ours


def encoder_of(theirs: State, scale: Scale, classes: tuple[str, ...] = ()) -> Encoder:
    """Our encoder with their weights."""
    encoder = Encoder.create(CifarResNet(scale.depth), classes=classes, capacity=CAPACITY)
    encoder.load_state_dict(renamed(theirs))
    return encoder


def followed_method(method: Method, followed: list[Halves], per_epoch: list[int]) -> Method:
    """The method, with both halves of each batch recorded; ``per_epoch`` are the batches of each version's epoch."""

    def begin(upgrade: Upgrade) -> Objective:
        objective = method.objective(upgrade)
        halves = Halves()
        followed.append(halves)
        batches = per_epoch[len(followed) - 1]
        count = 0

        def terms(step: Step) -> Terms:
            nonlocal count
            found = objective.terms(step)
            fd = None
            if step.old is not None:
                fd = float(feature_distillation(step.new.z.detach(), step.old.z, step.replay))
            halves.add(step.new.logits, step.targets, step.replay, fd)
            count += 1
            if count % batches == 0:
                halves.close()
            return found

        return replace(objective, terms=terms)

    return replace(method, begin=begin, terms=None)


def our_versions(
    scale: Scale, start: State, images: ImageSet, *, seed: int, device: str
) -> tuple[list[Encoder], list[list[dict[str, float]]]]:
    """The versions of our loop from the weights ``start``, and their epochs."""
    parts = [images.classes[: scale.first], images.classes[scale.first :]]
    sets = [images.of_classes(part) for part in parts]
    per_epoch = [
        len(sets[0]) // scale.batch_size,
        (len(sets[1]) + scale.first * scale.replayed) // scale.batch_size,
    ]
    followed: list[Halves] = []
    recipe = Recipe(
        epochs=scale.epochs,
        milestones=scale.milestones,
        weight_decay=scale.weight_decay,
        batch_size=scale.batch_size,
        precision="float32",  # as theirs
    )
    settings = Settings(
        capacity=CAPACITY,
        recipe=recipe,
        replay_per_class=scale.replayed,
        seed=seed,
        device=device,
    )
    # A step that is recorded for a GPU must not read values, and its warm-up would be counted as steps of an epoch.
    with mock.patch.object(loop, "CapturedSteps", side_effect=RuntimeError("values are read")):
        versions = run_scenario(
            TaskStream.of(sets, images.classes),
            method=followed_method(create_method("fd", base=scale.base), followed, per_epoch),
            settings=settings,
            pretrained=encoder_of(start, scale),
            progress=False,
        )
        encoders = [version.encoder for version in versions]
    return encoders, [one.epochs for one in followed]


# The same measure for both.


def judged(
    encoders: list[Encoder], data: Path, scale: Scale, preprocessing: Preprocessing | None = None
) -> dict[str, Any]:
    """C11, C21, C22 on z by both measures over 50 draws of the pairs; images normalised as in training, or as given."""
    images = dataset("cifar10").open(data, "test")
    rng = np.random.default_rng(0)
    images = images.take(rng.permutation(len(images))[: scale.judged_on])
    searched = SearchedImages(images, images)
    features = []
    for encoder in encoders:
        parts = (encoder.backbone, encoder.projection, encoder.classifier, encoder.slots)
        shown = Encoder(*parts, preprocessing or encoder.preprocessing).eval()
        features.append(shown.encode(images.images))
    versions = [
        VersionFeatures(f"v{number}", rows, rows) for number, rows in enumerate(features, start=1)
    ]
    pairs = (scale.pairs, scale.pairs)
    return {name: searched.over_draws(versions, name, pairs) for name in PROTOCOLS}


def classified(encoder: Encoder, images: ImageSet, scale: Scale) -> dict[str, float]:
    """The share of held-out images whose own prototype has the highest output, of old and of new classes."""
    with torch.no_grad():
        z = torch.from_numpy(encoder.encode(images.images, form="raw")).to(encoder.device)
        answers = encoder.classifier(z).argmax(dim=1).cpu().numpy()
    right = answers == images.labels
    old = images.labels < scale.first
    return {"old": float(right[old].mean()), "new": float(right[~old].mean())}


# Step by step.


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    """Both sides in float64, so that rounding, which batch norms amplify, hides no difference."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
            yield
    finally:
        torch.set_default_dtype(before)


def compared_batches(
    authors: dict[str, Any], old: int, new: int, seed: int
) -> dict[str, dict[str, float]]:
    """How often an epoch of the second task shows its images, at full size: 500 per new class, 20 per old one."""
    counts = {"replay": 20 * old, "new": 500 * new}
    batch_size = 128
    labels: NDArray[np.int64] = np.repeat([0, 1], list(counts.values()))
    np.random.seed(seed)  # noqa: NPY002 - what their code draws from
    theirs = authors["utils"].BalancedBatchSampler(
        mock.Mock(_y=labels), batch_size, n_classes=2, n_samples=len(labels), seen_classes=[0]
    )
    drawn = np.array(list(theirs))
    half = batch_size // 2
    pixels = ImageSet(np.zeros((1, 1, 1, 3), np.uint8), np.zeros(1, np.int64), ("one",))
    sources = []
    for name, count in counts.items():
        one = ResidentPixels(pixels, Augmentation(crop_padding=0), torch.device("cpu"))
        one.padded = one.padded.expand(count, -1, -1, -1)
        sources.append(BatchSource(one, torch.zeros(count), replay=name == "replay"))
    ours = Batches([sources[1], sources[0]], batch_size, Augmentation(), seed=seed)
    plan_new, plan_replay, *_ = ours.plan_on_device(0)[::4]
    rows = {
        "theirs": {"replay": drawn[:, :half], "new": drawn[:, half:] - counts["replay"]},
        "ours": {"replay": plan_replay.numpy(), "new": plan_new.numpy()},
    }
    return {side: _shown(parts, counts) for side, parts in rows.items()}


def _shown(parts: dict[str, Any], counts: dict[str, int]) -> dict[str, float]:
    """The batches of an epoch, and how often it shows each image."""
    found: dict[str, float] = {"batches": len(parts["new"])}
    for name, indices in parts.items():
        times = np.bincount(indices.ravel(), minlength=counts[name])
        found[f"{name}, least"] = int(times.min())
        found[f"{name}, most"] = int(times.max())
        found[f"{name}, share shown"] = round(float((times > 0).mean()), 4)
    return found


def compared_measures(authors: dict[str, Any], seed: int) -> list[float]:
    """Their verification accuracy of made features and pairs, and ours, in folds as they cut them."""
    rng = np.random.default_rng(seed)
    labels: NDArray[np.int64] = np.repeat(np.arange(10), 1000)
    centres = rng.normal(size=(10, 99))
    new, old = (
        unit(centres[labels] + noise * rng.normal(size=(len(labels), 99))) for noise in (3.0, 4.0)
    )
    pairs = draw_pairs(labels, *PAIRS, seed=seed)
    theirs = authors["eval"].verification(new[pairs.first], old[pairs.second], pairs.same)
    scores = pair_scores(new, old, pairs)
    return [float(theirs), kfold_accuracy(scores, pairs.same, stratified=False).mean]


def compared_fd(authors: dict[str, Any], scale: Scale, images: ImageSet, seed: int) -> list[Row]:
    """Steps of d-Simplex-FD, half of each batch replayed."""
    torch.manual_seed(seed)
    theirs = their_network(authors)
    previous = their_network(authors).eval()
    ours = encoder_of(theirs.state_dict(), scale, images.classes)
    old = encoder_of(previous.state_dict(), scale, images.classes).eval()
    known = images.classes[: scale.first]
    new = images.classes[scale.first :]
    upgrade = Upgrade(
        encoder=ours,
        teacher=None,
        images=images.of_classes(new),
        old_classes=known,
        new_classes=new,
        memory=images.of_classes(known),
    )
    objective = create_method("fd", base=scale.base).objective(upgrade)
    weighted = mock.Mock(criterion_weight_base=scale.base)
    weight = authors["utils"].update_criterion_weight(weighted, len(known), len(new))
    half = scale.batch_size // 2
    normalised = authors["utils"].l2_norm

    def their_terms(inputs: Tensor, targets: Tensor) -> Terms:
        feature, output = theirs(inputs)
        with torch.no_grad():
            feature_old, _ = previous(inputs)
        fd = authors["train"].EmbeddingsSimilarity(
            normalised(feature[:half]), normalised(feature_old[:half])
        )
        return {"ce": nn.functional.cross_entropy(output, targets), "fd": weight * fd}

    def our_terms(pixels: Tensor, targets: Tensor) -> Terms:
        with torch.no_grad():
            seen = old(pixels)
        replay = torch.arange(scale.batch_size) < half
        step = Step(new=ours(pixels, targets), old=seen, targets=targets, replay=replay)
        return objective.terms(step)

    rng = np.random.default_rng(seed)
    sides = (images.labels < scale.first, images.labels >= scale.first)
    batches = [
        np.concatenate([rng.choice(np.flatnonzero(side), half, replace=False) for side in sides])
        for _ in range(STEPS)
    ]
    return compared(
        theirs, ours, their_terms, our_terms, batches=[images.take(rows) for rows in batches]
    )


def compared_cores(
    authors: dict[str, Any], images: ImageSet, seed: int, batch_size: int = 4, steps: int = 2
) -> list[Row]:
    """Steps of CoReS with SENet-18, its network."""
    torch.manual_seed(seed)
    theirs = authors["model"].SENet18Cifar(100, 99, torch.device("cpu"))
    ours = Encoder.create("senet18", classes=images.classes, capacity=CAPACITY)
    ours.load_state_dict(renamed(theirs.state_dict()))
    method = create_method("cores")
    assert method.terms is not None
    loss = method.terms

    def their_terms(inputs: Tensor, targets: Tensor) -> Terms:
        return {"ce": nn.functional.cross_entropy(theirs(inputs)[1], targets)}

    def our_terms(pixels: Tensor, targets: Tensor) -> Terms:
        replay = torch.zeros(len(targets), dtype=torch.bool)
        return loss(Step(new=ours(pixels, targets), old=None, targets=targets, replay=replay))

    rng = np.random.default_rng(seed)
    batches = [
        images.take(rng.choice(len(images), batch_size, replace=False)) for _ in range(steps)
    ]
    return compared(theirs, ours, their_terms, our_terms, batches=batches)


def compared(
    theirs: nn.Module,
    ours: Encoder,
    their_terms: Callable[[Tensor, Tensor], Terms],
    our_terms: Callable[[Tensor, Tensor], Terms],
    batches: list[ImageSet],
) -> list[Row]:
    """Both losses of each batch, and the largest differences of gradients and of the weights after the update.

    Ours then takes over their weights: a difference in rounding would grow tenfold with every step.
    """
    models = (theirs.train(), ours.train())
    optimisers = [
        optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4) for model in models
    ]
    rows = []
    for batch in batches:
        assert isinstance(batch.images, np.ndarray)
        pixels = torch.from_numpy(batch.images).permute(0, 3, 1, 2).contiguous()
        targets = torch.from_numpy(batch.labels)
        inputs = (pixels / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[
            :, None, None
        ]
        terms = (their_terms(inputs, targets), our_terms(pixels, targets))
        for own, optimiser in zip(terms, optimisers, strict=True):
            optimiser.zero_grad()
            torch.autograd.backward(torch.stack(list(own.values())).sum())
        row: Row = {name: [float(own[name].detach()) for own in terms] for name in terms[0]}
        row["gradient"] = largest_difference(renamed(gradients(theirs)), gradients(ours))
        for optimiser in optimisers:
            optimiser.step()
        row["weights after"] = largest_difference(renamed(theirs.state_dict()), ours.state_dict())
        rows.append(row)
        ours.load_state_dict(renamed(theirs.state_dict()))
    return rows


def gradients(model: nn.Module) -> State:
    """The gradients by name."""
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def largest_difference(theirs: State, ours: State) -> dict[str, float]:
    """The largest absolute difference over all tensors, and the largest relative to its tensor's norm."""
    shared = [name for name in theirs if theirs[name].is_floating_point()]
    absolute = [float((theirs[name] - ours[name]).abs().max()) for name in shared]
    relative = [
        float((theirs[name] - ours[name]).norm() / theirs[name].norm().clamp(min=1e-12))
        for name in shared
    ]
    return {"absolute": max(absolute), "relative": max(relative), "tensors": len(shared)}


def run_steps(arguments: argparse.Namespace, scale: Scale) -> dict[str, Any]:
    """Steps of both sides, their measure and ours of made features."""
    images, _ = training_images(scale, arguments.data)
    names: tuple[str, ...] = ("eval", "model")
    package = "cores"
    if arguments.side == "fd-steps":
        names = ("eval", "main", "model", "train", "utils")
        package = "cl2r"
    authors = import_authors(package, arguments.checkout, names)
    with contextlib.ExitStack() as stack:
        for patch in patches(authors, scale, "cpu"):
            stack.enter_context(patch)
        stack.enter_context(in_double())
        if package == "cl2r":
            rows = compared_fd(authors, scale, images, arguments.seed)
        else:
            rows = compared_cores(authors, images, arguments.seed)
    found: dict[str, Any] = {}
    if package == "cl2r":
        found["batches"] = {
            f"{old} + {new}": compared_batches(authors, old, new, arguments.seed)
            for old, new in ((10, 90), (50, 50))
        }
    return found | {"steps": rows, "verification": compared_measures(authors, arguments.seed)}


def run_loop(arguments: argparse.Namespace, scale: Scale) -> dict[str, Any]:
    """One side's two versions, judged."""
    images = training_images(scale, arguments.data)
    classes = images[0].classes
    names = ("eval", "main", "model", "train", "utils")
    authors = import_authors("cl2r", arguments.checkout, names)
    began = time.process_time()
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        for patch in patches(authors, scale, arguments.device):
            stack.enter_context(patch)
        torch.manual_seed(arguments.seed)
        first = their_network(authors).state_dict()
        start = {name: value.clone() for name, value in first.items()}
        if arguments.side == "authors":
            states, epochs = their_versions(
                authors, scale, start, images, seed=arguments.seed, workers=arguments.workers
            )
            encoders = [encoder_of(state, scale, classes).to(arguments.device) for state in states]
        else:
            encoders, epochs = our_versions(
                scale, start, images[0], seed=arguments.seed, device=arguments.device
            )
    trained: Row = {
        "scale": asdict(scale),
        "seed": arguments.seed,
        "side": arguments.side,
        "device": arguments.device,
        "torch": torch.__version__,
        "epochs": epochs,
        "cpu seconds": round(time.process_time() - began),
        "seconds": round(time.monotonic() - begun),
    }
    replace_json(arguments.out, trained)
    for number, encoder in enumerate(encoders, start=1):
        save_file(encoder.state_dict(), weights_of(arguments.out, number))
    return trained | measured(encoders, images[1], arguments.data, scale)


def weights_of(out: Path, number: int) -> Path:
    """Where the weights of a version lie, beside the file of the run."""
    return out.with_suffix(f".v{number}.safetensors")


def measured(encoders: list[Encoder], held_out: ImageSet, data: Path, scale: Scale) -> Row:
    """What the versions classify and verify."""
    return {
        "classified": [classified(encoder, held_out, scale) for encoder in encoders],
        "measured": judged(encoders, data, scale),
        "measured by CIFAR-10's constants": judged(encoders, data, scale, CIFAR10),
    }


def judge_again(arguments: argparse.Namespace) -> Row:
    """The run of a file, with its kept weights measured."""
    run: Row = json.loads(arguments.out.read_text(encoding="utf-8"))
    scale = Scale(**{**run["scale"], "milestones": tuple(run["scale"]["milestones"])})
    _, held_out = training_images(scale, arguments.data)
    encoders = []
    for number in (1, 2):
        encoder = Encoder.create(
            CifarResNet(scale.depth), classes=held_out.classes, capacity=CAPACITY
        )
        encoder.load_state_dict(load_file(weights_of(arguments.out, number)))
        encoders.append(encoder.to(arguments.device))
    return run | measured(encoders, held_out, arguments.data, scale)


def main() -> None:
    """Read the arguments, run, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("side", choices=["authors", "ours", "judge", "fd-steps", "cores-steps"])
    parser.add_argument("--checkout", type=Path, help="needed but for judge")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--workers", type=int, default=0, help="that load the authors' batches")
    for name, value in asdict(Scale()).items():
        if name == "milestones":
            parser.add_argument("--milestones", type=int, nargs=2, default=value)
        else:
            option = "--" + name.replace("_", "-")
            parser.add_argument(option, type=type(value), default=value)
    arguments = parser.parse_args()
    arguments.milestones = tuple(arguments.milestones)
    torch.set_num_threads(1)
    scale = Scale(**{name: getattr(arguments, name) for name in asdict(Scale())})
    needed = [arguments.out, *(weights_of(arguments.out, number) for number in (1, 2))]
    missing = [file.name for file in needed if not file.exists()]
    if arguments.side == "judge" and missing:
        parser.error(
            f"judge measures a finished training; beside {arguments.out} there is no {', '.join(missing)}"
        )
    if arguments.side == "judge":
        replace_json(arguments.out, judge_again(arguments))
    elif arguments.checkout is None:
        parser.error(f"{arguments.side} needs --checkout: a folder with the public code")
    elif arguments.side.endswith("steps"):
        replace_json(arguments.out, run_steps(arguments, scale))
    else:
        replace_json(arguments.out, run_loop(arguments, scale))


if __name__ == "__main__":
    main()
