"""benchmarks/kept_epoch.py: which epochs of a training each rule names."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import kept_epoch


def _followed(keep: str) -> Any:
    """Two versions of three epochs; the second epoch of the first classifies best, and the third of the second."""
    shares = [[0.2, 0.6, 0.6], [0.1, 0.3, 0.5]]
    versions = [[(share, np.full((2, 2), share)) for share in one] for one in shares]
    searched = SimpleNamespace(over_draws=lambda *_: {})
    return SimpleNamespace(searched=searched, versions=versions, keep=keep)


@pytest.mark.parametrize("method", ["bct", "fd"])
@pytest.mark.parametrize(("keep", "epochs"), [("last", [3, 3]), ("best", [2, 3])])
def test_a_method_held_to_its_past_is_judged_only_by_the_rule_that_was_kept(
    method: str, keep: str, epochs: list[int]
) -> None:
    rules = kept_epoch.by_rule(_followed(keep), (1, 1), method)
    assert {name: row["epochs"] for name, row in rules.items()} == {keep: epochs}


def test_versions_trained_alone_are_judged_by_every_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_epoch, "compatible", lambda _: [1, 0])
    rules = kept_epoch.by_rule(_followed("last"), (1, 1), "cores")
    assert {name: row["epochs"] for name, row in rules.items()} == {
        "last": [3, 3],
        "best": [2, 3],
        "compatible": [2, 1],
    }
