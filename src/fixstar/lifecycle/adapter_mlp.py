"""A small perceptron as adapter: what is not linear between the two spaces."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from fixstar.errors import InputError
from fixstar.lifecycle.adapter_fitting import Fitted, Pairs, fit_ridge

__all__ = ["fit_mlp"]

_PATIENCE = 15  # epochs without a gain on the judged pairs
_BATCH = 256


class _Perceptron(nn.Module):
    """x W + c + relu(x A + e) B, starting as the ridge map: B is zero at first."""

    def __init__(self, start: Fitted, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        a, b = start.weights["W"].shape
        self.W = nn.Parameter(torch.tensor(start.weights["W"], dtype=torch.float32))
        self.c = nn.Parameter(torch.tensor(start.weights["c"], dtype=torch.float32))
        self.A = nn.Parameter(torch.randn(a, hidden, generator=generator) * 2**0.5)  # unit x: activations of order 1
        self.e = nn.Parameter(torch.zeros(hidden))
        self.B = nn.Parameter(torch.zeros(hidden, b))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.W + self.c + torch.relu(x @ self.A + self.e) @ self.B


def fit_mlp(pairs: Pairs, hidden: int = 256, epochs: int = 200, learning_rate: float = 2e-3) -> Fitted:
    """Minimise 1 - cos(adapted x, y) by Adam, from the ridge map on; on the CPU, the same for the same seed.

    A part of the pairs is only judged by: the epoch of largest mean cosine there is kept, and training ends when it
    stays away. The ridge map of the others is epoch 0, so on the judged pairs the result is never worse than it.
    """
    if hidden < 1 or epochs < 0 or not learning_rate > 0:
        raise InputError(
            f"an mlp needs hidden >= 1, epochs >= 0 and learning_rate > 0; got {hidden}, {epochs}, {learning_rate}"
        )
    shown, judged = pairs.split()
    generator = torch.Generator().manual_seed(pairs.seed)
    model = _Perceptron(fit_ridge(shown), hidden, generator)
    x, y, w = _tensors(shown)
    best, kept, best_epoch = _mean_cosine(model, judged), copy.deepcopy(model.state_dict()), 0
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    with torch.enable_grad():
        for epoch in range(1, epochs + 1):
            for rows in torch.split(torch.randperm(len(x), generator=generator), _BATCH):
                loss = (w[rows] * (1 - torch.cosine_similarity(model(x[rows]), y[rows]))).mean()
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
            score = _mean_cosine(model, judged)
            if score > best:
                best, kept, best_epoch = score, copy.deepcopy(model.state_dict()), epoch
            elif epoch - best_epoch >= _PATIENCE:
                break
    weights = {name: value.numpy().astype(np.float64) for name, value in kept.items()}
    return Fitted(weights, {"hidden": hidden, "epoch": best_epoch})


def _tensors(pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    x, y, w = (torch.tensor(np.asarray(part), dtype=torch.float32) for part in pairs[:3])
    return x, y, w


def _mean_cosine(model: _Perceptron, pairs: Pairs) -> float:
    x, y, w = _tensors(pairs)
    with torch.no_grad():
        return float((w * torch.cosine_similarity(model(x), y)).mean())
