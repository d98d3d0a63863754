"""How a model's images must be prepared, and how an image of any size is resized for it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from PIL import Image

from fixstar.errors import InputError

MAX_MODEL_PIXELS = 1 << 24  # 4096 x 4096: the maximum that a card may set
Fit = Literal["crop", "squash", "pad"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How images are prepared for a model. Part of the model's card, because vectors are meaningless without it.

    ``fit`` sets how an image of another shape is resized. ``crop``: it just covers ``size / crop_fraction``, then its
    centre is cut out. ``squash``: its aspect ratio is ignored. ``pad``: it fits inside, with white around it.
    ``mean`` and ``std`` are per channel, of pixel values in [0, 1].
    """

    size: tuple[int, int]  # height, width
    channels: int = 3  # 1 is grey, 3 is RGB
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: Fit = "crop"
    crop_fraction: float = 1.0
    interpolation: Interpolation = "bicubic"

    def __post_init__(self) -> None:
        for name in ("size", "mean", "std"):
            object.__setattr__(self, name, _as_tuple(getattr(self, name)))
        mistakes = list(_mistakes(self))
        if mistakes:
            raise InputError("preprocessing: " + "; ".join(mistakes))

    def to_json(self) -> dict[str, Any]:
        """Plain lists, numbers and strings, for ``from_json``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Preprocessing:
        """The inverse of ``to_json``; unknown, missing and wrong entries raise."""
        if not isinstance(values, Mapping):
            raise InputError(f"preprocessing: expected a mapping, got {values!r}")
        required = {field.name: field.default is MISSING for field in fields(cls)}
        unknown = [f"unknown entry {name!r}" for name in values if name not in required]
        missing = [
            f"{name!r} is missing"
            for name, needed in required.items()
            if needed and name not in values
        ]
        if unknown or missing:
            raise InputError(
                f"preprocessing: {'; '.join(unknown + missing)}. Known: {', '.join(required)}"
            )
        return cls(**values)


def _as_tuple(value: Any) -> Any:
    """Lists and arrays as tuples of plain Python numbers, so that equal settings compare and hash as equal."""
    if not isinstance(value, (list, tuple, np.ndarray)):
        return value
    return tuple(entry.item() if isinstance(entry, np.generic) else entry for entry in value)


def _mistakes(p: Preprocessing) -> Iterator[str]:
    """All mistakes in the settings, so that they are reported together."""
    if not (
        isinstance(p.size, tuple) and len(p.size) == 2 and all(_is_count(side) for side in p.size)
    ):
        yield f"size must be (height, width), whole numbers of at least 1, got {p.size!r}"
    elif math.prod(p.size) > MAX_MODEL_PIXELS:
        yield f"size must be (height, width) of up to {MAX_MODEL_PIXELS:,} pixels, got {p.size!r}"
    channels_fit = _is_count(p.channels) and p.channels in (1, 3)
    if not channels_fit:
        yield f"channels must be 1 (grey) or 3 (RGB), got {p.channels!r}"
    for name, values in (("mean", p.mean), ("std", p.std)):
        if not (isinstance(values, tuple) and all(_is_real(value) for value in values)):
            yield f"{name} must be finite numbers, one per channel, got {values!r}"
        elif channels_fit and len(values) != p.channels:
            yield f"{name} must have {p.channels} numbers, one per channel, got {values!r}"
        elif name == "std" and any(value <= 0 for value in values):
            yield f"std must be positive, got {values!r}"
    for name, value, known in (
        ("fit", p.fit, Fit),
        ("interpolation", p.interpolation, Interpolation),
    ):
        if value not in get_args(known):
            yield f"{name} must be one of {', '.join(get_args(known))}, got {value!r}"
    if not (_is_real(p.crop_fraction) and 0 < p.crop_fraction <= 1):
        yield f"crop_fraction must be in (0, 1], got {p.crop_fraction!r}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


Box: TypeAlias = tuple[float, float, float, float]  # left, top, right, bottom


def resize_to_fit(image: Image.Image, p: Preprocessing, box: Box | None = None) -> Image.Image:
    """The image, or its part in ``box``, at the preprocessing's size; not resampled if it has that size."""
    height, width = p.size
    if image.size == (width, height):
        return image
    box = box or (0, 0, *image.size)
    resample = Image.Resampling[p.interpolation.upper()]
    if p.fit == "squash":
        return image.resize((width, height), resample, box)
    if p.fit == "pad":
        return _padded(image, p=p, box=box, resample=resample)
    return _cropped(image, p=p, box=box, resample=resample)


def size_before_crop(size: tuple[float, float], p: Preprocessing) -> tuple[int, int]:
    """Width and height at which an image of ``size`` just covers the preprocessing's ``size / crop_fraction``.

    >>> p = Preprocessing(size=(224, 224), mean=(0, 0, 0), std=(1, 1, 1), crop_fraction=0.875)
    >>> size_before_crop((640, 480), p)
    (341, 256)
    """
    width, height = size
    least_high, least_wide = (math.floor(side / p.crop_fraction + 1e-9) for side in p.size)
    if least_wide * height >= least_high * width:
        return least_wide, int(least_wide * height // width)
    return int(least_high * width // height), least_high


def _padded(
    image: Image.Image, p: Preprocessing, box: Box, resample: Image.Resampling
) -> Image.Image:
    height, width = p.size
    left, top, right, bottom = box
    scale = min(height / (bottom - top), width / (right - left))
    inside = (max(1, round((right - left) * scale)), max(1, round((bottom - top) * scale)))
    canvas = Image.new(image.mode, (width, height), "white")
    canvas.paste(
        image.resize(inside, resample, box), ((width - inside[0]) // 2, (height - inside[1]) // 2)
    )
    return canvas


def _cropped(
    image: Image.Image, p: Preprocessing, box: Box, resample: Image.Resampling
) -> Image.Image:
    """Resize and centre crop in one resampling: a strip of 1 x 1,000,000 pixels never becomes 224 x 224,000,000."""
    height, width = p.size
    left, top, right, bottom = box
    wide, high = size_before_crop((right - left, bottom - top), p)
    x = round((wide - width) / 2)
    y = round((high - height) / 2)
    kept = (
        left + x * (right - left) / wide,
        top + y * (bottom - top) / high,
        left + (x + width) * (right - left) / wide,
        top + (y + height) * (bottom - top) / high,
    )
    return image.resize((width, height), resample, kept)
