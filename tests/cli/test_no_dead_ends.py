"""Mistakes end in a sentence, not in a traceback, and a command that is suggested can be run."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError
from shops import fitted, foreign, indexed_shop, pictures, shop
from typed import Typed, typed
from wording import check_wording

from fixstar.models import Encoder
from fixstar.workspace import Workspace, catalogue

FULL = "Error while serializing: I/O error: No space left on device (os error 28)"  # as safetensors says it
TRAIN = "--backbone tiny --method hoc --capacity 20 --epochs 1 --batch-size 8"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("dead-ends") / "photos", 8)


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    typed("init", tmp_path / "fresh")
    return tmp_path / "fresh"


@pytest.fixture
def unrelated(tmp_path: Path, photos: Path) -> Path:
    """v1 made all vectors; v2 is a model from elsewhere."""
    with shop(tmp_path / "shop", versions=1) as space:
        space.index(catalogue(photos))
        space.add_version(Encoder.create("tiny", classes=["bag", "hat", "shoe"], capacity=5))
    return tmp_path / "shop"


def suggested(shown: Typed) -> list[list[str]]:
    """The commands under "Next:", as words, with a reason where one is asked for."""
    lines = (shown.out + shown.err).split("Next: ")[-1].splitlines()
    commands = [
        line.split("   # ")[0].strip() for line in lines if line.strip().startswith("fixstar ")
    ]
    return [shlex.split(command.replace("REASON", "a test"))[1:] for command in commands]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "--size 64",
            "tiny cannot take images of 64 x 64 pixels and 3 channels; it was made for 32 x 32 pixels",
        ),
        (
            "--size 32 --mean 0.5 --std 0.5",
            "tiny cannot take images of 32 x 32 pixels and 1 channel;",
        ),
        (
            "--method polaris --option hold=abc",
            "option hold of method 'polaris' is a number, such as 40.0; got 'abc'",
        ),
        ("--method polaris --option hold=true", "option hold of method 'polaris' is a number"),
        (
            "--method vega --option rotated=abc",
            "option rotated of method 'vega' is true or false, such as true",
        ),
        (
            "--method fd --option on=3",
            "option on of method 'fd' is a word, such as \"replay\"; got 3",
        ),
    ],
)
def test_odd_settings_of_a_training(fresh: Path, photos: Path, words: str, told: str) -> None:
    shown = typed("train", photos, "-w", fresh, *shlex.split(TRAIN), *shlex.split(words))
    assert shown.code == 1
    assert told in shown.err
    assert "Traceback" not in shown.err


@pytest.mark.parametrize("module", ["fixstar.models.encoder", "fixstar.training.checkpoint"])
def test_a_full_disk_while_weights_are_saved(
    fresh: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    def full(*_: object) -> None:
        raise SafetensorError(FULL)

    words: list[str | Path] = ["train", photos, "-w", fresh, *shlex.split(TRAIN)]
    with monkeypatch.context() as patched:
        patched.setattr(f"{module}.save_file", full)
        shown = typed(*words)
    assert shown.code == 1
    assert f"fixstar: No space left on device: {fresh}" in shown.err
    assert "Free some space. The same command resumes" in shown.err
    assert typed(*words).code == 0


def test_an_index_while_the_first_version_is_trained(fresh: Path, photos: Path) -> None:
    assert "fixstar train LABELLED_IMAGES" in typed("index", photos, "-w", fresh).err
    (fresh / "checkpoint-v1.safetensors").touch()
    shown = typed("index", photos, "-w", fresh)
    check_wording(shown.err)
    assert f"Next: fixstar status -w {fresh}" in shown.err
    assert "fixstar train" not in shown.err


def test_a_read_only_disk_is_named_by_its_directory(
    unrelated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = os.open

    def refused(path: Any, *words: Any, **more: Any) -> Any:
        if Path(os.fsdecode(path)).name == ".lock":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return open_file(path, *words, **more)

    monkeypatch.setattr(os, "open", refused)
    shown = typed("deploy", "v2", "--force", "a test", "-w", unrelated)
    assert (
        f"{unrelated / 'translations'} cannot be written (Read-only file system), so nothing was changed"
        in shown.err
    )
    assert ".lock" not in shown.err


def test_an_upgrade_with_another_backbone_is_a_replacement(unrelated: Path, photos: Path) -> None:
    shown = typed("upgrade", photos, "--backbone", "resnet18", "-w", unrelated)
    assert shown.code == 1
    check_wording(shown.err)


def test_an_address_is_not_a_file(unrelated: Path) -> None:
    shown = typed("search", "https://shop.example/hat.jpg", "-w", unrelated)
    check_wording(shown.err)


def test_doctor_sees_that_images_are_gone(tmp_path: Path) -> None:
    path = indexed_shop(tmp_path)
    assert "no problems" in typed("doctor", "-w", path).out
    (tmp_path / "photos" / "hat" / "1.png").unlink()
    assert "note: 1 of 9 image files are gone" in typed("doctor", "-w", path).out
    shutil.rmtree(tmp_path / "photos")
    shown = typed("doctor", "-w", path)
    assert shown.code == 1
    assert "PROBLEM: the image files of all 9 items are gone" in shown.out


def test_a_first_version_that_nothing_depends_on_can_be_replaced(fresh: Path, photos: Path) -> None:
    words: list[str | Path] = ["train", photos, "-w", fresh, *shlex.split(TRAIN)]
    assert typed(*words).code == 0
    again = typed(*words)
    assert (
        f"Next: fixstar upgrade LABELLED_IMAGES -w {fresh}\n      fixstar drop v1 -w {fresh}"
        in again.err
    )
    gone = typed("drop", "v1", "-w", fresh)
    assert gone.code == 0
    assert f"fixstar train LABELLED_IMAGES -w {fresh}" in gone.out
    assert "no version yet" in typed("status", "-w", fresh).out
    assert typed(*words).code == 0
    assert "v2 *" in typed("status", "-w", fresh).out
    assert "embedded with v2" in typed("index", photos, "-w", fresh).out
    assert typed("search", photos / "hat" / "1.png", "-w", fresh).code == 0
    assert "it is deployed" in typed("drop", "v2", "-w", fresh).err  # items depend on it now
    typed("upgrade", photos, "--seed", "1", "--try", "off", "-w", fresh)
    typed("deploy", "v3", "--force", "a test", "-w", fresh)
    assert "v2 is deployed again" in typed("rollback", "-w", fresh).out
    check_wording(typed("rollback", "-w", fresh).err)


def test_a_first_version_is_not_dropped_over_vectors_that_nobody_checked(
    unrelated: Path, tmp_path: Path
) -> None:
    assert typed("drop", "v1", "-w", unrelated).code == 1
    with shop(tmp_path / "other") as space:
        foreign(space)
    assert (
        "v1 cannot be dropped" in typed("drop", "v1", "-w", tmp_path / "other").err
    )  # v2 would be deployed unchecked
    assert typed("drop", "v2", "-w", tmp_path / "other").code == 0
    assert typed("drop", "v1", "-w", tmp_path / "other").code == 0  # no version is left


def test_what_a_rollback_suggests(unrelated: Path) -> None:
    typed("deploy", "v2", "--force", "a test", "-w", unrelated)
    shown = typed("rollback", "-w", unrelated)
    back, *_ = suggested(shown)
    assert back == [
        "deploy",
        "v2",
        "--force",
        "a test",
        "-w",
        str(unrelated),
    ]  # no check would let it through
    assert typed(*back).code == 0
    with Workspace(unrelated) as space:
        assert space.deployed() == "v2"


def refused_drop(path: Path, budget: str, connected: bool) -> list[list[str]]:
    """What is suggested where v2 made some of the vectors and v1 is deployed again."""
    typed("deploy", "v2", "--force", "a test", "-w", path)
    typed("backfill", "--budget", budget, "--anyway", "-w", path)
    if connected:
        with Workspace(path, "cpu") as space:
            fitted(space, "v2", "v1")
    typed("rollback", "-w", path)
    shown = typed("drop", "v2", "-w", path)
    assert shown.code == 1
    return suggested(shown)


@pytest.mark.parametrize("budget", ["all", "50%"])
@pytest.mark.parametrize("connected", [False, True])
def test_what_a_refused_drop_suggests(
    unrelated: Path, photos: Path, budget: str, connected: bool
) -> None:
    """Not one model per query, even where that is possible: vectors of v2 would still be there."""
    commands = refused_drop(unrelated, budget, connected)
    assert [words[0] for words in commands] == ["index", "gallery"]
    again = commands[0]
    done = typed(*[str(photos) if word == "IMAGES" else word for word in again])
    assert done.code == 0
    dropped = typed("drop", "v2", "-w", unrelated)
    assert dropped.code == 0, dropped.err
    assert typed("search", photos / "hat" / "1.png", "-w", unrelated).code == 0


def test_a_drop_after_its_items_were_deleted(unrelated: Path) -> None:
    *_, delete = refused_drop(unrelated, "50%", connected=False)
    assert typed(*delete, "--yes").code == 0
    assert typed("drop", "v2", "-w", unrelated).code == 0


def test_what_is_suggested_about_a_model_that_was_added(unrelated: Path, photos: Path) -> None:
    with Workspace(unrelated) as space:
        assert not space.registry.can_upgrade()
    for data in (("--data", photos), ()):
        shown = typed("check", "v2", *data, "-w", unrelated)
        assert "upgrade" not in {words[0] for words in suggested(shown)}, shown.out
    again = typed("train", photos, "-w", unrelated, *shlex.split(TRAIN))
    assert "Next: fixstar add MODEL" in again.err


def test_a_refused_version_is_followed_by_what_can_be_done(
    unrelated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workspace(unrelated) as space:
        found = space.check("v2", progress=False)
    refused = replace(found, outcome="refuse")
    monkeypatch.setattr(Workspace, "check", lambda *_, **__: refused)
    words = [words[0] for words in suggested(typed("check", "v2", "-w", unrelated))]
    assert "upgrade" not in words
    assert "add" in words
