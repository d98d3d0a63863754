"""The cross-test: every version's queries against every older version's gallery, giving the compatibility matrix.

Each version embeds the query and the gallery images once (``VersionFeatures``); all cells are then computed from
vectors alone. The gallery stays as it is, as in a real upgrade: it is always the query that is carried into the space
of the older version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar import geometry
from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation import compatibility
from fixstar.evaluation.search import PROTOCOLS

__all__ = ["CrossTest", "VersionFeatures", "cross_test"]

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class VersionFeatures:
    """The unit feature vectors that one version made of the query and of the gallery images.

    With ``projection`` P [d, m] they are short forms u = R h / |R h| (see ``fixstar.geometry``), [images, min(d, m)];
    without it, plain features.
    """

    name: str
    queries: Floats
    gallery: Floats
    projection: Floats | None = None

    def __post_init__(self) -> None:
        if self.queries.ndim != 2 or self.gallery.ndim != 2 or self.queries.shape[1] != self.gallery.shape[1]:
            seen = f"queries {self.queries.shape}, gallery {self.gallery.shape}"
            raise InputError(f"version {self.name!r} needs matrices [images, components] of one width; got {seen}")
        if self.projection is not None and min(self.projection.shape) != self.queries.shape[1]:
            raise InputError(
                f"version {self.name!r}: a projection {self.projection.shape} has short forms of "
                f"{min(self.projection.shape)} components, got {self.queries.shape[1]}. Pass plain features without it"
            )

    @property
    def width(self) -> int:
        """The components of the full feature: d."""
        return int(self.queries.shape[1] if self.projection is None else self.projection.shape[0])


@dataclass(frozen=True, eq=False)
class CrossTest:
    """``matrix[t, k]``: accuracy with queries by version t, gallery by version k; NaN where it was not measured.

    ``hits[t, k]`` holds the same cell query by query, for error bars and negative flips.
    """

    names: tuple[str, ...]
    protocol: str
    matrix: NDArray[np.float64]
    hits: dict[tuple[int, int], NDArray[np.bool_]]

    def summary(self) -> dict[str, float]:
        """AC, AA, ACA, BC and FC of the matrix."""
        return compatibility.summary(self.matrix)


def cross_test(
    versions: Sequence[VersionFeatures],
    query_labels: Labels,
    gallery_labels: Labels,
    protocol: str = "template",
    upper: bool = False,
    progress: Callable[[int, int], object] | None = None,
    *,
    shared_components: bool = False,
) -> CrossTest:
    """Measure every cell C[t, k], t >= k (eq. 7 of HOC), oldest version first.

    ``upper`` adds t < k: old queries on newer galleries. ``progress(done, total)`` is called after each cell. Versions
    whose full features differ in width cannot be compared (the dashes of table 7), unless ``shared_components`` says
    to use the first components that both have, as BCT does; the others then count as zero.

    >>> features = np.eye(2)
    >>> old, new = VersionFeatures("v1", features, features), VersionFeatures("v2", features, features)
    >>> cross_test([old, new], np.array([0, 1]), np.array([0, 1])).matrix
    array([[ 1., nan],
           [ 1.,  1.]])
    """
    _check(versions, protocol, shared_components)
    search = PROTOCOLS[protocol]
    bases = [geometry.short_basis(version.projection) for version in versions]  # one factorisation a version
    T = len(versions)
    cells = [(t, k) for t in range(T) for k in range(T if upper else t + 1)]
    matrix = np.full((T, T), np.nan)
    hits = {}
    for done, (t, k) in enumerate(cells, start=1):
        queries = versions[t].queries
        if t != k:
            queries = geometry.carry(queries, bases[t], bases[k], versions[k].width)
        hits[t, k] = search(queries, query_labels, versions[k].gallery, gallery_labels)
        matrix[t, k] = hits[t, k].mean()
        if progress is not None:
            progress(done, len(cells))
    return CrossTest(tuple(version.name for version in versions), protocol, matrix, hits)


def _check(versions: Sequence[VersionFeatures], protocol: str, shared_components: bool) -> None:
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    if not versions:
        raise InputError("a cross-test needs at least one version")
    names = [version.name for version in versions]
    if len(set(names)) < len(names):
        raise InputError(f"every version needs its own name, got {', '.join(names)}")
    widths = {version.name: version.width for version in versions}
    if len(set(widths.values())) > 1 and not shared_components:
        seen = ", ".join(f"{name} {width}" for name, width in widths.items())
        raise InputError(
            f"versions of different feature width cannot be compared ({seen}). "
            "Pass shared_components=True to compare over the first components that both have"
        )
