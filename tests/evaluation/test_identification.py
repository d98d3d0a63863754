"""Rank-k and open-set search against slow loops, exact ties and cases worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from wording import refuses

from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation.search import PROTOCOLS, cmc, rank_hits, templates
from fixstar.evaluation.verification import open_set_hits, tpir_at_fpir

Array = NDArray[Any]


def features(labels: Array, seed: int) -> Array:
    """[len(labels), 6], weak classes; unnormalised, with lengths spread over several orders of magnitude."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(12, 6))
    return (centres[labels] + 0.7 * rng.normal(size=(len(labels), 6))) * np.exp(
        rng.normal(0, 3, (len(labels), 1))
    )


TRUTH, LABELS = np.arange(90) % 12, np.arange(40) % 9  # classes 9, 10 and 11 are not in the gallery
QUERIES, GALLERY = features(TRUTH, seed=1), features(LABELS, seed=2)

Search = tuple[
    Array, Array, Array, Array, Array
]  # queries, truth, gallery, labels, exact scores [N, M]


@st.composite
def tied_searches(draw: st.DrawFn) -> Search:
    """Gallery vectors along the axes: a score is plus or minus one component of the query, so ties are exact."""
    axes = draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.sampled_from([-4.0, -1.0, 1.0])), min_size=1, max_size=9
        )
    )
    rows = draw(
        st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=6)
    )
    truth = draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    labels = draw(st.lists(st.integers(0, 2), min_size=len(axes), max_size=len(axes)))
    gallery = np.zeros((len(axes), 3))
    for item, (axis, length) in enumerate(axes):
        gallery[item, axis] = length
    return (
        np.array(rows),
        np.array(truth),
        gallery,
        np.array(labels),
        np.array(rows) @ gallery.clip(-1, 1).T,
    )


@given(tied_searches(), st.integers(1, 12))
@settings(max_examples=80, deadline=None)
def test_ties_agree_with_a_slow_loop(search: Search, k: int) -> None:
    queries, truth, gallery, labels, scores = search
    hits = rank_hits(queries, truth, gallery, labels, k)
    for row, line in enumerate(scores):
        first = sorted(range(len(line)), key=lambda item: (-line[item], item))[:k]
        assert hits[row] == any(labels[item] == truth[row] for item in first)
    assert cmc(queries, truth, gallery, labels, [k]) == {k: hits.mean()}


def test_rank_k_by_image_agrees_with_a_slow_loop() -> None:
    from sklearn.metrics.pairwise import cosine_similarity

    table = cosine_similarity(QUERIES, GALLERY)
    ranks = [1, 2, 7, 40, 41, 1000]
    expected = {}
    for k in ranks:
        slow = [TRUTH[row] in LABELS[np.argsort(-table[row])[:k]] for row in range(90)]
        assert rank_hits(QUERIES, TRUTH, GALLERY, LABELS, k).tolist() == slow
        expected[k] = np.mean(slow)
    assert cmc(QUERIES, TRUTH, GALLERY, LABELS, ranks) == expected
    assert 0 < expected[1] < expected[7] < expected[40] == (TRUTH < 9).mean() == expected[1000]


def test_rank_k_by_template_is_the_top_k_accuracy_of_scikit_learn() -> None:
    """Templates are classes, so Rank-k is top-k classification by cosine."""
    from sklearn.metrics import top_k_accuracy_score
    from sklearn.metrics.pairwise import cosine_similarity

    means, classes = templates(GALLERY, LABELS)
    known = TRUTH < 9
    table = cosine_similarity(QUERIES[known], means)
    curve = cmc(QUERIES[known], TRUTH[known], GALLERY, LABELS, [1, 3, 8], "template")
    for k, value in curve.items():
        assert value == pytest.approx(
            top_k_accuracy_score(TRUTH[known], table, k=k, labels=classes)
        )
    assert curve != cmc(QUERIES[known], TRUTH[known], GALLERY, LABELS, [1, 3, 8], "image")
    assert cmc(QUERIES[known], TRUTH[known], GALLERY, LABELS, [9, 100], "template") == {
        9: 1.0,
        100: 1.0,
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rank_1_is_the_search_protocol_of_that_name(protocol: str) -> None:
    hits = rank_hits(QUERIES, TRUTH, GALLERY, LABELS, 1, protocol)
    assert hits.dtype == np.bool_
    assert np.array_equal(hits, PROTOCOLS[protocol](QUERIES, TRUTH, GALLERY, LABELS))


def test_one_query_and_one_class() -> None:
    assert cmc(QUERIES[:1], LABELS[:1], GALLERY, LABELS * 0, [1]) == {1: 1.0}
    assert cmc(QUERIES[:1], LABELS[:1] + 5, GALLERY, LABELS * 0, [1, 40]) == {1: 0.0, 40: 0.0}


def slow_tpir(truth: Array, labels: Array, scores: Array, fpir: float) -> float:
    """The best TPIR over every threshold that could matter."""
    best = [max(range(len(line)), key=lambda item: (line[item], -item)) for line in scores]
    mated = [label in labels for label in truth]
    answers = [0.0]  # nothing reaches an infinite threshold
    for threshold in {scores[row][item] for row, item in enumerate(best)}:
        reached = [scores[row][item] >= threshold for row, item in enumerate(best)]
        false = [hit for hit, known in zip(reached, mated, strict=True) if not known]
        right = [
            hit and labels[item] == truth[row]
            for row, (hit, item) in enumerate(zip(reached, best, strict=True))
            if mated[row]
        ]
        if sum(false) / len(false) <= fpir:
            answers.append(sum(right) / len(right))
    return max(answers)


FPIRS = [0.0, 1e-3, 0.1, 0.25, 1 / 3, 0.5, 0.9, 1.0]


@pytest.mark.parametrize("fpir", FPIRS)
def test_tpir_agrees_with_a_slow_loop(fpir: float) -> None:
    from sklearn.metrics.pairwise import cosine_similarity

    scores = cosine_similarity(QUERIES, GALLERY)
    assert tpir_at_fpir(QUERIES, TRUTH, GALLERY, LABELS, fpir) == slow_tpir(
        TRUTH, LABELS, scores, fpir
    )
    means, classes = templates(GALLERY, LABELS)
    by_template = slow_tpir(TRUTH, classes, cosine_similarity(QUERIES, means), fpir)
    assert tpir_at_fpir(QUERIES, TRUTH, GALLERY, LABELS, fpir, "template") == by_template


@given(tied_searches(), st.sampled_from(FPIRS))
@settings(max_examples=80, deadline=None)
def test_tpir_with_ties_agrees_with_a_slow_loop(search: Search, fpir: float) -> None:
    queries, truth, gallery, labels, scores = search
    mated = np.isin(truth, labels)
    if mated.all() or not mated.any():
        with pytest.raises(InputError, match=f"got {mated.sum()} of {len(truth)} with it"):
            tpir_at_fpir(queries, truth, gallery, labels, fpir)
        return
    lengths = np.sqrt((queries.astype(np.float32) ** 2).sum(axis=1, keepdims=True))
    cosines = scores.astype(np.float32) / np.maximum(
        lengths, np.float32(1e-12)
    )  # as exact as the search's own
    assert tpir_at_fpir(queries, truth, gallery, labels, fpir) == slow_tpir(
        truth, labels, cosines, fpir
    )


def test_open_set_search_by_hand() -> None:
    """Mated: right at 1.0, wrong at 0.95, right at 0.6. Non-mated: 0.8 and 0.6, the latter tied with a right one."""
    gallery, labels = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), np.array([7, 8])
    wrong = [0.95, 0.0, np.sqrt(1 - 0.95**2)]
    queries = np.array([[5.0, 0, 0], wrong, [0.6, 0, 0.8], [0, 0.8, 0.6], [0, 0.6, 0.8]])
    truth = np.array([7, 8, 7, 1, 2])
    for fpir, answer in [
        (0, [1, 0, 0]),
        (0.4, [1, 0, 0]),
        (0.5, [1, 0, 0]),
        (0.99, [1, 0, 0]),
        (1, [1, 0, 1]),
    ]:
        hits = open_set_hits(queries, truth, gallery, labels, fpir)
        assert hits[:3].tolist() == answer
        assert np.isnan(hits[3:]).all()
        assert tpir_at_fpir(queries, truth, gallery, labels, fpir) == pytest.approx(sum(answer) / 3)


def test_a_looser_fpir_never_finds_less_and_ends_at_rank_1() -> None:
    values = [tpir_at_fpir(QUERIES, TRUTH, GALLERY, LABELS, fpir) for fpir in FPIRS]
    assert values == sorted(values)
    assert len(set(values)) > 3
    known = TRUTH < 9
    assert values[-1] == cmc(QUERIES[known], TRUTH[known], GALLERY, LABELS, [1])[1]


@pytest.mark.parametrize(
    "call",
    [
        lambda: rank_hits(QUERIES, TRUTH, GALLERY, LABELS, 0),
        lambda: cmc(QUERIES, TRUTH, GALLERY, LABELS, []),
        lambda: cmc(QUERIES, TRUTH, GALLERY, LABELS, [1, 0]),
        lambda: cmc(QUERIES, TRUTH[:3], GALLERY, LABELS),
        lambda: cmc(QUERIES, TRUTH, GALLERY, LABELS[:3]),
        lambda: cmc(QUERIES[:0], TRUTH[:0], GALLERY, LABELS),
        lambda: cmc(QUERIES, TRUTH, GALLERY[:0], LABELS[:0]),
        lambda: cmc(QUERIES, TRUTH, GALLERY[:, :5], LABELS),
        lambda: tpir_at_fpir(QUERIES, TRUTH % 9, GALLERY, LABELS, 0.1),
        lambda: tpir_at_fpir(QUERIES, TRUTH + 99, GALLERY, LABELS, 0.1),
        lambda: tpir_at_fpir(QUERIES, TRUTH, GALLERY, LABELS, 10),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object]) -> None:
    with refuses(InputError):
        call()


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'template'"):
        cmc(QUERIES, TRUTH, GALLERY, LABELS, protocol="templates")
