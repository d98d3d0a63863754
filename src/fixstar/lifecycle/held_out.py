"""Labelled images that training never sees, split off at training time, for the gate: held-out/v1.safetensors, ...

They are kept as pixels at the model's size, so the gate works when the originals are gone. Where images may not be
kept nothing is split off, and the gate needs images from the user.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fixstar.data.image_set import ImageSet, concatenate
from fixstar.data.replay import ReplayMemory
from fixstar.errors import InputError
from fixstar.images import BadImage, Preprocessing, decode_ahead

__all__ = ["held_out_images", "keep_held_out", "split_off"]

_SMALL = Preprocessing(size=(32, 32), mean=(0, 0, 0), std=(1, 1, 1), fit="squash")
MOST = 5000  # images kept: at 224 x 224 they take 750 MB


def split_off(images: ImageSet, share: float) -> tuple[ImageSet, ImageSet | None]:
    """The images to train on, and those held out, about ``share`` of them; a class never loses its last image.

    The content of an image decides, so the same image falls on the same side in every later training: what the gate
    asks about has not been learnt by any version. Training that goes on after an interruption finds its own split.
    """
    if not 0 <= share <= 0.5:
        raise InputError(f"the share that is held out lies between 0 and 0.5, got {share}")
    if not share or not len(images):
        return images, None
    held = np.array([_draw(source) < share for source in images.images])
    held[_unreadable(images, np.flatnonzero(held))] = False  # training says what is wrong with them
    for label in range(len(images.classes)):
        mine = images.labels == label
        if held[mine].all():
            held[mine] = False
    return (images.take(~held), images.take(held)) if held.any() else (images, None)


def _unreadable(images: ImageSet, rows: NDArray[np.intp]) -> list[int]:
    """Those of the rows whose files are no images."""
    if images.resident:
        return []
    sources = [images.images[row] for row in rows]
    decoded = zip(rows.tolist(), decode_ahead(sources, _SMALL), strict=True)
    return [row for row, pixels in decoded if isinstance(pixels, BadImage)]


def _draw(source: Path | NDArray[np.uint8]) -> float:
    """A number from 0 to 1 that an image's content decides. A file that cannot be read stays with the rest."""
    try:
        content = source.read_bytes() if isinstance(source, Path) else np.ascontiguousarray(source).tobytes()
    except OSError:
        return 1.0
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") / 2**64


def keep_held_out(workspace: Path, name: str, images: ImageSet, preprocessing: Preprocessing) -> None:
    """Keep the images held out from a version's training; those that cannot be read are left out."""
    chosen = np.random.default_rng(0).permutation(len(images))[:MOST]
    loaded = images.take(np.sort(chosen)).load(preprocessing, "skip").images
    ReplayMemory(MOST, loaded).save(_path(workspace, name))


def held_out_images(workspace: Path, names: list[str], preprocessing: Preprocessing) -> ImageSet | None:
    """What was held out from these versions' training, together and once each; None where nothing was.

    Sizes may differ between versions: all are brought to the size of ``preprocessing``.
    """
    kept = [ReplayMemory.load(_path(workspace, name)).images for name in names if _path(workspace, name).is_file()]
    found = [images.load(preprocessing).images for images in kept if images is not None and len(images)]
    return _once(concatenate(found)) if found else None


def _once(images: ImageSet) -> ImageSet:
    """Without repeats, such as images that several trainings were given: one would be found by its own copy."""
    first: dict[bytes, int] = {}
    for row, pixels in enumerate(images.images):
        content = np.ascontiguousarray(pixels).tobytes()
        first.setdefault(hashlib.blake2b(content, digest_size=16).digest(), row)
    return images.take(list(first.values()))


def _path(workspace: Path, name: str) -> Path:
    return workspace / "held-out" / f"{name}.safetensors"
