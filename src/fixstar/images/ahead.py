"""Decoding many images in threads, in order, a bounded number of them in advance."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fixstar.errors import ImageError, InputError
from fixstar.images.preprocessing import Preprocessing
from fixstar.images.reading import MAX_PIXELS, ImageSource, Pixels, read_pixels

__all__ = ["BadImage", "decode_ahead"]

_SMALL = 1 << 16  # bytes of an image


@dataclass(frozen=True)
class BadImage:
    """An image that could not be read: where it stood, what it is called, and why."""

    index: int
    name: str
    reason: str


def decode_ahead(
    sources: Sequence[ImageSource] | npt.NDArray[Any],
    preprocessing: Preprocessing,
    workers: int | None = None,
    ahead: int | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Generator[Pixels | BadImage, None, None]:
    """Every image in order, decoded by ``workers`` threads, at most ``ahead`` images in advance.

    What cannot be read comes as a ``BadImage`` in its place. Memory stays flat however long the list is, and closing
    the generator early stops the threads. One worker means no thread at all.
    """
    workers = min(8, os.cpu_count() or 1) if workers is None else workers
    ahead = 4 * workers if ahead is None else ahead
    if workers < 1 or ahead < 1:
        raise InputError(f"decode_ahead needs workers >= 1 and ahead >= 1, got {workers} and {ahead}")

    def read(position: int) -> Pixels | BadImage:
        try:
            return read_pixels(sources[position], preprocessing, max_pixels, position=position)
        except ImageError as error:
            return BadImage(position, error.name, error.reason)

    if workers == 1 or (isinstance(sources, np.ndarray) and _is_light(sources, preprocessing)):
        return (read(position) for position in range(len(sources)))
    return _in_threads(read, len(sources), workers, ahead)


def _is_light(images: npt.NDArray[Any], preprocessing: Preprocessing) -> bool:
    """Whether handing an image to a thread costs more than the image: a mere copy, or a small one to resize."""
    return images.shape[1:3] == preprocessing.size or math.prod(images.shape[1:]) <= _SMALL


def _in_threads(
    read: Callable[[int], Pixels | BadImage], count: int, workers: int, ahead: int
) -> Generator[Pixels | BadImage, None, None]:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="fixstar-decode")
    try:
        window = deque(pool.submit(read, position) for position in range(min(ahead, count)))
        for position in range(count):
            result = window.popleft().result()
            if position + ahead < count:
                window.append(pool.submit(read, position + ahead))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
