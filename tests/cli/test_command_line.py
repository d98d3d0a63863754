"""The story on the command line, its mistakes, and processes that are killed or interrupted."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
import typer
from documents import rewrite
from forked import fork_fixstar
from PIL import Image
from typed import typed
from typer.core import TyperGroup
from wording import check_wording

from fixstar.cli.app import GROUPS, app
from fixstar.models import Encoder
from fixstar.wording import percent

TRAIN = shlex.split(
    "--backbone tiny --method hoc --capacity 20 --batch-size 8 --replay 3 --learning-rate 0.01"
)


def draw(folder: Path, names: str, per_class: int = 8) -> Path:
    """One folder per class: colour patches with noise."""
    rng = np.random.default_rng(ord(names[0]))
    for name in names:
        (folder / name).mkdir(parents=True)
        colour = rng.integers(0, 150, 3)
        for i in range(per_class):
            pixels = (colour + rng.integers(0, 100, (36, 36, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    assert typed("init", tmp_path / "shop").code == 0
    return tmp_path / "shop"


def test_from_folders_of_images_to_a_measured_upgrade(shop: Path, tmp_path: Path) -> None:
    """init, train, upgrade, evaluate: the story as far as it goes."""
    first, second, held_out = (
        draw(tmp_path / n, names) for n, names in (("a", "abc"), ("b", "de"), ("c", "xyz"))
    )
    trained = typed("train", first, "-w", shop, *TRAIN, "--epochs", "2")
    assert trained.code == 0, trained.err
    assert "v1 is in" in trained.out
    assert "training v1" in trained.err
    upgraded = typed("upgrade", second, "-w", shop, "--json")
    assert upgraded.code == 0, upgraded.err
    assert upgraded.json["version"] == "v2"
    evaluated = typed(
        "evaluate", held_out, "-w", shop, "--json", "--picture", tmp_path / "matrix.png"
    )
    assert evaluated.code == 0, evaluated.err
    result = evaluated.json
    assert result["versions"] == ["v1", "v2"]
    assert [len(row) for row in result["matrix"]] == [1, 2]
    assert result["AC"] == float(result["matrix"][1][0] > result["matrix"][0][0])
    assert Image.open(tmp_path / "matrix.png").format == "PNG"
    shown = typed("evaluate", held_out, "-w", shop)
    assert percent(result["matrix"][1][1]) in shown.out


def test_after_kill_9_the_same_command_ends_with_the_same_weights(tmp_path: Path) -> None:
    images = draw(tmp_path / "images", "abcd")
    for name in ("whole", "cut"):
        typed("init", tmp_path / name)
    words: list[str | Path] = ["train", images, *TRAIN, "--epochs", "3"]
    assert typed(*words, "-w", tmp_path / "whole").code == 0
    place = [tmp_path / "out", tmp_path / "err"]
    process = fork_fixstar(*place, *words, "-w", tmp_path / "cut", at_checkpoint=signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "cut" / "checkpoint-v1.safetensors").exists()
    assert not (tmp_path / "cut" / "versions").exists()
    resumed = typed(*words, "-w", tmp_path / "cut")
    assert resumed.code == 0, resumed.err
    a, b = (
        Encoder.load(tmp_path / name / "versions" / "v1").state_dict() for name in ("whole", "cut")
    )
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_ctrl_c_says_how_to_resume(shop: Path, tmp_path: Path) -> None:
    images = draw(tmp_path / "images", "abcd")
    words: list[str | Path] = ["train", images, "-w", shop, *TRAIN, "--epochs", "3"]
    process = fork_fixstar(tmp_path / "out", tmp_path / "err", *words, at_checkpoint=signal.SIGINT)
    process.join()
    errors = (tmp_path / "err").read_text()
    assert process.exitcode == 130
    assert "train was interrupted. The same command resumes" in errors
    assert "Traceback" not in errors
    assert "32 images of 4 classes: a, b, c, d" in errors


def test_a_retried_upgrade_makes_no_second_version_and_a_lost_one_is_noticed(
    shop: Path, tmp_path: Path
) -> None:
    first, second = draw(tmp_path / "a", "ab"), draw(tmp_path / "b", "cd")
    assert typed("train", first, "-w", shop, *TRAIN, "--epochs", "1").code == 0
    assert typed("upgrade", second, "-w", shop).code == 0
    again = typed("upgrade", second, "-w", shop)
    assert again.code == 1
    check_wording(again.err)
    card = shop / "versions" / "v2" / "card.json"
    whole = card.read_text()
    for key in ("settings", "method"):
        card.write_text(whole)
        rewrite(card, lambda content, gone: content["about"].pop(gone), key)
        check_wording(typed("upgrade", first, "-w", shop).err)
    card.write_text(whole)
    assert "fixstar upgrade LABELLED_IMAGES" in typed("train", first, "-w", shop).err
    shutil.rmtree(shop / "versions" / "v1")
    lost = typed("upgrade", second, "-w", shop)
    assert "lacks v1" in lost.err
    assert [path.name for path in (shop / "versions").iterdir()] == ["v2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "{images}", "-w", "{tmp}/nowhere"], "fixstar init"),
        (["train", "{tmp}/absent", "-w", "{shop}"], "absent"),
        (["train", "{images}", "-w", "{shop}", "--backbone", "resnet19"], "did you mean"),
        (["train", "{images}", "-w", "{shop}", "--method", "hco"], "did you mean 'hoc'"),
        (["train", "{images}", "-w", "{shop}", "--backbone", "tiny", "--capacity", "2"], "K=2"),
        (["train", "{images}", "-w", "{shop}", "--epochs", "0"], "epochs=0"),
        (["train", "{images}", "-w", "{shop}", "--bad-images", "ignore"], "refuse, skip"),
        (["upgrade", "{images}", "-w", "{shop}"], "fixstar train"),
        (["evaluate", "{images}", "-w", "{shop}"], "no version yet"),
        (["init", "{images}"], "not empty"),
        (["train", "{images}", "-w", "{shop}", "--device", "gpu"], "Try auto"),
        (["train", "{images}", "-w", "/proc/nowhere"], "fixstar init"),
        (["train", "{images}", "-w", "{shop}", "--seed", "-1"], "seed=-1 must be"),
        (["init", "/proc/nowhere"], "No such file or directory"),
    ],
)
def test_mistakes_get_one_line_that_says_what_to_do(
    shop: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    images = draw(tmp_path / "images", "abc", per_class=3)
    filled = [word.format(images=images, shop=shop, tmp=tmp_path) for word in words]
    result = typed(*filled)
    assert result.code == 1
    assert message in result.err
    assert "Traceback" not in result.err


def test_a_broken_image_is_named_and_can_be_left_out(shop: Path, tmp_path: Path) -> None:
    images = draw(tmp_path / "images", "abc", per_class=4)
    (images / "b" / "2.png").write_bytes((images / "b" / "2.png").read_bytes()[:200])
    words: list[str | Path] = ["train", images, "-w", shop, *TRAIN, "--epochs", "1"]
    refused = typed(*words)
    assert refused.code == 1
    assert "2.png" in refused.err
    assert "--bad-images skip" in refused.err
    skipped = typed(*words, "--bad-images", "skip")
    assert skipped.code == 0, skipped.err
    assert "left out" in skipped.err
    assert "--bad-images skip" in typed("upgrade", images, "-w", shop).err
    assert "--bad-images skip" in typed("evaluate", images, "-w", shop).err
    measured = typed("evaluate", images, "-w", shop, "--bad-images", "skip", "--json")
    assert len(measured.json["matrix"]) == 1
    for wrong, message in (
        ("matrix.xyz", ".png"),
        ("nodir/matrix.png", "no directory"),
        ("m.png", "two versions"),
    ):
        refused = typed(
            "evaluate", images, "-w", shop, "--bad-images", "skip", "--picture", tmp_path / wrong
        )
        assert refused.code == 1
        assert message in refused.err
    alone = typed("upgrade", draw(tmp_path / "more", "xy"), "-w", shop, "--method", "cores")
    assert "3 classes of v1 are not among these" in alone.err


def test_a_first_version_can_stay_compatible_with_vectors_of_another_system(
    shop: Path, tmp_path: Path
) -> None:
    images, file = draw(tmp_path / "a", "abc"), tmp_path / "old.npz"
    vectors = np.eye(3, 8, dtype=np.float32)[[0, 0, 1, 2]]
    np.savez(file, vectors=vectors, classes=np.array(["a", "a", "b", "gone"]))
    words: list[str | Path] = ["train", images, "-w", shop, *TRAIN, "--epochs", "1"]
    plain = typed(*words, "--old-vectors", file)
    assert plain.code == 1
    assert "--method bct-vectors --old-vectors" in plain.err
    missing = typed(*words, "--method", "bct-vectors")
    assert missing.code == 1
    assert "--old-vectors FILE.npz" in missing.err
    trained = typed(*words, "--method", "bct-vectors", "--old-vectors", file, "--json")
    assert trained.code == 0, trained.err
    card = json.loads((shop / "versions" / "v1" / "card.json").read_text())
    assert card["about"]["loss"].keys() == {"ce", "influence"}
    assert (card["about"]["old_vectors_width"], card["about"]["hold_out"]) == (8, 0.1)
    np.savez(file, vectors=vectors, classes=np.array(["a"]))
    check_wording(typed(*words, "--old-vectors", file).err)


def test_lists_come_as_json_too() -> None:
    methods = typed("methods", "--json").json
    assert {"er", "hoc", "cores", "itm"} <= {method["name"] for method in methods}
    assert "resnet32" in typed("backbones", "--json").json
    assert "hoc" in typed("methods").out


def every_verb() -> list[list[str]]:
    """All verbs, those of groups too."""
    program = typer.main.get_command(app)
    assert isinstance(program, TyperGroup)
    found: list[list[str]] = []
    for name, command in program.commands.items():
        inside = command.commands if isinstance(command, TyperGroup) else {}
        found += [[name], *([name, verb] for verb in inside)]
    return found


def test_verbs_are_listed_in_groups_each_once() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(words[0] for words in every_verb() if len(words) == 1)
    shown = typed("--help").out
    assert all(f"\n{title}:\n" in shown for title in GROUPS)
    assert all(f"\n  {name} " in shown for name in grouped)
    assert "..." not in shown.partition("First steps")[2]  # no summary is cut


@pytest.mark.parametrize("words", every_verb(), ids=" ".join)
def test_every_verb_has_help_with_examples_and_fits_into_80_columns(words: list[str]) -> None:
    with patch("typed.COLUMNS", "80"):
        shown = typed(*words, "--help")
    assert shown.code == 0
    text, _, examples = shown.out.partition("Example")
    assert "<bool>" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    lines = examples.splitlines()[1:]
    assert words == ["keys"] or lines
    assert all(line.startswith(f"    fixstar {' '.join(words)}") for line in lines)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_verbs_are_completed(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_FIXSTAR_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "fixstar ba")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("COMP_WORDS", "fixstar ba")
    monkeypatch.setenv("COMP_CWORD", "1")
    shown = typed()
    assert shown.code == 0, shown.err
    assert "backfill" in shown.out
    assert "backbones" in shown.out
    assert "bridge" not in shown.out


def test_the_version_is_printed() -> None:
    assert typed("--version").out.strip() == "fixstar 0.2.0"
