"""A network between two feature spaces: vectors of one version into the space of the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fixstar.errors import InputError
from fixstar.geometry import unit

__all__ = ["Adapter"]


class Adapter(nn.Module):
    """Two linear layers with a ReLU between (the feature adaptation network of Iscen et al. 2020): [N, d] to [N, d].

    It is made with the version that it leads to, and saved with it.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        if width < 1 or hidden < 1:
            raise InputError(f"an adapter needs width and hidden >= 1, got {width} and {hidden}")
        self.width, self.hidden = width, hidden
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)

    @property
    def options(self) -> dict[str, int]:
        """The keywords that rebuild it."""
        return {"width": self.width, "hidden": self.hidden}

    def forward(self, old: Tensor) -> Tensor:
        """Unit vectors [N, d] of the old space to vectors of the new one, of any length."""
        adapted: Tensor = self.second(torch.relu(self.first(old)))
        return adapted

    def adapt(self, vectors: np.ndarray[Any, Any], batch_size: int = 8192) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Stored unit vectors [N, d] of the previous version as unit vectors of this one."""
        array = np.asarray(vectors, np.float32)
        if array.ndim != 2 or array.shape[1] != self.width:
            raise InputError(f"this adapter takes vectors of {self.width} components, got an array {array.shape}")
        device = self.first.weight.device
        with torch.no_grad():
            parts = [
                unit(self(torch.from_numpy(array[start : start + batch_size]).to(device))).cpu().numpy()
                for start in range(0, len(array), batch_size)
            ]
        return np.concatenate(parts) if parts else array
