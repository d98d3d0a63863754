"""Pixels on the device: resident if they fit, else streamed from files. Crops are made batch by batch.

On a CPU a crop is a NumPy window on padded uint8 images. On a GPU it is one gather by index arithmetic, or a kernel
(``fixstar.kernels.crops``) if the step is recorded. All give the same pixels.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fixstar.data.image_set import ImageSet, ReadImages
from fixstar.errors import DataError, ImageError, InputError
from fixstar.images import Preprocessing, decode_ahead
from fixstar.progress import progress_bar

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Augmentation:
    """Pad by ``crop_padding`` pixels of value ``fill``, crop at random, flip half of the images left to right."""

    crop_padding: int = 4
    flip: bool = True
    fill: int = 0

    def __post_init__(self) -> None:
        if self.crop_padding < 0 or not 0 <= self.fill <= 255:
            raise InputError(
                f"crop_padding must be >= 0 and fill in 0..255, got {self.crop_padding} and {self.fill}"
            )


class Crops(NamedTuple):
    """The crops of one source for an epoch: image number, offset down and right, flip; each [batches, b]."""

    image: Array
    down: Array
    right: Array
    flip: Array


class PixelSource(Protocol):
    """A source of pixels: resident or streamed."""

    def __len__(self) -> int:
        """The number of images."""

    def cut(self, crops: Crops) -> Iterator[Tensor]:
        """The crops of each batch, uint8 [b, C, H, W] on the device."""


class ResidentPixels:
    """All images in one uint8 tensor on the device, ``padded`` [N, C, H + 2p, W + 2p]. A crop has the shape C, H, W."""

    def __init__(self, images: ImageSet, augmentation: Augmentation, device: torch.device) -> None:
        assert isinstance(images.images, np.ndarray)
        _, height, width, channels = images.images.shape
        self.shape = (channels, height, width)
        self.padded = torch.from_numpy(_padded(images.images, augmentation)).to(device)

    def __len__(self) -> int:
        return len(self.padded)

    def cut(self, crops: Crops) -> Iterator[Tensor]:
        """One gather per batch."""
        if self.padded.device.type == "cpu":
            padded = self.padded.numpy()
            for index, down, right, flip in zip(*crops, strict=True):
                yield torch.from_numpy(
                    _cut_numpy(
                        padded=padded,
                        index=index,
                        down=down,
                        right=right,
                        flip=flip,
                        size=self.shape[1:],
                    )
                )
            return
        on_device = [
            torch.from_numpy(part).to(self.padded.device) for part in crops
        ]  # one copy per epoch
        for part in zip(*on_device, strict=True):
            yield self.cut_one(*part)

    def cut_one(self, index: Tensor, down: Tensor, right: Tensor, flip: Tensor) -> Tensor:
        """The crops of one batch, by tensors on the device."""
        return _cut_torch(
            padded=self.padded, index=index, down=down, right=right, flip=flip, size=self.shape[1:]
        )


class StreamedPixels:
    """Images decoded from their files in threads, before they are needed."""

    def __init__(
        self,
        images: ImageSet,
        preprocessing: Preprocessing,
        augmentation: Augmentation,
        device: torch.device,
    ) -> None:
        self._images = images
        self._preprocessing = preprocessing
        self._augmentation = augmentation
        self._device = device

    def __len__(self) -> int:
        return len(self._images)

    def cut(self, crops: Crops) -> Iterator[Tensor]:
        """Decode the epoch's files in its order and cut each batch as if it were resident."""
        sources = [self._images.images[i] for i in crops.image.ravel()]
        decoded = decode_ahead(sources, self._preprocessing)
        for down, right, flip in zip(crops.down, crops.right, crops.flip, strict=True):
            stack = np.stack([_readable(next(decoded)) for _ in down])
            padded = _padded(stack, self._augmentation)
            pixels = _cut_numpy(
                padded=padded,
                index=np.arange(len(down)),
                down=down,
                right=right,
                flip=flip,
                size=self._preprocessing.size,
            )
            yield torch.from_numpy(pixels).to(self._device, non_blocking=True)


class ResidentFeatures:
    """A frozen backbone's features on the device, [N, flips, turns, m]; a cut is [b, m], with turns [b, 4, m]."""

    def __init__(self, table: Tensor) -> None:
        self.table = table.squeeze(2) if table.shape[2] == 1 else table

    def __len__(self) -> int:
        return len(self.table)

    def cut(self, crops: Crops) -> Iterator[Tensor]:
        """See ``PixelSource``."""
        for part in zip(
            *(torch.from_numpy(part).to(self.table.device) for part in crops), strict=True
        ):
            yield self.cut_one(*part)

    def cut_one(self, index: Tensor, _down: Tensor, _right: Tensor, flip: Tensor) -> Tensor:
        """The features of one batch, by tensors on the device."""
        return self.table[index, flip.long()]


def augmented_views(images: Array, augmentation: Augmentation, count: int, seed: int = 0) -> Array:
    """``count`` random crops of each image, as training cuts them: uint8 [count * N, H, W, C], view by view."""
    n = len(images)
    every = np.arange(n)
    padded = _padded(images, augmentation)
    rng = np.random.default_rng(seed)
    views = np.empty((count, *images.shape), np.uint8)
    for view in views:
        down, right = rng.integers(0, 2 * augmentation.crop_padding + 1, (2, n))
        flip = rng.random(n) < 0.5 if augmentation.flip else np.zeros(n, bool)
        cut = _cut_numpy(
            padded=padded, index=every, down=down, right=right, flip=flip, size=images.shape[1:3]
        )
        view[:] = cut.transpose(0, 2, 3, 1)
    return views.reshape(count * n, *images.shape[1:])


def _readable(item: Array | ImageError) -> Array:
    if isinstance(item, ImageError):
        raise DataError(
            f"{item.name} was readable before but is not now: {item.reason}. Repair it and train again"
        )
    return item


def _padded(images: Array, augmentation: Augmentation) -> Array:
    """[N, H, W, C] -> [N, C, H + 2p, W + 2p], contiguous."""
    p = augmentation.crop_padding
    n, height, width, channels = images.shape
    out = np.full((n, channels, height + 2 * p, width + 2 * p), augmentation.fill, np.uint8)
    out[:, :, p : p + height, p : p + width] = images.transpose(0, 3, 1, 2)
    return out


def _cut_numpy(
    padded: Array, index: Array, down: Array, right: Array, flip: Array, size: tuple[int, ...]
) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(
        padded, size[:2], axis=(2, 3)
    )  # [N, C, down, right, H, W]
    out: Array = windows[index, :, down, right]
    out[flip] = out[flip, :, :, ::-1]
    return out


def _cut_torch(
    padded: Tensor, index: Tensor, down: Tensor, right: Tensor, flip: Tensor, size: tuple[int, ...]
) -> Tensor:
    height, width = size[:2]
    rows = down[:, None] + torch.arange(height, device=padded.device)  # [B, H]
    columns = torch.arange(width, device=padded.device)
    columns = right[:, None] + torch.where(flip[:, None], width - 1 - columns, columns)  # [B, W]
    channels = torch.arange(padded.shape[1], device=padded.device)
    return padded[
        index[:, None, None, None],
        channels[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def available_memory() -> int:
    """Bytes of host memory that this process can still use: free or reclaimable, within a container's limit."""
    free = _free_memory()
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    if limit == "max":
        return free
    return max(0, min(free, int(limit) - used))


def _free_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(
            int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")
        )
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError):  # unknown on this system
        return 4 << 30


def resident_budget(device: torch.device) -> int:
    """Maximum bytes of padded pixels on the device: a third of free memory, at most half of a GPU's memory."""
    host = available_memory() // 3
    if device.type != "cuda":
        return host
    return min(host, torch.cuda.mem_get_info(device)[0] // 2)


def pixel_source(
    images: ImageSet,
    preprocessing: Preprocessing,
    augmentation: Augmentation,
    device: torch.device,
    bad: Literal["refuse", "skip"] = "refuse",
    budget: int | None = None,
    show_progress: bool = False,
) -> tuple[PixelSource, ImageSet]:
    """The source of an image set's readable pixels, and that set; resident if they fit into ``budget`` bytes."""
    height, width = (side + 2 * augmentation.crop_padding for side in preprocessing.size)
    needed = len(images) * preprocessing.channels * height * width
    fits = needed <= (resident_budget(device) if budget is None else budget)
    look = images.load if fits else images.readable
    with progress_bar(
        "reading images", len(images), "images", show_progress and not images.resident
    ) as advance:
        loaded: ReadImages = look(preprocessing, bad, advance)
    for image in loaded.bad:
        warnings.warn(f"left out {image.name}: {image.reason}", stacklevel=2)
    if fits:
        return ResidentPixels(loaded.images, augmentation, device), loaded.images
    return StreamedPixels(loaded.images, preprocessing, augmentation, device), loaded.images
