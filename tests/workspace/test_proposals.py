"""What is proposed where a version's own queries do not hold: measured maps, a backfill of a stated size, keeping."""

from __future__ import annotations

from typing import Any

import numpy as np

from fixstar.evaluation import VersionFeatures
from fixstar.evaluation.trial import Trial
from fixstar.geometry import unit
from fixstar.workspace.gate import judge, proposals

CLASSES, WIDTH = 40, 16


def vectors(seed: int, noise: float, per_class: int) -> Any:
    centres = unit(np.random.default_rng(99).normal(size=(CLASSES, WIDTH)))
    labels = np.arange(CLASSES * per_class) % CLASSES
    return unit(centres[labels] + noise * np.random.default_rng(seed).normal(size=(len(labels), WIDTH)))


def trial(turned: bool, noise: float, per_class: int = 20) -> Trial:
    """v1 with noisy vectors; v2 with ``noise``, in a space that is ``turned`` or in v1's."""
    turn = np.linalg.qr(np.random.default_rng(7).normal(size=(WIDTH, WIDTH)))[0] if turned else np.eye(WIDTH)
    versions = [
        VersionFeatures("v1", vectors(1, 0.22, per_class), vectors(2, 0.22, per_class)),
        VersionFeatures("v2", vectors(3, noise, per_class) @ turn, vectors(4, noise, per_class) @ turn),
    ]
    labels = np.arange(CLASSES * per_class) % CLASSES
    return Trial(versions, labels, labels, {}, {})


def test_a_turned_space_is_mapped_back_and_a_share_is_named() -> None:
    given = trial(turned=True, noise=0.1)
    judged = judge(given)
    check = judged.check
    assert check.outcome == "refuse"
    adapt, backfill, keep = proposals(judged)
    assert adapt.arguments == {"version": "v1", "queries_by": "v2", "kind": "ridge"}
    (cell,) = check.cells
    expected = float(adapt.note.split(": ")[1].split(" %")[0]) / 100
    assert cell.self_test < expected
    assert cell.cross_test < 0.2
    assert "points)" in adapt.note
    share = str(backfill.arguments["budget"])
    assert share == "all" or 0 < int(share.removesuffix("%")) < 100
    assert float(backfill.note.split(": ")[1].split(" %")[0]) / 100 > cell.self_test
    assert (keep.action, keep.arguments) == ("drop", {"version": "v2"})
    assert keep.note.startswith("keep v1, whose own queries find ")


def test_a_worse_model_is_only_proposed_to_be_dropped() -> None:
    judged = judge(trial(turned=False, noise=1.2))
    assert judged.check.outcome == "refuse"
    assert [step.action for step in proposals(judged)] == ["drop"]


def test_nothing_is_proposed_where_all_is_well_or_little_was_measured() -> None:
    well = judge(trial(turned=False, noise=0.1))
    assert well.check.outcome == "pass"
    assert proposals(well) == ()
    assert proposals(judge(trial(turned=True, noise=0.1, per_class=1))) == ()
