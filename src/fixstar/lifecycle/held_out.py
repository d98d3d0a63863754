"""Labelled images that training never sees, split off at training time, for the gate: held-out/v1.safetensors, ...

They are kept as pixels at the model's size, so the gate works when the originals are gone. Where images may not be
kept nothing is split off, and the gate needs images from the user.

A version's card says which share it held out (``about["hold_out"]``), and held-out/v1.json what each image drew: a
version that held out less may have learnt an image that another one did not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.data.image_set import ImageSet, concatenate
from fixstar.data.replay import ReplayMemory
from fixstar.durable import replace_json
from fixstar.errors import InputError
from fixstar.images import BadImage, Preprocessing, decode_ahead
from fixstar.lifecycle.registry import Registry

__all__ = ["SHARE", "UnlearntImages", "held_out_images", "keep_held_out", "split_off", "unlearnt_images"]

SHARE = "hold_out"  # of a card's ``about``

_SMALL = Preprocessing(size=(32, 32), mean=(0, 0, 0), std=(1, 1, 1), fit="squash")
MOST = 5000  # images kept: at 224 x 224 they take 750 MB


def split_off(images: ImageSet, share: float) -> tuple[ImageSet, ImageSet | None]:
    """The images to train on, and those held out, about ``share`` of them; a class never loses its last image.

    The content of an image decides, so the same image falls on the same side in every later training with this share,
    or a larger one. Training that goes on after an interruption finds its own split.
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
    """Keep the images held out from a version's training, with their draws; those that cannot be read are left out."""
    chosen = images.take(np.sort(np.random.default_rng(0).permutation(len(images))[:MOST]))
    loaded, bad = chosen.load(preprocessing, "skip")
    unread = {one.index for one in bad}
    draws = [_draw(source) for row, source in enumerate(chosen.images) if row not in unread]
    replace_json(_draws_path(workspace, name), {"format": "fixstar-draws", "draws": draws})
    ReplayMemory(MOST, loaded).save(_path(workspace, name))


def held_out_images(workspace: Path, names: Sequence[str], preprocessing: Preprocessing) -> ImageSet | None:
    """What was held out from these versions' training, together and once each; None where nothing was.

    Sizes may differ between versions: all are brought to the size of ``preprocessing``.
    """
    return _together([images for images, _ in _kept(workspace, names)], preprocessing)


class UnlearntImages(NamedTuple):
    """Held-out images that no version in question has learnt; None where there are none.

    ``learnt_by`` are versions that may have learnt others, which are therefore not among them.
    """

    images: ImageSet | None
    learnt_by: tuple[str, ...] = ()


def unlearnt_images(
    registry: Registry, version: str, live: Sequence[str], preprocessing: Preprocessing
) -> UnlearntImages:
    """What was held out up to a version and has been learnt by none of them, nor by a ``live`` one.

    Images that drew less than the share that each of them held out. A card without a share, from before shares were
    kept, says nothing.
    """
    names = [*registry.retired(), *registry.names()]
    earlier = [name for name in names if int(name[1:]) <= int(version[1:])]
    told = {name: registry.card(name)["about"].get(SHARE) for name in names if name in earlier or name in live}
    shares = {name: float(share) for name, share in told.items() if share is not None}
    least = min(shares.values(), default=1.0)
    kept = list(_kept(registry.path, earlier))
    images = _together([images.take(draws < least) for images, draws in kept], preprocessing)
    learnt = any((draws >= least).any() for _, draws in kept)
    return UnlearntImages(images, tuple(name for name in shares if learnt and shares[name] == least))


def _kept(workspace: Path, names: Sequence[str]) -> Iterator[tuple[ImageSet, NDArray[np.float64]]]:
    """What each version held out, and what each image drew.

    Draws are zero in workspaces from before they were kept: any share above zero may have held those images out.
    """
    for name in names:
        file = _path(workspace, name)
        images = ReplayMemory.load(file).images if file.is_file() else None
        if images is None:
            continue
        try:
            content = json.loads(_draws_path(workspace, name).read_text(encoding="utf-8"))
            draws = np.array(content["draws"], np.float64)
        except (OSError, ValueError, KeyError, TypeError):
            draws = np.zeros(0)
        yield images, draws if len(draws) == len(images) else np.zeros(len(images))


def _together(sets: Sequence[ImageSet], preprocessing: Preprocessing) -> ImageSet | None:
    found = [images.load(preprocessing).images for images in sets if len(images)]
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


def _draws_path(workspace: Path, name: str) -> Path:
    return workspace / "held-out" / f"{name}.json"
