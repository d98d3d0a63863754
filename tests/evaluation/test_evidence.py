"""The paired bootstrap against literal resampling of rows, and its coverage by simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation import evidence
from fixstar.evaluation.cross_test import CrossTest
from fixstar.evaluation.evidence import CellEvidence, cell_evidence, paired_bootstrap, verdicts

Array = NDArray[Any]


def hits_with(positive: int, negative: int, both: int = 0, neither: int = 0) -> tuple[Array, Array]:
    """(cross, old): so many queries won, lost, right in both and wrong in both."""
    counts = [positive, negative, both, neither]
    return np.repeat([True, False, True, False], counts), np.repeat([False, True, True, False], counts)


def literal_means(cross: Array, old: Array, resamples: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(resamples):
        rows = rng.integers(len(cross), size=len(cross))
        means.append(cross[rows].mean() - old[rows].mean())
    return np.array(means)


def test_three_counts_are_the_same_experiment_as_drawing_rows() -> None:
    cross, old = hits_with(positive=30, negative=20, both=100, neither=50)
    quick = evidence._means_over_queries(np.subtract(cross, old, dtype=np.int8), 20_000, np.random.default_rng(1))
    slow = literal_means(cross, old, 20_000, seed=2)
    steps = [np.rint(means * 200).astype(int) for means in (quick, slow)]  # whole queries of 200
    assert stats.ks_2samp(*steps).pvalue > 0.001
    assert abs(quick.mean() - 0.05) < 0.002
    assert quick.std() == pytest.approx(np.sqrt((0.25 - 0.05**2) / 200), rel=0.03)
    uneven = literal_means(*hits_with(30, 20, 140, 10), 20_000, seed=2)
    assert np.array_equal(np.rint(uneven * 200).astype(int), steps[1])  # what both have in common does not matter


def test_the_interval_agrees_with_the_bootstrap_of_scipy() -> None:
    """Fractions, so that rows are drawn. With 400 queries the t factor is invisible."""
    rng = np.random.default_rng(3)
    cross, old = rng.random(400), rng.random(400) ** 1.5
    found = paired_bootstrap(cross, old, resamples=8000)
    theirs = stats.bootstrap((cross - old,), np.mean, n_resamples=8000, method="percentile", rng=4).confidence_interval
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
    assert paired_bootstrap([True], [False]) == evidence.Difference(1.0, -1.0, 1.0, "not decided", 1)
    one_cluster = paired_bootstrap(*hits_with(60, 0), clusters=np.zeros(60, int))
    assert (one_cluster.low, one_cluster.high, one_cluster.verdict) == (-1.0, 1.0, "not decided")


def coverage(make: Callable[[np.random.Generator], tuple[Array, Array, Array | None]], truth: float) -> float:
    inside = 0
    for trial in range(600):
        cross, old, clusters = make(np.random.default_rng(trial))
        found = paired_bootstrap(cross, old, resamples=500, seed=trial, clusters=clusters)
        inside += found.low <= truth <= found.high
    return inside / 600


@pytest.mark.parametrize(("N", "won", "lost"), [(300, 0.12, 0.08), (1000, 0.006, 0.006), (30, 0.3, 0.3)])
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
    assert evidence._tail(10, 0.95) == pytest.approx(0.0086, abs=0.0001)
    sample = np.random.default_rng(8).random(10)
    reached = -stats.norm.ppf(evidence._tail(10, 0.95)) * sample.std(ddof=0) / np.sqrt(10)
    low, high = stats.t.interval(0.95, 9, scale=sample.std(ddof=1) / np.sqrt(10))
    assert (-reached, reached) == pytest.approx((low, high), rel=0.001)


def test_the_seed_decides_and_the_order_of_queries_does_not() -> None:
    cross, old = hits_with(30, 25, 100, 100)
    shuffle = np.random.default_rng(7).permutation(len(cross))
    assert paired_bootstrap(cross, old) == paired_bootstrap(cross[shuffle], old[shuffle])
    assert any(paired_bootstrap(cross, old, seed=seed) != paired_bootstrap(cross, old) for seed in range(1, 5))


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
    shares = paired_bootstrap(result.hits[1, 0], result.hits[0, 0], confidence=1 - 0.05 / 3, resamples=6000)
    assert matrix[1, 0] == shares


def test_verdicts_take_clusters() -> None:
    found = verdicts(three_versions(), clusters=np.arange(1000) // 100)
    assert found[1, 0].differing == 1  # all hundred changes fall into one cluster
    assert found[1, 0].verdict == "not decided"


ONE, TWO = np.array([True, False, True]), np.array([True, True, False])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_bootstrap([], []), "no queries"),
        (lambda: paired_bootstrap(ONE, TWO[:2]), "3 outcomes of the cross-test, 2 of the self-test"),
        (lambda: paired_bootstrap([0.5, np.nan], [0.5, 0.5]), "cross-test is NaN at query 1"),
        (lambda: paired_bootstrap([0.5, 0.5], [np.nan, 0.5]), "self-test is NaN at query 0"),
        (lambda: paired_bootstrap([50.0, 60.0], [0.5, 0.5]), "got 50. Divide percentages by 100"),
        (lambda: paired_bootstrap([0.5, np.inf], [0.5, 0.5]), "fractions from 0 to 1"),
        (lambda: paired_bootstrap(ONE[:, None], TWO[:, None]), "one bool or fraction per query"),
        (lambda: paired_bootstrap(["a", "b"], ["a", "b"]), "one bool or fraction per query"),
        (lambda: paired_bootstrap(ONE, TWO, clusters=[1, 2]), "clusters are one label per query"),
        (lambda: paired_bootstrap(ONE, TWO, confidence=95), "such as 0.95; got 95"),
        (lambda: paired_bootstrap(ONE, TWO, confidence=1.0), "between 0 and 1"),
        (lambda: paired_bootstrap(ONE, TWO, resamples=199), "199 resamples are too few.*pass at least 200"),
        (lambda: paired_bootstrap(ONE, TWO, confidence=0.999), "pass at least 10000"),
        (lambda: verdicts(CrossTest(("a",), "image", np.ones((1, 1)), {(0, 0): ONE})), "at least two versions"),
        (lambda: verdicts(three_versions(), confidence=2.0, family="matrix"), "got 2"),
        (lambda: cell_evidence({}), "at least two versions"),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_an_unknown_family_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="Known: cell, matrix"):
        verdicts(three_versions(), family="holm")
