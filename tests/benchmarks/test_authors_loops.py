"""benchmarks/authors_loops.py, as far as it needs no code of others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import authors_loops

from fixstar.models import Encoder


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
