"""Batch norm over the whole batch where each process holds a share of it; on any device, shares of any size.

Only the forward pass is exchanged, for the length of a ``with``: parameters, statistics and their names stay those of
the layer, so that checkpoints and saved models are the same files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from fixstar.training.distributed import collective, world

__all__ = ["synchronised"]


@contextlib.contextmanager
def synchronised(model: nn.Module) -> Iterator[None]:
    """Inside, batch norms of ``model`` that are being trained normalise by the batch of all processes."""
    layers: list[Any] = [part for part in model.modules() if isinstance(part, _BatchNorm)]
    for layer in layers:
        layer.forward = lambda x, layer=layer: _forward(layer, x)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _forward(layer: _BatchNorm, x: Tensor) -> Tensor:
    mean, var, momentum = layer.running_mean, layer.running_var, layer.momentum
    if not layer.training and mean is not None:
        return type(layer).forward(layer, x)
    y, batch_mean, batch_var, count = _Normalised.apply(x, layer.weight, layer.bias, layer.eps)  # type: ignore[no-untyped-call]
    if layer.training and mean is not None and var is not None:
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
        if momentum is None:  # the mean over all batches so far
            assert layer.num_batches_tracked is not None
            momentum = 1 / float(layer.num_batches_tracked)
        mean.lerp_(batch_mean.to(mean.dtype), momentum)
        var.lerp_((batch_var * (count / (count - 1))).to(var.dtype), momentum)  # the unbiased one, as torch keeps it
    normalised: Tensor = y
    return normalised


class _Normalised(torch.autograd.Function):
    """y = gain (x - mean) / sqrt(var + eps) + bias, mean and variance over all processes.

    The gradients by gain and bias are those of this process's share: the step sums them, as it does all others.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dims = [dim for dim in range(x.ndim) if dim != 1]
        wide = x.float()
        own_mean = wide.mean(dims)  # [C]
        own_squares = (wide - _along(own_mean, x)).square().sum(dims)  # [C], around the own mean: no cancellation
        mean, squares, count = _merged(own_mean, own_squares, x.numel() // x.shape[1])
        var = squares / count
        scale = torch.rsqrt(var + eps)
        unit = (wide - _along(mean, x)) * _along(scale, x)
        y = unit if gain is None else unit * _along(gain.float(), x)
        y = y if bias is None else y + _along(bias.float(), x)
        ctx.save_for_backward(x, mean, scale, gain)
        ctx.count, ctx.has_bias = count, bias is not None
        ctx.mark_non_differentiable(mean, var, count)
        return y.to(x.dtype), mean, var, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        x, mean, scale, gain = ctx.saved_tensors
        dims = [dim for dim in range(x.ndim) if dim != 1]
        dy = gradients[0].float()
        unit = (x.float() - _along(mean, x)) * _along(scale, x)
        by_bias, by_gain = dy.sum(dims), (dy * unit).sum(dims)  # [C], of this share
        sums = torch.stack([by_bias, by_gain])
        with collective():
            dist.all_reduce(sums)
        sums = sums / ctx.count
        centred = dy - _along(sums[0], x) - unit * _along(sums[1], x)
        factor = scale if gain is None else scale * gain.float()
        dx = (centred * _along(factor, x)).to(x.dtype)
        return dx, None if gain is None else by_gain, by_bias if ctx.has_bias else None, None


def _along(channel: Tensor, x: Tensor) -> Tensor:
    """[C] to [1, C, 1, ...]."""
    return channel.view(1, -1, *(1 for _ in range(x.ndim - 2)))


def _merged(mean: Tensor, squares: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means, sums of squared deviations and counts of all processes as one (Chan et al. 1979)."""
    own = torch.cat([mean, squares, mean.new_tensor([float(count)])])  # [2 C + 1]
    each = [torch.empty_like(own) for _ in range(world().size)]
    with collective():
        dist.all_gather(each, own)
    told = torch.stack(each)  # [processes, 2 C + 1]
    means, sums, counts = told[:, : len(mean)], told[:, len(mean) : -1], told[:, -1:]
    total = counts.sum()
    whole = (means * counts).sum(dim=0) / total
    return whole, (sums + counts * (means - whole).square()).sum(dim=0), total
