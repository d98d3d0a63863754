"""Classifiers that turn features z into logits: a linear layer, cosines with a margin, and all kinds by name.

All take ``(z, targets=None)``. Only the cosine classifier looks at the targets, and only to apply its margin.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fixstar.errors import InputError, UnknownNameError
from fixstar.models.classifier import Classifier
from fixstar.models.fixed_classifiers import (
    CubeClassifier,
    OrthoplexClassifier,
    PolygonClassifier,
    SimplexClassifier,
)

__all__ = [
    "CLASSIFIERS",
    "Classifier",
    "CosineClassifier",
    "LinearClassifier",
    "create_classifier",
]


class _Trainable(Classifier):
    """Shared by classifiers that own a weight row for each class."""

    weight: nn.Parameter

    def _allocate(self, feature_dim: int, outputs: int) -> None:
        if feature_dim < 1 or outputs < 1:
            raise InputError(f"a classifier needs features and classes, got {feature_dim} and {outputs}")
        self.feature_dim, self.outputs = feature_dim, outputs
        self.weight = nn.Parameter(torch.empty(outputs, feature_dim))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # as nn.Linear

    def grown(self, outputs: int) -> Classifier:
        """A new classifier whose first rows are this one's."""
        if outputs <= self.outputs:
            return self
        wider = type(self)(**{**self.options, "outputs": outputs}).to(self.weight.device)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                wider.get_parameter(name)[: self.outputs] = parameter
        return wider


class LinearClassifier(_Trainable):
    """A trainable linear layer, without bias unless asked."""

    kind = "linear"

    def __init__(self, feature_dim: int, outputs: int, bias: bool = False) -> None:
        super().__init__()
        self._allocate(feature_dim, outputs)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.options = {"feature_dim": feature_dim, "outputs": outputs, "bias": bias}

    def forward(self, z: Tensor, targets: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """[B, d] -> [B, C]."""
        return functional.linear(z, self.weight, self.bias)


class CosineClassifier(_Trainable):
    """Scaled cosines to trainable prototypes; ``margin`` is taken off the target's cosine while training (CosFace).

    With ``margin=0`` this is the norm-softmax of BCT.
    """

    kind = "cosine"

    def __init__(self, feature_dim: int, outputs: int, scale: float = 30.0, margin: float = 0.0) -> None:
        super().__init__()
        if not scale > 0 or not 0 <= margin < 2:
            raise InputError(f"a cosine classifier needs scale > 0 and 0 <= margin < 2, got {scale} and {margin}")
        self._allocate(feature_dim, outputs)
        self.scale, self.margin = float(scale), float(margin)
        self.options = {
            "feature_dim": feature_dim,
            "outputs": outputs,
            "scale": float(scale),
            "margin": float(margin),
        }

    def forward(self, z: Tensor, targets: Tensor | None = None) -> Tensor:
        """[B, d] -> [B, C]; with ``targets`` [B] the margin applies."""
        cosines = functional.linear(functional.normalize(z), functional.normalize(self.weight))
        if targets is not None and self.margin > 0:
            cosines = cosines - self.margin * functional.one_hot(targets, self.outputs).to(cosines.dtype)
        return cosines * self.scale


CLASSIFIERS: dict[str, type[Classifier]] = {
    "cosine": CosineClassifier,
    "cube": CubeClassifier,
    "linear": LinearClassifier,
    "orthoplex": OrthoplexClassifier,
    "polygon": PolygonClassifier,
    "simplex": SimplexClassifier,
}


def create_classifier(kind: str, **options: Any) -> Classifier:
    """The classifier of that kind; its ``options`` rebuild it."""
    if kind not in CLASSIFIERS:
        raise UnknownNameError("classifier", kind, CLASSIFIERS)
    try:
        return CLASSIFIERS[kind](**options)
    except TypeError as error:
        raise InputError(f"classifier {kind!r} does not take these options: {error}") from None
