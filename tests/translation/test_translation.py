"""Translations: who asks where, which maps lead which way, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from wording import refuses

from fixstar.errors import InputError, ModelError
from fixstar.evaluation import VersionFeatures
from fixstar.geometry import unit
from fixstar.translation import Map, Translation, Uncertainty, translated
from fixstar.translation.translation import USUAL

Array = NDArray[np.float32]


def vectors(count: int, width: int, seed: int = 0) -> Array:
    rows: Array = unit(np.random.default_rng(seed).standard_normal((count, width))).astype(
        np.float32
    )
    return rows


def linear(a: int, b: int, seed: int = 0) -> Map:
    rng = np.random.default_rng(seed)
    return Map.linear(rng.standard_normal((a, b)), rng.standard_normal(b))


def made(seed: int = 0, **changed: Any) -> Translation:
    """From v1, 4 components, to v2, 6 components."""
    given: dict[str, Any] = {
        "forward": linear(4, 6, seed),
        "backward": linear(6, 4, seed + 1),
        "one": 0.6,
        "two": 0.7,
    }
    return Translation("v1", "v2", **{**given, **changed})


def scores(way: Translation, old: VersionFeatures, new: VersionFeatures) -> NDArray[np.float64]:
    seen = translated(way, old, new)
    return np.asarray(seen.queries, np.float64) @ np.asarray(seen.gallery, np.float64).T


def test_translations_score_alike_if_all_that_a_score_depends_on_is_equal() -> None:
    way = made()
    assert way.scores_like(made(about={"fit": "another"}))
    other = made(seed=5)
    for changed in (
        {"forward": other.forward},
        {"backward": other.backward},
        {"one": 0.5},
        {"two": None},
    ):
        assert not way.scores_like(made(**changed))
    assert not way.scores_like(replace(way, source="v0"))
    assert not Translation.between_shared("v1", "v2").scores_like(
        Translation.by_old_queries("v1", "v2")
    )


# --- who asks


def test_queries_ask_in_the_space_where_the_vectors_lie() -> None:
    way = made()
    new, old, carried = vectors(5, 6), vectors(5, 4, seed=1), vectors(5, 4, seed=2)
    assert way.asks(new, None, old) is old
    assert way.backward is not None
    np.testing.assert_array_equal(way.with_one_model().asks(new, None, None), way.backward(new))
    shared = Translation.between_shared("v1", "v2")
    assert shared.asks(new, carried, None) is carried
    with refuses(InputError):
        way.asks(new, None, None)
    with refuses(InputError):
        shared.asks(new, None, None)


def test_models_and_weights() -> None:
    both = made()
    assert (both.models, both.weight) == (("v2", "v1"), 0.7)
    alone = both.with_one_model()
    assert (alone.models, alone.weight, alone.two) == (("v2",), 0.6, None)
    assert alone.with_one_model().weight == 0.6
    kept = Translation.by_old_queries("v1", "v2")
    assert (kept.models, kept.weight, kept.forward) == (("v1",), 0.0, None)
    shared = Translation.between_shared("v1", "v2")
    assert (shared.models, shared.weight, shared.shared) == (("v2",), 0.0, True)
    with refuses(InputError):
        made(one=None).with_one_model()


@pytest.mark.parametrize(
    "changed",
    [
        {"one": 1.1},
        {"two": -0.1},
        {"forward": None},
        {"backward": None},
        {"one": None, "two": None},
        {"backward": linear(5, 4)},
    ],
)
def test_translations_that_cannot_be(changed: dict[str, Any]) -> None:
    with refuses(ModelError):
        made(**changed)


# --- the other way, and through a version between


@settings(max_examples=30)
@given(one=st.floats(0, 1), two=st.none() | st.floats(0, 1), seed=st.integers(0, 99))
def test_reversed_twice_is_itself(one: float, two: float | None, seed: int) -> None:
    way = made(seed, one=one, two=two, about={"pairs": 7})
    again = way.reversed.reversed
    assert (again.source, again.target, again.shared, again.about) == (
        "v1",
        "v2",
        False,
        {"pairs": 7},
    )
    assert (again.forward, again.backward) == (way.forward, way.backward)
    assert again.one == pytest.approx(one)
    assert again.two is None if two is None else again.two == pytest.approx(two)
    assert (way.reversed.source, way.reversed.target) == ("v2", "v1")


@settings(max_examples=20)
@given(one=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_reversed_search_weighs_each_space_as_before(one: float, seed: int) -> None:
    """A query x and a stored z have the same score, whichever of them asks."""
    way = made(seed, one=one, two=None)
    there, here = vectors(7, 6, seed), vectors(9, 4, seed + 1)
    ask = scores(
        way, VersionFeatures("v1", here[:1].repeat(7, 0), here), VersionFeatures("v2", there, there)
    )
    back = scores(
        way.reversed,
        VersionFeatures("v2", there[:1].repeat(9, 0), there),
        VersionFeatures("v1", here, here),
    )
    np.testing.assert_allclose(ask, back.T, atol=1e-5)


def test_without_both_maps_the_other_way_asks_by_own_queries() -> None:
    way = made(backward=None, one=None).reversed
    assert (way.source, way.target, way.two, way.one, way.forward) == ("v2", "v1", 0.0, None, None)
    shared = Translation.between_shared("v1", "v2").reversed
    assert (shared.source, shared.target, shared.one, shared.shared) == ("v2", "v1", 0.0, True)
    assert made(uncertainty=Uncertainty(vectors(1, 4)[0], 0.1)).reversed.uncertainty is None


def test_a_translation_through_a_version_between() -> None:
    first = made(0, one=0.4)
    second = Translation("v2", "v3", forward=linear(6, 5), backward=linear(5, 6), one=0.8)
    way = first.then(second)
    assert (way.source, way.target, way.about) == ("v1", "v3", {"through": "v2"})
    assert way.one == pytest.approx(0.6)
    assert way.two is None
    assert way.forward is not None
    assert way.backward is not None
    X, Y = vectors(5, 4), vectors(5, 5)
    assert first.forward is not None
    assert first.backward is not None
    assert second.forward is not None
    assert second.backward is not None
    np.testing.assert_array_equal(way.forward(X), second.forward(first.forward(X)))
    np.testing.assert_array_equal(way.backward(Y), first.backward(second.backward(Y)))
    unmeasured = made(one=None).then(replace(second, one=None, two=0.5))
    assert unmeasured.one == USUAL
    with refuses(InputError):
        first.then(first)
    with refuses(InputError):
        made(backward=None, one=None).then(second)


def test_a_whitening_belongs_to_the_space_of_the_stored_vectors() -> None:
    way = made(two=None, whitening=linear(4, 4, 3), whitened=True)
    assert (way.reversed.whitening, way.reversed.whitened) == (None, False)
    second = Translation("v2", "v3", forward=linear(6, 5), backward=linear(5, 6), one=0.8)
    chain = way.then(second)
    assert (chain.whitening, chain.whitened) == (way.whitening, True)
    assert (second.reversed.then(way.reversed).whitened) is False
    for changed in (
        {"whitening": None},
        {"whitening": linear(6, 6)},
        {"forward": None, "backward": None, "one": None, "two": 0.0},
    ):
        with refuses(ModelError):
            replace(way, **changed)


def test_what_is_derived_from_stored_vectors_depends_on_whitening_and_weight() -> None:
    way = made(two=None, whitening=linear(4, 4, 3))
    assert way.key == made(two=None).key
    whitened = replace(way, whitened=True)
    others = [
        way,
        whitened,
        replace(whitened, one=0.5),
        replace(whitened, whitening=linear(4, 4, 9)),
    ]
    assert len({other.key for other in others}) == 4
    assert not way.scores_like(whitened)


def test_shared_spaces_in_a_row_are_shared() -> None:
    one, two = Translation.between_shared("v1", "v2"), Translation.between_shared("v2", "v3")
    way = one.then(two)
    assert (way.source, way.target, way.shared, way.one, way.forward) == (
        "v1",
        "v3",
        True,
        0.0,
        None,
    )
    mapped = Translation("v2", "v3", forward=linear(4, 4), one=0.5, shared=True)
    with refuses(InputError):
        replace(one, shared=False, two=0.0, one=None).then(mapped)
    both = Translation("v1", "v2", forward=linear(4, 4), one=0.3, shared=True).then(mapped)
    assert both.one == pytest.approx(0.4)
    assert (both.shared, both.backward) == (True, None)


# --- what was derived by it


def test_the_key_is_that_of_the_forward_map() -> None:
    assert made(0).key == made(0, one=0.1, two=None, about={"pairs": 3}).key
    assert made(0).key != made(1).key
    assert made(0).key == Translation("v8", "v9", forward=linear(4, 6, 0), two=0.5).key
    assert len({Translation.between_shared("a", "b").key, made(0).key, made(0).reversed.key}) == 3
    W = np.arange(12.0).reshape(3, 4)
    wide = Translation("a", "b", forward=Map.linear(W), two=0.5)
    other = Translation("a", "b", forward=Map.linear(W.reshape(4, 3), np.zeros(3)), two=0.5)
    assert wide.key != other.key


def test_uncertainty_is_linear_and_never_below_zero() -> None:
    slope = np.array([0.5, -1.0, 0.0], np.float32)
    expected = Uncertainty(slope, 0.25)(np.eye(3, dtype=np.float32))
    assert expected.tolist() == [0.75, 0.0, 0.25]
