"""Prototypes as dense matrices, and full features of short forms: what the closed forms are tested against."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.geometry import short_factors, simplex_constants
from fixstar.polytopes import cube_dimension


def simplex_prototypes(K: int) -> NDArray[np.float64]:
    """The K prototypes [K, K-1] of a simplex: eq. 10 of CoReS, centred, each row at unit length."""
    a, _, _ = simplex_constants(K)
    raw = np.vstack([np.eye(K - 1), np.full((1, K - 1), a)])
    centred = raw - raw.mean(axis=0)
    rows: NDArray[np.float64] = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    return rows


def orthoplex_prototypes(d: int) -> NDArray[np.float64]:
    """The 2d prototypes [2d, d] of an orthoplex: the axes, then their opposites."""
    return np.vstack([np.eye(d), 0.0 - np.eye(d)])


def cube_prototypes(K: int) -> NDArray[np.float64]:
    """The first K vertices [K, ceil(log2 K)] of a cube, at unit length."""
    d = cube_dimension(K)
    digits = (np.arange(K)[:, None] >> np.arange(d)) & 1
    rows: NDArray[np.float64] = np.where(digits == 1, 1.0, -1.0) / math.sqrt(d)
    return rows


def full_form(u: Any, P: Any) -> Any:
    """The full unit vectors Q u [..., d] of short vectors u: the inverse of ``short_form``."""
    return u @ short_factors(P)[0].T
