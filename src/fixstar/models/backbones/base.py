"""What every backbone is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from fixstar.images import Preprocessing

__all__ = ["Backbone", "he_init", "staged"]


class Backbone(nn.Module, ABC):
    """Images to pooled features.

    ``name`` and ``options`` go on a saved model's card: ``create_backbone(name, **options)`` builds the same
    architecture again, offline. ``options`` is therefore plain JSON. ``preprocessing`` is what the weights expect of
    their images.
    """

    def __init__(self, name: str, options: dict[str, Any], feature_dim: int, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.name = name
        self.options: dict[str, object] = options
        self.feature_dim = feature_dim
        self.preprocessing = preprocessing

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] to [B, feature_dim]."""
        return self.pool(self.maps(images)[-1])

    @abstractmethod
    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """The feature maps [B, D, h, w] after each stage, which methods may compare between models."""

    def pool(self, last: Tensor) -> Tensor:
        """The last map [B, D, h, w] to the feature [B, feature_dim]."""
        return last.mean((2, 3))


def staged(x: Tensor, *stages: nn.Module) -> tuple[Tensor, ...]:
    """What each of some stages makes of the one before."""
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
