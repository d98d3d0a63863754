"""Maps: layers in NumPy against slow loops, their arrays, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from wording import refuses

from fixstar.errors import InputError, ModelError
from fixstar.geometry import unit
from fixstar.translation import Layer, Map
from fixstar.translation.maps import composed

Array = NDArray[np.float64]


def vectors(count: int, width: int, seed: int = 0) -> Array:
    return unit(np.random.default_rng(seed).standard_normal((count, width)))


def linear(a: int, b: int, seed: int = 0) -> Map:
    rng = np.random.default_rng(seed)
    return Map.linear(rng.standard_normal((a, b)), rng.standard_normal(b))


def residual(a: int, b: int, hidden: int = 5, seed: int = 0) -> Map:
    rng = np.random.default_rng(seed)
    shapes = {"W": (a, b), "c": (b,), "A": (a, hidden), "e": (hidden,), "B": (hidden, b)}
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


def slowly(layers: tuple[Layer, ...], x: Array) -> list[float]:
    """One vector through the layers, number by number."""
    row = [float(value) for value in x]
    for layer in layers:
        a, b = layer.widths
        out = [
            float(layer.c[j]) + sum(row[i] * float(layer.W[i, j]) for i in range(a))
            for j in range(b)
        ]
        if layer.A is not None and layer.e is not None and layer.B is not None:
            for h in range(len(layer.e)):
                inner = float(layer.e[h]) + sum(row[i] * float(layer.A[i, h]) for i in range(a))
                out = [
                    value + max(inner, 0.0) * float(layer.B[h, j]) for j, value in enumerate(out)
                ]
        length = sum(value**2 for value in out) ** 0.5
        row = [value / length for value in out]
    return row


@settings(max_examples=30, deadline=None)
@given(
    widths=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    bent=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_a_map_is_what_slow_loops_compute(widths: list[int], bent: bool, seed: int) -> None:
    make = residual if bent else linear
    whole = composed(
        [make(a, b, seed=seed + place) for place, (a, b) in enumerate(pairwise(widths))]
    )
    assert whole.widths == (widths[0], widths[-1])
    X = vectors(3, widths[0], seed)
    np.testing.assert_allclose(whole(X), [slowly(whole.layers, x) for x in X], atol=2e-4)


def test_maps_in_a_row_are_a_map() -> None:
    one, two, three = linear(4, 6), residual(6, 3), linear(3, 5)
    X = vectors(20, 4)
    whole = one.then(two).then(three)
    np.testing.assert_array_equal(whole(X), three(two(one(X))))
    np.testing.assert_array_equal(one.then(two.then(three))(X), whole(X))
    assert composed([one]) is one
    with refuses(ModelError):
        one.then(three)
    with refuses(ModelError):
        Map(())


def test_mapped_vectors_are_unit_float32_whatever_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for part in (linear(6, 9), residual(6, 9), linear(6, 9).then(residual(9, 9))):
        X = vectors(300, 6)
        out = part(X)
        assert out.dtype == np.float32
        assert out.shape == (300, 9)
        np.testing.assert_allclose(np.linalg.norm(out, axis=1), 1, atol=1e-6)
        assert part(X[:0]).shape == (0, 9)
        np.testing.assert_allclose(part(X.astype(np.float16)[:5]), out[:5], atol=5e-3)
        assert part(np.eye(6, dtype=np.int64)).shape == (6, 9)
        monkeypatch.setattr("fixstar.translation.maps._BLOCK", 7)
        np.testing.assert_allclose(part(X), out, atol=1e-6)
        monkeypatch.undo()


def test_arrays_by_name_make_the_map_again() -> None:
    whole = linear(4, 6).then(residual(6, 3))
    arrays = dict(whole.named_arrays())
    assert list(arrays) == ["0.W", "0.c", "1.W", "1.c", "1.A", "1.e", "1.B"]
    again = Map.of_arrays(dict(reversed(arrays.items())))
    X = vectors(10, 4)
    np.testing.assert_array_equal(again(X), whole(X))


def test_a_map_has_its_own_arrays() -> None:
    W = np.eye(3, dtype=np.float32)
    part = Map.linear(W)
    W[0, 0] = 5
    assert part(np.eye(3))[0].tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match="read-only"):
        part.layers[0].W[0, 0] = 5


EYE = np.eye(3, dtype=np.float32)
ZERO = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Layer(EYE, ZERO, A=EYE),
        lambda: Map.linear(EYE, ZERO[:2]),
        lambda: Map.linear(EYE * np.nan),
        lambda: Map.linear(EYE[0]),
        lambda: Map.linear(EYE[:0]),
        lambda: Layer(EYE, ZERO, EYE[:, :2], ZERO[:1], EYE[:2]),
        lambda: Map.of_arrays({"0.W": EYE}),
        lambda: Map.of_arrays({"0.W": EYE, "0.c": ZERO, "0.Z": EYE}),
        lambda: Map.of_arrays({"W": EYE}),
        lambda: Map.of_arrays({"1.W": EYE, "1.c": ZERO}),
        lambda: Map.of_arrays({}),
    ],
)
def test_arrays_that_are_no_map(call: Any) -> None:
    with refuses(ModelError):
        call()


@pytest.mark.parametrize(
    "given_vectors",
    [
        np.ones((2, 4)),
        np.ones(3),
        np.array([["a", "b", "c"]]),
        np.where(np.arange(9).reshape(3, 3) == 4, np.nan, 1.0),
        np.eye(3) * [[1], [1], [0]],
    ],
)
def test_vectors_that_cannot_be_mapped(given_vectors: Any) -> None:
    with refuses(InputError):
        Map.linear(EYE)(given_vectors)
