"""The base class of backbones, and how images are prepared for the backbones of the papers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from fixstar.errors import InputError
from fixstar.images import Preprocessing
from fixstar.texts import Prompts

_CIFAR100 = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_MNIST = (0.1307,), (0.3081,)

Statistics = tuple[tuple[float, ...], tuple[float, ...]]


class Backbone(nn.Module, ABC):
    """Images to pooled features; ``create_backbone(name, **options)`` rebuilds it offline from a model's card.

    ``inputs`` is the preprocessing of images, or the prompts of texts.
    """

    def __init__(
        self, name: str, options: dict[str, Any], feature_dim: int, inputs: Preprocessing | Prompts
    ) -> None:
        super().__init__()
        self.name = name
        self.options: dict[str, object] = options
        self.feature_dim = feature_dim
        self.inputs = inputs

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of its images."""
        return require_images(self.inputs)

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] to [B, feature_dim]."""
        return self.pool(self.maps(images)[-1])

    @abstractmethod
    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """The feature maps [B, D, h, w] after each stage, which methods may compare between models."""

    def pool(self, last: Tensor) -> Tensor:
        """The last map [B, D, h, w] to the feature [B, feature_dim]."""
        return last.mean((2, 3))


def require_images(inputs: Preprocessing | Prompts) -> Preprocessing:
    """The preprocessing of an image model; raises for a text model."""
    if isinstance(inputs, Prompts):
        raise InputError("this model reads texts, but only image models can be used here")
    return inputs


def run_stages(x: Tensor, *stages: nn.Module) -> tuple[Tensor, ...]:
    """The outputs of all stages, applied one after the other."""
    maps: list[Tensor] = []
    for stage in stages:
        x = stage(x)
        maps.append(x)
    return tuple(maps)


def he_init(module: nn.Module) -> None:
    """Convolutions as in He et al. 2015, "Delving deep into rectifiers": N(0, 2 / fan_out)."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


def cifar_inputs(channels: int = 3) -> Preprocessing:
    """32x32, CIFAR-100 statistics."""
    return _inputs((32, 32), channels, _CIFAR100)


def imagenet_inputs(size: tuple[int, int] = (224, 224), channels: int = 3) -> Preprocessing:
    """ImageNet statistics; the central 224 of a shorter side of 256, as ImageNet models are evaluated."""
    return _inputs(size, channels, _IMAGENET, crop_fraction=0.875)


def mnist_inputs(channels: int = 1) -> Preprocessing:
    """28x28, MNIST statistics."""
    return _inputs((28, 28), channels, _MNIST)


def _inputs(
    size: tuple[int, int], channels: int, statistics: Statistics, **options: Any
) -> Preprocessing:
    """With the statistics, or their average for every channel if the dataset has another number of channels."""
    if isinstance(channels, bool) or channels not in (1, 3):
        raise InputError(
            f"a backbone takes images of 1 (grey) or 3 (RGB) channels, got {channels!r}"
        )
    mean, std = (v if len(v) == channels else (sum(v) / len(v),) * channels for v in statistics)
    return Preprocessing(size=size, channels=channels, mean=mean, std=std, **options)
