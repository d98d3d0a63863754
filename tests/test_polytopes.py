"""The closed forms against matrices written down corner by corner, in NumPy and in torch, with their gradients."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from dense_geometry import cube_prototypes, orthoplex_prototypes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fixstar.errors import InputError
from fixstar.polytopes import (
    cube_dimension,
    cube_logits,
    orthoplex_logits,
    polygon_logits,
    polygon_prototypes,
)

seeds = st.integers(0, 2**32 - 1)


def orthoplex(z: Any, K: int, scale: float = 1.0) -> Any:
    """With the signature of the others; K only says how wide the features are."""
    assert z.shape[-1] == math.ceil(K / 2)
    return orthoplex_logits(z, scale)


LOGITS: dict[str, Callable[..., Any]] = {
    "cube": cube_logits,
    "orthoplex": orthoplex,
    "polygon": polygon_logits,
}
DENSE: dict[str, Callable[[int], NDArray[np.float64]]] = {
    "cube": cube_prototypes,
    "orthoplex": lambda K: orthoplex_prototypes(math.ceil(K / 2)),
    "polygon": polygon_prototypes,
}
names = st.sampled_from(sorted(LOGITS))


@given(name=names, K=st.integers(3, 300), scale=st.floats(0.1, 50), seed=seeds)
@settings(max_examples=100, deadline=None)
def test_closed_forms_equal_the_dense_product(name: str, K: int, scale: float, seed: int) -> None:
    W = DENSE[name](K)
    z = np.random.default_rng(seed).standard_normal((3, W.shape[1]))
    dense = scale * z @ W.T
    np.testing.assert_allclose(LOGITS[name](z, K, scale), dense, atol=1e-10)
    tolerance = 2e-5 * max(1.0, scale)
    np.testing.assert_allclose(LOGITS[name](z.astype(np.float32), K, scale), dense, atol=tolerance)
    np.testing.assert_allclose(
        LOGITS[name](torch.from_numpy(z).float(), K, scale), dense, atol=tolerance
    )


@given(name=names, K=st.integers(3, 150), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_gradients_equal_the_dense_gradient(name: str, K: int, seed: int) -> None:
    W = torch.from_numpy(DENSE[name](K))
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(4, W.shape[1], generator=generator, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, len(W), generator=generator, dtype=torch.float64)
    torch.autograd.backward((LOGITS[name](z, K, 2.0) * weights).sum())
    torch.testing.assert_close(z.grad, 2.0 * weights @ W)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_a_whole_cube_has_every_sign_pattern_once_at_unit_length(d: int) -> None:
    W = cube_prototypes(2**d)
    patterns = {tuple(row) for row in np.sign(W).astype(int).tolist()}
    assert patterns == set(itertools.product((-1, 1), repeat=d))
    np.testing.assert_allclose(np.linalg.norm(W, axis=1), 1)


def test_a_vertex_of_the_cube_reads_as_its_number_in_binary() -> None:
    for j, row in enumerate(cube_prototypes(20).tolist()):
        digits = "".join("1" if x > 0 else "0" for x in reversed(row))
        assert digits == f"{j:05b}"


@given(d=st.integers(1, 30))
@settings(max_examples=20, deadline=None)
def test_an_orthoplex_is_orthogonal_but_for_opposites(d: int) -> None:
    W = orthoplex_prototypes(d)
    signed = np.eye(2 * d) - np.eye(2 * d, k=d) - np.eye(2 * d, k=-d)
    np.testing.assert_array_equal(W @ W.T, signed)


@pytest.mark.parametrize("K", [3, 4, 10])
def test_neighbours_of_a_polygon_are_one_turn_apart(K: int) -> None:
    W = polygon_prototypes(K)
    np.testing.assert_allclose(np.linalg.norm(W, axis=1), 1)
    x, y = W.T
    turned = np.arctan2(x * np.roll(y, -1) - y * np.roll(x, -1), (W * np.roll(W, -1, 0)).sum(1))
    np.testing.assert_allclose(turned, 2 * np.pi / K)


def test_a_million_classes_of_a_cube_come_out_in_linear_memory() -> None:
    """The extreme logits are the sums of absolute values: no matrix is needed to know them."""
    K = 2**20
    z = torch.randn(1, 20, generator=torch.Generator().manual_seed(0), requires_grad=True)
    logits = cube_logits(z, K)
    assert logits.shape == (1, K)
    assert logits.max().item() == pytest.approx(z.abs().sum().item() / math.sqrt(20), rel=1e-5)
    best = int(logits.argmax())
    assert [best >> i & 1 for i in range(20)] == (z[0] > 0).int().tolist()
    torch.autograd.backward(logits[0, best])
    torch.testing.assert_close(z.grad, z.detach().sign() / math.sqrt(20))


@pytest.mark.parametrize("name", LOGITS)
def test_leading_dimensions_dtype_and_inputs_are_kept(name: str) -> None:
    K = 12
    width = DENSE[name](K).shape[1]
    z = np.ones((2, 3, width), np.float32)
    assert LOGITS[name](z, K, 3.0).shape == (2, 3, K)
    assert LOGITS[name](z, K).dtype == np.float32
    assert (z == 1).all()
    t = torch.ones(2, width, dtype=torch.bfloat16)
    assert LOGITS[name](t, K, 3.0).dtype == torch.bfloat16
    assert (t == 1).all()


@pytest.mark.parametrize("z", [np.zeros((2, 5)), torch.zeros(2, 1), np.float64(1)])
def test_a_feature_of_the_wrong_width_is_refused(z: Any) -> None:
    with pytest.raises(InputError, match=r"K=5 classes takes features \[\.\.\., 3\]"):
        cube_logits(z, 5)
    with pytest.raises(InputError, match=r"\[\.\.\., 2\]"):
        polygon_logits(z, 5)


def test_too_few_classes_are_refused() -> None:
    with pytest.raises(InputError, match="K >= 2"):
        cube_dimension(1)
    with pytest.raises(InputError, match="K >= 3"):
        polygon_prototypes(2)
    with pytest.raises(InputError, match="at least 1"):
        orthoplex_logits(np.zeros((2, 0)))


def test_polytopes_do_not_import_torch() -> None:
    code = (
        "import sys, numpy as np, fixstar.polytopes as p; z = np.ones(2);"
        "p.cube_logits(z, 4); p.polygon_logits(z, 4); p.orthoplex_logits(z); print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
