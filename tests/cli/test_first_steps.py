"""What goes wrong in the first hour: too little room, one class, growth at the wrong time, half a condition."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from shops import pictures, shop
from typed import typed
from wording import check_wording

from fixstar.durable import exclusive
from fixstar.errors import InputError
from fixstar.training.checkpoint import save_checkpoint
from fixstar.workspace import Workspace, catalogue

TINY = shlex.split(
    "--backbone tiny --method hoc --batch-size 8 --epochs 2 --replay 2 --learning-rate 0.01"
)


def draw(folder: Path, names: str, per_class: int = 10) -> Path:
    rng = np.random.default_rng(ord(names[0]))
    for name in names:
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(
                folder / name / f"{i}.png"
            )
    return folder


def test_more_classes_than_the_capacity_of_a_first_version(tmp_path: Path) -> None:
    path = tmp_path / "shop"
    typed("init", path)
    refused = typed(
        "train", draw(tmp_path / "photos", "abcde"), "-w", path, *TINY, "--capacity", "3"
    )
    assert refused.code == 1
    check_wording(refused.err)
    assert "--capacity 5" in refused.err
    assert "fixstar grow" not in refused.err
    grown = typed("grow", "17", "-w", path)
    assert grown.code == 1
    check_wording(grown.err)
    assert f"fixstar train LABELLED_IMAGES --capacity CAPACITY -w {path}" in grown.err


@pytest.fixture
def every_time() -> Iterator[None]:
    """Warnings as in processes of their own: Python tells each but once in one."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield


@pytest.mark.usefixtures("every_time")
def test_one_class_is_warned_of_until_there_are_two(tmp_path: Path) -> None:
    path = tmp_path / "shop"
    typed("init", path)
    trained = typed("train", draw(tmp_path / "one", "a"), "-w", path, *TINY)
    assert trained.code == 0, trained.err
    assert "fixstar: warning: there is only one class, 'a'" in trained.err
    assert "one folder per class" in trained.err
    again = typed("upgrade", draw(tmp_path / "again", "a", 12), "-w", path)
    assert again.code == 0, again.err
    assert "there is only one class, 'a'" in again.err
    more = typed(
        "upgrade", draw(tmp_path / "two", "b"), "-w", path
    )  # alone in its folder, but the second
    assert more.code == 0, more.err
    assert "one class" not in more.err


def test_growth_waits_for_an_interrupted_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, more = tmp_path / "shop", draw(tmp_path / "more", "cd")
    typed("init", path)
    typed("train", draw(tmp_path / "first", "ab"), "-w", path, *TINY, "--capacity", "6")

    def killed(checkpoint: Path, *state: Any) -> None:
        save_checkpoint(checkpoint, *state)
        raise SystemExit(137)

    with monkeypatch.context() as patch:
        patch.setattr("fixstar.training.loop.save_checkpoint", killed)
        assert typed("upgrade", more, "-w", path).code == 137
    refused = typed("grow", "50", "-w", path)
    assert refused.code == 1
    check_wording(refused.err)
    assert f"delete {path / 'checkpoint-v2.safetensors'}" in refused.err
    assert Workspace(path).registry.growth() == ()
    assert typed("upgrade", more, "-w", path).code == 0  # the same command goes on
    assert typed("grow", "50", "-w", path).code == 0
    assert Workspace(path).registry.growth() == (50,)


def test_growth_waits_for_a_training_under_way(tmp_path: Path) -> None:
    space = shop(tmp_path / "shop")
    with exclusive(space.path):
        refused = typed("grow", "5", "-w", space.path)
    assert refused.code == 1
    check_wording(refused.err)
    (space.path / "checkpoint-v3.safetensors").touch()
    with pytest.raises(InputError, match="interrupted"):
        space.grow(5)
    (space.path / "checkpoint-v3.safetensors").unlink()
    assert space.grow(5) == (5,)


def test_a_rate_that_is_none_is_refused_where_nothing_is_left_to_do(tmp_path: Path) -> None:
    shop(tmp_path / "shop")
    for rate in ("-1", "0", "nan"):
        refused = typed("backfill", "--rate", rate, "-w", tmp_path / "shop")
        assert (refused.code, refused.out) == (1, "")
        check_wording(refused.err)


def test_half_a_condition_is_refused_and_its_text_can_be_asked_for(tmp_path: Path) -> None:
    with shop(tmp_path / "shop") as space:
        space.index(catalogue(pictures(tmp_path / "photos")))
    search: list[str | Path] = ["search", "--like", "hat/1.png", "-w", tmp_path / "shop", "--where"]
    for value in ('{"lt":', "[1, 2", '"hat'):
        refused = typed(*search, f"label={value}")
        assert (refused.code, refused.out) == (1, ""), value
        check_wording(refused.err)
    found = typed(*search, 'label="[hat"', "--json")
    assert (found.code, found.json["queries"][0]["hits"]) == (0, [])
    assert len(typed(*search, "label=hat", "--json").json["queries"][0]["hits"]) == 2


def test_init_says_that_a_workspace_is_there_already(tmp_path: Path) -> None:
    assert "is ready" in typed("init", tmp_path / "shop").out
    again = typed("init", tmp_path / "shop")
    assert again.code == 0
    check_wording(again.out)
    assert "is ready" not in again.out
