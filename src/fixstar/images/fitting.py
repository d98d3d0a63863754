"""From an image of any size to the size that a model takes: crop, squash or pad."""

from __future__ import annotations

import math
from typing import TypeAlias

from PIL import Image

from fixstar.images.preprocessing import Preprocessing

__all__ = ["Box", "fitted", "size_before_crop"]

Box: TypeAlias = tuple[float, float, float, float]  # left, top, right, bottom


def fitted(image: Image.Image, p: Preprocessing, box: Box | None = None) -> Image.Image:
    """The image, or the part of it in ``box``, at the preprocessing's size.

    An image that has that size already is not resampled, so fitting twice is harmless.
    """
    height, width = p.size
    if image.size == (width, height):
        return image
    box = box or (0, 0, *image.size)
    resample = Image.Resampling[p.interpolation.upper()]
    if p.fit == "squash":
        return image.resize((width, height), resample, box)
    return _padded(image, p, box, resample) if p.fit == "pad" else _cropped(image, p, box, resample)


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


def _padded(image: Image.Image, p: Preprocessing, box: Box, resample: Image.Resampling) -> Image.Image:
    (height, width), (left, top, right, bottom) = p.size, box
    scale = min(height / (bottom - top), width / (right - left))
    inside = (max(1, round((right - left) * scale)), max(1, round((bottom - top) * scale)))
    canvas = Image.new(image.mode, (width, height), "white")
    canvas.paste(image.resize(inside, resample, box), ((width - inside[0]) // 2, (height - inside[1]) // 2))
    return canvas


def _cropped(image: Image.Image, p: Preprocessing, box: Box, resample: Image.Resampling) -> Image.Image:
    """Resize, then centre crop, as one resampling: a strip of 1 x 1,000,000 pixels never becomes 224 x 224,000,000."""
    (height, width), (left, top, right, bottom) = p.size, box
    wide, high = size_before_crop((right - left, bottom - top), p)
    x, y = round((wide - width) / 2), round((high - height) / 2)
    kept = (
        left + x * (right - left) / wide,
        top + y * (bottom - top) / high,
        left + (x + width) * (right - left) / wide,
        top + (y + height) * (bottom - top) / high,
    )
    return image.resize((width, height), resample, kept)
