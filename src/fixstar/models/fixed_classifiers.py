"""Classifiers that are never trained: prototypes at the corners of a regular polytope (CoReS, section 4.1).

They have no parameters and no matrix; ``fixstar.geometry`` and ``fixstar.polytopes`` give their logits in closed form.
The outputs that no class owns yet stay in the denominator of the softmax (eq. 9): they keep room for the future.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from fixstar.errors import InputError
from fixstar.geometry import simplex_logits
from fixstar.kernels import AVAILABLE
from fixstar.kernels.simplex_ce import simplex_cross_entropy
from fixstar.models.classifier import Classifier
from fixstar.polytopes import cube_dimension, cube_logits, orthoplex_logits, polygon_logits

__all__ = ["CubeClassifier", "FixedClassifier", "OrthoplexClassifier", "PolygonClassifier", "SimplexClassifier"]


class FixedClassifier(Classifier, ABC):
    """``capacity`` prototypes of length ``scale`` that never move. A kind says its width and its logits."""

    fixed = True
    smallest = 2  # classes

    def __init__(self, capacity: int, scale: float = 1.0) -> None:
        super().__init__()
        if capacity < self.smallest:
            raise InputError(f"a {self.kind} needs capacity >= {self.smallest}, got capacity={capacity}")
        if not scale > 0:
            raise InputError(f"a {self.kind} needs scale > 0, got scale={scale}")
        self.feature_dim, self.outputs, self.scale = self.width(capacity), capacity, float(scale)
        self.options = {"capacity": capacity, "scale": float(scale)}

    @staticmethod
    @abstractmethod
    def width(capacity: int) -> int:
        """d, the features that so many classes need."""

    @abstractmethod
    def forward(self, z: Tensor, targets: Tensor | None = None) -> Tensor:
        """[B, d] -> [B, K]."""

    def grown(self, outputs: int) -> Classifier:
        """Itself while the capacity suffices: a polytope is chosen large once, and never changes."""
        return self if outputs <= self.outputs else super().grown(outputs)

    def extended(self, extra: int) -> Classifier:
        """Only a simplex can be extended."""
        raise InputError(
            f"a {self.kind} cannot be grown by {extra}: only the simplex grows. Choose a larger capacity when the "
            "first version is trained"
        )


class SimplexClassifier(FixedClassifier):
    """The d-Simplex (eq. 10): all prototypes equally far apart, d = K - 1.

    ``added`` are the capacities of simplices that were added when the first had no room left, each in dimensions of its
    own: d = sum (K_i - 1), K = sum K_i. Prototypes of different simplices are orthogonal. What was embedded before is
    zero in the added dimensions, so none of its cosines changes.
    """

    kind = "simplex"

    def __init__(self, capacity: int, scale: float = 1.0, added: Sequence[int] = ()) -> None:
        super().__init__(capacity, scale)
        self.added = tuple(added)
        for extra in self.added:
            if extra < self.smallest:
                raise InputError(f"an added simplex needs room for {self.smallest} classes or more, got {extra}")
        self.capacities = (capacity, *self.added)
        self.parts = tuple(self.width(K) for K in self.capacities)
        self.feature_dim, self.outputs = sum(self.parts), sum(self.capacities)
        if self.added:  # else nothing is said of it, as in models from before there was growth
            self.options["added"] = list(self.added)

    @staticmethod
    def width(capacity: int) -> int:
        """K - 1."""
        return capacity - 1

    def forward(self, z: Tensor, targets: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """[B, d] -> [B, K]: the logits of all simplices side by side."""
        if not self.added:
            return simplex_logits(z, self.outputs, self.scale)
        shares = zip(torch.split(z, list(self.parts), dim=-1), self.capacities, strict=True)
        return torch.cat([simplex_logits(share, K, self.scale) for share, K in shares], dim=-1)

    def extended(self, extra: int) -> SimplexClassifier:
        """With one more simplex."""
        return SimplexClassifier(self.capacities[0], self.scale, (*self.added, extra))

    def fused_cross_entropy(self, z: Tensor, targets: Tensor) -> Tensor | None:
        """On a GPU the logits, as large as the features, need never exist; the kernel knows one simplex only."""
        fused = z.is_cuda and AVAILABLE and not self.added
        return simplex_cross_entropy(z, targets, self.scale) if fused else None


class OrthoplexClassifier(FixedClassifier):
    """The d-Orthoplex: the axes and their opposites, d = ceil(K/2). The first d classes are orthogonal."""

    kind = "orthoplex"

    @staticmethod
    def width(capacity: int) -> int:
        """ceil(K/2)."""
        return math.ceil(capacity / 2)

    def forward(self, z: Tensor, targets: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """[B, ceil(K/2)] -> [B, K]; an odd capacity leaves the last prototype out."""
        return orthoplex_logits(z, self.scale)[..., : self.outputs]


class CubeClassifier(FixedClassifier):
    """The d-Cube: the first K vertices, d = ceil(log2 K); short features, at the price of near neighbours."""

    kind = "cube"

    @staticmethod
    def width(capacity: int) -> int:
        """ceil(log2 K)."""
        return cube_dimension(capacity)

    def forward(self, z: Tensor, targets: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """[B, ceil(log2 K)] -> [B, K]."""
        return cube_logits(z, self.outputs, self.scale)


class PolygonClassifier(FixedClassifier):
    """The regular K-gon in the plane (figure 4), for features that can be drawn."""

    kind = "polygon"
    smallest = 3

    @staticmethod
    def width(capacity: int) -> int:  # noqa: ARG004
        """Two, whatever K."""
        return 2

    def forward(self, z: Tensor, targets: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """[B, 2] -> [B, K]."""
        return polygon_logits(z, self.outputs, self.scale)
