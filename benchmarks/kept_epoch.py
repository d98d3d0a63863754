"""Does the epoch that is kept decide AC? CoReS and BCT retrained, FD continued, every epoch of every version judged.

The papers train to the last epoch. The published code keeps the epoch that classifies CIFAR-100's test images best (for
FD until March 2024), and section 4.3 of CoReS proposes the best compatible one (eq. 11). Here 450 images per class are
trained on, and the other 50 stand in for the test images. CoReS trains each version alone, so one training answers for
all three rules. BCT and FD are held to the version that was kept, by the rule that ``--keep`` names; FD continues
from its weights too. AC is the mean over 50 draws of the pairs, with its middle 95 %, in balanced folds and in folds as
published code cuts them.

    python benchmarks/kept_epoch.py cifar100-10-upgrades/1 cores --data DATA --out FILE
    python benchmarks/kept_epoch.py cifar100-10-upgrades/2 cores --data DATA --initialisation fresh --out FILE
    python benchmarks/kept_epoch.py cifar100-10-verification/5 fd --keep best --length 0.1 --data DATA --out FILE
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fixstar.durable import replace_json
from fixstar.evaluation import VersionFeatures
from fixstar.models import Encoder
from fixstar.research.benchmarks import benchmark
from fixstar.research.benchmarks.datasets import dataset, divide_classes
from fixstar.research.benchmarks.plan import Run
from fixstar.research.benchmarks.runner import SearchedImages
from fixstar.training import Training, ValidationScores, loop, run_scenario, version

PROTOCOLS = ("verification", "verification-published")
TRAINED_ON = 450  # images per class
HELD = ("bct", "fd")  # methods whose later versions are held to the epoch that was kept
Epoch = tuple[
    float, NDArray[np.float32]
]  # the share of held-out images classified, features of CIFAR-10's test images


class Followed:
    """Every epoch of every version: what it classifies, and its features of the images that pairs are drawn from."""

    def __init__(self, searched: SearchedImages, data: Path, keep: str) -> None:
        self.searched = searched
        self.keep = keep
        _, self.known = divide_classes(dataset("cifar100").open(data, "train"), TRAINED_ON)
        self.versions: list[list[Epoch]] = []
        self._train = loop.train

    def train(self, run: Training) -> Any:
        """As ``fixstar.training.loop.train``, with every epoch judged, the first version's too."""
        self.versions.append([])
        return self._train(replace(run, select=self.select))

    def select(self, encoder: Encoder) -> ValidationScores:
        """Keep this epoch; its score makes the right one of all be kept at the end."""
        features = encoder.encode(self.searched.gallery.images)
        own = self.known.of_classes(encoder.slots.classes)
        accuracy = classified(encoder, own.images, own.labels)
        self.versions[-1].append((accuracy, features.astype(np.float32)))
        score = accuracy if self.keep == "best" else float(len(self.versions[-1]))
        return ValidationScores(score, 1.0, 0.0)


def classified(encoder: Encoder, images: Any, labels: NDArray[np.int64]) -> float:
    """The share of images whose own class, of those learnt so far, has the highest output."""
    with torch.no_grad():
        z = torch.from_numpy(encoder.encode(images, form="raw")).to(encoder.device)
        outputs = encoder.classifier(z)[:, encoder.slots.of(encoder.slots.classes)]
    return float((outputs.argmax(dim=1).cpu().numpy() == labels).mean())


def judged(
    searched: SearchedImages, chosen: list[NDArray[np.float32]], pairs: tuple[int, int]
) -> dict[str, Any]:
    """Both measures of versions by their features, over 50 draws of the pairs."""
    versions = [
        VersionFeatures(f"v{i + 1}", features, features) for i, features in enumerate(chosen)
    ]
    return {name: searched.over_draws(versions, name, pairs) for name in PROTOCOLS}


def by_rule(followed: Followed, pairs: tuple[int, int], method: str) -> dict[str, Any]:
    """The last epoch, the best on held-out images, and the best compatible one (eq. 11; by the same pairs: a bound).

    Later versions of BCT and FD were held to the one that was kept: for them the other rules mean nothing.
    """
    searched = followed.searched
    epochs = followed.versions
    last = [len(one) - 1 for one in epochs]
    best = [int(np.argmax([accuracy for accuracy, _ in one])) for one in epochs]
    rules = {"last": last, "best": best}
    if method in HELD:
        rules = {followed.keep: rules[followed.keep]}
    else:
        rules = rules | {"compatible": compatible(followed)}
    return {
        name: {
            "epochs": [number + 1 for number in numbers],
            **judged(
                searched,
                [one[number][1] for one, number in zip(epochs, numbers, strict=True)],
                pairs,
            ),
        }
        for name, numbers in rules.items()
    }


def compatible(followed: Followed) -> list[int]:
    """By eq. 11, each version against the one before; the last epoch where none is compatible."""
    numbers = [len(followed.versions[0]) - 1]
    for before, one in itertools.pairwise(followed.versions):
        old = before[numbers[-1]][1]
        cells = [self_and_cross(followed.searched, old, features) for _, features in one]
        kept = [i for i, (_, cross, reference) in enumerate(cells) if cross > reference]
        numbers.append(max(kept, key=lambda i: cells[i][0], default=len(one) - 1))
    return numbers


def self_and_cross(
    searched: SearchedImages, old: NDArray[np.float32], new: NDArray[np.float32]
) -> tuple[float, ...]:
    """Self-test of the new, cross-test, self-test of the old, in balanced folds of one draw."""
    versions = [VersionFeatures(name, rows, rows) for name, rows in (("old", old), ("new", new))]
    matrix = searched.matrix(versions, "verification")
    return float(matrix[1, 1]), float(matrix[1, 0]), float(matrix[0, 0])


def curve(followed: Followed) -> list[dict[str, Any]]:
    """Over the epochs of each later version: the share classified, self-test, and cross-test on the last v1.

    None where some features are 0, as in one epoch of BCT.
    """
    searched = followed.searched
    first = followed.versions[0]
    rows = [{"version": 1, "classified": [accuracy for accuracy, _ in first]}]
    rows[0]["self"] = [self_and_cross(searched, features, features)[0] for _, features in first]
    for number, one in enumerate(followed.versions[1:], start=2):
        cells = [
            self_and_cross(searched, first[-1][1], features)
            if features.any(axis=1).all()
            else (None, None)
            for _, features in one
        ]
        row = {"version": number, "classified": [accuracy for accuracy, _ in one]}
        rows.append(
            row | {"self": [cell[0] for cell in cells], "on v1": [cell[1] for cell in cells]}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "benchmark",
        help="cifar100-10-upgrades/1, /2, /4 or /9; for fd, cifar100-10-verification/2, /3, /5 or /10",
    )
    parser.add_argument("method", choices=("cores", "bct", "fd"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--order", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, help="a shorter recipe")
    parser.add_argument("--length", type=float, help="of the prototypes")
    parser.add_argument("--weight-decay", type=float, help="instead of the catalogue's")
    parser.add_argument(
        "--initialisation", choices=("same", "fresh"), help="of CoReS; BCT is always fresh"
    )
    parser.add_argument(
        "--keep",
        choices=("last", "best"),
        default="last",
        help="the epoch that BCT and FD are held to",
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    words = parser.parse_args()
    changes = {"length": words.length, "weight_decay": words.weight_decay}
    run = Run(
        replace(benchmark(words.benchmark), images_per_class=TRAINED_ON),
        words.method,
        words.order,
        words.seed,
        words.epochs,
        options={"initialisation": words.initialisation} if words.initialisation else {},
        changes={name: value for name, value in changes.items() if value is not None},
    )
    pairs = run.benchmark.pairs
    assert pairs is not None
    began = time.monotonic()
    followed = Followed(SearchedImages.open(run.benchmark, words.data), words.data, words.keep)
    version.train = followed.train  # type: ignore[attr-defined]
    for _ in run_scenario(
        run.stream(words.data),
        run.create(),
        run.settings(words.device),
        scenario="lifelong" if words.method == "fd" else "retraining",
    ):
        pass
    rules = by_rule(followed, pairs, words.method)
    found = {
        "run": run.name,
        "keep": words.keep,
        "rules": rules,
        "seconds": round(time.monotonic() - began),
    }
    replace_json(words.out, found)
    replace_json(words.out, found | {"epochs": curve(followed)})
    for rule, row in rules.items():
        for name in PROTOCOLS:
            low, high = row[name]["AC_interval"]
            print(
                f"{rule:<11} {name:<23} AC {row[name]['AC']:.2f} [{low:.2f}, {high:.2f}]  epochs {row['epochs']}"
            )


if __name__ == "__main__":
    main()
