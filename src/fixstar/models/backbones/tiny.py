"""A network that trains in seconds on two CPU cores: for the demo, for tests, for a first try.

Three convolutions of stride two: 1.9 million multiply-adds a 32x32 image, against 69 million of ResNet-32.
"""

from __future__ import annotations

from torch import Tensor, nn

from fixstar.errors import InputError
from fixstar.models.backbones.base import Backbone, he_init, staged
from fixstar.models.backbones.inputs import cifar_inputs

__all__ = ["Tiny"]


class Tiny(Backbone):
    """Conv-norm-ReLU three times, then a linear layer to the feature.

    The feature is batch-normalised, which keeps a first try stable at any learning rate, unless ``normalised=False``.
    """

    def __init__(
        self, *, in_channels: int = 3, feature_dim: int = 64, width: int = 24, normalised: bool = True
    ) -> None:
        for name, value in (("feature_dim", feature_dim), ("width", width)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} of tiny is a whole number of at least 1, got {value!r}")
        options = {"in_channels": in_channels, "feature_dim": feature_dim, "width": width, "normalised": normalised}
        super().__init__("tiny", options, feature_dim, cifar_inputs(in_channels))
        widths = [in_channels, width, 2 * width, 4 * width]
        kernels = [5, 3, 3]
        stages = [_stage(*sizes) for sizes in zip(widths, widths[1:], kernels, strict=False)]
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(widths[-1] * 16, feature_dim, bias=not normalised)
        self.norm = nn.BatchNorm1d(feature_dim) if normalised else nn.Identity()
        he_init(self)

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """[B, C, 32, 32] to maps of 16, 8 and 4 pixels."""
        return staged(images, *self.stages)

    def pool(self, last: Tensor) -> Tensor:
        """[B, 4 width, 4, 4] to [B, feature_dim]."""
        features: Tensor = self.norm(self.fc(last.flatten(1)))
        return features


def _stage(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=2, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())
