"""Images in and out: uploads are checked and decoded, items get thumbnails.

The format of an upload is read from its content, and nothing is decoded that claims too many pixels. Decoding runs in
threads of its own, with a time limit. Names sent with an upload never become a path: a stored image is named by its
hash and a suffix of ours. Pictures are always encoded again: an upload is never handed out as it came.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from fastapi import UploadFile
from PIL import Image

from fixstar.errors import ImageError
from fixstar.gallery import Item
from fixstar.images import Pixels, Preprocessing, read_pixels
from fixstar.service.problems import Problem
from fixstar.service.settings import ServiceSettings
from fixstar.workspace import Workspace

_MAGIC: Final = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
)
_SUFFIX: Final = {"JPEG": ".jpg", "PNG": ".png", "GIF": ".gif", "BMP": ".bmp", "TIFF": ".tiff", "WEBP": ".webp"}

THUMBNAIL_SIZES = (64, 128, 256, 512, 1024)  # longer sides; few, so that the cache is hit
_THUMBNAIL_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "MPO", "PNG", "PPM", "TIFF", "WEBP")  # what indexing reads
_ORIENTATION, _SIDEWAYS = 0x0112, range(5, 9)  # the EXIF tag, and its values for an image that lies on its side
_CACHED = 256  # thumbnails in memory: 10 KB each as the page asks for them, 300 KB at most
_AT_ONCE = threading.BoundedSemaphore(4)  # a large image takes hundreds of megabytes while it is read

Result = TypeVar("Result")


def image_kind(data: bytes) -> str | None:
    """The format of an image by its first bytes, of those that are allowed.

    >>> image_kind(b"GIF89a..."), image_kind(b"<html>")
    ('GIF', None)
    """
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), None)


def check_image(data: bytes, settings: ServiceSettings) -> str:
    """Refuse what is too large, of another format, or claims too many pixels; the suffix for its file.

    Reads the header only. A picture that is also something else (a script, an archive) counts as a picture: it is never
    handed out as it came.
    """
    if len(data) > settings.upload_bytes:
        raise _too_large(len(data), settings)
    kind = image_kind(data)
    if kind is None:
        seen = "its first bytes are not those of a JPEG, PNG, WebP, GIF, BMP or TIFF file"
        raise Problem("unknown-format", seen if data else "the file is empty")
    try:
        with Image.open(io.BytesIO(data), formats=(kind,)) as image:
            width, height = image.size
    except Exception as error:  # a decoder fed foreign bytes raises anything
        raise Problem(
            "unreadable-image", f"its header is damaged, or claims too much ({type(error).__name__})"
        ) from error
    if not 0 < width * height <= settings.pixels:
        seen = f"{width} x {height} pixels; 1 to {settings.pixels:,} are allowed. It was not decoded"
        raise Problem(
            "unreadable-image",
            seen,
            "scale it down; the operator may allow more megapixels with: fixstar serve --pixels",
        )
    return _SUFFIX[kind]


def _too_large(size: int, settings: ServiceSettings) -> Problem:
    return Problem("image-too-large", f"{size:,} bytes; up to {settings.upload_bytes:,} are allowed")


class DecodedImage(NamedTuple):
    """An image as a model takes it, the model's preprocessing, and the suffix for the image's file."""

    pixels: Pixels
    preprocessing: Preprocessing
    suffix: str


class Intake:
    """Checks and decodes images beside the event loop, a few at a time."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        workers = min(4, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="fixstar-intake")
        self._free = asyncio.Semaphore(workers)

    async def check(self, data: bytes) -> str:
        """See ``check_image``."""
        return await self._in_time(lambda: check_image(data, self._settings))

    async def read(self, data: bytes, preprocessing: Callable[[], Preprocessing]) -> DecodedImage:
        """An image as a model takes it, or a problem. ``preprocessing`` runs in the thread: it may load a model."""

        def work() -> DecodedImage:
            suffix = check_image(data, self._settings)
            wanted = preprocessing()
            try:
                return DecodedImage(read_pixels(data, wanted, self._settings.pixels), wanted, suffix)
            except ImageError as error:
                raise Problem("unreadable-image", error.reason) from error

        return await self._in_time(work)

    async def _in_time(self, work: Callable[[], Result]) -> Result:
        """Run in a thread. One that takes too long is abandoned, but holds its place until it ends."""
        await self._free.acquire()
        running = asyncio.get_running_loop().run_in_executor(self._pool, work)
        running.add_done_callback(self._leave)
        try:
            async with asyncio.timeout(self._settings.decode_seconds):
                return await asyncio.shield(running)
        except TimeoutError:
            raise Problem(
                "unreadable-image", f"decoding it took more than {self._settings.decode_seconds:g} s"
            ) from None

    def _leave(self, running: asyncio.Future[Result]) -> None:
        self._free.release()
        if not running.cancelled():
            running.exception()  # retrieved, even if nobody waits any more

    def close(self) -> None:
        """Wait for what is being decoded."""
        self._pool.shutdown(wait=True, cancel_futures=True)


async def read_upload(upload: UploadFile, settings: ServiceSettings) -> bytes:
    """The bytes of an uploaded file, unless there are too many."""
    if upload.size is not None and upload.size > settings.upload_bytes:
        raise _too_large(upload.size, settings)
    return await upload.read()


# --- thumbnails


class Picture(NamedTuple):
    """A JPEG and its ETag."""

    content: bytes
    etag: str


def thumbnail(workspace: Workspace, item: Item, size: int) -> Picture:
    """An item's picture with its longer side at the next of ``THUMBNAIL_SIZES``, or smaller where the image is."""
    path = workspace.images.find(item)
    try:
        seen = None if path is None else path.stat()
    except OSError:
        seen = None
    if path is None or seen is None:
        raise Problem("unknown-picture", "its image is not known here, or gone")
    return _thumbnail(path, seen.st_size, seen.st_mtime_ns, next(one for one in THUMBNAIL_SIZES if one >= size))


@lru_cache(maxsize=_CACHED)
def _thumbnail(path: Path, bytes_: int, modified: int, side: int) -> Picture:
    key = f"{path}|{bytes_}|{modified}|{side}"
    etag = f'"{hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=12).hexdigest()}"'
    with _AT_ONCE:
        return Picture(_drawn(path, side), etag)


def _drawn(path: Path, side: int) -> bytes:
    """The image on white, upright, without metadata."""
    try:
        width, height = _upright_size(path)
        scale = min(1.0, side / max(width, height))
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        pixels = read_pixels(path, Preprocessing(size=size, mean=(0, 0, 0), std=(1, 1, 1), fit="squash"))
    except (ImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        seen = f"its image cannot be read any more ({type(error).__name__})"
        raise Problem("unknown-picture", seen) from error
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _upright_size(path: Path) -> tuple[int, int]:
    Image.init()
    with Image.open(path, formats=[name for name in _THUMBNAIL_FORMATS if name in Image.OPEN]) as image:
        width, height = image.size
        try:
            turned = int(image.getexif().get(_ORIENTATION, 1)) in _SIDEWAYS
        except Exception:  # damaged metadata does not make the picture unreadable
            turned = False
    return (height, width) if turned else (width, height)
