"""Labelled images that training never sees, split off at training time, for the gate: held-out/v1.safetensors, ...

They are kept as pixels at the model's size, so the gate works even if the originals are gone. If images may not be
kept, nothing is split off, and the gate needs images from the user.

Every image draws a number from a hash of its content. held-out/v1.json keeps the draws of the held-out images, and
v1-learnt.safetensors the draws of the training images (8 bytes each). They show whether a version was trained on images
that another version held out. learnt/v1.json lists the files of the training images: a later version is also trained on
those that still exist unchanged.

The user's own images can get a name (held-out/named.json). Later checks use them again and notice a changed folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fixstar.data.formats import open_images
from fixstar.data.image_set import ImageSet, concatenate
from fixstar.data.replay import ReplayMemory
from fixstar.durable import (
    document,
    parse_document,
    read_arrays,
    read_document,
    replace_json,
    write_arrays,
)
from fixstar.errors import ImageError, InputError, ModelError, NextStep, UnknownNameError, plural
from fixstar.images import Preprocessing, decode_ahead
from fixstar.images.reading import content
from fixstar.versions import version_number
from fixstar.workspace.files import require_writable
from fixstar.workspace.registry import Registry

SHARE = "hold_out"  # of a card's ``about``
HELD_OUT = "held-out"  # the name of the images that training held out
MOST = 5000  # images kept: at 224 x 224 they take 750 MB

_SMALL = Preprocessing(size=(32, 32), mean=(0, 0, 0), std=(1, 1, 1), fit="squash")


class SplitOff(NamedTuple):
    """Images to train on, the draw of each, and the held-out images (None if there are none)."""

    shown: ImageSet
    drawn: NDArray[np.float64]
    held: ImageSet | None


def split_off(images: ImageSet, share: float) -> SplitOff:
    """The images to train on, and about ``share`` held out; a class never loses its last image.

    The content decides, so a held-out image is held out in every later training with this share or a larger one.
    """
    if not 0 <= share <= 0.5:
        raise InputError(f"the held-out share must be between 0 and 0.5, got {share}")
    drawn = np.array([_draw(source) for source in images.images], np.float64)
    held = drawn < share
    held[_unreadable(images, np.flatnonzero(held))] = False  # training will report them
    for label in range(len(images.classes)):
        mine = images.labels == label
        if held[mine].all():
            held[mine] = False
    if not held.any():
        return SplitOff(images, drawn, None)
    return SplitOff(images.take(~held), drawn[~held], images.take(held))


def _unreadable(images: ImageSet, rows: NDArray[np.intp]) -> list[int]:
    if images.resident:
        return []
    decoded = zip(
        rows.tolist(), decode_ahead([images.images[row] for row in rows], _SMALL), strict=True
    )
    return [row for row, pixels in decoded if isinstance(pixels, ImageError)]


def _draw(source: Path | NDArray[np.uint8]) -> float:
    """A number from 0 to 1, hashed from the image's content. An unreadable file is not held out."""
    try:
        seen = content(source)
    except OSError:
        return 1.0
    return int.from_bytes(hashlib.blake2b(seen, digest_size=8).digest(), "big") / 2**64


def keep_held_out(
    workspace: Path, name: str, images: ImageSet, preprocessing: Preprocessing
) -> None:
    """Keep the images held out from a version's training, with their draws; unreadable images are skipped."""
    chosen = images.take(np.sort(np.random.default_rng(0).permutation(len(images))[:MOST]))
    loaded, bad = chosen.load(preprocessing, "skip")
    unread = {one.index for one in bad}
    draws = [_draw(source) for row, source in enumerate(chosen.images) if row not in unread]
    replace_json(_file(workspace, f"{name}.json"), document("draws", {"draws": draws}))
    ReplayMemory(MOST, loaded).save(_file(workspace, f"{name}.safetensors"))


def keep_learnt(workspace: Path, name: str, split: SplitOff, files: bool = True) -> None:
    """Keep the draws of the images that a version was trained on; with ``files``, also their paths."""
    write_arrays(
        _file(workspace, f"{name}-learnt.safetensors"),
        name="learnt",
        content={},
        arrays={"draws": np.unique(split.drawn)},
    )
    shown = split.shown
    if not files or shown.resident:
        return
    rows = zip(shown.images, shown.labels.tolist(), split.drawn.tolist(), strict=True)
    learnt = [
        [str(Path(path).absolute()), shown.classes[label], draw] for path, label, draw in rows
    ]
    replace_json(
        workspace / "learnt" / f"{name}.json", document("learnt-images", {"images": learnt})
    )


class FoundImages(NamedTuple):
    """Images of earlier trainings whose files still exist unchanged, and how many there were."""

    images: ImageSet | None
    of: int

    def __len__(self) -> int:
        return 0 if self.images is None else len(self.images)


def found_images(workspace: Path, versions: Sequence[str], following: SplitOff) -> FoundImages:
    """Training images of earlier versions, without duplicates and without images in ``following``."""
    known = set(following.drawn.tolist())
    if following.held is not None:
        known |= {_draw(source) for source in following.held.images}
    paths: list[Path] = []
    labels: list[str] = []
    of = 0
    for name in versions:
        file = workspace / "learnt" / f"{name}.json"
        if not file.is_file():
            continue
        for path, label, draw in read_document(file, "learnt-images")["images"]:
            if draw in known:
                continue
            known.add(draw)
            of += 1
            if Path(path).is_file() and _draw(Path(path)) == draw:
                paths.append(Path(path))
                labels.append(label)
    if not paths:
        return FoundImages(None, of)
    classes = tuple(dict.fromkeys(labels))
    numbers = np.array([classes.index(label) for label in labels], np.int64)
    return FoundImages(
        ImageSet(images=tuple(paths), labels=numbers, classes=classes, name="earlier images"), of
    )


def held_out_images(
    workspace: Path, names: Sequence[str], preprocessing: Preprocessing
) -> ImageSet | None:
    """The images held out from these versions' training, without duplicates, at one size; None without any."""
    return _together([images for images, _ in _kept(workspace, names)], preprocessing)


class UnlearntImages(NamedTuple):
    """Held-out images that no version was trained on, and the versions that were trained on others."""

    images: ImageSet | None
    learnt_by: tuple[str, ...] = ()


def unlearnt_images(
    registry: Registry,
    version: str,
    searched: Sequence[str],
    preprocessing: Preprocessing,
    following: SplitOff | None = None,
) -> UnlearntImages:
    """Images held out up to a version that neither those versions, ``searched`` nor ``following`` have learnt."""
    names = registry.known()
    earlier = [name for name in names if version_number(name) <= version_number(version)]
    asked = [name for name in names if name in earlier or name in searched]
    found = list[ImageSet]()
    learnt_by = set[str]()
    kept = list(_kept(registry.path, earlier))
    if following is not None and following.held is not None:
        kept.append(
            (
                following.held,
                np.array([_draw(source) for source in following.held.images], np.float64),
            )
        )
    for images, draws in kept:
        unlearnt = {name: _unlearnt(registry, name, draws) for name in asked}
        if following is not None:
            unlearnt["following"] = ~np.isin(draws, following.drawn)
        found.append(images.take(np.logical_and.reduce(list(unlearnt.values()))))
        learnt_by |= {name for name, mask in unlearnt.items() if not mask.all()}
    return UnlearntImages(
        _together(found, preprocessing), tuple(name for name in asked if name in learnt_by)
    )


def _unlearnt(registry: Registry, name: str, draws: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which images, given their ``draws`` [n], a version has not learnt; without its list, judged by its share."""
    try:
        _, learnt = read_arrays(_file(registry.path, f"{name}-learnt.safetensors"), "learnt")
        return ~np.isin(draws, learnt["draws"].astype(np.float64))
    except (ModelError, OSError, KeyError):
        share = registry.card(name)["about"].get(SHARE)
        if share is None:
            return np.ones(len(draws), bool)
        return draws < float(share)


def _kept(workspace: Path, names: Sequence[str]) -> Iterator[tuple[ImageSet, NDArray[np.float64]]]:
    """The held-out images of each version and their draws. Images with damaged draws are skipped."""
    for name in names:
        file = _file(workspace, f"{name}.safetensors")
        if file.is_file():
            images = ReplayMemory.load(file).images
        else:
            images = None
        if images is None:
            continue
        try:
            draws = parse_document(_file(workspace, f"{name}.json"), "draws", _draws)
        except (ModelError, OSError):
            continue
        if len(draws) == len(images):
            yield images, draws


def _draws(stored: Mapping[str, Any]) -> NDArray[np.float64]:
    return np.array(stored["draws"], np.float64)


def _together(sets: Sequence[ImageSet], preprocessing: Preprocessing) -> ImageSet | None:
    """All images without duplicates: a copy in the gallery would be found by its own query."""
    found = [images.load(preprocessing).images for images in sets if len(images)]
    if not found:
        return None
    images = concatenate(found)
    first: dict[bytes, int] = {}
    for row, pixels in enumerate(images.images):
        data = np.ascontiguousarray(pixels).tobytes()
        first.setdefault(hashlib.blake2b(data, digest_size=16).digest(), row)
    return images.take(list(first.values()))


# --- named images


def pin_images(
    workspace: Path,
    name: str,
    path: Path | None = None,
    split: str = "train",
    label: str | None = None,
    text: str | None = None,
) -> None:
    """Use the images of a name for all later checks; with a ``path`` the name stands for the images or texts there."""
    require_writable(workspace / "held-out", "names of images")
    known = _named(workspace)
    if path is not None:
        if name == HELD_OUT or not name.isprintable() or not 0 < len(name.strip()) <= 64:
            raise InputError(
                f"a name needs 1 to 64 printable characters and must not be {HELD_OUT!r}; got {name!r}"
            )
        images = open_images(path, split, label, text)
        kept = {
            "path": str(path.absolute()),
            "split": split,
            "label": label,
            "text": text,
            "images": len(images),
        }
        known["sets"][name] = {**kept, "fingerprint": images.fingerprint(read=True)}
    elif name != HELD_OUT and name not in known["sets"]:
        raise UnknownNameError("name of images", name, [HELD_OUT, *known["sets"]])
    known["default"] = name
    replace_json(_file(workspace, "named.json"), document("named-images", known))


def named_images(workspace: Path, name: str | None = None) -> ImageSet | None:
    """The named or pinned images; None means held-out images. Raises if the images have changed."""
    known = _named(workspace)
    chosen = name or known["default"]
    if chosen == HELD_OUT:
        return None
    if chosen not in known["sets"]:
        raise UnknownNameError("name of images", chosen, [HELD_OUT, *known["sets"]])
    kept = known["sets"][chosen]
    images = open_images(kept["path"], kept["split"], kept["label"], kept.get("text"))
    if images.fingerprint(read=True) != kept["fingerprint"]:
        raise InputError(
            f"the images named {chosen!r} have changed: {plural(kept['images'], 'image')} when they got the name, "
            f"{len(images):,} now. Restore them, or give the current images a name",
            NextStep("check", {"data": ..., "name": ...}, "the images as they are now"),
        )
    return replace(images, name=chosen)


def _named(workspace: Path) -> dict[str, Any]:
    """The pinned name, and the images of each name."""
    file = _file(workspace, "named.json")
    if file.is_file():
        known = read_document(file, "named-images")
    else:
        known = {}
    return {"default": known.get("default", HELD_OUT), "sets": dict(known.get("sets", {}))}


def _file(workspace: Path, name: str) -> Path:
    return workspace / "held-out" / name
