"""The gate on vectors whose answers are known: every query points at one class, so hits are chosen one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from wording import check_wording

from fixstar.errors import GateError, InputError, ModelError, NextStep
from fixstar.evaluation import VersionFeatures, cross_test, paired_bootstrap
from fixstar.evaluation.evidence import Difference
from fixstar.evaluation.labelled_vectors import LabelledVectors
from fixstar.evaluation.verdicts import highest_rate, needed_queries
from fixstar.translation import Translation
from fixstar.workspace import GateRules
from fixstar.workspace.checks import (
    ClassChange,
    FlippedAnswer,
    last_check,
    require_passed_check,
    save_check,
)
from fixstar.workspace.gate import GateResult, judge
from fixstar.workspace.pairs import Searched

CLASSES = 10


def version(name: str, wrong: Sequence[int], queries: int, instead: int = 1) -> VersionFeatures:
    """A version that finds the right class for all queries but some, and there the class ``instead`` further on."""
    found = np.arange(queries) % CLASSES
    found[list(wrong)] = (found[list(wrong)] + instead) % CLASSES
    return VersionFeatures(name, np.eye(CLASSES)[found], np.eye(CLASSES))


def labelled(*versions: VersionFeatures) -> LabelledVectors:
    names = dict(enumerate("abcdefghij"))
    return LabelledVectors(
        versions, np.arange(len(versions[0].queries)) % CLASSES, np.arange(CLASSES), names, {}
    )


def judged(tried: LabelledVectors, rules: GateRules | None = None) -> GateResult:
    """The verdict where all versions share a space: nothing is to be chosen, so all queries judge."""
    *older, newest = [one.name for one in tried.versions]
    searched = [Searched(name, (Translation.between_shared(name, newest),)) for name in older]
    return judge(tried, searched, rules)


def test_a_clear_gain_passes_and_flips_are_counted() -> None:
    old, new = (
        version("v1", range(200), 1000),
        version("v2", [*range(100), 555, 777], 1000, instead=2),
    )
    check = judged(labelled(old, new)).check
    assert (check.version, check.outcome, check.against) == ("v2", "pass", ("v1",))
    assert (check.self_test, check.queries, check.gallery) == (0.898, 1000, 10)
    (cell,) = check.cells
    assert (cell.self_test, cell.cross_test, cell.differing) == (0.8, 0.898, 102)
    assert (cell.negative_flips, cell.positive_flips) == (2, 100)
    assert cell.lost == (
        FlippedAnswer("f", "h"),
        FlippedAnswer("h", "j"),
    )  # 555 is of class 5, 777 of class 7
    assert len(cell.won) == 20
    assert {won.label for won in cell.won} == set("abcdefghij")
    assert all(won.found != won.label for won in cell.won)
    assert cell.classes[0] == ClassChange(
        "f", 100, 1, 10
    )  # net 9 won; the classes without a loss win 10
    assert sum(one.won for one in cell.classes) == 100
    expected = paired_bootstrap(np.arange(1000) >= 102, np.arange(1000) >= 200)
    assert 0 < cell.low < cell.difference < cell.high
    assert cell.low == pytest.approx(expected.low, abs=0.01)
    assert "+9.8 points" in check.reasons[0]
    assert require_passed_check(check, "v2", ["v1", "v2"]) is check
    with pytest.raises(GateError, match="before vectors of v0"):
        require_passed_check(check, "v2", ["v0", "v1"])


def test_a_clear_loss_is_refused() -> None:
    check = judged(labelled(version("v1", range(50), 1000), version("v2", range(150), 1000))).check
    assert check.outcome == "refuse"
    assert check.cells[0].verdict == "incompatible"
    assert (check.cells[0].negative_flips, len(check.cells[0].lost)) == (100, 20)
    assert {lost.label for lost in check.cells[0].lost} == set(
        "abcdefghij"
    )  # of each class in turn
    assert "this is not above it" in check.reasons[0]
    with pytest.raises(GateError, match="did not pass"):
        require_passed_check(check, "v2", ["v1"])


def test_too_little_evidence_is_told_in_numbers() -> None:
    check = judged(
        labelled(version("v1", range(20), 200), version("v2", [*range(8), *range(100, 107)], 200))
    ).check
    (cell,) = check.cells
    assert (cell.negative_flips, cell.positive_flips, cell.verdict) == (7, 12, "not decided")
    assert check.outcome == "missing evidence"
    by_hand = 200 * ((cell.difference - cell.low) / cell.difference) ** 2
    named = int(check.reasons[0].split("about ")[1].split(" ")[0].replace(",", ""))
    assert by_hand <= named < by_hand * 1.1
    assert named > 200
    assert f"about {2 * named:,} labelled images" in check.reasons[0]
    assert check.next_steps[0].arguments == {"version": "v2", "data": ...}
    assert check.next_steps[0].note == f"about {2 * named:,} labelled images"


def test_so_many_queries_as_it_names_do_decide() -> None:
    def tried(times: int) -> str:
        old, new = (
            np.tile(np.arange(200) < 20, times),
            np.tile(np.isin(np.arange(200), [*range(8), *range(100, 107)]), times),
        )
        sized = [
            version(name, np.flatnonzero(wrong).tolist(), 200 * times)
            for name, wrong in (("v1", old), ("v2", new))
        ]
        return judged(labelled(*sized)).check.outcome

    check = judged(
        labelled(version("v1", range(20), 200), version("v2", [*range(8), *range(100, 107)], 200))
    ).check
    cell = check.cells[0]
    needed = needed_queries(
        Difference(cell.difference, cell.low, cell.high, "not decided", cell.differing), 200, 0.95
    )
    assert needed is not None
    assert tried(needed // 200 - 2) == "missing evidence"
    assert tried(needed // 200 + 2) == "pass"


def test_a_tolerance_that_it_names_passes_or_comes_with_what_it_takes() -> None:
    old, new = (
        version("v1", range(20), 1000),
        version("v2", range(500, 520), 1000),
    )  # 20 lost, 20 won
    check = judged(labelled(old, new)).check
    assert (
        "as many are lost as won: if it stays like this, more images would not show a gain"
        in check.reasons[0]
    )
    assert check.reasons[0].endswith("these queries show that")
    (step,) = [step for step in check.next_steps if "tolerance" in step.arguments]
    named = float(str(step.arguments["tolerance"]))
    assert step.arguments == {"version": "v2", "tolerance": named}
    assert judged(labelled(old, new), GateRules(tolerance=named)).check.outcome == "pass"
    assert (
        judged(labelled(old, new), GateRules(tolerance=named - 0.01)).check.outcome
        == "missing evidence"
    )

    few = judged(labelled(version("v1", range(4), 28), version("v2", range(14, 18), 28))).check
    assert few.cells[0].low < -0.05  # no tolerance that somebody may mean is shown to be kept
    assert "these queries show that" not in few.reasons[0]
    needed = int(
        few.reasons[0]
        .split("points is acceptable, about ")[1]
        .split(" queries")[0]
        .replace(",", "")
    )
    by_hand = 28 * (few.cells[0].low / 0.01) ** 2
    assert by_hand <= needed < by_hand * 1.1
    assert {"version": "v2", "data": ..., "tolerance": 0.01} in [
        step.arguments for step in few.next_steps
    ]

    worse = judged(
        labelled(version("v1", [], 28), version("v2", range(4), 28))
    ).check  # a point would not do
    assert worse.outcome == "missing evidence"
    assert not any("tolerance" in step.arguments for step in worse.next_steps)


def test_a_tolerance_accepts_a_small_loss_and_no_larger_one() -> None:
    old, new = version("v1", range(50), 2000), version("v2", range(70), 2000)  # one point lost
    assert judged(labelled(old, new)).check.outcome == "refuse"
    accepted = judged(labelled(old, new), GateRules(tolerance=0.02)).check
    assert (accepted.outcome, accepted.tolerance, accepted.cells[0].verdict) == (
        "pass",
        0.02,
        "compatible",
    )
    assert "less than 2.0 points below it" in accepted.reasons[0]
    assert judged(labelled(old, new), GateRules(tolerance=0.01)).check.outcome == "missing evidence"
    assert judged(labelled(old, new), GateRules(tolerance=0.002)).check.outcome == "refuse"


def test_every_live_version_counts_and_what_decided_comes_first() -> None:
    poor, good, new = (
        version("v1", range(200), 1000),
        version("v2", range(20), 1000),
        version("v3", range(100), 1000),
    )
    check = judged(labelled(poor, good, new)).check
    assert [cell.verdict for cell in check.cells] == ["compatible", "incompatible"]
    assert check.outcome == "refuse"
    assert check.reasons[0].startswith("on v2's vectors")
    assert check.reasons[1].startswith("on v1's vectors")
    assert "for all 2 versions together" in check.reasons[0]
    close = version("v2", range(101), 1000)
    assert judged(labelled(poor, close, new)).check.outcome == "missing evidence"


def test_several_cells_share_the_error() -> None:
    """Bonferroni: 99 % for each of five cells, 95 % for one alone."""
    old, new = (
        version("v1", range(14), 400),
        version("v9", [*range(2), 300, 301, 302], 400),
    )  # 12 won, 3 lost
    alone = judged(labelled(old, new)).check
    many = judged(labelled(*(replace(old, name=f"v{k}") for k in range(5)), new)).check
    assert (alone.outcome, many.outcome) == ("pass", "missing evidence")
    hits = np.arange(400) >= 2, np.arange(400) >= 14
    hits[0][[300, 301, 302]] = False
    expected = paired_bootstrap(*hits, confidence=0.99)
    assert (many.cells[0].low, many.cells[0].high) == (expected.low, expected.high)
    assert alone.cells[0].low > many.cells[0].low


def test_where_hardly_anything_differs_the_exact_interval_of_rare_events_counts() -> None:
    assert highest_rate(0, 100, 0.95) == pytest.approx(1 - 0.025**0.01)
    assert highest_rate(1, 10, 0.95) == pytest.approx(
        0.4450, abs=1e-4
    )  # Clopper and Pearson's tables
    same = version("v1", [3], 100), version("v2", [3], 100)
    strict = judged(labelled(*same)).check
    assert strict.outcome == "missing evidence"
    assert any("tolerance" in step.arguments for step in strict.next_steps)
    tolerant = judged(labelled(*same), GateRules(tolerance=0.01)).check
    assert tolerant.outcome == "missing evidence"  # up to 3.6 points may have gone unseen
    assert tolerant.cells[0].low == pytest.approx(0.025**0.01 - 1)
    assert "about 370 queries would decide; there were 100" in tolerant.reasons[0]
    assert (
        judged(
            labelled(version("v1", [], 400), version("v2", [], 400)), GateRules(tolerance=0.01)
        ).check.outcome
        == "pass"
    )


def test_a_first_version_passes_and_says_why() -> None:
    check = judged(labelled(version("v1", range(30), 100))).check
    assert (check.outcome, check.cells, check.self_test) == ("pass", (), 0.7)
    check_wording(check.reasons[0])


def test_vectors_that_cannot_be_asked_about_do_not_pass() -> None:
    old, new = version("v1", range(200), 1000), version("v2", [], 1000)
    shared = Searched("v1", (Translation.between_shared("v1", "v2"),))
    step = NextStep("check", {"version": "v2", "pairs": ...})
    foreign = Searched("legacy", has_model=False, lacking="no pairs of legacy", next_steps=(step,))
    check = judge(labelled(old, new), [shared, foreign]).check
    assert check.outcome == "missing evidence"
    assert check.against == ("v1",)
    assert "legacy" in check.reasons[0]
    assert step in check.next_steps


def test_where_only_old_queries_are_possible_the_gain_is_not_measured() -> None:
    old, new = version("v1", range(200), 1000), version("v2", [], 1000)
    check = judge(
        labelled(old, new), [Searched("v1", (Translation.by_old_queries("v1", "v2"),))]
    ).check
    assert (check.outcome, check.cells) == ("missing evidence", ())


def test_a_gallery_is_searched_as_it_is_not_as_a_version_would_move_it() -> None:
    old = version("v1", range(20), 500)
    turned = np.roll(np.eye(CLASSES), 1, axis=1)
    new = VersionFeatures(
        "v2", old.queries @ turned, old.gallery @ turned, adapt=lambda vectors: vectors @ turned
    )
    labels = np.arange(500) % CLASSES, np.arange(CLASSES)
    assert cross_test([old, new], *labels, "image").matrix[1, 0] == 0.96
    check = judged(labelled(old, new)).check
    assert (check.outcome, check.cells[0].cross_test) == ("refuse", 0.0)


def test_a_mixture_that_is_worse_than_both_its_parts_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By cosine: a search goes by calibrations where there are some, and then this mixture is not worse."""
    e = np.eye(CLASSES + 2)
    fresh = (
        np.sqrt(0.4) * e[:CLASSES] + np.sqrt(0.6) * e[CLASSES]
    )  # new vectors of two classes: cosine 0.6
    stored = (
        0.5 / np.sqrt(0.4) * e[:CLASSES] + np.sqrt(1 - 0.625) * e[CLASSES + 1]
    )  # to new ones of its class: 0.5
    rows = np.arange(200) % CLASSES
    bad_old = np.where(np.arange(200)[:, None] < 40, stored[(rows + 1) % CLASSES], stored[rows])
    old, new = VersionFeatures("v1", bad_old, stored), VersionFeatures("v2", fresh[rows], fresh)
    assert judged(labelled(old, new)).check.notes == ()
    monkeypatch.setattr("fixstar.translation.calibrate.LEAST", 10_000)
    check = judged(labelled(old, new)).check
    assert (check.outcome, check.calibrations) == ("pass", {})
    note, why = check.notes
    assert "a partial backfill is worse than none" in note
    assert why.startswith("no calibrations")
    assert "all v1's (100.0 %) or all v2's (100.0 %)" in note
    assert judged(labelled(version("v1", range(40), 200), version("v2", [], 200))).check.notes == (
        why,
    )


def test_a_check_is_kept_and_a_damaged_one_is_not_believed(tmp_path: Path) -> None:
    check = judged(labelled(version("v1", range(20), 200), version("v2", [0, 150], 200))).check
    path = save_check(tmp_path, check)
    assert last_check(tmp_path, "v2") == check
    path.write_text(path.read_text().replace('"cells"', '"celery"'))
    with pytest.raises(ModelError, match="is damaged") as damaged:
        last_check(tmp_path, "v2")
    assert damaged.value.next_steps == (NextStep("check", {"version": "v2"}),)


@pytest.mark.parametrize(
    "wrong", [{"confidence": 95}, {"tolerance": -0.1}, {"tolerance": 1}, {"seed": -1}]
)
def test_odd_rules_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        GateRules(**wrong)  # type: ignore[arg-type]
