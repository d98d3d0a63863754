"""Settings from a version on: a run that grows along the way, with and without a stop, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_replacement import pretrained
from test_scenarios import SETTINGS, same_weights, stream
from wording import refuses

from fixstar.errors import CheckpointError, InputError
from fixstar.methods import create_method
from fixstar.training import EpochLog, Settings, Training, Version, run_scenario, train

FULL = replace(SETTINGS, capacity=4, device="cpu")  # of six classes, two at every version
GROWN = replace(FULL, grown=(5,))


def parts(versions: list[Version]) -> list[tuple[int, ...]]:
    return [version.encoder.classifier.parts for version in versions]


def stop_in_the_third(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kill would: v3 stops after its first epoch, whose checkpoint is written."""

    def stopped(run: Training) -> list[EpochLog]:
        if run.title.endswith("v3"):
            train(replace(run, recipe=replace(run.recipe, epochs=1)))
            raise KeyboardInterrupt
        return train(run)

    monkeypatch.setattr("fixstar.training.version.train", stopped)


@pytest.mark.parametrize("name", ["hoc", "fd", "cores", "ift"])
def test_a_run_grows_from_the_version_that_needs_the_room(name: str) -> None:
    versions = list(
        run_scenario(stream(), create_method(name), FULL, progress=False, later={3: GROWN})
    )
    if name == "ift":  # a trainable classifier has no capacity
        assert [version.encoder.classifier.outputs for version in versions] == [2, 4, 6]
        return
    assert parts(versions) == [(3,), (3,), (3, 4)]
    assert versions[2].encoder.slots.by_class == {str(label): label for label in range(6)}


def test_replaced_models_grow_too() -> None:
    model = pretrained([], seed=5, classifier="simplex")
    full = replace(FULL, capacity=model.classifier.outputs)
    grown = replace(full, grown=(5,))
    versions = list(
        run_scenario(
            stream(),
            create_method("hoc"),
            full,
            replacements={1: model},
            progress=False,
            later={2: grown},
        )
    )
    assert [len(shape) for shape in parts(versions)] == [1, 2, 2]


def test_a_full_run_grows_after_its_stop_and_ends_as_if_it_had_known(tmp_path: Path) -> None:
    """Settings of a version that is still to come may change in the same directory; finished ones stay as they are."""
    method = create_method("hoc")

    def run(directory: str, later: dict[int, Settings] | None) -> list[Version]:
        return list(
            run_scenario(stream(), method, FULL, tmp_path / directory, progress=False, later=later)
        )

    with refuses(InputError, "grow"):
        run("stopped", None)
    finished = sorted((tmp_path / "stopped" / "versions").iterdir())
    assert [path.name for path in finished] == ["v1", "v2"]
    before = [(path / "model.safetensors").read_bytes() for path in finished]
    after = run("stopped", {3: GROWN})
    assert before == [(path / "model.safetensors").read_bytes() for path in finished]
    assert parts(after) == [(3,), (3,), (3, 4)]
    assert same_weights(after[2].encoder, run("whole", {3: GROWN})[2].encoder)
    assert json.loads((tmp_path / "stopped" / "run.json").read_text())["later"].keys() == {"3"}
    assert parts(run("stopped", {3: GROWN})) == parts(after)  # read back
    with pytest.raises(CheckpointError, match=r"later\.3"):  # v3 is finished now
        run("stopped", {3: replace(FULL, grown=(6,))})
    with refuses(CheckpointError, varies=r"\{.*\}"):
        list(run_scenario(stream(), method, GROWN, tmp_path / "stopped", progress=False))


def test_a_version_begun_goes_on_as_it_began_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = create_method("hoc")

    def run(later: dict[int, Settings]) -> list[Version]:
        return list(
            run_scenario(
                stream(),
                method,
                FULL,
                tmp_path / "run",
                progress=False,
                later=later,
                scenario="lifelong",
            )
        )

    with monkeypatch.context() as patch:
        stop_in_the_third(patch)
        with pytest.raises(KeyboardInterrupt):
            run({3: GROWN})
    assert (tmp_path / "run" / "checkpoint-v3.safetensors").exists()
    with pytest.raises(CheckpointError, match="growth"):
        run({3: replace(FULL, grown=(6,))})
    whole = list(
        run_scenario(stream(), method, FULL, progress=False, later={3: GROWN}, scenario="lifelong")
    )
    assert same_weights(
        run({3: GROWN})[2].encoder, whole[2].encoder
    )  # the refusal took nothing away


@pytest.mark.parametrize(
    ("method", "later"),
    [
        ("hoc", {4: GROWN}),
        ("hoc", {1: GROWN}),
        ("hoc", {2: replace(FULL, capacity=9)}),
        ("hoc", {2: replace(GROWN, replay_per_class=9)}),
        ("ift", {2: replace(FULL, backbone="resnet20")}),
    ],
)
def test_what_cannot_change_along_the_way_is_named_at_once(
    method: str, later: dict[int, Settings]
) -> None:
    with refuses(InputError):
        run_scenario(stream(), create_method(method), FULL, progress=False, later=later)


def test_another_recipe_may_follow() -> None:
    short = replace(FULL, recipe=replace(FULL.recipe, epochs=1, milestones=()), capacity=12)
    long = replace(short, recipe=FULL.recipe)
    versions = list(
        run_scenario(stream(), create_method("hoc"), short, progress=False, later={3: long})
    )
    assert [len(version.log) for version in versions] == [1, 1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"side": "rigth"},
        {"capacity": 0},
        {"capacity": 2.5},
        {"replay_per_class": -1},
        {"selection": "best"},
        {"seed": -1},
        {"bad_images": "drop"},
        {"side": "up", "capacity": 1},
    ],
)
def test_settings_check_themselves(wrong: dict[str, Any]) -> None:
    with refuses(InputError):
        Settings(**wrong)
