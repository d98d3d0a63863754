"""Images in and out: uploads are checked and decoded, items get thumbnails.

The format of an upload is read from its content, and nothing is decoded that claims too many pixels. Decoding runs in
processes of its own, with limits of time and memory. Names sent with an upload never become a path: a stored image is
named by its hash and a suffix of ours. Pictures are always encoded again: an upload is never handed out as it came.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from fastapi import UploadFile
from fastapi.concurrency import run_in_threadpool
from PIL import Image

from fixstar.errors import ImageError
from fixstar.gallery import Item
from fixstar.images import DecodeProcesses, Pixels, Preprocessing
from fixstar.images.isolated import DecodedPixels
from fixstar.images.reading import READS_HEIC, TooManyPixelsError
from fixstar.service.keys import calling
from fixstar.service.limits import TokenBuckets, come_again
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
_SUFFIX: Final = {
    "JPEG": ".jpg",
    "PNG": ".png",
    "GIF": ".gif",
    "BMP": ".bmp",
    "TIFF": ".tiff",
    "WEBP": ".webp",
    "AVIF": ".avif",
    "HEIF": ".heic",
}
_AVIF = (b"avif", b"avis")  # brands of files of boxes
_HEIF = (b"heic", b"heix", b"hevc", b"mif1", b"msf1")
FORMATS = "JPEG, PNG, WebP, AVIF, GIF, BMP or TIFF"
if READS_HEIC:
    FORMATS = FORMATS.replace("AVIF, ", "AVIF, HEIC, ")

THUMBNAIL_SIZES = (64, 128, 256, 512, 1024)  # longer sides; few, so that the cache is hit
_CACHED = 256  # thumbnails in memory: 10 KB each as the page asks for them, 300 KB at most
_WAIT = 60.0  # seconds until an image is decoded
_SECONDS_A_REQUEST = 0.1  # of decoding count as one request
_IMAGE_COST = 0.1  # of a request: each image beyond the first

Result = TypeVar("Result")


def image_kind(data: bytes) -> str | None:
    """The format of an image by its first bytes, of those that are allowed.

    >>> image_kind(b"GIF89a..."), image_kind(b"<html>")
    ('GIF', None)
    """
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[4:8] == b"ftyp":
        if data[8:12] in _AVIF:
            return "AVIF"
        if READS_HEIC and data[8:12] in _HEIF:
            return "HEIF"
        return None
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), None)


class DecodedImage(NamedTuple):
    """An image as a model takes it, the model's preprocessing, and the suffix for the image's file."""

    pixels: Pixels
    preprocessing: Preprocessing
    suffix: str


class Picture(NamedTuple):
    """A JPEG and its ETag."""

    content: bytes
    etag: str


class Turns:
    """Limits how many may work at a time. Callers take turns, however many requests of each are waiting.

    For one event loop.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # whose turn it is comes first

    @property
    def is_free(self) -> bool:
        """Whether there is a free place."""
        return self._free > 0

    async def take(self, caller: str) -> None:
        """Wait for a place; give it back afterwards."""
        if self._free:
            self._free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it was given in the same moment
                self.give_back()
            raise

    def give_back(self) -> None:
        """Pass the place on to the first waiting request of the next caller."""
        while self._waiting:
            caller = next(iter(self._waiting))
            line = self._waiting.pop(caller)
            place = line.popleft()
            if line:
                self._waiting[caller] = line  # behind the others
            if not place.done():
                place.set_result(None)
                return
        self._free += 1


class Intake:
    """Checks and decodes images beside the event loop, a few at a time, in processes that can be killed.

    Callers take turns. What decoding costs counts as requests, from ``buckets``.
    """

    def __init__(self, settings: ServiceSettings, buckets: TokenBuckets | None = None) -> None:
        self._settings = settings
        self._buckets = buckets or TokenBuckets(settings.rate)
        workers = min(4, os.cpu_count() or 1)
        self.processes = DecodeProcesses(workers, settings.decode_seconds, settings.pixels)
        self._turns = Turns(workers)
        self._drawn = lru_cache(maxsize=_CACHED)(self._draw)

    async def check(self, data: bytes) -> str:
        """The suffix for an image's file; a problem if it is too large, of another format, or claims too many pixels.

        A picture that is also something else (a script, an archive) counts as a picture: it is never handed out as it
        came.
        """
        kind = self._kind(data)
        await self.in_turn(partial(self.processes.size_async, data, kind))
        return _SUFFIX[kind]

    async def read(self, data: bytes, preprocessing: Preprocessing) -> DecodedImage:
        """An image as a model takes it, or a problem."""
        kind = self._kind(data)
        wait = await self._pay(0.0)
        if wait:
            raise come_again(self._settings, wait)
        decoded = await self.in_turn(partial(self._decoded, data, kind, preprocessing))
        return DecodedImage(decoded.pixels, preprocessing, _SUFFIX[kind])

    async def _decoded(self, data: bytes, kind: str, preprocessing: Preprocessing) -> DecodedPixels:
        """Decode an image, and charge the caller for the time."""
        began = time.monotonic()
        try:
            decoded = await self.processes.pixels_async(data, kind, preprocessing)
        except ImageError:  # what it took until then
            taken = min(time.monotonic() - began, self._settings.decode_seconds)
            await self._pay(taken / _SECONDS_A_REQUEST, owing=True)
            raise
        await self._pay(decoded.seconds / _SECONDS_A_REQUEST, owing=True)
        return decoded

    async def count(self, images: int) -> None:
        """Charge a request for each of its images."""
        await self._pay(_IMAGE_COST * (images - 1), owing=True)

    async def _pay(self, cost: float, owing: bool = False) -> float:
        take = partial(self._buckets.take, calling(), cost, owing)
        if self._settings.shared:  # may wait for a file's lock
            return await run_in_threadpool(take)
        return take()

    def _kind(self, data: bytes) -> str:
        if len(data) > self._settings.upload_bytes:
            raise _too_large(len(data), self._settings)
        kind = image_kind(data)
        if kind is None:
            seen = f"its first bytes are not those of a {FORMATS} file"
            if not data:
                seen = "the file is empty"
            raise Problem("unknown-format", seen, f"send {FORMATS}")
        return kind

    async def in_turn(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Wait until it is the caller's turn to decode; then the answer, or a problem."""
        try:
            async with asyncio.timeout(None if self._turns.is_free else _WAIT):
                await self._turns.take(calling())
        except TimeoutError:
            raise Problem("busy", f"{_WAIT:.0f} s passed until an image could be decoded") from None
        try:
            return await work()
        except TooManyPixelsError as error:
            hint = (
                "scale it down; the operator may allow more megapixels with: fixstar serve --pixels"
            )
            raise Problem("unreadable-image", error.reason, hint) from error
        except ImageError as error:
            raise Problem("unreadable-image", error.reason) from error
        finally:
            self._turns.give_back()

    def thumbnail(self, workspace: Workspace, item: Item, size: int) -> Picture:
        """An item's picture with its longer side at the next of ``THUMBNAIL_SIZES``, or smaller where the image is."""
        unknown = Problem("unknown-picture", "its image is not known here, or gone")
        path = workspace.images.find(item)
        if path is None:
            raise unknown
        try:
            seen = path.stat()
        except OSError:
            raise unknown from None
        side = next(one for one in THUMBNAIL_SIZES if one >= size)
        return self._drawn(path, seen.st_size, seen.st_mtime_ns, side)

    def _draw(self, path: Path, bytes_: int, modified: int, side: int) -> Picture:
        """The image on white, upright, without metadata."""
        key = f"{path}|{bytes_}|{modified}|{side}".encode(errors="surrogateescape")
        digest = hashlib.blake2b(key, digest_size=12).hexdigest()
        try:
            width, height = self.processes.size(path)
            scale = min(1.0, side / max(width, height))
            size = (max(1, round(height * scale)), max(1, round(width * scale)))
            unchanged = Preprocessing(size=size, mean=(0, 0, 0), std=(1, 1, 1), fit="squash")
            pixels = self.processes.pixels(path, unchanged)
        except ImageError as error:
            raise Problem(
                "unknown-picture", f"its image cannot be read any more: {error.reason}"
            ) from error
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
        return Picture(buffer.getvalue(), etag=f'"{digest}"')

    def close(self) -> None:
        """Stop the decoding processes."""
        self.processes.close()


def _too_large(size: int, settings: ServiceSettings) -> Problem:
    return Problem(
        "image-too-large", f"{size:,} bytes; up to {settings.upload_bytes:,} are allowed"
    )


async def read_upload(upload: UploadFile, settings: ServiceSettings) -> bytes:
    """The bytes of an uploaded file, unless there are too many."""
    if upload.size is not None and upload.size > settings.upload_bytes:
        raise _too_large(upload.size, settings)
    return await upload.read()


def image_in(name: str, text: str) -> bytes:
    """The bytes of an image in base64, with or without the head of a data URL; ``name`` is for messages."""
    hint = "send the image's bytes as base64, or as data:image/jpeg;base64,..."
    if text[:5].lower() == "data:":
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise Problem("invalid-request", f"{name} is a data URL without ;base64,", hint)
    elif text[:8].lower().startswith(("http://", "https://")):
        raise Problem(
            "invalid-request", f"{name} is an address, and nothing is fetched from elsewhere", hint
        )
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise Problem("invalid-request", f"{name} is not base64: {error}", hint) from error
