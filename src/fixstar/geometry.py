"""The d-Simplex in closed form, and the exact short form of a stationary embedding.

**The simplex.** K class prototypes in R^(K-1), unit length, pairwise cosine -1/(K-1): eq. 10 of CoReS, centred, each
row divided by its own norm. Training never builds that K x (K-1) matrix. With

    n = K-1,  a = (1 - sqrt(K)) / n,  c = (1 + a) / K,  r = sqrt((1-c)^2 + (n-1) c^2),  S = sum(z)

the logits of a feature z are (z_j - c S) / r for j < K and (a - c) S / r for j = K: exact, and O(K) instead of O(K^2).

**The short form.** An encoder ends in z = P h, with P of shape d x m and no bias. Where d > m the feature lies in an
m-dimensional subspace: with P = Q R (thin), u = R h / |R h| has m numbers and z / |z| = Q u. To search items of version
k, a query of version t becomes (Q_k^T Q_t) u_t; its dot product with u_k is exactly the cosine of the full features.

Every function takes NumPy arrays or torch tensors and returns the same kind; torch is imported only when used.
"""

from __future__ import annotations

import math
import sys
from typing import Any, TypeVar

import numpy as np

from fixstar.errors import InputError

__all__ = [
    "carry",
    "short_basis",
    "short_factors",
    "short_form",
    "simplex_constants",
    "simplex_logits",
    "unit",
]

Array = TypeVar("Array")  # a NumPy array or a torch tensor

CAPACITY = 10_000  # default K: polaris gains from a large capacity, and takes 8 slots per class
_TINY = 1e-12  # a zero feature stays zero instead of becoming NaN


def _is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def simplex_constants(K: int) -> tuple[float, float, float]:
    """The scalars a, c and r of the module docstring."""
    if K < 2:
        raise InputError(f"a simplex needs K >= 2 classes, got K={K}")
    n = K - 1
    a = (1.0 - math.sqrt(K)) / n
    c = (1.0 + a) / K
    return a, c, math.sqrt((1.0 - c) ** 2 + (n - 1) * c * c)


def simplex_logits(z: Array, K: int, scale: float = 1.0) -> Array:
    """The dot products of features with all K simplex prototypes, without the prototypes.

    ``z`` is [..., K-1]; the result is [..., K], in the dtype of ``z``. ``scale`` is the length of the prototypes
    (equivalently a logit scale). One allocation forward, none kept for backward.

    >>> simplex_logits(np.array([0.5]), K=2)
    array([ 0.5, -0.5])
    """
    a, c, r = simplex_constants(K)
    features: Any = z
    if features.ndim < 1 or features.shape[-1] != K - 1:
        raise InputError(
            f"a simplex of K={K} classes takes features [..., {K - 1}], got {tuple(features.shape)}"
        )
    total = features.sum(-1)[..., None]
    if _is_torch(z):
        import torch

        logits: Any = torch.cat([features, total * a], -1).sub_(total * c).mul_(scale / r)
        return logits
    out: Any = np.concatenate([features, total * a], -1)
    out -= total * c
    out *= scale / r
    return out


def unit(x: Array) -> Array:
    """Vectors divided by their length along the last axis; a zero vector stays zero.

    >>> unit(np.array([3.0, 4.0]))
    array([0.6, 0.8])
    """
    values: Any = x
    norm = (values * values).sum(-1)[..., None] ** 0.5
    return values / norm.clip(_TINY)


def short_factors(P: Array) -> tuple[Array, Array]:
    """Q [d, s] with orthonormal columns and R [s, m], such that P = Q R and s = min(d, m).

    If d <= m there is nothing to shorten: Q is the identity and R is P. The factorisation runs in float64 and R has no
    negative diagonal entry, so that NumPy and torch agree on the same short form on all machines.
    """
    projection: Any = P
    if projection.ndim != 2 or 0 in projection.shape:
        raise InputError(f"a projection is a matrix [d, m], got shape {tuple(projection.shape)}")
    xp: Any = sys.modules["torch"] if _is_torch(P) else np
    d, m = projection.shape
    if d <= m:
        return xp.eye(d, dtype=projection.dtype, **_device(projection)), projection
    wide = projection.detach().double() if _is_torch(P) else projection.astype(np.float64)
    Q, R = xp.linalg.qr(wide)
    signs = xp.where(R.diagonal() < 0, -1.0, 1.0)
    return _as_type(Q * signs, projection), _as_type(R * signs[:, None], projection)


def _device(like: Any) -> dict[str, Any]:
    if _is_torch(like):
        return {"device": like.device}
    return {}


def _as_type(array: Any, like: Any) -> Any:
    if _is_torch(like):
        return array.to(like.dtype)
    return array.astype(like.dtype)


def short_form(h: Array, P: Array) -> Array:
    """The short unit vectors u = R h / |R h|, [..., min(d, m)], of features h [..., m] under P [d, m].

    Within one version the cosine of two short forms is the cosine of the full features P h. Across versions, pass the
    query through ``carry`` first.
    """
    _, R = short_factors(P)
    factor: Any = R
    return unit(h @ factor.T)


def short_basis(P: Array | None) -> Array | None:
    """Q of a projection, or ``None`` if vectors are full features already (no projection, or d <= m)."""
    projection: Any = P
    if projection is None or projection.shape[0] <= projection.shape[1]:
        return None
    return short_factors(projection)[0]


def carry(queries: Array, Q_from: Array | None, Q_to: Array | None, width: int) -> Array:
    """Queries [N, s_from] in another version's space [N, s_to]: u (Q_from^T Q_to).

    Q_from and Q_to come from ``short_basis``; ``width`` is d of the target. Versions of different output width share
    their first components; the shorter one counts as zero in the others. Dot products with vectors of the target are
    the cosines of the full features.

    >>> P_old, P_new = np.eye(3)[:, :2], np.eye(3)[:, 1:]  # features in the first two, and in the last two components
    >>> carry(np.array([[0.6, 0.8]]), short_basis(P_new), short_basis(P_old), 3).tolist()
    [[0.0, 0.6]]
    """
    old: Any = Q_to
    new: Any = Q_from
    short: Any = queries
    if new is not None and old is not None:
        shared = min(len(new), len(old))
        return short @ (new[:shared].T @ old[:shared])
    full = short if new is None else short @ new.T
    shared = min(full.shape[1], width)
    if old is not None:
        return full[:, :shared] @ old[:shared]
    if shared == width:
        return full[:, :width]
    padded: Any = (
        full.new_zeros(len(full), width)
        if _is_torch(full)
        else np.zeros((len(full), width), full.dtype)
    )
    padded[:, :shared] = full
    return padded
