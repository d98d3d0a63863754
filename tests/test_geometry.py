"""The closed form against the dense reference; short forms against full features."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from dense_geometry import full_form, simplex_prototypes
from hypothesis import given, settings
from hypothesis import strategies as st

from fixstar.errors import InputError
from fixstar.geometry import (
    carry,
    short_basis,
    short_factors,
    short_form,
    simplex_logits,
    unit,
)

Rng = np.random.Generator
seeds = st.integers(0, 2**32 - 1)


def slow_prototypes(K: int) -> np.ndarray[Any, Any]:
    """Equation 10 of CoReS by hand: basis vectors and one more, centred, each divided by its length."""
    n = K - 1
    rows = [[1.0 if i == j else 0.0 for j in range(n)] for i in range(n)]
    rows.append([(1 - K**0.5) / n] * n)
    mean = [sum(row[j] for row in rows) / K for j in range(n)]
    centred = [[row[j] - mean[j] for j in range(n)] for row in rows]
    return np.array([[x / sum(y * y for y in row) ** 0.5 for x in row] for row in centred])


@pytest.mark.parametrize("K", [2, 3, 5, 30])
def test_prototypes_are_those_of_equation_10(K: int) -> None:
    np.testing.assert_allclose(simplex_prototypes(K), slow_prototypes(K), atol=1e-12)


@given(K=st.integers(2, 200))
@settings(max_examples=30, deadline=None)
def test_prototypes_are_unit_and_equidistant(K: int) -> None:
    gram = simplex_prototypes(K) @ simplex_prototypes(K).T
    expected = np.where(np.eye(K, dtype=bool), 1.0, -1.0 / (K - 1))
    np.testing.assert_allclose(gram, expected, atol=1e-10)


@given(K=st.integers(2, 300), scale=st.floats(0.1, 50), seed=seeds)
@settings(max_examples=50, deadline=None)
def test_closed_form_equals_the_dense_product(K: int, scale: float, seed: int) -> None:
    z = np.random.default_rng(seed).standard_normal((3, K - 1))
    dense = scale * z @ simplex_prototypes(K).T
    tolerance = 1e-5 * max(1.0, scale)
    np.testing.assert_allclose(
        simplex_logits(z.astype(np.float32), K, scale), dense, atol=tolerance
    )
    np.testing.assert_allclose(
        simplex_logits(torch.from_numpy(z).float(), K, scale), dense, atol=tolerance
    )


@given(K=st.integers(2, 100), seed=seeds)
@settings(max_examples=30, deadline=None)
def test_gradient_equals_the_dense_gradient(K: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed % 2**31)
    z = torch.randn(4, K - 1, generator=generator, requires_grad=True)
    weights = torch.randn(4, K, generator=generator)
    torch.autograd.backward((simplex_logits(z, K, 2.0) * weights).sum())
    assert z.grad is not None
    expected = 2.0 * weights.double() @ torch.from_numpy(simplex_prototypes(K))
    np.testing.assert_allclose(z.grad, expected, atol=1e-5)


def test_a_feature_on_its_prototype_has_logit_one_there() -> None:
    W = simplex_prototypes(7)
    logits = simplex_logits(W, 7)
    np.testing.assert_allclose(logits, np.where(np.eye(7, dtype=bool), 1.0, -1 / 6), atol=1e-12)


def test_a_million_classes_are_exact_in_linear_memory() -> None:
    """Row j < K of the prototypes is (e_j - c) / r, so a one-hot feature's logits are known without a matrix."""
    K = 1_000_000
    z = torch.zeros(1, K - 1, requires_grad=True)
    with torch.no_grad():
        z[0, 5] = 1.0
    logits = simplex_logits(z, K)
    n = K - 1
    a = (1 - K**0.5) / n
    c = (1 + a) / K
    r = ((1 - c) ** 2 + (n - 1) * c**2) ** 0.5
    assert logits[0, 5].item() == pytest.approx((1 - c) / r, abs=1e-5)
    assert logits[0, 6].item() == pytest.approx(-c / r, abs=1e-9)
    assert logits[0, -1].item() == pytest.approx((a - c) / r, abs=1e-9)
    torch.autograd.backward(logits[0, 5])
    assert z.grad is not None
    assert z.grad[0, 5].item() == pytest.approx((1 - c) / r, abs=1e-5)


def test_leading_dimensions_and_dtype_are_kept() -> None:
    assert simplex_logits(np.zeros((2, 3, 4), np.float32), 5).shape == (2, 3, 5)
    assert simplex_logits(np.zeros(4, np.float32), 5).dtype == np.float32
    assert simplex_logits(torch.zeros(2, 4, dtype=torch.bfloat16), 5).dtype == torch.bfloat16


@pytest.mark.parametrize("z", [np.zeros((2, 5)), torch.zeros(2, 3), np.float64(1)])
def test_a_feature_of_the_wrong_width_is_refused(z: Any) -> None:
    with pytest.raises(InputError, match=r"\[\.\.\., 4\]"):
        simplex_logits(z, 5)


@pytest.mark.parametrize("K", [1, 0, -3])
def test_a_simplex_needs_two_classes(K: int) -> None:
    with pytest.raises(InputError, match="K >= 2"):
        simplex_logits(np.zeros((1, 1)), K)


def test_inputs_are_left_alone() -> None:
    z = np.ones((2, 4))
    t = torch.ones(2, 4)
    simplex_logits(z, 5, 3.0)
    simplex_logits(t, 5, 3.0)
    assert (z == 1).all()
    assert (t == 1).all()


# Short forms


def version(rng: Rng, d: int, m: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal((d, m)).astype(np.float32)


def cosines(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Cosines in float64, vectors of unequal width padded with zeros."""
    width = max(a.shape[1], b.shape[1])
    a, b = (np.pad(x.astype(np.float64), ((0, 0), (0, width - x.shape[1]))) for x in (a, b))
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    product: np.ndarray[Any, Any] = a @ b.T
    return product


@given(
    d_old=st.integers(2, 60),
    d_new=st.integers(2, 60),
    m_old=st.integers(1, 40),
    m_new=st.integers(1, 40),
    seed=seeds,
)
@settings(max_examples=60, deadline=None)
def test_short_cosines_are_full_cosines_across_versions(
    d_old: int, d_new: int, m_old: int, m_new: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    P_old, P_new = version(rng, d_old, m_old), version(rng, d_new, m_new)
    h_old, h_new = (rng.standard_normal((5, m)).astype(np.float32) for m in (m_old, m_new))
    u_old, u_new = short_form(h_old, P_old), short_form(h_new, P_new)
    assert u_old.shape == (5, min(d_old, m_old))
    expected = cosines(h_new @ P_new.T, h_old @ P_old.T)
    carried = carry(u_new, short_basis(P_new), short_basis(P_old), d_old)
    np.testing.assert_allclose(carried @ u_old.T, expected, atol=1e-5)


@given(d=st.integers(2, 50), m=st.integers(1, 50), seed=seeds)
@settings(max_examples=40, deadline=None)
def test_factors_rebuild_the_projection(d: int, m: int, seed: int) -> None:
    P = version(np.random.default_rng(seed), d, m)
    Q, R = short_factors(P)
    np.testing.assert_allclose(Q @ R, P, atol=1e-5)
    np.testing.assert_allclose(Q.T @ Q, np.eye(min(d, m)), atol=1e-5)


@given(d=st.integers(2, 50), m=st.integers(1, 50), seed=seeds)
@settings(max_examples=40, deadline=None)
def test_numpy_and_torch_agree(d: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    P, h = version(rng, d, m), rng.standard_normal((3, m)).astype(np.float32)
    u = short_form(torch.from_numpy(h), torch.from_numpy(P))
    np.testing.assert_allclose(u, short_form(h, P), atol=1e-4)
    back = full_form(u, torch.from_numpy(P))
    np.testing.assert_allclose(back, full_form(short_form(h, P), P), atol=1e-4)
    np.testing.assert_allclose(unit(h @ P.T), back, atol=1e-4)


def test_a_rank_deficient_projection_is_still_exact() -> None:
    rng = np.random.default_rng(0)
    P = np.outer(rng.standard_normal(20), rng.standard_normal(6)).astype(np.float32)  # rank 1
    h = rng.standard_normal((4, 6)).astype(np.float32)
    np.testing.assert_allclose(full_form(short_form(h, P), P), unit(h @ P.T), atol=1e-5)


def test_a_long_feature_needs_only_the_backbones_width() -> None:
    rng = np.random.default_rng(1)
    P_old, P_new = version(rng, 20_000, 64), version(rng, 20_000, 48)
    h_old, h_new = (
        rng.standard_normal((3, 64)).astype(np.float32),
        rng.standard_normal((3, 48)).astype(np.float32),
    )
    carried = carry(short_form(h_new, P_new), short_basis(P_new), short_basis(P_old), 20_000)
    found = carried @ short_form(h_old, P_old).T
    np.testing.assert_allclose(found, cosines(h_new @ P_new.T, h_old @ P_old.T), atol=1e-5)


@given(
    d_old=st.integers(2, 30),
    d_new=st.integers(2, 30),
    m_old=st.integers(1, 30),
    m_new=st.integers(1, 30),
    seed=seeds,
)
@settings(max_examples=60, deadline=None)
def test_carry_is_one_matrix_for_a_pair_of_versions(
    d_old: int, d_new: int, m_old: int, m_new: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    P_old, P_new = version(rng, d_old, m_old), version(rng, d_new, m_new)
    u = short_form(rng.standard_normal((4, m_new)).astype(np.float32), P_new)
    carried = carry(u, short_basis(P_new), short_basis(P_old), d_old)
    shared = min(d_old, d_new)
    matrix = short_factors(P_new)[0][:shared].T @ short_factors(P_old)[0][:shared]
    np.testing.assert_allclose(carried, u @ matrix, atol=1e-5)


def test_a_zero_feature_stays_zero() -> None:
    assert not unit(np.zeros((1, 3))).any()
    assert not unit(torch.zeros(1, 3)).any()


def test_geometry_does_not_import_torch() -> None:
    code = (
        "import sys, numpy as np, fixstar.geometry as g; "
        "g.simplex_logits(np.ones(3), 4); print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
