"""The gate where the new version has a space of its own: how a translation is chosen, judged and kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixstar.errors import GateError, InputError
from fixstar.evaluation import VersionFeatures, paired_bootstrap
from fixstar.evaluation.labelled_vectors import LabelledVectors
from fixstar.evaluation.verdicts import halves
from fixstar.geometry import unit
from fixstar.translation import Translation
from fixstar.translation.choose import WEIGHTS
from fixstar.translation.fit import Pairs, fit_translations
from fixstar.workspace import GateRules
from fixstar.workspace.checks import gain_sentence, last_check, require_one_model, save_check
from fixstar.workspace.gate import judge
from fixstar.workspace.pairs import Sample, Searched

CLASSES = 20
QUERIES = 1200
WIDTH = 16


def noisy(seed: int, noise: float, images: int = QUERIES) -> Any:
    """Vectors around one centre per class; the same centres for every seed."""
    centres = unit(np.random.default_rng(99).normal(size=(CLASSES, WIDTH)))
    drawn = np.random.default_rng(seed).normal(size=(images, WIDTH))
    return unit(centres[np.arange(images) % CLASSES] + noise * drawn).astype(np.float32)


def turned(vectors: Any, seed: int = 5) -> Any:
    """The same vectors in a wider space, where they lie elsewhere."""
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(24, 24)))[0][:WIDTH]
    return (vectors @ turn).astype(np.float32)


def labelled(old: float, new: float, queries: int = QUERIES) -> LabelledVectors:
    """Two versions whose errors are independent: both together are better than one alone."""
    versions = [
        VersionFeatures("v1", noisy(10, old, queries), noisy(20, 0.4, 5 * CLASSES)),
        VersionFeatures("v2", turned(noisy(11, new, queries)), turned(noisy(20, 0.1, 5 * CLASSES))),
    ]
    return LabelledVectors(
        versions, np.arange(queries) % CLASSES, np.arange(5 * CLASSES) % CLASSES, {}, {}
    )


@pytest.fixture(scope="module")
def ways() -> tuple[Translation, ...]:
    """What is fitted on images without labels, which no query is one of."""
    pairs = Pairs.checked(noisy(1, 0.5, 2000), turned(noisy(1, 0.5, 2000)))
    return tuple(fit_translations(pairs, "v1", "v2"))


def right(scores: Any, rows: Iterable[int]) -> list[bool]:
    """Whether the nearest item is of the query's class, query by query."""
    return [int(np.argmax(scores[row])) % CLASSES == row % CLASSES for row in rows]


def slow_scores(way: Translation, made: LabelledVectors, weight: float, own: bool) -> Any:
    """w cos(q, F(z)) + (1 - w) cos(b, z), pair by pair."""
    old, new = made.versions
    assert way.forward is not None
    assert way.backward is not None
    asked = old.queries if own else way.backward(new.queries)
    ahead = way.forward(old.gallery)
    scores = np.empty((len(new.queries), len(old.gallery)))
    for row in range(len(new.queries)):
        for item in range(len(old.gallery)):
            there = float(new.queries[row] @ ahead[item])
            back = float(asked[row] @ old.gallery[item])
            scores[row, item] = weight * there + (1 - weight) * back
    return scores


def test_half_chooses_the_other_half_judges_and_all_figures_are_of_that_half(
    ways: tuple[Translation, ...],
) -> None:
    made = labelled(0.6, 0.45)
    found = judge(made, [Searched("v1", ways)])
    check = found.check
    (cell,) = check.cells
    _, judging = halves(made.query_labels, 0)
    assert check.queries == len(judging) == QUERIES // 2
    way = found.chosen["v1"]
    assert cell.reembedded is not None
    assert cell.models == ("v2", "v1")
    assert cell.weight in WEIGHTS
    old, new = made.versions
    after = right(slow_scores(way, made, cell.weight, own=True), judging)
    before = right(old.queries @ old.gallery.T, judging)
    assert cell.cross_test == pytest.approx(np.mean(after))
    assert cell.self_test == pytest.approx(np.mean(before))
    assert cell.reembedded == pytest.approx(np.mean(right(new.queries @ new.gallery.T, judging)))
    expected = paired_bootstrap(np.array(after), np.array(before))
    assert (cell.low, cell.high) == pytest.approx((expected.low, expected.high))
    assert (check.outcome, cell.verdict) == ("pass", "compatible")
    assert cell.share_at_once == pytest.approx(cell.difference / (cell.reembedded - cell.self_test))
    for figure in (cell.self_test, cell.cross_test, cell.reembedded):
        assert f"{100 * figure:.1f} %" in gain_sentence("v2", cell)


def test_one_model_per_query_is_judged_beside_two(ways: tuple[Translation, ...]) -> None:
    made = labelled(0.6, 0.45)
    found = judge(made, [Searched("v1", ways)])
    (cell,) = found.check.cells
    alone = cell.one_model
    assert alone is not None
    _, judging = halves(made.query_labels, 0)
    after = right(slow_scores(found.chosen["v1"], made, alone.weight, own=False), judging)
    assert alone.cross_test == pytest.approx(np.mean(after))
    assert alone.verdict == "compatible"
    require_one_model(found.check, "v2")
    poor = labelled(0.35, 0.6)
    check = judge(poor, [Searched("v1", ways)]).check
    one = check.cells[0].one_model
    assert one is not None
    assert one.verdict != "compatible"
    with pytest.raises(GateError):
        require_one_model(check, "v2")


def test_without_the_old_model_here_one_model_asks(ways: tuple[Translation, ...]) -> None:
    """Labelled items that both versions have vectors of judge; half of them choose."""
    labels: list[str | None] = [str(number % CLASSES) for number in range(800)]
    sample = Sample(noisy(7, 0.5, 800), turned(noisy(8, 0.3, 800)), labels)
    alone = tuple(way.with_one_model() for way in ways)
    made = replace(labelled(0.6, 0.45), versions=labelled(0.6, 0.45).versions[1:])
    found = judge(made, [Searched("v1", alone, has_model=False, sample=sample)])
    (cell,) = found.check.cells
    assert cell.models == ("v2",)
    assert cell.one_model is None
    assert found.chosen["v1"].two is None
    assert cell.verdict == "compatible"
    assert found.check.outcome == "pass"


def test_a_weight_that_is_given_needs_no_query_to_choose_it(ways: tuple[Translation, ...]) -> None:
    made = labelled(0.6, 0.45)
    check = judge(made, [Searched("v1", ways)], GateRules(weight=0.3)).check
    assert (check.cells[0].weight, check.queries) == (0.3, QUERIES)
    with pytest.raises(InputError, match="weight"):
        GateRules(weight=1.5)


def test_a_worse_model_does_not_pass_and_old_queries_are_offered(
    ways: tuple[Translation, ...],
) -> None:
    check = judge(labelled(0.2, 1.2), [Searched("v1", ways)]).check
    assert check.outcome != "pass"
    assert {"version": "v2", "queries": "old"} in [step.arguments for step in check.next_steps]


def test_too_few_queries_do_not_decide_and_say_how_many_would(
    ways: tuple[Translation, ...],
) -> None:
    check = judge(labelled(0.5, 0.5, queries=60), [Searched("v1", ways)]).check
    assert check.outcome == "missing evidence"
    assert check.queries == 30
    assert any(step.arguments.get("data") is ... for step in check.next_steps)


def test_all_verdicts_hold_together(ways: tuple[Translation, ...]) -> None:
    """Bonferroni: 97.5 % for each of two versions."""
    made = labelled(0.6, 0.45)
    old, new = made.versions
    both = replace(made, versions=[replace(old, name="v0"), old, new])
    others = tuple(replace(way, source="v0") for way in ways)
    rules = GateRules(weight=0.6)
    check = judge(both, [Searched("v0", others), Searched("v1", ways)], rules).check
    assert check.against == ("v0", "v1")
    alone = judge(made, [Searched("v1", ways)], rules).check
    for cell in check.cells:
        assert cell.cross_test == alone.cells[0].cross_test
        assert cell.low < alone.cells[0].low
    after = right(slow_scores(ways[0], made, 0.6, own=True), range(QUERIES))
    before = right(old.queries @ old.gallery.T, range(QUERIES))
    expected = paired_bootstrap(np.array(after), np.array(before), confidence=0.975)
    assert check.cells[0].low == pytest.approx(expected.low)


def test_a_check_with_translations_is_kept(tmp_path: Path, ways: tuple[Translation, ...]) -> None:
    check = judge(labelled(0.6, 0.45), [Searched("v1", ways)]).check
    save_check(tmp_path, check)
    assert last_check(tmp_path, "v2") == check
