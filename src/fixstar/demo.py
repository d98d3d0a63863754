"""The whole story in about a minute, on rendered images: a better model searches old vectors.

Characters are rendered from the fonts inside matplotlib and distorted. v1 learns some scripts and indexes a gallery of
characters that no model is trained on. v2 learns more scripts, freely: its space differs from v1's, so their vectors
cannot be compared directly. A translation is fitted, chosen and judged. Then v2 is deployed and searches v1's
untouched vectors through it. Finally the gallery is re-embedded in steps. The workspace is kept to explore. Every
number comes from this run, from queries that neither training nor the check has seen.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fixstar.data import Augmentation, ImageSet, concatenate, from_arrays
from fixstar.data.glyphs import SCRIPTS, glyph_pixels
from fixstar.durable import is_vacant, replace_json
from fixstar.errors import InputError
from fixstar.evaluation import BackfillCurve, HitPicture, backfill_curves, contact_sheet
from fixstar.gallery import SearchResult
from fixstar.methods import create_method
from fixstar.models import resolve_device
from fixstar.training import Recipe, Settings
from fixstar.workspace import (
    BackfillOptions,
    CatalogueItem,
    Check,
    UpgradeOptions,
    Workspace,
    labelled_items,
)
from fixstar.workspace.checks import gain_sentence

KNOWN = (
    "digits",
    "latin",
    "greek",
    "cyrillic",
    "arabic",
    "phonetic",
    "mathematics",
)  # v1 learns these
ADDED = ("nko", "lao", "arrows")  # v2 also learns these
UNSEEN = ("hebrew", "georgian")  # not learnt by any model: the gallery and the queries
EARLY = 6  # images per class for v1
LATER = 8  # images per class for v2, in addition to v1's
GALLERY = 20  # images per class
CHECKED = 40  # labelled images per class for the check
QUERIES = 30
SHOWN = 6  # queries in the picture
DEPTH = 5  # hits of each query in the picture
STEPS = (
    "25%",
    "33%",
    "50%",
    "all",
)  # of the remaining items, which is a quarter of the gallery each time
MARK = "demo.json"
FORMAT = "fixstar-demo"
SPACE = "workspace"
# A character rotated by 90 degrees is often another character, or itself, so rotated classes only confuse.
OPTIONS: dict[str, Any] = {"rotated": False}

Say = Callable[[str], object]


@dataclass(frozen=True)
class DemoResult:
    """The results: shares of queries with a correct first hit, the outcome of the gate, and paths.

    ``curve`` has pairs: the re-embedded share of the gallery, and the accuracy of v2's queries.
    """

    now: float
    untranslated: float
    at_once: float
    reembedded: float
    curve: tuple[tuple[float, float], ...]
    gate: str
    deployed: str
    sentence: str
    directory: str
    pictures: tuple[str, ...]


def run_demo(
    directory: Path, seed: int = 0, device: str = "auto", progress: bool = True, say: Say = print
) -> DemoResult:
    """Run the demo in a workspace and draw pictures into ``directory``; an earlier demo there is replaced."""
    device = str(resolve_device(device))  # before an earlier demo is replaced
    _prepare(directory)
    say("Rendering characters from the fonts inside matplotlib ...")
    gallery = characters(UNSEEN, GALLERY, seed=1)
    queries = characters(UNSEEN, QUERIES, seed=2)
    chosen = np.random.default_rng(seed).choice(len(queries), SHOWN, replace=False)
    asked = queries.take(chosen)
    found: dict[str, list[list[HitPicture]]] = {}
    with Workspace.create(directory / SPACE, device=device) as space:
        train_first(space, gallery, seed, progress, say)
        now = accuracy(space, queries)
        say(f"  search: v1's queries find the right character first {now:.1%} of the time")
        found["found by v1"] = _pictures(_searched(space, asked), asked, gallery)
        check = upgrade_and_check(space, seed, progress, say)
        say(f"  check v2: {check.outcome}. {gain_sentence('v2', check.cells[0])}")
        if check.outcome == "pass":
            space.deploy("v2")
            say(
                "  deploy v2: its queries search v1's vectors from now on; the vectors have not changed"
            )
        untranslated = _untranslated(space, queries, gallery)
        at_once = accuracy(space, queries)
        found["found by v2 among v1's vectors, translated"] = _pictures(
            _searched(space, asked), asked, gallery
        )
        curve = [(0.0, at_once)]
        if check.outcome == "pass":
            say(
                f"  search: v2's queries find {at_once:.1%} there; without a translation {untranslated:.1%}"
            )
            curve += backfill(space, queries, len(gallery), say)
        deployed = space.deployed()
    pictures = (directory / "gain.png", directory / "search.png")
    _draw_gain(now, curve, pictures[0])
    title = "Characters that no model was trained on; six queries drawn at random"
    contact_sheet([np.asarray(image) for image in asked.images], found, pictures[1], title)
    result = DemoResult(
        now=now,
        untranslated=untranslated,
        at_once=at_once,
        reembedded=curve[-1][1],
        curve=tuple(curve),
        gate=check.outcome,
        deployed=deployed,
        sentence=sentence(now, at_once, curve[-1][1], check.outcome),
        directory=str(directory),
        pictures=tuple(str(path) for path in pictures),
    )
    replace_json(directory / MARK, {"format": FORMAT, **asdict(result)})
    return result


def train_first(space: Workspace, gallery: ImageSet, seed: int, progress: bool, say: Say) -> None:
    """v1 learns the known scripts and indexes the gallery."""
    early = characters(KNOWN, EARLY, seed=3)
    say(f"  train v1: {len(KNOWN)} scripts, {len(early.classes)} characters")
    space.train(early, settings(10, seed, space.device), create_method("vega", **OPTIONS), progress)
    done = space.index(_kept(space, gallery))
    say(
        f"  index: {done.added:,} images of {len(gallery.classes)} characters that no model learns, embedded with v1"
    )


def upgrade_and_check(space: Workspace, seed: int, progress: bool, say: Say) -> Check:
    """v2 learns more images of the known and the added scripts, freely; a check judges it by other images."""
    early = characters(KNOWN, EARLY, seed=3)
    later = concatenate([characters(KNOWN, LATER, seed=4), characters(ADDED, LATER, seed=4)])
    say(f"  upgrade to v2: {len(ADDED)} scripts more, {len(later.classes)} characters")
    recipe = settings(4, seed, space.device).recipe
    options = UpgradeOptions(recipe, device=space.device, progress=progress)
    space.upgrade(concatenate([early, later]), options, say=lambda _: None)
    return space.check("v2", characters(UNSEEN, CHECKED, seed=5), progress=False)


def backfill(
    space: Workspace, queries: ImageSet, items: int, say: Say
) -> list[tuple[float, float]]:
    """Re-embed the gallery in steps; returns the finished share and the accuracy after each step."""
    curve = []
    for budget in STEPS:
        space.backfill(BackfillOptions(budget, order="uncertain", anyway=True))
        share = space.gallery.count()["v2"] / items
        found = accuracy(space, queries)
        say(f"  backfill: {share:.0%} re-embedded, {found:.1%} found")
        curve.append((share, found))
    return curve


def accuracy(space: Workspace, queries: ImageSet) -> float:
    """The share of queries whose first hit shows the same character."""
    hits = _searched(space, queries).hits
    labels = [queries.classes[label] for label in queries.labels.tolist()]
    right = [
        bool(line) and line[0].payload["label"] == label
        for line, label in zip(hits, labels, strict=True)
    ]
    return float(np.mean(right))


def _searched(space: Workspace, queries: ImageSet) -> SearchResult:
    return space.search([np.asarray(image).squeeze() for image in queries.images], k=DEPTH)


def _untranslated(space: Workspace, queries: ImageSet, gallery: ImageSet) -> float:
    """The share if v2's queries were compared directly with v1's vectors."""
    stored = space.encoder("v1").encode(gallery.images)
    asked = space.encoder("v2").encode(queries.images)
    found = gallery.labels[(asked @ stored.T).argmax(axis=1)]
    return float((found == queries.labels).mean())


def _pictures(result: SearchResult, queries: ImageSet, gallery: ImageSet) -> list[list[HitPicture]]:
    rows = []
    for line, label in zip(result.hits, queries.labels.tolist(), strict=True):
        name = queries.classes[label]
        rows.append(
            [
                HitPicture(np.asarray(gallery.images[int(hit.id)]), hit.payload["label"] == name)
                for hit in line
            ]
        )
    return rows


def characters(scripts: Sequence[str], per_class: int, seed: int) -> ImageSet:
    """``per_class`` images of every character of the scripts."""
    drawn = [character for script in scripts for character in SCRIPTS[script]]
    pixels, labels = glyph_pixels(drawn, per_class, seed=seed)
    return from_arrays(pixels, labels, [f"U+{ord(character):04X}" for character in drawn], "glyphs")


def _prepare(directory: Path) -> None:
    if not is_vacant(directory):
        if not _is_demo(directory):
            raise InputError(
                f"{directory} holds something that is not a demo; choose another directory"
            )
        shutil.rmtree(directory / SPACE, ignore_errors=True)
    replace_json(directory / MARK, {"format": FORMAT, "state": "running"})


def _is_demo(directory: Path) -> bool:
    """Whether an earlier demo wrote this directory; other directories are never replaced."""
    try:
        mark = json.loads((directory / MARK).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(mark, dict) and mark.get("format") == FORMAT


def _kept(space: Workspace, images: ImageSet) -> Iterator[CatalogueItem]:
    """The items of a set of pixels, which the workspace stores for display and re-embedding."""
    for item in labelled_items(images):
        yield replace(
            item, payload={**item.payload, **space.images.keep(np.asarray(item.image).squeeze())}
        )


def settings(epochs: int, seed: int, device: str) -> Settings:
    """The settings of the demo: a small network for grey images of 32 x 32 pixels."""
    milestones = (round(0.6 * epochs), round(0.85 * epochs))
    return Settings(
        backbone="tiny",
        backbone_options={"in_channels": 1, "width": 16},
        recipe=Recipe(epochs=epochs, learning_rate=0.05, milestones=milestones, batch_size=64),
        augmentation=Augmentation(crop_padding=2, flip=False, fill=200),
        seed=seed,
        device=device,
    )


def _draw_gain(now: float, curve: Sequence[tuple[float, float]], path: Path) -> None:
    """Draw the accuracy of v2's queries during re-embedding, with v1's accuracy for comparison."""
    shares = np.array([share for share, _ in curve])
    found = np.array([hits for _, hits in curve])
    name = "queries by v2"
    drawn = {name: BackfillCurve(shares, found[None])}
    title = "At 0 % every stored vector is v1's, untouched"
    backfill_curves(drawn, path, {name: (now, float(found[-1]))}, title=title)


def sentence(now: float, at_once: float, reembedded: float, gate: str) -> str:
    """A summary in words, from the numbers alone."""
    if gate != "pass":
        return f"The gate did not let v2 pass in this run ({gate}), so v1 still answers and finds {now:.1%}."
    gained = at_once - now
    whole = reembedded - now
    if whole > 0:
        share = f", {gained / whole:.0%} of what re-embedding everything brings ({reembedded:.1%})"
    else:
        share = ""
    return (
        f"v1's queries found the right character first {now:.1%} of the time; v2's find {at_once:.1%} among the same "
        f"untouched vectors: {100 * gained:+.1f} points{share}."
    )
