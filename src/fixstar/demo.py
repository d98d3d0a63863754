"""The whole story in about a minute, on rendered images: one upgrade keeps the gallery, another loses it.

Characters are rendered from the fonts inside matplotlib and distorted. v1 learns some scripts and indexes a gallery of
characters that no model is trained on. v2 learns more scripts with the default method, passes the gate, is deployed,
and searches v1's vectors as they are. The control is the same pair of models trained independently, which the gate
refuses. Both workspaces are kept, to explore. Every number comes from the run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.data import Augmentation, ImageSet, concatenate, from_arrays
from fixstar.data.glyphs import SCRIPTS, glyph_pixels
from fixstar.durable import is_vacant, replace_json
from fixstar.errors import InputError
from fixstar.evaluation import HitPicture, contact_sheet, is_compatible, side_by_side, update_gain
from fixstar.gallery import Hit
from fixstar.methods import Method, create_method
from fixstar.models import resolve_device
from fixstar.training import Recipe, Settings
from fixstar.workspace import CatalogueItem, Check, UpgradeOptions, Workspace, labelled_items

KNOWN = ("digits", "latin", "greek", "cyrillic", "arabic", "phonetic", "mathematics")  # v1 learns these
ADDED = ("nko", "lao", "arrows")  # v2 learns these too
UNSEEN = ("hebrew", "georgian")  # no model learns these: the gallery and the queries
EARLY, LATER = 6, 12  # images per class for v1, and for v2
GALLERY, QUERIES = 20, 30  # images per class
SHOWN, DEPTH = 6, 5  # queries in the picture, and hits of each
MARK, FORMAT = "demo.json", "fixstar-demo"
# Characters turned by 90 degrees often are other characters, or themselves: as classes of their own they only confuse.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "compatible": ("polaris", {"rotated": False}),
    "independent": ("itm", {}),
}
TITLES = {"compatible": "Trained to be compatible", "independent": "Trained independently"}

Say = Callable[[str], object]


@dataclass(frozen=True)
class DemoResult:
    """What the run measured: matrices by kind of upgrade (fractions), what the gate said, and where everything is."""

    matrices: dict[str, list[list[float]]]
    gate: dict[str, str]
    deployed: dict[str, str]
    sentence: str
    directory: str
    pictures: tuple[str, ...]


def run_demo(
    directory: Path, seed: int = 0, device: str = "auto", progress: bool = True, say: Say = print
) -> DemoResult:
    """Tell the story in both workspaces, draw the pictures into ``directory``; an earlier demo there is replaced."""
    device = str(resolve_device(device))  # before anything of an earlier demo is replaced
    _prepare(directory)
    say("Rendering characters from the fonts inside matplotlib ...")
    gallery, queries = characters(UNSEEN, GALLERY, seed=1), characters(UNSEEN, QUERIES, seed=2)
    matrices: dict[str, NDArray[Any]] = {}
    checks: dict[str, Check] = {}
    deployed: dict[str, str] = {}
    found: dict[str, list[list[HitPicture]]] = {}
    chosen = np.random.default_rng(seed).choice(len(queries), SHOWN, replace=False)
    for kind in METHODS:
        with Workspace.create(directory / kind, device=device) as space:
            checks[kind] = train_and_check(space, kind, gallery, queries, seed, progress, say)
            if checks[kind].outcome == "pass":
                space.deploy("v2")
                say("  deploy v2: its queries search v1's vectors from now on; none of them was touched")
            matrices[kind] = space.evaluate(queries, gallery, "image", device, progress=False).matrix
            found[kind] = _found(space, queries, chosen, gallery)
            deployed[kind] = space.deployed()
    pictures = (directory / "matrices.png", directory / "search.png")
    side_by_side({TITLES[kind]: C for kind, C in matrices.items()}, pictures[0], ["v1", "v2"])
    _draw_search(found, queries, chosen, pictures[1])
    result = DemoResult(
        {kind: [[float(C[0, 0])], [float(C[1, 0]), float(C[1, 1])]] for kind, C in matrices.items()},
        {kind: check.outcome for kind, check in checks.items()},
        deployed,
        _sentence(matrices["compatible"], matrices["independent"], checks["independent"].outcome),
        str(directory),
        tuple(str(path) for path in pictures),
    )
    replace_json(directory / MARK, {"format": FORMAT, **asdict(result)})
    return result


def train_and_check(
    space: Workspace, kind: str, gallery: ImageSet, queries: ImageSet, seed: int, progress: bool, say: Say
) -> Check:
    """Train v1, index the gallery, train v2, and check it: one kind of upgrade."""
    name, options = METHODS[kind]
    method = create_method(name, **options)
    say(f"\n{TITLES[kind]} ({method.summary})")
    _train_pair(space, gallery, method, seed, progress, say)
    check = space.check("v2", concatenate([gallery, queries]), report=kind == "compatible", progress=False)
    say(f"  check v2: {_gate_words(check)}")
    return check


def characters(scripts: Sequence[str], per_class: int, seed: int) -> ImageSet:
    """``per_class`` images of every character of the scripts."""
    drawn = [character for script in scripts for character in SCRIPTS[script]]
    pixels, labels = glyph_pixels(drawn, per_class, seed=seed)
    return from_arrays(pixels, labels, [f"U+{ord(character):04X}" for character in drawn], "glyphs")


def _prepare(directory: Path) -> None:
    if not is_vacant(directory):
        if not _is_demo(directory):
            raise InputError(f"{directory} holds something that is not a demo; choose another directory")
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


def _train_pair(space: Workspace, gallery: ImageSet, method: Method, seed: int, progress: bool, say: Say) -> None:
    """v1 on the known scripts indexes the gallery; v2 learns more images of them and the added scripts."""
    early = characters(KNOWN, EARLY, seed=3)
    later = concatenate([characters(KNOWN, LATER, seed=4), characters(ADDED, LATER, seed=4)])
    first, second = (_settings(epochs, seed, space.device) for epochs in (10, 5))
    say(f"  train v1: {len(KNOWN)} scripts, {len(early.classes)} characters")
    space.train(early, first, method, progress)
    done = space.index(_kept(space, gallery))
    say(f"  index: {done.added:,} images of {len(gallery.classes)} characters that no model learns, embedded with v1")
    say(f"  upgrade to v2: {len(ADDED)} scripts more, {len(later.classes)} characters")
    shown = later if method.scenario == "lifelong" else concatenate([early, later])
    space.upgrade(shown, UpgradeOptions(second.recipe, device=space.device, progress=progress))


def _kept(space: Workspace, images: ImageSet) -> Iterator[CatalogueItem]:
    """The items of a set of pixels, which the workspace keeps so that they can be shown and embedded again."""
    for item in labelled_items(images):
        yield replace(item, payload={**item.payload, **space.images.keep(np.asarray(item.image).squeeze())})


def _settings(epochs: int, seed: int, device: str) -> Settings:
    milestones = (round(0.6 * epochs), round(0.85 * epochs))
    return Settings(
        backbone="tiny",
        backbone_options={"in_channels": 1, "width": 16},
        recipe=Recipe(epochs=epochs, learning_rate=0.05, milestones=milestones, batch_size=64),
        augmentation=Augmentation(crop_padding=2, flip=False, fill=200),
        seed=seed,
        device=device,
    )


def _found(space: Workspace, queries: ImageSet, chosen: NDArray[Any], gallery: ImageSet) -> list[list[HitPicture]]:
    """What v2's queries find among v1's vectors, deployed or not."""
    vectors = space.serving.embed("v2", [np.asarray(queries.images[row]) for row in chosen])
    hits = space.serving.search_vectors("v2", vectors, k=DEPTH).hits

    def shown(hit: Hit, row: int) -> HitPicture:
        right = hit.payload["label"] == queries.classes[queries.labels[row]]
        return HitPicture(np.asarray(gallery.images[int(hit.id)]), right)

    return [[shown(hit, row) for hit in line] for row, line in zip(chosen.tolist(), hits, strict=True)]


def _draw_search(found: dict[str, list[list[HitPicture]]], queries: ImageSet, chosen: NDArray[Any], path: Path) -> None:
    """Queries drawn at random, searched by v2 among the vectors that v1 left in the gallery."""
    results = {f"found by v2 in v1's gallery, {TITLES[kind].lower()}": rows for kind, rows in found.items()}
    title = "Characters that no model was trained on; six queries drawn at random"
    contact_sheet([np.asarray(queries.images[i]) for i in chosen], results, path, title)


def _gate_words(check: Check) -> str:
    (cell,) = check.cells
    return (
        f"{check.outcome}. On v1's vectors its queries find {cell.cross_test:.1%}, v1's own {cell.self_test:.1%} "
        f"(difference {cell.low:+.1%} to {cell.high:+.1%} with {check.confidence:.0%} confidence, "
        f"{cell.negative_flips:,} queries lost, {cell.positive_flips:,} won)"
    )


def _sentence(C: NDArray[Any], control: NDArray[Any], refused: str) -> str:
    """What happened, from the numbers alone."""
    old, cross, new, lost = C[0, 0], C[1, 0], C[1, 1], control[1, 0]
    gain = update_gain(cross, old, new)
    if not is_compatible(cross, old):
        verdict = "so the upgrade is NOT compatible in this run"
    elif gain is None:
        verdict = "so the upgrade is compatible"
    else:
        verdict = f"so the upgrade is compatible and brings {gain:.0%} of what re-embedding everything would"
    gate = ", and the gate refuses it" if refused == "refuse" else ""
    return (
        f"v2's queries find the right character among v1's untouched vectors {cross:.1%} of the time, against "
        f"{old:.1%} for v1's own queries, {verdict}; an independently trained v2 finds {lost:.1%} there{gate}."
    )
