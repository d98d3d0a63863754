"""ResNet-20 and ResNet-32 for 32x32 images (He et al. 2016, "Deep residual learning", section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fixstar.kernels.conv3x3 import convolve
from fixstar.models.backbones.base import Backbone, he_init, staged
from fixstar.models.backbones.inputs import cifar_inputs

__all__ = ["CifarResNet", "widen"]

_WIDTHS = (16, 32, 64)


def widen(x: Tensor, channels: int) -> Tensor:
    """The parameter-free shortcut, "option A": every second pixel, and zeros for the channels that are not there."""
    return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, channels - x.shape[1]))


class _Block(nn.Module):
    """Two 3x3 convolutions and the shortcut around them."""

    def __init__(self, inputs: int, outputs: int, final_relu: bool) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.widens, self.outputs, self.final_relu = stride == 2, outputs, final_relu

    def forward(self, x: Tensor) -> Tensor:
        shortcut = widen(x, self.outputs) if self.widens else x
        x = F.relu(self.bn1(convolve(self.conv1, x)))
        x = self.bn2(convolve(self.conv2, x)) + shortcut
        return F.relu(x) if self.final_relu else x


class CifarResNet(Backbone):
    """6n + 2 layers: a 3x3 stem and three stages of n blocks, 16, 32 and 64 channels wide.

    ``final_relu=False`` leaves out the very last ReLU, so that features can be negative, as cosine classifiers like it.
    """

    def __init__(self, depth: int, *, in_channels: int = 3, final_relu: bool = True) -> None:
        options = {"in_channels": in_channels, "final_relu": final_relu}
        super().__init__(f"resnet{depth}", options, _WIDTHS[-1], cifar_inputs(in_channels))
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(in_channels, _WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(_WIDTHS[0])
        self.layer1 = _stage(blocks, _WIDTHS[0], _WIDTHS[0])
        self.layer2 = _stage(blocks, _WIDTHS[0], _WIDTHS[1])
        self.layer3 = _stage(blocks, _WIDTHS[1], _WIDTHS[2], final_relu)
        he_init(self)

    def blocks(self) -> Iterator[_Block]:
        """All blocks, in their order."""
        return (cast(_Block, block) for layer in (self.layer1, self.layer2, self.layer3) for block in layer)

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """[B, C, H, W] to [B, 16, H, W], [B, 32, H/2, W/2], [B, 64, H/4, W/4]."""
        return staged(F.relu(self.bn1(self.conv1(images))), self.layer1, self.layer2, self.layer3)


def _stage(blocks: int, inputs: int, outputs: int, final_relu: bool = True) -> nn.Sequential:
    first = _Block(inputs, outputs, final_relu or blocks > 1)
    rest = (_Block(outputs, outputs, final_relu or index < blocks - 1) for index in range(1, blocks))
    return nn.Sequential(first, *rest)
