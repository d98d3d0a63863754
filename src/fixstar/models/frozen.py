"""A past model that cannot be trained by accident."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fixstar.models.backbones.cifar_resnet import CifarResNet
from fixstar.models.classifiers import Classifier
from fixstar.models.encoder import Encoder, Form, Outputs
from fixstar.models.folded import FoldedCifarResNet

__all__ = ["FrozenEncoder"]


class FrozenEncoder:
    """A private copy of an encoder: no gradients, fixed batch-norm statistics, and no module for an optimiser.

    Of ``grown`` simplices, which its successor has and it lacks, it knows that its features are zero there: new
    features are compared with old ones as in a search.
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
        """The features of many images, as ``Encoder.encode`` makes them."""
        return self._encoder.encode(images, form=form)

    @property
    def classifier(self) -> Classifier:
        """The past model's classifier, frozen: BCT's influence loss judges new features with it."""
        return self._encoder.classifier
