"""A plan is refused where its loss is no chance, or large: not for one query more or less, nor where it has begun."""

from __future__ import annotations

import numpy as np
import pytest
from predictions import QUERIES, predicted

from fixstar.errors import GateError
from fixstar.evaluation import BackfillCurve
from fixstar.wording import percent
from fixstar.workspace.backfill.planning import PlannedBackfill, PredictedCurve, require_gain
from fixstar.workspace.backfill.run import BackfillPlan


def planned(curve: PredictedCurve | None, items: int = 10, position: int = 0) -> PlannedBackfill:
    """A plan of so many of a hundred items."""
    ids = [str(number) for number in range(items)]
    return PlannedBackfill(BackfillPlan.made("v2", "random", str(items), 100, ids), position, curve)


def test_one_query_of_hundreds_is_chance() -> None:
    plan = planned(predicted(lost=1))
    assert plan.loss == "lower the accuracy from 66.7 % to 66.3 % of 300 queries"
    assert not plan.loses
    require_gain(plan)


@pytest.mark.parametrize(
    ("lost", "gained", "loses"),
    [
        (5, 0, False),  # five coins agree once in sixteen times
        (6, 0, True),
        (12, 11, False),
        (30, 5, True),
        (0, 0, False),
        (5, 30, False),
    ],
)
def test_a_loss_counts_by_the_queries_that_differ(lost: int, gained: int, loses: bool) -> None:
    for items in (10, 7, 3, 1, 25):  # also between the shares that were measured
        plan = planned(predicted(lost, gained), items)
        assert plan.loses is loses, items
        assert (plan.loss is not None) is (lost > gained)


def test_a_large_loss_counts_though_it_may_be_chance() -> None:
    assert not planned(predicted(lost=113, gained=99)).loses  # 14 of 300 are less than five points
    assert planned(predicted(lost=114, gained=99)).loses  # 15 are five points
    few = np.tile(np.arange(20) < 10, (2, 1))
    for lost, loses in (
        (2, False),
        (3, True),
    ):  # of 20 queries that is more than five points, and no evidence
        hits = few.copy()
        hits[1, :lost] = False
        curve = BackfillCurve(np.array([0.0, 1.0]), hits.mean(axis=1)[None], hits[None])
        assert PredictedCurve("random", curve, curve, (0.6, 0.7), (20, 20)).loses(1.0) is loses


def test_queries_that_stay_as_they_are_do_not_count_at_any_share() -> None:
    curve = predicted(lost=5)  # no evidence, unless others seem to differ in between
    assert not any(curve.loses(share) for share in np.linspace(0, 1, 200))


def test_the_refusal_says_what_was_predicted_and_what_to_do() -> None:
    with pytest.raises(GateError) as refused:
        require_gain(planned(predicted(lost=30)))
    words = str(refused.value)
    assert "predicted to lower the accuracy from 66.7 % to 56.7 % of 300 queries" in words
    assert "A budget of 50% or all is predicted not to lose" in words
    steps = [step.arguments for step in refused.value.next_steps]
    assert steps == [{"budget": "50%"}, {"plan_only": True}, {"anyway": True}]


def test_what_has_begun_or_is_not_known_is_not_refused() -> None:
    for plan in (
        planned(predicted(lost=30), position=1),
        planned(None),
        planned(predicted(lost=30), 50),
    ):
        assert (plan.loss, plan.loses) == (None, False)
        require_gain(plan)
    assert planned(None).larger_budgets == []


def test_shares_in_between_are_those_of_the_accuracy() -> None:
    """By hand: 2 of 100 is two fifths of the way to 5 %, so two fifths of 30 queries are lost of 200."""
    assert (
        planned(predicted(lost=30), 2).loss
        == f"lower the accuracy from 66.7 % to {percent(188 / QUERIES)} of 300 queries"
    )
