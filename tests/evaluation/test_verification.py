"""Verification against scikit-learn's ROC, slow loops over every threshold, and cases worked by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from wording import refuses

from fixstar.errors import DataError, InputError
from fixstar.evaluation.search import templates
from fixstar.evaluation.verification import (
    Split,
    VerificationPairs,
    draw_pairs,
    gallery_query_split,
    kfold_accuracy,
    pair_scores,
    roc,
    sample_pairs,
    tar_at_far,
    threshold_at_far,
)

Array = NDArray[Any]


@st.composite
def scored_pairs(draw: st.DrawFn, least: int = 1) -> tuple[Array, Array]:
    """Tenths from -1 to 1, so that ties are common, with ``least`` pairs or more of each kind."""
    same = draw(
        st.permutations(
            [True] * draw(st.integers(least, 12)) + [False] * draw(st.integers(least, 12))
        )
    )
    scores = draw(st.lists(st.integers(-10, 10), min_size=len(same), max_size=len(same)))
    return np.array(scores) / 10, np.array(same)


def random_pairs(count: int, seed: int, digits: int = 12) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    same = rng.random(count) < 0.4
    return np.round(rng.normal(0.4 * same - 0.2, 0.3), digits), same


@given(scored_pairs())
@settings(max_examples=80, deadline=None)
def test_roc_is_that_of_scikit_learn(scored: tuple[Array, Array]) -> None:
    from sklearn.metrics import roc_curve

    scores, same = scored
    expected = roc_curve(same, scores, drop_intermediate=False)
    for ours, theirs in zip(roc(scores, same), expected, strict=True):
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("digits", [12, 2])
def test_roc_of_many_pairs_is_that_of_scikit_learn(digits: int) -> None:
    from sklearn.metrics import roc_curve

    scores, same = random_pairs(5000, seed=1, digits=digits)
    for ours, theirs in zip(
        roc(scores, same), roc_curve(same, scores, drop_intermediate=False), strict=True
    ):
        assert np.array_equal(ours, theirs)


@given(scored_pairs(), st.sampled_from([0.0, 1e-6, 0.1, 0.2, 0.3, 1 / 3, 0.5, 0.7, 0.999, 1.0]))
@settings(max_examples=150, deadline=None)
def test_tar_at_far_is_the_best_allowed_point_of_the_roc(
    scored: tuple[Array, Array], far: float
) -> None:
    from sklearn.metrics import roc_curve

    scores, same = scored
    measured, tar, _ = roc_curve(same, scores, drop_intermediate=False)
    expected = max(t for f, t in zip(measured, tar, strict=True) if f <= far)
    threshold = threshold_at_far(scores, same, far)
    assert tar_at_far(scores, same, far) == expected == (scores[same] >= threshold).mean()
    assert (scores[~same] >= threshold).mean() <= far
    below = np.nextafter(threshold, -np.inf)
    assert far == 1 or (scores[~same] >= below).mean() > far  # no lower threshold would do


def test_a_far_finer_than_the_impostors_allows_no_false_accept() -> None:
    scores, same = random_pairs(400, seed=2)
    impostors = int((~same).sum())
    assert tar_at_far(scores, same, 0) == tar_at_far(scores, same, 0.999 / impostors)
    assert tar_at_far(scores, same, 0) == (scores[same] > scores[~same].max()).mean()
    ordered = np.sort(scores[~same])[::-1]
    for allowed in (1, 7, 50):  # k / N is reached exactly, k impostors accepted
        assert (
            scores[~same] >= threshold_at_far(scores, same, allowed / impostors)
        ).sum() == allowed
        assert (
            tar_at_far(scores, same, allowed / impostors)
            == (scores[same] > ordered[allowed]).mean()
        )


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_tied_impostors_are_refused_together_in_every_precision(
    kind: type[np.floating[Any]],
) -> None:
    scores = np.array([0.3, 0.3, 0.3, 0.1, 0.9, 0.3], dtype=kind)
    same = np.array([False, False, False, False, True, True])
    assert tar_at_far(scores, same, 0.5) == 0.5
    assert tar_at_far(scores, same, 0.75) == 1.0
    assert (scores >= threshold_at_far(scores, same, 0.5)).tolist() == [
        False,
        False,
        False,
        False,
        True,
        False,
    ]


def slow_folds(
    scores: Array, same: Array, folds: int, stratified: bool = True
) -> tuple[list[float], list[float]]:
    """The same text as the docstring, one pair at a time."""
    fold_of = {}
    for kind in (True, False) if stratified else (None,):
        members = [i for i in range(len(same)) if kind is None or same[i] == kind]
        for place, i in enumerate(members):
            fold_of[i] = place * folds // len(members)
    accuracies, thresholds = [], []
    for fold in range(folds):
        train, test = (
            [i for i in fold_of if (fold_of[i] == fold) == held] for held in (False, True)
        )
        levels = sorted({scores[i] for i in train})
        between = [(low + high) / 2 for low, high in pairwise(levels)]
        candidates = [levels[0], *between, np.nextafter(levels[-1], 2)]

        def correct(threshold: float, rows: list[int]) -> int:
            return sum((scores[i] >= threshold) == same[i] for i in rows)

        best = max(candidates, key=lambda threshold: (correct(threshold, train), threshold))
        thresholds.append(float(best))
        accuracies.append(correct(best, test) / len(test))
    return accuracies, thresholds


@given(scored_pairs(least=4), st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_folds_agree_with_a_slow_loop(scored: tuple[Array, Array], folds: int) -> None:
    scores, same = scored
    result = kfold_accuracy(scores, same, folds)
    accuracies, thresholds = slow_folds(scores, same, folds)
    assert result.accuracies.tolist() == accuracies
    assert result.thresholds.tolist() == thresholds
    assert result.mean == pytest.approx(np.mean(accuracies))
    assert result.std == pytest.approx(np.std(accuracies, ddof=1))


def test_ten_folds_of_many_pairs_agree_with_a_slow_loop() -> None:
    scores, same = random_pairs(300, seed=3)
    result = kfold_accuracy(scores, same)
    accuracies, thresholds = slow_folds(scores, same, 10)
    assert result.accuracies.tolist() == accuracies
    assert result.thresholds.tolist() == thresholds
    assert 0.6 < result.mean < 0.9
    assert result.right.shape == (300,)
    assert result.right.mean() == pytest.approx(
        result.mean, abs=0.01
    )  # folds differ by two pairs at most


@given(scored_pairs(least=4), st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_folds_of_the_list_as_it_stands_agree_with_a_slow_loop(
    scored: tuple[Array, Array], folds: int
) -> None:
    scores, same = scored
    result = kfold_accuracy(scores, same, folds, stratified=False)
    accuracies, thresholds = slow_folds(scores, same, folds, stratified=False)
    assert result.accuracies.tolist() == accuracies
    assert result.thresholds.tolist() == thresholds


def test_folds_of_the_list_as_it_stands_may_hold_one_kind_alone() -> None:
    same = np.array([True] * 3 + [False] * 97)
    scores = np.where(same, 0.4, np.linspace(0.1, 0.5, 100))
    result = kfold_accuracy(scores, same, 10, stratified=False)
    assert (
        result.accuracies[0] == 0.7
    )  # the rest holds no genuine pair: its threshold, over 0.5, accepts none here
    assert result.thresholds[0] > 0.5
    with refuses(InputError):
        kfold_accuracy(scores, same, 101, stratified=False)


def test_folds_as_drawn_are_too_low_and_far_below_a_half_for_scores_that_say_nothing() -> None:
    """Why table 1 of CoReS can print 0.12 for models that know nothing of each other."""
    labels = np.random.default_rng(0).permutation(np.arange(10_000) % 10)
    pairs = draw_pairs(labels)
    noise = np.random.default_rng(1).normal(size=6000)
    assert kfold_accuracy(noise, pairs.same).mean == pytest.approx(0.5, abs=0.03)
    assert kfold_accuracy(noise, pairs.same, stratified=False).mean < 0.15
    good = noise + 1.2 * pairs.same  # an accuracy of about 0.72
    assert kfold_accuracy(good, pairs.same).mean == pytest.approx(0.72, abs=0.02)
    assert (
        kfold_accuracy(good, pairs.same, stratified=False).mean
        < kfold_accuracy(good, pairs.same).mean - 0.03
    )


def test_the_order_of_lfw_gives_the_folds_of_lfw() -> None:
    """LFW lists, fold by fold, the genuine pairs and then the impostors. Only fold 3 is wrong here."""
    same = np.tile([True] * 30 + [False] * 30, 10)
    scores = np.where(same, 0.5, -0.5)
    scores[180:240] *= -1
    result = kfold_accuracy(scores, same)
    assert result.accuracies.tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1, 1]
    assert np.flatnonzero(~result.right).tolist() == list(range(180, 240))
    shuffled = np.argsort(~same, kind="stable")  # all genuine pairs first: the same folds
    assert (
        kfold_accuracy(scores[shuffled], same[shuffled]).accuracies.tolist()
        == result.accuracies.tolist()
    )


def test_scores_that_say_nothing_give_a_half() -> None:
    same = np.arange(40) % 2 == 0
    result = kfold_accuracy(np.full(40, 0.25), same)
    assert result.mean == 0.5
    assert (result.thresholds > 0.25).all()  # equally good: the one that accepts nothing
    assert kfold_accuracy(np.where(same, -1.0, 1.0), same).mean == 0.5


def test_neighbouring_floats_have_a_threshold_between_them() -> None:
    low = 0.1
    high = float(np.nextafter(low, 1))
    same = np.arange(8) % 2 == 0
    result = kfold_accuracy(np.where(same, high, low), same, 2)
    assert result.mean == 1
    assert result.thresholds.tolist() == [high, high]


def test_scores_are_cosines_of_the_two_models() -> None:
    from sklearn.metrics.pairwise import cosine_similarity

    rng = np.random.default_rng(4)
    new, old = (rng.normal(size=(50, 7)) * np.exp(rng.normal(0, 3, size=(50, 1))) for _ in range(2))
    pairs = sample_pairs(np.arange(50) % 5, 100, 900)
    table = cosine_similarity(new, old)
    assert np.allclose(pair_scores(new, old, pairs), table[pairs.first, pairs.second], atol=1e-6)
    assert not np.allclose(
        pair_scores(old, new, pairs), table[pairs.first, pairs.second], atol=1e-2
    )


def test_more_pairs_than_one_block() -> None:
    from sklearn.metrics.pairwise import cosine_similarity

    rng = np.random.default_rng(5)
    features, rows = rng.normal(size=(30, 4)), rng.integers(0, 30, size=(2, 5000))
    pairs = VerificationPairs(rows[0], rows[1], np.ones(5000, dtype=bool))
    assert np.allclose(
        pair_scores(features, features, pairs), cosine_similarity(features)[tuple(rows)], atol=1e-6
    )


def test_templates_agree_with_a_slow_loop() -> None:
    rng = np.random.default_rng(6)
    features = rng.normal(size=(60, 5)) * np.exp(rng.normal(0, 2, size=(60, 1)))
    ids, media = rng.choice([-4, 10, 11, 300], 60), rng.integers(0, 6, 60)
    found, names = templates(features, ids)
    grouped, _ = templates(features, ids, media)
    assert names.tolist() == [-4, 10, 11, 300]
    assert np.allclose(found, templates(features, ids)[0], atol=1e-6)
    unit = [feature / np.linalg.norm(feature) for feature in features]
    for row, name in enumerate(names):
        plain = np.mean([unit[i] for i in range(60) if ids[i] == name], axis=0)
        of_media = [
            np.mean([unit[i] for i in range(60) if ids[i] == name and media[i] == m], axis=0)
            for m in sorted({media[i] for i in range(60) if ids[i] == name})
        ]
        mean = np.mean(of_media, axis=0)
        assert np.allclose(found[row], plain / np.linalg.norm(plain), atol=1e-6)
        assert np.allclose(grouped[row], mean / np.linalg.norm(mean), atol=1e-6)
    assert not np.allclose(found, grouped, atol=1e-3)


def test_a_long_video_weighs_as_much_as_a_photograph() -> None:
    features = np.array([[1.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 4.0]])
    ids = np.zeros(4, dtype=np.int64)
    assert np.allclose(templates(features, ids, np.array([8, 8, 8, 9]))[0], np.sqrt(0.5))
    assert np.allclose(templates(features, ids)[0], np.array([3, 1]) / np.sqrt(10))


GOOD, KINDS = np.array([0.5, 0.2]), np.array([True, False])
ONE = VerificationPairs(np.array([0]), np.array([1]), np.array([True]))


@pytest.mark.parametrize(
    "call",
    [
        lambda: roc(GOOD, np.array([True, True])),
        lambda: tar_at_far(GOOD, np.array([False, False]), 0.1),
        lambda: tar_at_far(GOOD, KINDS, 1.1),
        lambda: tar_at_far(GOOD, KINDS, float("nan")),
        lambda: roc(np.array([0.5, np.nan]), KINDS),
        lambda: roc(GOOD[:1], KINDS),
        lambda: roc(GOOD, np.array([1, 0])),
        lambda: kfold_accuracy(GOOD, KINDS),
        lambda: kfold_accuracy(np.tile(GOOD, 4), np.tile(KINDS, 4), 1),
        lambda: kfold_accuracy(np.tile(GOOD, 4), np.tile(KINDS, 4), 5),
        lambda: pair_scores(np.ones((2, 3)), np.ones((2, 4)), ONE),
        lambda: pair_scores(np.ones((2, 3)), np.ones((1, 3)), ONE),
        lambda: pair_scores(np.full((2, 3), np.nan), np.ones((2, 3)), ONE),
        lambda: templates(np.ones((2, 3)), np.arange(3)),
        lambda: templates(np.ones((2, 3)), np.arange(2), np.arange(3)),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object]) -> None:
    with refuses(InputError):
        call()


CIFAR_10_TEST = np.repeat(np.arange(10), 1000)


def unordered(pairs: VerificationPairs) -> list[tuple[int, int]]:
    return [
        (min(a, b), max(a, b))
        for a, b in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)
    ]


@given(st.lists(st.integers(-2, 3), min_size=2, max_size=12), st.data())
@settings(max_examples=60, deadline=None)
def test_pairs_are_different_and_of_their_kind(labels: list[int], data: st.DataObject) -> None:
    possible = Counter(labels[i] == labels[j] for i, j in combinations(range(len(labels)), 2))
    if not (possible[True] and possible[False]):
        with pytest.raises(InputError, match=r"allow 0 (genuine|impostor) pairs"):
            sample_pairs(np.array(labels), 1, 1)
        return
    genuine = data.draw(st.integers(1, possible[True]))
    impostor = data.draw(st.integers(1, possible[False]))
    pairs = sample_pairs(np.array(labels), genuine, impostor, seed=data.draw(st.integers(0, 5)))
    drawn = unordered(pairs)
    assert len(set(drawn)) == len(drawn) == len(pairs) == genuine + impostor
    assert all(a != b for a, b in drawn)
    assert pairs.same.tolist() == [True] * genuine + [False] * impostor
    assert pairs.same.tolist() == [labels[a] == labels[b] for a, b in drawn]


def test_all_possible_pairs_can_be_asked_for() -> None:
    labels = np.array([3, 1, 3, 1, 3, 2])
    drawn = unordered(sample_pairs(labels, genuine=4, impostor=11))
    assert sorted(drawn) == list(combinations(range(6), 2))
    with refuses(InputError):
        sample_pairs(labels, genuine=5, impostor=1)
    with refuses(InputError):
        sample_pairs(labels, genuine=1, impostor=12)


def test_every_pair_is_equally_likely_in_either_order() -> None:
    """Classes of unequal size: 3 + 1 genuine pairs, 6 impostor pairs, each drawn first 1/4 and 1/6 of the time."""
    labels, runs = np.array([0, 1, 0, 0, 1]), 3000
    genuine: Counter[tuple[int, int]] = Counter()
    impostor: Counter[tuple[int, int]] = Counter()
    for seed in range(runs):
        pairs = sample_pairs(labels, 1, 1, seed)
        (one, other), (two, another) = zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)
        genuine[one, other] += 1
        impostor[two, another] += 1
    for counts, possible in ((genuine, 8), (impostor, 12)):
        assert len(counts) == possible
        expected = runs / possible
        chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
        assert chi_squared < 2.5 * possible  # beyond the 0.1 % point


def test_drawn_pairs_are_those_of_a_slow_loop_in_the_order_of_drawing() -> None:
    """Two images at a time from the same stream of numbers; a kind that is full takes no more."""
    labels = np.random.default_rng(3).integers(7, size=60)
    pairs = draw_pairs(labels, genuine=30, impostor=50, seed=5)
    rng, room, rows = np.random.default_rng(5), {True: 30, False: 50}, []
    for a, b in rng.integers(60, size=(800, 2)):
        same = bool(labels[a] == labels[b])
        if room[same]:
            room[same] -= 1
            rows.append((a, b, same))
    assert [tuple(row) for row in zip(pairs.first, pairs.second, pairs.same, strict=True)] == rows
    assert pairs.same[-10:].all()  # impostors are more frequent, so they are full first
    assert not pairs.same[:40].all()


def test_drawing_goes_on_until_a_rare_kind_is_full_and_keeps_the_order() -> None:
    """A genuine pair is an image with itself here, 1 draw of 500: several rounds of 410 draws are needed."""
    pairs = draw_pairs(np.arange(500), genuine=40, impostor=1, seed=8)
    rng = np.random.default_rng(8)
    expected: list[tuple[int, int]] = []
    while sum(a == b for a, b in expected) < 40:
        for a, b in rng.integers(500, size=(410, 2)):
            if (a == b and sum(x == y for x, y in expected) < 40) or (
                a != b and all(x == y for x, y in expected)
            ):
                expected.append((a, b))
    assert list(zip(pairs.first, pairs.second, strict=True)) == expected
    assert pairs.same.tolist() == [a == b for a, b in expected]


def test_pairs_of_the_cifar_10_test_images() -> None:
    pairs = sample_pairs(CIFAR_10_TEST)
    assert (len(pairs), pairs.same.sum()) == (6000, 3000)
    again, other = sample_pairs(CIFAR_10_TEST, seed=0), sample_pairs(CIFAR_10_TEST, seed=1)
    assert unordered(pairs) == unordered(again)
    assert unordered(pairs) != unordered(other)
    assert np.array_equal(pairs.first, again.first)
    classes = np.bincount(CIFAR_10_TEST[pairs.first], minlength=10)
    assert classes.min() > 450  # 600 expected


@given(
    st.lists(st.integers(-1, 4), min_size=1, max_size=30), st.sampled_from([0.01, 0.25, 0.5, 0.9])
)
@settings(max_examples=60, deadline=None)
def test_a_split_holds_each_image_once_and_each_class_on_both_sides(
    labels: list[int], share: float
) -> None:
    counts = Counter(labels)
    if max(counts.values()) == 1:
        with pytest.raises(InputError, match="nothing is left to query"):
            gallery_query_split(np.array(labels), share)
        return
    split = gallery_query_split(np.array(labels), share)
    assert sorted([*split.gallery, *split.queries]) == list(range(len(labels)))
    assert np.array_equal(np.sort(split.gallery), split.gallery)
    assert np.array_equal(np.sort(split.queries), split.queries)
    in_gallery = Counter(labels[row] for row in split.gallery)
    for label, count in counts.items():
        expected = 1 if count == 1 else min(max(int(share * count + 0.5), 1), count - 1)
        assert in_gallery[label] == expected


def test_a_split_is_that_of_its_seed_and_random_within_a_class() -> None:
    labels = np.arange(400) % 4
    one, same, other = (gallery_query_split(labels, 0.25, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.gallery, same.gallery)
    assert not np.array_equal(one.gallery, other.gallery)
    often = np.bincount(
        np.concatenate([gallery_query_split(labels, 0.25, s).gallery for s in range(200)])
    )
    assert often.min() > 20  # 50 expected, deviation 6
    assert often.max() < 80


def test_pairs_and_splits_come_back_as_they_were(tmp_path: Path) -> None:
    pairs, split = sample_pairs(CIFAR_10_TEST, 50, 70), gallery_query_split(CIFAR_10_TEST, 0.1)
    pairs.save(tmp_path / "sub" / "pairs")  # no ending is added
    split.save(str(tmp_path / "split.npz"))
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "pairs",
        "split.npz",
    ]
    read, divided = (
        VerificationPairs.load(tmp_path / "sub" / "pairs"),
        Split.load(str(tmp_path / "split.npz")),
    )
    for name in ("first", "second", "same"):
        assert np.array_equal(getattr(read, name), getattr(pairs, name))
        assert getattr(read, name).dtype == getattr(pairs, name).dtype
    assert np.array_equal(divided.gallery, split.gallery)
    assert np.array_equal(divided.queries, split.queries)


def test_the_same_pairs_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        sample_pairs(CIFAR_10_TEST, 5, 5).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_interrupted_save_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pairs.npz"
    sample_pairs(CIFAR_10_TEST, 5, 5, seed=1).save(path)
    before = path.read_bytes()

    def fail(file: Any, **_: object) -> None:
        file.write(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(KeyboardInterrupt):
        sample_pairs(CIFAR_10_TEST, 5, 5, seed=2).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_file_is_named_and_never_read_wrongly(tmp_path: Path) -> None:
    """Every byte flipped once, and every length: the same pairs, or a DataError."""
    path = tmp_path / "pairs.npz"
    pairs = VerificationPairs(np.array([0, 5]), np.array([2, 1]), np.array([True, False]))
    pairs.save(path)
    whole = path.read_bytes()
    damaged = [whole[:i] + bytes([whole[i] ^ 0x55]) + whole[i + 1 :] for i in range(len(whole))]
    refused = []
    for content in [*damaged, *(whole[:end] for end in range(0, len(whole), 7))]:
        path.write_bytes(content)
        try:
            read = VerificationPairs.load(path)
        except DataError as error:
            refused.append(error)
        else:
            assert (read.first.tolist(), read.second.tolist(), read.same.tolist()) == (
                [0, 5],
                [2, 1],
                [True, False],
            )
    assert len(refused) > len(whole) / 2
    assert all("pairs.npz" in str(error) for error in refused)
    assert all(error.next_steps[0].action == "evaluate" for error in refused)


def test_other_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        VerificationPairs.load(tmp_path / "none.npz")
    gallery_query_split(np.array([0, 0, 1, 1])).save(tmp_path / "split.npz")
    with refuses(DataError, "evaluate", "evaluate") as refused:
        VerificationPairs.load(tmp_path / "split.npz")
    another, this_one = refused.value.next_steps  # neither replaces a good file
    assert another.arguments == {"data": ..., "protocol": "verification", "pairs_file": ...}
    assert this_one.arguments == {"data": ..., "split_file": str(tmp_path / "split.npz")}
    np.savez(tmp_path / "vectors.npz", vectors=np.eye(2))
    with refuses(DataError, "evaluate"):
        Split.load(tmp_path / "vectors.npz")
    np.savez(tmp_path / "empty.npz")
    with refuses(DataError, "evaluate"):
        VerificationPairs.load(tmp_path / "empty.npz")
    np.save(tmp_path / "bare.npy", np.arange(3))
    with pytest.raises(DataError, match="one bare array"):
        Split.load(tmp_path / "bare.npy")
    np.savez(tmp_path / "objects.npz", gallery=np.array([None]), queries=np.array([1]))
    with pytest.raises(DataError, match="never unpickled"):
        Split.load(tmp_path / "objects.npz")
    np.savez(tmp_path / "twice.npz", gallery=np.array([0, 1]), queries=np.array([1]))
    with pytest.raises(DataError, match=r"damaged.*repeats one"):
        Split.load(tmp_path / "twice.npz")


ROWS = np.array([0, 1])


@pytest.mark.parametrize(
    "call",
    [
        lambda: sample_pairs(np.array([0.5, 1.0]), 1, 1),
        lambda: sample_pairs(ROWS[:0], 1, 1),
        lambda: sample_pairs(ROWS, 0, 1),
        lambda: draw_pairs(ROWS, 0, 1),
        lambda: draw_pairs(np.array([3, 3, 3]), 1, 1),
        lambda: gallery_query_split(ROWS, 1.0),
        lambda: gallery_query_split(ROWS, 0.0),
        lambda: VerificationPairs(ROWS, ROWS[:1], np.array([True, False])),
        lambda: VerificationPairs(ROWS - 1, ROWS, np.array([True, False])),
        lambda: VerificationPairs(ROWS, ROWS, ROWS),
        lambda: VerificationPairs(ROWS / 2, ROWS, np.array([True, False])),  # type: ignore[arg-type]
        lambda: Split(ROWS, ROWS),
        lambda: Split(ROWS, ROWS[:0]),
    ],
)
def test_wrong_input_to_pairs_is_named(call: Callable[[], object]) -> None:
    with refuses(InputError):
        call()
