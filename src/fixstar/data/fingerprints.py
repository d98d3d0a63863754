"""What an image set's fingerprint is made of: the same bytes on every machine and in every folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fixstar.errors import ImageError

__all__ = ["file_parts", "pixel_parts"]

_BLOCK = 4096  # images that are hashed at a time


def pixel_parts(images: npt.NDArray[np.uint8]) -> Iterator[bytes]:
    """Shape and pixels."""
    yield f"pixels {images.shape}".encode()
    for start in range(0, len(images), _BLOCK):
        yield images[start : start + _BLOCK].tobytes()


def file_parts(paths: tuple[Path, ...]) -> Iterator[bytes]:
    """Sizes of files and their names below the deepest folder that holds them all."""
    yield f"files {len(paths)}".encode()
    absolute = [path.absolute() for path in paths]
    root = os.path.commonpath([path.parent for path in absolute]) if absolute else ""
    for path in absolute:
        try:
            size = path.stat().st_size
        except OSError as error:
            raise ImageError(str(path), f"cannot be looked at ({error.strerror})") from error
        yield f"\n{path.relative_to(root).as_posix()} {size}".encode(errors="surrogateescape")
