"""What is proposed where a version's own queries do not hold: measured maps, a backfill of a stated size, keeping."""

from __future__ import annotations

from typing import Any

import numpy as np

from fixstar.evaluation import VersionFeatures
from fixstar.evaluation.labelled_vectors import SHARES, LabelledVectors
from fixstar.evaluation.mixed import BackfillCurve
from fixstar.geometry import unit
from fixstar.translation import Translation
from fixstar.translation.fit import Pairs, fit_translations
from fixstar.workspace.gate import GateResult, _backfill_step, judge, proposals
from fixstar.workspace.pairs import Searched

CLASSES = 40
WIDTH = 16
TURN = np.linalg.qr(np.random.default_rng(7).normal(size=(WIDTH, WIDTH)))[0]


def vectors(seed: int, noise: float, per_class: int) -> Any:
    centres = unit(np.random.default_rng(99).normal(size=(CLASSES, WIDTH)))
    labels = np.arange(CLASSES * per_class) % CLASSES
    return unit(
        centres[labels] + noise * np.random.default_rng(seed).normal(size=(len(labels), WIDTH))
    )


def labelled(turned: bool, noise: float, per_class: int = 20) -> LabelledVectors:
    """v1 with noisy vectors; v2 with ``noise``, in a space that is ``turned`` or in v1's."""
    turn = TURN if turned else np.eye(WIDTH)
    versions = [
        VersionFeatures("v1", vectors(1, 0.22, per_class), vectors(2, 0.22, per_class)),
        VersionFeatures(
            "v2", vectors(3, noise, per_class) @ turn, vectors(4, noise, per_class) @ turn
        ),
    ]
    labels = np.arange(CLASSES * per_class) % CLASSES
    return LabelledVectors(versions, labels, labels, {}, {})


def held(given: LabelledVectors) -> GateResult:
    """The verdict if v2 was held to v1's space, or was thought to be."""
    return judge(given, [Searched("v1", (Translation.between_shared("v1", "v2"),))])


def test_a_share_is_named_and_keeping_the_old_version() -> None:
    judged = held(labelled(turned=True, noise=0.1))
    check = judged.check
    assert check.outcome == "refuse"
    backfill, keep = proposals(judged)
    (cell,) = check.cells
    assert cell.cross_test < 0.2
    share = str(backfill.arguments["budget"])
    assert share == "all" or 0 < int(share.removesuffix("%")) < 100
    assert float(backfill.note.split(": ")[1].split(" %")[0]) / 100 > cell.self_test
    assert (keep.action, keep.arguments) == ("drop", {"version": "v2"})
    assert keep.note.startswith("keep v1, whose own queries find ")


def test_a_translation_of_the_turned_space_passes() -> None:
    given = labelled(turned=True, noise=0.1)
    old, new = given.versions
    pairs = Pairs.checked(vectors(5, 0.3, 50), vectors(5, 0.3, 50) @ TURN)
    judged = judge(given, [Searched("v1", tuple(fit_translations(pairs, old.name, new.name)))])
    assert judged.check.outcome == "pass"
    assert proposals(judged) == ()


def test_a_worse_model_is_only_proposed_to_be_dropped() -> None:
    judged = held(labelled(turned=False, noise=1.2))
    assert judged.check.outcome == "refuse"
    assert [step.action for step in proposals(judged)] == ["drop"]


def test_a_deployed_version_is_not_proposed_to_be_dropped() -> None:
    judged = held(labelled(turned=False, noise=1.2))
    assert proposals(judged, deployed="v2") == ()


def test_a_backfill_that_gains_nothing_that_is_shown_is_not_proposed() -> None:
    shares = np.array(SHARES)
    for gain, proposed in ((0.0003, False), (0.002, True)):
        accuracy = np.linspace(0.1, 0.1381 + gain, len(SHARES))
        curve = BackfillCurve(shares, accuracy[None])
        assert bool(list(_backfill_step(curve, 0.1381))) is proposed


def test_nothing_is_proposed_where_all_is_well_or_little_was_measured() -> None:
    well = held(labelled(turned=False, noise=0.1))
    assert well.check.outcome == "pass"
    assert proposals(well) == ()
    assert proposals(held(labelled(turned=True, noise=0.1, per_class=1))) == ()


def test_a_part_that_finds_less_than_at_once_is_not_proposed() -> None:
    shares = np.array(SHARES)
    rising = np.linspace(0.15, 0.2, len(SHARES))
    (part,) = _backfill_step(BackfillCurve(shares, rising[None]), 0.12)
    assert part.arguments["budget"] != "all"
    dipping = rising.copy()
    dipping[3] = 0.13  # more than now, and less than at once
    (whole,) = _backfill_step(BackfillCurve(shares, dipping[None]), 0.12)
    assert whole.arguments["budget"] == "all"
