"""What every gallery does, whatever it stores its vectors in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Gallery", "Hit", "Payload", "Vectors"]

Vectors = NDArray[np.floating[Any]]
Payload = Mapping[str, Any]


class Hit(NamedTuple):
    """One result: the item, its exact cosine, the version whose vector was found, and the item's payload."""

    id: str
    score: float
    version: str
    payload: Payload


class Gallery(Protocol):
    """Vectors by version. An item has one vector, made by one version; upserting it under another version moves it."""

    def create_version(self, name: str, width: int, projection: Vectors | None = None) -> None:
        """Make room for vectors of a version: ``width`` numbers each, short forms where ``projection`` is given."""

    def upsert(
        self, version: str, ids: Sequence[str], vectors: Vectors, payloads: Sequence[Payload] | None = None
    ) -> None:
        """Store unit vectors [N, width] of a version, all or none."""

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items; how many there were."""

    def count(self) -> dict[str, int]:
        """The number of items by version."""

    def search(self, version: str, queries: Vectors, k: int = 10) -> list[list[Hit]]:
        """The k nearest items of each query [N, width of ``version``] among the vectors of all versions, best first."""
