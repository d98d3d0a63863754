"""Verdicts on searches whose answers are known, and how much evidence would decide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from wording import check_wording

from fixstar.errors import InputError, NextStep
from fixstar.evaluation import paired_bootstrap
from fixstar.evaluation.evidence import Difference
from fixstar.evaluation.verdicts import (
    GateRules,
    achievable_tolerance,
    halves,
    highest_rate,
    in_points,
    judged_difference,
    least_differing,
    missing_evidence,
    needed_queries,
)

Hits = NDArray[np.bool_]
RULES = GateRules()


def hits(queries: int, *wrong: int | range) -> Hits:
    """All right but some."""
    rows = [row for part in wrong for row in ([part] if isinstance(part, int) else part)]
    return ~np.isin(np.arange(queries), rows)


# --- the verdict


def test_a_clear_gain_and_a_clear_loss() -> None:
    before, after = hits(1000, range(200)), hits(1000, range(100), 555, 777)
    gained = judged_difference(after, before, 0.95, RULES)
    assert (gained.verdict, gained.differing) == ("compatible", 102)
    assert gained.mean == pytest.approx(0.098)
    expected = paired_bootstrap(after, before)
    assert (gained.low, gained.high) == (expected.low, expected.high)
    assert 0 < gained.low < gained.mean < gained.high
    lost = judged_difference(hits(1000, range(150)), hits(1000, range(50)), 0.95, RULES)
    assert lost.verdict == "incompatible"


def test_too_little_evidence_is_not_decided() -> None:
    before, after = hits(200, range(20)), hits(200, range(8), range(100, 107))
    found = judged_difference(after, before, 0.95, RULES)
    assert (found.verdict, found.differing) == ("not decided", 19)


def test_a_tolerance_accepts_a_small_loss_and_no_larger_one() -> None:
    before, after = hits(2000, range(50)), hits(2000, range(70))  # one point lost
    expected = {0.0: "incompatible", 0.002: "incompatible", 0.01: "not decided", 0.02: "compatible"}
    for tolerance, verdict in expected.items():
        assert (
            judged_difference(after, before, 0.95, GateRules(tolerance=tolerance)).verdict
            == verdict
        )


def test_a_higher_confidence_decides_less() -> None:
    before, after = hits(400, range(14)), hits(400, range(2), 300, 301, 302)  # 12 won, 3 lost
    alone = judged_difference(after, before, 0.95, RULES)
    many = judged_difference(after, before, RULES.shared(5), RULES)
    assert (alone.verdict, many.verdict) == ("compatible", "not decided")
    expected = paired_bootstrap(after, before, confidence=0.99)
    assert (many.low, many.high) == (expected.low, expected.high)
    assert alone.low > many.low


def test_several_verdicts_share_the_error() -> None:
    assert RULES.shared(1) == 0.95
    assert RULES.shared(0) == 0.95
    assert RULES.shared(5) == pytest.approx(0.99)


def test_where_hardly_anything_differs_the_exact_interval_of_rare_events_counts() -> None:
    assert highest_rate(0, 100, 0.95) == pytest.approx(1 - 0.025**0.01)
    assert highest_rate(1, 10, 0.95) == pytest.approx(
        0.4450, abs=1e-4
    )  # Clopper and Pearson's tables
    same = hits(100, 3)
    strict = judged_difference(same, same, 0.95, RULES)
    assert (strict.verdict, strict.differing) == ("not decided", 0)
    tolerant = GateRules(tolerance=0.01)
    few = judged_difference(same, same, 0.95, tolerant)  # up to 3.6 points may have gone unseen
    assert few.verdict == "not decided"
    assert few.low == pytest.approx(0.025**0.01 - 1)
    assert needed_queries(few, 100, 0.95, 0.01) == 370
    many = hits(400)
    assert judged_difference(many, many, 0.95, tolerant).verdict == "compatible"


@settings(max_examples=40)
@given(queries=st.integers(2, 60), flips=st.integers(0, 60), seed=st.integers(0, 2**16))
def test_a_verdict_is_its_interval_and_never_for_both(queries: int, flips: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    before = rng.random(queries) < 0.6
    after = before ^ (rng.permutation(queries) < flips)
    found = judged_difference(after, before, 0.95, RULES)
    assert found.low <= found.mean <= found.high
    assert found.mean == pytest.approx(after.mean() - before.mean())
    verdicts = {"compatible": found.low > 0, "incompatible": found.high <= 0}
    assert verdicts.get(found.verdict, not any(verdicts.values()))
    if found.differing < least_differing(0.95):
        assert found.verdict == "not decided"
    back = judged_difference(before, after, 0.95, RULES)
    assert not (found.verdict == "compatible" and back.verdict == "compatible")


@pytest.mark.parametrize(
    "wrong",
    [{"confidence": 95}, {"tolerance": -0.1}, {"tolerance": 1}, {"seed": -1}, {"weight": 1.5}],
)
def test_odd_rules_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        GateRules(**wrong)  # type: ignore[arg-type]


# --- halves


def test_halves_have_no_query_in_common_and_share_every_class() -> None:
    labels = np.array([7] * 5 + [3] * 4 + [1])
    one, other = halves(labels, seed=3)
    assert sorted([*one, *other]) == list(range(10))
    for label, sizes in ((7, {2, 3}), (3, {2})):
        assert {int((labels[rows] == label).sum()) for rows in (one, other)} <= sizes


@settings(max_examples=40)
@given(labels=st.lists(st.integers(0, 5), min_size=1, max_size=60), seed=st.integers(0, 99))
def test_halves_are_half_of_each_class(labels: list[int], seed: int) -> None:
    codes = np.array(labels)
    one, other = halves(codes, seed)
    assert sorted([*one.tolist(), *other.tolist()]) == list(range(len(codes)))
    assert len(one) - len(other) in (0, 1)
    for label in set(labels):
        assert abs(int((codes[one] == label).sum()) - int((codes[other] == label).sum())) <= 1
    again = halves(codes, seed)
    np.testing.assert_array_equal(one, again[0])


# --- how much evidence would decide


def test_needed_queries_by_hand() -> None:
    assert (
        needed_queries(Difference(0.02, -0.02, 0.05, "not decided", 30), 200, 0.95) == 800
    )  # (0.04 / 0.02)^2 = 4
    assert (
        needed_queries(Difference(-0.02, -0.06, 0.03, "not decided", 30), 200, 0.95) == 1300
    )  # 6.25 * 200, rounded up
    assert needed_queries(Difference(0.0, -0.02, 0.02, "not decided", 30), 200, 0.95) is None
    assert (
        needed_queries(Difference(0.0, -0.02, 0.02, "not decided", 30), 200, 0.95, tolerance=0.01)
        == 800
    )
    assert (
        needed_queries(Difference(0.03, -0.01, 0.05, "not decided", 3), 100, 0.95) == 200
    )  # six must differ
    assert (
        needed_queries(Difference(0.0, -0.04, 0.04, "not decided", 0), 100, 0.95, tolerance=0.01)
        == 400
    )


def test_so_many_queries_as_it_names_do_decide() -> None:
    before, after = hits(200, range(20)), hits(200, range(8), range(100, 107))
    found = judged_difference(after, before, 0.95, RULES)
    needed = needed_queries(found, 200, 0.95)
    assert needed is not None
    by_hand = 200 * ((found.mean - found.low) / found.mean) ** 2
    assert by_hand <= needed < by_hand * 1.1

    def tried(times: int) -> str:
        return judged_difference(np.tile(after, times), np.tile(before, times), 0.95, RULES).verdict

    assert tried(needed // 200 - 2) == "not decided"
    assert tried(needed // 200 + 2) == "compatible"


def test_six_queries_that_agree_are_the_least_at_95_percent() -> None:
    assert least_differing(0.95) == 6
    assert least_differing(0.99) == 8
    assert least_differing(0.5) == 2


def test_a_tolerance_that_it_names_passes_or_comes_with_what_it_takes() -> None:
    before, after = hits(1000, range(20)), hits(1000, range(500, 520))  # 20 lost, 20 won
    found = judged_difference(after, before, 0.95, RULES)
    more = NextStep("check", {"version": "v2", "data": ...})
    told, steps = missing_evidence(found, 1000, 0.95, 0.0, more, "labelled images")
    check_wording(told[0])
    assert told[-1].endswith("these queries show that")
    (step,) = steps
    named = float(str(step.arguments["tolerance"]))
    assert step.arguments == {"version": "v2", "tolerance": named}
    assert (
        judged_difference(after, before, 0.95, GateRules(tolerance=named)).verdict == "compatible"
    )
    assert (
        judged_difference(after, before, 0.95, GateRules(tolerance=named - 0.01)).verdict
        == "not decided"
    )

    few = judged_difference(hits(28, range(14, 18)), hits(28, range(4)), 0.95, RULES)
    assert few.low < -0.05  # no tolerance that somebody may mean is shown to be kept
    told, steps = missing_evidence(few, 28, 0.95, 0.0, more, "labelled images")
    assert "these queries show that" not in " ".join(told)
    needed = int(
        told[-1].split("points is acceptable, about ")[1].split(" queries")[0].replace(",", "")
    )
    by_hand = 28 * (few.low / 0.01) ** 2
    assert by_hand <= needed < by_hand * 1.1
    assert {"version": "v2", "data": ..., "tolerance": 0.01} in [step.arguments for step in steps]

    worse = judged_difference(hits(28, range(4)), hits(28), 0.95, RULES)  # a point would not do
    assert worse.verdict == "not decided"
    _, steps = missing_evidence(worse, 28, 0.95, 0.0, more, "labelled images")
    assert not any("tolerance" in step.arguments for step in steps)
    assert achievable_tolerance(worse, 28, 0.95) is None


def test_missing_evidence_is_told_in_numbers() -> None:
    found = judged_difference(
        hits(200, range(8), range(100, 107)), hits(200, range(20)), 0.95, RULES
    )
    told, steps = missing_evidence(
        found, 200, 0.95, 0.0, NextStep("check", {"data": ...}), "labelled images"
    )
    needed = needed_queries(found, 200, 0.95)
    assert needed is not None
    assert f"about {needed:,} queries would decide; there were 200" in told[0]
    assert f"about {2 * needed:,} labelled images" in told[0]
    assert steps[0].note == f"about {2 * needed:,} labelled images"
    same = judged_difference(hits(100, 3), hits(100, 3), 0.95, RULES)
    told, _ = missing_evidence(
        same, 100, 0.95, 0.0, NextStep("check", {"data": ...}), "labelled images"
    )
    check_wording(told[0])


def test_points_are_read_without_a_sign() -> None:
    assert (in_points(0.0149), in_points(0.2)) == ("1.5", "20.0")


def test_queries_that_choose_are_counted_in_what_is_needed() -> None:
    """A quarter of the images judge where half are the gallery and half of the queries choose."""
    found = Difference(0.02, -0.02, 0.06, "not decided", 30)
    more = NextStep("check", {"version": "v2", "data": ...})
    needed = needed_queries(found, 200, 0.95)
    assert needed == 800
    for chosen_by, images in ((False, "1,600"), (True, "3,200")):
        told, steps = missing_evidence(
            found, 200, 0.95, 0.0, more, "labelled images", chosen_by=chosen_by
        )
        assert f"takes about {images} labelled images" in told[0]
        assert steps[0].note == f"about {images} labelled images"
