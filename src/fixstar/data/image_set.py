"""Labelled images or texts: the common form of all datasets.

An ``ImageSet`` holds pixels (one uint8 array, "resident"), the files they come from, or texts. ``load`` decodes files
once, to pixels at a model's size; training then does not read from disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fixstar.errors import (
    DataError,
    ImageError,
    InputError,
    ItemError,
    NextStep,
    TextError,
    UnknownNameError,
    plural,
)
from fixstar.images import Preprocessing, decode_ahead, read_pixels
from fixstar.images.reading import content
from fixstar.progress import Advance, silent
from fixstar.texts import Prompts, checked_text

_SHOWN = 10  # unreadable images that an error lists by name
_HASHED = 4096  # images hashed at a time

Bad = Literal["refuse", "skip"]


class ReadImages(NamedTuple):
    """The readable images, and an error for each of the others."""

    images: ImageSet
    bad: tuple[ItemError, ...]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images or texts, an integer label for each, and the class names that the labels stand for."""

    images: (
        npt.NDArray[np.uint8] | tuple[Any, ...]
    )  # [N, H, W, C], N files (Path), or N texts (str)
    labels: npt.NDArray[np.int64]  # [N]
    classes: tuple[str, ...]
    name: str = ""

    def __post_init__(self) -> None:
        mistakes = [*_image_mistakes(self.images), *_label_mistakes(self.labels, self.classes)]
        if not mistakes and len(self.images) != len(self.labels):
            mistakes = [
                f"{plural(len(self.images), 'image')} but {plural(len(self.labels), 'label')}"
            ]
        if mistakes:
            raise InputError(f"image set{self.name and ' ' + self.name}: {'; '.join(mistakes)}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def resident(self) -> bool:
        """Whether the pixels are in memory."""
        return isinstance(self.images, np.ndarray)

    @property
    def has_texts(self) -> bool:
        """Whether the items are texts."""
        return (
            isinstance(self.images, tuple) and bool(self.images) and isinstance(self.images[0], str)
        )

    def counts(self) -> dict[str, int]:
        """Images per class, zeros included."""
        return dict(
            zip(
                self.classes,
                np.bincount(self.labels, minlength=len(self.classes)).tolist(),
                strict=True,
            )
        )

    def take(self, indices: Sequence[int] | npt.NDArray[Any]) -> ImageSet:
        """The chosen images (positions, or a mask) in the order given. All classes stay, even without images."""
        chosen = _positions(indices, len(self))
        if isinstance(self.images, np.ndarray):
            return ImageSet(self.images[chosen], self.labels[chosen], self.classes, self.name)
        return ImageSet(
            tuple(self.images[i] for i in chosen), self.labels[chosen], self.classes, self.name
        )

    def of_classes(self, names: Sequence[str]) -> ImageSet:
        """Only the images of these classes, relabelled 0, 1, ... in the order of ``names``."""
        if isinstance(names, str):
            raise InputError(
                f"of_classes takes a list of class names, got the single name {names!r}; write [{names!r}]"
            )
        relabel = np.full(len(self.classes), -1, np.int64)
        position = {name: i for i, name in enumerate(self.classes)}
        for label, name in enumerate(names):
            if name not in position:
                raise UnknownNameError("class", str(name), self.classes)
            if relabel[position[name]] >= 0:
                raise InputError(f"class {name!r} is named twice")
            relabel[position[name]] = label
        labels = relabel[self.labels]
        kept = self.take(labels >= 0)
        return ImageSet(kept.images, labels[labels >= 0], tuple(names), self.name)

    def load(
        self, inputs: Preprocessing | Prompts, bad: Bad = "refuse", progress: Advance = silent
    ) -> ReadImages:
        """All images in one array. If some are unreadable, ``bad="refuse"`` raises, ``"skip"`` returns the errors.

        Texts are not changed; those that cannot be embedded count as unreadable.
        """
        if bad not in ("refuse", "skip"):
            raise InputError(f"bad must be 'refuse' or 'skip', got {bad!r}")
        preprocessing = self._fitting(inputs)
        if preprocessing is None:
            return self._checked_texts(bad, progress)
        if len(self) == 0:
            raise DataError(
                f"image set{self.name and ' ' + self.name}: there are no images to load"
            )
        shape = (len(self), *preprocessing.size, preprocessing.channels)
        if isinstance(self.images, np.ndarray) and self.images.shape == shape:
            progress(len(self))
            return ReadImages(self, ())
        pixels = _allocate(shape)
        unreadable = self._decode(preprocessing, bad, progress, pixels)
        labels = np.delete(self.labels, [image.index for image in unreadable])
        return ReadImages(
            ImageSet(pixels[: len(labels)], labels, self.classes, self.name), unreadable
        )

    def readable(
        self, inputs: Preprocessing | Prompts, bad: Bad = "refuse", progress: Advance = silent
    ) -> ReadImages:
        """The readable images, not loaded: a ``load`` for sets that do not fit into memory."""
        preprocessing = self._fitting(inputs)
        if preprocessing is None:
            return self._checked_texts(bad, progress)
        if self.resident:
            return ReadImages(self, ())
        unreadable = self._decode(preprocessing, bad, progress)
        kept = np.ones(len(self), bool)
        kept[[image.index for image in unreadable]] = False
        return ReadImages(self.take(kept), unreadable)

    def _fitting(self, inputs: Preprocessing | Prompts) -> Preprocessing | None:
        """The preprocessing of images, None for texts; raises if the model reads the other kind."""
        if isinstance(inputs, Prompts) == self.has_texts:
            if isinstance(inputs, Prompts):
                return None
            return inputs
        wanted, seen = ("texts", "images") if isinstance(inputs, Prompts) else ("images", "texts")
        raise InputError(
            f"the model reads {wanted}, and{self.name and ' ' + self.name} holds {seen}; give {wanted}"
        )

    def _checked_texts(self, bad: str, progress: Advance) -> ReadImages:
        """The texts that can be embedded, and the errors of the others."""
        wrong: list[ItemError] = []
        for index, text in enumerate(self.images):
            try:
                checked_text(text, index)
            except TextError as error:
                wrong.append(error)
            progress()
        if wrong and (bad == "refuse" or len(wrong) == len(self)):
            raise unreadable_error(wrong, len(self))
        kept = np.ones(len(self), bool)
        kept[[error.index for error in wrong]] = False
        return ReadImages(self.take(kept), tuple(wrong))

    def _decode(
        self,
        preprocessing: Preprocessing,
        bad: str,
        progress: Advance,
        out: npt.NDArray[np.uint8] | None = None,
    ) -> tuple[ItemError, ...]:
        """Decode all images into ``out``, one after the other; returns the errors of unreadable images."""
        unreadable: list[ItemError] = []
        assert not self.has_texts
        with contextlib.closing(decode_ahead(self.images, preprocessing)) as results:
            for position, result in enumerate(results):
                if isinstance(result, ImageError):
                    unreadable.append(result)
                elif out is not None:
                    out[position - len(unreadable)] = result
                progress()
        if unreadable and (bad == "refuse" or len(unreadable) == len(self)):
            raise unreadable_error(unreadable, len(self))
        return tuple(unreadable)

    def fingerprint(self, read: bool = False) -> str:
        """A SHA-256 of classes, labels and content that is the same on every machine and in every folder.

        For files it uses relative names and, with ``read``, their bytes. Without ``read`` it uses their sizes, which is
        much faster but misses an edit that keeps the size.
        """
        digest = hashlib.sha256(json.dumps(self.classes).encode())
        digest.update(self.labels.astype("<i8").tobytes())
        if isinstance(self.images, np.ndarray):
            parts = _pixel_bytes(self.images)
        elif self.has_texts:
            parts = iter([json.dumps(self.images).encode()])
        else:
            files: tuple[Any, ...] = self.images
            parts = _file_bytes(files, read)
        for part in parts:
            digest.update(part)
        return digest.hexdigest()


def _pixel_bytes(images: npt.NDArray[np.uint8]) -> Iterator[bytes]:
    yield f"pixels {images.shape}".encode()
    for start in range(0, len(images), _HASHED):
        yield images[start : start + _HASHED].tobytes()


def _file_bytes(paths: tuple[Path, ...], read: bool) -> Iterator[bytes]:
    yield f"files {len(paths)}".encode()
    absolute = [path.absolute() for path in paths]
    root = os.path.commonpath([path.parent for path in absolute]) if absolute else ""
    for path in absolute:
        try:
            seen: int | str = (
                hashlib.sha256(content(path)).hexdigest() if read else path.stat().st_size
            )
        except OSError:
            seen = "absent"  # reading it later raises with its name, or skips it
        yield f"\n{path.relative_to(root).as_posix()} {seen}".encode(errors="surrogateescape")


def from_arrays(
    images: Any,
    labels: Sequence[int] | Sequence[str] | npt.NDArray[Any],
    classes: Sequence[str] | None = None,
    name: str = "",
) -> ImageSet:
    """An ``ImageSet`` of pixels [N, H, W] or [N, H, W, C], uint8 or floats in [0, 1], with integer or string labels.

    Without ``classes`` these are the labels that occur, sorted, as strings. With ``classes`` an integer label is a
    position in them and a string label one of them.

    >>> from_arrays(np.zeros((3, 8, 8)), ["cat", "ant", "cat"]).counts()
    {'ant': 1, 'cat': 2}
    """
    given = np.asarray(labels)
    if given.dtype == object and all(isinstance(label, str) for label in given.flat):
        given = given.astype(str)
    if given.ndim != 1 or given.dtype.kind not in "iuU":
        raise InputError(
            f"labels must be a list of integers or strings, got {given.dtype} of shape {given.shape}"
        )
    if classes is None:
        values, indices = np.unique(given, return_inverse=True)
        return ImageSet(_as_pixels(images), indices.astype(np.int64), tuple(map(str, values)), name)
    indices = given if given.dtype.kind in "iu" else _index_into(tuple(classes), given)
    return ImageSet(_as_pixels(images), indices.astype(np.int64), tuple(classes), name)


def concatenate(sets: Sequence[ImageSet]) -> ImageSet:
    """The sets one after the other. Classes are matched by name, in the order in which they first appear."""
    if not sets:
        raise InputError("the list of image sets to concatenate is empty")
    classes = tuple(dict.fromkeys(name for one in sets for name in one.classes))
    position = {name: i for i, name in enumerate(classes)}
    labels = [
        np.array([position[name] for name in one.classes], np.int64)[one.labels] for one in sets
    ]
    names = dict.fromkeys(one.name for one in sets if one.name)
    return ImageSet(
        _joined([one.images for one in sets]), np.concatenate(labels), classes, "+".join(names)
    )


def _joined(parts: list[Any]) -> Any:
    kinds = {type(part[0]) for part in parts if isinstance(part, tuple) and part}
    if str in kinds and (len(kinds) > 1 or any(isinstance(part, np.ndarray) for part in parts)):
        raise InputError("texts and images cannot be concatenated")
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    files = [part for part in parts if not isinstance(part, np.ndarray)]
    if arrays and files:
        raise InputError("files and pixels cannot be concatenated; load() the files first")
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        raise InputError(
            f"images of different sizes cannot be concatenated: {sorted(shapes)}; load() them to one size"
        )
    if arrays:
        return np.concatenate(arrays)
    return tuple(path for part in files for path in part)


def _image_mistakes(images: Any) -> Iterator[str]:
    if isinstance(images, np.ndarray):
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
            yield f"pixels must be uint8 [N, H, W, 1 or 3], got {images.dtype} {list(images.shape)}; see from_arrays"
    elif not (
        isinstance(images, tuple)
        and any(all(isinstance(one, kind) for one in images) for kind in (Path, str))
    ):
        yield f"images must be a uint8 array, a tuple of texts or a tuple of Path, got {type(images).__name__}"


def _label_mistakes(labels: Any, classes: Any) -> Iterator[str]:
    if not (isinstance(classes, tuple) and all(isinstance(name, str) for name in classes)):
        yield "classes must be a tuple of names"
        return
    if twice := sorted(name for name, times in Counter(classes).items() if times > 1):
        yield f"duplicate class names: {', '.join(twice)}"
    if not (isinstance(labels, np.ndarray) and labels.dtype == np.int64 and labels.ndim == 1):
        yield "labels must be an int64 array [N]; see from_arrays"
    elif len(labels) and not (labels.min() >= 0 and labels.max() < len(classes)):
        seen = f"{labels.min()} to {labels.max()}"
        yield f"labels of {plural(len(classes), 'class')} must be 0 to {len(classes) - 1}, got {seen}"


def _positions(indices: Sequence[int] | npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    chosen = np.asarray(indices)
    if chosen.dtype == bool and chosen.shape == (count,):
        return np.flatnonzero(chosen)
    if chosen.size == 0:
        return np.zeros(0, np.int64)
    if (
        chosen.ndim != 1
        or chosen.dtype.kind not in "iu"
        or chosen.min() < 0
        or chosen.max() >= count
    ):
        raise InputError(
            f"take needs positions from 0 to {count - 1} or a mask of length {count}, got {indices!r}"
        )
    return chosen.astype(np.int64)


def _index_into(classes: tuple[str, ...], labels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    position = {name: i for i, name in enumerate(classes)}
    unknown = next((label for label in labels if label not in position), None)
    if unknown is not None:
        raise UnknownNameError("class", str(unknown), classes)
    return np.array([position[label] for label in labels], np.int64)


def _as_pixels(images: Any) -> npt.NDArray[np.uint8]:
    array = np.asarray(images)
    array = array[..., None] if array.ndim == 3 else array
    if array.ndim != 4 or array.shape[-1] not in (1, 3, 4) or 0 in array.shape[1:]:
        raise InputError(
            f"images must be [N, H, W] or [N, H, W, C] with 1, 3 or 4 channels, got {list(array.shape)}"
        )
    channels = 1 if array.shape[-1] == 1 else 3
    if array.dtype == np.uint8 and array.shape[-1] == channels:
        return array
    same = Preprocessing(
        size=array.shape[1:3], channels=channels, mean=(0,) * channels, std=(1,) * channels
    )
    pixels = _allocate((*array.shape[:3], channels))
    for i, image in enumerate(array):
        pixels[i] = read_pixels(image, same, position=i)
    return pixels


def _allocate(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    try:
        return np.empty(shape, np.uint8)
    except MemoryError:
        size = np.prod(shape, dtype=float) / 2**30
        raise DataError(
            f"{shape[0]} images of {list(shape[1:])} need {size:.1f} GiB of memory, which is not available"
        ) from None


def unreadable_error(unreadable: Sequence[ItemError], count: int) -> DataError:
    """One error for all unreadable images of a set."""
    lines = [f"{len(unreadable):,} of {plural(count, 'image')} cannot be read:"]
    lines += [f"  {image}" for image in unreadable[:_SHOWN]]
    lines += [f"  ... and {len(unreadable) - _SHOWN} more"] if len(unreadable) > _SHOWN else []
    if len(unreadable) == count:
        return DataError("\n".join([*lines, "No image is left."]))
    lines.append(
        'Repair or remove them, or leave them out: bad="skip" (in training settings bad_images="skip").'
    )
    return DataError(
        "\n".join(lines), NextStep("repeat", {"bad_images": "skip"}, "leave those images out")
    )
