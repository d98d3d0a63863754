"""Average precision against scikit-learn, slow loops with exact ties, and cases worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from wording import refuses

from fixstar.errors import InputError
from fixstar.evaluation import search
from fixstar.evaluation.search import average_precisions, mean_average_precision, nearest, rankings

Array = NDArray[Any]


def features(count: int, width: int, seed: int) -> Array:
    """Unnormalised: lengths spread over several orders of magnitude."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, width)) * np.exp(rng.normal(0, 3, size=(count, 1)))


def slow_precision(right: list[bool], positives: int, at: int | None) -> float:
    """AP of a ranked list without ignored images: right or wrong, best first."""
    if not positives:
        return float("nan")
    total, found = 0.0, 0
    for place, is_right in enumerate(right[:at], start=1):
        if is_right:
            found += 1
            total += found / place
    return total / (positives if at is None else min(at, positives))


@pytest.mark.parametrize("ranked", [search.RANKED, 64 * 80])
def test_average_precision_is_that_of_scikit_learn(
    ranked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one block and in several; no two cosines are equal, and about half are negative."""
    from sklearn.metrics import average_precision_score
    from sklearn.metrics.pairwise import cosine_similarity

    monkeypatch.setattr(search, "RANKED", ranked)
    queries, gallery = features(150, 6, seed=1), features(80, 6, seed=2)
    rng = np.random.default_rng(3)
    truth, labels = rng.integers(0, 5, 150), rng.integers(0, 4, 80)  # class 4 is not in the gallery
    table = cosine_similarity(queries, gallery)
    values = average_precisions(queries, truth, gallery, labels)
    for row in range(150):
        if truth[row] == 4:
            assert np.isnan(values[row])
        else:
            assert values[row] == pytest.approx(
                average_precision_score(labels == truth[row], table[row])
            )
    result = mean_average_precision(queries, truth, gallery, labels)
    assert result.mean == pytest.approx(values[truth != 4].mean())
    assert (result.counted, result.skipped) == ((truth != 4).sum(), (truth == 4).sum())
    assert result.skipped > 0


@st.composite
def tied_searches(draw: st.DrawFn) -> dict[str, Any]:
    """Gallery vectors along the axes: a cosine is plus or minus one component of the query, so ties are exact."""
    axes = draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.sampled_from([-4.0, -1.0, 1.0])),
            min_size=1,
            max_size=10,
        )
    )
    rows = draw(
        st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=4)
    )
    gallery = np.zeros((len(axes), 3))
    for item, (axis, length) in enumerate(axes):
        gallery[item, axis] = length

    def integers(low: int, high: int, count: int) -> Array:
        return np.array(draw(st.lists(st.integers(low, high), min_size=count, max_size=count)))

    return {
        "queries": np.array(rows),
        "query_labels": integers(0, 2, len(rows)),
        "gallery": gallery,
        "gallery_labels": integers(0, 2, len(axes)),
        "query_cameras": integers(-1, 1, len(rows)),
        "gallery_cameras": integers(-1, 1, len(axes)),
    }


@given(tied_searches(), st.none() | st.integers(1, 12), st.booleans())
@settings(max_examples=150, deadline=None)
def test_ties_and_ignored_images_agree_with_a_slow_loop(
    search: dict[str, Any], at: int | None, cameras: bool
) -> None:
    if not cameras:
        search["query_cameras"] = search["gallery_cameras"] = None
    values = average_precisions(**search, at=at)
    for row, query in enumerate(search["queries"]):
        right = []
        scores = search["gallery"].clip(-1, 1) @ query  # unit axes
        for item in sorted(range(len(scores)), key=lambda item: (-scores[item], item)):
            is_right = bool(search["gallery_labels"][item] == search["query_labels"][row])
            own_camera = cameras and search["gallery_cameras"][item] == search["query_cameras"][row]
            if not (is_right and own_camera):
                right.append(is_right)
        assert values[row] == pytest.approx(slow_precision(right, sum(right), at), nan_ok=True)


def test_places_by_hand() -> None:
    """Places: wrong, right, right, wrong, right. AP = (1/2 + 2/3 + 3/5) / 3; of the first two, (1/2) / 2."""
    angles = np.radians([0, 10, 20, 100, 170])
    gallery, labels = np.stack([np.cos(angles), np.sin(angles)], axis=1), np.array([0, 1, 1, 0, 1])
    query, truth = np.array([[3.0, 0.0]]), np.array([1])

    def precision(at: int | None) -> float:
        return mean_average_precision(query, truth, gallery, labels, at=at).mean

    assert precision(None) == pytest.approx((1 / 2 + 2 / 3 + 3 / 5) / 3)
    assert precision(1) == 0
    assert precision(2) == pytest.approx((1 / 2) / 2)
    assert precision(4) == pytest.approx((1 / 2 + 2 / 3) / 3)
    assert precision(5) == precision(100) == precision(None)


def test_a_perfect_list_has_precision_one_however_short() -> None:
    gallery, labels = np.array([[1.0, 0.0]] * 5 + [[0.0, 1.0]] * 5), np.repeat([0, 1], 5)
    for at in (None, 1, 3, 5, 7):
        assert mean_average_precision(np.eye(2), np.array([0, 1]), gallery, labels, at=at) == (
            1.0,
            2,
            0,
        )


def test_identical_images_rank_in_the_order_of_the_gallery() -> None:
    gallery, labels = np.ones((4, 2)), np.array([0, 1, 1, 0])
    values = average_precisions(np.ones((2, 2)), np.array([0, 1]), gallery, labels)
    assert values.tolist() == [(1 + 2 / 4) / 2, (1 / 2 + 2 / 3) / 2]


def test_a_query_in_its_own_gallery_finds_itself_unless_ignored() -> None:
    images, labels = features(40, 8, seed=4), np.arange(40) % 8
    own = np.arange(40)
    with_itself = mean_average_precision(images, labels, images, labels)
    without = mean_average_precision(
        images, labels, images, labels, query_cameras=own, gallery_cameras=own
    )
    others = [
        mean_average_precision(
            images[[i]], labels[[i]], np.delete(images, i, 0), np.delete(labels, i)
        ).mean
        for i in range(40)
    ]
    assert without.mean == pytest.approx(np.mean(others))
    assert with_itself.mean > without.mean + 0.1


def test_the_own_camera_is_ignored_and_may_leave_nothing() -> None:
    """Market-1501: of the class only other cameras count; other classes under the same camera stay in the list."""
    gallery, labels, cameras = np.eye(4), np.array([0, 0, 1, 0]), np.array([1, 2, 1, 1])
    queries, truth = np.array([[4.0, 2, 3, 1], [4.0, 2, 3, 1]]), np.array([0, 1])
    given_cameras: dict[str, Any] = {"query_cameras": np.array([1, 1]), "gallery_cameras": cameras}
    values = average_precisions(queries, truth, gallery, labels, **given_cameras)
    assert values[0] == 1 / 2  # row 2 before row 1; rows 0 and 3 are ignored
    assert np.isnan(values[1])
    result = mean_average_precision(queries, truth, gallery, labels, **given_cameras)
    assert result == (1 / 2, 1, 1)


def test_ignored_images_take_no_place_of_the_first_k() -> None:
    gallery, labels = features(30, 5, seed=5), np.zeros(30, dtype=np.int64)
    cameras = np.arange(30) % 10 // 9  # three images of another camera
    queries = features(12, 5, seed=6)
    values = average_precisions(
        queries,
        np.zeros(12, dtype=np.int64),
        gallery,
        labels,
        at=2,
        query_cameras=np.zeros(12, dtype=np.int64),
        gallery_cameras=cameras,
    )
    assert values.tolist() == [1.0] * 12


def test_rankings_are_those_of_nearest_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "RANKED", 1)
    queries, gallery = features(150, 6, seed=7), features(33, 6, seed=8)
    for depth in (1, 5, 33):
        slices, found = zip(*rankings(queries, gallery, depth), strict=True)
        assert [rows.start for rows in slices] == [0, 64, 128]
        assert np.array_equal(np.concatenate(found), nearest(queries, gallery, depth)[0])


GOOD, ONE = np.ones((2, 3)), np.array([0, 1])


@pytest.mark.parametrize(
    "call",
    [
        lambda: average_precisions(GOOD, ONE, GOOD, ONE, at=0),
        lambda: average_precisions(GOOD, ONE[:1], GOOD, ONE),
        lambda: average_precisions(GOOD, ONE, GOOD, np.arange(3)),
        lambda: average_precisions(GOOD[:0], ONE[:0], GOOD, ONE),
        lambda: average_precisions(GOOD, ONE, GOOD[:0], ONE[:0]),
        lambda: average_precisions(GOOD, ONE, GOOD, ONE, query_cameras=ONE),
        lambda: average_precisions(
            GOOD, ONE, GOOD, ONE, query_cameras=ONE, gallery_cameras=ONE[:1]
        ),
        lambda: mean_average_precision(GOOD, ONE + 5, GOOD, ONE),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object]) -> None:
    with refuses(InputError):
        call()
