"""A past model that cannot be trained by accident."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fixstar.images import Preprocessing
from fixstar.models.backbones.cifar_resnet import CifarResNet
from fixstar.models.classifiers import Classifier
from fixstar.models.encoder import Encoder, Form, Outputs
from fixstar.models.folded import FoldedCifarResNet

__all__ = ["FrozenEncoder", "refitted"]

_GREY = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R 601), as files are read
_CHUNK = 256  # images


def refitted(pixels: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Pixels [B, C, H, W] that another model's preprocessing has fitted already, at this one's size and channels.

    The whole picture is resized: it was cropped or padded before. Such pixels are whole numbers in float32; those that
    fit are returned as they are.
    """
    size, channels = preprocessing.size, preprocessing.channels
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


def _refitted_arrays(images: np.ndarray[Any, Any], preprocessing: Preprocessing) -> np.ndarray[Any, Any]:
    """The same for uint8 arrays [N, H, W, C]."""
    result = np.empty((len(images), *preprocessing.size, preprocessing.channels), np.uint8)
    for start in range(0, len(images), _CHUNK):
        part = torch.tensor(images[start : start + _CHUNK]).permute(0, 3, 1, 2)
        result[start : start + _CHUNK] = refitted(part, preprocessing).permute(0, 2, 3, 1).to(torch.uint8).numpy()
    return result


class FrozenEncoder:
    """A private copy of an encoder: no gradients, fixed batch-norm statistics, and no module for an optimiser.

    Of ``grown`` simplices, which its successor has and it lacks, it knows that its features are zero there: new
    features are compared with old ones as in a search. Pixels that were fitted to a successor of another input size are
    brought to its own.
    """

    def __init__(self, encoder: Encoder, grown: Sequence[int] = ()) -> None:
        self._encoder = copy.deepcopy(encoder).eval().requires_grad_(False)
        for extra in grown:
            self._encoder.grow(extra)
        self._folded: FoldedCifarResNet | None = None

    def to(self, device: torch.device) -> FrozenEncoder:
        """Itself, moved."""
        self._encoder.to(device)
        self._folded = None
        return self

    def __call__(self, pixels: Tensor, maps: bool = False, bfloat16: bool = False) -> Outputs:
        """What the past model makes of these uint8 pixels."""
        encoder = self._encoder
        with torch.no_grad():
            pixels = refitted(pixels, encoder.preprocessing)
            if bfloat16 and not maps and FoldedCifarResNet.suits(encoder.backbone):
                self._folded = self._folded or FoldedCifarResNet(cast(CifarResNet, encoder.backbone))
                return encoder.heads(self._folded(encoder.normalise(pixels)))
            outputs: Outputs = encoder(pixels, maps=maps, bfloat16=bfloat16)
        return outputs

    def heads(self, h: Tensor, maps: tuple[Tensor, ...] = ()) -> Outputs:
        """What its projection and classifier make of backbone features [B, m]."""
        with torch.no_grad():
            return self._encoder.heads(h, None, maps)

    @property
    def feature_dim(self) -> int:
        """d, the width of the past model's features."""
        return self._encoder.feature_dim

    def encode(self, images: Any, form: Form = "full") -> np.ndarray[Any, np.dtype[np.float32]]:
        """The features of many images, as ``Encoder.encode`` makes them; arrays of another size hold whole pictures."""
        own = self._encoder.preprocessing
        held = isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.ndim == 4
        if held and images.shape[1:] != (*own.size, own.channels):
            images = _refitted_arrays(images, own)
        return self._encoder.encode(images, form=form)

    @property
    def classifier(self) -> Classifier:
        """The past model's classifier, frozen: BCT's influence loss judges new features with it."""
        return self._encoder.classifier
