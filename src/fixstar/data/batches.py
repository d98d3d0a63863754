"""Batches of new and replayed images, in an order that depends on (seed, epoch) alone.

A run that was cut off therefore goes on exactly as it would have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from fixstar.data.pixels import Augmentation, Crops, PixelSource, ResidentPixels
from fixstar.errors import InputError
from fixstar.kernels import AVAILABLE
from fixstar.kernels.crops import cut as cut_lane

__all__ = ["Batch", "Batches", "Lane"]


class Batch(NamedTuple):
    """uint8 pixels [B, C, H, W], target slots [B], and which images come from the replay memory [B].

    ``turns`` [B] are quarter turns, where the second view of each image is rotated: 0 in the first view, 1 to 3 in the
    second.
    """

    pixels: Tensor
    targets: Tensor
    replay: Tensor
    turns: Tensor | None = None


@dataclass(frozen=True)
class Lane:
    """Images that take a fixed share of every batch."""

    source: PixelSource
    targets: Tensor  # [N], on the device
    replay: bool = False


class Batches:
    """The batches of every epoch: one lane fills them alone, two lanes half and half (new images, replayed images).

    Batches an epoch = images // batch_size, the last incomplete one is dropped (recipes of CL2R and HOC). With two
    ``views`` a batch holds two crops of each image: all images once, then all of them again. ``rotated`` turns the
    second ones by 90, 180 or 270 degrees, drawn at random.
    """

    def __init__(
        self,
        lanes: list[Lane],
        batch_size: int,
        augmentation: Augmentation,
        seed: int,
        views: int = 1,
        rotated: bool = False,
    ) -> None:
        total = sum(len(lane.source) for lane in lanes)
        if total < 2:
            raise InputError(f"training needs at least 2 images that can be read, got {total}")
        if batch_size < 2 or not 1 <= len(lanes) <= 2:
            raise InputError(f"a batch holds at least 2 images of one or two lanes, got {batch_size} of {len(lanes)}")
        if rotated and views != 2:
            raise InputError(f"the second of two views is rotated, got views={views}")
        self._lanes, self._augmentation, self._seed, self._views = lanes, augmentation, seed, views
        self._rotated = rotated
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
        replay = torch.cat(flags * self._views)
        turns = torch.from_numpy(self._turns(number)).to(device) if self._rotated else None
        for i, parts in enumerate(zip(*pixels, strict=True)):
            targets = [lane.targets[order[i]] for lane, order in zip(self._lanes, orders, strict=True)]
            batch = Batch(self._viewed(parts), self._viewed(targets), replay)
            yield batch if turns is None else _turned(batch, turns[i])

    def _viewed(self, lanes: Sequence[Tensor]) -> Tensor:
        """The lanes of a batch as one tensor, view by view."""
        views = zip(*(lane.chunk(self._views) for lane in lanes), strict=True)
        return _joined([part for view in views for part in view])

    @property
    def resident(self) -> bool:
        """Whether all pixels are on the device, so that batches can be cut there by ``cut_at``."""
        return all(isinstance(lane.source, ResidentPixels) for lane in self._lanes)

    def plan_on_device(self, number: int) -> list[Tensor]:
        """The whole plan of an epoch on the device, for ``cut_at``: four tensors [batches, b] per lane, then turns."""
        device = self._lanes[0].targets.device
        plan = [torch.from_numpy(part).to(device) for crops in self._plan(number) for part in crops]
        return [*plan, torch.from_numpy(self._turns(number)).to(device)] if self._rotated else plan

    def cut_at(self, plan: Sequence[Tensor], at: Tensor) -> Batch:
        """The batch of step ``at`` [1] of a plan: on a GPU by one kernel a lane, elsewhere by index arithmetic."""
        crops, turns = (plan[:-1], plan[-1].index_select(0, at)[0]) if self._rotated else (plan, None)
        if at.is_cuda and AVAILABLE:
            batch = self._cut_by_kernel(crops, at)
        else:
            batch = self.cut([part.index_select(0, at)[0] for part in crops])
        return batch if turns is None else _turned(batch, turns)

    def _cut_by_kernel(self, plan: Sequence[Tensor], at: Tensor) -> Batch:
        size, device = self.batch_size * self._views, at.device
        shapes = {cast(ResidentPixels, lane.source).shape for lane in self._lanes}
        if len(shapes) > 1:
            raise InputError(f"images of a batch must have one size, got {', '.join(map(str, sorted(shapes)))}")
        (shape,) = shapes
        batch = (
            torch.empty((size, *shape), dtype=torch.uint8, device=device),
            torch.empty(size, dtype=self._lanes[0].targets.dtype, device=device),
            torch.empty(size, dtype=torch.bool, device=device),
        )
        for i, lane in enumerate(self._lanes):
            padded, first = cast(ResidentPixels, lane.source).padded, sum(self._shares[:i])
            part = plan[4 * i : 4 * i + 4]
            cut_lane(at, part, padded, lane.targets, lane.replay, batch, first, self._views)
        return Batch(*batch)

    def cut(self, plan: Sequence[Tensor]) -> Batch:
        """A batch from one row of each tensor of a plan [b]; index arithmetic alone, nothing waits for the device."""
        lanes = [(lane, plan[4 * i : 4 * i + 4]) for i, lane in enumerate(self._lanes)]
        pixels = [cast(ResidentPixels, lane.source).cut_one(*part) for lane, part in lanes]
        targets = [lane.targets[part[0]] for lane, part in lanes]
        flags = [torch.full_like(part[0], lane.replay, dtype=torch.bool).chunk(self._views)[0] for lane, part in lanes]
        return Batch(self._viewed(pixels), self._viewed(targets), torch.cat(flags * self._views))

    def _plan(self, number: int) -> list[Crops]:
        plans = []
        for lane_number, (lane, share) in enumerate(zip(self._lanes, self._shares, strict=True)):
            rng = np.random.default_rng([self._seed, number, lane_number])
            index = _cyclic_order(len(lane.source), self.per_epoch * share, rng).reshape(self.per_epoch, share)
            index = np.tile(index, self._views)  # [batches, views * share]
            shape = index.shape
            offsets = rng.integers(0, 2 * self._augmentation.crop_padding + 1, (2, *shape))
            flip = rng.random(shape) < 0.5 if self._augmentation.flip else np.zeros(shape, bool)
            plans.append(Crops(index, offsets[0], offsets[1], flip))
        return plans

    def _turns(self, number: int) -> np.ndarray[Any, Any]:
        """Quarter turns of the second view, 1 to 3, [batches, batch_size]."""
        rng = np.random.default_rng([self._seed, number, len(self._lanes), 90])
        return rng.integers(1, 4, (self.per_epoch, self.batch_size))


def _turned(batch: Batch, turns: Tensor) -> Batch:
    """The batch with its second view rotated by ``turns`` [B] quarter turns; index arithmetic alone."""
    first, second = batch.pixels.chunk(2)
    if second.shape[2] != second.shape[3]:
        raise InputError(f"only square images are rotated, got {second.shape[2]} x {second.shape[3]} pixels")
    k = turns[:, None, None, None]
    quarter, three = second.rot90(1, (2, 3)), second.rot90(3, (2, 3))
    rotated = torch.where(k == 1, quarter, torch.where(k == 2, second.flip(2, 3), three))
    return batch._replace(pixels=torch.cat([first, rotated]), turns=torch.cat([torch.zeros_like(turns), turns]))


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _cyclic_order(n: int, total: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Shuffled passes over n images, cut at ``total``: no image comes twice before all came once."""
    passes = [rng.permutation(n) for _ in range(-(-total // n))]
    return np.concatenate(passes)[:total]
