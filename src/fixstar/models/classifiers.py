"""Classifiers that turn features z into logits: trainable (linear, cosine, proxies) or fixed (regular polytopes)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fixstar.errors import InputError, UnknownNameError
from fixstar.geometry import simplex_logits
from fixstar.kernels import AVAILABLE
from fixstar.kernels.simplex_ce import simplex_cross_entropy
from fixstar.polytopes import cube_dimension, cube_logits, orthoplex_logits, polygon_logits


class Classifier(nn.Module):
    """Features [B, feature_dim] to logits [B, outputs]. ``options`` are the keywords that rebuild it.

    A ``fixed`` kind is never trained: its capacity determines width and outputs. The others have one output per class.
    ``parts`` are the widths of the simplices that the feature consists of, ``added`` the capacities of those after the
    first.
    """

    kind: str
    fixed: bool = False
    feature_dim: int
    outputs: int
    options: dict[str, Any]
    parts: tuple[int, ...] = ()
    added: tuple[int, ...] = ()

    def fused_cross_entropy(self, z: Tensor, targets: Tensor) -> Tensor | None:  # noqa: ARG002
        """The mean cross-entropy without logits, if the kind has a kernel for it on this device; else ``None``."""
        return None

    def grown(self, outputs: int) -> Classifier:
        """A classifier with at least ``outputs`` outputs, the first ones from this one; itself if it has enough."""
        raise InputError(
            f"a {self.kind} classifier of {self.outputs} outputs cannot grow to {outputs}"
        )

    def extended(self, extra: int) -> Classifier:
        """A classifier with one more simplex of capacity ``extra``, in new dimensions at the end."""
        raise InputError(
            f"a {self.kind} classifier has no capacity: each new class gets an output. It cannot grow by {extra}"
        )


class TrainableClassifier(Classifier):
    """Base of classifiers with a weight row per class."""

    weight: nn.Parameter

    def _allocate(self, feature_dim: int, outputs: int) -> None:
        if feature_dim < 1 or outputs < 1:
            raise InputError(
                f"a classifier needs features and classes, got {feature_dim} and {outputs}"
            )
        self.feature_dim = feature_dim
        self.outputs = outputs
        self.weight = nn.Parameter(torch.empty(outputs, feature_dim))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # as nn.Linear

    def grown(self, outputs: int) -> Classifier:
        """A wider classifier whose first rows are those of this one."""
        if outputs <= self.outputs:
            return self
        return self.with_rows(outputs, range(self.outputs), range(self.outputs))

    def with_rows(self, outputs: int, rows: Sequence[int], sources: Sequence[int]) -> Classifier:
        """A classifier with this many outputs: ``rows`` are copied from this one's ``sources``, the others are new."""
        other = type(self)(**{**self.options, "outputs": outputs}).to(self.weight.device)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim:
                    other.get_parameter(name)[list(rows)] = parameter[list(sources)]
                else:
                    other.get_parameter(name).copy_(parameter)
        return other


class NoClassifier(Classifier):
    """For added models, which only embed."""

    kind = "none"

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.outputs = 0
        self.options = {"feature_dim": feature_dim}

    def forward(self, z: Tensor, targets: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Not supported."""
        raise InputError(
            f"this model was added and only embeds: it has no classifier for features {tuple(z.shape)}"
        )


class LinearClassifier(TrainableClassifier):
    """A trainable linear layer, by default without bias."""

    kind = "linear"

    def __init__(self, feature_dim: int, outputs: int, bias: bool = False) -> None:
        super().__init__()
        self._allocate(feature_dim, outputs)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.options = {"feature_dim": feature_dim, "outputs": outputs, "bias": bias}

    def forward(self, z: Tensor, targets: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """[B, d] -> [B, C]."""
        return functional.linear(z, self.weight, self.bias)


class CosineClassifier(TrainableClassifier):
    """Scaled cosines to trainable prototypes, in training less ``margin`` at the target (CosFace; 0: norm-softmax)."""

    kind = "cosine"

    def __init__(
        self, feature_dim: int, outputs: int, scale: float = 30.0, margin: float = 0.0
    ) -> None:
        super().__init__()
        if not scale > 0 or not 0 <= margin < 2:
            raise InputError(
                f"a cosine classifier needs scale > 0 and 0 <= margin < 2, got {scale} and {margin}"
            )
        self._allocate(feature_dim, outputs)
        self.scale = float(scale)
        self.margin = float(margin)
        self.options = {
            "feature_dim": feature_dim,
            "outputs": outputs,
            "scale": self.scale,
            "margin": self.margin,
        }

    def forward(self, z: Tensor, targets: Tensor | None = None) -> Tensor:
        """[B, d] -> [B, C]; with ``targets`` [B] the margin applies."""
        cosines = functional.linear(functional.normalize(z), functional.normalize(self.weight))
        if targets is not None and self.margin > 0:
            cosines = cosines - self.margin * functional.one_hot(targets, self.outputs).to(
                cosines.dtype
            )
        return cosines * self.scale


class ProxyClassifier(TrainableClassifier):
    """Several unit prototypes per class, the nearest weighted most (the local similarity classifier of PODNet).

    The logit is scale * sum_k s_k cos_k, s = softmax over the class's proxies of their cosines (eq. 6); the scale is
    learnt, ``margin`` is subtracted from the target's cosine in training.

    In the public code the margin is subtracted from all classes, so it changes nothing there; here it is 0 by default.
    A margin has no gradient to the scale: with such a gradient the scale soon becomes negative, and the NCA loss zero
    with nothing learnt.
    """

    kind = "proxy"

    def __init__(
        self, feature_dim: int, outputs: int, proxies: int = 10, margin: float = 0.0
    ) -> None:
        super().__init__()
        if proxies < 1 or not 0 <= margin < 2:
            raise InputError(
                f"a proxy classifier needs proxies >= 1 and 0 <= margin < 2, got {proxies} and {margin}"
            )
        self._allocate(feature_dim, outputs * proxies)
        self.outputs = outputs
        self.proxies = proxies
        self.margin = float(margin)
        self.weight = nn.Parameter(self.weight.detach().view(outputs, proxies, feature_dim))
        self.scale = nn.Parameter(torch.ones(()))
        self.options = {
            "feature_dim": feature_dim,
            "outputs": outputs,
            "proxies": proxies,
            "margin": float(margin),
        }

    def forward(self, z: Tensor, targets: Tensor | None = None) -> Tensor:
        """[B, d] -> [B, C]; with ``targets`` [B] the margin applies."""
        prototypes = functional.normalize(self.weight, dim=2).flatten(0, 1)
        cosines = functional.linear(functional.normalize(z), prototypes).view(
            -1, self.outputs, self.proxies
        )
        logits: Tensor = (cosines.softmax(dim=2) * cosines).sum(dim=2) * self.scale  # [B, C]
        if targets is not None and self.margin > 0:
            own = functional.one_hot(targets, self.outputs).to(logits.dtype)
            logits = logits - self.scale.detach() * self.margin * own
        return logits


class FixedClassifier(Classifier, ABC):
    """``capacity`` fixed prototypes of length ``scale`` at the corners of a regular polytope (CoReS, section 4.1).

    There are no parameters and no matrix: the logits have a closed form. Outputs without a class stay in the
    denominator of the softmax (eq. 9): they reserve space for future classes.
    """

    fixed = True
    smallest = 2  # classes

    def __init__(self, capacity: int, scale: float = 1.0) -> None:
        super().__init__()
        if capacity < self.smallest:
            raise InputError(
                f"a {self.kind} needs capacity >= {self.smallest}, got capacity={capacity}"
            )
        if not scale > 0:
            raise InputError(f"a {self.kind} needs scale > 0, got scale={scale}")
        self.feature_dim = self.width(capacity)
        self.outputs = capacity
        self.scale = float(scale)
        self.options = {"capacity": capacity, "scale": float(scale)}

    @staticmethod
    @abstractmethod
    def width(K: int, /) -> int:
        """d, the number of features for that many classes."""

    @staticmethod
    @abstractmethod
    def prototype_logits(z: Tensor, K: int, scale: float, /) -> Tensor:
        """[B, d] -> [B, K]."""

    def forward(self, z: Tensor, targets: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """[B, d] -> [B, K]."""
        return self.prototype_logits(z, self.outputs, self.scale)

    def grown(self, outputs: int) -> Classifier:
        """Itself if the capacity is sufficient: a polytope never changes."""
        if outputs <= self.outputs:
            return self
        return super().grown(outputs)

    def extended(self, extra: int) -> Classifier:
        """Not supported: only a simplex can be extended."""
        raise InputError(
            f"a {self.kind} cannot grow by {extra}: only a simplex can. Choose a larger capacity for the first version"
        )


class SimplexClassifier(FixedClassifier):
    """The d-Simplex (eq. 10): all prototypes equally far apart, d = K - 1.

    ``added`` are the capacities of simplices added when the first was full, each in its own dimensions:
    d = sum (K_i - 1), K = sum K_i. Prototypes of different simplices are orthogonal. Earlier vectors are zero in the
    added dimensions, so none of their cosines changes.
    """

    kind = "simplex"
    width = staticmethod(lambda capacity: capacity - 1)
    prototype_logits = staticmethod(simplex_logits)

    def __init__(self, capacity: int, scale: float = 1.0, added: Sequence[int] = ()) -> None:
        super().__init__(capacity, scale)
        self.added = tuple(added)
        for extra in self.added:
            if extra < self.smallest:
                raise InputError(
                    f"an added simplex needs a capacity of at least {self.smallest}, got {extra}"
                )
        self.capacities = (capacity, *self.added)
        self.parts = tuple(self.width(K) for K in self.capacities)
        self.feature_dim = sum(self.parts)
        self.outputs = sum(self.capacities)
        if self.added:
            self.options["added"] = list(self.added)

    def forward(self, z: Tensor, targets: Tensor | None = None) -> Tensor:
        """[B, d] -> [B, K]: the logits of all simplices side by side."""
        if not self.added:
            return super().forward(z, targets)
        shares = zip(torch.split(z, list(self.parts), dim=-1), self.capacities, strict=True)
        return torch.cat([simplex_logits(share, K, self.scale) for share, K in shares], dim=-1)

    def extended(self, extra: int) -> SimplexClassifier:
        """With one more simplex."""
        return SimplexClassifier(self.capacities[0], self.scale, (*self.added, extra))

    def fused_cross_entropy(self, z: Tensor, targets: Tensor) -> Tensor | None:
        """On a GPU, without storing logits; the kernel supports one simplex only."""
        fused = z.is_cuda and AVAILABLE and not self.added
        if fused:
            return simplex_cross_entropy(z, targets, self.scale)
        return None


class OrthoplexClassifier(FixedClassifier):
    """The d-Orthoplex: the axes and their opposites, d = ceil(K/2). The first d classes are orthogonal."""

    kind = "orthoplex"
    width = staticmethod(lambda capacity: math.ceil(capacity / 2))
    prototype_logits = staticmethod(
        lambda z, K, scale: orthoplex_logits(z, scale)[..., :K]
    )  # odd K: without the last


class CubeClassifier(FixedClassifier):
    """The d-Cube: the first K vertices, d = ceil(log2 K). Features are short, but neighbouring prototypes are close."""

    kind = "cube"
    width = staticmethod(cube_dimension)
    prototype_logits = staticmethod(cube_logits)


class PolygonClassifier(FixedClassifier):
    """The regular K-gon in the plane (figure 4), for features that can be drawn."""

    kind = "polygon"
    smallest = 3
    width = staticmethod(lambda _: 2)
    prototype_logits = staticmethod(polygon_logits)


CLASSIFIERS: dict[str, type[Classifier]] = {
    "cosine": CosineClassifier,
    "cube": CubeClassifier,
    "linear": LinearClassifier,
    "none": NoClassifier,
    "orthoplex": OrthoplexClassifier,
    "polygon": PolygonClassifier,
    "proxy": ProxyClassifier,
    "simplex": SimplexClassifier,
}


def create_classifier(kind: str, **options: Any) -> Classifier:
    """The classifier of that kind, from its ``options``."""
    if kind not in CLASSIFIERS:
        raise UnknownNameError("classifier", kind, CLASSIFIERS)
    try:
        return CLASSIFIERS[kind](**options)
    except TypeError as error:
        raise InputError(f"classifier {kind!r} does not take these options: {error}") from None
