"""Adapters: from one model's vectors to another's, where the two were not trained together.

Fitted on vectors that both models made of the same images (a few thousand are plenty; labels are not needed), or on
class means where the old images are gone. Applied to queries, so that the gallery stays as it is, or to the stored
vectors. Like any upgrade it is trusted only after its cross-test: ``fixstar.lifecycle.adapter_use``.

Procrustes, a low-rank affine map and a residual perceptron between versions of a vector database: Vejendla 2025
("Drift-Adapter"). Rigid against affine maps, and what lies between: Ricci et al. 2025 ("lambda-Orthogonality").
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fixstar.errors import InputError, UnknownNameError
from fixstar.lifecycle.adapter_fitting import Fitted, Pairs, fit_low_rank, fit_procrustes, fit_ridge, fit_slerp
from fixstar.lifecycle.adapter_maps import VectorAdapter
from fixstar.lifecycle.adapter_pairs import Agreement, agreement, checked_pairs

__all__ = ["ADAPTERS", "AdapterKind", "Comparison", "Ranked", "best_adapter", "fit_adapter"]


@dataclass(frozen=True)
class AdapterKind:
    """A way to fit an adapter: what it is, its fit, and the pairs it needs, in all and for each component."""

    summary: str
    fit: Callable[..., Fitted]
    least: int
    per_component: float = 0.0

    def least_pairs(self, a: int, b: int) -> int:
        """The least number of pairs between spaces of a and b components."""
        return max(self.least, math.ceil(self.per_component * min(a, b)))

    @property
    def options(self) -> list[str]:
        """What can be fixed instead of chosen."""
        return list(inspect.signature(self.fit).parameters)[1:]


def _fit_mlp(pairs: Pairs, hidden: int = 256, epochs: int = 200, learning_rate: float = 2e-3) -> Fitted:
    from fixstar.lifecycle.adapter_mlp import fit_mlp  # torch only where it is needed

    return fit_mlp(pairs, hidden, epochs, learning_rate)


ADAPTERS: dict[str, AdapterKind] = {
    "procrustes": AdapterKind(
        "rotation (SVD); keeps all cosines of its source space",
        fit_procrustes,
        least=2,
        per_component=1,  # fewer do not determine the rotation
    ),
    "ridge": AdapterKind(
        "affine map by least squares, penalty by generalised cross-validation",
        fit_ridge,
        least=8,
    ),
    "low-rank": AdapterKind(
        "affine map of low rank (reduced-rank regression), rank by held-out pairs",
        fit_low_rank,
        least=20,
    ),
    "mlp": AdapterKind(
        "ridge plus a small perceptron, cosine loss, stopped early by held-out pairs",
        _fit_mlp,
        least=100,
    ),
    "slerp": AdapterKind(
        "on the great circle from Procrustes to ridge, how far by held-out pairs",
        fit_slerp,
        least=20,
        per_component=1.25,  # four fifths of the pairs must determine the rotation
    ),
}
"""Kinds of adapters by name."""


def fit_adapter(
    kind: str,
    X: ArrayLike,
    Y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    seed: int = 0,
    source: str = "",
    target: str = "",
    **options: Any,
) -> VectorAdapter:
    """Fit an adapter on unit vectors X [N, a] and Y [N, b], row by row of the same image.

    ``weights`` [N] say how much a pair counts. ``groups`` [N] are the classes of the images, where they are known: no
    inner split takes a class apart, and choices are made by searching for the class instead of the very image.
    ``options`` fix what is otherwise chosen: see ``ADAPTERS[kind].options``.

    >>> X = np.eye(4)[[0, 1, 2, 3, 0, 1, 2, 3]]
    >>> adapter = fit_adapter("procrustes", X, X[:, [1, 2, 3, 0]])
    >>> adapter(X[:1]).round(3).tolist()
    [[0.0, 0.0, 0.0, 1.0]]
    """
    if kind not in ADAPTERS:
        raise UnknownNameError("adapter", kind, ADAPTERS)
    pairs = _pairs(X, Y, weights, groups, seed)
    _require_enough(kind, pairs)
    if unknown := [name for name in options if name not in ADAPTERS[kind].options]:
        raise UnknownNameError(f"option of a {kind} adapter", unknown[0], ADAPTERS[kind].options)
    fitted = ADAPTERS[kind].fit(pairs, **options)
    about = {"pairs": len(pairs.X), "seed": seed, **fitted.chosen}
    return VectorAdapter(kind, {n: w.astype(np.float32) for n, w in fitted.weights.items()}, source, target, about)


def _pairs(X: ArrayLike, Y: ArrayLike, weights: ArrayLike | None, groups: ArrayLike | None, seed: int) -> Pairs:
    x, y = checked_pairs(X, Y)
    w = np.ones(len(x)) if weights is None else np.asarray(weights, np.float64)
    if w.shape != (len(x),) or not np.isfinite(w).all() or (w <= 0).any():
        raise InputError(f"weights are one finite number > 0 a pair, ({len(x)},); got shape {w.shape}")
    labels = None if groups is None else np.asarray(groups)
    if labels is not None and labels.shape != (len(x),):
        raise InputError(f"groups are one label a pair, ({len(x)},); got shape {labels.shape}")
    return Pairs(x, y, w / w.mean(), labels, seed)


def _require_enough(kind: str, pairs: Pairs) -> None:
    a, b = pairs.X.shape[1], pairs.Y.shape[1]
    least = ADAPTERS[kind].least_pairs(a, b)
    if len(pairs.X) < least:
        others = [name for name, other in ADAPTERS.items() if other.least_pairs(a, b) <= len(pairs.X)]
        raise InputError(
            f"a {kind} adapter from {a} to {b} components needs {least} pairs at least, got {len(pairs.X)}; embed "
            f"more images with both models{', or use ' + ' or '.join(others) if others else ''}"
        )


@dataclass(frozen=True)
class Ranked:
    """An adapter fitted on the shown pairs, and how it did on the held-out ones."""

    adapter: VectorAdapter
    held_out: Agreement


@dataclass(frozen=True)
class Comparison:
    """All kinds on the same held-out pairs, best first.

    ``unadapted`` is how raw vectors do there (None where the widths differ), ``left_out`` why a kind is missing.
    """

    ranked: tuple[Ranked, ...]
    unadapted: Agreement | None
    left_out: dict[str, str]

    @property
    def best(self) -> VectorAdapter:
        """The winner, as it was measured; ``fit_adapter`` with its kind fits it on all pairs."""
        return self.ranked[0].adapter


def best_adapter(
    X: ArrayLike,
    Y: ArrayLike,
    *,
    kinds: Sequence[str] | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    held_out: float = 0.2,
    seed: int = 0,
    source: str = "",
    target: str = "",
) -> Comparison:
    """Fit all kinds on a part of the pairs and rank them on the rest: by search (``agreement``), then by mean cosine.

    Every choice within a kind is made on the shown pairs alone, so the figures are fair. Whether the winner is good
    enough to deploy is for the cross-test to say.
    """
    names = list(ADAPTERS) if kinds is None else list(kinds)
    if unknown := [name for name in names if name not in ADAPTERS]:
        raise UnknownNameError("adapter", unknown[0], ADAPTERS)
    pairs = _pairs(X, Y, weights, groups, seed)
    shown, judged = pairs.split(held_out)
    ranked, left_out = [], {}
    for name in names:
        try:
            _require_enough(name, shown)
        except InputError as error:
            left_out[name] = str(error)
            continue
        adapter = fit_adapter(
            name, shown.X, shown.Y, weights=shown.weights, groups=shown.groups, seed=seed, source=source, target=target
        )
        ranked.append(Ranked(adapter, agreement(adapter(judged.X), judged.Y, judged.groups)))
    if not ranked:
        raise InputError(f"no adapter can be fitted on {len(shown.X)} pairs: {'; '.join(left_out.values())}")
    ranked.sort(key=lambda one: (one.held_out.top1, one.held_out.mean_cosine), reverse=True)
    same = pairs.X.shape[1] == pairs.Y.shape[1]
    return Comparison(tuple(ranked), agreement(judged.X, judged.Y, judged.groups) if same else None, left_out)
