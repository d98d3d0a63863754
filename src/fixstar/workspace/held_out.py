"""Labelled images that training never sees, split off at training time, for the gate: held-out/v1.safetensors, ...

They are kept as pixels at the model's size, so the gate works when the originals are gone. Where images may not be
kept nothing is split off, and the gate needs images from the user.

An image draws a number by its content. held-out/v1.json keeps what the images drew that were held out, v1-learnt.npy
what those drew that were trained on (8 bytes each): so it is known which version has learnt what another held out.
Of versions from before that was kept the card's share (``about["hold_out"]``) says which ones they may have learnt.
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
from fixstar.durable import replace_file, replace_json
from fixstar.errors import ImageError, InputError
from fixstar.images import Preprocessing, decode_ahead
from fixstar.workspace.registry import Registry

__all__ = [
    "SHARE",
    "SplitOff",
    "UnlearntImages",
    "held_out_images",
    "keep_held_out",
    "keep_learnt",
    "split_off",
    "unlearnt_images",
]

SHARE = "hold_out"  # of a card's ``about``

_SMALL = Preprocessing(size=(32, 32), mean=(0, 0, 0), std=(1, 1, 1), fit="squash")
MOST = 5000  # images kept: at 224 x 224 they take 750 MB


class SplitOff(NamedTuple):
    """Images to train on, what each of them drew, and the images held out: None where there are none."""

    shown: ImageSet
    drawn: NDArray[np.float64]
    held: ImageSet | None


def split_off(images: ImageSet, share: float) -> SplitOff:
    """The images to train on, and those held out, about ``share`` of them; a class never loses its last image.

    The content of an image decides, so the same image falls on the same side in every later training with this share,
    or a larger one. Training that goes on after an interruption finds its own split. Each file is read once.
    """
    if not 0 <= share <= 0.5:
        raise InputError(f"the share that is held out lies between 0 and 0.5, got {share}")
    drawn = np.array([_draw(source) for source in images.images], np.float64)
    held = drawn < share
    held[_unreadable(images, np.flatnonzero(held))] = False  # training says what is wrong with them
    for label in range(len(images.classes)):
        mine = images.labels == label
        if held[mine].all():
            held[mine] = False
    if not held.any():
        return SplitOff(images, drawn, None)
    return SplitOff(images.take(~held), drawn[~held], images.take(held))


def _unreadable(images: ImageSet, rows: NDArray[np.intp]) -> list[int]:
    """Those of the rows whose files are no images."""
    if images.resident:
        return []
    sources = [images.images[row] for row in rows]
    decoded = zip(rows.tolist(), decode_ahead(sources, _SMALL), strict=True)
    return [row for row, pixels in decoded if isinstance(pixels, ImageError)]


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


def keep_learnt(workspace: Path, name: str, drawn: NDArray[np.float64]) -> None:
    """Keep what the images drew that a version was trained on."""

    def write(partial: Path) -> None:
        with partial.open("wb") as file:  # given a name, numpy would add its own ending
            np.save(file, np.unique(drawn), allow_pickle=False)

    replace_file(_learnt_path(workspace, name), write)


def held_out_images(workspace: Path, names: Sequence[str], preprocessing: Preprocessing) -> ImageSet | None:
    """What was held out from these versions' training, together and once each; None where nothing was.

    Sizes may differ between versions: all are brought to the size of ``preprocessing``.
    """
    return _together([images for images, _ in _kept(workspace, names)], preprocessing)


class UnlearntImages(NamedTuple):
    """Held-out images that no version in question has learnt; None where there are none.

    ``learnt_by`` are versions that have learnt others, or may have, which are therefore not among them.
    """

    images: ImageSet | None
    learnt_by: tuple[str, ...] = ()


def unlearnt_images(
    registry: Registry, version: str, live: Sequence[str], preprocessing: Preprocessing
) -> UnlearntImages:
    """What was held out up to a version and has been learnt by none of them, nor by a ``live`` one.

    Where it is not known what a version has learnt, those are taken to be unlearnt that drew less than the share that
    it held out. A card without a share, from before shares were kept, says nothing.
    """
    names = [*registry.retired(), *registry.names()]
    earlier = [name for name in names if int(name[1:]) <= int(version[1:])]
    asked = [name for name in names if name in earlier or name in live]
    found, learnt_by = list[ImageSet](), set[str]()
    for images, draws in _kept(registry.path, earlier):
        unlearnt = {name: _unlearnt(registry, name, draws) for name in asked}
        found.append(images.take(np.logical_and.reduce(list(unlearnt.values()))))
        learnt_by |= {name for name, mask in unlearnt.items() if not mask.all()}
    return UnlearntImages(_together(found, preprocessing), tuple(name for name in asked if name in learnt_by))


def _unlearnt(registry: Registry, name: str, draws: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[n]: which of the images that drew ``draws`` [n] a version has not learnt; a draw of zero is an unknown one."""
    learnt, share = _learnt(registry.path, name), registry.card(name)["about"].get(SHARE)
    allowed = np.ones(len(draws), bool) if share is None else draws < float(share)
    return allowed if learnt is None else np.where(draws == 0, allowed, ~np.isin(draws, learnt))


def _learnt(workspace: Path, name: str) -> NDArray[np.float64] | None:
    """What the images drew that a version was trained on; None where that was not kept or cannot be read."""
    try:
        drawn = np.load(_learnt_path(workspace, name), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return drawn if isinstance(drawn, np.ndarray) and drawn.dtype == np.float64 and drawn.ndim == 1 else None


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


def _learnt_path(workspace: Path, name: str) -> Path:
    return workspace / "held-out" / f"{name}-learnt.npy"
