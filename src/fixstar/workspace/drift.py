"""Drift: stored images as an older and a newer version place them, drawn in one plane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, zip_longest
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError, NextStep
from fixstar.gallery import Item
from fixstar.geometry import unit
from fixstar.images import Decode
from fixstar.workspace.items import LABEL, ImageStore, LocalEmbedder
from fixstar.workspace.search import Serving

LOOKED_AT = 5000  # maximum number of stored items to sample from


class DriftPoint(NamedTuple):
    """A stored item, its position by the old and by the new version, and 1 minus the cosine of the two vectors."""

    item: Item
    old: tuple[float, float]
    new: tuple[float, float]
    moved: float


def drift_map(
    serving: Serving, old: str, new: str, limit: int = 200, decode: Decode | None = None
) -> list[DriftPoint]:
    """Stored items as two versions embed them, on their joint two principal components; largest drift first."""
    counts = serving.gallery.count()
    if counts.get(old, 0) >= counts.get(new, 0):
        stored = old
        made = new
    else:
        stored = new
        made = old
    sample = _sample(serving, stored, limit)
    if not sample:
        return []
    images = ImageStore(serving.path, serving.registry.reads())
    sources = [path for item in sample if (path := images.original(item)) is not None]
    vectors, bad = LocalEmbedder(serving.encoder(made), decode).one(sources)
    unread = {one.index for one in bad}
    items = [item for row, item in enumerate(sample) if row not in unread]
    by_version = {stored: np.stack([item.vector for item in items]), made: vectors}
    carried = serving.in_space_of(old, new, by_version[new])
    if carried is None:
        raise GalleryError(
            f"nothing connects the models of {old} and {new}: their vectors cannot be shown in one plane",
            NextStep("check", {"version": new}, "fits a translation"),
        )
    before = unit(np.asarray(by_version[old], np.float64))
    after = unit(np.asarray(carried, np.float64))
    places = _plane(np.concatenate([before, after]))
    moved = 1 - (before * after).sum(axis=1)
    points = [
        DriftPoint(
            item=item,
            old=_pair(places[row]),
            new=_pair(places[len(items) + row]),
            moved=float(moved[row]),
        )
        for row, item in enumerate(items)
    ]
    return sorted(points, key=lambda point: -point.moved)


def _sample(serving: Serving, version: str, limit: int) -> list[Item]:
    """Items of a version with an available image: one per label, then a second per label, and so on."""
    images = ImageStore(serving.path, serving.registry.reads())
    by_label: dict[Any, list[Item]] = {}
    with closing(cast(Any, serving.gallery.iterate(version))) as source:
        for _, item in zip(range(LOOKED_AT), cast(Iterator[Item], source), strict=False):
            if images.original(item) is not None:
                by_label.setdefault(item.payload.get(LABEL), []).append(item)
    rounds = chain.from_iterable(zip_longest(*by_label.values()))
    return [item for item in rounds if item is not None][:limit]


def _plane(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows [N, s] projected on their two principal components, [N, 2]."""
    centred = vectors - vectors.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    return np.pad(centred @ axes[:2].T, ((0, 0), (0, 2 - min(2, len(axes)))))


def _pair(place: Sequence[float]) -> tuple[float, float]:
    return float(place[0]), float(place[1])
