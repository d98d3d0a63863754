"""A frozen CIFAR ResNet with its batch norms folded into its convolutions: the same features in half the kernels.

Only for a GPU, in bfloat16: a teacher's forward pass is a third of a training step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fixstar.kernels.conv3x3 import fused_conv3x3, suits
from fixstar.models.backbones.cifar_resnet import CifarResNet, widen

__all__ = ["FoldedCifarResNet"]


class _Folded(NamedTuple):
    """A convolution and the batch norm after it, as one weight and bias."""

    weight: Tensor
    bias: Tensor
    stride: tuple[int, int]
    narrow: bool

    @classmethod
    def of(cls, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> _Folded:
        assert norm.running_var is not None
        assert norm.running_mean is not None
        gain = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        weight = (conv.weight * gain.view(-1, 1, 1, 1)).detach().to(torch.bfloat16)
        bias = (norm.bias - norm.running_mean * gain).detach().to(torch.bfloat16)
        return cls(
            weight.contiguous(memory_format=torch.channels_last), bias, (conv.stride[0], conv.stride[1]), suits(conv)
        )

    def relu(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """relu(conv(x) + bias + residual)."""
        if self.narrow:
            return fused_conv3x3(x, self.weight, self.bias, residual)
        one = (1, 1)
        if residual is None:
            return torch.cudnn_convolution_relu(x, self.weight, self.bias, self.stride, one, one, 1)
        return torch.cudnn_convolution_add_relu(x, self.weight, residual, 1.0, self.bias, self.stride, one, one, 1)


class FoldedCifarResNet:
    """Made once from a frozen backbone; a later change of its weights is not seen."""

    def __init__(self, backbone: CifarResNet) -> None:
        self._stem = _Folded.of(backbone.conv1, backbone.bn1)
        self._blocks = [
            (_Folded.of(block.conv1, block.bn1), _Folded.of(block.conv2, block.bn2), block.outputs)
            for block in backbone.blocks()
        ]

    @staticmethod
    def suits(backbone: nn.Module) -> bool:
        """Whether a backbone can be folded: a CIFAR ResNet on a GPU, with its last ReLU."""
        fits = isinstance(backbone, CifarResNet) and bool(backbone.options["final_relu"])
        return fits and next(backbone.parameters()).is_cuda

    def __call__(self, images: Tensor) -> Tensor:
        """[B, C, H, W] normalised images to [B, 64], in float32."""
        x = images.to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
        x = F.relu(F.conv2d(x, self._stem.weight, self._stem.bias, padding=1))
        for first, second, outputs in self._blocks:
            shortcut = x
            if x.shape[1] != outputs:
                shortcut = widen(x, outputs).contiguous(memory_format=torch.channels_last)
            x = second.relu(first.relu(x), shortcut)
        return x.float().mean((2, 3))
