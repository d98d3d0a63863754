"""A past model that cannot be trained by accident."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fixstar.models.classifiers import Classifier
from fixstar.models.encoder import Encoder, Form, Outputs

__all__ = ["FrozenEncoder"]


class FrozenEncoder:
    """A private copy of an encoder: no gradients, fixed batch-norm statistics, and no module for an optimiser."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = copy.deepcopy(encoder).eval().requires_grad_(False)

    def to(self, device: torch.device) -> FrozenEncoder:
        """Itself, moved."""
        self._encoder.to(device)
        return self

    def __call__(self, pixels: Tensor) -> Outputs:
        """What the past model makes of these uint8 pixels."""
        with torch.no_grad():
            outputs: Outputs = self._encoder(pixels)
        return outputs

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
