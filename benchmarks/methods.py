"""Every method on one small real benchmark: handwritten characters, learnt in three tasks, searched among unseen ones.

Omniglot's background characters are learnt in tasks of 40; 100 characters of its evaluation set are searched, 10
drawings each in the gallery and 10 as queries. The data is the official layout (images_background, images_evaluation).

    python benchmarks/methods.py OMNIGLOT_FOLDER                          all methods, two class orders
    python benchmarks/methods.py OMNIGLOT_FOLDER --methods hoc,er --orders 1
    python benchmarks/methods.py OMNIGLOT_FOLDER --jobs 2 --docs docs/appendix/methods.md     writes the tables
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fixstar.data import (
    Augmentation,
    ImageSet,
    TaskStream,
    class_order,
    class_stream,
    sample_stream,
)
from fixstar.data.formats import omniglot_folder
from fixstar.durable import replace_json
from fixstar.errors import DataError, FixstarError, UnknownNameError
from fixstar.evaluation import VersionFeatures, cross_test
from fixstar.images import Preprocessing
from fixstar.methods import METHODS, create_method
from fixstar.progress import progress_bar
from fixstar.research.benchmarks.result import measured
from fixstar.research.benchmarks.translations import fit_translations, read_translation
from fixstar.training import Recipe, Settings, run_scenario, version_features
from fixstar.translation.score import translated
from fixstar.translation.translation import USUAL

Matrix = NDArray[np.float64]

TASK_CLASSES = 40
TASKS = 3
SEARCHED = 100
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (name, {}) for name in METHODS if name != "vega"
    },  # whose models share no space: it is translated
    "bct-kd": ("bct", {"new_classes": "kd"}),
    "bct-sys": ("bct", {"new_classes": "synthesised"}),
    "fd (softmax)": ("fd", {"head": "softmax"}),
    "fd (softmax on all)": ("fd", {"head": "softmax", "on": "all"}),
    "hoc (lam 0.1)": ("hoc", {"lam": 0.1}),
    "polaris (translated)": ("polaris", {}),
    "vega (translated)": ("vega", {}),
    "vega longer=1 (translated)": (
        "vega",
        {"longer": 1},
    ),  # upgrades as long as those of the others
}
CAPACITY = 200
ROTATED_CAPACITY = 1000  # of methods that learn rotated classes too: eight slots for each class
PROTOCOLS = ("template", "image")
COLUMNS = ("AC", "AA", "ACA", "BC", "FC")
KEPT = 0.6  # of the drawings, for training, where learnt characters are searched
MARKS = ("<!-- table -->", "<!-- end of table -->")
INPUTS = Preprocessing(size=(32, 32), channels=1, mean=(0.92,), std=(0.27,), fit="squash")


def settings(epochs: int, seed: int, capacity: int) -> Settings:
    milestones = (round(0.6 * epochs), round(0.85 * epochs))
    return Settings(
        backbone="tiny",
        backbone_options={"in_channels": 1, "width": 16},
        capacity=capacity,
        preprocessing=INPUTS,
        recipe=Recipe(epochs=epochs, learning_rate=0.05, milestones=milestones, batch_size=64),
        augmentation=Augmentation(crop_padding=3, flip=False, fill=255),
        replay_per_class=5,
        seed=seed,
    )


def require_omniglot(folder: Path) -> None:
    """Refuse another folder at once, before the runs are handed out."""
    parts = ("images_background", "images_evaluation")
    if missing := [part for part in parts if not (folder / part).is_dir()]:
        raise DataError(
            f"{folder} has no {' and no '.join(missing)}; give Omniglot's folder, which holds both"
        )


def chosen_variants(names: str) -> list[str]:
    """The variants that --methods names; another name is refused at once."""
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in VARIANTS:
            raise UnknownNameError(
                "method", name, VARIANTS, "Give them with commas between: --methods hoc,er"
            )
    return chosen


def learnt(folder: Path, order: int) -> ImageSet:
    images = omniglot_folder(folder / "images_background").load(INPUTS).images
    return images.of_classes(class_order(images.classes, order)[: TASK_CLASSES * TASKS])


def tasks(folder: Path, order: int, kept: float = 1.0) -> TaskStream:
    images = learnt(folder, order)
    if kept < 1:
        images = sample_stream(images, [kept, 1 - kept], seed=0)[0].images
    return class_stream(images, TASK_CLASSES, TASK_CLASSES)


def searched_seen(folder: Path, order: int, kept: float) -> tuple[ImageSet, ImageSet]:
    """Drawings that were not trained on, of the characters that every version has learnt: those of the first task."""
    first = list(tasks(folder, order)[0].images.classes)
    rest = sample_stream(learnt(folder, order), [kept, 1 - kept], seed=0)[1].images.of_classes(
        first
    )
    gallery, queries = (task.images for task in sample_stream(rest, [0.5, 0.5], seed=0))
    return gallery, queries


def searched(folder: Path) -> tuple[ImageSet, ImageSet]:
    images = omniglot_folder(folder / "images_evaluation").load(INPUTS).images
    chosen = images.of_classes(class_order(images.classes, 0)[:SEARCHED])
    gallery, queries = (task.images for task in sample_stream(chosen, [0.5, 0.5], seed=0))
    return gallery, queries


def run(
    variant: str, stream: TaskStream, gallery: ImageSet, queries: ImageSet, epochs: int, order: int
) -> list[dict[str, Any]]:
    """The results of one training: one, or with translations one for each number of models per query."""
    name, options = VARIANTS[variant]
    started = time.monotonic()
    method = create_method(name, **options)
    made = settings(epochs, order, ROTATED_CAPACITY if name in ("polaris", "vega") else CAPACITY)
    features = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for version in run_scenario(stream, method, made, folder / "run", progress=False):
            features.append(version_features(version.name, version.encoder, queries, gallery))
            if variant.endswith("(translated)") and version.number > 1:
                fit_translations(
                    version,
                    stream,
                    made,
                    folder,
                    lifelong=True,
                    shared=method.shares_space,
                    weight=USUAL,
                    sources=range(1, version.number),
                )
        matrices = {variant: plain_matrices(features, queries, gallery)}
        if variant.endswith("(translated)"):
            matrices = translated_matrices(
                variant, matrices[variant], features, (queries, gallery), folder
            )
    seconds = round(time.monotonic() - started, 1)
    results = []
    for shown, by_protocol in matrices.items():
        protocols = {protocol: measured(matrix) for protocol, matrix in by_protocol.items()}
        results.append(
            {
                "method": shown,
                "class_order": order,
                "epochs": epochs,
                "seconds": seconds,
                "protocols": protocols,
            }
        )
    return results


def plain_matrices(
    features: list[VersionFeatures], queries: ImageSet, gallery: ImageSet
) -> dict[str, Matrix]:
    """C of stored vectors as they are, by both protocols."""
    return {
        name: cross_test(features, queries.labels, gallery.labels, name).matrix
        for name in PROTOCOLS
    }


def translated_matrices(
    variant: str,
    plain: dict[str, Matrix],
    features: list[VersionFeatures],
    searched: tuple[ImageSet, ImageSet],
    folder: Path,
) -> dict[str, dict[str, Matrix]]:
    """C of translated vectors, with one model per query and with two. Self-tests are those of ``plain``."""
    one = {name: matrix.copy() for name, matrix in plain.items()}
    two = {name: matrix.copy() for name, matrix in plain.items()}
    for t, new in enumerate(features):
        for k, old in enumerate(features[:t]):
            way = read_translation(folder, k + 1, t + 1)
            for found, asked in ((one, way.with_one_model()), (two, way)):
                cell = plain_matrices([translated(asked, old, new)], *searched)
                for name in PROTOCOLS:
                    found[name][t, k] = cell[name][0, 0]
    return {variant: one, variant.replace(")", ", two models)"): two}


def table(results: list[dict[str, Any]], protocol: str) -> str:
    lines = [f"| method | {' | '.join(COLUMNS)} |", f"|---{'|---' * len(COLUMNS)}|"]
    for variant in sorted({result["method"] for result in results}):
        mine = [result for result in results if result["method"] == variant]
        means = [
            np.mean([result["protocols"][protocol][key] for result in mine]) for key in COLUMNS
        ]
        lines.append(f"| {variant} | {' | '.join(f'{mean:.3f}' for mean in means)} |")
    return "\n".join(lines)


def tables(results: list[dict[str, Any]], epochs: int = 15, orders: int = 2) -> str:
    """The tables of both protocols, as they stand in the docs."""
    shown = [result for result in results if result["epochs"] == epochs]
    return "\n\n".join(
        f"Nearest {name}, {epochs} epochs, mean over {orders} class orders:\n\n{table(shown, protocol)}"
        for protocol, name in (("template", "class template"), ("image", "image"))
    )


def write_docs(page: Path, text: str) -> None:
    """Put the tables between the page's two marks."""
    before, rest = page.read_text().split(MARKS[0])
    page.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{rest.split(MARKS[1])[1]}")


def plan_of(options: argparse.Namespace, results: list[dict[str, Any]]) -> list[tuple[str, int]]:
    done = {(result["method"], result["class_order"], result["epochs"]) for result in results}
    orders = range(1, options.orders + 1)
    return [(v, o) for v in options.methods for o in orders if (v, o, options.epochs) not in done]


def work(folder: Path, variant: str, order: int, epochs: int, seen: bool) -> list[dict[str, Any]]:
    """One run, in whichever process."""
    torch.set_num_threads(1)
    gallery, queries = searched_seen(folder, order, KEPT) if seen else searched(folder)
    return run(
        variant, tasks(folder, order, KEPT if seen else 1.0), gallery, queries, epochs, order
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--methods", default=",".join(VARIANTS), help="comma separated")
    parser.add_argument("--orders", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument(
        "--seen",
        action="store_true",
        help="search characters that were learnt, by drawings that were not",
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/methods_omniglot.json")
    )
    parser.add_argument("--docs", type=Path, help="write the tables into this page")
    options = parser.parse_args()
    options.methods = chosen_variants(options.methods)
    require_omniglot(options.data)
    results: list[dict[str, Any]] = (
        json.loads(options.out.read_text()) if options.out.exists() else []
    )
    plan = plan_of(options, results)
    with (
        ProcessPoolExecutor(options.jobs) as pool,
        progress_bar("methods", len(plan), "runs") as advance,
    ):
        runs = [
            pool.submit(work, options.data, variant, order, options.epochs, options.seen)
            for variant, order in plan
        ]
        for ended in as_completed(runs):
            results += ended.result()
            replace_json(options.out, results)
            advance(1, results[-1]["method"])
    text = tables(results, options.epochs, options.orders)
    print(text)
    if options.docs:
        write_docs(options.docs, text)


if __name__ == "__main__":
    try:
        main()
    except FixstarError as error:
        sys.exit(f"methods.py: {error}")
