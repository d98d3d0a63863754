"""A past model that cannot be trained by accident."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from fixstar.models.encoder import Encoder, Outputs

__all__ = ["FrozenEncoder"]


class FrozenEncoder:
    """A private copy of an encoder: no gradients, fixed batch-norm statistics, and no module for an optimiser."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = copy.deepcopy(encoder).eval().requires_grad_(False)

    def __call__(self, pixels: Tensor) -> Outputs:
        """What the past model makes of these uint8 pixels."""
        with torch.no_grad():
            outputs: Outputs = self._encoder(pixels)
        return outputs

    @property
    def classifier(self) -> torch.nn.Module:
        """The past model's classifier, frozen: BCT's influence loss judges new features with it."""
        return self._encoder.classifier
