"""The cutting kernel against index arithmetic and slow crops: on a GPU, or without one by Triton's interpreter."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from kernel_device import DEVICE, needs_triton, on_a_gpu
from wording import refuses

from fixstar.data import Augmentation, Batch, Batches, BatchSource, from_arrays
from fixstar.data.pixels import ResidentPixels
from fixstar.errors import InputError
from fixstar.kernels.crops import cut

CROPPED = Augmentation(crop_padding=3)

pytestmark = needs_triton


def made(
    lanes: int = 2,
    views: int = 2,
    augmentation: Augmentation = CROPPED,
    size: tuple[int, ...] = (7, 5, 3),
) -> Batches:
    """Batches of 5 (3 new and 2 replayed images where there are two lanes), of images of random pixels."""
    parts = []
    for count, replay in ((9, False), (4, True))[:lanes]:
        pixels = np.random.default_rng(count).integers(0, 256, (count, *size), dtype=np.uint8)
        source = ResidentPixels(from_arrays(pixels, np.zeros(count, int)), augmentation, DEVICE)
        parts.append(BatchSource(source, 100 * replay + torch.arange(count, device=DEVICE), replay))
    return Batches(parts, 5, augmentation, seed=3, views=views)


def assert_same(batch: Batch, expected: Batch) -> None:
    for ours, theirs in zip(batch[:3], expected[:3], strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.is_contiguous()
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("lanes", "views", "padding", "flip", "channels"),
    list(product([1, 2], [1, 2], [0, 4], [False, True], [1, 3])),
)
def test_every_batch_of_an_epoch_is_that_of_index_arithmetic(
    lanes: int, views: int, padding: int, flip: bool, channels: int
) -> None:
    batches = made(lanes, views, Augmentation(padding, flip, fill=9), (7, 5, channels))
    plan, epoch = batches.plan_on_device(1), list(batches.epoch(1))
    assert len(epoch) == len(plan[0]) == (13 if lanes == 2 else 9) // 5
    for step, expected in enumerate(epoch):
        batch = batches._cut_by_kernel(plan, torch.tensor([step], device=DEVICE))
        assert_same(batch, expected)
        assert_same(batch, batches.cut([part[step] for part in plan]))


def test_images_of_several_blocks_of_pixels() -> None:
    batches = made(size=(40, 31, 3))  # 3720 pixels: three blocks and a part
    plan = batches.plan_on_device(0)
    for step, expected in enumerate(batches.epoch(0)):
        assert_same(batches._cut_by_kernel(plan, torch.tensor([step], device=DEVICE)), expected)


def lane(images: int = 4) -> tuple[Any, Any, Any]:
    """One step's plan of two crops, images 6 x 5 that count their pixels, and their slots."""
    index, down, right = (torch.tensor([pair], device=DEVICE) for pair in ((3, 1), (0, 2), (1, 0)))
    flip = torch.tensor([[False, True]], device=DEVICE)
    pixels = torch.arange(30 * images, dtype=torch.uint8, device=DEVICE).view(images, 1, 6, 5)
    return [index, down, right, flip], pixels, torch.arange(10, 10 + images, device=DEVICE)


def empty(images: int) -> Any:
    """A batch of crops 2 x 3, all 255, -1 and False."""
    pixels = torch.full((images, 1, 2, 3), 255, dtype=torch.uint8, device=DEVICE)
    targets = torch.full((images,), -1, device=DEVICE)
    return pixels, targets, torch.zeros(images, dtype=torch.bool, device=DEVICE)


def test_a_lane_by_hand_and_what_is_beside_it() -> None:
    plan, images, slots = lane()
    batch = empty(6)
    at = torch.zeros(1, dtype=torch.long, device=DEVICE)
    cut(
        at, plan, images, slots, True, batch, first=1, views=2
    )  # of two views of three images, the second each
    untouched = [[255] * 3] * 2
    assert batch[0][:, 0].tolist() == [
        *(untouched, [[91, 92, 93], [96, 97, 98]], untouched),
        *(untouched, [[42, 41, 40], [47, 46, 45]], untouched),
    ]
    assert batch[1].tolist() == [-1, 13, -1, -1, 11, -1]
    assert batch[2].tolist() == [False, True, False, False, True, False]


def test_images_beyond_two_gigabytes() -> None:
    """Only the pages that are written are taken from memory on a CPU."""
    images = torch.empty((3, 1, 1 << 15, 1 << 15), dtype=torch.uint8, device=DEVICE)
    images[2, 0, :2, :3] = torch.arange(6, dtype=torch.uint8, device=DEVICE).view(2, 3)
    zero = torch.zeros((1, 1), dtype=torch.long, device=DEVICE)
    batch = empty(1)
    cut(
        zero[0],
        [zero + 2, zero, zero, zero.bool()],
        images,
        torch.arange(3, device=DEVICE),
        False,
        batch,
    )
    assert batch[0].flatten().tolist() == list(range(6))
    assert batch[1].tolist() == [2]


@pytest.mark.parametrize(
    ("images", "first", "views"),
    [(2, 1, 1), (2, -1, 1), (3, 0, 2), (3, 0, 3)],
    ids=["past the end", "before the start", "an odd batch", "an odd lane"],
)
def test_a_lane_that_does_not_fit_is_refused(images: int, first: int, views: int) -> None:
    plan, pixels, slots = lane()
    at = torch.zeros(1, dtype=torch.long, device=DEVICE)
    with refuses(InputError):
        cut(at, plan, pixels, slots, False, empty(images), first, views)


def test_images_without_targets_and_strided_ones_are_refused() -> None:
    plan, pixels, slots = lane()
    at = torch.zeros(1, dtype=torch.long, device=DEVICE)
    with pytest.raises(InputError, match="from 3 targets"):
        cut(at, plan, pixels, slots[:3], False, empty(2))
    with pytest.raises(InputError, match="contiguous"):
        cut(at, plan, pixels.transpose(2, 3), slots, False, empty(2))


@on_a_gpu
def test_a_recorded_cut_takes_the_batch_of_its_step() -> None:
    batches = made()
    plan, at = batches.plan_on_device(0), torch.zeros(1, dtype=torch.long, device=DEVICE)
    batches.cut_at(plan, at)  # builds the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = batches.cut_at(plan, at)
        at.add_(1)
    at.zero_()
    for expected in batches.epoch(0):
        graph.replay()
        assert_same(batch, expected)


def test_lanes_of_two_sizes_are_refused() -> None:
    lanes = []
    for size in (6, 8):
        pixels = np.zeros((4, size, size, 3), np.uint8)
        source = ResidentPixels(from_arrays(pixels, np.zeros(4, int)), CROPPED, DEVICE)
        lanes.append(BatchSource(source, torch.arange(4, device=DEVICE), replay=size == 8))
    batches = Batches(lanes, 4, CROPPED, seed=0)
    with pytest.raises(InputError, match=r"\(3, 6, 6\), \(3, 8, 8\)"):
        batches._cut_by_kernel(
            batches.plan_on_device(0), torch.zeros(1, dtype=torch.long, device=DEVICE)
        )
