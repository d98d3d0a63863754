from __future__ import annotations

import os
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from example_images import distance, encoded, grey, noise, reason, rgb
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile
from wording import check_wording

from fixstar.errors import ImageError
from fixstar.images import read_pixels
from fixstar.images.reading import content


@pytest.mark.filterwarnings("ignore:Truncated File Read")
@pytest.mark.parametrize(
    ("format_", "options"),
    [
        *(
            ("JPEG", {}),
            ("JPEG", {"progressive": True}),
            ("PNG", {}),
            ("GIF", {}),
            ("TIFF", {}),
            ("BMP", {}),
        ),
        *(("WEBP", {}), ("WEBP", {"lossless": True}), ("AVIF", {})),
    ],
)
def test_a_file_cut_short_never_gives_half_a_picture(format_: str, options: dict[str, Any]) -> None:
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False
    data = encoded(noise(40, 40, cell=4), format_, **options)
    whole = read_pixels(data, rgb(16, 16))
    for cut in {*range(0, len(data), max(1, len(data) // 80)), *range(len(data) - 30, len(data))}:
        try:
            assert distance(read_pixels(data[:cut], rgb(16, 16)), whole) == 0
            assert len(data) - cut < 24, "only a trailer may be missing"
        except ImageError:
            pass
    assert "truncated" in reason(data[: len(data) * 2 // 3])


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    ihdr = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + ihdr
        + chunk(b"IDAT", zlib.compress(bytes(100)))
        + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def png(rows: bytes, height: int, interlaced: bool = False) -> bytes:
    """A PNG of 8 columns of grey, of a header and these rows, each after its filter."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", 8, height, 8, 0, 0, 0, interlaced)
    data = zlib.compress(rows)
    parts = chunk(b"IDAT", data[:5]) + chunk(b"IDAT", data[5:])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + parts + chunk(b"IEND", b"")


def test_a_png_that_lacks_rows_is_refused(tmp_path: Path) -> None:
    """Its data are whole, with a checksum that fits: there are only too few."""
    row = b"\0" + bytes(range(200, 208))
    dark = b"\0" + bytes(8)
    for height, rows in ((8, 8 * row), (9, 8 * row + dark), (3, 3 * dark), (1, row)):
        assert read_pixels(png(rows, height), grey(height, 8)).shape == (height, 8, 1)
        for missing in (len(rows), 9, 5, 1):
            cut = png(rows[:-missing], height)
            assert "truncated" in reason(cut, grey(height, 8)), (height, missing)
            (tmp_path / "cut.png").write_bytes(cut)
            assert "truncated" in reason(tmp_path / "cut.png", grey(height, 8))


@pytest.mark.parametrize("height", [1, 8])
def test_an_interlaced_png_that_lacks_rows_is_refused(height: int) -> None:
    if height == 8:  # passes of 1 x 1, 1 x 1, 2 x 1, 2 x 2, 4 x 2, 4 x 4, 8 x 4 pixels
        rows = b"".join(
            b"\0" + bytes([9] * width) for width in (1, 1, 2, 2, 2, 4, 4, *[4] * 4, *[8] * 4)
        )
    else:  # 8 x 1: the first pass, the second, the fourth and the sixth
        rows = b"".join(b"\0" + bytes([9] * width) for width in (1, 1, 2, 4))
    assert (read_pixels(png(rows, height, interlaced=True), grey(height, 8)) == 9).all()
    last = 9 if height == 8 else 5
    assert "truncated" in reason(png(rows[:-last], height, interlaced=True), grey(height, 8))


def test_absurd_sizes_are_refused_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("decoded"))
    claim = reason(png_header(60_000, 60_000))
    check_wording(claim)
    check_wording(reason(png_header(10_300, 10_000)))
    assert "not decoded" in reason(encoded(noise(20, 20), "PNG"), max_pixels=399)


def test_files_that_are_no_images(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("this is no picture")
    (tmp_path / "empty.png").touch()
    (tmp_path / "drawing.eps").write_bytes(encoded(noise(8, 8), "EPS"))
    check_wording(reason(tmp_path / "text.jpg"))
    check_wording(reason(str(tmp_path / "drawing.eps")))  # Ghostscript never starts
    assert reason(tmp_path / "empty.png") == "empty (0 bytes)"
    assert reason(b"") == "empty (0 bytes)"
    assert reason(tmp_path / "missing.png") == "no such file"
    assert reason(tmp_path) == "a folder, not an image"
    assert reason("/dev/null") == "not a regular file"
    assert "embedded null byte" in reason("a\0b.jpg")


def test_a_pipe_is_never_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jpg"
    os.mkfifo(pipe)
    threading.Thread(
        target=lambda: pipe.open("wb").close(), daemon=True
    ).start()  # so that this fails, not hangs
    with pytest.raises(OSError, match="not a regular file"):
        content(pipe)
    assert reason(pipe) == "not a regular file"


def test_errors_carry_the_name(tmp_path: Path) -> None:
    for source, name in (
        (f"{tmp_path}/x.jpg", f"{tmp_path}/x.jpg"),
        (b"", "image #12"),
        (tmp_path, str(tmp_path)),
    ):
        with pytest.raises(ImageError) as caught:
            read_pixels(source, rgb(8, 8), position=12)
        assert caught.value.name == name


def test_memory_running_out_is_an_image_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> None:
        raise MemoryError

    image = noise(20, 20)
    monkeypatch.setattr(Image.Image, "resize", exhausted)
    assert reason(image) == "does not fit in memory"


HEADERS = [
    encoded(noise(12, 12), name)
    for name in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "AVIF")
]


@settings(max_examples=200, deadline=None)
@pytest.mark.filterwarnings("ignore")
@given(st.sampled_from(HEADERS), st.data())
def test_damaged_bytes_raise_nothing_but_image_errors(good: bytes, data: st.DataObject) -> None:
    damaged = bytearray(good)
    for at, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)), max_size=8)
    ):
        damaged[at] = value
    try:
        pixels = read_pixels(bytes(damaged), rgb(8, 8), max_pixels=1_000_000)
    except ImageError:
        return
    assert pixels.shape == (8, 8, 3)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_image_errors(data: bytes) -> None:
    with pytest.raises(ImageError):
        read_pixels(data, rgb(8, 8), max_pixels=1_000_000)
