"""Qdrant's own index (HNSW): made by the server as vectors come in, waited for and measured here.

A server indexes a part of a collection when it has grown beyond a threshold (20 MB of vectors by default) and searches
the rest in full. ``build_indexes`` lowers the threshold until everything is indexed, then puts it back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fixstar.errors import GalleryError
from fixstar.gallery.qdrant.server import QdrantServer, StoredVersion
from fixstar.gallery.store import Hit, IndexState

__all__ = ["build_indexes", "index_states"]

_KIND = "qdrant hnsw"
_PAUSE = 0.5  # seconds between two looks
_CALM = 4  # looks without any work under way: the optimizer starts a moment after it is told to
_SAMPLE = 100
_NEAREST = 10


def index_states(server: QdrantServer, versions: list[StoredVersion]) -> list[IndexState]:
    """The indexes that there are."""
    states = []
    for version in versions:
        items = server.client.get_collection(version.collection).indexed_vectors_count or 0
        if items:
            states.append(IndexState(version.space.name, _KIND, items, version.fields.get("recall")))
    return states


def build_indexes(
    server: QdrantServer, versions: list[StoredVersion], search: Callable[..., list[list[Hit]]]
) -> list[IndexState]:
    """Have everything indexed, wait for it, and measure what it finds."""
    if server.is_engine:
        return []
    for version in versions:
        usual = server.client.get_collection(version.collection).config.optimizer_config.indexing_threshold
        _set_threshold(server, version, 1)
        try:
            _await(server, version)
        finally:
            _set_threshold(server, version, 20_000 if usual is None else usual)
        server.set_recall(version.space.name, _recall(server, version, search))
    names = [version.space.name for version in versions]
    return index_states(server, [stored for name, stored in server.versions().items() if name in names])


def _set_threshold(server: QdrantServer, version: StoredVersion, kilobytes: int) -> None:
    from qdrant_client import models

    settings = models.OptimizersConfigDiff(indexing_threshold=kilobytes)
    server.client.update_collection(version.collection, optimizers_config=settings)


def _await(server: QdrantServer, version: StoredVersion) -> None:
    calm = 0
    while calm < _CALM:
        info: Any = server.client.get_collection(version.collection)
        if info.status.value == "red":
            raise GalleryError(f"the server could not index {version.collection}: {info.optimizer_status}")
        if (info.indexed_vectors_count or 0) >= (info.points_count or 0) and info.status.value == "green":
            return
        calm = calm + 1 if info.status.value == "green" else 0
        time.sleep(_PAUSE)


def _recall(server: QdrantServer, version: StoredVersion, search: Callable[..., list[list[Hit]]]) -> float:
    """The share of the true 10 nearest that the index finds, asked with stored vectors."""
    sample, _ = server.client.scroll(version.collection, limit=_SAMPLE, with_vectors=True)
    if not sample:
        return 1.0
    queries = np.array([record.vector for record in sample], np.float32)
    name = version.space.name
    true, found = (search(name, queries, k=_NEAREST, versions=[name], exact=exact) for exact in (True, False))
    shared = sum(len({hit.id for hit in a} & {hit.id for hit in b}) for a, b in zip(true, found, strict=True))
    return shared / sum(map(len, true))
