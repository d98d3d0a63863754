"""Means over some images of a batch, without changing its shape."""

from __future__ import annotations

from torch import Tensor


def mean_over(values: Tensor, chosen: Tensor | None) -> Tensor:
    """The mean of the chosen entries of ``values`` [B]; zero, with a gradient of zero, if there are none.

    ``chosen`` [B] bool; ``None`` chooses all.
    """
    if chosen is None:
        return values.mean()
    weights = chosen.to(values.dtype)
    return (values * weights).sum() / weights.sum().clamp(min=1)
