"""The command line as a user types it: in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fixstar.models import Encoder

TRAIN = ["--backbone", "tiny", "--capacity", "20", "--batch-size", "8", "--replay", "3", "--learning-rate", "0.01"]


def fixstar(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fixstar", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=120)


def draw(folder: Path, names: str, per_class: int = 8) -> Path:
    """One folder a class: colour patches with noise."""
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
    assert fixstar("init", tmp_path / "shop").returncode == 0
    return tmp_path / "shop"


def test_from_folders_of_images_to_a_measured_upgrade(shop: Path, tmp_path: Path) -> None:
    """init, train, upgrade, evaluate: the story as far as it goes."""
    first, second, held_out = (draw(tmp_path / n, names) for n, names in (("a", "abc"), ("b", "de"), ("c", "xyz")))
    trained = fixstar("train", first, "-w", shop, *TRAIN, "--epochs", "2")
    assert trained.returncode == 0, trained.stderr
    assert "v1 is in" in trained.stdout
    assert "training v1" in trained.stderr
    upgraded = fixstar("upgrade", second, "-w", shop, "--json")
    assert upgraded.returncode == 0, upgraded.stderr
    assert json.loads(upgraded.stdout)["version"] == "v2"
    evaluated = fixstar("evaluate", held_out, "-w", shop, "--json", "--picture", tmp_path / "matrix.png")
    assert evaluated.returncode == 0, evaluated.stderr
    result = json.loads(evaluated.stdout)
    assert result["versions"] == ["v1", "v2"]
    assert [len(row) for row in result["matrix"]] == [1, 2]
    assert result["AC"] == float(result["matrix"][1][0] > result["matrix"][0][0])
    assert Image.open(tmp_path / "matrix.png").format == "PNG"
    shown = fixstar("evaluate", held_out, "-w", shop)
    assert f"{result['matrix'][1][1]:.1%}" in shown.stdout


def test_after_kill_9_the_same_command_ends_with_the_same_weights(tmp_path: Path) -> None:
    images = draw(tmp_path / "images", "abcd", per_class=30)
    for name in ("whole", "cut"):
        fixstar("init", tmp_path / name)
    words: list[str | Path] = ["train", images, *TRAIN, "--epochs", "12"]
    assert fixstar(*words, "-w", tmp_path / "whole").returncode == 0
    checkpoint = tmp_path / "cut" / "checkpoint-v1.safetensors"
    command = [sys.executable, "-m", "fixstar", *map(str, words), "-w", str(tmp_path / "cut")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert checkpoint.exists()
    assert not (tmp_path / "cut" / "versions").exists()
    resumed = fixstar(*words, "-w", tmp_path / "cut")
    assert resumed.returncode == 0, resumed.stderr
    a, b = (Encoder.load(tmp_path / name / "versions" / "v1").state_dict() for name in ("whole", "cut"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_ctrl_c_says_how_to_go_on(shop: Path, tmp_path: Path) -> None:
    images = draw(tmp_path / "images", "abcd", per_class=30)
    command = [sys.executable, "-m", "fixstar", "train", str(images), "-w", str(shop), *TRAIN, "--epochs", "400"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    while not list(shop.glob("checkpoint*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "goes on with the same command" in errors
    assert "Traceback" not in errors
    assert "120 images of 4 classes: a, b, c, d" in errors


def test_a_retried_upgrade_makes_no_second_version_and_a_lost_one_is_noticed(shop: Path, tmp_path: Path) -> None:
    first, second = draw(tmp_path / "a", "ab"), draw(tmp_path / "b", "cd")
    assert fixstar("train", first, "-w", shop, *TRAIN, "--epochs", "1").returncode == 0
    assert fixstar("upgrade", second, "-w", shop).returncode == 0
    again = fixstar("upgrade", second, "-w", shop)
    assert again.returncode == 1
    assert "the upgrade is done" in again.stderr
    card = shop / "versions" / "v2" / "card.json"
    whole = card.read_text()
    for key in ("settings", "method"):
        content = json.loads(whole)
        del content["about"][key]
        card.write_text(json.dumps(content))
        assert "does not say how it was trained" in fixstar("upgrade", first, "-w", shop).stderr
    card.write_text(whole)
    assert f"fixstar upgrade IMAGES -w {shop}" in fixstar("train", first, "-w", shop).stderr
    shutil.rmtree(shop / "versions" / "v1")
    lost = fixstar("upgrade", second, "-w", shop)
    assert "lacks v1" in lost.stderr
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
def test_mistakes_get_one_line_that_says_what_to_do(shop: Path, tmp_path: Path, words: list[str], message: str) -> None:
    images = draw(tmp_path / "images", "abc", per_class=3)
    filled = [word.format(images=images, shop=shop, tmp=tmp_path) for word in words]
    result = fixstar(*filled)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_broken_image_is_named_and_can_be_left_out(shop: Path, tmp_path: Path) -> None:
    images = draw(tmp_path / "images", "abc", per_class=4)
    (images / "b" / "2.png").write_bytes((images / "b" / "2.png").read_bytes()[:200])
    words: list[str | Path] = ["train", images, "-w", shop, *TRAIN, "--epochs", "1"]
    refused = fixstar(*words)
    assert refused.returncode == 1
    assert "2.png" in refused.stderr
    assert "--bad-images skip" in refused.stderr
    skipped = fixstar(*words, "--bad-images", "skip")
    assert skipped.returncode == 0, skipped.stderr
    assert "left out" in skipped.stderr
    assert "--bad-images skip" in fixstar("upgrade", images, "-w", shop).stderr
    assert "--bad-images skip" in fixstar("evaluate", images, "-w", shop).stderr
    measured = fixstar("evaluate", images, "-w", shop, "--bad-images", "skip", "--json")
    assert len(json.loads(measured.stdout)["matrix"]) == 1
    for wrong, message in (("matrix.xyz", ".png"), ("nodir/matrix.png", "no directory"), ("m.png", "two versions")):
        refused = fixstar("evaluate", images, "-w", shop, "--bad-images", "skip", "--picture", tmp_path / wrong)
        assert refused.returncode == 1
        assert message in refused.stderr
    alone = fixstar("upgrade", draw(tmp_path / "more", "xy"), "-w", shop, "--method", "cores")
    assert "3 classes of v1 are not among these" in alone.stderr


def test_a_first_version_can_stay_compatible_with_vectors_of_another_system(shop: Path, tmp_path: Path) -> None:
    images, file = draw(tmp_path / "a", "abc"), tmp_path / "old.npz"
    vectors = np.eye(3, 8, dtype=np.float32)[[0, 0, 1, 2]]
    np.savez(file, vectors=vectors, classes=np.array(["a", "a", "b", "gone"]))
    words: list[str | Path] = ["train", images, "-w", shop, *TRAIN, "--epochs", "1"]
    plain = fixstar(*words, "--old-vectors", file)
    assert plain.returncode == 1
    assert "take --method bct-vectors" in plain.stderr
    missing = fixstar(*words, "--method", "bct-vectors")
    assert missing.returncode == 1
    assert "--old-vectors FILE.npz" in missing.stderr
    trained = fixstar(*words, "--method", "bct-vectors", "--old-vectors", file, "--json")
    assert trained.returncode == 0, trained.stderr
    card = json.loads((shop / "versions" / "v1" / "card.json").read_text())
    assert card["about"]["loss"].keys() == {"ce", "influence"}
    assert (card["about"]["old_vectors_width"], card["about"]["hold_out"]) == (8, 0.1)
    np.savez(file, vectors=vectors, classes=np.array(["a"]))
    assert "one name for each of 4 vectors" in fixstar(*words, "--old-vectors", file).stderr


def test_lists_come_as_json_too() -> None:
    methods = json.loads(fixstar("methods", "--json").stdout)
    assert {"er", "hoc", "cores", "itm"} <= {method["name"] for method in methods}
    assert "resnet32" in json.loads(fixstar("backbones", "--json").stdout)
    assert "hoc" in fixstar("methods").stdout


VERBS = ["demo", "init", "train", "upgrade", "evaluate", "methods", "backbones", "theorem", "picture2d"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    shown = fixstar(verb, "--help")
    assert shown.returncode == 0
    assert f"fixstar {verb}" in shown.stdout.split("Example")[-1]


def test_the_version_is_told() -> None:
    assert fixstar("--version").stdout.strip() == "fixstar 0.1.0"
