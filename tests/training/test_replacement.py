"""IAM-CL2R: pre-trained models take the place of the fine-tuned one, and slots never collide."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from test_scenarios import SETTINGS, same_weights, stripes

from fixstar.data import ImageSet, class_stream
from fixstar.errors import InputError, ModelError
from fixstar.methods import create_method
from fixstar.models import Encoder, Slots
from fixstar.training import Recipe, Settings, Version, run_scenario

RIGHT = Settings(**{**vars(SETTINGS), "side": "right"})


def pretrained(
    names: list[str], backbone: str = "tiny", seed: int = 0, classifier: str = "simplex"
) -> Encoder:
    torch.manual_seed(seed)
    options = {"in_channels": 1, "width": 4} if backbone == "tiny" else {"in_channels": 1}
    return Encoder.create(
        backbone, classifier, classes=names, capacity=12, backbone_options=options
    )


def tasks() -> ImageSet:
    return stripes(6)


def replaced(
    settings: Settings, models: Mapping[int, Encoder], method: str = "hoc"
) -> list[Version]:
    stream = class_stream(tasks(), 2, 2)
    return list(
        run_scenario(stream, create_method(method), settings, replacements=models, progress=False)
    )


def test_a_replacement_is_where_training_goes_on_and_who_teaches() -> None:
    """At a learning rate of almost nothing, versions are the models they started from."""
    still = Settings(
        **{**vars(RIGHT), "recipe": Recipe(epochs=1, learning_rate=1e-12, batch_size=8)}
    )
    models = {1: pretrained(["p", "q"]), 3: pretrained(["p", "q", "r"], "resnet20", seed=1)}
    versions = replaced(still, models)
    first, second, third = (v.encoder for v in versions)
    for a, b in ((first, models[1]), (second, models[1]), (third, models[3])):
        assert a.projection is not None
        assert b.projection is not None
        torch.testing.assert_close(a.projection.weight, b.projection.weight, atol=1e-6, rtol=0)
    assert third.backbone.name == "resnet20"
    assert [set(v.log[0].terms) for v in versions] == [{"ce", "hoc"}] * 3


def test_slots_come_from_both_ends_and_are_kept_through_replacements() -> None:
    models = {1: pretrained(["p", "q"]), 2: pretrained(["p", "q", "r"], seed=1)}
    versions = replaced(RIGHT, models)
    last = versions[-1].encoder.slots.by_class
    assert [last[name] for name in "pqr"] == [0, 1, 2]
    assert [last[name] for name in "012345"] == [11, 10, 9, 8, 7, 6]
    for version in versions:
        assert version.encoder.slots.by_class.items() <= last.items()


def test_versions_of_different_width_still_compare() -> None:
    models = {1: pretrained(["p"]), 2: pretrained(["p", "q"], "lenet++", seed=1)}
    stream = class_stream(tasks(), 3, 3)
    a, b = (
        v.encoder
        for v in run_scenario(
            stream, create_method("fd"), RIGHT, replacements=models, progress=False
        )
    )
    images = np.asarray(tasks().images)
    assert a.encode(images).shape == b.encode(images).shape == (48, 11)
    assert a.encode(images, form="short").shape[1] != b.encode(images, form="short").shape[1]


def test_a_trainable_head_has_the_classes_of_the_tasks_alone() -> None:
    """Of pre-training classes no image comes: their outputs would only be answers that are always wrong."""
    models = {2: pretrained(["p", "q", "3"], classifier="linear")}
    still = Settings(
        **{**vars(RIGHT), "recipe": Recipe(epochs=1, learning_rate=1e-12, batch_size=8)}
    )
    for name in ("er", "bct-er"):
        versions = list(
            run_scenario(
                class_stream(tasks(), 2, 2),
                create_method(name),
                still,
                replacements=models,
                progress=False,
                scenario="lifelong",
            )
        )
        assert [v.encoder.slots.classes for v in versions] == [
            tuple("01"),
            tuple("0123"),
            tuple("012345"),
        ]
        rows, own = (
            model.classifier.get_parameter("weight") for model in (versions[1].encoder, models[2])
        )
        assert len(rows) == 4
        torch.testing.assert_close(rows[3], own[2])  # what it knows of a class of the tasks is kept


def test_without_rehearsal_nothing_is_remembered() -> None:
    bare = Settings(**{**vars(RIGHT), "replay_per_class": 0})
    models = {1: pretrained(["p"])}
    versions = list(
        run_scenario(
            class_stream(tasks(), 3, 3),
            create_method("fd"),
            bare,
            replacements=models,
            progress=False,
        )
    )
    assert versions[1].log[-1].terms["fd"] == 0


def test_colliding_slots_and_foreign_prototypes_are_refused() -> None:
    with pytest.raises(ModelError, match="from the left"):
        Slots(5, {"a": 0}).joined(Slots(5, {"b": 0}))
    with pytest.raises(ModelError, match="differently \\(a\\)"):
        Slots(5, {"a": 0}).joined(Slots(5, {"a": 1}))
    with pytest.raises(ModelError, match="K=5 and K=6"):
        Slots(5).joined(Slots(6))
    with pytest.raises(InputError, match="no task 9"):
        run_scenario(
            class_stream(tasks(), 3, 3),
            create_method("hoc"),
            RIGHT,
            replacements={9: pretrained([])},
            progress=False,
        )


def test_a_finished_run_is_read_back_and_other_replacements_are_refused(tmp_path: Path) -> None:
    stream, method = class_stream(tasks(), 3, 3), create_method("hoc")

    def run(seed: int) -> list[Encoder]:
        models = {2: pretrained([], seed=seed)}
        return [
            v.encoder
            for v in run_scenario(
                stream,
                method,
                RIGHT,
                tmp_path / "run",
                progress=False,
                scenario="lifelong",
                replacements=models,
            )
        ]

    assert all(same_weights(a, b) for a, b in zip(run(1), run(1), strict=True))
    with pytest.raises(Exception, match="replacements"):
        run(2)
