"""Two upgrades seen in the plane (CoReS, figures 3 and 10): IFT, BCT and CoReS with two-dimensional features.

Three versions know five, six and seven digits. Fine-tuning turns the features of the digits it knows already; BCT holds
them near the old classifier's prototypes; CoReS learns every digit in its direction of a fixed polygon (figure 4).
The digits are drawn on the spot, light on black like MNIST's, or come from MNIST's own files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fixstar.data import Augmentation, ImageSet, from_arrays, open_images
from fixstar.data.glyphs import glyph_pixels
from fixstar.data.streams import TaskStream, class_stream
from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation.feature_plot import Plane, class_turns, feature_plot
from fixstar.methods import Method, create_method
from fixstar.models import Encoder
from fixstar.scenarios import Past, Settings, train_version
from fixstar.training import Recipe

__all__ = ["PictureResult", "run_picture2d"]

FIRST, CLASSES, CAPACITY = 5, 7, 10  # digits of v1 and of v3; corners of the polygon
TEST = 80  # images a class that are drawn
# Sans-serif digits of Unicode's mathematical alphabets: only two fonts have them, so prints vary about as MNIST's do.
DIGITS = {str(digit): chr(0x1D7E2 + digit) for digit in range(1, CLASSES + 1)}

# Options for a feature that can be drawn, and the learning rate that suits the network.
BACKBONES: dict[str, tuple[dict[str, Any], float]] = {
    "lenet++": ({"feature_dim": 2}, 0.01),
    "tiny": ({"feature_dim": 2, "in_channels": 1, "width": 12, "normalised": False}, 0.05),
}

Say = Callable[[str], object]


@dataclass(frozen=True)
class PictureResult:
    """By method: how far known classes turned at each upgrade (degrees), and each version's accuracy (fractions)."""

    turns: dict[str, list[float]]
    accuracy: dict[str, list[float]]
    picture: str


def run_picture2d(
    out: Path,
    data: Path | None = None,
    backbone: str = "tiny",
    per_class: int = 300,
    epochs: int = 8,
    seed: int = 0,
    device: str = "auto",
    progress: bool = True,
    say: Say = print,
) -> PictureResult:
    """Train three versions by each method and draw their test features into ``out`` (PNG, SVG or PDF)."""
    settings = _settings(backbone, epochs, seed, device)
    say("Reading digits ..." if data else "Drawing digits ...")
    train, test = _images(data, per_class)
    stream = class_stream(train, FIRST, 1)
    planes: dict[str, list[Plane]] = {}
    firsts: dict[str, Encoder] = {}
    for name, method in _methods().items():
        say(f"{name}: {method.summary}")
        planes[name] = []
        for encoder in _versions(stream, method, settings, firsts, progress):
            planes[name].append(_plane(encoder, test))
    sizes = [len(stream.seen(task.number).classes) for task in stream]
    rows = [f"v{number}\n{size} classes" for number, size in enumerate(sizes, start=1)]
    feature_plot(planes, test.classes, rows, out, "Two upgrades seen in the plane: who keeps known classes in place?")
    return PictureResult(
        {name: [_mean_turn(*pair) for pair in itertools.pairwise(row)] for name, row in planes.items()},
        {name: [_accuracy(plane) for plane in row] for name, row in planes.items()},
        str(out),
    )


def _methods() -> dict[str, Method]:
    return {
        "IFT: fine-tuned": create_method("ift"),
        "BCT: old classifier as judge": create_method("bct"),
        "CoReS: fixed polygon": create_method("cores", polytope="polygon"),
    }


def _settings(backbone: str, epochs: int, seed: int, device: str) -> Settings:
    if backbone not in BACKBONES:
        raise UnknownNameError("backbone with a feature of two dimensions", backbone, BACKBONES)
    options, rate = BACKBONES[backbone]
    milestones = (round(0.6 * epochs), round(0.85 * epochs))
    return Settings(
        backbone=backbone,
        backbone_options=options,
        capacity=CAPACITY,
        recipe=Recipe(epochs=epochs, learning_rate=rate, milestones=milestones, weight_decay=5e-4, batch_size=64),
        augmentation=Augmentation(crop_padding=1, flip=False),
        seed=seed,
        device=device,
    )


def _images(data: Path | None, per_class: int) -> tuple[ImageSet, ImageSet]:
    """Training and test images of ``CLASSES`` digits."""
    if per_class < 1:
        raise InputError(f"need at least one image a class, got {per_class}")
    if data is None:
        return _drawn(per_class, seed=1), _drawn(TEST, seed=2)
    train, test = open_images(data, "train"), open_images(data, "test")
    if len(train.classes) < CLASSES:
        raise InputError(f"{data} has {len(train.classes)} classes; the picture needs {CLASSES}")
    return _first_of_each(train, train.classes[:CLASSES], per_class), _first_of_each(
        test, train.classes[:CLASSES], TEST
    )


def _first_of_each(images: ImageSet, classes: tuple[str, ...], count: int) -> ImageSet:
    chosen = images.of_classes(classes)
    return chosen.take(np.concatenate([np.flatnonzero(chosen.labels == c)[:count] for c in range(len(classes))]))


def _drawn(per_class: int, seed: int) -> ImageSet:
    pixels, labels = glyph_pixels(list(DIGITS.values()), per_class, size=28, seed=seed)
    return from_arrays(_as_mnist(pixels), labels, list(DIGITS), "digits")


def _as_mnist(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Dark ink on uneven paper [N, H, W, 1] as light ink on black; most of the paper's shade and grain is gone."""
    rows = (pixels + np.roll(pixels, 1, axis=1).astype(np.float64)) / 2
    smooth = (rows + np.roll(rows, 1, axis=2)) / 2
    paper, ink = np.percentile(smooth, (75, 3), axis=(1, 2), keepdims=True)
    depth = (paper - smooth) / np.maximum(paper - ink, 1)
    light: NDArray[np.uint8] = (255 * np.clip((depth - 0.3) / 0.5, 0, 1)).astype(np.uint8)
    return light


def _versions(
    stream: TaskStream, method: Method, settings: Settings, firsts: dict[str, Encoder], progress: bool
) -> list[Encoder]:
    """The versions of one method. First versions are plain cross-entropy: one a kind of classifier serves all."""
    encoders: list[Encoder] = []
    for task in stream:
        if not encoders and method.classifier in firsts:
            encoders.append(firsts[method.classifier])
            continue
        images, previous = stream.seen(task.number), encoders[-1] if encoders else None
        version = train_version(task.number, images, Past(previous), method, settings, progress=progress)
        encoders.append(version.encoder)
    firsts.setdefault(method.classifier, encoders[0])
    return encoders


def _plane(encoder: Encoder, test: ImageSet) -> Plane:
    """The test features of the classes that the version knows, with its prototypes; labels are slots."""
    known = test.of_classes(encoder.slots.classes)
    with torch.no_grad():
        logits: torch.Tensor = encoder.classifier(torch.eye(2, device=encoder.device))  # of unit vectors: prototypes
    slots = np.array(encoder.slots.of(known.classes))
    return Plane(encoder.encode(known.images, form="raw"), slots[known.labels], logits.T.cpu().numpy())


def _mean_turn(before: Plane, after: Plane) -> float:
    return float(np.abs(list(class_turns(before, after).values())).mean())


def _accuracy(plane: Plane) -> float:
    """How often the largest logit is the right one, among classes known so far."""
    logits = plane.features @ plane.prototypes[: int(plane.labels.max()) + 1].T
    return float((logits.argmax(axis=1) == plane.labels).mean())
