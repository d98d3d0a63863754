"""The choice of maps and weights: what searches find, by one model or two, and no change for chance."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from wording import refuses

from fixstar.errors import ModelError
from fixstar.evaluation import VersionFeatures
from fixstar.evaluation.search import image_search
from fixstar.geometry import unit
from fixstar.translation import Evidence, Map, Translation, by_class, choose, translated
from fixstar.translation.choose import WEIGHTS, gain, with_fewest_models
from fixstar.translation.fit import Pairs, fit_whitening
from fixstar.translation.translation import USUAL

Array = NDArray[np.float64]

CLASSES = 20


def seen_by(noise: float, seed: int, count: int) -> Array:
    """Items around one centre per class, the same centres for every seed."""
    centres = unit(np.random.default_rng(99).standard_normal((CLASSES, 16)))
    return unit(
        centres[np.arange(count) % CLASSES]
        + noise * np.random.default_rng(seed).standard_normal((count, 16))
    )


def evidence(
    old_noise: float, new_noise: float, queries: int = 400, gallery: int = 100
) -> Evidence:
    """Two versions whose errors are independent; v2's space is a rotation of v1's."""
    old = VersionFeatures("v1", seen_by(old_noise, 1, queries), seen_by(0.1, 2, gallery))
    new = VersionFeatures(
        "v2", seen_by(new_noise, 3, queries) @ TURN, seen_by(0.1, 4, gallery) @ TURN
    )
    return Evidence(old, new, by_class(np.arange(queries) % CLASSES, np.arange(gallery) % CLASSES))


TURN = np.linalg.qr(np.random.default_rng(5).standard_normal((16, 16)))[0]
WRONG = np.linalg.qr(np.random.default_rng(6).standard_normal((16, 16)))[0]


def way(turn: Array = TURN, back: Array = TURN) -> Translation:
    return Translation("v1", "v2", Map.linear(turn), Map.linear(back.T), one=USUAL, two=USUAL)


def test_outcomes_by_weight_are_those_of_translated_views() -> None:
    tried = evidence(0.4, 0.5)
    rows = np.random.default_rng(0).permutation(400)[:150]
    labels = np.arange(400) % CLASSES, np.arange(100) % CLASSES
    for models in ("one", "two"):
        found = tried.by_weight(way(), models, WEIGHTS, rows)
        assert list(found) == list(WEIGHTS)
        for weight, hits in found.items():
            weights: dict[str, Any] = {"one": weight, "two": None if models == "one" else weight}
            asked = Translation("v1", "v2", way().forward, way().backward, **weights)
            seen = translated(asked, tried.old, tried.new)
            expected = image_search(seen.queries, labels[0], seen.gallery, labels[1])
            assert hits.tolist() == expected[rows].tolist(), (models, weight)
            assert tried.outcomes(asked).tolist() == expected.tolist()


def test_queries_are_measured_in_blocks_with_their_own_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = evidence(0.4, 0.5, queries=60)
    seen: list[int] = []

    def measure(scores: Any, rows: Any) -> Any:
        assert scores.shape == (len(rows), 100)
        seen.extend(rows.tolist())
        return rows / 100

    recorded = Evidence(tried.old, tried.new, measure)
    monkeypatch.setattr(sys.modules["fixstar.translation.choose"], "_BLOCK", 7)
    rows = np.arange(59, -1, -3)
    assert recorded.by_weight(way(), "two", [0.5], rows)[0.5].tolist() == (rows / 100).tolist()
    assert seen == rows.tolist()
    assert tried.before().tolist() == evidence(0.4, 0.5, queries=60).before().tolist()


def test_the_ends_are_the_versions_themselves() -> None:
    tried = evidence(0.4, 0.5)
    truth, labels = np.arange(400) % CLASSES, np.arange(100) % CLASSES
    for version, found in ((tried.old, tried.before()), (tried.new, tried.reembedded())):
        expected = image_search(version.queries, truth, version.gallery, labels)
        assert found.tolist() == expected.tolist()
    kept = tried.outcomes(Translation.by_old_queries("v1", "v2"))
    assert kept.tolist() == tried.before().tolist()


def test_of_equal_scores_the_first_item_counts() -> None:
    measure = by_class(np.array([4, 5, 6]), np.array([5, 4, 5]))
    scores = np.array([[0.5, 0.5, 0.1], [0.5, 0.5, 0.1]])
    assert measure(scores, np.array([0, 1])).tolist() == [False, True]


def test_two_models_are_better_than_one_where_their_errors_are_independent() -> None:
    tried = evidence(0.5, 0.5)
    rows = np.arange(400)
    both = choose([way()], tried, rows, two=True)
    assert both.one is not None
    assert both.two is not None
    assert tried.outcomes(both).mean() > tried.before().mean()
    assert tried.outcomes(both).mean() > tried.outcomes(both.with_one_model()).mean()
    alone = choose([way()], tried, rows, two=False)
    assert (alone.two, alone.models) == (None, ("v2",))
    assert alone.one == both.one


def test_the_better_maps_are_chosen_and_bad_ones_get_no_weight() -> None:
    tried = evidence(0.4, 0.3)
    rows = np.arange(0, 400, 2)
    wrong, right = way(WRONG, WRONG), way()
    assert choose([wrong, right], tried, rows, two=False).forward is right.forward
    assert choose([right, wrong], tried, rows, two=False).forward is right.forward
    with_old = choose([wrong], tried, rows, two=True)
    assert with_old.two is not None
    assert with_old.two < USUAL
    half = choose(
        [way(WRONG, TURN)], tried, rows, two=False
    )  # forward leads nowhere, back leads home
    assert half.one is not None
    assert half.one < 0.5


def test_few_queries_keep_the_usual_weight() -> None:
    tried = evidence(0.5, 0.5)
    for start in range(0, 400, 40):
        rows = np.arange(start, start + 4)
        found = tried.by_weight(way(), "two", WEIGHTS, rows)
        gains = [gain(hits, found[USUAL]) for hits in found.values()]
        expected = WEIGHTS[int(np.argmax(gains))] if max(gains) > 0 else USUAL
        assert choose([way()], tried, rows, two=True).two == expected
    alone = choose([way()], tried, np.array([7]), two=True)
    assert (alone.one, alone.two) == (USUAL, USUAL)  # one query is no evidence


@pytest.mark.parametrize(("won", "expected"), [(0, USUAL), (1, USUAL), (2, 0.8), (30, 0.8)])
def test_another_weight_must_gain_more_than_its_standard_error(won: int, expected: float) -> None:
    """The item e0 is right. All queries find it but some, which do where w / 3 > 1 - w: from w = 0.8 on."""
    rows = np.arange(100)
    late = (rows < won)[:, None]
    asked_ahead = np.where(late, [1 / 3, 0, (8 / 9) ** 0.5], [1.0, 0, 0])
    asked_back = np.where(late, [0, 1.0, 0], [1.0, 0, 0])
    gallery = np.eye(3)[:2]
    old, new = (
        VersionFeatures("v1", asked_back, gallery),
        VersionFeatures("v2", asked_ahead, gallery),
    )
    tried = Evidence(old, new, by_class(np.zeros(100, np.int64), np.arange(2)))
    plain = Translation("v1", "v2", Map.linear(np.eye(3)), two=USUAL)
    assert choose([plain], tried, rows, two=True).two == expected


def test_a_choice_does_not_see_other_queries() -> None:
    tried = evidence(0.5, 0.5)
    rows = np.arange(100)

    def only(scores: Any, asked: Any) -> Any:
        assert np.isin(asked, rows).all()
        return tried.measure(scores, asked)

    choose([way(), way(WRONG, WRONG)], Evidence(tried.old, tried.new, only), rows, two=True)


@settings(max_examples=60)
@given(
    before=st.lists(st.booleans(), min_size=1, max_size=40),
    seed=st.integers(0, 2**16),
    share=st.floats(0, 0.5),
)
def test_a_gain_is_larger_than_its_standard_error(
    before: list[bool], seed: int, share: float
) -> None:
    usual = np.array(before)
    flipped = np.random.default_rng(seed).random(len(usual)) < share
    outcomes = usual ^ flipped
    differences = outcomes.astype(float) - usual.astype(float)
    mean = differences.mean()
    found = gain(outcomes, usual)
    assert found == 0 or found == pytest.approx(mean)
    if flipped.sum() < 2:
        assert found == 0  # one query is as large as its own error
    if len(usual) > 1 and flipped.sum() >= 2:
        error = (np.sum((differences - mean) ** 2) / (len(usual) - 1) / len(usual)) ** 0.5
        assert (found > 0) == (mean > error * (1 + 1e-9))


def test_one_model_is_taken_where_it_finds_as_much() -> None:
    rows = np.arange(400)
    for noises in ((0.5, 0.5), (1.5, 0.2), (0.2, 1.5)):
        tried = evidence(*noises)
        one = tried.by_weight(way(), "one", [USUAL], rows)[USUAL].mean()
        two = tried.by_weight(way(), "two", [USUAL], rows)[USUAL].mean()
        found = with_fewest_models(way(), tried, rows)
        assert (found.two is None) == (one >= two), noises
    assert with_fewest_models(way(), evidence(1.5, 0.2), rows).two is None
    assert with_fewest_models(way(), evidence(0.2, 1.5), rows).two is not None


def one_sided(lean: float) -> tuple[Evidence, Map]:
    """v1's vectors lean in one direction that says nothing, as far as ``lean``; v2 is noisy."""
    rng = np.random.default_rng(11)
    direction = unit(np.ones((1, 16)))

    def leaning(seed: int, count: int) -> Array:
        return unit(seen_by(0.15, seed, count) + lean * rng.standard_normal((count, 1)) * direction)

    old = VersionFeatures("v1", leaning(1, 400), leaning(2, 100))
    new = VersionFeatures("v2", seen_by(0.6, 3, 400) @ TURN, seen_by(0.6, 4, 100) @ TURN)
    tried = Evidence(old, new, by_class(np.arange(400) % CLASSES, np.arange(100) % CLASSES))
    whitening = fit_whitening(Pairs.checked(leaning(5, 2000), leaning(6, 2000)))
    assert whitening is not None
    return tried, whitening


def test_the_old_side_is_whitened_where_that_gains() -> None:
    tried, whitening = one_sided(3.0)
    rows = np.arange(0, 400, 2)
    given = replace(way(), whitening=whitening)
    found = choose([given], tried, rows, two=True)
    assert (found.whitened, found.whitening) == (True, whitening)
    assert found.two is not None
    assert found.two > 0
    plain = choose([way()], tried, rows, two=True)
    others = np.arange(1, 400, 2)
    assert tried.outcomes(found)[others].mean() > tried.outcomes(plain)[others].mean() + 0.03


def test_the_old_side_stays_as_it_is_where_whitening_does_not_gain() -> None:
    tried, _ = one_sided(0.0)
    rows = np.arange(0, 400, 2)
    # a whitening that blows up what says nothing
    worse = Map.linear(np.diag([1.0, *[1e-3] * 15]))
    found = choose([replace(way(), whitening=worse)], tried, rows, two=True)
    plain = choose([way()], tried, rows, two=True)
    assert (found.whitened, found.whitening) == (False, None)
    assert (found.one, found.two) == (plain.one, plain.two)


def test_a_whitening_that_was_chosen_before_stays() -> None:
    tried, whitening = one_sided(0.0)
    given = replace(way(), whitening=whitening, whitened=True)
    found = choose([given], tried, np.arange(400), two=False)
    assert found.whitened
    assert found.one is not None
    assert found.one > 0


def test_without_a_map_back_two_models_must_ask() -> None:
    tried = evidence(0.5, 0.5)
    ahead = Translation("v1", "v2", Map.linear(TURN), two=USUAL)
    found = choose([ahead], tried, np.arange(400), two=True)
    assert (found.one, found.backward) == (None, None)
    with refuses(ModelError):
        choose([ahead], tried, np.arange(400), two=False)


def test_a_shared_space_needs_no_maps() -> None:
    old = VersionFeatures("v1", seen_by(0.5, 1, 400), seen_by(0.1, 2, 100))
    new = VersionFeatures("v2", seen_by(0.4, 3, 400), seen_by(0.1, 4, 100))
    tried = Evidence(old, new, by_class(np.arange(400) % CLASSES, np.arange(100) % CLASSES))
    direct = Translation.between_shared("v1", "v2")
    found = choose([direct], tried, np.arange(400), two=False)
    assert (found.one, found.shared, found.forward) == (0.0, True, None)
    identity = Translation("v1", "v2", Map.linear(np.eye(16)), one=0.5, shared=True)
    np.testing.assert_array_equal(tried.outcomes(identity), tried.outcomes(direct))
