"""Classifiers that turn features z into logits: a linear layer, cosines, proxies, and all kinds by name.

All take ``(z, targets=None)`` and look at the targets only to apply a margin.
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
    "ProxyClassifier",
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
                mine = wider.get_parameter(name)
                (mine[: self.outputs] if parameter.ndim else mine).copy_(parameter)
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


class ProxyClassifier(_Trainable):
    """Several unit prototypes a class, of which the nearest count most (the local similarity classifier of PODNet).

    The logit is scale * sum_k s_k cos_k, s = softmax over the class's proxies of their cosines (eq. 6); the scale is
    learnt, ``margin`` is taken off the target's cosine while training.
    """

    kind = "proxy"

    def __init__(self, feature_dim: int, outputs: int, proxies: int = 10, margin: float = 0.6) -> None:
        super().__init__()
        if proxies < 1 or not 0 <= margin < 2:
            raise InputError(f"a proxy classifier needs proxies >= 1 and 0 <= margin < 2, got {proxies} and {margin}")
        self._allocate(feature_dim, outputs * proxies)
        self.outputs, self.proxies, self.margin = outputs, proxies, float(margin)
        self.weight = nn.Parameter(self.weight.detach().view(outputs, proxies, feature_dim))
        self.scale = nn.Parameter(torch.ones(()))
        self.options = {"feature_dim": feature_dim, "outputs": outputs, "proxies": proxies, "margin": float(margin)}

    def forward(self, z: Tensor, targets: Tensor | None = None) -> Tensor:
        """[B, d] -> [B, C]; with ``targets`` [B] the margin applies."""
        prototypes = functional.normalize(self.weight, dim=2).flatten(0, 1)
        cosines = functional.linear(functional.normalize(z), prototypes).view(-1, self.outputs, self.proxies)
        similarity: Tensor = (cosines.softmax(dim=2) * cosines).sum(dim=2)  # [B, C]
        if targets is not None and self.margin > 0:
            similarity = similarity - self.margin * functional.one_hot(targets, self.outputs).to(similarity.dtype)
        return similarity * self.scale


CLASSIFIERS: dict[str, type[Classifier]] = {
    "cosine": CosineClassifier,
    "cube": CubeClassifier,
    "linear": LinearClassifier,
    "orthoplex": OrthoplexClassifier,
    "polygon": PolygonClassifier,
    "proxy": ProxyClassifier,
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
