"""Images from requests: what they are is read from their content, and nothing is decoded that claims too much.

A request's bytes become pixels in threads of their own, with a time limit. They never become a path: an image that is
kept gets the name of its hash and a suffix of ours.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from fastapi import UploadFile
from PIL import Image

from fixstar.errors import ImageError
from fixstar.images import Pixels, Preprocessing, read_pixels
from fixstar.service.problems import Problem
from fixstar.service.settings import SMALLER, ServiceSettings

__all__ = ["Intake", "Read", "check_image", "image_kind", "read_upload", "unusable"]

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

_KINDS = "JPEG, PNG, WebP, GIF, BMP or TIFF"

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

    Reads the header only. A picture that is also something else (a script, an archive) is a picture here: it is never
    handed out as it came.
    """
    if len(data) > settings.upload_bytes:
        raise _too_large(len(data), settings)
    kind = image_kind(data)
    if kind is None:
        seen = "the file is empty" if not data else f"its first bytes are not those of a {_KINDS} file"
        raise Problem("unknown-format", seen, f"send {_KINDS}")
    try:
        with Image.open(io.BytesIO(data), formats=(kind,)) as image:
            width, height = image.size
    except Exception as error:  # a decoder fed foreign bytes raises anything
        raise unusable(f"its header is damaged, or claims too much ({type(error).__name__})") from error
    if not 0 < width * height <= settings.pixels:
        seen = f"{width} x {height} pixels; 1 to {settings.pixels:,} are allowed. It was not decoded"
        raise unusable(seen, "scale it down; the operator may allow more megapixels with: fixstar serve --pixels")
    return _SUFFIX[kind]


def _too_large(size: int, settings: ServiceSettings) -> Problem:
    seen = f"{size:,} bytes; up to {settings.upload_bytes:,} are allowed"
    return Problem("image-too-large", seen, SMALLER)


def unusable(detail: str, hint: str = "open it in an image editor and save it again") -> Problem:
    """The answer to an image that is of an allowed format, and still of no use."""
    return Problem("unreadable-image", detail, hint)


class Read(NamedTuple):
    """An image as a model takes it, what the model asks for, and the suffix for the image's file."""

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

    async def read(self, data: bytes, preprocessing: Callable[[], Preprocessing]) -> Read:
        """An image as a model takes it, or a problem. ``preprocessing`` is asked in the thread: it may read a model."""

        def work() -> Read:
            suffix = check_image(data, self._settings)
            wanted = preprocessing()
            try:
                return Read(read_pixels(data, wanted, self._settings.pixels), wanted, suffix)
            except ImageError as error:
                raise unusable(error.reason) from error

        return await self._in_time(work)

    async def _in_time(self, work: Callable[[], Result]) -> Result:
        """Run in a thread. One that takes too long is no longer waited for, and holds its place until it ends."""
        await self._free.acquire()
        running = asyncio.get_running_loop().run_in_executor(self._pool, work)
        running.add_done_callback(self._leave)
        try:
            async with asyncio.timeout(self._settings.decode_seconds):
                return await asyncio.shield(running)
        except TimeoutError:
            raise unusable(f"decoding it took more than {self._settings.decode_seconds:g} s") from None

    def _leave(self, running: asyncio.Future[Result]) -> None:
        self._free.release()
        if not running.cancelled():
            running.exception()  # seen, also where nobody waits any more

    def close(self) -> None:
        """Wait for what is being decoded."""
        self._pool.shutdown(wait=True, cancel_futures=True)


async def read_upload(upload: UploadFile, settings: ServiceSettings) -> bytes:
    """The bytes of an uploaded file, unless there are too many."""
    if upload.size is not None and upload.size > settings.upload_bytes:
        raise _too_large(upload.size, settings)
    return await upload.read()
