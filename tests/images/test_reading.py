from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from example_images import distance, encoded, grey, noise, reason, rgb
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from fixstar.images import read_pixels


def test_colour_modes() -> None:
    image = noise(8, 8)
    assert distance(read_pixels(encoded(image, "PNG"), rgb(8, 8)), image) == 0
    assert (
        distance(read_pixels(image.convert("L"), rgb(8, 8)), image.convert("L").convert("RGB")) == 0
    )
    assert distance(read_pixels(encoded(image, "BMP"), grey(8, 8)), image.convert("L")) == 0
    palette = image.quantize(16)
    assert distance(read_pixels(encoded(palette, "PNG"), rgb(8, 8)), palette.convert("RGB")) == 0
    bits = image.convert("1")
    assert distance(read_pixels(encoded(bits, "PNG"), grey(8, 8)), bits.convert("L")) == 0


def test_cmyk_jpeg_has_the_colours_that_were_printed() -> None:
    pixels = read_pixels(
        encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=95), rgb(8, 8)
    )
    assert distance(pixels, np.broadcast_to(np.array([255, 0, 0]), (8, 8, 3))) <= 3


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    deep = np.array([[0, 128, 129, 257], [1000, 32768, 65407, 65535]], np.uint16)
    shallow = [[0, 0, 1, 1], [4, 128, 255, 255]]
    for image in (
        Image.fromarray(deep),
        Image.fromarray(deep.astype(np.int32)),
        Image.fromarray(deep.astype(">u2")),
    ):
        assert image.mode.startswith("I")
        assert read_pixels(image, grey(2, 4))[..., 0].tolist() == shallow
    assert (
        read_pixels(encoded(Image.fromarray(deep), "PNG"), grey(2, 4))[..., 0].tolist() == shallow
    )
    assert (
        read_pixels(encoded(Image.fromarray(deep), "TIFF"), rgb(2, 4))[..., 2].tolist() == shallow
    )


def test_deeper_grey_is_refused_and_floats_are_checked() -> None:
    assert "got 0 to 70000" in reason(Image.fromarray(np.array([[0, 70000]], np.int32)))
    assert read_pixels(
        Image.fromarray(np.array([[0.0, 1.0]], np.float32)), grey(1, 2)
    ).ravel().tolist() == [0, 255]
    assert "got 0 to 300" in reason(
        encoded(Image.fromarray(np.array([[0, 300]], np.float32)), "TIFF")
    )


def test_transparency_lies_on_white() -> None:
    half_red = Image.new("RGBA", (2, 1), (255, 0, 0, 128))
    half_red.putpixel((1, 0), (0, 0, 0, 0))
    for source in (encoded(half_red, "PNG"), half_red, np.asarray(half_red)):
        assert read_pixels(source, rgb(1, 2)).tolist() == [[[255, 127, 127], [255, 255, 255]]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([0, 0, 255, 9, 9, 9])
    palette.putpixel((1, 0), 1)
    assert read_pixels(encoded(palette, "PNG", transparency=1), rgb(1, 2)).tolist() == [
        [[0, 0, 255], [255, 255, 255]]
    ]
    assert read_pixels(encoded(palette, "GIF", transparency=1), rgb(1, 2)).tolist() == [
        [[0, 0, 255], [255, 255, 255]]
    ]
    deep = Image.fromarray(np.array([[100, 200]], np.uint16))
    assert read_pixels(encoded(deep, "PNG", transparency=100), grey(1, 2)).ravel().tolist() == [
        255,
        1,
    ]


def test_animation_gives_its_first_frame() -> None:
    red, blue = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    for format_ in ("GIF", "PNG", "WEBP"):
        data = encoded(
            red,
            format_,
            save_all=True,
            append_images=[blue],
            duration=100,
            **{"lossless": True} if format_ == "WEBP" else {},
        )
        assert read_pixels(data, rgb(4, 4))[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("format_", ["PNG", "WEBP", "TIFF"])
def test_exif_orientation(turn: int, format_: str) -> None:
    image, exif = noise(6, 10), Image.Exif()
    exif[0x0112] = turn
    data = encoded(image, format_, exif=exif, **{"lossless": True} if format_ == "WEBP" else {})
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded(image, "PNG", exif=exif))))
    assert upright.size == ((10, 6) if turn < 5 else (6, 10))
    assert distance(read_pixels(data, rgb(upright.height, upright.width)), upright) == 0


def test_exif_orientation_by_hand() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: what is stored left belongs on top
    image = Image.new("RGB", (16, 8), "blue")
    image.paste("red", (0, 0, 8, 8))
    pixels = read_pixels(encoded(image, "JPEG", exif=exif, quality=95, subsampling=0), rgb(16, 8))
    assert distance(pixels[2:6], np.broadcast_to(np.array([254, 0, 0]), (4, 8, 3))) <= 3
    assert distance(pixels[10:14], np.broadcast_to(np.array([0, 0, 254]), (4, 8, 3))) <= 3


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_does_not_spoil_the_picture() -> None:
    data = encoded(noise(8, 8), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff" + bytes(9))
    assert read_pixels(data, rgb(8, 8)).shape == (8, 8, 3)


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_large_jpeg_decoded_small_shows_the_same(
    fit: str, turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    data = encoded(noise(403, 601, cell=24), "JPEG", exif=exif, quality=95)
    draft, sizes = JpegImageFile.draft, []

    def watched(image: JpegImageFile, mode: Any, size: Any) -> Any:
        result = draft(image, mode, size)
        sizes.append(image.size)
        return result

    monkeypatch.setattr(JpegImageFile, "draft", watched)
    p = rgb(24, 32, fit=fit, crop_fraction=0.9)
    small = read_pixels(data, p)
    assert sizes == [(151, 101)] or sizes == [(76, 51)]  # a quarter or an eighth of 601 x 403
    assert (
        distance(small, read_pixels(Image.open(io.BytesIO(data)), p)) <= 8
    )  # a user's own image is decoded in full


def test_jpeg_is_not_decoded_smaller_than_needed() -> None:
    image = noise(64, 64)
    data = encoded(image, "JPEG", quality=95)
    assert distance(read_pixels(data, rgb(64, 64)), Image.open(io.BytesIO(data))) == 0
    assert (
        distance(
            read_pixels(data, rgb(40, 40)),
            Image.open(io.BytesIO(data)).resize((40, 40), Image.Resampling.BICUBIC),
        )
        == 0
    )


@pytest.mark.parametrize(("width", "height"), [(100, 80), (333, 500), (50, 31), (7, 5)])
def test_crop_is_resize_then_centre_crop(width: int, height: int) -> None:
    image, p = noise(height, width), rgb(24, 30, crop_fraction=0.75)
    scale = max(24 / 0.75 / height, 30 / 0.75 / width)
    size = (int(width * scale + 1e-9), int(height * scale + 1e-9))
    assert size[0] == 40 or size[1] == 32
    left, top = round((size[0] - 30) / 2), round((size[1] - 24) / 2)
    slow = image.resize(size, Image.Resampling.BICUBIC).crop((left, top, left + 30, top + 24))
    assert distance(read_pixels(image, p), slow) <= 1


def test_squash_and_pad() -> None:
    image = noise(10, 20)
    assert (
        distance(
            read_pixels(image, rgb(8, 8, fit="squash", interpolation="nearest")),
            image.resize((8, 8), 0),
        )
        == 0
    )
    padded = read_pixels(Image.new("RGB", (20, 10), "black"), rgb(8, 8, fit="pad"))
    assert padded[..., 0].tolist() == [[255] * 8] * 2 + [[0] * 8] * 4 + [[255] * 8] * 2


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
@pytest.mark.parametrize("size", [(2_000_000, 1), (1, 2_000_000)])
def test_extreme_strips_do_not_explode(fit: str, size: tuple[int, int]) -> None:
    assert read_pixels(Image.new("RGB", size, "red"), rgb(31, 31, fit=fit))[15, 15].tolist() == [
        255,
        0,
        0,
    ]


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
def test_reading_twice_changes_nothing(fit: str) -> None:
    p = rgb(16, 16, fit=fit, crop_fraction=0.7)
    once = read_pixels(noise(50, 70), p)
    twice = read_pixels(once, p)
    assert distance(once, twice) == 0
    assert distance(once, read_pixels(encoded(Image.fromarray(once), "PNG"), p)) == 0
    assert not np.shares_memory(once, twice)


def test_arrays_and_tensors_agree() -> None:
    array = np.asarray(noise(9, 12))
    expected = read_pixels(Image.fromarray(array), rgb(6, 6))
    chw = torch.from_numpy(array.copy()).permute(2, 0, 1)
    for source in (
        array,
        array / 255,
        chw,
        chw / 255,
        (chw / 255).requires_grad_(),
        array[::-1][::-1],
    ):
        assert distance(read_pixels(source, rgb(6, 6)), expected) == 0
    assert distance(read_pixels((chw / 255).bfloat16(), rgb(6, 6)), expected) <= 2
    plane = array[..., 0]
    for source in (
        plane,
        plane[..., None],
        torch.from_numpy(plane.copy()),
        torch.from_numpy(plane.copy())[None],
    ):
        assert distance(read_pixels(source, grey(9, 12)), plane) == 0


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (np.full((8, 8), np.nan), "nan"),
        (np.full((8, 8), 200.0), "got 200 to 200"),
        (np.full((8, 8), -0.5), "got -0.5"),
        (np.zeros((8, 8), np.int64), "int64"),
        (np.zeros((3, 8, 8), np.uint8), "got (3, 8, 8)"),
        (np.zeros((0, 8, 3), np.uint8), "got (0, 8, 3)"),
        (np.zeros((2, 8, 8, 3), np.uint8), "got (2, 8, 8, 3)"),
        (np.zeros(8, np.uint8), "got (8,)"),
        (torch.zeros(8, 8, 3), "got (8, 8, 3)"),
        (Image.new("RGB", (0, 5)), "0 x 5"),
        (None, "NoneType"),
        (7, "int"),
    ],
)
def test_unusable_values_are_refused(source: Any, said: str) -> None:
    assert said in reason(source)


def test_torch_is_not_imported() -> None:
    settings = "Preprocessing(size=(2, 2), mean=[0] * 3, std=[1] * 3)"
    use = f"import sys, numpy; from fixstar.images import *; read_pixels(numpy.zeros((4, 4)), {settings})"
    code = f"{use}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@settings(max_examples=100, deadline=None)
@given(
    hnp.arrays(np.uint8, hnp.array_shapes(min_dims=2, max_dims=2, max_side=40)),
    st.sampled_from(["crop", "squash", "pad"]),
)
def test_any_size_fits(array: npt.NDArray[np.uint8], fit: Any) -> None:
    pixels = read_pixels(array, grey(9, 5, fit=fit, crop_fraction=0.8))
    assert pixels.shape == (9, 5, 1)
    if fit != "pad" and array.min() == array.max():
        assert (pixels == array[0, 0]).all()


def test_heic_is_read_where_the_extra_is_installed() -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    image = noise(64, 48, cell=8)
    data = encoded(image, "HEIF", quality=95)
    assert float(np.abs(read_pixels(data, rgb(64, 48)).astype(int) - np.asarray(image)).mean()) < 8
    assert "damaged, truncated" in reason(data[: len(data) // 2])
