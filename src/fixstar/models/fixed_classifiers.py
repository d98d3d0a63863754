"""Classifiers that are never trained: prototypes at the corners of a regular polytope (CoReS, section 4.1).

They have no parameters and no matrix; ``fixstar.geometry`` and ``fixstar.polytopes`` give their logits in closed form.
The outputs that no class owns yet stay in the denominator of the softmax (eq. 9): they keep room for the future.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from torch import Tensor

from fixstar.errors import InputError
from fixstar.geometry import simplex_logits
from fixstar.kernels.simplex_ce import AVAILABLE, simplex_cross_entropy
from fixstar.models.classifier import Classifier
from fixstar.polytopes import cube_dimension, cube_logits, orthoplex_logits, polygon_logits

__all__ = ["CubeClassifier", "FixedClassifier", "OrthoplexClassifier", "PolygonClassifier", "SimplexClassifier"]


class FixedClassifier(Classifier, ABC):
    """``capacity`` prototypes of length ``scale`` that never move. A kind says its width and its logits."""

    fixed = True
    smallest = 2  # classes

    def __init__(self, capacity: int, scale: float = 1.0) -> None:
        super().__init__()
        if capacity < self.smallest or not scale > 0:
            raise InputError(
                f"a {self.kind} needs capacity >= {self.smallest} and scale > 0, got capacity={capacity}, scale={scale}"
            )
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


class SimplexClassifier(FixedClassifier):
    """The d-Simplex (eq. 10): all prototypes equally far apart, d = K - 1."""

    kind = "simplex"

    @staticmethod
    def width(capacity: int) -> int:
        """K - 1."""
        return capacity - 1

    def forward(self, z: Tensor, targets: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """[B, K-1] -> [B, K]."""
        return simplex_logits(z, self.outputs, self.scale)

    def fused_cross_entropy(self, z: Tensor, targets: Tensor) -> Tensor | None:
        """On a GPU the logits, as large as the features, need never exist."""
        return simplex_cross_entropy(z, targets, self.scale) if z.is_cuda and AVAILABLE else None


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
