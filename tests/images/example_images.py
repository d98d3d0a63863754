"""Images, settings and comparisons that the tests of this folder share."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from fixstar.errors import ImageError
from fixstar.images import Preprocessing, read_pixels


def rgb(height: int, width: int, **more: Any) -> Preprocessing:
    return Preprocessing(size=(height, width), mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2), **more)


def grey(height: int, width: int, **more: Any) -> Preprocessing:
    return Preprocessing(size=(height, width), channels=1, mean=(0.5,), std=(0.2,), **more)


def noise(height: int, width: int, cell: int = 1) -> Image.Image:
    """A colourful image that no flip or turn leaves as it is; ``cell`` is the size of its details."""
    coarse = np.random.default_rng(0).integers(
        0, 256, (-(-height // cell), -(-width // cell), 3), dtype=np.uint8
    )
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:  # noqa: A002
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def distance(a: npt.NDArray[Any], b: npt.NDArray[Any] | Image.Image) -> int:
    return int(np.abs(a.astype(int) - np.asarray(b).astype(int).reshape(a.shape)).max())


def reason(source: Any, preprocessing: Preprocessing | None = None, **more: Any) -> str:
    with pytest.raises(ImageError) as caught:
        read_pixels(source, preprocessing or rgb(8, 8), **more)
    return caught.value.reason
