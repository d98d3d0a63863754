"""A small workspace that looks real: characters as images, four versions, checks of every outcome.

v1 is trained for seconds, so that searches look like searches. v2 has a check that is written by hand and
passes. v3 is v2 with much noise, v4 (also from v2) with very little: their checks are measured, refuse and undecided.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from shops import passed

from fixstar.data import ImageSet, from_arrays
from fixstar.data.glyphs import SCRIPTS, glyph_pixels
from fixstar.models import Encoder
from fixstar.workspace import CatalogueItem, Workspace
from fixstar.workspace.held_out import keep_held_out

CHARACTERS = SCRIPTS["greek"][:16]
GALLERY, HELD_OUT = 6, 8  # images a class
NASTY_ID = "x/<img src=x onerror=alert(1)>&?#'\".png"
NASTY_LABEL = "<b>bold</b><script>alert(2)</script>"
PARENTS = {"v1": None, "v2": "v1", "v3": "v2", "v4": "v2"}
NOISE = {"v1": 0.0, "v2": 0.02, "v3": 1.0, "v4": 0.002}  # against the parent


def label_of(character: str) -> str:
    """GREEK CAPITAL LETTER ALPHA -> capital alpha."""
    words = unicodedata.name(character).removeprefix("GREEK ").replace("LETTER ", "")
    return words.lower()


def characters(per_class: int, seed: int) -> ImageSet:
    """Images of the characters, labelled."""
    pixels, labels = glyph_pixels(CHARACTERS, per_class, size=64, seed=seed)
    return from_arrays(
        np.repeat(pixels, 3, axis=3), labels, [label_of(one) for one in CHARACTERS], "glyphs"
    )


def glyph_shop(path: Path) -> Workspace:
    """The workspace, with its gallery indexed by v1 and nothing else deployed."""
    space = Workspace.create(path, device="cpu")
    torch.manual_seed(0)
    made: dict[str, Encoder] = {}
    for name, parent in PARENTS.items():
        encoder = Encoder.create("tiny", classes=[label_of(one) for one in CHARACTERS], capacity=32)
        if parent is None:
            _teach(encoder, characters(20, seed=3))
        else:
            encoder.load_state_dict(made[parent].state_dict())
            _disturb(encoder, NOISE[name])
        encoder.about = {
            "version": name,
            "parent": parent,
            "method": {"name": "hoc", "options": {}},
        }
        encoder.save(path / "versions" / name)
        made[name] = encoder
    keep_held_out(path, "v1", characters(HELD_OUT, seed=2), made["v1"].preprocessing)
    space.index(_items(space, characters(GALLERY, seed=1)))
    for name in ("v3", "v4"):
        measured = space.check(name, report=False, progress=False)
    # As if on the same images: the page shows figures of one set. By fewer queries: a real check counts more.
    passed(space, "v2", "v1", queries=40, data=measured.data)
    return space


def _teach(encoder: Encoder, images: ImageSet, steps: int = 60) -> None:
    """Enough to tell the characters apart more often than not."""
    small = images.load(encoder.preprocessing).images
    pixels = torch.from_numpy(np.asarray(small.images)).permute(0, 3, 1, 2).contiguous()
    targets = torch.tensor(
        encoder.slots.of([images.classes[label] for label in images.labels.tolist()])
    )
    optimiser = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    encoder.train()
    for _ in range(steps):
        rows = torch.randint(len(pixels), (64,))
        loss = torch.nn.functional.cross_entropy(encoder(pixels[rows]).logits, targets[rows])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    encoder.eval()


def _disturb(encoder: Encoder, noise: float) -> None:
    """Every weight moves by a share of its tensor's spread."""
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.add_(
                noise * weight.std(unbiased=False).clamp_min(0.01) * torch.randn_like(weight)
            )


def _items(space: Workspace, images: ImageSet) -> list[CatalogueItem]:
    items = []
    for number, (pixels, label) in enumerate(
        zip(images.images, images.labels.tolist(), strict=True)
    ):
        name = images.classes[label]
        nasty = number == 0
        item = f"greek/{name.replace(' ', '-')}-{number % GALLERY}.png"
        payload = {"label": NASTY_LABEL if nasty else name, **space.images.keep(np.asarray(pixels))}
        items.append(CatalogueItem(NASTY_ID if nasty else item, np.asarray(pixels), payload))
    return items


def query_file(path: Path, character: int = 5) -> Path:
    """An image file of a character that the gallery has, in another print."""
    pixels, _ = glyph_pixels(CHARACTERS[character : character + 1], 1, size=64, seed=9)
    Image.fromarray(pixels[0, :, :, 0]).convert("RGB").save(path)
    return path
