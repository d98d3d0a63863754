"""A gallery in memory: plain NumPy, exact, the reference for every other one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fixstar.errors import GalleryError
from fixstar.gallery.store import Hit, Payload, Vectors
from fixstar.geometry import carry, short_basis

__all__ = ["MemoryGallery"]


@dataclass
class _Collection:
    """The vectors of one version; row i belongs to ids[i]."""

    width: int
    basis: Vectors | None  # Q [d, s] of the short form
    ids: list[str] = field(default_factory=list)
    vectors: Vectors = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    @property
    def full_width(self) -> int:
        return self.width if self.basis is None else len(self.basis)


class MemoryGallery:
    """See ``Gallery``. Nothing is kept when the process ends."""

    def __init__(self) -> None:
        self._collections: dict[str, _Collection] = {}
        self._payloads: dict[str, Payload] = {}

    def create_version(self, name: str, width: int, projection: Vectors | None = None) -> None:
        """Make room for vectors of a version."""
        if name in self._collections:
            raise GalleryError(f"the gallery has a version {name!r} already; versions never change, choose a new name")
        if projection is not None and width != min(projection.shape):
            raise GalleryError(f"short forms under a projection {projection.shape} are {min(projection.shape)} wide")
        self._collections[name] = _Collection(width, short_basis(projection), vectors=np.zeros((0, width), np.float32))

    def upsert(
        self, version: str, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload] | None = None
    ) -> None:
        """Store unit vectors of a version, all or none."""
        collection = self._collection(version)
        vectors = _checked(vectors, collection.width, version)
        payloads = [{}] * len(ids) if payloads is None else payloads
        if not len(ids) == len(vectors) == len(payloads) or len(set(ids)) != len(ids):
            raise GalleryError(
                f"upsert takes one vector and one payload for each of distinct ids; got {len(ids)} ids "
                f"({len(set(ids))} distinct), {len(vectors)} vectors, {len(payloads)} payloads"
            )
        self.delete(ids)
        collection.ids.extend(ids)
        collection.vectors = np.concatenate([collection.vectors, vectors.astype(np.float32)])
        self._payloads.update(zip(ids, payloads, strict=True))

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items; how many there were."""
        gone = set(ids) & self._payloads.keys()
        for collection in self._collections.values() if gone else ():
            kept = [i for i, item in enumerate(collection.ids) if item not in gone]
            collection.ids = [collection.ids[i] for i in kept]
            collection.vectors = collection.vectors[kept]
        for item in gone:
            del self._payloads[item]
        return len(gone)

    def count(self) -> dict[str, int]:
        """The number of items by version."""
        return {name: len(collection.ids) for name, collection in self._collections.items()}

    def search(self, version: str, queries: Vectors, k: int = 10) -> list[list[Hit]]:
        """The k nearest items of each query over all versions, best first; equal scores in the order of insertion."""
        source = self._collection(version)
        queries = _checked(queries, source.width, version)
        found = [(name, target, _carried(queries, source, target) @ target.vectors.T) for name, target in self._live()]
        if not found or k < 1:
            return [[] for _ in queries]
        scores = np.concatenate([part for _, _, part in found], axis=1)
        owners = [(item, name) for name, target, _ in found for item in target.ids]
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return [
            [Hit(owners[j][0], float(row[j]), owners[j][1], self._payloads[owners[j][0]]) for j in best]
            for row, best in zip(scores, order, strict=True)
        ]

    def _live(self) -> list[tuple[str, _Collection]]:
        return [(name, collection) for name, collection in self._collections.items() if collection.ids]

    def _collection(self, version: str) -> _Collection:
        if version not in self._collections:
            known = ", ".join(self._collections) or "none yet"
            raise GalleryError(f"the gallery has no version {version!r} (it has: {known}); create_version it first")
        return self._collections[version]


def _carried(queries: Vectors, source: _Collection, target: _Collection) -> Vectors:
    """Queries in the target's space, where dot products are cosines of full features."""
    return queries if source is target else carry(queries, source.basis, target.basis, target.full_width)


def _checked(vectors: Vectors, width: int, version: str) -> Vectors:
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise GalleryError(f"version {version!r} has vectors of {width} numbers, got an array {vectors.shape}")
    lengths = np.linalg.norm(vectors, axis=1)
    if wrong := np.flatnonzero(~(np.abs(lengths - 1) < 1e-3)).tolist():
        raise GalleryError(f"vectors must be of length 1; number {wrong[0]} has length {lengths[wrong[0]]:.4g}")
    return vectors
