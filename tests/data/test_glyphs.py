"""The glyph dataset: the same on every call, never an empty box, and classes that can be told apart."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFilter, ImageFont
from wording import refuses

from fixstar.data import glyphs
from fixstar.data.glyphs import SCRIPTS, glyph_pixels
from fixstar.errors import InputError

EVERY = tuple(itertools.chain.from_iterable(SCRIPTS.values()))
SANS = glyphs._fonts()[0][0]
SAMPLE = EVERY[::100]


def shape_of(character: str, grow: int = 0) -> NDArray[np.float32]:
    """Unit vector of the tightly cropped character; half of its aspect ratio and, with ``grow``, weight removed."""
    mask = SANS.getmask(character, mode="L")
    image = Image.frombytes("L", mask.size, bytes(mask))
    left, top, right, bottom = box = image.getbbox() or (0, 0, 1, 1)
    width, height = right - left, bottom - top
    short = max(1, round(24 * (min(width, height) / max(width, height)) ** 0.5))
    side = (24, short) if width >= height else (short, 24)
    canvas = Image.new("L", (32, 32))
    canvas.paste(
        image.resize(side, Image.Resampling.BOX, box=box),
        ((32 - side[0]) // 2, (32 - side[1]) // 2),
    )
    if grow:
        canvas = canvas.filter(ImageFilter.MaxFilter(2 * grow + 1))
    vector = np.asarray(canvas.filter(ImageFilter.GaussianBlur(0.8)), dtype=np.float32).ravel()
    unit: NDArray[np.float32] = vector / np.linalg.norm(vector)
    return unit


def likeness(characters: tuple[str, ...]) -> NDArray[np.float32]:
    plain = np.stack([shape_of(character) for character in characters])
    bold = np.stack([shape_of(character, grow=1) for character in characters])
    cosines: NDArray[np.float32] = np.maximum(
        plain @ plain.T, np.maximum(plain @ bold.T, bold @ plain.T)
    )
    return cosines


class TestScripts:
    def test_several_hundred_characters_each_in_one_script(self) -> None:
        assert len(SCRIPTS) >= 10
        assert len(EVERY) == len(set(EVERY)) > 1000
        assert all(len(characters) >= 9 for characters in SCRIPTS.values())

    def test_no_two_characters_look_the_same(self) -> None:
        same = likeness(EVERY) - 2 * np.eye(len(EVERY), dtype=np.float32)
        worst = [
            f"{EVERY[a]} (U+{ord(EVERY[a]):X}) ~ U+{ord(EVERY[b]):X}"
            for a, b in np.argwhere(same > 0.93)
            if a < b
        ]
        assert not worst, f"exclude one of each: {'; '.join(worst)}"

    def test_the_likeness_test_sees_likeness(self) -> None:
        assert likeness(("A", "\N{GREEK CAPITAL LETTER ALPHA}"))[0, 1] > 0.99
        assert likeness(("s", "S"))[0, 1] > 0.93
        assert likeness(("A", "B"))[0, 1] < 0.9

    @pytest.mark.parametrize(
        "pair",
        ["cC", "oO", "sS", "vV", "wW", "xX", "zZ", "0O", "A\u0391", "A\u0410", "\u0393\u0413"],
    )
    def test_of_a_pair_that_differs_by_size_or_script_one_at_most_is_left(self, pair: str) -> None:
        assert len(set(pair) & set(EVERY)) <= 1

    def test_every_exclusion_excludes_something(self) -> None:
        ranged = [
            character for ranges in glyphs._RANGES.values() for character in glyphs._expand(ranges)
        ]
        assert len(ranged) == len(set(ranged))
        assert set(glyphs._expand(glyphs._LOOK_ALIKES)) == set(ranged) - set(EVERY)


class TestFonts:
    def test_no_font_draws_an_empty_box(self) -> None:
        """A character outside the font's map is drawn as .notdef; nothing in its map may be that box."""
        for font, covered in glyphs._fonts():
            box = _ink(font, "\U000e1234")
            assert not any(
                np.array_equal(_ink(font, character), box)
                for character in EVERY[::7]
                if character in covered
            )

    def test_every_character_has_a_font_and_ink(self) -> None:
        for character in EVERY[::4]:
            field = glyphs._distance_field(character)
            assert len(field) == sum(character in covered for _, covered in glyphs._fonts()) >= 2
            assert (field > 127).any(axis=(1, 2)).all()

    def test_tex_fonts_serve_letters_and_digits_only(self) -> None:
        for font, covered in glyphs._fonts():
            name = font.getname()[0] or ""
            assert not name.startswith("cm") or covered <= glyphs._TEX_CHARACTERS


def _ink(font: ImageFont.FreeTypeFont, character: str) -> NDArray[np.uint8]:
    mask = font.getmask(character, mode="L")
    return np.frombuffer(bytes(mask), np.uint8)


class TestGlyphPixels:
    def test_shapes_types_and_order(self) -> None:
        images, labels = glyph_pixels(SAMPLE[:5], per_class=3, size=24)
        assert images.shape == (15, 24, 24, 1)
        assert images.dtype == np.uint8
        assert labels.dtype == np.int64
        assert labels.tolist() == sorted([0, 1, 2, 3, 4] * 3)

    def test_same_seed_same_pixels_whatever_the_threads(self) -> None:
        one, _ = glyph_pixels(SAMPLE, per_class=5, seed=3, workers=1)
        glyphs._distance_field.cache_clear()
        two, _ = glyph_pixels(SAMPLE, per_class=5, seed=3, workers=2)
        np.testing.assert_array_equal(one, two)
        assert (one != glyph_pixels(SAMPLE, per_class=5, seed=4)[0]).mean() > 0.9

    def test_more_images_keep_the_first_ones(self) -> None:
        """Across the batch boundary too."""
        few, _ = glyph_pixels(SAMPLE[:2], per_class=7)
        many, _ = glyph_pixels(SAMPLE[:2], per_class=2 * glyphs._BATCH + 5)
        np.testing.assert_array_equal(few.reshape(2, 7, -1), many.reshape(2, -1, 32 * 32)[:, :7])

    def test_a_class_does_not_depend_on_its_company(self) -> None:
        together, _ = glyph_pixels(SAMPLE, per_class=4)
        alone, _ = glyph_pixels(SAMPLE[6:7], per_class=4)
        np.testing.assert_array_equal(alone, together[24:28])

    def test_dark_ink_on_light_paper(self) -> None:
        images, _ = glyph_pixels(SAMPLE, per_class=8)
        border = np.concatenate(
            [images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1]], axis=1
        )
        darkest = np.percentile(images, 3, axis=(1, 2, 3))
        assert (np.median(border, axis=(1, 2)) - darkest > 15).mean() > 0.99

    def test_images_of_a_class_differ_and_classes_differ_more(self) -> None:
        images, _ = glyph_pixels(SAMPLE, per_class=64)
        pixels = images.reshape(len(SAMPLE), 64, -1).astype(np.float32)
        pixels = (pixels - pixels.mean(-1, keepdims=True)) / pixels.std(-1, keepdims=True)
        halves = pixels[:, :32].mean(1), pixels[:, 32:].mean(1)
        assert len(np.unique(images.reshape(len(images), -1), axis=0)) == len(images)
        assert (
            np.corrcoef(*halves)[: len(SAMPLE), len(SAMPLE) :].argmax(1) == np.arange(len(SAMPLE))
        ).all()

    def test_raw_pixels_do_not_solve_it(self) -> None:
        """Nearest neighbour on pixels, 5 images per class in the gallery and 5 queries: learning has to matter."""
        classes = EVERY[::12]
        pixels = (
            glyph_pixels(classes, per_class=10)[0].reshape(len(classes), 10, -1).astype(np.float32)
        )
        gallery, queries = (
            half.reshape(len(classes) * 5, -1) for half in (pixels[:, :5], pixels[:, 5:])
        )
        nearest = ((gallery**2).sum(1) - 2 * queries @ gallery.T).argmin(1)
        accuracy = (nearest // 5 == np.arange(len(queries)) // 5).mean()
        assert 1.5 / len(classes) < accuracy < 0.35


class TestBadInput:
    @pytest.mark.parametrize("character", ["\u4e2d", " ", "\U000e1234"])
    def test_character_without_a_glyph_is_named(self, character: str) -> None:
        with pytest.raises(InputError, match=f"U\\+{ord(character):04X}"):
            glyph_pixels(["A", character], per_class=1)

    @pytest.mark.parametrize(
        ("characters", "settings"),
        [
            ([], {}),
            (["A", "BC"], {}),
            (["A", ""], {}),
            (["A", "B", "A"], {}),
            (["A"], {"per_class": 0}),
            (["A"], {"size": 4}),
            (["A"], {"seed": -1}),
            (["A"], {"workers": 0}),
        ],
    )
    def test_wrong_argument_is_explained(
        self, characters: list[str], settings: dict[str, int]
    ) -> None:
        with refuses(InputError):
            glyph_pixels(characters, **{"per_class": 1, **settings})
