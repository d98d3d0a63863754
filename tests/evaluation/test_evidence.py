"""The paired bootstrap against literal resampling of rows, and its coverage by simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from wording import refuses

from fixstar import geometry
from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation import evidence
from fixstar.evaluation.cross_test import CrossTest, cross_test
from fixstar.evaluation.evidence import (
    CellEvidence,
    ClassFlips,
    cell_evidence,
    flips,
    found_before_after,
    paired_bootstrap,
    verdicts,
)
from fixstar.evaluation.features import VersionFeatures

Array = NDArray[Any]


def hits_with(positive: int, negative: int, both: int = 0, neither: int = 0) -> tuple[Array, Array]:
    """(cross, old): so many queries won, lost, right in both and wrong in both."""
    counts = [positive, negative, both, neither]
    return np.repeat([True, False, True, False], counts), np.repeat(
        [False, True, True, False], counts
    )


def literal_means(cross: Array, old: Array, resamples: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(resamples):
        rows = rng.integers(len(cross), size=len(cross))
        means.append(cross[rows].mean() - old[rows].mean())
    return np.array(means)


def test_three_counts_are_the_same_experiment_as_drawing_rows() -> None:
    from scipy import stats

    cross, old = hits_with(positive=30, negative=20, both=100, neither=50)
    quick = evidence._means_over_queries(
        np.subtract(cross, old, dtype=np.int8), 20_000, np.random.default_rng(1)
    )
    slow = literal_means(cross, old, 20_000, seed=2)
    steps = [np.rint(means * 200).astype(int) for means in (quick, slow)]  # whole queries of 200
    assert stats.ks_2samp(*steps).pvalue > 0.001
    assert abs(quick.mean() - 0.05) < 0.002
    assert quick.std() == pytest.approx(np.sqrt((0.25 - 0.05**2) / 200), rel=0.03)
    uneven = literal_means(*hits_with(30, 20, 140, 10), 20_000, seed=2)
    assert np.array_equal(
        np.rint(uneven * 200).astype(int), steps[1]
    )  # what both have in common does not matter


@pytest.mark.parametrize("draw", ["queries", "clusters"])
def test_as_many_are_drawn_as_there_are(draw: str) -> None:
    """With five, one more or less changes what a mean can be, and its spread by a tenth."""
    differences = np.array([1, 1, 0, 0, -1], np.int8)
    rng = np.random.default_rng(4)
    if draw == "queries":
        means = evidence._means_over_queries(differences, 20_000, rng)
    else:
        means = evidence._means_over_clusters(
            differences.astype(np.float64), np.ones(5), 20_000, rng
        )
    assert np.allclose(means * 5, np.rint(means * 5))  # sums of five
    assert set(np.rint(means * 5).astype(int)) == set(range(-5, 6))
    assert means.mean() == pytest.approx(differences.mean(), abs=0.01)
    assert means.std() == pytest.approx(differences.std() / np.sqrt(5), rel=0.03)


def test_the_interval_agrees_with_the_bootstrap_of_scipy() -> None:
    """Fractions, so that rows are drawn. With 400 queries the t factor is invisible."""
    from scipy import stats

    rng = np.random.default_rng(3)
    cross, old = rng.random(400), rng.random(400) ** 1.5
    found = paired_bootstrap(cross, old, resamples=8000)
    theirs = stats.bootstrap(
        (cross - old,), np.mean, n_resamples=8000, method="percentile", rng=4
    ).confidence_interval
    assert found.mean == pytest.approx((cross - old).mean())
    assert (found.low, found.high) == pytest.approx(theirs, abs=0.003)
    assert found.differing == 400


def test_fractions_of_few_values_are_hits_in_another_form() -> None:
    cross, old = hits_with(40, 20, 100, 40)
    assert paired_bootstrap(cross.astype(float), old.astype(float)) == paired_bootstrap(cross, old)
    assert paired_bootstrap(cross.astype(int), old) == paired_bootstrap(cross, old)


@pytest.mark.parametrize(
    ("positive", "negative", "verdict"),
    [
        (60, 20, "compatible"),
        (20, 60, "incompatible"),
        (42, 38, "not decided"),
        (0, 0, "not decided"),  # the same answers throughout: no query tells the two apart
        (5, 0, "not decided"),  # five coins agree once in sixteen times
        (0, 5, "not decided"),
        (6, 0, "compatible"),
        (0, 6, "incompatible"),
        (400, 0, "compatible"),
    ],
)
def test_verdicts_by_hand(positive: int, negative: int, verdict: str) -> None:
    found = paired_bootstrap(*hits_with(positive, negative, 300, 300))
    assert found.verdict == verdict
    assert found.mean == (positive - negative) / (600 + positive + negative)
    assert found.low <= found.mean <= found.high
    assert found.differing == positive + negative


def test_an_interval_that_ends_at_zero_is_no_evidence_for_the_strict_criterion() -> None:
    assert evidence._verdict(0.0, 0.1, 50, 0.95) == "not decided"
    assert evidence._verdict(1e-9, 0.1, 50, 0.95) == "compatible"
    assert evidence._verdict(-0.1, 0.0, 50, 0.95) == "incompatible"
    assert evidence._verdict(-0.1, 1e-9, 50, 0.95) == "not decided"
    assert evidence._verdict(0.1, 0.2, 6, 0.99) == "not decided"  # 2^-5 > 0.01
    assert evidence._verdict(0.1, 0.2, 8, 0.99) == "compatible"


def test_one_query_proves_nothing() -> None:
    assert paired_bootstrap([True], [False]) == evidence.Difference(
        1.0, -1.0, 1.0, "not decided", 1
    )
    one_cluster = paired_bootstrap(*hits_with(60, 0), clusters=np.zeros(60, int))
    assert (one_cluster.low, one_cluster.high, one_cluster.verdict) == (-1.0, 1.0, "not decided")


def coverage(
    make: Callable[[np.random.Generator], tuple[Array, Array, Array | None]], truth: float
) -> float:
    inside = 0
    for trial in range(600):
        cross, old, clusters = make(np.random.default_rng(trial))
        found = paired_bootstrap(cross, old, resamples=500, seed=trial, clusters=clusters)
        inside += found.low <= truth <= found.high
    return inside / 600


@pytest.mark.parametrize(
    ("N", "won", "lost"), [(300, 0.12, 0.08), (1000, 0.006, 0.006), (30, 0.3, 0.3)]
)
def test_the_interval_covers_the_truth_as_often_as_it_says(N: int, won: float, lost: float) -> None:
    def make(rng: np.random.Generator) -> tuple[Array, Array, None]:
        where = rng.random(N)
        return where < won, where > 1 - lost, None

    assert 0.925 < coverage(make, won - lost) < 0.98  # 0.95, with 600 trials: 0.009 standard error


def test_clusters_are_needed_where_classes_rise_and_fall_together() -> None:
    """Ten classes of a hundred queries; what a class wins or loses is its own. The truth over all classes is 0."""

    def make(rng: np.random.Generator, grouped: bool) -> tuple[Array, Array, Array | None]:
        classes = np.repeat(np.arange(10), 100)
        tendency = rng.uniform(-0.1, 0.1, 10)[classes]
        where = rng.random(1000)
        return where < 0.15 + tendency, where > 0.85 + tendency, classes if grouped else None

    assert 0.92 < coverage(lambda rng: make(rng, True), 0) < 0.98
    assert coverage(lambda rng: make(rng, False), 0) < 0.75


def test_whole_clusters_are_drawn_with_their_size() -> None:
    """Three clusters of differences: ten times 1, once 0, once -1. Every draw of three clusters can be listed."""
    cross, old = hits_with(10, 1, 0, 1)
    clusters = np.array(["a"] * 10 + ["c"] + ["b"])
    sums, sizes = evidence._cluster_sums(np.subtract(cross, old, dtype=np.int8), clusters)
    assert (sums.tolist(), sizes.tolist()) == ([10, 0, -1], [10, 1, 1])
    means = evidence._means_over_clusters(sums, sizes, 5000, np.random.default_rng(5))
    draws = [(i, j, k) for i in range(3) for j in range(3) for k in range(3)]
    possible = [sums[list(draw)].sum() / sizes[list(draw)].sum() for draw in draws]
    assert set(np.round(means, 9)) == set(np.round(possible, 9))
    assert means.mean() == pytest.approx(np.mean(possible), abs=0.03)


def test_clusters_of_one_query_are_queries() -> None:
    rng = np.random.default_rng(6)
    cross, old = rng.random(200), rng.random(200)
    alone = paired_bootstrap(cross, old, clusters=np.arange(200)[::-1])
    plain = paired_bootstrap(cross, old)
    assert (alone.low, alone.high) == pytest.approx((plain.low, plain.high), abs=0.01)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("freedom", [3, 4, 9, 50, 10_000])
def test_student_quantiles(freedom: int, confidence: float) -> None:
    from scipy import stats

    z = stats.norm.ppf((1 + confidence) / 2)
    assert evidence._student_quantile(z, freedom) == pytest.approx(
        stats.t.ppf((1 + confidence) / 2, freedom), rel=0.015
    )


def test_tails_are_those_of_the_normal_interval_with_many_units_and_vanish_with_two() -> None:
    assert evidence._tail(10**6, 0.95) == pytest.approx(0.025, rel=1e-4)
    assert 0.005 < evidence._tail(10, 0.95) < 0.012
    assert evidence._tail(2, 0.95) < 1e-12


def test_the_tail_at_ten_units_by_hand() -> None:
    """Resampled means have the standard error s' / sqrt(n), s' with divisor n, but t wants s, with divisor n - 1.

    s = s' sqrt(n / (n - 1)). At n = 10 the ends lie t sqrt(10 / 9) = 2.2622 * 1.0541 = 2.3845 errors of the resampled
    means away, beyond which a normal distribution has 0.0086.
    """
    from scipy import stats

    assert evidence._tail(10, 0.95) == pytest.approx(0.0086, abs=0.0001)
    sample = np.random.default_rng(8).random(10)
    reached = -stats.norm.ppf(evidence._tail(10, 0.95)) * sample.std(ddof=0) / np.sqrt(10)
    low, high = stats.t.interval(0.95, 9, scale=sample.std(ddof=1) / np.sqrt(10))
    assert (-reached, reached) == pytest.approx((low, high), rel=0.001)


def test_the_seed_decides_and_the_order_of_queries_does_not() -> None:
    cross, old = hits_with(30, 25, 100, 100)
    shuffle = np.random.default_rng(7).permutation(len(cross))
    assert paired_bootstrap(cross, old) == paired_bootstrap(cross[shuffle], old[shuffle])
    assert any(
        paired_bootstrap(cross, old, seed=seed) != paired_bootstrap(cross, old)
        for seed in range(1, 5)
    )


def test_more_confidence_is_a_wider_interval() -> None:
    pair = hits_with(30, 25, 100, 100)
    narrow, wide = (paired_bootstrap(*pair, confidence=c, resamples=5000) for c in (0.8, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def three_versions() -> CrossTest:
    """C[1, 0] clearly above C[0, 0]; C[2, 0] clearly below; C[2, 1] a little above C[1, 1]."""
    place = np.arange(1000)
    rows = {(0, 0): 500, (1, 0): 600, (1, 1): 700, (2, 0): 400, (2, 1): 707, (2, 2): 800}
    hits = {cell: place < count for cell, count in rows.items()}
    hits[0, 1] = place < 10  # above the diagonal: not a cross-test of an upgrade
    return CrossTest(("a", "b", "c"), "image", np.zeros((3, 3)), hits)


def test_verdicts_of_a_matrix() -> None:
    result = three_versions()
    cells = verdicts(result)
    assert list(cells) == [(1, 0), (2, 0), (2, 1)]
    assert [cells[cell].verdict for cell in cells] == ["compatible", "incompatible", "compatible"]
    assert cells[2, 1] == paired_bootstrap(result.hits[2, 1], result.hits[1, 1])
    assert cell_evidence(cells) == CellEvidence(2, 1, 0)
    assert cell_evidence(cells).ac_range == pytest.approx((2 / 3, 2 / 3))


def test_a_family_of_cells_needs_more_evidence() -> None:
    """Seven queries are enough for one cell, 2^-6 < 0.05, but not for one of three: 2^-6 is just below 0.05 / 3; six
    are not, 2^-5 > 0.05 / 3."""
    result = three_versions()
    result.hits[2, 1] = np.arange(1000) < 706
    cells, matrix = verdicts(result), verdicts(result, family="matrix")
    assert cells[2, 1].verdict == "compatible"
    assert matrix[2, 1].verdict == "not decided"
    for cell in cells:
        assert matrix[cell].low <= cells[cell].low <= cells[cell].high <= matrix[cell].high
    assert cell_evidence(matrix) == CellEvidence(1, 1, 1)
    assert cell_evidence(matrix).ac_range == pytest.approx((1 / 3, 2 / 3))
    shares = paired_bootstrap(
        result.hits[1, 0], result.hits[0, 0], confidence=1 - 0.05 / 3, resamples=6000
    )
    assert matrix[1, 0] == shares


def test_verdicts_take_clusters() -> None:
    found = verdicts(three_versions(), clusters=np.arange(1000) // 100)
    assert found[1, 0].differing == 1  # all hundred changes fall into one cluster
    assert found[1, 0].verdict == "not decided"


ONE, TWO = np.array([True, False, True]), np.array([True, True, False])


@pytest.mark.parametrize(
    "call",
    [
        lambda: paired_bootstrap([], []),
        lambda: paired_bootstrap(ONE, TWO[:2]),
        lambda: paired_bootstrap([0.5, np.nan], [0.5, 0.5]),
        lambda: paired_bootstrap([0.5, 0.5], [np.nan, 0.5]),
        lambda: paired_bootstrap([50.0, 60.0], [0.5, 0.5]),
        lambda: paired_bootstrap([0.5, np.inf], [0.5, 0.5]),
        lambda: paired_bootstrap(ONE[:, None], TWO[:, None]),
        lambda: paired_bootstrap(["a", "b"], ["a", "b"]),
        lambda: paired_bootstrap(ONE, TWO, clusters=[1, 2]),
        lambda: paired_bootstrap(ONE, TWO, confidence=95),
        lambda: paired_bootstrap(ONE, TWO, confidence=1.0),
        lambda: paired_bootstrap(ONE, TWO, resamples=199),
        lambda: paired_bootstrap(ONE, TWO, confidence=0.999, resamples=2000),
        lambda: verdicts(CrossTest(("a",), "image", np.ones((1, 1)), {(0, 0): ONE})),
        lambda: verdicts(three_versions(), confidence=2.0, family="matrix"),
        lambda: cell_evidence({}),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object]) -> None:
    with refuses(InputError):
        call()


def test_an_unknown_family_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="Known: cell, matrix"):
        verdicts(three_versions(), family="holm")


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(-2, 2)), min_size=1, max_size=40)
)
def test_flips_agree_with_a_slow_loop(rows: list[tuple[bool, bool, int]]) -> None:
    before, after, labels = (np.array(column) for column in zip(*rows, strict=True))
    found = flips(before, after, labels)
    assert found.negative.tolist() == [i for i, (old, new, _) in enumerate(rows) if old and not new]
    assert found.positive.tolist() == [i for i, (old, new, _) in enumerate(rows) if new and not old]
    assert found.positive_rate - found.negative_rate == pytest.approx(after.mean() - before.mean())
    assert {row.label for row in found.classes} == set(labels.tolist())
    for row in found.classes:
        mine = [(old, new) for old, new, label in rows if label == row.label]
        assert (row.queries, row.negative, row.positive) == (
            len(mine),
            mine.count((True, False)),
            mine.count((False, True)),
        )
    nets = [row.net for row in found.classes]
    assert nets == sorted(nets)


def test_classes_stand_by_net_loss_then_by_losses_then_by_label() -> None:
    lost, won, same = (True, False), (False, True), (True, True)
    table = {
        4: [lost, lost, won],
        9: [lost, same],
        1: [won],
        7: [same],
        3: [same, same],
        0: [lost, won],
    }
    rows = [(*pair, label) for label, pairs in table.items() for pair in pairs]
    before, after, labels = (np.array(column) for column in zip(*rows, strict=True))
    found = flips(before, after, labels)
    assert [row.label for row in found.classes] == [4, 9, 0, 3, 7, 1]
    assert found.classes[0] == ClassFlips(label=4, queries=3, negative=2, positive=1)
    assert (found.queries, found.negative_rate, found.positive_rate) == (11, 4 / 11, 3 / 11)


Pair = tuple[VersionFeatures, VersionFeatures]


def versions(d: int = 12) -> tuple[Pair, Pair, Array, Array]:
    """Two related versions in short form and in full, with the labels of 80 queries and 30 gallery images."""
    rng = np.random.default_rng(0)
    shared, centres = rng.normal(size=(d, 5)), rng.normal(size=(3, 5))
    query_labels, gallery_labels = np.arange(80) % 3, np.arange(30) % 3

    def embed(name: str) -> Pair:
        P = shared + 0.5 * rng.normal(size=(d, 5))
        q, g = (
            centres[labels] + 1.5 * rng.normal(size=(len(labels), 5))
            for labels in (query_labels, gallery_labels)
        )
        short = VersionFeatures(
            name, geometry.short_form(q, P), geometry.short_form(g, P), projection=P
        )
        return short, VersionFeatures(name, geometry.unit(q @ P.T), geometry.unit(g @ P.T))

    (short_1, full_1), (short_2, full_2) = embed("v1"), embed("v2")
    return (short_1, short_2), (full_1, full_2), query_labels, gallery_labels


@pytest.mark.parametrize("k", [1, 4])
def test_what_was_found_explains_every_flip(k: int) -> None:
    short, full, query_labels, gallery_labels = versions()
    result = cross_test(short, query_labels, gallery_labels, "image")
    found = flips(result.hits[0, 0], result.hits[1, 0], query_labels)
    assert len(found.negative) > 3
    assert len(found.positive) > 3
    rows = found_before_after(found.negative, *short, k)
    assert rows.before.shape == rows.after.shape == (len(found.negative), k)
    for query, before, after in zip(found.negative, rows.before, rows.after, strict=True):
        assert gallery_labels[before[0]] == query_labels[query]
        assert gallery_labels[after[0]] != query_labels[query]
        assert before.tolist() == np.argsort(-full[0].gallery @ full[0].queries[query])[:k].tolist()
        assert after.tolist() == np.argsort(-full[0].gallery @ full[1].queries[query])[:k].tolist()


def test_queries_come_in_any_order_and_may_be_none() -> None:
    short, full, _, _ = versions()
    some = found_before_after([7, 3, 3], *short)
    assert np.array_equal(some.before, found_before_after([7, 3, 3], *full).before)
    assert np.array_equal(some.after[1], some.after[2])
    assert found_before_after([], *short, 2).after.shape == (0, 2)


def test_an_adapted_gallery_is_searched_where_it_was_moved() -> None:
    """The new version turns the plane by a right angle; its adapter turns the stored vectors as well."""
    old = VersionFeatures("v1", np.eye(2), np.eye(2))
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    turned = VersionFeatures("v2", np.eye(2) @ turn, np.eye(2) @ turn)
    moving = VersionFeatures(
        "v2", turned.queries, turned.gallery, adapt=lambda vectors: vectors @ turn
    )
    assert found_before_after([0, 1], old, moving).after.tolist() == [[0], [1]]
    assert found_before_after([0, 1], old, turned).after.tolist() == [
        [1],
        [1],
    ]  # -1 and 0: neither is near


def test_versions_of_different_width_need_a_word() -> None:
    _, (old, _), _, _ = versions(12)
    _, (_, new), _, _ = versions(15)
    with pytest.raises(InputError, match=r"v1 12, v2 15.*shared_components=True"):
        found_before_after([0], old, new)
    rows = found_before_after([5], old, replace(new, shared_components=True))
    assert rows.after[0, 0] == np.argmax(old.gallery @ new.queries[5, :12])


YES, LABELS = np.array([True, False]), np.array([1, 2])


@pytest.mark.parametrize(
    "call",
    [
        lambda: flips(YES[:0], YES[:0], LABELS[:0]),
        lambda: flips(YES, YES[:1], LABELS),
        lambda: flips(YES, YES, LABELS[:1]),
        lambda: flips(YES, YES, LABELS / 2),  # type: ignore[arg-type]
        lambda: flips(YES.astype(float), YES, LABELS),
        lambda: found_before_after([80], *versions()[0]),
        lambda: found_before_after([-1, 2], *versions()[0]),
        lambda: found_before_after(YES, *versions()[0]),
        lambda: found_before_after([0], *versions()[0], 31),
    ],
)
def test_wrong_input_to_flips_is_named(call: Callable[[], object]) -> None:
    with refuses(InputError):
        call()
