"""Images for a first try without a download: characters in the fonts of matplotlib, one folder per class.

python examples/characters.py characters      writes characters/2024, 2025, catalogue and held-out (27 MB on disk)
"""

import sys
from functools import lru_cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fixstar.data.glyphs import SCRIPTS

SLANTS = {"Sans": "Oblique", "SansMono": "Oblique", "Serif": "Italic"}
FONTS = [
    f"DejaVu{name}{end}.ttf"
    for name, it in SLANTS.items()
    for end in ("", "-Bold", f"-{it}", f"-Bold{it}")
]
MORE = [*SCRIPTS["digits"], *SCRIPTS["latin"], *SCRIPTS["greek"]]
KNOWN = MORE[:31]
UNSEEN = [
    letter for letter in SCRIPTS["cyrillic"] if "\u0410" <= letter <= "\u042f"
]  # searched, never trained on
FOLDERS = {
    "2024": (KNOWN, 8),
    "2025": (MORE, 40),
    "catalogue": (UNSEEN, 20),
    "held-out": (UNSEEN, 200),
}


@lru_cache
def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """One of matplotlib's fonts, read once."""
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", name), size)


def draw(character: str, random: np.random.Generator) -> Image.Image:
    """A character in any font and size, shifted and turned: white on black, 32 pixels."""
    image = Image.new("L", (32, 32))
    chosen = font(str(random.choice(FONTS)), int(random.integers(18, 26)))
    x, y = map(float, random.uniform(14, 18, 2))
    ImageDraw.Draw(image).text((x, y), character, fill=255, font=chosen, anchor="mm")
    return image.rotate(random.uniform(-12, 12), Image.Resampling.BILINEAR)


out = Path(sys.argv[1] if len(sys.argv) > 1 else "characters")
for seed, (name, (characters, per_class)) in enumerate(FOLDERS.items()):
    random = np.random.default_rng(seed)
    for character in characters:
        folder = out / name / f"U+{ord(character):04X}"
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(per_class):
            draw(character, random).save(folder / f"{i:03}.png")
    print(f"{out / name}: {per_class * len(characters):,} images of {len(characters)} characters")
