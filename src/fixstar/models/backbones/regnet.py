"""RegNetX-200MF and RegNetY-400MF for 32x32 images (Radosavovic et al. 2020, "Designing network design spaces").

Depths and widths of the paper's networks behind a 3x3 stem, with the first two stages at full resolution: the CIFAR
variant that CoReS uses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fixstar.models.backbones.base import Backbone, staged
from fixstar.models.backbones.inputs import cifar_inputs
from fixstar.models.backbones.senet import SqueezeExcitation

__all__ = ["RegNet"]

_STEM = 64
_STRIDES = (1, 1, 2, 2)


@dataclass(frozen=True)
class _Layout:
    depths: tuple[int, int, int, int]
    widths: tuple[int, int, int, int]
    group_width: int
    excitation: float = 0.0  # squeezed channels, as a fraction of a block's input; 0 leaves them out (RegNetX)


_LAYOUTS = {
    "regnetx_200mf": _Layout((1, 1, 4, 7), (24, 56, 152, 368), group_width=8),
    "regnety_400mf": _Layout((1, 2, 7, 12), (32, 64, 160, 384), group_width=16, excitation=0.25),
}


class _Block(nn.Module):
    """1x1, grouped 3x3, excitation (RegNetY), 1x1; the width stays (bottleneck ratio 1)."""

    def __init__(self, inputs: int, outputs: int, stride: int, group_width: int, excitation: float) -> None:
        super().__init__()
        groups = outputs // group_width
        self.conv1 = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.excitation = SqueezeExcitation(outputs, round(inputs * excitation)) if excitation else nn.Identity()
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
    """A 3x3 stem of 64 channels, then four stages; the feature is as wide as the last."""

    def __init__(self, name: str, *, in_channels: int = 3) -> None:
        layout = _LAYOUTS[name]
        super().__init__(name, {"in_channels": in_channels}, layout.widths[-1], cifar_inputs(in_channels))
        self.conv1 = nn.Conv2d(in_channels, _STEM, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(_STEM)
        self.layer1, self.layer2, self.layer3, self.layer4 = (_stage(layout, index) for index in range(4))

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """[B, C, H, W] to four maps, the last [B, feature_dim, H/4, W/4]; 368 wide (X-200MF) or 384 (Y-400MF)."""
        x = F.relu(self.bn1(self.conv1(images)))  # [B, 64, H, W]
        return staged(x, self.layer1, self.layer2, self.layer3, self.layer4)


def _stage(layout: _Layout, index: int) -> nn.Sequential:
    inputs = layout.widths[index - 1] if index else _STEM
    width, stride = layout.widths[index], _STRIDES[index]
    first = _Block(inputs, width, stride, layout.group_width, layout.excitation)
    rest = (_Block(width, width, 1, layout.group_width, layout.excitation) for _ in range(layout.depths[index] - 1))
    return nn.Sequential(first, *rest)
