"""A batch of crops of images on the device: one launch per source writes its crops, target slots and replay flags.

The step number is read on the device, so a recorded step takes a new batch at each replay.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fixstar.errors import InputError

_BLOCK = 1024
_WARPS = 4


@functools.cache
def _kernel() -> Any:
    import triton
    import triton.language as tl

    @triton.jit(
        do_not_specialize=["first", "share", "total", "replay"]
    )  # one program per image size
    def crop(  # type: ignore[no-untyped-def]
        at, index, down, right, flip, padded, slots, pixels, targets, flags, first, share, total, replay,
        C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """BLOCK pixels of one image. Sources and places in memory are int64: a set may exceed 2^31 bytes."""
        image = tl.program_id(0)
        block = tl.program_id(1)
        row = tl.load(at) * tl.num_programs(0) + image
        source = tl.load(index + row).to(tl.int64)
        place = ((image // share) * total + first + image % share).to(tl.int64)  # view by view
        pixel = block * BLOCK + tl.arange(0, BLOCK)
        x = pixel % W
        x = tl.where(tl.load(flip + row) != 0, W - 1 - x, x) + tl.load(right + row).to(tl.int32)
        y = (pixel // W) % H + tl.load(down + row).to(tl.int32)
        inside = pixel < C * H * W
        value = tl.load(
            padded + source * (C * PH * PW) + (pixel // (H * W) * PH + y) * PW + x, mask=inside
        )
        tl.store(pixels + place * (C * H * W) + pixel, value, mask=inside)
        if block == 0:
            tl.store(targets + place, tl.load(slots + source))
            tl.store(flags + place, replay)

    return crop


def cut(
    at: Tensor,
    plan: Sequence[Tensor],
    padded: Tensor,
    slots: Tensor,
    replay: bool,
    batch: tuple[Tensor, Tensor, Tensor],
    first: int = 0,
    views: int = 1,
) -> None:
    """Write a source's share of a batch into ``batch``: pixels [B, C, H, W], targets [B] and replay flags [B].

    ``at`` [1] is the step. ``plan`` has the image number, the offset down and right, and the flip of each crop of each
    step: four tensors [batches, views * share]. ``padded`` [N, C, H', W'] are the source's images, ``slots`` [N] their
    targets. In each view of the batch, the source's images are the ``share`` ones from ``first`` on.
    """
    pixels, targets, flags = batch
    images, (_, channels, height, width) = plan[0].shape[1], pixels.shape
    share = images // views
    total = len(pixels) // views
    fits = (
        share * views == images
        and 0 <= first <= total - share
        and total * views == len(targets) == len(flags)
    )
    alike = all(part.shape == plan[0].shape for part in plan) and padded.shape[:2] == (
        len(slots),
        channels,
    )
    if not (fits and alike and all(t.is_contiguous() for t in (*plan, padded, slots, *batch))):
        raise InputError(
            f"{views} views of {tuple(plan[0].shape)} crops from image {first} on do not fit a batch of "
            f"{tuple(pixels.shape)} from {len(slots)} targets and images {tuple(padded.shape)}; all must be contiguous"
        )
    _kernel()[(images, -(-channels * height * width // _BLOCK))](
        at, *plan, padded, slots, pixels, targets, flags, first, share, total, int(replay),
        channels, height, width, padded.shape[2], padded.shape[3], _BLOCK, num_warps=_WARPS,
    )  # fmt: skip
