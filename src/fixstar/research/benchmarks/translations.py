"""Translations between the versions of a run, fitted on the images that were available when a version was trained.

Those images are the task's and the replay memory, or all images so far if versions are retrained: only images that
the version itself was trained on. Each is used unchanged and in a few crops. Every older model embeds them again, so
a translated run keeps all older models.

translations/v3/v1.npz      how queries of v3 search what v1 stored; a finished one is never fitted again
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.data import (
    Augmentation,
    ImageSet,
    ReplayMemory,
    TaskStream,
    augmented_views,
    concatenate,
)
from fixstar.models import Encoder, FrozenEncoder
from fixstar.training import Settings, Version
from fixstar.training.run_directory import RunDirectory
from fixstar.translation import Pairs, Translation, fit_map, load_translation, save_translation
from fixstar.versions import version_name

VIEWS = 3  # crops of each image, beside the image itself
MOST = 50_000  # images; a larger set is sampled
_PIXELS = (
    1 << 20
)  # embedded at a time, in 256 to 1024 images: a GPU waits for the host after each batch

Vectors = NDArray[np.float32]


def embedded(encoder: Encoder, images: Any, progress: bool = False) -> Vectors:
    """Short forms of images; arrays of another size than the model's are resized."""
    size = encoder.preprocessing.size
    if isinstance(images, np.ndarray) and images.shape[1:3] != size:
        return FrozenEncoder(encoder).encode(images, form="short")
    batch = min(1024, max(256, _PIXELS // math.prod(size)))
    return encoder.encode(images, batch_size=batch, form="short", progress=progress)


def translation_file(folder: Path, source: int, target: int) -> Path:
    """Where the run in ``folder`` keeps the translation from one version to another."""
    return folder / "translations" / version_name(target) / f"{version_name(source)}.npz"


def read_translation(folder: Path, source: int, target: int) -> Translation:
    """The translation of a run in ``folder`` from one version to another."""
    return load_translation(translation_file(folder, source, target))


def fit_translations(
    version: Version,
    stream: TaskStream,
    settings: Settings,
    folder: Path,
    *,
    lifelong: bool,
    shared: bool,
    weight: float,
) -> None:
    """Fit the translations from all older versions to this one, except existing ones.

    With ``shared`` the versions have one space: then the newest version's queries are carried, not mapped back.
    """
    number = version.number
    missing = [k for k in range(1, number) if not translation_file(folder, k, number).exists()]
    if not missing:
        return
    directory = RunDirectory(folder / "run")
    images = images_at_hand(version, stream, settings, directory if lifelong else None)
    pixels = views_of(images, settings.augmentation, seed=number)
    labels = np.tile(images.labels, 1 + VIEWS)
    new = embedded(version.encoder, pixels)
    device = settings.torch_device()
    for k in missing:
        older = Encoder.load(directory.version(k), device)
        pairs = Pairs.checked(embedded(older, pixels), new, groups=labels, seed=settings.seed)
        way = fitted(
            source=version_name(k),
            target=version.name,
            pairs=pairs,
            weight=weight,
            shared=shared,
            device=str(device),
        )
        save_translation(way, translation_file(folder, k, number), onnx=False)


def images_at_hand(
    version: Version, stream: TaskStream, settings: Settings, memories: RunDirectory | None
) -> ImageSet:
    """What a version was trained on, at its size: with the run's ``memories`` its task and the memory before it.

    Without them it is all images so far.
    """
    number = version.number
    inputs = version.encoder.preprocessing
    images = stream.seen(number)
    if memories is not None:
        images = stream[number - 1].images
    parts = []
    if len(images):
        parts.append(images)
    if memories is not None and number > 1:
        remembered = ReplayMemory.load(memories.memory(number - 1)).images
        if remembered is not None:
            parts.append(remembered)
    loaded = [drawn(part, MOST, number).load(inputs, settings.bad_images).images for part in parts]
    return concatenate(loaded)


def drawn(images: ImageSet, most: int, seed: int) -> ImageSet:
    """A random sample of at most this many images, in their order; the seed decides which."""
    if len(images) <= most:
        return images
    rows = np.random.default_rng(seed).permutation(len(images))[:most]
    return images.take(np.sort(rows))


def views_of(images: ImageSet, augmentation: Augmentation, seed: int) -> NDArray[np.uint8]:
    """The images, and then ``VIEWS`` crops of each: uint8 [(1 + VIEWS) * N, H, W, C]."""
    pixels = np.asarray(images.images)
    return np.concatenate([pixels, augmented_views(pixels, augmentation, VIEWS, seed)])


def fitted(
    source: str, target: str, pairs: Pairs, weight: float, shared: bool, device: str
) -> Translation:
    """A translation of fixed weight, with one model per query or with two."""
    forward = fit_map("residual", pairs, device=device)
    backward = None
    if not shared:
        backward = fit_map("contrast", pairs.reversed, device=device).map
    return Translation(
        source,
        target,
        forward=forward.map,
        backward=backward,
        one=weight,
        two=weight,
        shared=shared,
        about={"pairs": len(pairs), "forward": "residual", **forward.chosen},
    )
