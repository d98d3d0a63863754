"""Images for a first try without a download: characters of matplotlib's fonts, one folder per class.

python examples/characters.py characters      writes characters/2024, 2025, catalogue and held-out (90 MB on disk)
"""

import sys
from pathlib import Path

from PIL import Image

from fixstar.data.glyphs import SCRIPTS, glyph_pixels

KNOWN = ("digits", "latin", "greek", "cyrillic", "arabic", "phonetic", "mathematics")
MORE = (*KNOWN, "nko", "lao", "arrows")
UNSEEN = ("hebrew", "georgian")  # searched, never trained on
FOLDERS = {"2024": (KNOWN, 6, 3), "2025": (MORE, 12, 4), "catalogue": (UNSEEN, 20, 1), "held-out": (UNSEEN, 120, 2)}

out = Path(sys.argv[1] if len(sys.argv) > 1 else "characters")
for name, (scripts, per_class, seed) in FOLDERS.items():
    drawn = [character for script in scripts for character in SCRIPTS[script]]
    pixels, labels = glyph_pixels(drawn, per_class, seed=seed)
    for i, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        folder = out / name / f"U+{ord(drawn[label]):04X}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.squeeze()).save(folder / f"{i % per_class:02}.png")
    print(f"{out / name}: {len(labels):,} images of {len(drawn)} characters")
