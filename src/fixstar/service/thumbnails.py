"""Pictures of items, always encoded anew: what was uploaded is never handed out as it came."""

from __future__ import annotations

import hashlib
import io
import threading
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from fixstar.errors import ImageError
from fixstar.gallery import Item
from fixstar.images import Preprocessing, read_pixels
from fixstar.service.problems import Problem
from fixstar.workspace import Workspace

__all__ = ["SIZES", "Picture", "PictureCache", "thumbnail"]

SIZES = (64, 128, 256, 512, 1024)  # longer sides; few, so that a picture asked for again is there
_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "MPO", "PNG", "PPM", "TIFF", "WEBP")  # what indexing reads
_ORIENTATION, _SIDEWAYS = 0x0112, range(5, 9)  # the EXIF tag, and its values for an image that lies on its side
_MEMORY = 64 << 20  # bytes of pictures kept
_AT_ONCE = threading.BoundedSemaphore(4)  # a large image takes hundreds of megabytes while it is read


class Picture(NamedTuple):
    """A JPEG, and what tells it from others."""

    content: bytes
    etag: str


class PictureCache:
    """The pictures asked for last."""

    def __init__(self, most: int = _MEMORY) -> None:
        self._most, self._size = most, 0
        self._pictures: OrderedDict[str, Picture] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, etag: str) -> Picture | None:
        """A picture, if it is still here."""
        with self._lock:
            if etag in self._pictures:
                self._pictures.move_to_end(etag)
            return self._pictures.get(etag)

    def put(self, picture: Picture) -> None:
        """Keep a picture, in the place of those not asked for longest."""
        with self._lock:
            if picture.etag not in self._pictures:
                self._size += len(picture.content)
            self._pictures[picture.etag] = picture
            while self._size > self._most and self._pictures:
                self._size -= len(self._pictures.popitem(last=False)[1].content)


_CACHE = PictureCache()


def thumbnail(workspace: Workspace, item: Item, size: int) -> Picture:
    """An item's picture with its longer side at the next of ``SIZES``, or smaller where the image is."""
    side = next(one for one in SIZES if one >= size)
    path = workspace.images.find(item)
    if path is None:
        raise _gone("its image is not known here, or gone")
    try:
        seen = path.stat()
    except OSError:
        raise _gone("its image is gone") from None
    key = f"{path}|{seen.st_size}|{seen.st_mtime_ns}|{side}"
    etag = f'"{hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=12).hexdigest()}"'
    picture = _CACHE.get(etag)
    if picture is None:
        with _AT_ONCE:
            picture = Picture(_drawn(path, side), etag)
        _CACHE.put(picture)
    return picture


def _drawn(path: Path, side: int) -> bytes:
    """The image on white, upright, without anything that the file said beside its pixels."""
    try:
        width, height = _upright_size(path)
        scale = min(1.0, side / max(width, height))
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        pixels = read_pixels(path, Preprocessing(size=size, mean=(0, 0, 0), std=(1, 1, 1), fit="squash"))
    except (ImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise _gone(f"its image cannot be read any more ({type(error).__name__})") from error
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _upright_size(path: Path) -> tuple[int, int]:
    Image.init()
    with Image.open(path, formats=[name for name in _FORMATS if name in Image.OPEN]) as image:
        width, height = image.size
        try:
            turned = int(image.getexif().get(_ORIENTATION, 1)) in _SIDEWAYS
        except Exception:  # damaged metadata does not make the picture unreadable
            turned = False
    return (height, width) if turned else (width, height)


def _gone(detail: str) -> Problem:
    return Problem("unknown-picture", detail, "store the item again with its image")
