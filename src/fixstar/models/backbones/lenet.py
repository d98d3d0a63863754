"""LeNet++ for 28x28 digits (Wen et al. 2016, "A discriminative feature learning approach", table 1).

Its two-dimensional feature can be drawn without a projection, which is what the papers' pictures of features show.
"""

from __future__ import annotations

from torch import Tensor, nn

from fixstar.errors import InputError
from fixstar.models.backbones.base import Backbone, staged
from fixstar.models.backbones.inputs import mnist_inputs

__all__ = ["LeNetPlusPlus"]


class LeNetPlusPlus(Backbone):
    """Three stages of two 5x5 convolutions with PReLU and a 2x2 max-pool, then one linear layer to the feature."""

    def __init__(self, *, feature_dim: int = 2, in_channels: int = 1) -> None:
        if isinstance(feature_dim, bool) or not isinstance(feature_dim, int) or feature_dim < 1:
            raise InputError(f"feature_dim of lenet++ is a whole number of at least 1, got {feature_dim!r}")
        options = {"feature_dim": feature_dim, "in_channels": in_channels}
        super().__init__("lenet++", options, feature_dim, mnist_inputs(in_channels))
        self.stage1 = _stage(in_channels, 32)
        self.stage2 = _stage(32, 64)
        self.stage3 = _stage(64, 128)
        self.fc = nn.Linear(128 * 3 * 3, feature_dim)

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """[B, C, 28, 28] to three maps, the last [B, 128, 3, 3]."""
        return staged(images, self.stage1, self.stage2, self.stage3)

    def pool(self, last: Tensor) -> Tensor:
        """[B, 128, 3, 3] to [B, feature_dim]."""
        features: Tensor = self.fc(last.flatten(1))
        return features


def _stage(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 5, padding=2),
        nn.PReLU(outputs),
        nn.Conv2d(outputs, outputs, 5, padding=2),
        nn.PReLU(outputs),
        nn.MaxPool2d(2),
    )
