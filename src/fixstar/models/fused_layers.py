"""Where a fused CIFAR ResNet's layers and their gradients lie."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fixstar.models.backbones.cifar_resnet import CifarResNet

__all__ = ["LANES", "SUM_BLOCK", "WEIGHTS", "Gradients", "Layer", "layers_of", "programs_for"]

# By channels of the convolution's input: taps at once, pixels a turn, warps, programs in all. Tried on an H200.
WEIGHTS = {16: (3, 64, 2, 528), 32: (3, 64, 4, 264), 64: (1, 64, 4, 264)}
LANES = 16  # the fewest channels that a tensor core takes
SUM_BLOCK = (64, 64)  # weights and chunks that a program sums at once


def programs_for(total: int, tile: int) -> int:
    """Programs of ``tile`` pixels each."""
    return -(-total // tile)


class Layer(NamedTuple):
    """A convolution and the batch norm after it, with the sides of its input."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d
    height: int
    width: int

    @property
    def stride(self) -> int:
        """Of its convolution."""
        return self.conv.stride[0]

    @property
    def inputs(self) -> int:
        """Channels."""
        return self.conv.in_channels

    @property
    def outputs(self) -> int:
        """Channels."""
        return self.conv.out_channels

    @property
    def size(self) -> int:
        """Of its weights."""
        return self.conv.weight.numel()

    def sides(self) -> tuple[int, int]:
        """Of its output."""
        return self.height // self.stride, self.width // self.stride

    def chunks(self, images: int) -> tuple[int, int]:
        """Into how many chunks the weights' gradient divides the pixels of its output, and the turns of each."""
        taps, tile, _, programs = WEIGHTS[max(self.inputs, LANES)]
        total = images * self.sides()[0] * self.sides()[1]
        turns = max(1, programs_for(total * (9 // taps), tile * programs))
        return programs_for(total, tile * turns), turns


def layers_of(net: CifarResNet, height: int, width: int) -> list[Layer]:
    """Stem and blocks, in their order, for images of these sides."""
    layers = [Layer(net.conv1, net.bn1, height, width)]
    for block in net.blocks():
        layers.append(Layer(block.conv1, block.bn1, height, width))
        height, width = layers[-1].sides()
        layers.append(Layer(block.conv2, block.bn2, height, width))
    return layers


class Gradients:
    """All gradients in one piece of memory, a layer's weights, gain and shift after another; and parts to sum."""

    def __init__(self, layers: list[Layer], images: int, device: torch.device) -> None:
        self.layers, self._device = layers, device
        sizes = [layer.size + 2 * layer.outputs for layer in layers]
        parts = [layer.chunks(images)[0] * layer.size for layer in layers]
        self._starts, self._sources = ([0, *itertools.accumulate(lengths)] for lengths in (sizes, parts))

    def empty(self) -> tuple[Tensor, Tensor]:
        """Memory for the gradients and for the parts."""
        return torch.empty(self._starts[-1], device=self._device), torch.empty(self._sources[-1], device=self._device)

    def parts(self, memory: Tensor, number: int) -> Tensor:
        """Of a layer's weights: a gradient for every chunk of pixels."""
        return memory[self._sources[number] : self._sources[number + 1]]

    def of_weight(self, memory: Tensor, number: int) -> Tensor:
        """Of a layer's weights [output, tap, input], flat."""
        return memory[self._starts[number] :][: self.layers[number].size]

    def of_norm(self, memory: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Of a layer's gain and shift."""
        start, width = self._starts[number] + self.layers[number].size, self.layers[number].outputs
        return memory[start : start + width], memory[start + width : start + 2 * width]

    def views(self, memory: Tensor) -> list[Tensor]:
        """Weights, gain and shift, layer by layer, shaped as the parameters are."""
        views = []
        for number, layer in enumerate(self.layers):
            weight = self.of_weight(memory, number).view(layer.outputs, 3, 3, layer.inputs)
            views += [weight.permute(0, 3, 1, 2), *self.of_norm(memory, number)]
        return views
