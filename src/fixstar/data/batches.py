"""Batches of new and replayed images, in an order that depends only on (seed, epoch).

So an interrupted run resumes exactly as it would have continued.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from fixstar.data.pixels import Augmentation, Crops, PixelSource, ResidentFeatures, ResidentPixels
from fixstar.errors import InputError
from fixstar.kernels import AVAILABLE
from fixstar.kernels.crops import cut as cut_crops


class Batch(NamedTuple):
    """uint8 pixels [B, C, H, W] (or frozen features [B, m]), target slots [B], and which images are replayed [B].

    ``turns`` [B] are quarter turns if the second view of each image is rotated; 0 in the first view.
    """

    pixels: Tensor
    targets: Tensor
    replay: Tensor
    turns: Tensor | None = None


@dataclass(frozen=True)
class BatchSource:
    """Images that fill a fixed share of every batch."""

    pixels: PixelSource
    targets: Tensor  # [N], on the device
    replay: bool = False


class Batches:
    """The batches of every epoch, from one source, or half and half from two (new images, replayed images).

    The last incomplete batch is dropped (recipes of CL2R and HOC). With two ``views`` a batch holds two crops of each
    image, the second ``rotated`` by 90, 180 or 270 degrees at random.
    """

    def __init__(
        self,
        sources: list[BatchSource],
        batch_size: int,
        augmentation: Augmentation,
        seed: int,
        views: int = 1,
        rotated: bool = False,
    ) -> None:
        total = sum(len(source.pixels) for source in sources)
        if total < 2:
            raise InputError(f"training needs at least 2 images that can be read, got {total}")
        if batch_size < 2 or not 1 <= len(sources) <= 2:
            raise InputError(
                f"a batch has at least 2 images of one or two sources, got {batch_size} of {len(sources)}"
            )
        if rotated and views != 2:
            raise InputError(f"only the second of two views can be rotated, got views={views}")
        self._sources = sources
        self._augmentation = augmentation
        self._seed = seed
        self._views = views
        self._rotated = rotated
        self.batch_size = min(batch_size, total)
        self.per_epoch = total // self.batch_size
        replayed = self.batch_size // 2
        if len(sources) == 1:
            self._shares = [self.batch_size]
        else:
            self._shares = [self.batch_size - replayed, replayed]

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch ``number``, always the same for the same seed."""
        plan = self._plan(number)
        pixels = [
            source.pixels.cut(crops) for source, crops in zip(self._sources, plan, strict=True)
        ]
        device = self._sources[0].targets.device
        orders = [torch.from_numpy(crops.image).to(device) for crops in plan]
        flags = [
            torch.full((n,), source.replay, device=device)
            for n, source in zip(self._shares, self._sources, strict=True)
        ]
        replay = torch.cat(flags * self._views)
        turns = torch.from_numpy(self._turns(number)).to(device) if self._rotated else None
        for i, parts in enumerate(zip(*pixels, strict=True)):
            targets = [
                source.targets[order[i]]
                for source, order in zip(self._sources, orders, strict=True)
            ]
            batch = Batch(self._viewed(parts), self._viewed(targets), replay)
            yield batch if turns is None else _turned(batch, turns[i])

    def _viewed(self, sources: Sequence[Tensor]) -> Tensor:
        """The sources of a batch as one tensor, view by view."""
        views = zip(*(source.chunk(self._views) for source in sources), strict=True)
        return _joined([part for view in views for part in view])

    @property
    def resident(self) -> bool:
        """Whether all pixels are on the device, so that ``cut_at`` can cut batches there."""
        return all(
            isinstance(source.pixels, ResidentPixels | ResidentFeatures) for source in self._sources
        )

    def plan_on_device(self, number: int) -> list[Tensor]:
        """The plan of an epoch on the device, for ``cut_at``: four tensors [batches, b] per source, then turns."""
        device = self._sources[0].targets.device
        plan = [torch.from_numpy(part).to(device) for crops in self._plan(number) for part in crops]
        if self._rotated:
            return [*plan, torch.from_numpy(self._turns(number)).to(device)]
        return plan

    def cut_at(self, plan: Sequence[Tensor], at: Tensor) -> Batch:
        """The batch of step ``at`` [1] of a plan: on a GPU by one kernel per source, elsewhere by index arithmetic."""
        crops, turns = (
            (plan[:-1], plan[-1].index_select(0, at)[0]) if self._rotated else (plan, None)
        )
        if at.is_cuda and AVAILABLE and isinstance(self._sources[0].pixels, ResidentPixels):
            batch = self._cut_by_kernel(crops, at)
        else:
            batch = self.cut([part.index_select(0, at)[0] for part in crops])
        if turns is None:
            return batch
        return _turned(batch, turns)

    def _cut_by_kernel(self, plan: Sequence[Tensor], at: Tensor) -> Batch:
        size = self.batch_size * self._views
        device = at.device
        shapes = {cast(ResidentPixels, source.pixels).shape for source in self._sources}
        if len(shapes) > 1:
            raise InputError(
                f"images of a batch must have one size, got {', '.join(map(str, sorted(shapes)))}"
            )
        (shape,) = shapes
        batch = (
            torch.empty((size, *shape), dtype=torch.uint8, device=device),
            torch.empty(size, dtype=self._sources[0].targets.dtype, device=device),
            torch.empty(size, dtype=torch.bool, device=device),
        )
        for i, source in enumerate(self._sources):
            padded = cast(ResidentPixels, source.pixels).padded
            first = sum(self._shares[:i])
            part = plan[4 * i : 4 * i + 4]
            cut_crops(
                at=at,
                plan=part,
                padded=padded,
                slots=source.targets,
                replay=source.replay,
                batch=batch,
                first=first,
                views=self._views,
            )
        return Batch(*batch)

    def cut(self, plan: Sequence[Tensor]) -> Batch:
        """A batch from one row of each tensor of a plan [b]; only index arithmetic, nothing waits for the device."""
        sources = [(source, plan[4 * i : 4 * i + 4]) for i, source in enumerate(self._sources)]
        pixels = [
            cast(ResidentPixels | ResidentFeatures, source.pixels).cut_one(*part)
            for source, part in sources
        ]
        targets = [source.targets[part[0]] for source, part in sources]
        flags = [
            torch.full_like(part[0], source.replay, dtype=torch.bool).chunk(self._views)[0]
            for source, part in sources
        ]
        return Batch(self._viewed(pixels), self._viewed(targets), torch.cat(flags * self._views))

    def _plan(self, number: int) -> list[Crops]:
        plans = []
        for position, (source, share) in enumerate(zip(self._sources, self._shares, strict=True)):
            rng = np.random.default_rng([self._seed, number, position])
            index = _cyclic_order(len(source.pixels), self.per_epoch * share, rng).reshape(
                self.per_epoch, share
            )
            index = np.tile(index, self._views)  # [batches, views * share]
            shape = index.shape
            offsets = rng.integers(0, 2 * self._augmentation.crop_padding + 1, (2, *shape))
            if self._augmentation.flip:
                flip = rng.random(shape) < 0.5
            else:
                flip = np.zeros(shape, bool)
            plans.append(Crops(index, offsets[0], offsets[1], flip))
        return plans

    def _turns(self, number: int) -> np.ndarray[Any, Any]:
        """Quarter turns of the second view, 1 to 3, [batches, batch_size]."""
        rng = np.random.default_rng([self._seed, number, len(self._sources), 90])
        return rng.integers(1, 4, (self.per_epoch, self.batch_size))


def _turned(batch: Batch, turns: Tensor) -> Batch:
    """The batch with its second view rotated by ``turns`` [B] quarter turns; by index arithmetic."""
    both = torch.cat([torch.zeros_like(turns), turns])
    if batch.pixels.ndim == 3:  # features [2 B, 4, m] of all turns
        rows = torch.arange(len(both), device=both.device)
        return batch._replace(pixels=batch.pixels[rows, both], turns=both)
    first, second = batch.pixels.chunk(2)
    if second.shape[2] != second.shape[3]:
        raise InputError(
            f"only square images can be rotated, got {second.shape[2]} x {second.shape[3]} pixels"
        )
    k = turns[:, None, None, None]
    quarter = second.rot90(1, (2, 3))
    three = second.rot90(3, (2, 3))
    rotated = torch.where(k == 1, quarter, torch.where(k == 2, second.flip(2, 3), three))
    return batch._replace(pixels=torch.cat([first, rotated]), turns=both)


def _joined(parts: list[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts)


def _cyclic_order(n: int, total: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Shuffled passes over n images, cut at ``total``: no image is repeated before all have been used."""
    passes = [rng.permutation(n) for _ in range(-(-total // n))]
    return np.concatenate(passes)[:total]
