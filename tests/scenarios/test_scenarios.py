"""Sequences of versions: slots, memory, initial weights, resuming after a real kill."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fixstar.data import Augmentation, ImageSet, TaskStream, class_stream, from_arrays
from fixstar.errors import CheckpointError, InputError
from fixstar.methods import create_method
from fixstar.models import Encoder
from fixstar.scenarios import Settings, lifelong, retraining, run_scenario
from fixstar.training import Recipe

SETTINGS = Settings(
    backbone="tiny",
    backbone_options={"in_channels": 1, "width": 4},
    capacity=12,
    recipe=Recipe(epochs=2, learning_rate=0.05, milestones=(1,), batch_size=8),
    augmentation=Augmentation(crop_padding=1),
    replay_per_class=2,
)


def stripes(classes: int = 6, per_class: int = 8) -> ImageSet:
    """Class k: stripes of period k + 2, with noise."""
    rng = np.random.default_rng(0)
    columns = np.arange(32)
    patterns = np.stack([((columns // (k + 2)) % 2) * 120 for k in range(classes)])
    labels = np.repeat(np.arange(classes), per_class)
    noise = rng.integers(0, 100, (len(labels), 32, 32))
    return from_arrays((patterns[labels][:, None, :] + noise).astype(np.uint8), labels)


def stream() -> TaskStream:
    return class_stream(stripes(), 2, 2)


def same_weights(a: Encoder, b: Encoder) -> bool:
    x, y = a.state_dict(), b.state_dict()
    return x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)


def test_lifelong_versions_keep_slots_and_grow() -> None:
    versions = list(lifelong(stream(), create_method("hoc"), SETTINGS, progress=False))
    assert [v.name for v in versions] == ["v1", "v2", "v3"]
    assert [len(v.encoder.slots) for v in versions] == [2, 4, 6]
    for older, newer in itertools.pairwise(versions):
        assert older.encoder.slots.by_class.items() <= newer.encoder.slots.by_class.items()
    assert "hoc" not in versions[0].log[0].terms
    assert "hoc" in versions[1].log[0].terms
    assert versions[1].encoder.about["parent"] == "v1"


def test_a_trainable_head_grows_with_the_classes() -> None:
    versions = list(run_scenario(stream(), create_method("er"), SETTINGS, progress=False))
    assert [v.encoder.classifier.outputs for v in versions] == [2, 4, 6]


def test_cores_starts_every_version_from_the_same_weights_and_itm_does_not() -> None:
    """With a learning rate of almost nothing the versions are their initial weights."""
    still = Settings(**{**vars(SETTINGS), "recipe": Recipe(epochs=1, learning_rate=1e-12, batch_size=8)})

    def first_layers(name: str) -> list[torch.Tensor]:
        versions = list(retraining(stream(), create_method(name), still, progress=False))
        return [v.encoder.get_parameter("backbone.fc.weight") for v in versions]

    a, b, _ = first_layers("cores")
    torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
    c, d, _ = first_layers("itm")
    assert (c - d).abs().max() > 0.01


def test_lifelong_goes_on_from_the_last_weights() -> None:
    """The learning rate is almost nothing, so the second version is still the first."""
    still = Settings(**{**vars(SETTINGS), "recipe": Recipe(epochs=1, learning_rate=1e-12, batch_size=8)})
    a, b, _ = lifelong(stream(), create_method("hoc"), still, progress=False)
    torch.testing.assert_close(
        a.encoder.get_parameter("backbone.fc.weight"), b.encoder.get_parameter("backbone.fc.weight"), atol=1e-6, rtol=0
    )


def test_more_classes_than_slots_are_refused() -> None:
    small = Settings(**{**vars(SETTINGS), "capacity": 5})
    with pytest.raises(InputError, match="K=5"):
        list(lifelong(stream(), create_method("hoc"), small, progress=False))


def test_the_seed_decides() -> None:
    def final(seed: int) -> Encoder:
        settings = Settings(**{**vars(SETTINGS), "seed": seed})
        return list(lifelong(stream(), create_method("hoc"), settings, progress=False))[-1].encoder

    assert same_weights(final(1), final(1))
    assert not same_weights(final(1), final(2))


def test_a_finished_run_is_read_back_and_another_one_is_refused(tmp_path: Path) -> None:
    first = list(lifelong(stream(), create_method("hoc"), SETTINGS, tmp_path / "run", progress=False))
    again = list(lifelong(stream(), create_method("hoc"), SETTINGS, tmp_path / "run", progress=False))
    assert all(same_weights(a.encoder, b.encoder) for a, b in zip(first, again, strict=True))
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    with pytest.raises(CheckpointError, match=r"method\.options\.lam was 0.25, now 0.5"):
        list(lifelong(stream(), create_method("hoc", lam=0.5), SETTINGS, tmp_path / "run", progress=False))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("precious")
    with pytest.raises(CheckpointError, match="holds other files"):
        list(lifelong(stream(), create_method("hoc"), SETTINGS, tmp_path / "other", progress=False))


def test_settings_survive_json() -> None:
    assert Settings.from_json(json.loads(json.dumps(SETTINGS.to_json()))) == SETTINGS


RUN = """
import sys, torch
sys.path.insert(0, {here!r})
from test_scenarios import *
torch.set_num_threads(1)
method = create_method("hoc")
recipe = Recipe(epochs=12, learning_rate=0.05, milestones=(8,), batch_size=8)
settings = Settings(**{{**vars(SETTINGS), "recipe": recipe}})
for version in lifelong(class_stream(stripes(per_class=40), 2, 2), method, settings, {directory!r}, progress=False):
    print(version.name, flush=True)
"""


def start(directory: Path) -> subprocess.Popen[str]:
    code = RUN.format(here=str(Path(__file__).parent), directory=str(directory))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_after_checkpoint(directory: Path, seconds: float) -> bool:
    """Start the run, wait until it has written something new, kill -9 it a moment later; False if it ended first."""
    checkpoint = directory / "checkpoint.safetensors"
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    process = start(directory)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if checkpoint.exists() and checkpoint.stat().st_mtime_ns != before:
            break
        time.sleep(0.002)
    time.sleep(seconds)
    alive = process.poll() is None
    if alive:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    return alive


def test_kill_9_again_and_again_ends_with_bitwise_the_same_weights(tmp_path: Path) -> None:
    whole = start(tmp_path / "whole")
    out, errors = whole.communicate(timeout=120)
    assert out.split() == ["v1", "v2", "v3"], errors
    kills = sum(kill_after_checkpoint(tmp_path / "cut", seconds) for seconds in (0.0, 0.05, 0.13, 0.02))
    assert kills >= 2, "the run ended before it could be killed: make it longer"
    out, errors = start(tmp_path / "cut").communicate(timeout=120)
    assert out.split() == ["v1", "v2", "v3"], errors
    for name in ("v1", "v2", "v3"):
        a, b = (Encoder.load(tmp_path / run / "versions" / name) for run in ("whole", "cut"))
        assert same_weights(a, b), name
    leftovers = [path.name for path in (tmp_path / "cut").rglob(".*")]
    assert all(name.endswith(".partial") or name.startswith(".v") for name in leftovers)
