"""Batches of new and replayed images, in an order that depends on (seed, epoch) alone.

A run that was cut off therefore goes on exactly as it would have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fixstar.data.pixels import Augmentation, Crops, PixelSource
from fixstar.errors import InputError

__all__ = ["Batch", "Batches", "Lane"]


class Batch(NamedTuple):
    """uint8 pixels [B, C, H, W], target slots [B], and which images come from the replay memory [B]."""

    pixels: Tensor
    targets: Tensor
    replay: Tensor


@dataclass(frozen=True)
class Lane:
    """Images that take a fixed share of every batch."""

    source: PixelSource
    targets: Tensor  # [N], on the device
    replay: bool = False


class Batches:
    """The batches of every epoch: one lane fills them alone, two lanes half and half (new images, replayed images).

    Batches an epoch = images // batch_size, the last incomplete one is dropped (recipes of CL2R and HOC).
    """

    def __init__(self, lanes: list[Lane], batch_size: int, augmentation: Augmentation, seed: int) -> None:
        total = sum(len(lane.source) for lane in lanes)
        if batch_size < 2 or total < 2 or not 1 <= len(lanes) <= 2:
            raise InputError(f"batches need at least 2 images and one or two lanes, got {total} and {len(lanes)}")
        self._lanes, self._augmentation, self._seed = lanes, augmentation, seed
        self.batch_size = min(batch_size, total)
        self.per_epoch = total // self.batch_size
        replayed = self.batch_size // 2
        self._shares = [self.batch_size] if len(lanes) == 1 else [self.batch_size - replayed, replayed]

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch ``number``, always the same for the same seed."""
        plan = self._plan(number)
        pixels = [lane.source.cut(crops) for lane, crops in zip(self._lanes, plan, strict=True)]
        device = self._lanes[0].targets.device
        orders = [torch.from_numpy(crops.image).to(device) for crops in plan]
        flags = [
            torch.full((n,), lane.replay, device=device) for n, lane in zip(self._shares, self._lanes, strict=True)
        ]
        replay = torch.cat(flags)
        for i, parts in enumerate(zip(*pixels, strict=True)):
            targets = [lane.targets[order[i]] for lane, order in zip(self._lanes, orders, strict=True)]
            yield Batch(_joined(list(parts)), _joined(targets), replay)

    def _plan(self, number: int) -> list[Crops]:
        plans = []
        for lane_number, (lane, share) in enumerate(zip(self._lanes, self._shares, strict=True)):
            rng = np.random.default_rng([self._seed, number, lane_number])
            shape = (self.per_epoch, share)
            index = _cyclic_order(len(lane.source), self.per_epoch * share, rng).reshape(shape)
            offsets = rng.integers(0, 2 * self._augmentation.crop_padding + 1, (2, *shape))
            flip = rng.random(shape) < 0.5 if self._augmentation.flip else np.zeros(shape, bool)
            plans.append(Crops(index, offsets[0], offsets[1], flip))
        return plans


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _cyclic_order(n: int, total: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Shuffled passes over n images, cut at ``total``: no image comes twice before all came once."""
    passes = [rng.permutation(n) for _ in range(-(-total // n))]
    return np.concatenate(passes)[:total]
