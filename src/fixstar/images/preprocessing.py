"""What a model expects of its images, as settings that check and save themselves."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from fixstar.errors import InputError

__all__ = ["Fit", "Interpolation", "Preprocessing"]

Fit = Literal["crop", "squash", "pad"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """What a model expects of its images; part of its card, because vectors mean nothing without it.

    ``fit`` says what happens to an image of another shape. ``crop``: resized until it just covers ``size /
    crop_fraction``, then cropped in the centre; ``squash``: resized without regard to its aspect; ``pad``: fitted
    inside and padded with white. ``mean`` and ``std`` are of pixel values in [0, 1], one a channel.
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
        """Plain lists, numbers and strings; ``from_json`` gives back an equal object."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Preprocessing:
        """The inverse of ``to_json``; unknown, missing and wrong entries fail."""
        if not isinstance(values, Mapping):
            raise InputError(f"preprocessing: expected named entries, got {values!r}")
        required = {field.name: field.default is MISSING for field in fields(cls)}
        unknown = [f"unknown entry {name!r}" for name in values if name not in required]
        missing = [f"{name!r} is missing" for name, needed in required.items() if needed and name not in values]
        if unknown or missing:
            raise InputError(f"preprocessing: {'; '.join(unknown + missing)}. Known: {', '.join(required)}")
        return cls(**values)


def _as_tuple(value: Any) -> Any:
    """Lists and arrays as tuples of plain Python numbers, so that equal settings compare, hash and serialise alike."""
    if not isinstance(value, (list, tuple, np.ndarray)):
        return value
    return tuple(entry.item() if isinstance(entry, np.generic) else entry for entry in value)


def _mistakes(p: Preprocessing) -> Iterator[str]:
    """Everything that is wrong with the settings, so that all of it is reported at once."""
    if not (isinstance(p.size, tuple) and len(p.size) == 2 and all(_is_count(side) for side in p.size)):
        yield f"size is (height, width) in whole pixels of at least 1, got {p.size!r}"
    channels_fit = _is_count(p.channels) and p.channels in (1, 3)
    if not channels_fit:
        yield f"channels is 1 (grey) or 3 (RGB), got {p.channels!r}"
    for name, values in (("mean", p.mean), ("std", p.std)):
        if not (isinstance(values, tuple) and all(_is_real(value) for value in values)):
            yield f"{name} has one finite number a channel, got {values!r}"
        elif channels_fit and len(values) != p.channels:
            yield f"{name} has one number a channel, so {p.channels}, got {values!r}"
        elif name == "std" and any(value <= 0 for value in values):
            yield f"std is positive, got {values!r}"
    for name, value, known in (("fit", p.fit, Fit), ("interpolation", p.interpolation, Interpolation)):
        if value not in get_args(known):
            yield f"{name} is one of {', '.join(get_args(known))}, got {value!r}"
    if not (_is_real(p.crop_fraction) and 0 < p.crop_fraction <= 1):
        yield f"crop_fraction lies in (0, 1], got {p.crop_fraction!r}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
