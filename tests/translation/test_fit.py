"""Fitted maps against known rotations, closed forms, slow obvious code and scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from wording import refuses

from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation import nearest
from fixstar.geometry import unit
from fixstar.translation import KINDS, Map, Pairs, fit_map
from fixstar.translation.fit import fit_whitening, gcv_penalty

Array = NDArray[np.float64]


def vectors(count: int, width: int, seed: int = 0) -> Array:
    return unit(np.random.default_rng(seed).standard_normal((count, width)))


def rotation(width: int, seed: int = 1) -> Array:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((width, width)))[0]


def noisy(X: Array, Y: Array, noise: float = 0.3, seed: int = 2) -> tuple[Array, Array]:
    return X, unit(
        Y + noise / Y.shape[1] ** 0.5 * np.random.default_rng(seed).standard_normal(Y.shape)
    )


def fitted(kind: str, X: Any, Y: Any, *, checked: Any = None, **options: Any) -> Map:
    return fit_map(kind, Pairs.checked(X, Y, **(checked or {})), **options).map


def matrix(made: Map) -> Array:
    return made.layers[0].W.astype(np.float64)


# --- rotation


@pytest.mark.parametrize("kind", ["rotation", "ridge"])
def test_a_known_rotation_is_found(kind: str) -> None:
    X, Q = vectors(300, 12), rotation(12)
    made = fitted(kind, X, X @ Q)
    fresh = vectors(50, 12, seed=9)
    np.testing.assert_allclose(made(fresh), fresh @ Q, atol=1e-6 if kind == "rotation" else 1e-4)
    assert made.widths == (12, 12)


@pytest.mark.parametrize(("a", "b"), [(6, 10), (10, 6)])
def test_a_rotation_between_widths_has_orthonormal_rows_or_columns(a: int, b: int) -> None:
    X, Y = noisy(vectors(400, a), vectors(400, b, seed=1))
    W = matrix(fitted("rotation", X, Y))
    np.testing.assert_allclose(W @ W.T if a < b else W.T @ W, np.eye(min(a, b)), atol=1e-6)


def test_few_pairs_determine_the_rotation_on_their_span_only() -> None:
    X, Q = vectors(10, 30), rotation(30)
    W = matrix(fitted("rotation", X, X @ Q))
    span = np.linalg.qr(X.T)[0]
    np.testing.assert_allclose(W, span @ span.T @ Q, atol=1e-6)


def test_a_narrow_space_is_found_in_a_wider_one() -> None:
    Q = rotation(10)[:6]  # orthonormal rows
    X, fresh = vectors(100, 6), vectors(20, 6, seed=3)
    np.testing.assert_allclose(fitted("rotation", X, X @ Q)(fresh), fresh @ Q, atol=1e-6)


def test_no_other_rotation_is_better() -> None:
    X, Y = noisy(vectors(60, 4), vectors(60, 4) @ rotation(4), noise=1.0)
    weights = np.random.default_rng(3).uniform(0.2, 3, 60)
    W = matrix(fitted("rotation", X, Y, checked={"weights": weights}))
    rng = np.random.default_rng(5)

    def fit(R: Array) -> float:
        return float(np.sum(weights[:, None] * (X @ R) * Y))

    best = fit(W)
    for _ in range(500):
        skew = rng.standard_normal((4, 4)) * 0.2
        near = W @ np.linalg.qr(np.eye(4) + skew - skew.T)[0]
        assert fit(near) <= best + 1e-5
    assert all(fit(rotation(4, seed)) < best for seed in range(100))


# --- ridge


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(8, 40),
    a=st.integers(1, 30),
    b=st.integers(2, 6),
    penalty=st.floats(0.01, 10),
    seed=st.integers(0, 2**16),
)
def test_ridge_solves_the_normal_equations(
    count: int, a: int, b: int, penalty: float, seed: int
) -> None:
    """Few pairs of wide vectors and many of narrow ones, weighted: (X^T w X + penalty) W = X^T w Y, centred."""
    rng = np.random.default_rng(seed)
    X, Y = vectors(count, a, seed), vectors(count, b, seed + 1)
    w = rng.uniform(0.2, 3, count)
    w = w / w.mean()
    x, y = w @ X / w.sum(), w @ Y / w.sum()
    scatter = np.zeros((a, a))
    product = np.zeros((a, b))
    for row in range(count):
        scatter += w[row] * np.outer(X[row] - x, X[row] - x)
        product += w[row] * np.outer(X[row] - x, Y[row] - y)
    slow = np.linalg.solve(scatter + penalty * np.eye(a), product)
    layer = fitted("ridge", X, Y, checked={"weights": w}, penalty=penalty).layers[0]
    np.testing.assert_allclose(layer.W, slow, atol=1e-5)
    np.testing.assert_allclose(layer.c, y - x @ slow, atol=1e-5)


def test_few_pairs_and_many_give_the_ridge_of_slow_code() -> None:
    from sklearn.linear_model import Ridge

    for count in (22, 60):
        X, Y = noisy(vectors(count, 25), vectors(count, 20, seed=3))
        w = np.linspace(0.5, 2, count)
        root = np.sqrt(w / w.mean())[:, None]
        x, y = (np.average(part, axis=0, weights=w) for part in (X, Y))
        slow = (
            Ridge(alpha=0.3, fit_intercept=False, solver="svd")
            .fit(root * (X - x), root * (Y - y))
            .coef_.T
        )
        layer = fitted("ridge", X, Y, checked={"weights": w}, penalty=0.3).layers[0]
        np.testing.assert_allclose(layer.W, slow, atol=1e-6)
        np.testing.assert_allclose(layer.c, y - x @ slow, atol=1e-6)


@pytest.mark.parametrize("count", [300, 5])
def test_half_whitening_is_that_of_slow_code(count: int) -> None:
    """unit((x - mean) C^(-1/4)), with C the weighted covariance, whose least eigenvalues are lifted."""
    rng = np.random.default_rng(7)
    X = unit(rng.standard_normal((count, 8)) * np.array([5, 3, 2, 1, 1, 1, 0.5, 1e-3]) + 2.0)
    weights = rng.uniform(0.5, 2, count)
    whitening = fit_whitening(Pairs.checked(X, vectors(count, 3), weights=weights))
    assert whitening is not None
    mean = np.average(X, axis=0, weights=weights)
    C = np.cov(X.T, aweights=weights, ddof=0)
    values, directions = np.linalg.eigh(C)
    lifted = np.maximum(values, 1e-3 * values[-1])
    slow = directions @ np.diag(lifted**-0.25) @ directions.T
    others = vectors(40, 8, seed=9)
    np.testing.assert_allclose(whitening(others), unit((others - mean) @ slow), atol=1e-5)


def test_half_whitening_halves_the_exponents_of_the_variances() -> None:
    """Variances s of the directions become their roots, up to one factor."""
    rng = np.random.default_rng(8)
    spread = np.array([0.3, 0.2, 0.1, 0.05])
    X = unit(np.hstack([spread * rng.standard_normal((20_000, 4)), np.ones((20_000, 1))]))
    whitening = fit_whitening(Pairs.checked(X, X))
    assert whitening is not None
    before = np.var(X[:, :4], axis=0)
    after = np.var(whitening.layers[0].raw(X)[:, :4], axis=0)
    np.testing.assert_allclose(after / after[0], (before / before[0]) ** 0.5, rtol=0.05)


def test_equal_vectors_have_no_whitening() -> None:
    X = np.repeat(vectors(1, 4), 9, axis=0)
    assert fit_whitening(Pairs.checked(X, vectors(9, 3))) is None


def test_ridge_is_that_of_scikit_learn() -> None:
    from sklearn.linear_model import Ridge

    X, Y = noisy(vectors(80, 7), vectors(80, 5, seed=4), noise=0.1)
    weights = np.random.default_rng(6).uniform(0.2, 3, 80)
    weights /= weights.mean()
    for given_weights in (None, weights):
        layer = fitted("ridge", X, Y, checked={"weights": given_weights}, penalty=2.5).layers[0]
        theirs = Ridge(alpha=2.5).fit(X, Y, sample_weight=given_weights)
        np.testing.assert_allclose(layer.W, theirs.coef_.T, atol=1e-6)
        np.testing.assert_allclose(layer.c, theirs.intercept_, atol=1e-6)


def test_ridge_by_hand() -> None:
    """x is +-e1 and +-e2, y = x: the scatter is 4, so W = 4 / (4 + penalty) and c = 0."""
    X = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]] * 2)
    layer = fitted("ridge", X, X, penalty=4.0).layers[0]
    np.testing.assert_allclose(layer.W, np.eye(2) * 4 / 8, atol=1e-7)
    np.testing.assert_allclose(layer.c, 0, atol=1e-7)


@pytest.mark.parametrize("noise", [0.05, 1.0, 4.0])
@pytest.mark.parametrize(("count", "width"), [(50, 12), (20, 40)])
def test_the_penalty_has_the_least_generalised_cross_validation_error(
    noise: float, count: int, width: int
) -> None:
    X, Y = noisy(vectors(count, width), vectors(count, width) @ rotation(width), noise)

    def error(penalty: float) -> float:  # with the hat matrix itself
        Xc, Yc = X - X.mean(0), Y - Y.mean(0)
        H = Xc @ np.linalg.solve(Xc.T @ Xc + penalty * np.eye(width), Xc.T) + 1 / count
        return float(np.sum((Yc - H @ Yc) ** 2) / (count - np.trace(H)) ** 2)

    pairs = Pairs.checked(X, Y)
    chosen = gcv_penalty(pairs.spectrum)
    scale = np.linalg.eigvalsh(np.cov(X.T, ddof=0) * count).mean()
    tried = [float(p) for p in np.logspace(-6, 2, 33) * scale]
    if count > width:  # with fewer, tiny penalties fit all pairs, and the quotient is rounding
        assert error(chosen) <= min(error(p) for p in tried) * (1 + 1e-9)
    assert min(abs(chosen - p) for p in tried) <= 1e-9 * chosen
    assert fit_map("ridge", pairs).chosen["penalty"] == pytest.approx(chosen)


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
@pytest.mark.parametrize(("count", "width"), [(40, 8), (30, 30), (25, 50)])
def test_the_penalty_is_nearly_the_best_by_leaving_one_pair_out(
    noise: float, count: int, width: int
) -> None:
    X, Y = noisy(vectors(count, width), vectors(count, width) @ rotation(width), noise)

    def left_out(penalty: float) -> float:
        errors = []
        for row in range(count):
            others = np.arange(count) != row
            x, y = X[others].mean(0), Y[others].mean(0)
            Xc, Yc = X[others] - x, Y[others] - y
            W = np.linalg.solve(Xc.T @ Xc + penalty * np.eye(width), Xc.T @ Yc)
            errors.append(np.sum(((X[row] - x) @ W + y - Y[row]) ** 2))
        return float(np.mean(errors))

    found = Pairs.checked(X, Y).spectrum
    tried = np.logspace(-6, 2, 33)[::4] * found.mean_value
    assert left_out(gcv_penalty(found)) <= 1.1 * min(left_out(float(p)) for p in tried)


def test_large_inputs_go_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = noisy(vectors(100, 4), vectors(100, 4))
    whole = fitted("ridge", X, Y)
    monkeypatch.setattr("fixstar.translation.fit._BLOCK_ROWS", 7)
    np.testing.assert_allclose(fitted("ridge", X, Y)(X), whole(X), atol=1e-6)


def test_held_out_pairs_are_not_seen() -> None:
    """Random partners: on pairs it has seen a map looks better than chance, on the others it must not."""
    X, Y = vectors(400, 30), vectors(400, 30, seed=8)
    seen = fitted("ridge", X, Y, penalty=0.0)
    assert np.sum(seen(X) * Y, axis=1).mean() > 0.15
    shown, judged = Pairs.checked(X, Y).split()
    options: dict[str, dict[str, Any]] = {
        "residual": {"epochs": 3, "hidden": 16},
        "contrast": {"epochs": 3},
    }
    for kind in KINDS:
        made = fit_map(kind, shown, **options.get(kind, {})).map
        assert abs(float(np.sum(made(judged.X) * judged.Y, axis=1).mean())) < 0.08, kind


# --- residual


def warp(X: Array) -> Array:
    """Not linear: every component's sign is lost in half of them."""
    return unit(np.concatenate([np.abs(X) - 0.2, X @ rotation(X.shape[1])], axis=1))


def test_a_residual_map_follows_what_is_not_linear() -> None:
    X, fresh = vectors(600, 8), vectors(300, 8, seed=7)
    straight = fitted("ridge", X, warp(X))
    bent = fitted("residual", X, warp(X), checked={"seed": 1}, epochs=40, hidden=128)
    cosines = [float(np.sum(made(fresh) * warp(fresh), axis=1).mean()) for made in (straight, bent)]
    assert cosines[1] > cosines[0] + 0.03
    again = fitted("residual", X, warp(X), checked={"seed": 1}, epochs=40, hidden=128)
    np.testing.assert_array_equal(again(fresh), bent(fresh))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0.3, 2.0])
def test_a_residual_map_is_never_worse_than_ridge_on_the_judged_pairs(
    noise: float, seed: int
) -> None:
    X, Y = noisy(vectors(150, 10, seed), vectors(150, 10, seed) @ rotation(10), noise)
    weights = np.random.default_rng(seed).uniform(0.5, 2, 150)
    pairs = Pairs.checked(X, Y, weights=weights, seed=seed)
    shown, judged = pairs.split()
    found = fit_map("residual", pairs, epochs=6, hidden=32)
    ridge = fit_map("ridge", shown).map

    def agrees(made: Map) -> float:
        return float(np.average(np.sum(made(judged.X) * judged.Y, axis=1), weights=judged.weights))

    assert agrees(found.map) >= agrees(ridge) - 1e-6
    assert 0 <= found.chosen["epoch"] <= 6


def test_a_residual_map_of_no_epochs_is_ridge_on_the_shown_pairs() -> None:
    X, Y = noisy(vectors(200, 6), vectors(200, 6) @ rotation(6))
    pairs = Pairs.checked(X, Y, seed=4)
    made = fit_map("residual", pairs, epochs=0).map
    np.testing.assert_allclose(made(X), fit_map("ridge", pairs.split()[0]).map(X), atol=1e-5)


def test_many_wide_pairs_get_fewer_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fixstar.translation.fit._WORK", 1)
    X = vectors(600, 8)
    found = fit_map("residual", Pairs.checked(X, warp(X)), hidden=64)
    assert found.chosen == {"hidden": 64, "epoch": 3}


# --- contrast


def crowded(count: int, seed: int) -> tuple[Array, Array, NDArray[np.int64]]:
    """Items of 40 classes by two models. Large directions say little about the class, and a ridge keeps those."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).standard_normal((40, 12))
    labels = rng.integers(40, size=count)
    details = centres[labels] + 0.3 * rng.standard_normal((count, 12))
    common = 4 * rng.standard_normal((count, 4))
    stored = unit(np.hstack([common, details]))
    seen = np.hstack([common, details + 0.5 * rng.standard_normal((count, 12))])
    return unit(seen) @ rotation(16), stored, labels


def found_by(
    made: Map, queries: Array, stored: Array, labels: NDArray[np.int64], classes: NDArray[np.int64]
) -> float:
    return float((classes[nearest(made(queries), stored)[0][:, 0]] == labels).mean())


def test_queries_that_are_mapped_by_contrast_find_more() -> None:
    X, Y, labels = crowded(300, seed=0)
    queries, _, asked = crowded(500, seed=1)
    _, stored, classes = crowded(500, seed=2)
    grouped = Pairs.checked(X, Y, groups=labels)
    ridge = fit_map("ridge", grouped).map
    trained = fit_map("contrast", grouped, epochs=10, learning_rate=0.01).map
    before = found_by(ridge, queries, stored, asked, classes)
    after = found_by(trained, queries, stored, asked, classes)
    assert after > before + 0.05
    again = fit_map("contrast", grouped, epochs=10, learning_rate=0.01).map
    np.testing.assert_array_equal(matrix(again), matrix(trained))


def test_contrast_of_no_epochs_is_ridge() -> None:
    X, Y, labels = crowded(300, seed=0)
    grouped = Pairs.checked(X, Y, groups=labels)
    made = fit_map("contrast", grouped, epochs=0).map
    np.testing.assert_allclose(matrix(made), matrix(fit_map("ridge", grouped).map), atol=1e-6)


def test_pairs_of_one_group_have_no_contrast() -> None:
    X, Y = noisy(vectors(120, 6), vectors(120, 6) @ rotation(6))
    alone = fit_map("contrast", Pairs.checked(X, Y, groups=["a"] * 120), epochs=2).map
    cosine = fit_map("contrast", Pairs.checked(X, Y), contrast=0.0, epochs=2).map
    np.testing.assert_allclose(matrix(alone), matrix(cosine), atol=1e-6)


# --- pairs


def test_groups_stay_together() -> None:
    groups = np.repeat(np.arange(20), 5)
    shown, judged = Pairs.checked(vectors(100, 3), vectors(100, 3), groups=groups, seed=3).split(
        0.3
    )
    assert shown.groups is not None
    assert judged.groups is not None
    assert not set(shown.groups) & set(judged.groups)
    assert len(judged) == 30
    assert shown.weights.mean() == pytest.approx(1)


@settings(max_examples=30, deadline=None)
@given(count=st.integers(2, 60), share=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_a_split_has_every_pair_once(count: int, share: float, seed: int) -> None:
    X = vectors(count, 4, seed)
    shown, judged = Pairs.checked(X, -X, seed=seed).split(share)
    assert len(shown) >= 1
    assert len(judged) >= 1
    both = np.concatenate([shown.X, judged.X])
    np.testing.assert_array_equal(both[np.lexsort(both.T)], X[np.lexsort(X.T)])
    np.testing.assert_array_equal(shown.Y, -shown.X)


def test_pairs_are_turned_round_and_weigh_one_on_average() -> None:
    X, Y = vectors(30, 3), vectors(30, 5, seed=1)
    pairs = Pairs.checked(X, Y, weights=np.arange(1, 31), groups=np.arange(30) % 4, seed=9)
    back = pairs.reversed
    np.testing.assert_array_equal(back.X, Y)
    np.testing.assert_array_equal(back.Y, X)
    assert back.reversed.seed == 9
    assert pairs.weights.mean() == pytest.approx(1)
    np.testing.assert_array_equal(back.weights, pairs.weights)


GOOD = vectors(100, 6)
LONG, BROKEN = GOOD * 2, np.where(np.arange(100)[:, None] == 7, np.nan, GOOD)


@pytest.mark.parametrize(
    "call",
    [
        lambda: fitted("rotation", GOOD[:5], GOOD[:5]),
        lambda: fitted("residual", GOOD[:99], GOOD[:99]),
        lambda: fitted("ridge", GOOD, GOOD[:50]),
        lambda: fitted("ridge", BROKEN, GOOD),
        lambda: fitted("ridge", GOOD, LONG),
        lambda: fitted("ridge", GOOD[0], GOOD),
        lambda: fitted("ridge", GOOD[:0], GOOD[:0]),
        lambda: Pairs.checked(GOOD, GOOD, weights=np.zeros(100)),
        lambda: Pairs.checked(GOOD, GOOD, weights=[1.0]),
        lambda: Pairs.checked(GOOD, GOOD, groups=[1]),
        lambda: Pairs.checked(GOOD, GOOD, groups=[1] * 100).split(),
        lambda: Pairs.checked(GOOD, GOOD).split(1.0),
        lambda: fitted("ridge", GOOD, GOOD, rank=3),
        lambda: fitted("ridge", GOOD, GOOD, penalty=-1.0),
        lambda: fitted("residual", GOOD, GOOD, hidden=0),
        lambda: fitted("contrast", GOOD, GOOD, contrast=-1),
    ],
)
def test_what_is_refused(call: Any) -> None:
    with refuses(InputError):
        call()


def test_unknown_kinds_are_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ridge'"):
        fitted("rigde", GOOD, GOOD)


def test_integers_and_half_precision_are_pairs_too() -> None:
    X = np.tile(np.eye(4, dtype=np.int64), (4, 1))
    np.testing.assert_allclose(
        fitted("rotation", X, X.astype(np.float16))(np.eye(4)), np.eye(4), atol=1e-6
    )
