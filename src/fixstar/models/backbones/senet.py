"""SENet-18 for 32x32 images: squeeze-and-excitation (Hu et al. 2018) in pre-activation blocks (He et al. 2016).

The variant that the CIFAR literature, and CoReS with it, calls SENet18.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fixstar.models.backbones.base import Backbone, staged
from fixstar.models.backbones.inputs import cifar_inputs

__all__ = ["SENet", "SqueezeExcitation"]


class SqueezeExcitation(nn.Module):
    """Scales each channel by a number in (0, 1) that two small layers work out from the channel averages."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to the same shape."""
        averages = x.mean((2, 3), keepdim=True)  # [B, C, 1, 1]
        scale: Tensor = self.fc2(F.relu(self.fc1(averages))).sigmoid()
        return x * scale


class _Block(nn.Module):
    """Batch norm and ReLU before each of two 3x3 convolutions, excitation after them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.excitation = SqueezeExcitation(outputs, outputs // 16)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(active)
        x = self.conv2(F.relu(self.bn2(self.conv1(active))))
        excited: Tensor = self.excitation(x)
        return excited + shortcut


class SENet(Backbone):
    """A 3x3 stem and four stages of two blocks, 64 to 512 channels wide; no batch norm before the pool."""

    def __init__(self, *, in_channels: int = 3) -> None:
        super().__init__("senet18", {"in_channels": in_channels}, 512, cifar_inputs(in_channels))
        self.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(_Block(64, 64, 1), _Block(64, 64, 1))
        self.layer2 = nn.Sequential(_Block(64, 128, 2), _Block(128, 128, 1))
        self.layer3 = nn.Sequential(_Block(128, 256, 2), _Block(256, 256, 1))
        self.layer4 = nn.Sequential(_Block(256, 512, 2), _Block(512, 512, 1))

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """[B, C, H, W] to [B, 64, H, W], ..., [B, 512, H/8, W/8]."""
        x = F.relu(self.bn1(self.conv1(images)))  # [B, 64, H, W]
        return staged(x, self.layer1, self.layer2, self.layer3, self.layer4)
