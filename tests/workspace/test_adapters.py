"""Adapters against known rotations, closed forms, slow obvious code and scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from fixstar.errors import InputError, ModelError, UnknownNameError
from fixstar.geometry import unit
from fixstar.workspace.adapters import fitting
from fixstar.workspace.adapters.fitting import ADAPTERS, Pairs, best_adapter, fit_adapter, gcv_penalty
from fixstar.workspace.adapters.maps import VectorAdapter

Array = NDArray[np.float64]


def vectors(count: int, width: int, seed: int = 0) -> Array:
    return unit(np.random.default_rng(seed).standard_normal((count, width)))


def rotation(width: int, seed: int = 1) -> Array:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((width, width)))[0]


def noisy(X: Array, Y: Array, noise: float = 0.3, seed: int = 2) -> tuple[Array, Array]:
    return X, unit(Y + noise / Y.shape[1] ** 0.5 * np.random.default_rng(seed).standard_normal(Y.shape))


@pytest.mark.parametrize("kind", ["procrustes", "ridge", "low-rank", "slerp"])
def test_a_known_rotation_is_found(kind: str) -> None:
    X, Q = vectors(300, 12), rotation(12)
    adapter = fit_adapter(kind, X, X @ Q)
    fresh = vectors(50, 12, seed=9)
    np.testing.assert_allclose(adapter(fresh), fresh @ Q, atol=1e-6 if kind == "procrustes" else 1e-4)
    assert adapter.widths == (12, 12)


@pytest.mark.parametrize(("a", "b"), [(6, 10), (10, 6)])
def test_procrustes_between_widths_has_orthonormal_rows_or_columns(a: int, b: int) -> None:
    X, Y = noisy(vectors(400, a), vectors(400, b, seed=1))
    W = fit_adapter("procrustes", X, Y).weights["W"]
    np.testing.assert_allclose(W @ W.T if a < b else W.T @ W, np.eye(min(a, b)), atol=1e-6)


def test_few_pairs_determine_the_rotation_on_their_span_only() -> None:
    X, Q = vectors(10, 30), rotation(30)
    W = fit_adapter("procrustes", X, X @ Q).weights["W"]
    span = np.linalg.qr(X.T)[0]
    np.testing.assert_allclose(W, span @ span.T @ Q, atol=1e-6)


def test_few_pairs_and_many_give_the_ridge_and_the_low_rank_map_of_slow_code() -> None:
    for count in (22, 60):
        X, Y = noisy(vectors(count, 25), vectors(count, 20, seed=3))
        w = np.linspace(0.5, 2, count)
        root = np.sqrt(w / w.mean())[:, None]
        x, y = (np.average(part, axis=0, weights=w) for part in (X, Y))
        slow = Ridge(alpha=0.3, fit_intercept=False, solver="svd").fit(root * (X - x), root * (Y - y)).coef_.T
        ridge = fit_adapter("ridge", X, Y, weights=w, penalty=0.3)
        np.testing.assert_allclose(ridge.weights["W"], slow, atol=1e-6)
        np.testing.assert_allclose(ridge.weights["c"], y - x @ slow, atol=1e-6)
        low = fit_adapter("low-rank", X, Y, weights=w, penalty=0.3, rank=20)
        np.testing.assert_allclose(low.weights["A"] @ low.weights["B"], slow, atol=1e-6)


def test_a_narrow_space_is_found_in_a_wider_one() -> None:
    Q = rotation(10)[:6]  # orthonormal rows
    X, fresh = vectors(100, 6), vectors(20, 6, seed=3)
    np.testing.assert_allclose(fit_adapter("procrustes", X, X @ Q)(fresh), fresh @ Q, atol=1e-6)


def test_no_other_rotation_beats_procrustes() -> None:
    X, Y = noisy(vectors(60, 4), vectors(60, 4) @ rotation(4), noise=1.0)
    W = fit_adapter("procrustes", X, Y).weights["W"]
    rng = np.random.default_rng(5)
    best = np.sum((X @ W) * Y)
    for _ in range(500):
        skew = rng.standard_normal((4, 4)) * 0.2
        near = W @ np.linalg.qr(np.eye(4) + skew - skew.T)[0]
        assert np.sum((X @ near) * Y) <= best + 1e-5
    assert all(np.sum((X @ rotation(4, seed)) * Y) < best for seed in range(100))


def test_ridge_is_that_of_scikit_learn() -> None:
    X, Y = noisy(vectors(80, 7), vectors(80, 5, seed=4), noise=0.1)
    weights = np.random.default_rng(6).uniform(0.2, 3, 80)
    weights /= weights.mean()
    for given in (None, weights):
        ours = fit_adapter("ridge", X, Y, weights=given, penalty=2.5)
        theirs = Ridge(alpha=2.5).fit(X, Y, sample_weight=given)
        np.testing.assert_allclose(ours.weights["W"], theirs.coef_.T, atol=1e-6)
        np.testing.assert_allclose(ours.weights["c"], theirs.intercept_, atol=1e-6)


def test_ridge_by_hand() -> None:
    """x is +-e1 and +-e2, y = x: the scatter is 2, so W = 2 / (2 + penalty) and c = 0."""
    X = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]] * 2)
    adapter = fit_adapter("ridge", X, X, penalty=4.0)
    np.testing.assert_allclose(adapter.weights["W"], np.eye(2) * 4 / 8, atol=1e-7)
    np.testing.assert_allclose(adapter.weights["c"], 0, atol=1e-7)


@pytest.mark.parametrize("noise", [0.05, 1.0, 4.0])
def test_the_penalty_has_the_least_generalised_cross_validation_error(noise: float) -> None:
    X, Y = noisy(vectors(50, 12), vectors(50, 12) @ rotation(12), noise)

    def error(penalty: float) -> float:  # with the hat matrix itself
        Xc, Yc = X - X.mean(0), Y - Y.mean(0)
        H = Xc @ np.linalg.solve(Xc.T @ Xc + penalty * np.eye(12), Xc.T) + 1 / 50
        return float(np.sum((Yc - H @ Yc) ** 2) / (50 - np.trace(H)) ** 2)

    chosen = gcv_penalty(Pairs(X, Y, np.ones(50)).spectrum)
    scale = np.linalg.eigvalsh(np.cov(X.T, ddof=0) * 50).mean()
    assert error(chosen) <= min(error(float(p)) for p in np.logspace(-6, 2, 33) * scale) * (1 + 1e-9)
    assert fit_adapter("ridge", X, Y).about["penalty"] == pytest.approx(chosen)


def slow_reduced_rank(X: Array, Y: Array, rank: int, penalty: float) -> tuple[Array, Array]:
    """Ridge on rows added for the penalty, then the best approximation of its fitted values of that rank."""
    Xc, Yc = X - X.mean(0), Y - Y.mean(0)
    more = np.vstack([Xc, penalty**0.5 * np.eye(X.shape[1])])
    full = np.linalg.lstsq(more, np.vstack([Yc, np.zeros((X.shape[1], Y.shape[1]))]), rcond=None)[0]
    V = np.linalg.svd(more @ full, full_matrices=False)[2][:rank].T
    W = full @ V @ V.T
    return W, Y.mean(0) - X.mean(0) @ W


@pytest.mark.parametrize(("rank", "penalty"), [(1, 0.0), (3, 0.0), (3, 1.5), (5, 0.7)])
def test_low_rank_is_reduced_rank_regression(rank: int, penalty: float) -> None:
    X, Y = noisy(vectors(90, 8), unit(vectors(90, 8) @ rotation(8)[:, :5]))
    adapter = fit_adapter("low-rank", X, Y, rank=rank, penalty=penalty)
    W, c = slow_reduced_rank(X, Y, rank, penalty)
    np.testing.assert_allclose(adapter.weights["A"] @ adapter.weights["B"], W, atol=1e-6)
    np.testing.assert_allclose(adapter.weights["c"], c, atol=1e-6)
    assert adapter.weights["A"].shape == (8, rank)


def test_the_rank_is_found_where_only_a_few_directions_are_shared() -> None:
    rng = np.random.default_rng(0)
    X = unit(rng.standard_normal((600, 30)))
    Y = unit(X[:, :4] @ rng.standard_normal((4, 30)) + 0.5 * rng.standard_normal((600, 30)))
    adapter = fit_adapter("low-rank", X, Y)
    assert 3 <= adapter.about["rank"] <= 6


def warp(X: Array) -> Array:
    """Not linear: every component's sign is lost in half of them."""
    return unit(np.concatenate([np.abs(X) - 0.2, X @ rotation(X.shape[1])], axis=1))


def test_a_perceptron_follows_what_is_not_linear() -> None:
    X, fresh = vectors(600, 8), vectors(300, 8, seed=7)
    linear, bent = fit_adapter("ridge", X, warp(X)), fit_adapter("mlp", X, warp(X), seed=1, epochs=40)
    straight, curved = (float(np.sum(a(fresh) * warp(fresh), axis=1).mean()) for a in (linear, bent))
    assert curved > straight + 0.03
    again = fit_adapter("mlp", X, warp(X), seed=1, epochs=40)
    np.testing.assert_array_equal(again(fresh), bent(fresh))


def test_a_perceptron_of_no_epochs_is_ridge_on_the_shown_pairs() -> None:
    X, Y = noisy(vectors(200, 6), vectors(200, 6) @ rotation(6))
    pairs = Pairs(X, Y, np.ones(200), seed=4).split()[0]
    adapter = fit_adapter("mlp", X, Y, seed=4, epochs=0)
    np.testing.assert_allclose(adapter(X), fit_adapter("ridge", pairs.X, pairs.Y)(X), atol=1e-5)


def test_slerp_runs_from_procrustes_to_ridge() -> None:
    X, Y = noisy(vectors(200, 6), vectors(200, 6) @ rotation(6), noise=1.0)
    ends = [fit_adapter(kind, X, Y)(X) for kind in ("procrustes", "ridge")]
    for t, end in zip((0.0, 1.0), ends, strict=True):
        np.testing.assert_allclose(fit_adapter("slerp", X, Y, t=t)(X), end, atol=1e-5)
    middle = fit_adapter("slerp", X, Y, t=0.5)(X)
    np.testing.assert_allclose(middle, unit(ends[0] + ends[1]), atol=1e-5)
    assert 0 <= fit_adapter("slerp", X, Y).about["t"] <= 1


def test_adapted_vectors_are_unit_float32_whatever_the_batch() -> None:
    X, Y = noisy(vectors(300, 6), vectors(300, 9, seed=4))
    for kind in ADAPTERS:
        options: dict[str, Any] = {"epochs": 2} if kind == "mlp" else {}
        adapter = fit_adapter(kind, X, Y, **options)
        out = adapter(X)
        assert out.dtype == np.float32
        assert out.shape == (300, 9)
        np.testing.assert_allclose(np.linalg.norm(out, axis=1), 1, atol=1e-6)
        assert adapter(X[:0]).shape == (0, 9)
        assert adapter.about["pairs"] == 300
        np.testing.assert_allclose(adapter(X.astype(np.float16)[:5]), out[:5], atol=5e-3)


def test_large_inputs_go_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = noisy(vectors(100, 4), vectors(100, 4))
    whole = fit_adapter("ridge", X, Y)
    monkeypatch.setattr("fixstar.workspace.adapters.maps._BLOCK", 7)
    monkeypatch.setattr("fixstar.workspace.adapters.fitting._BLOCK_ROWS", 7)
    np.testing.assert_allclose(fit_adapter("ridge", X, Y)(X), whole(X), atol=1e-6)


def test_the_best_adapter_suits_the_data() -> None:
    X = vectors(600, 8)
    rotated = best_adapter(*noisy(X, X @ rotation(8), noise=0.1), source="new", target="old")
    assert rotated.ranked[0].held_out.top1 > 0.95
    assert rotated.unadapted is not None
    assert rotated.unadapted.top1 < 0.1
    assert {one.adapter.kind for one in rotated.ranked} == set(ADAPTERS)
    scores = [one.held_out for one in rotated.ranked]
    assert scores == sorted(scores, key=lambda s: (s.top1, s.mean_cosine), reverse=True)
    assert (rotated.best.source, rotated.best.target) == ("new", "old")
    assert rotated.best.about["pairs"] == 480
    bent = best_adapter(X, warp(X), kinds=["procrustes", "ridge", "mlp"])
    assert bent.best.kind == "mlp"
    assert bent.unadapted is None


def test_a_comparison_and_an_adapter_are_printed_in_one_line() -> None:
    X = vectors(60, 6)
    found = best_adapter(X, X @ rotation(6), groups=[f"class {row % 9}" for row in range(60)], source="b", target="a")
    assert str(found).count("\n") == 0
    assert str(found).startswith(f"best adapter by search among held-out pairs: {found.best.kind} ")
    assert repr(found.best) == f"{found.best.kind} adapter from b to a, 6 to 6 components"


def test_held_out_pairs_are_not_seen() -> None:
    """Random partners: on pairs it has seen an adapter looks better than chance, on the others it must not."""
    X, Y = vectors(400, 30), vectors(400, 30, seed=8)
    seen = fit_adapter("ridge", X, Y, penalty=0.0)
    assert np.sum(seen(X) * Y, axis=1).mean() > 0.15
    for one in best_adapter(X, Y).ranked:
        assert abs(one.held_out.mean_cosine) < 0.08


def test_choices_are_made_on_pairs_that_were_not_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two directions and noise, hardly more pairs than components: on fitted pairs the largest rank looks best."""
    X = vectors(60, 40)
    Y = unit(X[:, :2] @ rotation(40)[:2] + 0.1 * np.random.default_rng(3).standard_normal((60, 40)))
    assert fit_adapter("low-rank", X, Y, penalty=0.0).about["rank"] < 12
    sizes = []
    ends = fitting._two_ends

    def recorded(pairs: Pairs) -> dict[str, Array]:
        sizes.append(len(pairs.X))
        return ends(pairs)

    monkeypatch.setattr(fitting, "_two_ends", recorded)
    fit_adapter("slerp", X, Y)
    assert sizes == [48, 60]  # t is chosen on the other 12, then all are fitted


def test_groups_stay_together() -> None:
    groups = np.repeat(np.arange(20), 5)
    shown, judged = Pairs(vectors(100, 3), vectors(100, 3), np.ones(100), groups, seed=3).split(0.3)
    assert shown.groups is not None
    assert judged.groups is not None
    assert not set(shown.groups) & set(judged.groups)
    assert len(judged.X) == 30


def test_kinds_that_lack_pairs_are_left_out_with_the_reason() -> None:
    X, Y = noisy(vectors(60, 40), vectors(60, 40))
    result = best_adapter(X, Y)
    assert set(result.left_out) == {"mlp"}
    assert "needs at least 100 pairs" in result.left_out["mlp"]


GOOD = vectors(100, 6)
LONG, BROKEN = GOOD * 2, np.where(np.arange(100)[:, None] == 7, np.nan, GOOD)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: fit_adapter("procrustes", GOOD[:5], GOOD[:5]), "needs at least 8 pairs, got 5"),
        (lambda: fit_adapter("mlp", GOOD[:99], GOOD[:99]), r"needs at least 100 pairs.*or use procrustes or ridge"),
        (lambda: fit_adapter("ridge", GOOD, GOOD[:50]), r"are not pairs.*Embed a sample.*paired_by_class"),
        (lambda: fit_adapter("ridge", BROKEN, GOOD), "NaN or infinity in row 7"),
        (lambda: fit_adapter("ridge", GOOD, LONG), r"100 of 100.*second space.*length 2.*geometry\.unit"),
        (lambda: fit_adapter("ridge", GOOD[0], GOOD), "matrix of real numbers"),
        (lambda: fit_adapter("ridge", GOOD, GOOD, weights=np.zeros(100)), "one finite number > 0 per pair"),
        (lambda: fit_adapter("ridge", GOOD, GOOD, groups=[1]), "one label per pair"),
        (lambda: fit_adapter("low-rank", GOOD, GOOD, groups=[1] * 100), "one group cannot be split"),
        (lambda: fit_adapter("ridge", GOOD, GOOD, rank=3), r"unknown option of a ridge.*penalty"),
        (lambda: fit_adapter("ridge", GOOD, GOOD, penalty=-1.0), "number >= 0"),
        (lambda: fit_adapter("low-rank", GOOD, GOOD, rank=7), "from 1 to 6"),
        (lambda: fit_adapter("slerp", GOOD, GOOD, t=1.1), "share of the way"),
        (lambda: fit_adapter("mlp", GOOD, GOOD, hidden=0), "hidden >= 1"),
        (lambda: fit_adapter("procrustes", GOOD, GOOD)(GOOD[:, :4]), r"takes vectors \[N, 6\]"),
        (lambda: fit_adapter("procrustes", GOOD, GOOD)(BROKEN), "vector 7 has no direction"),
        (lambda: best_adapter(GOOD[:5], GOOD[:5]), "no adapter can be fitted"),
        (lambda: best_adapter(GOOD, GOOD, held_out=1.0), "between 0 and 1"),
    ],
)
def test_what_is_refused(call: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        call()


def test_unknown_kinds_are_named() -> None:
    for call in (lambda: fit_adapter("rigde", GOOD, GOOD), lambda: best_adapter(GOOD, GOOD, kinds=["rigde"])):
        with pytest.raises(UnknownNameError, match="did you mean 'ridge'"):
            call()


def test_an_adapter_cannot_be_made_of_arrays_that_do_not_fit() -> None:
    W, c = np.eye(3, dtype=np.float32), np.zeros(3, np.float32)
    with pytest.raises(ModelError, match="has the arrays"):
        VectorAdapter("ridge", {"W": W})
    with pytest.raises(ModelError, match="array c"):
        VectorAdapter("ridge", {"W": W, "c": c[:2]})
    with pytest.raises(ModelError, match="NaN"):
        VectorAdapter("ridge", {"W": W * np.nan, "c": c})
    adapter = VectorAdapter("ridge", {"W": W, "c": c})
    W[0, 0] = 5  # the adapter has a copy
    assert adapter(np.eye(3))[0].tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match="read-only"):
        adapter.weights["W"][0, 0] = 5
