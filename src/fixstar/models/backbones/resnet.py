"""ResNet-18 to ResNet-152 (He et al. 2016, "Deep residual learning", table 1).

Parameters bear the names that torchvision made common (``layer1.0.conv1.weight``, ``layer2.0.downsample.0.weight``),
and the stride of a bottleneck sits on its 3x3 convolution as it does there, so published weights load.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fixstar.errors import InputError
from fixstar.models.backbones.base import Backbone, he_init, staged
from fixstar.models.backbones.inputs import cifar_inputs, imagenet_inputs

__all__ = ["ResNet"]

Stem = Literal["imagenet", "cifar"]


class _BasicBlock(nn.Module):
    """3x3, 3x3."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _downsample(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + shortcut)


class _Bottleneck(nn.Module):
    """1x1 to a narrow width, 3x3, 1x1 to four times that width."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = _downsample(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return F.relu(self.bn3(self.conv3(x)) + shortcut)


def _downsample(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


Block = type[_BasicBlock] | type[_Bottleneck]
_LAYOUTS: dict[int, tuple[Block, tuple[int, int, int, int]]] = {
    18: (_BasicBlock, (2, 2, 2, 2)),
    34: (_BasicBlock, (3, 4, 6, 3)),
    50: (_Bottleneck, (3, 4, 6, 3)),
    101: (_Bottleneck, (3, 4, 23, 3)),
    152: (_Bottleneck, (3, 8, 36, 3)),
}


class ResNet(Backbone):
    """Four stages, 64 to 512 channels wide (four times that with bottlenecks).

    ``stem="cifar"`` begins with a 3x3 convolution and no pooling, and so keeps the resolution of 32x32 images.
    """

    def __init__(self, depth: int, *, stem: Stem = "imagenet", in_channels: int = 3) -> None:
        if stem not in get_args(Stem):
            raise InputError(f"unknown stem {stem!r} of resnet{depth}; allowed: {', '.join(get_args(Stem))}")
        block, counts = _LAYOUTS[depth]
        preprocessing = cifar_inputs(in_channels) if stem == "cifar" else imagenet_inputs(channels=in_channels)
        options = {"stem": stem, "in_channels": in_channels}
        super().__init__(f"resnet{depth}", options, 512 * block.expansion, preprocessing)
        kernel, stride = (3, 1) if stem == "cifar" else (7, 2)
        self.conv1 = nn.Conv2d(in_channels, 64, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if stem == "cifar" else nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = _stage(block, 64, 64, counts[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, counts[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, counts[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, counts[3], stride=2)
        he_init(self)

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """[B, C, H, W] to four maps, the last 512 wide, or 2048 with bottlenecks."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(images))))  # [B, 64, H/4, W/4], or [B, 64, H, W] with stem="cifar"
        return staged(x, self.layer1, self.layer2, self.layer3, self.layer4)


def _stage(block: Block, inputs: int, width: int, count: int, stride: int) -> nn.Sequential:
    rest = (block(width * block.expansion, width, 1) for _ in range(count - 1))
    return nn.Sequential(block(inputs, width, stride), *rest)
