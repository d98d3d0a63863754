"""An open-set image dataset that needs no download: characters "photographed" from the fonts inside matplotlib.

The one-minute demo trains on some scripts and searches among characters that were never trained on. A class is one
character, an instance one print of it: a random font, size, slant, stroke weight, crumple, focus, light and grain.

>>> images, labels = glyph_pixels(SCRIPTS["greek"][:3], per_class=4)
>>> images.shape, labels.tolist()
((12, 32, 32, 1), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
"""

from __future__ import annotations

import os
import string
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fixstar.errors import DataError, InputError

Floats: TypeAlias = NDArray[np.float32]
Bytes: TypeAlias = NDArray[np.uint8]


_TEX_CHARACTERS = frozenset(string.ascii_letters + string.digits)
# pixels: side of a distance field, longest side of its glyph, drawing size
_FIELD = 64
_GLYPH = 44
_FONT_SIZE = 72
# layers of a distance field
_DILATIONS = 3
_EROSIONS = 2
# side of the grid of random numbers behind a smooth field; bend in field pixels
_KNOTS = 5
_CRUMPLE = 4.0
_BATCH = 32  # images warped together; small enough to stay in the processor's cache


def _expand(ranges: str) -> list[str]:
    """Characters of space-separated hexadecimal ranges.

    >>> _expand("41-43 61")
    ['A', 'B', 'C', 'a']
    """
    bounds = (item.partition("-") for item in ranges.split())
    return [
        chr(code)
        for first, _, last in bounds
        for code in range(int(first, 16), int(last or first, 16) + 1)
    ]


_CONTENT = tomllib.loads(files("fixstar.data").joinpath("glyphs.toml").read_text(encoding="utf-8"))
_TEX_FONTS: list[str] = _CONTENT["fonts"]["tex"]
_VARIATION: dict[str, tuple[float, float]] = _CONTENT["variation"]
_RANGES = _CONTENT["scripts"]
_LOOK_ALIKES = _CONTENT["look-alikes"]["all"]
_EXCLUDED = frozenset(_expand(_LOOK_ALIKES))
SCRIPTS: dict[str, tuple[str, ...]] = {
    name: tuple(character for character in _expand(ranges) if character not in _EXCLUDED)
    for name, ranges in _RANGES.items()
}
"""Characters by script. No two of them look the same, within a script or across scripts."""


def glyph_pixels(
    characters: Sequence[str],
    per_class: int,
    size: int = 32,
    seed: int = 0,
    workers: int | None = None,
) -> tuple[Bytes, NDArray[np.int64]]:
    """Images ``[N, size, size, 1]`` of dark ink on light paper, and labels ``[N]``, ordered by class.

    Image j of a character depends only on (seed, character, j, size).
    """
    workers = min(4, os.cpu_count() or 1) if workers is None else workers
    _check(
        characters, per_class=(per_class, 1), size=(size, 8), seed=(seed, 0), workers=(workers, 1)
    )
    fields = [_distance_field(character) for character in characters]
    images = np.empty((len(characters), per_class, size, size), np.uint8)

    def fill(index: int) -> None:
        draws = _draws(characters[index], per_class, size, seed)
        for start in range(0, per_class, _BATCH):
            part = slice(start, start + _BATCH)
            images[index, part] = _photograph(fields[index], draws[part], size)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(fill, range(len(characters))))
    return images.reshape(-1, size, size, 1), np.repeat(
        np.arange(len(characters), dtype=np.int64), per_class
    )


def _check(characters: Sequence[str], **numbers: tuple[int, int]) -> None:
    """Check the arguments before any work is done; ``numbers`` are (value, minimum)."""
    if not characters:
        raise InputError("characters is empty; try SCRIPTS['greek']")
    for position, character in enumerate(characters):
        if len(character) != 1:
            raise InputError(
                f"characters[{position}] is {character!r}; each class must be a single character"
            )
    repeated = [character for character, times in Counter(characters).items() if times > 1]
    if repeated:
        raise InputError(
            f"characters holds {', '.join(map(repr, repeated))} more than once; each class must be unique"
        )
    for name, (value, least) in numbers.items():
        if value < least:
            raise InputError(f"{name} is {value}; it must be at least {least}")


@lru_cache(maxsize=1)
def _fonts() -> tuple[tuple[ImageFont.FreeTypeFont, frozenset[str]], ...]:
    """Every font found, with the characters that it has: others would be drawn as an empty box."""
    import matplotlib  # takes 0.3 s: imported only to draw
    from matplotlib.ft2font import FT2Font

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    found = []
    for path in (folder / f"{name}.ttf" for name in _CONTENT["fonts"]["unicode"] + _TEX_FONTS):
        if path.is_file():
            font = ImageFont.truetype(str(path), _FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
            covered = frozenset(map(chr, FT2Font(str(path)).get_charmap()))
            found.append((font, covered & _TEX_CHARACTERS if path.stem in _TEX_FONTS else covered))
    if not found:
        raise DataError(
            f"no known font in {folder}; reinstall matplotlib from its wheel: pip install matplotlib"
        )
    return tuple(found)


def _draw(font: ImageFont.FreeTypeFont, character: str) -> Bytes | None:
    """Ink ``[_FIELD, _FIELD]`` of one glyph, cropped, scaled to ``_GLYPH`` and centred; None if it is blank."""
    left, top, right, bottom = (int(edge) for edge in font.getbbox(character))
    image = Image.new("L", (max(1, right - left), max(1, bottom - top)))
    ImageDraw.Draw(image).text((-left, -top), character, fill=255, font=font)
    box = image.getbbox()
    if box is None:
        return None
    zoom = _GLYPH / max(box[2] - box[0], box[3] - box[1])
    width = max(1, round((box[2] - box[0]) * zoom))
    height = max(1, round((box[3] - box[1]) * zoom))
    ink = np.zeros((_FIELD, _FIELD), np.uint8)
    top = (_FIELD - height) // 2
    left = (_FIELD - width) // 2
    resized = image.resize((width, height), Image.Resampling.BILINEAR, box=box)
    ink[top : top + height, left : left + width] = np.asarray(resized)
    return ink


@lru_cache(maxsize=2048)
def _distance_field(character: str) -> Bytes:
    """``[fonts, _FIELD, _FIELD]``: how deep in the ink each point lies; a threshold is a stroke weight."""
    drawn = (_draw(font, character) for font, covered in _fonts() if character in covered)
    glyphs = [glyph for glyph in drawn if glyph is not None]
    if not glyphs:
        raise InputError(
            f"no font draws {character!r} (U+{ord(character):04X}); choose from SCRIPTS"
        )
    ink = np.stack(glyphs)
    layers = [ink, *_repeat(np.maximum, ink, _DILATIONS), *_repeat(np.minimum, ink, _EROSIONS)]
    return np.asarray(np.stack(layers).sum(axis=0, dtype=np.uint16) // len(layers), np.uint8)


def _repeat(extreme: np.ufunc, ink: Bytes, times: int) -> Iterator[Bytes]:
    """A 3x3 maximum or minimum filter applied once, twice, ...; margins are blank, so the border is left alone."""
    for _ in range(times):
        rows = ink.copy()
        extreme(extreme(ink[:, :-2], ink[:, 1:-1]), ink[:, 2:], out=rows[:, 1:-1])
        ink = rows.copy()
        extreme(extreme(rows[..., :-2], rows[..., 1:-1]), rows[..., 2:], out=ink[..., 1:-1])
        yield ink


def _draws(character: str, count: int, size: int, seed: int) -> NDArray[np.uint64]:
    """One row of random bits per image. Raw bits, since NumPy guarantees those between releases."""
    words = len(_VARIATION) + -(-(3 * _KNOTS**2 + size**2) // 8)
    stream = np.random.PCG64(np.random.SeedSequence([seed, ord(character)]))
    return stream.random_raw(count * words).reshape(count, words)


def _photograph(fields: Bytes, draws: NDArray[np.uint64], size: int) -> Bytes:
    """Print, bend and photograph one glyph for each row of ``draws``: ``[n, size, size]``."""
    p, knots, grain = _unpack(draws, size)
    smooth: Floats = np.matmul(np.matmul(_basis(size), knots), _basis(size).T)  # [n, 3, size, size]
    bend_x, bend_y, texture = smooth.swapaxes(0, 1)
    depth = _sample(fields, p, bend_x, bend_y, size)
    ink: Floats = np.clip(
        (depth + (p["weight"] - 0.5 + p["wobble"] * texture)) * p["sharpness"] + 0.5, 0, 1
    )
    ink = _blur(_blur(ink, p["blur"]).swapaxes(1, 2), p["blur"]).swapaxes(1, 2)
    ink *= p["contrast"] * (
        1 - p["fading"] * np.abs(texture[:, ::-1])
    )  # flipped: fading apart from shading
    image: Floats = p["paper"] + p["shading"] * texture.swapaxes(1, 2) - ink + p["grain"] * grain
    return np.clip(image, 0, 255).astype(np.uint8)


def _unpack(draws: NDArray[np.uint64], size: int) -> tuple[dict[str, Floats], Floats, Floats]:
    """Random bits as the quantities of ``_VARIATION`` ``[n, 1, 1]``, knots of 3 smooth fields, and grain."""
    unit = (draws[:, : len(_VARIATION)] >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
    columns = zip(_VARIATION.items(), unit.T[..., None, None], strict=True)
    quantities: dict[str, Floats] = {
        name: low + (high - low) * column for (name, (low, high)), column in columns
    }
    octets = np.ascontiguousarray(draws[:, len(_VARIATION) :], "<u8").view(np.uint8)
    knots, grain = np.split(
        octets[:, : 3 * _KNOTS**2 + size**2].astype(np.float32) - 127.5, [3 * _KNOTS**2], axis=1
    )
    return quantities, (knots / 127.5).reshape(-1, 3, _KNOTS, _KNOTS), grain.reshape(-1, size, size)


@lru_cache(maxsize=8)
def _basis(size: int) -> Floats:
    """``[size, _KNOTS]``: rows that blend a handful of random values into a smooth curve."""
    pixels = (np.arange(size) + 0.5) / size
    knots = np.linspace(0, 1, _KNOTS)
    weights = np.exp(-(((pixels[:, None] - knots) * (_KNOTS - 1) / 0.9) ** 2))
    blend: Floats = (weights / np.sqrt((weights**2).sum(axis=1, keepdims=True))).astype(np.float32)
    return blend


def _sample(
    fields: Bytes, p: dict[str, Floats], bend_x: Floats, bend_y: Floats, size: int
) -> Floats:
    """Depth in [0, 1] under each pixel of the turned, slanted, stretched, shifted and bent glyph (bilinear)."""
    across = (np.arange(size, dtype=np.float32) + 0.5) / size - 0.5
    x = across[None, None, :] - p["right"]
    y = across[None, :, None] - p["down"]
    zoom = _GLYPH / p["scale"]
    cosine = np.cos(p["angle"])
    sine = np.sin(p["angle"])
    wide = zoom * np.exp(p["aspect"])
    tall = zoom * np.exp(-p["aspect"])
    middle = np.float32(_FIELD / 2 - 0.5)
    u = (
        wide * (cosine - p["shear"] * sine) * x
        + wide * (sine + p["shear"] * cosine) * y
        + middle
        + _CRUMPLE * bend_x
    )
    v = -tall * sine * x + tall * cosine * y + middle + _CRUMPLE * bend_y
    u, v = (np.clip(w, 0, _FIELD - 1.001) for w in (u, v))
    font = np.floor(p["font"] * len(fields))
    left = np.floor(u)
    top = np.floor(v)
    # exact below 2**24
    flat = fields.ravel()
    at = ((font * _FIELD + top) * _FIELD + left).astype(np.intp)
    u = u - left
    v = v - top
    upper = flat[at] * (1 - u) + flat[at + 1] * u
    lower = flat[at + _FIELD] * (1 - u) + flat[at + _FIELD + 1] * u
    depth: Floats = (upper + (lower - upper) * v) / np.float32(255)
    return depth


def _blur(ink: Floats, share: Floats) -> Floats:
    """Move ``share`` of each pixel's ink to each of its two neighbours in the row."""
    wide = np.pad(ink, ((0, 0), (0, 0), (1, 1)), mode="edge")
    return wide[..., 1:-1] * (1 - 2 * share) + (wide[..., :-2] + wide[..., 2:]) * share
