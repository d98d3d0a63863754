"""Short runs before an upgrade: what they compare, what they cost, and that a kill changes nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from wording import check_wording, refuses

from fixstar.data import ImageSet, from_arrays
from fixstar.errors import InputError
from fixstar.methods import create_method
from fixstar.training import Recipe, Settings
from fixstar.training.checkpoint import save_checkpoint
from fixstar.workspace import UpgradeOptions, Workspace, training
from fixstar.workspace.training import TrialResult, best_trial

ENOUGH = training.LEAST_QUERIES
EPOCHS = 30  # of one or two steps; so that three short runs are worth their time


def patches(names: str, per_class: int = 32) -> ImageSet:
    rng = np.random.default_rng(ord(names[0]))
    colours = np.repeat(rng.integers(0, 150, (len(names), 1, 1, 3)), per_class, axis=0)
    pixels = (colours + rng.integers(0, 100, (len(colours), 8, 8, 3))).astype(np.uint8)
    return from_arrays(pixels, np.repeat(np.arange(len(names)), per_class), list(names))


@pytest.fixture(scope="module", autouse=True)
def few_queries() -> Iterator[None]:
    """As many as these small sets have are enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "LEAST_QUERIES", 25)
        yield


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with v1."""
    path = tmp_path_factory.mktemp("trials") / "shop"
    space = Workspace.create(path, device="cpu")
    settings = Settings(
        backbone="tiny",
        backbone_options={"width": 2},
        capacity=80,
        recipe=Recipe(epochs=EPOCHS, milestones=(20, 26), learning_rate=0.05, batch_size=64),
        device="cpu",
    )
    space.train(patches("ab"), settings, create_method("polaris"), progress=False, hold_out=0.5)
    return path


@pytest.fixture(scope="module")
def whole(first: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, list[str]]:
    """The same with v2, from trials that were not interrupted, and what they said."""
    space, said = (
        Workspace(shutil.copytree(first, tmp_path_factory.mktemp("whole") / "shop"), "cpu"),
        list[str](),
    )
    space.upgrade(patches("cd"), options(), say=said.append)
    return space, said


@pytest.fixture
def space(first: Path, tmp_path: Path) -> Workspace:
    return Workspace(shutil.copytree(first, tmp_path / "shop"), "cpu")


def options(**changes: Any) -> UpgradeOptions:
    return UpgradeOptions(**{"device": "cpu", "progress": False, "hold_out": 0.5, **changes})


def weights(space: Workspace, name: str) -> dict[str, torch.Tensor]:
    return dict(space.encoder(name).state_dict())


def assert_same_weights(a: Workspace, b: Workspace, name: str = "v2") -> None:
    left, right = weights(a, name), weights(b, name)
    assert all(torch.equal(left[key], right[key]) for key in left)


def test_the_best_of_three_settings_is_trained_in_full(
    whole: tuple[Workspace, list[str]], first: Path, tmp_path: Path
) -> None:
    space, said = whole
    tried = space.registry.card("v2")["about"]["trials"]
    assert [one["setting"] for one in tried] == ["as v1", "hold=5", "rate=1"]
    assert {one["epochs"] for one in tried} == {3}
    check_wording(said[0])
    assert any("to go" in line for line in said)
    (chosen,) = [one for one in tried if one["chosen"]]
    assert chosen is tried[best_trial([TrialResult.from_json(one) for one in tried])]
    about = space.registry.card("v2")["about"]
    assert about["method"]["options"]["hold"] == (5 if chosen["setting"] == "hold=5" else 40)
    assert not list(space.path.glob("trials-*"))
    with refuses(InputError, "check"):
        space.upgrade(patches("cd"), options())
    settings: dict[str, dict[str, Any]] = {
        "as v1": {},
        "hold=5": {"method": create_method("polaris", hold=5)},
        "rate=1": {"method": create_method("polaris", rate=1)},
    }
    plain = Workspace(shutil.copytree(first, tmp_path / "plain"), "cpu")
    plain.upgrade(patches("cd"), options(**settings[chosen["setting"]]), trials=0)
    assert "trials" not in plain.registry.card("v2")["about"]
    assert_same_weights(space, plain)


@pytest.mark.parametrize(
    "saved",
    [
        pytest.param(1, marks=pytest.mark.long),  # in the first trial
        5,  # in the second
        pytest.param(20, marks=pytest.mark.long),  # in the full run
    ],
)
def test_killed_anywhere_the_same_call_resumes_to_the_same_weights(
    space: Workspace,
    whole: tuple[Workspace, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    saved: int,
) -> None:
    steps = 0

    def killed(*state: Any) -> None:
        nonlocal steps
        save_checkpoint(*state)
        steps += 1
        if steps == saved:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fixstar.training.loop.save_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            space.upgrade(patches("cd"), options())
    assert space.versions() == ["v1"]
    assert space.status().training == "v2"
    again: list[str] = []
    space.upgrade(patches("cd"), options(), say=again.append)
    finished = (saved - 1) // 3 if saved < 10 else 3
    assert [line.partition(":")[0] for line in again if line.startswith("Trial ")] == [
        f"Trial {row} of 3" for row in range(finished + 1, 4)
    ]
    shops = (space, whole[0])
    kept = [
        [{**one, "chosen": None} for one in shop.registry.card("v2")["about"]["trials"]]
        for shop in shops
    ]
    assert kept[0] == kept[1]
    assert_same_weights(*shops)
    assert not list(space.path.glob("trials-*"))


@pytest.mark.long
def test_damaged_results_are_measured_again(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "_train_in", killed)  # the full run
        with pytest.raises(KeyboardInterrupt):
            space.upgrade(patches("cd"), options(), trials=2)
    (space.path / "trials-v2" / "results.json").write_text("[1, {")
    (space.path / "trials-v1").mkdir()  # left behind by a kill just after v1 was finished
    said: list[str] = []
    space.upgrade(patches("cd"), options(), trials=2, say=said.append)
    assert [line for line in said if line.startswith("Trial ")] == [
        "Trial 1 of 2: as v1",
        "Trial 2 of 2: hold=5",
    ]
    assert not list(space.path.glob("trials-*"))


def test_a_third_version_is_also_tried_from_the_first(space: Workspace) -> None:
    space.upgrade(
        patches("cd"),
        options(recipe=Recipe(epochs=2, milestones=(1,), learning_rate=0.05, batch_size=64)),
    )
    said: list[str] = []
    space.upgrade(patches("ef"), options(), trials=5, say=said.append)
    tried = space.registry.card("v3")["about"]["trials"]
    assert [one["setting"] for one in tried] == [
        "as v2",
        "hold=5",
        "rate=1",
        "rotated=0",
        "from v1",
    ]
    assert all(set(one["galleries"]) == {"v1", "v2"} for one in tried)
    (chosen,) = [one["setting"] for one in tried if one["chosen"]]
    assert space.registry.card("v3")["about"]["parent"] == ("v1" if chosen == "from v1" else "v2")


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({}, ["as v1", "hold=5", "rate=1", "rotated=0"]),
        ({"method": create_method("polaris", hold=30)}, ["as v1"]),
        ({"learning_rate": 0.05}, ["as v1", "hold=5", "rotated=0"]),
        ({"recipe": Recipe(epochs=30, learning_rate=0.2)}, ["as v1", "hold=5", "rotated=0"]),
        ({"start": "v1", "seed": 3}, ["as v1", "hold=5", "rate=1", "rotated=0"]),
        ({"method": create_method("hoc")}, ["as v1", "learning rate 0.015"]),
        ({"method": create_method("hoc"), "learning_rate": 0.1}, ["as v1"]),
    ],
)
def test_what_the_user_sets_is_not_varied(
    space: Workspace, given: dict[str, Any], left: list[str]
) -> None:
    assert [setup.name for setup in training._setups(space.registry, options(**given))] == left


def test_a_chosen_rate_does_not_sink_from_version_to_version(space: Workspace) -> None:
    short = Recipe(epochs=1, milestones=(), learning_rate=0.015, batch_size=64)
    space.upgrade(patches("cd"), options(recipe=short, method=create_method("hoc")), trials=0)
    names = [setup.name for setup in training._setups(space.registry, options())]
    assert names == ["as v2", "learning rate 0.05", "from v1"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (  # held-out images of v1 alone; with 18 epochs two trials would be worth their time
            {
                "hold_out": 0.0,
                "recipe": Recipe(epochs=18, milestones=(), learning_rate=0.05, batch_size=64),
            },
            r"held-out images give 1\d queries, and comparing settings takes 25",
        ),
        (
            {"recipe": Recipe(epochs=8, milestones=(5,), learning_rate=0.05, batch_size=64)},
            "with 8 epochs in all",
        ),
    ],
)
def test_without_enough_images_or_epochs_it_says_so_and_trains(
    space: Workspace, changes: dict[str, Any], why: str
) -> None:
    said: list[str] = []
    space.upgrade(patches("cd"), options(**changes), say=said.append)
    assert space.versions() == ["v1", "v2"]
    assert "trials" not in space.registry.card("v2")["about"]
    assert len(said) == 1
    assert re.search(why, said[0])


@pytest.mark.parametrize("wrong", [1, -2, True, "many", 2.5])
def test_odd_numbers_of_trials_are_refused(space: Workspace, wrong: Any) -> None:
    with pytest.raises(InputError, match="2 or more"):
        space.upgrade(patches("cd"), options(), trials=wrong)
    assert space.versions() == ["v1"]


def test_settings_that_hold_come_first() -> None:
    better, drifted = (
        TrialResult("a", {"v1": (0.61, 0.60)}, 0.62),
        TrialResult("b", {"v1": (0.59, 0.60)}, 0.90),
    )
    assert better.score > drifted.score
    assert TrialResult("c", {"v1": (0.62, 0.60)}, 0.65).score > better.score
    assert TrialResult("d", {}, 0.5).holds


def test_trial_constants_are_those_of_the_documentation() -> None:
    assert training.OPTIONS == {"hold": (5.0, 40.0), "rate": (1.0, 0.3), "rotated": (False, True)}
    assert training.RATES == (1.0, 0.3)
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "upgrade.md").read_text()
    assert "`hold` 5 and 40" in text
    assert "`rate` 1 and 0.3" in text
    assert "`rotated` off and on" in text
    assert "1 and 0.3 times" in text
    assert f"Trials need {ENOUGH} held-out queries" in text
