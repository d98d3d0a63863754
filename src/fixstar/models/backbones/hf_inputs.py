"""Preprocessing of a transformers model, read from its JSON: the image processors themselves want torchvision."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fixstar.errors import InputError, ModelError
from fixstar.images import Preprocessing
from fixstar.models.backbones.inputs import imagenet_inputs

__all__ = ["hf_inputs"]

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]

_RESAMPLE: dict[int, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_SQUASHED_FROM = 384  # processors with crop_pct crop below this size and squash from it on


def hf_inputs(config: Any, folder: Path | None) -> Preprocessing:
    """What ``preprocessor_config.json`` in the folder says, else ImageNet statistics at the config's image size."""
    path = folder / "preprocessor_config.json" if folder else None
    default = _default_inputs(config)
    if path is None or not path.is_file():
        return default
    try:
        return _read(json.loads(path.read_text()), default)
    except (InputError, OSError, ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError) as error:
        raise ModelError(f"{path} is unusable ({error}); correct it, or pass preprocessing=...") from error


def _default_inputs(config: Any) -> Preprocessing:
    side = getattr(config, "image_size", None) or 224
    size = (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))
    return imagenet_inputs(size, getattr(config, "num_channels", 3))


def _read(values: dict[str, Any], default: Preprocessing) -> Preprocessing:
    scale = 255.0 * (values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1.0)
    normalised = values.get("do_normalize", True)
    mean = _by_channel(values.get("image_mean", default.mean) if normalised else 0.0, default.channels)
    std = _by_channel(values.get("image_std", default.std) if normalised else 1.0, default.channels)
    return Preprocessing(
        **_geometry(values, default),
        channels=default.channels,
        mean=tuple(value / scale for value in mean),
        std=tuple(value / scale for value in std),
        interpolation=_RESAMPLE.get(values.get("resample", 2), "bilinear"),
    )


def _by_channel(value: float | Sequence[float], channels: int) -> list[float]:
    values = [value] if isinstance(value, (int, float)) else list(value)
    return values * channels if len(values) == 1 else values


def _geometry(values: dict[str, Any], default: Preprocessing) -> dict[str, Any]:
    """Size, fit and crop fraction out of ``size``, ``crop_size``, ``crop_pct`` and whether they are used."""
    resized, crop_pct = values.get("size"), values.get("crop_pct")
    crops = values.get("do_center_crop", "crop_size" in values) and values.get("crop_size") is not None
    edge = _shortest_edge(resized, whole=not crops and crop_pct is None) if values.get("do_resize", True) else None
    if crops:
        size = _sides(values["crop_size"])
        return {"size": size, "fit": "crop", "crop_fraction": min(1.0, min(size) / (edge or min(size)))}
    if resized is None:
        return {"size": default.size, "fit": "crop", "crop_fraction": default.crop_fraction}
    if edge is None:
        return {"size": _sides(resized), "fit": "squash"}
    if crop_pct is not None and edge >= _SQUASHED_FROM:
        return {"size": (edge, edge), "fit": "squash"}
    return {"size": (edge, edge), "fit": "crop", "crop_fraction": crop_pct or 1.0}


def _shortest_edge(size: Any, whole: bool) -> int | None:
    """The length that the shorter side is resized to; ``None`` where both sides are given, and nothing is cropped."""
    if isinstance(size, dict) and "shortest_edge" in size:
        return int(size["shortest_edge"])
    if size is None or whole:
        return None
    return min(_sides(size))


def _sides(size: Any) -> tuple[int, int]:
    """Height and width out of {"height", "width"}, a pair, or one number, as older files have it."""
    if isinstance(size, dict):
        return int(size["height"]), int(size["width"])
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
