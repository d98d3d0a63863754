"""benchmarks/authors_loops.py, as far as it needs no code of others."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import authors_loops

from fixstar.data import ImageSet, from_arrays
from fixstar.models import Encoder
from fixstar.models.backbones.resnets import CifarResNet


@pytest.mark.parametrize(
    ("backbone", "names"),
    [
        (
            "resnet20",
            {
                "backbone.conv_1_3x3.weight": "backbone.conv1.weight",
                "backbone.bn_1.bias": "backbone.bn1.bias",
                "backbone.stage_2.0.conv_a.weight": "backbone.layer2.0.conv1.weight",
                "backbone.stage_3.1.bn_b.running_var": "backbone.layer3.1.bn2.running_var",
                "fc1.weight": "projection.weight",
            },
        ),
        (
            "senet18",
            {
                "backbone.layer2.0.shortcut.0.weight": "backbone.layer2.0.shortcut.weight",
                "backbone.layer4.1.fc2.bias": "backbone.layer4.1.excitation.fc2.bias",
                "fc1.weight": "projection.weight",
            },
        ),
    ],
)
def test_their_weights_have_our_names_without_the_prototypes(
    backbone: str, names: dict[str, str]
) -> None:
    given = {name: torch.zeros(1) for name in [*names, "fc2.weight"]}
    found = authors_loops.renamed(given)
    assert set(found) == set(names.values())
    assert set(found) <= set(Encoder.create(backbone, capacity=10).state_dict())


def test_halves_of_a_batch_are_recorded_apart() -> None:
    halves = authors_loops.Halves()
    logits = torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 0.0]])
    replay = torch.tensor([True, True, False, False])
    halves.add(logits, torch.tensor([0, 0, 1, 1]), replay, fd=0.5)
    halves.close()
    (epoch,) = halves.epochs
    assert epoch["accuracy replay"] == 1.0
    assert epoch["accuracy new"] == 0.5
    assert epoch["ce replay"] < epoch["ce new"]
    assert epoch["fd"] == 0.5


def noise(classes: int, per_class: int) -> ImageSet:
    labels = np.repeat(np.arange(classes), per_class)
    pixels = np.random.default_rng(classes).integers(0, 255, (len(labels), 32, 32, 3), np.uint8)
    return from_arrays(pixels, labels)


def test_a_training_that_was_not_judged_is_judged_by_its_kept_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = noise(4, 3)
    searched = SimpleNamespace(open=lambda *_: noise(10, 8))
    monkeypatch.setattr(authors_loops, "training_images", lambda *_: (held_out, held_out))
    monkeypatch.setattr(authors_loops, "dataset", lambda _: searched)
    scale = authors_loops.Scale(first=2, second=2, depth=8, judged_on=80, pairs=40)
    encoders = [
        Encoder.create(CifarResNet(8), classes=held_out.classes, capacity=100) for _ in range(2)
    ]
    out = tmp_path / "run.json"
    out.write_text(json.dumps({"scale": asdict(scale), "epochs": [[{"fd": 0.5}]]}))
    for number, encoder in enumerate(encoders, start=1):
        save_file(encoder.state_dict(), authors_loops.weights_of(out, number))
    found = authors_loops.judge_again(
        argparse.Namespace(out=out, data=tmp_path, device="cpu", seed=0)
    )
    assert found["epochs"] == [[{"fd": 0.5}]]
    for key, value in authors_loops.measured(encoders, held_out, tmp_path, scale).items():
        assert found[key] == value
    (c11,), (c21, _) = found["measured"]["verification"]["mean"]
    assert c11 != c21
