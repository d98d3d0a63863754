"""Queries of one version in another version's space, for galleries whose vectors are searched by a server.

A query of version t meets the vectors of version k through one small matrix, B = Q_t^T Q_k, made once for each pair
(``geometry.carry``). Versions never change, so what was made stays good.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fixstar.gallery.store import VersionSpace
from fixstar.geometry import carry, short_basis

__all__ = ["Bridges"]


class Bridges:
    """Bases and bridges of versions, made when they are first needed. Threads may share it.

    ``projection`` gives P [d, m] of a version by its name, None where its vectors are full features.
    """

    def __init__(self, projection: Callable[[str], NDArray[np.float32] | None]) -> None:
        self._projection = projection
        self._bases: dict[str, NDArray[np.float64] | None] = {}
        self._bridges: dict[tuple[str, str], NDArray[np.float64]] = {}

    def carried(self, queries: NDArray[np.float32], source: VersionSpace, target: VersionSpace) -> NDArray[np.float64]:
        """Queries [N, source width] as [N, target width]; dot products there are cosines of full features."""
        wide = queries.astype(np.float64)
        if source.name == target.name:
            return wide
        old, new = self._basis(source.name), self._basis(target.name)
        if old is None or new is None:
            return carry(wide, old, new, target.full_width)
        pair = source.name, target.name
        if pair not in self._bridges:
            self._bridges[pair] = carry(np.eye(source.width), old, new, target.full_width)
        return wide @ self._bridges[pair]

    def _basis(self, name: str) -> NDArray[np.float64] | None:
        """Q [d, s] of a version."""
        if name not in self._bases:
            projection = self._projection(name)
            self._bases[name] = None if projection is None else short_basis(projection.astype(np.float64))
        return self._bases[name]
