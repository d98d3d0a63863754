"""Images to vectors, with decoding in threads while the model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fixstar.errors import ImageError, InputError
from fixstar.images import ImageSource, Preprocessing, decode_ahead
from fixstar.progress import progress_bar

if TYPE_CHECKING:
    from fixstar.models.encoder import Encoder, Form

__all__ = ["encode_images"]

AHEAD = 32  # images


def encode_images(
    encoder: Encoder,
    images: Sequence[ImageSource] | np.ndarray[Any, Any] | Tensor,
    batch_size: int,
    *,
    form: Form,
    bad: Literal["refuse", "skip"],
    on_bad: Callable[[ImageError], None] | None,
    progress: bool,
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The body of ``Encoder.encode``; see there."""
    _check(images, batch_size, form, bad)
    width = min(encoder.feature_dim, encoder.backbone.feature_dim) if form == "short" else encoder.feature_dim
    vectors = np.full((len(images), width), np.nan, np.float32)
    training = encoder.training
    encoder.eval()
    try:
        with torch.no_grad(), progress_bar("encoding", len(images), "images", show=progress) as advance:
            for rows, pixels in _batches(encoder, images, batch_size, bad, on_bad):
                features = encoder.features(pixels.to(encoder.device, non_blocking=True), form)
                vectors[rows] = features.float().cpu().numpy()
                advance(len(rows))
    finally:
        encoder.train(training)
    return vectors


def _check(images: Any, batch_size: int, form: str, bad: str) -> None:
    planes_first = isinstance(images, Tensor)  # arrays are channels last: [3, H, W] is three grey images
    one = getattr(images, "ndim", 0) == 3 and (
        images.shape[-1] in (1, 3, 4) or (planes_first and images.shape[0] in (1, 3))
    )
    if one or isinstance(images, (str, bytes)) or not (hasattr(images, "__len__") and hasattr(images, "__getitem__")):
        raise InputError(f"encode takes a sequence of images, got {type(images).__name__}; for one image pass [image]")
    for name, value, allowed in (("form", form, ("full", "short", "raw")), ("bad", bad, ("refuse", "skip"))):
        if value not in allowed:
            raise InputError(f"{name}={value!r} is not one of {', '.join(allowed)}")
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")


def _batches(
    encoder: Encoder,
    images: Any,
    batch_size: int,
    bad: str,
    on_bad: Callable[[ImageError], None] | None,
) -> Iterator[tuple[list[int], Tensor]]:
    """Row numbers [B] and uint8 pixels [B, C, H, W] of the images that can be read."""
    if _is_ready(images, encoder.preprocessing):
        for start in range(0, len(images), batch_size):
            part = torch.from_numpy(np.ascontiguousarray(images[start : start + batch_size]))
            yield list(range(start, start + len(part))), part.to(encoder.device).permute(0, 3, 1, 2).contiguous()
        return
    rows: list[int] = []
    stack: list[np.ndarray[Any, Any]] = []
    ahead = max(AHEAD, 2 * batch_size)  # the next batch is decoded while the model works on this one
    for index, item in enumerate(decode_ahead(images, encoder.preprocessing, ahead=ahead)):
        if isinstance(item, ImageError):
            if bad == "refuse":
                raise ImageError(item.name, item.reason)
            if on_bad is not None:
                on_bad(item)
            continue
        rows.append(index)
        stack.append(item)
        if len(stack) == batch_size:
            yield rows, _to_tensor(stack)
            rows, stack = [], []
    if stack:
        yield rows, _to_tensor(stack)


def _is_ready(images: Any, wanted: Preprocessing) -> bool:
    """Whether an array holds pixels just as the model takes them, so that whole batches can be passed on."""
    held = isinstance(images, np.ndarray) and images.dtype == np.uint8
    return held and images.shape[1:] == (*wanted.size, wanted.channels)


def _to_tensor(stack: list[np.ndarray[Any, Any]]) -> Tensor:
    return torch.from_numpy(np.stack(stack)).permute(0, 3, 1, 2).contiguous()
