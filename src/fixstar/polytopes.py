"""The other regular polytopes that a fixed classifier can have (CoReS, section 4.1), in closed form.

In five dimensions and more there are three: the d-Simplex (``fixstar.geometry``), the d-Orthoplex and the d-Cube
("Regular polytope networks", its reference 28); in the plane there is a regular polygon for every K (figure 4).
All prototypes have unit length. K classes need d features, and the cosine of two nearest prototypes is:

    simplex    d = K - 1          -1/(K-1), for every two
    orthoplex  d = ceil(K/2)      0, and -1 for opposites
    cube       d = ceil(log2 K)   1 - 2/d
    polygon    d = 2              cos(2 pi/K)

Training never builds a K x d matrix: an orthoplex's logits are the feature and its negative, a cube's are the sums over
all sign patterns, doubled a coordinate at a time. Features are NumPy arrays or torch tensors, and so is the result.
"""

from __future__ import annotations

import math
import sys
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import InputError

__all__ = [
    "cube_dimension",
    "cube_logits",
    "orthoplex_logits",
    "polygon_logits",
    "polygon_prototypes",
]

Array = TypeVar("Array")  # a NumPy array or a torch tensor


def _module(array: Any) -> Any:
    """torch for a tensor, NumPy for everything else."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch
    return np


def _require_width(z: Any, width: int | None, what: str) -> None:
    if z.ndim < 1 or z.shape[-1] < 1 or width not in (None, z.shape[-1]):
        wanted = "at least 1" if width is None else width
        raise InputError(f"{what} takes features [..., {wanted}], got {tuple(z.shape)}")


def orthoplex_logits(z: Array, scale: float = 1.0) -> Array:
    """The dot products [..., 2d] of features z [..., d] with all prototypes +e_i, then all -e_i.

    >>> orthoplex_logits(np.array([2.0, 3.0]))
    array([ 2.,  3., -2., -3.])
    """
    features: Any = z
    _require_width(features, None, "an orthoplex")
    scaled = features * scale
    logits: Array = _module(z).concatenate([scaled, -scaled], -1)
    return logits


def cube_dimension(K: int) -> int:
    """d = ceil(log2 K), the number of features of a cube for K classes.

    >>> [cube_dimension(K) for K in (2, 3, 4, 5, 1000, 1024, 1025)]
    [1, 2, 2, 3, 10, 10, 11]
    """
    if K < 2:
        raise InputError(f"a cube needs K >= 2 classes, got K={K}")
    return (K - 1).bit_length()  # exact, unlike a logarithm


def cube_logits(z: Array, K: int, scale: float = 1.0) -> Array:
    """The dot products [..., K] of features z [..., ceil(log2 K)] with the first K vertices of the cube.

    Vertex j is {-1, +1}^d / sqrt(d), its i-th sign plus where the i-th binary digit of j (the lowest first) is 1. The
    sums over the sign patterns of i coordinates are doubled to those of i + 1: O(K) additions, not O(K d).

    >>> cube_logits(np.array([1.0, 10.0]), 4, scale=2**0.5).round(6)
    array([-11.,  -9.,   9.,  11.])
    """
    d = cube_dimension(K)
    features: Any = z
    _require_width(features, d, f"a cube of K={K} classes")
    concatenate = _module(z).concatenate
    scaled = features * (scale / math.sqrt(d))
    logits = scaled[..., :0].sum(-1)[..., None]  # the empty sum
    for i in range(d):
        coordinate = scaled[..., i : i + 1]
        more = logits[..., : K - 2**i]  # the last doubling stops at K
        logits = concatenate([logits - coordinate, more + coordinate], -1)
    result: Array = logits
    return result


def polygon_logits(z: Array, K: int, scale: float = 1.0) -> Array:
    """The dot products [..., K] of features z [..., 2] with the corners of the regular K-gon.

    >>> polygon_logits(np.array([1.0, 2.0]), 4).round(6)
    array([ 1.,  2., -1., -2.])
    """
    corners = scale * polygon_prototypes(K)
    features: Any = z
    _require_width(features, 2, "a polygon")
    if _module(z) is np:
        columns: Any = corners.T.astype(features.dtype)
    else:
        columns = features.new_tensor(corners.T)
    logits: Array = features @ columns
    return logits


def polygon_prototypes(K: int) -> NDArray[np.float64]:
    """The corners of the regular K-gon, [K, 2]: corner j at the angle 2 pi j / K."""
    if K < 3:
        raise InputError(f"a polygon needs K >= 3 corners, got K={K}")
    angles = 2 * np.pi * np.arange(K) / K
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)
