"""Images from paths, bytes, PIL images, arrays or tensors to uint8 [H, W, C]; one by one, or many in advance."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import re
import stat
import sys
import threading
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from fixstar.errors import ImageError, InputError
from fixstar.images.preprocessing import Box, Preprocessing, resize_to_fit, size_before_crop

if TYPE_CHECKING:
    import torch

MAX_PIXELS = 100_000_000  # more than common cameras have; a decompression bomb claims far more
MAX_SCANS = 100  # of a progressive JPEG, which has about 10: each is a pass over the whole image, and may be 10 bytes

ImageSource: TypeAlias = "str | Path | bytes | Image.Image | npt.NDArray[Any] | torch.Tensor"
Pixels: TypeAlias = npt.NDArray[np.uint8]

READS_HEIC = find_spec("pillow_heif") is not None  # the extra heic
# Plain raster formats only. Not EPS (Pillow starts Ghostscript for it) nor JPEG 2000 (truncated files may pass).
_FORMATS = (
    "AVIF",
    "BMP",
    "GIF",
    *["HEIF"] * READS_HEIC,
    "JPEG",
    "MPO",
    "PNG",
    "PPM",
    "TIFF",
    "WEBP",
)
_ORIENTATION = 0x0112  # the EXIF tag
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_LOADING = (
    threading.Lock()
)  # one lazy PIL image may be in a list twice, and its load() is not thread-safe


class TooManyPixelsError(ImageError):
    """An image that claims no pixels, or more than are allowed. It was not decoded."""


class _UnreadableError(Exception):
    """Carries the reason of an ImageError."""


class _TooManyPixelsError(_UnreadableError):
    """Carries the reason of a TooManyPixelsError."""


def read_pixels(
    source: ImageSource,
    preprocessing: Preprocessing,
    max_pixels: int = MAX_PIXELS,
    *,
    position: int | None = None,
    formats: list[str] | None = None,
) -> Pixels:
    """One image as a new uint8 array [H, W, C] of the preprocessing's size, or an ``ImageError``.

    Arrays are uint8 or floats in [0, 1], [H, W] or [H, W, 1|3|4]; tensors [H, W] or [C, H, W]. An image that already
    has the right size is not resampled, regardless of ``fit``. ``position`` is the image's place in a list; it names
    an image that has no path. ``formats`` are those that a file may have, by Pillow's names; any known one by default.

    >>> grey = Preprocessing(size=(2, 2), channels=1, mean=(0.5,), std=(0.5,))
    >>> read_pixels(np.array([[0.0, 1.0], [0.5, 0.2]]), grey)[..., 0]
    array([[  0, 255],
           [128,  51]], dtype=uint8)
    """
    try:
        if isinstance(source, np.ndarray):
            return _array_pixels(source, preprocessing)
        if _is_tensor(source):
            return _array_pixels(_channels_last(source), preprocessing)
        if isinstance(source, Image.Image):
            return _image_pixels(source, preprocessing, max_pixels, ours=False)
        with _open(source, formats) as image:
            return _image_pixels(image, preprocessing, max_pixels, ours=True)
    except (
        Exception
    ) as error:  # decoders raise anything on bad input: struct.error, SyntaxError, KeyError, ...
        raise _image_error(error)(_name(source, position), _reason(error), position or 0) from error


def _image_error(error: Exception) -> type[ImageError]:
    if isinstance(error, _TooManyPixelsError):
        return TooManyPixelsError
    return ImageError


def _name(source: Any, position: int | None) -> str:
    if isinstance(source, (str, Path)):
        return str(source)
    if position is None:
        return "image"
    return f"image #{position}"


def _reason(error: Exception) -> str:
    if isinstance(error, _UnreadableError):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return f"not an image of a known format ({', '.join(_FORMATS)}), or its header is damaged"
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        claimed, most = (f"{int(number):,}" for number in re.findall(r"\d+", str(error))[:2])
        return f"its header claims far too many pixels, so it was not decoded ({claimed}; at most {most} are allowed)"
    if isinstance(error, MemoryError):
        return "does not fit in memory"
    return f"damaged, truncated or not supported ({type(error).__name__}: {error})"


def _is_tensor(source: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.Tensor)


def _channels_last(tensor: Any) -> npt.NDArray[Any]:
    """A tensor [H, W] or [C, H, W] as an array [H, W] or [H, W, C]."""
    if tensor.ndim == 3 and tensor.shape[0] not in (1, 3, 4):
        raise _UnreadableError(
            f"a tensor is [H, W] or [C, H, W] with 1, 3 or 4 channels, got {tuple(tensor.shape)}"
        )
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.float()  # NumPy has no bfloat16
    array: npt.NDArray[Any] = tensor.numpy()
    if array.ndim == 3:
        return np.moveaxis(array, 0, -1)
    return array


def _array_pixels(array: npt.NDArray[Any], p: Preprocessing) -> Pixels:
    if array.ndim == 3:
        shape = array.shape
    else:
        shape = (*array.shape, 1)
    if len(shape) != 3 or shape[2] not in (1, 3, 4) or 0 in shape:
        raise _UnreadableError(
            f"an array is [H, W] or [H, W, C] with 1, 3 or 4 channels, got {array.shape}"
        )
    pixels = _eight_bit(array).reshape(shape)
    if shape == (*p.size, p.channels):
        return pixels.copy()
    flat = np.ascontiguousarray(pixels[..., 0] if shape[2] == 1 else pixels)
    return _to_size(Image.fromarray(flat), p)


def _eight_bit(array: npt.NDArray[Any]) -> Pixels:
    """Grey or colour values as uint8: uint8 as it is, floats in [0, 1] scaled and rounded."""
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.floating):
        raise _UnreadableError(f"pixel values are uint8 or floats in [0, 1], got {array.dtype}")
    low = float(array.min())
    high = float(array.max())
    if not (
        low >= -1e-6 and high <= 1 + 1e-6
    ):  # NaN fails every comparison; the slack forgives float32 resampling
        raise _UnreadableError(f"float pixel values are numbers in [0, 1], got {low:g} to {high:g}")
    scaled: Pixels = np.rint(np.clip(array, 0, 1) * 255).astype(np.uint8)
    return scaled


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    if READS_HEIC:
        from pillow_heif import register_heif_opener

        register_heif_opener()
    return tuple(name for name in _FORMATS if name in Image.OPEN)  # an old Pillow has no AVIF


def _open(source: Any, formats: list[str] | None = None) -> Image.Image:
    known = _formats()
    if isinstance(source, bytes):
        if not source:
            raise _UnreadableError("empty (0 bytes)")
        return Image.open(io.BytesIO(source), formats=known if formats is None else formats)
    if not isinstance(source, (str, Path)):
        raise _UnreadableError(
            f"an image is a path, bytes, a PIL image, an array or a tensor, got {type(source).__name__}"
        )
    _check_file(Path(source))
    return Image.open(source, formats=known if formats is None else formats)


def _check_file(path: Path) -> None:
    """Checks the file before Pillow opens it, for clearer reasons."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise _UnreadableError("no such file") from None
    if stat.S_ISDIR(status.st_mode):
        raise _UnreadableError("a folder, not an image")
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
        raise _UnreadableError("not a regular file")
    if status.st_size == 0:
        raise _UnreadableError("empty (0 bytes)")


def content(source: Path | npt.NDArray[np.uint8]) -> bytes:
    """The bytes of a file or of pixels, for a digest. ``OSError`` unless it is a regular file."""
    if isinstance(source, np.ndarray):
        return np.ascontiguousarray(source).tobytes()
    if not source.is_file():
        raise OSError(f"{source} is not a regular file")  # opening a pipe would block
    return source.read_bytes()


def _require_few_pixels(image: Image.Image, most: int) -> None:
    width, height = image.size
    if not 0 < width * height <= most:
        raise _TooManyPixelsError(
            f"{width} x {height} pixels, but 1 to {most:,} are allowed; it was not decoded"
        )


def _image_pixels(image: Image.Image, p: Preprocessing, max_pixels: int, *, ours: bool) -> Pixels:
    """The pixels of an opened image. ``ours`` is False if the caller opened it: then it must not change."""
    _require_few_pixels(image, max_pixels)
    width, height = image.size
    box: Box = (0, 0, width, height)
    if ours and isinstance(image, JpegImageFile):
        data = _file_bytes(image)
        if _most_scans(data) > MAX_SCANS and (scans := _scans(data)) > MAX_SCANS:
            raise _UnreadableError(
                f"a JPEG of {scans} scans or more, but up to {MAX_SCANS} are allowed; not decoded"
            )
        box = _shrink_while_decoding(image, p)
    if ours and isinstance(image, PngImageFile):
        png = (image.fp, image.filename)
    else:
        png = None
    with contextlib.nullcontext() if ours else _LOADING:
        image.load()
        turn = _orientation(image)
    if png is not None and _may_lack_rows(image) and not _has_all_rows(*png):
        raise _UnreadableError("truncated: it has fewer rows than its header says")
    if turn in _TURNS:
        box = _rotated_box(box, image.size, turn)
        image = image.transpose(_TURNS[turn])
    return _to_size(image, p, box)


_MARKER = re.compile(
    rb"\xff+([\x01-\xcf\xd8-\xfe])"
)  # not a stuffed byte, not a restart inside a scan
# markers without a length; the end of the image; the start of a scan
_ALONE = (0x01, 0xD8)
_END = 0xD9
_SCAN = 0xDA


def _file_bytes(image: JpegImageFile) -> bytes:
    assert image.fp is not None
    place = image.fp.tell()
    image.fp.seek(0)
    data = image.fp.read()
    image.fp.seek(place)
    return data


def _most_scans(data: bytes) -> int:
    """An upper bound of the number of scans, counted fast by NumPy, which does not block other threads."""
    values = np.frombuffer(data, np.uint8)
    return int(np.count_nonzero((values[:-1] == 0xFF) & (values[1:] == _SCAN)))


def _scans(data: bytes) -> int:
    """The scans of a JPEG up to its end, counted without decoding; the count stops above ``MAX_SCANS``."""
    scans = 0
    start = 0
    while (
        scans <= MAX_SCANS
        and (found := _MARKER.search(data, start)) is not None
        and found[1][0] != _END
    ):
        start = found.end()
        scans += found[1][0] == _SCAN
        if found[1][0] not in _ALONE:  # a marker segment starts with its length
            start += int.from_bytes(data[start : start + 2], "big")
    return scans


_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the type of its colours
_PNG_PASSES = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)


def _may_lack_rows(image: Image.Image) -> bool:
    """Whether rows may be missing: Pillow fills a truncated PNG with 0, so the last row is 0 unless interlaced."""
    width, height = image.size
    return bool(image.info.get("interlace")) or not image.crop(
        (0, height - 1, width, height)
    ).getbbox(alpha_only=False)


def _has_all_rows(file: IO[bytes] | None, path: str | bytes) -> bool:
    """Whether a PNG's data decompress to the size in its header. Pillow may have closed the file."""
    if file is None or file.closed:
        with Path(os.fsdecode(path)).open("rb") as again:
            return _has_all_rows(again, path)
    file.seek(8)
    head = b""
    unpacked = 0
    unpacking = zlib.decompressobj()
    while len(start := file.read(8)) == 8:
        size = int.from_bytes(start[:4], "big")
        data = file.read(size)
        file.seek(4, io.SEEK_CUR)  # its checksum
        if start[4:] == b"IHDR":
            head = data
        while start[4:] == b"IDAT" and data:
            unpacked += len(unpacking.decompress(data, 1 << 20))
            data = unpacking.unconsumed_tail
    return unpacked >= _png_bytes(head)


def _png_bytes(head: bytes) -> int:
    """The bytes of all rows of a PNG, each with its filter byte."""
    width = int.from_bytes(head[:4], "big")
    height = int.from_bytes(head[4:8], "big")
    bits = head[8] * _PNG_CHANNELS[head[9]]
    passes: tuple[tuple[int, int, int, int], ...] = ((0, 0, 1, 1),)
    if head[12]:
        passes = _PNG_PASSES
    total = 0
    for left, top, across, down in passes:
        columns = -(-(width - left) // across)
        rows = -(-(height - top) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + -(-columns * bits // 8))
    return total


def upright_size(
    source: str | Path | bytes, formats: list[str] | None = None, max_pixels: int = sys.maxsize
) -> tuple[int, int]:
    """Width and height as an image is shown, or an ``ImageError``; of any format by default."""
    try:
        with _open(source, formats) as image:
            _require_few_pixels(
                image, max_pixels
            )  # first, because Pillow decodes a PNG to find its orientation
            width, height = image.size
            if _orientation(image) >= 5:
                return (height, width)
            return (width, height)
    except Exception as error:  # as in read_pixels
        raise _image_error(error)(_name(source, None), _reason(error)) from error


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged metadata does not make the image unreadable
        return 1


def _shrink_while_decoding(image: JpegImageFile, p: Preprocessing) -> Box:
    """Let libjpeg decode at 1/2, 1/4 or 1/8 if that leaves at least twice the needed size in both directions.

    Returns the box of the image: 4001 pixels at 1/4 are 1000.25 of the 1001 decoded ones.
    """
    width, height = image.size
    turned = _orientation(image) >= 5
    if turned:
        size = (height, width)
    else:
        size = (width, height)
    if p.fit == "crop":
        needed = size_before_crop(size, p)
    else:
        needed = p.size[::-1]
    across, down = needed[::-1] if turned else needed
    drafted = image.draft(None, (2 * across, 2 * down))
    if drafted:
        return drafted[1]
    return (0, 0, width, height)


def _rotated_box(box: Box, size: tuple[int, int], turn: int) -> Box:
    """A box of an image after the image was rotated upright."""
    left, top, right, bottom = box
    width, height = size
    if turn in (2, 3, 7, 8):
        left, right = width - right, width - left
    if turn in (3, 4, 6, 7):
        top, bottom = height - bottom, height - top
    if turn >= 5:
        return (top, left, bottom, right)
    return (left, top, right, bottom)


def _to_size(image: Image.Image, p: Preprocessing, box: Box | None = None) -> Pixels:
    return np.array(resize_to_fit(_to_mode(image, p), p, box)).reshape(*p.size, p.channels)


def _to_mode(image: Image.Image, p: Preprocessing) -> Image.Image:
    """The image in mode L or RGB: 16-bit grey scaled to 8 bits, transparency composited on white."""
    if image.mode == "F":
        image = Image.fromarray(_eight_bit(np.asarray(image)))
    elif image.mode.startswith("I"):
        image = _from_deep_grey(image)
    if image.has_transparency_data:
        colours = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), colours)
    mode = "L" if p.channels == 1 else "RGB"
    if image.mode == mode:
        return image
    return image.convert(mode)


def _from_deep_grey(image: Image.Image) -> Image.Image:
    """16-bit grey (modes I;16 and I) in 8 bits. Pillow's own conversion would clip everything above 255 to white."""
    grey = np.asarray(image)
    if grey.min() < 0 or grey.max() > 65535:
        raise _UnreadableError(
            f"grey values have 8 or 16 bits, 0 to 65535, got {grey.min()} to {grey.max()}"
        )
    eight = ((grey.astype(np.uint32) + 128) // 257).astype(np.uint8)
    eight[grey == image.info.get("transparency", -1)] = 255  # a transparent colour, on white
    return Image.fromarray(eight)


_SMALL = 1 << 16  # bytes of an image
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

Decode: TypeAlias = Callable[[ImageSource, Preprocessing], Pixels]
Sources: TypeAlias = "Sequence[ImageSource] | npt.NDArray[Any]"
BatchSlice: TypeAlias = "tuple[Sources, range]"  # the images at some positions


def decode_ahead(
    sources: Sources,
    preprocessing: Preprocessing,
    workers: int | None = None,
    ahead: int | None = None,
    decode: Decode | None = None,
) -> Generator[Pixels | ImageError, None, None]:
    """All images in order, decoded by ``workers`` threads, up to ``ahead`` in advance; ``ImageError`` if unreadable.

    ``decode`` is ``read_pixels`` by default. Closing the generator early stops the threads.
    """
    workers = _CORES if workers is None else workers
    ahead = 4 * workers if ahead is None else ahead
    if workers < 1 or ahead < 1:
        raise InputError(
            f"decode_ahead needs workers >= 1 and ahead >= 1, got {workers} and {ahead}"
        )
    read = functools.partial(_read, preprocessing=preprocessing, decode=decode)
    parts = _singly(sources, range(len(sources)))
    if workers == 1 or _is_cheap(sources, preprocessing):
        return (image for part in parts for image in read(part))
    return _one_by_one(_in_threads(read, ([part] for part in parts), workers=workers, ahead=ahead))


def decode_batches(
    batches: Iterable[BatchSlice], preprocessing: Preprocessing, decode: Decode | None = None
) -> Generator[list[Pixels | ImageError], None, None]:
    """The images of every batch, like ``decode_ahead``; positions refer to the batch's sequence.

    Threads decode the next batch while the caller works on the current one. Later batches are not fetched yet.
    """
    read = functools.partial(_read, preprocessing=preprocessing, decode=decode)
    if isinstance(batches, list) and sum(len(positions) for _, positions in batches) == 1:
        return (
            read(batch) for batch in batches
        )  # one image: a thread would take longer to start than to read it
    jobs = (
        [(sources, positions)]
        if _is_cheap(sources, preprocessing)
        else list(_singly(sources, positions))
        for sources, positions in batches
    )
    return _in_threads(read, jobs, workers=_CORES, ahead=1)


def _singly(sources: Sources, positions: range) -> Iterator[BatchSlice]:
    return ((sources, range(position, position + 1)) for position in positions)


def _read(
    part: BatchSlice, *, preprocessing: Preprocessing, decode: Decode | None
) -> list[Pixels | ImageError]:
    sources, positions = part
    found: list[Pixels | ImageError] = []
    for position in positions:
        try:
            if decode is not None:
                found.append(decode(sources[position], preprocessing))
            else:
                found.append(read_pixels(sources[position], preprocessing, position=position))
        except ImageError as error:
            found.append(ImageError(error.name, error.reason, position))  # without its traceback
    return found


def _is_cheap(images: Sources, preprocessing: Preprocessing) -> bool:
    """Whether handing an image to a thread costs more than reading it: a plain copy, or a small image to resize."""
    if not isinstance(images, np.ndarray):
        return False
    return images.shape[1:3] == preprocessing.size or math.prod(images.shape[1:]) <= _SMALL


def _one_by_one(
    batches: Generator[list[Pixels | ImageError], None, None],
) -> Generator[Pixels | ImageError, None, None]:
    with contextlib.closing(batches):
        for batch in batches:
            yield from batch


def _in_threads(
    read: Callable[[BatchSlice], list[Pixels | ImageError]],
    batches: Iterable[list[BatchSlice]],
    workers: int,
    ahead: int,
) -> Generator[list[Pixels | ImageError], None, None]:
    """The images of every batch, read in parallel, with up to ``ahead`` more batches in progress."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="fixstar-decode")
    window: deque[list[Future[list[Pixels | ImageError]]]] = deque()
    try:
        for parts in batches:
            window.append([pool.submit(read, part) for part in parts])
            if len(window) > ahead:
                yield [image for part in window.popleft() for image in part.result()]
        while window:
            yield [image for part in window.popleft() for image in part.result()]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
