"""Residual networks: ResNet-18 to ResNet-152, ResNet-20 and ResNet-32 for CIFAR, SENet-18 and RegNets for 32x32 images.

The parameters of ``ResNet`` have torchvision's names (``layer1.0.conv1.weight``, ``layer2.0.downsample.0.weight``), and
the stride of a bottleneck is on its 3x3 convolution as it is there, so published weights load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fixstar.errors import InputError
from fixstar.models.backbones.base import (
    Backbone,
    cifar_inputs,
    he_init,
    imagenet_inputs,
    run_stages,
)

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
    """ResNet-18 to ResNet-152 (He et al. 2016, "Deep residual learning", table 1).

    Four stages, 64 to 512 channels wide (four times that with bottlenecks).
    ``stem="cifar"`` begins with a 3x3 convolution and no pooling, and so keeps the resolution of 32x32 images. With
    ``feature_dim`` a linear transform follows the pooling (BCT, section 3.2), and with ``final_relu`` a ReLU (table 3).
    """

    def __init__(
        self,
        depth: int,
        *,
        stem: Stem = "imagenet",
        in_channels: int = 3,
        feature_dim: int | None = None,
        final_relu: bool = False,
    ) -> None:
        if stem not in get_args(Stem):
            raise InputError(
                f"unknown stem {stem!r} of resnet{depth}; allowed: {', '.join(get_args(Stem))}"
            )
        block, counts = _LAYOUTS[depth]
        preprocessing = (
            cifar_inputs(in_channels) if stem == "cifar" else imagenet_inputs(channels=in_channels)
        )
        if feature_dim is not None and feature_dim < 1:
            raise InputError(
                f"resnet{depth} needs feature_dim >= 1, or None for the pooled feature; got {feature_dim}"
            )
        options: dict[str, Any] = {"stem": stem, "in_channels": in_channels}
        if feature_dim is not None:
            options["feature_dim"] = feature_dim
        if final_relu:
            options["final_relu"] = True
        pooled = 512 * block.expansion
        super().__init__(f"resnet{depth}", options, feature_dim or pooled, preprocessing)
        kernel = 7
        stride = 2
        if stem == "cifar":
            kernel = 3
            stride = 1
        self.conv1 = nn.Conv2d(in_channels, 64, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if stem == "cifar" else nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = _stage(block, 64, 64, counts[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, counts[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, counts[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, counts[3], stride=2)
        he_init(self)
        self.embedding = (
            nn.Identity() if feature_dim is None else nn.Linear(pooled, feature_dim, bias=False)
        )
        self.final_relu = final_relu

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """[B, C, H, W] to four maps, the last 512 wide, or 2048 with bottlenecks."""
        x = self.maxpool(
            F.relu(self.bn1(self.conv1(images)))
        )  # [B, 64, H/4, W/4], or [B, 64, H, W] with stem="cifar"
        return run_stages(x, self.layer1, self.layer2, self.layer3, self.layer4)

    def pool(self, last: Tensor) -> Tensor:
        """The last map to the feature."""
        feature: Tensor = self.embedding(super().pool(last))
        if self.final_relu:
            return F.relu(feature)
        return feature


def _stage(block: Block, inputs: int, width: int, count: int, stride: int) -> nn.Sequential:
    rest = (block(width * block.expansion, width, 1) for _ in range(count - 1))
    return nn.Sequential(block(inputs, width, stride), *rest)


_CIFAR_WIDTHS = (16, 32, 64)


def widen(x: Tensor, channels: int) -> Tensor:
    """The parameter-free shortcut, "option A": every second pixel, and zeros for the added channels."""
    return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, channels - x.shape[1]))


class _CifarBlock(nn.Module):
    """Two 3x3 convolutions and the shortcut around them."""

    def __init__(self, inputs: int, outputs: int, final_relu: bool) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.widens = stride == 2
        self.outputs = outputs
        self.final_relu = final_relu

    def forward(self, x: Tensor) -> Tensor:
        shortcut = widen(x, self.outputs) if self.widens else x
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x)) + shortcut
        if self.final_relu:
            return F.relu(x)
        return x


class CifarResNet(Backbone):
    """ResNet-20 and ResNet-32 for 32x32 images (He et al. 2016, section 4.2): 6n + 2 layers in three stages.

    ``final_relu=False`` leaves out the last ReLU, so that features can be negative, which suits cosine classifiers.
    """

    def __init__(self, depth: int, *, in_channels: int = 3, final_relu: bool = True) -> None:
        options = {"in_channels": in_channels, "final_relu": final_relu}
        super().__init__(f"resnet{depth}", options, _CIFAR_WIDTHS[-1], cifar_inputs(in_channels))
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(in_channels, _CIFAR_WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(_CIFAR_WIDTHS[0])
        self.layer1 = _cifar_stage(blocks, _CIFAR_WIDTHS[0], _CIFAR_WIDTHS[0])
        self.layer2 = _cifar_stage(blocks, _CIFAR_WIDTHS[0], _CIFAR_WIDTHS[1])
        self.layer3 = _cifar_stage(blocks, _CIFAR_WIDTHS[1], _CIFAR_WIDTHS[2], final_relu)
        he_init(self)

    def blocks(self) -> Iterator[_CifarBlock]:
        """All blocks, in their order."""
        return (
            cast(_CifarBlock, block)
            for layer in (self.layer1, self.layer2, self.layer3)
            for block in layer
        )

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """[B, C, H, W] to [B, 16, H, W], [B, 32, H/2, W/2], [B, 64, H/4, W/4]."""
        return run_stages(
            F.relu(self.bn1(self.conv1(images))), self.layer1, self.layer2, self.layer3
        )


def _cifar_stage(blocks: int, inputs: int, outputs: int, final_relu: bool = True) -> nn.Sequential:
    first = _CifarBlock(inputs, outputs, final_relu or blocks > 1)
    rest = (
        _CifarBlock(outputs, outputs, final_relu or index < blocks - 1)
        for index in range(1, blocks)
    )
    return nn.Sequential(first, *rest)


class SqueezeExcitation(nn.Module):
    """Scales each channel by a number in (0, 1) that two small layers compute from the channel means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to the same shape."""
        averages = x.mean((2, 3), keepdim=True)  # [B, C, 1, 1]
        scale: Tensor = self.fc2(F.relu(self.fc1(averages))).sigmoid()
        return x * scale


class _SEBlock(nn.Module):
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
    """SENet-18 for 32x32 images as CoReS has it: squeeze-and-excitation (Hu et al. 2018), pre-activation blocks."""

    def __init__(self, *, in_channels: int = 3) -> None:
        super().__init__("senet18", {"in_channels": in_channels}, 512, cifar_inputs(in_channels))
        self.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(_SEBlock(64, 64, 1), _SEBlock(64, 64, 1))
        self.layer2 = nn.Sequential(_SEBlock(64, 128, 2), _SEBlock(128, 128, 1))
        self.layer3 = nn.Sequential(_SEBlock(128, 256, 2), _SEBlock(256, 256, 1))
        self.layer4 = nn.Sequential(_SEBlock(256, 512, 2), _SEBlock(512, 512, 1))

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """[B, C, H, W] to [B, 64, H, W], ..., [B, 512, H/8, W/8]."""
        x = F.relu(self.bn1(self.conv1(images)))  # [B, 64, H, W]
        return run_stages(x, self.layer1, self.layer2, self.layer3, self.layer4)


_REG_STEM = 64
_REG_STRIDES = (1, 1, 2, 2)


@dataclass(frozen=True)
class _RegLayout:
    depths: tuple[int, int, int, int]
    widths: tuple[int, int, int, int]
    group_width: int
    excitation: float = (
        0.0  # squeezed channels, as a fraction of a block's input; 0 leaves them out (RegNetX)
    )


_REG_LAYOUTS = {
    "regnetx_200mf": _RegLayout((1, 1, 4, 7), (24, 56, 152, 368), group_width=8),
    "regnety_400mf": _RegLayout((1, 2, 7, 12), (32, 64, 160, 384), group_width=16, excitation=0.25),
}


class _RegBlock(nn.Module):
    """1x1, grouped 3x3, excitation (RegNetY), 1x1; the width stays (bottleneck ratio 1)."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, group_width: int, excitation: float
    ) -> None:
        super().__init__()
        groups = outputs // group_width
        self.conv1 = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.excitation = (
            SqueezeExcitation(outputs, round(inputs * excitation)) if excitation else nn.Identity()
        )
        self.conv3 = nn.Conv2d(outputs, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut(x)
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.excitation(F.relu(self.bn2(self.conv2(x))))
        return F.relu(self.bn3(self.conv3(x)) + shortcut)


class RegNet(Backbone):
    """RegNetX-200MF and RegNetY-400MF (Radosavovic et al. 2020) with a 3x3 stem, the CIFAR variant of CoReS."""

    def __init__(self, name: str, *, in_channels: int = 3) -> None:
        layout = _REG_LAYOUTS[name]
        super().__init__(
            name, {"in_channels": in_channels}, layout.widths[-1], cifar_inputs(in_channels)
        )
        self.conv1 = nn.Conv2d(in_channels, _REG_STEM, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(_REG_STEM)
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            _reg_stage(layout, index) for index in range(4)
        )

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """[B, C, H, W] to four maps, the last [B, feature_dim, H/4, W/4]; 368 wide (X-200MF) or 384 (Y-400MF)."""
        x = F.relu(self.bn1(self.conv1(images)))  # [B, 64, H, W]
        return run_stages(x, self.layer1, self.layer2, self.layer3, self.layer4)


def _reg_stage(layout: _RegLayout, index: int) -> nn.Sequential:
    inputs = layout.widths[index - 1] if index else _REG_STEM
    width = layout.widths[index]
    stride = _REG_STRIDES[index]
    first = _RegBlock(inputs, width, stride, layout.group_width, layout.excitation)
    rest = (
        _RegBlock(width, width, 1, layout.group_width, layout.excitation)
        for _ in range(layout.depths[index] - 1)
    )
    return nn.Sequential(first, *rest)
