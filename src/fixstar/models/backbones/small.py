"""Two small networks: LeNet++ for digits, and one that trains in seconds on two CPU cores."""

from __future__ import annotations

from torch import Tensor, nn

from fixstar.errors import InputError
from fixstar.models.backbones.base import Backbone, cifar_inputs, he_init, mnist_inputs, run_stages


def _require_counts(network: str, **counts: object) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(
                f"{name} of {network} must be a whole number of at least 1, got {value!r}"
            )


class LeNetPlusPlus(Backbone):
    """LeNet++ for 28x28 digits (Wen et al. 2016, table 1): three stages of two 5x5 convolutions with PReLU."""

    def __init__(self, *, feature_dim: int = 2, in_channels: int = 1) -> None:
        _require_counts("lenet++", feature_dim=feature_dim)
        options = {"feature_dim": feature_dim, "in_channels": in_channels}
        super().__init__("lenet++", options, feature_dim, mnist_inputs(in_channels))
        self.stage1 = _lenet_stage(in_channels, 32)
        self.stage2 = _lenet_stage(32, 64)
        self.stage3 = _lenet_stage(64, 128)
        self.fc = nn.Linear(128 * 3 * 3, feature_dim)

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """[B, C, 28, 28] to three maps, the last [B, 128, 3, 3]."""
        return run_stages(images, self.stage1, self.stage2, self.stage3)

    def pool(self, last: Tensor) -> Tensor:
        """[B, 128, 3, 3] to [B, feature_dim]."""
        features: Tensor = self.fc(last.flatten(1))
        return features


def _lenet_stage(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 5, padding=2),
        nn.PReLU(outputs),
        nn.Conv2d(outputs, outputs, 5, padding=2),
        nn.PReLU(outputs),
        nn.MaxPool2d(2),
    )


class Tiny(Backbone):
    """For the demo and tests: conv-norm-ReLU three times with stride two, then a linear layer, batch-normalised."""

    def __init__(
        self,
        *,
        in_channels: int = 3,
        feature_dim: int = 64,
        width: int = 24,
        normalised: bool = True,
    ) -> None:
        _require_counts("tiny", feature_dim=feature_dim, width=width)
        options = {
            "in_channels": in_channels,
            "feature_dim": feature_dim,
            "width": width,
            "normalised": normalised,
        }
        super().__init__("tiny", options, feature_dim, cifar_inputs(in_channels))
        widths = [in_channels, width, 2 * width, 4 * width]
        kernels = [5, 3, 3]
        stages = [_tiny_stage(*sizes) for sizes in zip(widths, widths[1:], kernels, strict=False)]
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(widths[-1] * 16, feature_dim, bias=not normalised)
        self.norm = nn.BatchNorm1d(feature_dim) if normalised else nn.Identity()
        he_init(self)

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """[B, C, 32, 32] to maps of 16, 8 and 4 pixels."""
        return run_stages(images, *self.stages)

    def pool(self, last: Tensor) -> Tensor:
        """[B, 4 width, 4, 4] to [B, feature_dim]."""
        features: Tensor = self.norm(self.fc(last.flatten(1)))
        return features


def _tiny_stage(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=2, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())
