"""Pairs and splits: every pair possible and none twice, the same after saving, and damaged files named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fixstar.errors import DataError, InputError
from fixstar.evaluation.verification import Pairs, Split, draw_pairs, gallery_query_split, sample_pairs

Array = NDArray[Any]

CIFAR_10_TEST = np.repeat(np.arange(10), 1000)


def unordered(pairs: Pairs) -> list[tuple[int, int]]:
    return [(min(a, b), max(a, b)) for a, b in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)]


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
    with pytest.raises(InputError, match="allow 4 genuine pairs, not 5"):
        sample_pairs(labels, genuine=5, impostor=1)
    with pytest.raises(InputError, match="allow 11 impostor pairs, not 12"):
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
            if (a == b and sum(x == y for x, y in expected) < 40) or (a != b and all(x == y for x, y in expected)):
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


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=30), st.sampled_from([0.01, 0.25, 0.5, 0.9]))
@settings(max_examples=60, deadline=None)
def test_a_split_holds_each_image_once_and_each_class_on_both_sides(labels: list[int], share: float) -> None:
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
    often = np.bincount(np.concatenate([gallery_query_split(labels, 0.25, s).gallery for s in range(200)]))
    assert often.min() > 20  # 50 expected, deviation 6
    assert often.max() < 80


def test_pairs_and_splits_come_back_as_they_were(tmp_path: Path) -> None:
    pairs, split = sample_pairs(CIFAR_10_TEST, 50, 70), gallery_query_split(CIFAR_10_TEST, 0.1)
    pairs.save(tmp_path / "sub" / "pairs")  # no ending is added
    split.save(str(tmp_path / "split.npz"))
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["pairs", "split.npz"]
    read, divided = Pairs.load(tmp_path / "sub" / "pairs"), Split.load(str(tmp_path / "split.npz"))
    for name in ("first", "second", "same"):
        assert np.array_equal(getattr(read, name), getattr(pairs, name))
        assert getattr(read, name).dtype == getattr(pairs, name).dtype
    assert np.array_equal(divided.gallery, split.gallery)
    assert np.array_equal(divided.queries, split.queries)


def test_the_same_pairs_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        sample_pairs(CIFAR_10_TEST, 5, 5).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    pairs = Pairs(np.array([0, 5]), np.array([2, 1]), np.array([True, False]))
    pairs.save(path)
    whole = path.read_bytes()
    damaged = [whole[:i] + bytes([whole[i] ^ 0x55]) + whole[i + 1 :] for i in range(len(whole))]
    refused = []
    for content in [*damaged, *(whole[:end] for end in range(0, len(whole), 7))]:
        path.write_bytes(content)
        try:
            read = Pairs.load(path)
        except DataError as error:
            refused.append(error)
        else:
            assert (read.first.tolist(), read.second.tolist(), read.same.tolist()) == ([0, 5], [2, 1], [True, False])
    assert len(refused) > len(whole) / 2
    assert all("pairs.npz" in str(error) for error in refused)
    assert all(error.next_steps[0].action == "evaluate" for error in refused)


def test_other_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        Pairs.load(tmp_path / "none.npz")
    gallery_query_split(np.array([0, 0, 1, 1])).save(tmp_path / "split.npz")
    with pytest.raises(DataError, match=r"holds a split into gallery and queries, not pairs") as refused:
        Pairs.load(tmp_path / "split.npz")
    another, this_one = refused.value.next_steps  # neither replaces a good file
    assert another.arguments == {"data": ..., "protocol": "verification", "pairs_file": ...}
    assert this_one.arguments == {"data": ..., "split_file": str(tmp_path / "split.npz")}
    np.savez(tmp_path / "vectors.npz", vectors=np.eye(2))
    with pytest.raises(DataError, match=r"holds vectors, not a split"):
        Split.load(tmp_path / "vectors.npz")
    np.savez(tmp_path / "empty.npz")
    with pytest.raises(DataError, match="holds nothing, not pairs"):
        Pairs.load(tmp_path / "empty.npz")
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
    ("call", "message"),
    [
        (lambda: sample_pairs(np.array([0.5, 1.0]), 1, 1), "one integer per image"),
        (lambda: sample_pairs(ROWS[:0], 1, 1), "not empty"),
        (lambda: sample_pairs(ROWS, 0, 1), "at least one genuine pair, got 0"),
        (lambda: draw_pairs(ROWS, 0, 1), "got 0 genuine and 1 impostors"),
        (lambda: draw_pairs(np.array([3, 3, 3]), 1, 1), "there is only one class"),
        (lambda: gallery_query_split(ROWS, 1.0), "between 0 and 1; got 1"),
        (lambda: gallery_query_split(ROWS, 0.0), "between 0 and 1; got 0"),
        (lambda: Pairs(ROWS, ROWS[:1], np.array([True, False])), "2 first, 1 second and 2 same"),
        (lambda: Pairs(ROWS - 1, ROWS, np.array([True, False])), "starting at 0; got -1"),
        (lambda: Pairs(ROWS, ROWS, ROWS), "one bool per pair"),
        (lambda: Pairs(ROWS / 2, ROWS, np.array([True, False])), "int64"),  # type: ignore[arg-type]
        (lambda: Split(ROWS, ROWS), "repeats one"),
        (lambda: Split(ROWS, ROWS[:0]), "queries holds row numbers"),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
