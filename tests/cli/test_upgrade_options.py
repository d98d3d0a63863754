"""fixstar upgrade: where it starts, which images it keeps, holds out and chooses the epoch by."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typed import typed
from typer.testing import CliRunner
from wording import check_wording, refuses

from fixstar.cli import app
from fixstar.data import ImageSet, ReplayMemory, open_images
from fixstar.data.image_set import from_arrays
from fixstar.errors import FixstarError, InputError, ModelError, UnknownNameError
from fixstar.models import Encoder
from fixstar.workspace import UpgradeOptions, Workspace, training
from fixstar.workspace.held_out import held_out_images, keep_held_out

TINY = shlex.split(
    "--backbone tiny --method hoc --capacity 20 --batch-size 8 --replay 2 --epochs 1"
)


def fixstar(*words: str | Path) -> str:
    result = CliRunner().invoke(
        app, [str(word) for word in words], env={"COLUMNS": "200"}, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def patches(names: str, per_class: int = 12) -> ImageSet:
    rng = np.random.default_rng(ord(names[0]))
    colours = np.repeat(rng.integers(0, 150, (len(names), 1, 1, 3)), per_class, axis=0)
    pixels = (colours + rng.integers(0, 100, (len(colours), 20, 20, 3))).astype(np.uint8)
    return from_arrays(pixels, np.repeat(np.arange(len(names)), per_class), list(names))


def draw(folder: Path, names: str, per_class: int = 12) -> Path:
    from PIL import Image

    images = patches(names, per_class)
    for row, (pixels, label) in enumerate(zip(images.images, images.labels, strict=True)):
        path = folder / images.classes[label] / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with v1 in "space", more images in "second"."""
    folder = tmp_path_factory.mktemp("shop")
    draw(folder / "second", "cd")
    fixstar("init", folder / "space")
    shown = fixstar("train", draw(folder / "first", "ab"), "-w", folder / "space", *TINY)
    assert f"Next: fixstar index CATALOGUE -w {folder / 'space'}" in shown
    assert "fixstar check" in shown
    return folder


@pytest.fixture
def space(shop: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shop / "space", tmp_path / "space"))


def about(space: Path, name: str) -> Any:
    return json.loads((space / "versions" / name / "card.json").read_text())["about"]


def test_from_scratch_is_another_run_than_going_on_and_both_are_known_again(
    space: Path, shop: Path
) -> None:
    assert "Next: fixstar check v2" in fixstar(
        "upgrade", shop / "second", "-w", space, "--from-scratch"
    )
    assert about(space, "v2")["method"]["initialisation"] == "fresh"
    with refuses(FixstarError, "check"):
        fixstar("upgrade", shop / "second", "-w", space, "--from-scratch")
    fixstar("upgrade", shop / "second", "-w", space)
    assert about(space, "v3")["method"]["initialisation"] == "previous"
    with refuses(FixstarError, "check"):
        fixstar("upgrade", shop / "second", "-w", space)
    Workspace(space).grow(5)
    fixstar("upgrade", shop / "second", "-w", space)  # it has room now that v3 has not
    assert about(space, "v4")["settings"]["grown"] == [5]


def test_another_backbone_takes_over_and_stays(space: Path, shop: Path) -> None:
    fixstar("upgrade", shop / "second", "-w", space, "--replace", "resnet20")
    v1, v2 = (Workspace(space).encoder(name) for name in ("v1", "v2"))
    assert (v1.backbone.name, v2.backbone.name) == ("tiny", "resnet20")
    assert {name: v2.slots.by_class[name] for name in v1.slots.classes} == dict(v1.slots.by_class)
    assert Workspace(space).settings().backbone == "resnet20"
    with refuses(FixstarError, "check"):
        fixstar("upgrade", shop / "second", "-w", space, "--replace", "resnet20")
    with refuses(UnknownNameError):
        fixstar("upgrade", shop / "second", "-w", space, "--replace", "resnet21")
    with refuses(InputError):
        fixstar("upgrade", shop / "second", "-w", space, "--replace", "tiny", "--from-scratch")


def test_options_learning_rate_and_seed_are_chosen_and_stay(space: Path, shop: Path) -> None:
    wanted = ["--option", "lam=0.4", "--learning-rate", "0.02", "--seed", "7"]
    fixstar("upgrade", shop / "second", "-w", space, *wanted)
    assert about(space, "v2")["method"]["options"]["lam"] == 0.4
    assert about(space, "v2")["settings"]["recipe"]["learning_rate"] == 0.02
    assert about(space, "v2")["settings"]["seed"] == 7
    assert Workspace(space).method().options["lam"] == 0.4
    with refuses(InputError):
        fixstar("upgrade", shop / "second", "-w", space, "--option", "hold=3")
    with pytest.raises(FixstarError, match="NAME=VALUE"):
        fixstar("upgrade", shop / "second", "-w", space, "--option", "lam")


def test_the_optimiser_is_chosen_and_stays(space: Path, shop: Path) -> None:
    wanted = "--optimizer adamw --schedule cosine --warmup 0.5 --clip 2 --backbone-rate 0.1 --no-decay-norms --epochs 2"
    fixstar("upgrade", shop / "second", "-w", space, *wanted.split())
    recipe = Workspace(space).settings().recipe
    assert (recipe.optimizer, recipe.learning_rate, recipe.weight_decay) == ("adamw", 1e-3, 0.01)
    assert (recipe.schedule, recipe.warmup, recipe.clip, recipe.backbone_rate) == (
        "cosine",
        0.5,
        2,
        0.1,
    )
    assert not recipe.decay_norms
    assert recipe.epochs == 2
    fixstar("upgrade", shop / "first", "-w", space, "--weight-decay", "0.1")
    assert Workspace(space).settings().recipe == replace(recipe, weight_decay=0.1)
    with refuses(InputError):
        fixstar("upgrade", shop / "second", "-w", space, "--optimizer", "lion")
    with refuses(InputError):
        fixstar("upgrade", shop / "second", "-w", space, "--warmup", "9")


@pytest.mark.long
def test_a_frozen_model_of_ones_own_is_trained_upgraded_judged_and_fine_tuned(
    tmp_path: Path, shop: Path
) -> None:
    space = tmp_path / "space"
    fixstar("init", space)
    words = shlex.split(
        "--backbone own_models:small --frozen --size 16 --capacity 20 --batch-size 8 --epochs 1 --replay 2"
    )
    with pytest.raises(FixstarError, match="is code of own_models"):
        fixstar("train", shop / "first", "-w", space, *words)
    words += ["--trust", "own_models"]
    fixstar("train", shop / "first", "-w", space, *words)
    settings = Workspace(space).settings()
    assert settings.frozen
    assert settings.recipe.learning_rate == 0.01
    assert not Workspace(space).method().options["rotated"]
    assert list((space / "features").rglob("*.safetensors"))
    fixstar("index", shop / "first", "-w", space)
    fixstar("upgrade", shop / "second", "-w", space, "--try", "off")
    assert Workspace(space).settings().frozen
    v1, v2 = (Workspace(space).encoder(name) for name in ("v1", "v2"))
    assert all(
        torch.equal(a, b)
        for a, b in zip(v1.backbone.parameters(), v2.backbone.parameters(), strict=True)
    )
    shown = CliRunner().invoke(
        app, ["check", "v2", "-w", str(space), "--data", str(shop / "second"), "--json"]
    )
    assert json.loads(shown.stdout)["version"] == "v2"
    fixstar("upgrade", shop / "first", "-w", space, "--no-frozen", "--try", "off")
    v3 = Workspace(space).encoder("v3")
    assert not all(
        torch.equal(a, b)
        for a, b in zip(v3.backbone.parameters(), v2.backbone.parameters(), strict=True)
    )
    assert not Workspace(space).settings().frozen
    wider = shlex.split("--replace own_models:small --frozen --size 20 --try off --keep-images no")
    fixstar("upgrade", shop / "second", "-w", space, *wider)
    assert Workspace(space).encoder("v4").preprocessing.size == (20, 20)
    assert not (space / "features").exists()  # nothing of the images may be kept
    with refuses(InputError):
        fixstar("upgrade", shop / "second", "-w", space, "--size", "16")
    with pytest.raises(FixstarError, match="go with --size"):
        fixstar("upgrade", shop / "second", "-w", space, "--mean", "0.5,0.5,0.5")


def test_a_model_of_transformers_is_trained_frozen(tmp_path: Path, shop: Path) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="the backbones extra is not installed"
    )
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
    theirs = transformers.Dinov2Model(transformers.Dinov2Config(**sizes, patch_size=14))
    theirs.save_pretrained(tmp_path / "dino")
    space, words = (
        tmp_path / "space",
        shlex.split("--capacity 20 --batch-size 8 --epochs 2 --replay 2 --hold-out 0"),
    )
    fixstar("init", space)
    fixstar(
        "train",
        shop / "first",
        "-w",
        space,
        "--backbone",
        f"hf:{tmp_path / 'dino'}",
        "--frozen",
        *words,
    )
    made = {path.name for path in (space / "features").rglob("*.safetensors")}
    assert len(made) == 1  # the same images in two views, plain and mirrored
    shutil.rmtree(tmp_path / "dino")  # a version needs only its own files
    fixstar("upgrade", shop / "second", "-w", space, "--try", "off", "--hold-out", "0")
    fixstar("index", shop / "first", "-w", space)
    assert "a/" in fixstar("search", shop / "first" / "a" / "0.png", "-w", space)
    for version in ("v1", "v2"):
        state = Encoder.load(space / "versions" / version).backbone.state_dict()
        assert all(
            torch.equal(state[f"model.{name}"], value)
            for name, value in theirs.state_dict().items()
        )


def test_a_refused_version_is_bypassed_or_dropped(space: Path, shop: Path) -> None:
    fixstar("upgrade", shop / "second", "-w", space)
    fixstar("upgrade", shop / "second", "-w", space, "--from", "v1", "--option", "lam=0.4")
    assert (about(space, "v2")["parent"], about(space, "v3")["parent"]) == ("v1", "v1")
    with refuses(FixstarError, "check"):
        fixstar("upgrade", shop / "second", "-w", space, "--from", "v1", "--option", "lam=0.4")
    with pytest.raises(FixstarError, match="unknown version 'v9'"):
        fixstar("upgrade", shop / "second", "-w", space, "--from", "v9")
    with refuses(InputError, "upgrade"):
        fixstar("retire", "v3", "-w", space)
    check_wording(fixstar("drop", "v3", "-w", space))
    with refuses(InputError, "deploy"):
        fixstar("drop", "v1", "-w", space)
    assert Workspace(space).versions() == ["v1", "v2"]
    fixstar("upgrade", shop / "second", "-w", space, "--option", "lam=0.3")
    assert about(space, "v4")["parent"] == "v2"  # a name is not given again


def test_precision_is_chosen_at_training_and_stays_until_another_is(tmp_path: Path) -> None:
    space = tmp_path / "space"
    first = draw(tmp_path / "first", "ab", per_class=4)  # few: some CPUs are slow at bfloat16
    second = draw(tmp_path / "second", "cd", per_class=4)
    fixstar("init", space)
    fixstar("train", first, "-w", space, *TINY, "--precision", "bfloat16")
    fixstar("upgrade", second, "-w", space)
    assert Workspace(space).settings().recipe.precision == "bfloat16"
    fixstar("upgrade", second, "-w", space, "--precision", "float32")
    names = ("v1", "v2", "v3")
    assert [about(space, name)["settings"]["recipe"]["precision"] for name in names] == [
        "bfloat16"
    ] * 2 + ["float32"]
    with refuses(InputError):
        fixstar("upgrade", second, "-w", space, "--precision", "half")


def test_another_saved_model_takes_over(space: Path, shop: Path, tmp_path: Path) -> None:
    other = Encoder.create("resnet20", classes=["x"], capacity=20, side="right")
    other.save(tmp_path / "other")
    fixstar("upgrade", shop / "second", "-w", space, "--replace", tmp_path / "other")
    v1, v2 = (Workspace(space).encoder(name) for name in ("v1", "v2"))
    assert v2.backbone.name == "resnet20" == Workspace(space).settings().backbone
    assert v2.slots.by_class["b"] == v1.slots.by_class["b"]
    with refuses(FixstarError, "check"):
        fixstar("upgrade", shop / "second", "-w", space, "--replace", tmp_path / "other")


def test_where_images_may_not_be_kept_none_are(space: Path, shop: Path) -> None:
    fixstar("upgrade", shop / "second", "-w", space, "--keep-images", "no")
    assert len(ReplayMemory.load(space / "memory" / "v2.safetensors")) == 0
    assert not (space / "held-out" / "v2.safetensors").exists()
    assert about(space, "v2")["data"]["images"] == 24  # all were trained on
    assert about(space, "v2")["loss"].keys() >= {"ce"}
    fixstar("upgrade", shop / "first", "-w", space)
    assert len(ReplayMemory.load(space / "memory" / "v3.safetensors")) == 0
    assert not (space / "held-out" / "v3.safetensors").exists()
    with pytest.raises(FixstarError, match="yes or no"):
        fixstar("upgrade", shop / "second", "-w", space, "--keep-images", "some")
    with refuses(InputError):
        fixstar("upgrade", shop / "second", "-w", space, "--keep-images", "no", "--hold-out", "0.2")


def test_select_keeps_the_best_compatible_epoch_by_images_held_out(space: Path, shop: Path) -> None:
    words = ["--select", "--hold-out", "0.5", "--epochs", "3"]
    fixstar("upgrade", shop / "second", "-w", space, *words, "--json")
    known = about(space, "v2")
    assert known["validation"] is not None
    assert known["selected_epoch"] in (None, 1, 2, 3)
    log = (
        Workspace(space)
        .upgrade(
            open_images(shop / "second"),
            UpgradeOptions(from_scratch=True, hold_out=0.5, select=True, progress=False),
        )
        .log
    )
    assert all(entry.scores is not None for entry in log)
    with pytest.raises(FixstarError, match=r"pass hold_out, such as 0\.1"):
        fixstar("upgrade", shop / "second", "-w", space, "--select", "--hold-out", "0")
    check = json.loads(CliRunner().invoke(app, ["check", "v2", "-w", str(space), "--json"]).stdout)
    assert any("also chose its epoch" in note for note in check["notes"])


def contents(images: ImageSet | None) -> set[bytes]:
    assert images is not None
    return {np.ascontiguousarray(pixels).tobytes() for pixels in images.images}


def test_what_is_held_out_is_never_trained_on_and_asked_about_once(space: Path) -> None:
    given = Workspace(space)
    preprocessing = given.encoder("v1").preprocessing
    loaded = patches("cd", 40).load(preprocessing).images
    first = given.upgrade(loaded, UpgradeOptions(hold_out=0.25, progress=False))
    second = given.upgrade(loaded, UpgradeOptions(hold_out=0.25, from_scratch=True, progress=False))
    held = held_out_images(space, ["v2"], preprocessing)
    assert contents(held) | contents(first.images) == contents(loaded)
    assert not contents(held) & (contents(first.images) | contents(second.images))
    memory = ReplayMemory.load(space / "memory" / "v3.safetensors").images
    assert not contents(held) & contents(memory)
    both = held_out_images(space, ["v2", "v3"], preprocessing)
    assert held is not None
    assert both is not None
    assert len(both) == len(held) == len(contents(held))
    with pytest.raises(InputError, match=r"between 0 and 0\.5"):
        given.upgrade(loaded, UpgradeOptions(hold_out=0.9, progress=False))


def test_an_interrupted_upgrade_resumes_to_the_same_weights(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, options = (
        patches("cd"),
        UpgradeOptions(hold_out=0.3, select=True, from_scratch=True, progress=False),
    )
    whole = Path(shutil.copytree(space, tmp_path / "whole"))
    Workspace(whole).upgrade(images, options)
    keep = keep_held_out

    def full_disk(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(training, "keep_held_out", full_disk)
    with pytest.raises(OSError, match="no space"):
        Workspace(space).upgrade(images, options)
    assert Workspace(space).versions() == ["v1"]
    assert (space / "checkpoint-v2.safetensors").exists()
    monkeypatch.setattr(training, "keep_held_out", keep)
    with pytest.raises(
        FixstarError, match="checkpoint"
    ):  # going on with the last weights is another run
        Workspace(space).upgrade(images, UpgradeOptions(hold_out=0.3, select=True, progress=False))
    Workspace(space).upgrade(images, options)
    a, b = (Encoder.load(path / "versions" / "v2").state_dict() for path in (whole, space))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", ["er", "itm"])
def test_a_method_with_another_classifier_is_refused_before_its_images_are(
    space: Path, shop: Path, name: str
) -> None:
    """itm wants all images, which these are not: more images would not help."""
    told = (
        f"method '{name}' trains a linear classifier and v1 has a simplex one. "
        "Methods that train that kind: .*polaris"
    )
    with pytest.raises(ModelError, match=told):
        fixstar("upgrade", shop / "second", "-w", space, "--method", name)


def test_how_many_settings_to_try_is_a_number_auto_or_off(space: Path, tmp_path: Path) -> None:
    images = draw(tmp_path / "many", "uvwxyz")
    with refuses(InputError):
        fixstar("upgrade", images, "-w", space, "--try", "many")
    with pytest.raises(InputError, match="2 or more; got 1"):
        fixstar("upgrade", images, "-w", space, "--try", "1")
    assert Workspace(space).versions() == ["v1"]
    assert (
        json.loads(fixstar("upgrade", images, "-w", space, "--try", "off", "--json"))["trials"]
        == []
    )


@pytest.mark.long
def test_after_trials_the_version_is_checked_at_once(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LEAST_QUERIES", 50)
    images = draw(tmp_path / "many", "efghijklmn", per_class=24)
    shown = fixstar(
        "upgrade", images, "-w", space, "--epochs", "2", "--hold-out", "0.5", "--try", "2"
    )
    assert "as v1" in shown
    assert "learning rate 0.03" in shown
    assert sum(line.rstrip().endswith("chosen") for line in shown.splitlines()) == 1
    assert "held out from training" in shown
    (verdict,) = [
        line
        for line in shown.splitlines()
        if line.startswith(("PASS: v2", "REFUSED: v2", "MISSING EVI"))
    ]
    check = Workspace(space).last_check("v2")
    assert check is not None
    assert verdict.startswith(
        {"pass": "PASS", "refuse": "REFUSED", "missing evidence": "MISSING"}[check.outcome]
    )
    assert any("also chose its epoch or its settings" in note for note in check.notes)
    proposed = {step.action for step in check.next_steps}
    assert ("drop" in proposed) == (check.outcome != "pass")


def test_the_table_of_trials_fits_into_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fixstar.cli.versions import _print_trials
    from fixstar.training import Version

    monkeypatch.setenv("COLUMNS", "80")
    encoder = Encoder.create("tiny", classes=["a"], capacity=8)
    names = ("as v2", "hold=40", "learning rate 0.015", "from v1")
    galleries = {"v1": (0.612, 0.6), "v2": (0.7, 0.71)}
    encoder.about["trials"] = [
        {
            "setting": name,
            "galleries": galleries,
            "self_test": 0.75,
            "epochs": 7,
            "chosen": name == "hold=40",
        }
        for name in names
    ]
    _print_trials(Version(3, encoder))
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 80
    (chosen,) = [line for line in shown if line.rstrip().endswith("chosen")]
    assert chosen.split() == [
        "hold=40",
        "60.0",
        "%",
        "61.2",
        "%",
        "71.0",
        "%",
        "70.0",
        "%",
        "75.0",
        "%",
        "chosen",
    ]
    assert sum(line.startswith(names) for line in shown) == 4


def test_how_long_an_upgrade_trains_is_said(space: Path, shop: Path) -> None:
    words = shlex.split("--method vega --option rotated=false --epochs 1 --try off")
    shown = typed("upgrade", shop / "second", "-w", space, *words)
    assert shown.code == 0, shown.err
    assert (
        "2 epochs: vega trains an upgrade 2 times as long as the recipe's 1 (--option longer=1 for these)"
        in shown.err
    )
    assert "epoch 2/2" in shown.err
    assert "loss" not in shown.out
    assert "v2 is in " in shown.out
    as_given = typed(
        "upgrade", shop / "second", "-w", space, *words, "--option", "longer=1", "--seed", "3"
    )
    assert as_given.code == 0, as_given.err
    assert "times as long" not in as_given.err
