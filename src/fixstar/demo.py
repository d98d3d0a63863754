"""The whole story in about a minute, on images made on the spot: one upgrade keeps the gallery, another loses it.

Characters are rendered from the fonts inside matplotlib and distorted. v1 learns some scripts and indexes a gallery of
characters that nobody trains on. v2 then learns more scripts, with d-Simplex-HOC, and searches v1's vectors as they
are. The control is the same pair of models trained independently. Every number comes from the run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.data import Augmentation, ImageSet, ReplayMemory, concatenate, from_arrays
from fixstar.data.glyphs import SCRIPTS, glyph_pixels
from fixstar.durable import is_vacant, replace_json
from fixstar.errors import InputError
from fixstar.evaluation import (
    Found,
    VersionFeatures,
    contact_sheet,
    cross_test,
    is_compatible,
    side_by_side,
    update_gain,
)
from fixstar.gallery import MemoryGallery
from fixstar.methods import Method, create_method
from fixstar.models import Encoder
from fixstar.models.device import resolve_device
from fixstar.scenarios import Past, Settings, train_version
from fixstar.training import Recipe

__all__ = ["DemoResult", "run_demo"]

KNOWN = ("digits", "latin", "greek", "cyrillic", "arabic", "phonetic", "mathematics")  # v1 learns these
ADDED = ("nko", "lao", "arrows")  # v2 learns these too
UNSEEN = ("hebrew", "georgian")  # no model learns these: the gallery and the queries
EARLY, LATER = 6, 12  # images a class that v1 is trained with, and those that v2 gets
GALLERY, QUERIES = 20, 30  # images a class
CAPACITY = 600  # K: 567 classes are learnt in the end
MARK, FORMAT = "demo.json", "fixstar-demo"

Say = Callable[[str], object]


@dataclass(frozen=True)
class DemoResult:
    """What the run measured: matrices by kind of upgrade (fractions), the verdict, and where the pictures are."""

    matrices: dict[str, list[list[float]]]
    compatible: dict[str, bool]
    sentence: str
    directory: str
    pictures: tuple[str, ...]


def run_demo(
    directory: Path, seed: int = 0, device: str = "auto", progress: bool = True, say: Say = print
) -> DemoResult:
    """Train both pairs, cross-test them, draw the pictures into ``directory``; an earlier demo there is replaced."""
    device = str(resolve_device(device))  # before anything of an earlier demo is replaced
    _prepare(directory)
    say("Rendering characters from the fonts inside matplotlib ...")
    gallery, queries = characters(UNSEEN, GALLERY, seed=1), characters(UNSEEN, QUERIES, seed=2)
    pairs: dict[str, list[VersionFeatures]] = {}
    encoders: dict[str, list[Encoder]] = {}
    for kind, method in (("compatible", create_method("hoc", lam=0.5)), ("independent", create_method("itm"))):
        say(f"{TITLES[kind]}: v1 learns {len(KNOWN)} scripts, v2 {len(ADDED)} more ({method.summary})")
        encoders[kind] = _train_pair(method, seed, device, progress)
        for number, encoder in enumerate(encoders[kind], start=1):
            encoder.save(directory / kind / f"v{number}")
        pairs[kind] = [_features(f"v{n}", e, queries, gallery) for n, e in enumerate(encoders[kind], start=1)]
    tests = {kind: cross_test(pair, queries.labels, gallery.labels, "image") for kind, pair in pairs.items()}
    matrices = {kind: test.matrix for kind, test in tests.items()}
    pictures = (directory / "matrices.png", directory / "search.png")
    side_by_side({TITLES[kind]: C for kind, C in matrices.items()}, pictures[0], ["v1", "v2"])
    _draw_search(pairs, queries, gallery, seed, pictures[1])
    result = DemoResult(
        {kind: [[float(C[0, 0])], [float(C[1, 0]), float(C[1, 1])]] for kind, C in matrices.items()},
        {kind: is_compatible(C[1, 0], C[0, 0]) for kind, C in matrices.items()},
        _sentence(matrices["compatible"], matrices["independent"]),
        str(directory),
        tuple(str(path) for path in pictures),
    )
    replace_json(directory / MARK, {"format": FORMAT, **asdict(result)})
    return result


TITLES = {"compatible": "Trained to be compatible", "independent": "Trained independently"}


def characters(scripts: Sequence[str], per_class: int, seed: int) -> ImageSet:
    """``per_class`` images of every character of the scripts."""
    drawn = [character for script in scripts for character in SCRIPTS[script].characters]
    pixels, labels = glyph_pixels(drawn, per_class, seed=seed)
    return from_arrays(pixels, labels, [f"U+{ord(character):04X}" for character in drawn], "glyphs")


def _prepare(directory: Path) -> None:
    if not is_vacant(directory):
        if not _is_demo(directory):
            raise InputError(f"{directory} holds something that is not a demo; choose another with --out DIRECTORY")
        for kind in TITLES:
            shutil.rmtree(directory / kind, ignore_errors=True)
    replace_json(directory / MARK, {"format": FORMAT, "state": "running"})


def _is_demo(directory: Path) -> bool:
    """Whether an earlier demo wrote this directory; nothing else is ever replaced."""
    try:
        mark = json.loads((directory / MARK).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(mark, dict) and mark.get("format") == FORMAT


def _train_pair(method: Method, seed: int, device: str, progress: bool) -> list[Encoder]:
    """v1 on the known scripts; v2 on more images of them and the added scripts, v1's images at hand."""
    early = characters(KNOWN, EARLY, seed=3)
    later = concatenate([characters(KNOWN, LATER, seed=4), characters(ADDED, LATER, seed=4)])
    first, second = (_settings(epochs, seed, device) for epochs in (10, 5))
    v1 = train_version(1, early, Past(), method, first, progress=progress).encoder
    if method.scenario == "lifelong":
        memory = ReplayMemory(EARLY).extended(early, v1.preprocessing)
        v2 = train_version(2, later, Past(v1, memory), method, second, progress=progress).encoder
    else:
        both = concatenate([early, later])
        v2 = train_version(2, both, Past(v1), method, second, progress=progress).encoder
    return [v1, v2]


def _settings(epochs: int, seed: int, device: str) -> Settings:
    milestones = (round(0.6 * epochs), round(0.85 * epochs))
    return Settings(
        backbone="tiny",
        backbone_options={"in_channels": 1, "width": 16},
        capacity=CAPACITY,
        recipe=Recipe(epochs=epochs, learning_rate=0.05, milestones=milestones, batch_size=64),
        augmentation=Augmentation(crop_padding=2, flip=False, fill=200),
        seed=seed,
        device=device,
    )


def _features(name: str, encoder: Encoder, queries: ImageSet, gallery: ImageSet) -> VersionFeatures:
    vectors = [encoder.encode(images.images, form="short") for images in (queries, gallery)]
    return VersionFeatures(name, vectors[0], vectors[1], encoder.projection_matrix())


def _draw_search(
    pairs: dict[str, list[VersionFeatures]], queries: ImageSet, gallery: ImageSet, seed: int, path: Path
) -> None:
    """Six queries drawn at random, searched by v2 among the vectors that v1 left in a gallery."""
    chosen = np.random.default_rng(seed).choice(len(queries), 6, replace=False)
    results = {
        f"found by v2 in v1's gallery, {TITLES[kind].lower()}": _search(v1, v2, chosen, queries, gallery)
        for kind, (v1, v2) in pairs.items()
    }
    title = "Characters that no model was trained on; six queries drawn at random"
    contact_sheet([np.asarray(queries.images[i]) for i in chosen], results, path, title)


def _search(
    v1: VersionFeatures, v2: VersionFeatures, chosen: NDArray[Any], queries: ImageSet, gallery: ImageSet
) -> list[list[Found]]:
    store = MemoryGallery()
    for version in (v1, v2):
        store.create_version(version.name, version.queries.shape[1], version.projection)
    store.upsert("v1", [str(i) for i in range(len(gallery))], v1.gallery)
    hits = store.search("v2", v2.queries[chosen], k=5)
    return [
        [
            Found(np.asarray(gallery.images[int(h.id)]), bool(gallery.labels[int(h.id)] == queries.labels[i]))
            for h in row
        ]
        for i, row in zip(chosen, hits, strict=True)
    ]


def _sentence(C: NDArray[Any], control: NDArray[Any]) -> str:
    """What happened, from the numbers alone."""
    old, cross, new, lost = C[0, 0], C[1, 0], C[1, 1], control[1, 0]
    gain = update_gain(cross, old, new)
    if not is_compatible(cross, old):
        verdict = "so the upgrade is NOT compatible in this run"
    elif gain is None:
        verdict = "so the upgrade is compatible"
    else:
        verdict = f"so the upgrade is compatible and brings {gain:.0%} of what re-embedding everything would"
    return (
        f"v2's queries find the right character among v1's untouched vectors {cross:.1%} of the time, against "
        f"{old:.1%} for v1's own queries, {verdict}; an independently trained v2 finds {lost:.1%} there."
    )
