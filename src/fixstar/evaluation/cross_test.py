"""The cross-test: every version's queries against every older version's gallery, giving the compatibility matrix.

Each version embeds the query and the gallery images once (``VersionFeatures``); all cells are then computed from
vectors alone. The gallery stays as it is, as in a real upgrade: it is always the query that is carried into the space
of the older version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar import geometry
from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation import compatibility
from fixstar.evaluation.search import PROTOCOLS, refuse_zero_rows, searcher

__all__ = ["CrossTest", "VersionFeatures", "cross_test"]

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]
Search = Callable[[Floats, Labels], NDArray[np.bool_]]


@dataclass(frozen=True, eq=False)
class VersionFeatures:
    """The unit feature vectors that one version made of the query and of the gallery images.

    With ``projection`` P [d, m] they are short forms u = R h / |R h| (see ``fixstar.geometry``), [images, min(d, m)];
    without it, plain features. ``adapt``, for methods that move the gallery instead of bridging (FAN), carries vectors
    [images, width of the predecessor] stored under the predecessor into this version's space [images, width].

    ``parts``, where they are known, are the widths of the simplices that the full feature is made of. A version whose
    first parts are all of another's has grown from its space: the other's features are exactly zero in the rest, and
    the two can be compared although their widths differ.
    """

    name: str
    queries: Floats
    gallery: Floats
    projection: Floats | None = None
    adapt: Callable[[Floats], Floats] | None = None
    parts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.queries.ndim != 2 or self.gallery.ndim != 2 or self.queries.shape[1] != self.gallery.shape[1]:
            seen = f"queries {self.queries.shape}, gallery {self.gallery.shape}"
            raise InputError(f"version {self.name!r} needs matrices [images, components] of one width; got {seen}")
        if self.projection is not None and min(self.projection.shape) != self.queries.shape[1]:
            raise InputError(
                f"version {self.name!r}: a projection {self.projection.shape} has short forms of "
                f"{min(self.projection.shape)} components, got {self.queries.shape[1]}. Pass plain features without it"
            )
        if self.parts and sum(self.parts) != self.width:
            raise InputError(f"version {self.name!r}: parts {self.parts} do not make a feature of width {self.width}")
        for which in ("queries", "gallery"):
            refuse_zero_rows(getattr(self, which), f"{which} of version {self.name!r}")

    @property
    def width(self) -> int:
        """The components of the full feature: d."""
        return int(self.queries.shape[1] if self.projection is None else self.projection.shape[0])

    def meets(self, other: VersionFeatures) -> bool:
        """Whether cosines with another version are exact as they are: one width, or one grown from the other."""
        shared = min(len(self.parts), len(other.parts))
        return self.width == other.width or (shared > 0 and self.parts[:shared] == other.parts[:shared])

    def moved(self, vectors: Floats) -> Floats:
        """Vectors stored under the predecessor, in this version's space; as they are where it has no ``adapt``."""
        if self.adapt is None:
            return vectors
        found = np.asarray(self.adapt(vectors))
        if found.shape != (len(vectors), self.width):
            raise InputError(
                f"adapt of version {self.name!r} made {found.shape} of {vectors.shape}; "
                f"it must return one vector of {self.width} components for each it is given"
            )
        return found


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
    device: str | None = None,
) -> CrossTest:
    """Measure every cell C[t, k], t >= k (eq. 7 of HOC), oldest version first.

    ``upper`` adds t < k: old queries on newer galleries. ``progress(done, total)`` is called after each cell. Versions
    whose full features differ in width cannot be compared (the dashes of table 7), unless one has grown from the other
    (``VersionFeatures.parts``), or ``shared_components`` says to use the first components that both have, as BCT does;
    the others then count as zero.

    A version with ``adapt`` moves the stored galleries of all older versions, as adapted so far, into its own space
    before its row is measured; its queries meet them there directly. Cells t < k use the gallery as version k made it.
    ``device`` names a torch device to search on, such as "cuda", or "auto"; without one, NumPy searches.

    >>> features = np.eye(2)
    >>> old, new = VersionFeatures("v1", features, features), VersionFeatures("v2", features, features)
    >>> cross_test([old, new], np.array([0, 1]), np.array([0, 1])).matrix
    array([[ 1., nan],
           [ 1.,  1.]])
    """
    _check(versions, protocol, shared_components, upper)
    find = partial(
        searcher, protocol, gallery_labels=gallery_labels, device=device
    )  # prepares a gallery once for all its cells
    made = [_Stored(v.gallery, geometry.short_basis(v.projection), v.width, find(v.gallery)) for v in versions]
    T = len(versions)
    total = T * T if upper else T * (T + 1) // 2
    matrix = np.full((T, T), np.nan)
    hits = {}
    stored: list[_Stored] = []  # the galleries up to version t, as adapted so far
    for t, version in enumerate(versions):
        stored = [*_adapted(stored, version, find), made[t]]
        for k, gallery in enumerate(stored + made[t + 1 :] if upper else stored):
            queries = version.queries
            if t != k:
                queries = geometry.carry(queries, made[t].basis, gallery.basis, gallery.width)
            hits[t, k] = gallery.search(queries, query_labels)
            matrix[t, k] = hits[t, k].mean()
            if progress is not None:
                progress(len(hits), total)
    return CrossTest(tuple(version.name for version in versions), protocol, matrix, hits)


@dataclass(frozen=True, eq=False)
class _Stored:
    """A gallery [M, s] as it is stored now, the basis Q [d, s] of its short form, the width d of its space."""

    vectors: Floats
    basis: Floats | None
    width: int
    search: Search


def _adapted(stored: list[_Stored], version: VersionFeatures, find: Callable[[Floats], Search]) -> list[_Stored]:
    """The galleries of the older versions in the space of ``version``, where it has a way to take them there."""
    if version.adapt is None:
        return stored
    galleries = [version.moved(gallery.vectors) for gallery in stored]
    return [_Stored(vectors, None, version.width, find(vectors)) for vectors in galleries]


_OTHER_MEASURES = (
    'Other measures (rank5, knn10, map, map100, verification): cross_test_by("rank5", versions, query_labels, '
    "gallery_labels)"
)


def _check(versions: Sequence[VersionFeatures], protocol: str, shared_components: bool, upper: bool) -> None:
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS, _OTHER_MEASURES)
    if not versions:
        raise InputError("a cross-test needs at least one version")
    names = [version.name for version in versions]
    if len(set(names)) < len(names):
        raise InputError(f"every version needs its own name, got {', '.join(names)}")
    _check_adapters(versions)
    if not shared_components and not _all_meet(versions, upper):
        seen = ", ".join(f"{version.name} {version.width}" for version in versions)
        raise InputError(
            f"versions of different feature width cannot be compared ({seen}). "
            "Pass shared_components=True to compare over the first components that both have"
        )


def _all_meet(versions: Sequence[VersionFeatures], upper: bool) -> bool:
    """Whether each row's queries meet its galleries; those before an ``adapt`` were moved into its version's space."""
    for t, version in enumerate(versions):
        for k in range(t - 1, -1, -1):
            if versions[k + 1].adapt is not None and not upper:
                break
            if not version.meets(versions[k]):
                return False
    return True


def _check_adapters(versions: Sequence[VersionFeatures]) -> None:
    last = max((t for t, version in enumerate(versions) if version.adapt is not None), default=-1)
    short = [version.name for version in versions[: last + 1] if version.projection is not None]
    if short:
        raise InputError(
            f"adapt moves plain features, but {', '.join(short)} came as short forms under a projection. "
            "Pass their full features, without projection"
        )
