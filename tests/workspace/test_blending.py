"""Queries by two models: how alpha is chosen and judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixstar.workspace.adapters.fitting import fit_adapter

from fixstar.errors import InputError, NextStep
from fixstar.evaluation import VersionFeatures, paired_bootstrap
from fixstar.evaluation.trial import Trial
from fixstar.geometry import slerp, unit
from fixstar.workspace import GateRules
from fixstar.workspace.checks import last_check, save_check
from fixstar.workspace.gate import ALPHAS, halves, judge

CLASSES, QUERIES, WIDTH = 20, 1200, 16


def noisy(seed: int, noise: float, images: int = QUERIES, width: int = WIDTH) -> Any:
    """Vectors around one centre per class; the same centres for every seed."""
    centres = unit(np.random.default_rng(99).normal(size=(CLASSES, width)))
    return unit(centres[np.arange(images) % CLASSES] + noise * np.random.default_rng(seed).normal(size=(images, width)))


def trial(*noises: float) -> Trial:
    """Versions whose errors are independent, so that two queries together are better than one alone."""
    versions = [
        VersionFeatures(f"v{i + 1}", noisy(10 + i, noise), noisy(20 + i, 0.1, 5 * CLASSES))
        for i, noise in enumerate(noises)
    ]
    return Trial(versions, np.arange(QUERIES) % CLASSES, np.arange(5 * CLASSES) % CLASSES, {}, {})


def accuracy_by_hand(old: VersionFeatures, queries: Any, rows: Any) -> float:
    right = 0
    for row in rows:
        found = int(np.argmax([float(queries[row] @ stored) for stored in old.gallery]))
        right += found % CLASSES == row % CLASSES
    return right / len(rows)


def test_a_refused_version_may_pass_together_with_the_old_one() -> None:
    made = trial(0.45, 0.55)
    check = judge(made).check
    assert check.outcome == "refuse"
    (blend,) = check.blends
    old, new = made.versions
    choosing, judging = halves(made.query_labels, 0)
    found = [accuracy_by_hand(old, slerp(old.queries, new.queries, alpha), choosing) for alpha in ALPHAS]
    assert blend.tried == blend.alpha == ALPHAS[int(np.argmax(found))]
    assert 0 < blend.tried < 1
    assert blend.self_test == pytest.approx(accuracy_by_hand(old, old.queries, judging))
    both = slerp(old.queries, new.queries, blend.tried)
    assert blend.cross_test == pytest.approx(accuracy_by_hand(old, both, judging))
    assert (blend.verdict, blend.queries) == ("compatible", 600)
    assert 0 < blend.low < blend.difference < blend.high
    assert check.next_steps[-1].arguments == {"version": "v2", "blend": "auto"}
    assert check.blend_calibrations.keys() == {"v1", "v2"}
    assert check.blend_calibrations["v1"] != check.calibrations["v1"]
    assert check.blend_calibrations["v2"] == check.calibrations["v2"]


def testhalves_have_no_query_in_common_and_share_every_class() -> None:
    labels = np.array([7] * 5 + [3] * 4 + [1])
    one, other = halves(labels, seed=3)
    assert sorted([*one, *other]) == list(range(10))
    for label, sizes in ((7, {2, 3}), (3, {2})):
        assert {int((labels[rows] == label).sum()) for rows in (one, other)} <= sizes


def test_without_a_gain_the_old_queries_stay() -> None:
    made = trial(0.1, 1.0)
    check = judge(made).check
    assert check.outcome == "refuse"
    (blend,) = check.blends
    assert (blend.tried, blend.alpha, blend.verdict) == (0, 0, "unchanged")
    assert blend.cross_test == blend.self_test
    step = check.next_steps[-1]
    assert step == NextStep("deploy", {"version": "v2", "blend": "auto"}, "vectors of v1 keep the old queries")


def test_what_is_not_decided_is_not_deployed() -> None:
    made = trial(0.45, 0.55)
    few = replace(
        made,
        versions=[replace(version, queries=version.queries[:60]) for version in made.versions],
        query_labels=made.query_labels[:60],
    )
    check = judge(few).check
    (blend,) = check.blends
    assert blend.tried > 0
    *_, more, deploy = check.next_steps
    assert (more.action, deploy.arguments["blend"]) == ("check", "auto")
    gain, low = blend.difference, blend.low
    by_hand = 4 * 30 * ((gain - low) / gain) ** 2 if gain > 0 else 0  # half is the gallery, and half of the rest chose
    named = int(more.note.split("about ")[1].split(" ")[0].replace(",", ""))
    assert by_hand <= named < by_hand * 1.1
    assert (blend.verdict, blend.alpha) == ("not decided", 0)
    (given,) = judge(made, GateRules(blend=0.5)).check.blends
    assert (given.tried, given.queries, given.verdict) == (0.5, QUERIES, "compatible")  # no query is needed to choose
    with pytest.raises(InputError, match="from 0"):
        GateRules(blend=1.5)


def test_new_queries_that_pass_alone_are_not_given_up_for_old_ones() -> None:
    made = trial(0.6, 0.1)
    check = judge(made).check
    assert check.outcome == "pass"
    assert check.blends[0].alpha > 0.5
    assert not any("blend" in step.arguments for step in check.next_steps)
    one = replace(
        made,
        versions=[replace(version, queries=version.queries[:1]) for version in made.versions],
        query_labels=made.query_labels[:1],
    )
    assert judge(one).check.blends[0].tried == 0  # one query chooses, none is left to judge


def test_all_verdicts_on_blended_queries_hold_together() -> None:
    made = trial(0.45, 0.5, 0.55)
    check = judge(made).check
    assert [blend.version for blend in check.blends] == ["v1", "v2"]
    _, judging = halves(made.query_labels, 0)
    new = made.versions[-1]
    for old, blend in zip(made.versions, check.blends, strict=False):
        assert blend.tried > 0
        hits = [
            np.array([(old.gallery @ query).argmax() for query in queries[judging]]) % CLASSES == judging % CLASSES
            for queries in (slerp(old.queries, new.queries, blend.tried), old.queries)
        ]
        expected = paired_bootstrap(*hits, confidence=0.975)
        assert (blend.low, blend.high) == pytest.approx((expected.low, expected.high))


def test_models_of_other_widths_are_searched_by_their_own_queries_or_through_an_adapter() -> None:
    made = trial(0.45, 0.5)
    rng = np.random.default_rng(5)
    turn = np.linalg.qr(rng.normal(size=(24, 24)))[0][:WIDTH]  # the same vectors, turned into another space
    new = replace(made.versions[1], queries=made.versions[1].queries @ turn, gallery=made.versions[1].gallery @ turn)
    apart = replace(made, versions=[made.versions[0], new])
    check = judge(apart).check
    assert check.outcome == "refuse"
    assert [(blend.version, blend.alpha, blend.verdict) for blend in check.blends] == [("v1", 0.0, "apart")]
    assert check.blend_calibrations.keys() == {"v1", "v2"}
    samples = noisy(1, 0.5, 400)
    adapter = fit_adapter("procrustes", samples @ turn, samples, source="v2", target="v1")
    through = judge(apart, adapters={"v1": adapter}).check
    assert through.outcome == "pass"  # the adapter has a check of its own
    assert through.next_steps[-1].arguments == {"version": "v2", "blend": "auto"}
    (blend,) = through.blends
    (direct,) = judge(made).check.blends
    assert (blend.tried, blend.verdict) == (direct.tried, "compatible")
    assert blend.cross_test == pytest.approx(direct.cross_test, abs=0.01)


def test_a_check_with_blends_is_kept(tmp_path: Path) -> None:
    check = judge(trial(0.45, 0.55)).check
    save_check(tmp_path, check)
    assert last_check(tmp_path, "v2") == check
