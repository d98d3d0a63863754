"""Training on a frozen backbone: its features are computed once per image, cached on disk, and replace pixels.

    features/KEY/VIEW/*.safetensors     up to 1,024 images each: digests of their bytes, and features

KEY is a digest of the backbone, its weights and its preprocessing. VIEW is the image itself, flipped, or turned. Files
are written atomically and have a checksum; a damaged file is computed again. The folder may be deleted at any time.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fixstar.data.image_set import Bad, ImageSet, unreadable_error
from fixstar.data.pixels import ResidentFeatures
from fixstar.durable import read_arrays, write_arrays
from fixstar.errors import ImageError, InputError, ModelError
from fixstar.images import decode_ahead
from fixstar.images.reading import content
from fixstar.models import Encoder
from fixstar.progress import progress_bar
from fixstar.training.checkpoint import weights_digest
from fixstar.training.distributed import from_rank_zero, world

_BATCH = 64  # images through the backbone at a time
_SHARD = 1024  # images per file, and the most that a kill loses
_DIGEST = 16  # bytes

Vectors = NDArray[np.float32]


class View(NamedTuple):
    """A view of an image for the backbone."""

    flip: bool
    turn: int  # by 90 degrees

    def of(self, pixels: Tensor) -> Tensor:
        """Pixels [B, C, H, W], flipped first, then turned."""
        return torch.rot90(pixels.flip(3) if self.flip else pixels, self.turn, (2, 3))


PLAIN = View(flip=False, turn=0)


class FrozenFeatures:
    """One row per image: features of the trained model, then of each other backbone, in all views."""

    def __init__(
        self,
        encoder: Encoder,
        folder: Path | None = None,
        flip: bool = False,
        rotated: bool = False,
        progress: bool = False,
    ) -> None:
        self._flips = (False, True) if flip else (False,)
        self._turns = range(4 if rotated else 1)
        self._device = encoder.device
        self._show = progress and world().is_rank_zero
        self._shared = folder is not None
        if folder:
            self._temporary = None
        else:
            self._temporary = tempfile.TemporaryDirectory(prefix="fixstar-features-")
        self._folder = folder or Path(self._temporary.name if self._temporary else "")
        self._models: dict[str, Encoder] = {}
        self.columns(encoder)
        if rotated and encoder.preprocessing.size[0] != encoder.preprocessing.size[1]:
            raise InputError(
                f"only square images can be rotated, got {encoder.preprocessing.size} pixels"
            )

    def columns(self, model: Encoder) -> slice:
        """The columns of a model's features. A new backbone is added at the end."""
        key = _backbone_key(model)
        if key not in self._models:
            if model.device == self._device:
                on_device = model
            else:
                on_device = copy.deepcopy(model).to(self._device)
            self._models[key] = on_device
        widths = [other.backbone.feature_dim for other in self._models.values()]
        place = list(self._models).index(key)
        return slice(sum(widths[:place]), sum(widths[: place + 1]))

    def source(self, images: ImageSet, bad: Bad = "refuse") -> tuple[ResidentFeatures, ImageSet]:
        """The features of a set, ready for batches, and the set without unreadable images."""
        digests = _digests(images.images)
        views = [View(flip, turn) for flip in self._flips for turn in self._turns]
        unread = self._make(self._models, images.images, digests, views)
        if unread and (bad == "refuse" or len(unread) == len(images)):
            raise unreadable_error(unread, len(images))
        for image in unread:
            warnings.warn(f"left out {image.name}: {image.reason}", stacklevel=2)
        kept = sorted(set(range(len(images))) - {image.index for image in unread})
        chosen = [digests[row] for row in kept]
        rows = np.stack([self._row(self._models, chosen, view) for view in views], axis=1)
        table = torch.from_numpy(
            rows.reshape(len(kept), len(self._flips), len(self._turns), -1)
        ).to(self._device)
        return ResidentFeatures(table), images.take(kept) if unread else images

    def of(self, model: Encoder, images: Any) -> Vectors:
        """A model's features [N, m] of unaugmented images; all must be readable."""
        self.columns(model)
        digests = _digests(images)
        models = {key: self._models[key] for key in [_backbone_key(model)]}
        if unread := self._make(models, images, digests, [PLAIN]):
            raise unreadable_error(unread, len(images))
        return self._row(models, digests, PLAIN)

    def _make(
        self,
        models: Mapping[str, Encoder],
        images: Any,
        digests: Sequence[bytes],
        views: Sequence[View],
    ) -> list[ImageError]:
        """Compute missing features; returns the error of each unreadable image. Only one process writes."""

        def make() -> list[list[Any]]:
            reasons: dict[bytes, str] = {}
            for key, model in models.items():
                reasons |= _make(
                    model=model,
                    images=images,
                    digests=digests,
                    views=views,
                    folder=self._folder / key,
                    show=self._show,
                )
            return [
                [_name(images, row), reasons[one], row]
                for row, one in enumerate(digests)
                if one in reasons
            ]

        if self._shared:
            found = from_rank_zero(make)
        else:
            found = make()
        return [ImageError(*bad) for bad in found]

    def _row(self, models: Mapping[str, Encoder], digests: Sequence[bytes], view: View) -> Vectors:
        """The features of images in one view, with several backbones side by side."""
        parts = []
        for key, model in models.items():
            rows, features = _stored(_place(self._folder / key, view), model.backbone.feature_dim)
            parts.append(features[[rows[digest] for digest in digests]])
        return np.concatenate(parts, axis=1)


def _backbone_key(model: Encoder) -> str:
    """A digest of everything that a backbone's features depend on."""
    facts = [
        model.backbone.name,
        model.backbone.options,
        model.preprocessing.to_json(),
        weights_digest(model.backbone),
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


def _place(folder: Path, view: View) -> Path:
    return folder / f"flip{int(view.flip)}-turn{view.turn}"


def _name(images: Any, row: int) -> str:
    if isinstance(images[row], Path):
        return str(images[row])
    return f"image {row}"


def _digests(images: Any) -> list[bytes]:
    def digest(row: int) -> bytes:
        try:
            seen = content(images[row])
        except OSError:
            return f"row {row}".encode()  # never stored: decoding reports the error
        return hashlib.blake2b(seen, digest_size=_DIGEST).digest()

    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(digest, range(len(images))))


def _make(
    model: Encoder,
    images: Any,
    digests: Sequence[bytes],
    views: Sequence[View],
    folder: Path,
    show: bool,
) -> dict[bytes, str]:
    """Store missing features file by file; returns the errors of images without features, by digest."""
    width = model.backbone.feature_dim
    reasons = dict[bytes, str]()
    known = {view: set(_stored(_place(folder, view), width)[0]) for view in views}
    missing: dict[bytes, int] = {}
    for row, digest in enumerate(digests):
        if any(digest not in stored for stored in known.values()):
            missing.setdefault(digest, row)
    names = list(missing)
    training = model.training
    with progress_bar("embedding", len(names), "images", show=show and bool(names)) as advance:
        for start in range(0, len(names), _SHARD):
            chunk = names[start : start + _SHARD]
            made = {view: (list[bytes](), list[Vectors]()) for view in views}
            decoded = decode_ahead([images[missing[name]] for name in chunk], model.preprocessing)
            pairs = zip(chunk, decoded, strict=True)
            while batch := list(itertools.islice(pairs, _BATCH)):
                reasons |= {
                    name: item.reason for name, item in batch if isinstance(item, ImageError)
                }
                pixels = {name: item for name, item in batch if not isinstance(item, ImageError)}
                for view, (held, features) in made.items():
                    if lacking := [name for name in pixels if name not in known[view]]:
                        held += lacking
                        features.append(
                            _seen(model, np.stack([pixels[name] for name in lacking]), view)
                        )
                advance(len(batch))
            for view, (held, features) in made.items():
                if held:
                    _store(_place(folder, view), held, np.concatenate(features))
    model.train(training)
    return reasons


@torch.no_grad()
def _seen(model: Encoder, pixels: NDArray[np.uint8], view: View) -> Vectors:
    """The backbone's features [B, m] of pixels [B, H, W, C], in float32."""
    planes = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(model.device)
    x = model.eval().normalise(view.of(planes))
    if not x.is_cuda:
        x = x.contiguous(memory_format=torch.channels_last)
    features = model.backbone(x).float().cpu().numpy()
    if not np.isfinite(features).all():
        raise ModelError(f"the backbone {model.backbone.name} returned non-finite values")
    found: Vectors = features
    return found


def _store(folder: Path, digests: Sequence[bytes], features: Vectors) -> None:
    joined = b"".join(digests)
    arrays: dict[str, NDArray[Any]] = {
        "digests": np.frombuffer(joined, np.uint8).reshape(-1, _DIGEST),
        "features": features,
    }
    name = hashlib.blake2b(joined, digest_size=8).hexdigest()
    write_arrays(folder / f"{name}.safetensors", name="features", content={}, arrays=arrays)


def _stored(folder: Path, width: int) -> tuple[dict[bytes, int], Vectors]:
    """The row of each digest, and the features [N, width]. A damaged file is deleted and computed again later."""
    rows: dict[bytes, int] = {}
    tables = [np.zeros((0, width), np.float32)]
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            _, arrays = read_arrays(path, "features")
        except (ModelError, OSError):
            warnings.warn(f"{path} is damaged; its features are made again", stacklevel=2)
            path.unlink(missing_ok=True)
            continue
        rows |= {bytes(digest): total + row for row, digest in enumerate(arrays["digests"])}
        tables.append(arrays["features"])
        total += len(tables[-1])
    return rows, np.concatenate(tables)
