"""A translated gallery as long vectors: their dot products are the scores, by image and by template."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fixstar.errors import InputError
from fixstar.evaluation import PROTOCOLS, VersionFeatures, backfill_curve
from fixstar.geometry import unit
from fixstar.translation import Layer, Map, Translation, translated
from fixstar.translation.score import translated_pair

Array = NDArray[np.float64]


def vectors(count: int, width: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((count, width))  # of any length


def bent(a: int, b: int, seed: int) -> Map:
    rng = np.random.default_rng(seed)
    shapes = {"W": (a, b), "c": (b,), "A": (a, 3), "e": (3,), "B": (3, b)}
    return Map(
        (
            Layer(
                **{
                    name: rng.standard_normal(shape).astype(np.float32)
                    for name, shape in shapes.items()
                }
            ),
        )
    )


def two_versions(a: int, b: int, seed: int) -> tuple[VersionFeatures, VersionFeatures]:
    old = VersionFeatures("v1", vectors(5, a, seed), vectors(8, a, seed + 1))
    new = VersionFeatures("v2", vectors(5, b, seed + 2), vectors(8, b, seed + 3))
    return old, new


def cosine(p: Any, q: Any) -> float:
    return float(p @ q / (np.linalg.norm(p) * np.linalg.norm(q)))


@settings(max_examples=40)
@given(
    a=st.integers(1, 6),
    b=st.integers(1, 6),
    one=st.sampled_from([0.0, 0.3, 0.6, 1.0]) | st.floats(0, 1),
    two=st.none() | st.floats(0, 1),
    seed=st.integers(0, 2**16),
)
def test_dot_products_are_the_formula(
    a: int, b: int, one: float, two: float | None, seed: int
) -> None:
    """score(x, z) = w cos(q(x), F(z)) + (1 - w) cos(b(x), z), pair by pair."""
    old, new = two_versions(a, b, seed)
    forward, backward = bent(a, b, seed), bent(b, a, seed + 9)
    seen = translated(Translation("v1", "v2", forward, backward, one, two), old, new)
    w = one if two is None else two
    for i, query in enumerate(new.queries):
        asked = old.queries[i] if two is not None else backward(unit(query)[None])[0]
        for j, stored in enumerate(old.gallery):
            ahead = forward(unit(stored)[None])[0]
            expected = w * cosine(query, ahead) + (1 - w) * cosine(asked, stored)
            assert float(seen.queries[i] @ seen.gallery[j]) == pytest.approx(expected, abs=1e-5)
    np.testing.assert_allclose(
        np.linalg.norm(seen.gallery, axis=1), 1, atol=1e-5
    )  # so cosines rank as scores do
    assert seen.name == "v1"


@settings(max_examples=40)
@given(
    a=st.integers(2, 6),
    b=st.integers(1, 6),
    one=st.sampled_from([0.3, 0.6, 1.0]) | st.floats(0.01, 1),
    two=st.none() | st.floats(0.01, 1),
    seed=st.integers(0, 2**16),
)
def test_a_whitened_old_side_compares_mapped_vectors(
    a: int, b: int, one: float, two: float | None, seed: int
) -> None:
    """score(x, z) = w cos(q(x), F(z)) + (1 - w) cos(V b(x), V z); the old queries find what they found before."""
    old, new = two_versions(a, b, seed)
    forward, backward, V = bent(a, b, seed), bent(b, a, seed + 9), bent(a, a, seed + 5)
    way = Translation("v1", "v2", forward, backward, one, two, whitening=V, whitened=True)
    w = one if two is None else two
    asked = unit(old.queries) if two is not None else backward(unit(new.queries))
    ahead = unit(new.queries) @ forward(unit(old.gallery)).T
    expected = w * ahead + (1 - w) * V(asked) @ V(unit(old.gallery)).T
    seen = translated(way, old, new)
    np.testing.assert_allclose(seen.queries @ seen.gallery.T, expected, atol=1e-5)
    before, after = translated_pair(way, old, new)
    np.testing.assert_allclose(
        before.queries @ before.gallery.T, unit(old.queries) @ unit(old.gallery).T, atol=1e-5
    )
    asking = after.queries_in(before)
    np.testing.assert_allclose(asking @ before.gallery.T, expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(before.gallery, axis=1), 1, atol=1e-5)
    one_vector = way.joined(unit(new.queries), way.compared(asked))
    np.testing.assert_allclose(
        one_vector @ way.joined_stored(unit(old.gallery)).T, expected, atol=1e-5
    )
    np.testing.assert_allclose(np.linalg.norm(one_vector, axis=1), 1, atol=1e-5)


def test_weight_zero_needs_no_longer_vectors() -> None:
    old, new = two_versions(4, 6, 0)
    kept = translated(Translation.by_old_queries("v1", "v2"), old, new)
    np.testing.assert_allclose(kept.queries, unit(old.queries), atol=1e-6)
    np.testing.assert_allclose(kept.gallery, unit(old.gallery), atol=1e-6)
    mapped = translated(Translation("v1", "v2", bent(4, 6, 1), bent(6, 4, 2), one=0.0), old, new)
    assert mapped.gallery.shape == (8, 4)
    whitened = replace(
        Translation("v1", "v2", bent(4, 6, 1), two=0.0), whitening=bent(4, 4, 3), whitened=True
    )
    plain = translated(whitened, old, new)  # an index asks like this: without V
    np.testing.assert_allclose(plain.gallery, unit(old.gallery), atol=1e-6)


def test_versions_that_share_a_space_are_asked_as_they_are() -> None:
    """Short forms: dot products are the cosines of the full features."""
    rng = np.random.default_rng(0)
    P, R = rng.standard_normal((2, 9, 4))
    Q = [np.linalg.qr(part)[0] for part in (P, R)]
    signs = [np.sign(np.diag(np.linalg.qr(part)[1])) for part in (P, R)]
    old = VersionFeatures("v1", unit(vectors(5, 4, 1)), unit(vectors(8, 4, 2)), projection=P)
    new = VersionFeatures("v2", unit(vectors(5, 4, 3)), unit(vectors(8, 4, 4)), projection=R)
    seen = translated(Translation.between_shared("v1", "v2"), old, new)
    full_queries = new.queries @ (Q[1] * signs[1]).T
    full_gallery = old.gallery @ (Q[0] * signs[0]).T
    np.testing.assert_allclose(
        seen.queries @ seen.gallery.T, full_queries @ full_gallery.T, atol=1e-5
    )
    forward = bent(4, 4, 5)
    both = translated(Translation("v1", "v2", forward=forward, one=0.25, shared=True), old, new)
    ahead = new.queries @ forward(old.gallery).T
    expected = 0.25 * ahead + 0.75 * full_queries @ full_gallery.T
    np.testing.assert_allclose(both.queries @ both.gallery.T, expected, atol=1e-5)
    apart = replace(new, queries=vectors(5, 3, 3), gallery=vectors(8, 3, 4), projection=None)
    with pytest.raises(InputError, match="different feature width"):
        translated(Translation.between_shared("v1", "v2"), old, apart)


def test_templates_of_a_translated_gallery() -> None:
    """The template of a class is the mean of its long vectors; the best has the query's class or has not."""
    old, new = two_versions(4, 6, 0)
    way = Translation("v1", "v2", bent(4, 6, 1), bent(6, 4, 2), one=0.4)
    truth, labels = np.array([0, 1, 2, 0, 1]), np.array([0, 0, 0, 1, 1, 2, 2, 2])
    seen = translated(way, old, new)
    assert way.forward is not None
    assert way.backward is not None
    right = []
    for query, own in zip(new.queries, truth, strict=True):
        means = []
        for label in range(3):
            stored = unit(old.gallery[labels == label])
            ahead = way.forward(stored).mean(axis=0)
            plain = stored.mean(axis=0)
            length = (ahead @ ahead + plain @ plain) ** 0.5
            score = 0.4 * unit(query) @ ahead + 0.6 * way.backward(unit(query)[None])[0] @ plain
            means.append(score / length)
        right.append(int(np.argmax(means)) == own)
    assert PROTOCOLS["template"](seen.queries, truth, seen.gallery, labels).tolist() == right


def test_a_translated_view_is_backfilled() -> None:
    """At share 0 every query finds what the translation finds; at share 1 what the new version finds."""
    old, new = two_versions(4, 6, 0)
    way = Translation("v1", "v2", bent(4, 6, 1), bent(6, 4, 2), one=0.4)
    truth, labels = np.array([0, 1, 2, 0, 1]), np.array([0, 0, 0, 1, 1, 2, 2, 2])
    seen = translated(way, old, new)
    curve = backfill_curve(*translated_pair(way, old, new), truth, labels, [0.0, 1.0])
    assert curve.hits is not None
    assert (
        curve.hits[0, 0].tolist()
        == PROTOCOLS["image"](seen.queries, truth, seen.gallery, labels).tolist()
    )
    assert (
        curve.hits[0, 1].tolist()
        == PROTOCOLS["image"](new.queries, truth, new.gallery, labels).tolist()
    )
