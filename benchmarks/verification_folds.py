"""What the cut into folds does to verification accuracy: one list of pairs, as it was drawn and in balanced folds.

The code of CoReS and CL2R draws two CIFAR-10 images at a time until it has 3,000 genuine and 3,000 impostor pairs, and
cuts the list into ten folds as it stands. Impostors are nine draws of ten, so the last folds hold genuine pairs alone,
and the threshold chosen on the other folds accepts too few of them. That code also normalises the pairs by CIFAR-10's
own mean and deviation, and the training images by CIFAR-100's.

Scores are simulated first: normal, and higher for genuine pairs. Then two versions are trained on the first classes of
CIFAR-100 by CoReS: small models and short training, as this is about the measure, not about the method. Some five
minutes on two CPU cores.

    python benchmarks/verification_folds.py DATA --out benchmarks/results/verification_folds_cpu.json
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np

from fixstar.data import Augmentation, class_stream
from fixstar.durable import replace_json
from fixstar.evaluation import VerificationPairs, draw_pairs, kfold_accuracy, pair_scores
from fixstar.methods import create_method
from fixstar.models import Encoder
from fixstar.research.benchmarks.datasets import dataset
from fixstar.training import Recipe, Settings, run_scenario

# of the code that evaluates
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2023, 0.1994, 0.2010)


def settings(epochs: int) -> Settings:
    return Settings(
        backbone="resnet20",
        capacity=100,
        recipe=Recipe(
            epochs=epochs,
            milestones=(round(0.7 * epochs),),
            weight_decay=5e-4,
            precision="bfloat16",
        ),
        augmentation=Augmentation(crop_padding=4, flip=True),
        replay_per_class=0,
        seed=0,
    )


def normalised_by_cifar10(encoder: Encoder) -> Encoder:
    inputs = dataclasses.replace(encoder.preprocessing, mean=CIFAR10_MEAN, std=CIFAR10_STD)
    parts = (encoder.backbone, encoder.projection, encoder.classifier, encoder.slots)
    return Encoder(*parts, inputs, encoder.about, encoder.adapter)


def accuracies(
    first: np.ndarray[Any, Any], second: np.ndarray[Any, Any], pairs: VerificationPairs
) -> dict[str, float]:
    """By the folds of the list as drawn, and by folds that each hold as many genuine as impostor pairs."""
    scores = pair_scores(first, second, pairs)
    return {
        "as drawn": kfold_accuracy(scores, pairs.same, stratified=False).mean,
        "balanced": kfold_accuracy(scores, pairs.same).mean,
    }


def simulated(labels: np.ndarray[Any, Any], draws: int = 20) -> list[dict[str, float]]:
    """Accuracies of scores that are normal, and higher by ``distance`` deviations for genuine pairs."""
    rows = []
    for distance in (0.0, 0.4, 0.8, 1.0, 1.2, 1.4):
        both = []
        for seed in range(draws):
            same = draw_pairs(labels, seed=seed).same
            scores = np.random.default_rng(seed).normal(size=len(same)) + distance * same
            both.append(
                [kfold_accuracy(scores, same, stratified=how).mean for how in (False, True)]
            )
        drawn, balanced = np.mean(both, axis=0)
        spread = float(np.std([pair[0] for pair in both], ddof=1))
        rows.append(
            {"distance": distance, "as drawn": drawn, "deviation": spread, "balanced": balanced}
        )
        print(
            f"simulated: balanced {balanced:.3f}, as drawn {drawn:.3f} +- {spread:.3f}", flush=True
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "data", type=Path, help="the folder with cifar-100-binary and cifar-10-batches-bin"
    )
    parser.add_argument("--classes", type=int, default=20, help="new classes a version")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    searched = dataset("cifar10").open(options.data, "test")
    training = dataset("cifar100").open(options.data, "train")
    training = training.of_classes(training.classes[: 2 * options.classes])
    stream = class_stream(training, options.classes, options.classes)
    pairs = draw_pairs(searched.labels)
    genuine = [float(part.mean()) for part in np.array_split(pairs.same, 10)]
    print(
        "share of genuine pairs in each fold as drawn:",
        " ".join(f"{share:.2f}" for share in genuine),
    )
    beside = simulated(searched.labels)
    started = time.monotonic()
    found = []
    features: dict[str, list[np.ndarray[Any, Any]]] = {"cifar100": [], "cifar10": []}
    for version in run_scenario(stream, create_method("cores"), settings(options.epochs)):
        for name, encoder in (
            ("cifar100", version.encoder),
            ("cifar10", normalised_by_cifar10(version.encoder)),
        ):
            features[name].append(encoder.encode(searched.images))
    for name, (old, new) in features.items():
        for test, one, other in (
            ("self-test v1", old, old),
            ("v2 on v1", new, old),
            ("self-test v2", new, new),
        ):
            found.append({"normalised by": name, "test": test, **accuracies(one, other, pairs)})
            print(
                "  ".join(
                    f"{v:.3f}" if isinstance(v, float) else f"{v:<13}" for v in found[-1].values()
                )
            )
    if options.out:
        about = {
            "classes": options.classes,
            "epochs": options.epochs,
            "seconds": round(time.monotonic() - started),
        }
        replace_json(
            options.out,
            {**about, "genuine by fold": genuine, "simulated": beside, "accuracies": found},
        )


if __name__ == "__main__":
    main()
