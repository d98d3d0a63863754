"""A run that cannot go on says what differs from the one that was begun."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wording import check_wording

from fixstar.data import Augmentation, ImageSet, from_arrays
from fixstar.errors import CheckpointError
from fixstar.methods import create_method
from fixstar.training import Recipe, Settings, TrainingContext, train_version

SETTINGS = Settings(
    backbone="tiny",
    backbone_options={"in_channels": 1, "width": 4},
    capacity=6,
    recipe=Recipe(epochs=1, learning_rate=0.01, batch_size=8),
)


def patches(classes: str = "ab", seed: int = 0) -> ImageSet:
    labels = np.repeat(np.arange(len(classes)), 4)
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 16, 16), dtype=np.uint8)
    return from_arrays(pixels, labels, list(classes))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """What a run leaves that was killed before it kept its version."""
    train_version(
        1,
        patches(),
        TrainingContext(),
        create_method("hoc"),
        SETTINGS,
        tmp_path / "c.safetensors",
        False,
    )
    return tmp_path / "c.safetensors"


def refusal(
    checkpoint: Path, images: ImageSet | None = None, method: Any = None, **settings: Any
) -> str:
    given = (
        images or patches(),
        TrainingContext(),
        method or create_method("hoc"),
        replace(SETTINGS, **settings),
    )
    with pytest.raises(CheckpointError) as error:
        train_version(1, *given, checkpoint, False)
    return str(error.value)


def differing(message: str) -> set[str]:
    return set(message.split("(different now: ")[1].split("); use")[0].split(", "))


def test_it_names_what_differs_and_nothing_else(checkpoint: Path) -> None:
    longer = replace(SETTINGS.recipe, epochs=3)
    assert differing(refusal(checkpoint, recipe=longer)) == {"epochs"}
    assert differing(refusal(checkpoint, recipe=replace(longer, learning_rate=0.02))) == {
        "epochs",
        "learning rate",
    }
    assert differing(refusal(checkpoint, grown=(4,))) == {"growth"}
    assert differing(refusal(checkpoint, method=create_method("hoc", lam=0.5))) == {
        "method options"
    }
    assert differing(refusal(checkpoint, augmentation=Augmentation(flip=False), seed=3)) == {
        "flip",
        "seed",
    }
    images = {"images (files", "or the share held out)"}
    assert differing(refusal(checkpoint, patches(seed=1))) == images
    assert differing(refusal(checkpoint, patches("ac"))) == images | {"classes"}


def test_what_to_do_is_said_and_the_same_run_resumes(checkpoint: Path) -> None:
    check_wording(refusal(checkpoint, seed=1))
    train_version(
        1, patches(), TrainingContext(), create_method("hoc"), SETTINGS, checkpoint, False
    )
