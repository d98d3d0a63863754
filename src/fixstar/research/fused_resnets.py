"""A CIFAR ResNet in training whose batch norms live inside its convolutions: a third of the kernels of a training step.

Only for a GPU: forward and backward passes are written out, layer by layer, in ``normed_convolutions``.
Nothing in the backward pass reads the weights' gradients, so they are computed on a second stream. A step of ResNet-32
takes 1.45 ms with them and 2.67 ms compiled (``benchmarks/training_step.py``), and the papers' tables take hundreds of
trainings of it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fixstar.errors import InputError
from fixstar.kernels import AVAILABLE, INTERPRETED
from fixstar.models.backbones.resnets import CifarResNet

# By output channels: taps at once, pixels and warps per program. Tuned on an H200: the best values, or close.
_FORWARD = {16: (1, 128, 4), 32: (3, 128, 4), 64: (3, 64, 4)}
_BACKWARD = {16: (3, 128, 2), 32: (3, 128, 4), 64: (3, 64, 4)}
_POINTWISE = {16: 128, 32: 64, 64: 16}
_STATISTICS = 1024  # parts that one warp per channel reduces together
# By input channels: taps at once, pixels per iteration, warps, programs in total. Tuned on an H200.
WEIGHTS = {16: (3, 64, 2, 528), 32: (3, 64, 4, 264), 64: (1, 64, 4, 264)}
LANES = 16  # minimum number of channels for a tensor core
SUM_BLOCK = (64, 64)  # weights and chunks that a program sums at once


def programs_for(total: int, tile: int) -> int:
    """Programs of ``tile`` pixels each."""
    return -(-total // tile)


class FusedLayer(NamedTuple):
    """A convolution and the batch norm after it, with the sides of its input."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d
    height: int
    width: int

    @property
    def stride(self) -> int:
        """The stride of the convolution."""
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
        """The number of weights."""
        return self.conv.weight.numel()

    def sides(self) -> tuple[int, int]:
        """Height and width of the output."""
        return self.height // self.stride, self.width // self.stride

    def chunks(self, images: int) -> tuple[int, int]:
        """The number of chunks of output pixels for the weights' gradient, and the iterations per chunk."""
        taps, tile, _, programs = WEIGHTS[max(self.inputs, LANES)]
        total = images * self.sides()[0] * self.sides()[1]
        turns = max(1, programs_for(total * (9 // taps), tile * programs))
        return programs_for(total, tile * turns), turns


def layers_of(net: CifarResNet, height: int, width: int) -> list[FusedLayer]:
    """Stem and blocks, in their order, for images of these sides."""
    layers = [FusedLayer(net.conv1, net.bn1, height, width)]
    for block in net.blocks():
        layers.append(FusedLayer(block.conv1, block.bn1, height, width))
        height, width = layers[-1].sides()
        layers.append(FusedLayer(block.conv2, block.bn2, height, width))
    return layers


class Gradients:
    """All gradients in one block of memory, layer by layer (weights, gain, shift), and partial sums."""

    def __init__(self, layers: list[FusedLayer], images: int, device: torch.device) -> None:
        self.layers = layers
        self._device = device
        sizes = [layer.size + 2 * layer.outputs for layer in layers]
        parts = [layer.chunks(images)[0] * layer.size for layer in layers]
        self._starts, self._sources = (
            [0, *itertools.accumulate(lengths)] for lengths in (sizes, parts)
        )

    def empty(self) -> tuple[Tensor, Tensor]:
        """Memory for the gradients and the partial sums."""
        return torch.empty(self._starts[-1], device=self._device), torch.empty(
            self._sources[-1], device=self._device
        )

    def parts(self, memory: Tensor, number: int) -> Tensor:
        """The partial gradients of a layer's weights, one per chunk of pixels."""
        return memory[self._sources[number] : self._sources[number + 1]]

    def of_weight(self, memory: Tensor, number: int) -> Tensor:
        """The gradient of a layer's weights [output, tap, input], flat."""
        return memory[self._starts[number] :][: self.layers[number].size]

    def of_norm(self, memory: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """The gradients of a layer's gain and shift."""
        start = self._starts[number] + self.layers[number].size
        width = self.layers[number].outputs
        return memory[start : start + width], memory[start + width : start + 2 * width]

    def views(self, memory: Tensor) -> list[Tensor]:
        """Gradients of weights, gain and shift, layer by layer, in the shapes of the parameters."""
        views = []
        for number, layer in enumerate(self.layers):
            weight = self.of_weight(memory, number).view(layer.outputs, 3, 3, layer.inputs)
            views += [weight.permute(0, 3, 1, 2), *self.of_norm(memory, number)]
        return views


def _in_blocks(programs: int) -> tuple[int, int]:
    """The number of iterations and parts per iteration (a power of two) for a channel's program."""
    block = min(_STATISTICS, 1 << (programs - 1).bit_length())
    return programs_for(programs, block), block


@dataclass
class _Kept:
    """The data of one layer for the backward pass: its input, its raw output and its batch norm."""

    layer: FusedLayer
    weight: Tensor  # packed
    x: Tensor
    y: Tensor
    norm: Tensor  # gain, shift, mean, 1 / deviation, [4, C]


class FusedCifarResNet:
    """Forward and backward passes of one backbone; reads its parameters and updates its running statistics."""

    def __init__(self, backbone: CifarResNet, storage: torch.dtype = torch.bfloat16) -> None:
        from fixstar.research import normed_convolutions

        self._run: Any = normed_convolutions
        self._backbone = backbone
        self._storage = storage
        self._product = normed_convolutions.TYPES[torch.float32 if INTERPRETED else storage]
        self._plans: dict[tuple[int, int, int, torch.device], Gradients] = {}

    @staticmethod
    def supports(backbone: nn.Module, sides: tuple[int, int]) -> bool:
        """Whether a backbone can be trained this way, on a GPU that multiplies bfloat16."""
        devices = {parameter.device for parameter in backbone.parameters()}
        if not AVAILABLE or len(devices) != 1 or (device := devices.pop()).type != "cuda":
            return False
        return torch.cuda.get_device_capability(device) >= (8, 0) and FusedCifarResNet.follows(
            backbone, sides
        )

    @staticmethod
    def follows(backbone: nn.Module, sides: tuple[int, int]) -> bool:
        """Whether these passes compute the same as the backbone: an unmodified CIFAR ResNet, fully trainable."""
        if type(backbone) is not CifarResNet or any(side % 4 for side in sides):
            return False
        modules = list(backbone.modules())
        norms = [m for m in modules if isinstance(m, nn.BatchNorm2d)]
        usual = all(
            norm.training and norm.track_running_stats and norm.momentum is not None
            for norm in norms
        )
        hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in modules)
        return usual and not hooked and all(p.requires_grad for p in backbone.parameters())

    def __call__(self, images: Tensor) -> Tensor:
        """[B, C, H, W] normalised images, sides divisible by four, to [B, 64] in float32."""
        features: Tensor = _Function.apply(self, images, *self._parameters())  # type: ignore[no-untyped-call]
        return features

    def _parameters(self) -> list[Tensor]:
        return [
            p
            for layer in layers_of(self._backbone, 0, 0)
            for p in (layer.conv.weight, layer.norm.weight, layer.norm.bias)
        ]

    def _plan(self, images: int, height: int, width: int, device: torch.device) -> Gradients:
        key = (images, height, width, device)
        if key not in self._plans:
            self._plans[key] = Gradients(layers_of(self._backbone, height, width), images, device)
        return self._plans[key]

    def forward(self, images: Tensor) -> tuple[Tensor, list[_Kept], Tensor]:
        """Features, and for the backward pass the layers and the output of the last block."""
        height, width = images.shape[2:]
        if height % 4 or width % 4:
            raise InputError(
                f"images are halved twice: both sides must be divisible by 4, got {height} x {width}"
            )
        layers = self._plan(len(images), height, width, images.device).layers
        packed = self._packed(layers)
        pixels = (
            images.contiguous(memory_format=torch.channels_last)
            .permute(0, 2, 3, 1)
            .to(self._storage)
        )
        kept = [self._convolve(layers[0], packed[0], pixels)]
        outs = [self._activated(kept[0], None)]
        for i, block in enumerate(self._backbone.blocks()):
            kept.append(self._convolve(layers[2 * i + 1], packed[2 * i + 1], outs[-1]))
            between = self._activated(kept[-1], None)
            kept.append(self._convolve(layers[2 * i + 2], packed[2 * i + 2], between))
            outs.append(self._activated(kept[-1], outs[-1], block.final_relu))
        return outs[-1].flatten(1, 2).mean(1, dtype=torch.float32), kept, outs[-1]

    def _packed(self, layers: list[FusedLayer]) -> list[Tensor]:
        """The weights in the kernels' layout: [output, tap, input], in the storage type."""
        sources = [layer.conv.weight.detach().permute(0, 2, 3, 1) for layer in layers]
        packed = [torch.empty(w.shape, dtype=self._storage, device=w.device) for w in sources]
        torch._foreach_copy_(packed, sources)
        return packed

    def _convolve(self, layer: FusedLayer, weight: Tensor, x: Tensor) -> _Kept:
        taps, tile, warps = _FORWARD[layer.outputs]
        y = torch.empty(
            (len(x), *layer.sides(), layer.outputs), dtype=self._storage, device=x.device
        )
        total = y.numel() // layer.outputs
        programs = programs_for(total, tile)
        parts = torch.empty((2, layer.outputs, programs), device=x.device)
        norm = torch.empty((4, layer.outputs), device=x.device)
        self._run.forward[(programs,)](
            x, weight, y, parts, total, programs, layer.height, layer.width, layer.inputs, layer.outputs, layer.stride,
            taps, tile, max(layer.inputs, LANES), self._product, num_warps=warps,
        )  # fmt: skip
        bn = layer.norm
        self._run.statistics[(layer.outputs,)](
            parts, bn.weight, bn.bias, bn.running_mean, bn.running_var, norm, total, programs, bn.eps, bn.momentum,
            layer.outputs, tile, *_in_blocks(programs), num_warps=1,
        )  # fmt: skip
        return _Kept(layer, weight, x, y, norm)

    def _activated(self, kept: _Kept, before: Tensor | None, relu: bool = True) -> Tensor:
        """relu(batch norm(y) + shortcut)."""
        images, height, width, channels = kept.y.shape
        out = torch.empty_like(kept.y)
        tile = _POINTWISE[channels]
        total = images * height * width
        stride, narrower = (
            (1, 0) if before is None else (before.shape[1] // height, before.shape[-1])
        )
        self._run.joint[(programs_for(total, tile),)](
            kept.y, kept.norm, kept.y if before is None else before, out, total, height, width, channels, narrower,
            stride, relu, tile, num_warps=4,
        )  # fmt: skip
        return out

    def backward(self, gradient: Tensor, kept: list[_Kept], top: Tensor) -> list[Tensor]:
        """The gradients of all parameters, in their order; ``gradient`` [B, 64] is that of the features."""
        images, height, width, _ = kept[0].y.shape
        plan = self._plan(images, height, width, gradient.device)
        memory, parts = plan.empty()
        side = _SideStream(gradient.device)
        final_relu = list(self._backbone.blocks())[-1].final_relu
        g, sums = self._tail(gradient.contiguous(), kept[-1], top, final_relu)
        skip = g
        for number in reversed(range(len(kept))):
            layer = kept[number]
            dy = self._through_norm(layer, g, sums, *plan.of_norm(memory, number))
            with side(dy):
                self._weights(layer, dy, plan.parts(parts, number), plan.of_weight(memory, number))
            if number == 0:
                break
            if (
                number % 2 == 0
            ):  # second layer of a block: the shortcut has the same gradient as the output
                skip = g
            g, sums = self._below(layer, kept[number - 1], dy, skip if number % 2 else None)
        side.join()
        return plan.views(memory)

    def _tail(
        self, gradient: Tensor, kept: _Kept, top: Tensor, relu: bool
    ) -> tuple[Tensor, Tensor]:
        images, height, width, channels = kept.y.shape
        out = torch.empty_like(kept.y)
        tile = _POINTWISE[channels]
        total = images * height * width
        programs = programs_for(total, tile)
        sums = torch.empty((2, channels, programs), device=out.device)
        self._run.tail[(programs,)](
            gradient, top, kept.y, kept.norm, out, sums, total, programs, height * width, channels, relu, tile,
            num_warps=4,
        )  # fmt: skip
        return out, sums

    def _through_norm(
        self, kept: _Kept, g: Tensor, sums: Tensor, d_gain: Tensor, d_shift: Tensor
    ) -> Tensor:
        """The gradient of a layer's raw output, from that of its batch norm's output and the sums over it."""
        channels = kept.layer.outputs
        programs = sums.shape[-1]
        total = g.numel() // channels
        tile = _POINTWISE[channels]
        line = torch.empty((3, channels), device=g.device)
        dy = torch.empty_like(g)
        self._run.coefficients[(channels,)](
            sums, kept.norm, line, d_gain, d_shift, total, programs, channels, *_in_blocks(programs), num_warps=1
        )  # fmt: skip
        self._run.along[(programs_for(total, tile),)](
            g, kept.y, line, dy, total, channels, tile, num_warps=4
        )
        return dy

    def _below(
        self, kept: _Kept, lower: _Kept, dy: Tensor, skip: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The gradient at the batch norm below a convolution, with the shortcut's, and the sums over it."""
        layer, (taps, tile, warps) = kept.layer, _BACKWARD[kept.layer.inputs]
        out = torch.empty_like(lower.y)
        total = out.numel() // layer.inputs
        programs = programs_for(total, tile)
        sums = torch.empty((2, layer.inputs, programs), device=out.device)
        width, stride = (0, 1) if skip is None else (skip.shape[-1], layer.height // skip.shape[1])
        self._run.backward[(programs,)](
            dy, kept.weight, kept.x, dy if skip is None else skip, lower.y, lower.norm, out, sums, total, programs,
            layer.height, layer.width, layer.inputs, layer.outputs, layer.stride, width, stride,
            taps if layer.stride == 1 else 1, tile, self._product, num_warps=warps,
        )  # fmt: skip
        return out, sums

    def _weights(self, kept: _Kept, dy: Tensor, parts: Tensor, out: Tensor) -> None:
        layer = kept.layer
        lanes = max(kept.layer.inputs, LANES)
        (taps, tile, warps, _), (chunks, turns) = WEIGHTS[lanes], kept.layer.chunks(len(dy))
        self._run.weights[(chunks, 9 // taps)](
            kept.x, dy, parts, dy.numel() // layer.outputs, turns, layer.height, layer.width, layer.inputs,
            layer.outputs, layer.stride, taps, tile, lanes, self._product, num_warps=warps,
        )  # fmt: skip
        block, at_once = SUM_BLOCK
        self._run.summed[(programs_for(layer.size, block),)](
            parts,
            out,
            layer.size,
            chunks,
            min(at_once, 1 << (chunks - 1).bit_length()),
            block,
            num_warps=4,
        )


class _SideStream:
    """A second stream for work that nothing waits for until ``join``. Its inputs are kept alive until then."""

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = _second_stream(device) if device.type == "cuda" else None
        self._read: list[Tensor] = []

    @contextlib.contextmanager
    def __call__(self, *read: Tensor) -> Iterator[None]:
        self._read += read
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Wait for it, on the device."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        self._read.clear()


@functools.cache
def _second_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, net: FusedCifarResNet, images: Tensor, *parameters: Tensor) -> Tensor:  # noqa: ARG004
        if ctx.needs_input_grad[1]:
            raise InputError(
                "the fused network has no gradient by its images; call the backbone itself"
            )
        features, kept, top = net.forward(images)
        ctx.net = net
        ctx.kept = kept
        ctx.top = top
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        found = ctx.net.backward(gradients[0], ctx.kept, ctx.top)
        return (None, None, *found)


def fused_program(backbone: nn.Module, sides: tuple[int, int]) -> FusedCifarResNet | None:
    """What trains ``backbone`` on images of these sides by the fused kernels; None if it does not suit them."""
    if not FusedCifarResNet.supports(backbone, sides):
        return None
    assert isinstance(backbone, CifarResNet)
    return FusedCifarResNet(backbone)
