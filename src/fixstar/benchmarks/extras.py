"""What the ablations of CoReS add to a retraining run: model selection, pre-training, other backbones along the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fixstar.benchmarks.datasets import dataset
from fixstar.benchmarks.plan import Run
from fixstar.data import ImageSet, class_order
from fixstar.evaluation.verification import gallery_query_split
from fixstar.models import Encoder
from fixstar.training import Settings, TrainingContext, Validation, train_version

__all__ = ["Extras"]

_VALIDATION = 2000  # images of the evaluation dataset's training split, which no pair is drawn from


@dataclass(frozen=True)
class Extras:
    """The keywords of ``retraining`` beside its stream, method and settings."""

    pretrained: Encoder | None = None
    validation: Validation | None = None
    later: Mapping[int, Settings] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run, data: Path, folder: Path, settings: Settings, progress: bool) -> Extras:
        """Those of a run; a model that was pre-trained before is read back from ``folder``."""
        extra = run.benchmark.extra
        backbones = extra.get("backbone_of_each_version", ())
        recipes = [run.shortened(recipe) for recipe in extra.get("recipe_of_each_version", ())]
        later = {i: replace(settings, backbone=name) for i, name in enumerate(backbones, start=1) if i > 1}
        for i, recipe in enumerate(recipes, start=1):
            if i in later:
                later[i] = replace(later[i], recipe=recipe)
        validation = _validation(run, data) if extra.get("model_selection") else None
        pretrained = None
        if classes := extra.get("pretraining_classes"):
            pretrained = _pretrained(run, data, folder / "pretrained", settings, classes, progress)
        return cls(pretrained, validation, later)


def _validation(run: Run, data: Path) -> Validation:
    images = dataset(run.benchmark.evaluation).open(data, "train")
    chosen = images.take(np.sort(np.random.default_rng(0).permutation(len(images))[:_VALIDATION]))
    split = gallery_query_split(chosen.labels, seed=0)
    return Validation(chosen.take(split.queries), chosen.take(split.gallery))


def _pretrained(run: Run, data: Path, folder: Path, settings: Settings, classes: int, progress: bool) -> Encoder:
    """A model of the classes that the tasks leave over (CoReS, section 6.3)."""
    device = settings.torch_device()
    if not folder.exists():
        images = dataset(run.benchmark.training).open(data, "train")
        version = train_version(
            0, _left_over(run, images, classes), TrainingContext(), run.create(), settings, progress=progress
        )
        version.encoder.save(folder)
    return Encoder.load(folder, device)


def _left_over(run: Run, images: ImageSet, classes: int) -> ImageSet:
    taken = sum(run.benchmark.tasks.sizes)
    names = class_order(images.classes, run.class_order or None)
    return images.of_classes(names[taken : taken + classes])
