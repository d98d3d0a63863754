"""A frozen copy of an earlier model, which cannot be trained by accident."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fixstar.images import Preprocessing
from fixstar.kernels.conv3x3 import fused_conv3x3, supports
from fixstar.models.backbones.resnets import CifarResNet, widen
from fixstar.models.classifiers import Classifier
from fixstar.models.encoder import Encoder, Form, Outputs

_GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue (ITU-R 601), as when reading files
_CHUNK = 256  # images


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
            weight.contiguous(memory_format=torch.channels_last),
            bias,
            (conv.stride[0], conv.stride[1]),
            supports(conv),
        )

    def relu(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """relu(conv(x) + bias + residual)."""
        if self.narrow:
            return fused_conv3x3(x, self.weight, self.bias, residual)
        one = (1, 1)
        if residual is None:
            return torch.cudnn_convolution_relu(x, self.weight, self.bias, self.stride, one, one, 1)
        return torch.cudnn_convolution_add_relu(
            x, self.weight, residual, 1.0, self.bias, self.stride, one, one, 1
        )


class FoldedCifarResNet:
    """A frozen CIFAR ResNet with folded batch norms, for a GPU in bfloat16; later weight changes are ignored."""

    def __init__(self, backbone: CifarResNet) -> None:
        self._stem = _Folded.of(backbone.conv1, backbone.bn1)
        self._blocks = [
            (_Folded.of(block.conv1, block.bn1), _Folded.of(block.conv2, block.bn2), block.outputs)
            for block in backbone.blocks()
        ]

    @staticmethod
    def supports(backbone: nn.Module) -> bool:
        """Whether a backbone can be folded: a CIFAR ResNet on a GPU, with its last ReLU."""
        fits = isinstance(backbone, CifarResNet) and bool(backbone.options["final_relu"])
        return fits and next(backbone.parameters()).is_cuda

    def __call__(self, images: Tensor) -> Tensor:
        """[B, C, H, W] normalised images to [B, 64], in float32."""
        x = images.to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
        x = functional.relu(functional.conv2d(x, self._stem.weight, self._stem.bias, padding=1))
        for first, second, outputs in self._blocks:
            shortcut = x
            if x.shape[1] != outputs:
                shortcut = widen(x, outputs).contiguous(memory_format=torch.channels_last)
            x = second.relu(first.relu(x), shortcut)
        return x.float().mean((2, 3))


def refit_pixels(pixels: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Pixels [B, C, H, W] converted to this model's size and channels, as integers; unchanged if they fit."""
    size = preprocessing.size
    channels = preprocessing.channels
    if pixels.shape[1:] == (channels, *size):
        return pixels
    x = pixels.float()
    if x.shape[1] != channels:
        x = _grey(x) if channels == 1 else x.expand(-1, channels, -1, -1)
    if x.shape[2:] != size:
        x = functional.interpolate(x, size, mode="bicubic", antialias=True)
    return x.round().clamp(0, 255)


def _grey(x: Tensor) -> Tensor:
    """[B, 3, H, W] to [B, 1, H, W]."""
    red, green, blue = _GREY
    return red * x[:, 0:1] + green * x[:, 1:2] + blue * x[:, 2:3]


def _refit_arrays(
    images: np.ndarray[Any, Any], preprocessing: Preprocessing
) -> np.ndarray[Any, Any]:
    """``refit_pixels`` for uint8 arrays [N, H, W, C]."""
    result = np.empty((len(images), *preprocessing.size, preprocessing.channels), np.uint8)
    for start in range(0, len(images), _CHUNK):
        part = torch.tensor(images[start : start + _CHUNK]).permute(0, 3, 1, 2)
        result[start : start + _CHUNK] = (
            refit_pixels(part, preprocessing).permute(0, 2, 3, 1).to(torch.uint8).numpy()
        )
    return result


class FrozenEncoder:
    """A private copy of an encoder: no gradients, fixed batch-norm statistics, no module for an optimiser.

    Its features are zero in ``grown`` simplices of its successor, as in a search; pixels are resized to its own input.
    """

    def __init__(self, encoder: Encoder, grown: Sequence[int] = ()) -> None:
        self._encoder = copy.deepcopy(encoder).eval().requires_grad_(False)
        for extra in grown:
            self._encoder.grow(extra)
        self._folded: FoldedCifarResNet | None = None
        self._columns: slice | None = None
        self._made: Callable[[Encoder, Any], Any] | None = None

    def reads(self, columns: slice, made: Callable[[Encoder, Any], Any]) -> FrozenEncoder:
        """Set up training on precomputed features: the columns of this model, and a function to compute features."""
        self._columns = columns
        self._made = made
        return self

    def to(self, device: torch.device) -> FrozenEncoder:
        """Move to a device; returns itself."""
        self._encoder.to(device)
        self._folded = None
        return self

    def __call__(self, pixels: Tensor, maps: bool = False, bfloat16: bool = False) -> Outputs:
        """The outputs of the past model for uint8 pixels."""
        encoder = self._encoder
        if self._columns is not None:
            return self.heads(pixels[:, self._columns])
        with torch.no_grad():
            pixels = refit_pixels(pixels, encoder.preprocessing)
            if bfloat16 and not maps and FoldedCifarResNet.supports(encoder.backbone):
                self._folded = self._folded or FoldedCifarResNet(
                    cast(CifarResNet, encoder.backbone)
                )
                return encoder.heads(self._folded(encoder.normalise(pixels)))
            outputs: Outputs = encoder(pixels, maps=maps, bfloat16=bfloat16)
        return outputs

    def heads(self, h: Tensor, maps: tuple[Tensor, ...] = ()) -> Outputs:
        """The outputs for backbone features [B, m]."""
        with torch.no_grad():
            return self._encoder.heads(h, None, maps)

    @property
    def feature_dim(self) -> int:
        """d, the width of the past model's features."""
        return self._encoder.feature_dim

    @property
    def backbone_dim(self) -> int:
        """m, the width of the past model's backbone feature."""
        return self._encoder.backbone.feature_dim

    def encode(self, images: Any, form: Form = "full") -> np.ndarray[Any, np.dtype[np.float32]]:
        """The features of many images, as ``Encoder.encode``; arrays of another size are resized."""
        if self._made is not None:
            return self._encoder.encode(self._made(self._encoder, images), form=form)
        own = self._encoder.preprocessing
        pixels = isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.ndim == 4
        if pixels and images.shape[1:] != (*own.size, own.channels):
            images = _refit_arrays(images, own)
        return self._encoder.encode(images, form=form)

    @property
    def classifier(self) -> Classifier:
        """The past model's classifier, frozen: BCT's influence loss applies it to new features."""
        return self._encoder.classifier
