"""Adapters between two encoders that know nothing of each other: every kind, on queries and on stored vectors.

An old encoder learns some characters, one with a wider backbone learns more of them, each on its own. The gallery and
the queries are characters that neither has learnt; the adapters are fitted on images of yet other characters, embedded
by both. "class means" has no image in common: class means of learnt characters, other images on each side.

    python benchmarks/adapters.py                                characters from the fonts of matplotlib, 3 seeds
    python benchmarks/adapters.py --omniglot OMNIGLOT_FOLDER     handwritten ones (images_background, images_evaluation)
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fixstar.workspace.adapters.fitting import ADAPTERS, agreement, fit_adapter, paired_by_class
from fixstar.workspace.adapters.maps import Applied
from fixstar.workspace.adapters.use import adapter_cross_test
from numpy.typing import NDArray

from fixstar.data import Augmentation, ImageSet, class_order, concatenate, from_arrays, sample_stream
from fixstar.data.formats import omniglot_folder
from fixstar.data.glyphs import SCRIPTS, glyph_pixels
from fixstar.durable import replace_json
from fixstar.errors import DataError, FixstarError
from fixstar.evaluation import CrossTest, VersionFeatures, cross_test, verdicts
from fixstar.images import Preprocessing
from fixstar.methods import create_method
from fixstar.models import Encoder
from fixstar.training import Recipe, Settings, TrainingContext, train_version, version_features

Array = NDArray[np.float32]
Figures = dict[str, Any]

KNOWN = ("digits", "latin", "greek", "cyrillic", "arabic", "phonetic", "mathematics")
ADDED = ("nko", "lao", "arrows")
SEARCHED = ("hebrew", "georgian")
PAIRED = ("armenian", "tifinagh", "syllabics", "old_italic", "symbols")  # neither learnt nor searched
INPUTS = Preprocessing(size=(32, 32), channels=1, mean=(0.92,), std=(0.27,), fit="squash")  # of Omniglot


class Images(NamedTuple):
    """What each encoder learns, what is searched, and what the adapters are fitted on."""

    old: ImageSet
    new: ImageSet
    gallery: ImageSet
    queries: ImageSet
    paired: ImageSet
    again: ImageSet  # other images of characters that the old encoder has learnt
    inputs: Preprocessing | None
    epochs: tuple[int, int]
    fill: int


def characters(scripts: tuple[str, ...], per_class: int, seed: int) -> ImageSet:
    drawn = [character for script in scripts for character in SCRIPTS[script]]
    pixels, labels = glyph_pixels(drawn, per_class, seed=seed)
    return from_arrays(pixels, labels, [f"U+{ord(character):04X}" for character in drawn], "glyphs")


def glyphs(seed: int) -> Images:
    base = 100 * seed
    old = characters(KNOWN, 6, base + 3)
    later = concatenate([characters(KNOWN, 12, base + 4), characters(ADDED, 12, base + 4)])
    gallery, queries = characters(SEARCHED, 20, base + 1), characters(SEARCHED, 30, base + 2)
    paired = characters(PAIRED, 8, base + 5)
    again = characters(KNOWN, 6, base + 6)
    return Images(old, concatenate([old, later]), gallery, queries, paired, again, None, (10, 6), 200)


def omniglot(folder: Path, seed: int) -> Images:
    parts = ("images_background", "images_evaluation")
    if missing := [part for part in parts if not (folder / part).is_dir()]:
        raise DataError(f"{folder} has no {' and no '.join(missing)}; give Omniglot's folder, which holds both")
    learnt = omniglot_folder(folder / "images_background").load(INPUTS).images
    other = omniglot_folder(folder / "images_evaluation").load(INPUTS).images
    names = class_order(learnt.classes, seed)
    first, again = (part.images for part in sample_stream(learnt.of_classes(names[:120]), [0.6, 0.4], seed=seed))
    rest = class_order(other.classes, seed)
    searched, paired = other.of_classes(rest[:100]), other.of_classes(rest[100:])
    gallery, queries = (part.images for part in sample_stream(searched, [0.5, 0.5], seed=seed))
    return Images(first, learnt.of_classes(names[:360]), gallery, queries, paired, again, INPUTS, (15, 15), 255)


def train(number: int, images: ImageSet, data: Images, width: int, epochs: int, seed: int) -> Encoder:
    settings = Settings(
        backbone="tiny",
        backbone_options={"in_channels": 1, "width": width},
        preprocessing=data.inputs,
        recipe=Recipe(
            epochs=epochs,
            learning_rate=0.05,
            milestones=(round(0.6 * epochs), round(0.85 * epochs)),
            batch_size=64,
        ),
        augmentation=Augmentation(crop_padding=2, flip=False, fill=data.fill),
        seed=10 * seed + number,
        device="cpu",
    )
    return train_version(number, images, TrainingContext(), create_method("itm"), settings, progress=False).encoder


def encode(encoder: Encoder, images: ImageSet) -> Array:
    return encoder.encode(images.images, form="short")


def by_name(images: ImageSet, names: list[str]) -> NDArray[np.int64]:
    """Labels by the place of the class in ``names``, so that two sets agree."""
    place = {name: i for i, name in enumerate(names)}
    return np.array([place[images.classes[label]] for label in images.labels], dtype=np.int64)


def row(kind: str, applied: str, fitted_on: str, test: CrossTest, clusters: Any, **more: Any) -> Figures:
    verdict = verdicts(test)[1, 0]
    wide = verdicts(test, clusters=clusters)[1, 0]
    return {
        "kind": kind,
        "applied": applied,
        "fitted_on": fitted_on,
        "old": round(float(test.matrix[0, 0]), 4),
        "cross": round(float(test.matrix[1, 0]), 4),
        "new": round(float(test.matrix[1, 1]), 4),
        "verdict": verdict.verdict,
        "interval": [round(verdict.low, 4), round(verdict.high, 4)],
        "verdict_for_other_classes": wide.verdict,
        **more,
    }


def measure(seed: int, data: Images, sizes: list[int]) -> Iterator[Figures]:
    old_encoder = train(1, data.old, data, 16, data.epochs[0], seed)
    new_encoder = train(2, data.new, data, 24, data.epochs[1], seed)
    old = version_features("old", old_encoder, data.queries, data.gallery)
    new = version_features("new", new_encoder, data.queries, data.gallery)
    labels = data.queries.labels, data.gallery.labels
    plain = cross_test([old, replace(new, shared_components=True)], *labels, "image")
    yield {"seed": seed, **row("none", "-", "-", plain, labels[0])}
    x_old, x_new = encode(old_encoder, data.paired), encode(new_encoder, data.paired)
    order = np.random.default_rng(seed).permutation(len(x_old))
    for size in sizes:
        chosen, name = order[:size], f"{min(size, len(order)):,} pairs"
        groups = data.paired.labels[chosen]
        for figures in all_kinds(x_old[chosen], x_new[chosen], old, new, labels, name, groups=groups):
            yield {"seed": seed, **figures}
    names = list(data.old.classes)
    means = paired_by_class(
        encode(old_encoder, data.old),
        by_name(data.old, names),
        encode(new_encoder, data.again),
        by_name(data.again, names),
    )
    name = f"{len(means.classes)} class means"
    for figures in all_kinds(means.X, means.Y, old, new, labels, name, weights=means.weights):
        yield {"seed": seed, **figures}


def all_kinds(
    x_old: Array, x_new: Array, old: VersionFeatures, new: VersionFeatures, labels: Any, name: str, **how: Any
) -> Iterator[Figures]:
    for kind, described in ADAPTERS.items():
        if len(x_old) < described.least:
            continue
        ways: dict[Applied, tuple[Array, Array]] = {"queries": (x_new, x_old), "stored": (x_old, x_new)}
        for applied, pair in ways.items():
            started = time.perf_counter()
            adapter = fit_adapter(kind, *pair, **how)
            seconds = round(time.perf_counter() - started, 2)
            test = adapter_cross_test(adapter, old, new, labels[0], labels[1], applied)
            fit = round(agreement(adapter(pair[0]), pair[1]).mean_cosine, 3)
            chosen = {key: value for key, value in adapter.about.items() if key not in ("pairs", "seed")}
            more = {"fit_seconds": seconds, "mean_cosine_of_the_fit": fit, "chosen": chosen}
            yield row(kind, applied, name, test, labels[0], **more)


def table(rows: list[Figures]) -> str:
    """Top-1 by kind, mean over seeds; in brackets how many seeds are compatible, not decided, incompatible."""
    columns = list(dict.fromkeys((r["fitted_on"], r["applied"]) for r in rows if r["kind"] != "none"))
    lines = [
        "| adapter | " + " | ".join(f"{on}, {applied}" for on, applied in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for kind in ADAPTERS:
        cells = []
        for on, applied in columns:
            mine = [r for r in rows if (r["kind"], r["fitted_on"], r["applied"]) == (kind, on, applied)]
            verdict = [[r["verdict"] for r in mine].count(v) for v in ("compatible", "not decided", "incompatible")]
            accuracy = f"{100 * float(np.mean([r['cross'] for r in mine])):.1f}" if mine else "-"
            cells.append(f"{accuracy} ({'/'.join(map(str, verdict))})" if mine else "-")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    none = [r for r in rows if r["kind"] == "none"]
    ends = {key: 100 * float(np.mean([r[key] for r in none])) for key in ("old", "cross", "new")}
    lines.append("\nold {old:.1f}, no adapter {cross:.1f}, everything re-embedded {new:.1f}".format(**ends))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--omniglot", type=Path, help="a folder in the official layout, instead of glyphs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pairs", default="300,4000", help="numbers of pairs, comma separated")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    sizes = [int(size) for size in options.pairs.split(",")]
    started = time.perf_counter()
    rows: list[Figures] = []
    for seed in range(1, options.seeds + 1):
        data = glyphs(seed) if options.omniglot is None else omniglot(options.omniglot, seed)
        for figures in measure(seed, data, sizes):
            rows.append(figures)
            print(*(figures[key] for key in ("seed", "kind", "applied", "fitted_on", "cross", "verdict")), flush=True)
        if options.out:
            content = {
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
                "data": "glyphs" if options.omniglot is None else "omniglot",
                "seconds": round(time.perf_counter() - started),
                "rows": rows,
            }
            replace_json(options.out, content)
    print(table(rows))


if __name__ == "__main__":
    try:
        main()
    except FixstarError as error:
        sys.exit(f"adapters.py: {error}")
